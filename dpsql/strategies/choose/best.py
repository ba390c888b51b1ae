"""The best of all methods for one matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from dpsql.common.best_so_far import Offers
from dpsql.errors import InternalError
from dpsql.strategies.choose.task import BY_SOURCE, Draft, Task, drafts
from dpsql.strategies.core.base import Strategy
from dpsql.strategies.core.blocks import standing
from dpsql.strategies.core.integer import Piece, finish
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.workloads.families.matrix import Workload

STRATEGIES: Offers[Strategy] = Offers("strategies")
"""Drafts of a selection in integers, of less error each, with a certificate that holds by then."""


def searched(W: Workload, noise: str, *, tolerance: float, time_limit: float | None) -> MatrixStrategy:
    """The best for a matrix of single records, by ``dpsql.strategies.selection.select``'s methods for such."""
    return best_of(Task(W, noise, tolerance, TimeLeft.within(time_limit), lambda _: None), "auto")


def best_of(task: Task, method: str) -> MatrixStrategy:
    """The draft that stands first among the methods that are tried, in integers: that of least error, but for blocks.

    One whose rows are too unlike in size to be rounded leaves its place to the next (parts that a union hardly sees).
    """
    with STRATEGIES.taken() as offer:
        return _best_of(task, method, offer)


def _best_of(task: Task, method: str, offer: Callable[[Callable[[], Strategy]], None]) -> MatrixStrategy:
    W, noise, tolerance = task.W, task.noise, task.tolerance
    lower = task.optimum().lower if noise == "gaussian" else None
    apart: tuple[float, str, tuple[Piece, ...]] | None = None
    if noise == "laplace" and W.units is not None and method == "auto":
        from dpsql.strategies.choose.by_source import plan_by_source

        pieces, error, _ = plan_by_source(task)
        apart = error, BY_SOURCE, pieces
        task.source_pieces, task.known = pieces, error
    best = [np.inf]

    def hear(draft: Draft) -> None:
        error, name, pieces = draft
        if (rank := standing(name, error)) < best[0]:
            best[0] = rank
            offer(lambda: finish(W, name, noise, pieces, error, tolerance, lower, ((name, error),), np.inf))

    found = drafts(task, method, hear)
    if apart is not None and apart[0] < (1.0 - 1e-6) * min(standing(draft[1], draft[0]) for draft in found):
        found.append(apart)
    considered = tuple((label, value) for value, label, _ in found)
    ranked = sorted(found, key=lambda draft: standing(draft[1], draft[0]))
    deadline = task.time.less(task.finish).deadline
    for error, name, pieces in ranked[:-1]:
        with contextlib.suppress(InternalError):
            return finish(W, name, noise, pieces, error, tolerance, lower, considered, deadline)
    error, name, pieces = ranked[-1]
    return finish(W, name, noise, pieces, error, tolerance, lower, considered, deadline)
