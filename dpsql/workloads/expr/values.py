"""Values: what a scan computes for each row, as typed trees of total functions.

A value never fails, whatever a row holds: the front end builds only trees whose every step is
defined for all that its operands can be, by their types' ranges or behind a CASE. Numbers that
are exact in SQL (integers, decimals) are computed as BIGINT or HUGEINT, wide enough for every
value of their operands.

The front end writes the first nodes here; those from ``Name`` on are what a scan adds: regions, steps, places among
the rows of a unit. ``total.lowered`` says what is to be done with a column or a LIKE in smaller nodes, and each engine
has a printer of all of them (``value_sql`` for DuckDB, ``engines/spark/expressions`` for Spark).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from dpsql.workloads.expr.lines import Interval, Line


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
    """A function or operator of DuckDB (its name in ``system.main``) that is total on the arguments' types.

    It stands in a TRY all the same, unless it is ``bare``: of numbers that were held to their range before.
    """

    function: str
    arguments: tuple[Value, ...]
    type: str
    bare: bool = False


@dataclass(frozen=True)
class Cast:
    """CAST, in a TRY unless it is ``bare``; or TRY_CAST where ``tries``: then what does not fit is NULL."""

    this: Value
    type: str
    tries: bool = False
    bare: bool = False


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


@dataclass(frozen=True)
class Name:
    """A column of the FROM clause as it is, of the part that is called ``source`` there, if it is told; so its type."""

    name: str
    source: str = ""
    type: str = ""


@dataclass(frozen=True)
class Binary:
    """A text that is compared in binary order, whatever the collation of its column."""

    this: Value
    type: str = "VARCHAR"


@dataclass(frozen=True)
class Like:
    """A text, short enough for it (``total.longest_matched``), is LIKE a pattern."""

    this: Value
    pattern: str
    type: str = "BOOLEAN"


@dataclass(frozen=True)
class Guarded:
    """The value where the test is TRUE, NULL elsewhere."""

    test: Test
    this: Value

    @property
    def type(self) -> str:
        """That of the value."""
        return self.this.type


@dataclass(frozen=True)
class Truth:
    """0 where the test is TRUE, 1 where it is FALSE, 2 where it is NULL."""

    test: Test
    type: str = "INTEGER"


@dataclass(frozen=True)
class Numbers:
    """A list of whole numbers, of integers of type ``type``, or where none is given of the type that holds them."""

    values: tuple[int, ...]
    type: str = ""


@dataclass(frozen=True)
class Window:
    """A function over the rows that are equal in ``apart``, in rising order of ``order``, NULL last.

    The places in ``falling`` are those of ``order`` that fall instead, NULL last all the same.
    """

    function: str
    arguments: tuple[Node, ...]
    apart: tuple[Node, ...]
    order: tuple[Node, ...] = ()
    type: str = "BIGINT"
    falling: tuple[int, ...] = ()

    def ordered(self, parts: Sequence[str]) -> str:
        """ORDER BY, of the texts of ``order``; no setting of a connection turns it round."""
        ways = ("DESC" if at in self.falling else "ASC" for at in range(len(parts)))
        return ", ".join(f"{part} {way} NULLS LAST" for part, way in zip(parts, ways, strict=True))


@dataclass(frozen=True)
class CountRows:
    """The number of rows."""

    type: str = "BIGINT"


@dataclass(frozen=True)
class Distinct:
    """The argument of an aggregate that takes each value once."""

    this: Value

    @property
    def type(self) -> str:
        """That of the value."""
        return self.this.type


@dataclass(frozen=True)
class Word:
    """The lower 32 bits of a sum of BIGINTs from 0 to ``most``, as a BIGINT, or where ``high`` all above them."""

    this: Value
    high: bool
    most: int
    type: str = "BIGINT"


@dataclass(frozen=True)
class Gathered:
    """``sum``, ``bit_or``, ``min`` or ``max`` of BIGINTs, 0 where there are none; a sum that stays below 2^62."""

    function: str
    this: Value
    type: str = "BIGINT"


Value: TypeAlias = (
    Stored | Constant | Unscaled | Call | Cast | Coalesce | CaseValue | Number | Name | Binary | Guarded | Truth
    | Like | Numbers | Window | CountRows | Distinct | Word | Gathered
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """``left operator right``, both of one type; NULL where a side is NULL, but for IS NOT DISTINCT FROM."""

    left: Value | Test
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
    """All tests hold (SQL's AND); none: always."""

    tests: tuple[Test, ...]


@dataclass(frozen=True)
class Some:
    """Some test holds (SQL's OR); none: never."""

    tests: tuple[Test, ...]


@dataclass(frozen=True)
class IsNull:
    """The value is NULL; where ``negated``, it is not."""

    this: Value
    negated: bool = False


@dataclass(frozen=True)
class IsNumber:
    """A DOUBLE is not NaN; NULL where it is NULL."""

    this: Value


Test: TypeAlias = Compared | Matches | Within | Is | Every | Some | IsNull | IsNumber
Node: TypeAlias = "Value | Test"
T = TypeVar("T")
Evaluate: TypeAlias = "Callable[[Value, str, Stored, Line, tuple[Any, ...]], tuple[Any, ...]]"
"""A value, of a line of some kind, at places of the line of its one stored column, None for NULL; public constants."""
WHOLE = "INTEGER_LITERAL"
"""DuckDB's type of a whole number that is written without one."""
NULL = Constant(None, "NULL")
ALWAYS = Every(())


def whole(number: int) -> Constant:
    """A whole number as SQL writes it."""
    return Constant(int(number), WHOLE)


def long(number: int) -> Constant:
    """A whole number as a BIGINT."""
    return Constant(int(number), "BIGINT")


def bare(function: str, *arguments: Value, type: str = "BIGINT") -> Call:  # noqa: A002 - a node's word
    """A call of DuckDB's own function without a TRY."""
    return Call(function, arguments, type, bare=True)


def parts(node: Node) -> Sequence[Node]:
    """The values and tests right under ``node``."""
    if isinstance(node, Name | Constant | Stored | Numbers | CountRows):
        return ()
    if isinstance(node, Call | Coalesce):
        return node.arguments
    if isinstance(node, Compared):
        return (node.left, node.right)
    if isinstance(node, CaseValue):
        under: list[Node] = [part for branch in node.branches for part in branch]
        return under if node.default is None else [*under, node.default]
    if isinstance(node, Every | Some):
        return node.tests
    if isinstance(node, Matches | Within):
        return (node.value,)
    if isinstance(node, Is | Truth):
        return (node.test,)
    if isinstance(node, Guarded):
        return (node.test, node.this)
    if isinstance(node, Window):
        return (*node.arguments, *node.apart, *node.order)
    return (node.this,)


def folded(root: Node, lower: Callable[[Node], Node], made: Callable[[Node, Sequence[T]], T]) -> T:
    """``made`` of a tree, from its leaves up: each node, as ``lower`` writes it, with what was made of its parts.

    What is one object is made once. No recursion, so that no tree is too deep.
    """
    done: dict[int, T] = {}
    lowered: dict[int, Node] = {}  # holds the nodes, so that their numbers stay theirs
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if id(node) in done:
            waiting.pop()
            continue
        if id(node) not in lowered:
            lowered[id(node)] = lower(node)
        below = parts(lowered[id(node)])
        missing = [part for part in below if id(part) not in done]
        if missing:
            waiting.extend(missing)
        else:
            done[id(node)] = made(lowered[id(node)], [done[id(part)] for part in below])
    return done[id(root)]


def walk(node: Node) -> Iterator[Node]:
    """The node and all under it; a part that stands twice is visited twice, as it is written twice."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(parts(found))


def stored(node: Node) -> tuple[Stored, ...]:
    """The stored columns that a value reads, each once, in a fixed order."""
    return tuple(dict.fromkeys(part for part in walk(node) if isinstance(part, Stored)))
