"""Marginals that a table could have, at any width: consistent, none negative, and proven to be no worse than before.

Post-processing of a noisy release: public, free. Marginals over sets S of axes of sizes d_i agree with each other
where they come from the same residuals: for every T a centred table u_T over its axes, and

    x_S = sum over T in S of u_T (x) 1 / prod_(S - T) d        (``workload.compile.structured``).

Sought is the u nearest to the noisy u^ under which no x_S is negative,

    min f(u) = 1/2 sum_S a_S^2 ||x_S - x^_S||^2 = 1/2 sum_T c_T ||u_T - u^_T||^2,
    c_T = sum over S that contain T of a_S^2 / prod_(S - T) d,

so that there are as many unknowns as numbers, and the cells of the whole table are never listed: local non-negativity,
as GReM-LNN has it (Mullins, Fuentes, Xiao, Kifer, Musco and Sheldon 2024). Marginals inside others are sums of them, so
that the largest sets bound all.

Method. With multipliers l_S >= 0 of the largest sets the inner minimum is u_T = u^_T + p_T / c_T, where p_T is the
centred sum of the means of l_S over S - T. What is left is a convex quadratic in l with the slopes x_S(u). In units of
a_S its curvature is at most 1, since f holds each of the largest sets itself: accelerated projected steps of length 1
(Beck and Teboulle 2009), begun anew where they turn uphill (O'Donoghue and Candes 2015).

Certificate. Let u' be u with t more rows spread evenly, so many that no entry is negative, N' rows in all. For every v
that a table could have, the truth among them, <u' - u^, u' - v> in the metric of f is

    sum_S l_S.(x_S(u') - x_S(v)) + c_0 t (N' - N_v)  <=  sum_S l_S.x_S(u') + c_0 t N'  =: gap,

as l, x_S(v) and N_v are not negative. So ||u' - v||^2 <= ||u^ - v||^2 - ||u' - u^||^2 + 2 gap: nowhere is u' farther
from the truth than the release where gap <= f(u').
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import prod, sqrt

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.reconstruct.nonnegative import BETWEEN, Solution

Axes = tuple[int, ...]
Tables = dict[Axes, Floats]


@dataclass(frozen=True, eq=False)
class PossibleMarginals:
    """Marginals of one table of rows: ``marginals`` by their sorted axes, consistent; a_S^2 are ``weights`` > 0."""

    marginals: Tables = field(repr=False)
    weights: dict[Axes, float] = field(repr=False)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """d_i of every axis."""
        return {i: d for axes, table in self.marginals.items() for i, d in zip(axes, table.shape, strict=True)}

    @cached_property
    def largest(self) -> tuple[Axes, ...]:
        """The sets that lie in no other."""
        held: list[Axes] = []
        for axes in sorted(self.marginals, key=len, reverse=True):
            if not any(set(axes) <= set(other) for other in held):
                held.append(axes)
        return tuple(held)

    @property
    def work(self) -> int:
        """Additions of one pass over the largest marginals."""
        return sum(2 ** len(S) * self.marginals[S].size for S in self.largest)

    @cached_property
    def precision(self) -> dict[Axes, float]:
        """c_T."""
        found: dict[Axes, float] = {}
        for axes, weight in self.weights.items():
            for T in inside(axes):
                found[T] = found.get(T, 0.0) + weight / self._spread(axes, T)
        return found

    def _spread(self, axes: Axes, T: Axes) -> int:
        return prod(self.sizes[i] for i in axes if i not in T)

    def corrections(self, multipliers: Tables) -> Tables:
        """u_T - u^_T = p_T / c_T for every T."""
        sums: Tables = {}
        for S, held in multipliers.items():
            for T, mean in means(S, held):
                sums[T] = sums[T] + mean if T in sums else mean
        for T, total in sums.items():
            for axis in range(len(T)):
                total = total - np.add.reduce(total, axis=axis, keepdims=True) / total.shape[axis]
            sums[T] = total / self.precision[T]
        return sums

    def table(self, axes: Axes, corrections: Tables) -> Floats:
        """x_S = x^_S plus its part of the ``corrections``."""
        out = self.marginals[axes].copy()
        for T in inside(axes):
            if T in corrections:
                shape = [self.sizes[i] if i in T else 1 for i in axes]
                out += corrections[T].reshape(shape) / self._spread(axes, T)
        return out

    def solve(
        self, *, most: int = 2000, accuracy: float = 1e-4, multipliers: Tables | None = None
    ) -> tuple[Tables, Solution]:
        """(the marginals, the proof) to a gap of ``accuracy`` x (1 + value), or what ``most`` steps reach.

        ``multipliers``: the l_S to begin from, 0 where there is none; those at the end are left there. Never fails: no
        entry of what it returns is below 0 by more than rounding, all agree, and the gap says how good they are; the
        solution's ``w`` are the entries of the largest sets. Cost of a step: 2^k passes over every largest marginal, k
        its axes.
        """
        root = {S: sqrt(self.weights[S]) for S in self.largest}
        held = {} if multipliers is None else multipliers
        now = {S: held[S] / root[S] if S in held else np.zeros_like(self.marginals[S]) for S in self.largest}
        ahead, pace = dict(now), 1.0
        best = self._judged({S: root[S] * now[S] for S in self.largest}, 0)
        for step in range(1, most + 1):
            corrections = self.corrections({S: root[S] * ahead[S] for S in self.largest})
            after = {S: np.maximum(ahead[S] - root[S] * self.table(S, corrections), 0.0) for S in self.largest}
            uphill = sum(_dot(ahead[S] - after[S], after[S] - now[S]) for S in self.largest) > 0
            faster = 1.0 if uphill else (1.0 + sqrt(1.0 + 4.0 * pace * pace)) / 2.0
            push = 0.0 if uphill else (pace - 1.0) / faster
            ahead = {S: after[S] + push * (after[S] - now[S]) for S in self.largest}
            now, pace = after, faster
            if step % BETWEEN == 0 or step == most:
                held.update({S: root[S] * now[S] for S in self.largest})
                best = min(best, self._judged({S: held[S] for S in self.largest}, step), key=_worth)
                if best[1].gap <= accuracy * (1.0 + best[1].value):
                    tables, found = best
                    return tables, Solution(found.w, found.value, found.gap, found.rounds, True)
        return best

    def _judged(self, multipliers: Tables, rounds: int) -> tuple[Tables, Solution]:
        """The marginals under ``multipliers``, lifted until none is negative, with their certificate."""
        corrections = self.corrections(multipliers)
        under = {S: self.table(S, corrections) for S in self.largest}
        lift = max(max(0.0, -float(x.min())) * x.size for x in under.values())
        base = self.precision[()]
        corrections[()] = np.asarray(corrections.get((), 0.0) + lift)
        tables = {S: np.maximum(self.table(S, corrections), 0.0) for S in self.marginals}
        rows = float(under[self.largest[0]].sum()) + lift
        gap = base * lift * rows + sum(_dot(multipliers[S], tables[S]) for S in self.largest)
        value = sum(self.precision[T] * _dot(u, u) for T, u in corrections.items()) / 2
        return tables, Solution(np.concatenate([tables[S].ravel() for S in self.largest]), value, gap, rounds)


def _dot(one: Floats, two: Floats) -> float:
    """The sum of products, without BLAS, whose threads cost more than they save on tables of this size."""
    return float(np.einsum("i,i->", one.ravel(), two.ravel()))


def _worth(solved: tuple[Tables, Solution]) -> float:
    return solved[1].gap - solved[1].value


def inside(axes: Axes) -> Iterator[Axes]:
    """All subsets, the set itself first."""
    for order in range(len(axes), -1, -1):
        yield from combinations(axes, order)


def means(axes: Axes, table: Floats) -> Iterator[tuple[Axes, Floats]]:
    """The means of a table over the axes that are not in T, for every T; each from one that has an axis more."""
    held = {axes: table}
    for T in inside(axes):
        if T not in held:
            more = next(i for i in axes if i not in T)
            above = tuple(sorted((*T, more)))
            axis = above.index(more)
            held[T] = np.asarray(np.add.reduce(held[above], axis=axis) / held[above].shape[axis])
        yield T, held[T]
