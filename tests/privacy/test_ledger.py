"""The ledger in one process: what it grants, refuses, remembers and notices."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dpsql.errors import BudgetError, DataError, LedgerError
from dpsql.privacy import anchor as anchors
from dpsql.privacy import ledger_file as module
from dpsql.privacy.accountant import Budget, Charge, Request, charge_for, local_charge
from dpsql.privacy.ledger import Ledger

PURE = Budget.of("1")
MIXED = Budget.of("4", "1e-9", "1", local_epsilon="2")


def pure(epsilon: object, budget: Budget = PURE) -> Charge:
    return charge_for(Request.of(epsilon=epsilon), budget)[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rand.ledger"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger.create(path, "rand-1", PURE)


def tamper(path: Path, *statements: str) -> None:
    """Change the file as somebody who knows it would: its guards are off meanwhile and back afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, guard in guards:
            connection.execute(guard)


# -- the way of a release --------------------------------------------------------------------------


def test_charge_then_record_then_read(ledger: Ledger, path: Path) -> None:
    charge = pure("0.25")
    number = ledger.charge(charge, "a", {"queries": ["q1"], "n": 3}, label="ann")
    assert number == 1
    assert [entry.charge_id for entry in ledger.unreleased()] == ["a"]
    assert list(ledger.releases()) == []
    assert ledger.state().spent == 0.25
    ledger.record(number, b"noisy")
    again = Ledger.open(path, "rand-1", PURE)
    (entry,) = again.releases()
    assert entry.charge == charge
    assert entry.description == {"queries": ["q1"], "n": 3}
    assert (entry.id, entry.label, entry.payload, entry.dataset) == (1, "ann", b"noisy", "rand-1")
    assert entry.time <= (entry.released or "")
    assert again.unreleased() == []
    assert again.verify() == 3
    assert again.release(1) == entry
    assert [e.payload for e in again.entries()] == [None]


def test_55_float_shares_are_granted_and_the_56th_is_refused(ledger: Ledger) -> None:
    for i in range(55):
        ledger.charge(pure(1 / 55), str(i), {})
    with pytest.raises(BudgetError, match="pure account"):
        ledger.charge(pure(1 / 55), "55", {})
    assert len(ledger.entries()) == 55
    assert ledger.state().account("pure").spent_units == 55 * (10**12 // 55)


def test_a_repeated_charge_id_spends_once(ledger: Ledger) -> None:
    charge = pure("0.5")
    assert ledger.charge(charge, "a", {"q": 1}) == ledger.charge(charge, "a", {"q": 1}) == 1
    assert ledger.state().spent == 0.5
    for other in ((pure("0.4"), {"q": 1}), (charge, {"q": 2})):
        with pytest.raises(LedgerError, match="another charge under the id"):
            ledger.charge(other[0], "a", other[1])
    ledger.charge(pure("0.5"), "b", {})
    assert ledger.charge(charge, "a", {"q": 1}) == 1  # even when nothing is left


def test_one_charge_pays_for_one_measurement(ledger: Ledger) -> None:
    number = ledger.charge(pure("0.5"), "a", {})
    ledger.record(number, b"one")
    ledger.record(number, b"one")
    with pytest.raises(LedgerError, match="already holds another measurement"):
        ledger.record(number, b"two")
    with pytest.raises(LedgerError, match="no charge number 7"):
        ledger.record(7, b"x")
    with pytest.raises(LedgerError, match="no measurement number 9"):
        ledger.release(9)
    with pytest.raises(DataError, match="bytes"):
        ledger.record(number, "text")  # type: ignore[arg-type]


def test_every_account_is_its_own(path: Path) -> None:
    ledger = Ledger.create(path, "rand-1", MIXED)
    ledger.charge(pure(1, MIXED), "a", {})
    with pytest.raises(BudgetError, match="pure account"):
        ledger.charge(pure("0.1", MIXED), "b", {})
    (gaussian, _) = charge_for(Request.of(1, 1e-9), MIXED)
    ledger.charge(gaussian, "c", {})
    ledger.charge(local_charge(2, MIXED), "d", {})
    state = ledger.state()
    assert [account.remaining_units for account in state.accounts][0::2] == [0, 0]
    assert 1 < state.spent < 4
    assert ledger.verify() == 4


def test_an_account_that_the_policy_does_not_keep(ledger: Ledger) -> None:
    (gaussian, _) = charge_for(Request.of(1, 1e-9), MIXED)
    with pytest.raises(BudgetError, match="no gaussian account"):
        ledger.charge(gaussian, "a", {})


def test_malformed_arguments_spend_nothing(ledger: Ledger) -> None:
    for charge_id, description, label in (
        ("", {}, ""),
        ("a", {"x": float("nan")}, ""),
        ("a", {"x": object()}, ""),
        ("a", {}, 3),
        ("\ud800", {}, ""),
        ("x" * 501, {}, ""),
    ):
        with pytest.raises(DataError):
            ledger.charge(pure("0.1"), charge_id, description, label=label)  # type: ignore[arg-type]
    assert ledger.state().spent == 0
    ledger.charge(pure("0.1"), "a", {"odd": "\ud800 \u00e9 '"}, label="d'or")
    assert ledger.verify() == 2


def test_a_charge_that_was_altered_after_it_was_made_spends_nothing(path: Path) -> None:
    ledger = Ledger.create(path, "rand-1", PURE)
    (charge,) = charge_for(Request.of("0.5"), PURE)
    object.__setattr__(charge, "units", 1)  # half an epsilon of noise for a trifle
    with pytest.raises(DataError, match="another epsilon"):
        ledger.charge(charge, "cheap", {})
    assert ledger.entries() == []
    assert ledger.verify() == 1


def test_a_new_version_of_the_data_goes_on_spending(ledger: Ledger, path: Path) -> None:
    ledger.charge(pure("0.5"), "a", {})
    newer = ledger.renew("rand-2")
    with pytest.raises(BudgetError):
        newer.charge(pure("0.6"), "b", {})
    newer.charge(pure("0.5"), "b", {})
    assert [entry.dataset for entry in newer.entries()] == ["rand-1", "rand-2"]
    with pytest.raises(LedgerError, match="belongs to data set 'rand-2'"):
        ledger.charge(pure("0.1"), "c", {})
    with pytest.raises(LedgerError, match="has known"):
        newer.renew("rand-1")
    assert Ledger.open(path, "rand-2", PURE).verify() == 4


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    granted = []

    def work(name: int) -> None:
        for i in range(5):
            with suppress(BudgetError):
                granted.append(ledger.charge(pure("0.1"), f"{name}/{i}", {}))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == list(range(1, 11))


# -- opening ---------------------------------------------------------------------------------------


def test_files_are_durable_private_and_alone(ledger: Ledger, path: Path) -> None:
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o077 == 0
    with ledger._file.connected() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 3
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("UPDATE purses SET spent = total + 1")


def test_a_missing_ledger_is_not_made_up(path: Path) -> None:
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(path, "rand-1", PURE)
    assert not path.exists()
    first = Ledger.open_or_create(path, "rand-1", PURE)
    first.charge(pure("0.5"), "a", {})
    assert Ledger.open_or_create(path, "rand-1", PURE).state().spent == 0.5
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, "rand-1", PURE)
    path.unlink()
    with pytest.raises(LedgerError, match="does not exist"):
        first.charge(pure("0.5"), "b", {})


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be created"):
        Ledger.open_or_create(tmp_path / "no" / "ledger", "rand-1", PURE)


def test_a_directory_that_may_only_be_read(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be made there, and Linux refuses to remove what was not made, too."""
    ledger = Ledger.create(path, "rand-1", PURE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for owner, name in ((os, "open"), (os, "link"), (os, "unlink"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(LedgerError, match=r"new\.ledger cannot be created \(Read-only file system\); choose"):
        Ledger.open_or_create(tmp_path / "new.ledger", "rand-1", PURE)
    with pytest.raises(LedgerError, match=r"copy\.ledger cannot be written \(Read-only file system\); choose"):
        ledger.back_up(tmp_path / "copy.ledger")


@pytest.mark.parametrize(
    ("dataset", "budget", "text"),
    [("rand-2", PURE, "data set 'rand-1'"), ("rand-1", Budget.of(2), "another budget"),
     ("rand-1", Budget.of(1, local_epsilon=1), "fixed at creation")],
)  # fmt: skip
def test_another_policy_is_refused(ledger: Ledger, path: Path, dataset: str, budget: Budget, text: str) -> None:
    with pytest.raises(LedgerError, match=text):
        Ledger.open(path, dataset, budget)


def test_files_that_are_no_ledger(path: Path) -> None:
    path.write_text("dear diary " * 100)
    with pytest.raises(LedgerError, match="not a SQLite database"):
        Ledger.open(path, "rand-1", PURE)
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="no ledger of dpsql"):
        Ledger.open_or_create(path, "rand-1", PURE)
    path.unlink()
    path.mkdir()
    with pytest.raises(LedgerError, match="is not a file"):
        Ledger.open_or_create(path, "rand-1", PURE)


def test_an_unknown_schema_version_is_refused(ledger: Ledger, path: Path) -> None:
    tamper(path, "PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="schema version 99"):
        Ledger.open(path, "rand-1", PURE)


def test_wal_mode_is_refused(ledger: Ledger, path: Path) -> None:
    tamper(path, "PRAGMA journal_mode = WAL")
    with pytest.raises(LedgerError, match="journal mode"):
        ledger.state()


def test_a_locked_ledger_says_so_and_spends_nothing(ledger: Ledger, path: Path) -> None:
    quick = Ledger.open(path, "rand-1", PURE, timeout=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="locked by another process; wait") as caught:
            quick.charge(pure("0.5"), "a", {})
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    assert ledger.state().spent == 0


@pytest.mark.parametrize("name", sorted(module.REMEDIES))
def test_every_storage_error_has_its_remedy(name: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name + "_DETAIL"
    assert module.remedy(error) == module.REMEDIES[name]
    assert "verify()" in module.remedy(sqlite3.OperationalError("x"))


# -- tampering -------------------------------------------------------------------------------------

TAMPERING = {
    "spent lowered": "UPDATE purses SET spent = 0",
    "spent above total": "UPDATE purses SET spent = 2 * total",
    "total raised": "UPDATE purses SET total = total * 2",
    "total nudged": "UPDATE purses SET total = total + 1",
    "charge cheaper": "UPDATE charges SET units = 1 WHERE id = 2",
    "charge relabelled": "UPDATE charges SET label = 'bob' WHERE id = 1",
    "charge deleted": "DELETE FROM charges WHERE id = 2",
    "link deleted": "DELETE FROM chain WHERE link = 2",
    "chain deleted": "DELETE FROM chain",
    "identity deleted": "DELETE FROM identity",
    "budget rewritten": "UPDATE identity SET budget = '{}'",
    "release deleted": "DELETE FROM releases",
    "release re-dated": "UPDATE releases SET time = ''",
    "charge added": "INSERT INTO charges SELECT 9, 'z', time, dataset, label, purse, units, cost, description"
    " FROM charges WHERE id = 1",
}


ADDED = ("charge added",)


@pytest.mark.parametrize("change", [sql for name, sql in TAMPERING.items() if name not in ADDED])
def test_the_file_itself_refuses_a_slip(ledger: Ledger, path: Path, change: str) -> None:
    ledger.record(ledger.charge(pure("0.25"), "a", {}), b"noisy")
    ledger.charge(pure("0.25"), "b", {})
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match=r"append-only|CHECK"),
    ):
        connection.execute(change)
    assert ledger.verify() == 4
    assert ledger.state().spent == 0.5


@pytest.mark.parametrize("change", ["DROP TRIGGER purses_no_refund", "CREATE TABLE more (x)", "DROP TABLE upgrades"])
def test_a_changed_schema_is_noticed(ledger: Ledger, path: Path, change: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(change)
    with pytest.raises(LedgerError, match="its tables are not a ledger's"):
        Ledger.open(path, "rand-1", PURE)


def test_a_balance_that_is_no_sum_is_noticed_by_an_open_ledger_too(ledger: Ledger, path: Path) -> None:
    ledger.charge(pure("0.25"), "a", {})
    tamper(path, "UPDATE purses SET spent = 0")
    for use in (ledger.state, lambda: ledger.charge(pure("1"), "b", {})):
        with pytest.raises(LedgerError, match="not the sum of its charges"):
            use()
    tamper(path, "UPDATE purses SET spent = 250000000000")
    assert [entry.charge_id for entry in ledger.entries()] == ["a"]


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING)
def test_tampering_is_noticed_on_opening(ledger: Ledger, path: Path, change: str) -> None:
    ledger.record(ledger.charge(pure("0.25"), "a", {}), b"noisy")
    ledger.charge(pure("0.25"), "b", {})
    tamper(path, change)
    with pytest.raises(LedgerError):
        Ledger.open(path, "rand-1", PURE)
    with pytest.raises(LedgerError):
        ledger.verify()


def test_an_altered_payload_is_noticed_when_it_is_read(ledger: Ledger, path: Path) -> None:
    ledger.record(ledger.charge(pure("0.25"), "a", {}), b"noisy")
    tamper(path, "UPDATE releases SET payload = CAST('other' AS BLOB)")
    with pytest.raises(LedgerError, match="measurement 1 was altered"):
        ledger.verify()
    with pytest.raises(LedgerError, match="measurement 1 was altered"):
        list(ledger.releases())


# -- who, what for, what was lost -------------------------------------------------------------------


def test_the_state_says_who_spent_what_for_what_and_what_was_lost(ledger: Ledger) -> None:
    ledger.record(ledger.charge(pure("0.25"), "a", {"names": ["by_state", "q1"]}, label="ann"), b"one")
    ledger.charge(pure("0.125"), "b", {"names": ["by_age"]}, label="bob")
    ledger.record(ledger.charge(pure("0.125"), "c", {"names": ["q1"]}, label="ann"), b"two")
    state = ledger.state()
    shares = state.by_label()
    assert [(s.label, s.account, s.cost, s.count, s.results) for s in shares] == [
        ("ann", "pure", 0.375, 2, ("by_state", "q1")),
        ("bob", "pure", 0.125, 1, ("by_age",)),
    ]
    assert sum(share.units for share in shares) == state.account("pure").spent_units
    assert [entry.id for entry in state.unreleased] == [2]
    assert "by ann: pure epsilon 0.375 in 2 charges for by_state, q1" in str(state)
    assert "charged without a recorded answer: release 2 (" in str(state)
    assert all("\n" not in line for line in str(state).splitlines())


def test_many_labels_are_cut_in_text_and_whole_in_values(ledger: Ledger) -> None:
    for i in range(15):
        ledger.charge(pure("0.01"), str(i), {}, label=f"analyst {i}\nwith two lines")
    state = ledger.state()
    assert len(state.by_label()) == 15
    assert "and 5 more labels" in str(state)
    assert len(str(state).splitlines()) == 2 + 10 + 1 + 1
    assert "releases 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ... (" in str(state)


# -- caps on one release -----------------------------------------------------------------------------


def test_the_ledger_itself_refuses_a_release_above_the_cap(path: Path) -> None:
    capped = Budget.of("1", max_epsilon_per_release="0.25")
    ledger = Ledger.create(path, "rand-1", capped)
    with pytest.raises(BudgetError, match=r"max_epsilon_per_release, 0\.25"):
        ledger.charge(pure("0.26"), "a", {})
    assert ledger.entries() == []
    ledger.charge(pure("0.25"), "a", {})
    # A cap is no total: it may change while the ledger lives, and a charge made before it stays.
    raised = Ledger.open(path, "rand-1", PURE)
    assert raised.charge(pure("0.5"), "b", {}) == 2
    tight = Ledger.open(path, "rand-1", Budget.of("1", max_epsilon_per_release="0.1"))
    assert tight.charge(pure("0.5"), "b", {}) == 2  # asked again: nothing is spent, so nothing is refused
    assert tight.state().spent == 0.75


# -- older copies ----------------------------------------------------------------------------------


def test_an_older_copy_is_refused_where_an_anchor_remembers(path: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "elsewhere" / "anchor"
    anchor.parent.mkdir()
    ledger = Ledger.create(path, "rand-1", PURE, anchor=anchor)
    ledger.charge(pure("0.25"), "a", {})
    copy = tmp_path / "copy"
    shutil.copy(path, copy)
    ledger.charge(pure("0.25"), "b", {})
    newest = path.read_bytes()
    shutil.copy(copy, path)
    for use in (
        lambda: Ledger.open(path, "rand-1", PURE, anchor=anchor),
        lambda: ledger.charge(pure("0.25"), "c", {}),  # remembered within the process even without
        ledger.state,
    ):
        with pytest.raises(LedgerError, match="older one"):
            use()
    with pytest.raises(LedgerError, match="none is named"):
        Ledger.open(path, "rand-1", PURE)
    path.write_bytes(newest)
    assert Ledger.open(path, "rand-1", PURE, anchor=anchor).state().spent == 0.5


def test_without_an_anchor_nobody_remembers(path: Path, tmp_path: Path) -> None:
    ledger = Ledger.create(path, "rand-1", PURE)
    ledger.charge(pure("0.25"), "a", {})
    shutil.copy(path, tmp_path / "copy")
    ledger.charge(pure("0.25"), "b", {})
    shutil.copy(tmp_path / "copy", path)
    assert Ledger.open(path, "rand-1", PURE).state().spent == 0.25  # candidly, a refund


def test_a_ledger_that_was_held_to_an_anchor_needs_it_from_then_on(path: Path, tmp_path: Path) -> None:
    ledger = Ledger.create(path, "rand-1", PURE)
    ledger.charge(pure("0.25"), "a", {})
    anchor = tmp_path / "anchor"
    held = Ledger.open(path, "rand-1", PURE, anchor=anchor)
    held.charge(pure("0.25"), "b", {})
    for use in (ledger.state, lambda: ledger.charge(pure("0.25"), "c", {}), lambda: Ledger.open(path, "rand-1", PURE)):
        with pytest.raises(LedgerError, match=r"held to an anchor.*none is named"):
            use()
    kept = anchor.read_bytes()
    for gone in (anchor.unlink, lambda: anchor.write_bytes(b"")):
        gone()
        for use in (held.state, lambda: Ledger.open(path, "rand-1", PURE, anchor=anchor)):
            with pytest.raises(LedgerError, match=r"which is gone; .*ledger restore"):
                use()
    moved = tmp_path / "moved"
    moved.write_bytes(kept)
    links = Ledger.open(path, "rand-1", PURE, anchor=moved).verify()
    assert links == Ledger.open(path, "rand-1", PURE, anchor=moved).verify()  # it is noted once


def test_an_anchor_counts_what_was_spent(path: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    ledger = Ledger.create(path, "rand-1", PURE, anchor=anchor)
    number = ledger.charge(pure("0.25"), "a", {})
    mark = anchors.read(anchor)
    assert mark is not None
    assert (mark.number, mark.spent) == (number, {"pure": 250_000_000_000})


def test_a_deleted_ledger_is_not_replaced_where_an_anchor_remembers(path: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    Ledger.open_or_create(path, "rand-1", PURE, anchor=anchor)
    path.unlink()
    with pytest.raises(LedgerError, match="would forget"):
        Ledger.open_or_create(path, "rand-1", PURE, anchor=anchor)
    Ledger.create(path, "rand-1", PURE)
    with pytest.raises(LedgerError, match="another or an older one"):
        Ledger.open(path, "rand-1", PURE, anchor=anchor)


def test_a_damaged_or_foreign_anchor_is_an_error(path: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    ledger = Ledger.create(path, "rand-1", PURE, anchor=anchor)
    anchor.write_text("?")
    with pytest.raises(LedgerError, match="cannot be read"):
        ledger.state()
    anchor.write_text(json.dumps({"ledger": "x", "link": 1, "head": "y"}))
    with pytest.raises(LedgerError, match="another"):
        ledger.state()
    with pytest.raises(LedgerError, match="its own anchor"):
        anchors.advance(anchor, anchors.Mark("z", 2, "y"))
    with pytest.raises(LedgerError, match="cannot be written"):
        anchors.advance(tmp_path / "no" / "anchor", anchors.Mark("z", 2, "y"))


def test_an_anchor_never_goes_back(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    anchors.advance(anchor, anchors.Mark("a", 12, "long" * 10))
    anchors.advance(anchor, anchors.Mark("a", 5, "x"))
    assert anchors.read(anchor) == anchors.Mark("a", 12, "long" * 10)
    anchors.advance(anchor, anchors.Mark("a", 13, "x"))
    assert anchors.read(anchor) == anchors.Mark("a", 13, "x")
    assert anchors.read(tmp_path / "none") is None
