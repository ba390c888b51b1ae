"""Least squares over the possible data: min ||A w - b||^2 over w >= 0, with given sums of groups of w.

Post-processing of a noisy release: public, free. In the use that ``dpsql.running.feasible`` makes of it, A w are the
numbers of the table that w stands for and b the noisy ones, in units of their errors; a group of w with a given sum is
a table whose number of rows is known.

Method: accelerated projected gradients (Beck and Teboulle 2009) with restarts where the momentum points uphill
(O'Donoghue and Candes 2015), and every so often a Newton step on the entries that are positive, which ends the search
where it lands on the optimum. Projection onto a group's simplex by sorting (Held, Wolfe and Crowder 1974).

Certificate. f(w) = ||A w - b||^2 / 2 is convex, so with g its gradient f(w) - f(v) <= g.(w - v) for every v. Over all
v >= 0 whose groups have the given sums T that is at most

    gap = sum over groups of (g.w - T min g)   +   (g.w + M max(-g, 0)) of the entries in no group,

where M bounds the mass of v in no group (here twice the larger one of w's and of the start's, whose mass fits b best).
So f(w) is within ``gap`` of the least value, and ||A (w - w*)||^2 <= 2 gap, as f grows by half that square from its
optimum w*. Duality as for any convex program; the choice of M is ours and is the one thing that is not proved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import linalg, optimize, sparse

from dpsql.arrays import Floats, Ints

_POLISH = 1500
"""Positive entries up to which a Newton step is tried."""
_ACTIVE = 2000
"""Entries up to which active sets come first."""
_BETWEEN = 40
"""Gradient steps before the first Newton step; twice as many before each further one."""
_NEWTON = 4e9
"""Multiplications that one of its systems may take to set up."""
_SLOW = 1e-7
_DROPS = 5
"""Boundaries that one Newton step may run into."""


@dataclass(frozen=True, eq=False)
class Solution:
    """``w`` (R,) >= 0, feasible whatever else; ``gap`` as above, in squared deviations; ``rounds`` gradient steps."""

    w: Floats = field(repr=False)
    gap: float
    rounds: int
    converged: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """min ||A w - b||^2 / 2, A = mixing @ span: ``mixing`` (p x v), ``span`` (v x R, csr), ``b`` (p,).

    ``group`` (R,): the number of the group that an entry is in, -1 for none. ``totals`` (groups,): their sums, >= 0.
    """

    mixing: Any = field(repr=False)
    span: Any = field(repr=False)
    b: Floats = field(repr=False)
    group: Ints = field(repr=False)
    totals: Floats = field(repr=False)

    def solve(self, *, most: int = 2000, accuracy: float = 1e-7, start: Floats | None = None) -> Solution:
        """The least squares w. Stops where ``gap`` is at most ``accuracy`` x (1 + value), where 80 steps gain less than
        10^-7 of the value, or after ``most`` steps.

        Never fails: what it returns is feasible, and ``gap`` says how good it is. Up to 2000 entries in at most one
        group the active sets of Lawson and Hanson 1974 (``scipy.optimize.nnls``) come first. Cost of a step: a product
        with A and one with A^T; of a Newton step O(k^3) for k <= 1500 positive entries.
        """
        search = _Search(self)
        if start is None and self.span.shape[1] <= _ACTIVE and self.mixing.shape[0] <= _ACTIVE:
            found = search.active_sets()
            if found is not None:
                judged = search.judged(found)
                if judged.gap <= accuracy * (1.0 + judged.value):
                    return Solution(found, judged.gap, 0, True)
                start = found
        w = search.project(search.even() if start is None else start)
        step = 1.0 / search.lipschitz()
        at, momentum, best, due = w, 1.0, search.judged(w), _BETWEEN
        number, values = 0, [best.value]
        for number in range(1, most + 1):
            after = search.project(at - step * search.gradient(at))
            if float((at - after) @ (after - w)) > 0:  # the momentum leads uphill: start anew from here
                momentum = 1.0
            grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            at = after + (momentum - 1) / grown * (after - w)
            w, momentum = after, grown
            if number % _BETWEEN and number != most:
                continue
            tried = [search.judged(w)]
            jumped = None
            if number >= due:
                jumped, due = search.newton(w), 2 * number
            if jumped is not None:
                tried.append(search.judged(jumped))
                if tried[1].value < tried[0].value:
                    w, at, momentum = jumped, jumped, 1.0
            best = min([best, *tried], key=lambda judged: judged.value)
            if best.gap <= accuracy * (1.0 + best.value):
                return Solution(best.w, best.gap, number, True)
            values.append(min(judged.value for judged in tried))
            if len(values) > 2 and values[-3] - values[-1] <= _SLOW * (1.0 + values[-1]):
                break
        return Solution(best.w, best.gap, number, False)


@dataclass(frozen=True, eq=False)
class _Judged:
    w: Floats
    value: float
    gap: float


class _Search:
    """What the steps share: products, projections, certificates."""

    def __init__(self, problem: Problem) -> None:
        self.p = problem
        self.mixing = problem.mixing
        self.span = sparse.csr_array(problem.span)
        self.back = sparse.csr_array(self.span.T)
        self.groups = [np.flatnonzero(problem.group == t) for t in range(len(problem.totals))]
        self.free = np.flatnonzero(problem.group < 0)
        self.usual = float(self.even()[self.free].sum())

    def even(self) -> Floats:
        """A feasible start: every group spread evenly, what is in none as it fits b best."""
        w = np.zeros(self.span.shape[1])
        for mine, total in zip(self.groups, self.p.totals, strict=True):
            w[mine] = total / max(len(mine), 1)
        if self.free.size:
            ones = np.zeros_like(w)
            ones[self.free] = 1.0
            flat, rest = np.asarray(self.mixing @ (self.span @ ones)), -self.residual(w)
            w[self.free] = max(float(flat @ rest), 0.0) / max(float(flat @ flat), 1e-300)
        return w

    def residual(self, w: Floats) -> Floats:
        return np.asarray(self.mixing @ (self.span @ w) - self.p.b)

    def gradient(self, w: Floats) -> Floats:
        return np.asarray(self.back @ (self.mixing.T @ self.residual(w)))

    def lipschitz(self) -> float:
        """The largest eigenvalue of A^T A, by power iteration, 2 % on top: A is not random, nor is the start."""
        u = np.ones(self.span.shape[1]) + np.linspace(0.0, 1e-3, self.span.shape[1])
        found = 0.0
        for _ in range(60):
            u = u / (float(np.linalg.norm(u)) or 1.0)
            u = np.asarray(self.back @ (self.mixing.T @ (self.mixing @ (self.span @ u))))
            found = float(np.linalg.norm(u))
        return max(found * 1.02, 1e-300)

    def project(self, w: Floats) -> Floats:
        out = np.maximum(w, 0.0)
        for mine, total in zip(self.groups, self.p.totals, strict=True):
            out[mine] = onto_simplex(w[mine], float(total))
        return out

    def judged(self, w: Floats) -> _Judged:
        r = self.residual(w)
        g = np.asarray(self.back @ (self.mixing.T @ r))
        gap = 0.0
        for mine in self.groups:
            if mine.size:
                # (g - min g).w instead of g.w - T min g: the same, as w sums up to T, without the cancellation
                gap += float((g[mine] - g[mine].min()) @ w[mine])
        if self.free.size:
            held, mass = g[self.free], float(w[self.free].sum())
            most = 2 * max(mass, self.usual)
            gap += abs(float(held @ w[self.free])) + most * float(np.maximum(-held, 0).max())
        return _Judged(w, float(r @ r) / 2, gap)

    def active_sets(self) -> Floats | None:
        """The optimum by scipy's active sets; None where entries are in several groups, or it gives up.

        With one group of all entries and sum T: for w = T v / sum(v), ||A w - b||^2 = ||M v||^2 / sum(v)^2 with
        M = A T - b 1^T, so what minimises ||M v||^2 + (sum(v) - 1)^2 over v >= 0 points to the optimum: at its best
        length a direction u of sum 1 has the value h / (1 + h), h = ||M u||^2, which grows with h.
        """
        A = np.asarray(self.mixing @ self.span.toarray(), dtype=np.float64)
        b = self.p.b
        total = None
        if self.groups:
            if len(self.groups) > 1 or self.free.size:
                return None
            total = float(self.p.totals[0])
            if total <= 0:
                return np.zeros(A.shape[1])
            A, b = np.vstack([A - b[:, None] / total, np.ones((1, A.shape[1]))]), np.append(np.zeros(len(b)), 1.0)
        if A.shape[0] > A.shape[1] + 1:
            R: Floats = np.asarray(np.linalg.qr(np.hstack([A, b[:, None]]), mode="r"))
            A, b = R[:, :-1], R[:, -1]
        try:
            w = np.asarray(optimize.nnls(A, b)[0], dtype=np.float64)
        except RuntimeError:
            return None
        return self.project(w * (total / float(w.sum())) if total is not None and w.any() else w)

    def newton(self, w: Floats) -> Floats | None:
        """Newton steps over the positive entries until none of them turns negative; None where these are too many.

        A step keeps the groups' sums, which are constraints of its equations; where it meets the boundary it stops and
        goes on without the entries that are 0 there. f never rises.
        """
        at = np.flatnonzero(w > 1e-12 * float(w.max(initial=0.0)))
        if not 0 < at.size <= _POLISH or at.size**2 * self.span.shape[0] > _NEWTON:
            return None
        columns = np.asarray(self.mixing @ self.span[:, at].toarray(), dtype=np.float64)
        H = columns.T @ columns
        H[np.diag_indices_from(H)] += 1e-13 * max(float(np.trace(H)) / len(H), 1e-300)
        member = np.array([np.isin(at, mine) for mine in self.groups], dtype=np.float64).reshape(-1, len(at))
        held, left = w[at], np.ones(len(at), dtype=np.bool_)
        for _ in range(_DROPS):
            kept = np.flatnonzero(left)
            step = self._step(H[np.ix_(kept, kept)], columns[:, kept], member[:, kept], held[kept])
            if step is None:
                return None
            falling = step > 0
            lengths = np.full(len(kept), np.inf)
            lengths[falling] = held[kept][falling] / step[falling]
            length = min(1.0, float(lengths.min(initial=np.inf)))
            held[kept] = np.maximum(held[kept] - length * step, 0.0)
            gone = kept[lengths <= length * (1 + 1e-9)] if length < 1.0 else kept[:0]
            held[gone] = 0.0
            left[gone] = False
            if not gone.size or not left.any():
                break
        out = np.zeros_like(w)
        out[at] = held
        for mine, total in zip(self.groups, self.p.totals, strict=True):  # rounding alone
            summed = float(out[mine].sum())
            if summed > 0:
                out[mine] *= total / summed
        return out

    def _step(self, H: Floats, columns: Floats, member: Floats, held: Floats) -> Floats | None:
        slope = columns.T @ (columns @ held - self.p.b)
        E = member[member.any(axis=1)]
        try:
            factor = linalg.cho_factor(H)
        except linalg.LinAlgError:
            return None
        step = np.asarray(linalg.cho_solve(factor, slope))
        if len(E):
            toward = linalg.cho_solve(factor, E.T)
            step = step - toward @ np.linalg.lstsq(E @ toward, E @ step, rcond=None)[0]
        return step


def onto_simplex(v: Floats, total: float) -> Floats:
    """The point nearest to ``v`` with entries >= 0 that sum up to ``total`` >= 0. O(k log k)."""
    if not v.size or total <= 0:
        return np.zeros_like(v)
    falling = np.sort(v)[::-1]
    over = np.cumsum(falling) - total
    kept = np.flatnonzero(falling * np.arange(1, len(v) + 1) > over)
    last = int(kept[-1]) if kept.size else 0
    out = np.maximum(v - over[last] / (last + 1), 0.0)
    held = float(out.sum())
    return np.asarray(out * (total / held)) if held > 0 else np.full_like(v, total / len(v))


def whole_numbers(x: Floats) -> Floats:
    """Whole numbers >= 0 near ``x`` >= 0: every run of consecutive entries is within 1 of its sum, all of them 1/2.

    Entry j is round(x_1 + ... + x_j) - round(x_1 + ... + x_{j-1}): sums that never fall, rounded, never fall. Rounding
    entry by entry would let the sums of n entries be n/2 off.
    """
    return np.diff(np.floor(np.cumsum(x) + 0.5), prepend=0.0)
