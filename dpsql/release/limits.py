"""What one query over released tables may take: seconds and rows. All of it is public."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from dpsql.errors import DataError, OperationalError

MOST_ROWS = 1_000_000
QUERY_SECONDS = 60.0
_AGAIN = 0.05  # seconds between interrupts: one that comes before a statement has started is lost


def check_seconds(name: str, seconds: float | None) -> float | None:
    """``seconds`` where it is None or a positive number. Raises DataError otherwise."""
    if seconds is None:
        return None
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not known or not math.isfinite(seconds) or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise DataError(f"{name} must be a positive number of seconds, such as 60, or None for no limit")
    return float(seconds)


def at_most(rows: Sequence[Any], most: int) -> Sequence[Any]:
    """``rows``, of which one more than ``most`` was asked for. Raises OperationalError where there are more."""
    if len(rows) > most:
        raise OperationalError(f"the query over the releases has more than {most:,} rows; add a LIMIT or aggregate")
    return rows


@contextlib.contextmanager
def within(connection: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[None]:
    """Interrupt what ``connection`` does in here after ``seconds``. Raises OperationalError then."""
    if seconds is None:
        yield
        return
    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            late.set()
            connection.interrupt()
            wait = _AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    stopped = False
    try:
        yield
    except duckdb.InterruptException:
        if not late.is_set():
            raise
        stopped = True
    finally:
        done.set()
        watcher.join()
    if stopped:
        raise OperationalError(
            f"the query over the releases was stopped after {seconds:g} s; narrow it, or allow it more time "
            "(query_timeout= of connect, --timeout on the command line)"
        )
