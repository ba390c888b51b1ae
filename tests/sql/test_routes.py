"""The search for the least amount, and amounts as requests and charges."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpsql.errors import BudgetError, DataError
from dpsql.planning.payment import Route, down, least_amount, routes_of, up
from dpsql.privacy.accountant import Budget, Request, fresh_state
from dpsql.privacy.amounts import GRID, LARGEST

BOTH = Budget.of(epsilon=4, delta="1e-9", pure_epsilon=1)
RHO = Budget.of(rho="0.5")
PURE = Budget.of(epsilon=2)


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("least", [7, 12_345, 10**9, 10**12, 3 * 10**17])
def test_a_power_is_found_to_a_millionth(power: float, least: int) -> None:
    calls = []

    def ratio(x: int) -> float:
        calls.append(x)
        return float((least / x) ** (1 / power))

    found = least_amount(ratio, power)
    assert found is not None
    assert least <= found <= least * (1 + 2e-6) + 1
    assert len(calls) <= 24


def test_steps_are_found_by_halving() -> None:
    least = 123_456_789_012

    def ratio(x: int) -> float:
        return 0.0 if x >= least else 3.0

    found = least_amount(ratio, 1.0)
    assert found is not None
    assert least <= found <= least * (1 + 2e-6)


def test_a_staircase_and_a_jump_upwards() -> None:
    # Half-widths on a lattice jump; where they rise a little in between, what is found still holds.
    found = least_amount(lambda x: math.ceil(1e12 / x) / 5, 1.0)
    assert found is not None
    assert abs(found - 2e11) <= 1e6
    bumpy = least_amount(lambda x: 1e12 / x * (1.001 if x > 9.995e11 else 1.0), 1.0)
    assert bumpy is not None
    assert 1e12 <= bumpy <= 1.0011e12


def test_what_no_amount_gives_is_none() -> None:
    assert least_amount(lambda x: 2.0, 1.0) is None
    assert least_amount(lambda x: math.inf, 2.0) is None


@pytest.mark.parametrize(
    "route",
    [
        Route(BOTH, "laplace", "pure", "epsilon"),
        Route(BOTH, "gaussian", "gaussian", "epsilon", Fraction(1, 10**9)),
        Route(BOTH, "gaussian", "gaussian", "rho"),
        Route(RHO, "gaussian", "gaussian", "rho"),
        Route(RHO, "laplace", "gaussian", "epsilon"),
    ],
    ids=["pure", "delta", "rho beside", "rho", "pure from rho"],
)
@pytest.mark.parametrize("units", [1000, 123_456_789, 10**11 + 7, 5 * 10**12])
def test_a_request_pays_for_its_units_and_hardly_more(route: Route, units: int) -> None:
    request = route.request(units)
    charge = route.price(request)
    paid = charge.units if charge.epsilon is None else int(charge.epsilon * GRID)
    assert units <= paid <= units * (1 + 1e-9) + 1 + units * 1e-9 * 1e3
    # A float as it would be given again makes the same charge.
    amount = float(request.rho or request.epsilon or 0)
    again = Request(rho=Fraction(amount)) if route.measure == "rho" else Request(Fraction(amount), request.delta)
    assert route.price(again) == charge


def test_ways_to_pay_are_those_of_plan() -> None:
    state = fresh_state(BOTH)
    assert [(r.noise, r.measure) for r in routes_of(state, None, None)] == [("laplace", "epsilon")]
    found = routes_of(state, Fraction(1, 10**6), None)
    assert [(r.noise, r.delta) for r in found] == [("gaussian", Fraction(1, 10**6)), ("laplace", Fraction(1, 10**6))]
    assert [r.measure for r in routes_of(state, None, "rho")] == ["rho"]
    assert [(r.noise, r.measure) for r in routes_of(fresh_state(RHO), None, None)] == [("gaussian", "rho")]
    assert [(r.noise, r.account) for r in routes_of(fresh_state(RHO), None, "epsilon")] == [("laplace", "gaussian")]
    assert [r.noise for r in routes_of(fresh_state(PURE), Fraction(1, 10), None)] == ["laplace"]
    gaussian = fresh_state(Budget.of(epsilon=1, delta="1e-6"))
    assert [(r.noise, r.delta) for r in routes_of(gaussian, None, None)] == [("gaussian", Fraction(1, 10**6))]


def test_ways_that_there_are_not() -> None:
    with pytest.raises(BudgetError, match="Gaussian account"):
        routes_of(fresh_state(PURE), None, "rho")
    with pytest.raises(BudgetError, match="local account only"):
        routes_of(fresh_state(Budget.of(local_epsilon=1)), None, None)
    with pytest.raises(DataError, match="'epsilon' or 'rho'"):
        routes_of(fresh_state(PURE), None, "mu")
    with pytest.raises(DataError, match="rho cannot go with delta"):
        routes_of(fresh_state(BOTH), Fraction(1, 10), "rho")


def test_what_is_left_for_one_release() -> None:
    capped = Budget.of(epsilon=4, delta="1e-9", pure_epsilon=1, max_epsilon_per_release="0.25")
    state = fresh_state(capped)
    assert Route(capped, "laplace", "pure", "epsilon").most(state) == GRID // 4
    route = Route(RHO, "laplace", "gaussian", "epsilon")
    most = route.most(fresh_state(RHO))
    assert fresh_state(RHO).affords(route.price(route.request(most)))
    assert not fresh_state(RHO).affords(route.price(route.request(int(most * 1.0001))))
    assert most < LARGEST


def test_figures_that_messages_offer_are_on_the_safe_side() -> None:
    assert float(up(49.99999)) >= 49.99999
    assert float(up(1.0)) == 1.001
    assert down(0.123456789) == "0.123456"
    assert Route(BOTH, "laplace", "pure", "epsilon").named(GRID) == "epsilon 1"
    assert Route(RHO, "gaussian", "gaussian", "rho").named(GRID) == "rho 0.5"
