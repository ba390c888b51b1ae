"""The trace of the root of an arrow matrix: blocks that meet in a few shared rows only, and the whole never built.

    K = [D_1      B_1 ]
        [    ...  ... ]      positive semidefinite, D_g of order p_g, A of order q.
        [B_1^T .. A   ]

For t > 0 the Schur complement S = A + t - sum_g B_g^T (D_g + t)^-1 B_g gives det(K + t) = det S prod_g det(D_g + t),
and its logarithmic derivative by t

    tr (K + t)^-1 = tr S^-1 (I + sum_g B_g^T (D_g + t)^-2 B_g) + sum_g tr (D_g + t)^-1.

The root as a sum. x^1/2 = (1/pi) int x / (x + e^u) e^(u/2) du. The trapezoid rule of step h has, by Poisson's formula,
a relative error of at most e = 2 sum_(k >= 1) sech(2 pi^2 k / h) for every x >= 0, since the integrand's Fourier
transform is its integral times sech(pi omega). All its terms are positive, so any of them, over 1 + e, are at most
x^1/2:

    tr K^1/2 >= 1 / (1 + e) sum_t w_t tr K (K + t)^-1,    w = h t^1/2 / pi,

for any nodes t; those from ``_LEAST`` ||K|| on are taken. Of the terms beyond ||K|| only tr K / (||K|| + t) is taken.

Rounding. K is known up to a matrix of norm delta. A sum of x / (x + t) changes by at most delta sum w / t for each
eigenvalue, and a solution with S, whose least eigenvalue is t or more, by as much again: both are taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import linalg

from dpsql.arrays import Floats, Ints

_STEP = 1.5
_LEAST = 1e-11
NODES = 24
"""How often S is formed and solved."""


@dataclass(frozen=True, eq=False)
class Barb:
    """A block D (p x p) and B (p x shared), its columns at the places ``shared`` of A."""

    block: Floats = field(repr=False)
    links: Floats = field(repr=False)
    shared: Ints = field(repr=False)


def root_trace(shaft: Floats, barbs: Sequence[Barb]) -> float:
    """A lower bound on tr K^1/2, K of ``shaft`` A (q x q) and ``barbs``, short of it by about 1e-5.

    Cost: the eigenvalues of the distinct blocks, and 24 times a solution of order q and sum_g p_g shared_g^2.
    """
    q = shaft.shape[0]
    known: dict[bytes, tuple[Floats, Floats]] = {}
    alike: dict[bytes, list[Ints]] = {}
    for barb in barbs:
        key = f"{barb.links.shape} ".encode() + barb.block.tobytes() + barb.links.tobytes()
        if key not in known:
            s, V = linalg.eigh(barb.block, driver="evd")
            known[key] = np.maximum(s, 0.0), V.T @ barb.links
        alike.setdefault(key, []).append(barb.shared)
    turned = [(*known[key], np.array(places)) for key, places in alike.items()]
    longest = float(linalg.eigvalsh(shaft)[-1]) if q else 0.0
    norm = longest + max((float(s[-1]) for s, _, _ in turned if s.size), default=0.0)
    if norm <= 0.0:
        return 0.0
    rows = q + sum(len(places) * len(s) for s, _, places in turned)
    widest = max([q, *(len(s) for s, _, _ in turned)])
    nodes = norm * _LEAST * np.exp(_STEP * np.arange(NODES))
    weights = _STEP * np.sqrt(nodes) / np.pi
    total = 0.0
    for t, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        S, M = shaft + t * np.eye(q), np.eye(q)
        own = 0.0
        for s, links, places in turned:
            own += len(places) * float((s / (s + t)).sum())
            if places.size:
                scaled = links / (s + t)[:, None]
                at = places[:, :, None], places[:, None, :]
                np.subtract.at(S, at, links.T @ scaled)
                np.add.at(M, at, scaled.T @ scaled)
        if q:
            own += q - t * float(np.trace(linalg.solve(S, M, assume_a="pos")))
        total += weight * own
    beyond = nodes[-1] * np.exp(_STEP * np.arange(1, 60))
    trace = float(np.trace(shaft)) + sum(len(places) * float(s.sum()) for s, _, places in turned)
    total += trace * float((_STEP * np.sqrt(beyond) / np.pi / (norm + beyond)).sum())
    slack = (64.0 + 4.0 * widest) * np.finfo(np.float64).eps * norm * (rows + q)
    total -= slack * float((weights / nodes).sum() + (_STEP / np.pi / np.sqrt(beyond)).sum())
    return float(max(total, 0.0)) / (1.0 + _aliasing())


def _aliasing() -> float:
    """At least 2 sum_k sech(2 pi^2 k / h): sech x <= 2 e^-x, a geometric sum."""
    ratio = np.exp(-2.0 * np.pi**2 / _STEP)
    return float(4.0 * ratio / (1.0 - ratio))
