"""Pictures of results, plans, workloads, strategies, budgets and ranges: a function each, for people and notebooks.

Needs the extra ``dpsql[plot]``. Every function takes ``ax``, matplotlib axes to draw into, or makes a figure; it
returns the figure, which a notebook shows and ``figure.savefig("picture.png")`` writes. pyplot is never used.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.arrays import Floats, Matrix
from dpsql.driver.period_budgets import PeriodBudget, calendar
from dpsql.errors import InterfaceError
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import dense
from dpsql.pictures import calendar_picture, members_picture, pixels_picture, plot_ranges, plot_result, style
from dpsql.pictures.matrices import PIXELS, extremes
from dpsql.planning.picture import plan_picture as plot_plan
from dpsql.planning.plan import Plan
from dpsql.privacy.state import BudgetState
from dpsql.strategy import Strategy, StructuredStrategy
from dpsql.workload import Workload
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.line_batch import Lined
from dpsql.workload.compile.structured import Structured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_budget", "plot_periods", "plot_plan", "plot_ranges", "plot_result", "plot_strategy", "plot_workload"]


def plot_workload(source: Plan | Workload, ax: Axes | None = None) -> Figure:
    """The workload matrix of a plan, or a workload, as a heat map: a line a released number, a column a cell.

    Large matrices are drawn in fewer pixels, each the entry of largest size of its stretch; of implicit ones only
    240 evenly spaced rows are made. A batch of blocks, whose matrix over all cells is never written out, is drawn as
    the columns that each block names.
    """
    if isinstance(source, Plan):
        compiled = source.compiled
        if isinstance(compiled, Structured):
            names, at = _axes(compiled)
            labels, members = _blocks(compiled, at)
            return members_picture(
                labels, names, members, ax, title="What is asked: the columns of each block", rows="block"
            )
        if isinstance(compiled, Lined):
            raise InterfaceError(
                f"{compiled.key.text} has {len(compiled.key):,} groups, too many to draw; plot_plan shows the errors"
            )
        if not isinstance(compiled, Compiled):
            raise InterfaceError("all ranges of a line this long are never written out as a matrix, so none is drawn")
        source = compiled.workload(compiled.scale)
    if not isinstance(source, Workload):
        raise InterfaceError("plot_workload draws a plan or a workload, such as con.plan(sql, epsilon=1)")
    pixels, note = workload_pixels(source)
    largest = np.abs(pixels).max(axis=1, initial=0.0)
    if largest.max() > 1.01 * largest[largest > 0].min(initial=np.inf):  # counts beside sums, or weights
        pixels = pixels / np.where(largest > 0, largest, 1.0)[:, None]
        note = f"each row over its largest entry{'; ' * bool(note)}{note}"
    return pixels_picture(
        pixels, source.shape, ax, title="What is asked (workload)", rows="number", columns="cell", note=note
    )


def plot_strategy(source: Plan | Strategy, ax: Axes | None = None) -> Figure:
    """The measured integers B of a plan, or of a strategy, as a heat map: a line a measurement, a column a cell.

    Drawn as ``plot_workload`` draws W; of a batch of blocks, the columns of each residual that is measured.
    """
    strategy = source.strategy if isinstance(source, Plan) else source
    if isinstance(strategy, StructuredStrategy):
        names, at = _axes(strategy.planned)
        held = strategy.planned.histograms
        members = [[at[held[r.histogram].table, axis] for axis in r.axes] for r in strategy.residuals]
        labels = [_label([names[place] for place in axes]) for axes in members]
        return members_picture(
            labels, names, members, ax, title="What is measured: the columns of each residual", rows="residual"
        )
    if not isinstance(strategy, Strategy):
        raise InterfaceError("plot_strategy draws a plan or a strategy, such as con.plan(sql, epsilon=1)")
    pixels, note = strategy_pixels(strategy)
    heading = f"What is measured (strategy: {strategy.method})"
    return pixels_picture(pixels, strategy.shape, ax, title=heading, rows="measurement", columns="cell", note=note)


def plot_budget(state: BudgetState, ax: Axes | None = None) -> Figure:
    """What was spent over time, a panel an account, coloured by label, up to the account's total (``con.budget``)."""
    accounts = []
    for account in state.accounts:
        measure, times = account.measure, 1.0
        if account.name == "gaussian":  # counts mu squared: shares, or rho, say more
            measure, times = (SHARES, 100.0 / account.total) if state.budget.rho is None else ("rho", 0.5)
        spent = [(e.time, e.label, e.charge.amount * times) for e in state.charges if e.charge.account == account.name]
        accounts.append((account.name, measure, account.total * times, spent))
    return budget_picture(accounts, ax)


def plot_periods(found: Sequence[PeriodBudget], ax: Axes | None = None) -> Figure:
    """What is spent of each closed period, as a calendar, a panel a table and account (``con.budget_by_period()``)."""
    if not found:
        raise InterfaceError("no period of a table is over, so there is no calendar to draw")
    kinds = dict.fromkeys((one.table, one.account) for one in found)
    return calendar_picture(
        [
            (f"{table}, {account} account", calendar([one for one in found if (one.table, one.account) == kind]))
            for kind in kinds
            for table, account in [kind]
        ],
        ax,
    )


def _axes(batch: Structured) -> tuple[list[str], dict[tuple[int, int], int]]:
    """Names of all axes, table by table, and where each is drawn."""
    names: list[str] = []
    at: dict[tuple[int, int], int] = {}
    for table, listed in enumerate(batch.names):
        for axis, name in enumerate(listed):
            at[table, axis] = len(names)
            names.append(name if len(batch.names) == 1 else f"{batch.tables[table]}.{name}")
    return names, at


def _blocks(batch: Structured, at: dict[tuple[int, int], int]) -> tuple[list[str], list[list[int]]]:
    labels, members = [], []
    for block in batch.blocks:
        held = sorted({at[block.table, axis] for factor in block.factors for axis in factor.axes})
        rows = block.stop - block.start
        labels.append(f"{rows:,} number{'' if rows == 1 else 's'}")
        members.append(held)
    return labels, members


def _label(names: list[str]) -> str:
    return ", ".join(names) or "total"


_WHOLE = 2**21  # entries up to which a matrix is written out
_WIDEST = 2**22  # columns


# -- the entries of a workload or a strategy, or the largest of each stretch where it has many --------
# An implicit matrix is never written out: only the rows that are drawn are made, one at a time, from its structure.


def workload_pixels(W: Workload) -> tuple[Floats, str]:
    """At most `PIXELS` x `PIXELS` pixels of W, and what one of them shows, where it is not one entry."""
    m, n = W.shape
    if m * n <= _WHOLE:
        return _few(W.matrix(), m, n)
    return _spread(m, n, lambda at: inner_row(W.inner, at) @ W.span)


def strategy_pixels(strategy: Strategy) -> tuple[Floats, str]:
    """At most `PIXELS` x `PIXELS` pixels of B, and what one of them shows, where it is not one entry.

    Raises InterfaceError for a strategy that has no rows to show.
    """
    p, n = strategy.shape
    if p * n <= _WHOLE:
        return _few(strategy.matrix(), p, n)
    mixing, basis = getattr(strategy, "mixing", None), getattr(strategy, "basis", None)
    if mixing is None or basis is None:
        raise InterfaceError(f"the strategy {strategy.method} has {p:,} x {n:,} entries and is not kept by rows")
    return _spread(p, n, lambda at: mixing[[at], :] @ basis)


def _few(matrix: Floats, rows: int, columns: int) -> tuple[Floats, str]:
    pixels = extremes(extremes(np.asarray(matrix, dtype=np.float64), PIXELS, 0), PIXELS, 1)
    return pixels, "" if pixels.shape == (rows, columns) else "each pixel: the largest entry of its stretch"


def _spread(rows: int, columns: int, row: Callable[[int], Matrix]) -> tuple[Floats, str]:
    """Evenly spaced rows, each in few pixels."""
    if columns > _WIDEST:
        raise InterfaceError(f"a matrix of {columns:,} columns is too wide for a picture; draw a part of the batch")
    count = min(rows, PIXELS)
    chosen = sorted(
        {at * (rows - 1) // max(count - 1, 1) for at in range(count)}
    )  # Python integers: 2^100 rows are fine
    pixels = np.stack([extremes(_flat(row(at)), PIXELS, 0) for at in chosen])
    if len(chosen) == rows:
        return pixels, "each pixel: the largest entry of its stretch"
    several = "" if columns <= PIXELS else ", each pixel the largest entry of its stretch"
    return pixels, f"{len(chosen)} of {rows:,} rows, evenly spaced{several}"


def _flat(row: Matrix) -> Floats:
    return np.asarray(dense(row), dtype=np.float64).reshape(-1)


def inner_row(inner: algebra.Inner, at: int) -> Floats:
    """Row ``at`` of an inner factor F as a (1, q) array, without the others. Raises InterfaceError for other kinds."""
    q = inner.shape[1]
    found = np.zeros((1, q))
    if isinstance(inner, algebra.Diagonal):
        found[0, at] = inner.scale[at]
    elif isinstance(inner, algebra.Dense):
        found[0] = dense(inner.entries[[at]])[0]
    elif isinstance(inner, algebra.Ranges):
        start, stop = _range(q, at)
        found[0, start:stop] = 1.0
    elif isinstance(inner, algebra.Prefixes):
        found[0, : at + 1] = 1.0
    elif isinstance(inner, algebra.Kron):
        row: Floats = np.ones((1, 1))
        for factor in reversed(inner.factors):
            at, place = divmod(at, factor.shape[0])
            row = np.asarray(np.kron(inner_row(factor, place), row), dtype=np.float64)
        found = row
    elif isinstance(inner, algebra.Blocks):
        column = 0
        for part, weight in zip(inner.parts, inner.weights, strict=True):
            if at < part.shape[0]:
                found[0, column : column + part.shape[1]] = weight * inner_row(part, at)[0]
                break
            at -= part.shape[0]
            column += part.shape[1]
    elif isinstance(inner, algebra.Predicates):
        found[0] = [((at >> bit) & 1) * 2.0**-inner.log2_scale for bit in range(q)]
    else:
        raise InterfaceError(f"a workload of kind {type(inner).__name__} is not kept by rows and cannot be drawn")
    return found


def _range(q: int, at: int) -> tuple[int, int]:
    """First column and end of interval ``at`` of q columns; the intervals go by first column, then by last."""
    left = q * (q + 1) // 2 - 1 - at  # intervals after it: those of later first columns number 0, 1, 3, 6, ...
    first = q - 1 - (isqrt(8 * left + 1) - 1) // 2
    return first, first + 1 + at - (first * q - first * (first - 1) // 2)


_LABELS = 6  # that have a colour of their own; those who spent least are drawn as one

SHARES = "% of the account"

Spending = Sequence[tuple[str, str, float]]
"""(time in ISO 8601, label, amount) of every charge of an account, oldest first."""


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
        f"{style.number(spent)}%" if measure == SHARES else f"{measure} {style.number(spent)} of {style.number(total)}"
    )
    style.title(ax, f"{name} account: {said} spent")
