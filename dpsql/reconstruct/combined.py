"""Answers from several measurements at once: generalised least squares over all of them.

Measurement i is y_i = A_i (L_i x) + z_i, its noise independent of the others', uncorrelated within (in blocks too, but
for patterns, where the root of the covariance matrix stands for the deviations), of deviation s_i, one for all or one a
coordinate. Divided by L_i and by the deviation of z_i / L_i it is a unit-variance observation of S_i x, S_i = (L_i /
s_i) A_i. Stack the S_i to S. The best linear unbiased estimate of W x, where W lies in the row space of S, is R v for v
the stacked observations and R = W S^+ (Gauss and Markov; Aitken 1935): its covariance R R^T is the least that any
unbiased linear estimate has, for any noise. Combining never hurts: no W x has more error than from any of the
measurements alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Flags, Floats, Ints, Matrix
from dpsql.common.numerics import SINGULAR
from dpsql.linalg.over_time import BITS, OverTime

from .block_sums import variance
from .intervals import LATTICE_MATTERS, half_widths
from .least_squares import solve
from .spread import BlockNoise, NoiseModel, as_dense, as_rows, in_deviations, over_deviations

MOST_COLUMNS = 1_200
"""Cells over which measurements are combined: to decompose their Gram matrix costs their cube, a second or two."""
MOST_ROWS = 20_000
MOST_ENTRIES = 2**26
"""Entries of R."""

MOST_ALONE = 2_000
"""Numbers of a measurement that is read by itself."""

_PARTS = 128
"""A Gaussian variable stands among Laplace ones as the sum of so many of them: excess kurtosis 3 / 128."""
_INSIDE = 1e-8
_CORRECTIONS = 2


@dataclass(frozen=True)
class Observed:
    """y = matrix @ (divisor x) + z, p numbers. ``noise``: the law of z."""

    matrix: Matrix = field(repr=False)
    divisor: int
    y: Sequence[int] = field(repr=False)
    noise: NoiseModel


@dataclass(frozen=True)
class White:
    """The law of observations in units of their own deviations times ``deviation``.

    Of kind "blocks" it says that they are uncorrelated and log-concave together.
    """

    kind: str
    deviation: float

    @property
    def parameter(self) -> Fraction:
        """sigma^2 of Gaussian noise, b of Laplace noise."""
        squared = Fraction(self.deviation) ** 2
        return squared if self.kind == "gaussian" else Fraction(math.sqrt(float(squared) / 2))

    @property
    def variance(self) -> float:
        return self.deviation**2


@dataclass(frozen=True)
class WhiteBlocks(White):
    """Independent noise in ``blocks`` of one scale, ``deviation``; Laplace noise is in blocks of one."""

    blocks: tuple[int, ...] = field(repr=False)

    @property
    def parameter(self) -> Fraction:
        return Fraction(self.deviation)

    @property
    def variances(self) -> Floats:
        """Of the coordinates of the continuous noise (p,)."""
        return np.asarray(self.deviation**2 * np.repeat([variance(size) for size in self.blocks], self.blocks))


@dataclass(frozen=True, eq=False)
class CombinedAnswers:
    """``least_squares.Answers`` of m numbers from what was observed; ``noise`` is given as ``law``.

    ``weights`` (a x P): R over all observations, in units of their deviations, for the numbers ``answered``.
    """

    weights: Floats = field(repr=False)
    observed: tuple[Observed, ...] = field(repr=False)
    answered: Ints = field(repr=False)
    numbers: int
    divisor: int = 1

    @property
    def law(self) -> White:
        """What ``rows`` are to be read with: the lattice of the coarsest observation, the kind of all, or Laplace's.

        Of Gaussian noise beside noise in blocks no more than the kind is known.
        """
        coarsest = min(float(each.min()) for each in deviations_of(self.observed))
        if self._kind != "blocks" or self._gaussian().any():
            return White(self._kind, coarsest)
        noises = [(one.noise, one.matrix.shape[0]) for one in self.observed]
        blocks = [noise.blocks if isinstance(noise, BlockNoise) and noise.blocks else (1,) * p for noise, p in noises]
        scale = min(float(noise.parameter) for noise, _ in noises)
        return WhiteBlocks("blocks", scale, tuple(size for each in blocks for size in each))

    @property
    def _kind(self) -> str:
        kinds = {one.noise.kind for one in self.observed}
        return "blocks" if "blocks" in kinds else "gaussian" if kinds == {"gaussian"} else "laplace"

    def values(self) -> Floats:
        """The estimates (m,); each is within rounding of R of what the observations say."""
        found = np.zeros(len(self.answered))
        for part, one in zip(self.parts(), self.observed, strict=True):
            found += solve(over_deviations(self.weights[:, part], one.noise), one.y)
        return self._spread(found)

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """``values``: what was observed is known already."""
        return self.values()

    def errors(self, noise: NoiseModel | None = None, divisor: int = 1) -> Floats:
        """Standard errors (m,): the lengths of R's rows."""
        return self._spread(np.sqrt(np.einsum("ij,ij->i", self.weights, self.weights)))

    def widths(self, noise: NoiseModel | None, alpha: float, divisor: int = 1, *, outward: bool = True) -> Floats:
        """Half-widths (m,) at level 1 - alpha, rounded ``outward`` where the lattice of the noise is coarse.

        Only Gaussian noise: a normal quantile. Noise in blocks: theirs, beside Gaussian noise that of log-concave laws.
        Otherwise the error is a sum of Laplace variables and one Gaussian; the Gaussian stands as a sum of 128 Laplace
        variables: at any alpha that moves the coverage by less than 0.001.
        """
        gaussian = self._gaussian()
        far = replace(self.law, deviation=1e6)  # a lattice too fine to matter
        rows = self.weights
        if self._kind == "laplace" and gaussian.any():
            normal = np.sqrt((self.weights[:, gaussian] ** 2).sum(axis=1) / _PARTS)
            rows = np.concatenate([self.weights[:, ~gaussian], np.repeat(normal[:, None], _PARTS, axis=1)], axis=1)
        smooth = half_widths(over_deviations(rows, far), far, alpha)
        if not outward:
            return self._spread(smooth)
        largest = self._one_step()
        return self._spread(np.where(largest > 2 * LATTICE_MATTERS * smooth, smooth + largest / 2, smooth))

    def _one_step(self) -> Floats:
        """How far one unit of one observation moves each number at most (a,)."""
        largest = np.zeros(len(self.weights))
        for part, one in zip(self.parts(), self.observed, strict=True):
            moved = np.abs(as_dense(over_deviations(self.weights[:, part], one.noise)))
            largest = np.maximum(largest, moved.max(axis=1, initial=0.0))
        return largest

    def propagate(self, noise: Iterable[Floats]) -> Floats:
        """R z (times x a) of the ``noise`` (times x p) of each observation in turn, in units of its deviations."""
        pairs = zip(self.parts(), noise, strict=True)
        return np.asarray(sum(each @ self.weights[:, part].T for part, each in pairs))

    def rows(self, parts: Sequence[slice], noise: NoiseModel | None = None) -> Matrix:
        """Rows of several columns of one result, one slice below the other, for combinations of them under ``law``.

        Scaled so that the law's deviation is that of the coarsest observation, by which formulas round outward.
        Times ``divisor``, which formulas divide by.
        """
        law = self.law
        weights = self.weights
        if law.kind == "gaussian" and weights.shape[1] > weights.shape[0]:
            weights = np.asarray(np.linalg.qr(weights.T, mode="r")).T  # the same inner products
        elif law.kind == "laplace":
            weights = self._as_laplace()
        whole = np.zeros((self.numbers, weights.shape[1]))
        whole[self.answered] = as_dense(over_deviations(weights, law)) * self.divisor
        return sparse.csr_array(np.concatenate([whole[part] for part in parts]))

    def _as_laplace(self) -> Floats:
        gaussian = self._gaussian()
        if not gaussian.any():
            return self.weights
        normal = self.weights[:, gaussian]
        if normal.shape[1] > normal.shape[0]:
            normal = np.asarray(np.linalg.qr(normal.T, mode="r")).T
        return np.concatenate(
            [self.weights[:, ~gaussian], np.repeat(normal / math.sqrt(_PARTS), _PARTS, axis=1)], axis=1
        )

    def _gaussian(self) -> Flags:
        """Which observations have Gaussian noise (P,)."""
        return np.concatenate([np.full(one.matrix.shape[0], one.noise.kind == "gaussian") for one in self.observed])

    def parts(self) -> list[slice]:
        """The columns of ``weights`` that each measurement has."""
        ends = np.cumsum([0, *(one.matrix.shape[0] for one in self.observed)]).tolist()
        return [slice(a, b) for a, b in itertools.pairwise(ends)]

    def _spread(self, values: Floats) -> Floats:
        out = np.zeros(self.numbers)
        out[self.answered] = values
        return out


def combined_answers(W: Matrix, observed: Sequence[Observed], divisor: int = 1) -> CombinedAnswers | None:
    """The best linear unbiased answers of W (m x n) from ``observed``; None where a row is not in their row space.

    Rows of zeros are answered 0. ``divisor``: what formulas divide rows by. Cost O(P n^2 + m n P) for P observations.
    None as well where the sizes pass ``MOST_COLUMNS``, ``MOST_ROWS`` or ``MOST_ENTRIES``.
    """
    rows = sparse.csr_array(W)
    answered = np.flatnonzero(np.diff(rows.indptr))
    height = sum(one.matrix.shape[0] for one in observed)
    if not observed or rows.shape[1] > MOST_COLUMNS or height > MOST_ROWS or len(answered) * height > MOST_ENTRIES:
        return None
    S = np.concatenate([one.divisor * as_dense(over_deviations(_dense(one.matrix).T, one.noise)).T for one in observed])
    wanted = np.asarray(rows[answered].toarray(), dtype=np.float64)
    weights, remainder = _weights(wanted, S)
    if np.any(remainder > _INSIDE):
        return None
    return CombinedAnswers(weights, tuple(observed), answered, rows.shape[0], divisor)


def answers_alone(W: Matrix, one: Observed, divisor: int = 1) -> CombinedAnswers | None:
    """The answers of W (m x n, sparse) from the one measurement that was made for it, which determines them.

    ``combined_answers`` over however many cells: W S^T (S S^T)^+ needs inner products of rows alone. What rounding left
    of it, W - R S, is taken over the cells and solved again, a few queries at a time: inner products would square how
    unevenly S knows its directions. Cost O(P^3 + m P) for P observations, and m products with S. None past
    ``MOST_ALONE`` or ``MOST_ENTRIES``.
    """
    rows = sparse.csr_array(W)
    answered = np.flatnonzero(np.diff(rows.indptr))
    height = one.matrix.shape[0]
    if height > MOST_ALONE or len(answered) * height > MOST_ENTRIES:
        return None
    S = sparse.csr_array(one.divisor * over_deviations(sparse.csr_array(one.matrix.T).astype(np.float64), one.noise).T)
    back = sparse.csr_array(S.T)
    values, vectors = np.linalg.eigh(np.asarray((S @ back).todense()))
    kept = values > SINGULAR * values.max(initial=0.0)
    vectors, inverse = vectors[:, kept], 1.0 / values[kept]
    weights = np.zeros((len(answered), height))
    step = max(1, MOST_ENTRIES // (16 * max(rows.shape[1], 1)))
    for at in range(0, len(answered), step):
        wanted, part = rows[answered[at : at + step]].toarray(), weights[at : at + step]
        for _ in range(1 + _CORRECTIONS):
            part += ((((wanted - part @ S) @ back) @ vectors) * inverse) @ vectors.T
    return CombinedAnswers(weights, (one,), answered, rows.shape[0], divisor)


@dataclass(frozen=True, eq=False)
class AnswersOverTime(CombinedAnswers):
    """Answers of one period from what was observed after each period so far, of one matrix B over its own cells.

    The sum of all observations times ``times`` (T,) is B x of the last period and noise, and ``weights`` (a x p) are
    over that sum in units of its deviation: R itself has (a x T p) entries, and is their Kronecker product with
    ``times``. ``deviations`` (T,) are of each observation; ``observed`` the last ones of them. ``over``: C, by which
    the sum follows from the last observation and what is ``before`` it (``OverTime.estimate``).
    """

    times: Floats = field(repr=False, kw_only=True)
    deviations: Floats = field(repr=False, kw_only=True)
    over: OverTime = field(repr=False, kw_only=True)
    before: tuple[int, ...] = field(repr=False, kw_only=True)

    @property
    def deviation(self) -> float:
        """Of the noise of the sum."""
        return math.sqrt(float(np.sum((self.times * self.deviations) ** 2)))

    def estimated(self) -> tuple[int, ...]:
        """The sum, times 2^BITS: what later periods rest on."""
        return self.over.estimate(len(self.times) - 1, self.observed[-1].y, self.before)

    def values(self) -> Floats:
        return self._spread(solve(self.weights / self.deviation, self.estimated(), 2**BITS))

    def propagate(self, noise: Iterable[Floats]) -> Floats:
        held = (self.times * self.deviations)[-len(self.observed) :]
        total = sum(each * scale for scale, each in zip(held, noise, strict=True))
        return np.asarray((total / self.deviation) @ self.weights.T)

    def _one_step(self) -> Floats:
        one = np.abs(self.weights / self.deviation).max(axis=1, initial=0.0)
        return np.asarray(one * np.abs(self.times).max())


def answers_over_time(
    W: Matrix,
    observed: Sequence[Observed],
    deviations: Sequence[float],
    over: OverTime,
    before: tuple[int, ...],
    divisor: int = 1,
) -> AnswersOverTime | None:
    """The answers of W for one period from what was observed after each so far, that period last.

    ``observed``: the last ones, ``deviations`` of the noise of all. None as ``answers_alone``: however many there are.
    """
    alone = answers_alone(W, observed[-1], divisor)
    if alone is None:
        return None
    times, each = over.weights(len(deviations) - 1), np.array(deviations)
    weights = alone.weights * (math.sqrt(float(np.sum((times * each) ** 2))) / each[-1])
    said = (weights, tuple(observed), alone.answered, alone.numbers, divisor)
    return AnswersOverTime(*said, times=times, deviations=each, over=over, before=before)


def _weights(targets: Floats, S: Floats) -> tuple[Floats, Floats]:
    """``targets`` S^+, from the eigenvectors of the smaller Gram matrix of S, and the length of each row's remainder.

    Corrected by the remainder, twice, so that R is as good as of an orthogonal factor (Bjorck 1987, corrected
    seminormal equations) where the Gram matrix alone, whose condition is the square, gave it within 10^-4 of a row; a
    remainder's length is relative to the row's. Directions that S knows 10^6 times worse than its best count as
    unknown: their rows come out with a remainder.
    """
    tall = S.shape[0] > S.shape[1]
    values, vectors = np.linalg.eigh(S.T @ S if tall else S @ S.T)
    kept = values > SINGULAR * values.max(initial=0.0)
    vectors, inverse = vectors[:, kept], 1.0 / values[kept]

    def solved(rows: Floats) -> Floats:
        """rows (S^T S)^+ S^T = rows S^T (S S^T)^+."""
        if tall:
            return np.asarray((((rows @ vectors) * inverse) @ vectors.T) @ S.T)
        return np.asarray((((rows @ S.T) @ vectors) * inverse) @ vectors.T)

    lengths = np.sqrt((targets * targets).sum(axis=1))
    weights = solved(targets)
    for correction in range(1 + _CORRECTIONS):
        rest = targets - weights @ S
        remainder = np.sqrt((rest * rest).sum(axis=1)) / lengths
        if correction == _CORRECTIONS or not remainder.any():
            break
        weights += solved(rest)
    return weights, remainder


def _dense(matrix: Matrix) -> Floats:
    found = as_rows(matrix)
    return found if isinstance(found, np.ndarray) else found.toarray()


def deviations_of(observed: Sequence[Observed]) -> list[Floats]:
    """Of the noise on every integer of each measurement, (p,)."""
    ones = [np.ones((1, one.matrix.shape[0])) for one in observed]
    return [np.asarray(in_deviations(row, one.noise))[0] for row, one in zip(ones, observed, strict=True)]
