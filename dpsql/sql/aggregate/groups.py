"""Groups: what the values of a GROUP BY item are released as, each with the rows that it is for."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from sqlglot import exp

from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.typed import Typed
from dpsql.workloads.expr.conditions import FALSE, Condition, Or, gather
from dpsql.workloads.expr.lines import Scalar, to_float

MAX_GROUPS = 20_000
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class Groups:
    """Groups by their labels, in order; where the expression is NULL; where it is OTHER, and what that is called.

    ``other_label`` is None where OTHER is NULL with a companion.
    """

    labelled: tuple[tuple[Scalar, Condition], ...]
    null: Condition = FALSE
    other: Condition = FALSE
    other_label: str | None = None

    def joined(self) -> Groups:
        """The same, but OTHER within the group that has its label."""
        if self.other_label not in {label for label, _ in self.labelled}:
            return self
        labelled = tuple(
            (label, gather(Or, at, self.other) if label == self.other_label else at) for label, at in self.labelled
        )
        return replace(self, labelled=labelled, other=FALSE)


def too_many(node: exp.Expr) -> Exception:
    """The refusal of more groups than are planned."""
    return refuse(
        f"GROUP BY {shown(node)} has more than {MAX_GROUPS:,} groups; use coarser ones, or name fewer in WHERE",
        node,
        code="too-many-groups",
    )


def rank(label: Scalar) -> tuple[int, object]:
    """A key to sort labels of one kind by."""
    if isinstance(label, float) and math.isnan(label):
        return (1, 0)
    return (0, label)


def label_of(t: Typed, result: int | float | str | bool, node: exp.Expr) -> Scalar:
    """A result of the scan as the value that is released.

    Raises SQLError for a date that no result can show: Python's, in which results are kept, are of the years 1 to 9999.
    """
    if t.kind == "exact":
        if t.family == "integer" and t.unit == 1 and not t.offset:
            return int(result)
        number = t.unit * int(result) + t.offset
        return int(number) if number.denominator == 1 and t.family == "integer" else _decimal(number)
    if t.kind in ("date", "timestamp"):
        step = dt.timedelta(days=1) if t.kind == "date" else dt.timedelta(microseconds=1)
        try:
            moment = _EPOCH + int(result) * step
        except OverflowError:
            raise refuse(
                f"GROUP BY {shown(node)} has dates outside of the years 1 to 9999, which no result can show; leave "
                "them out in WHERE, or declare nearer bounds of the column",
                node,
            ) from None
        return moment.date() if t.kind == "date" else moment
    if isinstance(result, float):
        return math.nan if math.isnan(result) else result + 0.0
    assert isinstance(result, str | bool)  # noqa: S101 - text and Booleans are left
    return result


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def released(kind: str, label: Scalar) -> Scalar:
    """A label as a value of its released column's type."""
    if isinstance(label, bool) or not isinstance(label, int | float | Decimal | Fraction):
        return label
    if kind == "DOUBLE":
        return to_float(label)
    if kind.startswith("DECIMAL"):
        return _decimal(Fraction(label))
    return int(label)
