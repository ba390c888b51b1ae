"""Connection: plan a batch, run it, query its releases."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpsql.common.arguments import (
    flag,
    function,
    maybe,
    one_of,
    real,
    several,
    taking,
    text,
    whole,
)
from dpsql.common.out_of_memory import guards_calls
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
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import prepare
from dpsql.planning.target_errors import Wanted, wanted_of
from dpsql.privacy.accountant import Request
from dpsql.registry import extensible, needed
from dpsql.release import Result
from dpsql.release.names import is_unnamed
from dpsql.release.release import Release
from dpsql.running.finding_share import waiting

if TYPE_CHECKING:  # imported when one is asked for: a plan needs none
    from dpsql.driver.cursor import Cursor
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
        return Connection(
            held.engine,
            self.policy,
            self.ledger_path,
            self._shared_releases,
            anchor=self._books.anchor,
            label=label,
            query_timeout=self._query_timeout,
        )

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

    @taking(progress=maybe(function()), earlier=flag(), method=text(), rows_per_unit=maybe(whole(1, 2**63 - 1)))
    def plan(
        self,
        sql: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        alpha: float = 0.05,
        tolerance: float = 1e-3,
        time_limit: float | None = None,
        progress: Callable[[str], None] | None = None,
        objective: str | None = None,
        max_error: object = None,
        relative: object = None,
        simultaneous: bool = False,
        expected: Mapping[str, object] | None = None,
        method: str = "auto",
        rounds: int | None = None,
        earlier: bool = True,
        rows_per_unit: int | None = None,
    ) -> Plan:
        """What a batch would release, with an error bar on every number. Free.

        ``epsilon`` alone is pure where the policy keeps a pure account and otherwise taken with the policy's delta; or
        ``epsilon`` and ``delta``; or ``rho``; or what the batch's OPTIONS say (``dpsql.sql.parse.options``).
        ``objective``: what is least, "balanced" (the default, ``dpsql.planning.one_by_one``), the mean over the result
        columns of their squared errors beside those one by one, so that none comes out worse where that can be had; the
        "total" squared error; or the largest one ("max"). ``alpha`` = 1 - confidence of the intervals. Without a
        budget, ``max_error`` or ``relative``, or the batch's hints MAX_ERROR, say which half-width every number is to
        have: the plan then spends the least budget that gives it (``budget_for``). ``earlier``: where earlier releases
        know a part of the answers, these rest on them, too, at the same charge, and the plan's errors are those of all
        measurements together (``dpsql.running.earlier.combined_plan``); False plans as if there were none. ``method``:
        "auto"; or a strategy of ``dpsql.strategy.CATALOGUE``, which is planned as it is, without earlier releases; or
        "adaptive" (the extension ``adaptive``) for counts over many columns, or "sparse"
        (the extension ``discovery``) for one COUNT by groups of which most are empty, or the papers'
        "mwem" and "mwem-strategy"; their errors depend on the data and are estimated only; ``rounds`` are theirs.
        ``rows_per_unit``: of each unit at most so many rows count, where the policy lets more count; noise falls, and
        what is left out of larger units is not estimated. Earlier releases are not used then. Reads the column types of
        the tables, never a row. Raises SQLError, PolicyError, DataError, BudgetError, all before anything is spent.
        """
        self._check_open()
        targets = wanted_of(max_error, relative, alpha, simultaneous, expected, objective)
        named = wish_of(sql, epsilon, rho, targets) is None
        strategy = method == "auto" or strategy_named(method)
        earlier = earlier and rows_per_unit is None and method == "auto"
        options = PlanOptions(
            targets.alpha, tolerance, time_limit, progress, objective, method, rounds, earlier, rows_per_unit
        )
        if not named:
            if not strategy:
                planner_named(method)
                raise DataError(
                    f"method={method!r} has estimated errors: no budget can be found for them; give epsilon"
                )
            return self._needed(sql, targets, options, delta).plan
        request = request_of(sql, epsilon, delta, rho)
        if not strategy:
            planned: Plan = planner_named(method)(sql, self.policy, self.schemas(), self.budget, request, options)
            return planned
        if rounds is not None:
            raise DataError("rounds are those of method='adaptive' and 'mwem'; name one, or leave rounds out")
        try:
            plan = self._plans.plan(sql, self.policy, self.schemas(), self.budget, request, options)
        except SQLError:
            first = self._finds_first(sql, request, options)
            if first is None:
                raise
            return first
        return self._past.with_earlier(plan) if earlier and self.ledger_path.exists() else plan

    def _finds_first(self, sql: str, request: Request, options: PlanOptions) -> Plan | None:
        """The plan of a batch that groups by columns which the policy lets it find, None for any other."""
        if not waiting(self.policy):
            return None
        plan: Plan | None = needed("plan_with_finding")(self, sql, request, options)
        return plan

    @taking(progress=maybe(function()), earlier=flag(), measure=maybe(text()), rows_per_unit=maybe(whole(1, 2**63 - 1)))
    def budget_for(
        self,
        sql: str,
        max_error: object = None,
        *,
        relative: object = None,
        alpha: float = 0.05,
        simultaneous: bool = False,
        expected: Mapping[str, object] | None = None,
        delta: object = None,
        measure: str | None = None,
        objective: str | None = None,
        tolerance: float = 1e-3,
        time_limit: float | None = None,
        progress: Callable[[str], None] | None = None,
        earlier: bool = True,
        rows_per_unit: int | None = None,
    ) -> NeededBudget:
        """The least epsilon (or rho) that gives each number of a batch the wanted half-width at 1 - alpha. Free.

        A number that compares like one, with ``.epsilon``, ``.delta``, ``.rho`` and ``.plan``; ``run`` takes it. It is
        what ``plan`` would be given: pure where the policy keeps a pure account, else epsilon at its delta, rho in a
        rho policy; with ``delta``, epsilon at that delta, from either account; ``measure="rho"`` asks for rho
        elsewhere.

        ``max_error``: the half-width of every number, or a mapping of results ("by_state", or "by_state.n") to theirs;
        a hint ``/*+ MAX_ERROR(50) */`` after SELECT counts for that SELECT. ``relative``: the same, over the
        answer that the policy's ``expected_rows`` (or ``expected``, rows of a group by result) let one guess;
        averages, ratios and quantiles always need such a guess (``dpsql.planning.target_errors``). ``simultaneous``:
        all intervals together hold with 1 - alpha, not each by itself. ``objective``: "balanced", "total" or "max"
        keep the strategy that ``plan`` takes; the default chooses the one that needs the least.
        ``rows_per_unit``: as in ``plan``. ``earlier``: what earlier releases know counts, too; 0 is found where they
        suffice, and ``run`` of it is free. Raises BudgetError, with the least error within reach, where no budget that
        is left and allowed gives it; DataError for wishes that do not fit.
        """
        self._check_open()
        targets = wanted_of(max_error, relative, alpha, simultaneous, expected, objective)
        if wish_of(sql, None, None, targets) is None:
            raise DataError("no error is wanted; give max_error=50, relative=0.05, or hints /*+ MAX_ERROR(50) */")
        earlier = earlier and rows_per_unit is None
        options = PlanOptions(
            targets.alpha, tolerance, time_limit, progress, objective, earlier=earlier, rows_per_unit=rows_per_unit
        )
        return self._needed(sql, targets, options, delta, measure)

    def _needed(
        self, sql: str, targets: Wanted, options: PlanOptions, delta: object = None, measure: str | None = None
    ) -> NeededBudget:
        at = None if delta is None else Request.of(1, delta).delta
        prepared = prepare(sql, self.policy, self.schemas(), options.progress, rows_per_unit=options.rows_per_unit)
        prepared = prepared.by(strategy_named(options.method))
        known = self._past.known(prepared, targets.alpha) if options.earlier else None
        return find_budget(
            prepared, self.budget.within(prepared.reads), targets, options, delta=at, measure=measure, known=known
        )

    @taking(fresh=flag(), errors=flag(), estimates=text(), lower_at_zero=flag(), label=maybe(text()))
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
        label: str | None = None,
        **options: Any,
    ) -> Release:
        """Measure a plan (or that of ``budget_for``), or plan a batch and measure it, and register its views.

        Spends what the plan says, once for the whole batch, before any row is read. The same batch at the same budget
        on the same data version is answered again from its earlier release at no cost, unless ``fresh``; so is a batch
        that earlier releases determine together with no more error than planned, and, where no budget is named at all,
        with whatever error (``dpsql.running.answer_free``). ``errors=False`` leaves the error columns out;
        ``estimates="feasible"`` (or "whole") shows numbers that a table could have (``dpsql.running.feasible``), of an
        earlier release too, whose views stay as they are; "auto" shows them where they are expected to be nearer
        (the extension ``advice``). ``lower_at_zero``: intervals of counts, and of sums that no row lowers,
        begin at 0 or above, as those of feasible estimates do anyway; the numbers stay as they are. ``options`` go to
        ``plan``. Raises IntegrityError where a view name is taken (write CREATE OR REPLACE VIEW), BudgetError where the
        account does not hold the charge.
        """
        self._check_open()
        self._books.warn_of_changes()
        said = self._said(label)
        unpaid = isinstance(batch, NeededBudget) and not batch
        if isinstance(batch, NeededBudget):
            batch = batch.plan
        if isinstance(batch, Plan):
            if epsilon is not None or delta is not None or rho is not None or options:
                raise InterfaceError("a plan has its budget and options; give them to plan(), not to run()")
            plan = batch
        else:
            from dpsql.running.answer_free import asks_for_free
            from dpsql.running.feasible import LOWER_AT_ZERO

            asked = LOWER_AT_ZERO if lower_at_zero else estimates
            if not fresh and asks_for_free(batch, (epsilon, delta, rho), asked, options):
                _ = self.policy  # with what was found since
                free = self._batches.for_free(batch, options.get("alpha", 0.05), errors=errors, label=said)
                if free is not None:
                    return self._mine(free, said)
                raise DataError(
                    "no budget is given and the releases do not determine this batch; give epsilon=..., or epsilon=... "
                    "and delta=..., or rho=..., or the error that is wanted, max_error=..."
                )
            plain = asked == "unbiased" and not {"method", "rows_per_unit"} & set(options)
            self._check_payable(batch, (epsilon, delta, rho), said, plain=plain, fresh=fresh)
            plan = self.plan(batch, epsilon, delta, rho, **{"earlier": not fresh, **options})
        if plan.finds:
            self._batches.rehearse(plan, errors=errors, estimates="unbiased" if estimates == "auto" else estimates)
            plan = needed("find_groups")(self, plan, said)
        if estimates == "auto":
            estimates = "unbiased" if plan.estimated else needed("expected_estimates")(plan)
        if lower_at_zero and estimates == "unbiased" and not plan.estimated:
            from dpsql.running.feasible import LOWER_AT_ZERO

            estimates = LOWER_AT_ZERO
        done = self._batches.run(plan, fresh=fresh, errors=errors, estimates=estimates, label=said, unpaid=unpaid)
        return self._mine(done, said)

    def _mine(self, release: Release, label: str) -> Release:
        """The release, whose unnamed results are q1, q2, ... to this connection from now on."""
        with self._state_lock:
            for name in filter(is_unnamed, release.views):
                self._own[name.lower()] = {**self._own.get(name.lower(), {}), label: release.id}
        return replace(release, replicates=self._replicates)

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
            for name, held in self._own.items():
                self._own[name] = {label: now.get(was, was) for label, was in held.items()}
        return [replace(release, replicates=self._replicates) for _, release in better]

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
        ``population="sample"``: the rows are a sample, and intervals are about the population (docs/inference.md).

        q1, q2, ... are the unnamed results of this connection's last run, and of the newest release before the first
        one; where several labels have such results, they are refused with what to write instead, such as r3.q1.
        Stopped, with an OperationalError, after the ``query_timeout`` of ``connect``.
        """
        from dpsql.driver.cursor import check_population

        self._check_open()
        check_population(population, errors=errors)
        self._books.catch_up()
        own = dict(self._own)
        try:
            found = self._store.sql(query, parameters, seconds=self._query_timeout, own=own)
            if not errors:
                return found.drawn_with(lambda: self.errors_beside(query, found, parameters, own=own)[0])
            text = _filled(query, parameters)
            answer, alone = self._replicates.with_errors(text, found, own, alpha, self._query_timeout,
                                                          sample=population is not None)  # fmt: skip
            if alone:
                warnings.warn(f"errors=True has nothing to add to this query: {alone}", stacklevel=4)
            return answer
        except (SQLError, OperationalError):
            from dpsql.sql.parse.routing import tables_asked

            asked = tables_asked(query, self.policy, self._view_names)
            if not asked:
                raise
        raise ProgrammingError(
            "sql() reads released results, and this reads a public table: query it with DuckDB itself, it needs no "
            "privacy budget"
            if asked == "public"
            else "sql() reads released results, and this reads a private table; con.run(sql, epsilon=0.1) measures it, "
            "con.plan(sql, epsilon=0.1) shows the errors first, for free"
        )

    def errors_beside(
        self,
        query: str,
        answer: Result,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        alpha: float = 0.05,
        own: Mapping[str, Mapping[str, int]] | None = None,
        population: str | None = None,
    ) -> tuple[Result, str]:
        """What ``sql(query, errors=True)`` adds to its ``answer``; where that cannot be, the answer, and why, in words.

        For those who show errors without being asked for them. ``own``: what q1, q2, ... are to the asker.
        """
        mine = dict(self._own) if own is None else own
        try:
            self._check_open()
            sample, seconds = population is not None, self._query_timeout
            text = _filled(query, parameters)
            return self._replicates.with_errors(text, answer, mine, alpha, seconds, sample=sample)[0], ""
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


def _filled(query: str, parameters: Parameters) -> str:
    from dpsql.sql.parse.parameters import prepare

    return prepare(query).fill(parameters) if parameters else query
