"""What is spent of a budget, what is left of it, by whom and for what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction

from dpsql.errors import BudgetError, listed, one_line
from dpsql.privacy.amounts import GRID, float_down, show, show_left
from dpsql.privacy.budget import Budget, Purse, mu_units
from dpsql.privacy.calibrate import gaussian_epsilon
from dpsql.privacy.charge import Charge
from dpsql.privacy.entries import Entry


@dataclass(frozen=True, repr=False)
class BudgetState:
    """What a ledger has spent of a policy's budget.

    ``total``, ``spent`` and ``remaining`` are epsilon at the policy's delta (rho for a rho policy):
    comparable with each other and 0 before anything was spent, but for Gaussian releases not
    additive: half of mu^2 spent is more than half of epsilon. ``remaining`` is what can still be
    asked for: the pure account plus the largest epsilon that the Gaussian one grants at once.
    The local account stands apart, in ``purses``, whose own numbers do add up. ``charges`` are all rows of the
    ledger, oldest first, without payloads: by whom, for what, at what cost, released or not.
    """

    budget: Budget
    purses: tuple[Purse, ...]
    charges: tuple[Entry, ...] = ()

    @property
    def unreleased(self) -> tuple[Entry, ...]:
        """Charges without a recorded answer: running now, or spent by a crash or an interrupt for nothing."""
        return tuple(entry for entry in self.charges if entry.released is None)

    def by_label(self) -> tuple[Share, ...]:
        """What each label has spent of each account, in order of their first charges."""
        return shares(self.charges)

    def purse(self, name: str) -> Purse | None:
        """The account of that name, None where the policy keeps none."""
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
        """Largest further epsilon (or rho) that the accounts still grant, at most total."""
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
        """Whether the account of ``charge`` still holds it, and the cap on one release lets it pass."""
        purse = self.purse(charge.purse)
        return purse is not None and charge.units <= purse.remaining_units and self.budget.allows(charge)

    def check(self, charge: Charge) -> None:
        """Raises BudgetError, with what is left and what to do, if ``charge`` does not fit.

        A courtesy before work is done: only the ledger's own conditional update decides.
        """
        if not self.affords(charge):
            raise BudgetError(self.refusal(charge))

    def refusal(self, charge: Charge) -> str:
        """One line: what was asked, what remains in which account, what next."""
        purse = self.purse(charge.purse)
        if purse is None:
            return f"this policy keeps no {charge.purse} account for {charge.guarantee}; ask for another guarantee"
        if not self.budget.allows(charge):
            return self.budget.refusal(charge)
        asked = show(Fraction(charge.units, GRID))
        message = (
            f"a release at {charge.guarantee} needs {purse.measure} {asked} of the {purse.name} account,"
            f" which has {show_left(Fraction(purse.remaining_units, GRID))} left of"
            f" {show(Fraction(purse.total_units, GRID))}; "
        )
        other = ""
        if purse.name == "pure" and self.delta is not None and self._units("gaussian", "remaining_units"):
            other = f", or add delta={show(self.budget.delta or Fraction(0))} to be paid from the gaussian account"
        if purse.remaining_units == 0:
            return message + "it is spent: query earlier releases, which is free" + other
        if purse.name != "gaussian":
            return message + f"ask for epsilon of at most {purse.remaining:.12g}, or query earlier releases" + other
        if self.budget.delta is None:
            return message + f"ask for rho of at most {purse.remaining / 2:.12g}, or query earlier releases"
        most = self._grantable(purse.remaining_units)
        delta = show(self.budget.delta)
        return message + f"ask for epsilon of at most {_floored(most)} at delta {delta}, or query earlier releases"

    def __repr__(self) -> str:
        return str(self)  # what a notebook or a prompt shows; its charges are thousands of characters

    def __str__(self) -> str:
        at = "" if self.delta is None else f" at delta {show(self.budget.delta or Fraction(0))}"
        lines = [f"{self.measure} {show(Fraction(self.spent), 6)} spent of {self.total:.6g}{at}"]
        for purse in self.purses:
            line = f"  {purse}"
            if purse.name == "gaussian" and self.budget.delta is not None:
                most = _floored(self._grantable(purse.remaining_units))
                line += f", enough for one release of epsilon {most}{at}"
            lines.append(line)
        lines += share_lines(self.by_label())
        lost = self.unreleased
        if lost:
            lines.append(
                f"  charged without a recorded answer: {_numbers([entry.id for entry in lost])}"
                " (running now, or cut off; charges are never given back)"
            )
        return "\n".join(lines)


def _floored(value: float) -> str:
    """Six significant digits, rounded down: what a message offers must be granted."""
    exact = Decimal(value)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 5), rounding=ROUND_FLOOR).normalize():f}"


def fresh_state(budget: Budget) -> BudgetState:
    """The state of a ledger on which nothing was spent."""
    return BudgetState(budget, tuple(Purse(name, total, 0) for name, total in budget.totals.items()))


def _numbers(ids: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in ids[:10])
    return f"release {shown}" if len(ids) == 1 else f"releases {shown}" + (", ..." if len(ids) > 10 else "")


MOST_LINES = 10  # of a text; all shares are in JSON


@dataclass(frozen=True)
class Share:
    """What one label has spent of one account: ``units`` of 1e-12 over ``count`` charges, for ``results``.

    A label is what the caller said of itself. Inside one process nothing can check it: whoever may call ``run`` may
    write any label. Where it must be trusted, the custodian's server sets it.
    """

    label: str
    purse: str
    units: int
    count: int
    results: tuple[str, ...]

    @property
    def cost(self) -> float:
        """Spent, in the account's measure; these add up to what the account has spent."""
        return self.units / GRID

    def __str__(self) -> str:
        measure = "mu squared" if self.purse == "gaussian" else "epsilon"
        names = listed(self.results, 3)
        charges = "1 charge" if self.count == 1 else f"{self.count} charges"
        spent = f"{self.purse} {measure} {show(Fraction(self.units, GRID))} in {charges}"
        return f"by {self.label or '(no label)'}: {spent}" + (f" for {names}" if names else "")


def shares(entries: Iterable[Entry]) -> tuple[Share, ...]:
    """The charges added up by label and account, in order of their first charge; every result is named once."""
    units: dict[tuple[str, str], int] = {}
    count: dict[tuple[str, str], int] = {}
    results: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        if entry.charge.noise == "none":  # free answers are nobody's spending
            continue
        key = (entry.label, entry.charge.purse)
        units[key] = units.get(key, 0) + entry.charge.units
        count[key] = count.get(key, 0) + 1
        results.setdefault(key, {}).update(dict.fromkeys(entry.results))
    return tuple(Share(*key, units[key], count[key], tuple(results[key])) for key in units)


def share_lines(found: tuple[Share, ...]) -> list[str]:
    """Lines for people, at most `MOST_LINES`."""
    lines = [f"  {one_line(str(share))}" for share in found[:MOST_LINES]]
    if len(found) > MOST_LINES:
        lines.append(f"  and {len(found) - MOST_LINES} more labels")
    return lines
