"""What an engine must do: name its private tables, read their schema, run one generated scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

BASE = "dpsql_base"
"""The alias of the table that a scan is over."""


@dataclass(frozen=True)
class TableSource:
    """A private table: a table of the database, or Parquet or CSV files of one schema.

    ``name`` is the policy's name; ``path`` the file of a table with a source, the folder of Parquet files, or with
    ``pattern`` what the names of its files match; None for a table of the database. ``csv_types`` gives the declared
    type of every declared CSV column, since types sniffed from private data would depend on it; ``declared`` those of
    columns that paths may add (``engines/files.py``). ``files`` are for the engine: what the path stands for.
    ``remote`` are the parts of the table's name in a catalog of the engine's own, such as Spark's.
    """

    name: str
    path: Path | None = None
    csv_types: Mapping[str, str] | None = None
    pattern: bool = False
    declared: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    remote: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Rows:
    """What a scan reads where that is more than a table as it is.

    ``text`` writes the FROM clause, given how to write each of ``tables`` by its name; it is dpsql's own
    text, and names no other table. ``name`` is for messages.
    """

    name: str
    tables: tuple[TableSource, ...]
    text: Callable[[Mapping[str, str]], str]


def statement_of(source: TableSource | Rows, select: str, group_by: int, references: Mapping[str, str]) -> str:
    """The statement of a scan in DuckDB's SQL; ``references`` says how each table is written, by its name."""
    rows = source.text(references) if isinstance(source, Rows) else f'{references[source.name]} AS "{BASE}"'
    grouping = "" if not group_by else " GROUP BY " + ", ".join(str(i + 1) for i in range(group_by))
    return f"SELECT {select} FROM {rows}{grouping}"  # noqa: S608


def tables_of(source: TableSource | Rows) -> tuple[TableSource, ...]:
    """The tables that a scan reads."""
    return source.tables if isinstance(source, Rows) else (source,)


class Engine(Protocol):
    """Reads schemas, and runs one statement that dpsql generated over private tables.

    Both raise OperationalError with fixed texts; nothing that the engine says of the data may
    reach a message, a log or an exception context.
    """

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        ...

    def scan(self, source: TableSource | Rows, select: str, group_by: int) -> dict[str, IntArray]:
        """Integer columns of ``SELECT <select> FROM <source> GROUP BY 1, ..., group_by``.

        A table stands in FROM under the alias ``BASE``; ``Rows`` write the clause themselves.
        """
        ...


@runtime_checkable
class Refusing(Protocol):
    """An engine of another dialect: it says before a charge what it cannot run.

    Statements are DuckDB's. An engine that translates them has ``check`` too, which raises NotSupportedError where a
    part has no meaning of its own there, and OperationalError where the table cannot be read. It looks at the
    statement, the settings and the schema alone, never at a row.
    """

    def check(self, source: TableSource | Rows, select: str, group_by: int) -> None:
        """Nothing, or the reason why ``scan`` of the same arguments would not be run."""
        ...
