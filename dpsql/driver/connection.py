"""Connection: plan a batch, run it, query its releases."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from dpsql.common import progress
from dpsql.common.arguments import (
    flag,
    maybe,
    one_of,
    real,
    several,
    taking,
    text,
    whole,
)
from dpsql.common.interrupted_calls import guards_calls
from dpsql.common.notes import BIAS, ERROR, Note, in_order
from dpsql.common.progress import Say
from dpsql.driver.keeping import Keeping
from dpsql.errors import (
    DataError,
    Error,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLError,
    speaks_of_the_request,
)
from dpsql.planning.budget_search import find_budget, wish_of
from dpsql.planning.named_strategy import planner_named, strategy_named
from dpsql.planning.needed_budget import NeededBudget, request_of
from dpsql.planning.options import BudgetKeywords, PlanKeywords, PlanOptions
from dpsql.planning.plan import PLANS, Plan
from dpsql.planning.prepare import prepare
from dpsql.planning.target_errors import Wanted, targets_of
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.registry import extensible, needed
from dpsql.release import Result
from dpsql.release.names import is_unnamed
from dpsql.release.release import Release
from dpsql.running.finding_share import waiting

if TYPE_CHECKING:  # imported when one is asked for: a plan needs none
    from dpsql.driver.cursor import Cursor
    from dpsql.release.cut import Losses
    from dpsql.sql.parse.parameters import Parameters


@extensible("connection")
@guards_calls
class Connection(Keeping):
    """Private tables, a policy, a ledger and the releases made of them. Make it with ``connect``.

    Trust: this object runs in the custodian's process and can read the private tables; hand
    analysts its plans, releases and error messages, not the object.
    """

    def _of(self, label: str) -> Connection:
        """The same tables and ledger under another label; of private releases those that the label may see."""
        held = self._holdings
        return Connection(held.engine, self.policy, self._places, label=label, query_timeout=self._query_timeout)

    @taking(errors=maybe(flag()), population=maybe(one_of(str)))
    def cursor(self, *, errors: bool | None = None, population: str | None = None) -> Cursor:
        """A new cursor (PEP 249). Opens nothing, reads nothing, costs nothing.

        ``errors``: whether its results show ``c_stderr``, ``c_low`` and ``c_high`` beside each private number ``c``,
        and ``g_other`` beside a group whose undeclared values are NULL; by default what ``connect(cursor_errors=...)``
        says. ``population``: as ``sql`` takes it, for what its queries compute from releases.
        """
        from dpsql.driver.cursor import Cursor

        self._check_open()
        shown = self._cursor_errors if errors is None else errors
        return Cursor(self, errors=shown, population=population)

    def execute(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
    ) -> Cursor:
        """``cursor().execute``: free over releases, else charged what the call, its OPTIONS or ``connect`` says.

        Returns the cursor, with its results. Raises as ``Cursor.execute``, ProgrammingError with the plan's price where
        no budget is given.
        """
        return self.cursor().execute(sql, parameters, epsilon=epsilon, delta=delta, rho=rho)

    def plan(
        self,
        sql: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        options: PlanOptions | None = None,
        **keywords: Unpack[PlanKeywords],
    ) -> Plan:
        """What a batch would release, with an error bar on every number. Free.

        ``epsilon`` alone is pure where the policy keeps a pure account and otherwise taken with the policy's delta; or
        ``epsilon`` and ``delta``; or ``rho``; or what the batch's OPTIONS say (``dpsql.sql.parse.options``). Without a
        budget, ``max_error`` or ``relative``, or the batch's hints MAX_ERROR, say which half-width every number is to
        have: the plan then spends the least budget that gives it (``budget_for``). ``PlanOptions`` says what the
        keywords mean; ``options`` is all of them in one value, which the keywords of a call change. The methods of
        extensions plan as they document: "adaptive" for counts over many columns, "sparse" for one COUNT by groups of
        which most are empty, the papers' "mwem" and "mwem-strategy"; their errors depend on the data and are estimated
        only. Reads the column types of the tables, never a row. Raises SQLError, PolicyError, DataError, BudgetError,
        all before anything is spent.
        """
        self._check_open()
        options = (options or PlanOptions()).having(keywords)
        targets, method = targets_of(options), options.method
        strategy = method == "auto" or strategy_named(method)
        earlier = options.earlier and options.rows_per_unit is None and method == "auto"
        options = replace(options, alpha=targets.alpha, earlier=earlier)
        if wish_of(sql, epsilon, rho, targets) is not None:
            if not strategy:
                planner_named(method)
                raise DataError(
                    f"method={method!r} has estimated errors: no budget can be found for them; give epsilon"
                )
            return self._needed(sql, targets, options, delta).plan
        request = request_of(sql, epsilon, delta, rho)
        if strategy and options.rounds is not None:
            raise DataError("rounds are those of method='adaptive' and 'mwem'; name one, or leave rounds out")
        known = schemas, _, _, state = self._inputs()
        hear, self._best = options.progress, None
        options = replace(options, progress=_saying(hear))
        with PLANS.heard_by(self._keep_best), self._shown(hear):
            made = self._plans.plan_of_call(
                (sql, request, *known), options, lambda: self._planned(sql, request, options, schemas, state)
            )
        plan = self._saying_losses(made)
        self._best = lambda: plan
        return plan

    def _keep_best(self, make: Callable[[], Plan]) -> None:
        def interrupted() -> Plan:
            plan = self._saying_losses(make())
            why = "planning was interrupted: a search that ends may have smaller errors"
            return replace(plan, notes=in_order((*plan.notes, Note(why, ERROR))))

        self._best = interrupted

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last batch that was planned for a budget; where that was interrupted, the best until then.

        None where there was none yet. A plan that was interrupted can be run as any other, and says so in a note.
        """
        self._check_open()
        best = self._best
        if best is None:
            return None
        with suppress(DataError):  # integers that do not fit
            plan = best()
            self._best = lambda: plan
            return plan
        return None

    def _shown(self, hear: Say | None) -> AbstractContextManager[None]:
        """Progress on a terminal, where the call itself does not hear of it."""
        return progress.shown() if hear is None else nullcontext()

    def _inputs(self) -> tuple[dict[str, dict[str, str]], Policy, dt.date, BudgetState]:
        """What planning reads of the connection by now."""
        policy = self.policy
        return self.schemas(), policy, policy.day, self.budget

    def _planned(
        self, sql: str, request: Request, options: PlanOptions, schemas: dict[str, dict[str, str]], state: BudgetState
    ) -> Plan:
        """The plan of a batch for a budget, by whatever method."""
        if options.method != "auto" and not strategy_named(options.method):
            made: Plan = planner_named(options.method)(sql, self.policy, schemas, state, request, options)
            return made
        try:
            plan = self._plans.plan(sql, self.policy, schemas, state, request, options)
        except SQLError:
            first = self._finds_first(sql, request, options)
            if first is None:
                raise
            return first
        return self._past.with_earlier(plan) if options.earlier and self.ledger_path.exists() else plan

    def _saying_losses(self, plan: Plan) -> Plan:
        """The plan with what limits cut of the rows that it counts, or with what measuring that would take."""
        from dpsql.running.losses import bought_with_a_run, joined

        policy, budget = self.policy, self._books.budget
        losses = joined(self._ledger_losses.of_plan(plan, policy, budget).values())
        bought = bought_with_a_run(policy, self._ledger_losses.histograms(policy)) if losses else ""
        notes = [*(Note(note, BIAS) for note in losses.notes), *([Note(bought)] if bought else [])]
        return replace(plan, cut=losses.cuts or None, notes=in_order((*plan.notes, *notes))) if losses else plan

    def _finds_first(self, sql: str, request: Request, options: PlanOptions) -> Plan | None:
        """The plan of a batch that groups by columns which the policy lets it find, None for any other."""
        if not waiting(self.policy):
            return None
        plan: Plan | None = needed("plan_with_finding")(self, sql, request, options)
        return plan

    @taking(measure=maybe(text()))
    def budget_for(
        self,
        sql: str,
        max_error: object = None,
        *,
        delta: object = None,
        measure: str | None = None,
        options: PlanOptions | None = None,
        **keywords: Unpack[BudgetKeywords],
    ) -> NeededBudget:
        """The least epsilon (or rho) that gives each number of a batch the wanted half-width at 1 - alpha. Free.

        A number that compares like one, with ``.epsilon``, ``.delta``, ``.rho`` and ``.plan``; ``run`` takes it. It is
        what ``plan`` would be given: pure where the policy keeps a pure account, else epsilon at its delta, rho in a
        rho policy; with ``delta``, epsilon at that delta, from either account; ``measure="rho"`` asks for rho
        elsewhere.

        ``max_error``: the half-width of every number, or a mapping of results ("by_state", or "by_state.n") to theirs;
        a hint ``/*+ MAX_ERROR(50) */`` after SELECT counts for that SELECT. ``relative``: the same, over the
        answer that the policy's ``expected_rows`` (or ``expected``) let one guess; averages, ratios and quantiles
        always need such a guess. ``objective``: "balanced", "total" or "max" keep the strategy that ``plan`` takes; the
        default chooses the one that needs the least. The other keywords, and ``options``, are as in ``plan``; 0 is
        found where earlier releases suffice, and ``run`` of it is free. Raises BudgetError, with the least error within
        reach, where no budget that is left and allowed gives it; DataError for wishes that do not fit.
        """
        self._check_open()
        options = (options or PlanOptions()).having(keywords)
        options = options if max_error is None else replace(options, max_error=max_error)
        targets = targets_of(options)
        if wish_of(sql, None, None, targets) is None:
            raise DataError("no error is wanted; give max_error=50, relative=0.05, or hints /*+ MAX_ERROR(50) */")
        options = replace(options, alpha=targets.alpha, earlier=options.earlier and options.rows_per_unit is None)
        return self._needed(sql, targets, options, delta, measure)

    def _needed(
        self, sql: str, targets: Wanted, options: PlanOptions, delta: object = None, measure: str | None = None
    ) -> NeededBudget:
        at = None if delta is None else Request.of(1, delta).delta
        given = schemas, policy, _, state = self._inputs()
        hear = options.progress
        options = replace(options, progress=_saying(hear))

        def search() -> NeededBudget:
            prepared = prepare(sql, policy, schemas, options.progress, rows_per_unit=options.rows_per_unit)
            prepared = prepared.by(strategy_named(options.method))
            known = self._past.for_search(prepared, targets.alpha) if options.earlier else None
            left = state.within(prepared.reads)
            return find_budget(prepared, left, targets, options, delta=at, measure=measure, earlier=known)

        with self._shown(hear):
            found = self._plans.budget_of_call((sql, at, measure, *given), options, search)
        return replace(found, plan=self._saying_losses(found.plan))

    @taking(fresh=flag(), errors=flag(), estimates=text(), lower_at_zero=flag(), intervals=text(), label=maybe(text()))
    def run(
        self,
        batch: Plan | NeededBudget | str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        fresh: bool = False,
        errors: bool = True,
        estimates: str = "unbiased",
        lower_at_zero: bool = False,
        intervals: str = "noise",
        label: str | None = None,
        options: PlanOptions | None = None,
        **keywords: Unpack[PlanKeywords],
    ) -> Release:
        """Measure a plan (or that of ``budget_for``), or plan a batch and measure it, and register its views.

        Spends what the plan says, once for the whole batch, before any row is read. The same batch at the same budget
        on the same data version is answered again from its earlier release at no cost, unless ``fresh``; so is a batch
        that earlier releases determine together with no more error than planned, and, where no budget is named at all,
        with whatever error (``dpsql.running.answer_free``). ``errors=False`` leaves the error columns out;
        ``estimates="feasible"`` (or "whole") shows numbers that a table could have (``dpsql.running.feasible``), of an
        earlier release too, whose views stay as they are; "auto" shows them where they are expected to be nearer
        (the extension ``advice``). ``lower_at_zero``: intervals of counts, and of sums that no row lowers,
        begin at 0 or above, as those of feasible estimates do anyway; the numbers stay as they are.
        ``intervals="total"``: those of counts and sums include what limits cut, once that is measured (``losses``,
        ``dpsql.running.total_intervals``); views stay as they are. Other keywords, and ``options``, are
        those of ``plan``. Raises IntegrityError where a view name is taken (write CREATE OR REPLACE VIEW), BudgetError
        where the account does not hold the charge.
        """
        from dpsql.running.answer_free import asks_for_free
        from dpsql.running.feasible import LOWER_AT_ZERO

        self._check_open()
        self._books.warn_of_changes()
        label = self._checked_label(label)
        unpaid = isinstance(batch, NeededBudget) and not batch
        plan = batch.plan if isinstance(batch, NeededBudget) else batch
        if not isinstance(plan, Plan):
            options = (options or PlanOptions()).having({"earlier": False, **keywords} if fresh else keywords)
            shown = LOWER_AT_ZERO if lower_at_zero else estimates
            if not fresh and intervals == "noise" and asks_for_free(plan, (epsilon, delta, rho), shown, options):
                return self._free(plan, targets_of(options).alpha, label, errors=errors)
            plain = shown == "unbiased" and options.method == "auto" and options.rows_per_unit is None
            self._check_payable(plan, (epsilon, delta, rho), label, plain=plain, fresh=fresh)
            plan = self.plan(plan, epsilon, delta, rho, options=options)
        elif epsilon is not None or delta is not None or rho is not None or options is not None or keywords:
            raise InterfaceError("a plan has its budget and options; give them to plan(), not to run()")
        if plan.finds:
            self._batches.rehearse(plan, errors=errors, estimates="unbiased" if estimates == "auto" else estimates)
            plan = needed("find_groups")(self, plan, label)
        if estimates == "auto":
            estimates = "unbiased" if plan.estimated else needed("expected_estimates")(plan)
        if lower_at_zero and estimates == "unbiased" and not plan.estimated:
            estimates = LOWER_AT_ZERO
        self._check_intervals(plan, intervals)
        with progress.shown():
            done = self._batches.run(plan, fresh=fresh, errors=errors, estimates=estimates, label=label, unpaid=unpaid)
        if done.cost:
            self._buy_losses_once()
        release = self._mine(done, label, self._ledger_losses.of_plan(plan, self.policy, self._books.budget))
        if intervals == "total" and errors:
            from dpsql.running.total_intervals import with_losses_in

            return with_losses_in(release, plan)
        return release

    def _buy_losses_once(self) -> None:
        """Measures what limits cut where the policy's [budget] losses says so and the ledger does not know it."""
        if self.policy.budget.losses is not None:
            needed("measure_losses")(self)

    def _check_intervals(self, plan: Plan, intervals: str) -> None:
        """Raises DataError, before the charge of a batch, where its intervals cannot be had."""
        if intervals not in ("noise", "total"):
            raise DataError(f"intervals={intervals!r} is not known; use 'noise' or 'total', which has what limits cut")
        if intervals == "total":
            from dpsql.running.total_intervals import check_total

            self._buy_losses_once()
            check_total(plan, self._ledger_losses.of_plan(plan, self.policy, self._books.budget))

    def _free(self, sql: str, alpha: float, label: str, *, errors: bool) -> Release:
        """What earlier releases say of a batch that names no budget. Raises DataError where they leave it open."""
        _ = self.policy  # with what was found since
        free = self._batches.for_free(sql, alpha, errors=errors, label=label)
        if free is None:
            raise DataError(
                "no budget is given and the releases do not determine this batch; give epsilon=..., or epsilon=... "
                "and delta=..., or rho=..., or the error that is wanted, max_error=..."
            )
        return self._mine(free, label, self._telling_losses(free, sql).losses)

    def _telling_losses(self, release: Release, sql: str) -> Release:
        """A release that answers a batch without a plan, which says what limits cut of the rows that it counts."""
        return replace(release, losses=self._losses_of(sql))

    def _losses_of(self, sql: str) -> dict[str, Losses]:
        """What limits cut of the rows that a batch counts, by result. Raises as planning does."""
        batch, budget = self._past.meaning(sql), self._books.budget
        sources = {name: table.source for name, table in batch.tables.items() if table.source is not None}
        return self._ledger_losses.of(batch.answers, sources, self.policy, budget)

    def _mine(self, release: Release, label: str, losses: Mapping[str, Losses]) -> Release:
        """The release, whose unnamed results are q1, q2, ... to this connection from now on."""
        with self._state_lock:
            for name in filter(is_unnamed, release.views):
                self._unnamed[name.lower()] = {**self._unnamed.get(name.lower(), {}), label: release.id}
        return replace(release, replicates=self._replicates, losses=losses)

    @taking(release=whole(0, 2**63 - 1))
    def answers_others(self, release: int) -> bool:
        """Whether other questions can rest on a release: its measurement was kept, and is not too large. Free."""
        self._check_open()
        return self._past.answers_others(release)

    def refine(self) -> list[Release]:
        """Give the answers of earlier batches again, from all measurements together, where that makes them better.

        Free: post-processing of what was released (``dpsql.running.answer_free``). Each batch whose results are still
        shown is answered by least squares over everything that was measured of its tables, and its views show the
        better answers from then on; the releases that they rest on are in their ``guarantee`` and in ``dp.releases``.
        The earlier numbers stay in their own schemas. Returns what became better, oldest first; nothing twice.
        """
        self._check_open()
        better = self._batches.refined()
        with self._state_lock:
            now = {was: release.id for was, release in better}
            for name, held in self._unnamed.items():
                self._unnamed[name] = {label: now.get(was, was) for label, was in held.items()}
        releases = [self._telling_losses(release, release.record.sql) for _, release in better]
        return [replace(release, replicates=self._replicates) for release in releases]

    @taking(query=one_of(str), parameters=maybe(several()), errors=flag(), alpha=real(), population=maybe(one_of(str)))
    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        errors: bool = False,
        alpha: float = 0.05,
        population: str | None = None,
    ) -> Result:
        """Run one SELECT over the releases (views of schema dp). Free; sees no private row.

        ``errors``: beside each number c that noise reaches its ``c_stderr`` and the ends ``c_low`` and ``c_high`` of an
        interval at level 1 - ``alpha``, worked out from replicates of the releases (``dpsql.replicates``); where noise
        decides which rows there are, ``c_present``, the share of the replicates that have the row.
        What limits cut of the rows that it counts, where that was measured, is among the ``notes`` of the result.
        ``population="sample"``: the rows are a sample, and intervals are about the population (docs/inference.md).

        q1, q2, ... are the unnamed results of this connection's last run, and of the newest release before the first
        one; where several labels have such results, they are refused with what to write instead, such as r3.q1.
        Stopped, with an OperationalError, after the ``query_timeout`` of ``connect``.
        """
        from dpsql.driver.cursor import check_population

        self._check_open()
        check_population(population, errors=errors)
        self._books.catch_up()
        unnamed = dict(self._unnamed)
        try:
            found = self._store.sql(query, parameters, seconds=self._query_timeout, unnamed=unnamed)
            text = _filled(query, parameters)
            found.with_losses(lambda: self._losses_read(text, unnamed))
            if not errors:
                return found.drawn_with(lambda: self.errors_beside(query, found, parameters, unnamed=unnamed)[0])
            answer, alone = self._replicates.with_errors(text, found, unnamed, alpha, self._query_timeout,
                                                          sample=population is not None)  # fmt: skip
            if alone:
                warnings.warn(f"errors=True has nothing to add to this query: {alone}", stacklevel=4)
            return answer.with_losses(lambda: self._losses_read(text, unnamed))
        except (SQLError, OperationalError):
            from dpsql.sql.routing import tables_read

            asked = tables_read(query, self.policy, self._view_names)
            if not asked:
                raise
        raise ProgrammingError(
            "sql() reads released results, and this reads a public table: query it with DuckDB itself, it needs no "
            "privacy budget"
            if asked == "public"
            else "sql() reads released results, and this reads a private table; con.run(sql, epsilon=0.1) measures it, "
            "con.plan(sql, epsilon=0.1) shows the errors first, for free"
        )

    def _losses_read(self, query: str, unnamed: Mapping[str, Mapping[str, int]] | None = None) -> Losses:
        """What limits cut of the rows behind the results of a query; ``unnamed`` as of ``errors_beside``."""
        from dpsql.driver.losses_read import losses_read

        unnamed_results = dict(self._unnamed) if unnamed is None else unnamed
        return losses_read(self._books, lambda: self._replicates.results_read(query, unnamed_results), self._losses_of)

    def errors_beside(
        self,
        query: str,
        answer: Result,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        alpha: float = 0.05,
        unnamed: Mapping[str, Mapping[str, int]] | None = None,
        population: str | None = None,
    ) -> tuple[Result, str]:
        """What ``sql(query, errors=True)`` adds to its ``answer``; where that cannot be, the answer, and why, in words.

        For those who show errors without being asked for them. ``unnamed``: what q1, q2, ... are to the asker.
        """
        unnamed_results = dict(self._unnamed) if unnamed is None else unnamed
        try:
            self._check_open()
            sample, seconds = population is not None, self._query_timeout
            text = _filled(query, parameters)
            return self._replicates.with_errors(text, answer, unnamed_results, alpha, seconds, sample=sample)[0], ""
        except Error as error:
            said = error if speaks_of_the_request(error) else "they cannot be worked out now"
            return answer, f"without errors: {said}"

    def commit(self) -> None:
        """Nothing to do: every charge and every release is committed when it is made (PEP 249)."""
        self._check_open()

    def rollback(self) -> None:
        """Gives nothing back: what was charged stays charged and what was released stays released (PEP 249).

        There is no transaction to undo; a refund would let whoever has seen an answer ask again for free.
        """
        self._check_open()


def _saying(hear: Say | None) -> Say:
    """What planning calls with its stages: they go to ``hear``, to the log and to who hears of progress here."""

    def both(text: str) -> None:
        if hear is not None:
            hear(text)
        progress.say(f"planning: {text}")

    return both


def _filled(query: str, parameters: Parameters) -> str:
    from dpsql.sql.parse.parameters import prepare

    return prepare(query).fill(parameters) if parameters else query
