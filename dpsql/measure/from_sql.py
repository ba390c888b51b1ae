"""The FROM clause of a private scan: joins that find one row at most, and truncation to k rows a unit.

What must hold is proved in ``dpsql.workloads.expr.rows``; that it is what this text does:

- A join reads ``(SELECT ..., row_number() OVER (PARTITION BY key [, unit] ORDER BY first, order, used) AS place)
  WHERE place = 1``, so that a key has one row at most, which depends on the rows of that key (and unit) alone.
  ORDER BY compares every column that the scan uses, and ties are equal in each: whichever row DuckDB takes,
  the scan sees the same. The columns of ``order`` are the same in every scan, and no condition stands below the
  choice, so that all scans find one row. Text is compared in binary order, minus zero apart from zero, NULL comes
  last, whatever the connection's settings say.
- A base with an ``order`` is read in the same way, ``PARTITION BY unit ORDER BY order, used``: the least row of each
  unit is there, and nothing more is truncated. Rows that no query counts are not put last here: the row that counts is
  the one that a join by the unit finds in the same table, whatever the batch asks.
- LEFT JOINs to such tables keep each row of the base as exactly one row.
- A join to the nearest row (``Join.nearest``) reads one for each unit and value, GROUP BY both, so that no two tie. It
  is an ASOF LEFT JOIN by the unit and one inequality, which keeps each row as one row, too; a row that does not count
  has NULL for its value, which is less and greater than nothing.
- Truncation works on what the scan will add up, not on raw values: ``row_number() OVER (PARTITION BY unit
  ORDER BY hash, regions, steps) <= k`` over integers. Only rows of one unit stand in its partition, ties are equal
  in all that is counted or summed, so the rows that count are a function of the unit's own rows, and a unit
  with at most k rows loses none. The hash is over the unit too, so that no cell is favoured for all units.
  Where columns of the rows are released as they are, ``public``, these choose first: ORDER BY hash(unit, public),
  public, and only then the rest. Which public values remain is then a function of public values alone.
- Caps come first: at most r of a unit's rows in each group, ``row_number() OVER (PARTITION BY unit, group ORDER BY as
  above) <= r``, then the rows of at most g groups, ``dense_rank() OVER (PARTITION BY unit ORDER BY hash(unit, group),
  group) <= g``. Each step looks at what the step before left of the unit's own rows, and takes rows away only. Where
  they leave no more than k rows that a query counts (``dpsql.workloads.compile.caps``) the truncation is left out: it
  would take none of these, and others are added to nothing.
- Rows that no query of the batch counts come last in every order of truncation, so that they displace none that counts.
  Which rows these are depends on the row and the batch alone.
- Rows of units are grouped by the owner: counts, and sums, minima and maxima of whole numbers, dates and the like, that
  no order of rows changes. The first or last row's value is that of the least or greatest pair of key and value.
  Every row is read and its values are computed; whether WHERE and FILTER hold are columns beside them, and an aggregate
  is over CASE WHEN these are 0 THEN value END. Whether a unit counts (WHERE holds for a row of it, and HAVING for the
  unit) is a column in turn, ``KEPT``. A base counts by it as by a region; in a join a row that does not count has NULL
  for a key, which equals nothing. Conditions instead, even above GROUP BY, DuckDB pushes down to the table, which it
  reads or not as the statistics of its columns say: the time of a scan would tell whether there is a row.
- Where units are counted by the same rows (``Layout.tie``), rows that are the first of the unit's in a cell of that
  count come before all others, in the order in which the count takes the unit's cells: with at most k cells all of them
  have one, with more just those k that the count keeps. So the unit is counted in the cells of its rows that count, and
  in no other. Which of a cell's rows is the first is decided as above, among the unit's rows in the cell alone.
- Caps of a source that counts units, and of the rows that it is tied to, order rows by its cell and by the groups of
  all caps, those in no cell last: rows equal in these are the same to both scans, so that each keeps as many of them.
- Where several distinct sources count units over the same rows (``Layout.together``), what is kept of a unit is found
  once for all of them, over ``owned`` rows (``dpsql.measure.counts_over_same_rows``).
- Distinct sources keep one row for each pair of a unit and a cell, and at most k pairs a unit. Those that count values
  keep, of the rows that count, one for each pair of a cell and a value: GROUP BY both.

NULL is a unit like any other. There is no condition on a row's values anywhere, WHERE and HAVING of rows of units
included: the two comparisons of a place are the only ones. But for one: of a table that grows the rows of the periods
alone are read that a batch is charged to, whose days are public, and none of the user's conditions. So the time of a
scan tells of how many rows these are, and where files or partitions hold other days' rows, too, of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dpsql.errors import InternalError
from dpsql.policy.types import column_type
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.rows import EVERY, KEPT, MATCHED, Along, Join, OfUnit, RowSource, Units
from dpsql.workloads.expr.scan import Column, Joined, Match, Relation, Select, Table, same
from dpsql.workloads.expr.total import BASE, SAME, VALUES, Once, read_once
from dpsql.workloads.expr.total import at as placed

UNIT, PLACE, LAST, BEST, CELL = "dpsql_unit", "dpsql_place", "dpsql_last", "dpsql_best", "dpsql_cell"


def rows_of(
    source: RowSource,
    used: Iterable[tree.Stored],
    columns: Sequence[Column],
    *,
    once: Sequence[Once] = (),
    cells: int | None = None,
    public: Sequence[str] = (),
    caps: Sequence[CapColumn] = (),
    counted: tree.Test | None = None,
    cell: tree.Value | None = None,
    few: bool = False,
) -> Select:
    """The FROM clause of a scan over ``source``.

    ``columns`` are over the values ``once``, or without any over the base and the joins; total and
    of integer type, all that the scan will use; ``used`` are the stored columns of joins in them. The result has these
    columns; for a source without units one row for each row of the base, else at most ``limit`` for each unit, which is
    its least row where the base has an order and no ``public`` columns choose. ``cells``: how many there are that a
    distinct source counts in, if known; a unit that cannot be in more than ``limit`` needs no truncation. ``public``:
    names among the columns that are released as they are, and choose which rows of a unit remain. ``caps`` bound the
    rows of a unit first. ``counted``: a condition over the names that is FALSE for rows that no query counts; NULL
    counts as FALSE. ``cell``: of a source of rows the cell in which the unit is counted by a row, -1 for none, where
    its first row in each is kept before others; there are ``cells`` of them. ``few``: the caps leave of no unit more
    than ``limit`` rows that some query counts.
    """
    names = [name for name, _ in columns]
    least = bool(source.order) and not public
    base: Relation = joined(source, (*used, *stored_columns(once, columns)), least=least)
    if source.unit is None:
        plain = Select(tuple(columns) or (("one", tree.whole(1)),), values_of(once, base) if once else base)
        return plain if source.each is None else _once_each(plain, names)
    unit, owner = tree.Name(UNIT), (UNIT, _key(source.unit))
    if once:
        flag = ((KEPT, tree.Name(KEPT, BASE)),) if source.conditional else ()
        base, owner = values_of(once, base, owner, *flag), (UNIT, unit)
    if least:
        rows = Select((owner, *columns), base)
        if source.counts_units:
            return _with_unit(rows, *names)
        return rows if source.each is None else _once_each(rows, names)
    tied = () if cell is None else ((CELL, cell),)
    rows = Select((owner, *columns, *((cap.name, cap.group) for cap in caps), *tied), base)
    carried = [*names, *(cap.name for cap in caps), *(name for name, _ in tied)]
    first: list[tree.Node] = []
    matters: tree.Test | None = tree.Compared(tree.Name(names[0]), ">=", tree.whole(0)) if source.distinct else counted
    if matters is not None and not source.counts_units:
        rows = Select(
            (*same(UNIT, *carried), (LAST, tree.CaseValue(((matters, tree.whole(0)),), tree.whole(1), "INTEGER"))), rows
        )
        first, carried = [tree.Name(LAST)], [*carried, LAST]
    for cap in caps:
        if source.counts_units or tied:
            of_unit = CELL if tied else names[0]
            rows = _capped(rows, carried, [_below_zero(of_unit)], cap, [of_unit, *(cap.name for cap in caps)])
        else:
            rows = _capped(rows, carried, first, cap)
    if source.counts_units:
        (name,) = names
        rows = replace(_with_unit(rows, name), group_by=2)
        if cells is None or cells > source.limit:
            rows = _truncated(rows, names, [_below_zero(name)], source.limit)
        return rows
    if public:
        first = [hashed(UNIT, *public), *map(tree.Name, public)]
    elif source.of is not None and not source.of.keys:
        return rows  # one for each unit
    elif cell is not None and cells == 1:
        first = [_below_zero(CELL), *first]
    elif cell is not None:
        rows, first = _first_of_cells(rows, carried, names, first)
    if not few:
        rows = _truncated(rows, names, first, source.limit)
    return rows if source.each is None else _once_each(rows, names)


def owned(
    source: RowSource, used: Iterable[tree.Stored], once: Sequence[Once], cell: tree.Value, caps: Sequence[CapColumn]
) -> Select:
    """Each row of ``source`` that ``caps`` leave, with its unit and its ``CELL``, over the values ``once``."""
    assert source.unit is not None  # noqa: S101 - asked before
    base = joined(source, (*used, *stored_columns(once)), least=bool(source.order))
    values = values_of(once, base, (UNIT, _key(source.unit)))
    if source.order:
        return Select((*same(UNIT), (CELL, cell)), values)
    rows = Select((*same(UNIT), (CELL, cell), *((cap.name, cap.group) for cap in caps)), values)
    for cap in caps:
        rows = _capped(rows, [CELL, *(cap.name for cap in caps)], [_below_zero(CELL)], cap)
    return Select(same(UNIT, CELL), rows) if caps else rows


def owned_values(
    source: RowSource, used: Iterable[tree.Stored], once: Sequence[Once], columns: Iterable[Column]
) -> Select:
    """Each row of a source with units, with its ``UNIT`` beside the values ``once``, which ``columns`` are over."""
    if source.unit is None:
        raise InternalError(f"{source.table}: its rows have no unit")
    base = joined(source, (*used, *stored_columns(once, columns)), least=bool(source.order))
    return values_of(once, base, (UNIT, _key(source.unit)))


def _with_unit(rows: Select, name: str) -> Select:
    """The rows, those without a unit in the cell -1, which is none: they are of no unit that could be counted."""
    unit = tree.Name(UNIT)
    alone = tree.CaseValue(((tree.IsNull(unit), tree.whole(-1)),), tree.Name(name), "BIGINT")
    return Select(((UNIT, unit), (name, alone)), rows)


def stored_columns(once: Iterable[Once], columns: Iterable[Column] = ()) -> list[tree.Stored]:
    """The stored columns of the base that values read."""
    values = [*(value.first for value in once), *(value for _, value in columns)]
    return [part for value in values for part in tree.stored(value) if not part.source]


def _below_zero(name: str) -> tree.Test:
    """Whether a row is in no cell."""
    return tree.Compared(tree.Name(name), "<", tree.whole(0))


def _once_each(rows: Select, names: Sequence[str]) -> Select:
    """One row for all that are equal in every column."""
    return Select(same(*names), rows, group_by=len(names))


def values_of(once: Sequence[Once], rows: Relation, *beside: Column) -> Select:
    """The rows with their values by name, each computed once, and the columns ``beside``."""
    select = Select((*beside, *((value.name, value.first) for value in once)), rows, alias=VALUES)
    if not any(value.then for value in once):
        return select
    then = [(value.name, value.then or tree.Name(value.name)) for value in once]
    return Select((*same(*(name for name, _ in beside)), *then), replace(select, alias=""), alias=VALUES)


@dataclass(frozen=True)
class CapColumn:
    """A cap by what the scan computes: the expression ``group``, a whole number, under ``name``."""

    name: str
    group: tree.Value
    rows: int | None
    groups: int | None


def _capped(
    rows: Select, names: Sequence[str], first: Sequence[tree.Node], cap: CapColumn, by: Sequence[str] = ()
) -> Select:
    """At most ``cap.rows`` of the rows of each unit in each group, of at most ``cap.groups`` groups.

    They are the least by ``first``, then by hash of the columns ``by``, or of all, then by value.
    """
    by = by or names
    group = (tree.Name(UNIT), tree.Name(cap.name))
    if cap.rows is not None:
        rest = (name for name in names if name not in by)
        order = (*first, hashed(UNIT, *by), *map(tree.Name, by), *map(tree.Name, rest))
        rows = within(rows, [UNIT, *names], tree.Window("row_number", (), group, order), cap.rows)
    if cap.groups is not None:
        best: list[tree.Node] = []
        if first:
            name = f"{BEST}_{cap.name}"
            rows = Select((*same(UNIT, *names), (name, tree.Window("min", (first[0],), group))), rows)
            best = [tree.Name(name)]
        order = (*best, hashed(UNIT, cap.name), tree.Name(cap.name))
        rows = within(rows, [UNIT, *names], tree.Window("dense_rank", (), group[:1], order), cap.groups)
    return rows


def _truncated(rows: Select, names: Sequence[str], first: Sequence[tree.Node], limit: int) -> Select:
    """At most ``limit`` of the rows of each unit: the least by ``first``, then by hash, then by value."""
    order = (*first, hashed(UNIT, *names), *map(tree.Name, names))
    return within(rows, names, tree.Window("row_number", (), (tree.Name(UNIT),), order), limit)


def _first_of_cells(
    rows: Select, columns: Sequence[str], names: Sequence[str], first: Sequence[tree.Node]
) -> tuple[Select, list[tree.Node]]:
    """The rows with what orders each unit's: 0 for the first in a cell of units, in the order in which the truncation
    of a distinct source takes cells; else 1, or 2 for a row that no query counts.
    """
    cell, unit = tree.Name(CELL), tree.Name(UNIT)
    order = (*first, hashed(UNIT, *names), *map(tree.Name, names))
    placed = Select((*same(UNIT, *columns), (PLACE, tree.Window("row_number", (), (unit, cell), order))), rows)
    leading = (tree.Compared(tree.Name(PLACE), "=", tree.whole(1)), tree.Compared(cell, ">=", tree.whole(0)))
    owned = tree.Every((*leading, tree.Compared(tree.Truth(tree.IsNull(unit)), "=", tree.whole(1))))
    rest = (
        tree.whole(1)
        if not first
        else tree.CaseValue(((tree.Compared(first[0], "=", tree.whole(0)), tree.whole(1)),), tree.whole(2), "INTEGER")
    )
    ranked = Select((*same(UNIT, *columns), (BEST, tree.CaseValue(((owned, tree.whole(0)),), rest, "INTEGER"))), placed)
    leads = tree.Compared(tree.Name(BEST), "=", tree.whole(0))
    by_cell = [tree.Guarded(tree.Every((leads,)), value) for value in (hashed(UNIT, CELL), cell)]
    return ranked, [tree.Name(BEST), *by_cell]


def within(rows: Select, names: Sequence[str], place: tree.Window, most: int) -> Select:
    """The rows whose place is at most ``most``."""
    placed = Select((*same(*names), (PLACE, place)), rows)
    return Select(same(*names), placed, where=tree.Compared(tree.Name(PLACE), "<=", tree.whole(most)))


def pairs_of(source: RowSource, once: Once, type: str, limit: int) -> Select:  # noqa: A002 - a node's word
    """The value ``once`` of each unit's rows, each once and at most ``limit`` of them, NULL last; of single rows all.

    Text of any length and any values: nothing is computed of them but their hash. A row without a unit has no value.
    """
    base = joined(source, stored_columns([once]), least=bool(source.order))
    value, unit = tree.Name(once.name), tree.Name(UNIT)
    if source.unit is None:
        return Select(same(once.name), values_of([once], base))
    owned = values_of([once], base, (UNIT, _key(source.unit)))
    of_unit = tree.CaseValue(((tree.IsNull(unit), tree.NULL),), value, type)
    if source.order:
        return Select(((once.name, of_unit),), owned)
    pairs = Select(((UNIT, unit), (once.name, of_unit)), owned, group_by=2)
    return _truncated(pairs, [once.name], [tree.IsNull(value)], limit)


def hashed(*names: str) -> tree.Value:
    return tree.bare("hash", *map(tree.Name, names))


def joined(source: RowSource, used: Iterable[tree.Stored], *, least: bool = False) -> Relation:
    """The base and its joins: one row for each row of the base, or, ``least``, for its least row of each unit.

    ``used`` are the stored columns that are read; those of the base need be among them only with ``least``.
    """
    needed: dict[str, dict[tree.Stored, None]] = {"": {}, **{join.name: {} for join in source.joins}}
    sides = [side for join in source.joins for side in (*_rights(join), *join.lefts)]
    for column in (*used, *sides, *((source.unit,) if source.unit else ())):
        needed[column.source][column] = None
    joins = []
    for join in source.joins:
        on = [tree.Compared(_key(left, right), "=", _key(right, left)) for left, right in join.pairs]
        on += [tree.Compared(_key(left, right), SAME, _key(right, left)) for left, right in _unit_pair(join)]
        on += [] if join.nearest is None else [join.nearest]
        rows = _one_a_key(join, list(needed[join.name]))
        joins.append(Match(rows, tree.Every(tuple(on)), nearest=join.nearest is not None))
    if source.of is not None and source.of.along is not None:
        raise InternalError(f"{source.table}: rows along a value are found, none is counted")
    columns = list(needed[""]) if least else []
    base = _windowed(source, columns) if source.of is None else _units(source.of)
    return Joined(base, tuple(joins)) if joins else base


def _windowed(source: RowSource, least: Sequence[tree.Stored]) -> Table | Select:
    """The base with the columns that follow from a row's place among those of its unit, held to their lines.

    Ties in the order of a window are broken by every stored column, so that they are equal in all that can be read.
    ``least``: the columns that are read of the least row of each unit, empty where all rows are.
    """
    if source.windows is None:
        return _least(source, least) if least else base_of(source, source.table)
    stored, columns = source.windows.stored, source.windows.columns
    values: dict[tuple[tree.Value, Line], Once] = {}
    flags: dict[tree.Test, str] = {}

    def named(value: tree.Value, line: Line) -> Once:
        return values.setdefault((value, line), read_once(value, line, f"dpsql_v{len(values)}"))

    ties = [part for column in stored for part in _order(column)]
    made: list[Column] = []
    for column in columns:
        test = None if column.where is None else _flagged(column.where, flags)
        where = () if test is None else (tree.Truth(test),)
        # Whose a row is as truncation and joins tell it apart: NaN is not NULL there.
        owners = [_key(_bare(owner)) for owner in source.owners]
        others = (part for part in column.apart if part[0] not in source.owners)
        partition = (*owners, *(_comparable(named(*part), part[1]) for part in others), *where)
        order = [_comparable(named(value, line), line) for value, line, _ in column.by]
        falling = tuple(at for at, (_, _, falls) in enumerate(column.by) if falls)
        given: tuple[tree.Node, ...] = ()
        if column.value is not None:
            given = (tree.Name(named(*column.value).name), *([tree.whole(column.steps)] if column.steps else []))
        if column.function not in {"rank", "dense_rank"}:
            order += ties
        window = tree.Window(column.function, given, partition, tuple(order), column.line.type, falling)
        # Rows that WHERE leaves out have no number: they would take that of a row that counts from it.
        numbered = test if column.function == "row_number" else None
        made.append((column.name, window if numbered is None else tree.Guarded(numbered, window)))
    listed: list[Column] = [(column.name, tree.Name(column.name, BASE)) for column in stored]
    beside = [*listed, *((name, tree.Truth(test)) for test, name in flags.items())]
    read = (*stored, *source.owners, *stored_columns(values.values(), beside))
    base = _least(source, read) if least else Table(source.table)
    rows = replace(values_of(list(values.values()), base, *beside), alias=BASE)
    return Select((*same(*(column.name for column in stored)), *made), rows, alias=BASE)


def _least(source: RowSource, columns: Iterable[tree.Stored]) -> Select:
    """The columns of the least row of each unit."""
    columns, unit = list(columns), source.owners
    listed = [(name, tree.Name(name, BASE)) for name in dict.fromkeys(column.name for column in columns)]
    return _first_of(listed, base_of(source, source.table), unit, _ordered((), source.order, columns, unit))


def _first_of(
    columns: Sequence[Column], rows: Table | Select, key: Sequence[tree.Stored], order: tuple[tree.Value, ...]
) -> Select:
    """The ``columns`` of the first of the rows with each key."""
    place = tree.Window("row_number", (), tuple(_key(_bare(column)) for column in key), order)
    inner = Select((*columns, (PLACE, place)), rows)
    first = tree.Compared(tree.Name(PLACE), "=", tree.whole(1))
    return Select(same(*(name for name, _ in columns)), inner, where=first, alias=BASE)


def _ordered(
    first: Sequence[tree.Stored], order: Sequence[tree.Stored], used: Sequence[tree.Stored], key: Sequence[tree.Stored]
) -> tuple[tree.Value, ...]:
    """What orders rows with one key: who owns them, then the order of their table, then all that a scan uses.

    Owners are compared as keys are, so that minus zero is zero there: rows of one owner are in the order of the table.
    """
    equal = {column.name for column in key if column_type(column.type).kind != "float"}
    columns = {column.name: column for column in (*used, *first, *order)}
    names = dict.fromkeys(column.name for column in (*order, *first, *used) if column.name not in equal)
    owners = [_key(_bare(column)) for column in first]
    parts = dict.fromkeys([*owners, *(part for name in names for part in _order(_bare(columns[name])))])
    return tuple(parts) or tuple(_key(_bare(column)) for column in key)


def _comparable(value: Once, line: Line) -> tree.Value:
    """A value as windows compare it: text in binary order."""
    name = tree.Name(value.name)
    return tree.Binary(name) if line.kind == "text" else name


def base_of(source: RowSource, name: str) -> Table | Select:
    """The rows of the table, called ``name``, that are read.

    What says so are bare comparisons of a stored column, which cannot fail and choose files and partitions, too.
    """
    table, only = Table(name), source.only
    tests: list[tree.Test] = []
    if source.no_row_without_unit and source.unit is not None:
        missing = tree.IsNull(tree.Name(source.unit.name, BASE))
        tests.append(tree.Compared(tree.Truth(missing), "=", tree.whole(1)))
    if only is not None:
        tests.append(_only(only))
    if not tests:
        return table
    return Select((), table, where=tests[0] if len(tests) == 1 else tree.Every(tuple(tests)), alias=BASE)


def _only(only: tree.Within) -> tree.Test:
    assert isinstance(only.value, tree.Stored)  # noqa: S101 - planning.by_period makes it of a stored column
    day, kind = tree.Name(only.value.name, BASE), only.line
    parts = []
    for low, high in only.intervals:
        ends = ((low, ">=", ">"), (high, "<", "<="))
        parts.append(tuple(tree.Compared(day, (o, c)[end[1]], placed(kind, end[0])) for end, o, c in ends if end))
    return tree.Some(tuple(map(tree.Every, parts)))


def _units(units: Units) -> Select:
    """One row for each unit: its values computed once a row, added up, and held to what the plan relies on."""
    unit = units.of.unit
    assert unit is not None  # noqa: S101 - held where it is made
    values = [read_once(column.value, column.each, f"v{at}") for at, column in enumerate(units.columns)]
    keys = {at: read_once(*column.by, f"k{at}") for at, column in enumerate(units.columns) if column.by is not None}
    flags: dict[tree.Test, str] = {}
    tests = [*([holds(KEPT, BASE)] if units.of.conditional else []), *([] if units.where is None else [units.where])]
    kept_rows = [_flagged(test, flags) for test in tests]
    filters = [[] if column.where is None else [_flagged(column.where, flags)] for column in units.columns]
    keyed_by = [column.by[0] for column in units.columns if column.by is not None]
    keyed_by += [] if units.along is None else [units.along.value]
    keyed_by += [value for _, value, _ in units.keys]
    read = (*(column.value for column in units.columns), *keyed_by, *flags)
    used = [part for node in read for part in tree.stored(node)]
    beside: list[Column] = [(UNIT, _key(unit)), *((name, tree.Truth(test)) for test, name in flags.items())]
    groups = [read_once(value, line, f"g{at}") for at, (_, value, line) in enumerate(units.keys)]
    once = [*values, *keys.values(), *([] if units.along is None else [_place(units.along)]), *groups]
    rows = values_of(once, joined(units.of, [part for part in used if part.source]), *beside)
    aggregates = []
    for at, (value, column) in enumerate(zip(values, units.columns, strict=True)):
        aggregate = _aggregate(column, value.name, keys.get(at), [*kept_rows, *filters[at]])
        aggregates.append(read_once(aggregate, column.line, column.name))
    if units.along is not None:
        return _along(units, units.along, rows, aggregates, tree.Every(tuple(kept_rows)))
    truth = tree.Truth(tree.Every(tuple(kept_rows)))
    flag = ((KEPT, tree.bare("min", truth, type="INTEGER")),) if tests else ()
    lines = (line for *_, line in units.keys)
    by = [(group.name, _comparable(group, line)) for group, line in zip(groups, lines, strict=True)]
    made = ((column.name, column.first) for column in aggregates)
    grouped = Select(((UNIT, tree.Name(UNIT)), *by, *made, *flag), rows, group_by=1 + len(by))
    columns = ((column.name, column.then or tree.Name(column.name)) for column in aggregates)
    whole = Select(((units.unit, tree.Name(UNIT)), *columns, *same(*(name for name, _ in flag))), grouped, alias=BASE)
    if units.having is None:
        return whole
    flags = {}
    both = tree.Every(tuple(_flagged(test, flags) for test in (*([holds(KEPT, BASE)] if flag else []), units.having)))
    names = same(units.unit, *(column.name for column in aggregates))
    flagged = Select((*names, *((name, tree.Truth(test)) for test, name in flags.items())), whole, alias=BASE)
    return Select((*names, (KEPT, tree.Truth(both))), flagged, alias=BASE)


def _place(along: Along) -> Once:
    return read_once(along.value, along.line, "v")


def _along(units: Units, along: Along, rows: Select, aggregates: Sequence[Once], condition: tree.Test) -> Select:
    """One row for each unit and value, NULL where the row does not count; its columns over all values from it on."""
    unit, place = tree.Name(UNIT), tree.Name(along.name)
    key: Column = (along.name, tree.Guarded(condition, tree.Name(_place(along).name)))
    each = Select(((UNIT, unit), key, *((column.name, column.first) for column in aggregates)), rows, group_by=2)
    columns = [
        (
            column.name,
            tree.Window(
                made.function, (tree.Name(column.name),), (unit,), (place,), made.line.type, (0,) * along.upwards
            ),
        )
        for column, made in zip(aggregates, units.columns, strict=True)
    ]
    return Select(((units.unit, unit), *same(along.name), *columns), each, alias=BASE)


def _flagged(test: tree.Test, flags: dict[tree.Test, str]) -> tree.Test:
    """A condition over columns, one for each comparison in it, whose names by comparison go to ``flags``.

    In one expression DuckDB would leave out what ``ward = 'b' AND ...`` has beside a comparison that its statistics
    know to be FALSE for all rows. TRUE where the condition is, as AND and OR of what holds are.
    """
    if isinstance(test, tree.Every | tree.Some):
        return replace(test, tests=tuple(_flagged(part, flags) for part in test.tests))
    return holds(flags.setdefault(test, f"dpsql_w{len(flags)}"))


def holds(flag: str, source: str = "") -> tree.Compared:
    """What the column ``flag`` is the ``Truth`` of is TRUE."""
    return tree.Compared(tree.Name(flag, source), "=", tree.whole(0))


def _aggregate(column: OfUnit, name: str, key: Once | None, conditions: Sequence[tree.Test]) -> tree.Value:
    """The function of a column over its values, called ``name``, in the rows where all ``conditions`` hold."""
    value: tree.Value = tree.Name(name)
    given = tree.Guarded(tree.Every(tuple(conditions)), value) if conditions else value
    if column.function == "distinct":
        distinct = tree.Binary(given) if column.each.kind == "text" else given
        return tree.bare("count", tree.Distinct(distinct))
    if key is None:
        return tree.bare(column.function, given)
    # Minus zero equals zero, and only its sign tells them apart.
    sign = [tree.bare("signbit", value, type="BOOLEAN")] if column.each.kind == "real" else []
    place = tree.bare("row", tree.Name(key.name), value, *sign)
    has_key = tree.Every((*conditions, tree.IsNull(tree.Name(key.name), negated=True)))
    return tree.bare(column.function, given, tree.Guarded(has_key, place))


def _unit_pair(join: Join) -> tuple[tuple[tree.Stored, tree.Stored], ...]:
    """The units that must be equal beside the key, unless the key holds them."""
    return (join.unit,) if join.unit is not None and join.unit not in join.pairs else ()


def _rights(join: Join) -> tuple[tree.Stored, ...]:
    """The columns of the joined rows that say which is found."""
    near = () if join.nearest is None else tree.stored(join.nearest.left)
    return (*(right for _, right in (*join.pairs, *_unit_pair(join))), *near)


def _one_a_key(join: Join, columns: Sequence[tree.Stored]) -> Select:
    """The joined table with one row for each key (and unit), and the flag that says that a row was found."""
    stored = [column for column in columns if column.name != MATCHED]
    listed = (*same(*(column.name for column in stored)), (MATCHED, tree.Constant(True, "BOOLEAN")))
    if join.nearest is not None and join.of is not None:
        return Select(listed, _units(join.of), alias=join.name)
    key = [right for _, right in (*join.pairs, *_unit_pair(join))]
    order = _ordered(join.first, join.order, stored, key)
    named: list[Column] = [(column.name, tree.Name(column.name, BASE)) for column in stored]
    if join.of is not None and join.of.conditional:
        # No key equals NULL, so that nothing finds a row that does not count.
        named = [(name, tree.Guarded(holds(KEPT, BASE), value)) for name, value in named]
    rows = _first_of(named, Table(join.table) if join.of is None else _units(join.of), key, order)
    return replace(rows, columns=listed, alias=join.name)


def _bare(column: tree.Stored) -> tree.Stored:
    return tree.Stored(column.name, column.type)


def _order(column: tree.Stored) -> list[tree.Value]:
    """What orders a column of a joined table, so that ties are equal in every way that a scan could see."""
    if column_type(column.type).kind == "float":
        name = tree.Name(column.name, BASE)
        return [name, tree.bare("signbit", name, type="BOOLEAN")]
    return [_key(_bare(column))]


def _key(column: tree.Stored, other: tree.Stored | None = None) -> tree.Value:
    """A column as a key: text in binary order; whole numbers of two types in one that holds both."""
    if column.name == EVERY and not column.source:
        return tree.Constant(True, "BOOLEAN")
    name = tree.Name(column.name, column.source or BASE)
    type_ = column_type(column.type)
    if type_.kind == "text":
        return tree.Binary(tree.Cast(name, "VARCHAR", bare=True) if type_.name == "ENUM" else name)
    if type_.kind == "integer" and other is not None and column_type(other.type).name != type_.name:
        wide = {type_.name, column_type(other.type).name} & {"UBIGINT", "HUGEINT"}
        return tree.Cast(name, "HUGEINT" if wide else "BIGINT", bare=True)
    return name
