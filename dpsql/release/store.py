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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import duckdb

from dpsql.common.arrays import Row
from dpsql.common.quoting import identifier, string
from dpsql.errors import IntegrityError, OperationalError

from .instances import CATALOG, attached
from .limits import QUERY_SECONDS, Question, answer_within
from .lock import exclusive
from .names import RESERVED
from .reading import (
    REBUILD,
    Parameters,
    Signature,
    ask,
    check_text,
    first_line,
    isolated,
    state_of,
    unreadable,
)
from .record import ReleaseRecord
from .result import Result
from .writing import point_views, series_of, write_records

_LISTING = "SELECT release_id, released_at, names FROM dp.releases ORDER BY 1"
_SHOWN = re.compile(r"FROM (?:dpsql_releases\.)?r([1-9][0-9]*)\.")
_WAIT = 10.0  # seconds that a writer waits for another one


class ReleaseStore:
    """Reads and writes the releases database at ``path``; holds nothing open in between.

    ``private``: the file is one account's, and no other user of the machine may read it, its drafts or its lock.

    Privacy: post-processing. The file holds released values only and no private table, so
    neither its catalog nor its statistics tell more than the releases do.
    """

    def __init__(self, path: str | os.PathLike[str], *, private: bool = False) -> None:
        self.path = Path(os.path.realpath(os.fspath(path)))
        self._private = private
        if private:
            with contextlib.suppress(OSError):  # versions before left the mode to the umask
                self.path.chmod(0o600)
        self._listing: tuple[Signature, list[Row]] | None = None
        self._views: tuple[Signature, tuple[dict[str, tuple[int, str]], dict[str, str]]] | None = None

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
        with self._alone(), self._replacement() as (draft, connection):
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
        with self._alone(), self._replacement() as (draft, connection):
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
            self._alone(),
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

    def shown_by(self) -> dict[str, tuple[int, str]]:
        """(release, result) that each view of schema dp selects from, by its name in lower case."""
        return dict(self._shown()[0])

    def series(self) -> dict[str, str]:
        """The SELECT behind each view of releases of several periods, by its name in lower case."""
        return dict(self._shown()[1])

    def _shown(self) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
        """``shown_by`` and ``series``, read together, and again once the file is another one."""
        state = state_of(self.path)
        if state is None:
            return {}, {}
        known = self._views
        if known is None or known[0] != state:
            query = (
                f"SELECT view_name, sql FROM duckdb_views() WHERE database_name = '{CATALOG}' AND schema_name = 'dp'"  # noqa: S608
            )
            with self._reading() as connection:
                texts = [(str(name).lower(), _SHOWN.search(sql)) for name, sql in connection.execute(query).fetchall()]
                shown = {name: (int(found[1]), name) for name, found in texts if found is not None}
                known = self._views = state, (shown, series_of(connection, CATALOG))
        return known[1]

    def moments(self) -> dict[int, dt.datetime]:
        """When each release of the file was made, by id: with the ids, what tells one ledger from another."""
        return {number: moment for number, moment, _ in self._listed()}

    def spending(self) -> list[tuple[int, str, float | None]]:
        """(id, account, what the account had spent by then, in its measure) of each release of the file."""
        return [tuple(row) for row in self._rows("SELECT release_id, purse, purse_spent FROM dp.releases")]

    def set_aside(self) -> Path:
        """Move the file to another name beside it, and return that. OperationalError."""
        at = 1
        while (kept := self.path.with_name(f"{self.path.stem}.before-restore-{at}{self.path.suffix}")).exists():
            at += 1
        try:
            os.rename(self.path, kept)
        except OSError as error:
            raise OperationalError(
                f"cannot move {str(self.path)!r} to {kept.name}: {first_line(error)}; move it yourself"
            ) from None
        return kept

    def table(self, release_id: int, name: str) -> Result:
        """One result of one release. Raises SQLError where there is none."""
        return self.sql(f"SELECT * FROM r{int(release_id)}.{identifier(name)}")  # noqa: S608

    def sql(
        self,
        text: str,
        parameters: Parameters = None,
        *,
        seconds: float | None = QUERY_SECONDS,
        unnamed: Mapping[str, Mapping[str, int]] | None = None,
    ) -> Result:
        """Run one SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE or SHOW over the releases.

        Names are looked up in schema dp first; ``r3.by_state`` is the table of release 3. ``unnamed``: for unnamed
        results (q1, ...) the releases that the asker means by them, by label; one that may mean several is refused.
        The text runs in a connection of its own that has the file attached read-only, in an instance without
        access to other files, extensions or Python variables, with 2 GB of memory, no spilling, and
        TimeZone UTC; it is stopped after ``seconds``, or left behind a second later (``answer_within``).
        Raises SQLError for any other kind or number of statements and for what DuckDB refuses, OperationalError where
        the file is missing or busy, where memory or time do not suffice, and for a result of more than a million rows.
        """
        if not self.exists():
            raise OperationalError(
                f"there is no releases file {str(self.path)!r}; release something first or {REBUILD}"
            )
        check_text(text)
        return answer_within(lambda question: self._answered(text, parameters, question, unnamed or {}), seconds)

    def _answered(
        self, text: str, parameters: Parameters, question: Question, unnamed: Mapping[str, Mapping[str, int]]
    ) -> Result:
        """``sql`` in an instance that this thread alone uses meanwhile."""
        with isolated(self.path) as connection:
            return ask(connection, text, parameters, question, unnamed)

    def attach_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Attach the file as catalog ``dpsql_releases``, read-only, to the DuckDB instance of the user's connection.

        Call it again after a write: where the file was replaced since, the new one takes the place of the old one in
        one step, so that a query of another thread reads one of both, and an open transaction or result goes on with
        what it began with. Whatever thread uses ``connection`` meanwhile: this works on a cursor of its own. Raises
        IntegrityError where another database has that name, OperationalError where DuckDB cannot attach (no file,
        external access off, a closed connection).
        """
        failure = ""
        try:
            with connection.cursor() as cursor:
                if not self._shows(cursor, self._signature()):
                    self._attach(cursor)
        except duckdb.Error as error:
            failure = first_line(error)
        if failure:
            raise OperationalError(f"cannot attach the releases as {CATALOG}: {failure}")

    def _shows(self, cursor: duckdb.DuckDBPyConnection, state: Signature) -> bool:
        """Whether the file is attached as it is in that state; IntegrityError where something else is."""
        rows = cursor.execute(
            "SELECT path, readonly FROM system.main.duckdb_databases() WHERE database_name = ?", [CATALOG]
        ).fetchall()
        if not rows:
            return False
        place, read_only = rows[0]
        at = Path(os.path.realpath(place or ""))
        ours = at == self.path or (at.parent == self.path.parent and at.name.startswith(self._link_of("")))
        if not place or not ours or not read_only:
            raise IntegrityError(f"the connection has another database called {CATALOG}; detach or rename it")
        return at.name.startswith(self._link_of(state))

    def _attach(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Attach the file as it is now, one thread or process after the other; nothing where another one just did.

        DuckDB leaves a path that it has attached as it was, so the file is attached by a hard link whose name tells its
        state, and which is not needed once the file is open. Where a folder may only be read, or has no links,
        the file is detached before, and a query in between does not see it.
        """
        with contextlib.ExitStack() as until_attached:
            how, place = f"DETACH DATABASE IF EXISTS {CATALOG}; ATTACH OR REPLACE", self.path
            with contextlib.suppress(OSError, OperationalError):
                until_attached.enter_context(exclusive(str(self.path), _WAIT))
                state = self._signature()
                if self._shows(cursor, state):
                    return
                link = self.path.with_name(f"{self._link_of(state)}{uuid.uuid4().hex}.tmp")
                until_attached.callback(_remove, link)
                os.link(self.path, link)
                how, place = "ATTACH OR REPLACE", link
            cursor.execute(f"{how} {string(str(place))} AS {CATALOG} (READ_ONLY)")

    def _link_of(self, state: Signature | str) -> str:
        """How the names of links to the file begin that were made of it in a state, or in any ("")."""
        return f".{self.path.name}." + (state if isinstance(state, str) else "-".join(map(str, state)) + ".")

    def _signature(self) -> Signature:
        state = state_of(self.path)
        if state is None:
            raise OperationalError(f"there is no releases file {str(self.path)!r}; {REBUILD}")
        return state

    def _listed(self) -> list[Row]:
        """(id, moment, names) of each release, read once for each state of the file that others wrote."""
        state = state_of(self.path)
        if state is None:
            return []
        listing = self._listing
        if listing is None or listing[0] != state:
            self._listing = listing = state, self._rows(_LISTING)
        return listing[1]

    def _rows(self, query: str) -> list[Row]:
        if not self.exists():
            return []
        with self._reading() as connection:
            return connection.execute(query).fetchall()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The file, for what dpsql itself asks of it. Raises OperationalError where it cannot be read."""
        failure = ""
        with contextlib.ExitStack() as held:
            try:
                connection = held.enter_context(attached(self.path))
            except duckdb.Error as error:
                failure = first_line(error)
            if not failure:
                yield connection
        if failure:
            raise unreadable(self.path, failure)

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        return exclusive(str(self.path), _WAIT, 0o600 if self._private else 0o666)

    @contextlib.contextmanager
    def _replacement(
        self,
    ) -> Iterator[tuple[Path, Callable[[], contextlib.AbstractContextManager[duckdb.DuckDBPyConnection]]]]:
        """A draft beside the file, which takes its place unless an error comes up.

        Yields (its path, a context manager that opens it for writing).
        """
        self._sweep()
        draft = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.tmp")
        empty = draft.with_name(draft.name + ".empty")
        listing: list[Row] = []

        @contextlib.contextmanager
        def opened() -> Iterator[duckdb.DuckDBPyConnection]:
            if self._private and not draft.exists():
                with attached(empty, writing=True):  # DuckDB leaves the mode of a new file to the umask
                    pass
                _copy_private(empty, draft)
            with attached(draft, writing=True) as connection:
                yield connection
                listing[:] = connection.execute(_LISTING).fetchall()

        failure = ""
        try:
            yield draft, opened
            # A log beside the old file belongs to the old file; its content is in the draft.
            self.path.with_name(self.path.name + ".wal").unlink(missing_ok=True)
            with draft.open("rb+") as whole:
                os.fsync(whole.fileno())  # what has the name is whole, also after a loss of power
            if self.exists():
                shutil.copymode(self.path, draft)
            state = state_of(draft)  # what it keeps under its new name, whoever replaces it next
            os.replace(draft, self.path)
            self._listing = None if state is None else (state, listing)
        except (duckdb.Error, OSError) as error:
            failure = first_line(error)
        finally:
            for path in (draft, draft.with_name(draft.name + ".wal"), empty):
                _remove(path)
        if failure:
            raise OperationalError(f"cannot write the releases to {str(self.path)!r}: {failure}; then {REBUILD}")

    def _sweep(self) -> None:
        """Remove the drafts of writers that died; a living one would hold the lock."""
        for path in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.tmp*"):
            _remove(path)

    def _copy_to(self, draft: Path) -> None:
        copy = _copy_private if self._private else shutil.copy
        copy(self.path, draft)
        log = self.path.with_name(self.path.name + ".wal")
        if log.exists():
            copy(log, draft.with_name(draft.name + ".wal"))


def _remove(path: Path) -> None:
    """Remove a file that is needed no longer, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def _copy_private(source: Path, target: Path) -> None:
    """Copy a file to a new one of mode 0600, which never had another mode."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    shutil.copyfile(source, target)
