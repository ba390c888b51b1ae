"""Selection of the strategy with the least computed error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import overload

import numpy as np

from dpsql.common.arguments import maybe, real, taking
from dpsql.common.one_thread import one_thread
from dpsql.errors import DataError, SQLError, nearest, quoted
from dpsql.strategies.cached import cache as kept
from dpsql.strategies.choose.best import best_of
from dpsql.strategies.choose.task import BY_SOURCE, CELLS_AUTO, FORMER_NAMES, WORK, Task, catalogue
from dpsql.strategies.core.base import NOISES, OBJECTIVES, PURE
from dpsql.strategies.core.copies import spread
from dpsql.strategies.core.integer import check_entries, finish, normalise
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.core.simple import workload_piece
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.strategies.kronecker.largest import least_largest
from dpsql.strategies.kronecker.level_strategy import LevelStrategy, level_strategy
from dpsql.strategies.kronecker.structured import StructuredStrategy, structured_strategy
from dpsql.strategies.marginals.marginal_strategy import (
    BLOCKS,
    RESIDUALS,
    SIGNS,
    MarginalStrategy,
    block_strategy,
    residual_strategy,
    sign_strategy,
)
from dpsql.strategies.marginals.residual import fits, residual_piece, residual_plan
from dpsql.strategies.ranges.range_strategy import range_strategy
from dpsql.strategies.ranges.range_transform import MATRIX_CELLS, all_ranges
from dpsql.workloads.cells.boxes import BoxWorkload
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.products import marginal_batch
from dpsql.workloads.compile.structured import Structured, is_single
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload

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
    known: float = ...,
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
    known: float = ...,
) -> MatrixStrategy | MarginalStrategy | StructuredStrategy: ...
@overload
def select(
    W: Workload | Batch,
    noise: str = ...,
    method: str = ...,
    tolerance: float = ...,
    time_limit: float | None = ...,
    progress: Callable[[str], None] | None = ...,
    effort: float = ...,
    objective: str = ...,
    cache: str | os.PathLike[str] | None = ...,
    known: float = ...,
) -> MatrixStrategy | StructuredStrategy | LevelStrategy: ...
@one_thread()
@taking(time_limit=maybe(real()), effort=real(0))
def select(
    W: Workload | Marginals | Batch,
    noise: str = "gaussian",
    method: str = "auto",
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    effort: float = 1.0,
    objective: str = "total",
    cache: str | os.PathLike[str] | None = None,
    known: float = np.inf,
) -> MatrixStrategy | MarginalStrategy | StructuredStrategy | LevelStrategy:
    """The strategy for W with the least computed error.

    ``noise``: "gaussian" (L2 sensitivity), "laplace" (L1), or "pure": the better of Laplace noise and noise in blocks
    (``Strategy.blocks``), both of pure epsilon and of kind "laplace" in what comes back. ``method``: one of
    ``CATALOGUE``, or "auto". With Gaussian noise that is the certified optimum: ``Strategy.gap`` <= ``tolerance`` of
    the least error of any Gaussian matrix mechanism, unless ``time_limit`` (seconds) stopped it; then the gap reached
    is stated and simpler strategies are compared. With Laplace noise no optimum is known, every method is computed and
    the least error wins. Searches are limited by work, not time, and start from fixed points: without ``time_limit``
    the result is deterministic (for one number of threads). A ``time_limit`` stops searches and more precise rounding,
    and the best strategy found so far is returned; where it passes while W is still reduced to blocks, or would,
    DataError. What takes seconds in one piece, over matrices of thousands of rows, is not begun where it would end
    later than 1.15 ``time_limit`` and 0.7 s. ``progress`` is called with a line of text now and then.

    ``cache``: a folder in which selections that took over 0.2 seconds are kept and found again
    (``dpsql.strategies.cached.cache``; everything read is checked); None keeps none. What ``time_limit`` cut short is
    not kept.

    All ranges over more than 4096 cells have a closed form with Gaussian noise, a ``RangeStrategy`` with a
    certificate of its own; no matrix is made, and its gap is below 2e-4.

    For ``Marginals`` and Gaussian noise the optimum is known in closed form (method "residual-basis", whose lower bound
    is the singular value bound). For Laplace noise weighted blocks of attributes are searched without the cells (method
    "marginal-blocks"), for "pure" rows of signs in blocks beside them ("sign-blocks"). All are written out over all
    where these are few; else a ``MarginalStrategy`` comes back. Their largest error is planned as that of the batch of
    blocks that SQL compiles to, a ``StructuredStrategy``, where that has less than what is planned over all cells.
    ``workload.products`` are planned column by column, a ``StructuredStrategy``; ``method``, ``effort`` and ``cache``
    say nothing of them.
    ``effort`` multiplies the work that searches without a certificate may take.

    ``known``: the error of another plan; DataError where what is planned source by source is seen not to come below it.

    ``objective``: "total" squared error, or "max", the least largest squared error of a query
    (``dpsql.strategies.choose.minimax``), never above that of the total objective. It is found by weighing the queries
    anew, without a certificate: ``lower_bound`` is the least total error over the number of queries, ``gap`` None.

    Neighbouring relation: one record more or less, which moves x by a column of
    ``W.contributions`` (by a unit vector where None). The sensitivities of the result are exact for
    the integers measured. Cost: for rank r over N distinct columns 3 to 40 steps of O(r^3 + r^2 N). Memory: dense
    matrices of at most 2^27 entries (1 GiB) each, rank at most 6000 in one part of the workload.
    Raises DataError for unknown names, numbers out of range, empty or too large workloads, and methods that do not fit.
    """
    if not isinstance(W, Workload | Marginals | Structured):
        raise DataError("strategy: select takes a workload; workload.from_matrix makes one of a matrix")
    if not isinstance(noise, str) or noise not in (*NOISES, PURE):
        raise DataError(f"strategy: noise {quoted(noise)} is not known; use 'gaussian', 'laplace' or 'pure'")
    if not isinstance(method, str):
        raise DataError(f"strategy: method is a name, such as 'auto', not this {type(method).__name__}")
    method = FORMER_NAMES.get(method, method)
    if method not in ("auto", *catalogue()) and not (method in (RESIDUALS, BLOCKS, SIGNS) and isinstance(W, Marginals)):
        raise DataError(f"strategy: method {quoted(method)} is not known; {nearest(method, (*catalogue(), 'auto'))}")
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
    began, asked, in_blocks = monotonic(), noise, noise == PURE
    noise = "laplace" if in_blocks else noise
    left_of_all = TimeLeft.within(time_limit)
    deadline = left_of_all.deadline
    if isinstance(W, Structured):
        said = progress or _silent
        if objective == "max":
            return least_largest(W, noise, tolerance=tolerance, time_limit=time_limit, say=said)
        return _of_blocks(W, noise, tolerance, time_limit, said)
    if isinstance(W, BoxWorkload):
        if objective == "max":
            raise DataError(
                f"strategy: the largest error is not planned over {W.boxes.pairs:,} sets of rows; use the "
                "total one, or split the batch"
            )
        from dpsql.strategies.many_cells.box_strategy import box_strategy

        return box_strategy(W, noise, method, tolerance, deadline, progress or _silent)
    if objective == "max":
        from dpsql.strategies.choose.minimax import check_size, minimise_largest

        def total(V: Workload | Marginals, name: str) -> MatrixStrategy:
            left = None if time_limit is None else max(deadline - monotonic(), 1e-9)
            found = select(V, asked, name, tolerance, left, progress, effort, cache=cache)
            if not isinstance(found, MatrixStrategy):
                raise DataError(
                    "strategy: the largest error is not planned over so many cells; use the total one, or fewer "
                    "attributes"
                )
            return found

        say, best = progress or _silent, list[MatrixStrategy | StructuredStrategy]()
        if method == "auto" and isinstance(W, Marginals) and (noise == "laplace" or not fits(residual_plan(W))):
            # As SQL that asks for them is planned; over all cells beside, where these are few.
            with contextlib.suppress(SQLError):  # a marginal of too many cells
                batch = marginal_batch(W)
                best.append(least_largest(batch, noise, tolerance=tolerance, time_limit=time_limit, say=say))
        try:
            check_size(W.shape[0])
            best.append(minimise_largest(total(W, method), method, deadline, total, say))
        except DataError:
            if not best:
                raise
        return min(best, key=lambda one: one.value)
    if isinstance(W, Marginals):
        if method == RESIDUALS or (method == "auto" and noise == "gaussian"):
            return _marginals(W, noise, tolerance)
        if noise == "laplace" and method in ("auto", BLOCKS, SIGNS):
            blocks = _pure_marginals(W, method, tolerance / 10.0, effort, in_blocks)
            written = blocks.written_out()
            if method in (BLOCKS, SIGNS) or W.shape[1] > CELLS_AUTO:
                return written or blocks
            left = None if time_limit is None else max(deadline - monotonic(), 1e-9)
            other = select(W.explicit(), asked, "auto", tolerance, left, progress, effort, cache=cache)
            if written is None or blocks.expected >= other.expected * (1 - 1e-9):
                return other
            return replace(written, considered=(*other.considered, *blocks.considered))
        if method in (BLOCKS, SIGNS):
            raise DataError(f"strategy: {method} is for Laplace noise; use residual-basis for Gaussian noise")
        W = W.explicit()
    if noise == "gaussian" and method in ("auto", "range-transform") and W.shape[1] > MATRIX_CELLS and all_ranges(W):
        return range_strategy(W)
    say = progress or _silent
    if W.units is not None and not W.units.listable:
        if method == "workload":
            return _as_asked(Task(W, noise, tolerance, left_of_all, say))
        from dpsql.strategies.choose.by_source import strategy_by_source

        task = Task(W, noise, tolerance, left_of_all, say, effort * WORK, in_blocks=in_blocks, known=known)
        return strategy_by_source(task)
    key = None if cache is None else kept.key_of(W, asked, method, tolerance, effort)
    if cache is not None and key is not None:
        found = kept.load(Path(cache), key, W, noise, method, tolerance, (*catalogue(), BY_SOURCE))
        if found is not None:
            say(f"{found.method}: error {found.expected:.6g}, kept from an earlier selection")
            return found
    turned = W.units is not None
    task = Task(W, noise, tolerance, left_of_all, say, effort * WORK, turned=turned, in_blocks=in_blocks)
    S = best_of(task, method)
    if cache is not None and key is not None and monotonic() - began > _WORTH and monotonic() < deadline:
        kept.store(Path(cache), key, S, task.optimum().certificate if noise == "gaussian" else None)
    return S


def _of_blocks(
    W: Structured, noise: str, tolerance: float, time_limit: float | None, say: Callable[[str], None]
) -> StructuredStrategy | LevelStrategy:
    """Blocks by residuals, or for Gaussian noise on levels, where groupings nest; those of less error.

    Levels are tried first where groupings nest or sums are counted; counts by single regions, all of them or some, are
    nearly always optimal by residuals, which keep their cells apart (``dpsql.running.feasible``). Raises what residuals
    raise where there are no levels either.
    """
    began, found = monotonic(), list[StructuredStrategy | LevelStrategy]()
    refused: DataError | None = None
    single = all(f.keys and is_single(f.matrix) for block in W.blocks for f in block.factors)
    counts = single and not any(block.component for block in W.blocks)
    for levels in (False, True) if counts else (True, False):
        left = None if time_limit is None else max(time_limit - (monotonic() - began), 1e-9)
        if not levels:
            try:
                found.append(structured_strategy(W, noise, tolerance=tolerance, time_limit=left, progress=say))
            except DataError as error:
                refused = error
        elif noise == "gaussian":
            made = level_strategy(W, tolerance, np.inf if left is None else monotonic() + left / 2.0)
            found.extend([] if made is None else [made])
        best = min(found, key=lambda one: one.expected, default=None)
        if best is not None and best.gap is not None and best.gap <= tolerance:
            break
    if best is None:
        assert refused is not None  # noqa: S101 - residuals plan it, or raise
        raise refused
    return best


def _as_asked(task: Task) -> MatrixStrategy:
    """The queries measured as they are weighted, where all that a unit can change is too much to list.

    Weighted by 1 over how far a unit moves the queries of its column, k columns move by k at most (k^1/2 in L2), so
    that each has no larger error than one by one. How far a unit moves B is known of integers alone: the best of all
    roundings is taken.
    """
    W = task.W
    pieces = tuple(spread(workload_piece(block, W), block.copies) for block in task.blocks())
    check_entries(pieces)
    found = finish(W, "workload", task.noise, pieces, 0.0, task.tolerance, None, (), task.time.deadline)
    return replace(found, considered=(("workload", found.expected),))


def _pure_marginals(W: Marginals, method: str, tolerance: float, effort: float, in_blocks: bool) -> MarginalStrategy:
    """Whole tables, or rows of signs in blocks where noise may be drawn so: those of less error."""
    if method == SIGNS and not in_blocks:
        raise DataError("strategy: sign-blocks is for noise='pure', whose noise may be drawn in blocks")
    found = [sign_strategy(W, tolerance)] if in_blocks and method != BLOCKS else []
    if method != SIGNS:
        found.append(block_strategy(W, tolerance, effort))
    best = min(found, key=lambda one: one.expected)
    return replace(best, considered=tuple(ranked for one in reversed(found) for ranked in one.considered))


def _marginals(W: Marginals, noise: str, tolerance: float) -> MatrixStrategy | MarginalStrategy:
    """Marginals by the residual basis, optimal for Gaussian noise; over all cells where they are few."""
    plan = residual_plan(W)
    if noise == "gaussian" and not fits(plan):
        return residual_strategy(W, tolerance / 10.0)
    explicit = W.explicit()
    pieces, error = normalise((residual_piece(plan, explicit),), noise)
    lower = plan.error if noise == "gaussian" else None
    return finish(explicit, RESIDUALS, noise, pieces, error, tolerance, lower, ((RESIDUALS, error),))


def _silent(_: str) -> None:
    return None


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
