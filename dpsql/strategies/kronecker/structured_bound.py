"""A lower bound on the error of any Gaussian matrix mechanism for a structured batch, its cells never listed.

For every lambda >= 0 with sum 1 over what one row can add to x, ||W C Lambda^1/2||_*^2 is at most that error
(``dpsql.strategies.gaussian.optimal``). Here lambda is a product: over the cells of a table one measure lambda_i for
each axis, times fair and independent signs of the measures, the corners of their box
(``dpsql.workloads.cells.corners``), or signs of other means (``dpsql.strategies.kronecker.shared_rows.leaning``), which
come to other blocks. Signs of mean 0 leave nothing between components, so that with W_k the rows on component k and
Lambda_k the weight of the cells where that component can be other than 0 (a NULL adds 0 to the sums of its column)

    ||W C Lambda^1/2||_* = tr K^1/2,    K = M^T M,    M = [W_0 Lambda_0^1/2, W_1 Lambda_1^1/2, ...].

Coordinates. On axis i take an orthonormal basis whose first vector is Lambda_i^1/2 1. A block over the axes S is a
Kronecker product there and constant elsewhere, so it is 0 in all coordinates that are not the first on an axis
outside S: K has as many rows and columns as the residuals have dimensions, whatever the number of cells. Blocks of
one result column share their rows, and so have parts in K between their components; all others add up.

Classes. Regions that every factor treats alike (each in a group of its own, or all in the same groups) with equal
weights are one class: on the contrasts within it a Gram matrix is a multiple of the identity, and it takes no
contrast to anything else. A class of c regions is one coordinate for its mean and one for all c - 1 contrasts, and K
falls apart by the contrasts that are taken. Where that loses anything (the norms are compared) no bound is given.

Regions that no block counts get little weight or none: the best of a few amounts is taken, each being valid. Without
weight they have no coordinates, so that marginals over hundreds of columns leave parts of one row.

Rows of a unit that a bound keeps apart are in several regions of an axis at once, whose weights are then no diagonal.

Tables. With k_t rows of a unit, the norm of table t and the length of the mean m_t = E[W c], of which the square is the
entry of K_t in the first coordinate of every axis, ``dpsql.strategies.core.bound_over_tables`` bounds units that move
several tables at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from math import prod, sqrt
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Ints
from dpsql.common.numerics import ROUNDING
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.linalg.forms import quick
from dpsql.strategies.core.bound_over_tables import least_of_tables
from dpsql.strategies.core.limits import CUBES
from dpsql.strategies.kronecker import shared_rows
from dpsql.strategies.kronecker.root_parts import Item, Parts
from dpsql.strategies.kronecker.shared_rows import (
    LostError,
    by_span,
    dead_regions,
    leaning,
    means_of,
    treated,
    unlike,
    with_common_factors,
)
from dpsql.strategies.kronecker.weights_under_bounds import single_row_factor, turned_blocks
from dpsql.workloads.compile.layout import common_multiplicity
from dpsql.workloads.compile.rows_in_classes import class_bounds, rows_anywhere
from dpsql.workloads.compile.structured import Structured

Label = tuple[tuple[int, int], ...]  # (axis, coordinate other than the first) ...
_Order = tuple[tuple[int, int], ...]  # (axis, its coordinates) ...

_UNCOUNTED = (0.1, 0.0, 0.3, 0.02, 1.0)  # weight of a region that nothing counts, over that of the others
_GIVEN = 0.05  # the same beside weights that are given


def structured_bound(
    batch: Structured,
    deadline: float = np.inf,
    weights: Mapping[tuple[int, int], Floats] | None = None,
    enough: float = np.inf,
) -> float | None:
    """The squared nuclear norm above, in the units of ``StructuredStrategy.expected``; None where it costs too much.

    ``weights``: of the regions of axes (table, axis), tried beside equal ones (``dpsql.strategies.kronecker.centres``).
    Cost: the eigenvalues of K, part by part, each of order at most 2,500 besides what blocks over one set of axes have
    alone, the orders cubed at most 3e10 together (a few seconds); past ``deadline`` (monotonic seconds) the first
    weights are taken, and so they are of a batch over one table where they give ``enough``. None too where blocks that
    share rows take contrasts of one axis to others' of another.
    """
    given = weights or {}
    single = len({block.table for block in batch.blocks}) == 1
    norms: dict[int, tuple[float, float]] = {}
    rows: dict[int, float] = {}
    for table in range(len(batch.owners)):
        blocks = [block for block in batch.blocks if block.table == table]
        if not blocks:
            continue
        try:
            serves = partial(_serves, batch, table, enough if single else np.inf)
            weights_here = {axis: held for (number, axis), held in given.items() if number == table}
            tables = [_Table(batch, table, blocks, weights_here)]
            if (means := means_of(blocks)).any():
                tables.insert(0, _Table(batch, table, leaning(blocks, means), weights_here, nulls=False))
            norms[table] = _best(tables, deadline, serves)
            apart = _bound_in_regions(batch, table, blocks, norms[table] if not given else None)
            if apart is not None and apart[0] > together(batch, table) * norms[table][0]:
                norms[table], rows[table] = apart, 1.0
        except LostError:
            return None
    return bound_of_tables(batch, norms, rows)


def _best(
    tables: Sequence[_Table], deadline: float, serves: Callable[[tuple[float, float]], bool]
) -> tuple[float, float]:
    """The best t and |m| of the ``tables``, up to the first that serves or takes long. Raises LostError for none."""
    found: list[tuple[float, float]] = []
    for held in tables:
        with suppress(LostError):
            found.append(held.bound(deadline, serves))
            if serves(found[-1]) or held.spent > CUBES / 20 or monotonic() > deadline:
                break
    if not found:
        raise LostError
    return max(found)


def _serves(batch: Structured, table: int, enough: float, norm: tuple[float, float]) -> bool:
    """Whether t and |m| of the one table are ``enough``."""
    return bound_of_tables(batch, {table: norm}) >= enough


def bound_of_tables(
    batch: Structured, norms: Mapping[int, tuple[float, float]], rows: Mapping[int, float] | None = None
) -> float:
    """The lower bound for all tables, from t and |m| of each. ``rows``: k_t, where it is not ``together``."""
    common = common_multiplicity(batch.layouts)
    units: dict[str, list[tuple[float, float]]] = {}
    for table, (t, mean) in norms.items():
        layout = batch.layouts[batch.owners[table][0]]
        k = (rows or {}).get(table, together(batch, table)) / common
        units.setdefault(layout.source.protects, []).append((k * t, k * mean))
    return sum(map(least_of_tables, units.values()))


def together(batch: Structured, table: int) -> float:
    """How many rows of a unit may be in any one cell of a table."""
    return float(rows_anywhere(batch.layouts[batch.owners[table][0]]))


def _bound_in_regions(
    batch: Structured, table: int, blocks: Sequence[RowBlock], single: tuple[float, float] | None
) -> tuple[float, float] | None:
    """t and |m| of rows of a unit in different regions of one axis; None where that is not known.

    Of several bounds the least is taken, for units that keep to one of them. ``single``: the same of one row that is
    anywhere alike, if it is known where all regions are counted.
    """
    bounds = class_bounds(batch.layouts[batch.owners[table][0]])
    least: tuple[float, float] | None = None
    for bound in bounds:
        held = _Table(batch, table, blocks)
        best: tuple[float, float] | None = None
        if all(axis != bound.axis for _, axis in held.dead):
            times = single_row_factor(bound, ~held._idle(bound.axis))
            if times is not None:
                with suppress(LostError):
                    t, mean = single if single is not None and held.equal_weights else held.at(0.0)
                    best = times * t, times * mean
            for moved in turned_blocks(blocks, bound, ~held._idle(bound.axis), held.sizes):
                with suppress(LostError):
                    found = _Table(batch, table, moved).at(0.0)
                    best = found if best is None else max(best, found)
        if best is None:
            return None
        least = best if least is None else min(least, best)
    return least


@dataclass(frozen=True)
class _Basis:
    """Coordinates of one axis for one component: ``means`` (d x classes), its first column for the constant row.

    ``length`` is the norm of Lambda^1/2 1, ``weights`` the weight of one region of each class.
    """

    means: Floats
    length: float
    weights: Floats


class _Table:
    """The part of the bound that one table gives. ``nulls``: whether rows may be NULL in the column of a measure."""

    def __init__(
        self,
        batch: Structured,
        table: int,
        blocks: Sequence[RowBlock],
        given: Mapping[int, Floats] | None = None,
        *,
        nulls: bool = True,
    ) -> None:
        self.given, self.nulls = given or {}, nulls
        self.sizes = batch.sizes[table]
        self.spans = [with_common_factors(mine, self.sizes) for mine in by_span(blocks)]
        self.blocks = [block for mine in self.spans for block in mine]
        self.dead = dead_regions(batch, table)
        self.axes = sorted({axis for block in blocks for axis in block.axes} | {axis for _, axis in self.dead})
        self.alone = {axis for mine in self.spans for axis in unlike(mine)}
        self.factors: dict[int, list[RowFactor]] = {axis: [] for axis in self.axes}
        for factor in {id(f): f for block in self.blocks for f in block.factors}.values():
            for axis in factor.axes:
                self.factors[axis].append(factor)
        self.bases: dict[tuple[int, int], _Basis] = {}
        self.products: dict[tuple[object, ...], Any] = {}
        self.equal: dict[object, Any] = {}  # of columns alike: one basis, and one product of their factors
        self.lengths: dict[int, Counter[float]] = {}
        self.idle: dict[int, NDArray[np.bool_]] = {}
        self.spent = 0.0

    @property
    def equal_weights(self) -> bool:
        """Whether all weights that are tried are equal ones: of counts, every region of which is counted."""
        return not any(block.component for block in self.blocks) and not any(map(self.any_idle, self.axes))

    def any_idle(self, axis: int) -> bool:
        """Whether no block over the axis counts some of its regions."""
        return bool(self._idle(axis).any())

    def bound(self, deadline: float, serves: Callable[[tuple[float, float]], bool]) -> tuple[float, float]:
        """tr K^1/2 at the best of a few weights, and |m| there. Raises LostError."""
        idle = any(map(self.any_idle, self.axes))
        best: tuple[float, float] | None = None
        lost = False
        for share in (*((_GIVEN,) if self.given else ()), *(_UNCOUNTED if idle else (1.0,))):
            if lost and share:
                continue  # as many coordinates as before
            try:
                found = self.at(share)
                if best is None or found > best:
                    best = found
            except LostError:
                lost = True
            if self.spent > CUBES / 20 or monotonic() > deadline or (best is not None and serves(best)):
                break
        if best is None:
            raise LostError
        return best

    def at(self, share: float) -> tuple[float, float]:
        """The same with one weight of the regions that nothing counts. Raises LostError."""
        every = {axis: self._classes(axis) for axis in self.axes}
        self.chosen = self.given if share == _GIVEN else {}
        self.classes = every if share else {axis: self._counted(axis, held) for axis, held in every.items()}
        return self._at(share)

    # -- coordinates ------------------------------------------------------------------------------

    def _idle(self, axis: int) -> NDArray[np.bool_]:
        """The regions that no block over the axis counts."""
        if axis not in self.idle:
            self.idle[axis] = self._uncounted(axis)
        return self.idle[axis]

    def _uncounted(self, axis: int) -> NDArray[np.bool_]:
        out = np.ones(self.sizes[axis], dtype=bool)
        for factor in self.factors[axis]:
            held = np.asarray(abs(factor.matrix).sum(axis=0)).reshape([self.sizes[i] for i in factor.axes])
            out &= np.moveaxis(held, factor.axes.index(axis), 0).reshape(self.sizes[axis], -1).sum(axis=1) == 0
        return out & bool(self.factors[axis]) & ~out.all()

    def _classes(self, axis: int) -> list[NDArray[np.int64]]:
        d = self.sizes[axis]
        marks: list[Array] = [np.isin(np.arange(d), [at for (_, i), at in self.dead.items() if i == axis])]
        marks.append(self._idle(axis))
        if axis in self.alone:
            marks.append(np.arange(d))
        else:
            marks.extend(treated(factor.matrix) for factor in self.factors[axis])
        _, inverse = np.unique(np.stack(marks), axis=1, return_inverse=True)
        found = [np.flatnonzero(inverse.ravel() == number) for number in range(int(inverse.max()) + 1)]
        if len(found) > shared_rows.MOST_ORDER:
            raise LostError
        return found

    def _counted(self, axis: int, classes: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """The classes that some block counts; the others have no coordinates where they have no weight."""
        idle = self._idle(axis)
        return [members for members in classes if not idle[members[0]]]

    def _basis(self, axis: int, component: int) -> _Basis:
        if (axis, component) not in self.bases:
            classes, idle = self.classes[axis], self._idle(axis)
            one = np.where(idle, self.share, 1.0)
            if axis in self.chosen:
                for members in classes:
                    one[members] = float(self.chosen[axis][members].mean())
            if not self.nulls:
                one[[at for (_, column), at in self.dead.items() if column == axis]] = 0.0
            one = one / one.sum()
            at = self.dead.get((component, axis))
            if at is not None:
                one[at] = 0.0
            same = one.tobytes(), *(members.tobytes() for members in classes)
            if same in self.equal:
                self.bases[axis, component] = self.equal[same]
                return self.bases[axis, component]
            weights = np.array([one[members[0]] for members in classes])
            root = np.sqrt(weights * [len(members) for members in classes])
            length = float(np.linalg.norm(root))
            first = root / length if length else np.eye(len(root))[0]
            mirror = first.copy()  # the reflection that swaps the first unit vector and ``first``
            mirror[0] -= 1.0
            Q = np.eye(len(root))
            if np.linalg.norm(mirror) > 1e-12:
                Q -= np.outer(mirror, mirror) * (2.0 / float(mirror @ mirror))
            means = np.zeros((self.sizes[axis], len(classes)))
            for number, members in enumerate(classes):
                means[members] = np.sqrt(weights[number] / len(members)) * Q[number]
            self.bases[axis, component] = self.equal[same] = _Basis(means, length, weights)
        return self.bases[axis, component]

    def _rows(self, factor: RowFactor, component: int) -> Floats:
        """A factor in the mean coordinates of its axes: (rows x their product)."""
        if len(factor.axes) == 1:
            return np.asarray(quick(factor.matrix) @ self._basis(factor.axes[0], component).means)
        if prod(len(self.classes[axis]) for axis in factor.axes) > shared_rows.MOST_ORDER:
            raise LostError
        held = factor.matrix.toarray().reshape(-1, *(self.sizes[axis] for axis in factor.axes))
        for at, axis in enumerate(factor.axes):
            moved = np.tensordot(held, self._basis(axis, component).means, axes=(1 + at, 0))
            held = np.moveaxis(moved, -1, 1 + at)
        return np.asarray(held.reshape(held.shape[0], -1))

    # -- the parts of K ---------------------------------------------------------------------------

    def _pair(self, left: RowFactor, i: int, right: RowFactor, j: int) -> tuple[Floats, dict[int, float]]:
        """(The product of two factors' rows between mean coordinates, that on each class's contrasts)."""
        key = (id(left), i, id(right), j)
        if key in self.products:
            return self.products[key]  # type: ignore[no-any-return]
        same = (*self._signature(left, i), *self._signature(right, j), left.axes == right.axes)
        if same in self.equal:
            self.products[key] = self.equal[same]
            return self.equal[same]  # type: ignore[no-any-return]
        means = self._rows(left, i).T @ self._rows(right, j)
        within: dict[int, float] = {}
        whole = float((means * means).sum())
        if len(left.axes) == 1 == len(right.axes):
            one, other = self._basis(left.axes[0], i), self._basis(right.axes[0], j)
            # csr either way, so that what follows asks for no form: only the product is taken in the quick one.
            P: Csr = sparse.csr_array(quick(left.matrix).T @ quick(right.matrix))
            P = sparse.csr_array(sparse.diags_array(_by_region(one, self.classes[left.axes[0]])) @ P)
            P = sparse.csr_array(P @ sparse.diags_array(_by_region(other, self.classes[right.axes[0]])))
            if left.axes == right.axes:
                diagonal = P.diagonal()
                for number, members in enumerate(self.classes[left.axes[0]]):
                    c = len(members)
                    if c > 1:
                        mark = np.zeros(P.shape[0])
                        mark[members] = 1.0
                        value = (float(diagonal[members].sum()) - float(mark @ (P @ mark)) / c) / (c - 1)
                        within[number] = value
                        whole += (c - 1) * value**2
            exact = float((P.data**2).sum())
            if abs(exact - whole) > ROUNDING * exact:
                raise LostError
        elif any(len(members) > 1 for f in (left, right) for axis in f.axes for members in self.classes[axis]):
            raise LostError
        scale = max(map(abs, within.values()), default=0.0)
        found = (means, {number: value for number, value in within.items() if abs(value) > 1e-14 * scale})
        self.products[key] = self.equal[same] = found
        return found

    def _signature(self, factor: RowFactor, component: int) -> tuple[object, ...]:
        """What tells a factor from others in a product: its entries, and the bases of its axes."""
        matrix = factor.matrix
        held = matrix.indptr.tobytes(), matrix.indices.tobytes(), matrix.data.tobytes(), matrix.shape
        return (*held, *(id(self._basis(axis, component)) for axis in factor.axes))

    def _vector(self, factor: RowFactor, component: int, along: int) -> Floats:
        """A factor of one row in mean coordinates, as a column (``along`` 1) or a row (0)."""
        key = (id(factor), component, along)
        if key not in self.products:
            found = self._rows(factor, component)[0]
            weight: Floats = np.ones(1)
            for axis in factor.axes:
                weight = np.multiply.outer(weight, _by_region(self._basis(axis, component), self.classes[axis]) ** 2)
            exact = float((factor.matrix.power(2).toarray().ravel() * weight.ravel()).sum())
            if abs(exact - float(found @ found)) > ROUNDING * exact:
                raise LostError
            self.products[key] = np.expand_dims(found, along)
        return self.products[key]  # type: ignore[no-any-return]

    def _at(self, share: float) -> tuple[float, float]:
        self.share = share
        self.bases.clear()
        self.products.clear()
        self.equal.clear()
        self.lengths.clear()
        places: dict[Label, dict[tuple[int, Label], int]] = {}
        memo: dict[object, Ints] = {}
        parts = Parts()
        for span, mine in enumerate(self.spans):
            for number, one in enumerate(mine):
                for other in mine[number:]:
                    for contrasts, left, right, factors, scale in self._parts(one, other):
                        held = places.setdefault(contrasts, {})
                        rows = self._numbers(held, memo, contrasts, one.component, left)
                        columns = self._numbers(held, memo, contrasts, other.component, right)
                        item = Item(span, rows, columns, factors, scale if one is other else 2.0 * scale)
                        parts.add(contrasts, item, len(held))
        cost = parts.plan()
        self.spent += cost + parts.work
        total = mean = 0.0
        for contrasts in places:
            times = prod(len(self.classes[axis][number]) - 1 for axis, number in contrasts)
            total += times * parts.trace(contrasts)
            first = places[contrasts].get((0, ()))
            if first is not None and not contrasts:
                mean = sqrt(max(parts.corner(contrasts, first), 0.0))
        return total, mean

    def _numbers(
        self,
        places: dict[tuple[int, Label], int],
        memo: dict[object, Ints],
        contrasts: Label,
        component: int,
        order: _Order,
    ) -> Ints:
        key = (contrasts, component, order)
        if key not in memo:
            every = [[(axis, at) for at in range(size)] for axis, size in order]
            memo[key] = np.array([
                places.setdefault((component, tuple(sorted(part for part in label if part[1]))), len(places))
                for label in product(*every)
            ])  # fmt: skip
        return memo[key]

    def _parts(self, one: RowBlock, other: RowBlock) -> Iterator[tuple[Label, _Order, _Order, list[Floats], float]]:
        """What two blocks with the same rows add to each part: (contrasts, axes left, axes right, factors, scale)."""
        scale = one.weight * other.weight * one.coefficient * other.coefficient
        scale *= self._beside(one) * self._beside(other)
        keyed = [{f.keys: f for f in block.factors if f.keys} for block in (one, other)]
        fixed: list[tuple[RowFactor | None, RowFactor | None, Floats]] = []
        for factor in (f for f in one.factors if not f.keys):
            fixed.append((factor, None, self._vector(factor, one.component, 1)))
        for factor in (f for f in other.factors if not f.keys):
            fixed.append((None, factor, self._vector(factor, other.component, 0)))
        pairs = []
        for keys, left in keyed[0].items():
            right = keyed[1][keys]
            pairs.append((left, right, *self._pair(left, one.component, right, other.component)))
        for order in range(len(pairs) + 1):
            for chosen in combinations(range(len(pairs)), order):
                rest = [pair[:3] for at, pair in enumerate(pairs) if at not in chosen] + fixed
                left_axes = tuple(self._order(item[0]) for item in rest if item[0] is not None)
                right_axes = tuple(self._order(item[1]) for item in rest if item[1] is not None)
                factors = [item[2] for item in rest]
                for values in product(*(pairs[at][3].items() for at in chosen)):
                    contrasts = tuple(sorted(
                        (pairs[at][0].axes[0], number) for at, (number, _) in zip(chosen, values, strict=True)
                    ))  # fmt: skip
                    times = prod(value for _, value in values)
                    yield contrasts, sum(left_axes, ()), sum(right_axes, ()), factors, scale * times

    def _beside(self, block: RowBlock) -> float:
        """The lengths of the axes that a block is not over, multiplied."""
        component = block.component
        if component not in self.lengths:
            self.lengths[component] = Counter(self._basis(axis, component).length for axis in self.axes)
        own = Counter(self._basis(axis, component).length for axis in block.axes)
        return prod(length ** (times - own[length]) for length, times in self.lengths[component].items())

    def _order(self, factor: RowFactor) -> _Order:
        return tuple((axis, len(self.classes[axis])) for axis in factor.axes)


def _by_region(basis: _Basis, classes: Sequence[NDArray[np.int64]]) -> Floats:
    """Lambda^1/2 of every region."""
    out = np.zeros(basis.means.shape[0])
    for weight, members in zip(basis.weights, classes, strict=True):
        out[members] = np.sqrt(weight)
    return out


__all__ = ["structured_bound"]
