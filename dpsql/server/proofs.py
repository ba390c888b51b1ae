"""How analysts prove who they are: a file beside the ledger with verifiers of passwords and hashes of tokens.

Neither is ever kept itself. A password signs in to PostgreSQL's protocol, a token (256 random bits, so that a plain
SHA-256 of it tells nothing) to the tools of agents. The file has mode 0600 and is replaced in one step.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsql.errors import DataError, OperationalError
from dpsql.server.protocol.scram import Verifier


@dataclass(frozen=True)
class Proofs:
    """What is kept of one analyst's password and tokens."""

    password: Verifier
    tokens: tuple[str, ...] = ()
    """SHA-256 of each, in hexadecimal digits."""


class ProofsFile:
    """The file at ``path``, which need not be there. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int], dict[str, Proofs]] | None = None

    def read(self) -> dict[str, Proofs]:
        """By name, as the file is now. Raises OperationalError."""
        with self._lock:
            try:
                state = os.stat(self.path)
            except FileNotFoundError:
                return {}
            mark = (state.st_ino, state.st_mtime_ns)
            if self._read is None or self._read[0] != mark:
                self._read = mark, _proofs(self.path)
            return self._read[1]

    def write(self, proofs: Mapping[str, Proofs]) -> None:
        """Replace the file. Raises OperationalError."""
        held = {name: {"password": str(one.password), "tokens": one.tokens} for name, one in sorted(proofs.items())}
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        failure = ""
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps(held, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
        except OSError as error:
            failure = error.strerror or "unwritable"
        if failure:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise OperationalError(f"the passwords' file {str(self.path)!r} cannot be written: {failure}")


def new_token() -> str:
    """A token, to be shown once."""
    return "dpsql_" + base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def hashed(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _proofs(path: Path) -> dict[str, Proofs]:
    failure = ""
    try:
        return {str(name): _one(held) for name, held in json.loads(path.read_text(encoding="utf-8")).items()}
    except OSError as error:
        failure = error.strerror or "unreadable"
    except (ValueError, AttributeError, TypeError, LookupError, DataError):
        failure = "it is no file of passwords"
    raise OperationalError(f"the passwords' file {str(path)!r}: {failure}; set the passwords again")


def _one(held: Any) -> Proofs:
    """Of one analyst; earlier versions wrote the password's verifier alone."""
    if isinstance(held, str):
        return Proofs(Verifier.read(held))
    return Proofs(Verifier.read(held["password"]), tuple(str(token) for token in held["tokens"]))
