"""What a policy allows in all, and what is left of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction

from dpsql.errors import BudgetError, DataError, PolicyError
from dpsql.privacy.amounts import GRID, LARGEST, Number, exact, float_down, show, to_units
from dpsql.privacy.calibrate import gaussian_epsilon, gaussian_mu
from dpsql.privacy.charge import PURSES, Charge


@dataclass(frozen=True)
class Budget:
    """What a policy allows in all, fixed at creation; exact fractions, None where not declared.

    Make it with `Budget.of`. ``delta`` None is a pure policy. ``rho`` stands alone.
    """

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    pure_epsilon: Fraction | None = None
    rho: Fraction | None = None
    local_epsilon: Fraction | None = None

    def __post_init__(self) -> None:
        if self.rho is not None and not (self.epsilon is self.delta is self.pure_epsilon is None):
            raise PolicyError("[budget] gives rho beside epsilon or delta; keep rho alone or leave it out")
        if self.rho is None and self.epsilon is None and self.local_epsilon is None:
            raise PolicyError("[budget] names no budget; give epsilon, or epsilon and delta, or rho")
        if self.epsilon is None and (self.delta is not None or self.pure_epsilon is not None):
            raise PolicyError("[budget] gives delta or pure_epsilon without epsilon; add epsilon")
        if self.delta is not None and self.delta >= 1:
            raise PolicyError("[budget] delta must be below 1; 1e-9 is usual")
        if self.epsilon is not None and self.pure_epsilon is not None and self.pure_epsilon > self.epsilon:
            raise PolicyError("[budget] pure_epsilon is part of epsilon and cannot exceed it; lower it")
        if self.delta is None and self.pure_epsilon not in (None, self.epsilon):
            raise PolicyError("[budget] without delta all of epsilon is pure; leave pure_epsilon out or add delta")
        for name, amount in self.totals.items():
            if not 0 < amount <= LARGEST:
                raise PolicyError(
                    f"[budget] the {name} purse would be below 1e-12 or above 4.6 million; choose another"
                )

    @classmethod
    def of(
        cls,
        epsilon: Number | None = None,
        delta: Number | None = None,
        pure_epsilon: Number | None = None,
        rho: Number | None = None,
        local_epsilon: Number | None = None,
    ) -> Budget:
        """From a policy's figures, as decimal text or numbers; a float counts as its shortest text.

        ``delta``, ``pure_epsilon`` and ``local_epsilon`` may be 0, the same as not given.
        Raises PolicyError.
        """

        def read(name: str, value: Number | None, *, zero: bool) -> Fraction | None:
            if value is None or (zero and not isinstance(value, bool | str) and value == 0):
                return None
            if zero and isinstance(value, str) and value.strip() and not value.strip().strip("0.+"):
                return None
            return exact(name, value, PolicyError, shortest=True)

        return cls(
            epsilon=read("epsilon", epsilon, zero=False),
            delta=read("delta", delta, zero=True),
            pure_epsilon=read("pure_epsilon", pure_epsilon, zero=True),
            rho=read("rho", rho, zero=False),
            local_epsilon=read("local_epsilon", local_epsilon, zero=True),
        )

    @property
    def pure(self) -> Fraction:
        """epsilon_P: all of epsilon without delta, else what pure_epsilon keeps."""
        kept = self.epsilon if self.delta is None else self.pure_epsilon
        return kept if kept is not None else Fraction(0)

    @property
    def totals(self) -> dict[str, int]:
        """The purses that exist, in units of 1e-12, rounded down. The Gaussian one holds mu^2."""
        amounts: dict[str, int] = {}
        if self.pure:
            amounts["pure"] = to_units(self.pure)
        if self.rho is not None:
            amounts["gaussian"] = to_units(2 * self.rho)
        elif self.epsilon is not None and self.delta is not None and self.epsilon > self.pure:
            amounts["gaussian"] = mu_units(self.epsilon - self.pure, self.delta)
        if self.local_epsilon is not None:
            amounts["local"] = to_units(self.local_epsilon)
        return amounts

    def figures(self) -> dict[str, str]:
        """The declared figures as exact text, for comparison and storage."""
        named = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "pure_epsilon": self.pure if self.delta is not None else None,
            "rho": self.rho,
            "local_epsilon": self.local_epsilon,
        }
        return {name: str(value) for name, value in named.items() if value}

    def __str__(self) -> str:
        parts = []
        if self.rho is not None:
            parts.append(f"rho {show(self.rho)}")
        if self.epsilon is not None:
            parts.append(f"epsilon {show(self.epsilon)}")
        if self.delta is not None:
            parts.append(f"delta {show(self.delta)}")
            if self.pure:
                parts.append(f"of which pure {show(self.pure)}")
        if self.local_epsilon is not None:
            parts.append(f"local epsilon {show(self.local_epsilon)}")
        return ", ".join(parts)


def mu_units(epsilon: Fraction, delta: Fraction) -> int:
    """Units of mu^2 for the largest mu that is (epsilon, delta)-DP; every step rounds down."""
    return to_units(Fraction(gaussian_mu(float_down(epsilon), float_down(delta))) ** 2)


@dataclass(frozen=True)
class Purse:
    """One purse of a ledger, in units of 1e-12 of its measure ("epsilon" or "mu squared")."""

    name: str
    total_units: int
    spent_units: int

    def __post_init__(self) -> None:
        if self.name not in PURSES or not 0 <= self.spent_units <= self.total_units <= LARGEST:
            raise DataError("a purse must be spent between 0 and its total; verify the ledger")

    @property
    def measure(self) -> str:
        """What the numbers count."""
        return "mu squared" if self.name == "gaussian" else "epsilon"

    @property
    def remaining_units(self) -> int:
        """Total less spent."""
        return self.total_units - self.spent_units

    @property
    def total(self) -> float:
        """Total, in the purse's measure."""
        return self.total_units / GRID

    @property
    def spent(self) -> float:
        """Spent, in the purse's measure; these add up over releases."""
        return self.spent_units / GRID

    @property
    def remaining(self) -> float:
        """Total less spent, in the purse's measure."""
        return self.remaining_units / GRID

    def __str__(self) -> str:
        left, total = Fraction(self.remaining_units, GRID), Fraction(self.total_units, GRID)
        return f"{self.name}: {self.measure} {show(left)} left of {show(total)}"


@dataclass(frozen=True)
class BudgetState:
    """What a ledger has spent of a policy's budget.

    ``total``, ``spent`` and ``remaining`` are epsilon at the policy's delta (rho for a rho policy):
    comparable with each other and 0 before anything was spent, but for Gaussian releases not
    additive: half of mu^2 spent is more than half of epsilon. ``remaining`` is what can still be
    asked for: the pure purse plus the largest epsilon that the Gaussian one grants at once.
    The local purse stands apart, in ``purses``, whose own numbers do add up.
    """

    budget: Budget
    purses: tuple[Purse, ...]

    def purse(self, name: str) -> Purse | None:
        """The purse of that name, None where the policy keeps none."""
        return next((purse for purse in self.purses if purse.name == name), None)

    @property
    def measure(self) -> str:
        """What the three numbers count: "rho" or "epsilon"."""
        return "rho" if self.budget.rho is not None else "epsilon"

    @property
    def delta(self) -> float | None:
        """The delta at which epsilon is stated; None for pure and rho policies."""
        return None if self.budget.delta is None else float(self.budget.delta)

    @property
    def total(self) -> float:
        """The policy's epsilon, or rho."""
        return float(self.budget.rho or self.budget.epsilon or 0)

    def _units(self, name: str, which: str) -> int:
        purse = self.purse(name)
        return 0 if purse is None else int(getattr(purse, which))

    @property
    def spent(self) -> float:
        """Epsilon at the policy's delta (or rho) of all releases together, rounded up, at most total."""
        pure = self._units("pure", "spent_units") / GRID
        gauss = self._units("gaussian", "spent_units")
        if self.budget.rho is not None:
            return gauss / GRID / 2.0
        return min(self.total, pure + self._epsilon(gauss))

    @property
    def remaining(self) -> float:
        """Largest further epsilon (or rho) that the purses still grant, at most total."""
        if all(purse.spent_units == 0 for purse in self.purses if purse.name != "local"):
            return self.total
        pure = self._units("pure", "remaining_units") / GRID
        gauss = self._units("gaussian", "remaining_units")
        if self.budget.rho is not None:
            return gauss / GRID / 2.0
        return min(self.total, pure + self._grantable(gauss))

    def _epsilon(self, units: int) -> float:
        if units == 0 or self.budget.delta is None:
            return 0.0
        mu = math.nextafter(math.sqrt(units / GRID) * (1.0 + 1e-15), math.inf)
        return gaussian_epsilon(mu, float_down(self.budget.delta))

    def _grantable(self, units: int) -> float:
        """Largest epsilon, within a hair, whose charge at the policy's delta fits ``units`` of mu^2."""
        epsilon, step = self._epsilon(units), 1e-13
        while epsilon > 0.0 and self.budget.delta is not None:
            if mu_units(Fraction(epsilon), self.budget.delta) <= units:
                return epsilon
            epsilon, step = max(0.0, epsilon * (1.0 - step)), step * 8.0
        return 0.0

    def affords(self, charge: Charge) -> bool:
        """Whether the purse of ``charge`` still holds it."""
        purse = self.purse(charge.purse)
        return purse is not None and charge.units <= purse.remaining_units

    def check(self, charge: Charge) -> None:
        """Raises BudgetError, with what is left and what to do, if ``charge`` does not fit.

        A courtesy before work is done: only the ledger's own conditional update decides.
        """
        if not self.affords(charge):
            raise BudgetError(self.refusal(charge))

    def refusal(self, charge: Charge) -> str:
        """One line: what was asked, what remains in which purse, what next."""
        purse = self.purse(charge.purse)
        if purse is None:
            return f"this policy keeps no {charge.purse} purse for {charge.guarantee}; ask for another guarantee"
        asked = show(Fraction(charge.units, GRID))
        message = (
            f"a release at {charge.guarantee} needs {purse.measure} {asked} of the {purse.name} purse,"
            f" which has {show(Fraction(purse.remaining_units, GRID))} left of"
            f" {show(Fraction(purse.total_units, GRID))}; "
        )
        other = ""
        if purse.name == "pure" and self.delta is not None and self._units("gaussian", "remaining_units"):
            other = f", or add delta={show(self.budget.delta or Fraction(0))} to be paid from the gaussian purse"
        if purse.remaining_units == 0:
            return message + "it is spent: query earlier releases, which is free" + other
        if purse.name != "gaussian":
            return message + f"ask for epsilon of at most {purse.remaining:.12g}, or query earlier releases" + other
        if self.budget.delta is None:
            return message + f"ask for rho of at most {purse.remaining / 2:.12g}, or query earlier releases"
        most = self._grantable(purse.remaining_units)
        delta = show(self.budget.delta)
        return message + f"ask for epsilon of at most {_floored(most)} at delta {delta}, or query earlier releases"

    def __str__(self) -> str:
        at = "" if self.delta is None else f" at delta {show(self.budget.delta or Fraction(0))}"
        lines = [f"{self.measure} {self.spent:.6g} spent of {self.total:.6g}{at}"]
        for purse in self.purses:
            line = f"  {purse}"
            if purse.name == "gaussian" and self.budget.delta is not None:
                most = _floored(self._grantable(purse.remaining_units))
                line += f", enough for one release of epsilon {most}{at}"
            lines.append(line)
        return "\n".join(lines)


def _floored(value: float) -> str:
    """Six significant digits, rounded down: what a message offers must be granted."""
    exact = Decimal(value)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 5), rounding=ROUND_FLOOR).normalize():f}"


def fresh_state(budget: Budget) -> BudgetState:
    """The state of a ledger on which nothing was spent."""
    return BudgetState(budget, tuple(Purse(name, total, 0) for name, total in budget.totals.items()))
