"""A result of more rows than are listed, as a ``Result``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .range_table import RangeTable, check_few
from .result import Result
from .text_table import SHOWN_ROWS, html_table, text_table


class RangeResult(Result):
    """All ranges of a long line: ``fetchone`` and ``fetchmany`` work rows out, as do the first ones that are shown.

    Raises InterfaceError where more than a million rows are asked for at once, as by ``fetchall`` and ``df``.
    """

    __slots__ = ("_ranges",)

    def __init__(self, table: RangeTable) -> None:
        super().__init__([name for name, _, _ in table.shown], [kind for _, kind, _ in table.shown], [])
        object.__setattr__(self, "_ranges", table)

    def _of(self) -> RangeTable:
        found: RangeTable = object.__getattribute__(self, "_ranges")
        return found

    @property
    def _table(self) -> list[tuple[Any, ...]]:
        held = self._of()
        check_few(held, len(held))
        return held.rows(0, len(held))

    def __len__(self) -> int:
        return len(self._of())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeResult) and self._of() == other._of()

    __hash__ = None

    def column_at(self, at: int) -> Sequence[Any]:
        """Column number ``at``, from 0."""
        self._check_at(at)
        return [row[at] for row in self._table]

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next ``size`` rows, fewer at the end."""
        place: list[int] = object.__getattribute__(self, "_place")
        check_few(self._of(), size)
        rows = self._of().rows(place[0], place[0] + max(size, 0))
        place[0] += len(rows)
        return rows

    def __str__(self) -> str:
        return f"{text_table(self.columns, self.types, self._first())}\n{self._note()}"

    def _repr_html_(self) -> str:
        """The first rows for notebooks."""
        return f"{html_table(self.columns, self.types, self._first(), SHOWN_ROWS)}<p>{self._note()}</p>"

    def _first(self) -> list[tuple[Any, ...]]:
        return self._of().rows(0, 5)

    def _note(self) -> str:
        return f"the first of {len(self):,}, worked out when they are asked for: query dp.{self._of().name} for others"
