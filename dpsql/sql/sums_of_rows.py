"""A batch with sums of rows in the place of sums of what each unit adds, where it adds up the rows of a column anyway.

As ``SELECT SUM(cost), AVG(cost)``: AVG needs the sum of the rows, which SUM can share, or SUM is measured beside it
within its bound. Planning compares both. In both, each query has one number in each of the same groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpsql.common.notes import BIAS, Note
from dpsql.errors import listed
from dpsql.policy.values import fold
from dpsql.sql.aggregate.linear import BOUNDED
from dpsql.sql.outer.answers import Answer, Understood
from dpsql.workloads.expr.batch import Core, Query, Table


def sums_of_rows(understood: Understood) -> Understood | None:
    """The batch with sums of rows; None where it has no sum that another of its numbers has of the same rows."""
    tables = understood.tables
    if all(_added(table) is None for table in tables.values()):
        return None
    by_rows = {
        (query.table, fold(term.column))
        for query in understood.queries
        for output in query.outputs
        for term in output.terms
        if term.column is not None and _added(tables[query.table]) is None
    }
    of_rows: dict[str, tuple[str, str]] = {}  # by the table of sums: the table of rows and the summed column
    for query in understood.queries:
        column = _added(tables[query.table])
        if column is not None:
            rows = query.table.rpartition(f" by unit and {column} #")[0]
            if (rows, fold(column)) in by_rows:
                of_rows[query.table] = rows, column
    if not of_rows or any(core.minimum is not None for answer in understood.answers for core in answer.cores):
        return None
    answers = tuple(_answer(answer, of_rows) for answer in understood.answers)
    left = {name: table for name, table in tables.items() if name not in of_rows}
    bounded = any(_added(table) is not None for table in left.values())
    notes = [note for note in understood.notes if bounded or not note.endswith(BOUNDED)]
    sums = listed(sorted({f"SUM({column})" for _, column in of_rows.values()}))
    why = f"the batch has smaller errors without the bounds of at_most on {sums}, of which it adds up the rows, too"
    return replace(understood, answers=answers, tables=left, notes=(*notes, Note(why, BIAS)))


def _added(table: Table) -> str | None:
    """The column of which a table has what each unit adds."""
    source = table.source
    return None if source is None or source.added is None else source.added.row.column


def _answer(answer: Answer, of_rows: Mapping[str, tuple[str, str]]) -> Answer:
    return replace(answer, cores=tuple(_core(core, of_rows) for core in answer.cores))


def _core(core: Core, of_rows: Mapping[str, tuple[str, str]]) -> Core:
    return replace(core, queries=tuple(_query(query, of_rows) for query in core.queries))


def _query(query: Query, of_rows: Mapping[str, tuple[str, str]]) -> Query:
    if query.table not in of_rows:
        return query
    rows, column = of_rows[query.table]
    outputs = tuple(
        replace(output, terms=tuple(replace(term, column=column) for term in output.terms)) for output in query.outputs
    )
    return replace(query, table=rows, outputs=outputs)
