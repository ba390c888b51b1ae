"""A connection's ledger and the releases file made from it: opened, held together, caught up after a crash.

The ledger decides everything; the releases file is derived, and may be busy, deleted or behind. Nothing
here spends: charges and measurements are written by ``dpsql.measure`` alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from dpsql.common.quoting import string
from dpsql.common.thread_lock import ThreadLock
from dpsql.errors import DatabaseError, IntegrityError, InterfaceError, LedgerError, OperationalError
from dpsql.policy import Policy
from dpsql.privacy.accountant import Budget, BudgetAccount, BudgetState, fresh_state
from dpsql.privacy.entries import Names, dropped, renamed
from dpsql.privacy.ledger import Entry, Ledger
from dpsql.privacy.ledger_file import dataset_of
from dpsql.privacy.periods import Spending
from dpsql.release import ReleaseRecord, ReleaseStore, check_name
from dpsql.release.payload import moment_of, unpack
from dpsql.release.reading import state_of

log = logging.getLogger("dpsql")


def budget_of(policy: Policy) -> Budget:
    """The budget that a policy declares, as the accountant knows it."""
    declared = policy.budget
    return Budget.of(
        epsilon=declared.epsilon,
        delta=declared.delta,
        pure_epsilon=declared.pure_epsilon,
        rho=declared.rho,
        local_epsilon=declared.local_epsilon,
        max_epsilon_per_release=declared.max_epsilon_per_release,
        max_rho_per_release=declared.max_rho_per_release,
        max_local_epsilon_per_release=declared.max_local_epsilon_per_release,
        discovery_delta=declared.discovery_delta,
        approval=declared.approval,
    )


def check_places(**places: Path | None) -> None:
    """InterfaceError where two of the files of a connection are one: the later written would replace the other.

    OperationalError where the system does not say whether one is there, as in a folder that this user may not enter.
    And InterfaceError where DuckDB would take the releases file, which it calls by its name, for a schema in it (r1,
    dp, main).
    """
    seen: dict[str, str] = {}
    releases = places.get("releases")
    if releases is not None and re.fullmatch(r"r[0-9]+|dp|main", releases.stem.lower()):
        raise InterfaceError(
            f"releases is {str(releases)!r}, and its views could not tell the file from its schema {releases.stem}; "
            "give the file another name, such as releases.duckdb"
        )
    for name, place in places.items():
        if place is None:
            continue
        check_reachable(name, place)
        other = seen.setdefault(os.path.realpath(place), name)
        if other != name:
            raise InterfaceError(f"{other} and {name} are both {place}; give each a file of its own")


def check_reachable(name: str, place: Path) -> None:
    """OperationalError where the system does not say whether a file is at ``place``; one may be, or not."""
    failure = ""
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        pass  # its first use makes it, or says what is in the way
    except OSError as error:
        failure = error.strerror or "unknown"
    if failure:
        raise OperationalError(
            f"{name} {str(place)!r} cannot be reached ({failure}); give this user access to its directory, or name "
            f"another file with {name}="
        )


def place_of(releases: Path, label: str) -> Path:
    """The releases file of a label where the policy has private releases: one beside that of nobody's label.

    Two labels have two files also where the file system takes "Ann" and "ann" for one name.
    """
    if not label:
        return releases
    mark = hashlib.sha256(label.encode()).hexdigest()[:12]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", label)[:40]
    return releases.with_name(f"{releases.stem}.{plain}-{mark}{releases.suffix}")


@dataclass(frozen=True)
class Places:
    """Where the ledger, the shared releases and the anchor of the ledger, if there is one, are stored."""

    ledger: Path
    releases: Path
    anchor: Path | None = None


class Books:
    """The ledger at ``path`` and the releases database that is made from it.

    ``whose``: a label, where the policy has private releases. Then what an analyst released is there for that analyst
    alone: `entries`, and all that follows from them (views, answers that are free, plans that count what is known),
    are those of this label and of labels that are no analyst's. The budget is that of all.
    """

    def __init__(
        self,
        places: Places,
        store: ReleaseStore,
        dataset: str,
        budget: Budget,
        files: Callable[[], dict[str, str]] = dict,
        whose: str | None = None,
    ) -> None:
        self.path, self.anchor = places.ledger, places.anchor
        self.whose = whose
        self.store = store
        self.dataset = dataset
        self.budget = budget
        self._files = files
        self._warned: dict[str, str] = {}
        self._ledger: Ledger | None = None
        self._caught_up: object = None
        self._lock = ThreadLock()  # of one look at the ledger and what is noted of it

    def ledger(self) -> Ledger:
        """The ledger, opened and checked once; made where there is none. Says what an earlier process left open.

        Threads wait for the first of them: a ledger that another one has just made or charged is not taken for a second
        one, nor its charge for a lost one.
        """
        with self._lock:
            if self._ledger is None:
                self._ledger = self._opened()
            return self._ledger

    def _opened(self) -> Ledger:
        made = self._made()
        self._refuse_forgotten(made)
        self._warn_of_another()
        ledger = Ledger.open_or_create(self.path, self.dataset, self.budget, anchor=self.anchor)
        self._refuse_older(ledger.entries(), made)
        lost = ledger.unreleased()
        if lost:
            log.warning(
                "ledger %s: %d charged without a recorded answer, the last is release %d; a charge is never given "
                "back ('dpsql budget' lists them)",
                *(self.path, len(lost), lost[-1].id),
            )
        with contextlib.suppress(LedgerError):  # of a ledger that may only be read
            ledger.note_files(self._files())
        return ledger

    def changed_files(self) -> dict[str, str]:
        """Places whose files were written to since this version of the data was first used, or confirmed; and when."""
        return self.ledger().changed_files(self._files()) if self.path.exists() else {}

    def confirm_files(self) -> None:
        """Take the files as they are now for those of this version of the data."""
        if not self.path.exists():
            raise LedgerError(f"there is no ledger {self.path}, so no file was used yet and none could have changed")
        self.ledger().note_files(self._files(), again=True)
        self._warned = {}

    def warn_of_changes(self) -> None:
        """Log, for the custodian, which files were written to under their data set's name, once for each.

        Whatever stands in the way is for the caller's own use of the ledger to say.
        """
        changed: dict[str, str] = {}
        with contextlib.suppress(DatabaseError):
            changed = self.changed_files()
        for place, since in changed.items():
            if self._warned.get(place) != since:
                log.warning(
                    "%s since data set %s was declared or confirmed (%s), and earlier answers are still given: if rows "
                    "changed, give the policy a new dataset name and declare it with 'dpsql policy renew'; if they did "
                    "not, say so with 'dpsql policy confirm'",
                    f"the files of table {place} were written to" if place else "the database file was written to",
                    self.dataset,
                    since[:19].replace("T", " ") + " UTC",
                )
        self._warned = changed

    def state(self) -> BudgetState:
        """What is spent and left; a ledger that nobody needed yet is not made for it."""
        if self._ledger is None and not self.path.exists() and not (self.anchor and self.anchor.exists()):
            self._refuse_forgotten(self._made())
            return fresh_state(self.budget)
        return self.ledger().state()

    def forget(self) -> None:
        """Open the ledger anew at its next use, as another file is in its place."""
        with self._lock:
            self._ledger, self._caught_up = None, None

    def _made(self) -> Mapping[int, object]:
        """The releases of the file, by number; none where it cannot be read. To be read before the ledger is."""
        with contextlib.suppress(OperationalError, duckdb.Error):
            return self.store.moments()
        return {}

    def _refuse_forgotten(self, made: Mapping[int, object]) -> None:
        """A ledger that is missing while releases made from one are there was deleted or moved, not never made."""
        if made and not self.path.exists():
            raise LedgerError(
                f"there is no ledger {self.path}, but {self.store.path} holds {len(made)} releases that one paid for; "
                "put the ledger back, or a backup with 'dpsql ledger restore', for a new one would forget what was "
                "spent; if they are of another ledger, name another file with releases="
            )

    def _warn_of_another(self) -> None:
        """Log, before a ledger is made, that another one beside it is of the same data set."""
        if self.path.exists():
            return
        for other in sorted(self.path.parent.glob("*.ledger")):
            if dataset_of(other) == self.dataset:
                log.warning(
                    "%s is a ledger of data set %s already, and %s becomes a second one, whose budget comes on top: a "
                    "ledger is called after its policy file; if that was copied or renamed, name the first ledger",
                    *(other, self.dataset, self.path.name),
                )

    def _refuse_older(self, entries: Sequence[Entry], made: Mapping[int, object]) -> None:
        """A ledger without releases that were made from it is an older copy of itself, or the releases are another's.

        A releases file is written after the ledger, so ``made``, read first, holds nothing that the ledger has not.
        """
        unknown = sorted(set(made) - {entry.id for entry in entries if entry.released is not None})
        if unknown:
            raise LedgerError(
                f"ledger {self.path} has no release {unknown[-1]}, which {self.store.path} holds: it is an older copy, "
                "which would forget charges, or the releases are of another ledger; find the newest ledger and put it "
                "back, or a backup with 'dpsql ledger restore'; if the releases are of another, name another file with "
                "releases="
            )

    def renew(self, was: str) -> None:
        """Declare the policy's data set a new version of ``was``, under which the ledger is known so far."""
        made = self._made()
        ledger = Ledger.open(self.path, was, self.budget, anchor=self.anchor)
        self._refuse_older(ledger.entries(), made)
        ledger.renew(self.dataset)
        self.forget()
        self.ledger()

    def entries(self) -> list[Entry]:
        """Every charge whose answers may be used here, oldest first; none where there is no ledger."""
        return self._used_here(self.state().charges)

    def _used_here(self, charges: Sequence[Entry]) -> list[Entry]:
        if self.whose is None or not charges:
            return list(charges)
        analysts = self.ledger().analysts()
        return [entry for entry in charges if entry.label == self.whose or entry.label not in analysts]

    def rename(self, name: str, to: str, release: int | None, connection: duckdb.DuckDBPyConnection | None) -> None:
        """Show the results that are called ``name`` (of one release, if given) as ``to``; see ``renamed``."""
        check_name(to)
        self._show(lambda entries: renamed(entries, name, to, release), connection)

    def drop(self, names: Sequence[str], release: int | None, connection: duckdb.DuckDBPyConnection | None) -> None:
        """Show these results no longer; refunds nothing. See ``dropped``."""
        self._show(lambda entries: dropped(entries, names, release), connection)

    def show_again(self, entry: Entry) -> None:
        """Show the results of a release that answers its batch again under the names that the batch gives them.

        A failure is logged: the answers themselves do not need it.
        """
        failure = ""
        try:
            self.ledger().show(lambda _: {entry.id: entry.results})
        except LedgerError as error:
            failure = str(error)
        if failure:
            log.warning("release %d answers again, but its views stay as they are: %s", entry.id, failure)

    def _show(self, change: Callable[[list[Entry]], Names], connection: duckdb.DuckDBPyConnection | None) -> None:
        if not self.path.exists():
            raise LedgerError(f"there is no ledger {self.path}, so nothing was released yet")
        self.check_releases(self.ledger())
        self.ledger().show(change)
        self._update(connection)

    def rebuild(self) -> int:
        """Make the releases file anew; the number of releases in it.

        LedgerError where there is no ledger, or one that is older than the file; OperationalError for a file that was
        made from another ledger: what only the file tells is not to be lost.
        """
        if not self.path.exists():
            raise LedgerError(f"there is no ledger {self.path}; name the ledger of this policy with ledger=")
        self.check_releases(self.ledger())
        records = self.records()
        self.store.rebuild(records)
        return len(records)

    def records(self) -> list[ReleaseRecord]:
        """Every release that the releases file is to have, as it is shown."""
        state = self.state()
        return self._records((entry for entry in self._used_here(state.charges) if entry.released is not None), state)

    def catch_up(self) -> None:
        """Before the first question over the releases: write those that the file lacks.

        Again whenever the ledger was written to, where the policy has private releases: nobody else writes this file.
        A process that died between the ledger's commit and the file leaves the file behind. What stands in the
        way is logged, for the file may be read as it is.
        """
        failure = ""
        with self._lock:  # whoever asks meanwhile waits until the file is whole
            state = state_of(self.path)
            mark = state if self.whose is not None or state is None else True
            if mark is None or self._caught_up == mark:
                return
            try:
                ledger = self.ledger()
                self.check_releases(ledger)
                missing = self.missing()
                if missing:
                    self.store.write(*missing)
            except DatabaseError as error:
                failure = str(error)
            self._caught_up = mark
        if failure:
            log.warning("the releases file was not brought up to date: %s", failure)

    def register(
        self,
        record: ReleaseRecord,
        connection: duckdb.DuckDBPyConnection | None,
        *,
        again: bool = False,
        as_recorded: bool = False,
    ) -> None:
        """Write a release, and those before it that the file lacks, and attach the file to ``connection``.

        ``again``: let the views of an earlier release select from it once more. ``as_recorded``: it is what the ledger
        gave back, which is not read again. A failure is logged: the answers are in the ledger and in the release that
        the caller holds, nothing is lost.
        """
        self._update(connection, record, again=again, as_recorded=as_recorded)

    def _update(
        self,
        connection: duckdb.DuckDBPyConnection | None,
        record: ReleaseRecord | None = None,
        *,
        again: bool = False,
        as_recorded: bool = False,
    ) -> None:
        failure = ""
        with self._lock:  # what the file lacks is written before another thread looks for it
            try:
                last = None if record is None else record.release_id
                missing = self.missing(last, record if as_recorded else None)
                if missing:
                    self.store.write(*missing)
                if again and record is not None:
                    self.store.point(record)
                if connection is not None:
                    self.store.attach_to(connection)
            except (OperationalError, IntegrityError) as error:
                failure = str(error)
        if failure and record is not None:
            log.warning("release %d is in the ledger but not registered: %s", record.release_id, failure)
        elif failure:
            log.warning("the ledger has the new names, the releases file not yet: %s", failure)

    def missing(self, last: int | None = None, read: ReleaseRecord | None = None) -> list[ReleaseRecord]:
        """Releases, up to ``last``, that the file lacks or shows under other names: it was busy, deleted or is new.

        ``read``: one as the ledger gave it back.
        """
        present, state = self.store.shown(), self.state()
        lacking = (
            entry
            for entry in self._used_here(state.charges)
            if entry.released is not None
            and (last is None or entry.id <= last)
            and (entry.id not in present or (entry.renamed is not None and present[entry.id] != entry.views))
        )
        return self._records(lacking, state, read)

    def _records(
        self, entries: Iterable[Entry], state: BudgetState, read: ReleaseRecord | None = None
    ) -> list[ReleaseRecord]:
        """The releases of ``entries``, each with what its account had spent by then: the charges up to its own.

        ``read``: as of ``missing``.
        """
        ledger = self.ledger()
        entries, spent, by_then = list(entries), Spending(), dict[int, int]()
        asked = {entry.id for entry in entries}
        for entry in state.charges:
            if entry.charge.noise != "none":
                spent.add(entry.charge.account, entry.charge.units, entry.reads)
            if entry.id in asked:
                by_then[entry.id] = spent.spent(entry.charge.account)
        totals = {account.name: account.total_units for account in state.accounts}
        found = []
        for entry in entries:
            if read is None or entry.id != read.release_id:
                held, _ = unpack(ledger.release(entry.id).payload or b"")
            else:
                held = read
            record = _as_shown(held, entry)
            if entry.charge.noise == "none":  # it took nothing from any account
                found.append(record)
                continue
            account = BudgetAccount(entry.charge.account, totals[entry.charge.account], by_then[entry.id])
            found.append(
                replace(record, purse_total=account.total, purse_spent=account.spent, purse_remaining=account.remaining)
            )
        return found

    def check_releases(self, ledger: Ledger) -> BudgetState:
        """A releases file that was made from another ledger, or another file, must not be taken for this one's.

        Returns what the ledger says by now. LedgerError, OperationalError.
        """
        try:
            made = self.store.moments()
        except (OperationalError, duckdb.Error):
            made = None
        if made is None:
            # Busy or damaged: it stays behind, and a rebuild makes it anew. Anything else is no releases file.
            check_replaceable(self.store.path)
        state = ledger.state()
        if not made:
            return state
        self._refuse_older(state.charges, made)
        last = max(made)
        if moment_of(ledger.release(last).payload or b"") != made[last]:
            raise OperationalError(
                f"the releases in {self.store.path} were made from another ledger; name another file with releases= "
                "(nothing was charged)"
            )
        return state

    def check_free(self, names: Iterable[str]) -> None:
        """IntegrityError where a release has one of ``names``.

        The ledger decides, not the releases file, which may be busy, deleted or behind.
        """
        names = list(names)
        entries = self.entries() if names else []
        known = {name.lower() for entry in entries if entry.released is not None for name in entry.views}
        for name in names:
            if name.lower() in known:
                raise IntegrityError(
                    f"a view named {' '.join(name.split())} exists already; write CREATE OR REPLACE VIEW or "
                    "choose another name (nothing was charged)"
                )

    def earlier(self, key: str) -> tuple[Entry, ReleaseRecord, bool] | None:
        """The newest release of that reuse key, and whether a later one took a name of it; None if there is none."""
        if not self.path.exists():
            return None
        ledger = self.ledger()
        entries = self.entries()
        for entry in reversed(entries):
            if entry.released is not None and entry.description.get("key") == key:
                record, _ = unpack(ledger.release(entry.id).payload or b"")
                return entry, record, _overtaken(record, entries)
        return None


def _as_shown(record: ReleaseRecord, entry: Entry) -> ReleaseRecord:
    """The release with the tables that are shown, under their names by now."""
    if entry.renamed is None:
        return record
    tables = [
        table if name == table.name else replace(table, name=name, named=True)
        for table, name in zip(record.tables, entry.renamed, strict=True)
        if name is not None
    ]
    return replace(record, tables=tuple(tables))


def _overtaken(record: ReleaseRecord, entries: Sequence[Entry]) -> bool:
    """Whether a later release took one of the names of this one, so that its views must be set again."""
    names = {name.lower() for name in record.names}
    later = [entry for entry in entries if entry.id > record.release_id and entry.released is not None]
    return any(name.lower() in names for entry in later for name in entry.views)


def check_replaceable(path: Path) -> None:
    """Raise OperationalError where ``path`` holds anything but a releases database.

    The releases file is derived and is replaced as a whole, so a mistyped path would otherwise
    cost the file that is there. A file that DuckDB cannot read is taken for a damaged releases
    database only where the lock file of an earlier write stands beside it.
    """
    if not path.exists():
        return
    found: list[tuple[int]] | None = None
    try:
        connection = duckdb.connect(":memory:", config={"threads": "1"})
        try:
            connection.execute(f"ATTACH {string(str(path))} AS held (READ_ONLY)")
            found = connection.execute(
                "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'held' AND schema_name = 'main' "
                "AND table_name = 'releases'"
            ).fetchall()
        finally:
            connection.close()
    except duckdb.Error:
        # Busy or unreadable: whether it is ours shows below.
        pass
    ours = path.with_name(path.name + ".lock").exists() if found is None else found[0][0] == 1
    if not ours:
        raise OperationalError(
            f"{path} is not a releases database, and writing releases would replace it; name another with releases="
        )
