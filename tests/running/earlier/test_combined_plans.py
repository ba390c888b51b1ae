"""Plans beside earlier releases: their errors, what they charge, and that they stay valid whatever is released."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import unwrapped
from scipy import stats

import dpsql
from dpsql.measure import sources
from dpsql.release.payload import unpack
from dpsql.running.earlier import combined
from dpsql.running.earlier.combined_plan import CombinedPlan
from dpsql.workloads.cells.corners import corners_of

POLICY = """
dataset = "survey-1"
[budget]
epsilon = 1000
delta = 1e-9
{more}
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = {{ lower = 0, upper = 9, type = "INTEGER", nulls = false }}
g = {{ values = ["a", "b", "c"], type = "VARCHAR", nulls = false }}
v = {{ lower = 0, upper = 100, step = 1, type = "INTEGER" }}
[tables.u]
unit = "row"
source = "u.csv"
[tables.u.columns]
k = {{ lower = 0, upper = 4, type = "INTEGER", nulls = false }}
"""
ROWS = [(i * 7 % 10, "abc"[i % 3], i * 13 % 101 if i % 9 else "") for i in range(300)]
COUNT = "SELECT count(*) AS n FROM t WHERE k < 5"
CROSS = "SELECT k, g, count(*) AS n FROM t GROUP BY k, g"
PART = "SELECT g, count(*) AS n FROM t WHERE k BETWEEN 2 AND 6 GROUP BY g"


def connected(folder: Path, more: str = "") -> dpsql.Connection:
    (folder / "t.csv").write_text("k,g,v\n" + "".join(f"{k},{g},{v}\n" for k, g, v in ROWS))
    (folder / "u.csv").write_text("k\n" + "".join(f"{i % 5}\n" for i in range(60)))
    (folder / "p.toml").write_text(POLICY.format(more=more))
    return dpsql.connect(policy=folder / "p.toml")


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    return connected(tmp_path)


@pytest.fixture
def pure(tmp_path: Path) -> dpsql.Connection:
    return connected(tmp_path, "pure_epsilon = 500")


def spent(con: dpsql.Connection) -> float:
    """What all charges together are, in the account's measure."""
    return sum(entry.charge.amount for entry in con.releases())


def variance(plan: dpsql.Plan) -> float:
    """Of the one number of a plan of one measurement of one count."""
    (error,) = plan.errors
    return float(error) ** 2


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_one_count_asked_again_by_hand(tmp_path: Path, noise: str) -> None:
    """Two measurements of one count: precisions add up, to the lattice of their noise; the charge is the second's."""
    con = connected(tmp_path, "pure_epsilon = 500" if noise == "laplace" else "")
    first = con.plan(COUNT, epsilon=0.2)
    con.run(first)
    before = spent(con)
    alone = con.plan(COUNT, epsilon=0.3, earlier=False)
    plan = con.plan(COUNT, epsilon=0.3)
    assert plan.charge.noise == noise
    assert isinstance(plan, CombinedPlan)
    assert plan.rests_on == (1,)
    assert variance(plan) == pytest.approx(1 / (1 / variance(first) + 1 / variance(alone)), rel=1e-6)
    assert plan.error == pytest.approx(variance(plan), rel=1e-3)
    assert plan.charge == alone.charge
    assert con.run(plan).cost == alone.charge.amount
    assert spent(con) - before == pytest.approx(alone.charge.amount, rel=1e-9)


def test_gaussian_intervals_and_no_gap(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.3)
    plan = con.plan(PART, epsilon=0.2)
    alone = con.plan(PART, epsilon=0.2, earlier=False)
    assert plan.gap is None
    assert np.all(plan.errors < alone.errors)
    quantile = -stats.norm.ppf(0.025) * plan.errors
    assert np.all((quantile <= plan.widths) & (plan.widths <= quantile + 0.5))  # rounded outward by half the lattice
    text = unwrapped(plan)
    assert "Earlier rests on release 1 and the new measurement, which alone is charged; without, " in text
    less = f"{100 * max(alone.gap, 1e-4):.2f} % smaller"
    assert f"no plan without release 1 with such noise has squared errors more than {less}" in text
    assert plan.bound_ratio == pytest.approx(alone.bound_ratio * plan.error / alone.error)
    plan.plot()


def test_what_is_measured_and_charged_is_as_without_earlier_releases(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.3)
    plan, alone = con.plan(PART, epsilon=0.2), con.plan(PART, epsilon=0.2, earlier=False)
    assert plan.rests_on == (1,)
    assert plan.strategy.measured.digest() == alone.strategy.measured.digest()
    assert (plan.charge, plan.sensitivity, plan.cells) == (alone.charge, alone.sensitivity, alone.cells)
    first, second = (con._batches.job(one, "key", "") for one in (plan, alone))
    assert (first.noise, first.sensitivity, first.charge) == (second.noise, second.sensitivity, second.charge)


@pytest.mark.long
def test_sums_that_are_too_many_in_joint_cells_are_answered(con: dpsql.Connection) -> None:
    """Seven columns meet in the joint cells, one more than are planned together: each batch is still answered."""
    con.run("SELECT sum(v) AS a, sum(k) AS b, sum(v + k) AS c, sum(v * k) AS d FROM t", epsilon=0.2)
    batch = "SELECT sum(v * 3 + 1) AS a, sum(k * k) AS b, sum(v // 2) AS c FROM t"
    plan, alone = con.plan(batch, epsilon=0.2), con.plan(batch, epsilon=0.2, earlier=False)
    assert plan.error == alone.error
    assert con.run(plan).cost == alone.charge.amount


def test_a_whole_that_is_known_well_ties_its_parts(con: dpsql.Connection) -> None:
    """Two parts measured apart beside an exact sum: half the variance of each."""
    con.run("SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 9", epsilon=200)
    batch = "SELECT k // 5 AS half, count(*) AS n FROM t GROUP BY half"
    alone, plan = con.plan(batch, epsilon=0.2, earlier=False), con.plan(batch, epsilon=0.2)
    assert np.asarray(plan.errors) ** 2 == pytest.approx(np.asarray(alone.errors) ** 2 / 2, rel=1e-2)
    for half, value, error, *_ in con.run(plan)["q1"].fetchall():
        exact = sum(half * 5 <= k < half * 5 + 5 for k, _, _ in ROWS)
        assert abs(value - exact) <= 7 * error


@pytest.mark.parametrize("epsilon", [0.5, 0.9])
@pytest.mark.few(every=2)
def test_monte_carlo_of_the_combined_errors(con: dpsql.Connection, epsilon: float) -> None:
    """Old and new measurements drawn 600 times of known data: the spread of answers is what the plan stated."""
    source = np.random.default_rng(11)
    con.run("SELECT k, g, count(*) AS n, sum(v) AS s FROM t GROUP BY k, g", epsilon=0.6)
    plan = con.plan("SELECT g, count(*) AS n, sum(v) AS s FROM t WHERE k BETWEEN 0 AND 6 GROUP BY g", epsilon=epsilon)
    assert plan.rests_on == (1,)
    (old, new) = plan.answers.combined.observed
    x = source.integers(0, 40, old.matrix.shape[1])  # over joint cells
    scale = plan.compiled.common_steps
    truth = plan.answers.workload @ x
    found = []
    for _ in range(600):
        ys = []
        for one in (old, new):
            noise = np.rint(source.normal(0, math.sqrt(one.noise.parameter), one.matrix.shape[0]))
            ys.append([int(v) for v in one.matrix @ (one.divisor * x) + noise])
        answers = type(plan.answers)(
            type(plan.answers.combined)(
                plan.answers.combined.weights,
                (type(old)(old.matrix, old.divisor, ys[0], old.noise), new),
                plan.answers.combined.answered,
                plan.answers.combined.numbers,
                plan.answers.combined.divisor,
            ),
            plan.answers.workload,
        )
        found.append(answers.estimate(ys[1], scale) - truth)
    squares = (np.array(found) ** 2).sum(axis=0) / plan.errors**2
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], 600)
    assert np.all((low < squares) & (squares < high))
    assert np.all(np.abs(np.mean(found, axis=0)) < 5.5 * plan.errors / math.sqrt(600))


# -- what is charged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql", [PART, "SELECT g, sum(v) AS s, count(*) AS n FROM t WHERE k BETWEEN 0 AND 7 GROUP BY g"]
)
@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.few(every=3)
def test_the_sensitivity_is_exact_by_brute_force(tmp_path: Path, sql: str, laplace: bool) -> None:
    """Every corner of every cell that is scanned, in Python integers; the noise kept is what the charge pays for."""
    con = connected(tmp_path, "pure_epsilon = 500" if laplace else "")
    con.run("SELECT k, g, count(*) AS n, sum(v) AS s FROM t GROUP BY k, g", epsilon=0.5)
    plan = con.plan(sql, epsilon=0.3)
    assert plan.rests_on == (1,)
    B = (plan.strategy.measured.mixing @ plan.strategy.measured.basis).astype(object)
    B = B.toarray() if hasattr(B, "toarray") else np.asarray(B)
    corners = corners_of([layout.entry for layout in plan.compiled.layouts], B.shape[1]).toarray().astype(object)
    moved = plan.compiled.common_steps * (B @ corners)
    starts = np.cumsum([0, *(plan.strategy.blocks or (1,) * len(moved))])[:-1]
    norms = np.maximum.reduceat(np.abs(moved), starts).sum(axis=0) if laplace else (moved**2).sum(axis=0)
    assert plan.sensitivity == max(norms)
    release = con.run(plan)
    kept = unpack(con._books.ledger().release(release.id).payload)[1]
    assert kept.parameter == plan.charge.calibrate(int(max(norms)), plan.strategy.blocks).parameter
    entry = con.releases()[-1]
    assert entry.charge == plan.charge
    assert entry.description["rests_on"] == [1]


@pytest.mark.long
def test_reuse_changes_no_charge(con: dpsql.Connection, tmp_path: Path) -> None:
    """The same requests with and without earlier releases cost the same."""
    paid = []
    for earlier in (True, False):
        folder = tmp_path / str(earlier)
        folder.mkdir()
        other = connected(folder)
        for number, sql in enumerate((CROSS, PART, COUNT, "SELECT sum(v) AS s FROM t WHERE k = 2")):
            other.run(other.plan(sql, epsilon=0.2 + 0.1 * number, earlier=earlier))
        paid.append([entry.charge for entry in other.releases()])
        other._books.ledger().verify()
    assert paid[0] == paid[1]


# -- plans and releases ------------------------------------------------------------------------------------


def test_a_release_between_plan_and_run_makes_nothing_wrong(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5)
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=0.1, fresh=True)
    con.drop(release=1)
    release = con.run(plan)
    assert release.cost == plan.charge.amount
    stated = [row[2] for row in release["q1"].fetchall()]
    assert stated == pytest.approx(list(plan.errors), rel=1e-12)
    for row in release["q1"].fetchall():
        exact = sum(2 <= k <= 6 and g == row[0] for k, g, _ in ROWS)
        assert abs(row[1] - exact) <= 7 * row[2]


def test_later_batches_combine_with_all_measurements(con: dpsql.Connection) -> None:
    """What is known after it is the sum of both precisions, by dense matrices."""
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5)
    con.run(plan)
    free = con.run(PART.replace("GROUP", "AND g <> 'c' GROUP"))
    assert free.cost == 0.0
    assert free.guarantee == "free, from releases 1, 2"
    S = np.concatenate(
        [one.matrix.toarray() * one.divisor / math.sqrt(one.noise.variance) for one in plan.answers.combined.observed]
    )
    W = plan.answers.workload.toarray()
    exact = np.sqrt(np.diag(W @ np.linalg.pinv(S.T @ S) @ W.T))
    assert [row[2] for row in free["q1"].fetchall()][:2] == pytest.approx(exact[:2], rel=1e-6)
    again = dpsql.connect(policy=con.policy.path)  # from the ledger alone
    third = again.plan("SELECT g, count(*) AS n FROM t WHERE k BETWEEN 0 AND 9 GROUP BY g", epsilon=0.2)
    assert third.rests_on == (1, 2)
    assert again.run(third).cost > 0
    assert again.plan(PART, epsilon=0.6).rests_on == (1, 2, 4)


@pytest.mark.long
def test_the_same_batch_again_is_free_with_other_estimates_too(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.2)
    first = con.run(PART, epsilon=0.2)
    assert con.releases()[-1].description["rests_on"] == [1]
    con.run("SELECT g, count(*) AS n FROM t GROUP BY g", epsilon=0.2)
    paid = spent(con)
    assert con.run(PART, epsilon=0.2).id == first.id
    possible = con.run(PART, epsilon=0.2, estimates="nonnegative")
    assert (possible.id, spent(con)) == (first.id, paid)
    assert [row[2] for row in possible["q1"].fetchall()] == [row[2] for row in first["q1"].fetchall()]
    assert all(row[1] >= 0 for row in possible["q1"].fetchall())
    assert con.sql("SELECT strategy FROM dp.releases WHERE release_id = 2").fetchall() == [("optimal with release 1",)]


def test_averages_and_outer_sql_rest_on_all(con: dpsql.Connection) -> None:
    con.run("SELECT k, g, count(v) AS c, sum(v) AS s FROM t GROUP BY k, g", epsilon=3)
    sql = "CREATE VIEW m AS SELECT g, avg(v) AS a FROM t WHERE k BETWEEN 0 AND 6 GROUP BY g; SELECT max(a) FROM m"
    plan = con.plan(sql, epsilon=2)
    assert plan.rests_on == (1,)
    for g, value, error, *_ in con.run(plan)["m"].fetchall():
        held = [v for k, key, v in ROWS if k < 7 and key == g and v != ""]
        assert abs(value - sum(held) / len(held)) <= 7 * error


def test_plans_are_alone_where_nothing_helps(con: dpsql.Connection) -> None:
    con.run("SELECT count(*) FROM u WHERE k = 1", epsilon=1)
    con.run("SELECT count(*) FROM t WHERE g = 'a'", epsilon=1)
    plan = con.plan("SELECT count(*) FROM u WHERE k = 2", epsilon=1)  # another group of the same table
    assert not isinstance(plan, CombinedPlan)
    assert plan.rests_on == ()


def test_what_earlier_releases_answer_is_noted_and_free(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=1)
    plan = con.plan(CROSS.replace("FROM t", "FROM t WHERE k < 3"), epsilon=0.5)
    assert "release 1 answers this with no more error: a run is free" in plan.notes
    assert con.run(plan).cost == 0.0


def test_fresh_and_earlier_false_plan_alone(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    con.run(PART, epsilon=0.5, fresh=True)
    assert "rests_on" not in con.releases()[-1].description
    assert con.plan(PART, epsilon=0.4, earlier=False).rests_on == ()
    with pytest.raises(dpsql.InterfaceError, match="a plan has its budget and options"):
        con.run(con.plan(PART, epsilon=0.4), earlier=False)


def test_a_copy_of_a_plan_runs(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5)
    copied = pickle.loads(pickle.dumps(plan))
    assert copied.rests_on == (1,)
    assert con.run(copied).cost == plan.charge.amount


def test_other_pictures_of_the_plan(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5)
    assert plan.what_if().startswith("Without earlier releases:")
    assert plan.suggestions().columns == plan.without_earlier.suggestions().columns
    assert plan.marginal_costs().fetchall() == plan.without_earlier.marginal_costs().fetchall()
    errors = [row[4] for row in plan.curve(points=5)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] == pytest.approx(math.sqrt(np.mean(plan.errors**2)))
    assert errors[0] < math.sqrt(np.mean(plan.without_earlier.errors**2)) * 8  # what is known already bounds it


def test_the_largest_error_is_not_certified_beside_others(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5, objective="max")
    assert (plan.rests_on, plan.gap) == ((1,), None)
    assert plan.error <= con.plan(PART, epsilon=0.5, objective="max", earlier=False).error
    assert con.run(plan).cost == plan.charge.amount


def test_pure_noise_combines_too(pure: dpsql.Connection) -> None:
    pure.run(CROSS, epsilon=0.3)
    plan = pure.plan("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=0.3)
    assert (plan.rests_on, plan.gap, plan.charge.noise) == ((1,), None, "laplace")
    assert plan.error < plan.without_earlier.error


def test_cursors_rest_on_earlier_releases(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    cursor = con.cursor()
    cursor.execute(PART, epsilon=0.5)
    assert con.releases()[-1].description["rests_on"] == [1]


@pytest.mark.long
def test_many_earlier_releases_cost_one_combination(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: column types are read a few times, and all measurements are combined once, twice at the most."""
    for _ in range(12):
        con.run(CROSS, epsilon=0.1, fresh=True)
    again = dpsql.connect(policy=con.policy.path)
    counts = {"combined": 0, "schemas": 0}
    combine, read = combined.combined_answers, sources.read_schemas

    def combining(*args: Any) -> Any:
        counts["combined"] += 1
        return combine(*args)

    def reading(*args: Any) -> Any:
        counts["schemas"] += 1
        return read(*args)

    for module in ("dpsql.running.earlier.combined", "dpsql.running.earlier.combined_plan"):
        monkeypatch.setattr(f"{module}.combined_answers", combining)
    monkeypatch.setattr("dpsql.measure.sources.read_schemas", reading)
    plan = again.plan(PART, epsilon=0.5)
    assert len(plan.rests_on) == 12
    assert counts["combined"] <= 2
    assert counts["schemas"] <= 6
    again.run(plan)
    assert counts["combined"] <= 2


# -- the least budget --------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_budget_for_one_count_by_hand(con: dpsql.Connection) -> None:
    """mu^2 = (z / h)^2 - what is known, for Gaussian noise; nothing at all once that is 0."""
    first = con.plan(COUNT, epsilon=0.02)
    con.run(first)
    z = float(-stats.norm.ppf(0.025))
    alone = con.budget_for(COUNT, max_error=300, earlier=False)
    needed = con.budget_for(COUNT, max_error=300)
    assert needed.plan.rests_on == (1,)
    assert needed.cost == pytest.approx((z / 300) ** 2 - 1 / variance(first), rel=1e-2)
    assert alone.cost > needed.cost * 1.2
    assert needed.plan.widths.max() <= 300
    assert needed.plan.widths.max() == pytest.approx(300, rel=1e-4)
    before = spent(con)
    assert con.run(needed).cost == needed.cost
    assert spent(con) - before == pytest.approx(needed.cost)
    free = con.budget_for(COUNT, max_error=310)
    assert float(free) == 0.0
    assert any("a run is free" in note for note in free.plan.notes)
    assert con.run(free.plan).cost == 0.0
    assert con.run(COUNT.replace("count(*)", "count(*) + 0"), max_error=310).cost == 0.0
    assert spent(con) - before == pytest.approx(needed.cost)


@pytest.mark.parametrize(
    ("objective", "simultaneous"),
    [
        (None, False),
        ("max", True),
        *(
            pytest.param(*held, marks=pytest.mark.long)
            for held in ((None, True), ("total", False), ("total", True), ("max", False))
        ),
    ],
)
def test_the_least_budget_gives_what_is_asked(con: dpsql.Connection, objective: str | None, simultaneous: bool) -> None:
    con.run(CROSS, epsilon=1)
    asked = {"max_error": 20, "objective": objective, "simultaneous": simultaneous}
    needed = con.budget_for(PART, **asked)
    alone = con.budget_for(PART, earlier=False, **asked)
    assert needed < alone
    assert needed.plan.wanted is not None
    assert needed.plan.widths.max() == pytest.approx(20, rel=1e-4)
    assert needed.plan.alpha == (0.05 if not simultaneous else pytest.approx(1 - 0.95 ** (1 / 3)))
    less = con.plan(PART, epsilon=float(needed) * 0.97, alpha=needed.plan.alpha, objective=objective or "total")
    assert less.widths.max() > 20


@pytest.mark.long
def test_hints_of_their_own_and_averages(con: dpsql.Connection) -> None:
    con.run("SELECT k, count(v) AS c, sum(v) AS s FROM t GROUP BY k", epsilon=2)
    sql = (
        "SELECT /*+ MAX_ERROR(5) */ count(v) AS n FROM t WHERE k BETWEEN 0 AND 2; "
        "SELECT /*+ MAX_ERROR(8) */ count(v) AS n FROM t WHERE k BETWEEN 0 AND 9"
    )
    needed = con.budget_for(sql)
    assert needed < con.budget_for(sql, earlier=False)
    assert all(width <= asked for width, asked in zip(needed.plan.widths, (5, 8), strict=True))
    average = "SELECT avg(v) AS a FROM t WHERE k BETWEEN 0 AND 7"
    needed = con.budget_for(average, max_error=3, expected={"q1": 240})
    assert needed < con.budget_for(average, max_error=3, expected={"q1": 240}, earlier=False)


def test_more_than_is_left_names_the_least_error_within_reach(tmp_path: Path) -> None:
    connected(tmp_path)
    (tmp_path / "p.toml").write_text(POLICY.format(more="").replace("epsilon = 1000", "epsilon = 0.5"))
    con = dpsql.connect(policy=tmp_path / "p.toml")
    con.run(COUNT, epsilon=0.3)
    with pytest.raises(dpsql.BudgetError, match="the least error within reach is") as refused:
        con.budget_for(COUNT, max_error=5)
    reach = float(str(refused.value).partition("within reach is ±")[2].partition(":")[0])
    assert con.budget_for(COUNT, max_error=reach * 1.0001) > 0
    with pytest.raises(dpsql.BudgetError, match="the least error within reach is") as alone:
        con.budget_for(COUNT, max_error=5, earlier=False)
    assert reach < float(str(alone.value).partition("within reach is ±")[2].partition(":")[0])


# -- what does not go together -----------------------------------------------------------------------------


def test_releases_of_another_version_are_left_alone(con: dpsql.Connection, tmp_path: Path) -> None:
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5)
    needed = con.budget_for(PART, max_error=25)
    assert plan.rests_on == needed.plan.rests_on == (1,)
    (tmp_path / "p.toml").write_text(POLICY.format(more="").replace("survey-1", "survey-2"))
    newer = dpsql.connect(policy=tmp_path / "p.toml")
    with pytest.raises(dpsql.LedgerError, match="renew"):
        newer.plan(PART, epsilon=0.5)
    newer.renew("survey-1")
    for old in (plan, needed.plan):
        with pytest.raises(dpsql.IntegrityError, match="was made for data set 'survey-1', this is 'survey-2'"):
            newer.run(old)
    assert newer.plan(PART, epsilon=0.5).rests_on == ()
    assert newer.budget_for(PART, max_error=25) > needed
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        newer.run(CROSS)
    with pytest.raises(dpsql.LedgerError):
        con.run(plan)  # the ledger has gone on
    assert len(newer.releases()) == 1


def test_a_plan_beside_releases_of_another_ledger_is_refused(con: dpsql.Connection, tmp_path: Path) -> None:
    """Its answers would hold what that ledger paid for. So would those of one that was restored from a copy since."""
    con.run(CROSS, epsilon=0.3)
    plan = con.plan(PART, epsilon=0.2)
    assert plan.rests_on == (1,)
    other = dpsql.connect(policy=tmp_path / "p.toml", ledger=tmp_path / "other.ledger")
    with pytest.raises(dpsql.IntegrityError, match="rests on a release 1 that this ledger does not hold; plan again"):
        other.run(plan)
    other.run(CROSS, epsilon=0.3)  # a release of that number and text, and of other noise
    with pytest.raises(dpsql.IntegrityError, match="nothing was charged"):
        other.run(plan)
    assert len(other.releases()) == 1
    assert con.run(plan).cost == plan.charge.amount


def test_a_budget_of_nothing_charges_nothing(con: dpsql.Connection, tmp_path: Path) -> None:
    con.run(CROSS, epsilon=50)
    needed = con.budget_for(PART, max_error=30)
    assert (float(needed), needed.cost, repr(needed)) == (0.0, 0.0, "<NeededBudget free, from earlier releases>")
    assert con.run(needed).cost == 0.0
    before = spent(con)
    with pytest.raises(dpsql.BudgetError, match="the budget that was found is 0"):
        con.run(needed, estimates="nonnegative")
    with pytest.raises(dpsql.BudgetError, match="the budget that was found is 0"):
        con.run(needed, fresh=True)
    with pytest.raises(dpsql.DataError, match="epsilon"):
        con.run(PART, epsilon=needed)
    other = dpsql.connect(policy=tmp_path / "p.toml", ledger=tmp_path / "other.ledger")
    with pytest.raises(dpsql.BudgetError, match="nothing was charged"):
        other.run(needed)
    assert spent(con) == before
    assert spent(other) == 0.0


@pytest.mark.long
def test_a_budget_found_beside_releases_is_a_number_where_they_do_not_count(con: dpsql.Connection) -> None:
    con.run(CROSS, epsilon=0.5)
    needed = con.budget_for(PART, max_error=25)
    assert needed.plan.rests_on == (1,)
    alone = con.plan(PART, epsilon=needed, earlier=False)
    assert alone.rests_on == ()
    assert float(alone.widths.max()) > 25
    con.run(PART, epsilon=needed, fresh=True)
    assert "rests_on" not in con.releases()[-1].description


def test_releases_under_another_policy_are_left_alone(con: dpsql.Connection, tmp_path: Path) -> None:
    con.run(CROSS, epsilon=0.5)
    plan = con.plan(PART, epsilon=0.5)
    (tmp_path / "p.toml").write_text(POLICY.format(more="").replace("upper = 9", "upper = 12"))
    other = dpsql.connect(policy=tmp_path / "p.toml")
    with pytest.raises(dpsql.IntegrityError, match="made under another policy of this data set; plan again"):
        other.run(plan)
    assert other.plan(PART, epsilon=0.5).rests_on == ()
    assert other.budget_for(PART, max_error=25) == pytest.approx(con.budget_for(PART, max_error=25, earlier=False))


def test_a_release_whose_earlier_ones_are_not_understood_any_more_keeps_its_own_numbers(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    con.run(CROSS, epsilon=0.3)
    first = con.run(PART, epsilon=0.2)
    again = dpsql.connect(policy=con.policy.path)
    monkeypatch.setattr("dpsql.running.earlier.stored_measurements._SAME_CELLS", (99,))
    assert again.run(PART, epsilon=0.2)["q1"].fetchall() == first["q1"].fetchall()
    with pytest.raises(
        dpsql.IntegrityError, match="release 2 rests on earlier ones that this policy understands otherwise"
    ):
        again.run(PART, epsilon=0.2, estimates="nonnegative")
