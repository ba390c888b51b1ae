"""Where a budget is named, an answer is free only if no number of it is less precise than the budget would buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.driver.cursor import Cursor
from dpsql.reconstruct.spread import as_dense, in_deviations

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 100000
delta = 1e-9
pure_epsilon = 50000
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 4, type = "INTEGER", nulls = false }
g = { values = ["a", "b", "c"], type = "VARCHAR", nulls = false }
v = { lower = 0, upper = 10, step = 1, type = "INTEGER", nulls = false }
"""
WEAK = "SELECT count(*) AS n FROM t WHERE g = 'b' AND k IN (0, 1, 2)"
BY_BOTH = "SELECT g, k, count(*) AS n FROM t GROUP BY g, k"
BY_G = "SELECT g, count(*) AS n FROM t GROUP BY g"
AVERAGE = "SELECT count(v) AS n, sum(v) AS s, avg(v) AS a FROM t"
TOTAL = f"SELECT sum(n) AS total FROM ({BY_G})"


@pytest.fixture
def con(tmp_path: Path) -> Iterator[dpsql.Connection]:
    with connected(tmp_path) as held:
        yield held


def connected(folder: Path, policy: str = POLICY, **options: Any) -> dpsql.Connection:
    (folder / "t.csv").write_text(
        "k,g,v\n" + "".join(f"{i % 5},{'abc'[i * i % 3]},{i * 7 % 11}\n" for i in range(3000))
    )
    (folder / "p.toml").write_text(policy)
    return dpsql.connect(policy=folder / "p.toml", **options)


# -- one number is worse, though others are better -----------------------------------------------------------


def asked_in_every_way(con: dpsql.Connection, sql: str, **budget: Any) -> list[float]:
    """What a question costs through each door that takes a budget: the call, the batch, the session."""
    named = ", ".join(f"{name} = {amount}" for name, amount in budget.items())
    written = sql.replace("SELECT", f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({named})", 1)
    usual = tuple(budget.get(name) for name in ("epsilon", "delta", "rho"))
    doors = [
        lambda: con.cursor().dry_run(sql, **budget),
        lambda: Cursor(con, usual=usual).dry_run(sql),  # type: ignore[arg-type]
        *([] if "rho" in budget else [lambda: con.cursor().dry_run(written)]),
    ]
    costs = [found.charge.amount if isinstance(found := door(), dpsql.Plan) else 0.0 for door in doors]
    return [*costs, con.run(sql, **budget).cost]


@pytest.mark.parametrize("budget", [{"epsilon": 0.5}, {"epsilon": 0.5, "delta": 1e-9}, {"rho": 0.1}], ids=str)
@pytest.mark.few(every=2)
def test_a_weak_answer_gives_way_to_what_the_budget_buys(con: dpsql.Connection, budget: dict[str, Any]) -> None:
    con.run(BY_BOTH, **budget)
    assert min(asked_in_every_way(con, WEAK, **budget)) > 0
    assert (
        con.run("SELECT count(*) AS n FROM t WHERE g = 'c' AND k IN (0, 1, 2)").cost == 0
    )  # no budget, whatever the error


@pytest.mark.long
def test_every_number_counts_and_not_their_mean(con: dpsql.Connection) -> None:
    """Two of three numbers are a little worse than at epsilon 1, the third is far better: so is the mean."""
    con.run(BY_G, epsilon=0.85)
    con.run("SELECT count(*) AS n FROM t WHERE g = 'a'", epsilon=20)
    free = con.run(BY_G, errors=True)
    bought = con.plan(BY_G, epsilon=1, earlier=False).stderr["q1"]
    errors = np.array(free["q1"].column("n_stderr"))
    assert np.mean(errors**2) < np.mean(bought**2)
    assert errors.max() > bought.max()
    assert set(asked_in_every_way(con, BY_G, epsilon=1)) == {1.0}


@pytest.mark.long
def test_an_average_may_be_worse_though_its_count_and_sum_are_not(con: dpsql.Connection) -> None:
    """Count and sum that were measured apart have no covariance, of which an average gains."""
    plan = con.plan(AVERAGE, epsilon=1)
    for number, sql in zip(plan.errors, ("SELECT count(v) AS n FROM t", "SELECT sum(v) AS s FROM t"), strict=True):
        steps = 10 if "sum" in sql else 1
        con.run(sql, epsilon=1.2 * steps * math.sqrt(2) / float(number))
    free = con.run(AVERAGE)
    n, n_error, _, _, s, s_error, _, _, _, a_error, *_ = free["q1"].fetchall()[0]
    assert [n_error, s_error] <= plan.errors.tolist()
    assert a_error > Bought(plan, None).average(n, s)
    assert set(asked_in_every_way(con, AVERAGE, epsilon=1)) == {1.0}


@pytest.mark.long
def test_what_outer_sql_computes_may_be_worse_though_no_number_under_it_is(con: dpsql.Connection) -> None:
    """One of two counts follows from the other and an almost exact sum: their difference is twice as far off."""
    con.run("SELECT count(*) AS n FROM t WHERE g = 'a'", epsilon=1.2)
    con.run("SELECT count(*) AS n FROM t WHERE g IN ('a', 'b')", epsilon=10)
    counts = "SELECT g, count(*) AS n FROM t WHERE g IN ('a', 'b') GROUP BY g"
    assert con.run(counts, epsilon=1).cost == 0
    assert set(asked_in_every_way(con, f"SELECT max(n) - min(n) AS d FROM ({counts})", epsilon=1)) == {1.0}


# -- the same statement ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_same_statement_at_the_same_budget_is_its_recorded_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(tmp_path, epsilon_per_release=0.5) as con:
        held = con.cursor().execute(AVERAGE).fetchall()
        con.run("SELECT count(v) AS n FROM t", epsilon=0.25)
        assert con.run(AVERAGE, epsilon=0.5).id == 1
        assert con.cursor().dry_run(AVERAGE, epsilon=0.625).charge.guarantee == "epsilon 0.625 (pure)"  # type: ignore[union-attr]
        monkeypatch.setattr(dpsql.Connection, "plan", None)  # it needs no plan, which may take long
        again = con.cursor().execute(AVERAGE.lower())
        assert again.release is not None
        assert (again.release.id, again.release.cost, again.fetchall()) == (1, 0.0, held)


# -- what is said of it ------------------------------------------------------------------------------------------


def test_a_free_answer_says_where_it_comes_from_and_how_far_off_it_may_be(con: dpsql.Connection) -> None:
    con.run(BY_BOTH, epsilon=0.5)
    for _ in range(2):  # the second time it is a release of its own, which is none of its sources
        would_be = con.cursor()
        would_be.dry_run(WEAK)
        done = con.cursor().execute(WEAK)
        ((kind, said),) = done.messages
        assert issubclass(kind, dpsql.Warning)
        assert said == "free, as release 1 knows the answers; standard error: q1.n 4.85"
        assert would_be.free == done.free
    assert con.cursor().execute(WEAK, epsilon=3).messages == []


def test_a_plan_says_the_errors_of_what_is_free(con: dpsql.Connection) -> None:
    con.run(BY_BOTH, epsilon=2)
    plan = con.plan(WEAK, epsilon=0.5)
    assert "standard error: q1.n 1.04, as answered for free" in plan.notes
    assert "standard error: q1.n 1.04, as answered for free" in plan.explain()


# -- generated histories -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bought:
    """What a budget buys by itself: the standard errors of a plan, worked out here from its reconstruction."""

    plan: dpsql.Plan
    free: Any

    def covariance(self) -> Any:
        held = self.plan if self.free is None else self.free
        rows = as_dense(in_deviations(held.answers.rows([slice(0, held.compiled.numbers)], held.noise), held.noise))
        return rows @ rows.T / held.compiled.common_steps**2

    def average(self, n: float, s: float) -> float:
        gradient = np.array([-s / n, 1.0]) / n
        return math.sqrt(gradient @ self.covariance() @ gradient)


CONDITIONS = [
    "",
    " WHERE g = 'a'",
    " WHERE g IN ('a', 'c')",
    " WHERE k IN (0, 1, 2)",
    " WHERE k IN (0, 4)",
    " WHERE g = 'b' AND k IN (0, 1)",
]
QUESTIONS = [
    *(f"SELECT count(*) AS n FROM t{condition}" for condition in CONDITIONS),
    *(f"SELECT count(v) AS n, sum(v) AS s, avg(v) AS a FROM t{condition}" for condition in CONDITIONS[:4]),
    *(f"SELECT g, count(*) AS n FROM t{condition} GROUP BY g" for condition in ("", " WHERE k IN (0, 1, 2)")),
    BY_BOTH,
    "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k",
    "SELECT g, k, count(*) AS n, sum(v) AS s FROM t GROUP BY g, k",
    "SELECT g, count(*) AS n FROM t GROUP BY g; SELECT count(*) AS n FROM t",
    "SELECT median(v) AS m FROM t",
    TOTAL,
]
BUDGETS = [{"epsilon": e} for e in (0.2, 0.5, 0.7, 1.0)] + [
    {"epsilon": 1.0, "delta": 1e-9},
    {"rho": 0.05},
    {"rho": 0.2},
]


def checked_history(folder: Path, seed: int) -> int:
    """Some releases, then questions at a budget; how many of these were free. Fails where a number is worse."""
    draw = np.random.default_rng(seed)

    def one_of(items: Sequence[Any]) -> Any:
        return items[int(draw.integers(len(items)))]

    policy = POLICY if draw.random() < 0.7 else POLICY.replace("pure_epsilon = 50000", "")
    with connected(folder, policy) as con:
        for _ in range(int(draw.integers(1, 4))):
            con.run(one_of(QUESTIONS), **one_of([*BUDGETS, {"epsilon": 3.0}]), fresh=True)
        free = 0
        for _ in range(2):
            sql, budget = one_of(QUESTIONS), one_of(BUDGETS)
            bought = con.plan(sql, **budget, earlier=False)
            combined = con._past.answer(sql, 0.05)
            if draw.random() < 0.5:
                release = con.run(sql, **budget)
                found = [(release[name].columns, release[name].fetchall()) for name in release]
            else:
                usual = tuple(budget.get(name) for name in ("epsilon", "delta", "rho"))
                cur = Cursor(con, errors=True, usual=usual).execute(sql)  # type: ignore[arg-type]
                assert cur.release is not None
                release, found = cur.release, []
                while cur.description:
                    found.append((tuple(column[0] for column in cur.description), list(cur.rows())))
                    if not cur.nextset():
                        break
            free += release.cost == 0
            if release.cost == 0 and not release.guarantee.startswith(bought.charge.guarantee):
                check((sql, budget, release), found, bought, None if combined is None else combined.combination)
    return free


def check(said: tuple[Any, ...], found: Sequence[Any], bought: dpsql.Plan, combined: Any) -> None:
    """Every number by its error; an average at its own count and sum; a total of counts by their covariance."""
    for planned, (names, rows) in zip(bought.stderr.values(), found, strict=True):
        columns = [names.index(f"{number}_stderr") for number in ("n", "s") if number in names]
        errors = np.array([[row[at] for at in columns] for row in rows])
        assert not columns or np.all(errors <= np.reshape(planned, errors.shape) * (1 + 1e-5)), said
        if "a" in names:
            n, s, error = (rows[0][names.index(number)] for number in ("n", "s", "a_stderr"))
            assert error <= Bought(bought, None).average(n, s) * (1 + 1e-5), said
        if names == ("total",) and combined is not None:
            variances = [Bought(bought, held).covariance().sum() for held in (combined, None)]
            assert variances[0] <= variances[1] * (1 + 1e-5), said


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.few(every=4)
def test_no_free_answer_of_a_history_is_worse_than_its_budget_buys(tmp_path: Path, seed: int) -> None:
    checked_history(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.usefixtures("short_searches")
def test_no_free_answer_of_300_histories_is_worse_than_its_budget_buys(tmp_path: Path, part: int) -> None:
    free = 0
    for seed in range(75 * part, 75 * part + 75):
        folder = tmp_path / str(seed)
        folder.mkdir()
        free += checked_history(folder, seed)
    assert free > 25  # of 150, so that the comparison is put to the test
