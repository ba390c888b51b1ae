"""What a row may cost: caps on expressions and on the texts that they read and build.

Time and memory of a scan would otherwise be a matter of one row: a search takes the product of both lengths, a
concatenation the sum, and an expression can build for one row what it builds for no other. So the texts of a row
are capped where they enter a function, whatever a row holds and before anything is built: a longer one has no value
there, it is NULL. What constants add is known beforehand and refused. Comparisons and group keys take any text.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dpsql.sql.statements import refuse
from dpsql.workload.value_sql import LONGEST_READ
from dpsql.workload.values import Call, CaseValue, Cast, Coalesce, Compared, Constant, Stored, Value, walk

MAX_SIZE = 2_000
"""Nodes of one expression, written out."""
LONGEST_PART = 4_096
"""Bytes of a text that is joined to others."""
LONGEST_WANTED = 1_024
"""Bytes of a text, or of a pattern, that is looked for in another."""
LONGEST_SET = 64
"""Bytes of the characters that TRIM takes away."""
MAX_WRITTEN = 16_384
"""Bytes that the constants of a batch may add to the texts that are built for a row of one table."""
_SHOWN = 64  # bytes of a number, date or Boolean as text
_UNKNOWN = 2**32
_JOINS = frozenset({"||", "concat"})
# How much longer than its operand a text can become: a character of two bytes may have a capital of three.
_GROWTH = {"lower": 2, "upper": 2}


def check_size(value: Value, node: exp.Expr) -> None:
    """Refuse a tree of more than 2,000 nodes as written out (guards repeat their operands), or of too long texts."""
    for number, part in enumerate(walk(value)):
        if number >= MAX_SIZE:
            raise refuse(
                f"{_shown(node)} is too long to compute for each row; split it over simpler columns",
                node,
                code="too-large",
            )
        if isinstance(part, Call) and part.function in _JOINS and longest(part) > LONGEST_READ:
            raise refuse(
                f"{_shown(node)} joins texts of up to {longest(part):,} bytes together, at most {LONGEST_READ:,} are "
                f"built for a row ({LONGEST_PART:,} for each column); join fewer",
                node,
                code="too-large",
            )


def check_written(values: Iterable[Value]) -> None:
    """Refuse what the constants in ``values``, all that is computed for a row, would build of text."""
    total = sum(map(written, values))
    if total > MAX_WRITTEN:
        raise refuse(
            f"the constants of the batch add {total:,} bytes to the texts of each row, at most {MAX_WRITTEN:,} may be; "
            "join shorter constants, or split the batch",
            code="too-large",
        )


def capped(value: Value, most: int) -> Value:
    """A text that is NULL where it is longer than ``most`` bytes; the value itself where it cannot be."""
    if longest(value) <= most:
        return value
    size = Call("strlen", (value,), "BIGINT")
    return CaseValue(((Compared(size, "<=", Constant(most, "BIGINT")), value),), None, "VARCHAR")


def longest(value: Value) -> int:
    """The most bytes that a text can have, by its constants and caps."""
    if isinstance(value, Constant):
        return len(str(value.value).encode()) if isinstance(value.value, str) else 0
    if isinstance(value, Stored):
        return _UNKNOWN
    if isinstance(value, Cast):
        return _SHOWN
    if isinstance(value, Coalesce):
        return max(map(longest, value.arguments))
    if isinstance(value, CaseValue):
        cap = _cap(value)
        results = [result for _, result in value.branches] + ([] if value.default is None else [value.default])
        return min(cap, max(map(longest, results)))
    if not isinstance(value, Call):
        return _UNKNOWN
    if value.function in _JOINS:
        return sum(map(longest, value.arguments))
    return longest(value.arguments[0]) * _GROWTH.get(value.function, 1)


def written(value: Value) -> int:
    """Bytes that constants add to the texts that are built for a row, over all the steps of an expression."""
    joins = [part for part in walk(value) if isinstance(part, Call) and part.function in _JOINS]
    return sum(_constant_bytes(part) for part in joins)


def _constant_bytes(value: Value) -> int:
    """The most bytes of a text that come from constants."""
    if isinstance(value, Constant):
        return longest(value)
    if isinstance(value, Coalesce):
        return max(map(_constant_bytes, value.arguments))
    if isinstance(value, CaseValue):
        results = [result for _, result in value.branches] + ([] if value.default is None else [value.default])
        return max(map(_constant_bytes, results))
    if isinstance(value, Call):
        return sum(map(_constant_bytes, value.arguments))
    return 0


def _cap(value: CaseValue) -> int:
    """The bytes that ``capped`` lets through; unknown for any other CASE."""
    if value.default is not None or len(value.branches) != 1:
        return _UNKNOWN
    test, result = value.branches[0]
    if not isinstance(test, Compared) or test.operator != "<=" or test.left != Call("strlen", (result,), "BIGINT"):
        return _UNKNOWN
    return int(test.right.value or 0) if isinstance(test.right, Constant) else _UNKNOWN


def _shown(node: exp.Expr) -> str:
    return node.sql("duckdb")[:60]
