"""DuckDB: private tables in a database file, in Parquet or CSV files, or behind an open connection.

A file is attached READ_ONLY under a fixed alias, in an instance of our own, only while the
schema is read or the scan runs: a held attach would block other writers. That instance reads
nothing but the named files, loads no extension, sees no Python variable, knows UTC only, spills
into a directory of its own that only the user can read, and its settings are locked. One that has read
schemas alone is kept, with nothing attached, for the next work of the engine, as an instance takes 10 ms to open;
one that scanned rows goes with its directory when the work is done.

Behind a user's open connection isolation is weaker: a cursor of it works inside a read-only
transaction, with three-part names and ``system.main`` functions, which no macro or
temporary view of the user can shadow; its settings are left alone, so a large scan may spill
where that connection does.

Preconditions of files: neighbours are the rows as read. In a CSV a quote that is never closed
swallows later lines. Text in Parquet must be valid UTF-8 before DuckDB 2 (``engines/parquet.py``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import duckdb

from dpsql.engines import csv_files, parquet
from dpsql.engines.base import IntArray, Scan, TableSource
from dpsql.engines.files import located
from dpsql.engines.limits import UNLIMITED, Limits, check_outcome, ended_soon, run_within
from dpsql.errors import InterfaceError, OperationalError, PolicyError
from dpsql.quoting import identifier, string
from dpsql.workload.expr.value_sql import select_text

ALIAS = "dpsql_source"
_FORKED: list[
    object
] = []  # instances of the process that this one was forked from: closing them here would wait for ever
SUPPORTED = ((1, 5), (3, 0))
# Functions of generated scans; a user's macro of one of these names is refused.
USED_FUNCTIONS = (
    "+", "-", "*", "/", "&", ">>", "~~", "count_star", "sum", "round", "isnan", "list_extract", "list_value",
    "list_position", "hash", "row_number", "dense_rank", "min", "signbit",
    # Those of values (dpsql.workload.expr.values), which the front end admits.
    "//", "%", "||", "abs", "sign", "floor", "ceil", "trunc", "greatest", "least", "replace", "date_trunc", "date_diff",
    "year", "isoyear", "decade", "century", "millennium", "quarter", "month", "week", "yearweek", "day", "dayofyear",
    "dayofweek", "isodow", "hour", "minute", "second", "epoch_us", "make_timestamp", "to_months", "to_microseconds",
    "lower", "upper", "length", "strpos", "substring", "left", "right", "trim", "ltrim", "rtrim", "concat",
    "starts_with", "ends_with", "contains", "strlen", "regexp_full_match",
    "regexp_matches", "regexp_extract", "regexp_replace", "try_strptime", "make_date",
    "strftime", "monthname", "dayname", "last_day", "time_bucket", "date_sub", "timezone", "lpad", "rpad",
    "sqrt", "cbrt", "exp", "ln", "log", "log2", "log10", "pow", "isinf",
)  # fmt: skip


Schemas = Mapping[str, Mapping[str, str]]
"""Column types by table and column name."""


def check_version() -> None:
    """Refuse a DuckDB outside the supported range: its semantics were not tested there."""
    found = tuple(int(part) for part in duckdb.__version__.split(".")[:2])
    if not SUPPORTED[0] <= found < SUPPORTED[1]:
        raise InterfaceError(f"DuckDB {duckdb.__version__} is not supported; install one from 1.5 up to, not with, 3")


@dataclass(frozen=True, eq=False)
class OpenEngine:
    """An engine while it is open: its scans run one after the other on one connection, over files settled at once."""

    connection: duckdb.DuckDBPyConnection
    catalog: str
    located: Mapping[str, TableSource]
    seconds: float | None

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        return {source.name: _schema(self.connection, self.located[source.name], self.catalog) for source in sources}

    def scan(self, asked: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        held = replace(asked, tables=tuple(self.located[table.name] for table in asked.tables))
        return _scan(self.connection, held, self.catalog, self.seconds)


@dataclass(frozen=True, eq=False)
class _Instance:
    """An instance of our own, for a database and some files, in one process; settled, with nothing attached yet."""

    connection: duckdb.DuckDBPyConnection
    files: frozenset[Path]
    with_database: bool
    process: int
    remove: Callable[[], object]

    def serves(self, files: Sequence[Path], with_database: bool) -> bool:
        """Whether it may read all these, and was opened by this process: DuckDB survives no fork."""
        mine = self.process == os.getpid()
        return mine and self.files.issuperset(files) and (self.with_database or not with_database)

    def close(self) -> None:
        """Close it and remove the directory into which it spilled."""
        ended_soon(self.connection.close)
        self.remove()


@dataclass(frozen=True)
class FileEngine:
    """Tables of one DuckDB file (``database``, or None) and of Parquet and CSV files."""

    database: Path | None
    limits: Limits = UNLIMITED
    _kept: list[_Instance] = field(default_factory=list, init=False, repr=False, compare=False)

    def file(self) -> Path | None:
        """The file of the database."""
        return self.database

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        found = [located(source) for source in sources]
        with self._open(found, keep=True) as connection:
            return {source.name: _schema(connection, source, ALIAS) for source in found}

    def scan(self, asked: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        found = _located(asked)
        with self._open(found.tables) as connection:
            return _scan(connection, found, ALIAS, self.limits.seconds)

    @contextlib.contextmanager
    def opened(self, sources: Sequence[TableSource]) -> Iterator[OpenEngine]:
        """The engine for several scans of ``sources``, in one instance."""
        found = [located(source) for source in sources]
        with self._open(found) as connection:
            yield OpenEngine(connection, ALIAS, {source.name: source for source in found}, self.limits.seconds)

    @contextlib.contextmanager
    def _open(self, sources: Sequence[TableSource], keep: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        """An instance with the database attached, if a table is in it; ``keep`` it afterwards: no row is read."""
        check_version()
        files = [path for source in sources for path in source.files]
        needs_database = any(source.path is None for source in sources)
        if needs_database and self.database is None:
            name = next(source.name for source in sources if source.path is None)
            raise PolicyError(
                f"tables.{name} has no source and no database was given; pass the database, or add source to the policy"
            )
        held, well = self._instance(files, needs_database), False
        try:
            if needs_database and self.database is not None:
                _attach(held.connection, self.database)
            yield held.connection
            well = keep and not self._kept and (not needs_database or _detached(held.connection))
        finally:
            if well:
                self._kept.append(held)
            else:
                held.close()

    def _instance(self, files: Sequence[Path], needs_database: bool) -> _Instance:
        """One that was kept and serves, or a new one."""
        with contextlib.suppress(IndexError):
            kept = self._kept.pop()
            if kept.serves(files, needs_database):
                return kept
            if kept.process == os.getpid():
                kept.close()
            else:
                _FORKED.append(kept)
        return _isolated(files, self.database if needs_database else None, self.limits)


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
            return {source.name: _schema(cursor, located(source), catalog) for source in sources}

    def scan(self, asked: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        with self._open() as (cursor, catalog):
            return _scan(cursor, _located(asked), catalog, self.limits.seconds)

    @contextlib.contextmanager
    def opened(self, sources: Sequence[TableSource]) -> Iterator[OpenEngine]:
        """The engine for several scans of ``sources``, in one transaction: all see the same rows."""
        with self._open() as (cursor, catalog):
            held = {source.name: located(source) for source in sources}
            yield OpenEngine(cursor, catalog, held, self.limits.seconds)

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        check_version()
        closed = False
        try:
            cursor = self.connection.cursor()
            cursor.execute("BEGIN TRANSACTION READ ONLY")
        except duckdb.Error:
            closed = True
        if closed:
            raise OperationalError("the DuckDB connection is closed or busy; pass an open connection")
        try:
            row = cursor.execute("SELECT system.main.current_database()").fetchone()
            _refuse_macros(cursor)
            yield cursor, str(row[0]) if row else ""
        finally:
            ended_soon(lambda: _rolled_back(cursor))


def _private_directory() -> str:
    """A new directory of mode 0700 for what a scan cannot keep in memory."""
    with contextlib.suppress(OSError):
        return tempfile.mkdtemp(prefix="dpsql-")
    raise OperationalError("no temporary directory can be made for the scan; set TMPDIR to a folder you may write")


def _rolled_back(cursor: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.Error):
        cursor.execute("ROLLBACK")
    cursor.close()


def _isolated(files: Sequence[Path], database: Path | None, limits: Limits) -> _Instance:
    """An instance in memory that reaches the named files and the database, no other and no network."""
    spill = _private_directory()
    memory = {} if limits.memory is None else {"memory_limit": limits.memory}
    remove = partial(_removed, spill, os.getpid())
    try:
        connection = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "python_enable_replacements": "false",
                "python_scan_all_frames": "false",
                "enable_external_file_cache": "false",
                "temp_directory": spill,
                **memory,
            },
        )
        weakref.finalize(connection, remove)
        # What a writer has committed and not yet merged stands in a file beside the database.
        places = [] if database is None else [database, Path(f"{database}.wal")]
        listed = ", ".join(string(str(path)) for path in [*files, *places])
        if listed:
            connection.execute(f"SET allowed_paths = [{listed}]")
        _know_utc_only(connection)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        remove()
        raise
    return _Instance(connection, frozenset(files), database is not None, os.getpid(), remove)


def _removed(folder: str, process: int) -> None:
    """Remove a folder that this ``process`` made."""
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _detached(connection: duckdb.DuckDBPyConnection) -> bool:
    with contextlib.suppress(duckdb.Error):
        connection.execute(f"DETACH {ALIAS}")
        return True
    return False


def _know_utc_only(connection: duckdb.DuckDBPyConnection) -> None:
    """A time of a CSV that names no zone is in UTC, wherever the scan runs.

    Zones and calendars are settings of ICU, which DuckDB's wheels hold; without it DuckDB knows UTC only.
    """
    for name, value in (("TimeZone", "UTC"), ("Calendar", "gregorian")):
        with contextlib.suppress(duckdb.CatalogException):  # what DuckDB says of a setting that it does not know
            connection.execute(f"SET {name} = {string(value)}")


def _attach(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    if not database.is_file():
        raise OperationalError(f"{database} is not a file; give the path of the DuckDB database")
    said = ""
    try:
        connection.execute(f"ATTACH {string(str(database))} AS {ALIAS} (READ_ONLY)")
    except duckdb.Error as error:
        # The path itself may hold any word that is looked for below.
        said = str(error).replace(str(database), "")
    if not said:
        return
    if "lock" in said:
        raise OperationalError(f"{database} is open for writing in another process; close it there, then try again")
    if "already" in said or "same database file" in said or "handle" in said:
        raise OperationalError(
            f"{database} is open for writing in this process; pass that connection: "
            "dpsql.connect(connection, policy=..., ledger=...)"
        )
    raise OperationalError(f"{database} cannot be opened as a DuckDB database; check the file and DuckDB's version")


def _refuse_macros(cursor: duckdb.DuckDBPyConnection) -> None:
    names = ", ".join(string(name) for name in USED_FUNCTIONS)
    row = cursor.execute(
        "SELECT function_name FROM system.main.duckdb_functions() "  # noqa: S608
        f"WHERE NOT internal AND system.main.lower(function_name) IN ({names}) ORDER BY function_name LIMIT 1"
    ).fetchone()
    if row is not None:
        raise OperationalError(
            f"the database defines a macro named {row[0]}, which a scan would call instead of DuckDB's own; drop it"
        )


def runs_over_nulls(asked: Scan, schemas: Schemas) -> bool:
    """Whether DuckDB runs a scan over tables of one row of NULLs: one that it never runs must not be charged for.

    Depends on the scan and the schemas alone; no table of the user is opened.
    """
    names = {table.name: identifier(f"t{number}") for number, table in enumerate(asked.tables)}
    columns = tuple((names[table.name], tuple(schemas[table.name].items())) for table in asked.tables)
    try:
        _run_over_nulls(select_text(asked.select, names), columns)
    except duckdb.Error:
        return False
    return True


@lru_cache(256)  # what ran once runs again; an error is not remembered
def _run_over_nulls(statement: str, tables: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]) -> None:
    """Raises duckdb.Error where the statement does not run over tables of these columns with one row of NULLs each."""
    with contextlib.closing(duckdb.connect(":memory:", config={"threads": "1"})) as connection:
        for table, kinds in tables:
            columns = [f"{identifier(name)} {_known(connection, kind)}" for name, kind in kinds]
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
        _know_utc_only(connection)
        connection.execute(statement).fetchall()


def _known(connection: duckdb.DuckDBPyConnection, kind: str) -> str:
    """A type as it stands; text in place of one that only the user's database, or a file, knows."""
    try:
        connection.execute(f"SELECT CAST(NULL AS {kind})")
    except duckdb.Error:
        return "VARCHAR"
    return kind


def _located(asked: Scan) -> Scan:
    """A scan of the files that its sources stand for now."""
    return replace(asked, tables=tuple(map(located, asked.tables)))


def _reference(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> str:
    if source.path is not None:
        return parquet.reader(connection, source) if source.csv_types is None else csv_files.reader(source)
    schema, table = _schema_and_table(source)
    return f"{identifier(catalog)}.{identifier(schema)}.{identifier(table)}"


def _schema(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> dict[str, str]:
    if source.csv_types is not None and source.path is not None:
        return csv_files.schema(source)
    if source.path is None:
        _check_base_table(connection, source, catalog)
    found: dict[str, str] = {}
    failed = False
    try:
        if source.path is not None:
            found = parquet.schema(connection, source)
        else:
            reference = _reference(connection, source, catalog)
            rows = connection.execute(f"DESCRIBE SELECT * FROM {reference}").fetchall()  # noqa: S608
            found = {str(row[0]): str(row[1]) for row in rows}
    except (duckdb.Error, ValueError):
        failed = True
    if failed:
        where = f"the source {source.path}" if source.path else "the database"
        raise OperationalError(f"the schema of {source.name} cannot be read from {where}; check that it exists")
    computed = set() if source.path is not None else _generated(connection, source, catalog)
    return {name: kind for name, kind in found.items() if name not in computed}


def _generated(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> set[str]:
    """Generated columns, which no batch may use: their expressions run in the scan and may fail on a row.

    Before DuckDB 2 the catalog does not tell a generated column from one with a default, except by
    the table's text; there, a table with a generated column loses its columns with defaults too.
    """
    schema, table = _schema_and_table(source)
    rows = connection.execute(
        "SELECT column_name, is_generated, column_default IS NOT NULL FROM system.information_schema.columns "
        "WHERE table_catalog = ? AND system.main.lower(table_schema) = system.main.lower(?) "
        "AND system.main.lower(table_name) = system.main.lower(?)",
        [catalog, schema, table],
    ).fetchall()
    found = {str(name) for name, generated, _ in rows if generated == "ALWAYS"}
    doubtful = {str(name) for name, generated, has_default in rows if generated is None and has_default}
    if doubtful:
        written = connection.execute(
            "SELECT sql FROM system.main.duckdb_tables() WHERE database_name = ? "
            "AND system.main.lower(schema_name) = system.main.lower(?) "
            "AND system.main.lower(table_name) = system.main.lower(?)",
            [catalog, schema, table],
        ).fetchall()
        if any("GENERATED ALWAYS AS" in str(row[0]).upper() for row in written):
            found |= doubtful
    return found


def _schema_and_table(source: TableSource) -> tuple[str, str]:
    schema, _, table = source.name.rpartition(".")
    return schema or "main", table


def _check_base_table(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> None:
    """A table, not a view: a view may hold any SQL, and the policy says nothing of it."""
    schema, table = _schema_and_table(source)
    found = connection.execute(
        "SELECT table_type FROM system.information_schema.tables WHERE table_catalog = ? "
        "AND system.main.lower(table_schema) = system.main.lower(?) "
        "AND system.main.lower(table_name) = system.main.lower(?)",
        [catalog, schema, table],
    ).fetchone()
    if found is None:
        raise PolicyError(f"tables.{source.name}: the database has no such table; correct the policy's name for it")
    if found[0] != "BASE TABLE":
        raise PolicyError(f"tables.{source.name} is a {str(found[0]).lower()}; the policy must name a table")


def _scan(
    connection: duckdb.DuckDBPyConnection,
    asked: Scan,
    catalog: str,
    seconds: float | None = None,
) -> dict[str, IntArray]:
    references = {table.name: _reference(connection, table, catalog) for table in asked.tables}
    statement = select_text(asked.select, references)
    # DuckDB's message may print a value: no exception of it reaches this frame.
    found, outcome = run_within(connection, statement, seconds)
    check_outcome(outcome, asked.name, seconds, inside="DuckDB", look_at="memory, disk and the table's types")
    return {str(name): column for name, column in found.items()}
