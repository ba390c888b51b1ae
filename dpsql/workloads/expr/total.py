"""Values as a row has them, in smaller nodes: total by construction, for every printer alike.

Text is compared in binary order whatever collation its column has, FLOAT is widened to DOUBLE, NaN is NULL wherever a
column is read, and no constant is written in a type other than the operand's, so that no column is ever cast
implicitly.

``read_once`` is the one way from a value to what a scan cuts and sums. A value is built of
forms that cannot fail (``values``); DuckDB's every function and cast in it stands in a TRY of its own, which gives NULL
where it does so all the same; and what comes out is held to the range that the plan relies on, outside of which it is
NULL. So a wrong range costs accuracy on the rows where it is wrong, and no row decides whether a scan succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dpsql.common.numerics import INFINITE_DAY, INFINITE_MOMENT, LEAST_MOMENT
from dpsql.errors import InternalError
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.lines import Cut, Interval, Line, line_of

BASE = "dpsql_base"
"""The alias of the table that a scan is over."""
VALUES = "dpsql_values"
"""The alias of the rows whose columns are the values of a scan, each computed once."""
LONGEST_READ = 65_536
"""Bytes of a text that LIKE and the functions of text look at; a longer one has no value there, it is NULL."""
MOST_STEPS = 4_000_000
"""Bytes of a text times signs of a pattern that a row may take in LIKE: about a millisecond."""
MOST_STATES = 100_000
"""The same for a pattern of more than ``FEW_SIGNS`` with wildcards, for which RE2 may run out of states: some
milliseconds."""
FEW_SIGNS = 12
# The least finite day or moment of a type, and minus infinity; nothing else is below.
_FIRST = {
    "DATE": (-INFINITE_DAY + 1, -INFINITE_DAY),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"), (LEAST_MOMENT, -INFINITE_MOMENT)),
}
SAME = "IS NOT DISTINCT FROM"
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")


def operand(column: str, line: Line, values: Mapping[str, tree.Value]) -> tree.Value:
    """What a column of an axis or measure is in the scan: an expression, or the stored column of that name."""
    value = values.get(column)
    return tree.Stored(column, line.type) if value is None else value


def at(line: Line, value: bool | int | float | str) -> tree.Constant:
    """A constant of a line, of exactly the column's type, so that the column itself is never cast."""
    return tree.Constant(value, "VARCHAR" if line.kind == "text" else line.type)


def decimal_sizes(kind: str) -> tuple[int, int] | None:
    """Width and scale of a DECIMAL; None of another type."""
    found = _DECIMAL.fullmatch(kind.upper())
    return None if found is None else (int(found[1]), int(found[2]))


def digits(number: int, scale: int) -> str:
    """A DECIMAL by its units of 10^-scale."""
    shown = f"{abs(number):0{scale + 1}d}"
    shown = f"{shown[:-scale]}.{shown[-scale:]}" if scale else shown
    return f"-{shown}" if number < 0 else shown


def clamped_moment(micros: int) -> int:
    """A timestamp that DuckDB holds, by its microseconds; the infinite ones for what is further away."""
    if abs(micros) >= INFINITE_MOMENT:
        return INFINITE_MOMENT if micros > 0 else -INFINITE_MOMENT
    return max(micros, LEAST_MOMENT)


@dataclass(frozen=True)
class Once:
    """A value of a row that is computed once and has the name ``name`` from then on.

    ``first`` is computed from the stored columns. ``then``, where there is one, holds that (under the same name) to
    what the plan relies on.
    """

    name: str
    first: tree.Value
    then: tree.Value | None


def read_once(value: tree.Value, line: Line, name: str) -> Once:
    """A value on its ``line`` as a column called ``name``, for any row: nothing that it holds can make a scan fail.

    A stored column is read as it is, NaN as NULL. Anything else is NULL where a part of it fails, where it is NaN, and
    where it leaves the range of the line. DuckDB evaluates a vector in which TRY met a failure row by row, a hundred
    times slower: it is there for what nobody foresaw, and every form in the tree is total without it.
    """
    return Once(name, value, None if isinstance(value, tree.Stored | tree.Number) else _in_range(tree.Name(name), line))


def _in_range(name: tree.Name, line: Line) -> tree.Value | None:
    """A column within the range of its line, NULL elsewhere; None where its type has no other values."""
    if line.kind == "real":
        return tree.Number(name)
    if line.kind not in {"integer", "grid"} or line.low is None or line.high is None:
        return None
    low, high = tree.Constant(line.low, line.type), tree.Constant(line.high, line.type)
    return tree.Guarded(tree.Every((tree.Compared(name, ">=", low), tree.Compared(name, "<=", high))), name)


def lowered(node: tree.Node) -> tree.Node:
    """A node in those that an engine prints.

    Raises InternalError for a constant that its type does not hold: in a branch of CASE it would fail on the rows that
    reach it, and on no other. A printer runs before the charge.
    """
    if isinstance(node, tree.Constant | tree.Numbers):
        _check_in_range(node)
        return node
    if isinstance(node, tree.Stored):
        return lowered(_stored(node))
    if isinstance(node, tree.Number):
        return tree.Guarded(tree.IsNumber(node.this), node.this)
    if isinstance(node, tree.Matches):
        short = tree.Compared(tree.bare("strlen", node.value), "<=", tree.whole(longest_matched(node.pattern)))
        return tree.Guarded(short, tree.Like(node.value, node.pattern))
    if isinstance(node, tree.Within):
        clipped = (node.line.clip(interval) for interval in node.intervals)
        pieces = tuple(between(node.value, node.line, interval) for interval in clipped if interval is not None)
        return tree.Some((*pieces, tree.IsNull(node.value)) if node.on_null else pieces)
    if isinstance(node, tree.Is):
        words = {True: tree.Constant(True, "BOOLEAN"), False: tree.Constant(False, "BOOLEAN"), None: tree.NULL}
        return tree.Some(
            tuple(tree.Compared(node.test, SAME, words[t]) for t in (True, False, None) if t in node.truths)
        )
    return node


def _check_in_range(node: tree.Constant | tree.Numbers) -> None:
    """Raises InternalError for a constant, or a list of whole numbers, that its type does not hold."""
    least, greatest = _ends(node.type)
    if isinstance(node, tree.Numbers):
        ends: tuple[object, ...] = (min(node.values), max(node.values)) if node.values else ()
    else:
        ends = () if node.value is None else (node.value,)
    for end in ends:
        if not (least is None or least <= end) or not (greatest is None or end <= greatest):  # type: ignore[operator]
            kind = node.type if node.type not in ("", tree.WHOLE) else "HUGEINT"
            raise InternalError(
                f"the scan of this batch needs {end} as a constant of {kind}, which does not hold it; report the SQL "
                "and the policy (nothing was charged)"
            )


@lru_cache(256)
def _ends(kind: str) -> tuple[int | None, int | None]:
    """The least and the greatest constant of a type, as its line holds them; of whole numbers without a type, too."""
    return line_of("HUGEINT" if kind in ("", tree.WHOLE) else kind).ends


def between(value: tree.Value, line: Line, interval: Interval) -> tree.Test:
    """A value of a line lies in an interval: TRUE, or FALSE or NULL."""
    low, high = interval
    sides = [] if low is None else [tree.Compared(value, ">" if low[1] else ">=", at(line, low[0]))]
    if high is not None:
        sides.append(below(value, line, high))
    return tree.Every(tuple(sides)) if sides else tree.IsNull(value, negated=True)


def below(value: tree.Value, line: Line, cut: Cut) -> tree.Compared:
    """A value of a line lies below a cut."""
    return tree.Compared(value, "<=" if cut[1] else "<", at(line, cut[0]))


def _stored(value: tree.Stored) -> tree.Value:
    """The column as its line compares it: text in binary order, FLOAT widened exactly to DOUBLE.

    NULL where it is NaN, or what its type does not hold.
    """
    name = tree.Name(value.name, value.source or BASE)
    kind = value.type.upper()
    if kind.startswith("ENUM"):
        return tree.Binary(tree.Cast(name, "VARCHAR", bare=True))
    if kind == "VARCHAR":
        # A NOCASE column would otherwise merge what the cuts tell apart.
        return tree.Binary(name)
    held: tree.Value = name
    if value.source != VALUES:
        held = tree.Number(name) if kind in {"FLOAT", "DOUBLE"} else _within_type(name, kind)
    return tree.Cast(held, "DOUBLE", bare=True) if kind == "FLOAT" else held


def _within_type(name: tree.Name, kind: str) -> tree.Value:
    """A column, NULL where it holds what its type does not: a number of more digits, a moment before all moments.

    DuckDB takes such values from Parquet files as they are stored, into its own tables too, and its functions fail on
    them, or while a statement is planned, where no TRY stands; some failures end the whole instance.
    """
    sizes = decimal_sizes(kind)
    if sizes is not None:
        most = 10 ** sizes[0] - 1
        held = (
            tree.Compared(name, ">=", tree.Constant(-most, kind)),
            tree.Compared(name, "<=", tree.Constant(most, kind)),
        )
        return tree.Guarded(tree.Every(held), name)
    if kind not in _FIRST:
        return name
    first, under = _FIRST[kind]
    inside = (
        tree.Compared(name, ">=", tree.Constant(first, kind)),
        tree.Compared(name, "=", tree.Constant(under, kind)),
    )
    return tree.Guarded(tree.Some(inside), name)


def longest_matched(pattern: str) -> int:
    """The most bytes of a text that LIKE ``pattern`` looks at."""
    wild = "_" in pattern and "%" in pattern
    return longest_searched(max(1, len(pattern)), wild=wild)


def longest_searched(weight: int, *, wild: bool) -> int:
    """The most bytes of a text that a pattern is held against which takes at most ``weight`` steps a byte.

    ``wild``: it has wildcards that RE2 may need a state for at every byte, which is slower by far.
    """
    return min(LONGEST_READ, (MOST_STATES if wild and weight > FEW_SIGNS else MOST_STEPS) // weight)
