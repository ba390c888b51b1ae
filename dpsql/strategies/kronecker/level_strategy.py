"""The least error of batches whose groupings of each column nest: counts and sums on levels of several axes at once.

Sets of regions that nest leave alike ones to be exchanged (``dpsql.linalg.levels``), each axis for itself, and that
changes neither the Gram matrix of the batch nor what a row can move. A *part* (``dpsql.strategies.core.symmetric``) is
one level of each axis; its space has the readings of the part for coordinates, counts and sums of orbits, whichever
axes and components they are of. With rho = prod (1 - 1/k) over the levels of a part, E = sum of g g^T over the batch's
numbers (weighted, times the squared length of their children, see ``dpsql.reconstruct.level_answers``) and h what a row
of an orbit of regions and a corner moves of the readings, the problem on the part is

    tr(E X^-1)    subject to    q = sum over parts of rho h^T X h.

Nothing is left out, and a step costs the r^3 of all parts, r readings each, whatever the number of cells.

Integers. C (r x r) is a root of X over prod k, times a power of two, rounded; readings are integers and independent, so
that what is measured spans all numbers exactly. The error is computed from C, and the sensitivity is that of C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod, sqrt

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints
from dpsql.common.chain import Step
from dpsql.common.numerics import NEGLIGIBLE, ROUNDING
from dpsql.errors import DataError
from dpsql.linalg.blocks import RowBlock
from dpsql.linalg.levels import AxisLevels, LevelRows, levels_of
from dpsql.reconstruct.level_answers import LevelAnswers, LevelSpan
from dpsql.strategies.core.base import AnyWorkload, Strategy
from dpsql.strategies.core.symmetric import Optimum, solve
from dpsql.strategies.core.symmetric import Part as Isotypic
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.layout import common_multiplicity
from dpsql.workloads.compile.level_integers import LevelIntegers, Part, Reading, nulls_of
from dpsql.workloads.compile.rows_in_classes import class_bounds
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload

METHOD = "levels"
_MOST_AXES = 12
_MOST_TERMS, _MOST_CORNERS, _MOST_READINGS, _MOST_MEASURED = 20_000, 2_000, 64, 2**22
_RIDGE = 1e-6  # of what readings no number needs


@dataclass(frozen=True, eq=False)
class LevelStrategy(Strategy):
    """What is measured of a batch on levels.

    Fields as of ``dpsql.strategies.kronecker.structured.StructuredStrategy``.
    """

    planned: Structured = field(repr=False)
    integers: LevelIntegers = field(repr=False)
    spans: tuple[LevelSpan, ...] = field(repr=False)
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    noise: str = "gaussian"
    method: str = METHOD
    objective: str = "total"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Groupings that nest, as levels."""
        text = f"groupings nest: {len(self.integers.parts):,} parts, each between a level and the next coarser one"
        return Step("levels", True, text), *super().steps

    @cached_property
    def measured(self) -> LevelIntegers:
        return self.integers

    def error(self, W: AnyWorkload) -> float:
        """The total squared error of a batch of the same blocks, weighted; DataError for another workload."""
        return self.expected if W is self.planned else float(self.variances(W).sum())

    def variances(self, W: AnyWorkload) -> Floats:
        """The squared errors of the numbers of such a batch (m,), each in the units of its block's weight."""
        if not isinstance(W, Structured) or not _same_rows(W, self.planned):
            raise DataError("strategy: levels answer the blocks that they are planned for; plan this batch")
        common = common_multiplicity(self.planned.layouts)
        square = sensitivity_of(self.noise, self.measured, self.planned.layouts) / common**2
        return np.asarray(square * W.weights**2 * self._answers.squares[0])

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """The lower bound."""
        return float("nan") if self.lower_bound is None else self.lower_bound

    def answers_of(self, batch: Batch) -> LevelAnswers:
        """Least squares, part by part."""
        return self._answers

    @cached_property
    def _answers(self) -> LevelAnswers:
        return LevelAnswers(self.measured, self.spans, self.planned.numbers)


def _same_rows(one: Structured, other: Structured) -> bool:
    return len(one.blocks) == len(other.blocks) and all(
        (a.start, a.component, a.coefficient) == (b.start, b.component, b.coefficient)
        and all(f is g for f, g in zip(a.factors, b.factors, strict=True))
        for a, b in zip(one.blocks, other.blocks, strict=True)
    )


def level_strategy(batch: Structured, tolerance: float, deadline: float) -> LevelStrategy | None:
    """The strategy of least error of a batch for Gaussian noise; None where groupings do not nest or are too many.

    It has one table, no bound that keeps the rows of a unit apart, and no quantile. ``deadline`` in monotonic seconds.
    """
    table = _table_of(batch)
    if table is None:
        return None
    if len(batch.sizes[table]) > _MOST_AXES:
        return None
    levels = _levels(batch)
    problem = None if levels is None else _Problem.of(batch, *levels)
    if problem is None or not problem.parts:
        return None
    return problem.rounded(solve([draft.part for draft in problem.parts], tolerance / 100.0, deadline), tolerance)


def _table_of(batch: Structured) -> int | None:
    tables = [number for number, owned in enumerate(batch.owners) if owned]
    if len(tables) != 1 or any(span.output.part_of for span in batch.spans):
        return None
    layouts = [batch.layouts[number] for number in batch.owners[tables[0]]]
    first = layouts[0]
    if first.source.counts_units or any(layout.tie is not None for layout in layouts) or class_bounds(first):
        return None
    single = all(len(f.axes) == 1 for block in batch.blocks for f in block.factors)
    return tables[0] if single and all(block.outputs == 1 for block in batch.blocks) else None


def _levels(batch: Structured) -> tuple[tuple[AxisLevels, ...], dict[int, tuple[int, LevelRows]]] | None:
    """The levels of each axis of the table, and by the ids of factors their axis and rows."""
    nulls = nulls_of(batch.histograms, batch.layouts)
    factors = {id(f): f for block in batch.blocks for f in block.factors}
    found, rows = [], {}
    (sizes,) = (batch.sizes[block.table] for block in batch.blocks[:1])
    for axis, d in enumerate(sizes):
        mine = [f for f in factors.values() if f.axes == (axis,)]
        special = sorted({at for (_, a), at in nulls.items() if a == axis})
        apart = [
            sparse.csr_array((np.ones(1), ([0], [at])), shape=(1, d)) for at in special
        ]  # no exchange takes it elsewhere
        matrices: list[Csr] = [*(f.matrix for f in mine), *apart]
        held = levels_of(d, matrices)
        if held is None:
            return None
        rows.update({id(f): (axis, own) for f, own in zip(mine, held.rows, strict=False)})
        found.append(held)
    return tuple(found), rows


_Levels = tuple[int, ...]
_Key = tuple[int, tuple[bytes, ...]]  # component, weights
_Homes = dict[tuple[_Levels, _Key], tuple[RowBlock, tuple[Ints, ...]]]  # a block that reads them


@dataclass(eq=False)
class _Draft:
    """One part: its readings by what they are, and the numbers on it."""

    levels: tuple[int, ...]
    readings: tuple[Reading, ...]
    terms: list[tuple[int, int, Floats]]  # span, kind, g
    part: Isotypic


@dataclass(eq=False)
class _Problem:
    batch: Structured
    axes: tuple[AxisLevels, ...]
    parts: list[_Draft]
    spans: list[LevelSpan]  # without terms

    @classmethod
    def of(
        cls, batch: Structured, axes: tuple[AxisLevels, ...], rows: Mapping[int, tuple[int, LevelRows]]
    ) -> _Problem | None:
        problem = cls(batch, axes, [], [])
        corners = problem.corners()
        if corners is None:
            return None
        held: dict[tuple[int, int], list[RowBlock]] = {}
        for block in batch.blocks:
            held.setdefault((block.start, block.stop), []).append(block)
        drafts: dict[tuple[int, ...], list[tuple[int, int, float, dict[_Key, float]]]] = {}
        homes: _Homes = {}
        count = 0
        for number, mine in enumerate(held.values()):
            span = _Span.of(mine, axes, rows)
            if span is None:
                return None
            problem.spans.append(span.written)
            for part, kind, often, terms in span.terms(homes):
                count += 1
                if count > _MOST_TERMS:
                    return None
                drafts.setdefault(part, []).append((number, kind, often, terms))
        return problem if problem._filled(drafts, homes, corners) else None

    def _filled(
        self,
        drafts: Mapping[tuple[int, ...], list[tuple[int, int, float, dict[_Key, float]]]],
        homes: _Homes,
        corners: Sequence[tuple[tuple[int, ...], list[int]]],
    ) -> bool:
        measured = 0
        for part, numbers in drafts.items():
            keys = list(dict.fromkeys(key for *_, terms in numbers for key in terms))
            if len(keys) > 4 * _MOST_READINGS:
                return False
            h = self._corner_changes(part, keys, homes, corners)
            chosen, coordinates = _independent(h)
            if not chosen or len(chosen) > _MOST_READINGS:
                return False
            levels = [axis.levels[at] for axis, at in zip(self.axes, part, strict=True)]
            rho = prod(level.share for level in levels)
            measured += len(chosen) * prod(level.children for level in levels)
            if measured > _MOST_MEASURED:
                return False
            place = {key: at for at, key in enumerate(keys)}
            E, found = np.zeros((len(chosen), len(chosen))), []
            for span, kind, often, terms in numbers:
                g = sum(value * coordinates[place[key]] for key, value in terms.items())
                E += often * rho * np.outer(g, g)
                found.append((span, kind, np.asarray(g)))
            readings = tuple(self._reading(part, keys[at], homes) for at in chosen)
            s, V = scipy.linalg.eigh(E, driver="evd")
            used = s > NEGLIGIBLE * s[-1]
            isotypic = Isotypic(1.0, (V[:, used] * np.sqrt(s[used])).T, sqrt(rho) * h[:, chosen])
            self.parts.append(_Draft(part, readings, found, isotypic))
        return True

    def corners(self) -> list[tuple[tuple[int, ...], list[int]]] | None:
        orbits = prod(axis.orbits for axis in self.axes)
        components = {h.component for h in self.batch.histograms}
        if orbits * 2 ** (len(components) - 1) > _MOST_CORNERS:
            return None
        nulls = nulls_of(self.batch.histograms, self.batch.layouts)
        return list(LevelIntegers(self.batch.histograms, self.axes, ()).corners(nulls))

    def _corner_changes(
        self,
        part: tuple[int, ...],
        keys: Sequence[_Key],
        homes: _Homes,
        corners: Sequence[tuple[tuple[int, ...], list[int]]],
    ) -> Floats:
        """h (corners x keys) of one part."""
        regions = np.array([at for at, _ in corners])
        signs = np.array([held for _, held in corners], dtype=np.float64)
        out = np.ones((len(corners), len(keys)))
        below = np.ones(len(corners))
        for axis, (own, level) in enumerate(zip(self.axes, part, strict=True)):
            below *= own.levels[level].child[regions[:, axis]] >= 0
        for at, key in enumerate(keys):
            out[:, at] = below * signs[:, key[0]]
            for axis, weights in enumerate(homes[part, key][1]):
                out[:, at] *= weights[self.axes[axis].orbit[regions[:, axis]]]
        return out

    def _reading(self, part: _Levels, key: _Key, homes: _Homes) -> Reading:
        block, weights = homes[part, key]
        needed = set(block.axes)
        home = next(
            number
            for number, h in enumerate(self.batch.histograms)
            if h.component == key[0] and h.table == block.table and needed <= set(h.axes)
        )
        return Reading(key[0], home, weights)

    def rounded(self, optimum: Optimum, tolerance: float) -> LevelStrategy | None:
        """Integers whose error is within a thirtieth of the tolerance of the optimum; the finest that fit otherwise."""
        best: LevelStrategy | None = None
        roots = []
        for part, X in zip(self.parts, optimum.metrics, strict=True):
            scale = np.sqrt(np.maximum(np.diag(X), 1e-300))
            near = X / np.outer(scale, scale)
            near = near + _RIDGE * np.eye(len(near)) if len(part.part.root) < len(near) else near
            alike = prod(self.axes[axis].levels[at].alike for axis, at in enumerate(part.levels))
            roots.append(scipy.linalg.cholesky(near, check_finite=False) * scale / alike)
        smallest = min(float(np.abs(np.diag(root)).min()) for root in roots)
        common = common_multiplicity(self.batch.layouts)
        for bits in range(8, 29, 4):  # of the smallest entry of a diagonal
            parts = tuple(
                Part(part.levels, part.readings, np.rint(root * (2.0**bits / smallest) / 16.0).astype(np.int64))
                for part, root in zip(self.parts, roots, strict=True)
            )
            integers = LevelIntegers(self.batch.histograms, self.axes, parts)
            if not integers.fits:
                break
            if any((np.diag(part.matrix) == 0).any() for part in parts):
                continue
            spans = tuple(
                replace(span, terms=tuple(
                    (kind, at, g) for at, part in enumerate(self.parts) for s, kind, g in part.terms if s == number
                )) for number, span in enumerate(self.spans)
            )  # fmt: skip
            found = self._made(integers, spans, common, optimum.lower)
            if best is None or found.expected < best.expected:
                best = found
            if best.expected <= (1.0 + tolerance / 30.0) * optimum.upper:
                break
        return best

    def _made(self, integers: LevelIntegers, spans: tuple[LevelSpan, ...], common: int, lower: float) -> LevelStrategy:
        l1, l2 = (sensitivity_of(noise, integers, self.batch.layouts) for noise in ("laplace", "gaussian"))
        rows = max(layout.multiplicity for layout in self.batch.layouts)
        l1, l2 = -(-l1 // common), -(-l2 // common**2)
        made = LevelStrategy(self.batch, integers, spans, l1, l2, 0.0, lower * (rows / common) ** 2, ())
        error = float(made.variances(self.batch).sum())
        return replace(made, expected=error, considered=((METHOD, error),))


def _independent(h: Floats) -> tuple[list[int], Floats]:
    """Columns of h that span all of them, and all in their coordinates (columns x chosen)."""
    length = np.linalg.norm(h, axis=0)
    if not length.all():
        return [], h
    scaled = h / length
    chosen: list[int] = []
    Q = np.zeros((len(h), 0))
    for at in range(h.shape[1]):
        left = scaled[:, at] - Q @ (Q.T @ scaled[:, at])
        left -= Q @ (Q.T @ left)
        size = float(np.linalg.norm(left))
        if size > ROUNDING:
            chosen.append(at)
            Q = np.column_stack([Q, left / size])
    found = np.linalg.lstsq(scaled[:, chosen], scaled, rcond=None)[0]
    return chosen, np.asarray((found / length[chosen][:, None] * length).T)


class _Span:
    """The numbers of one span: which rows of which factors, and what they have on each part."""

    @classmethod
    def of(
        cls, blocks: Sequence[RowBlock], axes: tuple[AxisLevels, ...], rows: Mapping[int, tuple[int, LevelRows]]
    ) -> _Span | None:
        """None where its blocks have other keys, or keys of other factors."""
        keyed = [[f for f in block.factors if f.keys] for block in blocks]
        if any([id(f.matrix) for f in other] != [id(f.matrix) for f in keyed[0]] for other in keyed):
            return None
        return cls(blocks, axes, rows)

    def __init__(
        self, blocks: Sequence[RowBlock], axes: tuple[AxisLevels, ...], rows: Mapping[int, tuple[int, LevelRows]]
    ) -> None:
        self.blocks, self.axes = blocks, axes
        first = blocks[0]
        shape = first.key_sizes
        count = prod(shape)
        labels = np.unravel_index(np.arange(count), shape) if shape else ()
        self.keyed: dict[int, LevelRows] = {}
        kinds, sizes, at = np.zeros(count, dtype=np.int64), [], []
        dropped = np.zeros(count, dtype=bool)
        place: dict[int, Ints] = {}
        for factor in (f for f in first.factors if f.keys):
            axis, held = rows[id(factor)]
            row = np.zeros(count, dtype=np.int64)
            for key in factor.keys:
                row = row * shape[key] + labels[key]
            self.keyed[axis], place[axis] = held, row
            dropped |= held.kind[row] < 0
            kinds = kinds * held.times.shape[1] + np.maximum(held.kind[row], 0)
            sizes.append(held.times.shape[1])
        for axis, own in enumerate(axes):
            held = self.keyed.get(axis, own.rows[-1])
            at.append(held.at[:, place.get(axis, np.zeros(count, dtype=np.int64))])
        kinds[dropped] = -1
        self.sizes = sizes
        self.often = np.bincount(kinds[~dropped], minlength=prod(sizes))
        self.written = LevelSpan(first.start, first.stop, kinds, tuple(at), ())
        self.of_blocks = [dict(rows[id(f)] for f in block.factors) for block in blocks]

    def terms(self, homes: _Homes) -> Iterator[tuple[tuple[int, ...], int, float, dict[_Key, float]]]:
        """(levels, kind, squared weight of all numbers of it, what they have of readings) of each part."""
        choices = [self.keyed[axis].parts() if axis in self.keyed else [(0, 0)] for axis in range(len(self.axes))]
        order = list(self.keyed)
        for chosen in product(*choices):
            kind = 0
            for axis, size in zip(order, self.sizes, strict=True):
                kind = kind * size + chosen[axis][1]
            if not self.often[kind]:
                continue
            found: dict[_Key, float] = {}
            levels = tuple(level for level, _ in chosen)
            for block, held in zip(self.blocks, self.of_blocks, strict=True):
                weights, value = [], block.coefficient
                for axis, (level, own) in enumerate(chosen):
                    rows = held.get(axis, self.axes[axis].rows[-1])
                    number = own if axis in self.keyed else 0
                    weights.append(rows.whole[level, number])
                    value *= float(rows.times[level, number])
                if value:
                    key = block.component, tuple(w.tobytes() for w in weights)
                    homes.setdefault((levels, key), (block, tuple(weights)))
                    found[key] = found.get(key, 0.0) + value
            if found:
                weight = self.blocks[0].weight
                yield levels, kind, weight**2 * float(self.often[kind]), found


__all__ = ["METHOD", "LevelStrategy", "level_strategy"]
