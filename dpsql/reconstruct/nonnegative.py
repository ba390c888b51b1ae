"""Least squares over the possible data: min ||A w - b||^2 / 2 over w >= 0, with a proof that w is no worse than b.

Post-processing of a noisy release: public, free. In the use that ``dpsql.running.feasible`` makes of it, A w are the
numbers of the table that w stands for and b the noisy ones, in units of their errors.

Method: up to 2000 entries the active sets of Lawson and Hanson 1974 (``scipy.optimize.nnls``); beyond, projected
quasi-Newton steps in scaled entries (L-BFGS-B, Byrd, Lu, Nocedal and Zhu 1995, by scipy), and every so often a Newton
step on the entries that are positive, which ends the search where it lands on the optimum.

Certificate. With r = A w - b and g = A^T r, let g >= 0. Then for every v >= 0, the truth among them,

    r.(A w - A v) = g.w - g.v <= g.w =: gap,        so that
    ||A w - A v||^2 = ||b - A v||^2 - ||r||^2 + 2 r.(A w - A v) <= ||b - A v||^2 - ||r||^2 + 2 gap.

So A w is nowhere farther from the truth than b is where gap <= ||r||^2 / 2, whatever the truth; and as f grows by half
that square from its optimum, f(w) is within ``gap`` of the least. A search ends with slopes a little below 0: w is then
lifted by the same amount everywhere (in its scaled entries), which raises every slope where A^T A of that direction is
positive. Where it is not, no proof is found and the gap is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Matrix

_POLISH = 1500
"""Positive entries up to which a Newton step is tried."""
_ACTIVE = 2000
"""Entries up to which active sets come first."""
BETWEEN = 100
"""Quasi-Newton steps before the first certificate and Newton step; twice as many before each further one."""
_NEWTON = 4e9
"""Multiplications that one of its systems may take to set up."""
_DROPS = 5
"""Boundaries that one Newton step may run into."""


@dataclass(frozen=True, eq=False)
class Solution:
    """``w`` (R,) >= 0, feasible whatever else, with ``value`` f(w) and ``gap`` as above, in squared deviations.

    ``rounds``: quasi-Newton steps. ``converged``: the gap is as small as was asked.
    """

    w: Floats = field(repr=False)
    value: float
    gap: float
    rounds: int = 0
    converged: bool = False

    def never_worse(self, rounding: float = 0.0) -> bool:
        """Whether A w is proven to be no farther from the truth than b, but by ``rounding`` of a squared deviation."""
        return self.gap <= max(self.value, rounding / 2)


@dataclass(frozen=True, eq=False)
class Problem:
    """min ||A w - b||^2 / 2 over w >= 0: ``A`` (p x R, sparse), ``b`` (p,)."""

    A: Matrix = field(repr=False)
    b: Floats = field(repr=False)

    def solve(self, *, most: int = 2000, accuracy: float = 1e-5) -> Solution:
        """The least squares w, to a gap of ``accuracy`` x (1 + value), or what ``most`` steps reach.

        Never fails: what it returns is feasible, and ``gap`` says how good it is. Cost of a step: a product with A and
        one with A^T; of a Newton step O(k^3) for k <= 1500 positive entries.
        """
        search = _Search(self.A, self.b)
        w = search.even()
        best = search.judged(w)
        if max(self.A.shape) <= _ACTIVE:
            found = search.active_sets()
            best = best if found is None else min(best, search.judged(found), key=_worth)
        done, share = 0, BETWEEN
        while best.gap > accuracy * (1.0 + best.value) and done < most:
            w, steps = search.quasi_newton(w, min(share, most - done))
            jumped = search.newton(w)
            if jumped is not None and search.value(jumped) < search.value(w):
                w = jumped
            best = min(best, search.judged(w), key=_worth)
            done += steps
            if steps < min(share, 10):  # no step lowers it in these digits
                break
            share *= 2
        return Solution(best.w, best.value, best.gap, done, best.gap <= accuracy * (1.0 + best.value))


def _worth(solution: Solution) -> tuple[float, float]:
    return solution.value + min(solution.gap, 1e300), solution.value


class _Search:
    """What the steps share: products, their scale, certificates."""

    def __init__(self, A: Matrix, b: Floats) -> None:
        self.A: Csr = sparse.csr_array(A).astype(np.float64)
        self.b = b
        self.back = sparse.csr_array(self.A.T)
        squares = np.asarray(self.A.power(2).sum(axis=0)).ravel()
        self.scale = np.divide(1.0, np.sqrt(squares), out=np.zeros(len(squares)), where=squares > 0)
        self.rising = self.slope(np.asarray(self.A @ self.scale))

    def slope(self, r: Floats) -> Floats:
        return np.asarray(self.back @ r)

    def value(self, w: Floats) -> float:
        return float(np.sum((self.A @ w - self.b) ** 2)) / 2

    def even(self) -> Floats:
        """All entries alike, in their scale, at the length that fits b best."""
        flat = np.asarray(self.A @ self.scale)
        return np.asarray(self.scale * max(float(flat @ self.b), 0.0) / max(float(flat @ flat), 1e-300))

    def judged(self, w: Floats) -> Solution:
        """w, lifted until no slope is below 0, with its certificate."""
        for _ in range(3):  # once, and again for what rounding left
            r = np.asarray(self.A @ w - self.b)
            g = self.slope(r)
            falls = g < -1e-13 * (abs(self.back) @ abs(r))
            if not falls.any():
                return Solution(w, float(r @ r) / 2, float(np.maximum(g, 0.0) @ w))
            if float(self.rising[falls].min()) <= 0:
                break
            w = w + 2 * float(np.max(-g[falls] / self.rising[falls])) * self.scale
        return Solution(w, float(r @ r) / 2, np.inf)

    def active_sets(self) -> Floats | None:
        """The optimum by scipy's active sets; None where it gives up."""
        A, b = self.A.toarray(), self.b
        if A.shape[0] > A.shape[1] + 1:
            R: Floats = np.asarray(np.linalg.qr(np.hstack([A, b[:, None]]), mode="r"))
            A, b = R[:, :-1], R[:, -1]
        try:
            return np.asarray(scipy.optimize.nnls(A, b)[0], dtype=np.float64)
        except RuntimeError:
            return None

    def quasi_newton(self, w: Floats, most: int) -> tuple[Floats, int]:
        """(w, steps) after at most ``most`` steps."""
        across = sparse.csr_array(self.A @ sparse.diags_array(self.scale))
        back, rest = sparse.csr_array(across.T), np.asarray(self.A @ w - self.b)

        def at(u: Floats) -> tuple[float, Floats]:
            r = np.asarray(across @ u + rest)
            return float(r @ r) / 2, np.asarray(back @ r)

        # What is sought is the change of w, which needs fewer digits than w.
        least = -np.divide(w, self.scale, out=np.zeros(len(w)), where=self.scale > 0)
        found = scipy.optimize.minimize(
            at,
            np.zeros(len(w)),
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(least, np.inf),
            options={"maxiter": most, "maxfun": 2 * most, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
        )
        return np.asarray(np.maximum(w + found.x * self.scale, 0.0)), int(found.nit)

    def newton(self, w: Floats) -> Floats | None:
        """Newton steps over the positive entries until none of them turns negative; None where these are too many.

        Where a step meets the boundary it stops and goes on without the entries that are 0 there. f never rises.
        """
        at = np.flatnonzero(w > 1e-12 * float(w.max(initial=0.0)))
        if not 0 < at.size <= _POLISH or at.size**2 * self.A.shape[0] > _NEWTON:
            return None
        columns = self.A[:, at].toarray()
        H = columns.T @ columns
        H[np.diag_indices_from(H)] += 1e-13 * max(float(np.trace(H)) / len(H), 1e-300)
        held, left = w[at], np.ones(len(at), dtype=np.bool_)
        for _ in range(_DROPS):
            kept = np.flatnonzero(left)
            inner = columns[:, kept]
            try:
                factor = scipy.linalg.cho_factor(H[np.ix_(kept, kept)])
            except scipy.linalg.LinAlgError:
                return None
            step = np.asarray(scipy.linalg.cho_solve(factor, inner.T @ (inner @ held[kept] - self.b)))
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
        return out


def whole_numbers(x: Floats) -> Floats:
    """Whole numbers >= 0 near ``x`` >= 0: every run of consecutive entries is within 1 of its sum, all of them 1/2.

    Entry j is round(x_1 + ... + x_j) - round(x_1 + ... + x_{j-1}): sums that never fall, rounded, never fall. Rounding
    entry by entry would let the sums of n entries be n/2 off.
    """
    return np.diff(np.floor(np.cumsum(x) + 0.5), prepend=0.0)
