"""The anchor: a small file elsewhere that remembers a ledger's newest link.

An older copy of a ledger put back is a refund that the ledger alone cannot notice. A file that the
same hand cannot put back, on another disk or host, can: a ledger that lacks the anchored link is
refused. It is written after each commit, so a crash in between leaves it one step behind, never ahead. Noise is
drawn after that, so every charge that a released number was paid with is counted in the anchor: it says beside the
link what each account had spent, and a backup that is older than the anchor is restored with the difference charged
(`ledger_restore`). A ledger that was held to an anchor once says so itself (the event ``anchored``), and is refused
where no anchor is named, or where the anchor is gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dpsql.errors import LedgerError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Mark:
    """A link of a ledger's chain: the ledger's id, the link's number from 1, its hash. Link 0 is none.

    ``number``: the last one that a charge or answer had by then. ``spent``: units by account. Both are None in an
    anchor that an earlier version wrote.
    """

    ledger: str
    link: int
    head: str
    number: int | None = None
    spent: Mapping[str, int] | None = None

    @property
    def fields(self) -> dict[str, object]:
        counted = {} if self.spent is None else {"number": self.number, "spent": dict(sorted(self.spent.items()))}
        return {"ledger": self.ledger, "link": self.link, "head": self.head, **counted}


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
        mark = Mark(str(fields["ledger"]), int(fields["link"]), str(fields["head"]))
        if "spent" not in fields:
            return mark
        spent = {str(name): int(units) for name, units in fields["spent"].items()}
        return replace(mark, number=int(fields["number"]), spent=spent)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise LedgerError(f"anchor {path} cannot be read; restore it, or compare the ledger with its backups by hand")


def advance(path: Path, mark: Mark) -> None:
    """Move the anchor forward to ``mark``; a newer mark of the same ledger stays. LedgerError."""
    before = read(path)
    if before is None or before.ledger != mark.ledger or _behind(before, mark):
        _write(path, mark, always=False)


def reset(path: Path, mark: Mark) -> None:
    """Let the anchor hold ``mark`` whatever it held of this ledger: for a backup that was restored. LedgerError."""
    _write(path, mark, always=True)


def _behind(before: Mark, mark: Mark) -> bool:
    return before.link < mark.link or (before.link == mark.link and before.spent is None and mark.spent is not None)


def _write(path: Path, mark: Mark, *, always: bool) -> None:
    """Processes take turns by a lock on the file; the text is shorter than one disk sector."""
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
            if before is None or always or _behind(before, mark):
                file.seek(0)
                file.write(json.dumps(mark.fields) + " " * 8 + "\n")
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
