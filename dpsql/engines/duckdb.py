"""DuckDB: private tables in a database file, in Parquet or CSV files, or behind an open connection.

A file is attached READ_ONLY under a fixed alias, in an instance of our own, only while the
schema is read or the scan runs: a held attach would block other writers. That instance reads
nothing but the named files, loads no extension, sees no Python variable, knows UTC only, spills
into a directory of its own that only the user can read and that goes when the work is done, and
its settings are locked. It stays open, without the file and the directory, for the next look at the same files
within the same limits, unless one failed in it. Behind a user's open connection isolation is weaker: a cursor of it
works inside a read-only transaction, with three-part names, and with ``system.main`` as the one place where functions
and operators are looked for, so that no macro or temporary view of the user can shadow them; the settings of the
connection are left alone, so a large scan may spill where it does.

Preconditions of files: neighbours are the rows as read. In a CSV a quote that is never closed
swallows later lines. Text in Parquet must be valid UTF-8 before DuckDB 2 (``engines/parquet.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from dpsql.common.connection_pool import SpareInstances
from dpsql.common.quoting import identifier, string
from dpsql.engines import csv_files, parquet
from dpsql.engines.base import IntArray, Scan, TableSource
from dpsql.engines.files import located, state_of
from dpsql.engines.limits import UNLIMITED, Limits, check_outcome, ended_soon, run_within
from dpsql.engines.schemas import ALIAS, attach, close_in, reached, schema_and_table, schema_of
from dpsql.errors import InterfaceError, OperationalError, PolicyError, listed
from dpsql.workloads.expr.scan import Select, Table
from dpsql.workloads.expr.value_sql import select_text

SUPPORTED = ((2, 0), (3, 0))
_TEMPORARY = ("temp", "main")  # where a connection's own tables are
_numbers = itertools.count()
_REWRITING = frozenset({"top_n_window_elimination", "window_self_join", "partial_aggregate_pushdown"})
_MOST_SPARE = 4
_MOST_SCANS = 1000  # of a process at once
_PROCESS = uuid.uuid4().hex
_spare: SpareInstances[tuple[tuple[Path, ...], Limits, str]] = SpareInstances(
    _MOST_SPARE, lambda connection: ended_soon(connection.close)
)
"""By the files that each can reach, its limits and where it spills."""


def check_version() -> None:
    """Refuse a DuckDB outside the supported range: its semantics were not tested there."""
    version = tuple(int(part) for part in duckdb.__version__.split(".")[:2])
    if not SUPPORTED[0] <= version < SUPPORTED[1]:
        raise InterfaceError(f"DuckDB {duckdb.__version__} is not supported; install one from 2 up to, not with, 3")


@dataclass(frozen=True, eq=False)
class OpenEngine:
    """An engine while it is open: its scans run one after the other on one connection, over files settled at once."""

    connection: duckdb.DuckDBPyConnection
    catalog: str
    located: Mapping[str, TableSource]
    seconds: float | None

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        return {source.name: schema_of(self.connection, self.located[source.name], self.catalog) for source in sources}

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """The columns of a scan, by name."""
        scan = replace(scan, tables=tuple(self.located.get(table.name, table) for table in scan.tables))
        return _scan(self.connection, scan, self.catalog, self.seconds)

    @contextlib.contextmanager
    def materialized(self, scan: Scan) -> Iterator[Scan]:
        """A scan of the rows that ``scan`` gives, in a temporary table of this connection alone."""
        name = f"dpsql_kept_{next(_numbers)}"
        scan = replace(scan, tables=tuple(self.located.get(table.name, table) for table in scan.tables))
        _scan(self.connection, scan, self.catalog, self.seconds, into=_dotted((*_TEMPORARY, name)))
        try:
            source = TableSource(name, remote=(*_TEMPORARY, name))
            yield Scan(scan.name, (source,), Select((), Table(name)))
        finally:
            with contextlib.suppress(duckdb.Error):
                self.connection.execute(f"DROP TABLE IF EXISTS {_dotted((*_TEMPORARY, name))}")


@dataclass(frozen=True)
class FileEngine:
    """Tables of one DuckDB file (``database``, or None) and of Parquet and CSV files."""

    database: Path | None
    limits: Limits = UNLIMITED

    def file(self) -> Path | None:
        """The file of the database."""
        return self.database

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        resolved = [located(source) for source in sources]
        with self._open(resolved) as connection:
            return {source.name: schema_of(connection, source, ALIAS) for source in resolved}

    def files(self, sources: Sequence[TableSource]) -> list[Path]:
        """The files behind these sources by now, those that DuckDB keeps beside a database included."""
        return self._read([located(source) for source in sources])

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        with self.opened(scan.tables) as engine:
            return engine.scan(scan)

    @contextlib.contextmanager
    def opened(self, sources: Sequence[TableSource]) -> Iterator[OpenEngine]:
        """The engine for several scans of ``sources``, in one instance."""
        resolved = [located(source) for source in sources]
        with _one_state(resolved, self._read), self._open(resolved) as connection:
            yield OpenEngine(connection, ALIAS, {source.name: source for source in resolved}, self.limits.seconds)

    def _read(self, sources: Sequence[TableSource]) -> list[Path]:
        within = self.database is not None and any(source.path is None for source in sources)
        return [*_files(sources), *filter(Path.exists, reached(self.database if within else None, ()))]

    @contextlib.contextmanager
    def _open(self, sources: Sequence[TableSource]) -> Iterator[duckdb.DuckDBPyConnection]:
        with instance(self._database(sources), _files(sources), self.limits) as connection:
            yield connection

    def _database(self, sources: Sequence[TableSource]) -> Path | None:
        """The file of the database, where a source lies in it. Raises PolicyError where there is none."""
        check_version()
        within = [source.name for source in sources if source.path is None]
        if within and self.database is None:
            raise PolicyError(
                f"tables.{within[0]} has no source and no database was given; pass the database, or add source to the "
                "policy"
            )
        return self.database if within else None


@contextlib.contextmanager
def instance(
    database: Path | None, files: Sequence[Path] = (), limits: Limits = UNLIMITED
) -> Iterator[duckdb.DuckDBPyConnection]:
    """An instance that reaches these files alone; the database is attached under ``ALIAS``.

    Opening one takes ten times as long as describing a table or scanning a few rows. Raises OperationalError where the
    database cannot be attached, and where there is no place to spill, which a plan finds out before there is a charge.
    """
    reach = reached(database, files)
    with (
        _private_directory() as spill,
        _spare.taken((reach, limits, spill), lambda: _closed_in(_isolated(spill, limits), reach)) as connection,
    ):
        if database is not None:
            attach(connection, database)
        yield connection
        if database is not None:
            connection.execute(f"DETACH {ALIAS}")


@dataclass(frozen=True, eq=False)
class ConnectionEngine:
    """Tables behind a connection that the user holds open; its own memory limit counts."""

    connection: duckdb.DuckDBPyConnection
    limits: Limits = UNLIMITED

    def file(self) -> Path | None:
        """The file of the connection's current database; None for one in memory."""
        row = None
        with contextlib.suppress(duckdb.Error), self.connection.cursor() as cursor:
            row = cursor.execute(
                "SELECT path FROM system.main.duckdb_databases() WHERE database_name = system.main.current_database()"
            ).fetchone()
        return Path(str(row[0])) if row and row[0] else None

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        with self._open() as (cursor, catalog):
            return {source.name: schema_of(cursor, located(source), catalog) for source in sources}

    def files(self, sources: Sequence[TableSource]) -> list[Path]:
        """The files behind these sources by now; of tables in memory there is none."""
        database = self.file() if any(source.path is None for source in sources) else None
        return [*_files([located(source) for source in sources]), *filter(Path.exists, reached(database, ()))]

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        with self.opened(scan.tables) as engine:
            return engine.scan(scan)

    @contextlib.contextmanager
    def opened(self, sources: Sequence[TableSource]) -> Iterator[OpenEngine]:
        """The engine for several scans of ``sources``, in one transaction: all see the same rows."""
        with self._open() as (cursor, catalog):
            resolved = [located(source) for source in sources]
            with _one_state(resolved, _files):
                yield OpenEngine(cursor, catalog, {source.name: source for source in resolved}, self.limits.seconds)

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        check_version()
        closed, row = False, None
        try:
            cursor = self.connection.cursor()
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            # A scan as deep as ``passes_rehearsal`` let pass runs here, too, whatever the user set.
            cursor.execute("SET max_expression_depth = 1000")
            row = cursor.execute("SELECT system.main.current_database()").fetchone()
            # Functions and operators are looked for there alone, so that no macro of the user is called.
            cursor.execute("SET search_path = 'system.main'")
        except duckdb.Error:
            closed = True
        if closed:
            raise OperationalError("the DuckDB connection is closed or busy; pass an open connection")
        try:
            yield cursor, str(row[0]) if row else ""
        finally:
            ended_soon(lambda: _rolled_back(cursor))


def _files(sources: Sequence[TableSource]) -> list[Path]:
    return [path for source in sources for path in source.files]


@contextlib.contextmanager
def _one_state(sources: Sequence[TableSource], read: Callable[[Sequence[TableSource]], list[Path]]) -> Iterator[None]:
    """Hold what is scanned within to one state of its files: those that ``read`` names for ``sources``, as located.

    Every statement opens its files anew, and one that names a file twice opens it twice. What a unit can change is
    bounded for one state of all tables, so a mix of two states releases nothing. Raises OperationalError where a file,
    or the list of files, is not the same at the end, whatever became of the scans.
    """
    before, after = state_of(read(sources)), None
    failure: Exception | None = None
    try:
        yield
    except (OperationalError, duckdb.Error) as error:  # perhaps because of the change
        failure = error
    with contextlib.suppress(OperationalError):
        after = state_of(read([located(source) for source in sources]))
    if before is None or before != after:
        raise OperationalError(
            f"the files of {listed(sorted(source.name for source in sources))} changed while they were read, so "
            "nothing is released. What was charged stays charged; run again when nobody writes"
        )
    if failure is not None:
        raise failure


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    """A directory for what a scan cannot keep in memory: of mode 0700, removed with all that is in it.

    It has the first name that no other scan of this process uses meanwhile: an idle instance spills there.
    Where all of them are taken, as others may write in the folder, too, it has one that nobody can know.
    """
    made = ""
    with contextlib.suppress(OSError):
        names = (os.path.join(tempfile.gettempdir(), f"dpsql-{_PROCESS}-{n}") for n in range(_MOST_SCANS))
        made = next(filter(_is_made, names), "") or tempfile.mkdtemp(prefix="dpsql-")
    if not made:
        raise OperationalError("no temporary directory can be made for the scan; set TMPDIR to a folder you may write")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_made(path: str) -> bool:
    """Make a directory for this user alone; False where something of that name is there."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _rolled_back(cursor: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.Error):
        cursor.execute("ROLLBACK")
    cursor.close()


def _isolated(spill: str, limits: Limits) -> duckdb.DuckDBPyConnection:
    """An instance in memory that loads no extension and sees no Python variable."""
    memory = {} if limits.memory is None else {"memory_limit": limits.memory}
    return duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "python_scan_all_frames": "false",
            "enable_external_file_cache": "false",  # a file may have been replaced since
            "temp_directory": spill,
            **memory,
        },
    )


def _closed_in(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    """The instance, which from now on reaches these files and no other, no network, and knows UTC only."""
    know_utc_only(connection)
    rewrite_nothing(connection)
    close_in(connection, files)
    return connection


def know_utc_only(connection: duckdb.DuckDBPyConnection) -> None:
    """A time of a CSV that names no zone is in UTC, wherever the scan runs.

    Zones and calendars are settings of ICU, which DuckDB's wheels hold; without it DuckDB knows UTC only.
    """
    for name, value in (("TimeZone", "UTC"), ("Calendar", "gregorian")):
        with contextlib.suppress(duckdb.CatalogException):  # what DuckDB says of a setting that it does not know
            connection.execute(f"SET {name} = {string(value)}")


def rewrite_nothing(connection: duckdb.DuckDBPyConnection) -> None:
    """Switch off what rewrites truncations and windows by what it finds in statistics or by the number of rows.

    A rehearsal over a few rows never meets such a form, so a failure of it would come after the charge.
    """
    optimizers = connection.execute("SELECT name FROM system.main.duckdb_optimizers()").fetchall()
    switched_off = sorted({str(name) for (name,) in optimizers} & _REWRITING)
    connection.execute(f"SET disabled_optimizers = {string(','.join(switched_off))}")


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(map(identifier, parts))


def _reference(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> str:
    if source.remote is not None:
        return _dotted(source.remote)
    if source.path is not None:
        return parquet.reader(connection, source) if source.csv_types is None else csv_files.reader(source)
    return _dotted((catalog, *schema_and_table(source)))


def _scan(
    connection: duckdb.DuckDBPyConnection,
    scan: Scan,
    catalog: str,
    seconds: float | None = None,
    *,
    into: str = "",
) -> dict[str, IntArray]:
    """The columns of a scan; or nothing, where it goes ``into`` a temporary table."""
    references = {table.name: _reference(connection, table, catalog) for table in scan.tables}
    statement = select_text(scan.select, references)
    if into:
        statement = f"CREATE TEMPORARY TABLE {into} AS {statement}"
    # DuckDB's message may print a value: no exception of it reaches this frame.
    columns, outcome = run_within(connection, statement, seconds)
    tables = [table.name for table in scan.tables if table.remote is None]  # materialized rows have no file
    look_at = "memory, disk and the table's types"
    check_outcome(outcome, scan.name, seconds, inside="DuckDB", look_at=look_at, tables=tables)
    return {str(name): column for name, column in columns.items()}
