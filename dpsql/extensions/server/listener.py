"""The server: listens, signs clients in, and gives each a session until it leaves or the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pygwire import ConnectionPhase, TransactionStatus, messages

from dpsql.errors import DataError, Error, OperationalError, printable
from dpsql.extensions.server.commands import Conversation
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowances, Limits
from dpsql.extensions.server.protocol.scram import MECHANISM, Exchange, SignInError, Verifier
from dpsql.extensions.server.protocol.settings import REPORTED
from dpsql.extensions.server.protocol.sqlstate import SessionError, fields, fields_of
from dpsql.extensions.server.protocol.wire import ClientGoneError, MalformedError, Reader, Wire
from dpsql.extensions.server.service import Service
from dpsql.extensions.server.session import Session
from dpsql.extensions.server.waits import Waits, network_of

MALFORMED = "the message is malformed or does not fit here; the connection is closed"
WRONG = "the name or the password is wrong, or the account is suspended or has expired; ask the custodian"

Accounts = Callable[[str], "Verifier | None"]
"""The verifier of an account that may sign in now, by name; None for any other name."""


@dataclass
class Server:
    """Listens at ``host`` and ``port`` (0: any that is free) and answers over ``service``.

    Beyond loopback only with TLS (``tls``), which is then asked of every client. Raises DataError otherwise.
    """

    service: Service
    accounts: Accounts
    host: str = "127.0.0.1"
    port: int = 5432
    tls: ssl.SSLContext | None = None
    limits: Limits = field(default_factory=Limits)
    journal: Journal = field(default_factory=lambda: Journal(None))
    slow: float = 0.5
    """Seconds before the answer to a first wrong password (``waits``)."""

    def __post_init__(self) -> None:
        check_reach(self.host, self.tls)
        self._stopping = asyncio.Event()
        self._listening: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], Wire] = {}
        self._strangers: dict[asyncio.Task[None], Wire] = {}
        """Those who have not signed in, oldest first: as many as there may be sessions."""
        self._sessions: dict[tuple[int, bytes], Session] = {}
        self._signed_in: Counter[str] = Counter()
        self.waits = Waits(self.slow)
        self._secret = os.urandom(32)
        self.allowances = Allowances(self.limits.statements, self.limits.portal_values)
        self._number = 0

    async def start(self) -> None:
        """Begin to listen; ``port`` is then the one that was found. Raises OperationalError."""
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(Reader(loop=loop), self._connected, loop=loop)

        failure = ""
        try:
            self._listening = await loop.create_server(protocol, self.host, self.port, backlog=256)
        except OSError as error:
            failure = error.strerror or "it cannot be used"
        if failure or self._listening is None:
            raise OperationalError(f"cannot listen at {self.host} port {self.port}: {failure}; give another --port")
        self.port = self._listening.sockets[0].getsockname()[1]
        self.journal.event("start", host=self.host, port=self.port, tls=self.tls is not None)

    async def stop(self, seconds: float = 30.0) -> None:
        """Take no more clients, let running statements end for so many seconds, then close what is left."""
        self._stopping.set()
        if self._listening is not None:
            self._listening.close()
        for session in list(self._sessions.values()):
            session.leave()
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=seconds)
        for task, wire in list(self._clients.items()):
            wire.abort()
            task.cancel()
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=1.0)
        self.journal.event("stop")

    def gauges(self) -> dict[str, float]:
        """How many connect and have signed in at this moment."""
        return {"dpsql_connections": len(self._clients), "dpsql_sessions": len(self._sessions)}

    def well(self) -> None:
        """Raise OperationalError where the server stops."""
        if self._stopping.is_set():
            raise OperationalError("the server is stopping; come back later")

    # -- a client ------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, Reader)  # noqa: S101 - made in start()
        wire = Wire(reader, writer, self.limits)
        if len(self._strangers) >= self.limits.connections:
            # Whoever waits longest gives way, of the address that most wait from: it crowds out nobody but itself.
            crowd = Counter(network_of(stranger.peer) for stranger in self._strangers.values()).most_common(1)[0][0]
            oldest = next(task for task, stranger in self._strangers.items() if network_of(stranger.peer) == crowd)
            self._strangers.pop(oldest).abort()
        task = asyncio.ensure_future(self._client(wire))
        self._clients[task] = self._strangers[task] = wire
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)
        self._strangers.pop(task, None)

    async def _client(self, wire: Wire) -> None:
        try:
            await self._welcomed(wire)
        except MalformedError:
            wire.send(messages.ErrorResponse(fields("08P01", MALFORMED, severity="FATAL")))
        except (ClientGoneError, TimeoutError):
            pass
        finally:
            await wire.close()

    async def _welcomed(self, wire: Wire) -> None:
        async with asyncio.timeout(self.limits.sign_in):
            start = await self._started(wire)
            if start is None:
                return
            name = await self._signed(wire, start)
        if name is None:
            return
        task = asyncio.current_task()
        if task is not None:
            self._strangers.pop(task, None)
        self._signed_in[name] += 1
        key = self._key()
        session: Session | None = None
        try:
            held = Conversation(self.service, name, start.params.get("database") or name)
            session = Session(wire, held, self.journal, self.limits, self.allowances.of(name))
            if not self._may_begin(wire, name, held, start):
                return
            self._sessions[key] = session
            self._greet(wire, held, key)
            await wire.flush()
            self.journal.event("sign in", account=name, client=wire.peer)
            await session.serve(self._stopping)
        finally:
            self._sessions.pop(key, None)
            self._signed_in[name] -= 1
            self.allowances.of(name).leave(session)

    def _may_begin(self, wire: Wire, name: str, conversation: Conversation, start: messages.StartupMessage) -> bool:
        if len(self._sessions) >= self.limits.connections or self._signed_in[name] > self.limits.per_account:
            said = "there are too many connections; close some, or come back later"
            wire.send(messages.ErrorResponse(fields("53300", said, severity="FATAL")))
            return False
        failure: Error | None = None
        try:
            for setting, value in _given(start.params):
                conversation.settings.set(setting, value)
        except Error as error:
            failure = error
        if failure is not None:
            wire.send(messages.ErrorResponse(fields_of(failure, severity="FATAL")))
        return failure is None

    async def _started(self, wire: Wire) -> messages.StartupMessage | None:
        """The client's first words; None where it wanted something else. Raises MalformedError, ClientGoneError."""
        asked = 0
        while True:
            message = await wire.receive(self.limits.sign_in)
            asked += 1
            if asked > 4:
                raise MalformedError
            if isinstance(message, messages.CancelRequest):
                session = self._sessions.get((message.process_id, message.secret_key))
                if session is not None:
                    session.cancel()
                return None
            if isinstance(message, messages.SSLRequest) and not wire.secure:
                await wire.encrypt(self.tls)
            elif isinstance(message, messages.GSSEncRequest):
                wire.send(messages.GSSResponse(accepted=False))
                await wire.flush()
            elif isinstance(message, messages.StartupMessage):
                if self.tls is not None and not wire.secure:
                    said = "this server is reached with TLS only; connect with sslmode=require, or better verify-full"
                    wire.send(messages.ErrorResponse(fields("28000", said, severity="FATAL")))
                    return None
                unknown = [name for name in message.params if name.startswith("_pq_.")]
                if message.protocol_version & 0xFFFF or unknown:
                    wire.send(messages.NegotiateProtocolVersion(newest_minor=0, unrecognized=unknown))
                return message
            else:
                raise MalformedError

    async def _signed(self, wire: Wire, start: messages.StartupMessage) -> str | None:
        """The account that the client proved to be; None where it did not. Raises MalformedError, ClientGoneError."""
        name = start.params.get("user", "")
        try:
            known = await self.service.looked_up(self.accounts, name)
        except Error as error:  # of the ledger or of the file of passwords: the client is told what it is always told
            self.journal.event("accounts unreadable", account=name[:100], client=wire.peer, why=type(error).__name__)
            known = None
        exchange = Exchange(known or Verifier.decoy(name, self._secret))
        last = b""  # which proves nothing
        try:
            wire.send(messages.AuthenticationSASL(mechanisms=[MECHANISM]))
            await wire.flush()
            wire.phase = ConnectionPhase.AUTHENTICATING_SASL_INITIAL
            first = await wire.receive(self.limits.sign_in)
            if not isinstance(first, messages.SASLInitialResponse) or first.mechanism != MECHANISM:
                raise MalformedError
            wire.send(messages.AuthenticationSASLContinue(data=exchange.challenge(first.data)))
            await wire.flush()
            wire.phase = ConnectionPhase.AUTHENTICATING_SASL_CONTINUE
            final = await wire.receive(self.limits.sign_in)
            if not isinstance(final, messages.SASLResponse):
                raise MalformedError
            last = final.data
        except SignInError:
            pass

        def check() -> bytes:
            try:
                return exchange.proved(last)
            except SignInError:
                self.journal.event("sign in refused", account=name[:100], client=wire.peer)
                raise

        refusal = SessionError(WRONG, "28P01")
        try:
            proof = await self.waits.check_in_turn(name, wire.peer, check)
        except SessionError as busy:
            proof, refusal = None, busy
        if proof is None:
            wire.send(messages.ErrorResponse(fields_of(refusal, severity="FATAL")))
            return None
        wire.send(messages.AuthenticationSASLFinal(data=proof), messages.AuthenticationOk())
        return name

    def _greet(self, wire: Wire, conversation: Conversation, key: tuple[int, bytes]) -> None:
        parameters = REPORTED | {
            "application_name": conversation.settings.show("application_name"),
            "session_authorization": conversation.name,
        }
        wire.send(*(messages.ParameterStatus(name=name, value=printable(value)) for name, value in parameters.items()))
        wire.send(messages.BackendKeyData(process_id=key[0], secret_key=key[1]))
        wire.send(messages.ReadyForQuery(status=TransactionStatus.IDLE))

    def _key(self) -> tuple[int, bytes]:
        """The number of a session and the secret by which another connection may cancel what it runs."""
        self._number = self._number % 0x7FFFFFFF + 1
        return self._number, struct.pack("!I", int.from_bytes(os.urandom(4), "big"))


def check_reach(host: str, tls: ssl.SSLContext | None) -> None:
    """Raise DataError for a host beyond loopback without TLS."""
    if tls is None and not _is_loopback(host):
        raise DataError(
            f"host {host!r} is reached from other machines, and without TLS others could read passwords and answers; "
            "give --tls-cert and --tls-key, or listen at 127.0.0.1"
        )


def tls_context(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate (and those between it and the root). Raises OperationalError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    failure = ""
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError:
        failure = "they are no certificate and key that belong together"
    except OSError as error:
        failure = error.strerror or "they cannot be read"
    if failure:
        raise OperationalError(f"certificate {str(certificate)!r} and key {str(key)!r}: {failure}; check both files")
    return context


def _given(params: dict[str, str]) -> list[tuple[str, str]]:
    """The settings that a client begins with: parameters of its own, and ``-c name=value`` in its options."""
    found = [
        (name, value) for name, value in params.items() if name not in ("user", "database", "options", "replication")
    ]
    found = [(name, value) for name, value in found if not name.startswith("_pq_.")]
    words = params.get("options", "").replace("\\ ", "\0").split()
    for at, word in enumerate(words):
        text = word[2:] if word.startswith("--") or (word.startswith("-c") and len(word) > 2) else ""
        text = words[at + 1] if word == "-c" and at + 1 < len(words) else text
        name, equals, value = text.partition("=")
        if equals:
            found.append((name.replace("-", "_"), value.replace("\0", " ")))
    return found


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
