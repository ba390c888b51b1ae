"""Matrices as heat maps, few pixels for many entries; and matrices of blocks, by the columns that each block names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.release.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS = 240
"""The most pixels of a heat map in either direction."""


def extremes(values: Floats, pixels: int, axis: int) -> Floats:
    """``values`` with stretches of ``axis`` replaced by their entry of largest size; at most ``pixels`` stay."""
    count = values.shape[axis]
    if count <= pixels:
        return values
    starts = np.arange(pixels) * count // pixels
    high = np.maximum.reduceat(values, starts, axis=axis)
    low = np.minimum.reduceat(values, starts, axis=axis)
    return np.asarray(np.where(-low > high, low, high))


def pixels_picture(
    pixels: Floats, shape: tuple[int, int], ax: Axes | None = None, *, title: str, rows: str, columns: str, note: str
) -> Figure:
    """A heat map of the ``pixels`` of a matrix of ``shape``; ``rows`` and ``columns`` say what these are.

    ``note``: what one pixel shows, where it is not one entry.
    """
    tall = float(np.clip(5.2 * shape[0] / max(shape[1], 1), 1.8, 5.2))
    made, axes = style.canvas(ax, 6.0, tall + 0.9)
    size = float(np.abs(pixels).max(initial=0.0)) or 1.0
    signed = bool((pixels < 0).any())
    from matplotlib.colors import FuncNorm

    # Roots of sizes: entries of a hundredth of the largest one still show.
    norm = FuncNorm(
        (lambda v: np.sign(v) * np.sqrt(np.abs(v)), lambda v: np.sign(v) * np.square(v)),
        vmin=-size if signed else 0.0,
        vmax=size,
    )
    image = axes.imshow(
        pixels,
        aspect="auto",
        interpolation="nearest",
        cmap=style.DIVERGING if signed else "Blues",
        norm=norm,
        extent=(0.5, shape[1] + 0.5, shape[0] + 0.5, 0.5),
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.ax.tick_params(labelsize=style.SMALL, length=2)
    ends = [-size, -size / 4, 0.0, size / 4, size] if signed else [0.0, size / 16, size / 4, size]
    bar.set_ticks(ends, labels=[style.number(value) for value in ends])
    bar.minorticks_off()
    axes.set_xlabel(f"{columns} ({shape[1]:,})", fontsize=style.SMALL)
    axes.set_ylabel(f"{rows} ({shape[0]:,})", fontsize=style.SMALL)
    for axis, count in ((axes.xaxis, shape[1]), (axes.yaxis, shape[0])):
        if count < 5:
            axis.set_ticks(range(1, count + 1))
        else:
            style.with_thousands(axis, 6)
    style.tidy(axes, grid="")
    style.title(axes, title + (f"\n{note}" if note else ""))
    return made


def members_picture(
    labels: Sequence[str],
    columns: Sequence[str],
    members: Sequence[Sequence[int]],
    ax: Axes | None = None,
    *,
    title: str,
    rows: str,
) -> Figure:
    """Which columns each block names: a line a block, a mark at each of its columns. At most 60 lines are drawn."""
    most = 60
    shown = list(zip(labels, members, strict=True))[:most]
    made, axes = style.canvas(ax, 2.6 + 0.32 * len(columns), 1.3 + 0.17 * len(shown))
    for at, (_, held) in enumerate(shown):
        if held:
            axes.plot([min(held), max(held)], [at, at], color=style.FAINT, linewidth=2, zorder=1)
            axes.scatter(list(held), [at] * len(held), color=style.BLUE, s=26, marker="s", zorder=2)
    axes.set_yticks(range(len(shown)), [style.plain(label, 30) for label, _ in shown])
    turned = sum(map(len, columns)) > 7 * len(columns)
    axes.set_xticks(range(len(columns)), [style.plain(name, 18) for name in columns], rotation=45 if turned else 0)
    if turned:
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    style.tidy(axes, grid="")
    more = f", the first {most} of {len(labels):,}" if len(labels) > most else ""
    axes.set_ylabel(rows + more, fontsize=style.SMALL)
    style.title(axes, title)
    return made
