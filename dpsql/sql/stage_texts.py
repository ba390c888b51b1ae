"""What the last stages of a statement made, in words: joins, units, numbers and formulas."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.sql.outer.relation import Relation
from dpsql.sql.parse.stages import reached
from dpsql.sql.queries import Read
from dpsql.workloads.expr.batch import Core, Derived, Measured, Ranked, Table
from dpsql.workloads.expr.condition_text import output_text
from dpsql.workloads.expr.formulas import leaves
from dpsql.workloads.expr.rows import Join, RowSource


def reached_rows(table: Table) -> None:
    """The stages of joins and of units."""
    reached("join", lambda: _joins_text(table))
    reached("unit", lambda: _unit_text(table))


def reached_numbers(read: Read) -> None:
    """The stages of aggregates and of formulas."""
    reached("aggregate", lambda: _measured_text(read))
    reached("formula", lambda: _formulas_text(read))


def _joins_text(table: Table) -> str:
    """The rows that are counted, and what is joined to each."""
    source = table.source
    if source is None:
        return f"rows of {table.name}"
    base = f"rows of {source.table}" if source.of is None else f"one row for each {source.of.unit} of {source.table}"
    return "\n".join([base, *map(_joined, source.joins)])


def _joined(join: Join) -> str:
    pairs = [f"{_column(left)} = {_column(right)}" for left, right in (*join.pairs, *filter(None, (join.unit,)))]
    return f"each with at most one row of {join.table}, where {' AND '.join(pairs)}"


def _column(column: object) -> str:
    source, name = getattr(column, "source", ""), getattr(column, "name", "")
    return f"{source}.{name}" if source else str(name)


def _unit_text(table: Table) -> str:
    """Whose a row is, and how many of one unit count."""
    source = table.source
    if source is None or source.unit is None:
        return "each row is a unit of its own"
    return "\n".join([f"a row belongs to {_column(source.unit)}", *_limits(source)])


def _limits(source: RowSource) -> Iterator[str]:
    yield f"at most {source.limit:,} row{'' if source.limit == 1 else 's'} of one count"
    yield from (f"at most {cap.text}" for cap in source.caps)


def _measured_text(read: Read) -> str:
    """The numbers to be measured, core by core."""
    return "\n".join(line for core in read.cores for line in _measured(core, read))


def _measured(core: Core, read: Read) -> Iterator[str]:
    tables = {table.name: table for table in read.tables}
    keys = " and ".join(f"{key.name} ({len(key):,} groups)" for key in core.keys)
    yield f"by {keys}" if keys else "of all rows together"
    for number, (output, (query, _)) in enumerate(zip(core.outputs, core.places, strict=True)):
        table = tables[core.queries[query].table]
        lines = {column.name: column.line for column in table.columns.values()}
        yield f"  [{number + 1}] {output_text(output, lines)} of {table.name.partition(' #')[0]}"


def _formulas_text(read: Read) -> str:
    """What is worked out of the numbers, and the SQL over the noisy tables."""
    lines = [line for core in read.cores for line in _derived(core)]
    return "\n".join([*lines, *([] if read.outer is None else [_outer(read.outer)])]) or "nothing"


def _derived(core: Core) -> Iterator[str]:
    for column in core.columns:
        if isinstance(column, Derived):
            used = ", ".join(f"[{index + 1}]" for index in dict.fromkeys(leaves(column.formula)))
            yield f"{column.title or column.name} from {used}"
        elif isinstance(column, Ranked):
            first, last = column.prefixes[0] + 1, column.prefixes[-1] + 1
            yield f"{column.title or column.name} from the counts [{first}] to [{last}]"
        elif isinstance(column, Measured):
            yield f"{column.title or column.name} is [{column.output + 1}]"


def _outer(outer: Relation) -> str:
    return outer.sql(False)
