"""Marginals of one table made up from those of them that were measured, some more often than others. Post-processing.

Measurements k_j x_S + noise of one variance on sets S of axes speak of every residual u_T, T in S
(``residual_estimates``): its least squares and precision are

    u_T = sum_j k_j C_T (mean of y_j over S_j - T) / N_T,        N_T = sum_j k_j^2 / prod_(S_j - T) d.

Of a residual that no measurement has nothing is known, and the table on T is made up: the one of largest entropy whose
smaller marginals are those found before (Ireland and Kullback 1968, by iterative proportional fitting; the product of
its columns where T has two axes). Zero, as least squares has it, would be far off where columns are skewed: the sum of
what each says of a pair is no product. What is put together is moved as little as its precision asks for until all
tables agree and no entry is negative (``possible_marginals``), a made-up one counting a hundredth of the least that
was measured (GReM-LNN: Mullins, Fuentes, Xiao, Kifer, Musco and Sheldon 2024, where unmeasured residuals are zero).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod

import numpy as np

from dpsql.arrays import Floats
from dpsql.errors import InternalError
from dpsql.reconstruct.possible_marginals import Axes, PossibleMarginals, Tables, inside, means

MADE_UP = 0.01
"""How much a made-up table counts, beside the measured one that counts least."""
_SWEEPS = 15  # of iterative proportional fitting


@dataclass(frozen=True, eq=False)
class MarginalModel:
    """Marginals by sets of axes of the sizes ``sizes``; ``variance`` is that of the noise of one entry.

    ``candidates``: every non-empty set inside one that is wanted, the smaller ones first.
    """

    sizes: tuple[int, ...]
    candidates: tuple[Axes, ...] = field(repr=False)
    variance: float

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """Groups, axis by axis."""
        return tuple(self.sizes[i] for i in axes)

    def start(self) -> MarginalFit:
        """What is known before anything is measured."""
        return MarginalFit(self)


class MarginalFit:
    """What is known of a ``MarginalModel`` while answers come in."""

    def __init__(self, model: MarginalModel) -> None:
        self.model = model
        self.times: dict[Axes, int] = {}  # squares of the multipliers of each measured set, in all
        self._sums: Tables = {}
        self._precision: dict[Axes, float] = {}

    def learn(self, axes: Axes, times: int, answer: Sequence[float] | Floats) -> None:
        """Take in the noisy marginal on ``axes``, measured ``times`` fold. InternalError where it has another size."""
        shape = self.model.shape(axes)
        if len(answer) != prod(shape) or times < 1:
            raise InternalError("a transcript has an answer of another size than its marginal")
        self.times[axes] = self.times.get(axes, 0) + times * times
        for T, mean in means(axes, np.array(answer, dtype=np.float64).reshape(shape)):
            spread = prod(self.model.sizes[i] for i in axes if i not in T)
            self._sums[T] = self._sums.get(T, 0.0) + times * _centred(mean)
            self._precision[T] = self._precision.get(T, 0.0) + times * times / spread

    def tables(self, most: int = 2000) -> Tables:
        """All candidates' marginals: none negative, all agreeing. ``most`` steps; fewer where it is exact enough."""
        if not self.times:
            return {axes: np.zeros(self.model.shape(axes)) for axes in self.model.candidates}
        residuals: Tables = {}
        likely: Tables = {}  # with no negative entry, though they need not agree
        for T in ((), *self.model.candidates):
            if T in self._precision:
                residuals[T] = np.asarray(self._sums[T] / self._precision[T])
                likely[T] = on_simplex(self._spread(T, residuals)) if T else np.maximum(residuals[T], 1.0)
            else:
                likely[T] = self._made_up(T, likely)
                residuals[T] = _centred(likely[T])
        marginals = {S: self._spread(S, residuals) for S in self.model.candidates}
        weights = {S: squares / self.model.variance for S, squares in self.times.items()}
        little = MADE_UP * min(weights.values())
        for S in PossibleMarginals(marginals, {}).largest:
            weights.setdefault(S, little)
        return PossibleMarginals(marginals, weights).solve(most=most)[0]

    def _spread(self, axes: Axes, residuals: Tables) -> Floats:
        """The marginal on ``axes`` that residuals make up."""
        sizes = self.model.sizes
        out = np.zeros(self.model.shape(axes))
        for T in inside(axes):
            shape = [sizes[i] if i in T else 1 for i in axes]
            out += residuals[T].reshape(shape) / prod(sizes[i] for i in axes if i not in T)
        return out

    def _made_up(self, axes: Axes, known: Tables) -> Floats:
        """The table of largest entropy whose marginals of one axis less are ``known``, as far as they agree."""
        shape = self.model.shape(axes)
        table = np.full(shape, float(known[()]) / prod(shape))
        parts = list(combinations(axes, len(axes) - 1))
        for _ in range(1 if len(axes) <= 2 else _SWEEPS):
            for part in parts:
                gone = next(at for at, axis in enumerate(axes) if axis not in part)
                now = table.sum(axis=gone, keepdims=True)
                table = table * np.divide(known[part].reshape(now.shape), now, out=np.zeros_like(now), where=now > 0)
        return table


def _centred(table: Floats) -> Floats:
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return np.asarray(table)


def on_simplex(table: Floats) -> Floats:
    """The nearest table of the same sum (0 where that is negative) without a negative entry."""
    total = float(table.sum())
    if total <= 0:
        return np.zeros_like(table)
    falling = np.sort(table, axis=None)[::-1]
    over = np.cumsum(falling) - total
    kept = falling * np.arange(1, falling.size + 1) > over
    kept[0] = True  # but for rounding
    last = int(np.flatnonzero(kept)[-1])
    return np.asarray(np.maximum(table - over[last] / (last + 1), 0.0))
