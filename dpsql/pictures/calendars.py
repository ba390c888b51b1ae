"""What is spent of each period, as a calendar: a line a year, or a month of short periods, and a square a period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SQUARE = 0.26  # inches
Lines = Sequence[tuple[str, Sequence[float]]]


def calendar_picture(calendars: Sequence[tuple[str, Lines]], ax: Axes | None = None) -> Figure:
    """A panel for each (heading, lines), a line being its label and the share of each of its periods that is spent.

    Empty squares are periods of which nothing is spent.
    """
    tall = [len(lines) for _, lines in calendars]
    wide = max((len(shares) for _, lines in calendars for _, shares in lines), default=1)
    size = max(3.6, wide * _SQUARE + 1.6), max(1.6, sum(tall) * _SQUARE + 0.9 * len(tall) + 0.4)
    made, axes = style.panels(ax, *size, down=max(len(calendars), 1), heights=tall or None)
    for held, (heading, lines) in zip(axes, calendars, strict=False):
        shares = np.full((len(lines), wide), np.nan)
        for at, (_, spent) in enumerate(lines):
            shares[at, : len(spent)] = spent
        image = held.pcolormesh(
            np.arange(wide + 1) + 0.5, np.arange(len(lines) + 1) - 0.5, np.ma.masked_invalid(100.0 * shares),
            cmap="Blues", vmin=0.0, vmax=100.0, edgecolors="0.85", linewidth=0.6,
        )  # fmt: skip
        held.set_yticks(range(len(lines)), [style.plain(label) for label, _ in lines])
        held.set_ylim(len(lines) - 0.5, -0.5)
        held.set_aspect("equal")
        held.set_xticks(range(1, wide + 1, max(1, wide // 6)))
        held.set_xlim(0.5, wide + 0.5)
        style.tidy(held, grid="")
        for side in ("left", "bottom"):
            held.spines[side].set_visible(False)
        style.title(held, style.plain(heading, 80))
        bar = held.figure.colorbar(image, ax=held, pad=0.03, fraction=0.05)
        bar.set_label("% spent", fontsize=style.SMALL)
        bar.ax.tick_params(labelsize=style.SMALL)
    return made
