"""A server in a thread of its own, and a client of a few lines that speaks its protocol on a plain socket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpsql.extensions.server.listener import Server

T = TypeVar("T")
ANSWERED = b"Z"


class Running:
    """A server whose event loop runs in a thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def __enter__(self) -> Running:
        self._thread.start()
        self.do(self.server.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.server.stop(5.0))
        self.server.service.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    @property
    def port(self) -> int:
        return self.server.port


@dataclass
class Said:
    """What came back until the server was ready: messages as (letter, body)."""

    messages: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def letters(self) -> str:
        return b"".join(letter for letter, _ in self.messages).decode()

    @property
    def rows(self) -> list[tuple[str | None, ...]]:
        return [tuple(_columns(body)) for letter, body in self.messages if letter == b"D"]

    @property
    def tags(self) -> list[str]:
        return [body[:-1].decode() for letter, body in self.messages if letter == b"C"]

    @property
    def columns(self) -> list[str]:
        return next(([name for name, _ in _fields(body)] for letter, body in self.messages if letter == b"T"), [])

    @property
    def types(self) -> list[int]:
        return next(([oid for _, oid in _fields(body)] for letter, body in self.messages if letter == b"T"), [])

    @property
    def errors(self) -> list[dict[str, str]]:
        return [_said(body) for letter, body in self.messages if letter == b"E"]

    @property
    def notices(self) -> list[str]:
        return [_said(body)["M"] for letter, body in self.messages if letter == b"N"]

    @property
    def status(self) -> str:
        return next(body.decode() for letter, body in reversed(self.messages) if letter == b"Z")


class Client:
    """A client that signs in and asks; each answer is what came until the server was ready."""

    def __init__(self, port: int, user: str = "ann", password: str = "secret", **params: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.key = b""
        self.started: list[tuple[bytes, bytes]] = []
        self._buffer = b""
        words = {"user": user, **params}
        body = struct.pack("!I", 0x30000) + b"".join(f"{k}\0{v}\0".encode() for k, v in words.items()) + b"\0"
        self.socket.sendall(struct.pack("!I", len(body) + 4) + body)
        try:
            self._sign_in(password)
        except BaseException:
            self.socket.close()
            raise

    def _sign_in(self, password: str) -> None:
        assert self.receive()[1][:4] == struct.pack("!I", 10)
        first = "n=,r=abc"
        self.send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first) + 3) + b"n,," + first.encode())
        letter, body = self.receive()
        if letter == b"E":
            raise PermissionError(_said(body)["M"])
        said = body[4:].decode()
        nonce, salt, count = (part[2:] for part in said.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(count))
        client = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={nonce}"
        signature = hmac.digest(hashlib.sha256(client).digest(), f"{first},{said},{final}".encode(), "sha256")
        proof = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        self.send(b"p", f"{final},p={base64.b64encode(proof).decode()}".encode())
        self.started = self.answer().messages
        if not self.started:
            raise ConnectionError("the server closed the connection")
        if self.started[-1][0] == b"E":
            raise PermissionError(_said(self.started[-1][1])["M"])
        self.key = next(body for letter, body in self.started if letter == b"K")

    def send(self, letter: bytes, body: bytes = b"") -> None:
        self.socket.sendall(letter + struct.pack("!I", len(body) + 4) + body)

    def receive(self) -> tuple[bytes, bytes]:
        head = self._exactly(5)
        return head[:1], self._exactly(struct.unpack("!I", head[1:])[0] - 4)

    def answer(self) -> Said:
        """Everything up to ReadyForQuery, or to an error that ends the connection."""
        said = Said()
        while True:
            try:
                said.messages.append(self.receive())
            except ConnectionError:
                return said
            if said.messages[-1][0] == ANSWERED:
                return said

    def ask(self, text: str) -> Said:
        """A simple query."""
        self.send(b"Q", text.encode() + b"\0")
        return self.answer()

    def prepared(
        self, text: str, *values: str | None, oids: tuple[int, ...] = (), most: int = 0, describe: bytes = b"P"
    ) -> Said:
        """An extended query with text parameters."""
        self.parse(text, oids)
        if describe == b"S":
            self.send(b"D", b"S\0")
        self.bind(values)
        if describe == b"P":
            self.send(b"D", b"P\0")
        self.send(b"E", b"\0" + struct.pack("!I", most))
        self.send(b"S")
        return self.answer()

    def parse(self, text: str, oids: tuple[int, ...] = (), name: str = "") -> None:
        types = struct.pack(f"!H{len(oids)}I", len(oids), *oids)
        self.send(b"P", f"{name}\0{text}\0".encode() + types)

    def bind(self, values: tuple[str | None, ...] = (), name: str = "", portal: str = "") -> None:
        body = f"{portal}\0{name}\0".encode() + struct.pack("!HH", 0, len(values))
        for value in values:
            held = None if value is None else value.encode()
            body += struct.pack("!i", -1) if held is None else struct.pack("!i", len(held)) + held
        self.send(b"B", body + struct.pack("!H", 0))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._buffer += piece
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found


@contextmanager
def served(make: Callable[[], Server]) -> Iterator[Running]:
    """A server that runs while the block does."""
    with Running(make()) as running:
        yield running


def _columns(body: bytes) -> Iterator[str | None]:
    (count,) = struct.unpack_from("!H", body)
    at = 2
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        yield None if length < 0 else body[at : at + length].decode()
        at += max(length, 0)


def _fields(body: bytes) -> Iterator[tuple[str, int]]:
    (count,) = struct.unpack_from("!H", body)
    at = 2
    for _ in range(count):
        end = body.index(0, at)
        yield body[at:end].decode(), struct.unpack_from("!I", body, end + 7)[0]
        at = end + 19


def _said(body: bytes) -> dict[str, str]:
    parts = [part.decode() for part in body.split(b"\0") if part]
    return {part[0]: part[1:] for part in parts}
