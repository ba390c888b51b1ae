"""What is spent: over time, a panel an account, and of each period of a table that grows, as a calendar."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.planning.figures import budget_name
from dpsql.privacy.amounts import show
from dpsql.release.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SQUARE, _SMALL_SQUARE = 0.26, 0.17  # inches; the latter where a line has days of a month
# A jump from nothing to little, which would else look alike.
_SHADES = ((0.0, "0.93"), (0.001, "#cfe1f2"), (0.5, "#6aaed6"), (1.0, "#08306b"))
Lines = Sequence[tuple[str, Sequence[float]]]
_LABELS = 6  # that have a colour of their own; those who spent least are drawn as one

SHARES = "% of the budget"

Spending = Sequence[tuple[str, str, float]]
"""(time in ISO 8601, label, amount) of every charge of an account, oldest first."""


def calendar_picture(calendars: Sequence[tuple[str, Lines]], ax: Axes | None = None) -> Figure:
    """A panel for each (heading, lines): a line a year, or a month of short periods, and a square a period.

    A line is its label and the share of each of its periods that is spent.

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


def budget_picture(accounts: Sequence[tuple[str, str, float, Spending]], ax: Axes | None = None) -> Figure:
    """What was spent over time, a panel an account: (name, measure, total, charges of it).

    With ``ax`` the first account that has spent anything, or the first, is drawn. Raises InterfaceError without
    matplotlib.
    """
    made, places = style.panels(ax, 6.4, 0.4 + 2.3 * len(accounts), len(accounts))
    shown = accounts if ax is None else [next((account for account in accounts if account[3]), accounts[0])]
    for place, account in zip(places, shown, strict=True):
        _draw(place, *account)
    return made


def _draw(ax: Axes, name: str, measure: str, total: float, charges: Spending) -> None:
    by_label: dict[str, float] = {}
    for _, label, amount in charges:
        by_label[label] = by_label.get(label, 0.0) + amount
    largest = sorted(by_label, key=lambda label: -by_label[label])[: _LABELS - 1 if len(by_label) > _LABELS else None]
    names = [label for label in by_label if label in largest] + (["(others)"] if len(largest) < len(by_label) else [])
    style.tidy(ax, grid="y")
    if charges:
        moments = [dt.datetime.fromisoformat(when).replace(tzinfo=None) for when, _, _ in charges]
        # A little before the first charge and after the last one, so that both steps show.
        reach = max((moments[-1] - moments[0]) * 0.06, dt.timedelta(minutes=1))
        times: list[Any] = [moments[0] - reach, *moments, moments[-1] + reach]
        steps = np.zeros((len(names), len(times)))
        for at, (_, label, amount) in enumerate(charges, start=1):
            steps[names.index(label if label in largest else "(others)"), at:] += amount
        colours = [style.COLOURS[i % len(style.COLOURS)] for i in range(len(names))]
        shown = [style.plain(label or "(no label)", 24) for label in names]
        ax.stackplot(times, steps, step="post", colors=colours, labels=shown, alpha=0.85, linewidth=0)
        ax.plot(times, steps.sum(axis=0), drawstyle="steps-post", color=style.BLACK, linewidth=1)
        style.with_dates(ax.xaxis)
        ax.set_xlim(times[0], times[-1])
        if names != [""]:  # without labels there is nothing to tell apart
            style.legend_beside(ax, "label", reverse=True)
    else:
        ax.text(0.5, 0.4, "nothing spent yet", transform=ax.transAxes, ha="center", fontsize=style.NORMAL, color="0.45")
        ax.set_xticks([])
    ax.axhline(total, color=style.RED, linewidth=1.2, linestyle="--")
    ax.text(0.01, total, f"total {style.number(total)}", transform=ax.get_yaxis_transform(), fontsize=style.SMALL,
            color=style.RED, va="bottom")  # fmt: skip
    ax.set_ylim(0, total * 1.18)
    style.with_thousands(ax.yaxis, 4)
    spent = sum(amount for _, _, amount in charges)
    ax.set_ylabel(measure, fontsize=style.SMALL)
    said = (
        f"{show(Fraction(spent), 3)} %"
        if measure == SHARES
        else f"{measure} {style.number(spent)} of {style.number(total)}"
    )
    style.title(ax, f"{budget_name(name)}: {said} spent")
