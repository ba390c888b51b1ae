"""What an engine must do: name its private tables, read their schema, run one generated scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dpsql.workloads.expr.regions import Axis
from dpsql.workloads.expr.scan import Select

IntArray = npt.NDArray[np.int64]


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
class Scan:
    """A private scan: ``select`` over ``tables``, which it calls by their names; ``name`` is for messages.

    ``axes``: the axes that the scan tells rows apart by, each with the names of the columns that it looks at, for
    generated rows in its regions. They are those of ``total.VALUES`` where the scan has such rows, else of its first
    table.
    """

    name: str
    tables: tuple[TableSource, ...]
    select: Select
    axes: tuple[tuple[tuple[str, ...], Axis], ...] = field(default=(), repr=False, compare=False)


class Scanning(Protocol):
    """Runs scans that dpsql generated over private tables; how they fail: ``Engine``."""

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """The columns of a scan, by name: integers, or text as objects, None or masked where it is NULL."""
        ...


class Opened(Scanning, Protocol):
    """An engine while it is open: several scans of the same rows, as far as it can have them so."""

    def materialized(self, scan: Scan) -> AbstractContextManager[Scan]:
        """A scan that gives what ``scan`` gives, for scans over it: computed once where the engine can keep rows."""
        ...


class Engine(Scanning, Protocol):
    """Reads schemas, and runs scans that dpsql generated over private tables.

    Both raise OperationalError with fixed texts; nothing that the engine says of the data may
    reach a message, a log or an exception context.
    """

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        ...


class Opening(Engine, Protocol):
    """An engine of a user's tables, which runs several scans of the same rows."""

    def opened(self, sources: Sequence[TableSource]) -> AbstractContextManager[Opened]:
        """The engine for several scans of ``sources``, in one state as far as it can tell: else OperationalError."""
        ...


class Tables(Protocol):
    """The tables of a scan as they were found: their columns, and whether a scan of them would be run."""

    @property
    def schemas(self) -> Mapping[str, Mapping[str, str]]:
        """Column types by column name, for every table."""
        ...

    def check(self, scan: Scan) -> None:
        """Nothing, or the reason why ``scan`` of the same would not be run."""
        ...


@runtime_checkable
class Refusing(Protocol):
    """An engine of another dialect: it says before a charge what it cannot run.

    Functions and types are DuckDB's. An engine that has others has ``tables`` too, whose ``check`` raises
    NotSupportedError where a part has no equal there, and OperationalError where the table cannot be read. It looks at
    the scan, the settings and the schema alone, never at a row.
    """

    def tables(self, sources: Sequence[TableSource]) -> Tables:
        """The tables, whose schemas are read once for all checks. Raises as ``schemas``."""
        ...
