"""The numbers of a statement as row functions: what each released row, and each declared combination, adds to them.

An output of group g is sum_i phi_g(row i), phi_g(v) = sum over its terms of coefficient * [condition(v)] * [v in g] *
(1, or the summed column). All terms, conditions and groups are functions of the regions of a few axes, and of what a
row adds to a few sums (``dpsql.workloads.expr.regions``, ``measures``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.workloads.expr.batch import Query, Table
from dpsql.workloads.expr.conditions import And, Atom, Condition, Constant, LineAtom, OpaqueAtom, atoms, conjunction
from dpsql.workloads.expr.measures import Measure
from dpsql.workloads.expr.regions import AxisTruths, BoolArray, IntArray, KeyDomain, LineAxis, OpaqueAxis
from dpsql.workloads.expr.terms import Measures, axes_of, case_groups, keys_of


@dataclass(frozen=True)
class Part:
    """One term of an output: ``coefficient`` where condition ``condition`` holds, times a measure if there is one."""

    output: int
    coefficient: float
    condition: int
    measure: int | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """A query's row functions: parts over ``conditions``, groups over keys and cases, by numbered axes and measures.

    ``keys``: the axis and the number of groups of each plain key, in order. ``cases``: for each combination of groups
    that are conditions, the numbers of these conditions, and the row of each label over the plain keys.
    """

    query: Query
    table: Table
    conditions: tuple[Condition, ...]
    parts: tuple[Part, ...]
    axes: Mapping[int, AxisTruths] = field(repr=False)
    measures: Mapping[int, Measure] = field(repr=False)
    keys: tuple[tuple[int, int], ...]
    cases: tuple[tuple[tuple[int, ...], IntArray], ...] = field(repr=False)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.query.rows


def shape_of(query: Query, table: Table) -> Shape:
    """The row functions of one query over one table. Raises PolicyError where a sum has no usable bounds."""
    held = Measures(table)
    conditions: dict[Condition, int] = {}

    def number(condition: Condition) -> int:
        return conditions.setdefault(condition, len(conditions))

    parts = []
    for at, output in enumerate(query.outputs):
        for term in output.terms:
            measure, known = held.of(term), held.not_null(term)
            condition = term.condition if known is None else conjunction(term.condition, known)
            place = None if measure is None else held.place(measure) - 1
            parts.append(Part(at, float(term.coefficient), number(condition), place))
    cases = tuple((tuple(number(c) for c in chosen), rows) for chosen, rows in case_groups(query))
    keys = keys_of([query])
    axes = dict(enumerate(axes_of(table, conditions, keys)))
    place_of = {truths.axis.column: n for n, truths in axes.items() if isinstance(truths.axis, LineAxis)}
    plain = tuple((place_of[key.column], len(key)) for key in query.keys if isinstance(key, KeyDomain))
    measures = dict(enumerate(held.found.values()))
    return Shape(query, table, tuple(conditions), tuple(parts), axes, measures, plain, cases)


@dataclass(frozen=True, eq=False)
class Sample:
    """Weighted points: which conditions hold, the label over plain keys (-1: no group), z of each measure, the class.

    ``weight`` (l,) counts rows, or is a part of the whole domain (1 over each class). ``kind`` (l,) is which class of
    public values a point is of.
    """

    weight: Floats
    kind: IntArray
    holds: tuple[BoolArray, ...]
    label: IntArray
    sums: Mapping[int, Floats]


def sampled(
    shape: Shape,
    regions: Mapping[int, IntArray],
    sums: Mapping[int, IntArray],
    weight: Floats | IntArray,
    kind: IntArray,
) -> Sample:
    """The sample of points given by the region of every axis and u of every measure."""
    size = len(kind)
    alive = reduce(np.logical_and, (held >= 0 for held in regions.values()), np.ones(size, dtype=bool))
    memo: dict[Atom, BoolArray] = {}
    number = _axis_of(shape)

    def truth(atom: Atom) -> BoolArray:
        if atom not in memo:
            at = number[atom.column if isinstance(atom, LineAtom) else atom.predicate]
            memo[atom] = np.append(shape.axes[at].truth(atom), False)[regions[at]]
        return memo[atom]

    def holds(condition: Condition) -> BoolArray:
        if isinstance(condition, Constant):
            return np.full(size, condition.truth)
        if isinstance(condition, LineAtom | OpaqueAtom):
            return truth(condition)
        join = np.logical_and if isinstance(condition, And) else np.logical_or
        return reduce(join, (holds(part) for part in condition.operands))

    label = np.zeros(size, dtype=np.int64)
    for at, groups in shape.keys:
        key = np.append(shape.axes[at].key_of_region, -1)[regions[at]]  # type: ignore[arg-type]
        alive &= key >= 0
        label = label * groups + key
    label[~alive] = -1
    z = {n: centred(shape.measures[n], held) for n, held in sums.items()}
    weights = np.asarray(weight, dtype=np.float64)
    return Sample(weights, kind, tuple(holds(c) for c in shape.conditions), label, z)


def centred(measure: Measure, u: IntArray) -> Floats:
    """What a row adds to the sum: mid + half (u - steps) / steps, the clamped value itself (or its square)."""
    if not measure.steps:
        return np.full(len(u), float(measure.mid))
    return float(measure.mid) + float(measure.half) * ((u - measure.steps) / measure.steps)


def _axis_of(shape: Shape) -> dict[object, int]:
    return {
        truths.axis.predicate if isinstance(truths.axis, OpaqueAxis) else truths.axis.column: number
        for number, truths in shape.axes.items()
    }


def atom_axes(shape: Shape) -> dict[Atom, int]:
    """The axis of every atom of the conditions."""
    number = _axis_of(shape)
    return {
        atom: number[atom.column if isinstance(atom, LineAtom) else atom.predicate]
        for condition in shape.conditions
        for atom in atoms(condition)
    }


@dataclass(frozen=True, eq=False)
class Entries:
    """phi of a sample, group by group: entry e is a point of class ``kind[e]`` in group ``group[e]``, with its weight.

    It adds ``phi[o][e]`` to output o.
    """

    weight: Floats
    kind: IntArray
    group: IntArray
    phi: tuple[Floats, ...]


def entries(shape: Shape, sample: Sample) -> Entries:
    """All (point, group) pairs of a sample; groups may overlap."""
    points, groups = [], []
    for chosen, rows in shape.cases:
        inside = sample.label >= 0
        for condition in chosen:
            inside = inside & sample.holds[condition]
        found = np.flatnonzero(inside)
        points.append(found)
        groups.append(np.asarray(rows).ravel()[sample.label[found]])
    point = np.concatenate(points)
    phi = [np.zeros(len(point)) for _ in shape.query.outputs]
    for part in shape.parts:
        value = np.asarray(part.coefficient * sample.holds[part.condition][point], dtype=np.float64)
        if part.measure is not None:
            value = value * sample.sums[part.measure][point]
        phi[part.output] += value
    return Entries(sample.weight[point], sample.kind[point], np.concatenate(groups), tuple(phi))
