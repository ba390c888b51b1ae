"""Selection of the strategy with the least computed error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from dpsql.common.arguments import check_fields, maybe, real
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


Selected: TypeAlias = MatrixStrategy | MarginalStrategy | StructuredStrategy | LevelStrategy


class SelectKeywords(TypedDict, total=False):
    """Keywords of ``select``, which says what they mean."""

    tolerance: float
    time_limit: float | None
    progress: Callable[[str], None] | None
    effort: float
    objective: str
    cache: str | os.PathLike[str] | None
    known: float


@dataclass(frozen=True)
class Selection:
    """The arguments of one ``select``, checked. Raises DataError where one is out of range.

    ``time``: the deadline, set when this is made.
    """

    noise: str
    method: str
    tolerance: float = 1e-3
    time_limit: float | None = None
    progress: Callable[[str], None] | None = None
    effort: float = 1.0
    objective: str = "total"
    cache: str | os.PathLike[str] | None = None
    known: float = np.inf
    time: TimeLeft = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self, time_limit=maybe(real()), effort=real(0))
        if not isinstance(self.noise, str) or self.noise not in (*NOISES, PURE):
            raise DataError(f"strategy: noise {quoted(self.noise)} is not known; use 'gaussian', 'laplace' or 'pure'")
        if not isinstance(self.method, str):
            raise DataError(f"strategy: method is a name, such as 'auto', not this {type(self.method).__name__}")
        if self.method not in ("auto", *catalogue(), RESIDUALS, BLOCKS, SIGNS):
            raise self.unknown_method()
        if not _number(self.tolerance) or not 0 < self.tolerance <= 1:
            raise DataError("strategy: tolerance must be above 0 and at most 1")
        if self.time_limit is not None and (not _number(self.time_limit) or not self.time_limit > 0):
            raise DataError("strategy: time_limit must be above 0 seconds; leave it out for none")
        if not _number(self.effort) or not 0 < self.effort < np.inf:
            raise DataError("strategy: effort must be above 0; 1 is the default")
        if self.cache is not None and not isinstance(self.cache, str | os.PathLike):
            raise DataError("strategy: cache must be a folder's path; leave it out for none")
        if not isinstance(self.objective, str) or self.objective not in OBJECTIVES:
            raise DataError(f"strategy: objective {quoted(self.objective)} is not known; use 'total' or 'max'")
        object.__setattr__(self, "time", TimeLeft.within(self.time_limit))

    @property
    def law(self) -> str:
        """The kind of noise: for "pure" it is "laplace", which may be drawn in blocks."""
        return "laplace" if self.noise == PURE else self.noise

    @property
    def in_blocks(self) -> bool:
        """Whether noise may be drawn in blocks."""
        return self.noise == PURE

    def say(self, text: str) -> None:
        """Tell ``progress`` something, where there is one."""
        if self.progress is not None:
            self.progress(text)

    def left(self) -> float | None:
        """The seconds that are left, at least 1e-9; None where time is not limited."""
        return None if self.time_limit is None else max(self.time.deadline - monotonic(), 1e-9)

    def unknown_method(self) -> DataError:
        """The error for a method that is none of the workload's."""
        near = nearest(self.method, (*catalogue(), "auto"))
        return DataError(f"strategy: method {quoted(self.method)} is not known; {near}")

    def task(self, W: Workload, **more: Any) -> Task:
        """The search for a strategy of listed cells."""
        work = self.effort * WORK
        return Task(W, self.law, self.tolerance, self.time, self.say, work, in_blocks=self.in_blocks, **more)


@overload
def select(W: Workload, noise: str = ..., method: str = ..., **options: Unpack[SelectKeywords]) -> MatrixStrategy: ...
@overload
def select(
    W: Marginals, noise: str = ..., method: str = ..., **options: Unpack[SelectKeywords]
) -> MatrixStrategy | MarginalStrategy | StructuredStrategy: ...
@overload
def select(
    W: Workload | Batch, noise: str = ..., method: str = ..., **options: Unpack[SelectKeywords]
) -> MatrixStrategy | StructuredStrategy | LevelStrategy: ...
@one_thread()
def select(
    W: Workload | Marginals | Batch, noise: str = "gaussian", method: str = "auto", **options: Unpack[SelectKeywords]
) -> Selected:
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
    unknown = options.keys() - {one.name for one in fields(Selection) if one.init}
    if unknown:
        raise TypeError(f"select() has no argument {min(unknown)!r}")
    selection = Selection(noise, FORMER_NAMES.get(method, method) if isinstance(method, str) else method, **options)
    if method in (RESIDUALS, BLOCKS, SIGNS) and not isinstance(W, Marginals):
        raise selection.unknown_method()
    return _selected(W, selection)


def _selected(W: Workload | Marginals | Structured, selection: Selection) -> Selected:
    """The strategy of the first of ``_WAYS`` that applies."""
    return next(found for way in _WAYS if (found := way(W, selection)) is not None)


def _of_blocks(W: object, selection: Selection) -> Selected | None:
    """Of blocks (``compile_structured``), which are planned column by column or on levels."""
    if not isinstance(W, Structured):
        return None
    if selection.objective == "max":
        return _least_largest_of_blocks(W, selection)
    return _residuals_or_levels(W, selection)


def _least_largest_of_blocks(batch: Structured, selection: Selection) -> StructuredStrategy:
    tolerance, say = selection.tolerance, selection.say
    return least_largest(batch, selection.law, tolerance=tolerance, time_limit=selection.time_limit, say=say)


def _of_boxes(W: object, selection: Selection) -> Selected | None:
    """Of boxes whose sets of rows are too many for one matrix."""
    if not isinstance(W, BoxWorkload):
        return None
    if selection.objective == "max":
        raise DataError(
            f"strategy: the largest error is not planned over {W.boxes.pairs:,} sets of rows; use the "
            "total one, or split the batch"
        )
    from dpsql.strategies.many_cells.box_strategy import Effort, box_strategy

    effort = Effort(selection.tolerance, selection.time.deadline, selection.say)
    return box_strategy(W, selection.law, selection.method, effort)


def _of_least_largest_error(W: Workload | Marginals, selection: Selection) -> Selected | None:
    """With the objective "max": queries weighed anew until the largest error is least; marginals as SQL plans them."""
    if selection.objective != "max":
        return None
    from dpsql.strategies.choose.minimax import check_size, minimise_largest

    def total(V: Workload | Marginals, method: str) -> MatrixStrategy:
        mine = replace(selection, method=method, time_limit=selection.left(), objective="total", known=np.inf)
        found = _selected(V, mine)
        if not isinstance(found, MatrixStrategy):
            raise DataError(
                "strategy: the largest error is not planned over so many cells; use the total one, or fewer attributes"
            )
        return found

    best, method = list[MatrixStrategy | StructuredStrategy](), selection.method
    cube = W.as_marginals if method == "auto" else None
    if cube is not None and (selection.law == "laplace" or not fits(residual_plan(cube))):
        # As SQL that asks for them is planned; over all cells beside, where these are few.
        with contextlib.suppress(SQLError):  # a marginal of too many cells
            best.append(_least_largest_of_blocks(marginal_batch(cube), selection))
    try:
        check_size(W.shape[0])
        best.append(minimise_largest(total(W, method), method, selection.time.deadline, total, selection.say))
    except DataError:
        if not best:
            raise
    return min(best, key=lambda one: one.value)


def _of_marginals(W: Workload | Marginals, selection: Selection) -> Selected | None:
    """Marginals without their cells; over all cells beside, where these are few."""
    cube = W.as_marginals
    if cube is None:
        return None
    noise, method = selection.law, selection.method
    if method == RESIDUALS or (method == "auto" and noise == "gaussian"):
        return _residuals(cube, noise, selection.tolerance)
    every = replace(selection, time_limit=selection.left())
    if noise == "laplace" and method in ("auto", BLOCKS, SIGNS):
        blocks = _pure_marginals(cube, method, selection.tolerance / 10.0, selection.effort, selection.in_blocks)
        written = blocks.written_out()
        if method in (BLOCKS, SIGNS) or W.shape[1] > CELLS_AUTO:
            return written or blocks
        other = _selected(W.explicit(), every)
        if written is None or blocks.expected >= other.expected * (1 - 1e-9):
            return other
        return replace(written, considered=(*other.considered, *blocks.considered))
    if method in (BLOCKS, SIGNS):
        raise DataError(f"strategy: {method} is for Laplace noise; use residual-basis for Gaussian noise")
    return _selected(W.explicit(), every)


def _of_long_ranges(W: Workload, selection: Selection) -> Selected | None:
    """All ranges of a line, in closed form."""
    closed = selection.noise == "gaussian" and selection.method in ("auto", "range-transform")
    return range_strategy(W) if closed and W.shape[1] > MATRIX_CELLS and all_ranges(W) else None


def _of_unlisted_units(W: Workload, selection: Selection) -> Selected | None:
    """Counts of units with too many contributions to list, source by source."""
    if W.units is None or W.units.listable:
        return None
    if selection.method == "workload":
        return _workload_strategy(selection.task(W))
    from dpsql.strategies.choose.by_source import strategy_by_source

    return strategy_by_source(selection.task(W, known=selection.known))


def _of_listed_cells(W: Workload, selection: Selection) -> Selected | None:
    """The best of all methods over listed cells, which a folder may keep."""
    began, noise, method, tolerance = monotonic(), selection.law, selection.method, selection.tolerance
    folder = None if selection.cache is None else Path(selection.cache)
    key = None if folder is None else kept.key_of(W, selection.noise, method, tolerance, selection.effort)
    if folder is not None and key is not None:
        found = kept.load(folder, key, W, noise, method, tolerance, (*catalogue(), BY_SOURCE))
        if found is not None:
            selection.say(f"{found.method}: error {found.expected:.6g}, kept from an earlier selection")
            return found
    task = selection.task(W, turned=W.units is not None)
    best = best_of(task, method)
    if folder is not None and key is not None and monotonic() - began > _WORTH and monotonic() < task.deadline:
        kept.store(folder, key, best, task.optimum().certificate if noise == "gaussian" else None)
    return best


_WAYS: tuple[Callable[[Any, Selection], Selected | None], ...] = (
    _of_blocks,
    _of_boxes,
    _of_least_largest_error,
    _of_marginals,
    _of_long_ranges,
    _of_unlisted_units,
    _of_listed_cells,
)
"""The ways to plan a workload, tried in order: each returns None where it does not apply; the last always applies."""


def _residuals_or_levels(W: Structured, selection: Selection) -> StructuredStrategy | LevelStrategy:
    """Blocks by residuals, or for Gaussian noise on levels, where groupings nest; those of less error.

    Levels are tried first where groupings nest or sums are counted; counts by single regions, all of them or some, are
    nearly always optimal by residuals, which keep their cells apart (``dpsql.running.feasible``). Raises what residuals
    raise where there are no levels either.
    """
    began, found = monotonic(), list[StructuredStrategy | LevelStrategy]()
    noise, tolerance, limit = selection.law, selection.tolerance, selection.time_limit
    refused: DataError | None = None
    single = all(f.keys and is_single(f.matrix) for block in W.blocks for f in block.factors)
    counts = single and not any(block.component for block in W.blocks)
    for levels in (False, True) if counts else (True, False):
        left = None if limit is None else max(limit - (monotonic() - began), 1e-9)
        if not levels:
            say = selection.say
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


def _workload_strategy(task: Task) -> MatrixStrategy:
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


def _residuals(W: Marginals, noise: str, tolerance: float) -> MatrixStrategy | MarginalStrategy:
    """Marginals by the residual basis, optimal for Gaussian noise; over all cells where they are few."""
    plan = residual_plan(W)
    if noise == "gaussian" and not fits(plan):
        return residual_strategy(W, tolerance / 10.0)
    explicit = W.explicit()
    pieces, error = normalise((residual_piece(plan, explicit),), noise)
    lower = plan.error if noise == "gaussian" else None
    return finish(explicit, RESIDUALS, noise, pieces, error, tolerance, lower, ((RESIDUALS, error),))


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
