"""The SQLite file of a ledger: one connection a call, durable commits, fixed texts for what goes wrong."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpsql.errors import LedgerError

T = TypeVar("T")

REMEDIES = {
    "SQLITE_BUSY": "is locked by another process; wait for it to finish, then run again",
    "SQLITE_LOCKED": "is locked by another process; wait for it to finish, then run again",
    "SQLITE_READONLY": "cannot be written; give this user write access to the file and to its directory",
    "SQLITE_CANTOPEN": "cannot be opened; check the path and the access rights of its directory",
    "SQLITE_PERM": "cannot be opened; check the path and the access rights of its directory",
    "SQLITE_NOTADB": "is not a SQLite database; name the ledger file of this policy, or restore a backup of it",
    "SQLITE_CORRUPT": "is damaged; keep the file, restore the newest backup and verify it against its anchor",
    "SQLITE_FULL": "cannot grow because the disk is full; free some space, then run again",
    "SQLITE_IOERR": "cannot be read or written; check the disk and look at the ledger before you run again",
    "SQLITE_CONSTRAINT": "refused a row that breaks its rules; run verify() on it",
}
_DAMAGED = "is damaged: it holds values that no ledger has; keep the file and restore the newest backup"


def dataset_of(path: Path) -> str | None:
    """The newest data set of the ledger at ``path``, unchecked; None where it cannot be read as one."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as held:
        row = held.execute("SELECT dataset FROM datasets ORDER BY id DESC LIMIT 1").fetchone()
        return None if row is None else str(row[0])
    return None


def remedy(error: sqlite3.Error) -> str:
    """What SQLite's error means for a ledger, and what to do."""
    name = getattr(error, "sqlite_errorname", "") or ""
    for prefix, text in REMEDIES.items():
        if name.startswith(prefix):
            return text
    return "could not be used by SQLite; run verify() on it"


@dataclass(frozen=True)
class LedgerFile:
    """A ledger's file. ``timeout``: seconds to wait for another process's lock."""

    path: Path
    timeout: float

    def error(self, text: str) -> LedgerError:
        """A LedgerError about this file."""
        return LedgerError(f"ledger {self.path} {text}")

    @contextmanager
    def connected(self, path: Path | None = None) -> Iterator[sqlite3.Connection]:
        """A connection that commits durably; what was not committed is rolled back at its end."""
        uri = f"{(path or self.path).absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=self.timeout, isolation_level=None)
        with closing(connection):
            for pragma in (
                "synchronous = EXTRA",
                "fullfsync = ON",
                "foreign_keys = ON",
                "trusted_schema = OFF",
                "cell_size_check = ON",
            ):
                connection.execute(f"PRAGMA {pragma}")
            yield connection

    def create(self, fill: Callable[[sqlite3.Connection], None]) -> None:
        """Make the file, which appears under its name only when it is complete; LedgerError if anything is there.

        Mode 0600.
        """
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.new")
        failure: str | None = None
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with self.connected(draft) as connection:
                fill(connection)
            os.link(draft, self.path)  # atomic, and never replaces a file
            sync(self.path.parent)
        except FileExistsError:
            failure = "exists already; open it, a ledger is never replaced"
        except OSError as error:
            failure = f"cannot be created ({error.strerror}); choose a directory on a local disk that you may write"
        except sqlite3.Error as error:
            failure = remedy(error)
        finally:
            with suppress(OSError):  # of a folder that may only be read
                draft.unlink(missing_ok=True)
        if failure is not None:
            raise self.error(failure)

    def run(self, work: Callable[[sqlite3.Connection], T], *, write: bool = False) -> T:
        """``work`` in one transaction on a connection of its own; SQLite's errors become LedgerErrors.

        A commit into a file that is no longer the one of that name is an error too: it would be lost.
        """
        before = self._identity()
        if before is None:
            if os.path.lexists(self.path):
                raise self.error("is not a file; name the ledger file of this policy")
            raise self.error("does not exist; restore it, for what was spent is recorded nowhere else")
        failure: str
        try:
            with self.connected() as connection:
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                result = work(connection)
                connection.execute("COMMIT")
            if not write or self._identity() == before:
                return result
            failure = "was replaced while it was written; put the newest file back, then run again"
        except sqlite3.Error as error:
            failure = remedy(error)
        except (TypeError, ValueError, LookupError, ArithmeticError):
            # What was read back is not what any version of dpsql writes.
            failure = _DAMAGED
        raise self.error(failure)

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of the file, None where there is no file."""
        if not os.path.isfile(self.path):
            return None
        found = os.stat(self.path)
        return found.st_dev, found.st_ino


def sync(directory: Path) -> None:
    """Make a new name in ``directory`` survive a loss of power."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
