"""A plan's workload and strategy as matrices: heat maps of their entries."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from dpsql.common.arrays import Floats, Matrix
from dpsql.errors import InterfaceError
from dpsql.extensions.reports.matrices import PIXELS, extremes, members_picture, pixels_picture
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import dense
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.strategies import LevelStrategy, Strategy, StructuredStrategy
from dpsql.workloads import Workload
from dpsql.workloads.compile.structured import Structured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WHOLE = 2**21  # entries up to which a matrix is written out
_WIDEST = 2**22  # columns


def workload_picture(source: PlannedBatch | Workload, ax: Axes | None = None) -> Figure:
    """The workload matrix of a plan, or a workload, as a heat map: a line a released number, a column a cell.

    Large matrices are drawn in fewer pixels, each the entry of largest size of its stretch; of implicit ones only
    240 evenly spaced rows are made. A batch of blocks, whose matrix over all cells is never written out, is drawn as
    the columns that each block names.
    """
    if isinstance(source, PlannedBatch):
        compiled = source.compiled
        if isinstance(compiled, Structured):
            names, at = _axes(compiled)
            labels, members = _blocks(compiled, at)
            return members_picture(
                labels, names, members, ax, title="What is asked: the columns of each block", rows="block"
            )
        if compiled.line is not None:
            raise InterfaceError(
                f"{compiled.line.text} has {len(compiled.line):,} groups, too many to draw; plot_plan shows the errors"
            )
        if compiled.matrix is None:
            raise InterfaceError("all ranges of a line this long are never written out as a matrix, so none is drawn")
        source = compiled.matrix.workload(compiled.matrix.scale)
    if not isinstance(source, Workload):
        raise InterfaceError("plot_workload draws a plan or a workload, such as con.plan(sql, epsilon=1)")
    pixels, note = workload_pixels(source)
    largest = np.abs(pixels).max(axis=1, initial=0.0)
    if largest.max() > 1.01 * largest[largest > 0].min(initial=np.inf):  # counts beside sums, or weights
        pixels = pixels / np.where(largest > 0, largest, 1.0)[:, None]
        note = f"each row divided by its largest entry{'; ' * bool(note)}{note}"
    return pixels_picture(
        pixels, source.shape, ax, title="What is asked (workload)", rows="number", columns="cell", note=note
    )


def strategy_picture(source: PlannedBatch | Strategy, ax: Axes | None = None) -> Figure:
    """The measured integers B of a plan, or of a strategy, as a heat map: a line a measurement, a column a cell.

    Drawn as ``plot_workload`` draws W; of a batch of blocks, the columns of each residual or part that is measured.
    """
    strategy = source.strategy if isinstance(source, PlannedBatch) else source
    if isinstance(strategy, StructuredStrategy):
        names, at = _axes(strategy.planned)
        held = strategy.planned.histograms
        members = [[at[held[r.histogram].table, axis] for axis in r.axes] for r in strategy.residuals]
        labels = [_label([names[place] for place in axes]) for axes in members]
        return members_picture(
            labels, names, members, ax, title="What is measured: the columns of each residual", rows="residual"
        )
    if isinstance(strategy, LevelStrategy):
        names = list(strategy.planned.names[0])
        members = [[axis for axis, level in enumerate(part.levels) if level] for part in strategy.measured.parts]
        labels = [_label([names[place] for place in axes]) for axes in members]
        return members_picture(
            labels, names, members, ax, title="What is measured: the columns of each part", rows="part"
        )
    if not isinstance(strategy, Strategy):
        raise InterfaceError("plot_strategy draws a plan or a strategy, such as con.plan(sql, epsilon=1)")
    pixels, note = strategy_pixels(strategy)
    heading = f"What is measured (strategy: {strategy.method})"
    return pixels_picture(pixels, strategy.shape, ax, title=heading, rows="measurement", columns="cell", note=note)


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
        held = sorted({at[block.table, axis] for factor in block.factors for axis in factor.axes})
        rows = block.stop - block.start
        labels.append(f"{rows:,} number{'' if rows == 1 else 's'}")
        members.append(held)
    return labels, members


def _label(names: list[str]) -> str:
    return ", ".join(names) or "total"


# -- the entries of a workload or a strategy, or the largest of each stretch where it has many --------
# An implicit matrix is never written out: only the rows that are drawn are made, one at a time, from its structure.


def workload_pixels(W: Workload) -> tuple[Floats, str]:
    """At most `PIXELS` x `PIXELS` pixels of W, and what one of them shows, where it is not one entry."""
    m, n = W.shape
    if m * n <= _WHOLE:
        return _few(W.matrix(), m, n)
    return _spread(m, n, lambda at: inner_row(W.inner, at) @ W.span)


def strategy_pixels(strategy: Strategy) -> tuple[Floats, str]:
    """At most `PIXELS` x `PIXELS` pixels of B, and what one of them shows, where it is not one entry.

    Raises InterfaceError for a strategy that has no rows to show.
    """
    p, n = strategy.shape
    if p * n <= _WHOLE:
        return _few(strategy.matrix(), p, n)
    mixing, basis = getattr(strategy, "mixing", None), getattr(strategy, "basis", None)
    if mixing is None or basis is None:
        raise InterfaceError(f"the strategy {strategy.method} has {p:,} x {n:,} entries and is not kept by rows")
    return _spread(p, n, lambda at: mixing[[at], :] @ basis)


def _few(matrix: Floats, rows: int, columns: int) -> tuple[Floats, str]:
    pixels = extremes(extremes(np.asarray(matrix, dtype=np.float64), PIXELS, 0), PIXELS, 1)
    return pixels, "" if pixels.shape == (rows, columns) else "each pixel: the largest entry of its stretch"


def _spread(rows: int, columns: int, row: Callable[[int], Matrix]) -> tuple[Floats, str]:
    """Evenly spaced rows, each in few pixels."""
    if columns > _WIDEST:
        raise InterfaceError(f"a matrix of {columns:,} columns is too wide for a picture; draw a part of the batch")
    count = min(rows, PIXELS)
    chosen = sorted(
        {at * (rows - 1) // max(count - 1, 1) for at in range(count)}
    )  # Python integers: 2^100 rows are fine
    pixels = np.stack([extremes(_flat(row(at)), PIXELS, 0) for at in chosen])
    if len(chosen) == rows:
        return pixels, "each pixel: the largest entry of its stretch"
    several = "" if columns <= PIXELS else ", each pixel the largest entry of its stretch"
    return pixels, f"{len(chosen)} of {rows:,} rows, evenly spaced{several}"


def _flat(row: Matrix) -> Floats:
    return np.asarray(dense(row), dtype=np.float64).reshape(-1)


def inner_row(inner: algebra.Inner, at: int) -> Floats:
    """Row ``at`` of an inner factor F as a (1, q) array, without the others. Raises InterfaceError for other kinds."""
    q = inner.shape[1]
    found = np.zeros((1, q))
    if isinstance(inner, algebra.Diagonal):
        found[0, at] = inner.scale[at]
    elif isinstance(inner, algebra.Dense):
        found[0] = dense(inner.entries[[at]])[0]
    elif isinstance(inner, algebra.Ranges):
        start, stop = _range(q, at)
        found[0, start:stop] = 1.0
    elif isinstance(inner, algebra.Prefixes):
        found[0, : at + 1] = 1.0
    elif isinstance(inner, algebra.Kron):
        row: Floats = np.ones((1, 1))
        for factor in reversed(inner.factors):
            at, place = divmod(at, factor.shape[0])
            row = np.asarray(np.kron(inner_row(factor, place), row), dtype=np.float64)
        found = row
    elif isinstance(inner, algebra.Blocks):
        column = 0
        for part, weight in zip(inner.parts, inner.weights, strict=True):
            if at < part.shape[0]:
                found[0, column : column + part.shape[1]] = weight * inner_row(part, at)[0]
                break
            at -= part.shape[0]
            column += part.shape[1]
    elif isinstance(inner, algebra.Predicates):
        found[0] = [((at >> bit) & 1) * 2.0**-inner.log2_scale for bit in range(q)]
    else:
        raise InterfaceError(f"a workload of kind {type(inner).__name__} is not kept by rows and cannot be drawn")
    return found


def _range(q: int, at: int) -> tuple[int, int]:
    """First column and end of interval ``at`` of q columns; the intervals go by first column, then by last."""
    left = q * (q + 1) // 2 - 1 - at  # intervals after it: those of later first columns number 0, 1, 3, 6, ...
    first = q - 1 - (isqrt(8 * left + 1) - 1) // 2
    return first, first + 1 + at - (first * q - first * (first - 1) // 2)
