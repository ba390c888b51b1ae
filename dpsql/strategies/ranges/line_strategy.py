"""All ranges or all prefixes of a line so long that they cannot be listed: what to measure, in closed form.

Each answer's error must follow from stored numbers by a formula that SQL can evaluate, for there are n (n + 1) / 2
ranges. So the strategy is one whose inverse is known in closed form (``dpsql.linalg.lines``):

- Ranges, Gaussian: a circulant. Averaged over the cyclic shifts of the line, the Gram matrix of all ranges has the
  eigenvalues g_m = sum_k (n + 1 - k) |1_k^(m)|^2, k the length; among circulants the least error is at c_m = g_m^1/4
  (Cauchy and Schwarz), and it is (sum_m g_m^1/2)^2 / n^2 before rounding. All ranges of a length have one error. Ours.
  It exceeds the least of any mechanism by 2.5 % of the squared error at n = 2^20, 3.7 % at 4096, which is certified
  against the bound of ``dpsql.strategies.ranges.range_transform``; that transform itself is nearer, 0.004 %, but its
  errors have no form that SQL could evaluate.
- Prefixes, Gaussian: the fourth root of their Gram matrix with columns of one length, as
  ``dpsql.strategies.ranges.range_transform`` has it of all ranges, by ``dpsql.linalg.prefix_line``: 0.4 to 0.5 % above
  the bound. Up to 4096 cells each of its rows is divided by that cell's entry of the square root's diagonal first,
  which leaves 0.06 to 0.25 %: of powers of that diagonal the inverse first is the best at 256 to 1400 cells, within
  0.03 % of the optimum. (The square root of the triangular matrix of ones of Fichtenberger, Henzinger and Upadhyay
  2023, whose prefix j needs the first j measurements alone, has 7 to 13 %.)
- Laplace: nested blocks, branching and weights of least error (``dpsql.strategies.pure.hierarchical``). No bound is
  known.

Bounds for prefixes: as for ranges, E* >= sum_j ((G^1/2)_jj)^2. G^1/2 is L^-1/2 of a line of 2 n cells folded in its
middle, whose entries are f(i - j) - f(i + j) with f as in ``dpsql.linalg.sine``. Up to 4096 cells the nuclear norm
itself, from the eigenvalues of Lambda^-1/2 L Lambda^-1/2, which is tridiagonal, at weights that are powers 2.2 of that
diagonal: 0.2 % more, and within 0.1 % of the largest. Weights need not be the best: any give a bound.

A batch over a long line is the product of a small batch and the line. Both error and least error of a product of
workloads are products, where the changes that a row makes are products too: with dual weights lambda and mu for the
parts, lambda (x) mu is one for the whole (``dpsql.strategies.gaussian.optimal``), and the nuclear norm of a product is
the product of theirs. So error, lower bound and singular value bound multiply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg.convolution import LONGEST
from dpsql.linalg.forms import MATRIX_CAP, dense
from dpsql.linalg.lines import BlockLine, ByBlocks, CyclicLine, Line
from dpsql.linalg.prefix_line import WEIGHED, PrefixLine, prefix_kernel
from dpsql.linalg.sine import kernel_of
from dpsql.reconstruct import LineAnswers, MatrixAnswers
from dpsql.strategies.core.base import AnyWorkload, Strategy
from dpsql.strategies.core.limits import FACTOR_BITS, KERNEL_BITS
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.pure.hierarchical import weights_of_traces
from dpsql.strategies.ranges.range_transform import range_transform, roots
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.line_batch import Lined, LineIntegers
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload

FAMILIES = ("ranges", "prefixes")
_WEIGHT_BITS = 12
_ROW_BITS = 10
_DUAL = 2.2  # the power of the diagonal of G^1/2 whose weights give the largest bound, to 0.1


@dataclass(frozen=True, eq=False)
class LinePlan:
    """What is measured of a line, and its total squared error over all ranges, or all prefixes, of its cells.

    ``error`` is that at sensitivity 1 in the norm of the noise, of the integers that are measured. ``lower_bound``: no
    Gaussian matrix mechanism has a lower one (None for Laplace); ``svd_bound`` is the singular value bound.
    """

    line: Line = field(repr=False)
    family: str
    noise: str
    method: str
    error: float
    lower_bound: float | None
    svd_bound: float


def line_strategy(n: int, family: str, noise: str) -> LinePlan:
    """The strategy for all "ranges" or "prefixes" over n cells, 1 <= n <= 2^20; DataError beyond. Cost O(n log n)."""
    if not 1 <= n <= LONGEST or family not in FAMILIES:
        raise DataError(f"strategy: lines of 1 to {LONGEST:,} cells are measured for their ranges or prefixes")
    lower, svd_bound = _bounds(n, family)
    if noise == "laplace":
        line, total = _blocks(n, family)
        return LinePlan(line, family, noise, "nested-blocks", line.l1**2 * total, None, svd_bound)
    shift: CyclicLine | PrefixLine = CyclicLine(_circulant(n)) if family == "ranges" else _fourth_root(n)
    total = shift.spread.total(n, family)
    method = "circulant" if family == "ranges" else "prefix-transform"
    return LinePlan(shift, family, noise, method, shift.l2_squared * total, lower, svd_bound)


def _bounds(n: int, family: str) -> tuple[float, float]:
    """(a lower bound on the error of any Gaussian matrix mechanism, the singular value bound)."""
    if family == "ranges":
        known = range_transform(n)
        return known.lower, known.bound
    diagonal = _diagonal(n)
    singular = 1.0 / roots(2 * n)[::2]
    lower = float(diagonal @ diagonal)
    if n <= WEIGHED:
        root = diagonal ** (_DUAL / 2.0)
        root /= np.linalg.norm(root)
        on = np.append(np.full(n - 1, 2.0), 1.0) / root**2
        found = scipy.linalg.eigh_tridiagonal(on, -1.0 / (root[1:] * root[:-1]), eigvals_only=True)
        found += 2.0**-46 * found[-1]  # more than rounding takes off
        lower = max(lower, float((1.0 / np.sqrt(found)).sum() ** 2) * (1.0 - 1e-9))
    return lower, float(singular.sum() ** 2 / n)


def _diagonal(n: int) -> Floats:
    """The diagonal of the square root of the Gram matrix of prefixes (n,), from the last cell on."""
    period = 2 * n + 1
    f = kernel_of(1.0 / roots(2 * n))

    def at(k: Ints) -> Floats:
        k = np.abs(k) % (2 * period)
        return np.asarray(f[np.minimum(k, 2 * period - k)])

    j = np.arange(1, n + 1)
    return at(0 * j) - at(2 * j) + at(2 * j - period) - at(0 * j + period)


def _circulant(n: int) -> Ints:
    """f in integers: f(0) = 2^17."""
    k = np.arange(1, n + 1)
    often = np.zeros(n)
    often[k % n] = n + 1.0 - k
    half = np.sin(np.pi * np.arange(n // 2 + 1) / n)
    waves = scipy.fft.rfft(often).real if n > 1 else often
    gram = np.empty(n // 2 + 1)
    gram[0] = ((n + 1.0 - k) * k.astype(np.float64) ** 2).sum()
    gram[1:] = (waves[0] - waves[1:]) / (2.0 * half[1:] ** 2)
    f = scipy.fft.irfft(np.sqrt(np.sqrt(gram)), n) if n > 1 else np.ones(1)
    scaled = np.rint(f / f[0] * 2.0**KERNEL_BITS).astype(np.int64)
    # Symmetric to the last digit, so that the eigenvalues are real.
    return np.concatenate([scaled[: n // 2 + 1], scaled[1 : (n + 1) // 2][::-1]])


def _fourth_root(n: int) -> PrefixLine:
    """The fourth root of the Gram matrix of prefixes, its columns of one length, in integers.

    g(0) = 2^17, d < 2^18; the largest e of a line short enough is 2^10, or e is 1 where that is better (n = 2 and 3).
    """
    g = prefix_kernel(roots(2 * n)[::2] ** -0.5, 0.5**0.5)
    kernel, ones = np.rint(g / g[0] * 2.0**KERNEL_BITS).astype(np.int64), np.ones(n, dtype=np.int64)
    weights: list[Ints | None] = [None]
    if n <= WEIGHED:
        diagonal = _diagonal(n)
        weights.append(np.rint(diagonal.min() / diagonal * 2.0**_ROW_BITS).astype(np.int64))
    found = []
    for e in weights:
        norms = np.sqrt(PrefixLine(kernel, ones, e).squares.astype(np.float64))
        factors = np.floor((2.0**FACTOR_BITS - 1.0) * (norms.min() / norms)).astype(np.int64)
        found.append(PrefixLine(kernel, factors, e))
    return min(found, key=lambda line: line.l2_squared * line.spread.total(n, "prefixes"))


def _blocks(n: int, family: str) -> tuple[BlockLine, float]:
    """The nested blocks of least error, and their total squared error for noise of variance 1."""
    best: tuple[float, BlockLine, float] | None = None
    known: dict[int, float] = {}
    for depth in range(max(1, n.bit_length()) + 1):
        branching = 1 if depth == 0 else max(2, round(n ** (1.0 / depth)))
        sizes = [branching**level for level in range(max(depth, 1))]
        padded = -(-n // sizes[-1]) * sizes[-1]
        if padded > sizes[-1]:
            sizes.append(padded)
        sizes = [size for size in reversed(sizes) if size <= padded]
        for size in sizes:
            if size not in known:
                known[size] = ByBlocks((size,), (1.0,)).total(n, family)  # tr(G P), P averaging over blocks
        _, weights = weights_of_traces([known[size] for size in sizes], sizes, "laplace")
        whole = [max(1, round(w / weights.max() * 2**_WEIGHT_BITS)) if w > 0 else 0 for w in weights.tolist()]
        kept = [(size, weight) for size, weight in zip(sizes, whole, strict=True) if weight]
        line = BlockLine(n, padded, tuple(s for s, _ in kept), tuple(w for _, w in kept))
        total = sum(factor * known[size] for size, factor in zip(line.spread.sizes, line.spread.factors, strict=True))
        error = line.l1**2 * total
        if best is None or error < best[0] * (1.0 - 1e-9):
            best = (error, line, total)
    assert best is not None  # noqa: S101 - single cells are always tried
    return best[1], best[2]


@dataclass(frozen=True, eq=False)
class LinedStrategy(Strategy):
    """What is measured of a batch over a long line: ``rest`` of the small batch, ``along`` of the line.

    ``l1``, ``l2_squared``: sensitivity to a whole unit, over ``common_multiplicity`` (its square); products of both
    parts', exact. ``expected``: total squared error at sensitivity 1 in the objective's units. ``method`` is the
    line's, and the small batch's where that has more than one number.
    """

    planned: Lined = field(repr=False)
    rest: MatrixStrategy = field(repr=False)
    along: LinePlan
    noise: str
    method: str
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    objective: str = "total"

    @property
    def measured(self) -> LineIntegers:
        return LineIntegers(self.rest.measured, self.along.line)

    def error(self, W: AnyWorkload) -> float:
        """The product of both parts' errors."""
        if W is self.planned:
            return self.expected
        inner = self._lined(W).inner
        return self.rest.error(inner.workload(inner.objective)) * self.along.error

    def variances(self, W: AnyWorkload) -> Floats:
        """The squared errors (m,): the numbers of the small batch, each over all ranges by first and last value."""
        return np.asarray(np.kron(*self._parts(W)), dtype=np.float64)

    def largest(self, W: AnyWorkload) -> float:
        """The largest squared error: the product of both parts' largest."""
        small, line = self._parts(W)
        return float(small.max() * line.max())

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """The product of both parts' bounds."""
        return of(self.rest.planned) * self.along.svd_bound

    def answers_of(self, batch: Batch) -> LineAnswers:
        """Prefix sums of the line for each number of the small batch."""
        inner = self.planned.inner
        some = MatrixAnswers.of(self.rest.reconstruction(inner.workload(inner.scale)), inner.answered, inner.numbers)
        return LineAnswers(self.along.line, dense(some.whole), self.planned.line.family)

    def _parts(self, W: AnyWorkload) -> tuple[Floats, Floats]:
        """The squared errors of the small batch, and those of the line's ranges."""
        inner = self._lined(W).inner
        if len(self.planned.line) > MATRIX_CAP:
            raise DataError(f"strategy: {len(self.planned.line):,} ranges are too many to be listed one by one")
        times = float(self.along.line.l2_squared if self.noise == "gaussian" else self.along.line.l1**2)
        return self.rest.variances(inner.workload(inner.objective)), times * self.along.line.spread.of(*self._ranges())

    def _ranges(self) -> tuple[Ints, Ints]:
        """(first, stop) of the line's ranges, or of its prefixes."""
        n = self.planned.length
        if self.along.family == "prefixes":
            return np.zeros(n, dtype=np.int64), np.arange(1, n + 1)
        first, last = np.triu_indices(n)
        return first, last + 1

    def _lined(self, W: AnyWorkload) -> Lined:
        if not isinstance(W, Lined) or (W.length, W.line.family) != (self.planned.length, self.along.family):
            raise DataError(f"strategy: this one is for {self.along.family} over {self.planned.length:,} values")
        return W


def lined_strategy(batch: Lined, rest: MatrixStrategy, objective: str = "total") -> LinedStrategy:
    """The strategy for ``batch``, whose small batch is measured by ``rest``. DataError for another objective."""
    if objective == "max":
        raise DataError(
            f"{batch.line.text} has {len(batch.line):,} groups and is planned for the least total error; leave "
            "objective='max' out"
        )
    if rest.blocks:
        raise InternalError("strategy: norms of noise in blocks do not multiply along a line")
    along = line_strategy(batch.length, batch.line.family, rest.noise)
    line, expected = along.line, rest.expected * along.error
    method = along.method if rest.shape == (1, 1) else f"{along.method} x {rest.method}"
    known = rest.lower_bound is not None and along.lower_bound is not None
    return LinedStrategy(
        *(batch, rest, along, rest.noise, method, rest.l1 * line.l1, rest.l2_squared * line.l2_squared, expected),
        lower_bound=(rest.lower_bound or 0.0) * (along.lower_bound or 0.0) if known else None,
        considered=((method, expected),),
        objective=objective,
    )
