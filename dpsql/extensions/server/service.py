"""The custodian's connection, asked by many: what is free is read by several threads, what is charged runs in one.

Only this module has a ``dpsql.Connection``. A batch that reads releases goes to the reading threads; one that asks
private tables, planned or measured, waits its turn with one worker, since a connection belongs to one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TypeVar

import duckdb

from dpsql.common import progress
from dpsql.common.interrupted_calls import checked_before_charges, has_charged
from dpsql.common.quoting import identifier
from dpsql.driver.connection import Connection
from dpsql.driver.cursor import NO_BUDGET, Cursor
from dpsql.driver.result_sets import ResultSet, Row, read
from dpsql.errors import Error, ProgrammingError, listed
from dpsql.extensions.server.accounts import Accounts
from dpsql.extensions.server.catalogue.catalogue import Catalogue
from dpsql.extensions.server.catalogue.dialect import asks_catalogue
from dpsql.extensions.server.catalogue.relations import MAIN, RELEASED, Relation, declared, views
from dpsql.extensions.server.protocol.division import truncation_notice
from dpsql.extensions.server.protocol.limits import Limits
from dpsql.extensions.server.protocol.settings import Settings
from dpsql.extensions.server.protocol.sqlstate import SessionError, public_error
from dpsql.extensions.server.protocol.statements import Part, statements_of
from dpsql.extensions.server.remembered import Remembered
from dpsql.planning.free_answer import Free
from dpsql.planning.plan import Plan
from dpsql.policy.text import column_text
from dpsql.privacy.accountant import BudgetState
from dpsql.release import Result
from dpsql.release.limits import Question
from dpsql.release.names import is_unnamed
from dpsql.release.reading import Reader, state_of
from dpsql.sql.outer.probes import over_empty_tables
from dpsql.sql.routing import Route, route

T = TypeVar("T")

_RELEASED = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = 'dpsql_releases' "
    "AND schema_name = 'dp' ORDER BY table_name, column_index"
)
CANCELLED = "the statement was cancelled; what was charged stays charged, and asking again is then free"
CANCELLED_BEFORE = "the statement was cancelled; nothing was charged"
FIRST = "the custodian approves each batch before it is charged: run it to ask for that; SHOW dpsql.requests says more"
NO_SESSION_BUDGET = (
    "no earlier release answers this and no budget is set; SET dpsql.epsilon = 0.1, or write SELECT WITH "
    "DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 0.1) ... (EXPLAIN shows the errors first, for free)"
)


@dataclass(frozen=True)
class Asker:
    """Who asks, by the name that they signed in with, and what their session has set."""

    name: str
    settings: Settings
    database: str = "dpsql"
    unnamed: dict[str, dict[str, int]] = field(default_factory=dict)
    """What q1, q2, ... mean in the session: the releases of its own last batch, by name and label."""


@dataclass(frozen=True)
class Answer:
    """What a batch came to: a result for each statement and how PostgreSQL tags it, and what it cost."""

    results: list[tuple[str, ResultSet | None]]
    notices: tuple[str, ...] = ()
    kind: str = "free"
    cost: float = 0.0
    guarantee: str = ""
    release: int | None = None
    named: dict[str, ResultSet] = field(default_factory=dict)
    """All results of a private batch by name, those of CREATE VIEW, too."""


class Shelf:
    """What is released, as one account sees it, or all do: a connection, who reads its releases, the catalogue."""

    def __init__(self, con: Connection) -> None:
        self.con = con
        self.reader = Reader(con.releases_path)
        self.views = Remembered(con.ledger_path, con._view_names)
        self.catalogue = Catalogue(self._relations, self._state)

    def _relations(self) -> list[Relation]:
        """What there is to ask: tables and views of the policy, released views."""
        policy, schemas = self.con.policy, self.con.schemas()
        found = declared(policy, schemas)
        held = {name: over_empty_tables(f"SELECT * FROM {identifier(name)}", policy, schemas) for name in policy.views}  # noqa: S608
        shapes = {name: list(zip(shape[0], shape[1], strict=True)) for name, shape in held.items() if shape is not None}
        found += views(shapes, MAIN, "a view of the policy; private")
        if self.con.releases_path.exists():
            named: dict[str, list[tuple[str, str]]] = {}
            for name, column, kind in self.reader.sql(_RELEASED).fetchall():
                named.setdefault(name, []).append((column, kind))
            found += views(named, RELEASED, "released; asking it is free")
        return found

    def _state(self) -> object:
        path = self.con.releases_path
        return state_of(path)


@dataclass
class Service:
    """Answers batches over one connection, or one for each account where releases are private to it.

    To be used by one event loop.
    """

    con: Connection
    limits: Limits = field(default_factory=Limits)
    accounts: Accounts | None = None
    """The analysts whose budgets are shown; who may spend what is the ledger's word."""

    def __post_init__(self) -> None:
        self._reading = ThreadPoolExecutor(self.limits.readers, "dpsql-read")
        self._running = ThreadPoolExecutor(1, "dpsql-run")
        self._types: dict[str, str] | None = None
        self._everybodys = Shelf(self.con)
        self._shelves: dict[str, Shelf] = {}
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise ``dpsql.Error`` where an account cannot be read, or a table's source failed (``/healthz``)."""
        if self.accounts is not None:
            self.accounts.check()
        self.con._check_sources()

    def close(self) -> None:
        """Wait for what runs, and take nothing more."""
        self._reading.shutdown(cancel_futures=True)
        self._running.shutdown(cancel_futures=True)
        self.con.close()

    async def answer(self, asker: Asker, part: Part) -> Answer:
        """The results of a batch: read for free, answered by an earlier release, or measured and charged.

        Raises ``dpsql.Error``; what was charged when it is cancelled stays charged, and is recorded; nothing is charged
        afterwards.
        """
        await self._admit(asker)
        if asks_catalogue(part.text):
            return await self._stoppable(lambda question: self._listed(asker, part.text, question))
        going = await self._read(lambda: self._route(asker.name, part.text))
        notice = await self._read(lambda: self._truncations(asker.name, going))
        if not going.private:
            answer = await self._stoppable(lambda question: self._released(asker, going, question))
        else:
            answer = await self._run(lambda: self._private(asker, part.text, going))
        return replace(answer, notices=(*answer.notices, notice)) if notice else answer

    async def columns(self, asker: Asker, part: Part) -> ResultSet | None:
        """The columns that a batch of one statement would have; None where it has no rows. Free, charges nothing."""
        going = None if asks_catalogue(part.text) else await self._read(lambda: self._route(asker.name, part.text))
        if going is None or not going.private:
            return (await self.answer(asker, part)).results[0][1]
        (piece,) = going.pieces[:1]
        if piece.query is not None and piece.query.named:
            return None
        return (await self._run(lambda: self._cursor(asker).columns(part.text)))[0]

    async def budget(self, asker: Asker) -> ResultSet:
        """What each account of the asker's budget and of the policy's holds in all, has spent and has left."""
        return await self._read(lambda: self._budget(asker.name))

    async def requests(self, asker: Asker) -> ResultSet:
        """The asker's own requests for approval, and where each stands."""
        return await self._read(lambda: self._requests(asker.name))

    async def domains(self) -> ResultSet:
        """What each private column may hold, as a line of the policy, and whether it was declared or found."""
        return await self._read(self._domains)

    async def looked_up(self, look_up: Callable[[str], T], text: str) -> T:
        """What ``look_up`` finds for a name or a token, in a thread: it may wait for a file."""
        return await self._read(lambda: look_up(text))

    @property
    def parameter_types(self) -> Mapping[str, str]:
        """DuckDB types of the private columns that have one type wherever they are, by name in lower case."""
        if self._types is None:
            found: dict[str, set[str]] = {}
            for columns in self.con.schemas().values():
                for name, kind in columns.items():
                    found.setdefault(name.lower(), set()).add(kind)
            self._types = {name: min(kinds) for name, kinds in found.items() if len(kinds) == 1}
        return self._types

    async def is_private(self, asker: Asker, part: Part) -> bool:
        """Whether the batch asks private tables."""
        return not asks_catalogue(part.text) and (await self._read(lambda: self._route(asker.name, part.text))).private

    async def shown(self, asker: Asker, part: Part) -> int:
        """How many results a batch shows: those of statements that make no view."""
        if asks_catalogue(part.text):
            return part.queries
        going = await self._read(lambda: self._route(asker.name, part.text))
        return sum(piece.query is None or not piece.query.named for piece in going.pieces)

    async def plan(self, asker: Asker, part: Part) -> tuple[Plan | None, Free | None, str]:
        """What ``answer`` would do: the plan that it would pay for, or the answer that is free, neither for a probe.

        And what stands in the way, if anything: the asker's own budget, or that the custodian approves it first.
        """
        await self._admit(asker)
        cursor = self._cursor(asker)
        await self._run(lambda: _with_budget(lambda: cursor.dry_run(part.text)))
        own = await self._read(lambda: self._budget_of(asker.name))
        plan = cursor.plan
        if plan is None or own is None:
            return plan, cursor.free, ""
        if not own.affords(plan.charge):
            return plan, None, f"your own budget would refuse it: {own.refusal(plan.charge)}"
        return plan, None, FIRST if self.con.policy.budget.approval else ""

    # -- inside --------------------------------------------------------------------------------

    def _shelf(self, name: str) -> Shelf:
        """What an account sees of the releases."""
        if not self.con.policy.budget.private_releases:
            return self._everybodys
        with self._lock:
            if name not in self._shelves:
                self._shelves[name] = Shelf(self.con._of(name))
            return self._shelves[name]

    def _route(self, name: str, text: str) -> Route:
        return route(text, self.con.policy, self._shelf(name).views.value)

    async def _stoppable(self, ask: Callable[[Question], Answer]) -> Answer:
        """The answer to what is free; a statement that is cancelled is stopped."""
        question = Question()
        work = asyncio.ensure_future(self._read(lambda: ask(question)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():  # an interrupt that comes before a statement has started is lost
                question.stop()
                await asyncio.wait([work], timeout=0.05)
            work.exception()
            raise

    async def _admit(self, asker: Asker) -> None:
        """Raise SessionError where the asker's account has ended since they signed in."""
        accounts = self.accounts
        if accounts is None:
            return
        analyst = await self._read(lambda: accounts.analyst(asker.name))
        why = "has no account" if analyst is None else analyst.refusal()
        if why:
            raise SessionError(f"the analyst {asker.name} {why}; ask the custodian", "28000")

    def _budget_of(self, name: str) -> BudgetState | None:
        return None if self.accounts is None else self.accounts.state(name)

    def _budget(self, name: str) -> ResultSet:
        own = self._budget_of(name)
        held = [] if own is None else [(name, own)]
        rows = [
            (whose, account.name, *state.figures(account)[:3])
            for whose, state in [*held, ("policy", self.con.budget)]
            for account in state.accounts
        ]
        return ResultSet(["whose", "account", "total", "spent", "left"], ["VARCHAR"] * 5, rows)

    def _requests(self, name: str) -> ResultSet:
        held = [] if self.accounts is None else self.accounts.requests(name)
        rows = [
            (one.number, one.time, one.state, one.charge.guarantee, one.note, one.release, one.sql.strip())
            for one in held
        ]
        names = ["request", "time", "state", "cost", "note", "release", "batch"]
        return ResultSet(names, ["BIGINT", *["VARCHAR"] * 4, "BIGINT", "VARCHAR"], rows)

    def _domains(self) -> ResultSet:
        con = self.con
        held, found = con.policy, {(one.table, one.column.name): one for one in con.found_domains}
        rows = []
        for table in held.tables.values():
            for column in () if table.public else table.columns.values():
                origin = found.get((table.name, column.name))
                has = column.values is not None or column.lower is not None
                source = "policy" if has else ""
                source = source if origin is None else f"release {origin.release} on {origin.dataset}"
                rows.append((table.name, column.name, column_text(column), source))
        return ResultSet(["table_name", "column_name", "domain", "source"], ["VARCHAR"] * 4, rows)

    def _released(self, asker: Asker, going: Route, question: Question) -> Answer:
        shelf = self._shelf(asker.name)
        said: list[str] = []
        settings = asker.settings

        def ask(text: str) -> Result:
            found = shelf.reader.sql(text, self.limits.query, question, dict(asker.unnamed))
            said.extend(shelf.con._losses_read(text, dict(asker.unnamed)).notes)
            if settings.errors:
                level = 0.05 if settings.alpha is None else settings.alpha
                found, why = shelf.con.errors_beside(
                    text, found, alpha=level, unnamed=dict(asker.unnamed), population=settings.population
                )
                said.extend([why] if why else [])
            return found

        results: list[tuple[str, ResultSet | None]] = []
        for piece in going.pieces:
            found = read(shelf.con, piece, going, ask, question)
            results.append((f"{_tag(piece.word)} {len(found.rows)}", found))
        return Answer(results, tuple(dict.fromkeys(said)))

    def _listed(self, asker: Asker, text: str, question: Question) -> Answer:
        shelf = self._shelf(asker.name)
        results: list[tuple[str, ResultSet | None]] = []
        shelf.con._books.catch_up()
        for statement in statements_of(text):
            found = shelf.catalogue.sql(statement, asker.name, asker.database, self.limits.query, question)
            results.append((f"SELECT {len(found.rows)}", found))
        return Answer(results, kind="catalogue")

    def _truncations(self, name: str, going: Route) -> str:
        """What a client of PostgreSQL's protocol is told of quotients that PostgreSQL would truncate."""
        held = [(one.query.tree, one.tables) for one in going.pieces if one.query is not None and "/" in one.text]
        if not held:
            return ""
        shelf, columns = self._shelf(name), dict[str, dict[str, str]]()
        rows: Sequence[Row] = []
        with contextlib.suppress(Error):  # which the batch itself will meet, and say better
            if going.private:
                rows = [(t, c, kind) for t, types in self.con.schemas().items() for c, kind in types.items()]
            elif not going.constant:
                rows = shelf.reader.sql(_RELEASED).fetchall()
        for table, column, kind in rows:
            columns.setdefault(table.lower(), {})[column.lower()] = kind
        return truncation_notice(held, columns)

    def _check_names(self, asker: Asker, going: Route) -> None:
        """SessionError where a batch would show a result under a name that another analyst's result has."""
        named = {p.query.name.lower() for p in going.pieces if p.query is not None and p.query.named}
        held = self._shelf(asker.name).con._books.entries() if named else []
        owner = {view.lower(): entry.label for entry in held for view in entry.views if view.lower() in named}
        taken = sorted(name for name, label in owner.items() if label != asker.name)
        if taken:
            raise SessionError(f"{listed(taken)} is released by somebody else; choose another name", "42501")

    def _private(self, asker: Asker, text: str, going: Route) -> Answer:
        self._check_names(asker, going)
        cursor = self._cursor(asker)
        _with_budget(lambda: cursor.execute(text))
        results: list[tuple[str, ResultSet | None]] = []
        by_name: dict[str, ResultSet] = {}
        for piece, name in zip(going.pieces, cursor.names, strict=True):
            named = piece.query is not None and piece.query.named
            shown = [(str(d[0]), str(d[1])) for d in cursor.description or ()]
            found = ResultSet([name for name, _ in shown], [kind for _, kind in shown], cursor.rows())
            by_name[name] = found
            results.append(("CREATE VIEW", None) if named else (f"{_tag(piece.word)} {len(found.rows)}", found))
            cursor.nextset()
        release = cursor.release
        if release is None:
            return Answer(results, named=by_name)
        asker.unnamed.update({name.lower(): {asker.name: release.id} for name in release.views if is_unnamed(name)})
        said = f"charged {release.guarantee}; release {release.id}" if cursor.free is None else str(cursor.free)
        return Answer(results, (said, *release.notes), "private", release.cost, release.guarantee, release.id, by_name)

    def _cursor(self, asker: Asker) -> Cursor:
        held, con = asker.settings, self._shelf(asker.name).con
        return Cursor(con, errors=held.errors, usual=held.amounts, alpha=held.alpha, label=asker.name)

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._worked(self._reading, work)

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._worked(self._running, work)

    async def _worked(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """What ``work`` returns. What it raises is shown in the words for an analyst (``public_error``).

        Where it is cancelled it stops at its next stage, and before it charges.
        """
        cancelled = threading.Event()

        def check(_: str = "") -> None:
            if cancelled.is_set():
                raise SessionError(CANCELLED if has_charged() else CANCELLED_BEFORE, "57014")

        def stoppable() -> T:
            with checked_before_charges(check), progress.heard_by(check):
                return work()

        submitted = pool.submit(copy_context().run, stoppable)  # with who hears of progress
        future = asyncio.wrap_future(submitted)
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            if submitted.cancel():
                raise
            cancelled.set()
            await asyncio.wait([future])  # it runs, and may be charged already: whoever notes it waits for its end
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, duckdb.InterruptException):
            raise SessionError(CANCELLED, "57014")
        raise public_error(error)


def _with_budget(work: Callable[[], T]) -> T:
    """What ``work`` returns; a budget that is missing is asked for in the words of a session."""
    failure: ProgrammingError
    try:
        return work()
    except ProgrammingError as error:
        failure = error
    if str(failure) == NO_BUDGET:
        raise SessionError(NO_SESSION_BUDGET, "53400")
    raise failure


def _tag(word: str) -> str:
    """The word of a command tag that clients count rows by."""
    return "SHOW" if word in ("SHOW", "DESCRIBE", "DESC") else "SELECT"
