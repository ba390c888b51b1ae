"""The columns of one private table as a release's tables of counts see them, and rows of regions that agree with these.

As noise leaves counts that no table has, rows are fitted to the nearest ones that a table could have
(``reconstruct.adaptive_marginals``). Post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import pi, prod, sqrt

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.common.quoting import free_name
from dpsql.errors import DataError
from dpsql.extensions.adaptive.adaptive_answers import MarginalModel, on_simplex
from dpsql.extensions.synthetic.released_counts import CountTable
from dpsql.extensions.synthetic.row_fit import Face, Target, fitted
from dpsql.extensions.synthetic.row_values import Axis, axis_of, type_of, values_of
from dpsql.reconstruct.possible_marginals import Axes
from dpsql.release import Result
from dpsql.release.columns import Coded
from dpsql.replicates.noise import Generator
from dpsql.sql.outer.answers import Understood
from dpsql.workloads.expr.batch import CaseKey, Column
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.values import Stored

MOST_WORK = 50_000_000
"""Additions of one pass over all marginals and those inside them; beyond, each is made possible by itself."""
_OF_NOISE = sqrt(2.0 / pi)  # mean distance of a normal number from its mean, in deviations


def usable(counts: Sequence[CountTable], batch: Understood) -> tuple[list[CountTable], list[str]]:
    """The tables whose keys are groups of stored columns, and why others are left out."""
    kept, why = [], []
    for count in counts:
        source = batch.tables[count.table].source
        if source is not None and source.of is not None:
            continue  # units by what their rows come to
        unclear = next((key.name for key in count.keys if _column(key, count, batch) is None), None)
        if unclear is not None:
            why.append(f"{count.result}: {unclear} is no set of groups of one stored column")
        elif count.keys:
            kept.append(count)
    return kept, why


def _column(key: KeyDomain | CaseKey, count: CountTable, batch: Understood) -> Column | None:
    """The stored column whose values a key groups."""
    name = next((atom.column for atom in key.atoms if atom is not None), None)
    found = None if name is None else batch.tables[count.table].columns.get(name.lower())
    if found is None or not found.line.ordered or found.line.kind == "grid":
        return None
    joined = found.value is not None
    return None if joined and not isinstance(found.value, Stored) else found


@dataclass(frozen=True, eq=False)
class TableModel:
    """The columns of one private table as its released tables of counts see them."""

    axes: tuple[Axis, ...]
    counts: tuple[CountTable, ...] = field(repr=False)
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, table: str, counts: Sequence[CountTable], batch: Understood) -> TableModel:
        """The model of ``table``. Raises DataError where its groups fit no values."""
        mine = [count for count in counts if count.table == table]
        keys: dict[str, tuple[Column, list[KeyDomain | CaseKey]]] = {}
        for count in mine:
            for key in count.keys:
                column = _column(key, count, batch)
                assert column is not None  # noqa: S101 - as ``usable`` says
                held = keys.setdefault(column.name.lower(), (column, []))[1]
                if key not in held:
                    held.append(key)
        axes = tuple(axis_of(at, column, held) for at, (column, held) in enumerate(keys.values()))
        kept, left_out = [], []
        for count in mine:
            known = [next((a for a in axes if a.face(key) is not None), None) for key in count.keys]
            if None in known:
                left_out.append(f"{count.result}: its groups overlap, or leave out values that others count")
            elif len({id(axis) for axis in known}) < len(known):
                left_out.append(f"{count.result}: two of its keys group one column")
            else:
                kept.append(count)
        return cls(axes, tuple(kept), tuple(left_out))

    @cached_property
    def total(self) -> float:
        """The rows of the table, as released. DataError where there are none."""
        found = float(np.mean([target.counts.sum() for target in self._targets]))
        if found <= 0:
            raise DataError("the released counts add up to no rows; release them at a larger epsilon")
        return found

    def rows(self, n: int, generator: Generator) -> Ints:
        """``n`` rows of regions (columns x n) that agree with the counts. DataError where these are of no rows."""
        scaled = []
        for target, count in zip(self._targets, self.counts, strict=True):
            scale = n / (float(target.counts.sum()) or self.total)
            error = 0.0 if count.stderr is None else float(np.mean(count.stderr**2)) * scale * scale
            scaled.append(Target(target.faces, target.counts * scale, 1.0 / (1.0 + error)))
        return fitted([len(axis.regions) for axis in self.axes], scaled, n, generator)

    @cached_property
    def _targets(self) -> list[Target]:
        """The tables that rows are fitted to: the nearest to the released ones that a table could have."""
        faces = [
            tuple(next(face for axis in self.axes if (face := axis.face(key)) is not None) for key in count.keys)
            for count in self.counts
        ]
        tables = [count.counts for count in self.counts]
        if min(float(table.min()) for table in tables) < 0:
            tables = _possible(faces, tables)
        return [Target(held, _filled(held, table)) for held, table in zip(faces, tables, strict=True)]

    def shown(
        self, rows: Ints, generator: Generator, *, without: str = "", first: Sequence[tuple[str, str, Coded]] = ()
    ) -> Result:
        """The table, with values, after the columns ``first``; without the columns of the join ``without``."""
        columns, taken = list(first), {name.lower() for name, _, _ in first}
        for axis, regions in zip(self.axes, rows, strict=True):
            own = axis.source == "" and axis.name.lower() in taken  # a key that is counted: references come first
            if not own and (not without or axis.source != without):
                columns.append((free_name(axis.name, taken), type_of(axis), values_of(axis, regions, generator)))
        return Result.from_columns(columns)


def _filled(faces: Sequence[Face], table: Floats) -> Floats:
    """The table with nothing in groups that no value of the column is in."""
    for at, face in enumerate(faces):
        there = np.bincount(face.groups, minlength=face.size) > 0
        table = table * there.reshape([-1 if axis == at else 1 for axis in range(table.ndim)])
    return np.maximum(table, 0.0)


def _possible(faces: Sequence[Sequence[Face]], tables: Sequence[Floats]) -> list[Floats]:
    """The nearest tables to ``tables`` that agree, with no negative entry; each by itself where they are large."""
    known: dict[int, int] = {}
    sizes: list[int] = []
    sets: list[Axes] = []
    for held, table in zip(faces, tables, strict=True):
        for face, size in zip(held, table.shape, strict=True):
            if id(face) not in known:
                known[id(face)] = len(sizes)
                sizes.append(size)
        sets.append(tuple(known[id(face)] for face in held))
    ordered = [tuple(sorted(S)) for S in sets]
    if sum(2 ** len(S) * table.size for S, table in zip(ordered, tables, strict=True)) > MOST_WORK:
        return [on_simplex(table) for table in tables]
    inside = {T for S in ordered for order in range(1, len(S) + 1) for T in combinations(S, order)}
    candidates = tuple(sorted(inside, key=lambda T: (len(T), T)))
    fit = MarginalModel(tuple(sizes), candidates, 1.0).start()
    for S, axes, table in zip(sets, ordered, tables, strict=True):
        fit.learn(axes, 1, table.transpose([S.index(axis) for axis in axes]).ravel())
    found = fit.tables()
    return [found[axes].transpose([axes.index(axis) for axis in S]) for S, axes in zip(sets, ordered, strict=True)]


def agreement(made: Sequence[tuple[TableModel, Ints]]) -> Result:
    """How far the counts of the rows are from the released ones, table by table."""
    lines: list[tuple[str, str, int, float, float, float | None]] = []
    for model, rows in made:
        for count in model.counts:
            faces = tuple(next(f for axis in model.axes if (f := axis.face(key)) is not None) for key in count.keys)
            cells = Target(faces, count.counts).cells(rows)
            total = float(count.counts.sum())
            held = np.bincount(cells, minlength=count.counts.size) * (total / max(rows.shape[1], 1))
            apart = float(np.abs(held - count.counts.ravel()).sum())
            noise = None if count.stderr is None else _OF_NOISE * float(count.stderr.sum())
            keys = ", ".join(key.name for key in count.keys)
            lines.append((count.result, keys, prod(count.counts.shape), total, apart, noise))
    names = ("result", "keys", "groups", "rows", "l1", "noise")
    types = ("VARCHAR", "VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "DOUBLE")
    return Result(names, types, lines)
