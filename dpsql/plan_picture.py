"""A plan as a picture: the error of every result column, beside what paying one by one would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.errors import InterfaceError
from dpsql.plan_text import plan_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpsql.plan import Plan

SHOWN = 60


def plan_picture(plan: Plan) -> Figure:
    """A matplotlib figure with one line a result column, standard errors on a logarithmic axis.

    The first 60 result columns are drawn. Raises InterfaceError where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        missing = True
    else:
        missing = False
    if missing:
        raise InterfaceError("a picture needs matplotlib; install it with: pip install 'dpsql[plot]'")
    rows = [row for row in plan_rows(plan) if row["stderr"] is not None]
    shown = rows[:SHOWN][::-1]
    names = [f"{row['result']}.{row['column']}"[:48] for row in shown]
    figure = Figure(figsize=(8.0, 1.6 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    at = range(len(shown))
    planned = [max(row["stderr"], 1e-12) for row in shown]
    naive = [max(row["naive_stderr"], 1e-12) for row in shown]
    axes.hlines(at, planned, naive, color="0.8", linewidth=2, zorder=1)
    axes.scatter(naive, at, color="0.55", s=22, zorder=2, label="one by one")
    axes.scatter(planned, at, color="tab:blue", s=28, zorder=3, label="this plan")
    axes.set_xscale("log")
    axes.set_yticks(list(at), names, fontsize=8)
    axes.set_ylim(-0.8, len(shown) - 0.2)
    axes.set_xlabel("standard error of a released number, in its own unit")
    more = f" (first {SHOWN} of {len(rows)} result columns)" if len(rows) > SHOWN else ""
    axes.set_title(f"Errors known before anything is spent{more}\n{plan.charge.guarantee}", fontsize=10)
    axes.grid(axis="x", which="major", color="0.92")
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    return figure
