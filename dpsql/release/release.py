"""What a run released, as a user holds it: results by name, with their picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql.pictures import results_picture
from dpsql.release import RangeRows, RangeTable, ReleaseRecord, Result
from dpsql.release.by_result import no_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 6  # names of results in a line


@dataclass(frozen=True, repr=False)
class Release:
    """What a run released: ``rel["by_state"]`` is a result, ``rel.views`` their names; NoResultError for others.

    ``id`` numbers the release in the ledger; ``cost`` is what was charged, in the account's
    measure (epsilon, or mu squared): 0 where an earlier release already had the answers.
    """

    id: int
    cost: float
    guarantee: str
    record: ReleaseRecord

    def __repr__(self) -> str:
        shown = ", ".join(self.views[:_SHOWN]) + (f", ... {len(self)} in all" if len(self) > _SHOWN else "")
        return f"Release(id={self.id}, cost={self.cost:.9g}, guarantee={self.guarantee!r}, results: {shown})"

    @property
    def views(self) -> tuple[str, ...]:
        """The names under which the results are registered in schema dp."""
        return self.record.names

    def __getitem__(self, name: str) -> Result:
        for table in self.record.tables:
            if isinstance(name, str) and table.name.lower() == name.lower():
                if isinstance(table, RangeTable):
                    names, kinds, _ = zip(*table.shown, strict=True)
                    return Result.from_rows(names, kinds, RangeRows(table))
                return Result.from_columns(table.columns)
        raise no_result(f"release {self.id}", name, self.views)

    def plot(self, name: str | None = None, ax: Axes | None = None, *, value: str | None = None) -> Figure:
        """The result ``name`` as a picture with error bars; without a name the first six, a part of a figure each.

        ``ax`` and ``value`` as in ``Result.plot``. Raises InterfaceError where there is no number to draw, and without
        matplotlib.
        """
        if name is not None or ax is not None or len(self) == 1:
            return self[name or self.views[0]].plot(ax, value=value)
        return results_picture([(shown, self[shown]) for shown in self.views])

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.record.tables)
