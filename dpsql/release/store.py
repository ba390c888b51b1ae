"""The releases database: a DuckDB file of public tables, derived from the ledger.

The file on disk is never changed in place. A writer copies it, adds to the copy and puts
the copy in its place with one rename, so that a reader always sees a whole file, an
attached connection keeps what it has seen, nobody who reads blocks a release, and a
writer that dies leaves the old file. The ledger has everything that is in it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import os
import re
import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import duckdb

from dpsql.errors import IntegrityError, OperationalError, SQLError, nearest
from dpsql.quoting import identifier, string

from .limits import MOST_ROWS, QUERY_SECONDS, Question, answer_within, fetched
from .lock import exclusive
from .names import RESERVED
from .record import ReleaseRecord
from .result import Result
from .writing import point_views, write_records

CATALOG = "dpsql_releases"
_LISTING = "SELECT release_id, released_at, names FROM dp.releases ORDER BY 1"
_REBUILD = "run 'dpsql releases rebuild'"
_WAIT = 10.0  # seconds that a writer waits for another one

# Nothing outside the file: no extensions, no Python variables as tables. External access
# goes off after the one ATTACH, the configuration is locked last.
_ISOLATED: dict[str, str | bool | int | float | list[str]] = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "python_scan_all_frames": "false",
    "temp_directory": "",
}
# What a question over the releases may take; there is no spilling, so memory is the bound of its work.
_READING: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "2GB"}
_LOCKED = "SET enable_external_access = false; SET TimeZone = 'UTC'; SET lock_configuration = true"
# Small blocks: sixty small tables then take 1 MB and 0.01 s instead of 16 MB and 0.05 s.
_WRITING: dict[str, str | bool | int | float | list[str]] = {"default_block_size": "16384", "threads": "1"}
_READS = frozenset(["SELECT", "FROM", "WITH", "VALUES", "TABLE", "DESCRIBE", "DESC", "SUMMARIZE", "SHOW"])
_SPACE = re.compile(r"(?:\s|\(|;|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_UNOPTIMIZED = "PRAGMA disable_optimizer; "  # there is nothing to gain on inserts of literals

_Parameters: TypeAlias = "Sequence[object] | Mapping[str, object] | None"
_Signature: TypeAlias = "tuple[int, int, int]"


class ReleaseStore:
    """Reads and writes the releases database at ``path``; holds nothing open in between.

    Privacy: post-processing. The file holds released values only and no private table, so
    neither its catalog nor its statistics tell more than the releases do.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(os.fspath(path)))
        self._listing: tuple[_Signature, list[tuple[Any, ...]]] | None = None
        self._attached: weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, _Signature] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"ReleaseStore({str(self.path)!r})"

    def exists(self) -> bool:
        """Whether there is a file; without one there are no releases or a rebuild is due."""
        return self.path.is_file()

    def write(self, *records: ReleaseRecord) -> None:
        """Add releases: schema ``r<id>``, views ``dp.<name>``, a row of ``dp.releases`` each.

        All or nothing. A release that is already there is left as it is, so repeating a
        write is harmless; one that is there under other names is written anew. Cost: a copy of
        the file and about 2 ms a table.
        Raises OperationalError where the file is damaged, held open for writing by another
        program, or its directory cannot be written; the ledger then still has the answers.
        """
        with exclusive(str(self.path), _WAIT), self._replacement() as (draft, connection):
            if self.exists():
                # The read-only attach proves that nobody is writing and holds them off.
                with self._reading():
                    self._copy_to(draft)
            with connection() as writer:
                write_records(writer, records)

    def point(self, record: ReleaseRecord) -> None:
        """Let the views of a release that is in the file select from it again, whatever came later.

        For a batch whose answers were used again: its names show its answers. A rebuild points
        every name at the newest release that has it. Raises as ``write``.
        """
        with exclusive(str(self.path), _WAIT), self._replacement() as (draft, connection):
            with self._reading():
                self._copy_to(draft)
            with connection() as writer:
                point_views(writer, record)

    def rebuild(self, records: Iterable[ReleaseRecord]) -> None:
        """Make the file anew from all releases of the ledger, in order of their ids.

        The old file, damaged or not, is replaced in one step when the new one is whole.
        Raises OperationalError where the directory cannot be written.
        """
        ordered = sorted(records, key=lambda record: record.release_id)
        with (
            exclusive(str(self.path), _WAIT),
            self._replacement() as (_, connection),
            connection() as writer,
        ):
            write_records(writer, ordered)

    def names(self) -> tuple[str, ...]:
        """Names of the views in schema dp, sorted, those of dpsql itself left out.

        Nothing where there is no file. Raises OperationalError where it cannot be read.
        """
        query = f"SELECT view_name FROM duckdb_views() WHERE database_name = '{CATALOG}' AND schema_name = 'dp'"  # noqa: S608
        return tuple(sorted(row[0] for row in self._rows(query) if row[0].lower() not in RESERVED))

    def shown(self) -> dict[int, tuple[str, ...]]:
        """The names of each release's results in the file, by id."""
        return {number: tuple(names) for number, _, names in self._listed()}

    def moments(self) -> dict[int, dt.datetime]:
        """When each release of the file was made, by id: with the ids, what tells one ledger from another."""
        return {number: moment for number, moment, _ in self._listed()}

    def table(self, release_id: int, name: str) -> Result:
        """One result of one release. Raises SQLError where there is none."""
        return self.sql(f"SELECT * FROM r{int(release_id)}.{identifier(name)}")  # noqa: S608

    def sql(self, text: str, parameters: _Parameters = None, *, seconds: float | None = QUERY_SECONDS) -> Result:
        """Run one SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE or SHOW over the releases.

        Names are looked up in schema dp first; ``r3.by_state`` is the table of release 3.
        The text runs in an instance of its own that has the file attached read-only, no
        access to other files, extensions or Python variables, 2 GB of memory, no spilling, and
        TimeZone UTC; it is stopped after ``seconds``, or left behind a second later (``answer_within``).
        Raises SQLError for any other kind or number of statements and for what DuckDB refuses, OperationalError where
        the file is missing or busy, where memory or time do not suffice, and for a result of more than a million rows.
        """
        if not self.exists():
            raise OperationalError(
                f"there is no releases file {str(self.path)!r}; release something first or {_REBUILD}"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SQLError("the text holds a lone surrogate, which is no character; remove it") from None
        return answer_within(lambda question: self._answered(text, parameters, question), seconds)

    def _answered(self, text: str, parameters: _Parameters, question: Question) -> Result:
        """``sql`` in an instance that this thread opens and closes."""
        with self._reading() as connection:
            question.on(connection)
            failure: str
            try:
                statements = connection.extract_statements(text)
                if len(statements) != 1:
                    raise SQLError(
                        f"one SELECT at a time runs over the releases; the text has {len(statements)} statements"
                    )
                # Two gates: DuckDB 1.x takes some PRAGMAs for SELECTs, and WITH may start an INSERT.
                word = _first_word(text)
                if statements[0].type != duckdb.StatementType.SELECT or word not in _READS:
                    raise SQLError(
                        f"a statement that starts with {word or 'no word'!r} does not run over the releases; "
                        "use SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE or SHOW"
                    )
                cursor = connection.execute(statements[0], parameters)
                described = cursor.description or []
                zoned = [d[0] for d in described if "WITH TIME ZONE" in str(d[1])]
                if zoned:
                    raise SQLError(f"releases know UTC only; cast {zoned[0]!r} to TIMESTAMP with ::TIMESTAMP")
                rows = fetched(cursor, MOST_ROWS, question)
                return Result([d[0] for d in described], [str(d[1]) for d in described], rows)
            except duckdb.InterruptException as error:
                if question.is_late():
                    raise
                raise OperationalError(f"the query over the releases was stopped: {_line(error)}") from error
            except duckdb.OutOfMemoryException as error:
                raise OperationalError(f"the query over the releases was stopped: {_line(error)}") from error
            except duckdb.Error as error:
                failure = _line(error)
                unknown = re.match(r"Catalog Error: Table with name (.*?) does not exist!", failure)
                if unknown:
                    query = "SELECT view_name FROM duckdb_views() WHERE schema_name = 'dp'"
                    known = [row[0] for row in connection.execute(query).fetchall()]
                    hint = nearest(unknown[1], known)
                    failure = f"no release is called {unknown[1]!r}; {hint}"
            raise SQLError(failure)

    def attach_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Attach the file as catalog ``dpsql_releases``, read-only, to the user's connection.

        Call it again after a write: an attached file that has been replaced since is
        attached anew, otherwise nothing happens. Nothing else of the instance changes.
        Raises IntegrityError where another database has that name, OperationalError where
        DuckDB cannot attach (no file, external access off, a transaction that still reads it).
        """
        signature = self._signature()
        if self._is_attached(connection):
            if self._attached.get(connection) == signature:
                return
            self._detach(connection)
        failure = ""
        try:
            connection.execute(f"ATTACH {string(str(self.path))} AS {CATALOG} (READ_ONLY)")
        except duckdb.Error as error:
            failure = _line(error)
        if failure:
            raise OperationalError(f"cannot attach the releases as {CATALOG}: {failure}")
        self._attached[connection] = signature

    def _is_attached(self, connection: duckdb.DuckDBPyConnection) -> bool:
        rows = connection.execute(
            "SELECT path, readonly FROM system.main.duckdb_databases() WHERE database_name = ?", [CATALOG]
        ).fetchall()
        # fetchall, for a result left open would stand in the way of the user's next query.
        if not rows:
            return False
        row = rows[0]
        if row[0] is None or os.path.realpath(row[0]) != str(self.path) or not row[1]:
            raise IntegrityError(f"the connection has another database called {CATALOG}; detach or rename it")
        return True

    def _detach(self, connection: duckdb.DuckDBPyConnection) -> None:
        failure = ""
        try:
            connection.execute(f"DETACH {CATALOG}")
        except duckdb.Error as error:
            failure = _line(error)
        if failure:
            raise OperationalError(f"cannot detach {CATALOG}: {failure}; leave it with USE or end the transaction")

    def _signature(self) -> _Signature:
        if not self.exists():
            raise OperationalError(f"there is no releases file {str(self.path)!r}; {_REBUILD}")
        return _state(self.path)

    def _listed(self) -> list[tuple[Any, ...]]:
        """(id, moment, names) of each release, read once for each state of the file that others wrote."""
        if not self.exists():
            return []
        state = self._signature()
        if self._listing is None or self._listing[0] != state:
            self._listing = state, self._rows(_LISTING)
        return self._listing[1]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        if not self.exists():
            return []
        with self._reading() as connection:
            return connection.execute(query).fetchall()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An isolated instance with the file attached read-only and schema dp first in its path."""
        connection = duckdb.connect(":memory:", config=_ISOLATED | _READING)
        try:
            failure = ""
            try:
                connection.execute(f"ATTACH {string(str(self.path))} AS {CATALOG} (READ_ONLY)")
                connection.execute(f"SET search_path = '{CATALOG}.dp'")
                connection.execute(_LOCKED)
            except duckdb.Error as error:
                failure = _line(error)
            if failure:
                raise OperationalError(
                    f"cannot read the releases in {str(self.path)!r}: {failure}; "
                    f"close the program that writes it, or {_REBUILD}"
                )
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _replacement(self) -> Iterator[tuple[Path, Any]]:
        """A draft beside the file, which takes its place unless an error comes up.

        Yields (its path, a context manager that opens it for writing).
        """
        self._sweep()
        draft = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.tmp")
        leftover = draft.with_name(draft.name + ".wal")
        listing: list[tuple[Any, ...]] = []

        @contextlib.contextmanager
        def opened() -> Iterator[duckdb.DuckDBPyConnection]:
            connection = duckdb.connect(str(draft), config=_ISOLATED | _WRITING)
            try:
                connection.execute(_UNOPTIMIZED + _LOCKED)
                yield connection
                listing[:] = connection.execute(_LISTING).fetchall()
            finally:
                connection.close()

        failure = ""
        try:
            yield draft, opened
            # A log beside the old file belongs to the old file; its content is in the draft.
            self.path.with_name(self.path.name + ".wal").unlink(missing_ok=True)
            state = _state(draft)  # what it keeps under its new name, whoever replaces it next
            os.replace(draft, self.path)
            self._listing = state, listing
        except (duckdb.Error, OSError) as error:
            failure = _line(error)
        finally:
            for path in (draft, leftover):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        if failure:
            raise OperationalError(f"cannot write the releases to {str(self.path)!r}: {failure}; then {_REBUILD}")

    def _sweep(self) -> None:
        """Remove the drafts of writers that died; a living one would hold the lock."""
        for path in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.tmp*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _copy_to(self, draft: Path) -> None:
        shutil.copy(self.path, draft)
        log = self.path.with_name(self.path.name + ".wal")
        if log.exists():
            shutil.copy(log, draft.with_name(draft.name + ".wal"))


def _state(path: Path) -> _Signature:
    """What tells one state of a file from another."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _first_word(text: str) -> str:
    """The first word in capitals, after comments and opening brackets."""
    start = _SPACE.match(text)
    found = re.compile(r"[A-Za-z]+").match(text, start.end() if start else 0)
    return found[0].upper() if found else ""


def _line(error: BaseException) -> str:
    """The first line of a message, without a full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__
