"""What is spent of each period, as a calendar: a line a year, or a month of short periods, and a square a period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SQUARE, _SMALL_SQUARE = 0.26, 0.17  # inches; the latter where a line has days of a month
# A jump from nothing to little, which would else look alike.
_SHADES = ((0.0, "0.93"), (0.001, "#cfe1f2"), (0.5, "#6aaed6"), (1.0, "#08306b"))
Lines = Sequence[tuple[str, Sequence[float]]]


def calendar_picture(calendars: Sequence[tuple[str, Lines]], ax: Axes | None = None) -> Figure:
    """A panel for each (heading, lines), a line being its label and the share of each of its periods that is spent.

    Grey squares are periods of which nothing is spent; where there is no square, there is no period yet.
    """
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("spent", _SHADES)
    tall = [len(lines) for _, lines in calendars]
    wide = max((len(shares) for _, lines in calendars for _, shares in lines), default=1)
    square = _SQUARE if wide <= 16 else _SMALL_SQUARE
    size = max(3.6, wide * square + 1.7), max(1.6, sum(tall) * square + 0.9 * len(tall) + 0.4)
    made, axes = style.panels(ax, *size, down=max(len(calendars), 1), heights=tall or None)
    for held, (heading, lines) in zip(axes, calendars, strict=False):
        shares = np.full((len(lines), wide), np.nan)
        for at, (_, spent) in enumerate(lines):
            shares[at, : len(spent)] = spent
        image = held.pcolormesh(
            np.arange(wide + 1) + 0.5, np.arange(len(lines) + 1) - 0.5, np.ma.masked_invalid(100.0 * shares),
            cmap=shades, vmin=0.0, vmax=100.0, edgecolors="white", linewidth=1.0,
        )  # fmt: skip
        held.set_yticks(range(len(lines)), [style.plain(label) for label, _ in lines])
        held.set_ylim(len(lines) - 0.5, -0.5)
        held.set_aspect("equal")
        held.set_xticks(range(1, wide + 1, max(1, wide // 6)))
        held.set_xlim(0.5, wide + 0.5)
        style.tidy(held, grid="")
        for side in ("left", "bottom"):
            held.spines[side].set_visible(False)
        style.title(held, f"{style.plain(heading, 60)}: spent of each period")
        # Beside the squares, as tall as they are, whatever room the panel has; not taller than a legend need be.
        share = min(1.0, 1.2 / (len(lines) * square))
        beside = held.inset_axes((1.0 + 0.15 / (wide * square), 1.0 - share, 0.12 / (wide * square), share))
        bar = held.figure.colorbar(image, cax=beside, ticks=[0, 50, 100] if share * len(lines) > 1.5 else [0, 100])
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=style.SMALL, length=2.5, color=style.PALE)
    return made
