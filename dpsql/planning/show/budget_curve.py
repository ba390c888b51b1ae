"""Error against budget as a picture: half-widths of the result columns, both axes logarithmic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.errors import DataError
from dpsql.pictures import style
from dpsql.planning.what_if import curve, route_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpsql.planning.plan import Plan

_LINES = 6


def curve_picture(plan: Plan, ax: Axes | None = None, points: int = 17, span: float = 8.0) -> Figure:
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
    route, own = route_of(plan), sorted({row[0] for row in found})
    asked = plan.origin.request if plan.origin is not None else None
    amount = float((asked.rho or asked.epsilon or own[0]) if asked is not None else own[0])
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
