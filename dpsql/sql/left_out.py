"""Which rows results leave out, by the policy and the statements alone: why totals may differ, or be less than all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpsql.common.notes import BIAS, Note
from dpsql.sql.outer.answers import Answer
from dpsql.workloads.expr.batch import CaseKey, Column, Core, Key, Table, constant
from dpsql.workloads.expr.condition_text import condition_text
from dpsql.workloads.expr.conditions import LineAtom, Or, complement, gather, union
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.terms import told_apart

_NAMED = 4  # results that a note names


def left_out_notes(answers: Sequence[Answer], tables: Mapping[str, Table]) -> Iterator[Note]:
    """Notes on a table whose rows are grouped in ways that leave out different ones, or count in no result at all.

    What WHERE leaves out is in the statement for everybody to read, and is not repeated. Groups by conditions over
    several columns are not looked at.
    """
    by_table: dict[str, list[tuple[str, Core]]] = {}
    for answer in answers:
        for core in answer.cores:
            by_table.setdefault(core.queries[0].table, []).append((answer.name, core))
    for name, cores in by_table.items():
        found = {result: frozenset(_left_out(core, tables[name])) for result, core in cores}
        if len(set(found.values())) > 1:
            said = []
            for rows in sorted(frozenset().union(*found.values())):
                results = [result for result, texts in found.items() if rows in texts]
                more = f" and {len(results) - _NAMED} more" if len(results) > _NAMED else ""
                said.append(f"{rows} (in {', '.join(results[:_NAMED])}{more})")
            texts = "; ".join(said)
            yield Note(
                f"totals may differ, as rows have no group: {texts}; other = true in the policy gives them one", BIAS
            )
        closed = _closed_for_others([core for _, core in cores], tables[name])
        if closed:
            columns = " or ".join([*closed[:_NAMED], *["..."] * (len(closed) > _NAMED)])
            yield Note(
                f"rows of {name} with a value of {columns} that the policy does not list count in no result, even if "
                "the result does not use the column; other = true in the policy would let them count",
                BIAS,
            )


def _closed_for_others(cores: Sequence[Core], table: Table) -> list[str]:
    """Columns of a closed domain that some results of the table read and some do not."""
    read = [told_apart(core.queries) for core in cores]
    return [
        column.name
        for column in table.columns.values()
        if 0 < sum(column.name in names for names in read) < len(read) and _outside(column)
    ]


def _outside(column: Column) -> bool:
    """Whether values lie outside of what a closed column declares; only a policy's ``values`` close it."""
    if column.policy.values is None or column.policy.other:
        return False
    points = [column.line.point(constant(value)) for value in column.policy.values]
    declared = union([point for point in points if point is not None])
    return any(column.line.clip(interval) is not None for interval in complement(declared))


def _left_out(core: Core, table: Table) -> Iterator[str]:
    for key in core.keys:
        covered = _covered(key)
        if covered is None:
            continue
        column = next(held for held in table.columns.values() if held.name == covered.column)
        nulls = not (covered.on_null or column.never_null or not column.policy.nulls)
        clipped = (column.line.clip(interval) for interval in complement(covered.intervals))
        rest = tuple(interval for interval in clipped if interval is not None)
        if _outside(column):
            rest = ()  # no other result counts these rows either
        if not rest and not nulls:
            continue
        if column.line.ordered and len(rest) <= 2:  # below and above
            yield condition_text(LineAtom(column.name, rest, nulls), {column.name: column.line})
        else:
            yield f"other {column.name}"


def _covered(key: Key) -> LineAtom | None:
    """The values of one column that have a group; None where all have one, or groups are not those of one column."""
    if isinstance(key, KeyDomain):
        points = union([point for point in key.points if point is not None])
        return None if key.other else LineAtom(key.column, points, key.nulls)
    if isinstance(key, CaseKey):
        every = gather(Or, *key.conditions)
        return every if isinstance(every, LineAtom) else None
    return None
