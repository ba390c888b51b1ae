"""The methods of a connection that find privately what a policy leaves open: discoveries and surveys."""

from __future__ import annotations

import logging
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from dpsql.common.arguments import flag, maybe, taking, text, whole
from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.connection import Connection
from dpsql.errors import BudgetError, DataError
from dpsql.measure.sources import Holdings
from dpsql.planning.needed_budget import plain
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.privacy.accountant import Request
from dpsql.privacy.analysts import finds_nothing
from dpsql.privacy.universe import MOST_BYTES, Universe
from dpsql.running.losses import histograms_of

if TYPE_CHECKING:  # imported where they are asked for: a batch needs none of them
    from dpsql.extensions.discovery.coverage import Coverage
    from dpsql.extensions.discovery.discovery import Discovery, DiscoveryQuery, Finder, Prospect
    from dpsql.extensions.discovery.loss_histograms import LossFinder, MeasuredLosses
    from dpsql.extensions.discovery.survey import Survey, Surveyor, SurveyPlan
    from dpsql.extensions.discovery.unit_limits import Kind, UnitLimit


log = logging.getLogger("dpsql")


@guards_calls
class Discovering(Connection):
    """The part of a ``Connection`` that finds domains, each at a charge."""

    @taking(
        target=text(),
        max_groups=maybe(whole(1, 10**6)),
        max_bytes=maybe(whole(1, MOST_BYTES)),
        alphabet=maybe(text()),
        bounds=flag(),
        unit_sum=flag(),
        unit_rows=flag(),
        unit_groups=flag(),
        per=maybe(text()),
        fresh=flag(),
        label=maybe(text()),
    )
    def discover(
        self,
        target: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        max_groups: int | None = None,
        max_bytes: int | None = None,
        alphabet: str | None = None,
        bounds: bool = False,
        unit_sum: bool = False,
        unit_rows: bool = False,
        unit_groups: bool = False,
        per: str | None = None,
        sum_epsilon: object = None,
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

        ``max_bytes``, instead of delta: values are the texts of at most so many bytes (of the characters in
        ``alphabet``), whoever has them or nobody, so that they are found at epsilon alone, purely
        (``dpsql.privacy.pure_threshold``); a longer text is no value. Few that nobody has may be among them.

        ``bounds``: find bounds of a number or a time instead, for SUM and AVG to clamp to, never the least or the
        largest value: a histogram over a fixed scale (``dpsql.extensions.discovery.discovered_bounds``), at a budget as
        of ``run``.

        ``unit_sum``, ``unit_rows``, ``unit_groups``: find a limit on what one unit has: what it adds to the sum of a
        column or expression, in all or for each value of ``per``; its rows in a table, in all or for each value of
        ``per``; in how many values of a column it has rows. The answer is the noise of SUM or COUNT at ``sum_epsilon``
        (by default at the same budget) and what is cut, for each limit of a scale, and the one of least error
        (``dpsql.extensions.discovery.unit_limits``). Rows in all are those of ``losses``, which costs once.

        Raises DataError where delta or max_groups is missing or where no value could appear, PolicyError for a column
        with a domain, the unit itself, a key, or a policy without delta, BudgetError where the accounts, or the part
        of delta that is kept for this (``dpsql.privacy.reserve``), do not hold it, or for an analyst, as what is found
        is found for everybody; all before any charge.
        """
        custodian = self._custodian(label)
        of_values = max_groups is not None or max_bytes is not None or alphabet is not None
        kinds: dict[Kind, bool] = {"sum": unit_sum, "rows": unit_rows, "groups": unit_groups}
        limits: list[Kind] = [kind for kind, chosen in kinds.items() if chosen]
        if limits:
            if of_values or bounds or len(limits) > 1 or (unit_groups and per is not None):
                raise DataError(
                    "unit_sum, unit_rows and unit_groups find a limit on what one unit has; give one of them, without "
                    "bounds, max_groups, max_bytes and alphabet, and unit_groups without per"
                )
            budgets = (epsilon, delta, rho), sum_epsilon
            return self._unit_limit(limits[0], (target, per), budgets, fresh=fresh, label=custodian)
        if per is not None or sum_epsilon is not None:
            raise DataError("per and sum_epsilon are for limits on one unit; add unit_sum=True, or leave them out")
        if bounds:
            if of_values:
                raise DataError(
                    "max_groups, max_bytes and alphabet are for values; of bounds leave them out, all rows that count "
                    "are used"
                )
            _ = self.policy
            request = Request.of(*map(plain, (epsilon, delta, rho)))
            from dpsql.extensions.discovery.discovered_bounds import BoundsFinder

            maker = BoundsFinder(self._batches, self._domains.declared)
            discovery, record = maker.find(target, request, fresh=fresh, label=custodian)
            self._batches.register(record, again=True)
            return discovery
        universe = _universe(max_bytes, alphabet)
        finder, query = self._finder(target, (epsilon, delta, rho), max_groups, universe)
        discovery, record = finder.find(query, fresh=fresh, label=custodian)
        self._batches.register(record)
        return discovery

    @taking(
        target=text(),
        max_groups=maybe(whole(1, 10**6)),
        max_bytes=maybe(whole(1, MOST_BYTES)),
        alphabet=maybe(text()),
    )
    def plan_discovery(
        self,
        target: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        max_groups: int | None = None,
        max_bytes: int | None = None,
        alphabet: str | None = None,
    ) -> Prospect:
        """What ``discover`` would cost, and from how many units (or rows) on values appear. Free; raises as it does."""
        universe = _universe(max_bytes, alphabet)
        finder, query = self._finder(target, (epsilon, delta, rho), max_groups, universe)
        return finder.prospect(query)

    @taking(max_groups=whole(1, 10**6), fresh=flag(), label=maybe(text()))
    def survey(
        self,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        max_groups: int = 1,
        fresh: bool = False,
        label: str | None = None,
    ) -> Survey:
        """Find a whole policy privately, at one charge: what it declares without a domain, rows, rows of a unit.

        Of each private table its rows and how many one unit has, with what a bound on them leaves out; of each column
        that has no domain yet the values (text, each unit in at most ``max_groups``) or the bounds (numbers, times).
        Every part has an equal share of the charge. ``delta``: as of ``discover``; by default half of what is kept for
        finding groups. Domains count at once, as those of ``discover``; ``.to_toml()`` is the whole proposed policy,
        each line with its error, for the custodian to confirm. Guarantee and proof: ``dpsql.measure.survey``. The same
        survey of the same version of the data is free again, unless ``fresh``. Raises as ``discover``.
        """
        custodian = self._custodian(label)
        surveyor, request, chance = self._surveyor((epsilon, delta, rho))
        survey, record = surveyor.find(request, chance, max_groups, fresh=fresh, label=custodian)
        self._batches.register(record)
        return survey

    @taking(max_groups=whole(1, 10**6))
    def plan_survey(
        self, epsilon: object = None, delta: object = None, rho: object = None, *, max_groups: int = 1
    ) -> SurveyPlan:
        """What ``survey`` would find out, at which charge and with which errors. Free; raises as it does."""
        surveyor, request, chance = self._surveyor((epsilon, delta, rho))
        return surveyor.plan(request, chance, max_groups)

    def plan_coverage(self, epsilon: object = None, delta: object = None, rho: object = None) -> Plan:
        """What ``coverage`` would measure, with its errors, at which charge. Free."""
        from dpsql.extensions.discovery.coverage import Checks, opened

        self._check_open()
        schemas = self.schemas()
        policy = opened(self.policy, schemas)
        request = Request.of(*map(plain, (epsilon, delta, rho)))
        return make_plan(Checks.of(policy, schemas).sql, policy, schemas, self.budget, request, PlanOptions())

    @taking(fresh=flag(), label=maybe(text()))
    def coverage(
        self,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        fresh: bool = False,
        label: str | None = None,
    ) -> Coverage:
        """Count privately how many rows the domain of each column misses, declared or found, and how many units, or
        rows, break each declared key and reference (``Coverage``).

        A charged release of one result a table, as visits_outside, with a number for each column, and one for each key
        or reference. Columns of more than 2,000 values, values with NUL and what ``Checks.refused`` names are left out.
        Raises PolicyError where there is nothing to count, else as ``run``.
        """
        from dpsql.extensions.discovery.coverage import Checks, Coverage, opened
        from dpsql.running.answer_free import Earlier
        from dpsql.running.run import Batches

        said = self._checked_label(label)
        plan = self.plan_coverage(epsilon, delta, rho)
        schemas = self.schemas()
        policy = opened(self.policy, schemas)
        holdings = Holdings(self._holdings.engine, policy)
        batches = Batches(holdings, self._books, Earlier(self._books, policy, holdings.schemas))
        return Coverage.of(Checks.of(policy, schemas), batches.run(plan, fresh=fresh, label=said))

    @taking(table=text(), fresh=flag(), label=maybe(text()))
    def losses(
        self,
        table: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        fresh: bool = False,
        label: str | None = None,
    ) -> MeasuredLosses:
        """Measure privately how many rows of a table the limits on the rows of a unit cut, for every such limit.

        A charged release of one noisy histogram of units by their number of rows, and one more for each ``at_most``
        (``dpsql.extensions.discovery.loss_histograms``), up to the policy's ``largest_unit``. It stays in the ledger:
        plans, results and files say from then on what was cut, and the same call is free for this version of the data,
        as is one without a budget or with less of it, unless ``fresh``. Raises PolicyError where ``largest_unit`` is
        missing or no limit cuts rows, DataError where no budget is given and nothing was measured, else as ``run``.
        """
        finder, charged_to = self._loss_finder(), self._custodian(label)
        histograms, cost = finder.histograms(table), 0.0
        if epsilon is not None or rho is not None or fresh or not finder.has(histograms):
            request = Request.of(*map(plain, (epsilon, delta, rho)))
            cost = finder.buy(histograms, request, fresh=fresh, label=charged_to)
        return finder.losses(self.policy.table(table), cost)

    @taking(table=maybe(text()))
    def plan_losses(
        self, epsilon: object = None, delta: object = None, rho: object = None, *, table: str | None = None
    ) -> Plan:
        """What ``losses`` would measure of a table, or of all, at which charge. Free; raises as it does."""
        finder = self._loss_finder()
        return finder.plan(finder.histograms(table), Request.of(*map(plain, (epsilon, delta, rho))))

    def _buy_losses(self, *budget: object, fresh: bool, label: str) -> None:
        """Measure what limits cut of all tables of which that can be measured, at one charge."""
        finder = self._loss_finder()
        finder.buy(finder.histograms(), Request.of(*map(plain, budget)), fresh=fresh, label=label)

    def _loss_finder(self) -> LossFinder:
        from dpsql.extensions.discovery.loss_histograms import LossFinder

        self._check_open()
        return LossFinder(self._batches, self.policy, self._ledger_losses)

    def _surveyor(self, budget: tuple[object, object, object]) -> tuple[Surveyor, Request, Fraction | None]:
        from dpsql.extensions.discovery.discovered_bounds import BoundsFinder
        from dpsql.extensions.discovery.survey import Surveyor

        self._check_open()
        epsilon, delta, rho = map(plain, budget)
        declared = self._domains.declared
        finder, bounds = self._values(), BoundsFinder(self._batches, declared)
        chance = None if delta is None else Request.of(1, delta).delta
        return Surveyor(self._batches, finder, bounds), Request.of(epsilon, None, rho), chance

    def _unit_limit(
        self,
        kind: Kind,
        of: tuple[str, str | None],
        budgets: tuple[tuple[object, ...], object],
        *,
        fresh: bool,
        label: str,
    ) -> UnitLimit:
        from dpsql.extensions.discovery.unit_limits import LimitQuestion, rows_of

        schemas, (budget, sum_epsilon) = self.schemas(), budgets
        question = LimitQuestion.of(kind, self.policy, schemas, *of)
        answer = Request.of(*map(plain, budget if sum_epsilon is None else (sum_epsilon,)))
        if question.bound is None:
            table = question.table.name
            losses = self.losses(table, *budget, fresh=fresh, label=label)
            record, name = self._loss_finder().released(table, losses.cut.release)
            noise, rows = question.noise(schemas, self.budget, answer), rows_of(losses.histograms[table, "rows"][0])
            return question.limit(rows, noise, (record.release_id, losses.cost, record.guarantee), name)
        noise = question.noise(schemas, self.budget, answer)
        release = self.run(question.sql, *budget, fresh=fresh, label=label, options=PlanOptions(earlier=False))
        of_release = release.id, release.cost, release.guarantee
        return question.limit(release.only.fetchall(), noise, of_release, question.name)

    def _custodian(self, label: str | None) -> str:
        """The label of a discovery; BudgetError where it is an analyst's, as what is found is found for everybody."""
        self._check_open()
        custodian = self._label if label is None else label
        if Path(self.ledger_path).exists() and custodian in self._books.ledger().analysts():
            raise finds_nothing(custodian)
        return custodian

    def _finder(
        self,
        target: str,
        budget: tuple[object, object, object],
        max_groups: int | None,
        universe: Universe | None,
    ) -> tuple[Finder, DiscoveryQuery]:
        from dpsql.extensions.discovery.discovery import DiscoveryQuery

        self._check_open()
        epsilon, delta, rho = map(plain, budget)
        chance = None if delta is None else Request.of(1, delta).delta
        query = DiscoveryQuery(target, Request.of(epsilon, None, rho), chance, max_groups, universe)
        return self._values(), query

    def _values(self) -> Finder:
        from dpsql.extensions.discovery.discovery import Finder

        return Finder(self._holdings, self._books, self._domains.declared)


def _universe(max_bytes: int | None, alphabet: str | None) -> Universe | None:
    if max_bytes is None:
        if alphabet is not None:
            raise DataError("alphabet is of texts of at most max_bytes; say how many")
        return None
    return Universe(max_bytes, alphabet)


def losses_measured(con: Discovering) -> None:
    """Measures what limits cut, once for a version of the data, for what the policy's [budget] losses says."""
    finder, amount = con._loss_finder(), con.policy.budget.losses
    if histograms_of(con.policy) and not finder.has(finder.histograms()):
        pure = con.policy.budget.rho is None
        try:
            con._buy_losses(amount if pure else None, None, None if pure else amount, fresh=False, label="")
        except BudgetError as error:
            log.warning("what limits cut was not measured, though the policy has losses: %s", error)


def planned_with_finding(con: Discovering, sql: str, request: Request, options: PlanOptions) -> Plan | None:
    """The plan of a batch whose groups are found first (``find_first.plan_with_finding``), None for any other."""
    from dpsql.extensions.discovery.find_first import plan_with_finding

    return plan_with_finding(sql, con.policy, con.schemas(), request, con._values(), options)


def plan_over_groups(con: Discovering, plan: Plan, label: str) -> Plan:
    """Finds the groups that ``plan`` waits for, at their charges, and plans its batch again over them."""
    from dpsql.extensions.discovery.find_first import find_all

    findings = find_all(plan, con._values(), con._custodian(label), con._batches.register)
    return make_plan(plan.sql, con.policy, con.schemas(), con.budget, findings.rest, findings.options)
