"""What one query over released tables may take: seconds and rows. All of it is public."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import duckdb

from dpsql.common.arrays import Row
from dpsql.errors import DataError, RequestError

MOST_ROWS = 1_000_000
MOST_TEXT = 256_000_000
"""Characters and bytes of all texts of a result together, which DuckDB's limit of memory does not see."""
QUERY_SECONDS = 60.0
GRACE = 1.0
"""Seconds that an interrupted query is waited for before it is left behind."""
_AGAIN = 0.05  # seconds between interrupts: one that comes before a statement has started is lost

_PIECE = 8192  # rows

T = TypeVar("T")


def check_seconds(name: str, seconds: float | None) -> float | None:
    """``seconds`` where it is None or a positive number. Raises DataError otherwise."""
    if seconds is None:
        return None
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not known or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise DataError(f"{name} must be a positive number of seconds, such as 60, or None for no limit")
    return float(seconds)


class Question:
    """One query that is being answered: what can be interrupted of it, and whether its time is over."""

    def __init__(self) -> None:
        self._late = threading.Event()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def on(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Interrupt ``connection`` once the time is over."""
        self._connection = connection

    def is_late(self) -> bool:
        """Whether nobody waits any more."""
        return self._late.is_set()

    def stop(self) -> None:
        """Let it end: what runs is interrupted, and what comes next need not begin."""
        self._late.set()
        if self._connection is not None:
            with contextlib.suppress(duckdb.Error):  # it may be closed by now
                self._connection.interrupt()


class _Caught:
    """Catches what is raised within, whatever it is, for the thread that waits."""

    error: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        self.error = error
        return True


def fetched(cursor: duckdb.DuckDBPyConnection, most: int, question: Question) -> list[Row]:
    """The rows of a result, a piece at a time, for no other thread runs while values are made.

    Raises RequestError where there are more than ``most``, or longer texts than MOST_TEXT, DuckDB's
    InterruptException once nobody waits any more.
    """
    rows: list[Row] = []
    texts = [at for at, (_, kind, *_) in enumerate(cursor.description or ()) if str(kind) in ("VARCHAR", "BLOB")]
    held = 0
    while len(rows) <= most:
        if question.is_late():
            raise duckdb.InterruptException("its time is over")
        piece = cursor.fetchmany(min(_PIECE, most + 1 - len(rows)))
        if not piece:
            return rows
        held += sum(len(row[at] or "") for row in piece for at in texts)
        if held > MOST_TEXT:
            raise RequestError(
                f"the query over the releases has texts of more than {MOST_TEXT:,} bytes; ask for fewer rows or columns"
            )
        rows += piece
    raise RequestError(f"the query over the releases has more than {most:,} rows; add a LIMIT or aggregate")


def answer_within(
    work: Callable[[Question], T], seconds: float | None, grace: float = GRACE, question: Question | None = None
) -> T:
    """What ``work`` returns, or raises, if it ends in ``seconds``; else RequestError, ``grace`` later at most.

    DuckDB looks for an interrupt between two batches of values. One call of a function over one long value, such as
    ``repeat('a', 4000000000)``, is never stopped and not held to the memory limit either. So ``work`` runs in a thread
    that opens and closes what it uses: it is interrupted when its time is over, and left behind where it does not end
    in ``grace`` seconds. Such a thread ends with its one call, and nobody reads its answer; the process need
    not wait for it. Who holds the ``question`` may stop it before, and is not told how to allow more time.
    """
    more = (
        ", or allow it more time (query_timeout= of connect, --timeout on the command line)" if question is None else ""
    )
    question = question or Question()
    if seconds is None:
        return work(question)
    found: list[T] = []
    failed = _Caught()
    # An event, for a join() that Ctrl-C cuts short takes a running thread for ended (Python 3.11).
    ended = threading.Event()

    def answer() -> None:
        with failed:
            found.append(work(question))
        ended.set()

    threading.Thread(target=answer, name="dpsql-query", daemon=True).start()
    left = True  # by whatever ends the waiting: an answer, the limit, Ctrl-C
    try:
        if not ended.wait(seconds):
            until = time.monotonic() + grace
            question.stop()
            # Again and again: an interrupt that comes before a statement has started is lost.
            while not ended.wait(_AGAIN) and time.monotonic() < until:
                question.stop()
            if found:
                return found[0]
            if failed.error is None or isinstance(failed.error, duckdb.InterruptException):
                raise RequestError(f"the query over the releases was stopped after {seconds:g} s; narrow it{more}")
        left = False
    finally:
        if left:
            question.stop()
    if failed.error is not None:
        raise failed.error
    return found[0]
