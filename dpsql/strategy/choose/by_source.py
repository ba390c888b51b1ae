"""Strategies where one unit moves several sources, in more ways than are listed.

What a unit can change (``dpsql.workload.families.contributions``) is a choice for each source, so that the ways
multiply: a source by 50 groups that a unit may all be in has 2^50 on its own. The sources of one kind of unit are
gathered into teams. A team is planned over all that a unit can change of its sources together: by its list, or by
orbits where groups are alike (``dpsql.strategy.gaussian.alike_groups``). Teams are measured apart. Team i at share
alpha_i of the sensitivity has the error E_i / alpha_i^2; for Gaussian noise the squares of the shares add up to 1 and
the least total is (sum_i E_i^1/2)^2, for Laplace noise the shares do and it is (sum_i E_i^1/3)^3.

A lower bound for the teams together. Weights lambda_i of each team's own bound say how a unit moves team i; let it move
all teams at once, independently, with probability w_0, and team i alone with w_i. That mixes contributions, so

    M = sum_i (w_0 + w_i) M_i on the diagonal, w_0 m_i m_j^T beside it,   M_i = E[c c^T], m_i = E[c],

proves (tr (G^1/2 M G^1/2)^1/2)^2 <= E* for every w. With w_0 = 1 and m_i = 0 that is the least of teams apart, (sum_i
E_i^1/2)^2: what teams together could gain is what their means m_i share. Different kinds of unit are problems of their
own, each at full sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
from scipy import linalg, sparse

from dpsql.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import Basis, choose_basis
from dpsql.strategy.choose.task import Task, drafts
from dpsql.strategy.core.integer import Piece, finish
from dpsql.strategy.core.matrix_strategy import MatrixStrategy
from dpsql.strategy.core.reduce import cholesky
from dpsql.strategy.core.time_left import TimeLeft
from dpsql.strategy.gaussian.alike_groups import orbits, solve_alike
from dpsql.workload.families.contributions import MOST_LISTED, Contributions, Part
from dpsql.workload.families.matrix import Workload

METHOD = "by-source"

_WRITTEN = 1500  # groups up to which the contrasts between them are written out as rows of B
_ORBITS = 40_000
_ORDER = 2500  # of the matrix whose eigenvalues bound teams together
_MEETING = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # chances that a unit moves all teams at once


@dataclass(frozen=True, eq=False)
class _Proof:
    """M_i and m_i of a team in coordinates in which the Gram matrix is the identity, and what stands apart from both.

    ``apart``: terms of tr (G^1/2 M G^1/2)^1/2 whose share of M is a multiple of the identity and of mean 0.
    """

    second: Floats
    first: Floats
    apart: float = 0.0


@dataclass(frozen=True, eq=False)
class _Team:
    """Sources planned together: pieces of sensitivity 1 to a unit, their error and a lower bound with its proof."""

    pieces: tuple[Piece, ...]
    error: float
    lower: float
    proof: _Proof | None


def strategy_by_source(
    W: Workload, noise: str, tolerance: float, time: TimeLeft, say: Callable[[str], None], work: float
) -> MatrixStrategy:
    """The strategy of least computed error by teams of sources, for ``W.units``, whose parts W reads one by one.

    Raises DataError where a query reads two sources, and as selections of the teams do.
    """
    pieces, error, lower = plan_by_source(W, noise, tolerance, time, say, work)
    least = lower if noise == "gaussian" else None
    return finish(W, METHOD, noise, pieces, error, tolerance, least, ((METHOD, error),), time.deadline)


def plan_by_source(
    W: Workload, noise: str, tolerance: float, time: TimeLeft, say: Callable[[str], None], work: float
) -> tuple[tuple[Piece, ...], float, float]:
    """(pieces that together have sensitivity 1 to ``W.units``, error, lower bound, 0 for Laplace noise)."""
    units = W.units
    if units is None:
        raise InternalError("strategy: a workload without units has no sources to plan by")
    found: list[Piece] = []
    error = lower = 0.0
    for parts in units.units:
        mine = [(part, rows) for part in parts if (rows := _rows_of(W, part)).size]
        if not mine:
            continue
        planner = _Planner(W, noise, tolerance, time, say, work)
        teams = planner.gaussian(mine) if noise == "gaussian" else [planner.laplace(part, rows) for part, rows in mine]
        shares, total = _shares([team.error for team in teams], noise)
        for team, share in zip(teams, shares, strict=True):
            found.extend(replace(piece, root=piece.root * share) for piece in team.pieces)
        error += total
        lower += _together(teams)
    return tuple(found), error, lower


def _rows_of(W: Workload, part: Part) -> Ints:
    """The spanning rows that the part's corners move."""
    return np.flatnonzero(np.diff(sparse.csr_array(W.span @ abs(part.corners)).indptr)).astype(np.int64)


def _shares(errors: Sequence[float], noise: str) -> tuple[Floats, float]:
    """Shares of the sensitivity of least total error, and that error."""
    power = 4 if noise == "gaussian" else 3
    root = np.asarray(errors) ** (1.0 / power)
    if noise == "gaussian":
        return root / float(np.sqrt((root**2).sum())), float((root**2).sum()) ** 2
    return root / float(root.sum()), float(root.sum()) ** 3


def _together(teams: Sequence[_Team]) -> float:
    """The best lower bound of the module over a few chances of meeting; else that of the worst team."""
    best = max(team.lower for team in teams)
    proofs = [team.proof for team in teams if team.proof is not None]
    if len(teams) == 1 or len(proofs) < len(teams) or sum(p.first.size for p in proofs) > _ORDER:
        return best
    root = np.sqrt([team.lower for team in teams])
    starts = np.cumsum([0, *(proof.first.size for proof in proofs)])
    mean = np.concatenate([proof.first for proof in proofs])
    cross = np.outer(mean, mean)
    for a, b in pairwise(starts.tolist()):
        cross[a:b, a:b] = 0.0
    blocks = linalg.block_diag(*[proof.second for proof in proofs])
    for meeting in _MEETING:
        alone = (1.0 - meeting) * root / root.sum()
        weight = np.repeat(meeting + alone, np.diff(starts))
        M = blocks * weight[:, None] + meeting * cross
        s = np.maximum(linalg.eigvalsh(M) - 1e-12 * float(np.linalg.norm(M)), 0.0)
        t = float(np.sqrt(s).sum())
        t += sum(float(np.sqrt(meeting + a)) * p.apart for a, p in zip(alone, proofs, strict=True))
        best = max(best, t * t)
    return best


class _Planner:
    """Plans teams of one kind of unit."""

    def __init__(
        self, W: Workload, noise: str, tolerance: float, time: TimeLeft, say: Callable[[str], None], work: float
    ) -> None:
        assert W.units is not None  # noqa: S101 - asked before
        self.W, self.noise, self.tolerance, self.time, self.say, self.work = W, noise, tolerance, time, say, work
        self.common = W.units.common

    def gaussian(self, mine: Sequence[tuple[Part, Ints]]) -> list[_Team]:
        """Teams: all that fits one list or one set of orbits together, then source by source."""
        alike = [(part, rows) for part, rows in mine if part.most > 1 and self._weight(part, rows) is not None]
        others = [(part, rows) for part, rows in mine if not any(part is other for other, _ in alike)]
        listed = prod(1 + part.count for part, _ in others) - 1
        if alike and listed <= MOST_LISTED and self._orbits(alike, listed) <= _ORBITS:
            return [self._alike(alike, others)]
        teams: list[_Team] = []
        if alike:
            whole = self._orbits(alike, 0) <= _ORBITS
            teams += [self._alike(alike, [])] if whole else [self._alike([one], []) for one in alike]
        if others:
            teams += [self._listed(others)] if listed <= MOST_LISTED else [self._alone(*one) for one in others]
        return teams

    def laplace(self, part: Part, rows: Ints) -> _Team:
        """One source by its single corners: in L1 what ``most`` of them move adds up."""
        task = Task(self._only([part], rows, single=True), "laplace", self.tolerance, self.time, self.say, self.work)
        error, _, pieces = min(drafts(task, "auto"), key=lambda draft: draft[0])
        scaled = tuple(replace(piece, root=piece.root / part.most) for piece in pieces)
        return _Team(scaled, error * part.most**2, 0.0, None)

    def _orbits(self, alike: Sequence[tuple[Part, Ints]], listed: int) -> int:
        return (listed + 1) * prod(part.most + 1 for part, _ in alike)

    def _weight(self, part: Part, rows: Ints) -> float | None:
        """The squared weight of every group of a source whose groups are alike, each asked by itself; else None."""
        diagonal = self.W.inner.diagonal()
        span = sparse.csr_array(self.W.span[rows])
        groups = part.corners.shape[1]
        if diagonal is None or part.corners.nnz != groups or span.nnz != span.shape[0] or groups > _WRITTEN:
            return None
        weights = np.zeros(self.W.span.shape[1])
        np.add.at(weights, span.indices, diagonal[rows] * span.data.astype(np.float64) ** 2)
        held = weights[part.corners.indices]
        return float(held[0]) if held.min() > 0 and np.ptp(held) <= 1e-12 * held.max() else None

    def _only(self, parts: Sequence[Part], rows: Ints, *, single: bool = False) -> Workload:
        """The queries on ``rows`` and what a unit changes of ``parts``: one corner of each at a time if ``single``."""
        held = tuple(replace(part, most=1) for part in parts) if single else tuple(parts)
        columns = Contributions((held,), self.W.shape[1]).columns
        common = Contributions((held,), self.W.shape[1]).common
        diagonal = self.W.inner.diagonal()
        if diagonal is None:
            raise DataError("strategy: queries that are no list of rows are not planned by source")
        inner = algebra.Diagonal(np.sqrt(diagonal[rows]))
        groups = None if self.W.groups is None else self.W.groups[rows]
        span = sparse.csr_array(self.W.span[rows])
        return Workload(span, inner, columns * (common // self.common), groups, self.W.name)

    def _listed(self, mine: Sequence[tuple[Part, Ints]]) -> _Team:
        """All that a unit can change of these sources, one by one."""
        rows = np.unique(np.concatenate([own for _, own in mine]))
        V = self._only([part for part, _ in mine], rows)
        optimum = Task(V, "gaussian", self.tolerance, self.time, self.say, self.work).optimum()
        places, lam = optimum.certificate.places, optimum.certificate.weights
        proof = _proof(self._basis(V), V, places, lam / float(lam.sum()))
        return _Team(optimum.pieces, optimum.upper, optimum.lower, proof)

    def _alone(self, part: Part, rows: Ints) -> _Team:
        """One source whose groups are not alike, or are very many: by its single corners, measured apart."""
        if part.most == 1:
            return self._listed([(part, rows)])
        V = self._only([part], rows, single=True)
        optimum = Task(V, "gaussian", self.tolerance, self.time, self.say, self.work).optimum()
        # Groups that no measurement has two of: squares of most of them add up.
        scaled = tuple(replace(piece, root=piece.root / part.most**0.5) for piece in optimum.pieces)
        return _Team(scaled, optimum.upper * part.most, optimum.lower, None)

    def _basis(self, V: Workload) -> Basis:
        return choose_basis(V.span, V.inner)

    def _alike(self, alike: Sequence[tuple[Part, Ints]], others: Sequence[tuple[Part, Ints]]) -> _Team:
        """Sources by groups that are alike, beside others whose contributions are listed, by orbits."""
        n = self.W.shape[1]
        factor, moved, basis = np.zeros((0, 0)), np.zeros((0, 0)), sparse.csr_array((0, n), dtype=np.int64)
        if others:
            rows = np.unique(np.concatenate([own for _, own in others]))
            V = self._only([part for part, _ in others], rows)
            chosen = self._basis(V)
            basis, factor = sparse.csr_array(chosen.rows), cholesky(chosen.gram(V.inner))
            moved = np.asarray((basis @ V.contributions).toarray(), dtype=np.float64)
        gammas = [self._weight(part, rows) or 0.0 for part, rows in alike]
        groups = [part.corners.shape[1] for part, _ in alike]
        times = [part.times // self.common for part, _ in alike]
        held = orbits(factor, moved, groups, [part.most for part, _ in alike], gammas)
        if set(times) != {1}:
            raise InternalError("strategy: units are counted once in each group")
        found = solve_alike(held, 0.9 * self.tolerance, self.time.deadline)
        w = factor.shape[0]
        C = cholesky(found.metric)
        entries = np.concatenate([part.corners.indices for part, _ in alike])
        ones = sparse.csr_array(
            (np.ones(entries.size, dtype=np.int64), (np.arange(entries.size), entries)), shape=(entries.size, n)
        )
        quotient = np.concatenate([C[:, :w], np.repeat(C[:, w:], groups, axis=1)], axis=1)
        contrasts = [x**0.5 * (np.eye(g) - 1.0 / g) for x, g in zip(found.contrasts, groups, strict=True)]
        root = np.concatenate([np.concatenate([np.zeros((sum(groups), w)), linalg.block_diag(*contrasts)], axis=1)])
        root = np.concatenate([quotient, root], axis=0)
        gram = linalg.block_diag(factor.T @ factor, np.diag(np.repeat(gammas, groups)))
        joined = sparse.csr_array(sparse.vstack([basis, ones], format="csr"))
        piece = Piece(joined, root, sparse.csc_array(joined @ ones.T), np.asarray(gram))
        U = held.factor @ held.columns
        apart = float(np.sqrt(held.weights * (held.spread @ found.weights)).sum())
        proof = _Proof((U * found.weights) @ U.T, U @ found.weights, apart)
        return _Team((piece,), found.upper, found.lower, proof)


def _proof(basis: Basis, V: Workload, places: Ints, lam: Floats) -> _Proof | None:
    """M_i and m_i for weights ``lam`` of the columns ``places``; None where coordinates are too many."""
    if basis.rows.shape[0] > _ORDER:
        return None
    moved = sparse.csc_array(basis.rows @ V.contributions)[:, places].toarray()
    U = cholesky(basis.gram(V.inner)) @ moved.astype(np.float64)
    return _Proof((U * lam) @ U.T, U @ lam)
