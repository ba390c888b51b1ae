"""Ways to pay: the amount of one account, for one kind of noise, under the figure that a request names it by.

Amounts are what the noise follows from: mu^2 for Gaussian noise, epsilon for Laplace noise, in units of 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

from dpsql.common.numerics import NEAR
from dpsql.errors import BudgetError, DataError, quoted
from dpsql.privacy.accountant import Budget, BudgetState, Request, charge_for
from dpsql.privacy.amounts import GRID, LARGEST, float_down, show
from dpsql.privacy.calibrate import gaussian_epsilon
from dpsql.privacy.charge import Charge, pure_cost

MEASURES = ("epsilon", "rho")
_STEPS = 200


@dataclass(frozen=True)
class Route:
    """One way to pay: the noise, the account, and in which figure a request names the amount.

    Amounts of the search are units of 1e-12 of mu^2 for Gaussian noise, of epsilon for Laplace noise.
    """

    budget: Budget
    noise: str
    account: str
    measure: str
    delta: Fraction | None = None

    def request(self, units: int) -> Request:
        """The least request, a float as a person would give it, whose charge pays for ``units``."""
        if self.measure == "rho":
            return Request(rho=Fraction(_float_up(Fraction(units, 2 * GRID))))
        if self.delta is None or self.noise == "laplace":
            return Request(epsilon=Fraction(_float_up(Fraction(units, GRID))), delta=self.delta)
        mu = math.nextafter(math.sqrt(units / GRID) * (1 + 1e-15), math.inf)
        epsilon, step = max(gaussian_epsilon(mu, float_down(self.delta)), 1e-12), 1e-15
        while True:
            found = Request(epsilon=Fraction(epsilon), delta=self.delta)
            if self.price(found).units >= units:
                return found
            epsilon, step = epsilon * (1 + step), step * 4

    def price(self, request: Request) -> Charge:
        """What ``request`` is charged this way."""
        asked = Request(epsilon=request.epsilon) if self.noise == "laplace" else request
        return next(charge for charge in charge_for(asked, self.budget) if charge.noise == self.noise)

    def step(self, units: int) -> Charge:
        """``units`` of this noise, for a step of the search; nobody pays it."""
        if self.noise == "gaussian":
            return Charge("gaussian", units, "gaussian", "a step of the search")
        return Charge("pure", units, "laplace", "a step of the search", Fraction(units, GRID))

    def most(self, state: BudgetState) -> int:
        """The most units that are left for one release this way."""
        account = state.account(self.account)
        held = 0 if account is None else min(account.remaining_units, self.budget.caps.get(self.account, LARGEST))
        if self.noise == "gaussian" or self.account == "pure":
            return held
        low, high = 0, LARGEST // 4  # a pure release that is paid in mu squared
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if pure_cost(Fraction(middle, GRID)) <= held else (low, middle)
        return low

    def named(self, units: int) -> str:
        """``units`` as what a request may ask for at most, rounded down."""
        if self.measure == "rho":
            return f"rho {down(units / GRID / 2)}"
        if self.noise == "laplace" or self.delta is None:
            return f"epsilon {down(units / GRID)}"
        return (
            f"epsilon {down(gaussian_epsilon(math.sqrt(units / GRID), float(self.delta)))} at delta {show(self.delta)}"
        )


def _float_up(value: Fraction) -> float:
    """The least float that is not below ``value``."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def routes_of(state: BudgetState, delta: Fraction | None, measure: str | None) -> tuple[Route, ...]:
    """The ways in which a policy lets a batch be paid, as ``plan`` has them.

    Without ``delta`` and ``measure``: pure epsilon where the policy keeps a pure account, else epsilon at the policy's
    delta, and rho in a rho policy. Raises BudgetError where no account pays for what is asked.
    """
    if measure not in (None, *MEASURES):
        raise DataError(f"measure {quoted(measure)} is not known; use 'epsilon' or 'rho'")
    budget = state.budget
    accounts = budget.totals
    if measure == "rho" and delta is not None:
        raise DataError("rho cannot go with delta; leave one of the two out")
    if measure == "rho" or (measure is None and budget.rho is not None and delta is None):
        if "gaussian" not in accounts:
            raise BudgetError("rho needs a Gaussian account, which this policy does not keep; ask for epsilon")
        return (Route(budget, "gaussian", "gaussian", "rho"),)
    if "pure" in accounts and (delta is None or "gaussian" not in accounts):
        return (Route(budget, "laplace", "pure", "epsilon"),)
    if "gaussian" not in accounts:
        raise BudgetError("this policy keeps a local account only; use synthesize, or add epsilon to its [budget]")
    chosen = budget.gaussian_delta if delta is None else delta
    if chosen is None:
        return (Route(budget, "laplace", "gaussian", "epsilon"),)
    found = Route(budget, "gaussian", "gaussian", "epsilon", chosen)
    return (found, Route(budget, "laplace", "pure", "epsilon", chosen)) if "pure" in accounts else (found,)


def least_amount(
    ratio: Callable[[int], float], power: float, start: int = GRID, *, near: float = NEAR, learn: bool = False
) -> int | None:
    """The least number of units at which ``ratio`` is at most 1, within ``near`` of it; None where none is.

    ``ratio`` falls as units rise, about as units^(-1 / power); it may have steps. Nothing else is assumed of it, so
    that it may count earlier releases; ``learn`` takes the power from the last two calls, for ratios that are smooth
    and no power. Cost: 3 to 6 calls where it is a power or learnt, some 30 where it has steps.
    """
    low, high, x = 0, 0, start
    before: tuple[int, float] | None = None
    for count in range(_STEPS):
        found = ratio(x)
        if learn and before is not None and 0 < found < math.inf and 0 < before[1] < math.inf and found != before[1]:
            slope = math.log(x / before[0]) / math.log(before[1] / found)
            power = min(max(slope, 0.25), 8.0) if slope > 0 else power
        before = x, found
        if found <= 1:
            high = x
            guess = x * max(found, 1e-3) ** power if found < 1 - near else x * (1 - near)
        else:
            low = x
            guess = x * min(found, 1e3) ** power * (1 + near / 4)
        if high and high - low <= max(1.0, high * near * 1.5):
            return high
        if low >= LARGEST:
            return None
        if high and (count % 4 == 3 or not low < guess < high):
            guess = math.sqrt(max(low, 1) * high) if high > 4 * max(low, 1) else (low + high) / 2
        x = min(max(round(guess), low + 1), high - 1 if high else LARGEST)
        if x <= low:
            return high or None
    return high or None


def up(value: float) -> str:
    """Four digits, rounded up: what a message offers must be granted."""
    return _digits(value * (1 + 3 * NEAR), 4, ROUND_CEILING)


def down(value: float) -> str:
    """Six digits, rounded down, for the same reason."""
    return _digits(value, 6, ROUND_FLOOR)


def _digits(value: float, digits: int, rounding: str) -> str:
    exact = Decimal(value)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=rounding).normalize():f}"
