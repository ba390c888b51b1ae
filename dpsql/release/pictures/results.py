"""A released table as a picture: bars with error bars by key, groups or a heat map for two keys.

Ranges, prefixes and long ordered keys are curves with a band.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.common.arrays import Floats, Values
from dpsql.errors import InterfaceError

from . import style
from .tables import Key, Number, Shape, Table, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 40
MOST_PANELS = 4
_CURVE = 13  # values of an ordered key from which on a curve tells more than bars
_GROUPS, _SERIES = 12, 5  # of two keys: more than that is a heat map
_WRITTEN = 150  # pixels of a heat map that have room for their numbers


def plot_result(table: Table, ax: Axes | None = None, *, value: str | None = None) -> Figure:
    """Draw a released table.

    ``value``: the column of numbers to draw; without it a panel for each, four at most, or with ``ax`` the first.
    One key gives bars, a curve where the key is ordered and long; two keys grouped bars, or a heat map where they are
    many; ranges and prefixes a curve (``plot_ranges``). Error bars and bands are the intervals of the table,
    ``c_low`` to ``c_high``; where only ``c_stderr`` is there, 1.96 standard errors. Raises InterfaceError where there
    is no number, and without matplotlib.
    """
    shape = read(table)
    numbers = shape.number(value)[: MOST_PANELS if ax is None else 1]
    if not shape.keys and shape.rows == 1:
        return _single_row(shape.number(value) if ax is None else numbers, ax)
    width, height = _size(shape)
    across = len(numbers) if width * len(numbers) <= 12 else min(2, len(numbers))
    down = -(-len(numbers) // across)
    made, places = style.panels(ax, min(width * across, 12.0), height * down, down, across)
    for empty in places[len(numbers) :]:
        empty.set_visible(False)
    for place, number in zip(places, numbers, strict=False):
        _draw(place, shape, number)
    return made


def results_picture(tables: Sequence[tuple[str, Table]]) -> Figure:
    """The first number of each named table that has one, six tables at most, below each other.

    Raises InterfaceError where no table has a number, and without matplotlib.
    """
    shapes = []
    for name, table in tables:
        with contextlib.suppress(InterfaceError):
            shapes.append((name, read(table)))
    if not shapes:
        raise InterfaceError("no result of the release has numbers to draw")
    shown = shapes[:6]
    sizes = [_size(shape) for _, shape in shown]
    heights = [height for _, height in sizes]
    width = min(max(width for width, _ in sizes), 12.0)
    made, places = style.panels(None, width, sum(heights), len(shown), heights=heights)
    for place, (name, shape) in zip(places, shown, strict=True):
        _draw(place, shape, shape.numbers[0])
        style.title(place, f"{style.plain(name)}: {place.get_title(loc='left')}")
    return made


def noted(made: Figure, notes: Sequence[str]) -> Figure:
    """The picture with sentences below it, such as what limits cut of the rows that are counted."""
    if notes:
        wide = max(30, int(13 * made.get_figwidth()))
        text = "\n".join(textwrap.fill(note, wide) for note in notes)
        made.supxlabel(text, x=0.01, ha="left", fontsize=style.SMALL, color=style.BLACK)
    return made


def _draw(ax: Axes, shape: Shape, number: Number) -> None:
    ranged = range_keys(shape)
    if ranged:
        draw_ranges(ax, shape, ranged, number)
    elif len(shape.keys) == 1 and _is_curve(shape.keys[0]):
        draw_curve(ax, shape.keys[0], number)
        style.title(ax, style.plain(number.name))
    elif len(shape.keys) == 2 and (grid := _grid(shape)) is not None:
        first, second, places = grid
        if len(first) <= _GROUPS and len(second) <= _SERIES:
            _grouped(ax, shape, number, first, second, places)
        else:
            _heat_map(ax, shape, number, first, second, places)
    else:
        _bars(ax, shape, number)


def _is_curve(key: Key) -> bool:
    known = [value for value in key.values if value is not None]
    return key.ordered and len(known) >= _CURVE and len(set(known)) == len(known)


def _size(shape: Shape) -> tuple[float, float]:
    if range_keys(shape) or (len(shape.keys) == 1 and _is_curve(shape.keys[0])):
        return 5.6, 3.2
    if len(shape.keys) == 2 and (grid := _grid(shape)) is not None:
        first, second, _ = grid
        if len(first) <= _GROUPS and len(second) <= _SERIES:
            return 5.6, 1.3 + 0.16 * len(first) * (len(second) + 1)
        return 2.4 + min(0.45 * len(second), 6.0), 1.6 + min(0.26 * len(first), 6.0)
    return 5.2, 1.0 + 0.22 * min(shape.rows, MOST_BARS)


def _grid(shape: Shape) -> tuple[list[str], list[str], dict[tuple[str, str], int]] | None:
    """Distinct labels of two keys, and the row of each pair; None where a pair comes twice."""
    first, second = shape.keys
    places: dict[tuple[str, str], int] = {}
    for row, pair in enumerate(zip(first.shown, second.shown, strict=True)):
        if pair in places:
            return None
        places[pair] = row
    return list(dict.fromkeys(first.shown)), list(dict.fromkeys(second.shown)), places


def _bars(ax: Axes, shape: Shape, number: Number) -> None:
    """Horizontal bars, the first row on top; several keys are written side by side."""
    count = min(shape.rows, MOST_BARS)
    at = np.arange(count, dtype=np.float64)
    alone = shape.rows == 1
    rows = [", ".join(key.shown[row] for key in shape.keys) for row in range(count)]
    labels = [style.plain(label or ("" if alone else str(row + 1)), 40) for row, label in enumerate(rows)]
    _add_bars(ax, number, list(range(count)), at, height=0.7, color=style.BLUE, alpha=0.85)
    _finish_bars(ax, labels, ", ".join(key.name for key in shape.keys))
    more = f", the first {count} of {shape.rows:,} rows" if count < shape.rows else ""
    style.title(ax, _named(number) + more)


def _named(number: Number) -> str:
    return style.plain(number.name) + (" with intervals" if number.bounded else "")


def _add_bars(ax: Axes, number: Number, rows: Sequence[int], at: Floats, **look: Any) -> None:
    """Bars of some rows with their intervals; NULL where there is no number. ``look``: what ``Axes.barh`` takes."""
    values = number.values[rows]
    lengths = np.nan_to_num(values)
    ax.barh(at, lengths, **look)
    if number.bounded:
        arms = number.arms[:, rows]
        ax.errorbar(lengths, at, xerr=arms, fmt="none", ecolor=style.BLACK, elinewidth=1.0, capsize=2)
    for place in at[np.isnan(values)]:
        ax.text(0, place, " NULL", fontsize=style.SMALL, color="0.45", va="center")


def _finish_bars(ax: Axes, labels: Sequence[str], name: str) -> None:
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_ylabel(style.plain(name, 60), fontsize=style.SMALL)
    ax.axvline(0, color=style.PALE, linewidth=0.8)
    style.with_thousands(ax.xaxis)
    style.tidy(ax)


def _grouped(
    ax: Axes, shape: Shape, number: Number, first: list[str], second: list[str], places: dict[tuple[str, str], int]
) -> None:
    thick = 0.8 / len(second)
    for series, name in enumerate(second):
        rows = [(at, places[label, name]) for at, label in enumerate(first) if (label, name) in places]
        at = np.array([place for place, _ in rows]) + (series - (len(second) - 1) / 2) * thick
        chosen = [row for _, row in rows]
        colour = style.COLOURS[series % len(style.COLOURS)]
        _add_bars(ax, number, chosen, at, height=thick * 0.92, color=colour, label=style.plain(name, 24))
    _finish_bars(ax, [style.plain(label, 28) for label in first], shape.keys[0].name)
    style.legend_beside(ax, style.plain(shape.keys[1].name))
    style.title(ax, _named(number))


def _heat_map(
    ax: Axes, shape: Shape, number: Number, first: list[str], second: list[str], places: dict[tuple[str, str], int]
) -> None:
    """First key down, second across; where there is room each pixel has its number and how far it may be off."""
    values = np.full((len(first), len(second)), np.nan)
    reach = np.full_like(values, np.nan)
    arms = number.arms.max(axis=0)
    down = {label: at for at, label in enumerate(first)}
    across = {label: at for at, label in enumerate(second)}
    for (one, other), row in places.items():
        values[down[one], across[other]] = number.values[row]
        reach[down[one], across[other]] = arms[row]
    image = ax.imshow(values, aspect="auto", cmap=style.SEQUENTIAL, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, pad=0.02).ax.tick_params(labelsize=style.SMALL, length=2)
    _ticks(ax, "y", first)
    _ticks(ax, "x", second)
    if values.size <= _WRITTEN and len(second) <= 12:
        low, high = np.nanmin(values), np.nanmax(values)
        typical = float(np.nanmedian(reach)) if number.bounded else 0.0
        # Digits that the intervals justify, the same in all pixels.
        digits = None if not typical > 0 else min(max(0, -math.floor(math.log10(typical))), 6)
        for (y, x), held in np.ndenumerate(values):
            dark = np.isfinite(held) and (held - low) < 0.55 * (high - low)
            rounded = held if digits is None or not np.isfinite(held) else round(float(held), digits) + 0.0  # no -0
            text = style.number(rounded) if digits is None else f"{rounded:,.{digits}f}"
            text = text if np.isfinite(held) else "–"
            ax.text(x, y, text, ha="center", va="center", fontsize=style.SMALL, color="white" if dark else "black")
    ax.set_ylabel(style.plain(shape.keys[0].name), fontsize=style.SMALL)
    ax.set_xlabel(style.plain(shape.keys[1].name), fontsize=style.SMALL)
    style.tidy(ax, grid="")
    off = f", each within ±{style.number(float(np.nanmax(reach)))}" if number.bounded else ""
    style.title(ax, style.plain(number.name) + off)


def _ticks(ax: Axes, axis: str, labels: list[str]) -> None:
    """At most 30 labels, evenly spread."""
    step = -(-len(labels) // 30)
    at = list(range(0, len(labels), step))
    shown = [style.plain(labels[i], 16) for i in at]
    if axis == "y":
        ax.set_yticks(at, shown)
    else:
        turned = sum(map(len, shown)) > 45
        ax.set_xticks(at, shown, rotation=40 if turned else 0, ha="right" if turned else "center")


def _single_row(numbers: tuple[Number, ...], ax: Axes | None) -> Figure:
    """Numbers without keys: a line of its own for each, as they may have different units."""
    shown = numbers[: 12 if ax is None else 1]
    made, places = style.panels(ax, 4.8, 0.35 + 0.75 * len(shown), len(shown))
    for place, number in zip(places, shown, strict=True):
        value = number.values[0]
        if np.isfinite(value):
            arms = number.arms if number.bounded else None
            place.errorbar([value], [0], xerr=arms, fmt="o", color=style.BLUE, ecolor=style.BLACK, capsize=3)
            reach = max(float(number.arms.max()), abs(value) * 0.02, 1e-9)
            place.set_xlim(value - 2.2 * reach, value + 2.2 * reach)
        else:
            place.text(0.5, 0, "NULL", transform=place.get_yaxis_transform(), ha="center", va="center")
        place.set_ylim(-1, 1)
        place.set_yticks([])
        style.with_thousands(place.xaxis)
        style.tidy(place)
        place.spines["left"].set_visible(False)
        off = f" ±{style.number(float(number.arms.max()))}" if number.bounded and np.isfinite(value) else ""
        style.title(place, f"{textwrap.shorten(style.plain(number.name), 40)}: {style.number(value)}{off}")
    return made


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
    if number.bounded:
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
        ax.set_ylim(bottom=min(0.0, float(np.nanmin(number.low[known])) if number.bounded else 0.0))
    style.with_thousands(ax.yaxis)
    style.tidy(ax, grid="y")
    if x and hasattr(x[0], "isoformat"):
        style.with_dates(ax.xaxis)
