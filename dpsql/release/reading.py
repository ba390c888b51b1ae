"""Questions over the releases: an isolated DuckDB with the file attached read-only, and what may be asked of it.

What q1, q2, ... mean to one who ran batches: the unnamed results of these, whatever others released since.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import duckdb

from dpsql.common.quoting import identifier, string
from dpsql.errors import OperationalError, RequestError, SQLError, nearest
from dpsql.free_sql.bounds import check
from dpsql.free_sql.parse import check_length
from dpsql.free_sql.tables import Bounds, table_in
from dpsql.release.instances import CATALOG, FOR_USER, ISOLATED, attached
from dpsql.release.limits import MOST_ROWS, QUERY_SECONDS, Question, answer_within, fetched
from dpsql.release.names import is_unnamed, which
from dpsql.release.result import Result


def show_unnamed(
    connection: duckdb.DuckDBPyConnection, unnamed: Mapping[str, Mapping[str, int]], catalog: str
) -> dict[str, str]:
    """Make temporary views, which are looked up first: each name of ``unnamed`` is the result of its release.

    ``unnamed``: by name and label the release that is meant. Returns what is refused and why: a name under several
    labels, and one whose result was dropped or renamed since. Such a name fails, and is not that of somebody else.
    """
    refused = {}
    for name, by_label in unnamed.items():
        releases = set(by_label.values())
        said = which(name, ((release, label) for label, release in by_label.items()))
        if len(releases) == 1:
            (release,) = releases
            said = f"{name} of release {release} is no longer among the releases; run its batch again, which is free"
            shown = f"SELECT * FROM {catalog}.r{release}.{identifier(name)}"  # noqa: S608
            try:
                connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS {shown}")
            except duckdb.CatalogException:
                pass
            else:
                continue
        refused[name] = said
        failing = f"SELECT NULL AS {identifier(name)} WHERE CAST(error({string(said)}) AS BOOLEAN)"
        connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS {failing}")
    return refused


def is_mentioned(text: str, name: str) -> bool:
    """Whether a text has ``name`` without a schema before it."""
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", text.replace('"', ""), re.IGNORECASE) is not None


REBUILD = "run 'dpsql releases rebuild'"

# After the one ATTACH; the configuration is locked last.
LOCKED = "SET enable_external_access = false; SET TimeZone = 'UTC'; SET lock_configuration = true"
_SCHEMAS = re.compile(r"dp|r[1-9][0-9]*|dpsql_releases")
_LISTS = frozenset({("information_schema", "tables"), ("information_schema", "columns")})
_READS = frozenset(
    [
        *("SELECT", "FROM", "WITH", "PIVOT", "UNPIVOT", "VALUES", "TABLE", "DESCRIBE", "DESC", "SUMMARIZE", "SHOW"),
    ]
)
_SPACE = re.compile(r"(?:\s|\ufeff|\(|;|--[^\n]*|/\*.*?\*/)*", re.DOTALL)

Parameters: TypeAlias = "Sequence[object] | Mapping[str, object] | None"
Signature: TypeAlias = "tuple[int, int, int]"


@contextlib.contextmanager
def isolated(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own with the file attached read-only and schema dp first in its path.

    What it makes is temporary and goes with it. Raises OperationalError where the file cannot be read.
    """
    failure = ""
    with contextlib.ExitStack() as held:
        try:
            connection = held.enter_context(held.enter_context(attached(path, for_user=True)).cursor())
            connection.execute(f"USE {CATALOG}.dp")
        except duckdb.Error as error:
            failure = first_line(error)
        if not failure:
            yield connection
    if failure:
        raise unreadable(path, failure)


def _opened(path: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=ISOLATED | FOR_USER)
    failure = ""
    try:
        connection.execute(f"ATTACH {string(str(path))} AS {CATALOG} (READ_ONLY)")
        connection.execute(f"SET search_path = '{CATALOG}.dp'")
        connection.execute(LOCKED)
        return connection
    except duckdb.Error as error:
        failure = first_line(error)
    connection.close()
    raise unreadable(path, failure)


def unreadable(path: Path, failure: str) -> OperationalError:
    """Why the file at ``path`` could not be read."""
    return OperationalError(
        f"cannot read the releases in {str(path)!r}: {failure}; close the program that writes it, or {REBUILD}"
    )


def ask(
    connection: duckdb.DuckDBPyConnection,
    text: str,
    parameters: Parameters,
    question: Question,
    unnamed: Mapping[str, Mapping[str, int]],
) -> Result:
    """The result of one query over the releases; ``unnamed`` as in ``ReleaseStore.sql``.

    Raises SQLError, OperationalError; InterruptException when late.
    """
    question.on(connection)
    refused = show_unnamed(connection, unnamed, CATALOG)
    failure: str
    try:
        statements = connection.extract_statements(text)
        if len(statements) != 1:
            raise SQLError(f"one SELECT at a time runs over the releases; the text has {len(statements)} statements")
        # Two gates: DuckDB 1.x takes some PRAGMAs for SELECTs, and WITH may start an INSERT.
        word = _first_word(text)
        if statements[0].type.name == "MULTI":  # which would make a type first
            raise SQLError("PIVOT over the releases lists its values; write PIVOT ... ON column IN (value, ...)")
        if statements[0].type != duckdb.StatementType.SELECT or word not in _READS:
            raise SQLError(
                f"a statement that starts with {word or 'no word'!r} does not run over the releases; "
                "use SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE or SHOW"
            )
        if check(text, connection, lambda path: _readable(connection, path), parameters=parameters) is None:
            raise SQLError("this statement does not run over the releases; write it as a SELECT")
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
        raise RequestError(f"the query over the releases was stopped: {first_line(error)}") from error
    except duckdb.OutOfMemoryException:
        failure = ""
    except duckdb.Error as error:
        failure = first_line(error)
        unknown = re.match(r"Catalog Error: Table with name (.*?) does not exist!", failure)
        meant = next((said for name, said in refused.items() if is_mentioned(text, name)), None)
        if meant is not None:
            failure = meant
        elif unknown:
            failure = _unknown(connection, unknown[1])
    if not failure:  # whatever DuckDB advises is the custodian's
        raise RequestError("the query over the releases was stopped: Out of Memory; ask for less at once")
    raise SQLError(failure)


def _readable(connection: duckdb.DuckDBPyConnection, path: tuple[str, ...]) -> Bounds | None:
    """What a name reads: what is released, and lists of it. A name that nothing has is left for DuckDB to refuse."""
    schema = path[-2] if len(path) > 1 else ""
    if path in _LISTS:
        return table_in(connection, ".".join(path))
    if path[:-1] not in ((), (CATALOG,)) and not _SCHEMAS.fullmatch(schema):
        return None
    within = (("temp", "main"), (CATALOG, "dp")) if len(path) == 1 else ((CATALOG, schema.replace(CATALOG, "main")),)
    for place in within:
        found = table_in(connection, ".".join(map(identifier, (*place, path[-1]))))
        if found is not None:
            return found
    internal = "SELECT count(*) FROM duckdb_views() WHERE internal AND lower(view_name) = ?"
    (taken,) = connection.execute(internal, [path[-1]]).fetchone() or (0,)
    return None if taken else Bounds({}, 0, listed=False)


def _unknown(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    """What to write instead of a name that schema dp does not have."""
    held = "SELECT release_id, coalesce(label, '') FROM dp.releases WHERE list_contains(names, ?)"
    several = connection.execute(held, [name.lower()]).fetchall() if is_unnamed(name) else []
    if several:
        return which(name.lower(), several)
    known = connection.execute("SELECT view_name FROM duckdb_views() WHERE schema_name = 'dp'").fetchall()
    return f"no release is called {name!r}; {nearest(name, [row[0] for row in known])}"


def check_text(text: str) -> None:
    """Raise SQLError for what is no text, or one that is too long."""
    check_length(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SQLError("the text holds a lone surrogate, which is no character; remove it") from None


class Reader:
    """Asks the releases file at ``path`` with one instance that stays open while the file is as it is.

    Opening one takes longer than most questions. Threads may share a reader. The instance is left behind where a
    question was stopped, for its memory may still be in use; a new one is opened for the next.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._open: tuple[Signature, duckdb.DuckDBPyConnection] | None = None

    def sql(
        self,
        text: str,
        seconds: float | None = QUERY_SECONDS,
        question: Question | None = None,
        unnamed: Mapping[str, Mapping[str, int]] | None = None,
    ) -> Result:
        """As ``ReleaseStore.sql``; who holds the ``question`` may stop it."""
        check_text(text)
        late = True
        try:
            found = answer_within(lambda asked: self._answered(text, asked, unnamed or {}), seconds, question=question)
            late = False
            return found
        except SQLError:
            late = False
            raise
        finally:
            if late:
                self.close()

    def close(self) -> None:
        """Let the instance go; the next question opens another."""
        with self._lock:
            self._open = None

    def _answered(self, text: str, question: Question, unnamed: Mapping[str, Mapping[str, int]]) -> Result:
        cursor = self._instance().cursor()
        try:
            cursor.execute(f"USE {CATALOG}.dp")
            return ask(cursor, text, None, question, unnamed)
        finally:
            cursor.close()

    def _instance(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            state = state_of(self._path)
            if state is None:
                raise OperationalError(
                    f"there is no releases file {str(self._path)!r}; release something first or {REBUILD}"
                )
            if self._open is None or self._open[0] != state:
                self._open = state, _opened(self._path)
            return self._open[1]


def state_of(path: Path) -> Signature | None:
    """What tells one state of a file from another, None where there is no file."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def _first_word(text: str) -> str:
    """The first word in capitals, after comments and opening brackets."""
    start = _SPACE.match(text)
    found = re.compile(r"[A-Za-z]+").match(text, start.end() if start else 0)
    return found[0].upper() if found else ""


def first_line(error: BaseException) -> str:
    """The first line of a message, without a full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__
