"""Marginals of one table made up from those of them that were measured, some more often than others. Post-processing.

Measurements k_j x_S + noise of one variance on sets S of axes speak of every residual u_T, T in S
(``residual_estimates``): its least squares and precision are

    u_T = sum_j k_j C_T (mean of y_j over S_j - T) / N_T,        N_T = sum_j k_j^2 / prod_(S_j - T) d.

What is inside of measured sets is moved as little as its precision asks for until all of it agrees and no entry is
negative (``possible_marginals``; GReM-LNN: Mullins, Fuentes, Xiao, Kifer, Musco and Sheldon 2024). Of a residual that
no measurement has nothing is known, and the table on T is made up. Zero, as least squares has it, would be far off
where columns are skewed: the sum of what each says of a pair is no product. A pair is independent given a third axis,
of those whose pairs with both were measured the one on which both depend most, and a product where there is none;
such pairs agree with their columns. Of more axes it is the table of largest entropy over its parts (Ireland and
Kullback 1968, by iterative proportional fitting), and all tables are then moved until they agree, a made-up one
counting a hundredth of the least that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import InternalError
from dpsql.reconstruct.possible_marginals import Axes, PossibleMarginals, Tables, inside, means

MADE_UP = 0.01
"""How much a made-up table counts, beside the measured one that counts least."""
_SWEEPS = 15  # of iterative proportional fitting
_WORK, _EACH = 4e9, 1e5  # additions of the steps until all tables agree; what a table costs beside its own


@dataclass(frozen=True, eq=False)
class MarginalModel:
    """Marginals by sets of axes of the sizes ``sizes``; ``variance`` is that of the noise of one entry.

    ``candidates``: every non-empty set inside one that may be measured, the smaller ones first. ``beyond``: sets that
    are made up of those in the end, and not moved, the smaller ones first.
    """

    sizes: tuple[int, ...]
    candidates: tuple[Axes, ...] = field(repr=False)
    variance: float
    beyond: tuple[Axes, ...] = field(default=(), repr=False)

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
        self._multipliers: Tables = {}

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
        """All marginals: none negative, those of candidates agreeing. ``most`` steps; fewer where it is exact enough.

        Those beyond agree with their parts as far as proportional fitting brings them.
        """
        found = self._agreeing(most)
        total: Tables = {(): np.asarray(next(iter(found.values())).sum())}
        for T in self.model.beyond:
            found[T] = self._made_up(T, {**total, **{S: found[S] for S in inside(T) if S in found}}, _SWEEPS)
        return found

    def _agreeing(self, most: int) -> Tables:
        """All candidates' marginals, as ``tables`` has them."""
        found, known = self._guessed(most, _SWEEPS, dict(self._multipliers)), self._inside  # the same however often
        if all(len(S) <= 2 or S in known for S in self.model.candidates):
            return found
        residuals: Tables = {T: np.asarray(_centred(found[T])) for T in self.model.candidates}
        residuals[()] = np.asarray(next(iter(found.values())).sum())
        marginals = {S: self._spread(S, residuals) for S in self.model.candidates}
        weights = {S: squares / self.model.variance for S, squares in self.times.items()}
        little = MADE_UP * min(weights.values(), default=1.0)
        for S in PossibleMarginals(marginals, {}).largest:
            weights.setdefault(S, little)
        problem = PossibleMarginals(marginals, weights)
        steps = _WORK / (problem.work + _EACH * len(problem.largest))
        return problem.solve(most=min(most, max(100, int(steps))))[0]

    def guess(self, most: int) -> Tables:
        """All candidates' marginals, none negative: those inside measured ones agree, and all pairs with them.

        It takes up the search where the last one was left.
        """
        return self._guessed(most, 1, self._multipliers)

    def _guessed(self, most: int, sweeps: int, multipliers: Tables) -> Tables:
        """The same by so many sweeps of proportional fitting, from multipliers which it moves on."""
        if not self.times:
            return {axes: np.zeros(self.model.shape(axes)) for axes in self.model.candidates}
        residuals = {T: np.asarray(self._sums[T] / self._precision[T]) for T in self._precision}
        weights = {S: squares / self.model.variance for S, squares in self.times.items()}
        measured = PossibleMarginals({S: self._spread(S, residuals) for S in self._inside}, weights)
        found = measured.solve(most=most, multipliers=multipliers)[0]
        found[()] = np.asarray(next(iter(found.values())).sum())
        between = self._between(found)
        for T in self.model.candidates:
            if T not in found:
                third = between.get(T)
                found[T] = self._made_up(T, found, sweeps) if third is None else _given(found, T, third)
        return {S: found[S] for S in self.model.candidates}

    @property
    def _inside(self) -> tuple[Axes, ...]:
        """The sets that measurements speak of."""
        return tuple(T for T in self._precision if T)

    def _between(self, tables: Tables) -> dict[Axes, int]:
        """The third axis by which a pair that was not measured goes together, where there is one.

        Of all axes whose pairs with both were measured the one on which both depend most, in L1 distance from a
        product.
        """
        axes = len(self.model.sizes)
        apart = np.zeros((axes, axes))
        for S in self._inside:
            if len(S) == 2:
                product = np.multiply.outer(tables[S[:1]], tables[S[1:]]) / max(float(tables[()]), 1.0)
                apart[S] = apart[S[::-1]] = np.abs(tables[S] - product).sum()
        thirds: dict[Axes, int] = {}
        for S in self.model.candidates:
            if len(S) == 2 and S not in tables:
                both = np.minimum(apart[S[0]], apart[S[1]])
                if both.max() > 0:
                    thirds[S] = int(both.argmax())
        return thirds

    def _spread(self, axes: Axes, residuals: Tables) -> Floats:
        """The marginal on ``axes`` that residuals make up."""
        sizes = self.model.sizes
        out = np.zeros(self.model.shape(axes))
        for T in inside(axes):
            shape = [sizes[i] if i in T else 1 for i in axes]
            out += residuals[T].reshape(shape) / prod(sizes[i] for i in axes if i not in T)
        return out

    def _made_up(self, axes: Axes, marginals: Tables, sweeps: int) -> Floats:
        """The table of largest entropy whose marginals of one axis less are ``marginals``, as far as they agree."""
        shape = self.model.shape(axes)
        if len(axes) == 1:
            return np.full(shape, float(marginals[()]) / prod(shape))
        table = np.ones(shape)
        for T in list(inside(axes))[1:]:  # where little depends on more than two axes this is nearly it already
            factor = marginals[T].reshape([self.model.sizes[i] if i in T else 1 for i in axes])
            if (len(axes) - len(T)) % 2:
                table *= factor
            else:
                table *= np.divide(1.0, factor, out=np.zeros_like(factor), where=factor > 0)
        for _ in range(sweeps if len(axes) > 2 else 0):
            for part in combinations(axes, len(axes) - 1):
                gone = next(at for at, axis in enumerate(axes) if axis not in part)
                now = table.sum(axis=gone, keepdims=True)
                table *= np.divide(marginals[part].reshape(now.shape), now, out=np.zeros_like(now), where=now > 0)
        return table


def _given(tables: Tables, pair: Axes, third: int) -> Floats:
    """The table of two axes that are independent given a third one: its columns' sums are those of both."""
    (one, two), rows = pair, tables[third,]
    with_one = tables[one, third] if one < third else tables[third, one].T
    with_two = tables[third, two] if third < two else tables[two, third].T
    return np.asarray(np.divide(with_one, rows, out=np.zeros_like(with_one), where=rows > 0) @ with_two)


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
