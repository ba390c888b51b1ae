"""Conditions: two-valued Boolean combinations of total, row-local atoms.

SQL's logic has three values, but a row counts only where its condition is TRUE. For every
SQL expression e the front end therefore derives two two-valued conditions, "e is TRUE" and
"e is FALSE"; e is NULL where neither holds. NOT swaps the pair, AND and OR combine it by
Kleene's rules, so that nothing after this needs a third value.

Conditions are frozen, hashable and in negation normal form: only atoms can be negated, and
a negated atom is an atom again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpsql.workloads.expr.lines import Interval


@dataclass(frozen=True)
class Constant:
    """A condition that holds for every row or for none."""

    truth: bool


TRUE = Constant(True)
FALSE = Constant(False)


@dataclass(frozen=True)
class LineAtom:
    """The column's value lies in one of ``intervals`` (disjoint, ascending), or is NULL where ``on_null``."""

    column: str
    intervals: tuple[Interval, ...]
    on_null: bool = False


@dataclass(frozen=True)
class Like:
    """The predicate ``column LIKE pattern``; it is opaque: its truth is an axis of its own."""

    column: str
    pattern: str


@dataclass(frozen=True)
class Compare:
    """The predicate ``left operator right`` over two columns of one line; it is opaque."""

    left: str
    operator: str
    right: str


Predicate = Like | Compare


@dataclass(frozen=True)
class OpaqueAtom:
    """The truth of ``predicate`` is one of ``truths`` (of True, False and None for NULL)."""

    predicate: Predicate
    truths: frozenset[bool | None]


Atom = LineAtom | OpaqueAtom


@dataclass(frozen=True)
class And:
    operands: tuple[Condition, ...]


@dataclass(frozen=True)
class Or:
    operands: tuple[Condition, ...]


Condition = Constant | LineAtom | OpaqueAtom | And | Or


def conjunction(*operands: Condition) -> Condition:
    """AND of any number of conditions, flattened and folded; TRUE over nothing."""
    return _combine(operands, absorbing=FALSE, neutral=TRUE, node=And)


def disjunction(*operands: Condition) -> Condition:
    """OR of any number of conditions, flattened and folded; FALSE over nothing."""
    return _combine(operands, absorbing=TRUE, neutral=FALSE, node=Or)


def _combine(
    operands: tuple[Condition, ...], absorbing: Constant, neutral: Constant, node: type[And] | type[Or]
) -> Condition:
    kept: dict[Condition, None] = {}
    for operand in operands:
        for part in operand.operands if isinstance(operand, node) else (operand,):
            if part == absorbing:
                return absorbing
            if part != neutral:
                kept[part] = None
    if not kept:
        return neutral
    if len(kept) == 1:
        return next(iter(kept))
    return node(tuple(kept))


def gather(node: type[And] | type[Or], *operands: Condition) -> Condition:
    """AND or OR of the conditions, with all atoms over one column made into one.

    A long chain over one column (a = 1 OR a = 2 OR ...) becomes one set of intervals, so that its cost
    is that of a sort.
    """
    combine = conjunction if node is And else disjunction
    flat = combine(*operands)
    if not isinstance(flat, node):
        return flat
    by_column: dict[str, list[LineAtom]] = {}
    for part in flat.operands:
        if isinstance(part, LineAtom):
            by_column.setdefault(part.column, []).append(part)
    if all(len(found) == 1 for found in by_column.values()):
        return flat
    merged: list[Condition] = []
    for part in flat.operands:
        if not isinstance(part, LineAtom):
            merged.append(part)
        elif found := by_column.pop(part.column, []):
            merged.append(_one_atom(node, found))
    return combine(*merged)


def _one_atom(node: type[And] | type[Or], parts: list[LineAtom]) -> Condition:
    if len(parts) == 1:
        return parts[0]
    on_null = [atom.on_null for atom in parts]
    if node is Or:
        every = union([interval for atom in parts for interval in atom.intervals])
        return _line_atom(parts[0].column, every, any(on_null))
    inside = [atom for atom in parts if atom.intervals != ((None, None),)]
    if len(inside) < 2:  # IS NOT NULL beside one other, as for a sum in each of many groups
        return _line_atom(parts[0].column, inside[0].intervals if inside else ((None, None),), all(on_null))
    # The intersection is what no complement covers.
    rest = union([interval for atom in parts for interval in complement(atom.intervals)])
    return _line_atom(parts[0].column, complement(rest), all(on_null))


def _line_atom(column: str, intervals: tuple[Interval, ...], on_null: bool) -> Condition:
    if not intervals and not on_null:
        return FALSE
    return TRUE if on_null and intervals == ((None, None),) else LineAtom(column, intervals, on_null)


def negate(condition: Condition) -> Condition:
    """The rows for which ``condition`` does not hold (De Morgan, down to the atoms)."""
    if isinstance(condition, Constant):
        return Constant(not condition.truth)
    if isinstance(condition, LineAtom):
        return LineAtom(condition.column, complement(condition.intervals), not condition.on_null)
    if isinstance(condition, OpaqueAtom):
        return OpaqueAtom(condition.predicate, frozenset({True, False, None}) - condition.truths)
    if isinstance(condition, And):
        return disjunction(*(negate(part) for part in condition.operands))
    return conjunction(*(negate(part) for part in condition.operands))


def complement(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """All of the line that lies in none of the disjoint, ascending ``intervals``."""
    rest: list[Interval] = []
    start = None
    for number, (low, high) in enumerate(intervals):
        if low is not None and (number > 0 or low != start):
            rest.append((start, low))
        if high is None:
            return tuple(rest)
        start = high
    rest.append((start, None))
    return tuple(rest)


def union(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Disjoint, ascending intervals that cover the same values."""
    merged: list[Interval] = []
    for low, high in sorted(intervals, key=lambda i: (i[0] is not None, i[0] or (0, 0))):
        if merged and (merged[-1][1] is None or low is None or low <= merged[-1][1]):
            last = merged[-1]
            if last[1] is not None and (high is None or high > last[1]):
                merged[-1] = (last[0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def atoms(condition: Condition) -> Iterator[Atom]:
    """Every atom of the condition, repeats included."""
    stack = [condition]
    while stack:
        node = stack.pop()
        if isinstance(node, LineAtom | OpaqueAtom):
            yield node
        elif isinstance(node, And | Or):
            stack.extend(node.operands)


def substitute(condition: Condition, truths: Mapping[Atom, bool]) -> Condition:
    """The condition with the known atoms replaced by their truth, folded."""
    if isinstance(condition, LineAtom | OpaqueAtom):
        truth = truths.get(condition)
        return condition if truth is None else Constant(truth)
    if isinstance(condition, And):
        return conjunction(*(substitute(part, truths) for part in condition.operands))
    if isinstance(condition, Or):
        return disjunction(*(substitute(part, truths) for part in condition.operands))
    return condition
