"""A full disk: what was acknowledged is there, what was not is an error that says so, the ledger stays whole."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from assurance_world import drive

from dpsql.errors import LedgerError
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_file import LedgerFile

LIMITS = 22


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs a file size limit")
def test_whole_releases_under_a_file_size_limit(tmp_path: Path, record_assurance: Any) -> None:
    found = drive("disk_full", tmp_path, LIMITS)
    assert found["wrong"] == []
    assert found["outcomes"]["LedgerError"] > 0  # the smallest limits stop the charge or the record
    assert found["outcomes"]["released"] > 0  # the largest do not matter
    record_assurance("faults.disk_full", {"injected": LIMITS, "survived": LIMITS})


def test_a_ledger_that_may_not_grow_by_one_page_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_assurance: Any
) -> None:
    budget = Budget.of("100")
    (charge,) = charge_for(Request.of("0.5"), budget)
    ledger = Ledger.create(tmp_path / "ledger", "full-1", budget)
    real, room = LedgerFile.connected, [0]

    @contextmanager
    def connected(self: LedgerFile, path: Path | None = None) -> Iterator[sqlite3.Connection]:
        with real(self, path) as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + room[0]}")
            yield connection

    monkeypatch.setattr(LedgerFile, "connected", connected)
    said: list[LedgerError] = []
    charges, records = 0, 0
    for pages in range(12):
        room[0] = pages
        try:
            number = ledger.charge(charge, f"{pages}", {"text": "x" * 9000})
            charges += 1
            ledger.record(number, b"y" * 30000)
            records += 1
        except LedgerError as error:
            said.append(error)
        assert len(ledger.entries()) == charges
        assert len(list(ledger.releases())) == records
        assert ledger.state().account("pure").spent_units == charges * charge.units  # type: ignore[union-attr]
        ledger.verify()
    injected = len(said)
    assert injected >= 5
    assert all("the disk is full; free some space" in str(e) and e.__context__ is None for e in said)
    assert 0 < records < charges
    record_assurance("faults.disk_full_pages", {"injected": injected, "survived": injected})
