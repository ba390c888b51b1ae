"""The FROM clause of a private scan: joins that find one row at most, and truncation to k rows a unit.

What must hold is proved in ``dpsql.workload.expr.rows``; that it is what this text does:

- A join reads ``(SELECT ..., row_number() OVER (PARTITION BY key [, unit] ORDER BY first, used) AS place)
  WHERE place = 1``, so that a key has one row at most, which depends on the rows of that key (and unit) alone.
  ORDER BY compares every column that the scan uses, and ties are equal in each: whichever row DuckDB takes,
  the scan sees the same. Text is compared in binary order, minus zero apart from zero, NULL comes last,
  whatever the connection's settings say.
- LEFT JOINs to such tables keep each row of the base as exactly one row.
- Truncation works on what the scan will add up, not on raw values: ``row_number() OVER (PARTITION BY unit
  ORDER BY hash, regions, steps) <= k`` over integers. Only rows of one unit stand in its partition, ties are equal
  in all that is counted or summed, so the rows that count are a function of the unit's own rows, and a unit
  with at most k rows loses none. The hash is over the unit too, so that no cell is favoured for all units.
  Where columns of the rows are released as they are, ``public``, these choose first: ORDER BY hash(unit, public),
  public, and only then the rest. Which public values remain is then a function of public values alone.
- Caps come first: at most r of a unit's rows in each group, ``row_number() OVER (PARTITION BY unit, group ORDER BY as
  above) <= r``, then the rows of at most g groups, ``dense_rank() OVER (PARTITION BY unit ORDER BY hash(unit, group),
  group) <= g``. Each step looks at what the step before left of the unit's own rows, and takes rows away only.
- Rows that no query of the batch counts come last in every order, so that they displace none that counts. Which rows
  these are depends on the row and the batch alone.
- Distinct sources keep one row for each pair of a unit and a cell, and at most k pairs a unit.

NULL is a unit like any other. There is no condition on a row's values anywhere: the two comparisons of a place
are the only ones. All functions are named in ``system.main``; OVER, COLLATE and comparisons are none that a
macro could replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.engines.base import BASE
from dpsql.policy.types import column_type
from dpsql.quoting import identifier
from dpsql.workload.expr.rows import MATCHED, Join, RowSource
from dpsql.workload.expr.value_sql import VALUES, Once
from dpsql.workload.expr.values import Stored

UNIT, PLACE, LAST, BEST = "dpsql_unit", "dpsql_place", "dpsql_last", "dpsql_best"

References = Mapping[str, str]
"""How the engine writes each table that the scan reads, by the policy's name of it."""


def rows_text(
    source: RowSource,
    used: Iterable[Stored],
    columns: Sequence[str],
    *,
    once: Sequence[Once] = (),
    cells: int | None = None,
    public: Sequence[str] = (),
    caps: Sequence[CapColumn] = (),
    counted: str | None = None,
) -> Callable[[References], str]:
    """The FROM clause of a scan over ``source``, once the engine says how it writes the tables.

    ``columns`` are "expression AS name" over the values ``once``, or without any over the base and the joins; total and
    of integer type, all that the scan will use; ``used`` are the stored columns of joins in them. The result has these
    columns; for a source without units one row for each row of the base, else at most ``limit`` for each unit.
    ``cells``: how many there are that a distinct source counts in, if known; a unit that cannot be in more than
    ``limit`` needs no truncation. ``public``: names among the columns that are released as they are, and choose which
    rows of a unit remain. ``caps`` bound the rows of a unit first. ``counted``: a condition over the names that is
    FALSE for rows that no query counts; NULL counts as FALSE.
    """
    names = [column.rpartition(" AS ")[2] for column in columns]
    wanted = tuple(used)

    def text(references: References) -> str:
        joined = joined_text(source, wanted, references)
        if source.unit is None:
            base = values_text(once, joined) if once else joined
            return f"(SELECT {', '.join(columns) or '1'} FROM {base})"  # noqa: S608
        unit = f"{_key(source.unit)} AS {identifier(UNIT)}"
        if once:
            joined, unit = values_text(once, joined, unit), identifier(UNIT)
        capped = [f"{cap.group} AS {cap.name}" for cap in caps]
        rows = f"(SELECT {', '.join([unit, *columns, *capped])} FROM {joined})"  # noqa: S608
        held = [*names, *(cap.name for cap in caps)]
        first: list[str] = []
        matters = f"{names[0]} >= 0" if source.distinct else counted
        if matters is not None and (caps or not source.distinct):
            marked = f"CASE WHEN {matters} THEN 0 ELSE 1 END AS {LAST}"
            rows = f"(SELECT {', '.join([identifier(UNIT), *held, marked])} FROM {rows})"  # noqa: S608
            first, held = [LAST], [*held, LAST]
        for cap in caps:
            rows = _capped(rows, held, first, cap)
        if source.distinct:
            # A row without a unit is no unit that could be counted: it goes to the cell -1, which is none.
            (cell,) = names
            owned = f"CASE WHEN {identifier(UNIT)} IS NULL THEN -1 ELSE {cell} END"
            rows = f"(SELECT {identifier(UNIT)}, {owned} AS {cell} FROM {rows} GROUP BY 1, 2)"  # noqa: S608
            if cells is not None and cells <= source.limit:
                return rows
            first = [f"({cell} < 0)"]
        elif public:
            first = [f"system.main.hash({', '.join([identifier(UNIT), *public])})", *public]
        return _truncated(rows, names, first, source.limit)

    return text


def values_text(once: Sequence[Once], rows: str, *beside: str) -> str:
    """The rows with their values by name, each computed once, and the columns ``beside`` ("expression AS name")."""
    first = [*beside, *(f"{value.first} AS {identifier(value.name)}" for value in once)]
    text = f"SELECT {', '.join(first)} FROM {rows}"  # noqa: S608
    if any(value.then for value in once):
        then = [column.rpartition(" AS ")[2] for column in beside]
        then += [f"{value.then or identifier(value.name)} AS {identifier(value.name)}" for value in once]
        text = f"SELECT {', '.join(then)} FROM ({text})"  # noqa: S608
    return f"({text}) AS {identifier(VALUES)}"


@dataclass(frozen=True)
class CapColumn:
    """A cap by what the scan computes: the expression ``group``, a whole number, under ``name``."""

    name: str
    group: str
    rows: int | None
    groups: int | None


def _capped(rows: str, names: Sequence[str], first: Sequence[str], cap: CapColumn) -> str:
    """At most ``cap.rows`` of the rows of each unit in each group, of at most ``cap.groups`` groups."""
    unit = identifier(UNIT)
    if cap.rows is not None:
        order = _ascending([*first, f"system.main.hash({', '.join([unit, *names])})", *names])
        place = f"system.main.row_number() OVER (PARTITION BY {unit}, {cap.name} ORDER BY {order})"
        rows = _within(rows, [unit, *names], place, cap.rows)
    if cap.groups is not None:
        best = [f"{BEST}_{cap.name}"] if first else []
        if first:
            least = f"system.main.min({first[0]}) OVER (PARTITION BY {unit}, {cap.name}) AS {best[0]}"
            rows = f"(SELECT {', '.join([unit, *names, least])} FROM {rows})"  # noqa: S608
        order = _ascending([*best, f"system.main.hash({unit}, {cap.name})", cap.name])
        place = f"system.main.dense_rank() OVER (PARTITION BY {unit} ORDER BY {order})"
        rows = _within(rows, [unit, *names], place, cap.groups)
    return rows


def _within(rows: str, names: Sequence[str], place: str, most: int) -> str:
    """The rows whose place is at most ``most``."""
    listed = ", ".join([*names, f"{place} AS {identifier(PLACE)}"])
    held = f"(SELECT {listed} FROM {rows})"  # noqa: S608
    return f"(SELECT {', '.join(names)} FROM {held} WHERE {identifier(PLACE)} <= {most})"  # noqa: S608


def _truncated(rows: str, names: Sequence[str], first: Sequence[str], limit: int) -> str:
    """At most ``limit`` of the rows of each unit: the least by ``first``, then by hash, then by value."""
    unit = identifier(UNIT)
    order = _ascending([*first, f"system.main.hash({', '.join([unit, *names])})", *names])
    place = f"system.main.row_number() OVER (PARTITION BY {unit} ORDER BY {order}) AS {identifier(PLACE)}"
    listed = ", ".join([*names, place])
    return f"(SELECT * FROM (SELECT {listed} FROM {rows}) WHERE {identifier(PLACE)} <= {limit})"  # noqa: S608


def joined_text(source: RowSource, used: Iterable[Stored], references: References) -> str:
    """The base and its joins: one row for each row of the base."""
    needed: dict[str, dict[Stored, None]] = {join.name: {} for join in source.joins}
    sides = [side for join in source.joins for pair in (*join.pairs, *_unit_pair(join)) for side in pair]
    for column in (*used, *sides, *((source.unit,) if source.unit else ())):
        if column.source:
            needed[column.source][column] = None
    parts = [f"{references[source.table]} AS {identifier(BASE)}"]
    for join in source.joins:
        on = [f"{_key(left, right)} = {_key(right, left)}" for left, right in join.pairs]
        on += [f"{_key(left, right)} IS NOT DISTINCT FROM {_key(right, left)}" for left, right in _unit_pair(join)]
        rows = _one_a_key(join, list(needed[join.name]), references[join.table])
        parts.append(f"LEFT JOIN {rows} AS {identifier(join.name)} ON {' AND '.join(on)}")
    return " ".join(parts)


def _unit_pair(join: Join) -> tuple[tuple[Stored, Stored], ...]:
    """The units that must be equal beside the key, unless the key holds them."""
    return (join.unit,) if join.unit is not None and join.unit not in join.pairs else ()


def _one_a_key(join: Join, columns: Sequence[Stored], reference: str) -> str:
    """The joined table with one row for each key (and unit), and the flag that says that a row was found."""
    stored = [column for column in columns if column.name != MATCHED]
    key = [right for _, right in (*join.pairs, *_unit_pair(join))]
    rest = [column for column in stored if column not in key and column not in join.first]
    order = [text for column in (*join.first, *rest, *key) for text in _order(column)]
    place = (
        f"system.main.row_number() OVER (PARTITION BY {', '.join(_key(_bare(c)) for c in key)} "
        f"ORDER BY {_ascending(order)}) AS {identifier(PLACE)}"
    )
    named = [f"{identifier(BASE)}.{identifier(c.name)} AS {identifier(c.name)}" for c in stored]
    inner = f"SELECT {', '.join([*named, place])} FROM {reference} AS {identifier(BASE)}"  # noqa: S608
    listed = ", ".join([*(identifier(column.name) for column in stored), f"TRUE AS {identifier(MATCHED)}"])
    return f"(SELECT {listed} FROM ({inner}) WHERE {identifier(PLACE)} = 1)"  # noqa: S608


def _bare(column: Stored) -> Stored:
    return Stored(column.name, column.type)


def _order(column: Stored) -> list[str]:
    """What orders a column of a joined table, so that ties are equal in every way that a scan could see."""
    name = f"{identifier(BASE)}.{identifier(column.name)}"
    kind = column_type(column.type).kind
    if kind == "float":
        return [name, f"system.main.signbit({name})"]
    return [_key(_bare(column))]


def _key(column: Stored, other: Stored | None = None) -> str:
    """A column as a key: text in binary order; whole numbers of two types in one that holds both."""
    name = f"{identifier(column.source or BASE)}.{identifier(column.name)}"
    found = column_type(column.type)
    if found.kind == "text":
        return f'({f"CAST({name} AS VARCHAR)" if found.name == "ENUM" else name} COLLATE "binary")'
    if found.kind == "integer" and other is not None and column_type(other.type).name != found.name:
        wide = {found.name, column_type(other.type).name} & {"UBIGINT", "HUGEINT"}
        return f"CAST({name} AS {'HUGEINT' if wide else 'BIGINT'})"
    return name


def _ascending(expressions: Iterable[str]) -> str:
    """ORDER BY that no setting of the connection turns round."""
    return ", ".join(f"{expression} ASC NULLS LAST" for expression in expressions)
