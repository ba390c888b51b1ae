"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the server's side of a sign-in, and the verifier that it needs of a password.

A verifier is salted and stretched: it proves that somebody knows the password and does not give it away.
It is written as PostgreSQL writes its own, ``SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from dataclasses import dataclass

from dpsql.errors import DataError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4096  # as PostgreSQL; clients refuse to do a hundred times as many
_SALT = 16
_WRITTEN = re.compile(r"SCRAM-SHA-256\$(\d{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_FIRST = re.compile(r"(n|y|p=[^,]*),(?:a=[^,]*)?,((?:m=[^,]*,)?n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)")
_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^p].*?)?),p=([A-Za-z0-9+/=]+)")


class SignInError(Exception):
    """The client's message is malformed, or its proof does not hold; no word on which."""


@dataclass(frozen=True, repr=False)
class Verifier:
    """What the server keeps of a password: salt, iterations, the client's stored key and the server's key."""

    iterations: int
    salt: bytes
    stored: bytes
    server: bytes

    @classmethod
    def of(cls, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
        """The verifier of a password, with a new salt unless one is given."""
        salt = os.urandom(_SALT) if salt is None else salt
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
        client, server = _hmac(salted, b"Client Key"), _hmac(salted, b"Server Key")
        return cls(iterations, salt, hashlib.sha256(client).digest(), server)

    @classmethod
    def read(cls, text: str) -> Verifier:
        """The verifier as ``str`` writes it. Raises DataError."""
        found = _WRITTEN.fullmatch(text)
        parts = [_decoded(part) for part in found.groups()[1:]] if found else []
        if found is None or None in parts or len(parts[1] or b"") != 32 or len(parts[2] or b"") != 32:
            raise DataError("a verifier is malformed; set the password again with 'dpsql analyst set'")
        salt, stored, server = (part or b"" for part in parts)
        return cls(int(found[1]), salt, stored, server)

    @classmethod
    def decoy(cls, name: str, secret: bytes) -> Verifier:
        """A verifier that no password fits, the same each time: a name that is unknown looks like one that is not."""
        salt = _hmac(secret, name.encode())[:_SALT]
        return cls(ITERATIONS, salt, _hmac(secret, b"stored" + salt), _hmac(secret, b"server" + salt))

    def __str__(self) -> str:
        salt, stored, server = (_encoded(part) for part in (self.salt, self.stored, self.server))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    def __repr__(self) -> str:
        return "<Verifier>"


class Exchange:
    """One sign-in: the client's first message, the server's challenge, the client's proof, the server's."""

    def __init__(self, verifier: Verifier, nonce: str | None = None) -> None:
        self._verifier = verifier
        self._nonce = _encoded(os.urandom(18)) if nonce is None else nonce
        self._so_far = ""
        self._whole = ""
        self._binding = ""

    def challenge(self, first: bytes) -> bytes:
        """The server's first message. Raises SignInError for a malformed one, or one that binds a channel."""
        found = _FIRST.fullmatch(_text(first))
        if found is None or found[1].startswith("p="):
            raise SignInError
        self._whole = found[4] + self._nonce
        self._binding = _encoded(_text(first)[: found.start(2)].encode())
        said = f"r={self._whole},s={_encoded(self._verifier.salt)},i={self._verifier.iterations}"
        self._so_far = f"{found[2]},{said}"
        return said.encode()

    def proved(self, final: bytes) -> bytes:
        """The server's signature, where the client's proof shows that it knows the password. Raises SignInError."""
        found = _FINAL.fullmatch(_text(final))
        proof = _decoded(found[4]) if found else None
        if found is None or proof is None or len(proof) != 32 or not self._so_far:
            raise SignInError
        if found[2] != self._binding or not hmac.compare_digest(found[3], self._whole):
            raise SignInError
        signed = f"{self._so_far},{found[1]}".encode()
        signature = _hmac(self._verifier.stored, signed)
        client = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client).digest(), self._verifier.stored):
            raise SignInError
        return b"v=" + _encoded(_hmac(self._verifier.server, signed)).encode()


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SignInError from None
