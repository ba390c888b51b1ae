"""A lower bound of what is planned by teams of sources (``by_source``), from how a unit may move them at once.

Weights lambda_i of each team's own bound say how a unit moves team i; let it move all teams at once, independently,
with probability w_0, and team i alone with w_i. That mixes contributions, so

    M = sum_i (w_0 + w_i) M_i on the diagonal, w_0 m_i m_j^T beside it,   M_i = E[c c^T], m_i = E[c],

proves (tr (G^1/2 M G^1/2)^1/2)^2 <= E* for every w. With w_0 = 1 and m_i = 0 that is the least of teams apart, (sum_i
E_i^1/2)^2: what teams together could gain is what their means m_i share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Flags, Floats, Ints
from dpsql.linalg.basis import Basis, choose_basis
from dpsql.linalg.columns import distinct_columns
from dpsql.strategies.core.bound_over_tables import least_of_tables
from dpsql.strategies.core.certificate import Certificate
from dpsql.strategies.core.reduce import cholesky
from dpsql.strategies.core.symmetric import Lines, Part, lower_bound
from dpsql.workloads.families.contributions import Part as UnitPart
from dpsql.workloads.families.matrix import Workload

LARGEST = 2500
"""Order of the largest matrix whose eigenvalues are worked out for a bound."""

_FEW = 0.05  # entries other than 0 from which on dense products are as quick
_MEETING = (1.0, 0.85, 0.7, 0.55)  # chances that a unit moves all teams at once


@dataclass(frozen=True, eq=False)
class Proof:
    """M_i and m_i of a team in coordinates in which the Gram matrix is the identity, and what stands apart from both.

    ``isotropic``: terms of tr (G^1/2 M G^1/2)^1/2 whose share of M is a multiple of the identity and of mean 0.
    """

    second: Floats
    first: Floats
    isotropic: float = 0.0

    @property
    def bound(self) -> float:
        """The lower bound of the team by itself. Cost: the eigenvalues of ``second``."""
        return float((squared_root_trace(self.second) ** 0.5 + self.isotropic) ** 2)


def together(lowers: Sequence[float], each: Sequence[Proof | None], means: Sequence[float | None]) -> float:
    """The best lower bound of the module over a few chances of meeting, or by ``least_of_tables``.

    ``lowers``: the bound of each team by itself, ``each``: its proof, ``means``: at most |m_i| where there is none. The
    worst team alone where more is not known.
    """
    best = max(lowers)
    if len(lowers) == 1:
        return best
    best = max(best, least_of_tables(norms_of(list(zip(lowers, each, means, strict=True)))))
    proofs = [proof for proof in each if proof is not None]
    if len(proofs) < len(lowers) or sum(p.first.size for p in proofs) > LARGEST:
        return best
    root = np.sqrt(lowers)
    starts = np.cumsum([0, *(proof.first.size for proof in proofs)])
    mean = np.concatenate([proof.first for proof in proofs])
    cross = np.outer(mean, mean)
    for a, b in pairwise(starts.tolist()):
        cross[a:b, a:b] = 0.0
    blocks = scipy.linalg.block_diag(*[proof.second for proof in proofs])
    for meeting in _MEETING:
        alone = (1.0 - meeting) * root / root.sum()
        weight = np.repeat(meeting + alone, np.diff(starts))
        M = blocks * weight[:, None] + meeting * cross
        t = squared_root_trace(M) ** 0.5
        t += sum(float(np.sqrt(meeting + a)) * p.isotropic for a, p in zip(alone, proofs, strict=True))
        best = max(best, t * t)
    return best


def norms_of(teams: Sequence[tuple[float, Proof | None, float | None]]) -> list[tuple[float, float]]:
    """(n, at least s) of ``least_of_tables`` for each (lower bound, proof, mean) of a team."""
    norms = []
    for lower, one, far in teams:
        if one is None:
            norms.append((lower**0.5, lower**0.5 if far is None else far))
        else:  # its law may be another than that of the lower bound
            norms.append((one.bound**0.5, float(np.linalg.norm(one.first))))
    return norms


def of_parts(part: Part, lines: Lines, weights: Floats) -> Proof:
    """The proof of a team by its parts: what groups share, its moments of rank 1, and contrasts, whose mean is 0."""
    U = part.moments @ part.root.T
    return Proof((U.T * weights) @ U, weights @ U, float(np.sqrt(lower_bound([lines], weights))))


def of_random_classes(part: UnitPart, across: Flags, V: Workload, certificate: Certificate) -> Proof | None:
    """M and m where a unit has one corner in each of ``most`` random classes; the best of a few such units.

    Corners are drawn in each class by the certificate's weights, apart from each other, or all of them alike to the
    queries ``across`` classes.
    """
    basis = choose_basis(V.span, V.inner)
    classes, v = part.classes, basis.rows.shape[0]
    if v > LARGEST:
        return None
    corners = cholesky(basis.gram(V.inner)) @ V.moved(basis.rows).toarray().astype(np.float64)
    weights = np.bincount(certificate.places, weights=certificate.weights, minlength=corners.shape[1])
    one = part.most / len(classes)
    two = one * (part.most - 1) / max(1, len(classes) - 1)

    def drawn(chances: Floats, share: Floats) -> Proof:
        """Corners drawn in each class by a row of ``chances``, which is taken with its ``share``."""
        held = np.concatenate(classes)
        starts = np.cumsum([0, *(own.size for own in classes[:-1])])
        total = np.add.reduceat(chances[:, held], starts, axis=1)
        total = np.repeat(total, [own.size for own in classes], axis=1)
        lam = np.divide(chances[:, held], total, out=np.zeros(total.shape), where=total > 0)
        second, first = one * (corners[:, held] * (share @ lam)) @ corners[:, held].T, np.zeros((v, share.size))
        for kind, chance in enumerate(lam):
            means = np.add.reduceat(corners[:, held] * chance, starts, axis=1)
            second -= two * share[kind] * means @ means.T
            first[:, kind] = means.sum(axis=1)
        return Proof(second + two * (first * share) @ first.T, one * first @ share)

    chance = np.maximum(weights, 1e-12 * weights.max())
    apart = drawn(chance[None, :], np.ones(1))
    proofs = [apart]
    if across.any():
        label = distinct_columns(sparse.csc_array(V.moved(V.span[across]))).label
        share = np.bincount(label[label >= 0], weights=weights[label >= 0])
        kinds = np.where(label[None, :] == np.arange(share.size)[:, None], chance, 0.0)
        alike = drawn(kinds, share / share.sum())
        proofs += [mixed(alike, apart, t) for t in (0.3, 0.6, 0.9)]
    return max(proofs, key=lambda proof: squared_root_trace(proof.second))


def mixed(one: Proof, other: Proof, share: float) -> Proof:
    """A unit that is the ``one`` with chance ``share``, else the ``other``."""
    rest = 1.0 - share
    return Proof(share * one.second + rest * other.second, share * one.first + rest * other.first)


def squared_root_trace(M: Floats) -> float:
    """(tr M^1/2)^2, below by what rounding may have added."""
    s = np.maximum(scipy.linalg.eigvalsh(M) - 1e-12 * float(np.linalg.norm(M)), 0.0)
    return float(np.sqrt(s).sum()) ** 2


def mean_of(V: Workload, places: Ints, lam: Floats) -> float | None:
    """|m_i| for weights ``lam``, of sum 1, of the columns ``places``; None where queries are no list of rows."""
    diagonal = V.inner.diagonal()
    if diagonal is None:
        return None
    moved = np.asarray(sparse.csc_array(V.moved(V.span), dtype=np.float64)[:, places] @ lam)
    return float(np.linalg.norm(np.sqrt(diagonal) * moved))


def of_list(basis: Basis, V: Workload, places: Ints, lam: Floats) -> Proof:
    """M_i and m_i for weights ``lam`` of the columns ``places``."""
    moved, factor = sparse.csc_array(V.moved(basis.rows), dtype=np.float64)[:, places], cholesky(basis.gram(V.inner))
    if moved.nnz > _FEW * moved.shape[0] * moved.shape[1]:
        U = factor @ moved.toarray()
        return Proof((U * lam) @ U.T, U @ lam)
    second = (moved @ sparse.diags_array(lam) @ moved.T).toarray()
    return Proof(factor @ second @ factor.T, np.asarray(factor @ (moved @ lam)))
