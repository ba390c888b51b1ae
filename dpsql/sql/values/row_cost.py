"""What a row may cost: caps on expressions and on the texts that they read and build.

Time and memory of a scan would otherwise be a matter of one row: a search takes the product of both lengths, a
concatenation the sum, and an expression can build for one row what it builds for no other. So the texts of a row
are capped where they enter a function, whatever a row holds and before anything is built: a longer one has no value
there, it is NULL. What constants add is known beforehand and refused. Comparisons and group keys take any text.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.workloads.expr.total import FEW_SIGNS, LONGEST_READ, MOST_STATES, MOST_STEPS, longest_matched
from dpsql.workloads.expr.values import Call, CaseValue, Cast, Coalesce, Compared, Constant, Stored, Test, Value, walk

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
MAX_CHOSEN = 262_144
"""Bytes of the constants of a batch that CASE and COALESCE choose from for a row of one table."""
MOST_SEARCHED = 200_000_000
"""Steps that looking for all patterns and words of a batch in the longest texts may take for a row of one table."""
_SHOWN = 64  # bytes of a number, date or Boolean as text
_UNKNOWN = 2**32
_JOINS = frozenset({"||", "concat"})
# Those that are given so short a text that they add no more than ``LONGEST_PART`` bytes.
_REPLACES = frozenset({"replace", "regexp_replace"})
_SEARCHES = _REPLACES | {"contains", "strpos", "regexp_matches", "regexp_full_match", "regexp_extract"}
_PADS = frozenset({"lpad", "rpad"})
_TRIMS = frozenset({"trim", "ltrim", "rtrim"})
_READS = _TRIMS | _PADS | {"lower", "upper", "length", "strlen", "substring", "left", "right", "try_strptime"}
_EACH = 16  # steps for each byte in these, which read a text once
LABELS = frozenset({"strftime", "monthname", "dayname"})
_PER_SIGN = 16  # bytes of a date or time for each byte of its format: %c writes 26 for two
# How much longer than its operand a text can become: a character of two bytes may have a capital of three.
_GROWTH = {"lower": 2, "upper": 2}


def check_size(value: Value, node: exp.Expr) -> None:
    """Refuse a tree of more than 2,000 nodes as written out (guards repeat their operands), or of too long texts."""
    for number, part in enumerate(walk(value)):
        if number >= MAX_SIZE:
            raise refuse(
                f"{shown(node)} has more than {MAX_SIZE:,} parts, which are too many to compute for each row; split it "
                "over simpler columns",
                node,
                code="too-large",
            )
        if isinstance(part, Call) and part.function in _JOINS and longest(part) > LONGEST_READ:
            raise refuse(
                f"{shown(node)} joins texts of up to {longest(part):,} bytes together, at most {LONGEST_READ:,} are "
                f"built for a row ({LONGEST_PART:,} for each column); join fewer",
                node,
                code="too-large",
            )


def check_written(values: Iterable[Value]) -> None:
    """Refuse what the constants in ``values``, all that is computed for a row, would build of text."""
    every = [part for value in values for part in walk(value)]
    calls = [part for part in every if isinstance(part, Call)]
    joined = sum(_constant_bytes(part) for part in calls if part.function in _JOINS) + sum(map(_added, calls))
    chosen = sum(longest(c) for part in every for c in _results(part) if isinstance(c, Constant))
    for total, most, what in (
        (joined, MAX_WRITTEN, "add {} bytes to the texts of each row"),
        (chosen, MAX_CHOSEN, "that CASE and COALESCE choose from have {} bytes"),
    ):
        if total > most:
            raise refuse(
                f"the constants of the batch {what.format(f'{total:,}')}, at most {most:,} may be; "
                "write shorter constants, or split the batch",
                code="too-large",
            )


def check_searched(values: Iterable[Value], patterns: Iterable[tuple[str, str]]) -> None:
    """Refuse what would be looked for in the texts of a row, by LIKE (``patterns``) and the functions in ``values``.

    Each may take a millisecond or few for the longest text; many together would show in a scan's time that a row has
    one.
    """
    calls = dict.fromkeys(part for value in values for part in walk(value) if isinstance(part, Call))
    steps = sum(map(_steps, calls)) + sum(
        _searched(longest_matched(pattern), len(pattern), wild="_" in pattern) for _, pattern in patterns
    )
    if steps > MOST_SEARCHED:
        raise refuse(
            f"the batch looks for so many words and patterns in texts that a row may take {steps:,} steps, at most "
            f"{MOST_SEARCHED:,} may be; split the batch",
            code="too-large",
        )


def _steps(value: Call) -> int:
    """The steps of a function of text, as many as looking for the pattern or word that it is given takes."""
    if value.function in _SEARCHES:
        text, wanted = (longest(part) for part in value.arguments[:2])
        return _searched(text, max(1, wanted), wild=value.function.startswith("regexp"))
    return min(MOST_STEPS, longest(value.arguments[0]) * _EACH) if value.function in _READS else 0


def _searched(size: int, weight: int, *, wild: bool) -> int:
    """The steps of holding a pattern against a text, slower ones as so many more."""
    slower = MOST_STEPS // MOST_STATES if wild and weight > FEW_SIGNS else 1
    return min(MOST_STEPS, size * weight * slower)


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
    if isinstance(value, Coalesce | CaseValue):
        return min(_cap(value), max(map(longest, _results(value))))
    if not isinstance(value, Call):
        return _UNKNOWN
    if value.function in _JOINS:
        return sum(map(longest, value.arguments))
    if value.function in LABELS | _PADS:
        return _made(value)
    return longest(value.arguments[0]) * _GROWTH.get(value.function, 1) + _added(value)


def _made(value: Call) -> int:
    """The most bytes of a label of time, or of a text that is filled up to a length."""
    constant = next((part.value for part in value.arguments[1:] if isinstance(part, Constant)), "")
    return 4 * constant if isinstance(constant, int) else _SHOWN + _PER_SIGN * len(str(constant).encode())


def _added(value: Call) -> int:
    """The most bytes that a function makes beside those of its text: by replacing, or of a format or length."""
    if value.function in LABELS | _PADS:
        return _made(value)
    if value.function not in _REPLACES:
        return 0
    wanted, replacement = value.arguments[1:3]
    grows = value.function == "regexp_replace" and longest(replacement) > 0
    return LONGEST_PART if grows or longest(replacement) > longest(wanted) else 0


def _results(value: Value | Test) -> tuple[Value, ...]:
    """What CASE and COALESCE choose from; nothing for other values."""
    if isinstance(value, Coalesce):
        return value.arguments
    if not isinstance(value, CaseValue):
        return ()
    found = tuple(result for _, result in value.branches)
    return found if value.default is None else (*found, value.default)


def _constant_bytes(value: Value) -> int:
    """The most bytes of a text that come from constants."""
    if isinstance(value, Constant):
        return longest(value)
    if isinstance(value, Coalesce | CaseValue):
        return max(map(_constant_bytes, _results(value)))
    if isinstance(value, Call):
        return sum(map(_constant_bytes, value.arguments))
    return 0


def _cap(value: Value) -> int:
    """The bytes that ``capped`` lets through; unknown for any other value."""
    if not isinstance(value, CaseValue) or value.default is not None or len(value.branches) != 1:
        return _UNKNOWN
    test, result = value.branches[0]
    if not isinstance(test, Compared) or test.operator != "<=" or test.left != Call("strlen", (result,), "BIGINT"):
        return _UNKNOWN
    return int(test.right.value or 0) if isinstance(test.right, Constant) else _UNKNOWN
