"""Values in Spark's SQL: their text, their DuckDB type, and for whole numbers the range that types and constants leave.

The rules of ``numbers``, ``texts``, ``calendar`` and ``casts`` give Spark text with the value that DuckDB has, on every
row of every table, in a session whose settings are fixed (``session``): ANSI mode is off there, so that no step fails,
whatever a row holds, also where no CASE stands around it (``layers``). What has no such text is refused: the list in
``functions`` is all that is admitted. ``tests/extensions/spark`` holds each entry against DuckDB on odd values.

HUGEINT is DECIMAL(38,0), and refused where the range leaves 38 digits. Text constants are written in hexadecimal,
which no setting and no escape can change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpsql.errors import NotSupportedError

INTEGERS: dict[str, tuple[int, int]] = {
    name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))
}
_SPARK = {
    **{"TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INTEGER": "INT", "BIGINT": "BIGINT", "HUGEINT": "DECIMAL(38,0)"},
    **{"FLOAT": "FLOAT", "DOUBLE": "DOUBLE", "VARCHAR": "STRING", "BOOLEAN": "BOOLEAN", "DATE": "DATE"},
    **{"TIMESTAMP": "TIMESTAMP_NTZ"},
}
_MOST = 10**38 - 1  # DECIMAL(38,0)
OPERATOR = 5  # the rank of arithmetic; comparisons have 3, NOT 2, AND 1 and OR 0
_LONGEST = 2_000_000  # characters of one expression


@dataclass(frozen=True)
class Expr:
    """Spark text of a value and its DuckDB type; ``low`` and ``high`` of a whole number; ``constant`` of a literal.

    ``rank`` is 9 where the text is a whole by itself; an operator has less and stands in parentheses inside another,
    and nowhere else: Spark's parser takes exponential time over nested ones. Type "NULL" is an untyped NULL, "INTERVAL"
    the constant that a timestamp is moved by, "T[]" a constant list. ``several`` rows make the value of a window or a
    sum, and of all that it stands in.
    """

    text: str
    type: str
    low: int = 0
    high: int = 0
    constant: int | str | None = None
    rank: int = 9
    several: bool = False

    @property
    def inner(self) -> str:
        """The text in parentheses where an operator needs them."""
        return self.text if self.rank == 9 else f"({self.text})"

    @property
    def whole(self) -> bool:
        return self.type in INTEGERS


def kind_of(name: str) -> str:
    """A type of DuckDB as a rule knows it, refused where Spark has none."""
    kind = name.upper().replace(" ", "")
    if kind not in _SPARK and not kind.startswith("DECIMAL("):
        raise refusal(f"the type {name} has no counterpart", "cast to another type")
    return kind


def spark_type(name: str) -> str:
    return name if name.startswith("DECIMAL(") else _SPARK[name]


def quote(name: str) -> str:
    """An identifier of Spark; refused with the character that marks values (``layers``)."""
    if "\x01" in name:
        raise refusal("a name has the control character 1 in it", "rename it")
    return "`" + name.replace("`", "``") + "`"


def column(text: str, kind: str) -> Expr:
    """A stored column or one of a subquery."""
    low, high = INTEGERS.get(kind, (0, 0))
    return Expr(text, kind, low, high)


def refusal(what: str, instead: str) -> NotSupportedError:
    """What a statement is refused with."""
    return NotSupportedError(f"Spark: {what}; {instead} (nothing was charged)")


def integer(number: int, kind: str = "") -> Expr:
    """A whole number, of the narrowest type from INTEGER on if none is given."""
    kind = kind or next(name for name in ("INTEGER", "BIGINT", "HUGEINT") if fits(number, number, name))
    if not fits(number, number, kind) or abs(number) > _MOST:
        raise refusal(f"the constant {number} does not fit {spark_type(kind)}", "write a smaller one")
    text = str(number) if kind == "INTEGER" and number > -(2**31) else f"CAST({number} AS {spark_type(kind)})"
    return Expr(text, kind, number, number, number, rank=OPERATOR if text.startswith("-") else 9)


def string(value: str) -> Expr:
    """A text constant, in hexadecimal."""
    return Expr(f"CAST(X'{value.encode().hex()}' AS STRING)", "VARCHAR", constant=value)


def fits(low: int, high: int, kind: str) -> bool:
    """Whether a type holds a range."""
    least, most = INTEGERS[kind]
    return least <= low and high <= most


def ranged(text: str, kind: str, low: int, high: int, what: object, rank: int = 9) -> Expr:
    """A whole number computed in ``kind``; refused where HUGEINT's 38 digits may not hold it.

    Narrower types hold what the front end computes in them, though the range here may not show it.
    """
    if kind == "HUGEINT":
        if max(-low, high) > _MOST:
            raise refusal(
                f"{what} may leave 38 digits, the most that Spark's numbers have",
                "declare lower and upper of its columns, or store them as INT",
            )
        return Expr(f"CAST({text} AS DECIMAL(38,0))", kind, low, high)
    least, most = INTEGERS[kind]
    return Expr(text, kind, max(low, least), min(high, most), rank=rank)


def widest(of: Sequence[Expr]) -> str:
    """The widest of integer types."""
    return max((e.type for e in of), key=list(INTEGERS).index)


def date_constant(days: int) -> Expr:
    """A date by its day number."""
    return Expr(f"date_from_unix_date({days})", "DATE", constant=days)


def moment_constant(micros: int) -> Expr:
    """A timestamp by its microseconds; Spark reads all that 64 bits hold."""
    days, rest = divmod(micros, 86_400_000_000)
    cycles, day = divmod(days, 146_097)
    found = dt.datetime(1970, 1, 1) + dt.timedelta(days=day, microseconds=rest)
    year = found.year + 400 * cycles
    return Expr(f"TIMESTAMP_NTZ'{'-' if year < 0 else '+'}{abs(year):06d}-{found:%m-%d %H:%M:%S.%f}'", "TIMESTAMP",
                constant=micros)  # fmt: skip


Rule = Callable[[Sequence[Expr]], Expr]
"""Spark's text of a function from those of its operands."""


def kinds(of: Sequence[Expr], kind: str, what: str) -> None:
    for e in of:
        if e.type != kind:
            raise refusal(f"{what} of {e.type} is not admitted", f"cast it to {kind} where the table is written")


def wholes(of: Sequence[Expr], what: str) -> None:
    for e in of:
        if not e.whole:
            raise refusal(f"{what} of {e.type} is not admitted", "use whole numbers")


def short(expression: Expr) -> Expr:
    """The text, refused where parts that stand in it several times have made it too long."""
    if len(expression.text) > _LONGEST:
        raise refusal("the expression is too long there", "store a part of it as a column")
    return expression
