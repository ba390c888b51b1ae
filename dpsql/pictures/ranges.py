"""Ranges, prefixes and long ordered keys as curves with a band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.arrays import Values
from dpsql.errors import InterfaceError

from . import style
from .tables import Key, Number, Shape, Table, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 40  # up to which each number has a mark of its own


def range_keys(shape: Shape) -> tuple[Key | None, Key] | None:
    """The keys ``k_from`` (None for prefixes) and ``k_to`` of a table of ranges; None for any other table."""
    by_name = {key.name.lower(): key for key in shape.keys}
    for name, key in by_name.items():
        if name.endswith("_to"):
            start = by_name.get(name[: -len("_to")] + "_from")
            if len(shape.keys) == (1 if start is None else 2):
                return start, key
    return None


def plot_ranges(table: Table, ax: Axes | None = None, *, value: str | None = None, start: object = None) -> Figure:
    """A table of ranges or prefixes (``dp_ranges``, ``dp_prefixes``) as a curve with a band.

    The curve is the answer of the ranges from ``start`` (of the first value without it) up to each value; the band
    their intervals. Raises InterfaceError where the table has no ranges, or none from ``start``.
    """
    shape = read(table)
    keys = range_keys(shape)
    if keys is None:
        raise InterfaceError("the result has no ranges; GROUP BY dp_ranges(column) or dp_prefixes(column) gives some")
    made, axes = style.canvas(ax, 5.6, 3.2)
    draw_ranges(axes, shape, keys, shape.number(value)[0], start)
    return made


def draw_ranges(ax: Axes, shape: Shape, keys: tuple[Key | None, Key], number: Number, start: object = None) -> None:
    """The ranges from one value on."""
    begins, ends = keys
    column = ends.name[: -len("_to")]
    if begins is None:
        if start is not None:
            raise InterfaceError("prefixes all begin at the first value; leave start out")
        rows, what = list(range(shape.rows)), f"{column} up to the value"
    else:
        first: Any = min(v for v in begins.values if v is not None) if start is None else start
        rows = [row for row, begin in enumerate(begins.values) if begin == first]
        what = f"{column} from {first} up to the value"
        if not rows:
            raise InterfaceError(f"no range of the result begins at {start!r}; {begins.name} holds those that do")
    rows.sort(key=lambda row: (ends.values[row] is None, ends.values[row]))
    kept = Key(ends.name, [ends.values[row] for row in rows], [ends.shown[row] for row in rows], True)
    draw_curve(ax, kept, Number(number.name, number.values[rows], number.low[rows], number.high[rows]))
    ax.set_xlabel(style.plain(column), fontsize=style.SMALL)
    style.title(ax, style.plain(f"{number.name}: {what}", 64))


def draw_curve(ax: Axes, key: Key, number: Number) -> None:
    """Values over an ordered key, their intervals as a band; a NULL group stands beside as a point."""
    known = [row for row, value in enumerate(key.values) if value is not None]
    known.sort(key=lambda row: key.values[row])
    x: Values = [key.values[row] for row in known]
    if x and not hasattr(x[0], "isoformat"):
        x = [float(value) for value in x]
    values = number.values[known]
    if number.known:
        low, high = number.low[known], number.high[known]
        ax.fill_between(x, low, high, color=style.SKY, alpha=0.45, linewidth=0, label="interval")
    few = len(known) <= _POINTS
    ax.plot(x, values, color=style.BLUE, linewidth=1.4, marker="o" if few else "", markersize=3)
    beside = [row for row in range(len(key.values)) if row not in set(known)]
    for row in beside[:3]:
        ax.axhline(number.values[row], color=style.ORANGE, linewidth=1, linestyle="--")
        place = ax.get_yaxis_transform()
        ax.text(1.0, number.values[row], f" {key.shown[row]}", transform=place, fontsize=style.SMALL, va="center")
    ax.set_xlabel(style.plain(key.name), fontsize=style.SMALL)
    ax.margins(x=0.02)
    if values.size and np.nanmin(values) >= 0:
        ax.set_ylim(bottom=min(0.0, float(np.nanmin(number.low[known])) if number.known else 0.0))
    style.with_thousands(ax.yaxis)
    style.tidy(ax, grid="y")
    if x and hasattr(x[0], "isoformat"):
        style.with_dates(ax.xaxis)
