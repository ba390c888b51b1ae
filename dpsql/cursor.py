"""Cursor: PEP 249's way to ask. What is released already is free, everything else is one charge a batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import duckdb

from dpsql.errors import InterfaceError, NotSupportedError, ProgrammingError, SQLError
from dpsql.release import ReleaseTable, Result
from dpsql.reuse import question_keys, squared_errors
from dpsql.sql import Answer, table_of, understand
from dpsql.sql.options import budget_of, read_options
from dpsql.sql.outer import ERRORS
from dpsql.sql.parameters import Parameters, prepare
from dpsql.sql.probes import answer_probes, is_probe, over_empty_tables, plainly_empty, shown_columns
from dpsql.sql.routing import Piece, Route, route
from dpsql.sql.sandbox import Sandbox
from dpsql.sql.statements import Statement

if TYPE_CHECKING:
    from dpsql.connection import Connection, Release

Budget = tuple[object, object, object]  # epsilon, delta, rho
Description = tuple[tuple[str, str, None, None, int | None, int | None, bool], ...]

# How much less precise an earlier answer may be than what was asked for: plans differ by their tolerance.
_TOLERANCE = 1e-3
_ALPHA = 0.05


@dataclass(frozen=True)
class _Set:
    """One result set: column names, DuckDB types, rows."""

    names: Sequence[str]
    kinds: Sequence[str]
    rows: Sequence[tuple[Any, ...]]


class Cursor:
    """Runs batches on a connection and walks through their results (PEP 249). Make it with ``Connection.cursor``.

    ``arraysize``: rows of ``fetchmany`` without a size, 1 at first. ``errors``: whether results show the columns of
    errors beside private numbers; releases have them either way. ``release`` is what the last ``execute``
    was answered from, None for a query over releases; its ``cost`` is 0 where an earlier one had the answers.
    Not to be used by two threads at the same time.
    """

    arraysize: int
    lastrowid: None = None

    def __init__(self, connection: Connection, *, errors: bool = False) -> None:
        self._connection = connection
        self.arraysize = 1
        self.errors = errors
        self.release: Release | None = None
        self._closed = False
        self._sets: list[_Set] = []
        self._place = 0
        self._executed = False

    # -- asking --------------------------------------------------------------------------------

    def execute(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
    ) -> Self:
        """Run a batch: one statement or several, one budget for all of them; ``nextset`` walks their results.

        Free: queries over released views; statements that an earlier release of this data version answers; probes
        such as ``WHERE 1=0``. Otherwise the batch is charged ``epsilon``, ``delta`` or ``rho`` of this call, of
        its OPTIONS, or what ``connect`` says, in this order. An earlier answer is used at any budget where the call
        names none; where it names one, only if it is at least as precise as that budget would buy.
        ``parameters``: a sequence for ``?``, a mapping for ``:name``; literals of the batch (``dpsql.sql.parameters``).
        Returns the cursor. Raises ProgrammingError where no budget is given and none is free, SQLError, BudgetError
        and the like as ``Connection.run``, all before anything is spent.
        """
        self._begin()
        text = prepare(sql).fill(parameters)
        self._take(self._run(text, (epsilon, delta, rho)))
        return self

    def executemany(
        self,
        sql: str,
        parameters: Iterable[Sequence[object] | Mapping[str, object]],
        *,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
    ) -> Self:
        """Run the statement once for each item of ``parameters``, all of them one batch with one budget.

        The rows of all runs stand below each other in one result, in the order of ``parameters`` (PEP 249 leaves this
        open); of several statements, each has one such result. No parameters, no result and no charge.
        Returns the cursor; raises as ``execute``.
        """
        self._begin()
        prepared = prepare(sql)
        texts = [prepared.fill(item) for item in _items(parameters)]
        if not texts:
            return self
        # A line of its own for the semicolon, since a statement may end in a comment.
        found = self._run("\n;\n".join(texts), (epsilon, delta, rho))
        each = len(found) // len(texts)
        self._take([
            _Set(found[at].names, found[at].kinds, [row for part in found[at::each] for row in part.rows])
            for at in range(each)
        ])  # fmt: skip
        return self

    def callproc(self, procname: str, parameters: Sequence[object] = ()) -> None:
        """Refused: there are no stored procedures."""
        self._check_open()
        raise NotSupportedError("callproc is not offered: there are no stored procedures; write a SELECT")

    def setinputsizes(self, sizes: object) -> None:
        """Does nothing (PEP 249 allows that): literals need no sizes."""
        self._check_open()

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing (PEP 249 allows that): values are never cut."""
        self._check_open()

    # -- results -------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The connection that made this cursor."""
        return self._connection

    @property
    def description(self) -> Description | None:
        """(name, type, None, None, precision, scale, True) of each column; None where there is no result.

        The type is DuckDB's name of it and compares equal to one of ``dpsql.STRING``, ``NUMBER``, ``DATETIME``, ...
        """
        if not self._sets:
            return None
        current = self._sets[0]
        return tuple(
            (name, kind, None, None, *_digits(kind), True)
            for name, kind in zip(current.names, current.kinds, strict=True)
        )

    @property
    def rowcount(self) -> int:
        """Rows of the current result; -1 before the first, 0 after an empty ``executemany``."""
        if self._sets:
            return len(self._sets[0].rows)
        return 0 if self._executed else -1

    @property
    def rownumber(self) -> int | None:
        """Number of the next row, from 0; None without a result."""
        return self._place if self._sets else None

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, None after the last."""
        rows = self._fetch(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next ``size`` rows (``arraysize`` unless given), fewer at the end."""
        return self._fetch(self.arraysize if size is None else size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left."""
        return self._fetch(None)

    def nextset(self) -> bool | None:
        """Go to the result of the next statement of the batch: True, or None where there is none."""
        self._current()
        if len(self._sets) < 2:
            return None
        self._sets.pop(0)
        self._place = 0
        return True

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def close(self) -> None:
        """Close the cursor; whatever is asked of it then is an InterfaceError, but for closing it again."""
        self._closed = True
        self._sets = []

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dpsql.Cursor of {self._connection!r}>"

    # -- inside --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed; make another one with con.cursor()")
        self._connection._check_open()

    def _begin(self) -> None:
        self._check_open()
        self._sets, self._place, self.release, self._executed = [], 0, None, True

    def _take(self, sets: Sequence[_Set]) -> None:
        self._sets, self._place = list(sets), 0

    def _current(self) -> _Set:
        self._check_open()
        if not self._sets:
            raise ProgrammingError("there is no result to fetch from; execute a query first")
        return self._sets[0]

    def _fetch(self, size: int | None) -> list[tuple[Any, ...]]:
        rows = self._current().rows
        stop = len(rows) if size is None else min(len(rows), self._place + max(size, 0))
        found = list(rows[self._place : stop])
        self._place = stop
        return found

    def _run(self, text: str, budget: Budget) -> list[_Set]:
        """The results of a batch, one for each statement. Threads that share the connection wait for each other."""
        with self._connection._lock:
            try:
                going = route(text, self._connection.policy, self._connection._view_names)
                if going.private:
                    return self._private(text, going, budget)
                return [self._read(piece, going) for piece in going.pieces]
            except SQLError as error:
                shown = error.pointed(text)
                if shown and shown not in getattr(error, "__notes__", ()):
                    error.add_note(shown)
                raise

    def _private(self, text: str, going: Route, budget: Budget) -> list[_Set]:
        con = self._connection
        statements = [piece.query for piece in going.pieces if piece.query is not None]
        if len(statements) < len(going.pieces):
            return [self._described(piece) for piece in going.pieces]
        if all(is_probe(statement) for statement in statements):
            return self._probed(statements)
        asked, named = self._budget(text, budget)
        if named:
            plan = con.plan(text, *asked)
            most = [error * (1.0 + _TOLERANCE) for error in squared_errors(plan)]
            found = self._earlier(plan.queries, most)
            if found is not None:
                return found
        else:
            found = self._earlier(self._understood(statements), None)
            if found is not None:
                return found
            if asked == (None, None, None):
                raise ProgrammingError(
                    "no earlier release answers this and no budget is given; execute(sql, epsilon=0.1), connect with "
                    "epsilon_per_release=0.1, or write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 0.1) ... "
                    "(con.plan(sql, epsilon=0.1) shows the errors first, for free)"
                )
            plan = con.plan(text, *asked)
        self.release = con.run(plan)
        return self._shown(self.release.record.tables, plan.queries)

    def _budget(self, text: str, given: Budget) -> tuple[Budget, bool]:
        """The budget of a batch, and whether the call or the batch names it."""
        epsilon, delta, rho = given
        usual = self._connection._budget_per_release
        written = budget_of(read_options(text)[1]) is not None
        if not written and epsilon is None and rho is None:
            # delta alone goes with the epsilon of connect
            return (usual, False) if delta is None else ((usual[0], delta, None), True)
        return given, True

    def _understood(self, statements: Sequence[Statement]) -> tuple[Answer, ...]:
        con = self._connection
        schemas = con.schemas()
        tables = {name: table_of(declared, schemas[name]) for name, declared in con.policy.tables.items()}
        return understand(statements, con.policy, tables).answers

    def _earlier(self, answers: Sequence[Answer], most: Sequence[float] | None) -> list[_Set] | None:
        con = self._connection
        keys = question_keys(con.policy.to_toml(), answers)
        whole = [answer.name for answer in answers] if any(answer.named for answer in answers) else None
        found = con._answered(keys, most, whole, _ALPHA if self.errors else None)
        if found is None:
            return None
        self.release, places = found
        return self._shown([self.release.record.tables[at] for at in places], answers)

    def _shown(self, tables: Sequence[ReleaseTable], answers: Sequence[Answer]) -> list[_Set]:
        """The results of a release, without the columns of errors unless they are wanted."""
        return [_set(table, answer, self.errors) for table, answer in zip(tables, answers, strict=True)]

    def _probed(self, statements: Sequence[Statement]) -> list[_Set]:
        con = self._connection
        failure: SQLError
        try:
            answers = self._understood([plainly_empty(statement) for statement in statements])
            return [_Set(*held) for held in answer_probes(statements, answers, errors=self.errors)]
        except SQLError as error:
            failure = error
        # Rows are never answered, but which columns they have is public.
        sets = []
        for statement in statements:
            held = over_empty_tables(statement.tree.sql("duckdb"), con.policy, con.schemas())
            if held is None or statement.named:
                raise failure
            sets.append(_Set(*held))
        return sets

    def _described(self, piece: Piece) -> _Set:
        """The declared columns of a table of the policy; anything else about it that is no SELECT is refused."""
        named = piece.tables[0]
        if piece.word in ("DESCRIBE", "DESC") and named.parent is None:  # a name, no query around it
            held = over_empty_tables(piece.text, self._connection.policy, self._connection.schemas())
            if held is not None:
                return _Set(*held)
        raise NotSupportedError(
            f"{piece.word} is not answered for the private {named.sql('duckdb')[:60]}; DESCRIBE shows its columns, and "
            "a SELECT with LIMIT 0 those of a query"
        )

    def _read(self, piece: Piece, going: Route) -> _Set:
        """The result of one statement that asks no private table."""
        con = self._connection
        if piece.text.upper().split() in (["SHOW", "TABLES"], ["SHOW", "ALL", "TABLES"]):
            return self._tables()
        con._books.catch_up()
        if con.releases_path.exists() or not going.constant:
            held = con.sql(piece.text)
            return _Set(held.columns, held.types, held.fetchall())
        failure = ""
        with Sandbox() as sandbox:
            try:
                cursor = sandbox.connection.execute(piece.text)
                described = cursor.description or []
                return _Set([str(d[0]) for d in described], [str(d[1]) for d in described], cursor.fetchall())
            except duckdb.Error as error:
                failure = str(error).strip().splitlines()[0]
        raise SQLError(failure)

    def _tables(self) -> _Set:
        """What can be asked, by name: released views, which are free, tables and views of the policy."""
        con = self._connection
        rows = [(name, "released") for name in con._view_names()]
        rows += [(name, "public" if table.public else "private") for name, table in con.policy.tables.items()]
        rows += [(name, "private view") for name in con.policy.views]
        return _Set(["name", "kind"], ["VARCHAR", "VARCHAR"], rows)


def _items(parameters: object) -> list[Any]:
    if isinstance(parameters, Iterable) and not isinstance(parameters, str | bytes | Mapping):
        return list(parameters)
    raise ProgrammingError(
        "executemany takes a sequence with the values of each run, such as [[18], [65]], "
        f"not a {type(parameters).__name__}"
    )


def _set(table: ReleaseTable, answer: Answer, errors: bool) -> _Set:
    """A result as it was released; without ``errors`` the columns that say how far its numbers may be off go."""
    hidden: set[str] = set()
    names = [name for name, _, _ in table.columns]
    if not errors:
        shown = shown_columns(answer)
        hidden = {name for column in shown for suffix, name in column.companions if suffix in ERRORS}
        if [name for column in shown for name in (column.name, *(beside for _, beside in column.companions))] != names:
            # Outer SQL failed on the numbers that came out, and the result is the noisy table under it.
            hidden = {f"{name}{suffix}" for name in names for suffix in ERRORS}
    kept = [column for column in table.columns if column[0] not in hidden]
    result = Result.from_columns(kept)
    return _Set(result.columns, result.types, result.fetchall())


def _digits(kind: str) -> tuple[int | None, int | None]:
    """Precision and scale of a DECIMAL."""
    found = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", kind)
    return (int(found[1]), int(found[2])) if found else (None, None)
