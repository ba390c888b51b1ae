"""Requests, charges, accounts; the compositions that are not sound, as counter-examples."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from dpsql.errors import BudgetError, DataError, PolicyError
from dpsql.privacy.accountant import (
    Budget,
    BudgetAccount,
    BudgetState,
    Charge,
    Request,
    charge_for,
    fresh_state,
    local_charge,
)
from dpsql.privacy.amounts import GRID, exact, show, show_grantable, show_left, to_units
from dpsql.privacy.calibrate import gaussian_delta, gaussian_mu, pure_as_rho

MIXED = Budget.of("4.0", "1e-9", "1.0")
GAUSSIAN = Budget.of("1.0", "1e-9")
PURE = Budget.of("1.0")
RHO = Budget.of(rho="0.1")


def spend(state: BudgetState, *charges: Charge) -> BudgetState:
    """The state after ``charges``, each granted."""
    for charge in charges:
        state.check(charge)
        accounts = tuple(
            BudgetAccount(p.name, p.total_units, p.spent_units + charge.units) if p.name == charge.account else p
            for p in state.accounts
        )
        state = BudgetState(state.budget, accounts)
    return state


# -- budgets ---------------------------------------------------------------------------------------


def test_accounts_follow_from_the_policy() -> None:
    assert PURE.totals == {"pure": GRID}
    assert RHO.totals == {"gaussian": GRID // 5}
    assert list(MIXED.totals) == ["pure", "gaussian"]
    mu = math.sqrt(MIXED.totals["gaussian"] / GRID)
    assert gaussian_delta(mu, 3.0) <= 1e-9 < gaussian_delta(mu * (1 + 1e-6), 3.0)
    assert Budget.of("1", "1e-9", "1").totals == {"pure": GRID}
    assert Budget.of("1", local_epsilon="2").totals == {"pure": GRID, "local": 2 * GRID}


def test_decimal_text_is_exact_and_a_policy_float_is_its_shortest_text() -> None:
    for figure in ("0.3", 0.3, Decimal("0.3"), Fraction(3, 10), np.float64(0.3)):
        assert Budget.of(figure).totals == {"pure": 3 * GRID // 10}
    assert Budget.of("1", 1e-9) == Budget.of(1.0, "1e-9")
    assert Budget.of(1, 0, 0, None, 0) == Budget.of("1", "0.0", "0") == PURE


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"delta": "1e-9"},
        {"epsilon": "1", "rho": "1"},
        {"epsilon": "1", "delta": "1"},
        {"epsilon": "1", "delta": "1e-9", "pure_epsilon": "2"},
        {"epsilon": "2", "pure_epsilon": "1"},
        {"epsilon": "nan"},
        {"epsilon": math.inf},
        {"epsilon": -1},
        {"epsilon": 0},
        {"epsilon": True},
        {"epsilon": "a lot"},
        {"epsilon": "1e-13"},
        {"epsilon": "1e8"},
        {"epsilon": "1e-9", "delta": "1e-20"},
        {"epsilon": "1", "delta": False},
        {"epsilon": "1", "delta": ""},
    ],
)
def test_malformed_budgets_are_refused(figures: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        Budget.of(**figures)  # type: ignore[arg-type]


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["epsilon", "delta", "rho"])
@pytest.mark.parametrize(
    "bad",
    [True, False, math.nan, math.inf, -math.inf, 0, 0.0, -1, "nan", "-1", "x", "", "1e-999999999", [], 1j],
)
def test_malformed_requests_name_the_argument(name: str, bad: object) -> None:
    given: dict[str, object] = {"epsilon": 1} if name == "delta" else {}
    with pytest.raises(DataError, match=name):
        Request.of(**{**given, name: bad})


@pytest.mark.parametrize(
    "given",
    [{}, {"delta": 0.1}, {"epsilon": 1, "rho": 1}, {"rho": 1, "delta": 0.1}, {"epsilon": 1, "delta": 1},
     {"epsilon": 1e-13}, {"epsilon": 1e9}, {"epsilon": 1, "delta": 1.5}],
)  # fmt: skip
def test_requests_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(DataError):
        Request.of(**given)


def test_requests_round_down_to_the_grid_exactly() -> None:
    (charge,) = charge_for(Request.of(epsilon=0.3), PURE)
    assert charge.units == math.floor(Fraction(0.3) * GRID) == 299999999999
    assert charge.epsilon == Fraction(charge.units, GRID)
    assert charge_for(Request.of(epsilon="0.3"), PURE)[0].units == 300000000000
    assert charge_for(Request.of(epsilon=np.float64(0.5)), PURE)[0].units == GRID // 2


# -- charges ---------------------------------------------------------------------------------------


def kinds(request: Request, budget: Budget) -> list[tuple[str, str]]:
    return [(charge.noise, charge.account) for charge in charge_for(request, budget)]


def test_each_request_has_the_ways_to_pay_that_the_policy_offers() -> None:
    alone, both, rho = Request.of(0.5), Request.of(0.5, 1e-6), Request.of(rho=0.01)
    assert kinds(alone, PURE) == kinds(alone, MIXED) == [("laplace", "pure")]
    assert kinds(alone, GAUSSIAN) == [("gaussian", "gaussian")]
    assert kinds(alone, RHO) == [("laplace", "gaussian")]
    assert kinds(both, PURE) == [("laplace", "pure")]
    assert kinds(both, MIXED) == [("gaussian", "gaussian"), ("laplace", "pure")]
    assert kinds(Request.of(1.5, 1e-6), MIXED) == [("gaussian", "gaussian")]
    assert kinds(both, GAUSSIAN) == kinds(both, RHO) == [("gaussian", "gaussian")]
    assert kinds(rho, MIXED) == kinds(rho, RHO) == [("gaussian", "gaussian")]
    with pytest.raises(BudgetError, match="Gaussian account"):
        charge_for(rho, PURE)
    with pytest.raises(BudgetError, match="local"):
        charge_for(alone, Budget.of(local_epsilon=1))


def test_gaussian_noise_is_calibrated_to_exactly_what_is_charged() -> None:
    (charge,) = charge_for(Request.of(epsilon=1.0), GAUSSIAN)
    assert charge.units == to_units(Fraction(gaussian_mu(1.0, 1e-9)) ** 2) == GAUSSIAN.totals["gaussian"]
    assert charge.calibrate(7).parameter == Fraction(7 * GRID, charge.units)
    assert charge.unit_variance == pytest.approx(30.198, abs=1e-3)
    assert charge.guarantee == "epsilon 1, delta 1e-9"
    assert charge_for(Request.of(rho="0.01"), RHO)[0].mu_squared == Fraction(2, 100)


def test_pure_noise_is_calibrated_to_exactly_what_is_charged() -> None:
    (charge,) = charge_for(Request.of(epsilon=1 / 55), PURE)
    assert charge.calibrate(3).parameter == 3 / Fraction(charge.units, GRID)
    assert charge.unit_variance == pytest.approx(2 * 55**2)
    with pytest.raises(DataError):
        charge.mu_squared  # noqa: B018


def test_a_pure_release_under_rho_costs_what_zcdp_takes_never_less() -> None:
    for epsilon in (1e-6, 0.01, 0.3, 2.0, 20.0):
        (charge,) = charge_for(Request.of(epsilon=epsilon), RHO)
        assert charge.units >= 2 * Fraction(pure_as_rho(float(charge.epsilon or 0))) * GRID - Fraction(1, 1000)
        assert charge.units >= GRID * epsilon * math.tanh(epsilon / 2) * 2 * (1 - 1e-12) - 1


def test_local_releases_have_a_account_of_their_own() -> None:
    budget = Budget.of("1", local_epsilon="2")
    charge = local_charge(0.5, budget)
    assert (charge.account, charge.units, charge.noise) == ("local", GRID // 2, "response")
    state = spend(fresh_state(budget), charge)
    assert state.spent == 0.0
    assert state.remaining == 1.0
    assert state.account("local").remaining == 1.5
    with pytest.raises(BudgetError, match="local_epsilon"):
        local_charge(0.5, PURE)
    with pytest.raises(DataError, match="epsilon"):
        local_charge(-1, budget)
    with pytest.raises(DataError, match="no additive noise"):
        charge.calibrate(1)


def test_charges_survive_json() -> None:
    for charge in (*charge_for(Request.of(0.5, 1e-6), MIXED), local_charge(1, Budget.of(1, local_epsilon=2))):
        assert Charge.from_dict(charge.as_dict()) == charge


@pytest.mark.parametrize("units", [0, -1, True, 1.0, 2**63])
def test_amounts_that_a_ledger_cannot_hold_are_refused(units: object) -> None:
    with pytest.raises(DataError):
        Charge("pure", units, "laplace", "x", Fraction(1))  # type: ignore[arg-type]


def test_a_charge_pays_for_the_noise_that_it_is_for() -> None:
    (pure,) = charge_for(Request.of(0.5), Budget.of(1))
    (zcdp,) = charge_for(Request.of(0.5), Budget.of(rho=1))
    assert zcdp.account == "gaussian"
    for charge in (pure, zcdp, local_charge(0.5, Budget.of(1, local_epsilon=2))):
        for change in (
            {"epsilon": Fraction(1)},  # twice the epsilon for the price of one
            {"units": charge.units // 2},
            {"units": 1, "epsilon": Fraction(1000)},
            {"epsilon": None},
            {"noise": "gaussian"},
        ):
            with pytest.raises(DataError):
                replace(charge, **change)
    for account, noise in (("pure", "gaussian"), ("local", "laplace"), ("pure", "response"), ("gaussian", "response")):
        with pytest.raises(DataError):
            Charge(account, GRID, noise, "x", None if noise == "gaussian" else Fraction(1))


# -- states ----------------------------------------------------------------------------------------


def test_55_releases_at_one_55th_are_granted_and_no_more() -> None:
    (charge,) = charge_for(Request.of(epsilon=1 / 55), PURE)
    state = spend(fresh_state(PURE), *[charge] * 55)
    assert 0 < state.remaining < 1e-10
    assert state.spent <= 1
    assert not state.affords(charge)
    with pytest.raises(BudgetError, match=r"pure account, which has 4\.5e-11 left of 1"):
        state.check(charge)


def test_thousands_of_tiny_charges_add_up_exactly() -> None:
    (charge,) = charge_for(Request.of(epsilon="1e-12"), PURE)
    state = spend(fresh_state(PURE), *[charge] * 1000)
    assert state.account("pure").spent_units == 1000


@pytest.mark.parametrize("budget", [PURE, GAUSSIAN, MIXED, RHO])
def test_states_are_numbers_that_compare(budget: Budget) -> None:
    state = fresh_state(budget)
    assert state.spent == 0.0
    assert state.remaining == state.total > 0
    ask = Request.of(rho=0.01) if budget is RHO else Request.of(epsilon=0.25)
    charge = charge_for(ask, budget)[0]
    after = spend(state, charge)
    assert 0 < after.spent < after.total
    assert 0 < after.remaining < after.total
    assert after.spent + after.remaining >= after.total * (1 - 1e-9)
    assert "spent" in str(after)


def test_everything_can_be_spent_at_once_or_in_what_remains() -> None:
    state = spend(fresh_state(GAUSSIAN), *charge_for(Request.of(epsilon=1.0), GAUSSIAN))
    assert (state.spent, state.remaining) == (pytest.approx(1.0), 0.0)
    half = spend(fresh_state(GAUSSIAN), *charge_for(Request.of(epsilon=0.5), GAUSSIAN))
    assert half.spent == pytest.approx(0.5, rel=1e-6)
    assert half.remaining > 0.8  # not additive: mu^2 is what adds up
    rest = charge_for(Request.of(epsilon=half.remaining), GAUSSIAN)
    assert spend(half, *rest).spent == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(BudgetError, match="at delta 1e-9"):
        half.check(charge_for(Request.of(epsilon=0.95), GAUSSIAN)[0])


def test_refusals_name_the_request_the_account_and_what_next() -> None:
    state = spend(fresh_state(RHO), *charge_for(Request.of(rho="0.09"), RHO))
    (charge,) = charge_for(Request.of(rho="0.02"), RHO)
    with pytest.raises(BudgetError) as caught:
        state.check(charge)
    message = str(caught.value)
    assert "rho 0.02" in message
    assert "needs rho 0.02 of the gaussian account, which has 0.01 left of 0.1" in message
    assert "at most 0.01" in message
    assert "\n" not in message
    (pure,) = charge_for(Request.of(1), PURE)
    assert "keeps no pure account" in state.refusal(pure)


def test_a_state_speaks_of_epsilon_and_of_shares_of_the_gaussian_account() -> None:
    """Half of mu squared is half of the account, and less than half of its epsilon: both are said."""
    whole = fresh_state(MIXED)
    assert "  pure: epsilon 1 left of 1\n  gaussian: 100% left of epsilon 3 at delta 1e-9, enough for one" in str(whole)
    (charge,) = (c for c in charge_for(Request.of("1", "1e-9"), MIXED) if c.account == "gaussian")
    left = str(spend(whole, charge))
    assert "gaussian: 87.4% left of epsilon 3 at delta 1e-9, enough for one release of epsilon 2.79301" in left
    assert "mu squared" not in left
    most = charge_for(Request.of("4", "1e-9"), MIXED)[0]
    assert "needs 171% of the gaussian account, which has 100% left of epsilon 3 at" in whole.refusal(most)
    assert "gaussian: rho 0.1 left of 0.1" in str(fresh_state(RHO))


def test_an_account_is_never_overdrawn() -> None:
    with pytest.raises(DataError):
        BudgetAccount("pure", 5, 6)


# -- amounts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [5, 6, 9])
def test_what_is_left_is_never_overstated_and_what_is_spent_never_understated(digits: int) -> None:
    source = random.Random(20150101)
    for _ in range(2000):
        value = Fraction(source.randrange(1, 10 ** source.randrange(1, 16)), 10**12)
        down, up = Fraction(show_left(value, digits)), Fraction(show(value, digits))
        assert value * (1 - Fraction(2, 10 ** (digits - 1))) <= down <= value <= up
        assert up <= value * (1 + Fraction(2, 10 ** (digits - 1)))
    assert [show_left(Fraction(x), digits) for x in (0, 0.7, 0.1 + 0.2, 1, 1e-9)] == ["0", "0.7", "0.3", "1", "1e-9"]


def test_a_budget_shows_the_figures_that_a_reader_expects() -> None:
    """Charges are rounded down to the grid: a hair more than 0.4 is left, and 55 of 1/55 are a hair less than 1."""
    state = BudgetState(PURE, (BudgetAccount("pure", GRID, to_units(Fraction(6, 10)) - 1),))
    assert str(state).splitlines()[:2] == ["epsilon 0.6 spent of 1", "  pure: epsilon 0.4 left of 1"]
    (whole,) = charge_for(Request.of(1), PURE)
    assert "has 0.4 left of 1" in state.refusal(whole)
    state = BudgetState(PURE, (BudgetAccount("pure", GRID, 55 * to_units(Fraction(1, 55))),))
    assert str(state).startswith("epsilon 1 spent of 1\n")
    # A total that is no short decimal shows rounded up, and what is left of it untouched is the same figure.
    assert str(BudgetAccount("gaussian", 264_685_827_628, 0)) == "gaussian: mu squared 0.264685828 left of 0.264685828"
    assert str(BudgetAccount("gaussian", 264_685_827_628, 1)) == "gaussian: mu squared 0.264685827 left of 0.264685828"


def test_shown_guarantees_are_never_better_than_true_ones() -> None:
    for value in (
        Fraction(1, 3),
        Fraction(18181818181, GRID),
        Fraction(299999999999, GRID),
        Fraction(10**9, 7),
    ):
        assert value <= Fraction(show(value)) <= value * (1 + Fraction(1, 10**7))
    shown = [show(Fraction(x)) for x in (0.1, 1e-9, 4.0, 1e-6, 1e20)]
    assert shown == ["0.1", "1e-9", "4", "1e-6", "1e+20"]


def test_exact_reads_numpy_scalars_and_underscores() -> None:
    assert exact("epsilon", np.int64(2)) == 2
    assert exact("epsilon", " 1_0.5 ") == Fraction(21, 2)


# -- compositions ----------------------------------------------------------------------------------

X = np.linspace(-9, 9, 20001)
WEIGHTS = np.exp(-X * X / 2) / np.exp(-X * X / 2).sum()


def response(level: float, epsilon: np.ndarray) -> np.ndarray:
    """Hockey-stick divergence of randomised response, at residual epsilons of either sign."""
    keep = 1 / (1 + math.exp(-level))
    return np.maximum(0, keep - np.exp(epsilon) * (1 - keep)) + np.maximum(0, 1 - keep - np.exp(epsilon) * keep)


def gaussian(mu: float, epsilon: np.ndarray) -> np.ndarray:
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def test_testing_delta_on_the_history_lets_an_adaptive_analyst_past_it() -> None:
    # First a Gaussian release of mu_1. Whoever then looks at its loss picks randomised response or a second
    # Gaussian; either history alone composes to exactly (1, 1e-6), so a test of the history grants both.
    epsilon, delta = 1.0, 1e-6
    mu = gaussian_mu(epsilon, delta)
    first = 0.2 * mu
    second = math.sqrt(mu**2 - first**2)
    left = epsilon - (first**2 / 2 + first * X)  # what the first loss leaves of epsilon
    level = brentq(lambda e: WEIGHTS @ response(e, left) - delta, 1e-6, 30)
    one, other = response(level, left), gaussian(second, left)
    assert pytest.approx(delta, rel=1e-3) == WEIGHTS @ one
    assert pytest.approx(delta, rel=1e-3) == WEIGHTS @ other
    assert WEIGHTS @ np.maximum(one, other) > 1.67 * delta


def test_crediting_a_pure_release_as_mu_equal_epsilon_claims_too_much() -> None:
    # Randomised response at epsilon 1 is epsilon-DP, and at 0.5 it has more delta than a 1-GDP release.
    keep = math.e / (1 + math.e)
    kept = keep - math.exp(0.5) * (1 - keep)
    assert kept == pytest.approx(0.2876, abs=5e-5)
    assert gaussian_delta(1.0, 0.5) == pytest.approx(0.2384, abs=5e-5)
    # An account of mu = 1 keeps the promise (0.5, 0.2384). A ledger that credits the pure release so grants it from
    # that account, and the promise is broken; at what it really takes it does not fit.
    promise = Budget.of("0.5", gaussian_delta(1.0, 0.5))
    account = promise.totals["gaussian"]
    assert to_units(Fraction(1)) <= account * (1 + 1e-9)
    assert kept > 1.2 * float(promise.delta or 0)
    really = 2 * NormalDist().inv_cdf(keep)
    assert really**2 * GRID > account
    assert really > 1.22
    # A rho policy charges what zCDP takes, below epsilon^2 / 2 but never below epsilon tanh(epsilon / 2).
    (charge,) = charge_for(Request.of(epsilon=1), Budget.of(rho="1"))
    assert math.tanh(0.5) <= charge.units / GRID / 2 < 0.5


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_two_accounts_hold_against_the_same_analyst(share: float) -> None:
    budget = Budget.of("1", "1e-6", "0.4")
    mu = math.sqrt(budget.totals["gaussian"] / GRID)
    first = math.sqrt(share) * mu
    second = math.sqrt(mu**2 - first**2)
    left = 1.0 - (first**2 / 2 + first * X)
    keep = 1 / (1 + math.exp(-0.4))
    both = keep * gaussian(second, left - 0.4) + (1 - keep) * gaussian(second, left + 0.4)
    worst = np.maximum.reduce([response(0.4, left), gaussian(second, left), both])
    assert WEIGHTS @ worst <= 1e-6
    assert WEIGHTS @ worst > 0.3e-6  # and it is not vacuous: most of delta is there to be used


def test_a_searched_figure_shows_without_its_hair() -> None:
    assert show_grantable(3.5 * (1 - 1e-10), 5) == "3.5"
    assert show_grantable(3.49994, 5) == "3.4999"
    assert show_grantable(3.49996, 5) == "3.4999"
