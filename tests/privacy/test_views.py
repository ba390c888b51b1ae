"""Names under which results are shown: rows of the ledger, links of its chain, no charge."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.errors import IntegrityError, LedgerError, ProgrammingError
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.entries import dropped, renamed
from dpsql.privacy.ledger import Ledger

BUDGET = Budget.of("1")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Release 1 has a and b, release 2 has b and q1; charge 3, of c, was never recorded."""
    ledger = Ledger.create(tmp_path / "rand.ledger", "rand-1", BUDGET)
    (charge,) = charge_for(Request.of(epsilon="0.125"), BUDGET)
    for key, names in (("one", ["a", "b"]), ("two", ["b", "q1"]), ("three", ["c"])):
        number = ledger.charge(charge, key, {"names": names})
        if key != "three":
            ledger.record(number, key.encode())
    return ledger


def shown(ledger: Ledger) -> list[tuple[str | None, ...]]:
    return [entry.shown for entry in ledger.entries()]


def test_a_new_name_for_all_or_for_one_release(ledger: Ledger) -> None:
    assert ledger.show(lambda entries: renamed(entries, "B", "Second")) == (1, 2)
    assert shown(ledger) == [("a", "Second"), ("Second", "q1"), ("c",)]
    assert ledger.show(lambda entries: renamed(entries, "second", "third", 2)) == (2,)
    assert shown(ledger) == [("a", "Second"), ("third", "q1"), ("c",)]
    assert [entry.results for entry in ledger.entries()] == [("a", "b"), ("b", "q1"), ("c",)]
    # The same name in other letters is a new name of the same thing.
    ledger.show(lambda entries: renamed(entries, "third", "THIRD"))
    assert shown(ledger)[1] == ("THIRD", "q1")
    assert ledger.state().spent == 0.375
    assert ledger.verify() == 1 + 3 + 2 + 4  # data set, charges, measurements, names


def test_what_is_dropped_frees_its_name(ledger: Ledger) -> None:
    ledger.show(lambda entries: dropped(entries, ["b"]))
    assert shown(ledger) == [("a", None), (None, "q1"), ("c",)]
    assert [entry.views for entry in ledger.entries()] == [("a",), ("q1",), ("c",)]
    ledger.show(lambda entries: renamed(entries, "a", "b"))
    ledger.show(lambda entries: dropped(entries, [], 2))
    assert shown(ledger) == [("b", None), (None, None), ("c",)]
    assert ledger.show(lambda _: {1: ("a", "b"), 2: (None, None)}) == (1,)  # only what changes is written
    assert shown(ledger)[0] == ("a", "b")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda e: renamed(e, "b", "A"), IntegrityError, "a view named A exists already"),
        (lambda e: renamed(e, "b", "q1", 1), IntegrityError, "a view named q1 exists"),
        (lambda e: renamed(e, "bb", "x"), ProgrammingError, "no release shows a result bb"),
        (lambda e: renamed(e, "a", "x", 2), ProgrammingError, "release 2 does not show a result a: choose from b, q1"),
        (lambda e: renamed(e, "c", "x"), ProgrammingError, "no release shows"),
        (lambda e: dropped(e, ["a", "z"]), ProgrammingError, "no release shows a result z"),
        (lambda e: dropped(e, [], 3), ProgrammingError, "there is no release 3"),
        (lambda e: dropped(e, ["q1"], 1), ProgrammingError, "release 1 does not show a result q1"),
        (lambda e: {1: ("only one",)}, LedgerError, "no release 1 with 1 results"),
        (lambda e: {3: ("c",)}, LedgerError, "no release 3"),
        (lambda e: {9: ()}, LedgerError, "no release 9"),
    ],
    ids=range(11),
)
def test_what_cannot_be_leaves_the_ledger_alone(ledger, change, error, message) -> None:
    before = ledger.path.read_bytes()
    with pytest.raises(error, match=message):
        ledger.show(change)
    assert ledger.path.read_bytes() == before


def test_dropping_all_twice_is_refused(ledger: Ledger) -> None:
    ledger.show(lambda entries: dropped(entries, [], 1))
    with pytest.raises(ProgrammingError, match="dropped already"):
        ledger.show(lambda entries: dropped(entries, [], 1))


def test_names_are_links_of_the_chain(ledger: Ledger) -> None:
    ledger.show(lambda entries: renamed(entries, "a", "x"))
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        for statement in ('UPDATE views SET names = \'["y","b"]\'', "DELETE FROM views"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
        (guard,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'views_no_update'").fetchone()
        connection.execute("DROP TRIGGER views_no_update")
        connection.execute('UPDATE views SET names = \'["y","b"]\'')
        connection.execute(guard)
    with pytest.raises(LedgerError, match="hash chain breaks"):
        Ledger.open(ledger.path, "rand-1", BUDGET)
