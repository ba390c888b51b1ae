"""Connection: plan a batch, run it, query its releases, see the budget."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpsql.arguments import (
    each_text,
    either,
    flag,
    function,
    maybe,
    one_of,
    real,
    several,
    taking,
    text,
    texts,
    whole,
)
from dpsql.driver.cursor import Cursor
from dpsql.driver.dbapi import Exceptions
from dpsql.errors import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLError,
)
from dpsql.measure import Engine
from dpsql.measure.sources import Holdings
from dpsql.planning.adaptive import AdaptivePlan, make_adaptive_plan
from dpsql.planning.budget_search import find_budget, wish_of
from dpsql.planning.expected_workload import workload_sql
from dpsql.planning.needed_budget import NeededBudget, plain, request_of
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import LastPlans, Plan
from dpsql.planning.prepare import prepare
from dpsql.planning.target_errors import Wanted, wanted_of
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.analysts import finds_nothing
from dpsql.privacy.ledger import Entry
from dpsql.release import ReleaseStore, Result
from dpsql.release.books import Books, budget_of, place_of
from dpsql.release.custody import Custody
from dpsql.release.limits import QUERY_SECONDS, check_seconds
from dpsql.release.names import is_unnamed
from dpsql.release.release import Release
from dpsql.replicates import Replicates
from dpsql.running.answer_free import Earlier, asks_for_free
from dpsql.running.discovered_bounds import BoundsFinder
from dpsql.running.discovery import Asked, Discovery, Finder, Prospect
from dpsql.running.found_domains import FoundDomain, FoundDomains
from dpsql.running.local_release import LocalRelease, Maker
from dpsql.running.prospects import expected_estimates, prospects, table_of
from dpsql.running.run import Batches
from dpsql.sql.parse.parameters import Parameters
from dpsql.sql.parse.parameters import prepare as fill
from dpsql.sql.parse.routing import tables_asked


class Connection(Exceptions):
    """Private tables, a policy, a ledger and the releases made of them. Make it with ``connect``.

    Trust: this object runs in the custodian's process and can read the private tables; hand
    analysts its plans, releases and error messages, not the object.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        ledger: Path,
        releases: Path,
        *,
        anchor: Path | None,
        label: str,
        budget_per_release: tuple[object, object, object] = (None, None, None),
        cursor_errors: bool = False,
        query_timeout: float | None = QUERY_SECONDS,
    ) -> None:
        self.ledger_path = ledger
        self._shared_releases = releases
        private = policy.budget.private_releases
        self.releases_path = place_of(releases, label) if private else releases
        self._label = label
        self._store = ReleaseStore(self.releases_path)
        self._budget_per_release = budget_per_release
        self._cursor_errors = cursor_errors
        self._query_timeout = check_seconds("query_timeout", query_timeout)
        self._lock = threading.RLock()
        self._closed = False
        self._holdings = Holdings(engine, policy)
        books = (ledger, self._store, policy.dataset, budget_of(policy), anchor, self._holdings.files)
        self._books = Books(*books, label if private else None)
        self._batches = Batches(self._holdings, self._books, Earlier(self._books, policy, self._holdings.schemas))
        self._domains = FoundDomains(policy, self._books)
        self._behind = Earlier(self._books, policy, self._holdings.schemas)
        self._replicates = Replicates(self._books, self._store, self._behind)
        self._plans = LastPlans()
        self._own: dict[str, dict[str, int]] = {}  # what q1, q2, ... are here: releases by name and label
        self._books.warn_of_changes()

    @property
    def policy(self) -> Policy:
        """What is public of the tables by now: the custodian's policy, with the domains that were found (``discover``).

        Another process may find one, so the ledger is looked at each time.
        """
        held = self._domains.refresh()
        if held is not self._holdings.policy:
            self._holdings.policy = held
            self._batches.past.under(held)
            self._behind.under(held)
        return held

    @property
    def found_domains(self) -> tuple[FoundDomain, ...]:
        """The domains of ``policy`` that were found and not declared, each with its release and data version."""
        self._domains.refresh()
        return self._domains.found

    def __repr__(self) -> str:
        return f"<dpsql.Connection to {self._domains.declared.dataset!r}, ledger {str(self.ledger_path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; ledger and releases are files and stay."""
        self._closed = True

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

    @taking(errors=maybe(flag()))
    def cursor(self, *, errors: bool | None = None) -> Cursor:
        """A new cursor (PEP 249). Opens nothing, reads nothing, costs nothing.

        ``errors``: whether its results show ``c_stderr``, ``c_low`` and ``c_high`` beside each private number ``c``;
        by default what ``connect(cursor_errors=...)`` says.
        """
        self._check_open()
        return Cursor(self, errors=self._cursor_errors if errors is None else errors)

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

    def schemas(self) -> dict[str, dict[str, str]]:
        """The column types of all private tables, held against the policy. Reads no row."""
        self._check_open()
        return self._holdings.schemas()

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

        ``epsilon`` alone is pure where the policy keeps a pure account and otherwise taken with the
        policy's delta; or ``epsilon`` and ``delta``; or ``rho``; or what the batch's OPTIONS say
        (``dpsql.sql.parse.options``). ``objective``: what is least, "balanced" (the default,
        ``dpsql.planning.one_by_one``), the mean over the result columns of their squared errors beside those one by
        one, so that none comes out worse where that can be had; the "total" squared error; or the largest one ("max").
        ``alpha`` = 1 - confidence of the intervals. Without a budget, ``max_error`` or ``relative``, or the batch's
        hints MAX_ERROR, say which half-width every number is to have: the plan then spends the least budget that gives
        it (``budget_for``). ``earlier``: where earlier releases know a part of the answers, these rest on them, too,
        at the same charge, and the plan's errors are those of all measurements together
        (``dpsql.earlier.combined_plan``); False plans as if there were none. ``method``: "auto", or "adaptive"
        (``dpsql.strategy.adaptive.marginals``) for counts over many columns, or the papers' "mwem" and "mwem-strategy";
        their errors depend on the data and are estimated only; ``rounds`` are theirs. ``rows_per_unit``: of each unit
        at most so many rows count, where the policy lets more count; noise falls, and what is left out of larger units
        is not estimated. Earlier releases are not used then.
        Reads the column types of the tables, never a row. Raises SQLError, PolicyError,
        DataError, BudgetError, all before anything is spent.
        """
        self._check_open()
        targets = wanted_of(max_error, relative, alpha, simultaneous, expected, objective)
        named = wish_of(sql, epsilon, rho, targets) is None
        earlier = earlier and rows_per_unit is None
        options = PlanOptions(
            targets.alpha, tolerance, time_limit, progress, objective, method, rounds, earlier, rows_per_unit
        )
        if not named:
            if method != "auto":
                raise DataError(
                    f"method={method!r} has estimated errors: no budget can be found for them; give epsilon"
                )
            return self._needed(sql, targets, options, delta).plan
        request = request_of(sql, epsilon, delta, rho)
        if method != "auto":
            return make_adaptive_plan(sql, self.policy, self.schemas(), self.budget, request, options)
        if rounds is not None:
            raise DataError("rounds are those of method='adaptive' and 'mwem'; name one, or leave rounds out")
        plan = self._plans.plan(sql, self.policy, self.schemas(), self.budget, request, options)
        return self._batches.past.with_earlier(plan) if earlier else plan

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
        known = self._batches.past.known(prepared, targets.alpha) if options.earlier else None
        return find_budget(prepared, self.budget, targets, options, delta=at, measure=measure, known=known)

    def prospects(
        self, sql: str, epsilon: object = None, delta: object = None, rho: object = None, **options: Any
    ) -> Result:
        """Which way of answering a batch is expected to be nearest, before anything is spent: a row a way. Free.

        Unbiased and feasible estimates of its plan, and rounds that adapt (``method="adaptive"``) where these are for
        such a batch: the mean error on public stand-ins of the policy's ``expected_rows``, and over that of unbiased
        estimates (``dpsql.running.prospects``). Reads no row. Raises as ``plan``, and DataError where there is nothing
        to compare.
        """
        plan = self.plan(sql, epsilon, delta, rho, **options)
        try:
            adaptive = self.plan(sql, epsilon, delta, rho, **options, method="adaptive")
        except (DataError, SQLError):
            adaptive = None
        return table_of(prospects(plan, adaptive if isinstance(adaptive, AdaptivePlan) else None))

    @taking(fresh=flag(), errors=flag(), estimates=text(), label=maybe(text()))
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
        label: str | None = None,
        **options: Any,
    ) -> Release:
        """Measure a plan (or that of ``budget_for``), or plan a batch and measure it, and register its views.

        Spends what the plan says, once for the whole batch, before any row is read. The same
        batch at the same budget on the same data version is answered again from its earlier
        release at no cost, unless ``fresh``; so is a batch that earlier releases determine together with no more error
        than planned, and, where no budget is named at all, with whatever error (``dpsql.running.answer_free``).
        ``errors=False`` leaves the error columns out; ``estimates="feasible"`` (or "whole") shows numbers that a table
        could have (``dpsql.running.feasible``), of an earlier release too, whose views stay as they are; "auto" shows
        them where they are expected to be nearer (``dpsql.running.prospects``). ``options`` go to ``plan``. Raises
        IntegrityError where a view name is taken (write CREATE OR REPLACE VIEW),
        BudgetError where the account does not hold the charge.
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
            if not fresh and asks_for_free(batch, (epsilon, delta, rho), estimates, options):
                free = self._batches.for_free(batch, options.get("alpha", 0.05), errors=errors, label=said)
                if free is not None:
                    return self._mine(free, said)
                raise DataError(
                    "no budget is given and the releases do not determine this batch; give epsilon=..., or epsilon=... "
                    "and delta=..., or rho=..., or the error that is wanted, max_error=..."
                )
            plan = self.plan(batch, epsilon, delta, rho, **{"earlier": not fresh, **options})
        if estimates == "auto":
            estimates = "unbiased" if plan.estimated else expected_estimates(plan)
        done = self._batches.run(plan, fresh=fresh, errors=errors, estimates=estimates, label=said, unpaid=unpaid)
        return self._mine(done, said)

    def _mine(self, release: Release, label: str) -> Release:
        """The release, whose unnamed results are q1, q2, ... to this connection from now on."""
        with self._lock:
            for name in filter(is_unnamed, release.views):
                self._own[name.lower()] = {**self._own.get(name.lower(), {}), label: release.id}
        return replace(release, replicates=self._replicates.draws)

    @taking(declared=either(text(), texts()), table=maybe(text()))
    def workload(self, declared: str | Sequence[str], table: str | None = None) -> str:
        """The SQL batch of an expected workload, such as "ranges(age)" or "marginals(2, sex, state)". Free.

        To be planned, priced (``budget_for``) and run like any batch; ``dpsql.planning.expected_workload`` has the
        words. ``table``: the private table, needed where the policy has several. Raises DataError and PolicyError.
        """
        return workload_sql(self.policy, declared, table)

    @taking(declared=either(text(), texts()), table=maybe(text()), label=maybe(text()))
    def release_workload(
        self,
        declared: str | Sequence[str],
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        table: str | None = None,
        label: str | None = None,
        **options: Any,
    ) -> Release:
        """Measure an expected workload once (``workload``, ``run``); questions within it are free from then on.

        ``answers_others`` says whether that holds for all of them, or, for very large workloads, for its own
        statements alone.
        """
        return self.run(self.workload(declared, table), epsilon, delta, rho, label=label, **options)

    @taking(release=whole(0, 2**63 - 1))
    def answers_others(self, release: int) -> bool:
        """Whether other questions can rest on a release: its measurement was kept, and is not too large. Free."""
        self._check_open()
        return self._batches.past.answers_others(release)

    def refine(self) -> list[Release]:
        """Give the answers of earlier batches again, from all measurements together, where that makes them better.

        Free: post-processing of what was released (``dpsql.running.answer_free``). Each batch whose results are still
        shown is answered by least squares over everything that was measured of its tables, and its views show the
        better answers from then on; the releases that they rest on are in their ``guarantee`` and in ``dp.releases``.
        The earlier numbers stay in their own schemas. Returns what became better, oldest first; nothing twice.
        """
        self._check_open()
        better = self._batches.refined()
        with self._lock:
            now = {was: release.id for was, release in better}
            for name, held in self._own.items():
                self._own[name] = {label: now.get(was, was) for label, was in held.items()}
        return [replace(release, replicates=self._replicates.draws) for _, release in better]

    @taking(table=text(), name=maybe(text()), label=maybe(text()))
    def synthesize(
        self,
        table: str,
        columns: Sequence[str],
        epsilon: object,
        *,
        ids: Sequence[str] = (),
        name: str | None = None,
        label: str | None = None,
    ) -> LocalRelease:
        """Release a randomised copy of some columns of a table, once; ``.sql`` of what is returned is then free.

        Every row keeps its combination of the ``columns``, over their declared domains, or gets one of the others, by
        randomised response at ``epsilon``; ``ids`` are columns that the policy declares public, kept as they are.
        Charges epsilon times the rows that a unit may have to the account ``local_epsilon`` (replace one unit's values:
        the number of rows is published, so the policy must say ``rows_public = true``). ``name``: the view of the rows
        in schema dp, ``<table>_synthetic`` by default. Raises PolicyError for columns without a finite domain or too
        many combinations, IntegrityError for columns that were released before (``synthetic`` finds them), BudgetError.
        """
        said = self._said(label)
        made, record = self._local().make(table, columns, plain(epsilon), ids=ids, name=name, label=said)
        self._batches.register(record)
        return made

    @taking(name=maybe(text()))
    def synthetic(self, name: str | None = None) -> LocalRelease:
        """The local release that was made under this name or of this table; the newest of several. Free."""
        return self._local().find(name)

    @taking(target=text(), max_groups=maybe(whole(1, 10**6)), bounds=flag(), fresh=flag(), label=maybe(text()))
    def discover(
        self,
        target: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        max_groups: int | None = None,
        bounds: bool = False,
        fresh: bool = False,
        label: str | None = None,
    ) -> Discovery:
        """Find the values of a column privately, as "visits.diagnosis", once; they are its domain from then on.

        Shows the values that enough units have (rows, where a row is the unit), with noisy counts; all others are
        OTHER. Neighbours, guarantee and proof: ``dpsql.privacy.threshold``. ``epsilon`` and ``delta`` are those of this
        release alone; in a rho policy ``rho``, and ``delta`` is the chance that the threshold fails. ``max_groups``: in
        how many values of the column one unit counts at most, needed where a unit may have several rows. The domain is
        kept in the ledger and used by GROUP BY, plans and their errors at once, here and in other processes; the counts
        are a view in schema dp. The same discovery on the same version of the data is free again, unless ``fresh``.

        ``bounds``: find bounds of a number or a time instead, for SUM and AVG to clamp to, never the least or the
        largest value: a histogram over a fixed scale (``dpsql.running.discovered_bounds``), at a budget as of ``run``.

        Raises DataError where delta or max_groups is missing or where no value could appear, PolicyError for a column
        with a domain, the unit itself, a key, or a policy without delta, BudgetError where the accounts, or the part
        of delta that is kept for this (``dpsql.privacy.reserve``), do not hold it, or for an analyst, as what is found
        is found for everybody; all before any charge.
        """
        said = self._label if label is None else label
        self._check_open()
        if Path(self.ledger_path).exists() and said in self._books.ledger().analysts():
            raise finds_nothing(said)
        if bounds:
            if max_groups is not None:
                raise DataError("max_groups is for values; of bounds leave it out, all rows that count are used")
            _ = self.policy
            request = Request.of(*map(plain, (epsilon, delta, rho)))
            maker = BoundsFinder(self._batches, self._domains.declared)
            found, record = maker.find(target, request, fresh=fresh, label=said)
            self._batches.register(record, again=True)
            return found
        finder, asked = self._finder(target, (epsilon, delta, rho), max_groups)
        found, record = finder.find(asked, fresh=fresh, label=said)
        self._batches.register(record)
        return found

    @taking(target=text(), max_groups=maybe(whole(1, 10**6)))
    def plan_discovery(
        self,
        target: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        max_groups: int | None = None,
    ) -> Prospect:
        """What ``discover`` would cost, and from how many units (or rows) on values appear. Free; raises as it does."""
        finder, asked = self._finder(target, (epsilon, delta, rho), max_groups)
        return finder.prospect(asked)

    def _finder(
        self, target: str, budget: tuple[object, object, object], max_groups: int | None
    ) -> tuple[Finder, Asked]:
        self._check_open()
        epsilon, delta, rho = map(plain, budget)
        chance = None if delta is None else Request.of(1, delta).delta
        asked = Asked(target, Request.of(epsilon, None, rho), chance, max_groups)
        return Finder(self._holdings, self._books, self._domains.declared), asked

    def _local(self) -> Maker:
        self._check_open()
        return Maker(self._holdings, self._books)

    @taking(query=one_of(str), parameters=maybe(several()), errors=flag(), alpha=real())
    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        errors: bool = False,
        alpha: float = 0.05,
    ) -> Result:
        """Run one SELECT over the releases (views of schema dp). Free; sees no private row.

        ``errors``: beside each number c that noise reaches its ``c_stderr`` and the ends ``c_low`` and ``c_high`` of an
        interval at level 1 - ``alpha``, worked out from replicates of the releases (``dpsql.replicates``); where noise
        decides which rows there are, ``c_present``, the share of the replicates that have the row.

        q1, q2, ... are the unnamed results of this connection's last run, and of the newest release before the first
        one; where several labels have such results, they are refused with what to write instead, such as r3.q1.
        Stopped, with an OperationalError, after the ``query_timeout`` of ``connect``.
        """
        self._check_open()
        self._books.catch_up()
        try:
            found = self._store.sql(query, parameters, seconds=self._query_timeout, own=dict(self._own))
            if not errors:
                return found
            text = fill(query).fill(parameters) if parameters else query
            answer, alone = self._replicates.with_errors(text, found, dict(self._own), alpha, self._query_timeout)
            if alone:
                warnings.warn(f"errors=True has nothing to add to this query: {alone}", stacklevel=3)
            return answer
        except (SQLError, OperationalError):
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
        *,
        alpha: float = 0.05,
        own: Mapping[str, Mapping[str, int]] | None = None,
    ) -> tuple[Result, str]:
        """What ``sql(query, errors=True)`` adds to its ``answer``; where that cannot be, the answer, and why, in words.

        For those who show errors without being asked for them. ``own``: what q1, q2, ... are to the asker.
        """
        mine = dict(self._own) if own is None else own
        try:
            return self._replicates.with_errors(query, answer, mine, alpha, self._query_timeout)[0], ""
        except Error as error:
            return answer, f"without errors: {error}"

    @property
    def ledger(self) -> Custody:
        """The ledger's ``backup(FILE)``, ``restore(FILE)`` and ``verify()``, for its custodian."""
        self._check_open()
        return Custody(self._books)

    @property
    def budget(self) -> BudgetState:
        """Total, spent and remaining budget; ``.accounts`` for the detail, ``.by_label()`` for who spent it.

        ``.charges`` says for what, ``.unreleased`` what was charged and never released.
        """
        self._check_open()
        return self._books.state()

    def releases(self) -> list[Entry]:
        """Every charge of the ledger, oldest first; ``released`` is None where nothing was recorded."""
        self._check_open()
        return list(self._books.state().charges)

    def rebuild(self) -> int:
        """Make the releases database anew from the ledger; the number of releases in it.

        Raises LedgerError where there is no ledger: nothing was released.
        """
        self._check_open()
        return self._books.rebuild()

    @taking(name=text(), to=text(), release=maybe(whole(0, 2**63 - 1)))
    def rename(self, name: str, to: str, *, release: int | None = None) -> None:
        """Show the results called ``name`` in the releases as ``to`` from now on: all of them, or those of one release.

        Free, and written to the ledger, so that a rebuild keeps it. A run of the same batch, which is free, gives its
        results their first names back. Raises ProgrammingError where nothing is called ``name``, IntegrityError
        where something is called ``to``.
        """
        self._check_open()
        if to.lower() in (known.lower() for known in (*self.policy.tables, *self.policy.views)):
            raise IntegrityError(f"{' '.join(to.split())} is a table or view of the policy; choose another name")
        self._books.rename(name, to, release, self._holdings.attachable)

    @taking(names=each_text(), release=maybe(whole(0, 2**63 - 1)))
    def drop(self, *names: str, release: int | None = None) -> None:
        """Take results out of the releases: by name, of one release if given; without names all results of ``release``.

        Nothing is refunded: the ledger keeps charge and noisy measurement, from which the same batch is answered again
        at no cost, and that shows the results again. A rebuild keeps them out. Raises ProgrammingError where there is
        nothing of that name.
        """
        self._check_open()
        if not names and release is None:
            raise InterfaceError("drop() needs the names of results, or release= for all results of one release")
        self._books.drop(names, release, self._holdings.attachable)

    @taking(was=text())
    def renew(self, was: str) -> None:
        """Declare that the policy's ``dataset`` is a new version of the data set ``was``, a public event.

        For a policy whose ``dataset`` was changed because the data were: spending goes on where it was, answers of
        before are kept and no longer used again. ``was``: the name that the ledger knows; it never returns.
        Raises LedgerError where the ledger knows another, or has had the new name before.
        """
        self._check_open()
        self._books.renew(was)

    def changed_files(self) -> tuple[str, ...]:
        """Which files were written to since this version of the data was first used: table names, "" for the database.

        For the custodian, who is warned of them in the log, too; answers, charges and errors never depend on it. Either
        the rows changed and a new version is to be declared (``renew``), or they did not (``confirm_files``). Looks at
        times of files, not at rows; of tables in memory and of Spark nothing is noticed.
        """
        self._check_open()
        return tuple(self._books.changed_files())

    def confirm_files(self) -> None:
        """Say that files were written to and the tables are as they were; LedgerError where there is no ledger."""
        self._check_open()
        self._books.confirm_files()

    def commit(self) -> None:
        """Nothing to do: every charge and every release is committed when it is made (PEP 249)."""
        self._check_open()

    def rollback(self) -> None:
        """Gives nothing back: what was charged stays charged and what was released stays released (PEP 249).

        There is no transaction to undo; a refund would let whoever has seen an answer ask again for free.
        """
        self._check_open()

    def _said(self, label: str | None) -> str:
        """The label of a charge; another one than the connection's only where releases are everybody's."""
        if label is not None and label != self._label and self._books.whose is not None:
            raise InterfaceError(
                f"releases are private to their label in this policy, and the connection's is {self._label!r}; connect "
                "with label=... to release under another"
            )
        return self._label if label is None else label

    def _view_names(self) -> tuple[str, ...]:
        """Names of the released views, sorted; from the ledger, as the releases file may be busy or behind."""
        if not self.ledger_path.exists():
            return self._store.names()
        entries = self._books.entries()
        return tuple(sorted({name for entry in entries if entry.released is not None for name in entry.views}))

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed; connect again")
