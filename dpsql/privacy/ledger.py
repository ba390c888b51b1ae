"""The ledger: what was spent, and every noisy measurement, in one SQLite file of its own.

Promise: released <= sum of charges = spent <= total, at every instant, whatever process dies when.

- A charge is one conditional UPDATE (``spent + units <= total``) under BEGIN IMMEDIATE, with a CHECK
  constraint behind it: of any number of racing processes exactly those that fit are granted.
- It is committed with journal_mode=DELETE and synchronous=EXTRA before the caller draws any noise.
  The journal's directory entry is synced too, so an acknowledged charge survives loss of power.
- Nothing is ever refunded. A crash between charge and measurement leaves the charge, listed by
  `Ledger.unreleased`; the noisy measurement is stored in the transaction that marks it released.
- Every row is a link of a hash chain that starts at the ledger's identity and totals; `Ledger.verify`
  recomputes it. An ``anchor`` file kept elsewhere holds the newest link, so that an older copy of the
  ledger put back is refused; once a ledger is held to one, every opening needs it. Without an anchor nobody
  can tell an old copy from the present, nor can any file of ours stop whoever may write both; keep them
  where the analyst cannot. A backup is restored with everything charged that it lacks (`ledger_restore`).
- An older schema version is brought up to date when the file is opened (`ledger_schema`).

A ledger stores public data only: charges, descriptions of plans, noisy measurements. A connection to
SQLite lives for one call: nothing is shared between threads or inherited over a fork.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dpsql.common.arrays import Json
from dpsql.common.interrupted_calls import note_charge
from dpsql.common.thread_lock import ThreadLock
from dpsql.errors import BudgetError, DataError, LedgerError
from dpsql.privacy import (
    analysts,
    chain,
    failed_scans,
    file_marks,
    ledger_copies,
    ledger_schema,
    periods,
    requests,
    reserve,
    schedules,
)
from dpsql.privacy import anchor as anchors
from dpsql.privacy.analysts import Analyst
from dpsql.privacy.budget import Budget
from dpsql.privacy.charge import Charge
from dpsql.privacy.entries import Entry, read_entries
from dpsql.privacy.failed_scans import FailedScan
from dpsql.privacy.ledger_checks import (
    budget_accounts,
    check_anchored,
    check_identity,
    check_once,
    check_text,
    check_units,
    check_whole,
    is_anchored,
)
from dpsql.privacy.ledger_file import LedgerFile
from dpsql.privacy.requests import BatchRequest
from dpsql.privacy.schedules import Schedule
from dpsql.privacy.state import BudgetState

__all__ = ["LARGEST_PAYLOAD", "Entry", "Ledger"]

LARGEST_PAYLOAD = 900_000_000  # bytes; SQLite stores at most 10^9 in one value

T = TypeVar("T")


class Ledger:
    """A ledger file bound to one data set and one budget. Make it with `create`, `open`, `open_or_create`.

    Safe to share between threads and over a fork; any number of processes may use the same file.
    timeout: seconds to wait for another process's lock.
    """

    def __init__(self, path: Path, dataset: str, budget: Budget, anchor: Path | None, timeout: float) -> None:
        self.path = path
        self.dataset = dataset
        self.budget = budget
        self.anchor = anchor
        self._file = LedgerFile(path, timeout)
        self._seen = anchors.Mark("", 0, "")
        self._lock = ThreadLock()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, dataset={self.dataset!r})"

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        dataset: str,
        budget: Budget,
        *,
        anchor: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> Ledger:
        """A new ledger with nothing spent; LedgerError if anything is at ``path`` already.

        The file appears under its name only when it is complete. Mode 0600.
        """
        check_text("dataset", dataset)
        target, mark_path = Path(path), None if anchor is None else Path(anchor)
        if mark_path is not None and os.path.exists(mark_path):
            raise LedgerError(
                f"anchor {mark_path} belongs to a ledger that existed before; put that ledger back at {target}, or its"
                " newest backup with 'dpsql ledger restore': a new one would forget what was spent"
            )
        LedgerFile(target, timeout).create(lambda connection: ledger_schema.initialise(connection, dataset, budget))
        return cls.open(target, dataset, budget, anchor=anchor, timeout=timeout)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        dataset: str,
        budget: Budget,
        *,
        anchor: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> Ledger:
        """An existing ledger, checked: schema, data set, budget, hash chain, sums, and the anchor if named.

        Never creates the file; brings one of an older schema version up to date once it was checked as what
        it is. Raises LedgerError with what differs and what to do. Cost O(charges); the payloads are left
        to `verify`.
        """
        check_text("dataset", dataset)
        ledger = cls(Path(path), dataset, budget, None if anchor is None else Path(anchor), timeout)
        version, mark = ledger._file.run(lambda connection: ledger._verify(connection, payloads=False))
        if version < ledger_schema.SCHEMA_VERSION:
            mark = ledger._upgraded()
        ledger._remember(mark)
        ledger._hold()
        return ledger

    def _hold(self) -> None:
        """Note that the ledger is held to its anchor, which exists by now and is needed from then on."""
        if self.anchor is None or self._file.run(is_anchored):
            return

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            if not is_anchored(connection):
                chain.note(connection, "anchored", chain.last_number(connection), {})

        self._write(work)

    def _upgraded(self) -> anchors.Mark:
        def work(connection: sqlite3.Connection) -> anchors.Mark:
            # Again, now that nobody else can write: another process may have upgraded it in between.
            version, mark = self._verify(connection, payloads=False)
            if version == ledger_schema.SCHEMA_VERSION:
                return mark
            ledger_schema.upgrade(connection)
            return self._verify(connection, payloads=False)[1]

        return self._file.run(work, write=True)

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        dataset: str,
        budget: Budget,
        *,
        anchor: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> Ledger:
        """`open` if the file is there, else `create`; for a policy whose ledger never existed.

        Two processes may do so at once: one creates, both open. With an anchor that exists, a missing
        ledger is an error: it was deleted.
        """
        target = Path(path)
        if not os.path.lexists(target):
            try:
                return cls.create(target, dataset, budget, anchor=anchor, timeout=timeout)
            except LedgerError:
                if not os.path.lexists(target):
                    raise
        return cls.open(target, dataset, budget, anchor=anchor, timeout=timeout)

    # -- spending --------------------------------------------------------------------------------

    def charge(
        self,
        charge: Charge,
        charge_id: str,
        description: Json,
        *,
        label: str = "",
        before: tuple[Charge, Json] | None = None,
    ) -> int:
        """Spend, durably, and return the release's number. To be called before any noise is drawn.

        charge_id: the caller's key, new for each release. The same key with the same content returns the
        same number and spends nothing more, so a caller that never learned the outcome can ask again; only
        one measurement can ever be recorded for it. label: who asked. description: public, JSON. before: a charge, with
        its description, that is made first under no label, in the same transaction: both or neither (`reserve`).

        Granted iff spent + units <= total in its account, and units are within the policy's cap on one release;
        otherwise BudgetError, and nothing is spent. Where the description names periods, ``spent`` rises by what the
        unit loses more that has lost most (`periods`), and IntegrityError where the policy cuts others than before.
        Where ``label`` is an analyst's name, within that analyst's own budget, too (`analysts`); PolicyError for tables
        that are not theirs. Where the policy asks for approval, only under a request that was approved, which is
        charged with it (`requests`). LedgerError: locked, read-only, full, or charge_id used for something else.
        IntegrityError for a local release of columns that were released before (`check_once`). What a threshold takes
        of delta is held to `reserve`.
        """
        check_text("charge_id", charge_id)
        check_text("label", label, least=0)
        works = [] if before is None else [self._granting(before[0], f"{charge_id} before", before[1], "")]
        works.append(self._granting(charge, charge_id, description, label))
        note_charge(lambda: self._outcome(charge_id))
        return self._write(lambda connection: [work(connection) for work in works][-1])

    def _granting(
        self, charge: Charge, charge_id: str, description: Json, label: str
    ) -> Callable[[sqlite3.Connection], int]:
        """What makes a charge inside a transaction; see `charge`."""
        try:
            text, malformed = chain.canonical(dict(description)), False
        except (TypeError, ValueError):
            text, malformed = "", True
        if malformed:
            raise DataError("the description of a charge must be JSON with finite numbers; convert its values")
        if charge.noise == "none":
            raise DataError("a free answer is no charge; store it with answer()")
        # Checked once more as it is written: what was altered since it was made neither spends nor stays in the file.
        charge = Charge.from_dict(charge.as_dict())
        cost, reads = chain.canonical(charge.as_dict()), periods.Reads.of(description)

        def work(connection: sqlite3.Connection) -> int:
            self._check_identity(connection)
            known = connection.execute(
                "SELECT id, cost, description, label, dataset FROM charges WHERE charge = ?", (charge_id,)
            ).fetchone()
            if known is not None:
                if known[1:] != (cost, text, label, self.dataset):
                    raise self._file.error(f"has another charge under the id {charge_id!r}; use a new id")
                return int(known[0])
            check_once(connection, self.dataset, description)
            check_units(connection, description)
            if not reserve.makes(description):
                if not self.budget.allows(charge):
                    raise BudgetError(self.budget.refusal(charge))
                reserve.check(connection, self.budget, charge)
            else:
                reserve.check_untouched(connection, self.budget)
            analysts.check(connection, label, charge, description)
            state = self._state(connection)
            account = state.account(charge.account)
            more = periods.check(
                *(periods.spending(connection), charge.account, charge.units),
                *(0 if account is None else account.total_units, reads),
            )
            granted = connection.execute(
                "UPDATE purses SET spent = spent + ?1 WHERE name = ?2 AND spent + ?1 <= total",
                (more, charge.account),
            )
            if more is None or granted.rowcount != 1:  # spent + NULL is below nothing
                state = replace(state, charges=tuple(read_entries(connection, self._file)))
                raise BudgetError(state.within(reads).refusal(charge))
            number = 1 + chain.last_number(connection)
            row = (number, charge_id, chain.now(), self.dataset, label, charge.account, charge.units, cost, text)
            connection.execute(
                f"INSERT INTO charges ({chain.CHARGE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                row,
            )
            chain.append(connection, "charge", number, row)
            if self.budget.approval:
                requests.spend(connection, self.dataset, label, charge, description, number)
            return number

        return work

    def check_charges(self, charges: Sequence[Charge], label: str, description: Json) -> None:
        """Raise what `charge` would of locks, of the account and of the analyst, for each of these. Spends nothing.

        A courtesy before work is done, as another process may charge meanwhile. Waits for locks as a charge does.
        """

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            state = replace(self._state(connection), charges=tuple(read_entries(connection, self._file)))
            refusals: list[BudgetError] = []
            for charge in charges:
                try:
                    state.within(periods.Reads.of(description)).check(charge)
                    analysts.check(connection, label, charge, description)
                except BudgetError as refusal:
                    refusals.append(refusal)
            if refusals and len(refusals) == len(charges):
                raise refusals[0]

        self._file.run(work, write=True)

    def request(self, charge: Charge, description: Json, text: tuple[str, str], *, label: str) -> None:
        """Hold a charge that is about to be made until it is approved, where the policy asks for that (`requests`).

        ``text``: the batch, and its plan in words. Returns where ``label`` may charge now; else the request is in the
        ledger, and OperationalError says that it waits, BudgetError that it was refused. Raises as `charge`, too, for
        what the analyst's budget does not allow. Spends nothing.
        """
        if not self.budget.approval:
            return

        def work(connection: sqlite3.Connection) -> BatchRequest | None:
            self._check_identity(connection)
            return requests.submit(connection, self.dataset, label, charge, description, text)

        made = self._write(work)
        if made is not None:
            requests.check(made)

    def decide(self, number: int, *, approve: bool, note: str = "") -> BatchRequest:
        """Approve or refuse a request; as it is then. Spends nothing. Raises as `requests.decide`."""
        check_text("note", note, least=0)

        def work(connection: sqlite3.Connection) -> BatchRequest:
            self._check_identity(connection)
            return requests.decide(connection, number, "approved" if approve else "refused", note)

        return self._write(work)

    def requests(self) -> list[BatchRequest]:
        """Every request, oldest first."""

        def work(connection: sqlite3.Connection) -> list[BatchRequest]:
            self._check_identity(connection)
            return list(requests.every(connection).values())

        return self._file.run(work)

    def record(self, release_id: int, payload: bytes) -> None:
        """Store the noisy measurement and mark the charge released, in one transaction.

        payload: serialised noisy measurement and tables, public, at most 900 MB. Recording the same bytes
        again does nothing; other bytes are a LedgerError, for one charge pays for one measurement: what
        users see is what `payload` reads back.
        """
        if not isinstance(payload, bytes) or len(payload) > LARGEST_PAYLOAD:
            raise DataError("a measurement must be bytes, at most 900 MB; split the batch")
        digest = hashlib.sha256(payload).hexdigest()

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            if not connection.execute("SELECT 1 FROM charges WHERE id = ?", (release_id,)).fetchone():
                raise self._file.error(f"has no charge number {release_id}; charge before you measure")
            known = connection.execute("SELECT digest FROM releases WHERE id = ?", (release_id,)).fetchone()
            if known is not None:
                if known[0] != digest:
                    raise self._file.error(f"already holds another measurement for charge {release_id}; read that one")
                return
            dataset, text = connection.execute(
                "SELECT dataset, description FROM charges WHERE id = ?", (release_id,)
            ).fetchone()
            check_once(connection, dataset, json.loads(text), release_id)
            row = (release_id, chain.now(), digest)
            connection.execute("INSERT INTO releases (id, time, digest, payload) VALUES (?, ?, ?, ?)", (*row, payload))
            chain.append(connection, "release", release_id, row)

        self._write(work)

    def answer(self, payload: Callable[[int], bytes], description: Json, *, label: str = "") -> int:
        """Store a release that rests on earlier ones alone, and return its number. Spends nothing.

        payload: from its number to the bytes that `release` reads back. description: public, JSON; ``guarantee`` in it
        is what people read as its cost. Numbers are shared with the charges. Raises as `record`.
        """
        check_text("label", label, least=0)
        text = chain.canonical(dict(description))

        def work(connection: sqlite3.Connection) -> int:
            self._check_identity(connection)
            number = 1 + chain.last_number(connection)
            body = payload(number)
            if len(body) > LARGEST_PAYLOAD:
                raise DataError("a release must be bytes, at most 900 MB; split the batch")
            row = (number, chain.now(), self.dataset, label, text)
            digest = hashlib.sha256(body).hexdigest()
            connection.execute(
                f"INSERT INTO answers ({chain.ANSWER_COLUMNS}, payload, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                (*row, body, digest),
            )
            chain.append(connection, "answer", number, (*row, digest))
            return number

        return self._write(work)

    def renew(self, dataset: str) -> Ledger:
        """Declare a new version of the data: later charges carry it, and spending goes on where it was.

        A public event. Releases keep the version that they were made of; the old name never returns.
        The returned ledger is open under the new name; open the file under that name from now on.
        """
        check_text("dataset", dataset)

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            if connection.execute("SELECT 1 FROM datasets WHERE dataset = ?", (dataset,)).fetchone():
                raise self._file.error(f"has known the data set {dataset!r} before; declare a new version name")
            row = (chain.now(), dataset)
            inserted = connection.execute("INSERT INTO datasets (time, dataset) VALUES (?, ?)", row)
            number = int(inserted.lastrowid or 0)
            chain.append(connection, "dataset", number, (number, *row))

        self._write(work)
        return Ledger.open(self.path, dataset, self.budget, anchor=self.anchor, timeout=self._file.timeout)

    def show(self, change: Callable[[list[Entry]], Mapping[int, Sequence[str | None]]]) -> tuple[int, ...]:
        """Change under which names results are shown; the releases that changed. Spends and refunds nothing.

        change: from all entries to the new names of the results of some releases, None for a result that is no
        longer shown; what it raises leaves the ledger as it was. A public event, a link of the chain for each release;
        charges and measurements stay as they are. LedgerError for a release that there is none of.
        """

        def work(connection: sqlite3.Connection) -> tuple[int, ...]:
            self._check_identity(connection)
            entries = {entry.id: entry for entry in read_entries(connection, self._file)}
            done = []
            for release, names in change(list(entries.values())).items():
                entry = entries.get(release)
                if entry is None or entry.released is None or len(names) != len(entry.results):
                    raise self._file.error(f"has no release {release} with {len(names)} results; releases() lists them")
                if tuple(names) == entry.shown:
                    continue
                row = (chain.now(), release, chain.canonical(list(names)))
                inserted = connection.execute("INSERT INTO views (time, release, names) VALUES (?, ?, ?)", row)
                number = int(inserted.lastrowid or 0)
                chain.append(connection, "views", number, (number, *row))
                done.append(release)
            return tuple(done)

        return self._write(work)

    def declare_analyst(self, change: Callable[[Mapping[str, Analyst]], Analyst]) -> Analyst:
        """Write down what holds of an analyst from now on: from all that there are to the one that is new or changed.

        What ``change`` raises leaves the ledger as it was. Spends and refunds nothing.
        """

        def work(connection: sqlite3.Connection) -> Analyst:
            self._check_identity(connection)
            analyst = change(analysts.newest(connection))
            check_text("the name of an analyst", analyst.name)
            analysts.declare(connection, analyst)
            return analyst

        return self._write(work)

    def declare_schedule(self, schedule: Schedule) -> None:
        """Write down a standing batch, or that it is removed. Spends nothing. Raises as `schedules.declare`."""
        check_text("the name of a schedule", schedule.name)

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            schedules.declare(connection, schedule)

        self._write(work)

    def schedules(self) -> list[Schedule]:
        """Every standing batch, those that were removed, too."""

        def work(connection: sqlite3.Connection) -> list[Schedule]:
            self._check_identity(connection)
            return list(schedules.newest(connection).values())

        return self._file.run(work)

    def last_written(self) -> str:
        """The latest time (UTC, ISO 8601) of anything that was written to it."""
        times = ("created FROM identity", *(f"time FROM {table}" for table in chain.TABLES.values()))
        asked = " UNION ALL ".join(f"SELECT {part}" for part in times)

        def work(connection: sqlite3.Connection) -> str:
            self._check_identity(connection)
            return str(connection.execute(f"SELECT max(created) FROM ({asked})").fetchone()[0])  # noqa: S608 - fixed

        return self._file.run(work)

    def charged(self, charge_id: str) -> Entry | None:
        """The charge of that id, without its measurement; None where there is none."""
        found = self._entries("WHERE charges.charge = ?", (charge_id,), free=None)
        return found[0] if found else None

    def _outcome(self, charge_id: str) -> tuple[int, bool] | None:
        entry = self.charged(charge_id)
        return None if entry is None else (entry.id, entry.released is not None)

    def note_files(self, files: Mapping[str, str], *, again: bool = False) -> None:
        """Mark files that have no mark under this data set's name (`file_marks`).

        ``again``: also those that changed, and let tables be charged whose scan failed (`failed_scans`).
        """
        if not again and not self._file.run(lambda connection: file_marks.unmarked(connection, self.dataset, files)):
            return

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            file_marks.note(connection, self.dataset, files, again=again)
            if again:
                failed_scans.clear(connection, self.dataset)

        self._write(work)

    def note_failed_scan(self, release: int, files: Mapping[str, str]) -> None:
        """Write that the scan of a release failed over tables with these files (`failed_scans`)."""

        def work(connection: sqlite3.Connection) -> None:
            self._check_identity(connection)
            failed_scans.note(connection, self.dataset, release, files)

        self._write(work)

    # -- reading ---------------------------------------------------------------------------------

    def state(self) -> BudgetState:
        """Totals, what is spent of them, by whom and for what, as of now."""

        def work(connection: sqlite3.Connection) -> BudgetState:
            self._check_identity(connection)
            return BudgetState(
                self.budget,
                budget_accounts(connection, self._file, self.budget),
                tuple(read_entries(connection, self._file)),
            )

        return self._file.run(work)

    def analysts(self) -> dict[str, Analyst]:
        """Every analyst by name, those who were removed, too."""

        def work(connection: sqlite3.Connection) -> dict[str, Analyst]:
            self._check_identity(connection)
            return analysts.newest(connection)

        return self._file.run(work)

    def analyst_state(self, analyst: Analyst) -> BudgetState:
        """What an analyst's budget holds, and what is spent of it."""

        def work(connection: sqlite3.Connection) -> BudgetState:
            self._check_identity(connection)
            return analysts.state(connection, analyst)

        return self._file.run(work)

    def changed_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """Places of ``files`` that were written to since they were marked, and when that was (`file_marks`)."""
        return self._file.run(lambda connection: file_marks.changed(connection, self.dataset, files))

    def failed_scans(self) -> dict[str, FailedScan]:
        """The newest scan that failed of each table, unless it was cleared since (`failed_scans`)."""
        return self._file.run(lambda connection: failed_scans.newest(connection, self.dataset))

    def unreleased(self) -> list[Entry]:
        """Charges without a measurement, oldest first: running now, or spent by a crash for nothing."""
        return [entry for entry in self._entries("WHERE releases.id IS NULL", free=None) if not entry.measures_nothing]

    def releases(self) -> Iterator[Entry]:
        """All releases with their payloads, oldest first; one payload in memory at a time."""
        for entry in self._entries("WHERE releases.id IS NOT NULL"):
            yield self.release(entry.id)

    def release(self, release_id: int) -> Entry:
        """One release with its payload, whose digest is checked. LedgerError if there is none."""
        found = self._entries("WHERE releases.id = ?", (release_id,), free="WHERE id = ?", payload=True)
        if not found:
            raise self._file.error(f"has no measurement number {release_id}; releases() lists those it has")
        return found[0]

    def entries(self) -> list[Entry]:
        """Every charge, released or not, oldest first, without payloads."""
        return self._entries("")

    def verify(self) -> int:
        """Recompute the hash chain, sums and payload digests, check every page; returns the number of links.

        LedgerError at the first thing that does not agree. Cost: one read of the file.
        """
        return self._file.run(lambda connection: self._verify(connection, payloads=True))[1].link

    def back_up(self, target: str | os.PathLike[str]) -> int:
        """Copy the ledger, as it is at one moment, to ``target``, whoever writes meanwhile; the number of its links.

        An older copy of this ledger that is there is replaced, anything else refused. LedgerError.
        """
        return ledger_copies.back_up(self._file, Path(target), self.budget, self._check_identity).link

    # -- inside ----------------------------------------------------------------------------------

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def and_mark(connection: sqlite3.Connection) -> tuple[T, anchors.Mark]:
            result = work(connection)
            return result, chain.newest(connection)

        result, mark = self._file.run(and_mark, write=True)
        self._remember(mark)
        return result

    def _remember(self, mark: anchors.Mark) -> None:
        """The newest link seen, in this process and in the anchor: neither ever goes back."""
        with self._lock:
            if mark.link > self._seen.link:
                self._seen = mark
        if self.anchor is not None:
            anchors.advance(self.anchor, mark)

    def _check_identity(self, connection: sqlite3.Connection) -> int:
        anchored = None if self.anchor is None else anchors.read(self.anchor)
        version = check_identity(connection, self._file, self.dataset, self.budget, (self._seen, anchored))
        check_anchored(connection, self._file, version, self.anchor, anchored)
        return version

    def _state(self, connection: sqlite3.Connection) -> BudgetState:
        return BudgetState(self.budget, budget_accounts(connection, self._file, self.budget))

    def _verify(self, connection: sqlite3.Connection, *, payloads: bool) -> tuple[int, anchors.Mark]:
        version = self._check_identity(connection)
        budget_accounts(connection, self._file, self.budget)
        check_whole(connection, self._file, version, payloads=payloads)
        return version, chain.newest(connection)

    def _entries(
        self, where: str, values: tuple[object, ...] = (), *, free: str | None = "", payload: bool = False
    ) -> list[Entry]:
        def work(connection: sqlite3.Connection) -> list[Entry]:
            self._check_identity(connection)
            return read_entries(connection, self._file, where, values, free=free, payload=payload)

        return self._file.run(work)
