"""Released tables as files of other formats: CSV, Parquet, a DuckDB database. DuckDB writes them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import duckdb

from dpsql.common.quoting import distinct_names, identifier, string
from dpsql.errors import OperationalError

from .columns import write_table
from .instances import CATALOG
from .result import Result
from .store import ReleaseStore

_FORMATS = {
    "csv": "FORMAT csv, HEADER true",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
    "json": "FORMAT json, ARRAY true",
}
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
}


def write_result(result: Result, kind: str, target: Path) -> None:
    """One table as "csv", "parquet" or "json". NULL is an empty field of a CSV file, an empty text ``""``.

    What there is to say of its numbers, as what limits cut, stands in a text file beside it: by_ward.notes.txt.
    Raises OperationalError where the file cannot be written.
    """
    with _memory() as connection:
        held = [
            (f"c{at}", "INTEGER" if column in ("NULL", '"NULL"') else column, result.column_at(at))
            for at, column in enumerate(result.types)
        ]
        write_table(connection, "held", held)
        listed = ", ".join(f"c{at} AS {identifier(name)}" for at, name in enumerate(distinct_names(result.columns)))
        _copied(connection, f"SELECT {listed} FROM held", kind, target)  # noqa: S608
    if result.notes and kind != "json":  # which no field of the table has room for
        write_text("\n".join(result.notes) + "\n", target.with_name(f"{target.stem}.notes.txt"))


def write_results(tables: Sequence[tuple[str, Result]], kind: str, folder: Path) -> None:
    """Named tables as files in ``folder``, which is made; as `write_result`."""
    _tried(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
    for name, table in tables:
        write_result(table, kind, folder / f"{file_name(name)}.{kind}")


def export_tables(store: ReleaseStore, release: int, names: Sequence[str], kind: str, folder: Path) -> list[Path]:
    """Results of a release as files of "csv" or "parquet" in ``folder``, which is made; of any size.

    Raises OperationalError where something cannot be read or written.
    """
    _tried(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
    made = []
    with _attached(store) as connection:
        for name in names:
            target = folder / f"{file_name(name)}.{kind}"
            _copied(connection, f"SELECT * FROM {CATALOG}.r{int(release)}.{identifier(name)}", kind, target)  # noqa: S608
            made.append(target)
    return made


def export_table(store: ReleaseStore, release: int, name: str, kind: str, target: Path) -> None:
    """One result of a release as a file of "csv" or "parquet", of any size. Raises OperationalError."""
    with _attached(store) as connection:
        _copied(connection, f"SELECT * FROM {CATALOG}.r{int(release)}.{identifier(name)}", kind, target)  # noqa: S608


def export_database(store: ReleaseStore, release: int, names: Sequence[str], target: Path) -> None:
    """A new DuckDB database with a table for each result, and ``dpsql_release``, a row that says what it is.

    Raises OperationalError where there is a file already, since it may be a database with other tables.
    """
    if target.exists():
        raise OperationalError(f"{target} exists already; name a new file, for a database is never replaced")

    def make(draft: Path) -> None:
        with _attached(store) as connection:
            connection.execute(f"ATTACH {string(str(draft))} AS exported")
            for name in names:
                connection.execute(
                    f"CREATE TABLE exported.main.{identifier(name)} AS "  # noqa: S608
                    f"SELECT * FROM {CATALOG}.r{int(release)}.{identifier(name)}"
                )
            connection.execute(
                "CREATE TABLE exported.main.dpsql_release AS "  # noqa: S608
                f"SELECT * FROM {CATALOG}.main.releases WHERE release_id = {int(release)}"
            )
            connection.execute("DETACH exported")

    _replaced(target, make)


def file_name(name: str) -> str:
    """A result's name as that of a file: what some system does not take is percent-encoded."""
    return quote(name, safe=" ()[]{}+-_=,@~") if name.strip(". ") else quote(name, safe="").replace(".", "%2E")


def write_text(text: str, target: Path) -> None:
    """``text`` as UTF-8. Raises OperationalError where the file cannot be written."""
    _replaced(target, lambda draft: draft.write_bytes(text.encode("utf-8", "backslashreplace")))


@contextmanager
def _memory() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    finally:
        connection.close()


@contextmanager
def _attached(store: ReleaseStore) -> Iterator[duckdb.DuckDBPyConnection]:
    if not store.exists():
        raise OperationalError(f"there is no releases file {str(store.path)!r}; release something first")
    with _memory() as connection:
        _tried(store.path, lambda: connection.execute(f"ATTACH {string(str(store.path))} AS {CATALOG} (READ_ONLY)"))
        yield connection


def _copied(connection: duckdb.DuckDBPyConnection, select: str, kind: str, target: Path) -> None:
    _replaced(target, lambda draft: connection.execute(f"COPY ({select}) TO {string(str(draft))} ({_FORMATS[kind]})"))


def _replaced(target: Path, write: Callable[[Path], object]) -> None:
    """Write a draft beside ``target`` and put it in its place: a reader sees the old file or the whole new one."""
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")

    def work() -> None:
        try:
            write(draft)
            os.replace(draft, target)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    _tried(target, work)


def _tried(path: Path, work: Callable[[], object]) -> None:
    failure = ""
    try:
        work()
    except OSError as error:
        failure = error.strerror or "not usable"
    except duckdb.Error as error:
        failure = str(error).strip().splitlines()[0].rstrip(". ")
    if failure:
        raise OperationalError(f"{path}: {failure}; choose another place")
