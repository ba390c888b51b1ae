"""A batch over a table that grows: which periods it reads, and the batch confined to them.

A release is charged to the periods that it reads, and to no other, where it counts rows of one table with ``periods``
alone (``dpsql.privacy.periods`` has the claim). Its conditions say which: the days that some row can have that one of
its numbers counts. Rows elsewhere are left out of all cells, so that nothing of them is measured, whatever strategy is
chosen; of a unit as many rows count in each period as the policy lets count, so that truncation looks at no other.

What reads a day outside of the closed periods is refused: a period that is not over, days before the first, or rows
without a day. A batch over several private tables keeps to closed periods, too, and is charged to everything.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dpsql.errors import SQLError
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.privacy.periods import Reads
from dpsql.workload.compile.confined import days_of, interval_of
from dpsql.workload.expr.batch import Query, Table
from dpsql.workload.expr.conditions import FALSE, TRUE, Condition, LineAtom, Or, gather, union
from dpsql.workload.expr.lines import Interval, Line, line_of
from dpsql.workload.expr.rows import Cap
from dpsql.workload.expr.values import stored
from dpsql.workload.expr.within import Within

MOST_PERIODS = 4_000
"""Periods that one batch may read: their names stand beside its charge."""


def by_period(
    policy: Policy, tables: Mapping[str, Table], queries: Sequence[Query]
) -> tuple[Mapping[str, Table], Reads | None]:
    """The tables of a batch confined to the periods that its queries read, and which these are.

    None where its charge is for everything. Raises SQLError, with what to write, where it reads other rows.
    """
    private = {fold(table.policy.name): policy.table(table.policy.name) for table in tables.values()}
    found, reads = dict(tables), None
    for declared in private.values():
        if declared.periods is None:
            continue
        mine = {name: table for name, table in tables.items() if fold(table.policy.name) == fold(declared.name)}
        read = sorted({number for table in mine.values() for number in _read(policy, table, declared.periods, queries)})
        if len(read) > MOST_PERIODS:
            raise SQLError(
                f"the batch reads {len(read):,} periods of {declared.name}, at most {MOST_PERIODS:,} are charged at "
                "once; split it, or add up what is released of each"
            )
        found |= {name: _confined(table, declared.periods, read) for name, table in mine.items()}
        reads = reads_of(declared, read) if read else None
    return found, reads if len(private) == 1 else None


def reads_of(declared: TablePolicy, numbers: Sequence[int]) -> Reads:
    """What a charge says that reads these periods of a table."""
    periods = declared.periods
    assert periods is not None  # noqa: S101 - its callers know
    names = tuple(periods.start(number).isoformat() for number in numbers)
    return Reads(declared.name, **periods.rule, most=declared.periods_per_unit, read=names)


def _read(policy: Policy, table: Table, periods: Periods, queries: Sequence[Query]) -> set[int]:
    """The numbers of the periods that the queries over a table read."""
    column = table.columns.get(fold(periods.column))
    closed = periods.closed(policy.day)
    found: set[int] = set()
    for condition in _asked(table, periods, queries):
        held = Within(condition).on(periods.column if column is None else column.name)
        if held == FALSE:
            continue
        if not isinstance(held, LineAtom) or held.on_null:
            raise _refusal(policy, table, periods)
        for interval in held.intervals:
            numbers = _numbers(periods, _line(table, periods), interval)
            if numbers is None or numbers.stop > closed:
                raise _refusal(policy, table, periods)
            found.update(numbers[: MOST_PERIODS + 1])
    return found


def _asked(table: Table, periods: Periods, queries: Sequence[Query]) -> Iterator[Condition]:
    """Conditions that every row fulfils which one of the queries over a table counts."""
    units = None if table.source is None else table.source.of
    if units is not None:
        yield days_of(units, periods.column)
        return
    if table.source is not None and table.source.windows is not None:
        yield TRUE
        return
    for query in queries:
        if query.table == table.name:
            yield gather(Or, *(term.condition for output in query.outputs for term in output.terms))


def _line(table: Table, periods: Periods) -> Line:
    units = None if table.source is None else table.source.of
    types = {fold(name): kind for name, kind in table.schema.items()}
    if units is not None and units.where is not None:
        types |= {fold(part.name): part.type for part in stored(units.where) if not part.source}
    return line_of(types[fold(periods.column)])


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
    days = place if line.kind == "date" else place // 86_400_000_000
    return dt.date.fromordinal(min(max(days + dt.date(1970, 1, 1).toordinal(), 1), dt.date.max.toordinal()))


def _confined(table: Table, periods: Periods, numbers: Sequence[int]) -> Table:
    """The table with rows of these periods alone; of each unit as many of each period as of its table."""
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


def _refusal(policy: Policy, table: Table, periods: Periods) -> SQLError:
    name, closed = table.policy.name, periods.closed(policy.day)
    said = f"{name} is released by closed periods alone, {periods}, and the batch reads other rows of it"
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
