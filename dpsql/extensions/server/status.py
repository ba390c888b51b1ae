"""What a machine that watches the server may know, over HTTP: ``/healthz``, whether it is well, and ``/metrics``.

Counters are of connections, sign-ins and statements by outcome, in Prometheus' text format. None has a name, a text, a
value, or a time that depends on data. The port needs no password, so it is for the custodian's own network.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dpsql.errors import Error, OperationalError
from dpsql.extensions.server.journal import Journal

_SECONDS = 5.0  # that a client may take
_MOST = 32  # clients at once
_LARGEST = 8_192  # bytes of a request

_ABOUT = {
    "dpsql_connections": "Connections that are open, signed in or not.",
    "dpsql_sessions": "Sessions that are signed in.",
    "dpsql_events_total": "Starts, stops, sign-ins, and sign-ins that were refused.",
    "dpsql_statements_total": "Statements by kind and outcome; that of a refusal is its SQLSTATE.",
    "dpsql_charges_total": "Statements that were charged.",
}


@dataclass
class Status:
    """Answers at ``host`` and ``port`` (0: any that is free). ``well`` raises ``dpsql.Error`` where the server is not.

    ``gauges`` gives what is counted at this moment, by name.
    """

    journal: Journal
    well: Callable[[], object]
    gauges: Callable[[], Mapping[str, float]]
    host: str = "127.0.0.1"
    port: int = 9090
    _clients: dict[asyncio.Task[None], None] = field(default_factory=dict)

    async def start(self) -> None:
        """Begin to listen; ``port`` is then the one that was found. Raises OperationalError."""
        failure = ""
        try:
            self._listening = await asyncio.start_server(self._connected, self.host, self.port, limit=_LARGEST)
        except OSError as error:
            failure = error.strerror or "it cannot be used"
        if failure:
            raise OperationalError(f"cannot listen at {self.host} port {self.port}: {failure}; give another --status")
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Answer nobody any more."""
        self._listening.close()
        for task in list(self._clients):
            task.cancel()

    def metrics(self) -> str:
        """All counters, as Prometheus reads them."""
        lines = []
        held: dict[str, Mapping[str, float]] = {name: {"": value} for name, value in self.gauges().items()}
        for name, counts in (held | self.journal.counts()).items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {_ABOUT.get(name, name)}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{labels} {value:g}" for labels, value in sorted(counts.items())]
        return "\n".join(lines) + "\n"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        if len(self._clients) >= _MOST:  # whoever came first and still says nothing
            next(iter(self._clients)).cancel()
        self._clients[task] = None
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.split(b"\r\n", 1)[0].split()))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._clients.pop(task, None)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _answer(self, request: list[bytes]) -> bytes:
        method, path = (*request, b"", b"")[:2]
        if method not in (b"GET", b"HEAD"):
            status, text = "405 Method Not Allowed", "GET only\n"
        elif path == b"/healthz":
            status, text = await self._health()
        elif path == b"/metrics":
            status, text = "200 OK", self.metrics()
        else:
            status, text = "404 Not Found", "there are /healthz and /metrics\n"
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        head += f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        return head.encode() + (b"" if method == b"HEAD" else body)

    async def _health(self) -> tuple[str, str]:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self.well)
            return "200 OK", "ok\n"
        except Error:
            return (
                "503 Service Unavailable",
                "the ledger, a table's source or the server is not well; the log says more\n",
            )
