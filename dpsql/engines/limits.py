"""What one scan may take: memory and time, set by the custodian before anything is read.

Both are public settings, but whether a scan meets them depends on the size of the data: set them far above
what a scan needs. A scan that is stopped releases nothing, and its charge stands.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import duckdb

from dpsql.errors import DataError

_MEMORY = re.compile(r"[1-9]\d{0,8}(\.\d{1,3})? ?([KMGT]i?B)", re.IGNORECASE)
_AGAIN = 0.02  # seconds between interrupts: one that comes before a statement has started is lost


@dataclass(frozen=True)
class Limits:
    """``memory`` of a scan's own DuckDB instance, such as "4GB", and ``seconds`` that one scan may run.

    None leaves DuckDB's default (80 % of the machine's memory), or no limit of time. Raises DataError.
    """

    memory: str | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and (not isinstance(self.memory, str) or not _MEMORY.fullmatch(self.memory)):
            raise DataError('memory_limit must be a size such as "4GB" or "512MB"')
        if self.seconds is None:
            return
        known = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not known or not math.isfinite(self.seconds) or not 0 < self.seconds <= threading.TIMEOUT_MAX:
            raise DataError("scan_timeout must be a positive number of seconds, such as 600")


UNLIMITED = Limits()


@dataclass
class Deadline:
    """Whether the time of a scan ran out."""

    passed: threading.Event = field(default_factory=threading.Event)


@contextmanager
def within(connection: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[Deadline]:
    """Interrupt what ``connection`` runs in the block once ``seconds`` are over; the thread ends with the block."""
    deadline = Deadline()
    if seconds is None:
        yield deadline
        return
    done = threading.Event()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            deadline.passed.set()
            connection.interrupt()
            wait = _AGAIN

    thread = threading.Thread(target=watch, name="dpsql-scan-timeout", daemon=True)
    thread.start()
    try:
        yield deadline
    finally:
        done.set()
        thread.join()
