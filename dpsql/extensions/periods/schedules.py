"""Standing batches of a connection: added once, released of every period that is over, once each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.common.arguments import either, maybe, taking, text, whole
from dpsql.common.interrupted_calls import guards_calls
from dpsql.errors import DataError, Error, IntegrityError, OperationalError, PolicyError, SQLError, one_line
from dpsql.extensions.periods.one_period import check_no_day, of_days
from dpsql.extensions.periods.over_time import (
    LONGEST,
    errors_over_time,
    over_of,
    plan_of_period,
    plan_over_time,
    stored_over_time,
    with_horizon,
)
from dpsql.planning.last_plans import LastPlans
from dpsql.planning.needed_budget import plain
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.periods import Periods
from dpsql.privacy.accountant import Request
from dpsql.privacy.amounts import show
from dpsql.privacy.entries import Entry
from dpsql.privacy.schedules import Schedule, named
from dpsql.release.books import Books
from dpsql.release.series import LATEST
from dpsql.running.result_tables import release_tables
from dpsql.running.run import Batches, Turn, stored_alone

MOST_AHEAD = 400
"""Days by which the clock may be ahead of all that the ledger has seen, before it is asked for by name."""


@dataclass(frozen=True)
class Due:
    """One period of a standing batch that was due: its release, or why there is none. ``new``: released just now."""

    schedule: str
    period: str
    release: int | None
    new: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Progress:
    """How many periods of a standing batch are released, are due, and were charged and cut off before their answer."""

    released: int
    due: int
    cut_off: int

    def as_dict(self) -> dict[str, int]:
        return dict(self.__dict__)


@guards_calls
@dataclass(frozen=True, eq=False)
class Schedules:
    """The standing batches of a connection's ledger (``dpsql.privacy.schedules``). ``policy``: as it is by now."""

    policy: Policy
    batches: Batches
    books: Books
    plans: LastPlans

    @taking(
        sql=text(),
        name=text(),
        every=text(),
        table=maybe(text()),
        label=text(),
        horizon=maybe(either(whole(1, 10**6), text())),
    )
    def add(
        self,
        sql: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        name: str,
        every: str = "period",
        table: str | None = None,
        first: dt.date | str | None = None,
        label: str = "",
        horizon: int | str | None = None,
        windows: Sequence[int] = (),
    ) -> Schedule:
        """Release a batch of each period of a table once it is over, at this budget for each. Spends nothing now.

        The batch reads the table as if it had one period's rows alone, so it needs no condition on the day; its results
        are named. ``table``: needed where the policy has several with periods. ``first``: the earliest period to
        release, by default the first of all. The plan of one period is tried here, so that what would be refused every
        night is refused now. ``horizon``: release so many periods, each measured together with the earlier ones so that
        totals so far, and sums over the last ``windows`` periods, have the least error
        (``dpsql.extensions.periods.over_time``); of tables whose unit is the row. "endless": of every period, each
        measured together with as many before it as the longest window has. Raises PolicyError, SQLError, DataError,
        IntegrityError where a name is taken.
        """
        if every != "period":
            raise DataError(
                f"a batch stands for every period of a table; write every='period', not {one_line(every)[:40]!r}"
            )
        declared = self._table(table)
        periods = _periods(declared)
        begin = self._first(periods, first)
        request = Request.of(*map(plain, (epsilon, delta, rho)))
        over = None if horizon is None else self._over(declared, horizon, windows)
        plan = self._plan(sql, declared, begin, request, whenever=True, gaussian=over is not None)
        if plan.reads is None or plan.reads.read != (periods.start(begin).isoformat(),):
            raise SQLError(
                f"the batch counts more than one period's rows of {declared.name}, as one that reads several private "
                "tables does; a standing batch reads that table alone"
            )
        views = tuple(query.name for query in plan.queries)
        unnamed = [query.name for query in plan.queries if not query.named]
        if unnamed:
            raise SQLError(
                f"{unnamed[0]} has no name by which its periods could be found; write CREATE VIEW name AS SELECT ..."
            )
        self._check_new(views)
        for result in release_tables(plan, [0] * plan.strategy.shape[0], rehearsal=True):
            if result.listed and "period" in (column[0].lower() for column in result.columns):
                raise SQLError(f"{result.name} has a column called period, as the view of all periods has; rename it")
        made = Schedule(
            name,
            sql,
            declared.name,
            periods.start(begin).isoformat(),
            views,
            epsilon=None if request.epsilon is None else show(request.epsilon),
            delta=None if request.delta is None else show(request.delta),
            rho=None if request.rho is None else show(request.rho),
            label=label,
        )
        if over is not None:
            check_no_day(sql, declared)
            made = with_horizon(made, *over, plan, periods)
        self.books.ledger().declare_schedule(made)
        return made

    def standing(self) -> list[Schedule]:
        """The standing batches that were not removed; none where there is no ledger."""
        if not self.books.path.exists():
            return []
        return [one for one in self.books.ledger().schedules() if not one.removed]

    def progress(self, one: Schedule) -> Progress:
        """How far a standing batch is. Free."""
        mine = [entry for entry in self.books.state().charges if entry.description.get("schedule") == one.name]
        released = sum(entry.released is not None for entry in mine)
        periods = _periods(self._table(one.table))
        over = max(0, self._stop(one, periods) - (periods.named(one.first) or 0))
        return Progress(released, max(0, over - released), len(mine) - released)

    def errors(self, one: Schedule) -> list[tuple[int, float, float]]:
        """What a horizon gains: (window, error, error over the horizon) of sums over as many periods, the longest all.

        Root mean squared standard errors of the batch's numbers, over all periods after which the sum is asked: first
        of releases of each period alone, at the same budget. Free. Nothing of a schedule without a horizon.
        """
        if not one.kernel:
            return []
        declared, request = self._table(one.table), Request.of(one.epsilon, one.delta, one.rho)
        number = _periods(declared).named(one.first) or 0
        plan, alone = (
            self._plan(one.sql, declared, number, request, whenever=True, gaussian=gaussian)
            for gaussian in (True, False)
        )
        return errors_over_time(one, plan, alone)

    @taking(name=text())
    def remove(self, name: str) -> Schedule:
        """Release nothing more of a standing batch; what it released stays. Raises ProgrammingError."""
        held = named(self.standing(), name)
        self.books.ledger().declare_schedule(replace(held, removed=True))
        return held

    def release_due(self, progress: Callable[[str], None] | None = None) -> list[Due]:
        """Release every standing batch of every period that is closed by now and not released yet, oldest first.

        Safe to call at any time, from several processes and machines at once, and again after any crash: each period is
        charged and released once (``dpsql.privacy.schedules``). What one period is refused does not keep the next from
        being released; it is in ``failure``, and is tried again at the next call. Raises OperationalError where the
        clock is far ahead of the ledger.
        """
        found = list[Due]()
        standing = self.standing()
        if standing and self.policy.today is None:
            self._check_clock()
        # Read once, whatever there was before: who is charged meanwhile is seen by ``once``.
        charged = {entry.charge_id: entry for entry in self.books.state().charges} if standing else {}
        for one in standing:
            failure = ""
            try:
                declared = self._table(one.table)
                periods = _periods(declared)
                begin = periods.named(one.first)
                if begin is None:
                    raise PolicyError(
                        f"{declared.key('periods')} has no period that begins on {one.first}, with which the schedule "
                        f"{one.name} began; put the periods back"
                    )
            except Error as error:
                failure = str(error)
            if failure:
                found.append(Due(one.name, one.first, None, failure=failure))
                continue
            for number in range(begin or 0, self._stop(one, periods)):
                found.append(self._released(one, declared, periods, number, charged, progress))
        return found

    def _released(
        self,
        one: Schedule,
        declared: TablePolicy,
        periods: Periods,
        number: int,
        charged: Mapping[str, Entry],
        progress: Callable[[str], None] | None,
    ) -> Due:
        period = periods.start(number).isoformat()
        charge_id, failure = one.charge_id(period), ""
        known = charged.get(charge_id)
        if known is not None and known.released is not None:
            return Due(one.name, period, known.id)
        try:
            if progress is not None:
                progress(f"{one.name} of {period}")
            self._check_names(one)
            request = Request.of(one.epsilon, one.delta, one.rho)
            plan = self._plan(one.sql, declared, number, request, gaussian=bool(one.kernel))
            turn = Turn(charge_id, one.name, period, stored=stored_over_time if one.kernel else stored_alone)
            if one.kernel:
                plan, turn = self._turn(one, periods, number, plan, turn)
            release = self.batches.once(plan, turn, one.label)
            return Due(one.name, period, release, new=True)
        except Error as error:
            failure = str(error)
        return Due(one.name, period, None, failure=failure)

    def _stop(self, one: Schedule, periods: Periods) -> int:
        """How far a schedule goes by now: the numbers of periods below."""
        closed = periods.closed(self.policy.day)
        return min(closed, (periods.named(one.first) or 0) + len(one.factors)) if one.factors else closed

    def _over(
        self, declared: TablePolicy, horizon: int | str, windows: Sequence[int]
    ) -> tuple[int | None, tuple[int, ...]]:
        """The horizon, None for one without an end, and its windows, checked."""
        if isinstance(horizon, str) and horizon != "endless":
            raise DataError(f"horizon={horizon[:40]!r} is no number of periods; write one, or horizon='endless'")
        endless, most = isinstance(horizon, str), LONGEST if isinstance(horizon, str) else horizon
        if declared.unit != "row":
            raise PolicyError(
                f"{declared.key('unit')} is a column, and a unit with rows in several periods would move one "
                'measurement of a horizon by all of them; a horizon needs unit = "row"'
            )
        if isinstance(windows, str) or not all(
            isinstance(length, int) and not isinstance(length, bool) and 1 <= length <= most for length in windows
        ):
            raise DataError(f"windows are numbers of periods from 1 to the horizon's {most:,}, such as windows=[12]")
        if endless and not windows:
            raise DataError(
                "an endless horizon has windows, of whose longest a release reads the periods: windows=[12]"
            )
        return None if isinstance(horizon, str) else horizon, tuple(windows)

    def _turn(self, one: Schedule, periods: Periods, number: int, plan: Plan, turn: Turn) -> tuple[Plan, Turn]:
        """The plan and turn of a period of a horizon, which rest on earlier ones. OperationalError without these."""
        before, over = list[Entry](), over_of(one, periods, number, plan)
        charged = {entry.charge_id: entry for entry in self.books.state().charges}
        for place, charge_id in enumerate(over.paid):
            known = charged.get(charge_id)
            if known is None or known.released is None:
                raise OperationalError(
                    f"{one.name} measures each period together with all before, and "
                    f"{periods.start(over.first + place)} is not released: see to what refuses it first (nothing was "
                    "charged)"
                )
            before.append(known)
        releases, charges = [entry.id for entry in before], [entry.charge for entry in before]
        found = plan_over_time(plan, one, releases, charges, self.batches.past.measurement)
        return found, replace(turn, over=over)

    def _check_names(self, one: Schedule) -> None:
        """IntegrityError where a result of another batch took a name of the schedule's meanwhile."""
        wanted = {view.lower() for view in one.views}
        for entry in self.books.entries():
            if entry.released is not None and entry.description.get("schedule") is None:
                taken = [view for view in entry.views if view.lower() in wanted]
                if taken:
                    raise IntegrityError(
                        f"release {entry.id} shows another result as {taken[0]}; rename or drop that one first "
                        "(nothing was charged)"
                    )

    def _plan(
        self,
        sql: str,
        declared: TablePolicy,
        number: int,
        request: Request,
        *,
        whenever: bool = False,
        gaussian: bool = False,
    ) -> Plan:
        """The plan of one period's batch; ``whenever``: whether or not the period is over."""
        periods = _periods(declared)
        written = of_days(sql, declared, periods.start(number), periods.start(number + 1))
        policy = replace(self.policy, today=dt.date.max) if whenever else self.policy
        held = self.batches.holdings.schemas(), self.books.state(), request
        if gaussian:
            return plan_of_period(written, policy, *held, self.plans)
        return self.plans.plan(written, policy, *held, PlanOptions(earlier=False))

    def _table(self, name: str | None) -> TablePolicy:
        growing = [table for table in self.policy.tables.values() if table.periods is not None]
        if name is not None:
            found = self.policy.table(name)
            if found.periods is None:
                raise PolicyError(f"{found.key('periods')} is missing; a standing batch is released by period")
            return found
        if len(growing) != 1:
            raise PolicyError(
                "no table of the policy has periods; declare them"
                if not growing
                else "several tables have periods; name one"
            )
        return growing[0]

    def _first(self, periods: Periods, first: dt.date | str | None) -> int:
        if first is None:
            return 0
        failure = ""
        try:
            day = first if isinstance(first, dt.date) else dt.date.fromisoformat(first)
            number = periods.number(day)
            if number is not None:
                return number
            failure = f"the first period begins on {periods.first}"
        except (TypeError, ValueError):
            failure = "write a day such as 2024-01-01"
        raise DataError(f"first={str(first)[:40]!r} lies in no period; {failure}")

    def _check_new(self, views: Sequence[str]) -> None:
        """IntegrityError where a release shows a result by one of the names that the schedule's would have."""
        shown = {view.lower(): e.id for e in self.books.entries() if e.released is not None for view in e.views}
        for name in (name for view in views for name in (view, f"{view}{LATEST}")):
            if name.lower() in shown:
                raise IntegrityError(
                    f"release {shown[name.lower()]} shows another result as {name}, and all periods of a standing "
                    "batch need a name of their own, so that none is charged again unseen: choose another name"
                )

    def _check_clock(self) -> None:
        """OperationalError where the machine's clock says a day that nothing in the ledger comes near."""
        seen = dt.date.fromisoformat(self.books.ledger().last_written()[:10])
        today = self.policy.day
        if (today - seen).days > MOST_AHEAD:
            raise OperationalError(
                f"the clock says {today}, {(today - seen).days} days after all that the ledger has seen; if it is "
                f"right, say so with --today {today} (nothing was charged)"
            )


def _periods(declared: TablePolicy) -> Periods:
    assert declared.periods is not None  # noqa: S101 - its callers asked
    return declared.periods
