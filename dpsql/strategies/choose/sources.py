"""Sources of one kind of unit: what a unit adds to each, the queries that read it, and teams planned together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import choose_basis
from dpsql.strategies.choose import team_bounds
from dpsql.strategies.choose.class_queries import moved_by
from dpsql.strategies.choose.task import Task
from dpsql.strategies.choose.team_bounds import Proof
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import reduced_basis
from dpsql.workloads.families.contributions import Contributions, Part
from dpsql.workloads.families.matrix import Workload

WRITTEN = 1500
"""Groups up to which the contrasts between them are written out as rows of B."""
NEAR = 1.02
"""Error over the lower bound up to which nothing else is tried."""
_WRITTEN_OUT = 2**25  # entries of what all corners move of a strategy


@dataclass(frozen=True, eq=False)
class Source:
    """What a unit adds to one source, and the spanning rows of W that read it."""

    part: Part
    rows: Ints


@dataclass(frozen=True, eq=False)
class Team:
    """Sources planned together: pieces of sensitivity 1 to a unit, their error and a lower bound with its proof.

    ``mean``: where there is no proof at most |m| of the law that ``lower`` is of, if that is known.
    ``settled``: nothing else that is tried has less error. ``later``: gives the bound in place of ``lower``, where it
    takes long and another plan may win.
    """

    pieces: tuple[Piece, ...]
    error: float
    lower: float
    proof: Proof | None
    later: Callable[[], float] | None = None
    settled: bool = False
    mean: float | None = None


def rows_of(W: Workload, part: Part) -> Ints:
    """The spanning rows that the part's corners move."""
    return np.flatnonzero(np.diff(sparse.csr_array(abs(W.span) @ abs(part.corners)).indptr)).astype(np.int64)


def shares_of(errors: Sequence[float], noise: str) -> tuple[Floats, float]:
    """Shares of the sensitivity of least total error, and that error."""
    power = 4 if noise == "gaussian" else 3
    root = np.asarray(errors) ** (1.0 / power)
    if noise == "gaussian":
        return root / float(np.sqrt((root**2).sum())), float((root**2).sum()) ** 2
    return root / float(root.sum()), float(root.sum()) ** 3


def scaled(pieces: tuple[Piece, ...], by: float) -> tuple[Piece, ...]:
    return tuple(replace(piece, root=piece.root * by) for piece in pieces)


class Sources:
    """Plans sources of one kind of unit of the batch of a ``task``."""

    def __init__(self, task: Task) -> None:
        if task.W.units is None:
            raise InternalError("strategy: a workload without units has no sources to plan by")
        self.task, self.W, self.common = task, task.W, task.W.units.divisor
        self._listed: dict[tuple[Source, ...], Team] = {}

    def task_of(self, V: Workload, noise: str = "gaussian", *, turned: bool = False) -> Task:
        """The task of another workload within the same limits."""
        task = self.task
        return Task(V, noise, task.tolerance, task.time, task.say, task.work, turned, task.in_blocks)

    def only(self, mine: Sequence[Source], *, single: bool = False) -> Workload:
        """The queries on these sources and what a unit changes of them: one corner of each at a time if ``single``."""
        rows = np.unique(np.concatenate([one.rows for one in mine]))
        held = tuple(replace(one.part, most=1) if single else one.part for one in mine)
        columns = Contributions((held,), self.W.shape[1]).columns
        common = Contributions((held,), self.W.shape[1]).common
        diagonal = self.W.inner.diagonal()
        if diagonal is None:
            raise DataError("strategy: queries that are no list of rows are not planned by source")
        inner = algebra.Diagonal(np.sqrt(diagonal[rows]))
        groups = None if self.W.groups is None else self.W.groups[rows]
        span = sparse.csr_array(self.W.span[rows])
        return Workload(span, inner, columns * (common // self.common), groups, self.W.name)

    def listed(self, mine: Sequence[Source], V: Workload | None = None) -> Team:
        """All that a unit can change of these sources, one by one, planned once; or what it changes of ``V``."""
        if V is None:
            if tuple(mine) not in self._listed:
                self._listed[tuple(mine)] = self.listed(mine, self.only(mine))
            return self._listed[tuple(mine)]
        task = self.task_of(V)
        optimum = task.optimum()
        places, lam = optimum.certificate.places, optimum.certificate.weights
        few = sum(block.count * block.rank for block in task.blocks()) <= team_bounds.LARGEST
        basis = (reduced_basis(V) or choose_basis(V.span, V.inner)) if few else None
        lam = lam / float(lam.sum())
        proof = None if basis is None else team_bounds.of_list(basis, V, places, lam)
        mean = team_bounds.mean_of(V, places, lam) if proof is None else None
        return Team(optimum.pieces, optimum.upper, optimum.lower, proof, mean=mean)

    def placed(self, piece: Piece, mine: Sequence[Source]) -> Piece:
        """The piece without coordinates of queries where these are not all of the batch."""
        return piece if sum(one.rows.size for one in mine) == self.W.span.shape[0] else replace(piece, placed=None)

    def within(
        self, pieces: tuple[Piece, ...], error: float, V: Workload, longest: Callable[[Floats], float | None]
    ) -> Team | None:
        """``pieces`` scaled until no sum of corners is longer than 1, and their ``error`` then; None for large ones.

        ``longest``: of what each corner of V moves (p x N) what no sum exceeds, squared.
        """
        if sum(piece.root.shape[0] * piece.copies for piece in pieces) * V.changes > _WRITTEN_OUT:
            return None
        far = longest(np.concatenate([moved_by(piece, V) for piece in pieces]))
        if far is None:
            return None
        return Team(scaled(pieces, far**-0.5), error * far, 0.0, None)
