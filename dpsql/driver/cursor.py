"""Cursor: PEP 249's way to ask. What is released already is free, everything else is one charge a batch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from dpsql import errors as pep249
from dpsql.common.arguments import maybe, taking, whole
from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.result_sets import ResultSet, Row, described, probed, read, result_set
from dpsql.driver.session import Amounts, Session
from dpsql.errors import (
    BudgetError,
    DataError,
    InterfaceError,
    NotSupportedError,
    PolicyError,
    ProgrammingError,
    SQLError,
)
from dpsql.planning.free_answer import Free
from dpsql.planning.needed_budget import request_of
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.privacy.accountant import charge_for
from dpsql.release import Result, ResultTable
from dpsql.release.cut import Losses
from dpsql.release.release import Release
from dpsql.running.answer_free import Reused, ReusedCounts
from dpsql.running.earlier.same_question import Accepts, paid_with, question_keys
from dpsql.sql import Answer, table_of, understand
from dpsql.sql.outer.probes import emptied, is_probe
from dpsql.sql.parse.options import budget_of, read_options
from dpsql.sql.parse.parameters import Parameters, prepare
from dpsql.sql.parse.statements import Statement
from dpsql.sql.routing import Route, route

if TYPE_CHECKING:
    import pandas

Description = tuple[tuple[str, str, None, None, int | None, int | None, bool], ...]

_ALPHA = 0.05

NO_BUDGET = (
    "no earlier release answers this and no budget is given; execute(sql, epsilon=0.1), connect with "
    "epsilon_per_release=0.1, or write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 0.1) ... "
    "(con.plan(sql, epsilon=0.1) shows the errors first, for free)"
)


def check_population(population: str | None, *, errors: bool) -> None:
    """DataError where intervals are asked for that are known of no population, or of none without errors."""
    if population is not None and (population != "sample" or not errors):
        raise DataError('population="sample" goes with errors=True; no other population is known')


class CursorKeywords(TypedDict, total=False):
    """What a surface says when it makes a ``Cursor``, which says what it means."""

    alpha: float | None
    progress: Callable[[str], None] | None
    label: str | None
    warn: Callable[[str], None] | None


@guards_calls
class Cursor:
    """Runs batches on a connection and walks through their results (PEP 249). Make it with ``Connection.cursor``.

    ``arraysize``: rows of ``fetchmany`` without a size, 1 at first. ``errors``: whether results show the columns of
    errors beside private numbers, and beside what a query over releases computes of them, and what marks the group of
    undeclared values; releases have them either way. ``release`` is what the last ``execute`` was answered from, None
    for a query over releases; its ``cost`` is 0 where an earlier one had the answers, and ``free`` then says which, and
    their errors. ``names`` are those of the last batch's results. ``usual`` is the budget of a batch that names none,
    by default that of the connection; ``alpha`` = 1 - confidence of new intervals, and where it is given, an earlier
    answer is used whatever level its own intervals have. ``progress`` hears how far planning is. ``label`` is written
    beside charges, by default what ``connect`` says.
    Not to be used by two threads at the same time.
    """

    arraysize: int
    lastrowid: None = None

    def __init__(
        self,
        connection: Session,
        *,
        errors: bool = False,
        population: str | None = None,
        usual: Amounts | None = None,
        **keywords: Unpack[CursorKeywords],
    ) -> None:
        self._connection = connection
        self.arraysize = 1
        check_population(population, errors=errors)
        self.errors = errors
        self._population = population
        self.release: Release | None = None
        self.free: Free | None = None
        self.plan: Plan | None = None
        self.names: tuple[str, ...] = ()
        self._usual = connection._budget_per_release if usual is None else usual
        self._alpha = keywords.get("alpha")
        self._progress = keywords.get("progress")
        self._warn = keywords.get("warn")
        label = keywords.get("label")
        self._label = connection._label if label is None else label
        self._closed = False
        self._texts: tuple[str, ...] = ()  # of the last batch, where it reads released results
        self._sets: list[ResultSet] = []
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
        its OPTIONS, or what ``connect`` says, in this order. Where one of them names a budget, an earlier answer is
        used only if no number of it is less precise than that budget would buy; where none does, whatever its error,
        which ``messages`` say.
        ``parameters``: a sequence for ``?``, a mapping for ``:name``; literals of the batch
        (``dpsql.sql.parse.parameters``). Returns the cursor. Raises ProgrammingError where no budget is given and none
        is free, SQLError, BudgetError and the like as ``Connection.run``, all before anything is spent.
        """
        self._begin()
        text = prepare(sql).fill(parameters)
        self._take(self._run(text, (epsilon, delta, rho)))
        return self

    def dry_run(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
    ) -> Plan | Release | Free | None:
        """What ``execute`` would do, spending nothing: a Plan that it would pay for, or else why it would be free.

        That is the earlier Release that answers, or what earlier releases determine together; ``free`` has the errors
        of either. None for what never costs anything (released views, probes, lists). Raises as ``execute``.
        """
        self._begin()
        text = prepare(sql).fill(parameters)
        with self._connection._lock, self._pointing(text):
            going = route(text, self._connection.policy, self._connection._view_names)
            statements = [piece.query for piece in going.pieces if piece.query is not None]
            if not going.private or len(statements) < len(going.pieces) or all(map(is_probe, statements)):
                return None
            held = self._planned(text, statements, (epsilon, delta, rho), dry=True)
            self.plan = None if isinstance(held, list) else held
            found = self.plan or self.release or self.free
        self._sets, self.release, self._executed = [], None, False
        return found

    def columns(self, sql: str, parameters: Parameters = None) -> list[ResultSet]:
        """What the results of a private batch would look like: names and types of their columns, without rows. Free.

        Raises ProgrammingError for a batch that asks no private table, else as ``execute``.
        """
        self._check_open()
        text = prepare(sql).fill(parameters)
        with self._connection._lock, self._pointing(text):
            going = route(text, self._connection.policy, self._connection._view_names)
            if not going.private:
                raise ProgrammingError("the batch asks no private table; execute it, which is free")
            statements = [piece.query for piece in going.pieces if piece.query is not None]
            if len(statements) < len(going.pieces):
                return [described(self._connection, piece) for piece in going.pieces]
            if all(is_probe(statement) for statement in statements):
                return probed(self._connection, statements, self._understood, errors=self.errors)
            self._understood(statements)  # what is refused is refused in its own words
            empty = [emptied(statement) for statement in statements]
            return probed(self._connection, empty, self._understood, errors=self.errors)

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
            ResultSet(found[at].names, found[at].kinds, [row for part in found[at::each] for row in part.rows])
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
    def messages(self) -> list[tuple[type[Exception], str]]:
        """What the last ``execute`` has to say beside its results (PEP 249): the errors of an answer that was free, and
        what limits cut of the rows that it counts, or that the released results count which it reads.
        """
        said = [] if self.free is None else [str(self.free)]
        said += self.notes
        return [(pep249.Warning, note) for note in said]

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits cut of the rows that the results count, a sentence a table."""
        if self.release is not None:
            return self.release.notes
        each = (self._connection._losses_read(text).notes for text in self._texts)
        return tuple(dict.fromkeys(note for notes in each for note in notes))

    @property
    def connection(self) -> Session:
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

    def fetchone(self) -> Row | None:
        """The next row, None after the last."""
        rows = self._fetch(1)
        return rows[0] if rows else None

    @taking(size=maybe(whole(-(2**63), 2**63)))
    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next ``size`` rows (``arraysize`` unless given), fewer at the end."""
        return self._fetch(self.arraysize if size is None else size)

    def fetchall(self) -> list[Row]:
        """Return the rows that are left, as a list of tuples."""
        return self._fetch(None)

    def df(self) -> pandas.DataFrame:
        """All rows of the current result as a pandas frame, as of a DuckDB connection's ``execute(...).df()``."""
        held = self._current()
        found = Result.from_rows(tuple(held.names), tuple(held.kinds), list(held.rows))
        return found.with_losses(Losses(notes=self.notes)).df()

    def rows(self) -> Sequence[Row]:
        """All rows of the current result, wherever fetching has come to; those of long ranges as they are taken."""
        return self._current().rows

    def nextset(self) -> bool | None:
        """Go to the result of the next statement of the batch: True, or None where there is none."""
        self._current()
        if len(self._sets) < 2:
            return None
        self._sets.pop(0)
        self._place = 0
        return True

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
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
        self._sets, self._place, self.release, self.free, self.plan = [], 0, None, None, None
        self._executed, self._texts = True, ()

    def _take(self, sets: Sequence[ResultSet]) -> None:
        self._sets, self._place = list(sets), 0

    def _current(self) -> ResultSet:
        self._check_open()
        if not self._sets:
            raise ProgrammingError("there is no result to fetch from; execute a query first")
        return self._sets[0]

    def _fetch(self, size: int | None) -> list[Row]:
        rows = self._current().rows
        stop = len(rows) if size is None else min(len(rows), self._place + max(size, 0))
        found = list(rows[self._place : stop])
        self._place = stop
        return found

    def _run(self, text: str, budget: Amounts) -> list[ResultSet]:
        """The results of a batch, one for each statement. Threads that share the connection wait for each other."""
        with self._connection._lock, self._pointing(text):
            going = route(text, self._connection.policy, self._connection._view_names)
            self.names = tuple(
                piece.query.name if going.private and piece.query is not None else f"q{number}"
                for number, piece in enumerate(going.pieces, 1)
            )
            self._texts = () if going.private else tuple(piece.text for piece in going.pieces)
            if going.private:
                return self._private(text, going, budget)
            return [
                read(self._connection, piece, going, self._query if self.errors else None) for piece in going.pieces
            ]

    def _query(self, text: str) -> Result:
        """The answer of a query over the releases, with its errors; where there can be none, a warning says why.

        It goes to ``warn``, or is a warning of Python.
        """
        alpha = _ALPHA if self._alpha is None else self._alpha
        answer = self._connection.sql(text)
        found, why = self._connection.errors_beside(text, answer, alpha=alpha, population=self._population)
        if why:
            if self._warn is not None:
                self._warn(why)
            else:
                warnings.warn(why, stacklevel=7)
        return found

    @contextmanager
    def _pointing(self, text: str) -> Iterator[None]:
        """A refusal within shows its place in the batch, as a note below the message."""
        try:
            yield
        except SQLError as error:
            shown = error.pointed(text)
            if shown and shown not in getattr(error, "__notes__", ()):
                error.add_note(shown)
            raise

    def _private(self, text: str, going: Route, budget: Amounts) -> list[ResultSet]:
        con = self._connection
        statements = [piece.query for piece in going.pieces if piece.query is not None]
        if len(statements) < len(going.pieces):
            return [described(self._connection, piece) for piece in going.pieces]
        if all(is_probe(statement) for statement in statements):
            return probed(con, statements, self._understood, errors=self.errors)
        held = self._planned(text, statements, budget)
        if isinstance(held, list):
            if self.release is not None:
                self.release = con._telling_losses(self.release, text)
            return held
        self.release = con.run(held, label=self._label)
        shown = self._shown if self.release.cost else self._given
        return shown(self.release.record.tables, held.queries)

    def _planned(
        self, text: str, statements: Sequence[Statement], budget: Amounts, *, dry: bool = False
    ) -> list[ResultSet] | Plan:
        """The results of the release that answers the batch, or the plan that its budget is for. Spends nothing.

        ``dry``: what earlier releases determine together is not written down; no results then.
        """
        con = self._connection
        asked, named = self._budget(text, budget)
        alpha = _ALPHA if self._alpha is None else self._alpha
        if named:
            return self._within_budget(text, statements, asked, alpha, dry=dry)
        answers = self._understood(statements)
        found = self._earlier(answers)
        if found is not None:
            return found
        past = con._past.answer(text, alpha) or con._past.counted(text, alpha)
        if past is None:
            raise ProgrammingError(NO_BUDGET)
        if dry:
            return self._would_be(past)
        self.release = con._batches.free(past, errors=True, label=self._label)
        return self._given(self.release.record.tables, answers)

    def _within_budget(
        self, text: str, statements: Sequence[Statement], amounts: Amounts, alpha: float, *, dry: bool
    ) -> list[ResultSet] | Plan:
        """The results of an earlier release that serves in place of what ``amounts`` buys, or the plan to run.

        It serves where the very batch was paid for with as much, or where no number of it is less precise
        (``running.no_worse``). What earlier releases say together, ``Connection.run`` compares in the same way.
        """
        con = self._connection
        with suppress(SQLError, PolicyError, DataError, BudgetError):  # what is refused, planning refuses in its words
            charges = charge_for(request_of(text, *amounts), con._books.budget)
            found = self._earlier(self._understood(statements), paid_with(charges))
            if found is not None:
                return found
        if not dry:
            con._check_payable(text, amounts, self._label)
        options = PlanOptions(alpha, progress=self._progress)
        plan = con.plan(text, *amounts, options=replace(options, earlier=False))
        found = self._earlier(plan.queries, lambda entry, places: con._past.as_precise(entry, places, plan))
        if found is not None:
            return found
        plan = con.plan(text, *amounts, options=options)
        past = con._past.as_good_as(plan) if dry else None
        return plan if past is None else self._would_be(past)

    def _budget(self, text: str, given: Amounts) -> tuple[Amounts, bool]:
        """The budget of a batch, and whether the call, the batch or the session names one."""
        epsilon, delta, rho = given
        usual = self._usual
        written = budget_of(read_options(text)[1]) is not None
        if not written and epsilon is None and rho is None:
            # delta alone goes with the epsilon of connect
            asked = usual if delta is None else (usual[0], delta, None)
            return asked, asked != (None, None, None)
        return given, True

    def _understood(self, statements: Sequence[Statement]) -> tuple[Answer, ...]:
        con = self._connection
        schemas = con.schemas()
        tables = {name: table_of(declared, schemas[name]) for name, declared in con.policy.tables.items()}
        return understand(statements, con.policy, tables).answers

    def _earlier(self, answers: Sequence[Answer], accepts: Accepts | None = None) -> list[ResultSet] | None:
        con = self._connection
        keys = question_keys(con.policy.to_toml(), answers)
        whole = [answer.name for answer in answers] if any(answer.named for answer in answers) else None
        level = _ALPHA if self.errors and self._alpha is None else None
        found = con._batches.answered(keys, whole, level, accepts)
        if found is None:
            return None
        self.release, places = found
        return self._given([self.release.record.tables[at] for at in places], answers)

    def _given(self, tables: Sequence[ResultTable], answers: Sequence[Answer]) -> list[ResultSet]:
        """The results of the release that answers for free."""
        assert self.release is not None  # noqa: S101 - it was found just now
        self.free = Free.of(self.release.guarantee, self.release.id, tables)
        return self._shown(tables, answers)

    def _would_be(self, past: Reused | ReusedCounts) -> list[ResultSet]:
        """No results yet of what earlier releases would answer together."""
        self.free = self._connection._past.described(past)
        return []

    def _shown(self, tables: Sequence[ResultTable], answers: Sequence[Answer]) -> list[ResultSet]:
        """The results of a release, without the columns of errors unless they are wanted."""
        return [result_set(table, answer, self.errors) for table, answer in zip(tables, answers, strict=True)]


def _items(parameters: object) -> list[Sequence[object] | Mapping[str, object]]:
    if isinstance(parameters, Iterable) and not isinstance(parameters, str | bytes | Mapping):
        return list(parameters)
    raise ProgrammingError(
        "executemany takes a sequence with the values of each run, such as [[18], [65]], "
        f"not a {type(parameters).__name__}"
    )


def _digits(kind: str) -> tuple[int | None, int | None]:
    """Precision and scale of a DECIMAL."""
    found = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", kind)
    return (int(found[1]), int(found[2])) if found else (None, None)
