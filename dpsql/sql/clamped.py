"""Conditions that admit values outside of a sum's declared bounds, where each counts as the nearest bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpsql.common.notes import BIAS, Note
from dpsql.sql.outer.answers import Answer
from dpsql.workloads.expr.batch import Column, Table, Term, constant
from dpsql.workloads.expr.condition_text import condition_text
from dpsql.workloads.expr.conditions import And, LineAtom, complement, gather


def clamped_notes(answers: Sequence[Answer], tables: Mapping[str, Table]) -> Iterator[Note]:
    """Notes on SUM, AVG and their like under a condition on the same column that contradicts the column's bounds.

    It does where no value strictly between the bounds satisfies it, or where an end that it names lies outside of
    them. Bounds and condition are public. Sums of expressions are not looked at.
    """
    for answer in answers:
        for core in answer.cores:
            for query in core.queries:
                columns = {column.name: column for column in tables[query.table].columns.values()}
                for term in (term for output in query.outputs for term in output.terms):
                    if term.column is not None:
                        yield from _notes(term, columns[term.column])


def _notes(term: Term, column: Column) -> Iterator[Note]:
    line, lower, upper = column.line, column.policy.lower, column.policy.upper
    if column.value is not None or column.line.kind == "grid" or lower is None or upper is None:
        return
    first, last = line.place(constant(lower)), line.place(constant(upper))
    bounds, between = (line.below(first), line.above(last)), (line.above(first), line.below(last))
    for atom in term.condition.operands if isinstance(term.condition, And) else [term.condition]:
        if not isinstance(atom, LineAtom) or atom.column != column.name or not atom.intervals:
            continue
        beyond = gather(And, atom, LineAtom(column.name, complement((bounds,))))
        inside = between[0] < between[1] and _some(gather(And, atom, LineAtom(column.name, (between,))))
        low, high = atom.intervals[0][0], atom.intervals[-1][1]
        names_an_end = (low is not None and low < bounds[0]) or (high is not None and high > bounds[1])
        if _some(beyond) and (names_an_end or not inside):
            rows = condition_text(beyond, {column.name: line})
            of = f"{column.policy.where} in the policy" if column.policy.declared else "max_rows_per_unit"
            yield Note(
                f"rows with {rows} enter sums and averages of {column.name} as the nearest of its bounds, {lower} and "
                f"{upper}; widen {of} if these values are meant",
                BIAS,
            )


def _some(condition: object) -> bool:
    return isinstance(condition, LineAtom) and bool(condition.intervals)
