"""Messages of PostgreSQL's protocol on a stream: read one at a time, held to sizes and seconds; written in pieces.

The codec is pygwire's. A message's length is checked before its body is read, so that a client can neither fill the
memory nor hold a message open; which message fits when is the session's question.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Iterable
from typing import SupportsIndex

from pygwire import ConnectionPhase, FrontendMessageDecoder, PygwireError
from pygwire.messages import PGMessage, SSLResponse

from dpsql.extensions.server.protocol.limits import BEFORE_SIGN_IN, Limits

_PIECE = 1 << 16  # bytes that are written before the client is waited for


class MalformedError(Exception):
    """The client's bytes are no message of the protocol; what is said of it is fixed text."""


class ClientGoneError(Exception):
    """The client went away, or is too slow."""


class Reader(asyncio.StreamReader):
    """A stream that knows whether anything was received and not read yet."""

    unread = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Take what the transport received."""
        self.unread += len(bytes(data))
        super().feed_data(data)


class Wire:
    """One client's stream of messages."""

    def __init__(self, reader: Reader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._decoder = FrontendMessageDecoder()
        self._waiting = bytearray()
        self.most = BEFORE_SIGN_IN

    @property
    def phase(self) -> ConnectionPhase:
        """What messages mean now: at the start, of a sign-in, or of a session."""
        return self._decoder.phase

    @phase.setter
    def phase(self, phase: ConnectionPhase) -> None:
        self._decoder.phase = phase

    @property
    def secure(self) -> bool:
        """Whether the stream is encrypted."""
        return self._writer.get_extra_info("ssl_object") is not None

    @property
    def peer(self) -> str:
        """The client's address."""
        found = self._writer.get_extra_info("peername")
        return str(found[0]) if isinstance(found, tuple) and found else "local"

    async def receive(self, seconds: float) -> PGMessage:
        """The next message; its first byte may take ``seconds``. Raises MalformedError, ClientGoneError."""
        starting = self.phase is ConnectionPhase.STARTUP
        head = await self._exactly(1, seconds)
        head += await self._exactly(3 if starting else 4, self._limits.stalled)
        (length,) = struct.unpack("!I", head[-4:])
        if not (8 if starting else 4) <= length <= self.most:
            raise MalformedError
        body = await self._exactly(length - 4, self._limits.stalled)
        self._decoder.feed(head + body)
        try:
            found = next(self._decoder)
        except (PygwireError, ValueError, IndexError, struct.error):
            found = None
        if found is None or self._decoder.buffered:
            raise MalformedError from None
        return found

    def send(self, *messages: PGMessage) -> None:
        """Write messages, to be sent with the next ``flush``."""
        for message in messages:
            self._waiting += message.to_wire()

    async def flush(self, *, least: int = 0) -> None:
        """Send what was written, if it is at least so many bytes. Raises ClientGoneError."""
        if not self._waiting or len(self._waiting) < least:
            return
        data, self._waiting = bytes(self._waiting), bytearray()
        try:
            self._writer.write(data)
            async with asyncio.timeout(self._limits.stalled):
                await self._writer.drain()
        except (OSError, TimeoutError, RuntimeError):
            raise ClientGoneError from None

    async def flow(self) -> None:
        """Send what was written if it is much, and let others go on."""
        await self.flush(least=_PIECE)
        await asyncio.sleep(0)

    async def encrypt(self, context: ssl.SSLContext | None) -> None:
        """Answer a request for TLS: begin it, or say that there is none. Raises MalformedError, ClientGoneError."""
        self.send(SSLResponse(accepted=context is not None))
        await self.flush()
        if context is None:
            return
        if self._reader.unread:
            raise MalformedError  # sent before encryption began: it would be taken for what was encrypted
        try:
            await self._writer.start_tls(context, ssl_handshake_timeout=self._limits.stalled)
        except (OSError, EOFError, RuntimeError):
            raise ClientGoneError from None

    async def close(self) -> None:
        """Send what is left and close the stream."""
        with contextlib.suppress(ClientGoneError):
            await self.flush()
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the stream at once."""
        self._writer.transport.abort()

    async def _exactly(self, count: int, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                data = await self._reader.readexactly(count)
        except (asyncio.IncompleteReadError, OSError, TimeoutError):
            raise ClientGoneError from None
        self._reader.unread -= count
        return data
