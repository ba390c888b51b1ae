"""The matrices that residuals of structured batches are measured by, one for each axis.

Where all blocks have equal Gram matrices on an axis, up to a factor, the best B_T is the product of the axes'
best (``dpsql.strategies.core.simple``); for marginals that is d I - 1 1^T, and the error is the singular value bound,
the least of any Gaussian matrix mechanism (Li and Miklau 2013, Thm 5.5): certified. Otherwise each axis gets the
optimum of its blocks' summed Gram matrices, each scaled by what the other axes leave of it; the error is computed from
what is measured, exactly, and set against ``structured_bound`` where that is within reach. The Laplace optimum is not
known; of d I - 1 1^T, I and the best for the axis by ``select``, or by sums of alike regions
(``dpsql.strategies.pure.exchangeable_sums``), the least l^2 ||w B^+||^2 is taken, and all of it only where whole tables
(``dpsql.strategies.kronecker.structured_blocks``) have no lower error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from time import monotonic
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Array, Floats, Ints
from dpsql.common.numerics import NEGLIGIBLE, ROUNDING, SINGULAR
from dpsql.errors import DataError
from dpsql.linalg.blocks import AxisIntegers, Centre, Mixed, Plain, RowBlock, RowFactor, even
from dpsql.linalg.forms import dense
from dpsql.linalg.inner import Dense
from dpsql.strategies.choose.best import searched
from dpsql.strategies.core.reduce import cholesky
from dpsql.strategies.core.time_left import step_seconds
from dpsql.strategies.gaussian.exchangeable import Classes, classes_of, solve_classes
from dpsql.strategies.gaussian.optimal import solve_cells
from dpsql.strategies.kronecker.centres import AxisCentres
from dpsql.strategies.marginals.multipliers import Place
from dpsql.strategies.pure.exchangeable_sums import MOST_CLASSES, sums_of_classes
from dpsql.workloads.compile.choice import LONG_AXIS
from dpsql.workloads.compile.structured import Structured, is_marginal, is_nearly_marginal
from dpsql.workloads.families.matrix import Workload

Choice = TypeVar("Choice", bound=AxisIntegers)

_RIDGE = 1e-8
_CLASS_BITS = 22  # of the largest entry before a matrix found by classes is shortened
_LONG = 256  # regions from which a Gaussian search takes the regions themselves, not rows over them
_EVEN = 0.01  # share of even weights where a search starts at given ones
_SEARCHED = 64  # regions up to which Laplace noise tries all methods beside the sums of classes


class ResidualMatrices:
    """The matrices of residuals, axis by axis, each distinct problem solved once."""

    def __init__(
        self,
        batch: Structured,
        noise: str,
        tolerance: float,
        deadline: float | None,
        centres: AxisCentres | None = None,
    ) -> None:
        self.batch = batch
        self.centres = {key: held.integers for key, held in (centres or {}).items() if held.integers is not None}
        self.weights = {n.tobytes(): (centres or {})[key].weights for key, n in self.centres.items()}
        self.optima: dict[bytes, Floats] = {}  # the weights of the first matrix around each centre
        self.noise = noise
        self.tolerance = tolerance
        self.deadline = deadline
        self.solved: dict[bytes, Mixed] = {}
        self.rows: dict[tuple[int, tuple[int, ...]], Floats | None] = {}
        self.parts: dict[tuple[int, tuple[int, ...]], float] = {}
        self.errors: dict[tuple[object, ...], float] = {}

    @cached_property
    def means(self) -> tuple[tuple[Floats, ...], ...]:
        """The centre of each axis of each table."""
        means = [list(even(sizes)) for sizes in self.batch.sizes]
        for (table, axis), n in self.centres.items():
            means[table][axis] = n / float(n.sum())
        return tuple(map(tuple, means))

    def integers(self, place: Place, blocks: Sequence[RowBlock]) -> tuple[AxisIntegers, ...]:
        """A matrix for each axis of a residual."""
        table, _, axes = place
        sizes = self.batch.sizes[table]
        return tuple(self._axis(axis, axes, sizes[axis], blocks, self.centres.get((table, axis))) for axis in axes)

    def _axis(
        self, axis: int, axes: tuple[int, ...], d: int, blocks: Sequence[RowBlock], centre: Ints | None
    ) -> AxisIntegers:
        if d == 2 and centre is None:
            return Plain(2) if self.noise == "laplace" else Centre(2)
        total: Floats | None = None  # where a block needs a matrix: an axis of groups alone may be long
        level = 0.0
        waiting: list[Floats] = []  # rows whose products are taken together
        for block in blocks:
            if self.deadline is not None and monotonic() >= self.deadline:
                return self._unsearched(d, centre)
            rows, scale = self._rows(block, axis, axes)
            if rows is None:
                level += scale
            elif scale:
                waiting.append(np.sqrt(scale) * rows)
                if sum(map(len, waiting)) >= d:
                    total, waiting = _products(waiting, total), []
        if waiting:
            total = _products(waiting, total)
        trace = 0.0 if total is None else float(np.trace(total))
        if centre is None and (total is None or trace <= 0 or _is_centring(total, d)):
            return self._unsearched(d, None)
        total = np.zeros((d, d)) if total is None else total
        total = total / (trace + level * (d - 1))
        if level:
            total += (np.eye(d) - 1.0 / d) * (level / (trace + level * (d - 1)))
        return self._solve(total, d, centre)

    def _unsearched(self, d: int, centre: Ints | None) -> AxisIntegers:
        """What every region alone would be measured by."""
        if centre is None:
            return Plain(d) if self.noise == "laplace" else Centre(d)
        return Mixed(np.eye(d, dtype=np.int64) * centre.sum() - centre[:, None], centre)

    def _rows(self, block: RowBlock, axis: int, axes: tuple[int, ...]) -> tuple[Floats | None, float]:
        """(Rows whose products are a block's on one axis, what its other factors leave of them); None where it is C."""
        scale = (block.weight * block.coefficient) ** 2
        rows: Floats | None = None
        for factor in block.factors:
            inside = tuple(i for i in factor.axes if i in axes)
            if axis in inside:
                rows = self._factor_rows(factor, block.table, inside, axis)
            else:
                scale *= self._length(factor, block.table, inside)
        return rows, scale

    def _factor_rows(self, factor: RowFactor, table: int, inside: tuple[int, ...], axis: int) -> Floats | None:
        key = (id(factor), (*inside, -1, axis))
        if key not in self.rows:
            sizes = self.batch.sizes[table]
            d = sizes[axis]
            matrix = factor.matrix
            if len(factor.axes) == 1 and (is_marginal(matrix) or (d > LONG_AXIS and is_nearly_marginal(matrix))):
                self.rows[key] = None  # of a long axis a few regions in no group, such as NULL, make no difference
            else:
                if d > LONG_AXIS:
                    raise DataError(
                        f"strategy: {self.batch.names[table][axis]} has {d:,} regions, at most {LONG_AXIS:,} are "
                        "planned beside many others unless each is a group: drop the column, or use coarser ranges"
                    )
                held = factor.centred(inside, self.means[table])
                held = np.moveaxis(held, 1 + inside.index(axis), -1).reshape(-1, d)
                self.rows[key] = held if len(held) <= d else np.asarray(scipy.linalg.qr(held, mode="r")[0][:d])
        return self.rows[key]

    def _length(self, factor: RowFactor, table: int, inside: tuple[int, ...]) -> float:
        """||M||^2 of a factor's part, centred along ``inside``."""
        key = (id(factor), inside)
        if key not in self.parts:
            self.parts[key] = factor.length(inside, self.means[table])
            whole = float(factor.matrix.power(2).sum())
            if self.parts[key] <= NEGLIGIBLE * whole:
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
        means = self.means[block.table]
        for factor in block.factors:
            inside = tuple(i for i in factor.axes if i in axes)
            mine = tuple(integers[axes.index(i)] for i in inside)
            key = (id(factor), inside, tuple(_tag(part) for part in mine))
            if key not in self.errors:
                self.errors[key] = float(factor.squares(inside, mine, means).sum())
            total *= self.errors[key]
        return total

    def _solve(self, gram: Floats, d: int, centre: Ints | None = None) -> AxisIntegers:
        key = np.round(gram / np.abs(gram).max(), 9).tobytes() + (b"" if centre is None else centre.tobytes())
        if key not in self.solved:
            if not self._in_time(gram, d):
                return self._unsearched(d, centre)  # no search, and its error is known
            self.solved[key] = self._selected(gram, d) if centre is None else self._around(gram, d, centre)
        found = self.solved[key]
        if self.noise == "gaussian":
            return found
        return _least((found, Plain(d), Centre(d)), gram)

    def _in_time(self, gram: Floats, d: int) -> bool:
        """Whether a matrix is likely to be found in what is left of the time."""
        if self.deadline is None:
            return True
        left = self.deadline - monotonic()
        step = step_seconds(d, d)
        if left <= 0 or step > left:
            return False
        # A search, rounded and shortened: one that is cut short may do worse than none.
        return 10.0 * step <= left or self._exchangeable(gram) is not None

    def _selected(self, gram: Floats, d: int) -> Mixed:
        """The best strategy for a Gram matrix on what is orthogonal to 1, in the basis e_a - e_d."""
        order = 0 if self.noise == "laplace" else 1
        held_classes = self._exchangeable(gram)
        if held_classes is not None and order:
            found = self._by_classes(gram, held_classes)
            if found is not None:
                return found
        elif held_classes is not None:
            found = self._sums_by_classes(gram, held_classes)
            if d > _SEARCHED:
                return found
            return _least((found, self._searched(gram, d, order)), gram)
        if order and d > _LONG:
            found = self._of_long_axis(gram, _ridged(gram))
            if found is not None:
                return found
        return self._searched(gram, d, order)

    def _searched(self, gram: Floats, d: int, order: int) -> Mixed:
        """The same by the methods for any matrix."""
        inner = gram[:-1, :-1] + _RIDGE * np.trace(gram) / d * (np.eye(d - 1) + 1.0)
        rows = sparse.csr_array(np.hstack([np.eye(d - 1, dtype=np.int64), -np.ones((d - 1, 1), dtype=np.int64)]))
        # A centred w has the coordinates w[:-1] in rows e_a - e_d, since its entries add up to 0.
        held = Workload(rows, Dense(cholesky(inner)))
        left = None if self.deadline is None else max(self.deadline - monotonic(), 1e-9)
        chosen = searched(held, self.noise, tolerance=self.tolerance / 3, time_limit=left)
        matrix = np.asarray(dense(chosen.mixing @ chosen.basis), dtype=np.int64)
        return _shortened(matrix, _root(gram), order, self.tolerance / 10.0)

    def _around(self, gram: Floats, d: int, n: Ints) -> Mixed:
        """The best strategy for a Gram matrix and Gaussian noise with rows orthogonal to ``n``, N = sum n.

        They are spanned by N e_a - n_a 1, a < d: there w - w v 1, v = n / N, has the coordinates (w_a - w_d) / N.
        """
        N = int(n.sum())
        ridged = gram + _RIDGE * np.trace(gram) / d * np.eye(d)
        if d > _LONG:
            found = self._of_long_axis(gram, ridged, n)
            if found is not None:
                return found
        inner = _differences(ridged) / float(N) ** 2
        rows = N * np.eye(d, dtype=np.int64)[:-1] - n[:-1, None]
        left = None if self.deadline is None else max(self.deadline - monotonic(), 1e-9)
        held = Workload(sparse.csr_array(rows), Dense(cholesky(inner)))
        chosen = searched(held, "gaussian", tolerance=self.tolerance / 3, time_limit=left)
        matrix = np.asarray(dense(chosen.mixing @ chosen.basis), dtype=np.int64)
        return _shortened(matrix, _root(gram), 1, self.tolerance / 10.0, n)

    def _exchangeable(self, gram: Floats) -> Classes | None:
        """The classes by which a matrix is found for the noise; None where regions fall into too many of them."""
        held = classes_of(_ridged(gram))
        return None if held is None or (self.noise == "laplace" and held.sizes.size > MOST_CLASSES) else held

    def _sums_by_classes(self, gram: Floats, classes: Classes) -> Mixed:
        """For Laplace noise, where regions fall into a few classes of alike ones: all regions, and sums of classes."""
        root = sums_of_classes(classes, np.inf if self.deadline is None else self.deadline)
        whole = np.rint(root * (2.0**_CLASS_BITS / float(root.max()))).astype(np.int64)
        return _shortened(whole, _root(gram), 0, self.tolerance / 10.0)

    def _by_classes(self, gram: Floats, classes: Classes) -> Mixed | None:
        """For Gaussian noise the same; None where it is not within the tolerance of the optimum."""
        found = solve_classes(classes, self.tolerance / 30, self._until)  # a step costs next to nothing
        return self._rounded(found.metric, found.upper, _root(gram))

    def _of_long_axis(self, gram: Floats, ridged: Floats, n: Ints | None = None) -> Mixed | None:
        """For Gaussian noise the same of many regions, by steps over the regions themselves.

        Those of a domain's order are often the same from both ends, so that a step costs a quarter.
        """
        d = gram.shape[0]
        v = np.full(d, 1.0 / d) if n is None else n / float(n.sum())
        root = _root(gram) if n is None else cholesky(ridged)
        if n is not None:  # of rows w - w v 1
            pull = ridged @ v
            ridged = ridged - pull[:, None] - pull + float(v @ pull)
        mirror = bool(np.abs(ridged - ridged[::-1, ::-1]).max() <= ROUNDING * np.abs(ridged).max())
        start, near, key = np.full(d, 1.0 / d), 0.9 * self.tolerance / 3, b"" if n is None else n.tobytes()
        given = self.optima.get(key, self.weights.get(key))
        if given is not None:
            near = self.tolerance / 10  # a step or two from there
            start = _EVEN * start + (1.0 - _EVEN) * given  # those of next to nothing may not be so here
        found = solve_cells(ridged, near, self._until, start, mirror=mirror, singular=True)
        if key:
            self.optima.setdefault(key, found.weights)
        X = found.metric - v @ found.metric  # what rounding left of the null vector adds up over all rows
        return self._rounded(X - (X @ v)[:, None], found.upper, root, n)

    @property
    def _until(self) -> float:
        return np.inf if self.deadline is None else self.deadline

    def _rounded(self, X: Floats, upper: float, root: Floats, n: Ints | None = None) -> Mixed | None:
        """A matrix in integers whose squares are X, X 1 = 0 or X n = 0, for ``root``, a root of the Gram matrix; None
        where it costs more than a third of the tolerance.
        """
        # X = F^T M F with F = [I, -1] and M without the last row and column of X, or F = N [I, 0] - n 1^T, N = sum n.
        factor = cholesky(X[:-1, :-1] if n is None else _differences(X))
        short = np.rint(factor * (2.0**_CLASS_BITS / float(np.abs(factor).max()))).astype(np.int64)
        target = (1.0 + self.tolerance / 3) * upper
        found = _shortened(_spanned(short, n), root, 1, self.tolerance / 10.0, n)
        return found if float(found.norms[1]) * float(found.squares(root).sum()) <= target else None


def _spanned(S: Ints, n: Ints | None) -> Ints:
    """The rows S [I, -1], or S times N e_a - n_a 1 around a centre."""
    if n is None:
        return np.hstack([S, -S.sum(axis=1, keepdims=True)])
    return np.asarray(np.hstack([S * n.sum(), np.zeros((len(S), 1), dtype=np.int64)]) - S @ n[:-1, None])


def _differences(M: Floats) -> Floats:
    """E^T M E with E = [I; -1^T]."""
    held = M[:, :-1] - M[:, -1:]
    return np.asarray(held[:-1] - held[-1:])


def _products(rows: Sequence[Floats], total: Floats | None) -> Floats:
    """V^T V of the stacked rows V, added to what there is."""
    stacked = np.concatenate(rows)
    return np.asarray(stacked.T @ stacked + (0.0 if total is None else total))


def _ridged(gram: Floats) -> Floats:
    """A Gram matrix with its ridge, so that all that is orthogonal to 1 is measured."""
    d = gram.shape[0]
    return np.asarray(gram + _RIDGE * np.trace(gram) / d * (np.eye(d) - 1.0 / d))


def _least(choices: Sequence[Choice], gram: Floats) -> Choice:
    """The matrix of least l^2 ||w B^+||^2, the first of several."""
    root = _root(gram)
    return min(choices, key=lambda part: part.norms[0] ** 2 * float(part.squares(root).sum()))


def _tag(part: AxisIntegers) -> object:
    return id(part) if isinstance(part, Mixed) else (type(part), part.d)


def _is_centring(gram: Floats, d: int) -> bool:
    level = np.trace(gram) / (d - 1)
    return bool(np.abs(gram - level * (np.eye(d) - 1.0 / d)).max() <= 1e-9 * level)


def _root(gram: Floats) -> Floats:
    s, V = np.linalg.eigh(gram)
    return np.asarray(np.sqrt(np.maximum(s, 0.0))[:, None] * V.T)


def _shortened(
    matrix: NDArray[np.int64], root: Floats, order: int, tolerance: float, centre: Ints | None = None
) -> Mixed:
    """The strategy of ``matrix`` in fewer bits, its error within ``tolerance``: products of several must fit 62 bits.

    Rows that are orthogonal to 1 stay so: they are rounded in the basis e_a - e_d. Those orthogonal to a ``centre`` n
    are rounded in N e_a - n_a 1, a < d, N = sum n. ``root``: of the Gram matrix.
    Cost: one QR of ``matrix`` for each of about five numbers of bits, none where its coordinates are triangular.
    """
    matrix = matrix[np.abs(matrix).any(axis=1)]
    centred = centre is None and not matrix.sum(axis=1).any()

    def coordinates(rows: Array) -> Array:
        """S with root B^+ = T S^+: B = S [I, -1] and root = T [I, -1]; or S = B E, T = root E, E = [I; -1^T]."""
        if centre is None:
            return rows[:, :-1] if centred else rows
        return np.asarray(rows[:, :-1] - rows[:, -1:])

    def spanned(S: Ints) -> Mixed:
        """The strategy with these coordinates, N times as large around a centre."""
        S = S[np.abs(S).any(axis=1)]
        out = _spanned(S, centre) if centred or centre is not None else S
        return Mixed(np.asarray(out // np.gcd.reduce(out, axis=None)), centre)

    held, numerator = coordinates(matrix), coordinates(root).T

    def error(part: Mixed) -> float:
        size = np.abs(part.matrix.astype(np.float64))
        norm = float((size * size if order else size).sum(axis=0).max())  # exact ones of large entries take long
        return (norm if order else norm**2) * _squared_quotient(numerator, coordinates(part.matrix).astype(np.float64))

    whole = Mixed(np.asarray(matrix // np.gcd.reduce(matrix, axis=None)), centre)
    target, top = (1.0 + tolerance) * error(whole), float(np.abs(held).max())
    best, low, high = whole, 3, 24  # bits of the largest entry
    while low < high:  # more bits are nearer, so the least number that suffices is found by halving
        bits = (low + high) // 2
        found = spanned(np.rint(held * (2.0**bits / top)).astype(np.int64))
        if found.growth < whole.growth and error(found) <= target:
            best, high = found, bits
        else:
            low = bits + 1
    return best


def _squared_quotient(numerator: Floats, S: Floats) -> float:
    """||T S^+||_F^2, ``numerator`` = T^T, for S (p x v) of full column rank; inf where it has not."""
    if S.shape[0] < S.shape[1]:
        return np.inf
    triangular = S.shape[0] == S.shape[1] and not np.tril(S, -1).any()
    R = S if triangular else scipy.linalg.qr(S, mode="r", check_finite=False)[0][: S.shape[1]]
    diagonal = np.abs(np.diag(R))
    if diagonal.min() <= diagonal.max() * SINGULAR:
        return np.inf
    half = scipy.linalg.solve_triangular(R, numerator, trans="T", check_finite=False)
    return float(np.einsum("ij,ij->", half, half))
