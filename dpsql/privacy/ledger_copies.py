"""Copies of a ledger: a backup made while others write, and what a copy holds.

A copy is a file of its own, of one moment, written beside its name and moved there when it is whole and checked.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import LedgerError
from dpsql.privacy import chain, ledger_schema
from dpsql.privacy.anchor import Mark
from dpsql.privacy.budget import Budget
from dpsql.privacy.ledger_checks import check_identity, check_kind, check_whole, is_anchored
from dpsql.privacy.ledger_file import LedgerFile, remedy, sync
from dpsql.privacy.periods import spending


@dataclass(frozen=True)
class Copy:
    """What an intact ledger file holds: its data set's newest name, its newest link, the head of every link.

    ``anchored``: whether it ever had an anchor. ``by_period``: whether a charge of it names periods (`periods`).
    """

    dataset: str
    mark: Mark
    heads: tuple[str, ...]
    anchored: bool
    by_period: bool

    def holds(self, mark: Mark) -> bool:
        """Whether ``mark`` is of this ledger and one of its links."""
        if mark.ledger != self.mark.ledger or not 1 <= mark.link <= len(self.heads):
            return False
        return self.heads[mark.link - 1] == mark.head

    def shared(self, other: Copy) -> int:
        """How many links both files have in common, from the first one on."""
        if self.mark.ledger != other.mark.ledger:
            return 0
        differs = (at for at, heads in enumerate(zip(self.heads, other.heads, strict=False)) if heads[0] != heads[1])
        return next(differs, min(len(self.heads), len(other.heads)))


def read_copy(file: LedgerFile, budget: Budget) -> Copy:
    """A ledger file, checked as a whole with its measurements, as what it is; LedgerError with what is wrong."""

    def work(connection: sqlite3.Connection) -> Copy:
        check_kind(connection, file)
        name = connection.execute("SELECT dataset FROM datasets ORDER BY id DESC LIMIT 1").fetchone()
        dataset = "" if name is None else str(name[0])
        version = check_identity(connection, file, dataset, budget, ())
        check_whole(connection, file, version, payloads=True)
        anchored = "event" in ledger_schema.kinds(version) and is_anchored(connection)
        heads = tuple(head for (head,) in connection.execute("SELECT head FROM chain ORDER BY link"))
        return Copy(dataset, chain.newest(connection), heads, anchored, bool(spending(connection).by_period))

    return file.run(work)


def back_up(file: LedgerFile, target: Path, budget: Budget, check: Callable[[sqlite3.Connection], object]) -> Mark:
    """Copy the ledger as it is at one moment to ``target``, whoever writes; the newest link of the copy.

    ``check``: what the ledger must show first. An older copy of the same ledger at ``target`` is replaced; LedgerError
    for anything else that is there, and where the copy cannot be written. Mode 0600.
    """
    place = LedgerFile(target, file.timeout)
    refusal = place.error("is no older copy of the ledger, and a backup would replace it; name another file")
    with draft_beside(place) as draft:
        copy_to(file, draft, check)
        made = read_copy(LedgerFile(draft, file.timeout), budget)
        if os.path.lexists(target):
            older = None
            with suppress(LedgerError):
                older = None if os.path.samefile(target, file.path) else read_copy(place, budget)
            if older is None or not made.holds(older.mark):
                raise refusal
        os.replace(draft, target)
        sync(target.absolute().parent)
    return made.mark


def copy_to(file: LedgerFile, draft: Path, check: Callable[[sqlite3.Connection], object]) -> None:
    """Fill the empty file ``draft`` with the ledger of one moment; writers wait, as for any reader."""

    def work(connection: sqlite3.Connection) -> None:
        check(connection)
        connection.execute("SELECT count(*) FROM chain").fetchone()  # takes the lock, with the time limit of any reader
        with file.connected(draft) as copied:
            connection.backup(copied)

    file.run(work)


@contextmanager
def draft_beside(file: LedgerFile) -> Generator[Path]:
    """An empty file beside ``file``, to be moved to its name; removed where it was not. LedgerErrors about ``file``."""
    draft = file.path.with_name(f".{file.path.name}.{secrets.token_hex(8)}.new")
    failure = ""
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield draft
    except OSError as error:
        failure = f"cannot be written ({error.strerror}); choose a directory on a local disk that you may write"
    except sqlite3.Error as error:
        failure = remedy(error)
    finally:
        for left in (draft, draft.with_name(draft.name + "-journal")):
            with suppress(OSError):  # of a folder that may only be read
                left.unlink(missing_ok=True)
    if failure:
        raise file.error(failure)
