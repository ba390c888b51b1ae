"""What a run released, as a user holds it: results by name, with their picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql.arrays import Row
from dpsql.errors import DataError
from dpsql.pictures import results_picture
from dpsql.release import RangeRows, RangeTable, ReleaseRecord, ReleaseTable, Result
from dpsql.release.by_result import no_result

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 6  # names of results in a line


@dataclass(frozen=True, repr=False)
class Release:
    """What a run released: ``rel["by_state"]`` is a result, ``rel[0]`` the first; NoResultError for others.

    ``rel.views`` are their names. Where there is one, ``rel.df()`` and ``rel.fetchall()`` are its own.
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

    def __getitem__(self, name: str | int) -> Result:
        tables = self.record.tables
        if isinstance(name, int) and not isinstance(name, bool) and -len(tables) <= name < len(tables):
            return _result(tables[name])
        for table in tables:
            if isinstance(name, str) and table.name.lower() == name.lower():
                return _result(table)
        raise no_result(f"release {self.id}", name, self.views)

    @property
    def only(self) -> Result:
        """The result of a batch of one statement. DataError where there are several."""
        if len(self) != 1:
            listed = ", ".join(self.views[:_SHOWN]) + (", ..." if len(self) > _SHOWN else "")
            raise DataError(
                f"release {self.id} has {len(self)} results ({listed}); take one by its name, rel[{self.views[0]!r}], "
                "or by its place, rel[0]"
            )
        return self[0]

    def df(self) -> pandas.DataFrame:
        """The only result as a pandas frame. DataError where there are several."""
        return self.only.df()

    def fetchall(self) -> list[Row]:
        """The rows of the only result. DataError where there are several."""
        return self.only.fetchall()

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


def _result(table: ReleaseTable | RangeTable) -> Result:
    if isinstance(table, RangeTable):
        names, kinds, _ = zip(*table.shown, strict=True)
        return Result.from_rows(names, kinds, RangeRows(table))
    return Result.from_columns(table.columns)
