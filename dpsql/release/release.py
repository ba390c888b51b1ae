"""What a run released, as a user holds it: results by name, with their picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dpsql.common.arguments import taking, text, whole
from dpsql.common.arrays import Row
from dpsql.common.interrupted_calls import guards_calls
from dpsql.errors import DataError, InterfaceError, NoResultError, listed
from dpsql.release import ReleaseRecord, Result
from dpsql.release.by_result import no_result
from dpsql.release.cut import NOTHING, Losses
from dpsql.release.record import ResultTable
from dpsql.release.synthetic import SyntheticRows

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 6  # names of results in a line


class Redrawn(Protocol):
    """What draws from releases of one ledger by public generators."""

    def draws(self, release: int, name: str, count: int) -> Result: ...
    def synthetic_rows(self, release: int, n: int, seed: int) -> SyntheticRows: ...


@guards_calls
@dataclass(frozen=True, repr=False)
class Release:
    """What a run released: ``rel["by_state"]`` is a result, ``rel[0]`` the first; NoResultError for others.

    ``rel.views`` are their names. Where there is one, ``rel.df()`` and ``rel.fetchall()`` are its own.
    ``losses``: what limits cut of the rows that each result counts, which ``rel["by_state"].cut`` has, too.
    ``id`` numbers the release in the ledger; ``cost`` is what was charged, in the account's
    measure (epsilon, or mu squared): 0 where an earlier release already had the answers.
    """

    id: int
    cost: float
    guarantee: str
    record: ReleaseRecord
    replicates: Redrawn | None = field(default=None, compare=False)
    losses: Mapping[str, Losses] = field(default_factory=dict, compare=False)

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
            return self._with_losses(tables[name])
        for table in tables:
            if isinstance(name, str) and table.name.lower() == name.lower():
                return self._with_losses(table)
        if isinstance(name, int) and not isinstance(name, bool):
            raise NoResultError(f"release {self.id} has no result number {name}; from 0 they are: {listed(self.views)}")
        raise no_result(f"release {self.id}", name, self.views)

    def _with_losses(self, table: ResultTable) -> Result:
        return table.result().with_losses(self.losses.get(table.name, NOTHING))

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits cut of the rows that its results count, or that it was not measured: a sentence a table."""
        return tuple(dict.fromkeys(note for losses in self.losses.values() for note in losses.notes))

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
        from dpsql.release.pictures import noted, results_picture

        return noted(results_picture([(shown, self[shown]) for shown in self.views]), self.notes)

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
        return self._redrawn().draws(self.id, name, count)

    @taking(n=whole(0, 10**7), seed=whole(0, 2**63 - 1))
    def synthetic_rows(self, n: int, *, seed: int = 0) -> SyntheticRows:
        """``n`` made-up rows whose counts agree with those that this release shows. Free: no private row is read.

        For releases of counts by groups of several columns, above all of ``dp_marginals``, however they were measured.
        The same rows every time, others for another ``seed``. ``.only`` is the table, ``.sql`` asks it anything,
        ``.write`` makes a Parquet file, ``.agreement`` shows how far each released table of counts is from that of the
        rows. What the release does not count is made up: columns that it has in no table together are as independent as
        its other counts let them be (docs/synthetic.md). Raises DataError where the release shows no such table,
        InterfaceError for a release that no connection gave.
        """
        return self._redrawn().synthetic_rows(self.id, n, seed)

    def _redrawn(self) -> Redrawn:
        if self.replicates is None:
            raise InterfaceError("this release knows no ledger; take the one that con.run(...) returns")
        return self.replicates

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.record.tables)
