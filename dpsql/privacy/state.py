"""What is spent of a budget, what is left of it, by whom and for what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import cached_property

from dpsql.errors import BudgetError, listed, one_line
from dpsql.privacy import reserve
from dpsql.privacy.amounts import GRID, float_down, show, show_left
from dpsql.privacy.budget import Budget, BudgetAccount, mu_units
from dpsql.privacy.calibrate import gaussian_epsilon
from dpsql.privacy.charge import Charge
from dpsql.privacy.entries import Entry
from dpsql.privacy.periods import Reads, Spending, share_of


@dataclass(frozen=True, repr=False)
class BudgetState:
    """What a ledger has spent of a policy's budget.

    ``total``, ``spent`` and ``remaining`` are epsilon at the policy's delta (rho for a rho policy):
    comparable with each other and 0 before anything was spent, but for Gaussian releases not
    additive: half of mu^2 spent is more than half of epsilon. ``remaining`` is what can still be
    asked for: the pure account plus the largest epsilon that the Gaussian one grants at once.
    The local account stands apart, in ``accounts``, whose own numbers do add up. ``charges`` are all rows of the
    ledger, oldest first, without payloads: by whom, for what, at what cost, released or not. ``reads``: the periods
    that the accounts are for, None where they are for everything (`within`).
    """

    budget: Budget
    accounts: tuple[BudgetAccount, ...]
    charges: tuple[Entry, ...] = ()
    reads: Reads | None = None

    @property
    def purses(self) -> tuple[BudgetAccount, ...]:
        """The older name of ``accounts``, for programs that were written with it."""
        return self.accounts

    @property
    def unreleased(self) -> tuple[Entry, ...]:
        """Charges without a recorded answer: running now, or spent by a crash or an interrupt for nothing."""
        return tuple(entry for entry in self.charges if entry.released is None and not entry.measures_nothing)

    def within(self, reads: Reads | None) -> BudgetState:
        """The same where a release reads these periods alone: accounts hold what one may still take of each of them."""
        if reads is None:
            return self
        held = self.spending
        accounts = []
        for account in self.accounts:
            total = share_of(account.total_units, reads)
            accounts.append(
                replace(
                    account,
                    total_units=total,
                    spent_units=total - held.room(account.name, account.total_units, reads),
                )
            )
        return replace(self, accounts=tuple(accounts), reads=reads)

    @cached_property
    def spending(self) -> Spending:
        """What the charges add up to, everywhere and by period."""
        return Spending.among(
            (entry.charge.account, entry.charge.units, entry.reads)
            for entry in self.charges
            if entry.charge.noise != "none"
        )

    def by_label(self) -> tuple[Share, ...]:
        """What each label has spent of each account, in order of their first charges."""
        return shares(self.charges)

    def account(self, name: str) -> BudgetAccount | None:
        """The account of that name, None where the policy keeps none."""
        return next((account for account in self.accounts if account.name == name), None)

    @property
    def reserve(self) -> reserve.Reserve | None:
        """The part of delta that is kept for finding groups, and what is left of it; None where there is none yet."""
        return reserve.among(self.budget, ((entry.charge, entry.description) for entry in self.charges))

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
        account = self.account(name)
        return 0 if account is None else int(getattr(account, which))

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
        if all(account.spent_units == 0 for account in self.accounts if account.name != "local"):
            return self.total
        pure = self._units("pure", "remaining_units") / GRID
        gauss = self._units("gaussian", "remaining_units")
        if self.budget.rho is not None:
            return gauss / GRID / 2.0
        return min(self.total, pure + self._grantable(gauss))

    def _epsilon(self, units: int) -> float:
        if units == 0 or self.budget.gaussian_delta is None:
            return 0.0
        mu = math.nextafter(math.sqrt(units / GRID) * (1.0 + 1e-15), math.inf)
        return gaussian_epsilon(mu, float_down(self.budget.gaussian_delta))

    def _grantable(self, units: int) -> float:
        """Largest epsilon, within a hair, whose charge at the policy's delta fits ``units`` of mu^2."""
        epsilon, step = self._epsilon(units), 1e-13
        while epsilon > 0.0 and self.budget.gaussian_delta is not None:
            if mu_units(Fraction(epsilon), self.budget.gaussian_delta) <= units:
                return epsilon
            epsilon, step = max(0.0, epsilon * (1.0 - step)), step * 8.0
        return 0.0

    def affords(self, charge: Charge) -> bool:
        """Whether the account of ``charge`` still holds it, and the cap on one release lets it pass."""
        account = self.account(charge.account)
        return account is not None and charge.units <= account.remaining_units and self.budget.allows(charge)

    def check(self, charge: Charge) -> None:
        """Raises BudgetError, with what is left and what to do, if ``charge`` does not fit.

        A courtesy before work is done: only the ledger's own conditional update decides.
        """
        if not self.affords(charge):
            raise BudgetError(self.refusal(charge))

    def refusal(self, charge: Charge) -> str:
        """One line: what was asked, what remains in which account, what next."""
        account = self.account(charge.account)
        if account is None:
            return f"this policy keeps no {charge.account} account for {charge.guarantee}; ask for another guarantee"
        if not self.budget.allows(charge):
            return self.budget.refusal(charge)
        total, _, left, _ = self.figures(account)
        if left.endswith("%"):
            asked, measure = f"{show(Fraction(100 * charge.units, account.total_units), 3)}%", ""
        else:
            measure = left.split()[0] + " "
            asked = measure + show(Fraction(charge.units, GRID * (2 if measure == "rho " else 1)))
        part = "" if self.reads is None else f" for {self.reads}"
        message = (
            f"a release at {charge.guarantee} needs {asked} of the {account.name} account{part}, which has"
            f" {left.removeprefix(measure)} left of {total.removeprefix(measure)}; "
        )
        other = ""
        if account.name == "pure" and self.delta is not None and self._units("gaussian", "remaining_units"):
            other = f", or add delta={show(self.budget.delta or Fraction(0))} to be paid from the gaussian account"
        if account.remaining_units == 0:
            return message + "it is spent: query earlier releases, which is free" + other
        if account.name != "gaussian":
            return message + f"ask for epsilon of at most {account.remaining:.12g}, or query earlier releases" + other
        if self.budget.delta is None:
            return message + f"ask for rho of at most {account.remaining / 2:.12g}, or query earlier releases"
        most = self._grantable(account.remaining_units)
        delta = show(self.budget.delta)
        return message + f"ask for epsilon of at most {_floored(most)} at delta {delta}, or query earlier releases"

    def figures(self, account: BudgetAccount) -> tuple[str, str, str, str]:
        """What an account holds in all, has spent and has left, in the figures that people ask with, and a remark.

        Releases add up in mu squared in the Gaussian account, and not in epsilon. So its parts are shares of the whole,
        and the remark says for how much epsilon at once the rest is enough.
        """
        total, spent, left = (
            Fraction(units, GRID) for units in (account.total_units, account.spent_units, account.remaining_units)
        )
        delta = self.budget.delta
        if account.name == "gaussian" and delta is not None:
            at = f" at delta {show(delta)}"
            whole = f"epsilon {show((self.budget.epsilon or Fraction(0)) - self.budget.pure)}{at}"
            if self.reads is not None and self.reads.most != 1:
                whole = f"epsilon {_floored(self._grantable(account.total_units))}{at}"
            most = _floored(self._grantable(account.remaining_units)) if account.remaining_units else "0"
            shares = f"{show(100 * spent / total, 3)}%", f"{show_left(100 * left / total, 3)}%"
            return whole, *shares, f", enough for one release of epsilon {most}{at}"
        measure, parts = ("rho", 2) if account.name == "gaussian" else ("epsilon", 1)
        # What nothing was spent of is shown like the total, which is rounded up, and not a digit below it.
        rest = show_left(left / parts) if left < total else show(total / parts)
        return f"{measure} {show(total / parts)}", f"{measure} {show(spent / parts)}", f"{measure} {rest}", ""

    def __repr__(self) -> str:
        return str(self)  # what a notebook or a prompt shows; its charges are thousands of characters

    def __str__(self) -> str:
        at = "" if self.delta is None else f" at delta {show(self.budget.delta or Fraction(0))}"
        lines = [f"{self.measure} {show(Fraction(self.spent), 6)} spent of {self.total:.6g}{at}"]
        for account in self.accounts:
            total, _, left, remark = self.figures(account)
            lines.append(f"  {account.name}: {left} left of {total.removeprefix(f'{left.split()[0]} ')}{remark}")
        if self.reserve is not None:
            lines.append(f"  {self.reserve}")
        lines += self._share_lines()
        lost = self.unreleased
        if lost:
            lines.append(
                f"  charged without a recorded answer: {_numbers([entry.id for entry in lost])}"
                " (running now, or cut off; charges are never given back)"
            )
        return "\n".join(lines)

    def _share_lines(self) -> list[str]:
        """Who spent how much for what: a line a label and account, at most `MOST_LINES`."""
        found, lines = self.by_label(), []
        for share in found[:MOST_LINES]:
            account = self.account(share.account)
            most = None if account is None else replace(account, spent_units=min(share.units, account.total_units))
            spent = "" if most is None else self.figures(most)[1]
            charges = "1 charge" if share.count == 1 else f"{share.count} charges"
            names = f" for {listed(share.results, 3)}" if share.results else ""
            lines.append(f"  {one_line(f'by {share.label or NO_LABEL}: {share.account} {spent} in {charges}{names}')}")
        if len(found) > MOST_LINES:
            lines.append(f"  and {len(found) - MOST_LINES} more labels")
        return lines


def _floored(value: float) -> str:
    """Six significant digits, rounded down: what a message offers must be granted."""
    exact = Decimal(value)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 5), rounding=ROUND_FLOOR).normalize():f}"


def fresh_state(budget: Budget) -> BudgetState:
    """The state of a ledger on which nothing was spent."""
    return BudgetState(budget, tuple(BudgetAccount(name, total, 0) for name, total in budget.totals.items()))


def _numbers(ids: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in ids[:10])
    return f"release {shown}" if len(ids) == 1 else f"releases {shown}" + (", ..." if len(ids) > 10 else "")


MOST_LINES = 10  # of a text; all shares are in JSON
NO_LABEL = "(no label)"


@dataclass(frozen=True)
class Share:
    """What one label has spent of one account: ``units`` of 1e-12 by ``count`` charges, for ``results``.

    Charges of different periods count as far as one unit is in them (`periods`), so that labels may add up to more than
    the account has spent.

    A label is what the caller said of itself. Inside one process nothing can check it: whoever may call ``run`` may
    write any label. Where it must be trusted, the custodian's server sets it.
    """

    label: str
    account: str
    units: int
    count: int
    results: tuple[str, ...]

    @property
    def cost(self) -> float:
        """Spent, in the account's measure."""
        return self.units / GRID


def shares(entries: Iterable[Entry]) -> tuple[Share, ...]:
    """What charges come to by label and account, in order of their first charge; every result is named once."""
    spent: dict[str, Spending] = {}
    count: dict[tuple[str, str], int] = {}
    results: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        if entry.charge.noise == "none":  # free answers are nobody's spending
            continue
        key = (entry.label, entry.charge.account)
        spent.setdefault(entry.label, Spending()).add(*key[1:], entry.charge.units, entry.reads)
        count[key] = count.get(key, 0) + 1
        results.setdefault(key, {}).update(dict.fromkeys(entry.results))
    return tuple(Share(*key, spent[key[0]].spent(key[1]), count[key], tuple(results[key])) for key in count)
