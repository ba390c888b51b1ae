"""Pictures of results, plans, workloads, strategies, budgets and ranges: a function each, for people and notebooks.

Needs the extra ``dpsql[plot]``. Every function takes ``ax``, matplotlib axes to draw into, or makes a figure; it
returns the figure, which a notebook shows and ``figure.savefig("picture.png")`` writes. pyplot is never used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.errors import InterfaceError
from dpsql.pictures import budget_picture, members_picture, pixels_picture, ranges_picture, result_picture
from dpsql.planning.picture import plan_picture
from dpsql.planning.plan import Plan
from dpsql.privacy.state import BudgetState
from dpsql.release import Result
from dpsql.strategy import Strategy, StructuredStrategy
from dpsql.surfaces.pixels import strategy_pixels, workload_pixels
from dpsql.workload import Workload
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.line_batch import Lined
from dpsql.workload.compile.structured import Structured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_budget", "plot_plan", "plot_ranges", "plot_result", "plot_strategy", "plot_workload"]


def plot_result(result: Result, ax: Axes | None = None, *, value: str | None = None) -> Figure:
    """A released table with error bars: bars by key, groups or a heat map for two keys, a curve for an ordered one.

    ``value``: the column of numbers to draw, else a panel each. Raises InterfaceError where there is no number.
    """
    return result_picture(result, ax, value=value)


def plot_ranges(result: Result, ax: Axes | None = None, *, value: str | None = None, start: object = None) -> Figure:
    """Answers of ``dp_ranges`` or ``dp_prefixes`` as a curve with a band: the ranges from ``start`` up to each value.

    Raises InterfaceError where the result has no ranges.
    """
    return ranges_picture(result, ax, value=value, start=start)


def plot_plan(plan: Plan, ax: Axes | None = None) -> Figure:
    """The error of every result column of a plan, beside one by one and, where certified, the least possible."""
    return plan_picture(plan, ax)


def plot_workload(source: Plan | Workload, ax: Axes | None = None) -> Figure:
    """The workload matrix of a plan, or a workload, as a heat map: a line a released number, a column a cell.

    Large matrices are drawn in fewer pixels, each the entry of largest size of its stretch; of implicit ones only
    240 evenly spaced rows are made. A batch of blocks, whose matrix over all cells is never written out, is drawn as
    the columns that each block names.
    """
    if isinstance(source, Plan):
        compiled = source.compiled
        if isinstance(compiled, Structured):
            names, at = _axes(compiled)
            labels, members = _blocks(compiled, at)
            return members_picture(
                labels, names, members, ax, title="Workload: the columns of each block", rows="block"
            )
        if isinstance(compiled, Lined):
            raise InterfaceError(
                f"{compiled.key.text} has {len(compiled.key):,} groups, too many to draw; plot_plan shows the errors"
            )
        if not isinstance(compiled, Compiled):
            raise InterfaceError("all ranges of a line this long are never written out as a matrix, so none is drawn")
        source = compiled.workload(compiled.scale)
    if not isinstance(source, Workload):
        raise InterfaceError("plot_workload draws a plan or a workload, such as con.plan(sql, epsilon=1)")
    pixels, note = workload_pixels(source)
    largest = np.abs(pixels).max(axis=1, initial=0.0)
    if largest.max() > 1.01 * largest[largest > 0].min(initial=np.inf):  # counts beside sums, or weights
        pixels = pixels / np.where(largest > 0, largest, 1.0)[:, None]
        note = f"each row over its largest entry{'; ' * bool(note)}{note}"
    return pixels_picture(pixels, source.shape, ax, title="Workload W", rows="query", columns="cell", note=note)


def plot_strategy(source: Plan | Strategy | StructuredStrategy, ax: Axes | None = None) -> Figure:
    """The measured integers B of a plan, or of a strategy, as a heat map: a line a measurement, a column a cell.

    Drawn as ``plot_workload`` draws W; of a batch of blocks, the columns of each residual that is measured.
    """
    strategy = source.strategy if isinstance(source, Plan) else source
    if isinstance(strategy, StructuredStrategy):
        names, at = _axes(strategy.structured)
        held = strategy.structured.histograms
        members = [[at[held[r.histogram].table, axis] for axis in r.axes] for r in strategy.residuals]
        labels = [_label([names[place] for place in axes]) for axes in members]
        return members_picture(
            labels, names, members, ax, title="Strategy: the columns of each measured residual", rows="residual"
        )
    if not isinstance(strategy, Strategy):
        raise InterfaceError("plot_strategy draws a plan or a strategy, such as con.plan(sql, epsilon=1)")
    pixels, note = strategy_pixels(strategy)
    heading = f"Strategy B ({strategy.method})"
    return pixels_picture(pixels, strategy.shape, ax, title=heading, rows="measurement", columns="cell", note=note)


def plot_budget(state: BudgetState, ax: Axes | None = None) -> Figure:
    """What was spent over time, a panel a purse, coloured by label, up to the purse's total (``con.budget``)."""
    purses = [
        (
            purse.name,
            purse.measure,
            purse.total,
            [(e.time, e.label, e.charge.amount) for e in state.charges if e.charge.purse == purse.name],
        )
        for purse in state.purses
    ]
    return budget_picture(purses, ax)


def _axes(batch: Structured) -> tuple[list[str], dict[tuple[int, int], int]]:
    """Names of all axes, table by table, and where each is drawn."""
    names: list[str] = []
    at: dict[tuple[int, int], int] = {}
    for table, listed in enumerate(batch.names):
        for axis, name in enumerate(listed):
            at[table, axis] = len(names)
            names.append(name if len(batch.names) == 1 else f"{batch.tables[table]}.{name}")
    return names, at


def _blocks(batch: Structured, at: dict[tuple[int, int], int]) -> tuple[list[str], list[list[int]]]:
    labels, members = [], []
    for block in batch.blocks:
        held: list[Any] = sorted({at[block.table, axis] for factor in block.factors for axis in factor.axes})
        rows = block.stop - block.start
        labels.append(f"{rows:,} number{'' if rows == 1 else 's'}")
        members.append(held)
    return labels, members


def _label(names: list[str]) -> str:
    return ", ".join(names) or "total"
