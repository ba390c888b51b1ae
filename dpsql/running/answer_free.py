"""Answers from earlier releases: what they determine together is given again, better, at no cost.

Every noisy measurement of the declared data version is in the ledger with its integers. A batch that lies in their row
space is answered by generalised least squares over all of them (``dpsql.running.earlier``). Such an answer is a release
of its own, with tables and views, that cost nothing: it is post-processing of what was released, so no account is
touched, and the ledger holds it apart from the charges (``Ledger.answer``). It says which releases it rests on.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from dpsql.errors import SQLError
from dpsql.planning.budget_search import wish_of
from dpsql.planning.figures import releases_named
from dpsql.planning.free_answer import Free
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import Prepared, prepare, understood_of
from dpsql.planning.target_errors import goal_of, targets_of
from dpsql.policy import Policy
from dpsql.policy.limits import limits_in
from dpsql.policy.types import Schemas
from dpsql.privacy.entries import Entry
from dpsql.registry import provided
from dpsql.release import ReleaseRecord, ReleaseTable
from dpsql.release.books import Books
from dpsql.release.names import is_unnamed
from dpsql.release.payload import Measurement, pack, unpack
from dpsql.running.counted import Counted
from dpsql.running.earlier import Combination, combine
from dpsql.running.earlier.budget_search import EarlierReleases, met
from dpsql.running.earlier.combined import joined
from dpsql.running.earlier.combined_plan import combined_plan, noted
from dpsql.running.earlier.joint import Joint
from dpsql.running.earlier.same_question import question_keys, squared_errors, types_of
from dpsql.running.no_worse import Answered, no_worse
from dpsql.running.past_releases import PastReleases
from dpsql.sql.parse.options import budget_of, read_options
from dpsql.strategies import MatrixStrategy
from dpsql.workloads.compile.compiled import Compiled

_BETTER = 1e-3
"""By so much, relatively, an error must fall for a refined answer to be worth a release."""
_ROUNDING = 1e-6
_TOLERANCE = 1e-3
"""By so much mean errors of one statement may differ: plans differ by their tolerance."""


@dataclass(frozen=True)
class Reused:
    """The answer of a batch by least squares over earlier releases."""

    combination: Combination
    sql: str
    types: Mapping[str, str]


@dataclass(frozen=True)
class ReusedCounts:
    """The answer of a batch that asks for no more than the counts of discoveries."""

    combination: Counted
    sql: str
    types: Mapping[str, str]


def asks_for_free(sql: str, budget: Sequence[object], estimates: str, options: PlanOptions) -> bool:
    """Whether a call names neither budget nor wanted error, so that only an answer that is free can serve it."""
    read = [field for field in fields(options) if field.name not in ("alpha", "progress")]
    given = any(getattr(options, field.name) is not field.default for field in read)  # == of an array is no truth
    if given or estimates != "unbiased" or any(amount is not None for amount in budget):
        return False
    return budget_of(read_options(sql)[1]) is None and wish_of(sql, None, None, targets_of(PlanOptions())) is None


class Earlier(PastReleases):
    """The answers that earlier releases give, by themselves and beside a new measurement."""

    def __init__(self, books: Books, policy: Policy, schemas: Callable[[], Schemas]) -> None:
        super().__init__(books, policy, schemas)
        self._latest: Prepared | None = None

    def under(self, policy: Policy) -> None:
        """As of all releases."""
        with self.lock:
            super().under(policy)
            self._latest = None

    def answer(self, sql: str, alpha: float) -> Reused | None:
        """What earlier releases say of a batch; None where they leave a number of it open, or there are none.

        Raises SQLError and PolicyError as planning does.
        """
        usable = self.usable()
        if not usable:
            return None
        schemas = self.schemas()
        self._latest = prepared = prepare(sql, self.policy, schemas)  # which another thread may replace at once
        return self._combined(prepared, alpha, schemas, usable)

    def counted(self, sql: str, alpha: float) -> ReusedCounts | None:
        """The answer of a batch that asks for no more than a discovery counted; else None. Raises as ``answer``."""
        counted_before = provided("free_answer")
        if counted_before is None:
            return None
        schemas = self.schemas()
        latest = self._latest
        prepared = latest if latest is not None and latest.sql == sql else prepare(sql, self.policy, schemas)
        counts = counted_before(prepared, self.policy, schemas, self.books, alpha)
        return None if counts is None else ReusedCounts(counts, sql, _types_read(counts.compiled, schemas))

    def questions(self, sql: str) -> tuple[list[str], list[str]]:
        """What ``earlier.same_question`` needs to find a release of the same batch: its questions and results."""
        latest = self._latest
        if latest is not None and latest.sql == sql:  # ``answer`` was asked just before
            answers = latest.understood.answers
        else:
            answers = understood_of(sql, self.policy, self.schemas()).answers
        return question_keys(self.policy.to_toml(), answers), [answer.name for answer in answers]

    def as_good_as(self, plan: Plan) -> Reused | None:
        """What earlier releases say of a plan's batch, where no number is less precise than planned (``no_worse``)."""
        if plan.estimated or plan.origin is None or plan.compiled.matrix is None:
            return None
        usable = self.usable()
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
        first = self.first_of(prepared)
        if plan.rests_on and _counts_all(plan, joined(prepared, self.pasts(schemas, usable), first, beside=True)):
            return None  # it was planned with all that is known
        found = self._combined(prepared, plan.alpha, schemas, usable)
        if found is not None and plan.wanted is not None:
            goal = goal_of(prepared, plan.wanted)
            return found if met(found.combination, prepared, goal, plan.wanted) else None
        if found is None:
            return None
        return found if no_worse(found.combination, plan) else None

    def as_precise(self, entry: Entry, places: Sequence[int], plan: Plan) -> bool:
        """Whether these results of an earlier release are nowhere less precise than planned for the same statements."""
        held, mine = entry.description["questions"], squared_errors(plan)
        if any(float(held[at][1]) > error * (1.0 + _TOLERANCE) for at, error in zip(places, mine, strict=True)):
            return False  # even their mean errors are larger
        released = {one.id: one for one in self.books.entries() if one.released is not None}
        answered = self.behind(entry, released, plan.alpha, self.schemas())
        return answered is not None and no_worse(cast("Answered", answered), plan, places)

    def store(
        self, answer: Reused | ReusedCounts, *, errors: bool, label: str, fresh: bool = False
    ) -> tuple[ReleaseRecord, bool]:
        """The release of such an answer, written to the ledger, and whether it was there already.

        The same batch over the same measurements is the same release. Raises IntegrityError where a view's name is
        taken, SQLError where the outer SQL makes too much, LedgerError where the ledger cannot be written. Spends
        nothing.
        """
        combination, ledger = answer.combination, self.books.ledger()
        key = self._key(answer, errors)
        earlier = None if fresh else self.books.earlier(key)
        if earlier is not None:
            return earlier[1], True
        self.books.check_releases(ledger)
        if not fresh:
            self.books.check_free([q.name for q in combination.queries if q.named and not q.replace])
        tables, guarantee = _tables(answer, errors=errors), _guarantee(answer)
        rests = releases_named(combination.rests_on)
        made: list[ReleaseRecord] = []

        def payload(number: int) -> bytes:
            record = ReleaseRecord(
                release_id=number,
                released_at=dt.datetime.now(dt.UTC),
                tables=tables,
                label=label or None,
                guarantee=guarantee,
                noise=combination.noise.kind,
                strategy=f"{'the counts of' if isinstance(answer, ReusedCounts) else 'least squares over'} {rests}",
                queries=combination.compiled.numbers,
                sql=answer.sql,
            )
            made.append(record)
            return pack(record, Measurement((), "none", combination.noise.parameter, 1, ""))

        ledger.answer(payload, self._entry(answer, key, guarantee, errors=errors), label=label)
        return made[-1], False

    def described(self, answer: Reused | ReusedCounts) -> Free:
        """What ``store`` would write, as its source and the errors of its columns; nothing is written."""
        return Free.of(_guarantee(answer), 0, _tables(answer))

    def refined(self) -> list[tuple[Entry, Reused]]:
        """The batches whose answers all measurements together make better, oldest first, and their better answers.

        Of each batch the last answer counts; a batch none of whose results is shown any more is left alone. Unnamed
        results of several labels are those of several batches.
        """
        last: dict[tuple[str, ...], Entry] = {}
        for entry in self.books.entries():
            if entry.released is not None and entry.views and entry.charge.noise in ("gaussian", "laplace", "none"):
                whose = entry.label if any(is_unnamed(name) for name in entry.views) else ""
                last[whose, *(name.lower() for name in entry.views)] = entry
        better = []
        for entry in sorted(last.values(), key=lambda e: e.id):
            held = entry.description.get("questions")
            if not held or entry.description.get("estimates") or entry.dataset != self.policy.dataset:
                continue
            record, _ = unpack(self.books.ledger().release(entry.id).payload or b"")
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
        usable = self.usable()
        if not usable:
            return plan
        pasts, first = self.pasts(plan.origin.prepared.schemas, usable), self.first_of(plan.origin.prepared)
        combined = combined_plan(plan, pasts, first)
        # Two independent estimates of one error or less have, together, half the variance at most.
        halved = np.asarray(combined.errors) ** 2 <= np.asarray(plan.errors) ** 2 * (0.5 + _ROUNDING)
        if halved.all() or not _counts_all(combined, joined(plan.origin.prepared, pasts, first, beside=True)):
            free = self.as_good_as(plan)
            if free is not None:
                return noted(plan, free.combination)
        return combined

    def for_search(self, prepared: Prepared, alpha: float) -> EarlierReleases | None:
        """The estimates of earlier releases for a batch, for the search of a budget; None if there are none."""
        usable = self.usable()
        if not usable or prepared.compiled.matrix is None:
            return None
        pasts = self.pasts(self.schemas(), usable)
        first = self.first_of(prepared)
        return EarlierReleases(combine(prepared, pasts, alpha, first), pasts, first)

    def _combined(self, prepared: Prepared, alpha: float, schemas: Schemas, usable: Sequence[Entry]) -> Reused | None:
        combination = combine(prepared, self.pasts(schemas, usable), alpha, self.first_of(prepared))
        if combination is None:
            return None
        return Reused(combination, prepared.sql, _types_read(combination.compiled, schemas))

    def _key(self, answer: Reused | ReusedCounts, errors: bool) -> str:
        combination = answer.combination
        body = [
            self.policy.dataset,
            question_keys(self.policy.to_toml(), combination.queries),
            [query.name for query in combination.queries],
            list(combination.rests_on),
            combination.alpha,
            errors,
        ]
        return "from earlier releases: " + hashlib.sha256(json.dumps(body).encode()).hexdigest()

    def _entry(self, answer: Reused | ReusedCounts, key: str, guarantee: str, *, errors: bool) -> dict[str, object]:
        combination = answer.combination
        keys = question_keys(self.policy.to_toml(), combination.queries)
        return {
            "key": key,
            # Counts of a discovery leave numbers open, so that they answer no other question.
            "questions": [] if isinstance(answer, ReusedCounts) else _marked(keys, squared_errors(answer.combination)),
            "types": dict(answer.types),
            "errors": errors,
            "alpha": combination.alpha,
            "names": [query.name for query in combination.queries],
            "tables": sorted(answer.types),
            "limits": limits_in(self.policy.tables, sorted(answer.types)),
            "statements": len(combination.queries),
            "numbers": combination.compiled.numbers,
            "noise": "none",
            "method": "earlier releases",
            "rests_on": list(combination.rests_on),
            "guarantee": guarantee,
        }


def _guarantee(answer: Reused | ReusedCounts) -> str:
    return f"free, from {releases_named(answer.combination.rests_on)}"


def _tables(answer: Reused | ReusedCounts, *, errors: bool = True) -> tuple[ReleaseTable, ...]:
    """The results; as before a charge, outer SQL that makes too much is refused rather than left out."""
    from dpsql.running.result_tables import tables_of

    counted = answer.combination if isinstance(answer, ReusedCounts) else None
    combination = answer.combination
    return tables_of(combination, combination.values, errors=errors, rehearsal=True, possible=counted)


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
