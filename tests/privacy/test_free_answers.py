"""Answers that cost nothing, in the ledger: numbered with the charges, chained, shown, and never a charge or a
refund.
"""

from __future__ import annotations

import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import BudgetError, DataError, LedgerError
from dpsql.privacy.budget import Budget
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger

PURE = Budget.of(epsilon=1)
HALF = Charge("pure", 500_000_000_000, "laplace", "epsilon 0.5 (pure)", Fraction(1, 2))


def ledger_in(folder: Path) -> Ledger:
    ledger = Ledger.create(folder / "x.ledger", "x-1", PURE)
    ledger.record(ledger.charge(HALF, "a", {"names": ["v"]}), b"first")
    return ledger


def test_an_answer_takes_the_next_number_and_nothing_else(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    before = ledger.state()
    number = ledger.answer(lambda n: f"answer {n}".encode(), {"names": ["w"], "guarantee": "free"}, label="ann")
    assert number == 2
    after = ledger.state()
    assert [p.spent_units for p in after.accounts] == [p.spent_units for p in before.accounts]
    found = ledger.release(2)
    assert (found.payload, found.label, found.results) == (b"answer 2", "ann", ("w",))
    assert (found.charge.units, found.charge.noise, found.charge.guarantee) == (0, "none", "free")
    assert found.released is not None
    assert [entry.id for entry in ledger.entries()] == [1, 2]
    assert [entry.id for entry in ledger.releases()] == [1, 2]
    assert ledger.unreleased() == []
    assert ledger.charge(HALF, "b", {}) == 3
    assert ledger.state().accounts[0].remaining_units == 0
    assert [entry.id for entry in ledger.unreleased()] == [3]
    assert ledger.answer(lambda n: b"", {}) == 4  # also where nothing is left to spend
    ledger.verify()


def test_nobody_spent_it(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    ledger.answer(lambda n: b"x", {"names": ["w"]}, label="ann")
    assert [share.label for share in ledger.state().by_label()] == [""]


def test_nothing_is_no_charge(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    with pytest.raises(DataError, match="no charge"):
        ledger.charge(Charge.free("free"), "b", {})
    for bad in ({"units": 1}, {"account": "pure"}, {"epsilon": Fraction(1)}):
        fields = {"account": "", "units": 0, "noise": "none", "guarantee": "", "epsilon": None, **bad}
        with pytest.raises(DataError, match="takes nothing"):
            Charge(**fields)
    with pytest.raises(DataError):
        Charge.free("free").calibrate(1)
    with pytest.raises(BudgetError):
        ledger.state().check(Charge.free("free"))


def test_a_payload_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)

    def fails(number: int) -> bytes:
        raise DataError("no")

    with pytest.raises(DataError):
        ledger.answer(fails, {})
    assert [entry.id for entry in ledger.entries()] == [1]
    ledger.verify()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET payload = x'00'",
        "UPDATE answers SET description = '{}'",
        "DELETE FROM answers",
        "INSERT INTO answers SELECT id + 1, time, dataset, label, description, payload, digest FROM answers",
    ],
)
def test_what_is_altered_by_hand_is_noticed(tmp_path: Path, change: str) -> None:
    ledger = ledger_in(tmp_path)
    ledger.answer(lambda n: b"noisy", {"names": ["w"]})
    held = sqlite3.connect(ledger.path, isolation_level=None)
    if not change.startswith("INSERT"):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            held.execute(change)
    triggers = held.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        held.execute(f"DROP TRIGGER {name}")
    held.execute(change)
    for _, sql in triggers:
        held.execute(sql)
    held.close()
    with pytest.raises(LedgerError):
        ledger.verify()
    if "SET payload" in change:
        with pytest.raises(LedgerError, match="altered"):
            ledger.release(2)
