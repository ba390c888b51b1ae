"""Values: what a scan computes for each row, as typed trees of total functions.

A value never fails, whatever a row holds: the front end builds only trees whose every step is
defined for all that its operands can be, by their types' ranges or behind a CASE. Numbers that
are exact in SQL (integers, decimals) are computed as BIGINT or HUGEINT, wide enough for every
value of their operands. Rendering is in ``value_sql``; here are only the trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dpsql.workload.expr.lines import Interval, Line


@dataclass(frozen=True)
class Stored:
    """The stored column ``name`` of DuckDB type ``type``: of the table, or of the join named ``source``."""

    name: str
    type: str
    source: str = ""


@dataclass(frozen=True)
class Constant:
    """A constant: an int, float, str or bool as its type's line holds it (days, microseconds); None is NULL."""

    value: bool | int | float | str | None
    type: str


@dataclass(frozen=True)
class Unscaled:
    """A DECIMAL (its own type says how wide) times 10^scale, as a whole number of type ``type``."""

    this: Stored | Cast
    type: str


@dataclass(frozen=True)
class Call:
    """A function or operator of DuckDB (its name in ``system.main``) that is total on the arguments' types."""

    function: str
    arguments: tuple[Value, ...]
    type: str


@dataclass(frozen=True)
class Cast:
    """CAST, or TRY_CAST where ``tries``: then what does not fit is NULL."""

    this: Value
    type: str
    tries: bool = False


@dataclass(frozen=True)
class Coalesce:
    """The first argument that is not NULL."""

    arguments: tuple[Value, ...]
    type: str


@dataclass(frozen=True)
class CaseValue:
    """The value of the first branch whose test is TRUE, else ``default`` (None: NULL)."""

    branches: tuple[tuple[Test, Value], ...]
    default: Value | None
    type: str


@dataclass(frozen=True)
class Number:
    """A DOUBLE, NULL where it is NaN: an expression without a value."""

    this: Value
    type: str = "DOUBLE"


Value: TypeAlias = Stored | Constant | Unscaled | Call | Cast | Coalesce | CaseValue | Number


@dataclass(frozen=True)
class Compared:
    """``left operator right``, both of one type; NULL where a side is NULL."""

    left: Value
    operator: str
    right: Value


@dataclass(frozen=True)
class Matches:
    """``value LIKE pattern`` with a constant pattern."""

    value: Value
    pattern: str


@dataclass(frozen=True)
class Within:
    """The value lies in one of the intervals of its line, or is NULL where ``on_null``; TRUE, or FALSE or NULL."""

    value: Value
    line: Line
    intervals: tuple[Interval, ...]
    on_null: bool = False


@dataclass(frozen=True)
class Is:
    """The truth of ``test`` is one of ``truths``; never NULL."""

    test: Compared | Matches
    truths: frozenset[bool | None]


@dataclass(frozen=True)
class Every:
    """All tests hold; none: always."""

    tests: tuple[Test, ...]


@dataclass(frozen=True)
class Some:
    """Some test holds; none: never."""

    tests: tuple[Test, ...]


Test: TypeAlias = Compared | Matches | Within | Is | Every | Some


def parts(node: Value | Test) -> Iterator[Value | Test]:
    """The values and tests right under ``node``."""
    if isinstance(node, Call | Coalesce):
        yield from node.arguments
    elif isinstance(node, Cast | Unscaled | Number):
        yield node.this
    elif isinstance(node, CaseValue):
        for test, value in node.branches:
            yield test
            yield value
        if node.default is not None:
            yield node.default
    elif isinstance(node, Compared):
        yield from (node.left, node.right)
    elif isinstance(node, Matches | Within):
        yield node.value
    elif isinstance(node, Is):
        yield node.test
    elif isinstance(node, Every | Some):
        yield from node.tests


def walk(node: Value | Test) -> Iterator[Value | Test]:
    """The node and all under it; a part that stands twice is visited twice, as it is written twice."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(parts(found))


def stored(node: Value | Test) -> tuple[Stored, ...]:
    """The stored columns that a value reads, each once, in a fixed order."""
    return tuple(dict.fromkeys(part for part in walk(node) if isinstance(part, Stored)))
