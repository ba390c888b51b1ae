"""A plan as pictures: the error of every result column, beside what paying one by one would give and the bound; error
against budget, both axes logarithmic; and its workload and its strategy as matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.arrays import Floats, Matrix
from dpsql.errors import DataError, InterfaceError
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import dense
from dpsql.pictures import members_picture, pixels_picture, style
from dpsql.pictures.matrices import PIXELS, extremes
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.text import plan_rows, squared_error
from dpsql.planning.what_if import amount_of, curve, route_of
from dpsql.strategy import Strategy, StructuredStrategy
from dpsql.workload import Workload
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.line_batch import Lined
from dpsql.workload.compile.structured import Structured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 60
_LEAST = 1e-12
_LINES = 6  # of the picture of error against budget
_WHOLE = 2**21  # entries up to which a matrix is written out
_WIDEST = 2**22  # columns


def plan_picture(plan: PlannedBatch, ax: Axes | None = None) -> Figure:
    """A matplotlib figure with one line a result column, standard errors on a logarithmic axis.

    The first 60 result columns are drawn; a bar reaches from this plan to what one by one would give. Where the plan
    is certified, a panel above compares the whole batch with the least error of any Gaussian matrix mechanism; with
    ``ax`` the heading says it. Raises InterfaceError where matplotlib is not installed.
    """
    rows = [row for row in plan_rows(plan) if row["stderr"] is not None and row["group_rows"] is None]
    shown = rows[:SHOWN][::-1]
    height = 1.5 + 0.22 * len(shown)
    whole = _whole(plan)
    if ax is not None:
        made: Figure = ax.figure  # type: ignore[assignment]
        axes: Any = ax
    elif whole is None:
        made = style.figure(8.0, height)
        axes = made.subplots()
    else:
        made = style.figure(8.0, height + 1.3)
        above, axes = made.subplots(2, 1, height_ratios=[1.1, max(height - 0.3, 1.0)])
        _draw_whole(above, *whole)
    names = [style.plain(f"{row['result']}.{row['column']}", 48) for row in shown]
    at = range(len(shown))
    planned = [max(row["stderr"], _LEAST) for row in shown]
    naive = [max(row["naive_stderr"], _LEAST) for row in shown]
    axes.hlines(at, planned, naive, color="0.85", linewidth=3, zorder=1)
    axes.scatter(naive, at, color=style.ORANGE, marker="D", s=22, zorder=2, label="one by one")
    axes.scatter(planned, at, color=style.BLUE, s=28, zorder=3, label="this plan")
    axes.set_xscale("log")
    # Plain figures instead of powers of ten, and some between the decades where the errors span less than one.
    axes.xaxis.set_major_formatter(lambda value, _: style.number(value))
    span = max(planned + naive) / min(planned + naive) if shown else 10.0
    axes.xaxis.set_minor_formatter(lambda value, _: style.number(value) if span < 30 and _is_round(value) else "")
    axes.set_yticks(list(at), names)
    axes.set_ylim(-0.8, max(len(shown) - 0.2, 0.5))
    axes.set_xlabel("standard error of a released number, in its own unit", fontsize=style.SMALL)
    more = f" (first {SHOWN} of {len(rows)} result columns)" if len(rows) > SHOWN else ""
    stated = plan.gap is not None and plan.strategy.objective != "max" and (ax is not None or whole is None)
    certified = f"; {_certified(plan)}" if stated else ""
    style.tidy(axes)
    axes.tick_params(which="minor", labelsize=style.SMALL, length=1.5, color=style.PALE)
    known = "estimated" if plan.estimated else "known"
    style.title(axes, f"Errors {known} before anything is spent{more}\n{plan.charge.guarantee}{certified}")
    axes.legend(
        fontsize=style.SMALL, frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1
    )
    return made


def _is_round(value: float) -> bool:
    lead = value / 10.0 ** math.floor(math.log10(value))
    return min(abs(lead - 2.0), abs(lead - 5.0)) < 1e-6


def _certified(plan: PlannedBatch) -> str:
    return f"certified within {max(plan.gap or 0.0, 1e-4):.2%} of the least {squared_error(plan.strategy.objective)}"


def _whole(plan: PlannedBatch) -> tuple[float, float, str] | None:
    """Root mean squared error of the batch as a multiple of the least possible: one by one, this plan; what it proves.

    None where nothing is certified, or for a batch of blocks or of a long line. In the units that the plan minimises
    (weights, and sums beside counts).
    """
    units, scale = (getattr(plan.compiled, name, None) for name in ("objective", "scale"))
    if plan.gap is None or plan.strategy.objective == "max" or units is None or scale is None:
        return None
    weights = np.divide(units, scale, out=np.zeros(len(scale)), where=np.asarray(scale) != 0)
    planned = float(np.sum((np.asarray(plan.errors) * weights) ** 2))
    naive = float(np.sum((np.asarray(plan.naive_errors) * weights) ** 2))
    if planned <= 0:
        return None
    ratio = math.sqrt(1.0 + plan.gap)
    return ratio * math.sqrt(naive / planned), ratio, _certified(plan)


def _draw_whole(axes: Any, naive: float, planned: float, certified: str) -> None:
    axes.hlines([0], planned, naive, color="0.85", linewidth=3, zorder=1)
    axes.axvline(1.0, color=style.BLACK, linewidth=1.2, linestyle="--")
    axes.text(1.0, -0.75, " least possible", fontsize=style.SMALL, va="center", color=style.BLACK)
    axes.scatter([naive], [0], color=style.ORANGE, marker="D", s=26, zorder=2)
    axes.scatter([planned], [0], color=style.BLUE, s=32, zorder=3)
    axes.text(naive, 0.4, f"{naive:.2g} times", fontsize=style.SMALL, ha="center", va="bottom")
    axes.set_xlim(min(0.9, 1 - 0.06 * (naive - 1)), max(naive * 1.06, 1.15))
    axes.set_ylim(-1.2, 1.3)
    axes.set_yticks([0], ["whole batch"])
    style.tidy(axes)
    axes.set_xlabel("root mean squared error, as a multiple of the least possible", fontsize=style.SMALL)
    style.title(axes, f"This plan is {certified}")


def curve_picture(plan: PlannedBatch, ax: Axes | None = None, points: int = 17, span: float = 8.0) -> Figure:
    """A matplotlib figure with one line a result column (the first 6), and the plan's own budget marked.

    What is beyond what is left, or beyond the cap on one release, is drawn dotted. ``points`` and ``span`` as
    ``what_if.curve``. Raises DataError where no column has an error that is known before the answer, InterfaceError
    without matplotlib.
    """
    found = curve(plan, points, span)
    lines: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
    for amount, allowed, result, column, _, half in found:
        lines.setdefault((result, column), []).append((amount, half, allowed))
    if not lines:
        raise DataError("the errors of averages, ratios and quantiles depend on the answer; there is no curve to draw")
    figure, axes = style.canvas(ax, 7.0, 4.2)
    for number, ((result, column), held) in enumerate(list(lines.items())[:_LINES]):
        colour = style.COLOURS[number % len(style.COLOURS)]
        inside = [point for point in held if point[2]]
        beyond = held[max(len(inside) - 1, 0) :]
        label = style.plain(f"{result}.{column}", 32)
        axes.plot([p[0] for p in inside], [p[1] for p in inside], color=colour, linewidth=1.8, label=label)
        if len(beyond) > 1:
            axes.plot([p[0] for p in beyond], [p[1] for p in beyond], color=colour, linewidth=1.2, linestyle=":")
    route, amount = route_of(plan), float(amount_of(plan))
    axes.axvline(amount, color=style.BLACK, linewidth=1.0, linestyle="--")
    axes.text(amount, 1.0, " this plan", transform=axes.get_xaxis_transform(), fontsize=style.SMALL, va="top")
    for scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
        scale("log")
        axis.set_major_formatter(lambda value, _: style.number(value))
        axis.set_minor_formatter(lambda value, _: "")
    style.tidy(axes, grid="y")
    delta = "" if route.delta is None or route.noise == "laplace" else f" at delta {float(route.delta):g}"
    axes.set_xlabel(f"{route.measure}{delta}", fontsize=style.SMALL)
    axes.set_ylabel(f"half-width at {100 * (1 - plan.alpha):.6g}%", fontsize=style.SMALL)
    more = f" (first {_LINES} of {len(lines)} result columns)" if len(lines) > _LINES else ""
    style.title(axes, f"Error against {route.measure}{more}")
    axes.legend(fontsize=style.SMALL, frameon=False)
    return figure


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
    return pixels_picture(
        pixels, source.shape, ax, title="What is asked (workload)", rows="number", columns="cell", note=note
    )


def strategy_picture(source: PlannedBatch | Strategy, ax: Axes | None = None) -> Figure:
    """The measured integers B of a plan, or of a strategy, as a heat map: a line a measurement, a column a cell.

    Drawn as ``plot_workload`` draws W; of a batch of blocks, the columns of each residual that is measured.
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
