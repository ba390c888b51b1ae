"""Selection of the strategy with the least computed error."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from time import monotonic
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dpsql.arguments import maybe, real, taking
from dpsql.errors import DataError, InternalError, nearest, quoted
from dpsql.strategy.cached import cache as kept
from dpsql.strategy.choose.minimax import check_size, minimise_largest
from dpsql.strategy.core.base import NOISES, OBJECTIVES
from dpsql.strategy.core.certificate import Certificate, equal_weights_bound, of_blocks, of_factors, single_weights
from dpsql.strategy.core.copies import spread
from dpsql.strategy.core.integer import Piece, check_entries, finish, normalise
from dpsql.strategy.core.matrix_strategy import MatrixStrategy
from dpsql.strategy.core.parts import split, total_of, union_piece
from dpsql.strategy.core.product import product_piece
from dpsql.strategy.core.reduce import Block, cholesky, reduce_workload
from dpsql.strategy.core.simple import cells_of, identity_piece, moved_columns, single_rows, workload_piece
from dpsql.strategy.core.time_left import LateError, TimeLeft, asked_seconds, cells_seconds, finish_seconds
from dpsql.strategy.gaussian.optimal import solve
from dpsql.strategy.many_cells.box_strategy import box_strategy
from dpsql.strategy.marginals.marginal_strategy import (
    BLOCKS,
    RESIDUALS,
    MarginalStrategy,
    block_strategy,
    residual_strategy,
)
from dpsql.strategy.marginals.residual import fits, residual_piece, residual_plan
from dpsql.strategy.published import PUBLISHED, Terms
from dpsql.strategy.pure import low_rank, p_identity
from dpsql.strategy.ranges.range_strategy import range_strategy
from dpsql.strategy.ranges.range_transform import MATRIX_CELLS, all_ranges
from dpsql.workload.cells.boxes import BoxWorkload
from dpsql.workload.families.marginals import Marginals
from dpsql.workload.families.matrix import Workload

Floats = NDArray[np.float64]

CATALOGUE = (
    "optimal",
    "identity",
    "workload",
    "p-identity",
    "low-rank",
    "union-of-parts",
    "workload-separation",
    *PUBLISHED,
)

_CELLS_AUTO, _CELLS_ASKED = 2048, 20_000  # cells up to which p-identity is tried
_WORK = 3.0e10  # multiplications that one search without a certificate may take, one to two seconds
_QUICK = ("identity", "workload")  # methods without a search: computed even past the deadline
_MANY_QUERIES = 2.0e9  # queries x rank^2 from which a formula may rule out that they are measured as asked
_WORTH = 0.2  # seconds of selection from which a strategy is worth keeping in the cache


@overload
def select(
    W: Workload,
    noise: str = ...,
    method: str = ...,
    tolerance: float = ...,
    time_limit: float | None = ...,
    progress: Callable[[str], None] | None = ...,
    effort: float = ...,
    objective: str = ...,
    cache: str | os.PathLike[str] | None = ...,
) -> MatrixStrategy: ...
@overload
def select(
    W: Marginals,
    noise: str = ...,
    method: str = ...,
    tolerance: float = ...,
    time_limit: float | None = ...,
    progress: Callable[[str], None] | None = ...,
    effort: float = ...,
    objective: str = ...,
    cache: str | os.PathLike[str] | None = ...,
) -> MatrixStrategy | MarginalStrategy: ...
@taking(time_limit=maybe(real()), effort=real(0))
def select(
    W: Workload | Marginals,
    noise: str = "gaussian",
    method: str = "auto",
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    effort: float = 1.0,
    objective: str = "total",
    cache: str | os.PathLike[str] | None = None,
) -> MatrixStrategy | MarginalStrategy:
    """The strategy for W with the least computed error.

    ``noise``: "gaussian" (L2 sensitivity) or "laplace" (L1). ``method``: one of ``CATALOGUE``, or
    "auto". With Gaussian noise that is the certified optimum: ``Strategy.gap`` <= ``tolerance`` of the
    least error of any Gaussian matrix mechanism, unless ``time_limit`` (seconds) stopped it; then the
    gap reached is stated and simpler strategies are compared. With Laplace noise no
    optimum is known, every method is computed and the least error wins. Searches are limited by
    work, not time, and start from fixed points: without ``time_limit`` the result is deterministic (for one
    number of threads). A ``time_limit`` stops searches and more precise rounding, and the best strategy found so far is
    returned; where it passes while W is still reduced to blocks, or would, DataError. What takes seconds in one piece,
    over matrices of thousands of rows, is not begun where it would end later than 1.15 ``time_limit`` and 0.7 s.
    ``progress`` is called with a line of text now and then.

    ``cache``: a folder in which selections that took over 0.2 seconds are kept and found again
    (``dpsql.strategy.cached.cache``; everything read is checked); None keeps none. What ``time_limit`` cut short is not
    kept.

    All ranges over more than 4096 cells have a closed form with Gaussian noise, a ``RangeStrategy`` with a
    certificate of its own; no matrix is made, and its gap is below 2e-4.

    For ``Marginals`` and Gaussian noise the optimum is known in closed form (method "residual-basis", whose lower bound
    is the singular value bound). For Laplace noise weighted blocks of attributes are searched without the cells (method
    "marginal-blocks"). Both are written out over all cells where these are few; else a ``MarginalStrategy`` comes back.
    ``effort`` multiplies the work that searches without a certificate may take.

    ``objective``: "total" squared error, or "max", the least largest squared error of a query
    (``dpsql.strategy.choose.minimax``): ``Strategy.gap`` and ``lower_bound`` are then of the largest. It is never above
    that of the total objective; with Laplace noise it is found by reweighting the queries, without a certificate.

    Neighbouring relation: one record more or less, which moves x by a column of
    ``W.contributions`` (by a unit vector where None). The sensitivities of the result are exact for
    the integers measured. Cost: for rank r over N distinct columns 3 to 40 steps of O(r^3 + r^2 N). Memory: dense
    matrices of at most 2^27 entries (1 GiB) each, rank at most 6000 in one part of the workload.
    Raises DataError for unknown names, numbers out of range, empty or too large workloads, and methods that do not fit.
    """
    if not isinstance(W, Workload | Marginals):
        raise DataError("strategy: select takes a workload; workload.from_matrix makes one of a matrix")
    if not isinstance(noise, str) or noise not in NOISES:
        raise DataError(f"strategy: noise {quoted(noise)} is not known; use 'gaussian' or 'laplace'")
    if not isinstance(method, str):
        raise DataError(f"strategy: method is a name, such as 'auto', not this {type(method).__name__}")
    if method not in ("auto", *CATALOGUE) and not (method in (RESIDUALS, BLOCKS) and isinstance(W, Marginals)):
        raise DataError(f"strategy: method {quoted(method)} is not known; {nearest(method, (*CATALOGUE, 'auto'))}")
    if not _number(tolerance) or not 0 < tolerance <= 1:
        raise DataError("strategy: tolerance must be above 0 and at most 1")
    if time_limit is not None and (not _number(time_limit) or not time_limit > 0):
        raise DataError("strategy: time_limit must be above 0 seconds; leave it out for none")
    if not _number(effort) or not 0 < effort < np.inf:
        raise DataError("strategy: effort must be above 0; 1 is the default")
    if cache is not None and not isinstance(cache, str | os.PathLike):
        raise DataError("strategy: cache must be a folder's path; leave it out for none")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise DataError(f"strategy: objective {quoted(objective)} is not known; use 'total' or 'max'")
    began = monotonic()
    left_of_all = TimeLeft.within(time_limit)
    deadline = left_of_all.deadline
    if isinstance(W, BoxWorkload):
        if objective == "max":
            raise DataError(
                f"strategy: the largest error is not planned over {W.boxes.pairs:,} sets of rows; use the "
                "total one, or split the batch"
            )
        return box_strategy(W, noise, method, tolerance, deadline, progress or _silent)
    if objective == "max":

        def total(V: Workload | Marginals, name: str) -> MatrixStrategy:
            left = None if time_limit is None else max(deadline - monotonic(), 1e-9)
            found = select(V, noise, name, tolerance, left, progress, effort, cache=cache)
            if isinstance(found, MarginalStrategy):
                raise DataError(
                    "strategy: the largest error is not planned over so many cells; use the total one, or fewer "
                    "attributes"
                )
            return found

        check_size(W.shape[0])
        start = total(W, method)
        return minimise_largest(start, method, tolerance, deadline, total, progress or _silent)
    if isinstance(W, Marginals):
        if method == RESIDUALS or (method == "auto" and noise == "gaussian"):
            return _marginals(W, noise, tolerance)
        if noise == "laplace" and method in ("auto", BLOCKS):
            blocks = block_strategy(W, tolerance / 10.0, effort)
            written = blocks.written_out()
            if method == BLOCKS or W.shape[1] > _CELLS_AUTO:
                return written or blocks
            left = None if time_limit is None else max(deadline - monotonic(), 1e-9)
            other = select(W.explicit(), noise, "auto", tolerance, left, progress, effort, cache=cache)
            if written is None or blocks.expected >= other.expected * (1 - 1e-9):
                return other
            return replace(written, considered=(*other.considered, *blocks.considered))
        if method == BLOCKS:
            raise DataError("strategy: marginal-blocks is for Laplace noise; use residual-basis for Gaussian noise")
        W = W.explicit()
    if noise == "gaussian" and method in ("auto", "range-transform") and W.shape[1] > MATRIX_CELLS and all_ranges(W):
        return range_strategy(W)
    say = progress or _silent
    key = None if cache is None else kept.key_of(W, noise, method, tolerance, effort)
    if cache is not None and key is not None:
        found = kept.load(Path(cache), key, W, noise, method, tolerance, CATALOGUE)
        if found is not None:
            say(f"{found.method}: error {found.expected:.6g}, kept from an earlier selection")
            return found
    task = _Task(W, noise, tolerance, left_of_all, say, effort * _WORK)
    S = _best(task, method)
    if cache is not None and key is not None and monotonic() - began > _WORTH and monotonic() < deadline:
        kept.store(Path(cache), key, S, task.optimum().certificate if noise == "gaussian" else None)
    return S


def _best(task: _Task, method: str) -> MatrixStrategy:
    """The draft of least error among the methods that are tried, in integers."""
    W, noise, tolerance = task.W, task.noise, task.tolerance
    drafts: list[tuple[float, str, tuple[Piece, ...]]] = []
    lower = task.optimum().lower if noise == "gaussian" else None
    for name in CATALOGUE if method == "auto" else (method,):
        if drafts and lower is not None and drafts[0][0] <= (1.0 + tolerance) * lower:
            break  # certified: the others cannot be better by more than the tolerance
        if method == "auto" and not task.worthwhile(name, drafts):
            continue
        if drafts and monotonic() > task.deadline and name not in _QUICK:
            continue
        if drafts and not task.time.fits(task.seconds(name)):
            continue
        try:
            pieces, error = task.plan(name)
        except (DataError, InternalError):  # too large, or too ill-conditioned for this way to plan
            if method != "auto":
                raise
            continue
        task.say(f"{name}: error {error:.6g}")
        drafts.append((error, name, pieces))
    if not drafts:
        raise DataError("strategy: the workload is too large for every method; split the batch")
    error, name, pieces = min(drafts, key=lambda d: d[0])
    considered = tuple((label, value) for value, label, _ in drafts)
    return finish(W, name, noise, pieces, error, tolerance, lower, considered, task.time.less(task.finish).deadline)


def _marginals(W: Marginals, noise: str, tolerance: float) -> MatrixStrategy | MarginalStrategy:
    """Marginals by the residual basis, optimal for Gaussian noise; over all cells where they are few."""
    plan = residual_plan(W)
    if noise == "gaussian" and not fits(plan):
        return residual_strategy(W, tolerance / 10.0)
    explicit = W.explicit()
    pieces, error = normalise((residual_piece(plan, explicit),), noise)
    lower = plan.error if noise == "gaussian" else None
    return finish(explicit, RESIDUALS, noise, pieces, error, tolerance, lower, ((RESIDUALS, error),))


def _published(name: str, W: Workload, terms: Terms) -> tuple[Piece, ...]:
    from dpsql.strategy.published.pieces import published

    return published(name, W, terms)


def _silent(_: str) -> None:
    return None


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class _Optimum:
    """The certified Gaussian optimum: ``pieces``, lower <= least error <= upper, and the weights that prove it.

    ``searched``: False where there was no time for a step of any search, and all cells are measured.
    """

    pieces: tuple[Piece, ...]
    upper: float
    lower: float
    certificate: Certificate
    searched: bool = True


@dataclass(eq=False)
class _Task:
    """One selection: the workload, its limits, and what several methods share."""

    W: Workload
    noise: str
    tolerance: float
    time: TimeLeft
    say: Callable[[str], None]
    work: float = _WORK
    _blocks: tuple[Block, ...] | None = None
    _optimum: _Optimum | None = None
    _parts: tuple[Workload, ...] | None = None

    @property
    def deadline(self) -> float:
        """Of searches, in monotonic seconds."""
        return self.time.deadline

    @property
    def finish(self) -> float:
        """Seconds that rounding and reconstruction will take."""
        return finish_seconds(self.blocks(), self.W)

    def seconds(self, name: str) -> float:
        """What the methods that take long over large matrices need besides their steps; 0 for others."""
        if name == "workload":
            return self.finish + asked_seconds(self.blocks(), self.W)
        return self.finish + cells_seconds(self.blocks()) if name == "p-identity" else 0.0

    def blocks(self) -> tuple[Block, ...]:
        if self._blocks is None:
            self._blocks = reduce_workload(self.W, self.time.deadline, self.time.last)
        return self._blocks

    def parts(self) -> tuple[Workload, ...]:
        if self._parts is None:
            self._parts = split(self.W)
        return self._parts

    def worthwhile(self, name: str, drafts: list[tuple[float, str, tuple[Piece, ...]]]) -> bool:
        """Is the method worth its time when nobody asked for it?"""
        if self.noise == "gaussian":
            return name in ("identity", "workload") or (name == "optimal" and self.optimum().searched)
        if name == "low-rank-mechanism" and self.work <= _WORK:
            return False  # it gains 1 or 2 % on a few low-rank batches, for effort above 1
        if name == "workload-separation" or (name in PUBLISHED and name != "low-rank-mechanism"):
            return False  # p-identity starts from the weighted hierarchy; the others never won a row
        if name == "union-of-parts":
            return len(self.parts()) > 1
        if all(b.solo for b in self.blocks()):
            return name in ("identity", "workload")
        cells = max(b.columns.shape[1] for b in self.blocks() if not b.solo)
        rank = max(b.rank for b in self.blocks() if not b.solo)
        if name == "p-identity":
            return bool(cells <= _CELLS_AUTO)
        if name == "workload" and drafts and drafts[0][0] <= self._as_asked():
            return False
        if name == "workload" and cells > _CELLS_ASKED and len(self.parts()) > 1:
            return False  # union-of-parts weighs the queries of each part at least as well
        if name in ("optimal", "low-rank", "low-rank-mechanism"):
            # At nearly full rank the mixing has no room that p-identity does not have.
            room = rank * rank * cells
            return bool(room <= 1e5 or (2 * rank <= cells and room <= 2e7))
        return True

    def _as_asked(self) -> float:
        """The error of very many queries measured themselves, L1^2 rank W, as tr(G G^+) is the rank; 0 for few."""
        diagonal, blocks = self.W.inner.diagonal(), self.blocks()
        if (
            diagonal is None
            or len(blocks) > 1
            or blocks[0].count > 1
            or float(self.W.shape[0]) * blocks[0].rank ** 2 < _MANY_QUERIES
        ):
            return 0.0
        rows = self.W.span if self.W.contributions is None else self.W.span @ self.W.contributions
        return float((np.sqrt(diagonal) @ abs(rows)).max()) ** 2 * float(blocks[0].rank)

    def plan(self, name: str) -> tuple[tuple[Piece, ...], float]:
        """(pieces of sensitivity 1, error) of one method."""
        if name == "optimal":
            found = self.optimum()
            check_entries(found.pieces)
            return (found.pieces, found.upper) if self.noise == "gaussian" else normalise(found.pieces, self.noise)
        if name == "union-of-parts":
            piece, _ = union_piece(self.W, self.parts(), self._part, self.noise)
            return normalise((piece,), self.noise)
        if name == "workload-separation":
            parts = (*self.parts(), total_of(self.W)) if len(self.parts()) > 1 else self.parts()
            piece, _ = union_piece(self.W, parts, self._separated, self.noise)
            return normalise((piece,), self.noise)
        if name in PUBLISHED:
            terms = Terms(self.noise, self.tolerance, self.deadline, self.work)
            return normalise(_published(name, self.W, terms), self.noise)
        pieces = tuple(spread(self._piece(name, b), b.copies) for b in self.blocks())
        check_entries(pieces)
        return normalise(pieces, self.noise)

    def _part(self, part: Workload) -> tuple[tuple[Piece, ...], float]:
        """The best simple strategy of one part, with its share of the work."""
        share = self.work / len(self.parts())
        task = _Task(part, self.noise, self.tolerance, self.time, self.say, share)
        names = ("identity", "workload", "p-identity") if self.noise == "laplace" else ("optimal",)
        found = []
        for name in names:
            if task.worthwhile(name, []):
                try:
                    found.append(task.plan(name))
                except DataError:
                    continue
        if not found:
            raise DataError("strategy: a part of the workload is too large; split the batch")
        return min(found, key=lambda f: f[1])

    def _separated(self, part: Workload) -> tuple[tuple[Piece, ...], float]:
        """One separated workload by the Level Selection Algorithm (Li and Miklau 2011, section 4.3.1)."""
        terms = Terms(self.noise, self.tolerance, self.deadline, self.work)
        return normalise(_published("level-selection", part, terms), self.noise)

    def _piece(self, name: str, block: Block) -> Piece:
        if block.solo and name != "identity":
            return single_rows(block)
        if name == "identity":
            return identity_piece(block, self.W)
        if name == "workload":
            return workload_piece(block, self.W)
        if name == "p-identity":
            return self._p_identity(block)
        metric = self._metric(block)
        Y = block.columns.toarray().astype(np.float64)
        start = low_rank.symmetric_root(metric, block.gram)
        C = low_rank.search(block.gram, Y, start, self.deadline, self.work / len(self.blocks()))
        return Piece(block.basis, C, block.columns, block.gram)

    def _p_identity(self, block: Block) -> Piece:
        lift, D = cells_of(block)
        N = D.shape[1]
        if N > _CELLS_ASKED:
            raise DataError(
                f"strategy: p-identity over {N} cells is above its cap of {_CELLS_ASKED}; use union-of-parts"
            )
        U = (block.factor() @ D).astype(np.float64)
        G = U.T @ U
        through_root = 2 * U.shape[0] < N
        shape = tuple(f.shape[1] for f in self.W.factors)
        objective = p_identity.Objective(None, U) if through_root else p_identity.Objective(G, None, shape)
        until = self.time.less(self.seconds("p-identity") / 2).deadline  # half of it comes after the search
        _, Theta = p_identity.search(objective, G, until, self.work / len(self.blocks()))
        return Piece(lift, p_identity.root_of(Theta), moved_columns(lift, self.W), G)

    def _metric(self, block: Block) -> Floats:
        return solve(block, max(self.tolerance, 1e-2), self.deadline).metric

    def optimum(self) -> _Optimum:
        """The certified Gaussian optimum; factors and blocks apart."""
        if self._optimum is not None:
            return self._optimum
        W = self.W
        if len(W.factors) > 1 and W.inner.diagonal() is None:
            near = self.tolerance / len(W.factors)
            parts = [_Task(f, "gaussian", near, self.time, self.say).optimum() for f in W.factors]
            upper, lower = prod(part.upper for part in parts), prod(part.lower for part in parts)
            piece = product_piece(W, [part.pieces for part in parts])
            proof = of_factors(tuple(part.certificate for part in parts))
            self._optimum = _Optimum((piece,), upper, lower, proof, any(part.searched for part in parts))
            return self._optimum
        found: list[Piece] = []
        weights: list[tuple[Block, Floats, float]] = []
        upper = lower = 0.0
        left, late = self.time.less(self.finish), 0
        for block in self.blocks():
            if block.solo:
                piece = single_rows(block)
                error = piece.trace(piece.root)
                upper, lower = upper + error, lower + error
                found.append(piece)
                weights.append((block, single_weights(block), error))
                continue
            try:
                solution = solve(block, 0.9 * self.tolerance, left.deadline, self.say, left.fits)
            except LateError:
                # No step fits: every cell is measured.
                (piece,), error = normalise((identity_piece(block, W),), "gaussian")
                bound, N = equal_weights_bound(block, self.time.fits), block.columns.shape[1]
                found.append(spread(piece, block.copies))
                upper, lower = upper + block.count * error, lower + block.count * bound
                weights.append((block, np.full(N, 1.0 / N), bound))
                late += 1
                continue
            piece = Piece(block.basis, cholesky(solution.metric), block.columns, block.gram)
            found.append(spread(piece, block.copies))
            upper, lower = upper + block.count * solution.upper, lower + block.count * solution.lower
            weights.append((block, solution.weights, solution.lower))
        several = sum(not block.solo for block in self.blocks())
        self._optimum = _Optimum(tuple(found), upper, lower, of_blocks(weights), late < max(1, several))
        return self._optimum
