"""Solves for the least error of Gaussian noise, where symmetries split the problem into parts.

**Problem.** The queries have the Gram matrix G (n x n) over the cells, and two neighbouring databases differ by a
vector c of a set C, the *contributions*. Over X = B^T B, B the measured rows, the squared error at sensitivity 1 is

    tr(G X^+)    subject to    c^T X c <= 1 for every c in C,    range(G) inside range(X).

**Theorem.** Let a group of permutations and sign changes of the cells leave G and C unchanged. Then some optimal X is
invariant under it. *Proof.* The average of X over the group satisfies each constraint, because these are linear in X
and the group only exchanges them. Its range contains that of X, and its error is no larger, because tr(G X^+) is convex
in X and each member of the average has the error of X.

**Parts.** An invariant matrix is block diagonal: R^n splits into *isotypic parts* k, each of which is rho_k orthogonal
copies of one space of dimension d_k, and G and X act on each copy by the same matrices G_k and X_k (Schur's lemma).
This form needs representations of *real type*, which products of symmetric groups, sign changes and wreath products
have; cyclic shifts of several measures do not (``dpsql.strategies.core.colouring`` checks it). The group moves a
contribution through its *orbit* o. The sum over the copies of the outer products of what a contribution is there, its
*second moment* N_ko (d_k x d_k), is the same for all of an orbit, and of a mixture of orbits it is the mean. With
R_k^T R_k = G_k the problem is

    sum_k rho_k tr(G_k X_k^+)    subject to    q_o = sum_k tr(N_ko X_k) <= 1 for every orbit o.

**Dual.** For weights lambda >= 0 of orbits, of sum 1,

    K_k = R_k (sum_o lambda_o N_ko) R_k^T,    t = sum_k rho_k^(1/2) tr K_k^(1/2),
    t^2  <=  least error  <=  t max_o q_o,    the latter reached by    X_k = rho_k^(1/2) R_k^T K_k^(-1/2) R_k.

*Proof.* Feasible X have 1 >= sum_o lambda_o q_o = sum_k tr(M_k X_k), M_k = sum_o lambda_o N_ko. By Cauchy and Schwarz,
first in each part and then over the parts,

    sum_k tr(M_k X_k) * sum_k rho_k tr(G_k X_k^+)  >=  (sum_k rho_k^(1/2) tr (R_k M_k R_k^T)^(1/2))^2 = t^2.

At X_k as above the error is t and sum_o lambda_o q_o = t, and dividing X by max q makes it feasible. lambda_o <-
lambda_o q_o^2, normalised, maximises alternately and never lowers t (``dpsql.strategies.core.ascent``). Without a group
there is one part of one copy.

**What a lower bound needs.** Every lambda proves one, also on a few orbits out of many, provided that all members of
these orbits are real contributions: a vector that no database reaches makes the sensitivity safe, but its weight proves
nothing. The lower bound takes roots without a floor and takes off what rounding may have added, so that directions that
no contribution moves add nothing to it. Roots for X have a floor: such directions are measured next to exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import sqrt
from time import monotonic
from typing import Protocol, TypeAlias

import numpy as np

from dpsql.common.arrays import Floats, Matrix
from dpsql.errors import InternalError
from dpsql.linalg.inner import Dense
from dpsql.linalg.long_calls import eigh
from dpsql.strategies.core.ascent import ascend

FLOOR = 1e-15  # of the largest eigenvalue of a part; of all parts for one that no contribution moves
_STEPS, _ROUNDS = 2000, 12  # of a round of column generation, and how many


class Contributions(Protocol):
    """Orbits of contributions as the r queries of one copy see them: the second moments R N_o R^T."""

    def gram(self, weights: Floats | None = None) -> Floats:
        """sum_o weights_o R N_o R^T (r x r)."""

    def variances(self, root: Matrix | None = None) -> Floats:
        """tr(root^T R N_o R^T root) for every orbit (orbits,), root r x anything."""


class _Moments:
    """Second moments of any rank: ``moments`` (orbits x r^2)."""

    def __init__(self, root: Floats, moments: Floats) -> None:
        self._order = root.shape[0]
        self._flat = (root @ moments @ root.T).reshape(len(moments), -1)

    def gram(self, weights: Floats | None = None) -> Floats:
        summed = self._flat.sum(axis=0) if weights is None else weights @ self._flat
        return np.asarray(summed.reshape(self._order, self._order))

    def variances(self, root: Matrix | None = None) -> Floats:
        inner = np.eye(self._order) if root is None else np.asarray(root @ root.T)
        return np.asarray(self._flat @ inner.ravel())


@dataclass(frozen=True, eq=False)
class Part:
    """An isotypic part: ``copies`` rho of a space of dimension d, on each of which the queries have the root R.

    ``root`` R (r x d), R^T R the Gram matrix of one copy. ``moments``: N_o of every orbit (orbits x d x d), or vectors
    (orbits x d) of which these are the outer products. A part of no copies contributes nothing: its X is 0. Raises
    InternalError for shapes that do not agree, numbers that are not finite, and a negative number of copies.
    """

    copies: float
    root: Floats
    moments: Floats

    def __post_init__(self) -> None:
        d = self.root.shape[-1]
        if self.root.ndim != 2 or self.moments.shape[1:] not in ((d,), (d, d)) or not len(self.moments):
            raise InternalError(f"strategy: a root {self.root.shape} with moments {self.moments.shape} is no part")
        if not (np.isfinite(self.root).all() and np.isfinite(self.moments).all() and 0 <= self.copies < np.inf):
            raise InternalError("strategy: the root, moments and copies of a part are finite, and copies not negative")

    @cached_property
    def contributions(self) -> Contributions:
        """The orbits as the queries see them."""
        if self.moments.ndim == 2:
            return Dense(self.moments @ self.root.T)
        return _Moments(self.root, self.moments)


@dataclass(frozen=True, eq=False)
class Lines:
    """p isotypic parts of dimension 1, taken together: ``copies`` (p,), ``roots`` (p,), ``moments`` N_o (orbits x p).

    X of all of them is (p,). Raises InternalError as ``Part``.
    """

    copies: Floats
    roots: Floats
    moments: Floats

    def __post_init__(self) -> None:
        if not (self.copies.shape == self.roots.shape == self.moments.shape[1:] and len(self.moments)):
            raise InternalError(f"strategy: roots {self.roots.shape} with moments {self.moments.shape} are no parts")
        finite = all(np.isfinite(numbers).all() for numbers in (self.copies, self.roots, self.moments))
        if not finite or self.copies.min(initial=0.0) < 0:
            raise InternalError("strategy: the roots, moments and copies of parts are finite, and copies not negative")


AnyPart: TypeAlias = "Part | Lines"


class DualState:
    """The dual at ``weights`` (orbits,), for parts as ``blocks``, pairs of copies and contributions, and ``lines``.

    ``t`` and ``q`` (orbits,) as above; ``halves``: rho_k^(1/4) K_k^(-1/4) up to a rotation from the left, so that X_k =
    R_k^T half^T half R_k; ``squares`` the half^T half of each of ``lines``. ``floor``: the least eigenvalue for X, as a
    share of the largest of its part. Cost: an eigendecomposition for each part, and what its contributions cost.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[float, Contributions]],
        weights: Floats,
        lines: Sequence[Lines] = (),
        floor: float = FLOOR,
    ) -> None:
        spectra = [eigh(seen.gram(weights)) for _, seen in blocks]
        single = [(weights @ part.moments) * part.roots**2 for part in lines]
        largest = max([1e-300, *(float(s[-1]) for s, _ in spectra), *(float(K.max(initial=0.0)) for K in single)])
        self.t, self._exact = 0.0, 0.0
        self.q: Floats = np.zeros(weights.size)
        self.halves: list[Floats] = []
        self.squares: list[Floats] = []
        for (copies, seen), (s, V) in zip(blocks, spectra, strict=True):
            root = np.sqrt(np.maximum(s, (float(s[-1]) if s[-1] > 0 else largest) * floor))
            slack = (64.0 + 4.0 * s.size) * np.finfo(np.float64).eps * float(np.linalg.norm(s))
            self.t += sqrt(copies) * float(root.sum())
            self._exact += sqrt(copies) * float(np.sqrt(np.maximum(s - slack, 0.0)).sum())
            half = V * (copies**0.25 / np.sqrt(root))
            self.q += seen.variances(half)
            self.halves.append(half.T)
        for part, K in zip(lines, single, strict=True):
            root = np.sqrt(np.where(K > 0, K, largest * floor))
            self.t += float(np.sqrt(part.copies) @ root)
            self._exact += float(np.sqrt(part.copies) @ np.sqrt(np.maximum(K, 0.0)))
            self.squares.append(np.sqrt(part.copies) / root)
            self.q += part.moments @ (self.squares[-1] * part.roots**2)

    @property
    def lower(self) -> float:
        """A lower bound on the least error: t^2 without the floor, less what rounding may have added."""
        return self._exact**2

    def upper(self) -> float:
        """The error of X divided by max q."""
        return self.t * float(self.q.max())


@dataclass(frozen=True, eq=False)
class Optimum:
    """``metrics`` X_k of the parts, divided so that the largest q is 1; ``lower`` <= least error <= ``upper``.

    ``upper`` is the squared error of X at sensitivity 1 to all orbits that are listed. ``weights``: lambda (orbits,),
    which prove ``lower``; orbits that were generated come after those that were given, in their order.
    """

    metrics: tuple[Floats, ...]
    lower: float
    upper: float
    weights: Floats
    steps: int


def solve(
    parts: Sequence[AnyPart],
    tolerance: float,
    deadline: float = np.inf,
    start: Floats | None = None,
    worst: Callable[[tuple[Floats, ...]], Sequence[Floats] | None] | None = None,
) -> Optimum:
    """Certified optimum to a gap of ``tolerance`` (a share of the error), over the orbits of the parts.

    Stops after 2,000 steps and at ``deadline`` (monotonic seconds) with the gap reached. ``start``: weights to begin
    with, equal ones otherwise. With ``worst`` orbits are generated: from the metrics it gives the moments, in every
    part, of further orbits that are longer than 1 under them, or None. That takes at most 12 rounds of so many steps,
    each from equal weights, of which none begins that would end after ``deadline``.
    Cost a step: r^3 and orbits r^2 for every part of r queries.
    """
    taken, rounds = 0, 1 if worst is None else _ROUNDS
    before = monotonic()
    while True:
        equal = np.full(len(parts[0].moments), 1.0 / len(parts[0].moments))
        state, weights, count = ascend(_dual(parts), equal if start is None else start, tolerance, deadline, _STEPS)
        metrics = _metrics(parts, state)
        taken, rounds, start = taken + count, rounds - 1, None
        now = monotonic()
        before, later = now, now + (now - before)  # when the next round would end
        more = worst(metrics) if worst is not None and rounds and later < deadline else None
        if more is None:
            return Optimum(metrics, state.lower, state.upper(), weights, taken)
        parts = [replace(p, moments=np.concatenate([p.moments, new])) for p, new in zip(parts, more, strict=True)]


def lower_bound(parts: Sequence[AnyPart], weights: Floats) -> float:
    """What the ``weights`` (orbits,), of sum 1, prove for the error of every strategy."""
    return _dual(parts)(weights).lower


def _dual(parts: Sequence[AnyPart]) -> Callable[[Floats], DualState]:
    """The dual as a function of weights; parts on which the queries are 0 are left out."""
    blocks = [(part.copies, part.contributions) for part in parts if isinstance(part, Part) and len(part.root)]
    return partial(DualState, blocks, lines=[part for part in parts if isinstance(part, Lines)])


def _metrics(parts: Sequence[AnyPart], state: DualState) -> tuple[Floats, ...]:
    """X_k of every part, divided by the largest q."""
    halves, squares, metrics = iter(state.halves), iter(state.squares), list[Floats]()
    for part in parts:
        if isinstance(part, Lines):
            metrics.append(next(squares) * part.roots**2)
        else:
            rows = next(halves) @ part.root if len(part.root) else part.root
            metrics.append(rows.T @ rows)
    return tuple(X / float(state.q.max()) for X in metrics)
