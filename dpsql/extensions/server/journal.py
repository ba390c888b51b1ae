"""The audit log: who asked what, when, at which cost and with which outcome. It never holds a value of a result."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsql.errors import OperationalError
from dpsql.extensions.server.service import Answer

log = logging.getLogger("dpsql")

MOST_TEXT = 20_000
"""Characters of a statement that are kept; its hash is that of the whole."""


class Journal:
    """Appends lines of JSON to a file; without a file, events are counted and not kept. Threads may share it.

    The file is opened to append, with mode 0600 where it is made. A line that cannot be written is reported in the
    log of the process, once, and nothing is stopped by it: what was charged is in the ledger in any case.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: int | None = None
        self._failed = False
        self._counts: Counter[tuple[str, str]] = Counter()
        if path is not None:
            self._file = _opened(path)

    def event(self, what: str, **facts: Any) -> None:
        """Append one line: the time, what happened, and facts that JSON can hold; None is left out."""
        self._count(what, facts)
        if self._file is None:
            return
        held = {"time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"), "event": what}
        held |= {name: fact for name, fact in facts.items() if fact is not None}
        line = (json.dumps(held, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        with self._lock:
            try:
                os.write(self._file, line)
                return
            except OSError as error:
                reason = error.strerror
            if not self._failed:
                self._failed = True
                log.error("the audit log %s cannot be written: %s", self.path, reason)

    def statement(self, who: str, client: str, text: str, outcome: str, answer: Answer | None = None) -> None:
        """A statement of an account's, and what came of it."""
        cost = {} if answer is None else {"kind": answer.kind, "release": answer.release, "cost": answer.cost or None}
        guarantee = answer.guarantee if answer is not None and answer.cost else None
        self.event(
            "statement",
            account=who,
            client=client,
            sha256=hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
            text=text[:MOST_TEXT],
            outcome=outcome,
            guarantee=guarantee,
            **cost,
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """How often what happened since the start, by name of a counter and its labels. No account, no text."""
        found: dict[str, dict[str, int]] = {"dpsql_charges_total": {"": 0}}
        with self._lock:
            for (name, labels), count in self._counts.items():
                found.setdefault(name, {})[labels] = count
        return found

    def _count(self, what: str, facts: Mapping[str, Any]) -> None:
        name, labels = "dpsql_events_total", f'{{event="{what}"}}'
        if what == "statement":
            name, labels = "dpsql_statements_total", f'{{kind="{facts.get("kind", "")}",outcome="{facts["outcome"]}"}}'
        with self._lock:
            self._counts[name, labels] += 1
            if facts.get("cost"):
                self._counts["dpsql_charges_total", ""] += 1

    def close(self) -> None:
        """Close the file; nothing is written after that."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _opened(path: Path) -> int:
    failure = ""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        failure = error.strerror or "unwritable"
    raise OperationalError(f"the audit log {str(path)!r} cannot be opened: {failure}; name another with --log")
