"""What a run released, as a user holds it: results by name, with their picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpsql.arguments import taking, text, whole
from dpsql.arrays import Row
from dpsql.errors import DataError, InterfaceError, NoResultError, listed
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
    replicates: Callable[[int, str, int], Result] | None = field(default=None, compare=False)

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
        if isinstance(name, int) and not isinstance(name, bool):
            raise NoResultError(f"release {self.id} has no result number {name}; from 0 they are: {listed(self.views)}")
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

    @taking(name=text(), count=whole(1, 10**9))
    def draws(self, name: str, count: int = 500) -> Result:
        """Replicates of the result ``name``: what it might as well have shown, its noise drawn again. Free.

        ``count`` of them, one below the other; the column ``replicate`` numbers them from 1. The noise is drawn from
        the exact joint law of the release's noise by a public generator, so that the same draws come every time, and
        those of several results, and of releases that rest on the same measurements, belong together. A number that is
        computed from each replicate varies as the same number of the release varies about the truth. Raises
        NoResultError, InterfaceError for a release that no connection gave, NotSupportedError where the batch was
        too large or was measured adaptively.
        """
        if self.replicates is None:
            raise InterfaceError("this release knows no ledger; take the one that con.run(...) returns")
        return self.replicates(self.id, name, count)

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.record.tables)


def _result(table: ReleaseTable | RangeTable) -> Result:
    if isinstance(table, RangeTable):
        names, kinds, _ = zip(*table.shown, strict=True)
        return Result.from_rows(names, kinds, RangeRows(table))
    return Result.from_columns(table.columns)
