"""Marginals over any number of attributes, measured in exact integers and reconstructed, without their cells.

y = B x + z, with one law of noise for every entry of z. B is a stack of Kronecker products, one matrix for each
attribute, and it is measured on marginal tables of x (``dpsql.workloads.compile.kronecker``). Neighbours: one record
more or less in one cell. There are two kinds:

- Gaussian noise: residuals. The plan of ``dpsql.strategies.marginals.residual`` wants noise of another scale on every
  residual T. Instead row block T is multiplied by a whole number k_T in proportion to 1 / (s_T^1/2 prod_(i in T) d_i):
  k_T B_T, B_T = product over i in T of (d_i I - 1 1^T), over the rest 1^T. Every column of B has the squared norm

      sum_T k_T^2 prod_(i in T) d_i (d_i - 1) = l2_squared,    for ||(d I - 1 1^T) e||^2 = (d - 1)^2 + (d - 1),

  an exact integer. Rounded Gaussian noise of rational variance l2_squared / mu^2 is mu-GDP.
- Laplace noise: blocks. k_S M_S of a few sets S (``dpsql.strategies.marginals.marginal_blocks``), M_S x the marginal
  table on S. A column of M_S has a single 1, so every column of B has the L1 norm sum_S k_S = ``l1``. Integer Laplace
  noise of scale l1 / epsilon is epsilon-differentially private (the Laplace mechanism).
- Pure noise in blocks: rows of signs of every residual (``dpsql.strategies.marginals.sign_blocks``), which have ``l1``
in
  the norm of the blocks.

Reconstruction is least squares (``dpsql.reconstruct.residual_answers``). With C_T the product of I - 1 1^T / d_i over
i in T, the residual T of x is estimated with the covariance C_T / N_T times the variance of the noise,

    N_T = k_T^2 prod_(i in T) d_i^2 of residuals,    sum over S containing T of k_S^2 / prod_(i in S - T) d_i of blocks,

and residuals of different T are uncorrelated. A marginal on U is the sum of those of its subsets T, spread evenly over
U - T; each of its cells has the variance sum_T prod_(i in T) (d_i - 1) / d_i / N_T / prod_(i in U - T) d_i^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg.blocks import AxisIntegers, Centre, Mixed, Plain, Residual
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.reconstruct import Answers, ResidualAnswers
from dpsql.strategies.core.base import AnyWorkload, Strategy
from dpsql.strategies.core.limits import MEASURED, WRITTEN
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.marginals.marginal_blocks import plan_blocks
from dpsql.strategies.marginals.multipliers import Subset, homes, precisions, subsets, whole_multipliers
from dpsql.strategies.marginals.residual import residual_plan
from dpsql.strategies.marginals.sign_blocks import precision, sign_plan, signs
from dpsql.strategies.marginals.sign_blocks import rows_of as sign_rows
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.histograms import homes_of
from dpsql.workloads.compile.kronecker import Histogram, KroneckerIntegers
from dpsql.workloads.compile.products import row_blocks
from dpsql.workloads.families.marginals import Marginals, spelled
from dpsql.workloads.families.matrix import Workload

RESIDUALS, BLOCKS, SIGNS = "residual-basis", "marginal-blocks", "sign-blocks"
_MATRIX_ROWS = 2000


@dataclass(frozen=True, eq=False, repr=False)
class MarginalStrategy(Strategy):
    """Integer measurements of ``multipliers``: k_T of residuals for Gaussian noise, k_S of blocks for Laplace noise.

    y holds the parts in the order of ``multipliers``, each over the cells of its set with the last attribute fastest.
    ``l1``, ``l2_squared``: norms of every column of B, exact. ``lower_bound``: the singular value bound (Li and Miklau
    2013, Thm 4.2), which residuals meet before rounding (Thm 5.5); None for blocks, of which no optimum is known.
    """

    planned: Marginals
    multipliers: Mapping[Subset, int]
    noise: str
    method: str
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    objective: str = field(default="total", init=False)
    blocks: tuple[int, ...] = ()

    def __repr__(self) -> str:
        p, n = self.shape
        return f"<Strategy {self.method} ({self.noise}): {p} measurements over {spelled(n)} cells, " + (
            f"error {self.expected:.6g}>"
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each attribute."""
        return self.planned.sizes

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n cells), Python integers of any size."""
        return (sum(self._rows(S) for S in self.multipliers), prod(self.sizes))

    @property
    def maximal(self) -> tuple[Subset, ...]:
        """The sets that lie in no other: a measurement takes the marginal tables on them."""
        whole = self._whole_tables
        return tuple(dict.fromkeys(homes_of(self.multipliers if whole else self.planned.sets).values()))

    @cached_property
    def measured(self) -> KroneckerIntegers:
        """B as it is measured, of the tables on ``maximal`` one after the other."""
        histograms, at = [], 0
        for S in self.maximal:
            histograms.append(Histogram(0, 0, S, tuple(self.sizes[i] for i in S), at))
            at = histograms[-1].stop
        whole = self._whole_tables
        part = signed if self.blocks else Plain if whole else Centre
        kinds: dict[int, AxisIntegers] = {d: part(d) for d in set(self.sizes)}
        home = homes(histograms, [(0, 0, T) for T in self.multipliers])
        return KroneckerIntegers(
            tuple(histograms),
            tuple(
                Residual(0, 0, T, home[0, 0, T], tuple(kinds[self.sizes[i]] for i in T), k, whole)
                for T, k in self.multipliers.items()
            ),
        )

    def integers(self, tables: Mapping[Subset, ArrayLike]) -> list[int]:
        """B x as Python integers, exactly, from marginal tables {S: counts of shape (d_i for i in S)} of one x.

        ``tables`` holds the ``maximal`` sets; others are not looked at. Raises DataError where one is missing or has
        another shape or no integer type of at most 64 bits.
        """
        x: list[int] = []
        for S in self.maximal:
            if S not in tables:
                raise DataError(
                    f"strategy: the marginal table on attributes {S} is missing; give one for each maximal set"
                )
            table, shape = np.asarray(tables[S]), tuple(self.sizes[i] for i in S)
            if table.shape != shape or table.dtype.kind not in "iu" or table.dtype == np.uint64:
                raise DataError(
                    f"strategy: the marginal table on attributes {S} takes whole counts, int64, of shape {shape}"
                )
            x.extend(table.ravel().tolist())
        return self.measured.times(x, 63)

    def solve(self, y: Sequence[int], sets: Iterable[Subset] | None = None) -> dict[Subset, Floats]:
        """Marginals from y, unbiased and consistent with each other: those on ``sets``, all planned ones by default.

        Raises DataError for another number of measurements, for |y| above 2^400, and where a residual of a set is not
        measured. Cost O(2^|S| cells of S) for each set S.
        """
        if len(y) != self.shape[0]:
            raise DataError(f"strategy: {len(y)} measurements for {self.shape[0]}; give one a row of B")
        chosen = [tuple(S) for S in (self.planned.sets if sets is None else sets)]
        if sets is not None:
            for S in chosen:
                self.variance(S)
        answers = self._whole if sets is None else self._answers(chosen)
        values = answers.estimate(y, 1)
        return {
            S: values[block.start : block.stop].reshape(block.key_sizes)
            for S, block in zip(chosen, answers.blocks, strict=True)
        }

    def variance(self, S: Sequence[int]) -> Fraction:
        """The variance of every cell of the marginal on S at noise of variance 1 (of blocks of one row), exact.

        Rounded Gaussian noise for squared sensitivity ``l2_squared`` has variance l2_squared / mu^2 + 1/12 at most.
        Raises DataError where a residual inside S is not measured.
        """
        chosen = tuple(sorted(set(S)))
        known = all(0 <= i < len(self.sizes) for i in chosen)
        spaces = subsets(i for i in chosen if self.sizes[i] > 1) if known else []
        found = self._precisions(spaces)
        if not known or len(found) < len(spaces):
            raise DataError(f"strategy: the marginal on attributes {chosen} was not planned for")
        total = Fraction(0)
        for T in spaces:
            rest = self._cells(i for i in chosen if i not in T)
            total += Fraction(prod(self.sizes[i] - 1 for i in T), self._cells(T) * rest**2) / found[T]
        return total

    def error(self, W: AnyWorkload) -> float:
        """sensitivity^2 times the sum of the variances of all answers of W, ``inf`` where W is not supported.

        Raises DataError for a workload that is no ``Marginals`` over these attributes.
        """
        if W is self.planned:
            return self.expected
        held = self._marginals(W)
        return self.sensitivity**2 * _squares(held, self._precisions(held.residuals()))

    def variances(self, W: AnyWorkload) -> Floats:
        """sensitivity^2 times the variance of every answer of W (m,): all cells of a marginal have one.

        Raises DataError as ``error``, and where W is not supported or has more than 2^27 answers.
        """
        held = self._marginals(W)
        if held.shape[0] > MATRIX_CAP:
            raise DataError(f"strategy: {held.shape[0]} queries are too many to be listed; ask variance for a marginal")
        each = [self.sensitivity**2 * w * w * float(self.variance(S)) for S, w in self._weighted(held)]
        return np.repeat(each, [self._cells(S) for S in held.sets])

    def matrix(self) -> Floats:
        """B (p x n) as floats. Raises DataError above 2^24 entries."""
        p, n = self.shape
        if p * n > WRITTEN:
            raise DataError(f"strategy: B would have {p} x {spelled(n)} entries; use measured, integers and solve")
        parts = []
        for residual in self.measured.residuals:
            out = np.full((1, 1), residual.multiplier, dtype=np.int64)
            by_axis = dict(zip(residual.axes, residual.integers, strict=True))
            for i, d in enumerate(self.sizes):
                eye = np.eye(d, dtype=np.int64)
                out = np.kron(out, by_axis[i].times(eye, 0) if i in by_axis else eye.sum(axis=0, keepdims=True))
            parts.append(out)
        return np.vstack(parts).astype(np.float64)

    def reconstruction(self, W: AnyWorkload) -> Floats:
        """R (m x p). Raises DataError as ``error``, where W is not supported, and above 2^27 entries."""
        held = self._marginals(W)
        m, p = held.shape[0], self.shape[0]
        if m * p > MATRIX_CAP:
            raise DataError(
                f"strategy: the reconstruction would have {m} x {p} entries; use solve, or fewer marginals at a time"
            )
        self.variances(held)  # all of them are supported
        answers = self._answers(held.sets)
        out = np.zeros((m, p))
        for (_, weight), block in zip(self._weighted(held), answers.blocks, strict=True):
            for at, part in answers.written.explicit(block).items():
                out[block.start : block.stop, at : at + part.shape[1]] = weight * part
        return out

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """That of the planned marginals."""
        return of(self.planned)

    def answers_of(self, batch: Batch) -> Answers:
        """All planned marginals, one after the other."""
        return self._whole

    def written_out(self) -> MatrixStrategy | None:
        """Blocks as a strategy with a matrix over all cells; None where B has over 2^24 entries or 2,000 rows."""
        p, n = self.shape
        if p * n > WRITTEN or p > _MATRIX_ROWS:
            return None
        k = np.repeat(np.array(list(self.multipliers.values())), [self._rows(S) for S in self.multipliers])
        rows = sparse.csr_array(self.matrix() / k[:, None]).astype(np.int64)
        mixing = sparse.csr_array(sparse.diags_array(k, dtype=np.int64))
        written = MatrixStrategy(
            *(self.method, self.noise, mixing, rows, None, self.l1, self.l2_squared, self.expected),
            *(self.lower_bound, self.considered, self.planned.explicit()),
            blocks=self.blocks,
        )
        if not self.blocks:
            return written
        # Rows of signs that were cut say a little of other residuals, too: with all cells at hand that is used.
        return replace(written, expected=float(written.variances(written.planned).sum()))

    @property
    def _whole_tables(self) -> bool:
        return self.noise == "laplace" and not self.blocks

    def _rows(self, T: Subset) -> int:
        return sign_rows(self.sizes, T) if self.blocks else self._cells(T)

    def _marginals(self, W: AnyWorkload) -> Marginals:
        if not isinstance(W, Marginals) or W.sizes != self.sizes:
            raise DataError(f"strategy: this one answers marginals over attributes of sizes {self.sizes}")
        return W

    def _weighted(self, W: Marginals) -> Iterable[tuple[Subset, float]]:
        return zip(W.sets, W.weights, strict=True)

    def _precisions(self, spaces: Iterable[Subset]) -> dict[Subset, Fraction]:
        """N_T of the residuals that are measured, exact."""
        if self.blocks:
            size = dict(zip(self.multipliers, self._sizes_of_blocks(), strict=True))
            return {T: precision(self.sizes, T, self.multipliers[T], size[T]) for T in spaces if T in size}
        if self.noise == "laplace":
            return precisions(self.sizes, spaces, {S: Fraction(k) for S, k in self.multipliers.items()})
        return {T: Fraction(self.multipliers[T] * self._cells(T)) ** 2 for T in spaces if T in self.multipliers}

    def _sizes_of_blocks(self) -> list[int]:
        """The rows of the block that each set is in."""
        ends, at = np.cumsum(self.blocks), np.cumsum([self._rows(T) for T in self.multipliers])
        return [self.blocks[int(b)] for b in np.searchsorted(ends, at)]

    @cached_property
    def _whole(self) -> ResidualAnswers:
        return self._answers(self.planned.sets)

    def _answers(self, sets: Sequence[Subset]) -> ResidualAnswers:
        every = [sparse.eye_array(d, dtype="int64", format="csr") for d in self.sizes]
        blocks = row_blocks(sets, [1.0] * len(sets), every)
        return ResidualAnswers(blocks, self.measured.residuals, (self.sizes,), blocks[-1].stop if blocks else 0)

    def _cells(self, S: Iterable[int]) -> int:
        return prod(self.sizes[i] for i in S)


def residual_strategy(W: Marginals, tolerance: float = 1e-5) -> MarginalStrategy:
    """The optimal Gaussian strategy for marginals in integers, with an error at most (1 + tolerance) times the plan's.

    Cost: the number of subsets of the sets; no table is made. Raises DataError for a tolerance outside (0, 1], above
    2^25 measurements, and where the integers of one residual would leave no room for the data in 62 bits.
    """
    plan = residual_plan(W)
    _check(W, plan.scale, tolerance)
    cells = {T: prod(W.sizes[i] for i in T) for T in plan.scale}

    def l2_of(k: Mapping[Subset, int]) -> int:
        return sum(k[T] ** 2 * prod(W.sizes[i] * (W.sizes[i] - 1) for i in T) for T in k)

    def error_of(k: Mapping[Subset, int]) -> float:
        return l2_of(k) * _squares(W, {T: (k[T] * cells[T]) ** 2 for T in k})

    wanted = {T: 1.0 / (sqrt(s) * cells[T]) for T, s in plan.scale.items()}
    k = whole_multipliers(wanted, error_of, (1.0 + tolerance) * plan.error)
    l1 = sum(k[T] * prod(2 * (W.sizes[i] - 1) for i in T) for T in k)
    error = error_of(k)
    ranked = ((RESIDUALS, error),)
    found = MarginalStrategy(W, k, "gaussian", RESIDUALS, l1, l2_of(k), error, plan.error, ranked)
    found.measured.check()
    return found


def block_strategy(W: Marginals, tolerance: float = 1e-4, effort: float = 1.0) -> MarginalStrategy:
    """Weighted blocks of marginals for W under pure epsilon, in integers within ``tolerance`` of the plan's error.

    No optimum is known: blocks are found by exchange (``dpsql.strategies.marginals.marginal_blocks``), the error is
    that of the integers. Cost: subsets of the sets times exchanges; no table is made. Raises DataError for a tolerance
    outside (0, 1] and above 2^25 measurements.
    """
    _check(W, (), tolerance)
    plan = plan_blocks(W, effort)
    _check(W, plan.blocks, tolerance)
    wanted = dict(zip(plan.blocks, plan.weights, strict=True))
    k = whole_multipliers(wanted, lambda k: blocks_error(W, k), (1.0 + tolerance) * plan.error)
    error = blocks_error(W, k)
    l1, l2_squared = sum(k.values()), sum(v * v for v in k.values())
    return MarginalStrategy(W, k, "laplace", BLOCKS, l1, l2_squared, error, None, ((BLOCKS, error),))


def sign_strategy(W: Marginals, tolerance: float = 1e-4) -> MarginalStrategy:
    """Rows of signs in blocks for W under pure epsilon, in integers within ``tolerance`` of the plan's error.

    Raises DataError for a tolerance outside (0, 1] and above 2^25 measurements.
    """
    plan = sign_plan(W)
    _check(W, (), tolerance)
    if sum(sign_rows(W.sizes, T) for sets in plan.blocks for T in sets) > MEASURED:
        raise DataError(f"strategy: these marginals need over {MEASURED} measurements; ask for smaller marginals")
    blocks = tuple(sum(sign_rows(W.sizes, T) for T in sets) for sets in plan.blocks)

    def error_of(k: Mapping[int, int]) -> float:
        found = {T: precision(W.sizes, T, k[b], blocks[b]) for b, sets in enumerate(plan.blocks) for T in sets}
        return float(sum(k.values())) ** 2 * _squares(W, found)

    k = whole_multipliers(dict(enumerate(plan.shares)), error_of, (1.0 + tolerance) * plan.error)
    each = {T: k[b] for b, sets in enumerate(plan.blocks) for T in sets}
    l2_squared, error = sum(k[b] ** 2 * size for b, size in enumerate(blocks)), error_of(k)
    figures = (sum(k.values()), l2_squared, error, None, ((SIGNS, error),))
    found = MarginalStrategy(W, each, "laplace", SIGNS, *figures, blocks=blocks)
    found.measured.check()
    return found


def signed(d: int) -> Mixed:
    """The rows of signs of a column of d values."""
    return Mixed(signs(d))


def blocks_error(W: Marginals, multipliers: Mapping[Subset, int]) -> float:
    """(sum_S k_S)^2 times the sum of the variances of all answers of W; inf where a residual is in no block."""
    floats = {S: float(k) for S, k in multipliers.items()}
    return float(sum(multipliers.values())) ** 2 * _squares(W, precisions(W.sizes, W.residuals(), floats))


def _check(W: Marginals, sets: Iterable[Subset], tolerance: float) -> None:
    if not 0 < tolerance <= 1:
        raise DataError("strategy: tolerance must be above 0 and at most 1")
    if sum(prod(W.sizes[i] for i in T) for T in sets) > MEASURED:
        raise DataError(f"strategy: these marginals need over {MEASURED} measurements; ask for smaller marginals")


def _squares(W: Marginals, precision: Mapping[Subset, Fraction | float]) -> float:
    """sum_T g_T dim_T prod_(i in T) d_i / N_T: the squared errors of all answers at noise of variance 1."""
    total = 0.0
    for T, g in W.residuals().items():
        if T not in precision:
            return float("inf")
        total += g * float(W.dimension(T)) * float(prod(W.sizes[i] for i in T) / precision[T])
    return total


__all__ = ["BLOCKS", "RESIDUALS", "MarginalStrategy", "block_strategy", "blocks_error", "residual_strategy"]
