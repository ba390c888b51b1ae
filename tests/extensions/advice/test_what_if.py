"""Error against budget, marginal costs against planning without a statement, and suggestions against planning them."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import numpy as np
import pytest
from helpers import filled, settled

import dpsql
from dpsql.errors import DataError
from dpsql.extensions.advice.suggestions import suggest
from dpsql.extensions.advice.what_if import costs, saved_amount
from dpsql.extensions.advice.what_if_text import costs_text

POLICY = """
dataset = "w-1"
[budget]
{0}
[tables.t]
unit = "person"
max_rows_per_unit = 4
[tables.t.columns]
g = {{ values = ["a", "b", "c", "d", "e", "f", "g", "h"], nulls = false }}
k = {{ lower = 0, upper = 19, nulls = false }}
v = {{ lower = 0, upper = 1000, step = 1, nulls = false }}
w = {{ lower = -10, upper = 10, step = 1, nulls = false }}
person = {{}}
"""
STATEMENTS = {
    "total": "CREATE VIEW total AS SELECT count(*) AS n FROM t",
    "by_g": "CREATE VIEW by_g AS SELECT g, count(*) AS n FROM t GROUP BY g",
    "by_k": "CREATE VIEW by_k AS SELECT k, count(*) AS n FROM t GROUP BY k",
    "sums": "CREATE VIEW sums AS SELECT sum(v) AS v, sum(w) AS w FROM t",
}
BATCH = ";\n".join(STATEMENTS.values())


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    return connected(tmp_path, "rho = 0.5")


def connected(folder: Path, budget: str) -> dpsql.Connection:
    with filled(folder / "t.duckdb") as duck:
        columns = "'a' AS g, (i % 20)::INTEGER AS k, i % 1000 AS v, i % 10 AS w, i AS person"
        duck.execute(f"CREATE TABLE t AS SELECT {columns} FROM range(500) r(i)")
    policy = dpsql.Policy.parse(POLICY.format(budget))
    return settled(dpsql.connect(folder / "t.duckdb", policy=policy, ledger=folder / "t.ledger"))


def comparable(plan: dpsql.Plan, name: str) -> np.ndarray:
    """Squared errors of one result in the units in which they are compared."""
    compiled, names = plan.compiled, [query.name for query in plan.queries]
    squares = (plan.errors * compiled.objective / compiled.scale) ** 2
    (_, slices) = plan.cores[names.index(name)]
    return np.concatenate([squares[part] for part in slices])


# -- the curve --------------------------------------------------------------------------------------------


def test_every_point_is_what_planning_there_gives(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, rho=0.1)
    curve = plan.curve(points=5, span=9)
    assert curve.columns == ("rho", "allowed", "result", "column", "stderr", "half_width")
    assert len(curve) == 5 * 5
    amounts = sorted({row[0] for row in curve})
    assert amounts == pytest.approx([0.1 / 9, 0.1 / 3, 0.1, 0.3, 0.9])
    for amount in (amounts[0], 0.1, amounts[3]):
        there = con.plan(BATCH, rho=amount)
        found = {(row[2], row[3]): row[4:] for row in curve if row[0] == amount}
        for row in there.rows():
            assert found[row["result"], row["column"]] == pytest.approx((row["stderr"], row["half_width"]), rel=1e-9)
    assert {row[0]: row[1] for row in curve} == {amount: amount <= 0.5 for amount in amounts}


def test_the_curve_of_each_kind_of_budget(tmp_path: Path) -> None:
    con = connected(tmp_path, "epsilon = 4\ndelta = 1e-6\npure_epsilon = 1")
    pure = con.plan(STATEMENTS["total"], epsilon=0.5).curve(points=3, span=2)
    assert [row[0] for row in pure] == [0.25, 0.5, 1.0]
    assert [row[4] * row[0] for row in pure] == pytest.approx([math.sqrt(2) * 4] * 3, rel=1e-2)
    delta = con.plan(STATEMENTS["by_g"], epsilon=2, delta=1e-6)
    for amount, _, _, _, stderr, _ in delta.curve(points=3, span=1.2):
        assert stderr == pytest.approx(con.plan(STATEMENTS["by_g"], epsilon=amount, delta=1e-6).errors.max(), rel=1e-6)


def test_points_out_of_range(con: dpsql.Connection) -> None:
    plan = con.plan(STATEMENTS["total"], rho=0.1)
    for options in ({"points": 0}, {"points": 2.5}, {"points": True}):
        with pytest.raises(DataError, match="points must be a whole number"):
            plan.curve(**options)  # type: ignore[arg-type]
    for span in (1, 0.5, math.inf, "8"):
        with pytest.raises(DataError, match="span must be above 1"):
            plan.curve(span=span)  # type: ignore[arg-type]
    assert len(plan.curve(points=1)) == 1


def test_averages_have_no_curve(con: dpsql.Connection) -> None:
    plan = con.plan("SELECT avg(v) AS m FROM t", rho=0.1)
    assert len(plan.curve()) == 0
    assert "depend on the answer" in plan.what_if()


def test_the_picture_has_a_line_a_column_and_marks_the_plan(con: dpsql.Connection) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = con.plan(BATCH, rho=0.1).plot_curve(points=5).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["total.n", "by_g.n", "by_k.n", "sums.v", "sums.w"]
    assert axes.get_xlabel() == "rho"
    assert any(line.get_xdata()[0] == line.get_xdata()[-1] == 0.1 for line in axes.get_lines())
    with pytest.raises(DataError, match="there is no curve to draw"):
        con.plan("SELECT avg(v) AS m FROM t", rho=0.1).plot_curve()


# -- marginal costs -----------------------------------------------------------------------------------------


def test_costs_are_those_of_planning_without_each_statement(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, rho=0.1)
    found = {cost.result: cost for cost in costs(plan, time_limit=None)}
    assert set(found) == set(STATEMENTS)
    for name, cost in found.items():
        rest = [other for other in STATEMENTS if other != name]
        without = con.plan(";\n".join(STATEMENTS[other] for other in rest), rho=0.1)
        before = sum(comparable(plan, other).sum() for other in rest)
        after = sum(comparable(without, other).sum() for other in rest)
        assert cost.times == pytest.approx(math.sqrt(before / after), rel=0.01), name
        assert cost.amount == pytest.approx(plan.charge.amount * (1 - 1 / cost.times**2), rel=1e-9)
    table = plan.marginal_costs(time_limit=None)
    assert table.columns == ("result", "numbers", "others_error", "cost", "share")
    shares = [row[4] for row in table]
    assert shares == sorted(shares, reverse=True)
    assert max(shares) > 0.1


@pytest.mark.parametrize(
    ("budget", "request_", "near"),
    [
        ("rho = 0.5", {"rho": 0.1}, 0.01),
        ("epsilon = 4\ndelta = 1e-6", {"epsilon": 1, "delta": 1e-6}, 0.01),
        ("epsilon = 4\ndelta = 1e-6\npure_epsilon = 2", {"epsilon": 1}, 0.05),
    ],
    ids=["rho", "epsilon and delta", "epsilon"],
)
@pytest.mark.long
def test_what_is_saved_is_said_as_a_plan_asks_for_it(
    tmp_path: Path, budget: str, request_: dict[str, float], near: float
) -> None:
    con = connected(tmp_path, budget)
    plan = con.plan(BATCH, **request_)
    name = "rho" if "rho" in request_ else "epsilon"
    found = {cost.result: cost for cost in costs(plan, time_limit=None)}
    saved = saved_amount(plan, found["by_k"])
    assert 0 < saved < request_[name]
    rest = [other for other in STATEMENTS if other != "by_k"]
    batch = ";\n".join(STATEMENTS[other] for other in rest)
    without = con.plan(batch, **{**request_, name: request_[name] - saved})
    before, after = (sum(comparable(p, other).sum() for other in rest) for p in (plan, without))
    assert after == pytest.approx(before, rel=near)
    text = plan.what_if()
    assert f"{name} saved  of the charge" in text
    assert "mu squared" not in text


@pytest.mark.long
def test_what_a_wanted_error_would_need_without_a_statement(con: dpsql.Connection) -> None:
    targets = {"total": 20, "by_g": 60, "by_k": 60, "sums.v": 30000, "sums.w": 600}
    needed = con.budget_for(BATCH, targets)
    found = {cost.result: cost for cost in costs(needed.plan, time_limit=None)}
    rest = {name: value for name, value in targets.items() if not name.startswith("by_k")}
    without = con.budget_for(";\n".join(s for name, s in STATEMENTS.items() if name != "by_k"), rest)
    saved = needed.plan.charge.amount - without.plan.charge.amount
    assert found["by_k"].amount == pytest.approx(saved, rel=0.05)
    assert saved > 0


def test_one_statement_costs_it_all(con: dpsql.Connection) -> None:
    plan = con.plan(STATEMENTS["by_g"], rho=0.1)
    (cost,) = costs(plan)
    assert cost.times is None
    assert cost.amount == plan.charge.amount
    assert "by_g is the only one" in plan.what_if()


def test_the_dearest_first_and_no_more_than_asked(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, rho=0.1)
    assert len(plan.marginal_costs(most=2, time_limit=None)) == 2
    assert len(costs(plan, time_limit=1e-9)) == 1, "one is always worked out"
    assert "and 2 more statements" in costs_text(plan, costs(plan, most=2))


@pytest.mark.long
def test_batches_over_many_columns(tmp_path: Path) -> None:
    columns = [f"c{i}" for i in range(6)]
    declared = "\n".join(f"{name} = {{ lower = 0, upper = 6, nulls = false }}" for name in columns)
    text = f'dataset = "m"\n[budget]\nrho = 1\n[tables.t]\nunit = "row"\n[tables.t.columns]\n{declared}\n'
    with duckdb.connect(str(tmp_path / "m.duckdb")) as duck:
        duck.execute("CREATE TABLE t AS SELECT " + ", ".join(f"1 AS {name}" for name in columns))
    con = dpsql.connect(tmp_path / "m.duckdb", policy=dpsql.Policy.parse(text), ledger=tmp_path / "m.ledger")
    pairs = f"SELECT {', '.join(columns)}, count(*) AS n FROM t GROUP BY dp_marginals(2, {', '.join(columns)})"
    one = "CREATE VIEW one AS SELECT c0, count(*) AS n FROM t GROUP BY c0"
    plan = con.plan(f"CREATE VIEW pairs AS {pairs}; {one}", rho=0.1)
    assert type(plan.compiled).__name__ == "Structured"
    found = {cost.result: cost for cost in costs(plan, time_limit=None)}
    alone = con.plan(one, rho=0.1)
    assert found["pairs"].times == pytest.approx(plan.stderr["one"][0] / alone.stderr["one"][0], rel=0.01)
    needed = con.budget_for(f"CREATE VIEW pairs AS {pairs}", 90)
    assert float(np.max(needed.plan.widths)) == pytest.approx(90, rel=0.01)
    assert needed.plan.gap is None


# -- suggestions ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_each_suggestion_does_what_it_says(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, rho=0.1, objective="total")
    found = {(s.kind, s.subject): s for s in suggest(plan, time_limit=None)}
    assert [s.error for s in found.values()] == sorted(s.error for s in found.values())
    assert all(s.error <= 0.95 for s in found.values())

    drop = found["drop", "by_k"]
    rest = [name for name in STATEMENTS if name != "by_k"]
    without = con.plan(";\n".join(STATEMENTS[name] for name in rest), rho=0.1, objective="total")
    before, after = (sum(comparable(p, name).sum() for name in rest) for p in (plan, without))
    assert drop.error == pytest.approx(math.sqrt(after / before), rel=0.01)

    bound = found["bound", "t.v"]
    policy = dpsql.Policy.parse(POLICY.format("rho = 0.5").replace("upper = 1000", "upper = 500"))
    assert bound.error == pytest.approx(planned(con, policy).stderr["sums"][0, 0] / plan.stderr["sums"][0, 0], rel=0.01)
    assert "declare v from 0 to 500 instead of 0 to 1000" in bound.text
    assert "declare w from -5 to 5 instead of -10 to 10" in found["bound", "t.w"].text

    one = con.plan(STATEMENTS["by_g"], rho=0.1, objective="total")
    spread = next(s for s in suggest(one, time_limit=None) if s.kind == "spread")
    capped = 'max_rows_per_unit = 4\nat_most = [{{ rows = 1, per = "g" }}]'
    policy = dpsql.Policy.parse(POLICY.replace("max_rows_per_unit = 4", capped).format("rho = 0.5"))
    assert 'at_most = [{ rows = 1, per = "g" }]' in spread.text
    again = planned(con, policy, STATEMENTS["by_g"]).stderr["by_g"].max()
    assert spread.error == pytest.approx(again / one.stderr["by_g"].max(), rel=0.02)

    rows = found["rows", "t"]
    policy = dpsql.Policy.parse(POLICY.format("rho = 0.5").replace("max_rows_per_unit = 4", "max_rows_per_unit = 2"))
    again = planned(con, policy)
    assert rows.error == pytest.approx(0.5, rel=0.01)
    assert rows.error == pytest.approx(again.stderr["total"][0] / plan.stderr["total"][0], rel=0.02)


def planned(con: dpsql.Connection, policy: dpsql.Policy, sql: str = BATCH) -> dpsql.Plan:
    """A batch under another policy of the same table."""
    folder = con.ledger_path.parent
    other = dpsql.connect(folder / "t.duckdb", policy=policy, ledger=folder / "other.ledger")
    return other.plan(sql, rho=0.1, objective="total")


@pytest.mark.long
def test_coarser_groups_are_planned_with_half_of_them(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, rho=0.1, objective="total")
    (found,) = [s for s in suggest(plan, time_limit=None) if (s.kind, s.subject) == ("coarsen", "k")]
    assert "pair up the groups of k in by_k (20 to 10)" in found.text
    coarse = STATEMENTS["by_k"].replace("SELECT k,", "SELECT k // 2 AS k,").replace("GROUP BY k", "GROUP BY k // 2")
    again = con.plan(BATCH.replace(STATEMENTS["by_k"], coarse), rho=0.1, objective="total")
    rest = [name for name in STATEMENTS if name != "by_k"]
    before, after = (sum(comparable(p, name).sum() for name in rest) for p in (plan, again))
    assert found.error == pytest.approx(math.sqrt(after / before), rel=0.01)


def test_nothing_to_suggest(con: dpsql.Connection) -> None:
    policy = dpsql.Policy.parse(POLICY.format("rho = 0.5").replace("max_rows_per_unit = 4", "max_rows_per_unit = 1"))
    folder = con.ledger_path.parent
    other = dpsql.connect(folder / "t.duckdb", policy=policy, ledger=folder / "one.ledger")
    plan = other.plan(STATEMENTS["total"], rho=0.1)
    assert len(plan.suggestions()) == 0
    assert "Suggestions: none" in plan.what_if()


@pytest.mark.long
def test_the_text_says_all_three(con: dpsql.Connection) -> None:
    text = con.plan(BATCH, rho=0.1).what_if()
    assert text.startswith("Error against rho: each number within, at 95%")
    assert "this plan" in text
    assert "more than is allowed" in text
    assert "Cost of each statement" in text
    assert "Suggestions, each planned again at the same cost" in text
    assert max(len(line) for line in text.splitlines()) <= 120
