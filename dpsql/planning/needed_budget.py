"""Budgets as calls name them: what was found for target errors, and the request of a call and its batch's OPTIONS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpsql.errors import DataError
from dpsql.planning.plan import Plan
from dpsql.privacy.accountant import Request
from dpsql.privacy.amounts import exact, show
from dpsql.sql.parse.options import budget_of, read_options


@dataclass(frozen=True, eq=False, repr=False)
class NeededBudget:
    """The least budget that gives the target errors: its ``amount``, epsilon or (``rho``) rho, and what comes with it.

    It compares, adds and prints as the number. ``epsilon`` and ``delta``, or ``rho``, are the arguments that ``plan``
    and ``run`` take, None where not part of it; ``guarantee`` and ``cost`` what a run spends, in the account's measure;
    ``plan`` is the plan found; ``con.run(needed)`` runs it. As an amount of ``plan`` or ``run`` it is the number alone.
    """

    amount: float
    plan: Plan
    request: Request

    @property
    def epsilon(self) -> float | None:
        """The epsilon to ask for; None where it is a rho."""
        return None if self.request.epsilon is None else self.amount

    @property
    def delta(self) -> float | None:
        """The delta beside epsilon; None for a pure guarantee or a rho."""
        return None if self.request.delta is None else float(self.request.delta)

    @property
    def rho(self) -> float | None:
        """The rho to ask for; None where it is an epsilon."""
        return None if self.request.rho is None else self.amount

    @property
    def guarantee(self) -> str:
        """What the release alone satisfies."""
        return self.plan.charge.guarantee if self else "free, from earlier releases"

    @property
    def cost(self) -> float:
        """What a run charges, in the account's measure: epsilon, or mu squared."""
        return self.plan.charge.amount if self else 0.0

    def __repr__(self) -> str:
        return f"<NeededBudget {self.guarantee}>"

    def __str__(self) -> str:
        return f"{self.amount:.9g}"

    def __format__(self, spec: str) -> str:
        return format(self.amount, spec) if spec else str(self)

    def __float__(self) -> float:
        return self.amount

    def __bool__(self) -> bool:
        return bool(self.amount)

    def __hash__(self) -> int:
        return hash(self.amount)

    def __eq__(self, other: object) -> bool:
        return bool(self.amount == plain(other))

    def __lt__(self, other: object) -> bool:
        return bool(self.amount < plain(other))

    def __le__(self, other: object) -> bool:
        return bool(self.amount <= plain(other))

    def __gt__(self, other: object) -> bool:
        return bool(self.amount > plain(other))

    def __ge__(self, other: object) -> bool:
        return bool(self.amount >= plain(other))

    def __abs__(self) -> float:
        return self.amount

    def __add__(self, other: object) -> Any:
        return self.amount + plain(other)

    def __sub__(self, other: object) -> Any:
        return self.amount - plain(other)

    def __rsub__(self, other: object) -> Any:
        return plain(other) - self.amount

    def __mul__(self, other: object) -> Any:
        return self.amount * plain(other)

    def __truediv__(self, other: object) -> Any:
        return self.amount / plain(other)

    def __rtruediv__(self, other: object) -> Any:
        return plain(other) / self.amount

    __radd__, __rmul__ = __add__, __mul__


def plain(amount: object) -> Any:
    """An amount as a plain number where it is a budget that was found; anything else as it is."""
    return amount.amount if isinstance(amount, NeededBudget) else amount


def request_of(sql: str, epsilon: object = None, delta: object = None, rho: object = None) -> Request:
    """The checked request for ``sql``: epsilon and delta of its OPTIONS, if any, and of the call.

    What only one of the two says counts; what both say must be equal (a float as its shortest decimal text, as a
    person wrote it). Raises SQLError for clauses that are refused, DataError for amounts that are, and where the two
    disagree.
    """
    options = budget_of(read_options(sql)[1])
    if options is None:
        return Request.of(plain(epsilon), plain(delta), plain(rho))
    if rho is not None:
        raise DataError("rho is given and the batch has OPTIONS with epsilon; keep one of the two")
    return Request.of(_one("epsilon", options.epsilon, plain(epsilon)), _one("delta", options.delta, plain(delta)))


def _one(name: str, written: object, given: object) -> object:
    if written is None or given is None:
        return given if written is None else written
    in_options, in_call = exact(name, written), exact(name, given, shortest=True)
    if in_call != in_options:
        raise DataError(
            f"{name} is {show(in_call)} in the call and {show(in_options)} in the batch's OPTIONS; keep one of the two"
        )
    return written
