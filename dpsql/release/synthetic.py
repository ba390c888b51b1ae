"""Synthetic rows as a user holds them: made-up tables, SQL over them, files of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from dpsql.common.arguments import path, taking, text
from dpsql.common.arrays import Row
from dpsql.errors import DataError, NoResultError, SQLError, listed

from .columns import write_table
from .files import write_result, write_results
from .instances import ISOLATED
from .limits import MOST_ROWS, QUERY_SECONDS, Question, answer_within, fetched
from .reading import LOCKED, check_text, first_line
from .result import Result

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False, eq=False)
class SyntheticRows:
    """Made-up tables by name, ``rows["visits"]``, and how far their counts are from the released ones.

    ``agreement`` has a row for each released table of counts: ``l1``, the sum of the distances of its counts from those
    of the rows (scaled to the released number of rows), and ``noise``, what the noise of the release alone is expected
    to make of such a sum. ``left_out`` says which results were not used and why.
    """

    tables: Mapping[str, Result]
    agreement: Result
    left_out: tuple[str, ...] = ()
    _open: list[duckdb.DuckDBPyConnection] = field(default_factory=list)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} ({len(table):,} rows)" for name, table in self.tables.items())
        return f"SyntheticRows({shown})\n{self.agreement}"

    def __getitem__(self, name: str) -> Result:
        for known, table in self.tables.items():
            if isinstance(name, str) and known.lower() == name.lower():
                return table
        raise NoResultError(f"no synthetic table is called {name!r}; there are {listed(tuple(self.tables))}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    @property
    def only(self) -> Result:
        """The table, where there is one. DataError where there are several."""
        if len(self) != 1:
            raise DataError(f"there are {len(self)} synthetic tables ({listed(tuple(self.tables))}); take one by name")
        return next(iter(self.tables.values()))

    def df(self) -> pandas.DataFrame:
        """The only table as a pandas frame. DataError where there are several."""
        return self.only.df()

    def fetchall(self) -> list[Row]:
        """The rows of the only table. DataError where there are several."""
        return self.only.fetchall()

    @taking(query=text())
    def sql(self, query: str) -> Result:
        """One SELECT over the synthetic tables, under the names of the private ones. Free.

        Raises SQLError for anything else, OperationalError where it takes too long or its answer is too large.
        """
        check_text(query)
        return answer_within(lambda question: self._answered(query, question), QUERY_SECONDS)

    @taking(place=path())
    def write(self, place: str | Path) -> None:
        """A Parquet file of the only table, or a folder of one for each, where ``place`` has no suffix .parquet.

        Raises DataError for one file of several tables, OperationalError where it cannot be written.
        """
        target = Path(place)
        if target.suffix.lower() == ".parquet":
            write_result(self.only, "parquet", target)
        else:
            write_results(list(self.tables.items()), "parquet", target)

    def _answered(self, query: str, question: Question) -> Result:
        if not self._open:
            made = duckdb.connect(":memory:", config=ISOLATED)
            for name, table in self.tables.items():
                write_table(made, name, table.triples())
            made.execute(LOCKED)
            self._open.append(made)
        cursor = self._open[0].cursor()
        question.on(cursor)
        try:
            statements = cursor.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise SQLError("one SELECT at a time runs over synthetic rows")
            found = cursor.execute(statements[0])
            described = found.description or []
            rows = fetched(found, MOST_ROWS, question)
            return Result([d[0] for d in described], [str(d[1]) for d in described], rows)
        except duckdb.InterruptException:
            raise
        except duckdb.Error as error:
            failure = first_line(error)
        raise SQLError(failure)
