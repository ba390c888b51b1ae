"""Strategies for batches over many columns: each residual space measured by itself, by a product of small matrices.

A batch is blocks w = coefficient x (Kronecker product of factors) over histograms (``dpsql.workload.structured``).
With C_i = I - 1 1^T / d_i on axis i, the part of w in residual T (a set of axes) is w_T, centred along T and averaged
over the other axes of w, and w x = sum_T w_T x_T. Each residual T of each component (counts, or the sums of one
measure) is measured by integers k_T B_T, B_T a Kronecker product of one matrix for each axis of T whose rows span all
that is orthogonal to 1 there. Then

    answers    w B^+ y = sum_T w_T B_T^+ y_T / k_T, unbiased, and all answers agree with one estimate of the x_T;
    error      sum_T e_T / k_T^2,  e_T = sum over blocks of weight^2 ||w_T B_T^+||^2;
    norm       at most sum_T k_T^2 n_T (L1: sum_T k_T l_T), n_T and l_T the longest columns of B_T
               (``dpsql.workload.kronecker`` has the proof).

Weights. For Gaussian noise (sum k^2 n)(sum e / k^2) is least at k_T^2 ~ (e_T / n_T)^1/2, where it is
(sum_T (e_T n_T)^1/2)^2 (Cauchy-Schwarz); for Laplace noise (sum k l)^2 (sum e / k^2) at k_T ~ (e_T / l_T)^1/3. They are
rounded to whole numbers, doubled until the loss is below a tenth of the tolerance. Tables whose units differ are scaled
to one sensitivity, for no neighbour moves both; k rows of a unit count k-fold (``dpsql.workload.sensitivity``).

Matrices. Where all blocks have equal Gram matrices on an axis, up to a factor, the best B_T is the product of the axes'
best (``dpsql.strategy.product``); for marginals that is d I - 1 1^T, and the error is the singular value bound, the
least of any Gaussian matrix mechanism (Li and Miklau 2013, Thm 5.5): certified. Otherwise each axis gets the
optimum of its blocks' summed Gram matrices, each scaled by what the other axes leave of it; the error is computed from
what is measured, exactly, and set against ``structured_bound`` where that is within reach. The Laplace optimum is not
known; of d I - 1 1^T, I and the best that ``select`` finds for the axis, the least l^2 ||w B^+||^2 is taken, and all of
it only where whole tables (``dpsql.strategy.structured_blocks``) have no lower error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import gcd, sqrt
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.errors import DataError
from dpsql.linalg.blocks import AxisIntegers, Centre, Mixed, Plain, Residual, RowBlock
from dpsql.linalg.forms import dense
from dpsql.linalg.inner import Dense
from dpsql.strategy.reduce import cholesky
from dpsql.strategy.select import select
from dpsql.strategy.structured_blocks import METHOD as BLOCKS
from dpsql.strategy.structured_blocks import block_residuals
from dpsql.strategy.structured_bound import structured_bound
from dpsql.workload.kronecker import KroneckerIntegers
from dpsql.workload.layout import common_multiplicity
from dpsql.workload.matrix import Workload
from dpsql.workload.sensitivity import sensitivity_of
from dpsql.workload.structured import Structured

Floats = NDArray[np.float64]
Place = tuple[int, int, tuple[int, ...]]  # table, component, axes

METHOD, MIXED = "residual-basis", "residual-products"
MAX_MEASURED = 2**23
MAX_RESIDUALS = 200_000
MAX_AXIS = 2048  # regions of an axis that needs a matrix of its own
_STEPS = 2**16
_RIDGE = 1e-8
_NEGLIGIBLE = 1e-13


@dataclass(frozen=True, eq=False)
class StructuredStrategy:
    """What is measured of a structured batch; the surface of ``Strategy`` that plans and runs use.

    ``structured``: the batch, with the histograms that are measured (those of the batch as compiled, or others).
    ``residuals`` in the order of y. ``l1``, ``l2_squared``: sensitivity to a whole unit, over
    ``common_multiplicity`` (its square). ``expected``: total squared error at sensitivity 1 in the objective's units.
    ``lower_bound``: no Gaussian matrix mechanism has a lower error; None where none is known.
    """

    structured: Structured = field(repr=False)
    residuals: tuple[Residual, ...] = field(repr=False)
    noise: str
    method: str
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    objective: str = "total"

    @cached_property
    def measured(self) -> KroneckerIntegers:
        """B as it is measured."""
        return KroneckerIntegers(self.structured.histograms, self.residuals)

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n entries of x)."""
        return self.measured.shape

    @property
    def value(self) -> float:
        """What was minimised: ``expected``."""
        return self.expected

    @property
    def gap(self) -> float | None:
        """error / lower bound - 1, from the integers that are measured; None where no bound is known."""
        if self.noise != "gaussian" or self.lower_bound is None:
            return None
        return max(0.0, self.expected / self.lower_bound - 1.0)


def structured_strategy(
    batch: Structured,
    noise: str,
    *,
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    objective: str = "total",
) -> StructuredStrategy:
    """The strategy of a structured batch. ``tolerance`` and ``time_limit`` go to the selections for single axes.

    Cost: the number of residuals times the axes, besides one selection for each distinct Gram matrix of an axis; none
    for marginals. Raises DataError above 200,000 residuals or 2^23 measurements.
    """
    if objective != "total":
        raise DataError(
            "objective 'max' is planned for batches whose columns make few combinations; leave it out, or ask for "
            "fewer groupings"
        )
    say = progress or (lambda _: None)
    wanted = _wanted(batch)
    say(f"{len(wanted):,} residuals of {len(batch.histograms):,} histograms")
    chooser = _Chooser(batch, noise, tolerance, None if time_limit is None else monotonic() + time_limit)
    homes = _homes(batch)
    costs: dict[Place, float] = {}
    drafts: list[tuple[Residual, float]] = []
    measured = 0
    for place, blocks in wanted.items():
        table, component, axes = place
        mine = [block for block in blocks if chooser.reaches(block, axes)]
        if not mine:
            continue
        if noise == "laplace":
            plain = tuple(Plain(batch.sizes[table][axis]) for axis in axes)
            costs[place] = sum(chooser.squared(block, axes, plain) for block in mine)
        integers = chooser.integers(place, mine)
        residual = Residual(table, component, axes, homes[place], integers)
        error = sum(chooser.squared(block, axes, integers) for block in mine)
        measured += residual.rows
        if measured > MAX_MEASURED:
            raise DataError(
                f"strategy: the batch needs more than {MAX_MEASURED:,} measurements; ask for smaller groupings"
            )
        drafts.append((residual, error))
    groups = _groups(batch, drafts)
    wanted_k = _weights(batch, drafts, groups, noise)
    residuals, expected, l1, l2 = _rounded(batch, drafts, wanted_k, noise, tolerance)
    method = METHOD if batch.pure else MIXED
    if noise == "laplace":
        found = _tables(batch, costs, tolerance)
        ranked = tuple(sorted([(method, expected)] + ([(found.method, found.expected)] if found else []), key=_second))
        if found is not None and found.expected < expected:
            return replace(found, considered=ranked)
        return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, None, ranked)
    exact = batch.pure and not any(block.component for block in batch.blocks)
    lower = _bound(batch, drafts, groups) if exact else structured_bound(batch)
    return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, lower, ((method, expected),))


def _second(entry: tuple[str, float]) -> float:
    return entry[1]


def _tables(batch: Structured, costs: Mapping[Place, float], tolerance: float) -> StructuredStrategy | None:
    """Whole tables for Laplace noise, with what they cost from the integers that are measured; None if too many."""
    unit = {table: batch.layouts[owned[0]].source.protects for table, owned in enumerate(batch.owners) if owned}
    found = block_residuals(batch, costs, _multiplicities(batch), unit, tolerance / 10.0)
    if found is None:
        return None
    extended, residuals, variance = found
    if sum(residual.rows for residual in residuals) > MAX_MEASURED:
        return None
    held = KroneckerIntegers(extended.histograms, residuals)
    held.check()
    common = common_multiplicity(extended.layouts)
    l1 = sensitivity_of("laplace", held, extended.layouts)
    l2 = sensitivity_of("gaussian", held, extended.layouts)
    expected = (l1 / common) ** 2 * variance
    return StructuredStrategy(
        extended, residuals, "laplace", BLOCKS, -(-l1 // common), -(-l2 // common**2), expected, None, ()
    )


def _wanted(batch: Structured) -> dict[Place, list[RowBlock]]:
    """The residuals that some block has a part in, with those blocks."""
    found: dict[Place, list[RowBlock]] = {}
    for block in batch.blocks:
        sizes = batch.sizes[block.table]
        wide = [axis for axis in block.axes if sizes[axis] > 1]
        if len(wide) > 20:
            raise DataError(
                f"strategy: a statement combines {len(wide)} columns and conditions, at most 20 are planned"
            )
        for order in range(len(wide) + 1):
            for axes in combinations(wide, order):
                found.setdefault((block.table, block.component, axes), []).append(block)
                if len(found) > MAX_RESIDUALS:
                    raise DataError(
                        f"strategy: the batch has more than {MAX_RESIDUALS:,} residuals; combine fewer columns"
                    )
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1], len(item[0][2]), item[0][2])))


def _homes(batch: Structured) -> dict[Place, int]:
    """The histogram that each residual is read from: the first that has its axes."""
    found: dict[Place, int] = {}
    for number, held in enumerate(batch.histograms):
        wide = [axis for axis, size in zip(held.axes, held.sizes, strict=True) if size > 1]
        for order in range(min(len(wide), 20) + 1):
            for axes in combinations(wide, order):
                found.setdefault((held.table, held.component, axes), number)
    return found


class _Chooser:
    """The matrices of residuals, axis by axis, each distinct problem solved once."""

    def __init__(self, batch: Structured, noise: str, tolerance: float, deadline: float | None) -> None:
        self.batch = batch
        self.noise = noise
        self.tolerance = tolerance
        self.deadline = deadline
        self.solved: dict[bytes, Mixed] = {}
        self.grams: dict[tuple[int, tuple[int, ...]], Floats | None] = {}
        self.parts: dict[tuple[int, tuple[int, ...]], float] = {}
        self.errors: dict[tuple[object, ...], float] = {}

    def integers(self, place: Place, blocks: Sequence[RowBlock]) -> tuple[AxisIntegers, ...]:
        """A matrix for each axis of a residual."""
        table, _, axes = place
        sizes = self.batch.sizes[table]
        return tuple(self._axis(axis, axes, sizes[axis], blocks) for axis in axes)

    def _axis(self, axis: int, axes: tuple[int, ...], d: int, blocks: Sequence[RowBlock]) -> AxisIntegers:
        if d == 2:
            return Plain(2) if self.noise == "laplace" else Centre(2)
        total = np.zeros((d, d))
        level = 0.0
        for block in blocks:
            gram, scale = self._gram(block, axis, axes)
            if gram is None:
                level += scale
            elif scale:
                total += scale * gram
        trace = float(np.trace(total))
        if trace <= 0 or _is_centring(total, d):
            return Plain(d) if self.noise == "laplace" else Centre(d)
        total = total / (trace + level * (d - 1))
        if level:
            total += (np.eye(d) - 1.0 / d) * (level / (trace + level * (d - 1)))
        return self._solve(total, d)

    def _gram(self, block: RowBlock, axis: int, axes: tuple[int, ...]) -> tuple[Floats | None, float]:
        """(The centred Gram matrix of a block on one axis, what its other factors leave of it); None for C itself."""
        scale = (block.weight * block.coefficient) ** 2
        gram: Floats | None = None
        for factor in block.factors:
            inside = tuple(i for i in factor.axes if i in axes)
            if axis in inside:
                gram = self._factor_gram(factor, block.table, inside, axis)
            else:
                scale *= self._length(factor, block.table, inside)
        return gram, scale

    def _factor_gram(self, factor: Any, table: int, inside: tuple[int, ...], axis: int) -> Floats | None:
        key = (id(factor), (*inside, -1, axis))
        if key not in self.grams:
            sizes = self.batch.sizes[table]
            d = sizes[axis]
            matrix = factor.matrix
            if len(factor.axes) == 1 and _is_marginal(matrix):
                self.grams[key] = None
            else:
                if d > MAX_AXIS:
                    raise DataError(
                        f"strategy: {self.batch.names[table][axis]} has {d:,} regions, at most {MAX_AXIS:,} are "
                        "planned beside many others unless each is a group: drop the column, or use coarser ranges"
                    )
                held = _centred(factor, inside, sizes)
                held = np.moveaxis(held, 1 + inside.index(axis), -1).reshape(-1, d)
                self.grams[key] = held.T @ held
        return self.grams[key]

    def _length(self, factor: Any, table: int, inside: tuple[int, ...]) -> float:
        """||M||^2 of a factor's part, centred along ``inside``."""
        key = (id(factor), inside)
        if key not in self.parts:
            sizes = self.batch.sizes[table]
            if len(factor.axes) == 1 and inside:
                self.parts[key] = float(Plain(sizes[inside[0]]).squares(factor.matrix).sum())
            else:
                held = _centred(factor, inside, sizes)
                self.parts[key] = float((held * held).sum())
            whole = float(factor.matrix.power(2).sum()) if hasattr(factor.matrix, "power") else 0.0
            if self.parts[key] <= _NEGLIGIBLE * whole:
                self.parts[key] = 0.0
        return self.parts[key]

    def reaches(self, block: RowBlock, axes: tuple[int, ...]) -> bool:
        """Whether a block has a part in a residual: some of its groups differ there."""
        return all(
            self._length(factor, block.table, tuple(i for i in factor.axes if i in axes)) > 0
            for factor in block.factors
        )

    def squared(self, block: RowBlock, axes: tuple[int, ...], integers: tuple[AxisIntegers, ...]) -> float:
        """weight^2 ||w_T B_T^+||^2 of a block's part in a residual."""
        total = (block.weight * block.coefficient) ** 2
        sizes = self.batch.sizes[block.table]
        for factor in block.factors:
            inside = tuple(i for i in factor.axes if i in axes)
            mine = tuple(integers[axes.index(i)] for i in inside)
            key = (id(factor), inside, tuple(_tag(part) for part in mine))
            if key not in self.errors:
                self.errors[key] = float(factor.squares(inside, mine, sizes).sum())
            total *= self.errors[key]
        return total

    def _solve(self, gram: Floats, d: int) -> AxisIntegers:
        key = np.round(gram / np.abs(gram).max(), 9).tobytes()
        if key not in self.solved:
            self.solved[key] = self._selected(gram, d)
        found = self.solved[key]
        if self.noise == "gaussian":
            return found
        choices: tuple[AxisIntegers, ...] = (found, Plain(d), Centre(d))
        root = _root(gram)
        return min(choices, key=lambda part: part.norms[0] ** 2 * float(part.squares(root).sum()))

    def _selected(self, gram: Floats, d: int) -> Mixed:
        """The best strategy for a Gram matrix on what is orthogonal to 1, in the basis e_a - e_d."""
        inner = gram[:-1, :-1] + _RIDGE * np.trace(gram) / d * (np.eye(d - 1) + 1.0)
        rows = sparse.csr_array(np.hstack([np.eye(d - 1, dtype=np.int64), -np.ones((d - 1, 1), dtype=np.int64)]))
        # A centred w has the coordinates w[:-1] in rows e_a - e_d, since its entries add up to 0.
        held = Workload(rows, Dense(cholesky(inner)))
        left = None if self.deadline is None else max(self.deadline - monotonic(), 1e-9)
        chosen = select(held, self.noise, tolerance=self.tolerance / 3, time_limit=left)
        mixing = dense(chosen.mixing)
        matrix = np.asarray(mixing @ chosen.basis.toarray(), dtype=np.int64)
        return _shortened(matrix, _root(gram), 0 if self.noise == "laplace" else 1, self.tolerance / 10.0)


def _is_marginal(matrix: Any) -> bool:
    p, d = matrix.shape
    return bool(p == d == matrix.nnz and (matrix.data == 1).all() and len(np.unique(matrix.indices)) == d)


def _tag(part: AxisIntegers) -> object:
    return id(part) if isinstance(part, Mixed) else (type(part), part.d)


def _is_centring(gram: Floats, d: int) -> bool:
    level = np.trace(gram) / (d - 1)
    return bool(np.abs(gram - level * (np.eye(d) - 1.0 / d)).max() <= 1e-9 * level)


def _centred(factor: Any, inside: tuple[int, ...], sizes: tuple[int, ...]) -> Floats:
    """A factor's part: (rows, regions of each inner axis), centred along them, averaged over the others."""
    held = factor.part(inside, sizes)
    held = held.toarray() if hasattr(held, "toarray") else np.asarray(held)
    held = held.reshape(-1, *(sizes[i] for i in inside))
    for at in range(len(inside)):
        held = held - held.mean(axis=1 + at, keepdims=True)
    return np.asarray(held)


def _root(gram: Floats) -> Floats:
    s, V = np.linalg.eigh(gram)
    return np.asarray(np.sqrt(np.maximum(s, 0.0))[:, None] * V.T)


def _shortened(matrix: NDArray[np.int64], root: Floats, order: int, tolerance: float) -> Mixed:
    """The strategy of ``matrix`` in fewer bits, its error within ``tolerance``: products of several must fit 62 bits.

    Rows that are orthogonal to 1 stay so: they are rounded in the basis e_a - e_d. ``root``: of the Gram matrix.
    """

    def error(part: Mixed) -> float:
        norm = float(part.norms[order])
        return (norm if order else norm**2) * float(part.squares(root).sum())

    matrix = matrix[np.abs(matrix).any(axis=1)]
    centred = not matrix.sum(axis=1).any()
    rank = matrix.shape[1] - int(centred)
    held = matrix[:, :-1] if centred else matrix
    whole = Mixed(np.asarray(matrix // np.gcd.reduce(matrix, axis=None)))
    target, top = (1.0 + tolerance) * error(whole), float(np.abs(held).max())
    for bits in range(3, 24):
        short = np.rint(held * (2.0**bits / top)).astype(np.int64)
        short = short[np.abs(short).any(axis=1)]
        if np.linalg.matrix_rank(short.astype(np.float64)) < rank:
            continue
        short = short // np.gcd.reduce(short, axis=None)
        found = Mixed(np.hstack([short, -short.sum(axis=1, keepdims=True)]) if centred else short)
        if found.growth < whole.growth and error(found) <= target:
            return found
    return whole


# -- weights ----------------------------------------------------------------------------------------


def _groups(batch: Structured, drafts: Sequence[tuple[Residual, float]]) -> list[list[int]]:
    """The numbers of the drafts that one unit can move, unit by unit."""
    label = {table: batch.layouts[owned[0]].source.protects for table, owned in enumerate(batch.owners) if owned}
    found: dict[str, list[int]] = {}
    for number, (residual, _) in enumerate(drafts):
        found.setdefault(label[residual.table], []).append(number)
    return list(found.values())


def _multiplicities(batch: Structured) -> Mapping[int, int]:
    return {table: batch.layouts[owned[0]].multiplicity for table, owned in enumerate(batch.owners) if owned}


def _weights(
    batch: Structured, drafts: Sequence[tuple[Residual, float]], groups: Sequence[Sequence[int]], noise: str
) -> Floats:
    """The real multipliers at sensitivity 1 of every unit; see the module."""
    rows = _multiplicities(batch)
    out = np.zeros(len(drafts))
    for group in groups:
        error = np.array([drafts[i][1] for i in group])
        order = 0 if noise == "laplace" else 1
        norm = np.array([float(drafts[i][0].norms[order]) for i in group])
        times = np.array([float(rows[drafts[i][0].table]) for i in group])
        if noise == "laplace":
            k = np.cbrt(error / (norm * times))
            out[list(group)] = k / float(k @ (norm * times))
        else:
            k = (error / (norm * times**2)) ** 0.25
            out[list(group)] = k / sqrt(float(k**2 @ (norm * times**2)))
    return out


def _rounded(
    batch: Structured, drafts: Sequence[tuple[Residual, float]], wanted: Floats, noise: str, tolerance: float
) -> tuple[tuple[Residual, ...], float, int, int]:
    """(residuals with whole multipliers, error at sensitivity 1, L1, squared L2) within tolerance / 10 of the best."""
    error = np.array([e for _, e in drafts])
    target = float((error / wanted**2).sum())
    rows = _multiplicities(batch)
    common = common_multiplicity(batch.layouts)
    label = {t: batch.layouts[owned[0]].source.protects for t, owned in enumerate(batch.owners) if owned}
    step = 1
    while True:
        k = np.maximum(1, np.rint(wanted * (step / wanted.min()))).astype(np.int64)
        totals: dict[str, list[int]] = {}
        for (residual, _), times in zip(drafts, k.tolist(), strict=True):
            l1, l2 = residual.norms
            held = totals.setdefault(label[residual.table], [0, 0])
            held[0] += times * l1 * rows[residual.table]
            held[1] += times**2 * l2 * rows[residual.table] ** 2
        l1, l2 = max(held[0] for held in totals.values()), max(held[1] for held in totals.values())
        sensitivity = float(l1) ** 2 if noise == "laplace" else float(l2)
        found = sensitivity * float((error / k.astype(np.float64) ** 2).sum())
        if found <= (1.0 + tolerance / 10.0) * target or step >= _STEPS:
            break
        step *= 2
    shared = gcd(*k.tolist())
    k //= shared
    residuals = tuple(
        Residual(r.table, r.component, r.axes, r.histogram, r.integers, times)
        for (r, _), times in zip(drafts, k.tolist(), strict=True)
    )
    held_integers = KroneckerIntegers(batch.histograms, residuals)
    held_integers.check()
    # The figures that count are worked out from what is measured, as for any other strategy.
    l1 = sensitivity_of("laplace", held_integers, batch.layouts)
    l2 = sensitivity_of("gaussian", held_integers, batch.layouts)
    sensitivity = (l1 / common) ** 2 if noise == "laplace" else l2 / common**2
    expected = sensitivity * float((error / k.astype(np.float64) ** 2).sum())
    return residuals, expected, -(-l1 // common), -(-l2 // common**2)


def _bound(batch: Structured, drafts: Sequence[tuple[Residual, float]], groups: Sequence[Sequence[int]]) -> float:
    """The singular value bound of marginals, table by table: (sum_T (e_T n_T)^1/2)^2 for k rows of a unit.

    Tables apart: what units with rows in several cost beyond it is part of the gap.
    """
    rows, common = _multiplicities(batch), common_multiplicity(batch.layouts)
    found: dict[int, float] = {}
    for residual, error in drafts:
        found[residual.table] = found.get(residual.table, 0.0) + sqrt(error * residual.norms[1])
    return sum((rows[table] / common) ** 2 * root**2 for table, root in found.items())


__all__ = ["METHOD", "MIXED", "StructuredStrategy", "structured_strategy"]
