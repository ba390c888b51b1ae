"""Which rows results leave out, by the policy and the statements alone: why totals may differ, or be less than all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from dpsql.common.notes import BIAS, Note
from dpsql.sql.outer.answers import Answer
from dpsql.workloads.expr.batch import CaseKey, Column, Core, Key, Table, constant
from dpsql.workloads.expr.condition_text import condition_text
from dpsql.workloads.expr.conditions import (
    FALSE,
    And,
    Condition,
    Constant,
    LineAtom,
    Or,
    atoms,
    complement,
    gather,
    substitute,
    union,
)
from dpsql.workloads.expr.lines import Interval
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.terms import distinguished_columns
from dpsql.workloads.expr.within import Within

_NAMED = 4  # results that a note names
_MOST_ATOMS = 40  # of conditions of which it is tried whether they always hold


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
                said.append(f"{rows} (in {_named([result for result, texts in found.items() if rows in texts])})")
            texts = "; ".join(said)
            yield Note(
                f"totals may differ, as rows have no group: {texts}; other = true in the policy gives them one", BIAS
            )
        beyond = {result: frozenset(_beyond_limits(core, tables[name])) for result, core in cores}
        for rows, sure in sorted(frozenset().union(*beyond.values())):
            results = _named([result for result, texts in beyond.items() if (rows, sure) in texts])
            source = tables[name].source
            what = "units" if source is None or source.windows is None else "rows"
            yield Note(
                f"{what} of {tables[name].policy.name} with {rows} {'have' if sure else 'may have'} no group in "
                f"{results}, as groups are those of up to max_rows_per_unit rows; LEAST(...) or CASE WHEN ... ELSE ... "
                "gives them one",
                BIAS,
            )
        closed = _closed_for_others([core for _, core in cores], tables[name])
        if closed:
            columns = " or ".join([*closed[:_NAMED], *["..."] * (len(closed) > _NAMED)])
            yield Note(
                f"rows of {name} with a value of {columns} that the policy does not list count in no result, even if "
                "the result does not use the column; other = true in the policy would let them count",
                BIAS,
            )


def _named(results: Sequence[str]) -> str:
    more = f" and {len(results) - _NAMED} more" if len(results) > _NAMED else ""
    return f"{', '.join(results[:_NAMED])}{more}"


def _closed_for_others(cores: Sequence[Core], table: Table) -> list[str]:
    """Columns of a closed domain that some results of the table read and some do not."""
    read = [distinguished_columns(core.queries) for core in cores]
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
        if column.by_limit:
            continue  # ``_beyond_limits`` says it
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


def _beyond_limits(core: Core, table: Table) -> Iterator[tuple[str, bool]]:
    """What a unit can have beyond ``max_rows_per_unit`` rows and has no group then, for sure or perhaps."""
    for column in (one for one in table.columns.values() if one.by_limit):
        line, ends = column.line, [column.line.place(constant(end)) for end in column.ends]
        declared = line.below(ends[0]), line.above(ends[1])
        outside = [part for part in complement((declared,)) if column.ends[0] < 0 or part[0] is not None]
        for key in core.keys:
            groups = _grouped(key)
            read = [one for one in atoms(groups) if isinstance(one, LineAtom) and one.column == column.name]
            left: dict[bool, list[Interval]] = {True: [], False: []}
            for part in filter(None, map(line.clip, _pieces(outside, read))) if read else ():
                here = _on(groups, column.name, part)
                if _may_fail(here):
                    left[here == FALSE].append(part)
            conditions = [term.condition for query in core.queries for out in query.outputs for term in out.terms]
            for sure, intervals in left.items():
                rows = LineAtom(column.name, union(intervals))
                if intervals and not all(Within(condition).excludes(rows) for condition in conditions):
                    yield condition_text(rows, {column.name: line}), sure


def _grouped(key: Key) -> Condition:
    """Which rows have a group; FALSE where groups are none of values."""
    if isinstance(key, KeyDomain):
        points = union([point for point in key.points if point is not None])
        return LineAtom(key.column, complement(()) if key.other else points, key.nulls)
    return gather(Or, *key.conditions) if isinstance(key, CaseKey) else FALSE


def _may_fail(condition: Condition) -> bool:
    """Whether a row may not satisfy a condition; False where that is not tried."""
    if isinstance(condition, Constant):
        return not condition.truth
    found = list(atoms(condition))
    lines = [atom for atom in found if isinstance(atom, LineAtom)]
    if len(lines) < len(found) or len(found) > _MOST_ATOMS:
        return False
    name = lines[0].column
    held = [atom for atom in lines if atom.column == name]
    if _may_fail(substitute(condition, {atom: atom.on_null for atom in held})):
        return True
    return any(_may_fail(_on(condition, name, part)) for part in _pieces([(None, None)], held))


def _on(condition: Condition, column: str, part: Interval) -> Condition:
    """The condition where the column is within ``part``, which no atom of it cuts."""
    here = LineAtom(column, (part,))
    read = [atom for atom in atoms(condition) if isinstance(atom, LineAtom) and atom.column == column]
    return substitute(condition, {atom: gather(And, here, atom) != FALSE for atom in read})


def _pieces(parts: Sequence[Interval], read: Sequence[LineAtom]) -> Iterator[Interval]:
    """The parts, cut wherever an interval of an atom ends."""
    cuts = sorted({cut for atom in read for part in atom.intervals for cut in part if cut is not None})
    for low, high in parts:
        inner = [cut for cut in cuts if (low is None or low < cut) and (high is None or cut < high)]
        yield from pairwise([low, *inner, high])
