"""What a cell gives: its results by index and by name, and one line that says what it cost and how exact it is."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

from dpsql.driver.connection import Connection
from dpsql.driver.result_sets import Row
from dpsql.errors import InterfaceError, nearest
from dpsql.extensions.notebook.plain import plain
from dpsql.extensions.notebook.tables import Look, error_columns, grid_of, half_width
from dpsql.planning.figures import figure
from dpsql.planning.plan import Plan
from dpsql.planning.text import plan_text
from dpsql.privacy.accountant import BudgetState
from dpsql.privacy.amounts import show, show_grantable
from dpsql.release import Result
from dpsql.release.limits import MOST_ROWS
from dpsql.release.release import Release
from dpsql.release.text_table import clean, paragraph

if TYPE_CHECKING:
    import pandas as pd
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib.figure import Figure

_ALPHA = 0.05


def _bundle(shown: NotebookResult | Results | Note, include: object = None, exclude: object = None) -> dict[str, str]:
    """What IPython chooses from, as text and as HTML."""
    return {"text/plain": repr(shown), "text/html": shown._repr_html_()}


class NotebookResult(Result):
    """One result of a cell: a ``Result`` with its ``name``, shown as the notebook's settings say.

    ``df()``, ``arrow()``, ``fetchall()`` and ``column()`` as any ``Result``; ``plot()`` draws it. ``level`` is the
    confidence of its intervals as text, such as "95 %"; None where nothing says so.
    """

    __slots__ = ("level", "look", "name")
    _repr_mimebundle_ = _bundle

    name: str
    level: str | None
    look: Look

    @classmethod
    def of(
        cls,
        result: Result,
        name: str,
        level: str | None = None,
        look: Look | None = None,
        rows: Sequence[Row] | None = None,
    ) -> NotebookResult:
        """The same table under a name. ``rows`` may be worked out as they are taken, as those of long ranges are."""
        held = cls.from_rows(result.columns, result.types, result.rows if rows is None else rows)
        for key, value in (("name", name), ("level", level), ("look", look or Look())):
            object.__setattr__(held, key, value)
        return held

    def __str__(self) -> str:
        return grid_of(self, self.look, self.level).text()

    def __repr__(self) -> str:
        return grid_of(self, self.look, self.level).text(clean(self.name))

    def _repr_html_(self) -> str:
        return grid_of(self, self.look, self.level).html(clean(self.name))


class Results(Sequence[NotebookResult]):
    """The results of one cell: ``r[0]``, ``r["by_state"]``, ``r.by_name``, iteration in the order of the batch.

    ``release`` is what they were answered from, None for queries over released views; ``cost`` is what was charged, 0
    where it was free; ``footer`` the line shown below. Where there is one result, ``df()``, ``arrow()``, ``plot()``
    and ``fetchall()`` are its own.
    """

    _repr_mimebundle_ = _bundle

    def __init__(self, results: Sequence[NotebookResult], footer: str, release: Release | None = None) -> None:
        self._results = tuple(results)
        self.footer = footer
        self.release = release

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the results, in the order of the batch."""
        return tuple(result.name for result in self._results)

    @property
    def cost(self) -> float:
        """What was charged, in the account's measure; 0 where it was free."""
        return 0.0 if self.release is None else self.release.cost

    @overload
    def __getitem__(self, key: int | str) -> NotebookResult: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[NotebookResult]: ...
    def __getitem__(self, key: int | str | slice) -> NotebookResult | Sequence[NotebookResult]:
        if isinstance(key, str):
            for result in self._results:
                if result.name.lower() == key.lower():
                    return result
            raise plain(InterfaceError(f"the cell has no result {key}: {nearest(key, self.names)}"))
        if isinstance(key, int) and not -len(self) <= key < len(self):
            # IndexError ends a loop over old-style sequences, and lists raise it.
            raise IndexError(f"the cell has {len(self)} result{'' if len(self) == 1 else 's'}, counted from 0")
        return self._results[key]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[NotebookResult]:
        return iter(self._results)

    def __contains__(self, key: object) -> bool:
        return key in self._results or (isinstance(key, str) and key.lower() in {name.lower() for name in self.names})

    def df(self) -> pd.DataFrame:
        """The one result as a pandas frame. InterfaceError where there are several, or pandas is not installed."""
        return self._only("df").df()

    def arrow(self) -> Any:
        """The one result as a ``pyarrow.Table``. InterfaceError where there are several, or pyarrow is missing."""
        return self._only("arrow").arrow()

    def plot(self, **options: Any) -> Figure:
        """The one result as a figure; ``options`` as ``Result.plot`` has them. InterfaceError as for ``df``."""
        return self._only("plot").plot(**options)

    def fetchall(self) -> list[Row]:
        """The rows of the one result. InterfaceError where there are several."""
        return self._only("fetchall").fetchall()

    def _only(self, method: str) -> NotebookResult:
        if len(self) == 1:
            return self._results[0]
        name = self.names[0] if self.names else "q1"
        said = ", ".join(self.names[:6])
        raise plain(
            InterfaceError(f"the cell has {len(self)} results, {said}; choose one, such as [{name!r}].{method}()")
        )

    def __repr__(self) -> str:
        return "\n\n".join([*(_titled(result, len(self)) for result in self), self.footer])

    def _repr_html_(self) -> str:
        tables = [grid_of(r, r.look, r.level).html(clean(r.name) if _has_title(r, len(self)) else "") for r in self]
        return f'<div class="dpsql">{"".join(tables)}{paragraph(self.footer, "dpsql-footer")}</div>'


class Note:
    """One line for people, as text and as HTML."""

    _repr_mimebundle_ = _bundle

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        if "\n" in self.text:  # a listing: its own line breaks
            return f'<pre class="dpsql">{html.escape(self.text)}</pre>'
        return f'<div class="dpsql">{paragraph(self.text, "dpsql-footer")}</div>'


def _has_title(result: NotebookResult, count: int) -> bool:
    return count > 1 or result.name != "q1"


def _titled(result: NotebookResult, count: int) -> str:
    return repr(result) if _has_title(result, count) else str(result)


def level_of(con: Connection, release: Release | None) -> str | None:
    """The confidence of a release's intervals as text; over released views that of all, None where they differ."""
    entries = con.releases()
    found = {entry.description.get("alpha", _ALPHA) for entry in entries if release is None or entry.id == release.id}
    return level_text(float(found.pop())) if len(found) == 1 else None


def level_text(alpha: float) -> str:
    return f"{100 * (1 - alpha):.6g} %"


def footer_of(con: Connection, results: Sequence[NotebookResult], release: Release | None) -> str:
    """What was spent, what remains, and how far the numbers may be off, in one line."""
    if release is None:
        spent = "spent nothing: only what is released or declared was read"
    elif release.cost:
        spent = f"spent {release.guarantee}"
    elif release.guarantee.startswith("free"):  # put together from several releases, or from a part of one
        spent = f"spent nothing: {release.guarantee}"
    else:
        spent = f"spent nothing: free, release {release.id} has the answers ({release.guarantee})"
    parts = [spent[0].upper() + spent[1:], remaining_text(con), error_text(results)]
    if release is not None and release.cost:
        parts.append(f"release {release.id}")
    parts += () if release is None else release.notes
    return " · ".join(part for part in parts if part)


def remaining_text(con: Connection) -> str:
    """What is left of the budget."""
    state = con.budget
    at = "" if state.budget.delta is None else f" at delta {show(state.budget.delta)}"
    return f"remaining {state.measure} {show_grantable(state.remaining, 5)} of {state.total:.6g}{at}"


def error_text(results: Sequence[NotebookResult]) -> str:
    """The largest half-width of each private column; of many, the least and the largest of these."""
    found: list[tuple[float, str]] = []
    for result in results:
        rows = result.rows[:] if len(result) <= MOST_ROWS else ()  # of long ranges each row has its own, in its columns
        for at, (_, low, high) in error_columns(result).items():
            widths = [half_width(row[at], row[low], row[high]) for row in rows]
            known = [width for width in widths if width is not None]
            if known:
                name = clean(result.columns[at])
                found.append((max(known), name if len(results) == 1 else f"{clean(result.name)}.{name}"))
    if not found:
        return ""
    level = next((result.level for result in results if result.level), None)
    said = f"{level} error" if level else "error"
    if len(found) == 1:
        return f"{said} ±{figure(found[0][0])}"
    if len(found) <= 3:
        return f"{said} " + ", ".join(f"±{figure(width)} ({name})" for width, name in found)
    least, most = min(found), max(found)
    return f"{said} ±{figure(least[0])} ({least[1]}) to ±{figure(most[0])} ({most[1]})"


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
    """The text of a plan (``PlanText``) as tables."""
    said = plan_text(plan)
    numbers = ("numbers", "std error", "gain")
    kinds = ["DOUBLE" if name in numbers or name.endswith("within") else "VARCHAR" for name in said.head]
    more = paragraph(said.more, "dpsql-note") if said.more else ""
    table = _bare(Result(said.head, kinds, said.rows))
    return f'<div class="dpsql">{_labelled(said.facts)}{table}{more}{_labelled(said.words)}</div>'


def _labelled(lines: Sequence[tuple[str, str]]) -> str:
    """Labels and texts as a table, every text escaped."""
    rows = (f"<tr><th {_CELL}>{html.escape(a)}</th><td {_CELL}>{html.escape(b)}</td></tr>" for a, b in lines)
    return f'<table class="dpsql-plan"><tbody>{"".join(rows)}</tbody></table>'


def budget_html(state: BudgetState) -> str:
    """What is spent of a budget and what is left, account by account."""
    at = "" if state.budget.delta is None else f" at delta {show(state.budget.delta)}"
    rows = [(account.name, *state.figures(account)[:3]) for account in state.accounts]
    table = Result(("budget account", "total", "spent", "remaining"), ("VARCHAR",) * 4, rows)
    spent, left = show(Fraction(state.spent), 6), show_grantable(state.remaining, 6)
    line = f"{state.measure} {spent} spent of {state.total:.6g}{at}, {left} remaining"
    return f'<div class="dpsql">{_bare(table)}{paragraph(line, "dpsql-footer")}</div>'


def _bare(table: Result) -> str:
    """A table of texts that is to be shown whole, without the count of its rows."""
    return replace(grid_of(table, Look(max(len(table), 1), "columns")), note="").html()
