"""How plans, budgets, releases, results and figures look in a notebook: formatters of IPython, as text and as HTML."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpsql.notebook.results import NotebookResult, Results
from dpsql.notebook.tables import Look, grid_of
from dpsql.planning.plan import Plan
from dpsql.planning.text import SHOWN, plan_cells, plan_facts
from dpsql.privacy.accountant import BudgetState
from dpsql.privacy.amounts import show, show_grantable, show_left
from dpsql.release import Result
from dpsql.release.release import Release
from dpsql.release.text_table import paragraph

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib.figure import Figure

_CELL = 'style="text-align:left;vertical-align:top"'
_FIGURE = ("matplotlib.figure", "Figure")


def register(shell: InteractiveShell, look: Callable[[], Look]) -> None:
    """Show these types in ``shell`` as dpsql does; ``look`` gives the settings of the moment."""
    shown: dict[type, tuple[Callable[[Any], str], Callable[[Any], str]]] = {
        Plan: (str, plan_html),
        BudgetState: (str, budget_html),
        Result: (lambda r: grid_of(r, look()).text(), lambda r: grid_of(r, look()).html()),
        # A formatter comes before the object's own methods, and the one of a class serves its subclasses, too.
        NotebookResult: (repr, NotebookResult._repr_html_),
        Release: (lambda r: repr(_of_release(r, look())), lambda r: _of_release(r, look())._repr_html_()),
    }
    formatters = shell.display_formatter.formatters  # type: ignore[union-attr,unused-ignore]
    for kind, (text, page) in shown.items():
        formatters["text/plain"].for_type(kind, _printed(text))
        formatters["text/html"].for_type(kind, page)
    png = formatters["image/png"]
    if _FIGURE not in png.deferred_printers and not any(kind.__name__ == "Figure" for kind in png.type_printers):
        # A figure that no pyplot made is shown as text unless somebody draws it.
        png.for_type_by_name(*_FIGURE, figure_png)


def unregister(shell: InteractiveShell) -> None:
    """Take the formatters back."""
    formatters = shell.display_formatter.formatters  # type: ignore[union-attr,unused-ignore]
    for kind in (Plan, BudgetState, Result, NotebookResult, Release):
        for name in ("text/plain", "text/html"):
            formatters[name].pop(kind, None)
    for kind in [*formatters["image/png"].type_printers]:
        if formatters["image/png"].type_printers[kind] is figure_png:
            formatters["image/png"].pop(kind)
    if formatters["image/png"].deferred_printers.get(_FIGURE) is figure_png:
        formatters["image/png"].deferred_printers.pop(_FIGURE)


def _printed(text: Callable[[Any], str]) -> Callable[[Any, Any, bool], None]:
    """IPython's plain text goes through a pretty printer."""

    def show(value: Any, printer: Any, cycle: bool) -> None:
        for number, line in enumerate(text(value).split("\n")):
            if number:
                printer.break_()
            printer.text(line)

    return show


def figure_png(figure: Figure) -> bytes:
    """A matplotlib figure as PNG."""
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=110, bbox_inches="tight")
    return held.getvalue()


def _of_release(release: Release, look: Look) -> Results:
    results = [NotebookResult.of(release[name], name, look=look) for name in release]
    cost = f"spent {release.guarantee}" if release.cost else "free"
    return Results(results, f"Release {release.id} · {cost}", release)


def plan_html(plan: Plan) -> str:
    """A plan: what it promises and costs, then the error of every result column. Every text is escaped."""
    head = "".join(
        f"<tr><th {_CELL}>{html.escape(label)}</th><td {_CELL}>{html.escape(text)}</td></tr>"
        for label, text in plan_facts(plan)
    )
    level = f"{100 * (1 - plan.alpha):g} % within"
    rows = plan.rows()
    lines = [plan_cells(row, "depends on the answer") for row in rows[:SHOWN]]
    kinds = ("VARCHAR", "VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "DOUBLE")
    table = Result(("result", "column", "numbers", "std error", level, "one by one"), kinds, lines)
    more = f"{len(rows) - SHOWN} more result columns; plan.rows() has them all. " if len(rows) > SHOWN else ""
    return (
        f'<div class="dpsql"><table class="dpsql-plan"><tbody>{head}</tbody></table>'
        f"{_bare(table)}"
        + paragraph(
            f"{more}Errors are known before anything is spent. 'one by one': the standard error if each result column "
            "were measured apart, with the same noise and total budget.",
            "dpsql-note",
        )
        + "</div>"
    )


def budget_html(state: BudgetState) -> str:
    """What is spent of a budget and what is left, account by account."""
    at = "" if state.budget.delta is None else f" at delta {show(state.budget.delta)}"
    rows = [
        (p.name, p.measure, f"{p.total:.6g}", show(Fraction(p.spent), 6), show_left(Fraction(p.remaining), 6))
        for p in state.purses
    ]
    kinds = ("VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE", "DOUBLE")
    table = Result(("account", "measure", "total", "spent", "remaining"), kinds, rows)
    spent, left = show(Fraction(state.spent), 6), show_grantable(state.remaining, 6)
    line = f"{state.measure} {spent} spent of {state.total:.6g}{at}, {left} remaining"
    return f'<div class="dpsql">{_bare(table)}{paragraph(line, "dpsql-footer")}</div>'


def _bare(table: Result) -> str:
    """A table of texts that is to be shown whole, without the count of its rows."""
    return replace(grid_of(table, Look(max(len(table), 1), "columns")), note="").html()
