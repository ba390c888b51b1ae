"""What one scan may take: memory and time, set by the custodian before anything is read.

Both are public settings, but whether a scan meets them depends on the size of the data: set them far above
what a scan needs. A scan that is stopped releases nothing, and its charge stands.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import duckdb

from dpsql.errors import DataError, OperationalError

_MEMORY = re.compile(r"[1-9]\d{0,8}(\.\d{1,3})? ?([KMGT]i?B)", re.IGNORECASE)
GRACE = 1.0
"""Seconds that a scan which was interrupted is waited for before it is left behind."""
_AGAIN = 0.02  # seconds between interrupts: one that comes before a statement has started is lost
_PATIENCE = 1.0  # seconds of waiting at once: some systems deliver Ctrl-C only in between


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
        is_number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not is_number or not 0 < self.seconds <= threading.TIMEOUT_MAX:
            raise DataError("scan_timeout must be a positive number of seconds, such as 600")


UNLIMITED = Limits()


Outcome = Literal["done", "failed", "short of memory", "late", "interrupted"]


class FailedScanError(OperationalError):
    """A scan failed inside its engine, for another reason than a limit of time or memory.

    ``tables`` that it read: their sources may be damaged.
    """

    def __init__(self, text: str, tables: tuple[str, ...]) -> None:
        super().__init__(text)
        self.tables = tables


def check_outcome(
    outcome: Outcome, name: str, seconds: float | None, *, inside: str, look_at: str, tables: Sequence[str]
) -> None:
    """Nothing where a scan of ``name`` is done, else its fixed error: OperationalError, or KeyboardInterrupt.

    ``inside`` is the engine's name, ``look_at`` what may be amiss there, ``tables`` what was read. The text depends on
    no data.
    """
    if outcome == "interrupted":
        raise KeyboardInterrupt
    if outcome == "late":
        raise OperationalError(
            f"the scan of {name} took longer than scan_timeout, {seconds:g} s, and was stopped. "
            "What was charged stays charged; allow more time, then run again"
        )
    if outcome != "done":
        text = (
            f"the scan of {name} failed inside {inside}; its message may hold private values and is not shown. "
            f"What was charged stays charged; check {look_at}, then run again"
        )
        raise FailedScanError(text, tuple(tables)) if outcome == "failed" else OperationalError(text)


def run_within(
    connection: duckdb.DuckDBPyConnection, statement: str, seconds: float | None
) -> tuple[dict[str, Any], Outcome]:
    """The columns of ``statement``, or how it ended without any.

    DuckDB runs it in a thread while this one waits: inside DuckDB neither a signal nor a deadline is seen before
    the statement ends. Whatever it raises is dropped here, for its text and its frames may hold private values.

    DuckDB looks for an interrupt between pieces of 2,048 rows, and a piece of long texts may take many seconds. A scan
    that does not end within ``GRACE`` is left behind in its thread: it ends with its piece, and nobody reads it.
    """
    batches: list[dict[str, Any]] = []
    short: list[bool] = []
    # An event, for a join() that Ctrl-C cuts short takes a running thread for ended (Python 3.11).
    ended = threading.Event()

    def work() -> None:
        with contextlib.suppress(BaseException):
            try:
                batches.append(connection.execute(statement).fetchnumpy())
            except (duckdb.OutOfMemoryException, MemoryError):
                short.append(True)
        ended.set()

    start, outcome = time.monotonic(), "done"
    until = math.inf
    threading.Thread(target=work, name="dpsql-scan", daemon=True).start()
    while not ended.is_set() and time.monotonic() < until:
        try:
            if outcome == "done":
                left = math.inf if seconds is None else seconds - (time.monotonic() - start)
                ended.wait(max(0.0, min(left, _PATIENCE)))
                outcome, until = ("late", time.monotonic() + GRACE) if left <= 0.0 else ("done", until)
            else:
                connection.interrupt()
                ended.wait(_AGAIN)
        except KeyboardInterrupt:
            outcome, until = "interrupted", time.monotonic() + GRACE
    if outcome == "interrupted":
        return {}, "interrupted"
    if ended.is_set() and batches:
        return batches[0], "done"
    if outcome == "late":
        return {}, "late"
    return {}, "short of memory" if short else "failed"


def ended_soon(end: Callable[[], object]) -> None:
    """``end()``, which closes what a scan used; waited for ``GRACE`` at most, for a scan left behind may hold it."""

    def work() -> None:
        with contextlib.suppress(duckdb.Error):
            end()

    closing = threading.Thread(target=work, name="dpsql-closing", daemon=True)
    closing.start()
    closing.join(GRACE)
