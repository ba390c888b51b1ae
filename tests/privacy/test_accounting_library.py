"""Cross-checks against Google's dp-accounting, an independent accountant, which `make test-long` installs.

It composes privacy-loss distributions, discretised pessimistically, so its epsilon is never below the truth and
here at most a little above it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import pytest

from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.amounts import GRID
from dpsql.privacy.calibrate import gaussian_delta, gaussian_epsilon

dp_accounting: Any = pytest.importorskip("dp_accounting", reason="the extra is not installed; run make extras")
from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: E402

# With the long tests: `make test-long` installs the extra.
pytestmark = pytest.mark.long

FINE = 1e-4


def gaussian(mu: float) -> Any:
    return pld.from_gaussian_mechanism(1.0 / mu, value_discretization_interval=FINE)


def laplace(epsilon: float) -> Any:
    return pld.from_laplace_mechanism(1.0 / epsilon, value_discretization_interval=FINE)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.3), (0.2, 1.0), (0.5, 1.0), (1.0, 3.0), (2.0, 5.0)])
def test_the_curve_of_the_gaussian_mechanism(mu: float, epsilon: float) -> None:
    theirs = gaussian(mu).get_delta_for_epsilon(epsilon)
    assert gaussian_delta(mu, epsilon) == pytest.approx(theirs, rel=3e-3)
    assert theirs >= gaussian_delta(mu, epsilon) * (1 - 1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1e-9"), ("1", "1e-6"), ("0.5", "1e-4"), ("3", "1e-9")])
def test_one_gaussian_release_has_the_epsilon_that_was_asked(epsilon: str, delta: str) -> None:
    (charge,) = charge_for(Request.of(epsilon, delta), Budget.of("4", "1e-4"))
    theirs = gaussian(math.sqrt(charge.mu_squared)).get_epsilon_for_delta(float(delta))
    assert theirs == pytest.approx(float(epsilon), rel=1e-3)


def test_the_sum_of_mu_squared_is_what_composition_gives() -> None:
    parts = [0.05, 0.1, 0.2, 0.15]
    composed = gaussian(parts[0])
    for mu in parts[1:]:
        composed = composed.compose(gaussian(mu))
    total = math.sqrt(sum(mu * mu for mu in parts))
    for delta in (1e-4, 1e-6, 1e-9):
        assert composed.get_epsilon_for_delta(delta) == pytest.approx(gaussian_epsilon(total, delta), rel=5e-3)


@pytest.mark.parametrize("pure", ["0.25", "0.5"])
def test_both_accounts_spent_to_the_end_stay_within_the_policy(pure: str) -> None:
    budget = Budget.of("1", "1e-6", pure)
    mu = math.sqrt(Fraction(budget.totals["gaussian"], GRID))
    # The worst pure release is randomised response, whose loss is plus or minus epsilon.
    keep = 1.0 / (1.0 + math.exp(-float(pure)))
    response = pld.from_randomized_response(2.0 * (1.0 - keep), 2, value_discretization_interval=FINE)
    for step in (response, laplace(float(pure))):
        spent = gaussian(mu / math.sqrt(2)).self_compose(2).compose(step).get_epsilon_for_delta(1e-6)
        assert spent <= 1.0 + 2e-3
    assert spent > float(pure)  # and not vacuously


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_a_pure_release_as_a_gaussian_one(epsilon: float) -> None:
    keep = 1.0 / (1.0 + math.exp(-epsilon))
    mu = 2.0 * NormalDist().inv_cdf(keep)
    response = pld.from_randomized_response(2.0 * (1.0 - keep), 2, value_discretization_interval=FINE)
    for at in (0.0, epsilon / 2, epsilon * 0.9):
        delta = response.get_delta_for_epsilon(at)
        assert gaussian_delta(mu, at) >= delta * (1 - 1e-3) - 1e-9
    # L7: credited with mu = epsilon instead, it would claim more than randomised response keeps.
    assert gaussian_delta(epsilon, epsilon / 2) < response.get_delta_for_epsilon(epsilon / 2)
