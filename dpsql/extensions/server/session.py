"""One signed-in session: the simple and the extended query protocol over a conversation."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pygwire import ConnectionPhase, messages
from pygwire.messages import PGMessage

from dpsql.common import progress
from dpsql.driver.result_sets import ResultSet, Row
from dpsql.errors import Error
from dpsql.extensions.server.commands import Conversation
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance, Limits
from dpsql.extensions.server.protocol.parameters import Prepared, prepared
from dpsql.extensions.server.protocol.pg_types import Encoder
from dpsql.extensions.server.protocol.results import copied, data_row, description, encoders
from dpsql.extensions.server.protocol.sqlstate import FAULTS, SessionError, fields, fields_of, public_error
from dpsql.extensions.server.protocol.statements import Part, closed, declared, fetched, parts_of, without
from dpsql.extensions.server.protocol.wire import Wire
from dpsql.extensions.server.service import CANCELLED, CANCELLED_BEFORE, Answer

# Each part of COPY by itself, so that no text takes more than one look at each of its letters.
_COPIED = re.compile(r"COPY\s+(?:\(|(?P<table>[\w.\"]+))", re.IGNORECASE)
_OUT = re.compile(r"\)\s*TO\s+STDOUT\b", re.IGNORECASE)
_TABLE_OUT = re.compile(r"\s+TO\s+STDOUT\b", re.IGNORECASE)
_OPTIONS = re.compile(r"(?:WITH\b)?\s*(?:\((?P<listed>[^()]*)\)|(?P<bare>[^()]*))", re.IGNORECASE)
_PIECE = 256  # rows between two looks at who else waits
_SELDOM = 30.0  # seconds between two notices of one statement at most; the pauses double until then
_TO_SAY = 1.0  # seconds that a cancelled statement is given to say whether it was charged
STOPPING = "the server is stopping; come back later"


@dataclass
class Portal:
    """A statement with its parameters: what it asks, and its rows as far as they were not sent."""

    part: Part | None
    forms: list[int]
    shown: ResultSet | None = None
    """Its columns, as the client was told."""
    answer: Answer | None = None
    rows: Iterator[Row] | None = None
    sent: int = 0
    written: list[Encoder] = field(default_factory=list)
    holds: bool = False
    """Whether it outlives its transaction."""

    @property
    def values(self) -> int:
        """How many values it holds."""
        results = [] if self.answer is None else [result for _, result in self.answer.results if result is not None]
        return sum(len(result.rows) * len(result.names) for result in results)


def _cancelled_message(work: asyncio.Future[Answer]) -> str:
    """What a client is told that has cancelled: whether something was charged, if that is known by now."""
    if work.cancelled():
        return CANCELLED_BEFORE
    if not work.done():
        return CANCELLED
    error = work.exception()
    if error is not None:
        return CANCELLED_BEFORE if str(error) == CANCELLED_BEFORE else CANCELLED
    answer = work.result()
    return f"{CANCELLED} (release {answer.release})" if answer.cost else CANCELLED_BEFORE


class Session:
    """Answers one client until it leaves. ``cancel`` may be called from outside."""

    def __init__(
        self, wire: Wire, conversation: Conversation, journal: Journal, limits: Limits, allowance: Allowance
    ) -> None:
        self._wire, self._conversation = wire, conversation
        self._journal, self._limits = journal, limits
        self._statements: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}
        self._skipping = False
        self._cancelled = asyncio.Event()
        self._allowance = allowance
        self._handlers: dict[str, Callable[[Part], Awaitable[None]]] = {
            "COPY": self._copy,
            "DECLARE": self._declare,
            "FETCH": self._fetch,
            "CLOSE": self._close_cursor,
        }
        self._idle: asyncio.Future[PGMessage] | None = None

    def cancel(self) -> None:
        """Stop waiting for the statement that runs, if any."""
        self._cancelled.set()

    def leave(self) -> None:
        """Say goodbye once the statement that runs has ended: at once where none does."""
        if self._idle is not None:
            self._idle.cancel()

    async def serve(self, stopping: asyncio.Event) -> None:
        """Answer until the client says goodbye, or the server stops. Raises ClientGoneError, MalformedError."""
        wire = self._wire
        wire.phase, wire.most = ConnectionPhase.READY, self._limits.statement
        while True:
            message = await self._next(stopping)
            if message is None or isinstance(message, messages.Terminate):
                return
            if isinstance(message, messages.Sync):
                self._skipping = False
                self._ready()
            elif isinstance(message, messages.Flush):
                pass
            elif isinstance(message, messages.Query):
                self._skipping = False
                await self._guarded(self._simple(message.query_string), message.query_string)
                self._ready()
            elif not self._skipping:
                await self._extended(message)
                await wire.flush(least=1 << 16)
                continue
            await wire.flush()

    async def _next(self, stopping: asyncio.Event) -> PGMessage | None:
        """The next message; None where the server stops before it is there. Raises ClientGoneError, MalformedError."""
        self._idle = asyncio.ensure_future(self._wire.receive(self._limits.idle))
        try:
            if stopping.is_set():
                self._idle.cancel()
            await asyncio.wait([self._idle])
            if not self._idle.cancelled():
                return self._idle.result()
        finally:
            self._idle.cancel()
            self._idle = None
        self._wire.send(messages.ErrorResponse(fields("57P01", STOPPING, severity="FATAL")))
        return None

    def _ready(self) -> None:
        if self._conversation.status == "I":
            self._portals = {name: portal for name, portal in self._portals.items() if portal.holds}
        self._keep()
        self._wire.send(messages.ReadyForQuery(status=self._conversation.status))

    def _keep(self) -> None:
        """Note in the account's allowance what the open portals hold."""
        self._allowance.keep(self, sum(portal.values for portal in self._portals.values()))

    async def _guarded(self, work: Coroutine[None, None, None], text: str) -> bool:
        """Whether ``work`` succeeds; what it raises is sent to the client."""
        failure: Error
        try:
            await work
            return True
        except Error as error:
            failure = error
        except FAULTS as error:
            failure = public_error(error)
        self._conversation.failed()
        self._wire.send(messages.ErrorResponse(fields_of(failure, text)))
        return False

    # -- asking --------------------------------------------------------------------------------

    async def _answered(self, part: Part) -> Answer:
        """The answer to a part, noted in the audit log; what is cancelled meanwhile goes on without the client."""
        self._allowance.take()
        self._cancelled.clear()
        stages = [""]  # the last one

        def hear(text: str) -> None:
            stages[0] = text

        with progress.heard_by(hear):
            work = asyncio.ensure_future(self._conversation.answer(part))
        stop = asyncio.ensure_future(self._cancelled.wait())
        try:
            await self._waiting_for(work, stop, stages)
        finally:
            stop.cancel()
        if not work.done():
            work.cancel()  # what waits its turn is not begun; what runs ends, for it may be charged
            work.add_done_callback(self._noted(part, "cancelled, and finished"))
            self._note(part, "cancelled")
            await asyncio.wait([work], timeout=_TO_SAY)
            raise SessionError(_cancelled_message(work), "57014")
        self._noted(part, "answered")(work)
        return work.result()

    async def _waiting_for(
        self, work: asyncio.Future[Answer], stop: asyncio.Future[Literal[True]], stages: list[str]
    ) -> None:
        """Wait until one of both is there; a client that waits for long is told what the work is at, by notices."""
        began, patience = time.monotonic(), progress.PATIENCE
        while not (await asyncio.wait((work, stop), timeout=patience, return_when=asyncio.FIRST_COMPLETED))[0]:
            if stages[0]:
                said = f"{stages[0]}, {time.monotonic() - began:.0f} s"
                self._wire.send(messages.NoticeResponse(fields("00000", said, severity="NOTICE")))
                await self._wire.flush()
            patience = min(2 * patience, _SELDOM)

    def _noted(self, part: Part, outcome: str) -> Callable[[asyncio.Future[Answer]], None]:
        def note(work: asyncio.Future[Answer]) -> None:
            error = None if work.cancelled() else work.exception()
            if isinstance(error, Error):
                self._note(part, f"refused {fields_of(error)['C']}")
            elif error is None and not work.cancelled():
                self._note(part, outcome, work.result())

        return note

    def _note(self, part: Part, outcome: str, answer: Answer | None = None) -> None:
        self._journal.statement(self._conversation.name, self._wire.peer, part.bare, outcome, answer)

    # -- the simple protocol -------------------------------------------------------------------

    async def _simple(self, text: str) -> None:
        parts = parts_of(text)
        if not parts:
            self._wire.send(messages.EmptyQueryResponse())
        for part in parts:
            own = self._handlers.get(part.word)
            if own is not None:
                self._conversation.check(part)
                await own(part)
                continue
            answer = await self._answered(part)
            self._notify(answer)
            for tag, result in answer.results:
                if result is not None:
                    self._wire.send(description(result, []))
                    await self._rows(result, encoders(result, []))
                self._wire.send(messages.CommandComplete(tag=tag))
            self._tell(part)

    def _notify(self, answer: Answer) -> None:
        for notice in answer.notices:
            self._wire.send(messages.NoticeResponse(fields("00000", notice, severity="NOTICE")))

    def _tell(self, part: Part) -> None:
        """Tell the client of a setting that it must know of."""
        if part.word in ("SET", "RESET", "DISCARD") and "application_name" in part.bare.lower():
            value = self._conversation.settings.show("application_name")
            self._wire.send(messages.ParameterStatus(name="application_name", value=value))

    async def _rows(self, result: ResultSet, written: list[Encoder]) -> None:
        for number, row in enumerate(result.rows):
            self._wire.send(data_row(row, written))
            if number % _PIECE == _PIECE - 1:
                await self._wire.flow()

    async def _declare(self, part: Part) -> None:
        held = declared(part)
        if held.name in self._portals:
            raise SessionError(f"a cursor is called {held.name[:60]!r} already; close it first", "42P03")
        if not held.holds and self._conversation.status == "I":
            raise SessionError("a cursor lives in a transaction; BEGIN one first, or declare it WITH HOLD", "25P01")
        self._make_room(self._portals)
        self._portals[held.name] = Portal(held.part, [], holds=held.holds)
        self._wire.send(messages.CommandComplete(tag="DECLARE CURSOR"))

    async def _fetch(self, part: Part, *, extended: bool = False) -> None:
        name, count = fetched(part)
        portal = self._portal(name)
        result = (await self._run(portal)).results[0][1]
        if result is None:
            raise SessionError("the cursor's statement has no rows; declare it for a SELECT", "42601")
        if not extended:
            self._wire.send(description(result, []))
        before = portal.sent
        await self._some(portal, result, count)
        self._wire.send(messages.CommandComplete(tag=f"FETCH {portal.sent - before}"))

    async def _close_cursor(self, part: Part) -> None:
        name = closed(part)
        if name == "all":
            self._portals.clear()
        else:
            self._portal(name)
            del self._portals[name]
        self._wire.send(messages.CommandComplete(tag="CLOSE CURSOR"))

    async def _copy(self, part: Part) -> None:
        """COPY (SELECT ...) TO STDOUT: the rows of one query, as text, CSV or binary."""
        asked, options = _copied(part)
        answer = await self._answered(asked)
        self._notify(answer)
        (_, result), *more = answer.results
        if result is None or more:
            raise SessionError("COPY writes the rows of one SELECT; name one", "42601")
        form = next((word for word in ("csv", "binary", "text") if re.search(rf"\b{word}\b", options)), "text")
        header = re.search(r"\bheader\b(?!\s+(?:off|false|0))", options) is not None
        if re.search(r"\b(delimiter|null|quote|escape|force\w*|encoding)\b(?!\s+'?utf-?8)", options):
            raise SessionError("of COPY's options FORMAT and HEADER are offered; leave the others out", "0A000")
        binary = int(form == "binary")
        self._wire.send(messages.CopyOutResponse(overall_format=binary, col_formats=[binary] * len(result.names)))
        for number, piece in enumerate(copied(result, form, header=header)):
            self._wire.send(piece)
            if number % _PIECE == _PIECE - 1:
                await self._wire.flow()
        self._wire.send(messages.CopyDone(), messages.CommandComplete(tag=f"COPY {len(result.rows)}"))

    # -- the extended protocol -----------------------------------------------------------------

    async def _extended(self, message: PGMessage) -> None:
        steps = {
            messages.Parse: self._parse,
            messages.Bind: self._bind,
            messages.Describe: self._describe,
            messages.Execute: self._execute,
            messages.Close: self._close,
        }
        step = steps.get(type(message))
        if step is None:
            work, text = self._refuse(message), ""
        else:
            work, text = step(message), self._text_of(message)  # type: ignore[operator]
        self._skipping = not await self._guarded(work, text)

    async def _refuse(self, message: PGMessage) -> None:
        raise SessionError(
            "this message of the protocol is not offered; ask with Query, or Parse, Bind and Execute", "0A000"
        )

    def _text_of(self, message: PGMessage) -> str:
        """The text that places in errors are counted in: positions of a filled-in text mean nothing to the client."""
        if isinstance(message, messages.Parse):
            return message.query
        name = getattr(message, "statement", getattr(message, "name", ""))
        held = self._statements.get(str(name))
        return held.text if held is not None and not held.oids else ""

    async def _parse(self, message: messages.Parse) -> None:
        if message.statement and message.statement in self._statements:
            raise SessionError(f"a statement is called {message.statement[:60]!r} already; close it first", "42P05")
        self._make_room(self._statements)
        if len(parts_of(message.query)) > 1 or sum(part.queries for part in parts_of(message.query)) > 1:
            raise SessionError(
                "a prepared statement is one statement; send several as one simple query, without parameters",
                "42601",
            )
        self._statements[message.statement] = prepared(
            message.query, message.param_types, self._conversation.service.parameter_types
        )
        self._wire.send(messages.ParseComplete())

    async def _bind(self, message: messages.Bind) -> None:
        held = self._statement(message.statement)
        if message.portal and message.portal in self._portals:
            raise SessionError(f"there is a portal {message.portal[:60]!r} already; close it first", "42P03")
        self._make_room(self._portals)
        text = held.filled(message.param_formats, message.param_values)
        parts = parts_of(text)
        self._portals[message.portal] = Portal(parts[0] if parts else None, message.result_formats)
        self._wire.send(messages.BindComplete())

    async def _describe(self, message: messages.Describe) -> None:
        if message.kind == "S":
            held = self._statement(message.name)
            self._wire.send(messages.ParameterDescription(type_oids=held.oids))
            self._shown(await self._foretold(held), [])
            return
        portal = self._portal(message.name)
        if portal.part is not None and portal.shown is None:
            portal.shown = await self._columns(portal.part)
        self._shown(portal.shown, portal.forms)

    async def _foretold(self, prepared: Prepared) -> ResultSet | None:
        """The columns of a prepared statement, whatever its parameters will be. Raises ``dpsql.Error``."""
        failure: Error
        try:
            parts = parts_of(prepared.example())
            return await self._columns(parts[0]) if parts else None
        except Error as error:
            failure = error
        if prepared.oids:
            with contextlib.suppress(Error):  # some value of the right type may still be none that fits
                return await self._columns(parts_of(prepared.unknown())[0])
        raise failure

    async def _columns(self, part: Part) -> ResultSet | None:
        """The columns of what a part would give; of FETCH those of its cursor."""
        if part.word == "FETCH":
            asked = self._portal(fetched(part)[0]).part
            return None if asked is None else await self._conversation.columns(asked)
        return None if part.word in self._handlers else await self._conversation.columns(part)

    def _shown(self, columns: ResultSet | None, forms: list[int]) -> None:
        self._wire.send(messages.NoData() if columns is None else description(columns, forms))

    async def _execute(self, message: messages.Execute) -> None:
        portal = self._portal(message.portal)
        if portal.part is None:
            self._wire.send(messages.EmptyQueryResponse())
            return
        own = self._handlers.get(portal.part.word)
        if own is not None:
            self._conversation.check(portal.part)
            await (self._fetch(portal.part, extended=True) if portal.part.word == "FETCH" else own(portal.part))
            return
        tag, result = (await self._run(portal)).results[0]
        if result is None:
            self._wire.send(messages.CommandComplete(tag=tag))
            return
        if portal.shown is not None and list(portal.shown.names) != list(result.names):
            raise SessionError(
                "the result has other columns than were foretold; ask again with a simple query, which is free now",
                "0A000",
            )
        await self._some(portal, result, message.max_rows)
        if portal.sent < len(result.rows):
            self._wire.send(messages.PortalSuspended())
        else:
            self._wire.send(messages.CommandComplete(tag=tag))

    async def _run(self, portal: Portal) -> Answer:
        """The answer to a portal's statement, which is asked once."""
        if portal.answer is None:
            assert portal.part is not None  # noqa: S101 - an empty statement is not run
            self._keep()
            self._allowance.check_room()
            portal.answer = await self._answered(portal.part)
            self._notify(portal.answer)
            self._tell(portal.part)
        return portal.answer

    async def _some(self, portal: Portal, result: ResultSet, most: int) -> None:
        """Send the next rows of a portal, at most ``most`` unless that is 0."""
        if portal.rows is None:
            portal.rows, portal.written = iter(result.rows), encoders(result, portal.forms)
        left = len(result.rows) - portal.sent
        count = left if most == 0 else min(most, left)
        for number in range(count):
            self._wire.send(data_row(next(portal.rows), portal.written))
            if number % _PIECE == _PIECE - 1:
                await self._wire.flow()
        portal.sent += count

    async def _close(self, message: messages.Close) -> None:
        if message.kind == "S":
            self._statements.pop(message.name, None)
        else:
            self._portals.pop(message.name, None)
        self._wire.send(messages.CloseComplete())

    def _statement(self, name: str) -> Prepared:
        if name not in self._statements:
            raise SessionError(f"there is no prepared statement {name[:60]!r}; send Parse first", "26000")
        return self._statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise SessionError(f"there is no portal {name[:60]!r}; send Bind first", "34000")
        return self._portals[name]

    def _make_room(self, entries: dict[str, object] | dict[str, Prepared] | dict[str, Portal]) -> None:
        if len(entries) >= self._limits.prepared:
            raise SessionError(
                f"a session keeps at most {self._limits.prepared:,} statements and portals; close some", "53400"
            )


def _copied(part: Part) -> tuple[Part, str]:
    """What COPY writes to the client, as a query, and the options in small letters. Raises SessionError."""
    found, options = _COPIED.match(part.bare), None
    if found is not None and found["table"]:
        text = f"SELECT * FROM {found['table']}"  # noqa: S608 - the client's own text, as any that it sends
        asked, end = Part("", text, text, 1), _TABLE_OUT.match(part.bare, found.end())
    elif found is not None:
        ends = list(_OUT.finditer(part.bare, found.end()))
        end = ends[-1] if ends else None
        stop = end.start() if end is not None else 0
        shown = part.text[: part.text.index(part.bare) + stop]
        asked = without(Part("", shown, part.bare[:stop], 1), found.end()) if stop else part
    if found is not None and end is not None:
        options = _OPTIONS.fullmatch(part.bare[end.end() :].strip())
    if options is None:
        raise SessionError("COPY only writes to the client; write COPY (SELECT ...) TO STDOUT (FORMAT csv)", "0A000")
    return asked, (options["listed"] or options["bare"] or "").lower()
