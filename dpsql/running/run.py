"""A planned batch measured, or answered by what was released before: from the rehearsal to its registered views."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpsql.common import progress
from dpsql.common.arrays import Json
from dpsql.errors import BudgetError, IntegrityError, LedgerError
from dpsql.measure import Job, measure
from dpsql.measure.failed_sources import refuse_failed
from dpsql.measure.sources import Holdings
from dpsql.planning.figures import releases_named
from dpsql.planning.plan import Plan
from dpsql.policy import Policy
from dpsql.policy.limits import changed_limits, limits_in
from dpsql.policy.units import units_in
from dpsql.release import ReleaseRecord, ResultTable
from dpsql.release.books import Books
from dpsql.release.claims import claimed
from dpsql.release.payload import Measurement, pack, record_of, unpack
from dpsql.release.release import Release
from dpsql.running.answer_free import Earlier, Reused, ReusedCounts
from dpsql.running.earlier import keep
from dpsql.running.earlier.same_question import Accepts, most_precise, questions, request_key, reuse_key, types_of
from dpsql.running.feasible import LOWER_AT_ZERO, check_estimates
from dpsql.running.jobs import AnyJob, job_at_once, job_of
from dpsql.running.result_tables import release_tables, tables_again
from dpsql.sql import Answer
from dpsql.sql.parse.trees import uncollected
from dpsql.workloads.compile.over_periods import Over

log = logging.getLogger("dpsql")


def stored_alone(stored: Json | None, plan: Plan, y: Sequence[int]) -> Json | None:
    """What the ledger stores of the integers of a plan that stands alone."""
    return stored


@dataclass(frozen=True)
class Turn:
    """One release of a standing batch: the id of its charge, the period that it is of, and its place in a horizon.

    ``stored``: what the ledger stores of the integers of a plan, given what it stores of a plan that stands alone.
    ``paid``: whether its charge is in the ledger already, and its measurement not.
    """

    charge_id: str
    schedule: str
    period: str
    over: Over | None = None
    stored: Callable[[Json | None, Plan, Sequence[int]], Json | None] = stored_alone
    paid: bool = False


@dataclass(eq=False)
class Batches:
    """The batches of one connection: its tables, its books, and what earlier releases say."""

    holdings: Holdings
    books: Books
    past: Earlier

    def run(
        self,
        plan: Plan,
        *,
        fresh: bool = False,
        errors: bool = True,
        estimates: str = "unbiased",
        label: str = "",
        unpaid: bool = False,
    ) -> Release:
        """The release of a plan: an earlier one where it serves (not if ``fresh``), else measured and charged now.

        Of all who ask at the same moment one is charged, the others wait for its answer (``dpsql.release.claims``).
        Nothing that can be refused is refused after the charge. ``unpaid``: the budget that was found is 0, so that
        BudgetError is raised instead of a charge. Raises as ``Connection.run``.
        """
        policy = self.holdings.policy
        if plan.dataset != policy.dataset:
            raise IntegrityError(f"the plan was made for data set {plan.dataset!r}, this is {policy.dataset!r}")
        if plan.policy != policy.counting(plan.rows_per_unit).to_toml():
            raise IntegrityError("the plan was made under another policy of this data set; plan again")
        self.past.check_measurements(plan)
        check_estimates(plan, estimates)
        key = reuse_key(plan, errors)
        known = 0 if fresh else self._recorded()
        answer = None if fresh else self._answered(plan, key, errors=errors, estimates=estimates, label=label)
        if answer is not None:
            return answer
        if unpaid:
            raise BudgetError(
                "the budget that was found is 0, as earlier releases answer the batch; of this ledger and with these "
                "estimates they do not: find the budget again, or give one (nothing was charged)"
            )
        # One claim with and without error columns: they are one question to pay for.
        whole = key if errors else reuse_key(plan, True)
        with claimed(self.books.path, f"{self.books.whose or ''}{whole}"):
            if not fresh and self._recorded() != known:
                answer = self._answered(plan, key, errors=errors, estimates=estimates, label=label)
            return answer or self._measured(plan, key, errors=errors, estimates=estimates, label=label)

    def once(self, plan: Plan, turn: Turn, label: str) -> int:
        """The number of the one release of a standing batch of one period; made and charged now where there is none.

        However often and by however many it is asked for (``dpsql.privacy.schedules``). Raises as ``run``.
        """
        with claimed(self.books.path, turn.charge_id):
            known = self.books.ledger().charged(turn.charge_id) if self.books.path.exists() else None
            if known is not None and known.released is not None:
                return known.id
            self.past.check_measurements(plan)
            failure: LedgerError | None = None
            turn = replace(turn, paid=known is not None)
            while failure is None:
                try:
                    return self._measured(plan, reuse_key(plan, True), label=label, turn=turn).id
                except BudgetError:
                    # Another machine, whose claims are not seen here, may have made the charge since.
                    if turn.paid or self.books.ledger().charged(turn.charge_id) is None:
                        raise
                    turn = replace(turn, paid=True)
                except LedgerError as error:
                    failure = error
            # It may have recorded its own under the same charge.
            known = self.books.ledger().charged(turn.charge_id)
            if known is None or known.released is None:
                raise failure
            return known.id

    def _recorded(self) -> int:
        """How many releases the ledger holds."""
        return sum(entry.released is not None for entry in self.books.entries())

    def _answered(self, plan: Plan, key: str, *, errors: bool, estimates: str, label: str) -> Release | None:
        """The answer that earlier releases give for free with the errors that were planned; None where they do not."""
        earlier = self.earlier(key, plan, errors=errors, estimates=estimates)
        if earlier is not None:
            return earlier
        combines = estimates == "unbiased" and not plan.estimated and plan.rows_per_unit is None
        free = self.past.as_good_as(plan) if combines else None
        if free is None:
            return None
        # The very batch may have been released between the two looks, and then its own release answers it.
        since = self.earlier(key, plan, errors=errors, estimates=estimates)
        return self.free(free, errors=errors, label=label) if since is None else since

    def earlier(
        self, key: str, plan: Plan | None = None, *, errors: bool = True, estimates: str = "unbiased"
    ) -> Release | None:
        """The earlier release of that key; with ``plan`` its numbers as ``estimates`` says, views left as they are."""
        found = self.books.earlier(key)
        if found is None:
            return None
        entry, record, overtaken = found
        if plan is not None and entry.description.get("estimates", "unbiased") != estimates:
            observed = unpack(self.books.ledger().release(entry.id).payload or b"")[1]
            plan = self.past.as_measured(plan, entry)
            record = replace(record, tables=tables_again(plan, observed, errors=errors, estimates=estimates))
            return Release(entry.id, 0.0, entry.charge.guarantee, record)
        if entry.shown != entry.results:
            self.books.show_again(entry)
        self.register(record, again=overtaken)
        return Release(entry.id, 0.0, entry.charge.guarantee, record)

    def answered(
        self,
        keys: Sequence[str],
        names: Sequence[str] | None,
        alpha: float | None,
        accepts: Accepts | None = None,
    ) -> tuple[Release, list[int]] | None:
        """The most precise release that answers all ``keys``, and its results for them (``earlier.same_question``)."""
        types = types_of(self.holdings.schemas())
        found = most_precise(self.books.entries(), keys, names, alpha, types, accepts)
        if found is None:
            return None
        entry, places = found
        if names is not None:
            again = self.earlier(str(entry.description["key"]))  # with its views, which a later release may have taken
            return None if again is None else (again, places)
        record, _ = unpack(self.books.ledger().release(entry.id).payload or b"")
        return Release(entry.id, 0.0, entry.charge.guarantee, record), places

    def for_free(self, sql: str, alpha: float, *, errors: bool, label: str) -> Release | None:
        """What earlier releases say of a batch for which no budget is named: together, or one that answered it, or a
        discovery that counted its groups.
        """
        free = self.determined(sql, alpha, errors=errors, label=label)
        if free is not None or not self.books.path.exists():
            return free
        answered = self.answered(*self.past.questions(sql), alpha)
        if answered is not None:
            return answered[0]
        return self.counted(sql, alpha, errors=errors, label=label)

    def counted(self, sql: str, alpha: float, *, errors: bool = True, label: str = "") -> Release | None:
        """The answer of a batch that asks for no more than a discovery counted; else None."""
        found = self.past.counted(sql, alpha)
        return None if found is None else self.free(found, errors=errors, label=label)

    def refined(self) -> list[tuple[int, Release]]:
        """The batches that all measurements together answer better, by their last release, answered again.

        Under its label: a better answer is whose the answer was.
        """
        return [
            (entry.id, self.free(found, errors=True, label=entry.label, again=True))
            for entry, found in self.past.refined()
        ]

    def determined(self, sql: str, alpha: float, *, errors: bool = True, label: str = "") -> Release | None:
        """The answer that earlier releases determine together, with whatever error; None where they do not."""
        found = self.past.answer(sql, alpha)
        return None if found is None else self.free(found, errors=errors, label=label)

    def free(self, answer: Reused | ReusedCounts, *, errors: bool, label: str, again: bool = False) -> Release:
        """An answer from earlier releases, recorded and registered; ``again`` where its batch was shown before."""
        record, earlier = self.past.store(answer, errors=errors, label=label, fresh=again)
        self.register(record, again=earlier)
        return Release(record.release_id, 0.0, record.guarantee, record)

    def register(self, record: ReleaseRecord, *, again: bool = False, as_recorded: bool = False) -> None:
        """Make the views of a release (``Books.register``), for the user's own DuckDB connection too."""
        self.books.register(record, self.holdings.attachable, again=again, as_recorded=as_recorded)

    def job(self, plan: Plan, key: str, label: str, *, errors: bool = True, estimates: str = "unbiased") -> AnyJob:
        """Everything public that measuring ``plan`` needs, and what the ledger is to keep beside its charge."""
        strategy, compiled = plan.strategy, plan.compiled
        self.holdings.check_disjoint()  # files may have changed since the plan
        read = list(dict.fromkeys(name for layout in compiled.layouts for name in layout.source.tables))
        description = {
            "key": key,
            # A cursor's answers are unbiased, with the errors that were planned: it looks for such releases alone.
            "questions": questions(plan) if estimates in ("unbiased", LOWER_AT_ZERO) and not plan.estimated else [],
            **({} if estimates == "unbiased" else {"estimates": estimates}),
            "types": types_of(plan.schemas),
            "errors": errors,
            "alpha": plan.alpha,
            "names": [query.name for query in plan.queries],
            "tables": read,
            "units": units_in(self.holdings.policy.tables, read),
            "limits": limits_in(self.holdings.policy.tables, read),
            "statements": len(plan.queries),
            "numbers": compiled.numbers,
            "cells": plan.cells,
            "noise": plan.charge.noise,
            "method": strategy.method,
            **({} if strategy.objective == "balanced" else {"objective": strategy.objective}),
            **({"named": plan.named} if plan.named else {}),
            "strategy": strategy.measured.digest(),
            **({"rests_on": list(plan.rests_on)} if plan.rests_on else {}),
            **({"periods": plan.reads.as_dict()} if plan.reads is not None else {}),
            **({"request": request_key(plan, key)} if self.holdings.policy.budget.approval else {}),
        }
        return job_of(plan, self.holdings.sources, description, label)

    @uncollected()
    def rehearse(self, plan: Plan, *, errors: bool, estimates: str, named: bool = True) -> None:
        """Refuse what could not be shown, before a charge: taken names (``named``), and over zeros the rest."""
        check_estimates(plan, estimates)
        if named:
            self.books.check_free([q.name for q in plan.queries if q.named and not q.replace])
            _warn_of_limits(self.books, self.holdings.policy, plan.queries)
        # A name or value may have no stored form.
        release_tables(plan, [0] * plan.strategy.shape[0], errors=errors, rehearsal=True, estimates=estimates)

    def _measured(
        self,
        plan: Plan,
        key: str,
        *,
        errors: bool = True,
        estimates: str = "unbiased",
        label: str,
        turn: Turn | None = None,
    ) -> Release:
        """The release of a plan, charged now, unless the charge of its ``turn`` is paid."""
        ledger = self.books.ledger()
        self.books.check_releases(ledger)
        if turn is None or not turn.paid:  # what is cheap is checked first: account, locks, sources
            ledger.check_charges([plan.charge], label, {} if plan.reads is None else {"periods": plan.reads.as_dict()})
            read = {name for layout in plan.compiled.layouts for name in layout.source.tables}
            refuse_failed(self.holdings.engine, ledger, [self.holdings.sources[name] for name in sorted(read)])
        self.rehearse(plan, errors=errors, estimates=estimates, named=turn is None)
        job = self.job(plan, key, label, errors=errors, estimates=estimates)
        if turn is not None:  # standing batches are planned by method "auto"
            job = _of_turn(job_at_once(plan, job.sources, job.description, job.label), turn)
        said = str(plan) if self.holdings.policy.budget.approval else ""
        ledger.request(job.charge, job.description, (plan.sql, said), label=job.label)
        stored = None if plan.estimated else keep(plan.compiled, plan.strategy.measured, plan.policy)

        @uncollected()  # not while rows are read, which may take long
        def payload(release: int, y: list[int]) -> bytes:
            body = stored if turn is None else turn.stored(stored, plan, y)
            tables = release_tables(plan, y, errors=errors, estimates=estimates)
            record = _record(release, plan, tables, job.label, estimates)
            record = record if turn is None else _record_of_turn(record, plan, turn)
            noise = job.noise
            law = (noise.kind, noise.parameter, job.common_steps, plan.strategy.measured.digest(), body, noise.blocks)
            observed = Measurement(tuple(y), *law)
            return pack(record, observed)

        progress.say(progress.MEASURING)
        release, _ = measure(job, self.holdings.engine, ledger, payload)
        # What users see is what the ledger gives back.
        with uncollected():
            record = record_of(ledger.release(release).payload or b"")
            self.register(record, as_recorded=True)
        return Release(release, plan.charge.amount, plan.charge.guarantee, record)


def _warn_of_limits(books: Books, policy: Policy, queries: Sequence[Answer]) -> None:
    """Log each view that a batch is about to replace whose limits were others."""
    replaced = {query.name.lower() for query in queries if query.named and query.replace}
    if not replaced:
        return
    entries = [entry for entry in books.entries() if entry.released is not None]
    for name in sorted(replaced):
        shown = [entry for entry in entries if name in [view.lower() for view in entry.views]]
        if shown:
            before = shown[-1].limits
            for line in changed_limits(before, limits_in(policy.tables, before), f" in release {shown[-1].id}"):
                log.warning("the view %s is replaced under other limits: %s", name, line)


def _of_turn(job: Job, turn: Turn) -> Job:
    """The job of a standing batch. What another machine may plan otherwise in its last digits is not said beside its
    charge, which is to be the same on each.
    """
    left_out = ("strategy", "method", "questions", *(() if turn.over is None else ("rests_on",)))
    remaining = {name: value for name, value in job.description.items() if name not in left_out}
    said = {**remaining, "questions": [], "schedule": turn.schedule, "period": turn.period}
    made = replace(job, description=said, charge_id=turn.charge_id)
    if turn.over is None:
        return made
    # Its measurement is none of its period alone, so that it answers no other batch.
    said |= {"horizon": turn.over.description, "key": f"{said['key']} over time"}
    return replace(made, description=said).over_time(turn.over)


def _record_of_turn(record: ReleaseRecord, plan: Plan, turn: Turn) -> ReleaseRecord:
    """What says that a release is of one period, and what of a horizon."""
    said = record.strategy if turn.over is None else f"{plan.strategy.method}, over {turn.over.place + 1} periods"
    return replace(record, period=turn.period, strategy=said)


def _record(release: int, plan: Plan, tables: tuple[ResultTable, ...], label: str, estimates: str) -> ReleaseRecord:
    said = "errors estimated" if plan.estimated else f"{estimates} estimates"
    method = plan.strategy.method + (f" with {releases_named(plan.rests_on)}" if plan.rests_on else "")
    return ReleaseRecord(
        release_id=release,
        released_at=dt.datetime.now(dt.UTC),
        tables=tables,
        label=label or None,
        guarantee=plan.charge.guarantee,
        purse=plan.charge.account,
        cost=plan.charge.amount,
        noise=plan.noise.kind,
        strategy=method + (f", {said}" if plan.estimated or estimates != "unbiased" else ""),
        queries=plan.compiled.numbers,
        gap=plan.gap,
        sql=plan.sql,
        unit=plan.unit,
    )
