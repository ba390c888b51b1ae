"""The releases of one connection's ledger, as the batches that they answered are understood by now.

Every noisy measurement of the declared data version is in the ledger with its integers. What a release shows follows
from those that it rests on (``PastReleases.behind``); a new batch may rest on all of ``PastReleases.pasts``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dpsql.common.thread_lock import ThreadLock
from dpsql.errors import DataError, IntegrityError, SQLError
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import Prepared, prepare, understood_of
from dpsql.policy import Policy
from dpsql.policy.types import Schemas
from dpsql.privacy.entries import Entry
from dpsql.reconstruct.combined import MOST_COLUMNS
from dpsql.registry import provided
from dpsql.release.books import Books
from dpsql.release.payload import Measurement, unpack
from dpsql.running.earlier import Combination, Past, alone, combine, past_of
from dpsql.running.earlier.combined import joined, observed_of
from dpsql.running.earlier.combined_plan import AnswersWithEarlier, answers_of_all, plan_with
from dpsql.running.earlier.same_question import most_precise, question_keys, types_of
from dpsql.running.planned_again import PlannedAgain, planned_again
from dpsql.sql.outer.answers import Understood


class PastReleases:
    """The earlier measurements of one connection's ledger, understood once each."""

    def __init__(self, books: Books, policy: Policy, schemas: Callable[[], Schemas]) -> None:
        self.books = books
        self.policy = policy
        self._schemas = schemas
        self._held: dict[int, Past | None] = {}
        self._meant: dict[str, Understood] = {}
        self._types: dict[str, str] = {}
        self._measured: dict[int, Measurement] = {}
        self.alike: dict[str, Combination] = {}  # of what was measured alike, by what is alike
        self.lock = ThreadLock()  # of what is understood under one policy and one set of types

    def under(self, policy: Policy) -> None:
        """Read batches under another policy of the data set from now on: one with domains that were found."""
        with self.lock:
            self.policy, self._held, self._meant, self.alike = policy, {}, {}, {}

    def schemas(self) -> Schemas:
        """The column types of the private tables by now, for several calls of ``behind``."""
        return self._schemas()

    def meaning(self, sql: str) -> Understood:
        """What a batch asks under the policy and the schemas as they are now. Raises as planning does."""
        return self._understood(self._schemas(), sql)

    def check_measurements(self, plan: Plan) -> None:
        """IntegrityError where this ledger lacks a measurement that the plan's answers rest on.

        A plan made beside another ledger, or beside one that was restored from a copy since, would put what was paid
        for there into a release that this ledger says less was paid for.
        """
        if not isinstance(plan.answers, AnswersWithEarlier):
            return
        usable = {entry.id for entry in self.usable()}
        *before, _ = plan.answers.combined.observed
        for number, one in zip(plan.rests_on, before, strict=True):
            found = unpack(self.books.ledger().release(number).payload or b"")[1] if number in usable else None
            if found is None or tuple(found.y) != tuple(one.y):
                raise IntegrityError(
                    f"the plan rests on a release {number} that this ledger does not hold; plan again "
                    "(nothing was charged)"
                )

    def answers_others(self, release: int) -> bool:
        """Whether ``pasts`` has the release, over no more cells than are combined."""
        usable = [entry for entry in self.usable() if entry.id == release]
        return any(past.integers.shape[1] <= MOST_COLUMNS for past in self.pasts(self._schemas(), usable))

    def as_measured(self, plan: Plan, entry: Entry) -> Plan:
        """The plan of a batch as an earlier release of it was answered: with the releases that it rested on.

        Raises IntegrityError where these are no longer understood as they were.
        """
        without = plan.alone
        rests_on = tuple(sorted(entry.description.get("rests_on") or ()))
        if not rests_on:
            return without
        every = frozenset({*rests_on, entry.id})
        pasts = self.pasts(self._schemas(), [other for other in self.usable() if other.id in every])
        joint = None
        if without.origin is not None and {past.release for past in pasts} == every:
            joint = joined(without.origin.prepared, pasts, every)
        if joint is not None and len(joint.observations) == len(every):
            # The release's own measurement is the last, whatever cells it is of: older versions measured joint ones.
            both = list(zip(joint.observations, observed_of(joint), strict=True))
            observed = [one for of, one in both if of.release != entry.id]
            observed += [one for of, one in both if of.release == entry.id]
            answers = answers_of_all(joint, observed, without.compiled.common_steps)
            if answers is not None:
                return plan_with(without, answers, rests_on)
        raise IntegrityError(
            f"release {entry.id} rests on earlier ones that this policy understands otherwise; its own results stay, "
            "and fresh=True measures again"
        )

    def behind(
        self, entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
    ) -> Combination | PlannedAgain | None:
        """How the numbers of a release follow from the measurements that it rests on, of its data version.

        A measurement whose integers the ledger does not keep, or that is too large for a matrix, is planned again. None
        where the batch is not understood as it was. ``entries``: all releases, by number; ``schemas`` as by now.
        """
        for kind in ("horizon", "schedule"):
            behind = None if entry.description.get(kind) is None else provided(kind)
            if behind is not None:
                found: Combination | PlannedAgain | None = behind(self, entry, entries, alpha, schemas)
                return found
        if entry.description.get("horizon") is not None:  # whose numbers rest on periods that nobody here can add up
            return None
        return self.measured_with(entry, entries, alpha, schemas)

    def measured_with(
        self, entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
    ) -> Combination | PlannedAgain | None:
        """``behind`` of a release that rests on what its description names, and on its own measurement."""
        rests_on = {int(number) for number in entry.description.get("rests_on") or ()}
        every = frozenset(rests_on if entry.charge.noise == "none" else {*rests_on, entry.id})
        if not every <= entries.keys():
            return None
        return self.resting_on(every, entry, entries, alpha, schemas)

    def resting_on(
        self, every: frozenset[int], entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
    ) -> Combination | PlannedAgain | None:
        pasts = self.pasts(schemas, [entries[number] for number in sorted(every)])
        prepared = self.prepared(entry, schemas)
        if prepared is None:
            return None
        if every == {entry.id}:
            known = alone(prepared, pasts[0], alpha) if pasts else None
            return self._again(prepared, entry, alpha) if known is None else known
        found = combine(prepared, pasts, alpha, every)
        return found if found is not None and frozenset(found.rests_on) == every else None

    def _again(self, prepared: Prepared, entry: Entry, alpha: float) -> PlannedAgain | None:
        """A release of its own measurement alone, planned again; None where words mean other things by now."""
        said = entry.description
        keys = question_keys(self.policy.to_toml(), prepared.understood.answers)
        before, types = said.get("types"), types_of(prepared.schemas)
        if [key for key, _ in said.get("questions") or ()] != keys or "rounds" in said or not isinstance(before, dict):
            return None
        if any(types.get(name) != mark for name, mark in before.items()):
            return None
        _, measurement = unpack(self.books.ledger().release(entry.id).payload or b"")
        objective = str(said.get("objective", "balanced"))
        try:
            prepared = prepared.by(str(said.get("named", "")))
        except DataError:  # the strategy is of an extension that is gone
            return None
        return planned_again(prepared, entry.charge, objective, measurement, alpha, entry.id)

    def prepared(self, entry: Entry, schemas: Schemas) -> Prepared | None:
        """The batch of a release, whose periods were closed when it was made; None where it is understood no more."""
        record, _ = unpack(self.books.ledger().release(entry.id).payload or b"")
        try:
            return prepare(record.sql, replace(self.policy, today=dt.date.max), schemas)
        except SQLError:
            return None

    def measurement(self, release: int) -> Measurement:
        """What a release of a horizon measured, read once."""
        if release not in self._measured:
            self._measured[release] = unpack(self.books.ledger().release(release).payload or b"")[1]
        return self._measured[release]

    def usable(self) -> list[Entry]:
        """Releases of this data version with additive noise; the ledger is not made for the question."""
        if not self.books.path.exists():
            return []
        return [
            entry
            for entry in self.books.entries()
            if entry.released is not None
            and entry.dataset == self.policy.dataset
            and entry.charge.noise in ("gaussian", "laplace")
            and entry.charge.delta is None  # counts that a threshold let pass have another law
        ]

    def pasts(self, schemas: Schemas, usable: Sequence[Entry]) -> list[Past]:
        types = types_of(schemas)
        with self.lock:
            if types != self._types:
                self._held, self._meant, self.alike, self._types = {}, {}, {}, types
            found = []
            for entry in usable:
                before = entry.description.get("types")
                if not isinstance(before, dict) or any(types.get(name) != mark for name, mark in before.items()):
                    continue
                if entry.id not in self._held:
                    record, measurement = unpack(self.books.ledger().release(entry.id).payload or b"")
                    texts = {number: self._text(number) for number in (measurement.stored or {}).get("beside", ())}
                    self._held[entry.id] = past_of(
                        *(entry.id, record.sql, measurement, self.policy, schemas),
                        partial(self._understood, schemas),
                        texts,
                    )
                past = self._held[entry.id]
                if past is not None:
                    found.append(past)
            return found

    def first_of(self, prepared: Prepared) -> frozenset[int]:
        """What the most precise answer of the same questions so far rests on: it is to count in any later one."""
        keys = question_keys(self.policy.to_toml(), prepared.understood.answers)
        found = most_precise(self.books.entries(), keys, None, None, types_of(prepared.schemas))
        if found is None:
            return frozenset()
        return frozenset({found[0].id, *found[0].description.get("rests_on", ())})

    def _text(self, release: int) -> str:
        """The SQL text of a release's batch."""
        return unpack(self.books.ledger().release(release).payload or b"")[0].sql

    def _understood(self, schemas: Schemas, sql: str) -> Understood:
        """What a batch of an earlier release asks, understood once for all releases of one text."""
        with self.lock:
            if sql not in self._meant:
                self._meant[sql] = understood_of(sql, self.policy, schemas)
            return self._meant[sql]
