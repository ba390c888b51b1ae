"""The values that a plan is made of: its statements, its payment, its accuracy, and its origin. Public and free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar, cast

from dpsql.planning.prepare import Prepared
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.privacy.periods import Reads
from dpsql.reconstruct import Answers, Errors
from dpsql.reconstruct.spread import NoiseModel
from dpsql.sql import Answer
from dpsql.workloads.compile.compiled import Batch

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Statements:
    """A batch as it was understood under a policy.

    ``queries`` are the statements; ``policy`` the policy's text, ``schemas`` the column types of the tables that are
    read, ``expected_rows`` the policy's guesses, by table. ``rows_per_unit``: how many rows of a unit count, where the
    call lets fewer count than the policy. ``reads``: the periods of a growing table that are read, to which the charge
    is confined; None where it is for everything. ``named``: the strategy that the call names, "" where it names none.
    """

    sql: str
    dataset: str
    queries: tuple[Answer, ...] = field(repr=False)
    policy: str = field(repr=False)
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    expected_rows: Mapping[str, int]
    rows_per_unit: int | None = None
    reads: Reads | None = None
    named: str = ""

    @classmethod
    def of(cls, prepared: Prepared, compiled: Batch) -> Self:
        """Those of a batch that is measured as ``compiled``."""
        policy = prepared.policy
        return cls(
            sql=prepared.sql,
            dataset=policy.dataset,
            queries=prepared.understood.answers,
            policy=policy.to_toml(),
            schemas={name: dict(prepared.schemas[name]) for one in compiled.layouts for name in one.source.tables},
            expected_rows={name: t.expected_rows for name, t in policy.tables.items() if t.expected_rows is not None},
            rows_per_unit=prepared.rows_per_unit,
            reads=prepared.reads,
            named=prepared.named,
        )


@dataclass(frozen=True)
class Alternative:
    """Another way to pay for the same request, and what it would have given.

    ``error``: what the strategy minimises, total squared error of the batch or the largest, in its units; ``at_least``:
    no less than that, by a bound that ended the search.
    """

    charge: Charge
    method: str
    error: float
    affordable: bool = True
    at_least: bool = False


@dataclass(frozen=True)
class Payment:
    """What a run spends, whether the accounts hold it, and the other ways to pay."""

    charge: Charge
    affordable: bool = True
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, eq=False)
class Accuracy:
    """The law of the noise, and what it makes of every released number, in the order of W's rows.

    ``answers`` turns noisy measurements into the numbers; ``errors`` and ``widths`` (m,) are their standard errors and
    the half-widths of their pointwise intervals at level 1 - ``alpha``.
    """

    noise: Noise
    answers: Answers = field(repr=False)
    alpha: float
    errors: Errors = field(repr=False)
    widths: Errors = field(repr=False)

    @classmethod
    def of(cls, answers: Answers, noise: NoiseModel, alpha: float, divisor: int) -> Self:
        """Errors and half-widths of all numbers, once. ``divisor``: L of the answers R y / L."""
        return cls(
            cast("Noise", noise), answers, alpha, answers.errors(noise, divisor), answers.widths(noise, alpha, divisor)
        )


@dataclass(frozen=True, eq=False)
class Origin:
    """What a plan was made from, so that it can be planned again otherwise (the extension ``advice``)."""

    prepared: Prepared = field(repr=False)
    state: BudgetState = field(repr=False)
    request: Request


class Of(Generic[T]):
    """A field of one of a plan's values, as an attribute of the plan."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, plan: object, owner: type | None = None) -> T:
        return cast("T", self if plan is None else getattr(getattr(plan, self._value), self._name))
