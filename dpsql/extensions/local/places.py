"""Released rows and declared values in a DuckDB in memory: which regions they lie in, and what they add to sums.

Rows and declared combinations go through one and the same generated SELECT, so that a condition means for both what it
means for private rows elsewhere. The category OTHER stands for values that nobody knows. It is given one undeclared
value; a condition that could tell two undeclared values apart is refused before it is asked (`check_other`).
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf, prod
from typing import Any, TypeAlias

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Array
from dpsql.common.quoting import identifier
from dpsql.errors import InternalError, SQLError
from dpsql.extensions.local.device import OTHER, Categories
from dpsql.extensions.local.functions import Shape
from dpsql.extensions.local.released import FLOATS, Released, counted, places_of, shown_type
from dpsql.measure.from_sql import rows_of
from dpsql.measure.region_sql import region
from dpsql.measure.scan_sql import summed
from dpsql.policy.values import fold
from dpsql.release import ReleaseTable
from dpsql.release.columns import Coded, write_table
from dpsql.release.record import Value
from dpsql.workloads.expr.batch import Column, Table, constant
from dpsql.workloads.expr.conditions import Like
from dpsql.workloads.expr.lines import Cut, Interval, Line, line_of
from dpsql.workloads.expr.measures import Measure
from dpsql.workloads.expr.regions import Axis, IntArray, LineAxis, OpaqueAxis
from dpsql.workloads.expr.rows import MATCHED, RowSource
from dpsql.workloads.expr.scan import Column as Named
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import relation_text
from dpsql.workloads.expr.values import Name, Stored, stored

LISTED_CAP = 10_000_000
"""The most combinations of columns that are ever listed."""

COUNT = "dpsql_count"

Values: TypeAlias = Array
"""A column of public values as DuckDB gives them, perhaps masked."""

PublicRows = Callable[[str, Mapping[str, str]], list[Sequence[Value]]]
"""Reads columns (name -> type) of a public table, as lists of text."""


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Distinct rows of a listing: the region of each axis, u of each measure, the public columns, how many rows."""

    regions: dict[int, IntArray]
    sums: dict[int, IntArray]
    ids: tuple[Values, ...]
    count: IntArray


@dataclass(frozen=True, eq=False)
class Needs:
    """The base columns that an axis or a measure reads, released ones and public ones, and the joins on the way.

    ``values``: the public values of a row that it reads, by which rows are told apart where released columns are read
    with them: public columns, and columns of joins that public columns alone lead to. Where a join is by released and
    public columns together, all the public columns on the way.
    """

    released: frozenset[str]
    ids: frozenset[str]
    joins: frozenset[str]
    values: tuple[Stored, ...]


@dataclass(eq=False)
class Places:
    """The released rows in DuckDB, and public tables beside them as they are asked for."""

    released: Released
    table: ReleaseTable = field(repr=False)
    public: PublicRows = field(repr=False)
    connection: duckdb.DuckDBPyConnection = field(init=False, repr=False)
    _loaded: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "enable_external_access": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "python_enable_replacements": "false",
                "lock_configuration": "true",
            },
        )
        held = self.released
        places = places_of(held, self.table)
        counts = None
        if not held.ids:
            # Equal rows are one row that counts many times.
            codes = np.zeros(held.rows, dtype=np.int64)
            for place, size in zip(places, held.domain.shape, strict=True):
                codes *= size
                codes += place
            distinct, counts = counted(codes, held.domain.size)
            places = held.domain.places(distinct)
        else:
            counts = np.ones(held.rows, dtype=np.int64)
        columns: list[tuple[str, str, Sequence[Value]]] = [*self.table.columns[: len(held.ids)]]
        columns += [
            _column(column, kind, place)
            for column, kind, place in zip(held.domain.columns, held.types, places, strict=True)
        ]
        columns.append((COUNT, "BIGINT", counts.tolist()))
        write_table(self.connection, "released", columns)

    # -- listings ------------------------------------------------------------------------------

    def rows(
        self, table: Table, axes: Mapping[int, Axis], measures: Mapping[int, Measure], values: Sequence[Stored]
    ) -> DistinctRows:
        """The released rows by regions of ``axes``, u of ``measures`` and their public ``values``."""
        return self._distinct(table, axes, measures, values)

    def combinations(
        self,
        table: Table,
        axes: Mapping[int, Axis],
        measures: Mapping[int, Measure],
        columns: Sequence[str],
        values: Sequence[Stored] = (),
    ) -> DistinctRows:
        """All combinations of declared values of released ``columns``, for each of the rows' public ``values``.

        Raises SQLError past LISTED_CAP of them.
        """
        domain = self.released.domain
        held = [domain.columns[domain.axis(name)] for name in columns]
        kinds = [self.released.types[domain.axis(name)] for name in columns]
        size = prod(len(column) for column in held)
        self._check_size(size, columns, values)
        lists = []
        for number, (column, kind) in enumerate(zip(held, kinds, strict=True)):
            name = f"list_{number}"
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")
            write_table(self.connection, name, [_column(column, kind, np.arange(len(column)))])
            lists.append(name)
        beside = ""
        if values:
            self.connection.execute("DROP TABLE IF EXISTS list_values")
            seen = self._text(table, [(f"v{n}", _read(v)) for n, v in enumerate(values)], values, '"released"')
            self.connection.execute(f"CREATE TABLE list_values AS SELECT DISTINCT * FROM {seen}")  # noqa: S608
            count = self.connection.execute("SELECT count(*) FROM list_values").fetchone()
            self._check_size(size * (count[0] if count else 0), columns, values)
            lists.append("list_values")
            own = [f"v{n} AS {identifier(v.name)}" for n, v in enumerate(values) if not v.source]
            beside = "".join(f", {column}" for column in own)
        base = f"(SELECT *{beside}, 1 AS {COUNT} FROM {' CROSS JOIN '.join(lists)})"  # noqa: S608
        return self._distinct(table, axes, measures, values, base)

    def _check_size(self, size: int, columns: Sequence[str], values: Sequence[Stored]) -> None:
        if size > LISTED_CAP:
            named = ", ".join([*columns, *(value.name for value in values)])
            raise SQLError(
                f"an expression over {named} would be listed for {size:,} combinations of their values, more than "
                f"{LISTED_CAP:,}: compare columns with constants, or declare coarser domains before the release",
                code="too-large",
            )

    def _distinct(
        self,
        table: Table,
        axes: Mapping[int, Axis],
        measures: Mapping[int, Measure],
        values: Sequence[Stored],
        base: str | None = None,
    ) -> DistinctRows:
        """Distinct rows of ``base``, which has the public values as v0, v1, ...; of the released rows without one."""
        parts = [*axes.values(), *measures.values()]
        computed = {column.name: column.value for column in table.columns.values() if column.value is not None}
        columns: list[Named] = [(f"a{number}", region(axis, computed)) for number, axis in axes.items()]
        columns += [(f"u{number}", summed(measure, computed)) for number, measure in measures.items()]
        read = [_read(value) if base is None else Name(f"v{n}", BASE) for n, value in enumerate(values)]
        columns += [(f"i{number}", value) for number, value in enumerate(read)]
        columns.append(("dpsql_n", Name(COUNT, BASE)))
        used = [column for part in parts for name in _columns_of(part) for column in _stored(table, name)]
        text = self._text(table, columns, [*used, *values], base or '"released"', () if base is None else values)
        keys = [f"a{n}" for n in axes] + [f"u{n}" for n in measures] + [f"i{n}" for n in range(len(values))]
        listed = ", ".join([*keys, "CAST(sum(dpsql_n) AS BIGINT) AS n"])
        found: dict[str, Any] = self.connection.execute(f"SELECT {listed} FROM {text} GROUP BY ALL").fetchnumpy()  # noqa: S608
        count = np.ma.getdata(found["n"]).astype(np.int64)
        if not keys and count.size and np.ma.getmaskarray(found["n"])[0]:
            count = np.zeros(1, dtype=np.int64)  # no keys and no rows: one row that counts nothing
        return DistinctRows(
            {n: np.asarray(found[f"a{n}"]) for n in axes},
            {n: np.asarray(found[f"u{n}"], dtype=np.int64) for n in measures},
            tuple(found[f"i{n}"] for n in range(len(values))),
            count,
        )

    def _text(
        self, table: Table, columns: Sequence[Named], used: Sequence[Stored], base: str, given: Sequence[Stored] = ()
    ) -> str:
        """FROM ``base`` with the joins that ``used`` columns need; the base has what joins say of ``given`` values."""
        source = table.source or RowSource(table.name)
        joins = {join.name: join for join in source.joins}
        held: dict[str, list[str]] = {}
        for number, value in enumerate(given):
            if value.source:
                held.setdefault(value.source, []).append(f'"dpsql_base".v{number} AS {identifier(value.name)}')
        needed: set[str] = set()
        waiting = [column.source for column in used if column.source]
        while waiting:
            name = waiting.pop()
            if name not in needed and name not in held:
                needed.add(name)
                waiting += [left.source for left, _ in joins[name].pairs if left.source]
        source = RowSource(source.table, tuple(join for join in source.joins if join.name in needed))
        references = {join.table: self._public_table(join.table, table, source) for join in source.joins}
        wanted = [column for column in used if column.source in needed]
        text = relation_text(rows_of(source, wanted, columns), {**references, source.table: base})
        head = f"{base} AS {identifier(BASE)}"
        beside = "".join(
            f" CROSS JOIN LATERAL (SELECT {', '.join(found)}) AS {identifier(name)}" for name, found in held.items()
        )
        return text.replace(head, head + beside, 1)

    def _public_table(self, name: str, table: Table, source: RowSource) -> str:
        """A public table in DuckDB, with the columns that any statement has needed of it by now."""
        wanted: dict[str, str] = {}
        for join in source.joins:
            if join.table == name:
                wanted |= {right.name: right.type for _, right in join.pairs}
        for column in table.columns.values():
            for part in stored(column.value) if column.value is not None else ():
                if part.source in {join.name for join in source.joins if join.table == name}:
                    wanted[part.name] = part.type
        wanted.pop(MATCHED, None)
        held = f"public {name}"
        before = self._loaded.get(name, {})
        if not set(wanted) <= set(before):
            wanted = {**before, **wanted}
            self.connection.execute(f"DROP TABLE IF EXISTS {identifier(held)}")
            lists = self.public(name, wanted)
            columns = [
                (column, shown_type(kind), values) for (column, kind), values in zip(wanted.items(), lists, strict=True)
            ]
            write_table(self.connection, held, columns)
            self._loaded[name] = wanted
        return identifier(held)

    # -- dependencies --------------------------------------------------------------------------

    def needs(self, table: Table, part: Axis | Measure) -> Needs:
        """What an axis or a measure reads. Raises InternalError for a column that was not released."""
        source = table.source or RowSource(table.name)
        joins = {join.name: join for join in source.joins}
        parts = [column for name in _columns_of(part) for column in _stored(table, name)]
        released, ids, through = set(), set(), set()

        def visit(column: Stored) -> tuple[bool, bool]:
            """Whether the column depends on released columns, and on public ones."""
            if column.source:
                through.add(column.source)
                below = [visit(left) for left, _ in joins[column.source].pairs]
                return any(a for a, _ in below), any(b for _, b in below)
            for name, _ in self.released.ids:
                if fold(name) == fold(column.name):
                    ids.add(name)
                    return False, True
            if column.name not in self.released.domain.names:
                raise InternalError(f"column {column.name} was not released")
            released.add(column.name)
            return True, False

        on = [visit(column) for column in parts]
        if all(not (a and b) for a, b in on):
            values = [column for column, (_, public) in zip(parts, on, strict=True) if public]
        else:
            kinds = dict(self.released.ids)
            values = [Stored(name, kinds[name]) for name in sorted(ids)]
        return Needs(frozenset(released), frozenset(ids), frozenset(through), tuple(dict.fromkeys(values)))

    def check_other(self, table: Table, part: Axis | Measure) -> None:
        """SQLError where an axis or a measure depends on which undeclared value a released OTHER was."""
        domain = self.released.domain
        others = [c for c in domain.columns if c.other and c.name in self.needs(table, part).released]
        if not others:
            return
        (name, *_) = [column.name for column in others]
        direct = isinstance(part, LineAxis) and _named(table, part.column).value is None
        if isinstance(part, LineAxis) and direct and len(_undeclared(part, others[0])) <= 1:
            return
        raise SQLError(
            f"this asks more of column {name} than was released: its values outside the declared ones are all OTHER, "
            f"and nobody knows them; compare {name} with its declared values, such as {name} IN (...)",
        )


def columns_read(shape: Shape) -> tuple[str, ...]:
    """The stored columns of the base table that the axes and measures of a query read, joins included."""
    table = shape.table
    source = table.source or RowSource(table.name)
    joins = {join.name: join for join in source.joins}
    parts = [*(truths.axis for truths in shape.axes.values()), *shape.measures.values()]
    waiting = [column for part in parts for name in _columns_of(part) for column in _stored(table, name)]
    found: dict[str, None] = {}
    while waiting:
        column = waiting.pop(0)
        if column.source:
            waiting += [left for left, _ in joins[column.source].pairs]
        else:
            found[column.name] = None
    return tuple(found)


def _undeclared(axis: LineAxis, column: Categories) -> set[int]:
    """The regions of an axis that hold a value which is none of the declared ones."""
    declared = [point for value in column.values for point in [axis.line.point(constant(value))] if point is not None]
    ends: list[Cut | None] = [None, *axis.cuts, None]
    found = set()
    for number, (low, high) in enumerate(itertools.pairwise(ends)):
        inside = sum(_within(point, low, high) for point in declared)
        if _size(axis.line, low, high) > inside:
            found.add(int(axis.pieces[number]))
    return found


def _within(point: Interval, low: Cut | None, high: Cut | None) -> bool:
    first, last = point
    return (low is None or (first is not None and low <= first)) and (
        high is None or (last is not None and last <= high)
    )


def _size(line: Line, low: Cut | None, high: Cut | None) -> float:
    """How many values lie between two cuts."""
    if not line.discrete:
        return 1 if low is not None and high is not None and low[0] == high[0] else inf
    first = line.low if low is None else low[0]
    last = None if line.high is None else line.high + 1
    last = last if high is None else high[0]
    return inf if first is None or last is None else last - first


def _read(value: Stored) -> Name:
    return Name(value.name, value.source or BASE)


def _columns_of(part: Axis | Measure) -> tuple[str, ...]:
    if isinstance(part, OpaqueAxis):
        predicate = part.predicate
        return (predicate.column,) if isinstance(predicate, Like) else (predicate.left, predicate.right)
    return (part.column,)


def _named(table: Table, name: str) -> Column:
    return next(column for column in table.columns.values() if column.name == name)


def _stored(table: Table, name: str) -> Iterable[Stored]:
    column = _named(table, name)
    return (Stored(column.name, column.type),) if column.value is None else stored(column.value)


def _column(column: Categories, kind: str, places: NDArray[np.integer]) -> tuple[str, str, Sequence[Value]]:
    """Categories of a released column as values of its type."""
    shown = shown_type(kind)
    values = tuple(_other_value(column, shown) if value is OTHER else value for value in column.all)
    if len(places) >= 1000:
        return column.name, shown, Coded(values, places.astype(np.int32))
    return column.name, shown, [values[place] for place in places.tolist()]


def _other_value(column: Categories, kind: str) -> Value:
    """A value of that type that is not declared; NULL where there is none, since then there is no OTHER."""
    line = line_of(kind)
    taken = set(column.values)
    many = range(len(taken) + 1)
    if line.kind == "text":
        return next(text for text in (f"other {i}" for i in many) if text not in taken)
    if line.kind == "boolean":
        return next((truth for truth in (False, True) if truth not in taken), None)
    if line.kind == "date":
        return next(day for day in (dt.date(2000, 1, 1) + dt.timedelta(days=i) for i in many) if day not in taken)
    if line.kind in ("timestamp", "timestamptz"):
        moments = (dt.datetime(2000, 1, 1) + dt.timedelta(seconds=i) for i in many)
        return next(moment for moment in moments if moment not in taken)
    scale = Decimal(1).scaleb(-line.scale)
    numbers = (i * scale if line.scale else i for i in many)
    found = next((n for n in numbers if n not in taken and (line.high is None or n <= line.high)), None)
    return float(found) if kind in FLOATS and found is not None else found
