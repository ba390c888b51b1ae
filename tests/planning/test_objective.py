"""The largest error as objective, and the batch's own OPTIONS as its budget, from connection and command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import filled, unwrapped

import dpsql
from dpsql.errors import BudgetError, DataError, SQLError
from dpsql.planning.options import PlanOptions
from dpsql.planning.prepare import Chooser, no_worse_than_one_by_one, one_by_one_strategy, prepare
from dpsql.running.earlier.same_question import reuse_key
from dpsql.strategies.choose import minimax
from dpsql.strategy import Strategy
from dpsql.surfaces.cli import main

POLICY = """
dataset = "o-1"
[budget]
epsilon = 8.0
delta = 1e-9
pure_epsilon = 0.6
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b", "c"] }
k = { lower = 0, upper = 93, nulls = false }
v = { lower = 0, upper = 1000 }
"""
BATCH = """
SELECT count(*) AS n FROM t;
CREATE VIEW by_g AS SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g;
CREATE VIEW early AS SELECT count_if(k < 10) AS a, count_if(k < 50) AS b, count_if(k >= 40) AS c FROM t;
"""
OPTIONS = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 0.5{0}) count(*) AS n FROM t WHERE k < 10"


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    with filled(tmp_path / "o.duckdb") as duck:
        rows = "SELECT 'a' AS g, (i % 94)::INTEGER AS k, i AS v"
        duck.execute(f"CREATE TABLE t AS {rows} FROM range(300) r(i)")
    (tmp_path / "o.toml").write_text(POLICY, encoding="utf-8")
    return dpsql.connect(tmp_path / "o.duckdb", policy=tmp_path / "o.toml")


def weighted(plan: dpsql.Plan) -> Any:
    """Standard errors in the units that are compared: sums by their sensitivity, weights as hints say."""
    compiled = plan.compiled
    return (plan.errors * compiled.objective / compiled.scale)[compiled.answered]


@pytest.mark.parametrize("budget", [(1.0, 1e-9), (1.0, None)], ids=["gaussian", "laplace"])
@pytest.mark.few("gaussian")
def test_the_largest_error_of_a_batch_is_least(con: dpsql.Connection, budget: tuple[float, float | None]) -> None:
    total, least = (con.plan(BATCH, *budget, objective=objective) for objective in ("total", "max"))
    assert total.strategy.objective == "total"
    assert least.strategy.objective == "max"
    if total.charge.noise == least.charge.noise:
        assert weighted(least).max() <= weighted(total).max() * (1 + 1e-9)
    sigma = np.sqrt(least.charge.unit_variance * least.strategy.value)
    assert weighted(least).max() == pytest.approx(sigma, rel=0.02)
    if least.charge.noise == "gaussian":
        assert least.gap is None
        assert "a smaller largest error may be possible; no proof says how much smaller" in unwrapped(least)
    with pytest.raises(DataError, match="'total', 'max'"):
        con.plan(BATCH, *budget, objective="sum")


PURE = """
SELECT g, count(*) AS n FROM t GROUP BY g;
SELECT k // 30 AS part, count(*) AS n, sum(v) AS s FROM t GROUP BY part
"""
LARGE = (
    f"{PURE}; SELECT count(*) AS n FROM t WHERE k BETWEEN 3 AND 20",
    "SELECT g, avg(v) AS m FROM t GROUP BY g; SELECT k, count(*) AS n FROM t WHERE k < 50 GROUP BY k",
    "SELECT g, count(*) AS n, avg(v) AS m FROM t GROUP BY g; SELECT count(*) AS n FROM t WHERE k < 30",
)


def _no_plan_beats(con: dpsql.Connection, batch: str) -> None:
    """Under the objectives that are not certified no plan of another one is better."""
    plans = {name: con.plan(batch, epsilon=0.1, objective=name) for name in ("max", "total", "balanced")}
    asked = plans["total"].compiled
    squares = {name: (plan.errors * asked.objective / asked.scale) ** 2 for name, plan in plans.items()}
    assert all(plan.charge.noise == "laplace" for plan in plans.values())
    assert squares["max"].max() <= (1 + 1e-6) * min(square.max() for square in squares.values())
    assert squares["total"].sum() <= (1 + 1e-6) * min(square.sum() for square in squares.values())


@pytest.mark.long
def test_pure_plans_of_an_objective_are_no_worse_than_those_of_another(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimax, "_ROUNDS", 0)  # as where the search for the largest error gains nothing
    _no_plan_beats(con, PURE)


@pytest.mark.long
@pytest.mark.parametrize("batch", LARGE)
def test_pure_plans_of_larger_batches_are_no_worse_than_those_of_another(con: dpsql.Connection, batch: str) -> None:
    _no_plan_beats(con, batch)


def test_a_weight_counts_in_the_largest_error(con: dpsql.Connection) -> None:
    batch = "SELECT {0} count_if(k < 10) AS a FROM t; SELECT count_if(k < 50) AS b, count_if(k >= 40) AS c FROM t"
    plain = con.plan(batch.format(""), 1.0, 1e-9, objective="max")
    heavy = con.plan(batch.format("/*+ WEIGHT(3) */"), 1.0, 1e-9, objective="max")
    assert heavy.errors[0] < plain.errors[0]
    assert weighted(heavy).max() == pytest.approx(3 * heavy.errors[0], rel=0.05)


@pytest.mark.parametrize("objective", ["balanced", "total", "max"])
def test_weights_at_both_ends_of_their_range_are_planned(con: dpsql.Connection, objective: str) -> None:
    batch = "SELECT /*+ WEIGHT(1e6) */ count(*) AS n FROM t WHERE k < 10; "
    batch += "SELECT /*+ WEIGHT(1e-6) */ g, count(*) AS n FROM t GROUP BY g"
    plan = con.plan(batch, 1.0, 1e-9, objective=objective)
    assert np.isfinite(plan.errors).all()
    assert np.argmin(plan.errors) == 0


@pytest.mark.long
def test_another_objective_is_another_question(con: dpsql.Connection) -> None:
    plans = [con.plan(BATCH, 0.5, 1e-9, objective=objective) for objective in (None, "balanced", "total", "max")]
    keys = [reuse_key(plan, True) for plan in plans]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    first = con.run(BATCH, 0.5, 1e-9)
    batch = BATCH.replace("CREATE", "CREATE OR REPLACE")
    again = con.run(batch, 0.5, 1e-9, objective="max", fresh=True)
    assert first.cost > 0
    assert again.cost > 0
    assert con.run(batch, 0.5, 1e-9, objective="max").id == again.id != first.id


def test_a_plan_says_what_is_worse_than_alone(con: dpsql.Connection) -> None:
    """The total counts numbers, so that one number pays for 94; the balanced objective counts columns."""
    batch = (
        "SELECT sum(v) AS s FROM t; SELECT k, count(*) AS n FROM t GROUP BY k; SELECT g, sum(v) AS s FROM t GROUP BY g"
    )
    total, balanced = (con.plan(batch, 1.0, 1e-9, objective=objective) for objective in ("total", "balanced"))
    worse = [row for row in total.rows() if row["stderr"] > 1.02 * row["naive_stderr"]]
    assert worse
    for row in worse:
        assert (
            f"{row['result']}.{row['column']} ({row['stderr'] / row['naive_stderr']:.2f} times the error)"
            in unwrapped(total)
        )
    assert "smaller errors would result" in unwrapped(total)
    assert "smaller errors would result" not in unwrapped(balanced)


@pytest.mark.parametrize(
    ("worst", "other", "rounds"),
    [
        ([1.3, 1.29, 1.0], 0.2, 1),
        ([1.3, 1.2, 1.1, 1.0], 0.2, 3),
        ([1.3, 1.5, 1.0], 0.2, 2),
        ([1.3, 1.0], 1.03, 0),  # worse on the mean: one by one first
    ],
)
@pytest.mark.few(every=2)
def test_rounds_end_where_none_would_make_the_worst_column_good(
    worst: list[float], other: float, rounds: int, con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``worst``: of one column at first and after each round, one by one last where rounds end without it."""
    plan = con.plan("SELECT count(*) AS n FROM t; SELECT k, count(*) AS n FROM t GROUP BY k", 0.5)
    assert plan.origin is not None
    left, methods = iter(worst), list[str]()

    def strategy(_: Chooser, noise: str, options: PlanOptions, method: str) -> Strategy:
        methods.append(method)
        return plan.strategy

    monkeypatch.setattr(Chooser, "strategy", strategy)
    monkeypatch.setattr(Chooser, "beside", lambda *_: np.array([next(left), other]))
    no_worse_than_one_by_one(plan.origin.prepared, plan.strategy, PlanOptions())
    assert len([method for method in methods if method != "workload"]) == rounds
    assert len(methods) == len(worst) - 1


def test_options_are_the_budget_of_the_batch(con: dpsql.Connection) -> None:
    for plan in (con.plan(OPTIONS.format("")), con.plan(OPTIONS.format(""), 0.5), con.plan(OPTIONS.format(""), "0.5")):
        assert plan.charge.guarantee == "epsilon 0.5 (pure)"
    plan = con.plan(OPTIONS.format(", delta = 1e-9"))
    assert "delta 1e-9" in plan.charge.guarantee or plan.charge.noise == "laplace"
    plain = con.plan("SELECT count(*) AS n FROM t WHERE k < 10", 0.5)
    assert np.array_equal(con.plan(OPTIONS.format("")).errors, plain.errors)
    release = con.run(OPTIONS.format(""))
    assert release.views == ("q1",)
    with pytest.raises(DataError, match=r"0\.4 in the call and 0\.5"):
        con.plan(OPTIONS.format(""), 0.4)
    with pytest.raises(DataError, match="rho"):
        con.plan(OPTIONS.format(""), rho=0.1)
    with pytest.raises(BudgetError):
        con.run(OPTIONS.replace("0.5", "50").format(""))


def test_options_are_held_against_the_policy(con: dpsql.Connection) -> None:
    with pytest.raises(SQLError, match=r"single rows of t .*line 2, column 8"):
        con.plan("SELECT count(*) FROM t;\n" + OPTIONS.format(", privacy_unit_column = v"))
    with pytest.raises(SQLError, match="did you mean epsilon"):
        con.plan("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilom = 1) count(*) FROM t")
    with pytest.raises(SQLError, match="write COUNT"):
        con.plan("SELECT ANON_COUNT(*) FROM t", 1.0)


def test_the_command_line(tmp_path: Path, con: dpsql.Connection, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--policy", str(tmp_path / "o.toml"), "--database", str(tmp_path / "o.duckdb"), "--quiet"]
    assert main(["plan", "--sql", BATCH, "--epsilon", "1", "--delta", "1e-9", "--objective", "max", *places]) == 0
    assert "a smaller largest error may be possible" in capsys.readouterr().out
    assert main(["plan", "--sql", OPTIONS.format(""), "--json", *places]) == 0
    assert "0.5" in json.dumps(json.loads(capsys.readouterr().out))
    with pytest.raises(SystemExit):
        main(["plan", "--sql", "SELECT count(*) FROM t", *places])
    assert "budget is missing" in capsys.readouterr().err


@pytest.mark.long
def test_a_draft_that_cannot_be_rounded_leaves_its_place(con: dpsql.Connection) -> None:
    """A union of parts hardly measures what its finest part gives: in integers it would lose its rank."""
    batch = (
        "SELECT g, k % 3 AS j, 3 * COUNT_IF(k > 20) - 2 * COUNT_IF(g = 'a') + 0.5 * SUM(v) FROM t GROUP BY CUBE (g, j)"
    )
    plan = con.plan(batch, 0.5)
    assert plan.charge.noise == "laplace"
    assert np.isfinite(plan.errors).all()


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_one_by_one_is_a_plan_of_any_units(noise: str, tmp_path: Path) -> None:
    """Also of those whose contributions are too many to be listed: 14 groups, of which one may be in any four."""
    policy = dpsql.Policy.parse(
        'dataset = "u-1"\n[budget]\nepsilon = 8.0\n[tables.v]\nunit = "id"\nmax_rows_per_unit = 4\n[tables.v.columns]\n'
        "k = { lower = 1, upper = 14, nulls = false }\nc = { lower = 0, upper = 900, nulls = false }\n"
    )
    batch = (
        "SELECT k, COUNT(DISTINCT id) AS n FROM v GROUP BY k; SELECT COUNT(*), SUM(c) FROM v; "
        "SELECT k, AVG(c) FROM v WHERE c > 9 GROUP BY k"
    )
    with duckdb.connect() as duck:
        duck.execute("CREATE TABLE v (id INTEGER, k INTEGER, c INTEGER)")
        schemas = dpsql.connect(duck, policy=policy, ledger=tmp_path / "u.ledger").schemas()
    prepared = prepare(batch, policy, schemas)
    assert not prepared.compiled.units.listable
    found = one_by_one_strategy(prepared, noise, PlanOptions(objective="balanced"))
    beside = prepared.weighed(noise, "balanced").chooser.beside(found)
    assert beside.max() <= 1.001


@pytest.mark.parametrize(("budget", "power", "upper"), [("rho", 1.0, 30), ("epsilon", 2.0, 14)])
@pytest.mark.few("rho-1.0-30")
def test_a_quantile_is_one_column_beside_others(budget: str, power: float, upper: int, tmp_path: Path) -> None:
    policy = dpsql.Policy.parse(
        f'dataset = "m-1"\n[budget]\n{budget} = 8.0\n[tables.v]\nunit = "row"\n[tables.v.columns]\n'
        f"g = {{ lower = 1, upper = 3, nulls = false }}\nk = {{ lower = 0, upper = {upper}, nulls = false }}\n"
    )
    squares: list[dict[bool, float]] = []  # of the numbers of an average, and of the counts of a quantile
    with duckdb.connect() as duck:
        duck.execute("CREATE TABLE v (g INTEGER, k INTEGER)")
        con = dpsql.connect(duck, policy=policy, ledger=tmp_path / "m.ledger")
        for asked in ("AVG(k), MEDIAN(k)", "AVG(k)", "MEDIAN(k)"):
            plan = con.plan(f"SELECT g, {asked} FROM v GROUP BY g", **{budget: 0.5})
            held: dict[bool, list[float]] = {True: [], False: []}
            for span in plan.compiled.spans:
                held[bool(span.output.part_of)].append(plan.mean_square(slice(span.start, span.stop)))
            squares.append({ranked: float(np.mean(found)) for ranked, found in held.items() if found})
            ratios = plan.errors**2 / plan.naive_errors**2
            assert np.mean(ratios) < 1.05
    # A count, a sum and the quantile share the budget: two parts of three, and one.
    assert squares[0][False] < 1.25 * squares[1][False] * 1.5**power
    assert squares[0][True] < 1.25 * squares[2][True] * 3**power
