"""A budget over time: what each account has spent, by whom, up to its total."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS = 6  # that have a colour of their own; those who spent least are drawn as one

Spending = Sequence[tuple[str, str, float]]
"""(time in ISO 8601, label, amount) of every charge of an account, oldest first."""


def budget_picture(purses: Sequence[tuple[str, str, float, Spending]], ax: Axes | None = None) -> Figure:
    """What was spent over time, a panel an account: (name, measure, total, charges of it).

    With ``ax`` the first account that has spent anything, or the first, is drawn. Raises InterfaceError without
    matplotlib.
    """
    made, places = style.panels(ax, 6.4, 0.4 + 2.3 * len(purses), len(purses))
    shown = purses if ax is None else [next((purse for purse in purses if purse[3]), purses[0])]
    for place, purse in zip(places, shown, strict=True):
        _draw(place, *purse)
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
    style.title(ax, f"{name} account: {style.number(spent)} of {style.number(total)} spent")
