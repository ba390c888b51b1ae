"""Whole results as Arrow, over Arrow Flight SQL, for whoever shows a token of an account.

A call is whole in itself: its token names the account, its headers say what it may spend
(``dpsql-epsilon: 0.1``, and the other settings of a session in the same way), and nothing is kept until the next one.
Of the messages of Flight SQL queries are answered; what there is to ask, information_schema says, as it does over
PostgreSQL's protocol. (The extra ``dpsql[flight]``.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from dpsql.errors import Error, OperationalError, SQLError
from dpsql.extensions.server.commands import Conversation
from dpsql.extensions.server.listener import Server, check_reach, tls_context
from dpsql.extensions.server.protocol.settings import OWN, Settings
from dpsql.extensions.server.protocol.sqlstate import FAULTS, public_error, state_of
from dpsql.extensions.server.protocol.statements import parts_of
from dpsql.release import Result

T = TypeVar("T")
Arrow: TypeAlias = Any
"""What pyarrow.flight hands over or takes: it has no types of its own."""

_KIND = "type.googleapis.com/arrow.flight.protocol.sql."
_HEADERS = {name.replace(".", "-"): name for name in OWN}
_NO_TOKEN = (
    "a token of an account is needed, as the header authorization: Bearer TOKEN; 'dpsql analyst token' makes one"  # noqa: S105
)
_TOO_MANY = "there are too many requests of this account; come back later"
_NOT_OFFERED = "this message of Flight SQL is not offered; send a query; information_schema says what there is to ask"
_ONE_RESULT = (
    "a query of Flight SQL has one result; name all statements of a batch but one, CREATE VIEW name AS SELECT ..., and "
    "read the views afterwards"
)
_TOO_LARGE = "the statement has {:,} characters, at most {:,} are read; split the batch"


@dataclass
class Flights:
    """Listens at ``port`` (0: any that is free) of the server's host, for the accounts whose tokens ``owner`` knows.

    ``certificate`` and ``key``: files of TLS, without which it listens at loopback only.
    """

    server: Server
    owner: Callable[[str], str | None]
    port: int
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    _asking: Counter[str] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        tls = None if self.certificate is None or self.key is None else tls_context(self.certificate, self.key)
        check_reach(self.server.host, tls)
        self._strangers = 0

    async def start(self) -> None:
        """Begin to listen; ``port`` is then the one that was found. Raises OperationalError."""
        self._loop = asyncio.get_running_loop()
        self._door = None
        with contextlib.suppress(Exception):  # gRPC says no more than that it did not start
            self._door = await self._loop.run_in_executor(None, self._opened)
        if self._door is None:
            raise OperationalError(
                f"cannot listen at {self.server.host} port {self.port}; it is in use, or not allowed: give another "
                "--flight-port"
            )
        self.port = self._door.port

    async def stop(self, seconds: float) -> bool:
        """Take no more calls, and let those that run end for so many seconds; whether they did.

        A client that no longer takes its rows holds its call for good, and pyarrow waits for it at the end of the
        process, too: whoever is told False leaves with ``os._exit``.
        """
        if self._door is None:
            return True
        ended, door = asyncio.Event(), self._door

        def shut() -> None:
            door.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop may have ended before
                self._loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=shut, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
        return ended.is_set()

    def _opened(self) -> Arrow:
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        pair = None
        if self.certificate is not None and self.key is not None:
            pair = [(Path(self.certificate).read_bytes(), Path(self.key).read_bytes())]
        return _door(self, f"grpc{'+tls' if pair else ''}://{host}:{self.port}", pair)

    # -- a call ----------------------------------------------------------------------------------

    def rows(self, headers: Mapping[str, str], peer: str, text: str) -> Arrow:
        """The rows that a text comes to, as a stream, for whom the headers name; runs in a thread of the door's.

        Raises FlightUnauthenticatedError, FlightUnavailableError, and FlightServerError with the
        text of a ``dpsql.Error``: of any other kind of error the client would be shown the traceback.
        """
        from pyarrow import flight, lib

        name = self._done(self._account(headers, peer))
        if name is None:
            raise flight.FlightUnauthenticatedError(_NO_TOKEN)
        with self._counting:
            if self._asking[name] >= self.server.limits.per_account:
                raise flight.FlightUnavailableError(_TOO_MANY)
            self._asking[name] += 1
        try:
            result, notices = self._done(self._answered(name, headers, peer, text))
            found = result.arrow().replace_schema_metadata({"dpsql-notice": "; ".join(notices)} if notices else None)
            rows = self._rows(name, found.to_batches())
            next(rows)  # from here on its end is noticed, though the client may never ask for a row
            return flight.GeneratorStream(found.schema, rows)
        except Error as error:
            said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        except (*FAULTS, lib.ArrowException) as error:
            said = str(public_error(error))
        self._ended(name)
        raise flight.FlightServerError(said)

    def _rows(self, name: str, batches: list[Arrow]) -> Iterator[Arrow]:
        """The rows piece by piece, after a None: the call is one of the account's until its stream ends."""
        try:
            yield None
            yield from batches
        finally:
            self._ended(name)

    def _ended(self, name: str) -> None:
        with self._counting:
            self._asking[name] -= 1

    def _done(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _account(self, headers: Mapping[str, str], peer: str) -> str | None:
        """Whose token the headers have; without one a call waits the longer, the more often its address had none."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        name = None
        if kind.lower() == "bearer":
            with contextlib.suppress(Error):
                name = await self.server.service.looked_up(self.owner, token.strip())
        if name is None:
            self.server.journal.event("sign in refused", client=peer, door="flight")
            if self._strangers < self.server.limits.connections:  # each holds a thread while it waits
                self._strangers += 1
                try:
                    await self.server.waits.wait_after_wrong_token(peer)
                finally:
                    self._strangers -= 1
        return name

    async def _answered(
        self, name: str, headers: Mapping[str, str], peer: str, text: str
    ) -> tuple[Result, Sequence[str]]:
        """The rows, and what a session over PostgreSQL's protocol would be told beside them."""
        server = self.server
        server.allowances.of(name).take()
        if len(text) > server.limits.statement:
            raise SQLError(_TOO_LARGE.format(len(text), server.limits.statement), code="too-large")
        settings = Settings()
        for header, setting in _HEADERS.items():
            if header in headers:
                settings.set(setting, headers[header])
        parts = parts_of(text)
        held = Conversation(server.service, name, settings=settings)
        if len(parts) != 1 or (not parts[0].word and await server.service.shown(held.asker, parts[0]) > 1):
            raise SQLError(_ONE_RESULT, code="syntax")
        (part,) = parts
        try:
            answer = await held.answer(part)
        except Error as error:
            server.journal.statement(name, peer, part.bare, f"refused {state_of(error)}")
            raise
        server.journal.statement(name, peer, part.bare, "answered", answer)
        for _, found in answer.results:
            if found is not None:
                return Result(found.names, found.kinds, found.rows), answer.notices
        return Result(["done"], ["VARCHAR"], [(tag,) for tag, _ in answer.results]), answer.notices


def _door(flights: Flights, place: str, pair: list[tuple[bytes, bytes]] | None) -> Arrow:
    """A server of Flight that hands texts to ``flights``."""
    from pyarrow import flight

    class Caller(flight.ServerMiddleware):  # type: ignore[misc]
        """The headers of one call."""

        def __init__(self, headers: Mapping[str, list[Arrow]]) -> None:
            self.headers = {name.lower(): value[0] for name, value in headers.items() if isinstance(value[0], str)}

    class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
        """Keeps the headers of each call for whoever answers it."""

        def start_call(self, info: Arrow, headers: Mapping[str, list[Arrow]]) -> Caller:
            return Caller(headers)

    class Door(flight.FlightServerBase):  # type: ignore[misc]
        """Queries as Flight SQL sends them. A ticket is the text itself: it runs when its rows are fetched."""

        def get_flight_info(self, context: Arrow, descriptor: Arrow) -> Arrow:
            text = _query(descriptor.command or b"")
            if text is None:
                raise flight.FlightServerError(_NOT_OFFERED)
            ticket = _message(_KIND + "TicketStatementQuery", text)
            return flight.FlightInfo(None, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)

        def do_get(self, context: Arrow, ticket: Arrow) -> Arrow:
            text = _query(ticket.ticket)
            if text is None:
                raise flight.FlightServerError(_NOT_OFFERED)
            peer = context.peer().partition(":")[2].rpartition(":")[0] or "local"
            return flights.rows(context.get_middleware("caller").headers, peer, text)

        def do_action(self, context: Arrow, action: Arrow) -> Iterator[bytes]:
            if action.type == "CreatePreparedStatement":  # its handle is its text, and nothing is kept
                _, fields = _read(action.body.to_pybytes())
                yield _message(_KIND + "ActionCreatePreparedStatementResult", fields.get(1, b""))
            elif action.type != "ClosePreparedStatement":
                raise flight.FlightServerError(_NOT_OFFERED)

    return Door(place, tls_certificates=pair, middleware={"caller": Callers()})


# -- the few messages, in Protocol Buffers' encoding ---------------------------------------------------

_QUERIES = ("CommandStatementQuery", "CommandPreparedStatementQuery", "TicketStatementQuery")


def _query(message: bytes) -> str | None:
    """The SQL text in a message that asks one; None for any other."""
    kind, fields = _read(message)
    if kind not in _QUERIES:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        return fields.get(1, b"").decode()
    return None


def _read(message: bytes) -> tuple[str, dict[int, bytes]]:
    """The name of a message that is packed as ``Any``, and its fields of bytes."""
    outer = _fields(message)
    name = outer.get(1, b"").decode("utf-8", "replace")
    return name.removeprefix(_KIND), _fields(outer.get(2, b""))


def _fields(message: bytes) -> dict[int, bytes]:
    """The fields of bytes by number, the last of each; nothing where the message is malformed or has others."""
    found, at = {}, 0
    while at < len(message):
        key, at = _number(message, at)
        length, at = _number(message, at)
        if key & 7 != 2 or length > len(message) - at:
            return {}
        found[key >> 3] = message[at : at + length]
        at += length
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number of at most 35 bits, seven to a byte, and where the next thing begins."""
    value = 0
    for shift, byte in enumerate(message[at : at + 5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return value, len(message) + 1


def _message(name: str, text: str | bytes) -> bytes:
    """A message of one field of bytes, packed as ``Any``."""
    held = text.encode() if isinstance(text, str) else text
    return _field(1, name.encode()) + _field(2, _field(1, held))


def _field(number: int, content: bytes) -> bytes:
    length, size = len(content), bytearray()
    while length >= 0x80:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content
