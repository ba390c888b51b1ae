"""The joint domain of a release as few weighted points, and the released rows beside it.

Estimators need sums of phi and of its squares over all combinations of declared values, for each row (C_phi of Wang,
Ying and Zhang 2015, Eq. 13, where phi may differ by row). They are never found by listing the domain:

- Columns that no expression of the statement reads together are independent under the uniform law of the domain.
  Each such *component* is listed by itself, and its combinations that no condition, group or sum tells apart are one
  point with a weight; a column that the statement does not name drops out.
- Points of different components are combined where there are few (`MOST`). Else one component after the other is
  worked in, and points of which the same conditions remain open are merged: a conjunction over thirty columns has two
  states at any time, however many combinations there are.
- Rows with public columns (ids, and what public tables say of them) have functions that differ by row. Rows whose
  public values the statement does not tell apart are one *class*, and each class has its own points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import SQLError
from dpsql.extensions.local.functions import Sample, Shape, atom_axes, centred, sampled
from dpsql.extensions.local.places import DistinctRows, Needs, Places, Values
from dpsql.workloads.expr.conditions import FALSE, TRUE, Atom, Condition, substitute
from dpsql.workloads.expr.measures import Measure
from dpsql.workloads.expr.regions import Axis, IntArray
from dpsql.workloads.expr.values import Stored

MOST = 4_000_000
"""The most points that are combined without merging."""

MOST_STATES = 20_000
"""The most open states while components are worked in."""


_Key: TypeAlias = tuple[str, int]
"""An axis ("a") or a measure ("u"), by its number."""

_Id: TypeAlias = tuple[object, ...]
"""The public values of a row."""


@dataclass(frozen=True, eq=False)
class Listed:
    """The released rows (``rows``, weights their numbers) and the domain (``domain``, weights of sum 1 a class).

    ``sizes`` (classes,): how many rows each class has.
    """

    rows: Sample
    domain: Sample
    sizes: IntArray


@dataclass(frozen=True, eq=False)
class _Component:
    """Columns read together: the points of each public id (``start[i] : start[i + 1]``) and their weights."""

    axes: tuple[int, ...]
    measures: tuple[int, ...]
    start: IntArray
    weight: Floats
    regions: Mapping[int, IntArray] = field(repr=False)
    sums: Mapping[int, IntArray] = field(repr=False)


@dataclass(frozen=True, eq=False)
class _Classes:
    """The classes of rows: the public regions and sums of each, the public ids that it has, and the columns beside."""

    shape: Shape
    fixed: Mapping[_Key, IntArray]
    ids: IntArray
    components: Sequence[_Component]

    @property
    def count(self) -> int:
        return len(self.ids)

    def points(self, component: _Component) -> IntArray:
        """Where each class finds its points of a component."""
        return self.ids if len(component.start) > 2 else np.zeros_like(self.ids)


def listed(shape: Shape, places: Places) -> Listed:
    """Rows and domain of a query. Raises SQLError where it tells too many combinations apart, or OTHER values."""
    axes = {n: truths.axis for n, truths in shape.axes.items()}
    needs: dict[_Key, Needs] = {}
    named: list[tuple[str, int, Axis | Measure]] = [("a", n, axis) for n, axis in axes.items()]
    named += [("u", n, measure) for n, measure in shape.measures.items()]
    for which, n, part in named:
        places.check_other(shape.table, part)
        needs[which, n] = places.needs(shape.table, part)
    mixed = list(dict.fromkeys(value for need in needs.values() if need.released for value in need.values))
    rows = places.rows(shape.table, axes, shape.measures, mixed)
    public = [key for key, need in needs.items() if not need.released]
    kind, classes = _classes(rows, public)
    first = np.zeros(classes, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]
    ids: dict[_Id, int] = {(): 0}
    id_of_row = np.zeros(max(1, len(kind)), dtype=np.int64)
    if mixed:
        id_of_row, ids = _numbered(rows.ids)
    fixed = {key: _column(rows, key)[first] for key in public}
    components = [_component(shape, places, group, needs, mixed, ids) for group in _groups(needs)]
    sizes = np.bincount(kind, weights=rows.count, minlength=classes).astype(np.int64)
    whole = sampled(shape, rows.regions, rows.sums, rows.count, kind)
    return Listed(whole, _domain(_Classes(shape, fixed, id_of_row[first], components)), sizes)


def _column(rows: DistinctRows, key: _Key) -> IntArray:
    return rows.regions[key[1]] if key[0] == "a" else rows.sums[key[1]]


def _classes(rows: DistinctRows, public: Sequence[_Key]) -> tuple[IntArray, int]:
    """The class of each row, by its public regions, sums and ids, and how many there are."""
    columns = [_column(rows, key) for key in public]
    if rows.ids:
        columns.append(_numbered(rows.ids)[0])
    if not columns:
        return np.zeros(len(rows.count), dtype=np.int64), 1
    _, kind = np.unique(np.stack([np.asarray(c, dtype=np.int64) for c in columns], axis=1), axis=0, return_inverse=True)
    kind = kind.ravel()
    return kind, int(kind.max()) + 1 if len(kind) else 0


def _numbered(ids: Sequence[Values], given: dict[_Id, int] | None = None) -> tuple[IntArray, dict[_Id, int]]:
    """A number for each combination of public values."""
    numbers = {} if given is None else given
    listed_ = [np.ma.array(column).tolist() for column in ids]
    found = [numbers.setdefault(key, len(numbers)) for key in zip(*listed_, strict=True)]
    return np.array(found, dtype=np.int64), numbers


def _groups(needs: Mapping[_Key, Needs]) -> Iterable[tuple[tuple[str, ...], list[_Key]]]:
    """Columns that are read together, each with the axes ("a") and measures ("u") over them."""
    groups: list[tuple[set[str], list[_Key]]] = []
    for key, need in needs.items():
        if not need.released:
            continue
        touched = [group for group in groups if group[0] & need.released]
        groups = [group for group in groups if not group[0] & need.released]
        names = set(need.released).union(*(group[0] for group in touched))
        groups.append((names, [*(k for group in touched for k in group[1]), key]))
    return [(tuple(sorted(names)), keys) for names, keys in groups]


def _component(
    shape: Shape,
    places: Places,
    group: tuple[tuple[str, ...], list[_Key]],
    needs: Mapping[_Key, Needs],
    mixed: Sequence[Stored],
    ids: dict[_Id, int],
) -> _Component:
    names, keys = group
    axes = tuple(n for kind, n in keys if kind == "a")
    measures = tuple(n for kind, n in keys if kind == "u")
    by_id = any(needs[key].ids for key in keys)
    found = places.combinations(
        shape.table,
        {n: shape.axes[n].axis for n in axes},
        {n: shape.measures[n] for n in measures},
        names,
        mixed if by_id else (),
    )
    number = np.zeros(len(found.count), dtype=np.int64)
    if by_id:
        number = _numbered(found.ids, ids)[0]
    order = np.argsort(number, kind="stable")
    count = len(ids) if by_id else 1
    start = np.searchsorted(number[order], np.arange(count + 1))
    total = np.bincount(number, weights=found.count, minlength=count)
    weight = found.count[order] / total[number[order]]
    return _Component(
        axes,
        measures,
        start,
        weight,
        {n: held[order] for n, held in found.regions.items()},
        {n: held[order] for n, held in found.sums.items()},
    )


def _domain(classes: _Classes) -> Sample:
    """The domain's points for every class."""
    total = np.ones(classes.count)
    for component in classes.components:
        total *= np.diff(component.start)[classes.points(component)]
    if total.sum() <= MOST:
        return _combined(classes)
    if classes.count > 64:
        raise SQLError(
            f"the statement tells {total.sum():,.0f} combinations of released and public values apart, more than "
            f"{MOST:,}; name fewer columns in one statement, or group public values more coarsely",
            code="too-large",
        )
    return _merged(classes)


def _combined(classes: _Classes) -> Sample:
    kind = np.arange(classes.count)
    weight = np.ones(classes.count)
    held = dict(classes.fixed)
    for component in classes.components:
        at = classes.points(component)[kind]
        count = np.diff(component.start)[at]
        repeated = np.repeat(np.arange(len(kind)), count)
        before = np.repeat(np.cumsum(count) - count, count)
        point = np.repeat(component.start[at], count) + np.arange(len(repeated)) - before
        kind, weight = kind[repeated], weight[repeated] * component.weight[point]
        held = {key: values[repeated] for key, values in held.items()}
        held |= {("a", n): component.regions[n][point] for n in component.axes}
        held |= {("u", n): component.sums[n][point] for n in component.measures}
    regions = {n: values for (which, n), values in held.items() if which == "a"}
    sums = {n: values for (which, n), values in held.items() if which == "u"}
    return sampled(classes.shape, regions, sums, weight, kind)


# -- merging what remains open -------------------------------------------------------------------

_State = tuple[tuple[Condition, ...], tuple[int, ...], tuple[int, ...]]
"""What remains of every condition; the group of each plain key (-2: not yet); u of each measure (-1: not yet)."""


def _merged(classes: _Classes) -> Sample:
    shape = classes.shape
    atoms_on: dict[int, list[Atom]] = {}
    for atom, axis in atom_axes(shape).items():
        atoms_on.setdefault(axis, []).append(atom)
    kinds: list[int] = []
    weights: list[float] = []
    states: list[_State] = []
    for kind in range(classes.count):
        open_: _State = (shape.conditions, (-2,) * len(shape.keys), (-1,) * len(shape.measures))
        here = {key: int(values[kind]) for key, values in classes.fixed.items()}
        begun = _stepped(shape, atoms_on, open_, here)
        reached: dict[_State, float] = {} if begun is None else {begun: 1.0}
        for component in classes.components:
            at = int(classes.points(component)[kind])
            points = range(int(component.start[at]), int(component.start[at + 1]))
            merged: dict[_State, float] = {}
            for point in points:
                said = {("a", n): int(component.regions[n][point]) for n in component.axes}
                said |= {("u", n): int(component.sums[n][point]) for n in component.measures}
                for state, weight in reached.items():
                    after = _stepped(shape, atoms_on, state, said)
                    if after is not None:
                        merged[after] = merged.get(after, 0.0) + weight * float(component.weight[point])
                if len(merged) > MOST_STATES:
                    raise SQLError(
                        f"the statement leaves more than {MOST_STATES:,} combinations of released columns open: name "
                        "fewer columns in one statement, or ask its parts one by one",
                        code="too-large",
                    )
            reached = merged
        kinds += [kind] * len(reached)
        states += list(reached)
        weights += list(reached.values())
    return _sample(shape, states, weights, kinds)


def _stepped(
    shape: Shape, atoms_on: Mapping[int, list[Atom]], state: _State, added: Mapping[_Key, int]
) -> _State | None:
    """The state with the ``added`` regions and sums; None where no group or no condition is left."""
    conditions, keys, sums = state
    known: dict[Atom, bool] = {}
    groups, values = list(keys), list(sums)
    for (which, n), value in added.items():
        if which == "u":
            values[n] = value
            continue
        if value < 0:
            return None
        known |= {atom: bool(shape.axes[n].truth(atom)[value]) for atom in atoms_on.get(n, ())}
        for place, (axis, _) in enumerate(shape.keys):
            if axis == n:
                groups[place] = int(shape.axes[n].key_of_region[value])  # type: ignore[index]
    left = tuple(substitute(condition, known) for condition in conditions)
    dead = all(left[part.condition] == FALSE for part in shape.parts)
    if dead or any(group == -1 for group in groups):
        return None
    # A sum that counts nowhere any more separates nothing.
    used = {part.measure for part in shape.parts if part.measure is not None and left[part.condition] != FALSE}
    kept = tuple(value if n in used else -1 for n, value in enumerate(values))
    return left, tuple(groups), kept


def _sample(shape: Shape, states: Sequence[_State], weights: Sequence[float], kinds: Sequence[int]) -> Sample:
    label = np.zeros(len(states), dtype=np.int64)
    for place, (_, groups) in enumerate(shape.keys):
        label = label * groups + np.array([keys[place] for _, keys, _ in states], dtype=np.int64)
    holds = tuple(
        np.array([left[at] == TRUE for left, _, _ in states], dtype=bool) for at in range(len(shape.conditions))
    )
    sums = {
        n: centred(measure, np.array([values[n] for _, _, values in states], dtype=np.int64))
        for n, measure in shape.measures.items()
    }
    return Sample(np.array(weights), np.array(kinds, dtype=np.int64), holds, label, sums)
