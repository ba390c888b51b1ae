"""A plan as pictures: the error of every result column, beside what paying one by one would give and the bound; and
error against budget, both axes logarithmic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.errors import DataError
from dpsql.extensions.advice.what_if import amount_of, curve, route_of
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.text import plan_rows
from dpsql.release.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 60
_LEAST = 1e-12
_LINES = 6  # of the picture of error against budget


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
    return f"squared errors at most {100 * max(plan.gap or 0.0, 1e-4):.2f} % above the least possible"


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
    style.title(axes, f"This plan has {certified}")


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
