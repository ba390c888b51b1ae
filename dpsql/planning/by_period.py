"""A batch over a table that grows: which periods it reads, and the batch confined to them.

A release is charged to the periods that it reads, and to no other, where it counts rows of one table with ``periods``
alone (``dpsql.privacy.periods`` has the claim). Its conditions say which: the days that some row can have that one of
its numbers counts. Rows elsewhere are left out of all cells, so that nothing of them is measured, whatever strategy is
chosen; of a unit as many rows count in each period as the policy lets count, so that truncation looks at no other.

Rows that IN and EXISTS look up for a row that counts are read as well, and their periods pay as its own do. Where they
are of another table that grows, or a join finds them, the batch is charged to everything, as one over several private
tables is.

What reads a day outside of the closed periods is refused, wherever it does: a period that is not over, days before the
first, or rows without a day.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dpsql.common.numerics import DAY
from dpsql.errors import SQLError
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.privacy.periods import Reads
from dpsql.workloads.compile.confined import Look, days_of, interval_of, looks
from dpsql.workloads.expr.batch import Query, Table
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.conditions import FALSE, TRUE, Condition, LineAtom, Or, gather, union
from dpsql.workloads.expr.lines import Interval, Line, line_of
from dpsql.workloads.expr.rows import RowSource, Units
from dpsql.workloads.expr.values import Stored, stored
from dpsql.workloads.expr.values import Within as TestWithin
from dpsql.workloads.expr.within import Within

MOST_PERIODS = 4_000
"""Periods that one batch may read: their names stand beside its charge."""


def by_period(
    policy: Policy, tables: Mapping[str, Table], queries: Sequence[Query]
) -> tuple[Mapping[str, Table], Reads | None]:
    """The tables of a batch confined to the periods that its queries read, and which these are.

    None where its charge is for everything. Raises SQLError, with what to write, where it reads other rows.
    """
    growing = {fold(name): declared for name, declared in policy.tables.items() if declared.periods is not None}
    private = {fold(table.policy.name) for table in tables.values()}
    counted: dict[str, set[int]] = {name: set() for name in growing}
    looked: dict[str, set[int]] = {name: set() for name in growing}
    alone = len(private) == 1
    for table in tables.values():
        own = growing.get(fold(table.policy.name))
        if own is not None:
            counted[fold(own.name)] |= _counted(policy, table, own, queries)
        for look in _looks(table):
            other = growing.get(fold(look.table))
            if other is not None:
                looked[fold(other.name)] |= _looked(policy, table, other, look, queries)
                alone &= other is own and not look.join
    reads = None
    reads, read = None, {name: sorted(counted[name] | looked[name]) for name in growing}
    for name, declared in growing.items():
        if len(read[name]) > MOST_PERIODS:
            raise SQLError(
                f"the batch reads {len(read[name]):,} periods of {declared.name}, at most {MOST_PERIODS:,} are charged "
                "at once; split it, or add up what is released of each"
            )
        if alone and name in private and read[name]:
            reads = reads_of(declared, read[name])
    confined = {}
    for name, table in tables.items():
        own = growing.get(fold(table.policy.name))
        kept = table if own is None else _confined(table, own, counted)
        confined[name] = replace(kept, source=_read_only(kept.source, _stored_day(table, own), growing, read))
    return confined, reads


def _read_only(
    source: RowSource | None, day: Stored | None, growing: Mapping[str, TablePolicy], read: Mapping[str, Sequence[int]]
) -> RowSource | None:
    """The source, of whose growing tables rows of these periods alone are read, but for what a join finds by a key.

    No other row of the base, whose column of days is ``day``, or of a subquery is in a cell or found, so that a scan
    costs what its periods do.
    """
    if source is None:
        return None

    def made(units: Units | None) -> Units | None:
        own = None if units is None else growing.get(fold(units.of.table))
        day = None if units is None or own is None else _day_of(units, own)
        of = None if units is None else _read_only(units.of, day, growing, read)
        return units if units is None or of is None else replace(units, of=of)

    joins = tuple(join if join.of is None else replace(join, of=made(join.of)) for join in source.joins)
    source = replace(source, joins=joins, of=made(source.of))
    declared, numbers = growing.get(fold(source.table)), read.get(fold(source.table), ())
    if declared is None or not numbers or source.of is not None or day is None:
        return source
    line = line_of(day.type)
    days = union([interval_of(_periods(declared), line, number) for number in numbers])
    return replace(source, only=TestWithin(day, line, days))


def _day_of(units: Units, declared: TablePolicy, join: str = "") -> Stored | None:
    """The column of days that WHERE of rows of units asks for; None where it asks for none."""
    wanted = fold(_periods(declared).column)
    parts = () if units.where is None else stored(units.where)
    return next((part for part in parts if part.source == join and fold(part.name) == wanted), None)


def reads_of(declared: TablePolicy, numbers: Sequence[int]) -> Reads:
    """What a charge says that reads these periods of a table."""
    periods = _periods(declared)
    names = tuple(periods.start(number).isoformat() for number in numbers)
    return Reads(declared.name, **periods.rule, most=declared.periods_per_unit, read=names)


def _looks(table: Table) -> Iterator[Look]:
    """The rows that the queries over a table look up for those that they count."""
    if table.source is not None:
        values = (column.value for column in table.columns.values() if column.value is not None)
        yield from looks(table.source, values)


def _counted(policy: Policy, table: Table, declared: TablePolicy, queries: Sequence[Query]) -> set[int]:
    """The numbers of the periods of which the queries over a table count rows."""
    periods = _periods(declared)
    units = None if table.source is None else table.source.of
    if units is not None:
        return _read(policy, declared, [days_of(units, periods.column)], _day_of(units, declared))
    column = table.columns.get(fold(periods.column))
    name = periods.column if column is None else column.name
    asked = [Within(condition).on(name) for condition in _row_conditions(table, queries)]
    return _read(policy, declared, asked, _stored_day(table, declared))


def _looked(policy: Policy, table: Table, declared: TablePolicy, look: Look, queries: Sequence[Query]) -> set[int]:
    """The numbers of the periods at whose rows a look of the queries over a table looks."""
    periods, how = _periods(declared), " by IN, EXISTS or a join"
    if look.units is not None:
        days = days_of(look.units, periods.column, look.join)
        return _read(policy, declared, [days], _day_of(look.units, declared, look.join), how)
    for column in table.columns.values():
        value = column.value
        if isinstance(value, Stored) and value.source == look.join and fold(value.name) == fold(periods.column):
            asked = [Within(condition).on(column.name) for condition in _row_conditions(table, queries)]
            return _read(policy, declared, asked, value, how)
    raise _refusal(policy, declared, how)


def _read(
    policy: Policy, declared: TablePolicy, conditions: Iterable[Condition], day: Stored | None, how: str = ""
) -> set[int]:
    """The numbers of the periods in which the days are that each of ``conditions`` leaves; SQLError for other days."""
    periods = _periods(declared)
    closed = periods.closed(policy.day)
    found: set[int] = set()
    for condition in conditions:
        if condition == FALSE:
            continue
        if not isinstance(condition, LineAtom) or condition.on_null or day is None:
            raise _refusal(policy, declared, how)
        for interval in condition.intervals:
            numbers = _numbers(periods, line_of(day.type), interval)
            if numbers is None or numbers.stop > closed:
                raise _refusal(policy, declared, how)
            found.update(numbers[: MOST_PERIODS + 1])
    return found


def _periods(declared: TablePolicy) -> Periods:
    assert declared.periods is not None  # noqa: S101 - its callers know
    return declared.periods


def _row_conditions(table: Table, queries: Sequence[Query]) -> Iterator[Condition]:
    """Conditions that every row fulfils which one of the queries over a table counts."""
    if table.source is not None and table.source.windows is not None:
        yield TRUE
        return
    for query in queries:
        if query.table == table.name:
            yield gather(Or, *(term.condition for output in query.outputs for term in output.terms))


def _stored_day(table: Table, declared: TablePolicy | None) -> Stored | None:
    """The column of days that a table which grows stores."""
    wanted = "" if declared is None else fold(_periods(declared).column)
    return next((Stored(name, kind) for name, kind in table.schema.items() if fold(name) == wanted), None)


def _numbers(periods: Periods, line: Line, interval: Interval) -> range | None:
    """The periods that an interval of days, or times, meets; None where it reaches beyond the first or has no end."""
    low, high = interval
    if low is None or high is None:
        return None
    first = periods.number(_day(line, low[0]))
    last = periods.number(_day(line, high[0] - 1))
    return None if first is None or last is None else range(first, last + 1)


def _day(line: Line, place: int) -> dt.date:
    """The day of a place on a line of days or microseconds, within the years that there are."""
    days = place if line.kind == "date" else place // DAY
    return dt.date.fromordinal(min(max(days + dt.date(1970, 1, 1).toordinal(), 1), dt.date.max.toordinal()))


def _confined(table: Table, declared: TablePolicy, counted: Mapping[str, set[int]]) -> Table:
    """The table with rows of the periods alone that are counted; of each unit as many of each as of its table."""
    periods, numbers = _periods(declared), sorted(counted[fold(declared.name)])
    column = table.columns.get(fold(periods.column))
    if column is None or column.value is not None:
        return table  # rows of units: what their WHERE leaves, they are
    parts = [interval_of(periods, column.line, number) for number in numbers]
    columns = {**table.columns, fold(periods.column): replace(column, only=union(parts))}
    source = table.source
    if source is not None and source.unit is not None and source.of is None and not source.single:
        said = f"{source.limit} in each period of {periods.every}"
        atoms = tuple(LineAtom(column.name, (part,)) for part in parts)
        cap = Cap(column.name, column.line, None, atoms, source.limit, None, said)
        source = replace(source, limit=source.limit * max(len(numbers), 1), caps=(*source.caps, cap))
    return replace(table, columns=columns, source=source)


def _refusal(policy: Policy, declared: TablePolicy, how: str = "") -> SQLError:
    periods = _periods(declared)
    name, closed = declared.name, periods.closed(policy.day)
    said = f"{name} is released by closed periods alone, {periods}, and the batch reads other rows of it{how}"
    if not closed:
        return SQLError(
            f"{said}; the first ends {periods.start(1)}, and today is {policy.day}: ask again when it is over (nothing "
            "was charged)"
        )
    first, end = periods.start(closed - 1), periods.start(closed)
    return SQLError(
        f"{said}; add, for the last one, WHERE {periods.column} >= DATE '{first}' AND {periods.column} < DATE '{end}' "
        f"(closed are those from {periods.first} up to there; nothing was charged)"
    )
