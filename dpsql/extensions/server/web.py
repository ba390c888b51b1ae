"""Agents over HTTP: the tools of `agents` at ``/mcp``, for whoever shows a token of an account.

Each request is whole in itself: it is read within seconds and bytes, its token names the account, and tools that are
made for that account alone answer it. No session is kept between requests, so that none can be taken over. (The extra
``dpsql[mcp]``.)
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from dpsql.errors import Error, OperationalError
from dpsql.extensions.server.agents import Agent, tools
from dpsql.extensions.server.listener import Server, check_reach

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_NO_TOKEN = (401, "a token of an account is needed, as Authorization: Bearer TOKEN; 'dpsql analyst token' makes one")
_TOO_LARGE = "the request is too large, at most {:,} bytes are read; split the batch"
_TOO_SLOW = (408, "the request did not come in time")
_TOO_MANY = (429, "there are too many requests; come back later")


class _TurnedAwayError(Exception):
    """A request that is answered with a status and a fixed text."""


@dataclass
class Agents:
    """Listens at ``port`` (0: any that is free) of the server's host, for the accounts whose tokens ``owner`` knows.

    Beyond loopback only with TLS, as the server itself.
    """

    server: Server
    owner: Callable[[str], str | None]
    port: int
    tls: ssl.SSLContext | None = None
    _asking: Counter[str] = field(default_factory=Counter)
    _made: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_reach(self.server.host, self.tls)

    async def start(self) -> None:
        """Begin to listen; ``port`` is then the one that was found. Raises OperationalError."""
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol

        limits, tls = self.server.limits, self.tls

        class Hurried(H11Protocol):  # type: ignore[misc]
            """Lets a client go whose first request does not begin in time."""

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                self.loop.call_later(limits.sign_in, lambda: None if self.cycle is not None else transport.abort())

        class Quiet(uvicorn.Server):  # type: ignore[misc]
            """Leaves signals to the command that runs it."""

            def capture_signals(self) -> contextlib.AbstractContextManager[None]:
                return contextlib.nullcontext()

        config = uvicorn.Config(
            self,
            host=self.server.host,
            port=self.port,
            http=Hurried,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=2 * limits.connections,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._web = Quiet(config)
        self._task = asyncio.ensure_future(self._serve())
        while not self._web.started and not self._task.done():
            await asyncio.sleep(0.01)
        if self._task.done():
            raise OperationalError(
                f"cannot listen at {self.server.host} port {self.port}; it is in use, or not allowed: give another "
                "--mcp-port"
            )
        self.port = self._web.servers[0].sockets[0].getsockname()[1]

    async def _serve(self) -> None:
        with contextlib.suppress(SystemExit):  # how uvicorn says that it cannot listen
            await self._web.serve()

    async def stop(self, seconds: float) -> None:
        """Take no more requests, and let those that run end for so many seconds."""
        self._web.should_exit = True
        await asyncio.wait([self._task], timeout=seconds)
        self._web.force_exit = True
        await asyncio.wait([self._task], timeout=1.0)
        self._task.cancel()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request, as ASGI hands it over."""
        name = ""
        try:
            name = await self._account(scope)
            if self._asking[name] >= self.server.limits.per_account:
                raise _TurnedAwayError(*_TOO_MANY)
            self._asking[name] += 1
            try:
                await self._answered(name, scope, await self._body(receive), send)
            finally:
                self._asking[name] -= 1
        except _TurnedAwayError as away:
            status, text = away.args
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": f"{text}\n".encode()})

    async def _account(self, scope: Message) -> str:
        """Whose token the request has; one without any waits the longer, the more often its address did so."""
        peer = str((scope.get("client") or ("local",))[0])
        given = [value for key, value in scope["headers"] if key == b"authorization"]
        kind, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        name = None
        if kind.lower() == b"bearer":
            with contextlib.suppress(Error):
                text = token.strip().decode("latin-1")
                name = await self.server.service.looked_up(self.owner, text)
        if name is None:
            await self.server.waits.wait_after_wrong_token(peer)
            self.server.journal.event("sign in refused", client=peer, door="mcp")
            raise _TurnedAwayError(*_NO_TOKEN)
        return name

    async def _body(self, receive: Receive) -> bytes:
        limits, body, more = self.server.limits, bytearray(), True
        try:
            async with asyncio.timeout(limits.stalled):
                while more:
                    message = await receive()
                    body += message.get("body", b"")
                    more = message["type"] == "http.request" and message.get("more_body", False)
                    if len(body) > limits.statement:
                        raise _TurnedAwayError(413, _TOO_LARGE.format(limits.statement))
        except TimeoutError:
            raise _TurnedAwayError(*_TOO_SLOW) from None
        return bytes(body)

    async def _answered(self, name: str, scope: Message, body: bytes, send: Send) -> None:
        made = self._made.get(name)
        if made is None:
            agent = Agent(self.server.service, name, self.server.journal, self.server.allowances.of(name))
            made = self._made.setdefault(name, tools(agent))
        app = made.streamable_http_app(stateless_http=True, json_response=True, host=self.server.host)
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async with made.session_manager.run():
            await app(scope, receive, send)
            gone.set()
