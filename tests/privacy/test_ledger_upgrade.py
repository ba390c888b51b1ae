"""A ledger of schema version 1, as that version wrote it, becomes one of the present version, or stays as it is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import dpsql.errors
from dpsql.errors import BudgetError, LedgerError, OperationalError
from dpsql.privacy import anchor as anchors
from dpsql.privacy import ledger_schema
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.periods import Reads

ROOT = Path(dpsql.errors.__file__).parent.parent
BUDGET = Budget.of("4", "1e-9", "1", local_epsilon="2")
VERSION_1 = (Path(__file__).parent / "ledger_version_1.sql").read_text()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.ledger"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(VERSION_1)
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_an_older_ledger_keeps_every_row_and_every_link(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        links = connection.execute("SELECT * FROM chain ORDER BY link").fetchall()
    ledger = Ledger.open(old, "rand-2", BUDGET)
    assert version(old) == ledger_schema.SCHEMA_VERSION == 8
    assert [(e.charge_id, e.label, e.dataset, e.released is None) for e in ledger.entries()] == [
        ("first", "ann", "rand-1", False),
        ("second", "bob", "rand-1", True),
        ("third", "ann", "rand-2", False),
        ("fourth", "", "rand-2", True),
    ]
    assert [e.payload for e in ledger.releases()] == [b"the first noisy measurement", b"the third"]
    assert [p.spent_units for p in ledger.state().accounts] == [750_000_000_000, 33_114_830_490, 500_000_000_000]
    assert ledger.verify() == 15
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("SELECT * FROM chain ORDER BY link").fetchall()[:8] == links
        assert connection.execute("SELECT version FROM upgrades").fetchall() == [
            (2,),
            (3,),
            (4,),
            (5,),
            (6,),
            (7,),
            (8,),
        ]
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute("UPDATE purses SET spent = 0")
    # It goes on: idempotent ids of before, new charges, a second opening that changes nothing.
    again = Ledger.open(old, "rand-2", BUDGET)
    (charge, _) = charge_for(Request.of("1", "1e-9"), BUDGET)
    assert again.charge(charge, "third", {"names": ["by_state", "q1"]}, label="ann") == 3
    again.record(again.charge(charge, "fifth", {}), b"new")
    assert again.verify() == 17


def test_an_upgraded_ledger_looks_like_a_new_one(old: Path, tmp_path: Path) -> None:
    Ledger.open(old, "rand-2", BUDGET)
    Ledger.create(tmp_path / "new.ledger", "rand-1", BUDGET)
    shapes = []
    for path in (old, tmp_path / "new.ledger"):
        with closing(sqlite3.connect(path)) as connection:
            shapes.append(connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2").fetchall())
    assert shapes[0] == shapes[1]


def test_an_anchor_of_before_is_still_good(old: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        head = connection.execute("SELECT head FROM chain WHERE link = 8").fetchone()[0]
        ledger_id = connection.execute("SELECT ledger FROM identity").fetchone()[0]
    anchor = tmp_path / "anchor"
    anchor.write_text(f'{{"ledger": "{ledger_id}", "link": 8, "head": "{head}"}}')
    before = old.read_bytes()
    Ledger.open(old, "rand-2", BUDGET, anchor=anchor)
    assert '"link": 16' in anchor.read_text()  # seven steps, and that it is held to the anchor
    assert '"spent": {"gaussian": 33114830490, "local": 500000000000, "pure": 750000000000}' in anchor.read_text()
    old.write_bytes(before)  # the older version put back is an older copy
    with pytest.raises(LedgerError, match="older one"):
        Ledger.open(old, "rand-2", BUDGET, anchor=anchor)


def test_a_damaged_older_ledger_is_refused_and_not_upgraded(old: Path) -> None:
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute("UPDATE charges SET units = 1, label = 'eve' WHERE id = 2")
    before = old.read_bytes()
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.open(old, "rand-2", BUDGET)
    assert old.read_bytes() == before
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE upgrades (x)")
    with pytest.raises(LedgerError):
        Ledger.open(old, "rand-2", BUDGET)
    assert version(old) == 1


def test_a_failed_step_leaves_the_old_version(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = old.read_bytes()
    broken = (*ledger_schema.VERSIONS[:2], (("CREATE TABLE more (x)", "CREATE TABLE chain (x)"), ("charge",)))
    monkeypatch.setattr(ledger_schema, "VERSIONS", broken)
    with pytest.raises(LedgerError):
        Ledger.open(old, "rand-2", BUDGET)
    assert old.read_bytes() == before
    monkeypatch.undo()
    assert Ledger.open(old, "rand-2", BUDGET).verify() == 15


def test_an_older_ledger_that_cannot_be_written_says_so(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite3.connect

    def read_only(name: str, **options: object) -> sqlite3.Connection:
        return real(name.replace("mode=rw", "mode=ro"), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(LedgerError, match="cannot be written"):
        Ledger.open(old, "rand-2", BUDGET)
    monkeypatch.undo()
    assert version(old) == 1


def test_a_version_that_a_file_does_not_have_is_refused(old: Path) -> None:
    for claimed, text in ((0, "schema version 0"), (9, "reads up to 8"), (2, "damaged|could not be used")):
        with closing(sqlite3.connect(old, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA user_version = {claimed}")
        with pytest.raises(LedgerError, match=text):
            Ledger.open(old, "rand-2", BUDGET)


SCRIPT = """
import sys
from dpsql.privacy.accountant import Budget
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.periods import Reads
sys.stdin.readline()
print(Ledger.open(sys.argv[1], "rand-2", Budget.of("4", "1e-9", "1", local_epsilon="2")).verify())
"""


def test_three_processes_upgrade_once(old: Path) -> None:
    pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    racers = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(old)], text=True, cwd=ROOT, **pipes)  # type: ignore[call-overload]
        for _ in range(3)
    ]
    assert [racer.communicate("go\n", timeout=900)[0] for racer in racers] == ["15\n"] * 3


def test_a_ledger_of_version_2_gets_names_of_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "second.ledger"
    monkeypatch.setattr(ledger_schema, "VERSIONS", ledger_schema.VERSIONS[:2])
    monkeypatch.setattr(ledger_schema, "SCHEMA_VERSION", 2)
    with monkeypatch.context() as before:
        # The reader of that version knew no table of views.
        before.setattr("dpsql.privacy.ledger.Ledger._verify", lambda *_, **__: (2, anchors.Mark("", 0, "")))
        Ledger.create(path, "rand-1", BUDGET)
    assert version(path) == 2
    monkeypatch.undo()
    ledger = Ledger.open(path, "rand-1", BUDGET)
    assert version(path) == 8
    assert ledger.entries() == []
    assert ledger.verify() == 7


def test_a_ledger_of_version_6_gets_requests(tmp_path: Path) -> None:
    path = tmp_path / "sixth.ledger"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript((Path(__file__).parent / "ledger_version_6.sql").read_text())
        links = connection.execute("SELECT * FROM chain ORDER BY link").fetchall()
    assert (version(path), len(links)) == (6, 9)
    budget = replace(BUDGET, approval=True)
    ledger = Ledger.open(path, "rand-1", budget)
    assert version(path) == 8
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM chain ORDER BY link").fetchall()[:9] == links
    assert ledger.requests() == []
    assert [(e.id, e.label, e.shown) for e in ledger.entries()] == [
        *((1, "ann", ("by_region",)), (2, "bob", ("q1",)), (3, "ann", ("q1",))),
    ]
    ledger.declare_analyst(lambda held: replace(held["ann"], suspended=False, budget=Budget.of("1", "1e-9", "0.8")))
    (charge,) = [c for c in charge_for(Request.of("0.25"), budget) if c.noise == "laplace"]
    with pytest.raises(OperationalError, match=r"request 1, .* waits"):
        ledger.request(charge, {"request": "k", "tables": ["visits"]}, ("SELECT 1", ""), label="ann")
    ledger.decide(1, approve=True)
    assert ledger.charge(charge, "third", {"request": "k", "tables": ["visits"]}, label="ann") == 4
    assert ledger.verify() == 16


def test_what_was_spent_before_periods_counts_in_each(tmp_path: Path) -> None:
    """A ledger of version 7, the last whose charges all read everything, goes on by periods."""
    path = tmp_path / "seven.ledger"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript((Path(__file__).parent / "ledger_version_7.sql").read_text())
        links = connection.execute("SELECT * FROM chain ORDER BY link").fetchall()
    assert version(path) == 7
    ledger = Ledger.open(path, "rand-1", BUDGET)
    assert version(path) == 8
    assert [(entry.label, entry.released is None) for entry in ledger.entries()] == [("ann", False), ("bob", True)]
    (half, *_) = charge_for(Request.of("0.5"), BUDGET)
    for period in ("2024-01-01", "2024-02-01"):
        reads = Reads("visits", "day", "1 month", "2024-01-01", 1, (period,))
        ledger.charge(half, period, {"periods": reads.as_dict()})
        with pytest.raises(BudgetError):
            ledger.charge(half, f"{period} again", {"periods": reads.as_dict()})
    assert ledger.state().accounts[0].spent_units == 10**12
    with pytest.raises(BudgetError):
        ledger.charge(charge_for(Request.of("0.1"), BUDGET)[0], "everything", {})
    assert ledger.verify() == len(links) + 3
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM chain ORDER BY link").fetchall()[: len(links)] == links
