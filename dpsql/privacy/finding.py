"""What a request pays for finding the values of a column: a charge, and the threshold that it pays for."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.errors import BudgetError, DataError
from dpsql.privacy.accountant import Request, charge_for
from dpsql.privacy.amounts import GRID, show, to_units
from dpsql.privacy.budget import Budget, mu_units
from dpsql.privacy.charge import Charge
from dpsql.privacy.pure_threshold import PureThreshold
from dpsql.privacy.reserve import check_possible
from dpsql.privacy.threshold import GaussianThreshold, Threshold
from dpsql.privacy.universe import Universe

PARTS = 32
"""The threshold at epsilon and delta may take any of 1, ..., 31 parts in 32 of the release's delta."""


@dataclass(frozen=True)
class Way:
    """A charge, and the threshold that it pays for."""

    charge: Charge
    law: Threshold = field(repr=False)


def gaussian_way(request: Request, delta: Fraction | None, budget: Budget, groups: int, left: Fraction) -> Way:
    """How ``request`` pays for finding values that nobody has listed: from the Gaussian account.

    ``request`` and ``delta``: epsilon and delta of this release alone, for which mu is that of (epsilon, delta - d) and
    the threshold fails with d, chosen so that the threshold is lowest; or rho of a rho policy, and the chance that the
    threshold fails. ``left``: what the reserve still holds (`reserve`). Raises DataError where a figure is missing or
    no threshold is within reach, PolicyError where the policy has no account for it, BudgetError where the reserve
    holds too little.
    """
    if delta is None:
        raise DataError(
            "finding values that nobody has listed needs a delta: whoever is the only one with a value could not "
            "be told from nobody otherwise; give delta=1e-9 or the like, or of short texts max_bytes"
        )
    check_possible(budget)
    tried = _at_rho(request.rho, delta, groups) if request.rho is not None else _at_epsilon(request, delta, groups)
    within = [way for way in tried if way.charge.delta is not None and way.charge.delta <= left]
    if not within and (request.rho is not None or delta / PARTS > left):
        raise BudgetError(_short(delta, left))
    if not within:
        raise DataError(f"{_amount(request)} is too small for any value to appear; ask with more")
    reached = [way for way in within if _reaches(way)]
    way = min(reached, key=lambda way: way.law.least) if reached else within[len(within) // 2]
    _ = way.law.least  # raises where no value is within reach
    return way


def pure_way(request: Request, budget: Budget, groups: int, universe: Universe) -> Way:
    """How ``request`` pays for finding values of a public ``universe``: purely, at epsilon.

    Raises DataError for rho, or where no value is within reach, BudgetError where the policy has no account for it.
    """
    if request.epsilon is None:
        raise DataError("values of max_bytes are found at a pure epsilon; give epsilon instead of rho")
    charge = next((way for way in charge_for(request, budget) if way.epsilon is not None), None)
    if charge is None or charge.epsilon is None:
        raise BudgetError(
            "values of max_bytes are paid from pure epsilon, of which this policy keeps none; write pure_epsilon "
            "before the ledger is made, or find them with delta"
        )
    way = Way(charge, PureThreshold(groups, charge.epsilon, universe))
    _ = way.law.least  # raises where no value is within reach
    return way


def _amount(request: Request) -> str:
    return f"rho {show(request.rho)}" if request.rho is not None else f"epsilon {show(request.epsilon or Fraction(0))}"


def _short(delta: Fraction, left: Fraction) -> str:
    return (
        f"a threshold at delta {show(delta)} takes more than is left of the delta that is kept for finding groups, "
        f"{show(left)}; ask with less delta"
    )


def _at_rho(rho: Fraction, delta: Fraction, groups: int) -> list[Way]:
    return [_way(to_units(2 * rho), f"rho {show(rho)} (zCDP) but for a chance of {show(delta)}", delta, groups)]


def _at_epsilon(request: Request, delta: Fraction, groups: int) -> list[Way]:
    """The ways to split delta between noise and threshold."""
    epsilon = request.epsilon or Fraction(0)
    guarantee = f"epsilon {show(epsilon)}, delta {show(delta)}"
    parts = [delta * number / PARTS for number in range(1, PARTS)]
    units = [(mu_units(epsilon, delta - part), part) for part in parts]
    return [_way(of_mu, guarantee, part, groups) for of_mu, part in units if of_mu]


def _way(units: int, guarantee: str, delta: Fraction, groups: int) -> Way:
    charge = Charge("gaussian", units, "gaussian", guarantee, None, delta)
    return Way(charge, GaussianThreshold(groups, charge.mu_squared, delta))


def _reaches(way: Way) -> bool:
    try:
        return way.law.least > 0
    except DataError:
        return False


@dataclass(frozen=True)
class Share:
    """One charge for several thresholds and measurements: ``units`` of mu squared for each, ``fails`` a threshold."""

    charge: Charge
    units: int
    fails: Fraction

    def threshold(self, groups: int) -> GaussianThreshold:
        """The threshold that one part pays for."""
        return GaussianThreshold(groups, Fraction(self.units, GRID), self.fails)

    @property
    def request(self) -> Request:
        """What one measurement is planned with."""
        return Request(rho=Fraction(self.units, 2 * GRID))


def shared(request: Request, delta: Fraction, budget: Budget, parts: int, thresholds: int, left: Fraction) -> Share:
    """``request`` in ``parts`` of equal mu squared, of which ``thresholds`` find values; Gaussian.

    Guarantee: parts that do not fail are mu_i-GDP, fixed before any is seen, so that together they are mu-GDP with
    mu^2 the sum of mu_i^2 (Dong, Roth and Su 2022, Cor. 3.3), of the largest that (epsilon, delta - d) allows; chances
    of failure add up (`threshold`) to d, half of delta where something can fail. In a rho policy d is delta.
    ``left``: what the reserve still holds. Raises PolicyError, BudgetError, DataError.
    """
    check_possible(budget)
    fails = Fraction(0) if not thresholds else delta if request.rho is not None else delta / 2
    if fails > left:
        raise BudgetError(_short(fails, left))
    if request.rho is not None:
        units, chance = to_units(2 * request.rho), f" but for a chance of {show(fails)}" if fails else ""
        said = f"rho {show(request.rho)} (zCDP){chance}"
    else:
        units = mu_units(request.epsilon or Fraction(0), delta - fails)
        said = f"epsilon {show(request.epsilon or Fraction(0))}, delta {show(delta)}"
    if units < parts:
        raise DataError(f"{_amount(request)} is too small for a survey of {parts} parts; ask with more")
    charge = Charge("gaussian", units, "gaussian", said, None, fails or None)
    return Share(charge, units // parts, fails / max(1, thresholds))
