"""Histograms of units by their number of rows, bought to know what the limits of a policy cut.

One batch over rows of units, for each limit of each table one statement: a unit is in one bucket of each of h
histograms, whatever rows it has, and moves its counts by 1 there, so that what is measured moves by h in L1 norm and by
h^(1/2) in L2 norm (``dpsql.sql.resolve.per_unit``; ``dpsql.measure`` works it out again before the charge). All are
planned together and each bucket is measured by itself, so that the noise of different buckets is independent, which
``dpsql.reconstruct.unit_histogram`` rests on. Rows beyond ``largest_unit`` are in the last bucket; rows without a unit
are in none. What is released stays in the ledger as a release of the kind ``dpsql.running.losses.KIND``.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from dpsql.common.arrays import Values
from dpsql.common.quoting import identifier
from dpsql.errors import InternalError, PolicyError, SQLError, one_line
from dpsql.measure import Job, measure
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.planning.prepare import understood_of
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.limits import limits_in
from dpsql.policy.units import units_in
from dpsql.policy.values import fold
from dpsql.privacy.accountant import Request, charge_for
from dpsql.reconstruct.unit_histogram import ends_of
from dpsql.release import ReleaseRecord, ReleaseTable, Result
from dpsql.release.claims import claimed
from dpsql.release.cut import Cut
from dpsql.release.payload import Measurement, pack, record_of
from dpsql.running.jobs import job_at_once
from dpsql.running.losses import KIND, LedgerLosses, Limit, Measured, cut_by, is_measured, limits_of
from dpsql.running.minimum import counted
from dpsql.running.result_tables import release_tables
from dpsql.running.run import Batches

Histograms = list[tuple[TablePolicy, Limit]]
"""The histograms of a release, in its order: of which table, for which limit."""
_FIGURES = ("units", "units_stderr", "units_low", "units_high")


@dataclass(frozen=True, repr=False)
class MeasuredLosses:
    """What limits cut of one table, by the most precise histograms of the ledger; ``cost`` is what this call was
    charged, 0 where the ledger had them. ``cut`` is under the limits of the policy, ``at`` under any other.
    """

    policy: TablePolicy
    cost: float
    cut: Cut
    histograms: Measured

    def at(self, max_rows_per_unit: int) -> Cut:
        """What ``max_rows_per_unit`` alone cuts, were it another. Free."""
        limit = Limit(f"max_rows_per_unit = {max_rows_per_unit}", "rows", max_rows_per_unit)
        return cut_by(self.policy.name, [limit], self.histograms)

    @property
    def result(self) -> Result:
        """The loss under each limit at which a bucket ends, a row each."""
        cuts = [(end, self.at(end)) for end in ends_of(self.policy.largest_unit or 1)]
        names = ("rows", "rows_stderr", "rows_low", "rows_high", "units", "units_low", "units_high", "share")
        columns = [(name, "DOUBLE", [getattr(cut, name) for _, cut in cuts]) for name in names]
        return Result.from_columns([("max_rows_per_unit", "INTEGER", [end for end, _ in cuts]), *columns])

    def __repr__(self) -> str:
        return f"{self.cut}\n{self.result}"


@dataclass(eq=False)
class LossFinder:
    """Measures what limits cut of the tables of one connection."""

    batches: Batches
    policy: Policy
    ledger: LedgerLosses

    def histograms(self, name: str | None = None) -> Histograms:
        """What is measured of a table, or of all that can be measured.

        PolicyError with the place where a table that is named cannot be measured, or none can. An ``at_most`` that no
        batch can count by is left out.
        """
        tables = self.policy.tables.values() if name is None else [self.policy.table(name)]
        found, refused = Histograms(), list[str]()
        for table in tables:
            if table.not_counted:
                refused += [f"{table.where}: {table.not_counted}"] * (name is not None)
            elif table.largest_unit is None:
                refused.append(
                    f"{table.key('largest_unit')} is missing: the histogram that says what limits cut ends there; "
                    f"write the most rows that one {table.unit} can have, as far as that is public"
                )
            else:
                limits = [(limit, self._refusal(table, limit)) for limit in limits_of(table)]
                found += [(table, limit) for limit, refusal in limits if not refusal]
                refused += [f"{table.key('at_most')}: {refusal}" for _, refusal in limits if refusal]
        if not found:
            raise PolicyError(*(refused or ["no table of the policy has a limit that cuts rows"]))
        return found

    def _refusal(self, table: TablePolicy, limit: Limit) -> str:
        try:
            understood_of(_statement(table, limit, 0), _open(self.policy), self.batches.holdings.schemas())
        except SQLError as error:
            return one_line(str(error).partition(" (line ")[0])
        return ""

    def plan(self, histograms: Histograms, request: Request) -> Plan:
        """The plan of the histograms. Raises as ``make_plan``."""
        sql = ";\n".join(_statement(table, limit, number) for number, (table, limit) in enumerate(histograms))
        schemas, state = self.batches.holdings.schemas(), self.batches.books.state()
        plan = make_plan(sql, _open(self.policy), schemas, state, request, PlanOptions(method="identity"))
        if not np.allclose(np.square(np.asarray(plan.errors)), plan.noise.variance, rtol=1e-6):
            raise InternalError("buckets of these histograms are not measured one by one; report the policy")
        return plan

    def has(self, histograms: Histograms, request: Request | None = None) -> bool:
        """Whether the ledger has all of them, with no more noise than a request would buy, if one is given."""
        measured = self.ledger.histograms(self.policy)
        if any((table.name, limit.of) not in measured for table, limit in histograms):
            return False
        if request is None:
            return True
        labels = [self.policy.labels[table.name] for table, _ in histograms]
        together = max(labels.count(label) for label in labels)  # in so many of them a unit is
        laws = [charge.calibrate(together) for charge in charge_for(request, self.batches.books.budget)]
        most = min(law.variance for law in laws) * (1 + 1e-9)
        return all(measured[table.name, limit.of][0].noise.variance <= most for table, limit in histograms)

    def buy(self, histograms: Histograms, request: Request, *, fresh: bool, label: str) -> float:
        """Charge, measure and record the histograms, unless the ledger has them with as little noise; what it cost.

        Of all who ask at the same moment one is charged.
        """
        books = self.batches.books
        with claimed(books.path, KIND):
            ledger = books.ledger()
            books.check_releases(ledger)
            if not fresh and self.has(histograms, request):
                return 0.0
            plan = self.plan(histograms, request)
            books.state().check(plan.charge)
            taken = {fold(view) for entry in books.entries() if entry.released is not None for view in entry.views}
            job = self._job(plan, histograms, _names(histograms, taken), label)

            def payload(release: int, y: list[int]) -> bytes:
                tables, counts = _tables(histograms, job.description["names"], plan, y)
                observed = Measurement(counts, job.noise.kind, job.noise.parameter, 1, plan.strategy.measured.digest())
                return pack(_record(release, plan, tables, label), observed)

            release, _ = measure(job, self.batches.holdings.engine, ledger, payload)
        self.batches.register(record_of(ledger.release(release).payload or b""))
        return plan.charge.amount

    def losses(self, table: TablePolicy, cost: float) -> MeasuredLosses:
        """What the ledger says of one table by now."""
        measured = self.ledger.histograms(self.policy)
        limits = [limit for limit in limits_of(table) if is_measured(table.name, [limit], measured)]
        return MeasuredLosses(table, cost, cut_by(table.name, limits, measured), measured)

    def released(self, table: str, release: int) -> tuple[ReleaseRecord, str]:
        """The record of a release of histograms, and the view of that of all rows of a table's units."""
        entry = next(entry for entry in self.batches.books.entries() if entry.id == release)
        record = record_of(self.batches.books.ledger().release(release).payload or b"")
        listed = [(one["table"], one["of"]) for one in entry.description["histograms"]]
        return record, str(entry.description["names"][listed.index((table, "rows"))])

    def _job(self, plan: Plan, histograms: Histograms, names: list[str], label: str) -> Job:
        read = list(dict.fromkeys(table.name for table, _ in histograms))
        listed = [{"table": table.name, "of": limit.of, "largest": table.largest_unit} for table, limit in histograms]
        description = {
            **{"kind": KIND, "histograms": listed, "names": names, "tables": read, "noise": plan.charge.noise},
            "units": units_in(self.policy.tables, read),
            "limits": limits_in(self.policy.tables, read),
        }
        return job_at_once(plan, self.batches.holdings.sources, description, label)


def _open(policy: Policy) -> Policy:
    """The policy under which a unit has all of its rows, and its column may be read."""
    tables = {}
    for name, table in policy.tables.items():
        shown = replace(table, minimum=None, at_most=(), largest_unit=None)  # ``_tables`` hides small counts
        if not table.not_counted and table.largest_unit is not None:
            declared = fold(table.unit) in map(fold, table.columns)
            columns = {**table.columns, **({} if declared else {table.unit: ColumnPolicy(table.unit)})}
            shown = replace(shown, max_rows_per_unit=table.largest_unit + 1, columns=columns)
        tables[name] = shown
    return replace(policy, tables=tables, budget=replace(policy.budget, losses=None))


def _statement(table: TablePolicy, limit: Limit, number: int) -> str:
    """Units by their number of rows, or by what a limit would cut of them at least or at most, bucket 0 for none."""
    n, c, m = (f"{name}{number}" for name in "ncm")  # names for each histogram, so that it is a source for itself
    ends, unit = ends_of(table.largest_unit or 1), identifier(table.unit)
    columns, value, none = f"COUNT(*) AS {n}", n, ""
    if limit.bound is not None:
        per, most = limit.bound.per, limit.bound.groups
        columns += f", COUNT({per}) AS {c}, COUNT(DISTINCT {per}) AS {m}"  # rows without a value are one value more
        value = f"CASE WHEN {n} > {c} THEN {n} - {m} - 1 ELSE {n} - {m} END" if most is None else f"{n} - {most}"
        few = f"({value}) <= 0" if most is None else f"{m} < {most} OR ({m} = {most} AND {n} = {c})"
        none = f"WHEN {few} THEN 0 "
    cases = " ".join(f"WHEN ({value}) <= {end} THEN {at}" for at, end in enumerate(ends[:-1], 1))
    where = ".".join(identifier(part) for part in table.name.split("."))
    inner = f"SELECT {unit}, {columns} FROM {where} WHERE {unit} IS NOT NULL GROUP BY {unit}"  # noqa: S608
    bucket = f"CASE {none}{cases} ELSE {len(ends)} END AS bucket"
    return f"SELECT {bucket}, COUNT(*) AS units FROM ({inner}) GROUP BY 1"  # noqa: S608


def _names(histograms: Histograms, taken: set[str]) -> list[str]:
    """Names of views that no other result has: visits_rows_per_unit, visits_rows_per_unit_2, ..."""
    names = list[str]()
    for table, _ in histograms:
        plain = f"{table.name}_rows_per_unit".replace(".", "_")
        candidates = (plain, *(f"{plain}_{number}" for number in range(2, len(taken) + len(histograms) + 2)))
        names.append(next(name for name in candidates if fold(name) not in {*taken, *map(fold, names)}))
    return names


def _tables(
    histograms: Histograms, names: list[str], plan: Plan, y: list[int]
) -> tuple[tuple[ReleaseTable, ...], tuple[int, ...]]:
    """The histograms as tables, whose small counts a ``minimum`` hides, and all noisy counts."""
    tables, counts = [], list[int]()
    for (table, limit), name, result in zip(histograms, names, release_tables(plan, y), strict=True):
        columns = {column: list(values) for column, _, values in cast("ReleaseTable", result).columns}
        ends = ends_of(table.largest_unit or 1)
        places = [columns["bucket"].index(bucket) for bucket in range(1, len(ends) + 1)]
        counts += [round(columns["units"][place]) for place in places]
        shown: list[tuple[str, str, Values]] = [
            ("counted", "VARCHAR", [limit.of] * len(ends)),
            ("rows_from", "INTEGER", [1, *(end + 1 for end in ends[:-1])]),
            ("rows_to", "INTEGER", list(ends)),
            *((column, "DOUBLE", [columns[column][place] for place in places]) for column in _FIGURES),
        ]
        tables.append(ReleaseTable(name, True, counted("units", shown, table.minimum)))
    return tuple(tables), tuple(counts)


def _record(release: int, plan: Plan, tables: tuple[ReleaseTable, ...], label: str) -> ReleaseRecord:
    charge = plan.charge
    return ReleaseRecord(
        *(release, dt.datetime.now(dt.UTC), tables, label or None),
        *(charge.guarantee, charge.account, charge.amount, charge.noise),
        strategy="units by their rows, each bucket by itself",
        queries=sum(len(table) for table in tables),
        sql="-- units by what limits would cut of their rows",
        unit=plan.unit,
    )
