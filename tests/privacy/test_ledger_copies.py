"""Backups of a ledger, and backups put back: nothing that was spent is forgotten."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import LedgerError
from dpsql.privacy import anchor as anchors
from dpsql.privacy import ledger_schema
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_restore import Loss, Restored, restore

BUDGET = Budget.of("4", "1e-9", "1", local_epsilon="2")


class Place:
    """A ledger of its own, with an anchor or without."""

    def __init__(self, folder: Path, *, anchored: bool = True) -> None:
        self.path = folder / "x.ledger"
        self.anchor = folder / "x.anchor" if anchored else None
        self.backup = folder / "backup.ledger"
        self.budget = BUDGET

    def open(self) -> Ledger:
        return Ledger.open_or_create(self.path, "rand-1", self.budget, anchor=self.anchor)

    def spend(self, epsilon: str, delta: str | None = None) -> int:
        ledger = self.open()
        (charge, *_) = charge_for(Request.of(epsilon, delta), BUDGET)
        number = ledger.charge(charge, os.urandom(8).hex(), {"names": ["q1"]})
        ledger.record(number, b"noisy")
        return number

    def spent(self) -> dict[str, int]:
        return {account.name: account.spent_units for account in self.open().state().accounts}

    def restore(
        self, source: Path | None = None, lost: Fraction | bool | None = None, timeout: float = 30.0, **known: Any
    ) -> Restored:
        source, loss = source or self.backup, Loss(lost, **known)
        return restore(source, self.path, "rand-1", self.budget, anchor=self.anchor, loss=loss, timeout=timeout)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def alone(tmp_path: Path) -> Place:
    return Place(tmp_path, anchored=False)


def refused(use: Callable[[], object], match: str) -> str:
    with pytest.raises(LedgerError, match=match) as caught:
        use()
    return str(caught.value)


# -- backup ----------------------------------------------------------------------------------------


def test_a_backup_is_the_ledger_and_replaces_older_ones_only(place: Place, tmp_path: Path) -> None:
    place.spend("0.25")
    links = place.open().back_up(place.backup)
    assert Ledger.open(place.backup, "rand-1", BUDGET, anchor=place.anchor).verify() == links
    assert place.backup.stat().st_mode & 0o777 == 0o600
    first = place.backup.read_bytes()
    place.spend("0.25")
    assert place.open().back_up(place.backup) > links
    assert place.backup.read_bytes() != first
    other = Ledger.create(tmp_path / "other.ledger", "rand-1", BUDGET)
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "folder").mkdir()
    for target in (other.path, *(tmp_path / name for name in ("notes.txt", "folder", "x.anchor", "x.ledger"))):
        refused(lambda target=target: place.open().back_up(target), "no older copy of the ledger")  # type: ignore[misc]
    refused(lambda: place.open().back_up(tmp_path / "none" / "b"), "cannot be written")
    assert (tmp_path / "notes.txt").read_text() == "precious"
    assert not list(tmp_path.glob(".*.new"))


def test_a_newer_backup_is_not_replaced_by_an_older_ledger(alone: Place) -> None:
    alone.spend("0.25")
    older = alone.path.read_bytes()
    alone.spend("0.25")
    alone.open().back_up(alone.backup)
    alone.path.write_bytes(older)
    refused(lambda: alone.open().back_up(alone.backup), "no older copy")


def test_an_older_ledger_is_not_backed_up(place: Place) -> None:
    place.spend("0.25")
    ledger = place.open()
    older = place.path.read_bytes()
    place.spend("0.25")
    place.path.write_bytes(older)
    refused(lambda: ledger.back_up(place.backup), "older one")
    assert not place.backup.exists()


def _writer(path: str, anchor: str, started: Any, go_on: Any) -> None:
    ledger = Ledger.open(path, "rand-1", BUDGET, anchor=anchor)
    (charge, *_) = charge_for(Request.of("0.001", None), BUDGET)
    for turn in range(150):
        number = ledger.charge(charge, f"{turn}", {})
        ledger.record(number, b"x" * 20_000)
        started.set()
        if turn > 5:
            go_on.wait(60)


@pytest.mark.long
def test_a_backup_while_another_process_writes_is_whole(place: Place, tmp_path: Path) -> None:
    place.spend("0.001")
    context = multiprocessing.get_context("spawn")
    started, go_on = context.Event(), context.Event()
    writer = context.Process(target=_writer, args=(str(place.path), str(place.anchor), started, go_on))
    writer.start()
    try:
        assert started.wait(60)
        go_on.set()
        ledger, links = place.open(), []
        while writer.is_alive() and len(links) < 12:
            links.append(ledger.back_up(place.backup))
            copy = shutil.copy(place.backup, tmp_path / "copy")
            with closing(sqlite3.connect(copy)) as connection:
                assert connection.execute("SELECT max(link), count(*) FROM chain").fetchone() == (links[-1],) * 2
    finally:
        writer.join(120)
    assert writer.exitcode == 0
    assert links == sorted(links)
    assert place.open().verify() >= links[-1]


# -- restore ---------------------------------------------------------------------------------------


def test_the_newest_backup_is_restored_and_nothing_is_charged(place: Place) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    before = place.spent()
    place.path.write_bytes(b"damaged")
    done = place.restore()
    assert (done.lost, place.spent()) == ((), before)
    assert done.kept is not None
    assert done.kept.read_bytes() == b"damaged"
    place.path.unlink()
    refused(place.restore, "is older than the anchor")  # by what the restore itself wrote
    assert place.restore(lost=True).lost == ()
    assert place.spent() == before


def test_an_older_backup_is_restored_with_all_that_the_anchor_counts(place: Place) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.spend("0.5")
    last = place.spend("1", "1e-9")
    spent = place.spent()
    for lose in (place.path.unlink, lambda: place.path.write_bytes(b"damaged")):
        lose()
        said = refused(place.restore, r"older than the anchor .* with --lost, which counts epsilon 0\.5 of the pure")
        assert "of the gaussian account as spent" in said
    done = place.restore(lost=True)
    assert done.lost[0] == "epsilon 0.5 of the pure account"
    assert place.spent() == spent
    assert place.open().verify() == done.links
    entries = place.open().entries()
    assert [entry.lost for entry in entries] == [False, True, True]
    assert entries[1].id == last + 1  # numbers that were given out are not given again
    assert place.open().unreleased() == []
    assert place.open().state().unreleased == ()


def test_an_amount_counts_where_it_is_more_than_the_anchor_says(place: Place) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.spend("0.5")
    shutil.copy(place.backup, place.path)
    place.restore(place.path, lost=Fraction("0.125"))
    assert place.spent()["pure"] == 750_000_000_000
    place.open().back_up(place.backup)
    place.spend("0.125")
    place.path.unlink()
    place.restore(lost=Fraction("0.2"))
    assert place.spent()["pure"] == 950_000_000_000


def test_without_an_anchor_the_custodian_says_what_was_spent(alone: Place) -> None:
    alone.spend("0.25")
    alone.open().back_up(alone.backup)
    kept = alone.backup.read_bytes()
    for lost, pure, local in (
        (Fraction(0), 0.25, 0.0),
        (Fraction("0.5"), 0.75, 0.5),
        (Fraction(100), 1.0, 2.0),
        (True, 1.0, 2.0),
    ):
        alone.path.unlink()
        refused(alone.restore, r"there is no anchor, so nobody counts; .* all that is left as spent \(epsilon 0\.75 of")
        alone.restore(lost=lost)
        spent = alone.spent()
        assert (spent["pure"] / 1e12, spent["local"] / 1e12) == (pure, local)
    assert alone.backup.read_bytes() == kept
    alone.path.unlink()
    # What the releases show to be spent is counted whatever the custodian says.
    alone.restore(lost=Fraction(0), least_spent={"pure": 600_000_000_000}, number=41)
    assert alone.spent()["pure"] == 600_000_000_000
    assert alone.spend("0.25") == 43


def test_a_lost_anchor_is_made_anew_by_what_the_custodian_says(place: Place) -> None:
    place.spend("0.25")
    assert place.anchor is not None
    place.anchor.unlink()
    refused(place.open, "which is gone")
    refused(lambda: place.restore(place.path), "the anchor .* is gone, so nobody counts")
    done = place.restore(place.path, lost=Fraction(0))
    assert place.spent()["pure"] == 250_000_000_000
    assert done.kept is not None
    assert place.anchor.exists()
    refused(lambda: place.restore(place.path), "nothing to restore")


def test_an_anchor_that_counts_nothing_takes_all_that_is_left(place: Place) -> None:
    assert place.anchor is not None
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.spend("0.25")
    fields = json.loads(place.anchor.read_text())
    place.anchor.write_text(json.dumps({name: fields[name] for name in ("ledger", "link", "head")}))
    place.path.unlink()
    refused(place.restore, "which does not count")
    place.restore(lost=True)
    assert place.spent()["pure"] == 1_000_000_000_000


def test_a_ledger_that_is_newer_is_never_replaced(place: Place, alone: Place, tmp_path: Path) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    for lost in (None, True, Fraction(1)):
        refused(lambda lost=lost: place.restore(lost=lost), "has nothing that .* lacks")  # type: ignore[misc]
    place.spend("0.25")
    refused(lambda: place.restore(lost=True), "has nothing that .* lacks")
    assert place.spent()["pure"] == 500_000_000_000


@pytest.mark.parametrize("lost", [True, Fraction(0)])
def test_what_the_ledger_in_place_spent_on_a_line_of_its_own_is_charged(
    alone: Place, tmp_path: Path, lost: Fraction | bool
) -> None:
    alone.spend("0.25")
    older = alone.path.read_bytes()
    alone.spend("0.125")
    alone.open().back_up(alone.backup)
    alone.path.write_bytes(older)
    alone.spend("0.5")  # nobody remembers, and it is spent twice
    alone.restore(lost=lost)
    assert alone.spent()["pure"] / 1e12 == (1 if lost is True else 0.875)


def test_another_ledger_in_place_is_charged_too(place: Place, tmp_path: Path) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.path.unlink()
    other = Ledger.create(place.path, "rand-1", BUDGET)
    (charge, *_) = charge_for(Request.of("0.5", None), BUDGET)
    other.charge(charge, "a", {})
    refused(place.restore, "which is in place and whole, spent on a line of its own")
    place.restore(lost=True)
    assert place.spent()["pure"] == 750_000_000_000


def test_a_newer_ledger_that_is_found_after_all_is_not_charged_twice(place: Place, tmp_path: Path) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.spend("0.25")
    found = tmp_path / "found.ledger"
    place.path.rename(found)
    place.restore(lost=True)
    place.spend("0.125")
    refused(lambda: Ledger.open(found, "rand-1", BUDGET, anchor=place.anchor), "older one")
    refused(lambda: place.restore(found), "is older than the anchor")
    place.restore(found, lost=True)
    assert place.spent()["pure"] == 625_000_000_000
    assert len(place.open().entries()) == 3  # both releases, and what was spent after the first restore


def test_every_copy_of_the_lost_line_is_refused_afterwards(place: Place, tmp_path: Path) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.spend("0.25")
    newest = place.path.read_bytes()
    place.path.unlink()
    place.restore(lost=True)
    restored = place.path.read_bytes()
    for copy in (newest, place.backup.read_bytes()):
        place.path.write_bytes(copy)
        refused(place.open, "older one")
    place.path.write_bytes(restored)
    assert place.spent()["pure"] == 500_000_000_000


def test_a_process_that_dies_in_a_restore_leaves_what_can_be_restored_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.spend("0.5")
    before = place.path.read_bytes()
    place.path.write_bytes(place.backup.read_bytes())

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("dpsql.privacy.anchor.reset", "dpsql.privacy.ledger_restore._set_aside", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(step, dies)
            with pytest.raises(KeyboardInterrupt):
                place.restore(place.path, lost=True)
        refused(place.open, "older one")
    assert before != place.path.read_bytes()
    place.restore(place.path, lost=True)
    assert place.spent()["pure"] == 750_000_000_000
    assert not list(place.path.parent.glob(".*.new*"))


def test_a_journal_of_the_lost_file_does_not_reach_the_restored_one(place: Place) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.path.unlink()
    journal = place.path.with_name(place.path.name + "-journal")
    journal.write_bytes(b"journal")
    assert place.restore().kept is None
    assert journal.with_name("x.ledger.before-restore-1-journal").read_bytes() == b"journal"
    assert not journal.exists()
    assert place.spent()["pure"] == 250_000_000_000


def test_a_ledger_that_is_written_is_not_replaced(place: Place) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    older = place.backup.read_bytes()
    place.spend("0.25")
    place.path.write_bytes(older)
    with closing(sqlite3.connect(place.path, isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        refused(lambda: place.restore(place.path, lost=True, timeout=0.01), "locked by another process")


def test_backups_of_other_ledgers_data_and_budgets_are_refused(place: Place, tmp_path: Path) -> None:
    place.spend("0.25")
    other = Ledger.create(tmp_path / "other.ledger", "rand-1", BUDGET)
    refused(lambda: place.restore(other.path, lost=True), "of another ledger than the anchor")
    place.open().back_up(place.backup)
    place.budget = Budget.of("5", "1e-9", "1", local_epsilon="2")
    refused(place.restore, "another budget")
    place.budget = BUDGET
    renewed = Ledger.open(place.backup, "rand-1", BUDGET, anchor=place.anchor).renew("rand-0")
    refused(place.restore, "is of data set 'rand-0', and the policy says 'rand-1'")
    renewed.path.write_bytes(b"no backup")
    refused(place.restore, "not a SQLite database")
    place.backup.unlink()
    refused(place.restore, "does not exist")


def test_a_backup_of_an_anchored_ledger_needs_its_anchor(place: Place) -> None:
    place.spend("0.25")
    place.open().back_up(place.backup)
    place.path.unlink()
    place.anchor = None
    refused(lambda: place.restore(lost=True), "held to an anchor, and none is named")


def test_a_backup_of_an_older_version_is_brought_up_to_date(tmp_path: Path) -> None:
    old = tmp_path / "old.ledger"
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.executescript((Path(__file__).parent / "ledger_version_1.sql").read_text())
    place = Place(tmp_path)
    restore(old, place.path, "rand-2", BUDGET, anchor=place.anchor, loss=Loss(Fraction(0)))
    ledger = Ledger.open(place.path, "rand-2", BUDGET, anchor=place.anchor)
    assert len(ledger.entries()) == 4
    with closing(sqlite3.connect(place.path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == ledger_schema.SCHEMA_VERSION
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1


@pytest.mark.parametrize("turns", [range(6), pytest.param(range(6, 24), marks=pytest.mark.long)], ids=["few", "many"])
def test_in_any_order_of_spending_backing_up_losing_and_restoring_nothing_is_forgotten(
    tmp_path: Path, turns: range
) -> None:
    """What was spent in truth is never more than the ledger in place says, and with an anchor never less either."""
    steps = ["spend", "back up", "spend", "lose", "restore", "spend", "spend", "put back", "restore", "back up", "lose"]
    for turn in turns:
        folder = tmp_path / str(turn)
        folder.mkdir()
        place, truth = Place(folder), 0
        place.spend("0.01")
        place.open().back_up(place.backup)
        truth += 1
        for at in range(8):
            step = steps[(turn * 5 + at * (1 + turn % 3)) % len(steps)]
            whole = place.path.exists() and _opens(place)
            if step == "spend" and whole:
                place.spend("0.01")
                truth += 1
            elif step == "back up" and whole:
                with_newest = folder / f"backup-{at}"
                place.open().back_up(with_newest)
                place.backup = with_newest
            elif step == "lose" and place.path.exists():
                place.path.unlink()
            elif step == "put back" and whole:
                place.path.write_bytes(place.backup.read_bytes())
            elif step == "restore" and not whole:
                place.restore(place.path if place.path.exists() else place.backup, lost=True)
        if not (place.path.exists() and _opens(place)):
            place.restore(place.path if place.path.exists() else place.backup, lost=True)
        assert place.spent()["pure"] == truth * 10**10


def _opens(place: Place) -> bool:
    try:
        place.open().state()
    except LedgerError:
        return False
    return True


def test_anchors_are_reset_for_their_own_ledger_alone(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    anchors.advance(anchor, anchors.Mark("a", 12, "x", 3, {"pure": 5}))
    refused(lambda: anchors.reset(anchor, anchors.Mark("b", 1, "y")), "belongs to another ledger")
    anchors.reset(anchor, anchors.Mark("a", 5, "y", 3, {"pure": 5}))
    assert anchors.read(anchor) == anchors.Mark("a", 5, "y", 3, {"pure": 5})
