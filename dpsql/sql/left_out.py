"""Which rows the groups of a result leave out, by the policy and the statement alone: why totals may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpsql.sql.outer.answers import Answer
from dpsql.workload.expr.batch import CaseKey, Core, Key, Table
from dpsql.workload.expr.condition_text import condition_text
from dpsql.workload.expr.conditions import LineAtom, Or, complement, gather, union
from dpsql.workload.expr.regions import KeyDomain

_NAMED = 4  # results that a note names


def left_out_notes(answers: Sequence[Answer], tables: Mapping[str, Table]) -> Iterator[str]:
    """A note a table, where its rows are grouped in ways that leave out different ones.

    What WHERE leaves out is in the statement for everybody to read, and is not repeated. Groups by conditions over
    several columns are not looked at.
    """
    by_table: dict[str, dict[str, frozenset[str]]] = {}
    for answer in answers:
        for core in answer.cores:
            name = core.queries[0].table
            by_table.setdefault(name, {})[answer.name] = frozenset(_left_out(core, tables[name]))
    for found in by_table.values():
        if len(set(found.values())) < 2:
            continue
        said = []
        for rows in sorted(frozenset().union(*found.values())):
            results = [result for result, texts in found.items() if rows in texts]
            more = f" and {len(results) - _NAMED} more" if len(results) > _NAMED else ""
            said.append(f"{rows} (in {', '.join(results[:_NAMED])}{more})")
        yield f"totals may differ, as rows have no group: {'; '.join(said)}; other = true in the policy gives them one"


def _left_out(core: Core, table: Table) -> Iterator[str]:
    for key in core.keys:
        covered = _covered(key)
        if covered is None:
            continue
        column = next(held for held in table.columns.values() if held.name == covered.column)
        nulls = not (covered.on_null or column.never_null or not column.policy.nulls)
        clipped = (column.line.clip(interval) for interval in complement(covered.intervals))
        rest = tuple(interval for interval in clipped if interval is not None)
        if not rest and not nulls:
            continue
        if column.line.ordered and len(rest) <= 2:  # below and above
            yield condition_text(LineAtom(column.name, rest, nulls), {column.name: column.line})
        else:
            yield f"undeclared {column.name}"


def _covered(key: Key) -> LineAtom | None:
    """The values of one column that have a group; None where all have one, or groups are not those of one column."""
    if isinstance(key, KeyDomain):
        points = union([point for point in key.points if point is not None])
        return None if key.other else LineAtom(key.column, points, key.nulls)
    if isinstance(key, CaseKey):
        every = gather(Or, *key.conditions)
        return every if isinstance(every, LineAtom) else None
    return None
