"""Ways to pay for finding the values of a column, compared by the count from which a value is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.errors import BudgetError, DataError
from dpsql.privacy.accountant import Request, charge_for
from dpsql.privacy.amounts import GRID, show, to_units
from dpsql.privacy.budget import Budget, mu_units
from dpsql.privacy.charge import Charge, pure_cost
from dpsql.privacy.optimal_selection import OptimalSelection
from dpsql.privacy.pure_threshold import PureThreshold
from dpsql.privacy.state import BudgetState
from dpsql.privacy.threshold import WEIGHT, GaussianThreshold, Threshold, TwoRounds
from dpsql.privacy.universe import Universe

PARTS = 32
"""The threshold of a Gaussian way may take any of 1, ..., 31 parts in 32 of the release's delta."""


@dataclass(frozen=True)
class Way:
    """A charge, and the threshold that it pays for."""

    charge: Charge
    law: Threshold = field(repr=False)


def ways(
    request: Request, delta: Fraction | None, budget: Budget, groups: int, left: Fraction, *, weighted: bool = False
) -> list[Way]:
    """How ``request`` could be paid, the way that shows the smallest counts first; never empty.

    ``request`` and ``delta``: epsilon and delta of this release alone, or rho of a rho policy and the chance that its
    threshold fails. Gaussian: mu is that of (epsilon, delta - d), the threshold fails with d, which is chosen. From the
    pure account, where the policy made it large enough (in a rho policy at the price of a pure release): a selection
    at epsilon that fails with delta. ``weighted``: by two weighted rounds, Gaussian alone.
    ``left``: what the reserve still holds (`reserve`). Raises DataError where a figure is missing or no threshold is
    within reach, BudgetError where the policy has no account for it.
    """
    if delta is None:
        raise DataError(
            "finding values that nobody has listed needs a delta: whoever is the only one with a value could not "
            "be told from nobody otherwise; give delta=1e-9 or the like, or of short texts max_bytes"
        )
    if delta > left and request.rho is not None:
        raise BudgetError(_short(delta, left))
    found: list[Way] = []
    why = ""
    for way in _possible(request, delta, budget, groups, left, TwoRounds if weighted else GaussianThreshold):
        try:
            _ = way.law.half
            found.append(way)
        except DataError as error:
            why = why or str(error)
    if not found and not why and delta / PARTS > left:
        raise BudgetError(_short(delta, left))
    if not found:
        raise DataError(why or f"{_amount(request)} is too small for any value to appear; ask with more")
    return sorted(found, key=lambda way: way.law.half)


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
    _ = way.law.half
    return way


def chosen(found: Sequence[Way], state: BudgetState) -> Way:
    """The first way that the accounts can pay. Raises BudgetError as the best one is refused."""
    for way in found:
        if state.affords(way.charge):
            return way
    state.check(found[0].charge)
    return found[0]


def _amount(request: Request) -> str:
    return f"rho {show(request.rho)}" if request.rho is not None else f"epsilon {show(request.epsilon or Fraction(0))}"


def _short(delta: Fraction, left: Fraction) -> str:
    return (
        f"a threshold at delta {show(delta)} takes more than is left of the delta that is kept for finding groups, "
        f"{show(left)}; ask with less delta"
    )


def _possible(
    request: Request, delta: Fraction, budget: Budget, groups: int, left: Fraction, law: type[GaussianThreshold]
) -> Iterator[Way]:
    totals = budget.totals
    if request.rho is not None:
        if "gaussian" not in totals:
            raise BudgetError("rho needs a Gaussian account, which this policy does not keep; ask with epsilon")
        said = f"rho {show(request.rho)} (zCDP) but for a chance of {show(delta)}"
        yield _gaussian(to_units(2 * request.rho), said, delta, law, groups)
        return
    epsilon = request.epsilon or Fraction(0)
    said = f"epsilon {show(epsilon)}, delta {show(delta)}"
    if "gaussian" in totals and budget.rho is None:
        parts = [delta * part / PARTS for part in range(1, PARTS)]
        tried = [
            _gaussian(mu_units(epsilon, delta - part), said, part, law, groups)
            for part in parts
            if part <= left and mu_units(epsilon, delta - part) > 0
        ]
        reached = [way for way in tried if _reaches(way)]
        if reached:
            yield min(reached, key=_rarest)
        elif tried:
            yield tried[len(tried) // 2]
    if law is TwoRounds:
        if "gaussian" not in totals or budget.rho is not None:
            raise BudgetError("weighted rounds are paid from a Gaussian account, at epsilon and delta; leave them out")
        return
    units = to_units(epsilon)
    paid = Fraction(units, GRID)
    account = "pure" if totals.get("pure", 0) >= units else "gaussian" if budget.rho is not None else ""
    if account and units and delta <= left:
        cost = units if account == "pure" else pure_cost(paid)
        charge = Charge(account, cost, "laplace", said, paid, delta)
        try:
            yield Way(charge, OptimalSelection(groups, paid, delta))
        except DataError:
            if "gaussian" not in totals or budget.rho is not None:
                raise


def _rarest(way: Way) -> float:
    """The count from which a value is shown; of rounds the weight, of which units with several values have a part."""
    return way.law.rounds[1].least / WEIGHT if isinstance(way.law, TwoRounds) else way.law.half


def _gaussian(units: int, said: str, delta: Fraction, law: type[GaussianThreshold], groups: int) -> Way:
    charge = Charge("gaussian", units, "gaussian", said, None, delta)
    return Way(charge, law(groups, charge.mu_squared, delta))


def _reaches(way: Way) -> bool:
    try:
        return way.law.half > 0
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
    ``left``: what the reserve still holds. Raises BudgetError, DataError.
    """
    if "gaussian" not in budget.totals:
        raise BudgetError("a survey is paid from a Gaussian account, which this policy does not keep")
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
