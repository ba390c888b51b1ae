"""The least budget for a wanted error: exact from the law, by every account and objective, and its refusals."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import settled
from scipy import stats

import dpsql
from dpsql.errors import BudgetError, DataError, InterfaceError, SQLError
from dpsql.planning.needed_budget import NeededBudget
from dpsql.replicates.noise import replicates

TABLES = """
[tables.t]
unit = "row"
expected_rows = 3000
[tables.t.columns]
g = { values = ["a", "b", "c"], nulls = false }
k = { lower = 0, upper = 93, nulls = false }
d = { lower = 0, upper = 9, nulls = false }
v = { lower = 0, upper = 1000, nulls = false }
"""
BUDGETS = {
    "pure": "epsilon = 8.0",
    "both": "epsilon = 8.0\ndelta = 1e-9\npure_epsilon = 2.0",
    "gaussian": "epsilon = 8.0\ndelta = 1e-9",
    "rho": "rho = 2.0",
    "capped": "epsilon = 8.0\nmax_epsilon_per_release = 0.05",
}
COUNT = "SELECT count(*) AS n FROM t"
BATCH = """
SELECT count(*) AS n FROM t;
CREATE VIEW by_g AS SELECT g, count(*) AS n FROM t GROUP BY g;
CREATE VIEW early AS SELECT count_if(k < 10) AS a, count_if(k < 50) AS b, count_if(k >= 40) AS c FROM t;
"""
SMALL = "SELECT count(*) AS n FROM t; CREATE VIEW by_g AS SELECT g, count(*) AS n FROM t GROUP BY g"
Make = Callable[[str], dpsql.Connection]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accuracy") / "t.duckdb"
    with duckdb.connect(str(path)) as duck:
        values = "'a' AS g, (i % 94)::INTEGER AS k, (i % 10)::INTEGER AS d, i % 1000 AS v"
        duck.execute(f"CREATE TABLE t AS SELECT {values} FROM range(3000) r(i)")
    return path


@pytest.fixture
def make(database: Path, tmp_path: Path) -> Make:
    def connect(budget: str, tables: str = TABLES) -> dpsql.Connection:
        policy = dpsql.Policy.parse(f'dataset = "a-1"\n[budget]\n{BUDGETS[budget]}\n{tables}')
        return settled(dpsql.connect(database, policy=policy, ledger=tmp_path / f"{budget}.ledger"))

    return connect


def largest(plan: dpsql.Plan) -> float:
    return max(float(np.max(widths)) for widths in plan.half_width.values() if widths.size)


# -- one count, by hand -------------------------------------------------------------------------------


def test_a_pure_count_by_hand(make: Make) -> None:
    """P(|z| > 50) = 2 q^51 / (1 + q), q = e^-epsilon, is 0.05 at the least epsilon."""
    found = make("pure").budget_for(COUNT, max_error=50)

    def tail(epsilon: float) -> float:
        return 2 * math.exp(-51 * epsilon) / (1 + math.exp(-epsilon))

    assert tail(float(found)) <= 0.05 < tail(float(found) * (1 - 3e-6))
    assert found.epsilon == float(found)
    assert found.delta is None
    assert found.rho is None
    assert found.plan.half_width["q1"][0] == 50


def test_a_gaussian_count_by_hand(make: Make) -> None:
    """z rounds a normal variable: P(|z| > 50) = P(|N| > 50.5) at mu = 1 / sigma, rho = mu^2 / 2."""
    found = make("rho").budget_for(COUNT, max_error=50)
    assert found.rho == float(found)
    assert found.epsilon is None
    sigma = 50.5 / stats.norm.isf(0.025)
    assert float(found) == pytest.approx(0.5 / sigma**2, rel=1e-5)
    assert found.cost == pytest.approx(2 * float(found), rel=1e-9)


def test_a_number_that_compares_and_is_planned_again(make: Make) -> None:
    con = make("both")
    found = con.budget_for(COUNT, max_error=50)
    assert isinstance(found, NeededBudget)
    with pytest.raises(FrozenInstanceError):
        found.amount = 1.0  # type: ignore[misc]
    assert found.amount == float(found) == found
    assert (found + 1, 1 - found, 2 * found, found / 2, 1 / found) == (
        *(found.amount + 1, 1 - found.amount, 2 * found.amount, found.amount / 2, 1 / found.amount),
    )
    copied = pickle.loads(pickle.dumps(found))
    assert (copied, copied.request, copied.plan.charge) == (found, found.request, found.plan.charge)
    assert 0 < found < con.budget.remaining
    assert f"{found:.3f}" == "0.059"
    assert str(found) == "0.0593127795"
    assert repr(found) == "<NeededBudget epsilon 0.0593127795 (pure)>"
    assert con.plan(COUNT, epsilon=found).charge == found.plan.charge
    other = con.plan("SELECT count_if(k < 3) AS n FROM t", epsilon=found)
    assert other.charge == found.plan.charge
    assert con.run(found).cost == found.cost


@pytest.mark.long
def test_no_argument_is_lost_beside_a_budget_that_was_found(make: Make) -> None:
    """A found budget given as an amount is that number: what else the call says holds."""
    con = make("both")
    found = con.budget_for(COUNT, max_error=50)
    assert con.plan(COUNT, epsilon=found, alpha=0.01).alpha == 0.01
    with pytest.raises(DataError, match="method 'nosuch'"):
        con.plan(COUNT, epsilon=found, method="nosuch")
    with pytest.raises(DataError, match="rounds are those of"):
        con.plan(COUNT, epsilon=found, rounds=3)
    with pytest.raises(DataError, match="tolerance must be a number"):
        con.plan(COUNT, epsilon=found, tolerance="a little")  # type: ignore[arg-type]
    assert con.plan(COUNT, epsilon=found, objective="max").strategy.objective == "max"
    assert con.plan(SMALL, epsilon=found, method="mwem", tolerance=0.5).strategy.method == "mwem"
    with pytest.raises(InterfaceError, match="a plan has its budget and options"):
        con.run(found, alpha=0.1)


@pytest.mark.long
def test_a_smaller_error_needs_more_and_a_lower_confidence_less(make: Make) -> None:
    con = make("pure")
    found = [float(con.budget_for(COUNT, error)) for error in (200, 100, 50, 25)]
    assert found == sorted(found)
    assert con.budget_for(COUNT, 50, alpha=0.2) < found[2] < con.budget_for(COUNT, 50, alpha=0.01)


# -- batches ------------------------------------------------------------------------------------------

WAYS = [("pure", {}), ("rho", {}), ("both", {"delta": 1e-9}), ("gaussian", {}), ("both", {"measure": "rho"})]


@pytest.mark.parametrize(("budget", "options"), WAYS, ids=["pure", "rho", "delta", "policy delta", "rho beside"])
@pytest.mark.few("delta", "rho beside")
def test_the_asked_error_is_hit_for_every_account(make: Make, budget: str, options: dict[str, Any]) -> None:
    con = make(budget)
    batch = SMALL if budget in ("pure", "both") else BATCH  # Laplace strategies of the larger one take seconds
    found = con.budget_for(batch, max_error=50, **options)
    assert 49.5 < largest(found.plan) <= 50
    total = con.budget_for(batch, max_error=50, objective="total", **options)
    assert 49.5 < largest(total.plan) <= 50
    assert found <= total
    asked = {"rho": float(total)} if total.rho else {"epsilon": float(total), "delta": total.delta}
    again = con.plan(batch, **asked, objective="total")
    if again.charge.noise == total.plan.charge.noise:
        assert largest(again) == pytest.approx(largest(total.plan), rel=1e-9)


def test_the_least_budget_is_below_that_of_other_objectives(make: Make) -> None:
    con = make("rho")
    hinted = (
        "SELECT /*+ MAX_ERROR(20) */ count(*) AS n FROM t; "
        "SELECT /*+ MAX_ERROR(100) */ k, count(*) AS n FROM t GROUP BY k"
    )
    found = con.budget_for(hinted)
    assert found.plan.half_width["q1"] == pytest.approx(20, rel=0.01)
    assert found.plan.half_width["q2"].max() <= 100
    for objective in ("total", "max"):
        assert con.budget_for(hinted, objective=objective) > found


@pytest.mark.parametrize("objective", ["max", "balanced"])
@pytest.mark.long
def test_pure_noise_in_blocks_counts(make: Make, objective: str) -> None:
    con = make("pure")
    four = "SELECT k // 24 AS part, count(*) AS n FROM t GROUP BY part; SELECT count(*) AS n FROM t"
    found = con.budget_for(four, max_error=5)
    assert found.plan.strategy.blocks
    assert largest(con.plan(four, epsilon=float(found) * (1 - 1e-3), objective=objective)) > 5


def test_a_target_of_its_own_for_each_number_by_hand(make: Make) -> None:
    """Disjoint counts: each is measured by itself, at a share that its own target sets: mu^2 is the largest need."""
    con = make("rho")
    sql = "SELECT count_if(k < 10) AS a, count_if(k >= 10) AS b FROM t"
    found = con.budget_for(sql, max_error={"q1.a": 10, "q1.b": 1000})
    alone = con.budget_for("SELECT count_if(k < 10) AS a FROM t", max_error=10)
    assert float(found) == pytest.approx(float(alone), rel=0.01)


def test_sums_and_counts_by_name(make: Make) -> None:
    con = make("both")
    sql = "CREATE VIEW s AS SELECT g, count(*) AS n, sum(v) AS total FROM t GROUP BY g"
    found = con.budget_for(sql, {"s.n": 60, "S.Total": 20000}, delta=1e-9)
    widths = found.plan.half_width["s"]
    assert (widths.max(axis=0) <= [60, 20000]).all()
    assert (widths.max(axis=0) / [60, 20000]).max() > 0.99


@pytest.mark.parametrize("budget", ["pure", "rho"])
@pytest.mark.few(every=2)
def test_all_together_costs_more_and_is_proven(make: Make, budget: str) -> None:
    con = make(budget)
    batch, numbers = (SMALL, 4) if budget == "pure" else (BATCH, 7)
    single, together = con.budget_for(batch, 50), con.budget_for(batch, 50, simultaneous=True)
    assert together > single
    assert 49.5 < largest(together.plan) <= 50
    # Different numbers: one in all, by_g has three, early three.
    sidak, union = 1 - 0.95 ** (1 / numbers), 0.05 / numbers
    assert together.plan.alpha == pytest.approx(sidak if budget == "rho" else union)
    one = con.budget_for(COUNT + ";" + COUNT, 50, simultaneous=True)
    assert one.plan.alpha == pytest.approx(0.05), "the same number twice is one"


def test_many_numbers_of_few_measurements_use_the_ball(make: Make) -> None:
    con = make("rho")
    sql = "; ".join(f"SELECT {a} * count_if(k < 9) + {b} * count_if(k >= 9) AS n FROM t" for a, b in _pairs(40))
    found = con.budget_for(sql, 500, simultaneous=True)
    assert found.plan.strategy.shape[0] == 2
    assert found.plan.alpha == pytest.approx(2 * stats.norm.sf(math.sqrt(stats.chi2.isf(0.05, 2))))
    assert found.plan.alpha > 1 - 0.95 ** (1 / 40)


def _pairs(count: int) -> list[tuple[int, int]]:
    found = [(a, b) for a in range(1, 13) for b in range(1, 13) if math.gcd(a, b) == 1]
    return found[:count]


# -- averages, ratios, quantiles, relative errors -----------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "error"), [("avg(v)", 40.0), ("count_if(k < 10) / count(*)", 0.2), ("median(d)", 2.0)]
)
@pytest.mark.few(every=4)
def test_derived_numbers_are_found_at_the_guess(make: Make, select: str, error: float) -> None:
    con = make("rho")
    sql = f"SELECT g, {select} AS m FROM t GROUP BY g"
    found = con.budget_for(sql, error)
    less = con.budget_for(sql, error / 2)
    assert found < less
    # A group has its even share, 1000 rows of 3000; a guess of the caller takes its place.
    assert con.budget_for(sql, error, expected={"q1": 1000}) == found
    assert con.budget_for(sql, error, expected={"q1": 200}) > found


def test_an_average_by_hand(make: Make) -> None:
    """AVG over n rows whose middle is 500: S - 500 n errs by 500 sum z / n; Fieller's interval is its +-z se / n."""
    found = make("rho").budget_for("SELECT avg(v) AS m FROM t", 20.0)
    plan = found.plan
    ((core, slices),) = plan.cores
    rows = plan.answers.rows(slices, plan.noise)
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    column = core.columns[0]
    total, count = column.formula.numerator.index, column.formula.denominator.index
    spread = (
        np.linalg.norm(rows[total] - 500 * rows[count]) * math.sqrt(plan.noise.variance) / plan.compiled.common_steps
    )
    assert stats.norm.isf(0.025) * spread / 3000 == pytest.approx(20.0, rel=0.02)


def test_relative_errors_are_over_the_share_of_the_expected_rows(make: Make) -> None:
    con = make("pure")
    found = con.budget_for("SELECT g, count(*) AS n FROM t GROUP BY g", relative=0.05)
    assert largest(found.plan) == pytest.approx(0.05 * 1000, rel=0.01)
    found = con.budget_for("SELECT sum(v) AS s FROM t", relative=0.1)
    assert largest(found.plan) == pytest.approx(0.1 * 500 * 3000, rel=0.01)
    found = con.budget_for("SELECT g, count(*) AS n FROM t GROUP BY g", relative=0.05, expected={"q1": 200})
    assert largest(found.plan) == pytest.approx(10, rel=0.01)


# -- plan and run ---------------------------------------------------------------------------------------------


def test_plan_and_run_spend_just_that_once(make: Make) -> None:
    con = make("rho")
    needed = con.budget_for(SMALL, 60)
    plan = con.plan(SMALL, max_error=60)
    assert plan.charge == needed.plan.charge
    assert "Target     ±60, each number in 95 of 100 releases" in str(plan)
    first = con.run(SMALL, max_error=60)
    assert first.cost == plan.charge.amount
    assert con.budget.spent == pytest.approx(float(needed))
    assert con.run(SMALL, max_error=60).cost == 0, "asked again it is free"
    assert con.run(needed.plan).cost == 0
    low, high = first["q1"].df().loc[0, ["n_low", "n_high"]]
    assert (high - low) / 2 == pytest.approx(float(plan.half_width["q1"][0]))


def test_hints_alone_find_the_budget_and_a_budget_is_held_against_them(make: Make) -> None:
    con = make("rho")
    sql = "SELECT /*+ WEIGHT(2), MAX_ERROR(25) */ count(*) AS n FROM t"
    assert con.plan(sql).charge == con.budget_for(COUNT, 25).plan.charge
    assert "what the hints of the batch ask" in str(con.plan(sql))
    short, enough = con.plan(sql, rho=1e-4), con.plan(sql, rho=1)
    assert any("q1 asks for ±25 by its hint and gets ±" in note for note in short.notes)
    assert enough.notes == ()
    mixed = con.budget_for(sql + "; SELECT g, count(*) AS n FROM t GROUP BY g", 80)
    assert mixed.plan.half_width["q1"][0] <= 25
    assert mixed.plan.half_width["q2"].max() <= 80


# -- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_error": 0}, "max_error must be a positive finite number"),
        ({"max_error": -3}, "max_error must be a positive finite number"),
        ({"max_error": float("nan")}, "max_error must be a positive finite number"),
        ({"max_error": float("inf")}, "max_error must be a positive finite number"),
        ({"max_error": True}, "max_error must be a positive finite number"),
        ({"max_error": "50"}, "max_error must be a positive finite number"),
        ({"max_error": {}}, "empty mapping"),
        ({"max_error": {"q1": 0}}, "max_error of q1 must be"),
        ({"max_error": {"q1": 5, "nosuch": 5}}, "the batch has no result nosuch"),
        ({"max_error": 5, "relative": 0.1}, "keep one of the two"),
        ({"relative": 0}, "relative must be a positive finite number"),
        ({}, "no error is wanted"),
        ({"max_error": 5, "alpha": 0}, "alpha is 1 - confidence"),
        ({"max_error": 5, "alpha": float("nan")}, "alpha is 1 - confidence"),
        ({"max_error": 5, "simultaneous": 1}, "simultaneous is True"),
        ({"simultaneous": True}, "go with a wanted error"),
        ({"max_error": 5, "objective": "min"}, "objective 'min' is not known"),
        ({"max_error": 5, "measure": "mu"}, "measure 'mu' is not known"),
        ({"max_error": 5, "expected": 3}, "expected takes rows of a group by result"),
        ({"max_error": 5, "expected": {"q1": -1}}, "expected rows of q1 must be"),
        ({"max_error": 5, "delta": 2}, "delta must be below 1"),
        ({"max_error": 5, "time_limit": "1"}, "time_limit must be a number"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:40],
)
def test_wishes_that_make_no_sense(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make("both").budget_for(COUNT, **options)


def test_what_does_not_fit_the_batch(make: Make) -> None:
    con = make("pure")
    hinted = "SELECT /*+ MAX_ERROR(5) */ count(*) AS n FROM t"
    with pytest.raises(DataError, match=r"q2\.n has no wanted error; give its statement a hint"):
        con.budget_for(f"{hinted}; {COUNT}")
    with pytest.raises(DataError, match="asked ±6 by the call and ±5 by its hint"):
        con.budget_for(hinted, {"q1": 6})
    with pytest.raises(DataError, match="expected to be 0"):
        con.budget_for("SELECT count_if(k < 5) - count_if(k > 90) AS d FROM t", relative=0.1)
    with pytest.raises(DataError, match="keep one of the two"):
        con.plan(COUNT, epsilon=1, max_error=5)
    with pytest.raises(DataError, match="go with a wanted error"):
        con.plan(COUNT, epsilon=1, simultaneous=True)
    with pytest.raises(SQLError, match="MAX_ERROR belongs to a SELECT over private rows"):
        con.budget_for(f"CREATE VIEW r AS {COUNT}; SELECT /*+ MAX_ERROR(3) */ n FROM r", 5)
    for hint in ("MAX_ERROR(0)", "MAX_ERROR(-1)", "MAX_ERROR(nan)", "MAX_ERROR()", "MAX_ERROR(5", "MAXERROR(5)"):
        with pytest.raises(SQLError, match="is not known"):
            con.budget_for(f"SELECT /*+ {hint} */ count(*) FROM t", 5)
    with pytest.raises(SQLError, match="the hint MAX_ERROR stands twice"):
        con.budget_for("SELECT /*+ MAX_ERROR(5) MAX_ERROR(6) */ count(*) FROM t")


def test_without_a_declared_size_nothing_is_relative(make: Make) -> None:
    con = make("pure", TABLES.replace("expected_rows = 3000\n", ""))  # type: ignore[call-arg]
    for sql, options in (
        (COUNT, {"relative": 0.1}),
        ("SELECT avg(v) AS m FROM t", {"max_error": 5}),
        ("SELECT median(k) AS m FROM t", {"max_error": 5}),
    ):
        with pytest.raises(DataError, match="declare expected_rows of t in the policy, give expected="):
            con.budget_for(sql, **options)
    assert con.budget_for(COUNT, relative=0.1, expected={"q1": 500}).plan.half_width["q1"][0] == 50


@pytest.mark.parametrize(("budget", "why"), [("capped", "one release may cost"), ("rho", "is left")])
@pytest.mark.few("rho-is left")
def test_an_error_out_of_reach_names_the_least_that_is_not(make: Make, budget: str, why: str) -> None:
    con = make(budget)
    with pytest.raises(BudgetError, match=f"which is what {why}; the least error within reach is ±") as caught:
        con.budget_for(SMALL, 0.01)
    text = str(caught.value)
    offered = float(text.split("within reach is ±")[1].split(":")[0].replace(",", ""))
    found = con.budget_for(SMALL, offered)
    assert found.plan.affordable
    with pytest.raises(BudgetError):
        con.budget_for(SMALL, offered * 0.98)
    assert con.run(found.plan).cost > 0


@pytest.mark.long
def test_a_spent_account_says_so(make: Make) -> None:
    con = make("pure")
    con.run(COUNT, epsilon=8)
    with pytest.raises(BudgetError, match="nothing is left of the pure account"):
        con.budget_for(SMALL, 50)


# -- the law itself -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("objective", [None, "total", "max"])
@pytest.mark.parametrize(("budget", "options"), WAYS[:3], ids=["pure", "rho", "delta"])
def test_the_asked_error_holds_in_draws(
    make: Make, budget: str, options: dict[str, Any], objective: str | None
) -> None:
    """The 95 % quantile of the binding number's error is 50 to 1 %, over 400,000 draws of the planned noise.

    In blocks it is a bound, for any law that falls as theirs do.
    """
    plan = make(budget).budget_for(BATCH, 50, objective=objective, **options).plan
    errors = drawn(plan, 100_000 if plan.noise.blocks else 400_000)
    worst = int(np.argmax(plan.widths))
    found = float(np.quantile(np.abs(errors[worst]), 0.95))
    assert (45 if plan.noise.blocks else 49.5) < found < 50.5
    assert all(np.mean(np.abs(row) > 50) < 0.05 + 5 * math.sqrt(0.05 * 0.95 / row.size) for row in errors)


@pytest.mark.long
@pytest.mark.parametrize("budget", ["pure", "rho"])
def test_all_together_hold_in_draws(make: Make, budget: str) -> None:
    plan = make(budget).budget_for(BATCH, 50, simultaneous=True).plan
    errors = drawn(plan, 100_000 if plan.noise.blocks else 400_000)
    missed = float(np.mean((np.abs(errors) > 50).any(axis=0)))
    least = 0.01 if plan.noise.blocks else 0.02  # blocks are bounded jointly, not worked out
    assert least < missed < 0.05 + 5 * math.sqrt(0.05 * 0.95 / errors.shape[1])


def drawn(plan: dpsql.Plan, count: int) -> np.ndarray[Any, Any]:
    """Errors (m, count) of the answers under the planned law of the noise, from numpy."""
    z = replicates(plan.noise, 11, count, plan.strategy.shape[0]).T
    rows = plan.answers.whole if hasattr(plan.answers, "whole") else plan.answers.matrix
    return np.asarray(rows @ z) / plan.compiled.common_steps
