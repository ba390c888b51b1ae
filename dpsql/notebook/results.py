"""What a cell gives: its results by index and by name, and one line that says what it cost and how exact it is."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from dpsql.driver.connection import Connection
from dpsql.driver.result_sets import Row
from dpsql.errors import InterfaceError, nearest
from dpsql.notebook.plain import plain
from dpsql.notebook.tables import Look, error_columns, grid_of, half_width
from dpsql.planning.text import figure
from dpsql.privacy.amounts import show, show_grantable
from dpsql.release import Result
from dpsql.release.limits import MOST_ROWS
from dpsql.release.release import Release
from dpsql.release.text_table import clean, paragraph

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_ALPHA = 0.05


class NotebookResult(Result):
    """One result of a cell: a ``Result`` with its ``name``, shown as the notebook's settings say.

    ``df()``, ``arrow()``, ``fetchall()`` and ``column()`` as any ``Result``; ``plot()`` draws it. ``level`` is the
    confidence of its intervals as text, such as "95 %"; None where nothing says so.
    """

    __slots__ = ("level", "look", "name")

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

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


class Results(Sequence[NotebookResult]):
    """The results of one cell: ``r[0]``, ``r["by_state"]``, ``r.by_name``, iteration in the order of the batch.

    ``release`` is what they were answered from, None for queries over released views; ``cost`` is what was charged, 0
    where it was free; ``footer`` the line shown below. Where there is one result, ``df()``, ``arrow()``, ``plot()``
    and ``fetchall()`` are its own.
    """

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

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


class Note:
    """One line for people, as text and as HTML."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        if "\n" in self.text:  # a listing: its own line breaks
            return {"text/plain": self.text, "text/html": f'<pre class="dpsql">{html.escape(self.text)}</pre>'}
        return {
            "text/plain": self.text,
            "text/html": f'<div class="dpsql">{paragraph(self.text, "dpsql-footer")}</div>',
        }


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
