"""Column types and adversarial values of generated rows, from the policy and the batch's own constants."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import duckdb
import sqlglot

from dpsql.common.quoting import string
from dpsql.errors import PolicyError
from dpsql.policy import ColumnPolicy
from dpsql.policy.types import column_type

T = TypeVar("T")


class Draws:
    """A stream of choices that look random and are the same every time, so that an audit repeats to the bit.

    From SHA-256 of a name and a counter. They choose generated rows, which are nobody's; noise never comes from here.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def below(self, bound: int) -> int:
        """A whole number in [0, bound); the bias of the remainder is below 2^-40 for the bounds in use."""
        self._count += 1
        digest = hashlib.sha256(f"{self._name}/{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % bound

    def choice(self, values: Sequence[T]) -> T:
        """One of the values, each with the same probability."""
        return values[self.below(len(values))]


POOL = 24
"""The most values that a column has."""

_INTEGER_EDGES = tuple(str(sign * 2**bits + off) for bits in (7, 8, 15, 31, 63, 64, 127) for sign in (-1, 1)
                       for off in (-1, 0))  # fmt: skip
_EDGES = {
    "integer": (*_INTEGER_EDGES, "0", "1", "-1"),
    "decimal": ("0", "1", "-1", "0.5", *("9" * n for n in range(1, 39))),
    "float": ("nan", "inf", "-inf", "-0.0", "0.0", "1e308", "-1e308", "5e-324", "0.5", "-7.5", "1", "-1"),
    "text": ("", "HIV+", "zz other", "A b", "äß", "12", "%_'"),
    "boolean": ("true", "false"),
    "date": ("infinity", "-infinity", "0001-01-01", "9999-12-31", "1970-01-01", "5881580-07-10"),
    "timestamp": ("infinity", "-infinity", "0001-01-01", "9999-12-31 23:59:59.999999", "1970-01-01"),
    "timestamptz": ("infinity", "-infinity", "0001-01-01", "9999-12-31 23:59:59.999999+00", "1970-01-01+00"),
}


def type_of(column: ColumnPolicy) -> str:
    """A DuckDB type that fits what the policy declares of a column. Raises PolicyError where it declares nothing."""
    if column.type is not None:
        return column.type
    declared = (column.values or ())[0] if column.values else column.lower
    if isinstance(declared, bool):
        return "BOOLEAN"
    if isinstance(declared, str):
        return "VARCHAR"
    if isinstance(declared, dt.datetime):
        return "TIMESTAMP" if declared.tzinfo is None else "TIMESTAMP WITH TIME ZONE"
    if isinstance(declared, dt.date):
        return "DATE"
    if isinstance(declared, int | Fraction | Decimal):
        numbers = [*(column.values or ()), *(v for v in (column.lower, column.upper, column.step) if v is not None)]
        fractions = [Fraction(v) for v in numbers if isinstance(v, int | Fraction | Decimal)]
        if all(value.denominator == 1 for value in fractions):
            return "BIGINT"
        places = next((p for p in range(10) if all(10**p % value.denominator == 0 for value in fractions)), None)
        return "DOUBLE" if places is None or column.step is None else f"DECIMAL(18,{places})"
    raise PolicyError(f"{column.key('type')} is needed for an audit without the tables; add it, or name the database")


def creatable(kind: str, column: ColumnPolicy | None) -> str:
    """The type as CREATE TABLE takes it; an ENUM gets the declared values, since its members may come from rows."""
    if not kind.startswith("ENUM"):
        return kind
    members = [str(value) for value in (column.values or ()) if isinstance(value, str)] if column else []
    return "ENUM(" + ", ".join(string(member) for member in dict.fromkeys([*members, "zz other"])) + ")"


def constants(batch: str) -> list[str]:
    """Every number and text that stands in the batch, and the whole numbers next to each number."""
    found: dict[str, None] = {}
    for token in sqlglot.tokenize(batch, read="duckdb"):
        if token.token_type.name == "STRING":
            found |= dict.fromkeys([token.text, *_next_days(token.text)])
        elif token.token_type.name == "NUMBER":
            found[token.text] = None
            value = _number(token.text)
            if value is not None:
                for near in (value - 1, value + 1, -value):
                    found[str(near)] = None
    return list(found)


def _next_days(text: str) -> list[str]:
    try:
        day = dt.date.fromisoformat(text)
        return [str(day + dt.timedelta(days=off)) for off in (-1, 1, 30, -30)]
    except (ValueError, OverflowError):
        return []


def _number(text: str) -> Decimal | None:
    try:
        value = Decimal(text)
    except ArithmeticError:
        return None
    return value if value.is_finite() and abs(value.adjusted()) < 40 else None


def pool(
    connection: duckdb.DuckDBPyConnection, kind: str, column: ColumnPolicy | None, constants: Sequence[str]
) -> list[str]:
    """SQL texts of a column's values: NULL, its bounds and beyond, declared values, the batch's constants, extremes.

    Whatever is no value of the type is left out; DuckDB says so.
    """
    shape = column_type(kind)
    mine: list[str] = []
    if column is not None:
        mine = [*_bounds(column), *_declared(column)]
    drawn = Draws(f"constants/{column.name if column else ''}")
    fitting = _readable(connection, kind, constants[:500])
    some = [drawn.choice(fitting) for _ in range(10)] if fitting else []
    first = _readable(connection, kind, [*mine, *some])
    values = _readable(connection, kind, [*first, *_EDGES.get(shape.kind, ("0", "1"))])
    return ["NULL", *(f"TRY_CAST({string(text)} AS {kind})" for text in _spread(values, len(first)))]


def _readable(connection: duckdb.DuckDBPyConnection, kind: str, texts: Sequence[str]) -> list[str]:
    """The texts, each once, that DuckDB reads as values of the type."""
    once = list(dict.fromkeys(texts))
    if not once:
        return []
    listed = ", ".join(f"TRY_CAST({string(text)} AS {kind}) IS NOT NULL" for text in once)
    kept = connection.execute(f"SELECT {listed}").fetchone() or ()
    return [text for text, holds in zip(once, kept, strict=True) if holds]


def _bounds(column: ColumnPolicy) -> list[str]:
    lower, upper = column.lower, column.upper
    if isinstance(lower, Fraction) and isinstance(upper, Fraction):
        step = column.step or Fraction(1)
        middle = (lower + upper) / 2
        return [_shown(v) for v in (lower, upper, lower - step, upper + step, middle, lower + step / 2)]
    return [] if lower is None else [str(lower), str(upper)]


def _declared(column: ColumnPolicy) -> list[str]:
    values = column.values or ()
    ends = values if len(values) <= 6 else (*values[:3], *values[-3:])
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in ends]


def _spread(values: Sequence[str], first: int) -> Iterable[str]:
    """The first ``first`` values, and of the others as many as there is room for, from both ends."""
    chosen, rest = list(values[:first]), list(values[first:])
    while rest and len(chosen) < POOL:
        chosen.append(rest.pop(0))
        if rest and len(chosen) < POOL:
            chosen.append(rest.pop())
    return chosen


def _shown(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


def key_text(kind: str, column: ColumnPolicy | None, index: int | None) -> str:
    """Key number ``index`` of a type as SQL: another value for each index where the type has so many, in their order.

    ``column`` is the policy of the key, or of one that refers to it: declared values come first.
    """
    if index is None:
        return "NULL"
    shape = column_type(kind)
    listed: list[Any] = sorted(column.values or ()) if column is not None else []
    if index < len(listed):
        return f"TRY_CAST({string(str(listed[index]))} AS {kind})"
    index -= len(listed)
    if shape.kind in ("integer", "decimal"):
        first = Fraction(0)
        if listed:
            first = Fraction(listed[-1]) + 1
        elif column is not None and isinstance(column.lower, Fraction):
            first = column.lower
        return f"TRY_CAST({int(first) + index} AS {kind})"
    written = {
        "date": str(dt.date(2000, 1, 1) + dt.timedelta(days=index)),
        "timestamp": str(dt.datetime(2000, 1, 1) + dt.timedelta(seconds=index)),
        "timestamptz": f"{dt.datetime(2000, 1, 1) + dt.timedelta(seconds=index)}+00",
        "boolean": "true" if index % 2 else "false",
    }.get(shape.kind, f"~{index:06}")  # text: a tilde comes after all letters without accents
    if shape.name == "UUID":
        written = f"00000000-0000-0000-0000-{index:012}"
    return f"TRY_CAST({string(written)} AS {kind})"
