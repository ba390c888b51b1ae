"""The anchor: a small file elsewhere that remembers a ledger's newest link.

An older copy of a ledger put back is a refund that the ledger alone cannot notice. A file that the
same hand cannot put back, on another disk or host, can: a ledger that lacks the anchored link is
refused. It is written after each commit, so a crash in between leaves it one step behind, never ahead.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import LedgerError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Mark:
    """A link of a ledger's chain: the ledger's id, the link's number from 1, its hash. Link 0 is none."""

    ledger: str
    link: int
    head: str


def read(path: Path) -> Mark | None:
    """The mark in the anchor, None where there is none yet. LedgerError if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH)
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError:
        text = "unreadable"
    return _parse(path, text) if text else None


def _parse(path: Path, text: str) -> Mark:
    try:
        fields = json.loads(text)
        return Mark(str(fields["ledger"]), int(fields["link"]), str(fields["head"]))
    except (ValueError, KeyError, TypeError):
        pass
    raise LedgerError(f"anchor {path} cannot be read; restore it, or compare the ledger with its backups by hand")


def advance(path: Path, mark: Mark) -> None:
    """Move the anchor forward to ``mark``; a newer mark of the same ledger stays. LedgerError.

    Processes take turns by a lock on the file; the text is shorter than one disk sector.
    """
    failed = False
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+", encoding="utf-8") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            before = _parse(path, text) if text else None
            if before is not None and before.ledger != mark.ledger:
                raise LedgerError(f"anchor {path} belongs to another ledger; give each ledger its own anchor")
            if before is None or before.link < mark.link:
                file.seek(0)
                fields = {"ledger": mark.ledger, "link": mark.link, "head": mark.head}
                file.write(json.dumps(fields) + " " * 8 + "\n")
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        failed = True
    if failed:
        raise LedgerError(
            f"anchor {path} cannot be written; the ledger itself is complete: make the anchor"
            " writable and open it again"
        )
