"""Answers from earlier releases: what they determine together is given again, better, at no cost.

Every noisy measurement of the declared data version is in the ledger with its integers. A batch that lies in their row
space is answered by generalised least squares over all of them (``dpsql.earlier``). Such an answer is a release of its
own, with tables and views, that cost nothing: it is post-processing of what was released, so no account is touched, and
the ledger holds it apart from the charges (``Ledger.answer``). It says which releases it rests on.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpsql.earlier import Combination, Past, alone, combine, past_of
from dpsql.earlier.budget_search import EarlierReleases, met
from dpsql.earlier.combined import joined, observed_of
from dpsql.earlier.combined_plan import AnswersWithEarlier, answers_of_all, combined_plan, noted, plan_with
from dpsql.earlier.joint import Joint
from dpsql.earlier.over_time import combination_over_time
from dpsql.earlier.same_question import most_precise, question_keys, squared_errors, types_of
from dpsql.errors import IntegrityError, SQLError
from dpsql.planning.budget_search import wish_of
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import Prepared, prepare, understood_of
from dpsql.planning.target_errors import goal_of, wanted_of
from dpsql.planning.text import releases_named
from dpsql.policy import Policy
from dpsql.policy.types import Schemas
from dpsql.privacy.entries import Entry
from dpsql.reconstruct.combined import MOST_COLUMNS
from dpsql.release import ReleaseRecord
from dpsql.release.books import Books
from dpsql.release.names import is_unnamed
from dpsql.release.payload import Measurement, pack, unpack
from dpsql.running.counted_before import Counted, counted_before
from dpsql.running.planned_again import PlannedAgain, planned_again
from dpsql.running.result_tables import tables_of
from dpsql.sql.outer.answers import Understood
from dpsql.sql.parse.options import budget_of, read_options
from dpsql.strategy import MatrixStrategy
from dpsql.workload.compile.compiled import Compiled

_BETTER = 1e-3
"""By so much, relatively, an error must fall for a refined answer to be worth a release."""
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Found:
    """What earlier releases say of a batch."""

    combination: Combination
    sql: str
    types: Mapping[str, str]


@dataclass(frozen=True)
class FoundCounts:
    """What discoveries say of a batch that asks for their counts."""

    combination: Counted
    sql: str
    types: Mapping[str, str]


def asks_for_free(sql: str, budget: Sequence[object], estimates: str, options: Mapping[str, object]) -> bool:
    """Whether a call names neither budget nor wanted error, so that only an answer that is free can serve it."""
    if any(amount is not None for amount in budget) or estimates != "unbiased" or set(options) - {"alpha", "progress"}:
        return False
    return budget_of(read_options(sql)[1]) is None and wish_of(sql, None, None, wanted_of()) is None


class Earlier:
    """The earlier measurements of one connection's ledger, understood once each."""

    def __init__(self, books: Books, policy: Policy, schemas: Callable[[], Schemas]) -> None:
        self._books = books
        self._policy = policy
        self._schemas = schemas
        self._held: dict[int, Past | None] = {}
        self._meant: dict[str, Understood] = {}
        self._latest: Prepared | None = None
        self._types: dict[str, str] = {}
        self._measured: dict[int, Measurement] = {}

    def under(self, policy: Policy) -> None:
        """Read batches under another policy of the data set from now on: one with domains that were found."""
        self._policy, self._held, self._meant, self._latest = policy, {}, {}, None

    def answer(self, sql: str, alpha: float) -> Found | None:
        """What earlier releases say of a batch; None where they leave a number of it open, or there are none.

        Raises SQLError and PolicyError as planning does.
        """
        usable = self._usable()
        if not usable:
            return None
        schemas = self._schemas()
        self._latest = prepare(sql, self._policy, schemas)
        return self._found(self._latest, alpha, schemas, usable)

    def counted(self, sql: str, alpha: float) -> FoundCounts | None:
        """The answer of a batch that asks for no more than a discovery counted; else None. Raises as ``answer``."""
        schemas = self._schemas()
        latest = self._latest
        prepared = latest if latest is not None and latest.sql == sql else prepare(sql, self._policy, schemas)
        counts = counted_before(prepared, self._policy, schemas, self._books, alpha)
        return None if counts is None else FoundCounts(counts, sql, _types_read(counts.compiled, schemas))

    def questions(self, sql: str) -> tuple[list[str], None, list[str]]:
        """What ``earlier.same_question`` needs to find a release of the same batch: its questions and results."""
        if self._latest is not None and self._latest.sql == sql:  # ``answer`` was asked just before
            answers = self._latest.understood.answers
        else:
            answers = understood_of(sql, self._policy, self._schemas()).answers
        return question_keys(self._policy.to_toml(), answers), None, [answer.name for answer in answers]

    def meaning(self, sql: str) -> Understood:
        """What a batch asks under the policy and the schemas as they are now. Raises as planning does."""
        return self._understood(self._schemas(), sql)

    def as_good_as(self, plan: Plan) -> Found | None:
        """What earlier releases say of a plan's batch, where no number has a larger standard error than planned."""
        if plan.estimated or plan.origin is None or not isinstance(plan.compiled, Compiled):
            return None
        usable = self._usable()
        if not usable:
            return None
        if (
            not plan.rests_on
            and plan.wanted is None
            and plan.charge.noise == "gaussian"
            and _information(usable) < (1.0 - _ROUNDING) * plan.charge.amount / (1.0 + (plan.gap or 0.0))
        ):
            return None  # all that was paid so far cannot have as little error as the certified plan
        schemas, prepared = plan.origin.prepared.schemas, plan.origin.prepared
        first = self._first(prepared)
        if plan.rests_on and _counts_all(plan, joined(prepared, self._pasts(schemas, usable), first, beside=True)):
            return None  # it was planned with all that is known
        found = self._found(prepared, plan.alpha, schemas, usable)
        planned = plan.errors
        if found is not None and plan.wanted is not None:
            goal = goal_of(prepared, plan.wanted)
            return found if met(found.combination, prepared, goal, plan.wanted) else None
        if found is None or not isinstance(planned, np.ndarray):
            return None
        return None if np.any(found.combination.errors > planned * (1.0 + _ROUNDING)) else found

    def store(
        self, found: Found | FoundCounts, *, errors: bool, label: str, fresh: bool = False
    ) -> tuple[ReleaseRecord, bool]:
        """The release of such an answer, written to the ledger, and whether it was there already.

        The same batch over the same measurements is the same release. Raises IntegrityError where a view's name is
        taken, SQLError where the outer SQL makes too much, LedgerError where the ledger cannot be written. Spends
        nothing.
        """
        combination, ledger = found.combination, self._books.ledger()
        key = self._key(found, errors)
        held = None if fresh else self._books.earlier(key)
        if held is not None:
            return held[1], True
        self._books.check_releases(ledger)
        if not fresh:
            self._books.check_free([q.name for q in combination.queries if q.named and not q.replace])
        # As before a charge: outer SQL that makes too much is refused rather than left out.
        counted = combination if isinstance(combination, Counted) else None
        tables = tables_of(combination, combination.values, errors=errors, rehearsal=True, possible=counted)
        rests = releases_named(combination.rests_on)
        guarantee = f"free, from {rests}"
        made: list[ReleaseRecord] = []

        def payload(number: int) -> bytes:
            record = ReleaseRecord(
                release_id=number,
                released_at=dt.datetime.now(dt.UTC),
                tables=tables,
                label=label or None,
                guarantee=guarantee,
                noise=combination.noise.kind,
                strategy=f"least squares over {rests}" if counted is None else f"the counts of {rests}",
                queries=combination.compiled.numbers,
                sql=found.sql,
            )
            made.append(record)
            return pack(record, Measurement((), "none", combination.noise.parameter, 1, ""))

        ledger.answer(payload, self._description(found, key, guarantee, errors=errors), label=label)
        return made[-1], False

    def refined(self) -> list[tuple[Entry, Found]]:
        """The batches whose answers all measurements together make better, oldest first, and their better answers.

        Of each batch the last answer counts; a batch none of whose results is shown any more is left alone. Unnamed
        results of several labels are those of several batches.
        """
        last: dict[tuple[str, ...], Entry] = {}
        for entry in self._books.entries():
            if entry.released is not None and entry.views and entry.charge.noise in ("gaussian", "laplace", "none"):
                whose = entry.label if any(is_unnamed(name) for name in entry.views) else ""
                last[whose, *(name.lower() for name in entry.views)] = entry
        better = []
        for entry in sorted(last.values(), key=lambda e: e.id):
            held = entry.description.get("questions")
            if not held or entry.description.get("estimates") or entry.dataset != self._policy.dataset:
                continue
            record, _ = unpack(self._books.ledger().release(entry.id).payload or b"")
            try:
                found = self.answer(record.sql, float(entry.description.get("alpha", 0.05)))
            except SQLError:
                continue
            if found is None:
                continue
            pairs = [(new, float(old)) for new, (_, old) in zip(squared_errors(found.combination), held, strict=True)]
            # Where not all of what an answer rested on fits any more, nothing may become worse for it.
            if all(new <= old * (1.0 + _ROUNDING) for new, old in pairs) and any(
                new < old * (1.0 - _BETTER) for new, old in pairs
            ):
                better.append((entry, found))
        return better

    def with_earlier(self, plan: Plan) -> Plan:
        """The plan, its answers resting on earlier releases, too, where they help; else ``plan``. It charges the same.

        Where they answer the batch with no more error than planned, ``plan`` with a note of it: its run is free.
        """
        if plan.estimated or plan.origin is None or not isinstance(plan.strategy, MatrixStrategy):
            return plan
        usable = self._usable()
        if not usable:
            return plan
        pasts, first = self._pasts(plan.origin.prepared.schemas, usable), self._first(plan.origin.prepared)
        combined = combined_plan(plan, pasts, first)
        # Two independent estimates of one error or less have, together, half the variance at most.
        halved = np.asarray(combined.errors) ** 2 <= np.asarray(plan.errors) ** 2 * (0.5 + _ROUNDING)
        if halved.all() or not _counts_all(combined, joined(plan.origin.prepared, pasts, first, beside=True)):
            free = self.as_good_as(plan)
            if free is not None:
                return noted(plan, free.combination.rests_on)
        return combined

    def check_held(self, plan: Plan) -> None:
        """IntegrityError where this ledger lacks a measurement that the plan's answers rest on.

        A plan made beside another ledger, or beside one that was restored from a copy since, would put what was paid
        for there into a release that this ledger says less was paid for.
        """
        if not isinstance(plan.answers, AnswersWithEarlier):
            return
        usable = {entry.id for entry in self._usable()}
        *before, _ = plan.answers.combined.observed
        for number, one in zip(plan.rests_on, before, strict=True):
            found = unpack(self._books.ledger().release(number).payload or b"")[1] if number in usable else None
            if found is None or tuple(found.y) != tuple(one.y):
                raise IntegrityError(
                    f"the plan rests on a release {number} that this ledger does not hold; plan again "
                    "(nothing was charged)"
                )

    def answers_others(self, release: int) -> bool:
        """Whether ``pasts`` has the release, over no more cells than are combined."""
        usable = [entry for entry in self._usable() if entry.id == release]
        return any(past.integers.shape[1] <= MOST_COLUMNS for past in self._pasts(self._schemas(), usable))

    def known(self, prepared: Prepared, alpha: float) -> EarlierReleases | None:
        """What earlier releases say of a batch, for the search of a budget; None where there are none."""
        usable = self._usable()
        if not usable or not isinstance(prepared.compiled, Compiled):
            return None
        pasts = self._pasts(self._schemas(), usable)
        first = self._first(prepared)
        return EarlierReleases(combine(prepared, pasts, alpha, first), pasts, first)

    def as_measured(self, plan: Plan, entry: Entry) -> Plan:
        """The plan of a batch as an earlier release of it was answered: with the releases that it rested on.

        Raises IntegrityError where these are no longer understood as they were.
        """
        without = plan.without_earlier or plan
        assert isinstance(without, Plan)  # noqa: S101 - narrows the type for the checker
        rests_on = tuple(sorted(entry.description.get("rests_on") or ()))
        if not rests_on:
            return without
        every = frozenset({*rests_on, entry.id})
        pasts = self._pasts(self._schemas(), [other for other in self._usable() if other.id in every])
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

    def schemas(self) -> Schemas:
        """The column types of the private tables by now, for several calls of ``behind``."""
        return self._schemas()

    def behind(
        self, entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
    ) -> Combination | PlannedAgain | None:
        """How the numbers of a release follow from the measurements that it rests on, of its data version.

        A measurement whose integers the ledger does not keep, or that is too large for a matrix, is planned again. None
        where the batch is not understood as it was. ``entries``: all releases, by number; ``schemas`` as by now.
        """
        if "horizon" in entry.description:
            return self._over_time(entry, entries, alpha, schemas)
        rests_on = {int(number) for number in entry.description.get("rests_on") or ()}
        every = frozenset(rests_on if entry.charge.noise == "none" else {*rests_on, entry.id})
        if not every <= entries.keys():
            return None
        pasts = self._pasts(schemas, [entries[number] for number in sorted(every)])
        prepared = self._prepared(entry, schemas)
        if prepared is None:
            return None
        if every == {entry.id}:
            known = alone(prepared, pasts[0], alpha) if pasts else None
            return self._again(prepared, entry, alpha) if known is None else known
        found = combine(prepared, pasts, alpha, every)
        return found if found is not None and frozenset(found.rests_on) == every else None

    # -- inside ----------------------------------------------------------------------------------

    def _again(self, prepared: Prepared, entry: Entry, alpha: float) -> PlannedAgain | None:
        """A release of its own measurement alone, planned again; None where words mean other things by now."""
        said = entry.description
        keys = question_keys(self._policy.to_toml(), prepared.understood.answers)
        before, types = said.get("types"), types_of(prepared.schemas)
        if [key for key, _ in said.get("questions") or ()] != keys or "rounds" in said or not isinstance(before, dict):
            return None
        if any(types.get(name) != mark for name, mark in before.items()):
            return None
        _, measurement = unpack(self._books.ledger().release(entry.id).payload or b"")
        objective = str(said.get("objective", "balanced"))
        return planned_again(prepared, entry.charge, objective, measurement, alpha, entry.id)

    def _prepared(self, entry: Entry, schemas: Schemas) -> Prepared | None:
        """The batch of a release, whose periods were closed when it was made; None where it is understood no more."""
        record, _ = unpack(self._books.ledger().release(entry.id).payload or b"")
        try:
            return prepare(record.sql, replace(self._policy, today=dt.date.max), schemas)
        except SQLError:
            return None

    def _over_time(
        self, entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
    ) -> Combination | None:
        """``behind`` of a release of a horizon: it rests on all earlier ones."""
        name, place = entry.description.get("schedule"), int(entry.description["horizon"]["place"])
        mine = [e for e in entries.values() if e.description.get("schedule") == name and "horizon" in e.description]
        at = {int(e.description["horizon"]["place"]): e for e in mine}
        one = next((one for one in self._books.ledger().schedules() if one.name == name), None)
        prepared = self._prepared(entry, schemas)
        if one is None or prepared is None or any(before not in at for before in range(place)):
            return None
        measured = {at[k].id: self.measurement(at[k].id) for k in range(place + 1)}
        return combination_over_time(prepared, one, measured, alpha)

    def measurement(self, release: int) -> Measurement:
        """What a release of a horizon measured, read once."""
        if release not in self._measured:
            self._measured[release] = unpack(self._books.ledger().release(release).payload or b"")[1]
        return self._measured[release]

    def _found(self, prepared: Prepared, alpha: float, schemas: Schemas, usable: Sequence[Entry]) -> Found | None:
        combination = combine(prepared, self._pasts(schemas, usable), alpha, self._first(prepared))
        if combination is None:
            return None
        return Found(combination, prepared.sql, _types_read(combination.compiled, schemas))

    def _usable(self) -> list[Entry]:
        """Releases of this data version with additive noise; the ledger is not made for the question."""
        if not self._books.path.exists():
            return []
        return [
            entry
            for entry in self._books.entries()
            if entry.released is not None
            and entry.dataset == self._policy.dataset
            and entry.charge.noise in ("gaussian", "laplace")
            and entry.charge.delta is None  # counts that a threshold let pass have another law
        ]

    def _pasts(self, schemas: Schemas, usable: Sequence[Entry]) -> list[Past]:
        types = types_of(schemas)
        if types != self._types:
            self._held, self._meant, self._types = {}, {}, types
        found = []
        for entry in usable:
            before = entry.description.get("types")
            if not isinstance(before, dict) or any(types.get(name) != mark for name, mark in before.items()):
                continue
            if entry.id not in self._held:
                record, measurement = unpack(self._books.ledger().release(entry.id).payload or b"")
                texts = {number: self._text(number) for number in (measurement.kept or {}).get("beside", ())}
                self._held[entry.id] = past_of(
                    *(entry.id, record.sql, measurement, self._policy, schemas),
                    partial(self._understood, schemas),
                    texts,
                )
            past = self._held[entry.id]
            if past is not None:
                found.append(past)
        return found

    def _first(self, prepared: Prepared) -> frozenset[int]:
        """What the most precise answer of the same questions so far rests on: it is to count in any later one."""
        keys = question_keys(self._policy.to_toml(), prepared.understood.answers)
        found = most_precise(self._books.entries(), keys, None, None, None, types_of(prepared.schemas))
        if found is None:
            return frozenset()
        return frozenset({found[0].id, *found[0].description.get("rests_on", ())})

    def _text(self, release: int) -> str:
        """The SQL text of a release's batch."""
        return unpack(self._books.ledger().release(release).payload or b"")[0].sql

    def _understood(self, schemas: Schemas, sql: str) -> Understood:
        """What a batch of an earlier release asks, understood once for all releases of one text."""
        if sql not in self._meant:
            self._meant[sql] = understood_of(sql, self._policy, schemas)
        return self._meant[sql]

    def _key(self, found: Found | FoundCounts, errors: bool) -> str:
        combination = found.combination
        body = [
            self._policy.dataset,
            question_keys(self._policy.to_toml(), combination.queries),
            [answer.name for answer in combination.queries],
            list(combination.rests_on),
            combination.alpha,
            errors,
        ]
        return "from earlier releases: " + hashlib.sha256(json.dumps(body).encode()).hexdigest()

    def _description(self, found: Found | FoundCounts, key: str, guarantee: str, *, errors: bool) -> dict[str, object]:
        combination = found.combination
        keys = question_keys(self._policy.to_toml(), combination.queries)
        return {
            "key": key,
            # Counts of a discovery leave numbers open, so that they answer no other question.
            "questions": [] if isinstance(combination, Counted) else _marked(keys, squared_errors(combination)),
            "types": dict(found.types),
            "errors": errors,
            "alpha": combination.alpha,
            "names": [query.name for query in combination.queries],
            "tables": sorted(found.types),
            "statements": len(combination.queries),
            "numbers": combination.compiled.numbers,
            "noise": "none",
            "method": "earlier releases",
            "rests_on": list(combination.rests_on),
            "guarantee": guarantee,
        }


def _types_read(compiled: Compiled, schemas: Schemas) -> dict[str, str]:
    """The types of the tables that a batch reads."""
    return types_of({name: schemas[name] for layout in compiled.layouts for name in layout.source.tables})


def _counts_all(plan: Plan, joint: Joint | None) -> bool:
    """Whether a plan's answers rest on every release that could answer its batch for free."""
    return joint is not None and {one.release for one in joint.observations} <= set(plan.rests_on)


def _information(usable: Sequence[Entry]) -> float:
    """At least mu squared of these releases together: epsilon-DP Laplace noise has variance 2 / epsilon^2."""
    return sum(1.0 / entry.charge.unit_variance for entry in usable)


def _marked(keys: Sequence[str], errors: Sequence[float]) -> list[list[object]]:
    return [[key, float(f"{error:.12g}")] for key, error in zip(keys, errors, strict=True)]
