"""The watchdog of a scan: it interrupts until the scan has ended, and what it interrupts ends in pieces."""

from __future__ import annotations

import threading
from typing import Any

import duckdb
import numpy as np
import pytest

from dpsql.engines import limits
from dpsql.engines.limits import Outcome, ended_soon, run_within


class Scan:
    """A connection whose statement ends after so many interrupts: the first may come before it has started."""

    def __init__(self, ends_after: int, rows: bool) -> None:
        self.left, self.rows = ends_after, rows
        self.stopped = threading.Event()

    def interrupt(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.stopped.set()

    def execute(self, _: str) -> Scan:
        assert self.stopped.wait(60)
        if not self.rows:
            raise duckdb.InterruptException("stopped")
        return self

    def fetchnumpy(self) -> dict[str, Any]:
        return {"n": np.array([1])}


@pytest.mark.parametrize(("rows", "outcome"), [(False, "late"), (True, "done")])
def test_a_late_scan_is_interrupted_until_it_ends(rows: bool, outcome: Outcome) -> None:
    scan = Scan(3, rows)
    found, how = run_within(scan, "", 0.001)  # type: ignore[arg-type]
    assert how == outcome
    assert bool(found) == rows  # what ended all the same is an answer
    assert scan.left <= 0


def test_a_scan_that_no_interrupt_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE", 0.05)
    scan = Scan(10**9, rows=True)
    found, how = run_within(scan, "", 0.001)  # type: ignore[arg-type]
    assert (found, how) == ({}, "late")
    # Closing what it holds is not waited for either.
    closed = threading.Event()
    ended_soon(lambda: scan.stopped.wait(60) and closed.set())
    assert not closed.is_set()
    scan.stopped.set()
    assert closed.wait(60)


@pytest.mark.parametrize(
    "expression",
    [
        "s LIKE '%a%b_c%'",
        "regexp_full_match(s, '.*a.*b.c.*')",
        "strlen(upper(s) || lower(s)) > 3",
        "contains(replace(s, 'ab', 'ba'), 'bb')",
        "sqrt(abs(sin(i))) + i // 7 > 3",
        "TRY(CAST(s AS INTEGER)) > 3",
    ],
)
def test_a_scan_of_an_expensive_expression_can_be_interrupted_between_pieces(expression: str) -> None:
    with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
        # Days of rows: it ends for no other reason than the interrupt.
        rows = "(SELECT i, repeat('ab', 1000 + i % 7) AS s FROM range(1000000000000) r(i))"
        found, how = run_within(connection, f"SELECT {expression} AS k, count(*) FROM {rows} GROUP BY 1", 0.05)
        assert (found, how) == ({}, "late")
        assert connection.execute("SELECT 1").fetchall() == [(1,)]  # and the connection is as good as before
