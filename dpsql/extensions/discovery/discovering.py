"""The methods of a connection that find privately what a policy leaves open: discoveries and surveys."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from dpsql.common.arguments import flag, maybe, taking, text, whole
from dpsql.common.out_of_memory import guards_calls
from dpsql.driver.connection import Connection
from dpsql.errors import DataError
from dpsql.measure.sources import Holdings
from dpsql.planning.needed_budget import plain
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.privacy.accountant import Request
from dpsql.privacy.analysts import finds_nothing
from dpsql.privacy.universe import MOST_BYTES, Universe

if TYPE_CHECKING:  # imported where they are asked for: a batch needs none of them
    from dpsql.extensions.discovery.coverage import Coverage
    from dpsql.extensions.discovery.discovery import Asked, Discovery, Finder, Prospect
    from dpsql.extensions.discovery.survey import Survey, Surveyor, SurveyPlan


@guards_calls
class Discovering(Connection):
    """The part of a ``Connection`` that finds domains, each at a charge."""

    @taking(
        target=text(),
        max_groups=maybe(whole(1, 10**6)),
        max_bytes=maybe(whole(1, MOST_BYTES)),
        alphabet=maybe(text()),
        bounds=flag(),
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

        Raises DataError where delta or max_groups is missing or where no value could appear, PolicyError for a column
        with a domain, the unit itself, a key, or a policy without delta, BudgetError where the accounts, or the part
        of delta that is kept for this (``dpsql.privacy.reserve``), do not hold it, or for an analyst, as what is found
        is found for everybody; all before any charge.
        """
        said = self._custodian(label)
        if bounds:
            if max_groups is not None or max_bytes is not None or alphabet is not None:
                raise DataError(
                    "max_groups, max_bytes and alphabet are for values; of bounds leave them out, all rows that count "
                    "are used"
                )
            _ = self.policy
            request = Request.of(*map(plain, (epsilon, delta, rho)))
            from dpsql.extensions.discovery.discovered_bounds import BoundsFinder

            maker = BoundsFinder(self._batches, self._domains.declared)
            found, record = maker.find(target, request, fresh=fresh, label=said)
            self._batches.register(record, again=True)
            return found
        universe = _universe(max_bytes, alphabet)
        finder, asked = self._finder(target, (epsilon, delta, rho), max_groups, universe)
        found, record = finder.find(asked, fresh=fresh, label=said)
        self._batches.register(record)
        return found

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
        finder, asked = self._finder(target, (epsilon, delta, rho), max_groups, universe)
        return finder.prospect(asked)

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
        said = self._custodian(label)
        surveyor, request, chance = self._surveyor((epsilon, delta, rho))
        found, record = surveyor.find(request, chance, max_groups, fresh=fresh, label=said)
        self._batches.register(record)
        return found

    @taking(max_groups=whole(1, 10**6))
    def plan_survey(
        self, epsilon: object = None, delta: object = None, rho: object = None, *, max_groups: int = 1
    ) -> SurveyPlan:
        """What ``survey`` would find out, at which charge and with which errors. Free; raises as it does."""
        surveyor, request, chance = self._surveyor((epsilon, delta, rho))
        return surveyor.plan(request, chance, max_groups)

    def plan_coverage(self, epsilon: object = None, delta: object = None, rho: object = None) -> Plan:
        """What ``coverage`` would measure, with its errors, at which charge. Free."""
        from dpsql.extensions.discovery.coverage import Asked, opened

        self._check_open()
        schemas = self.schemas()
        policy = opened(self.policy, schemas)
        request = Request.of(*map(plain, (epsilon, delta, rho)))
        return make_plan(Asked.of(policy, schemas).sql, policy, schemas, self.budget, request, PlanOptions())

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
        or reference. Columns of more than 2,000 values, values with NUL and what ``Asked.refused`` names are left out.
        Raises PolicyError where there is nothing to count, else as ``run``.
        """
        from dpsql.extensions.discovery.coverage import Asked, Coverage, opened
        from dpsql.running.answer_free import Earlier
        from dpsql.running.run import Batches

        said = self._said(label)
        plan = self.plan_coverage(epsilon, delta, rho)
        schemas = self.schemas()
        policy = opened(self.policy, schemas)
        holdings = Holdings(self._holdings.engine, policy)
        batches = Batches(holdings, self._books, Earlier(self._books, policy, holdings.schemas))
        return Coverage.of(Asked.of(policy, schemas), batches.run(plan, fresh=fresh, label=said))

    def _surveyor(self, budget: tuple[object, object, object]) -> tuple[Surveyor, Request, Fraction | None]:
        from dpsql.extensions.discovery.discovered_bounds import BoundsFinder
        from dpsql.extensions.discovery.survey import Surveyor

        self._check_open()
        epsilon, delta, rho = map(plain, budget)
        declared = self._domains.declared
        finder, bounds = self._values(), BoundsFinder(self._batches, declared)
        chance = None if delta is None else Request.of(1, delta).delta
        return Surveyor(self._batches, finder, bounds), Request.of(epsilon, None, rho), chance

    def _custodian(self, label: str | None) -> str:
        """The label of a discovery; BudgetError where it is an analyst's, as what is found is found for everybody."""
        self._check_open()
        said = self._label if label is None else label
        if Path(self.ledger_path).exists() and said in self._books.ledger().analysts():
            raise finds_nothing(said)
        return said

    def _finder(
        self,
        target: str,
        budget: tuple[object, object, object],
        max_groups: int | None,
        universe: Universe | None,
    ) -> tuple[Finder, Asked]:
        from dpsql.extensions.discovery.discovery import Asked

        self._check_open()
        epsilon, delta, rho = map(plain, budget)
        chance = None if delta is None else Request.of(1, delta).delta
        asked = Asked(target, Request.of(epsilon, None, rho), chance, max_groups, universe)
        return self._values(), asked

    def _values(self) -> Finder:
        from dpsql.extensions.discovery.discovery import Finder

        return Finder(self._holdings, self._books, self._domains.declared)


def _universe(max_bytes: int | None, alphabet: str | None) -> Universe | None:
    if max_bytes is None:
        if alphabet is not None:
            raise DataError("alphabet is of texts of at most max_bytes; say how many")
        return None
    return Universe(max_bytes, alphabet)


def planned_with_finding(con: Discovering, sql: str, request: Request, options: PlanOptions) -> Plan | None:
    """The plan of a batch whose groups are found first (``find_first.plan_with_finding``), None for any other."""
    from dpsql.extensions.discovery.find_first import plan_with_finding

    return plan_with_finding(sql, con.policy, con.schemas(), request, con._values(), options)


def groups_found(con: Discovering, plan: Plan, label: str) -> Plan:
    """Finds the groups that ``plan`` waits for, at their charges, and plans its batch again over them."""
    from dpsql.extensions.discovery.find_first import find_all

    found = find_all(plan, con._values(), con._custodian(label), con._batches.register)
    return make_plan(plan.sql, con.policy, con.schemas(), con.budget, found.rest, found.options)
