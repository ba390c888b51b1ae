"""A whole policy proposed from the data, at one charge: domains, bounds, rows, and rows of one unit.

What is asked is public: of each table its rows and the rows of each unit, of each declared column without a domain its
values (text) or its bounds (numbers and times). Every part gets an equal share of the charge, and its error is known
before (``dpsql.privacy.finding.shared``, ``dpsql.measure.survey``). What comes out is post-processing, for the
custodian to confirm.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from dpsql.common.arrays import Json
from dpsql.errors import PolicyError, listed
from dpsql.extensions.discovery.discovered_bounds import BoundsFinder, Scale, bounds_of, bounds_table, scale_of
from dpsql.extensions.discovery.discovery import (
    Finder,
    Prospect,
    about,
    check_reach,
    earlier_release,
    names_taken,
    reserved,
    target_of,
    type_of,
    unit_word,
    values_table,
    view_name,
)
from dpsql.extensions.discovery.row_counts import RowCounts, rows_plan, rows_table
from dpsql.measure import measure
from dpsql.measure.discovery import DiscoveryJob
from dpsql.measure.job import Job
from dpsql.measure.survey import Observed, SurveyJob
from dpsql.planning.plan import Plan
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.limits import limits_in
from dpsql.policy.text import Remark, policy_text
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.units import units_in
from dpsql.policy.values import fold
from dpsql.privacy.accountant import Request
from dpsql.privacy.charge import Charge
from dpsql.privacy.finding import Share, Way, shared
from dpsql.release import ReleaseRecord, ReleaseTable, check_name
from dpsql.release.claims import claimed
from dpsql.release.payload import Measurement, pack
from dpsql.running.found_domains import KIND, with_domain
from dpsql.running.jobs import job_at_once
from dpsql.running.result_tables import release_tables
from dpsql.running.run import Batches

_Target: TypeAlias = "tuple[TablePolicy, ColumnPolicy | None, str]"


@dataclass(frozen=True)
class Part:
    """One thing that a survey finds out, before anything is spent: rows of a table, or bounds or values of a column.

    ``stderr`` is that of one noisy count. ``plan`` of a batch, with the ``scale`` of bounds; ``prospect`` of values.
    """

    table: str
    column: str | None
    unit: str
    stderr: float
    plan: Plan | None = field(default=None, repr=False)
    scale: Scale | None = field(default=None, repr=False)
    minimum: int | None = field(default=None, repr=False)
    prospect: Prospect | None = field(default=None, repr=False)

    def __str__(self) -> str:
        error = f"standard error of a count {self.stderr:.4g}"
        if self.prospect is not None:
            each = "" if self.unit == "row" else f"{self.unit}s in at most {self.prospect.groups} each, "
            seen = f"those of more than about {about(self.prospect.threshold)} {self.unit}s can appear"
            return f"{self.table}.{self.column}: values, {each}{error}; {seen}"
        if self.column is not None:
            of = "rows" if self.unit == "row" else f"one row of each {self.unit}"
            return f"{self.table}.{self.column}: bounds, from {of}, {error}"
        return f"{self.table}: {'rows' if self.unit == 'row' else f'{self.unit}s by their number of rows'}, {error}"


@dataclass(frozen=True, repr=False)
class SurveyPlan:
    """What a survey finds out, at which charge, with which errors. Public and free."""

    parts: tuple[Part, ...]
    charge: Charge
    skipped: tuple[str, ...] = ()
    aside: tuple[Charge, Json] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        first = f"{self.charge.guarantee}, in one charge; each of {len(self.parts)} parts has an equal share of it"
        lines = [first, *(f"  {part}" for part in self.parts), *(f"  {reason}" for reason in self.skipped)]
        if self.aside is not None:
            lines.append(f"  first of this ledger: {self.aside[0].guarantee}")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Survey:
    """What a survey found: ``policy`` is the proposed one, ``to_toml()`` its text with lines to be confirmed.

    ``id`` numbers the release in the ledger, ``cost`` is what was charged in mu squared, 0 where the ledger had it.
    ``rows``: what was counted of each table. Views in schema dp have the noisy counts of all parts.
    """

    id: int
    cost: float
    guarantee: str
    declared: Policy = field(repr=False)
    said: Json = field(repr=False)
    tables: Mapping[str, ReleaseTable] = field(repr=False)

    @cached_property
    def rows(self) -> dict[str, RowCounts]:
        """Rows, units and the rows of units, by table."""
        return {
            entry["table"]: RowCounts.read(entry["table"], entry["unit"], self.tables[entry["name"]], self.parts)
            for entry in self.said["rows"]
        }

    @property
    def parts(self) -> int:
        """How many things the survey found out, each at an equal share of the charge."""
        return len(self.said["rows"]) + len(self.said["found"])

    @cached_property
    def policy(self) -> Policy:
        """The declared policy with all that was found in it."""
        tables = dict(self.declared.tables)
        for name, counts in self.rows.items():
            tables[name] = counts.into(tables[name])
        for entry, column in self._columns():
            made = _both(column) if entry.get("free") else with_domain(column, entry, tuple(self.tables.values()))
            if made is not None:
                table = tables[entry["table"]]
                tables[table.name] = replace(table, columns={**table.columns, column.name: made})
        return replace(self.declared, tables=tables)

    def to_toml(self) -> str:
        """The proposed policy; what was found is marked to be confirmed, with its error, and closed until then."""
        policy, parts = self.policy, self.parts
        head = (
            f"# Proposed from release {self.id}, at {self.guarantee} in one charge, an equal share of it for each of "
            f'{parts} parts.\n# Read each line that starts with "# confirm:", correct it, then remove "# confirm: " '
            "in front of it.\n\n"
        )
        places = {"database": policy.database, "anchor": policy.anchor}
        return head + policy_text(policy.dataset, policy.budget, policy.tables, policy.views, places, self.remarks())

    def remarks(self) -> dict[str, Remark]:
        """What to say of each line that was found, by its full key."""
        out: dict[str, Remark] = {}
        for name, counts in self.rows.items():
            out |= counts.remarks(self.declared.table(name))
        return out | {column.where: self._remark(entry) for entry, column in self._columns()}

    def _remark(self, entry: Json) -> Remark:
        if entry.get("free"):
            return Remark("all values of the type, at no cost", confirm=True)
        table, unit = self.tables[entry["name"]], entry["unit"]
        if not len(table):
            return Remark(f"nothing was found: too few {unit}s for this charge")
        if entry["bounds"]:
            outside, error = (100 * float(str(table.columns[at][2][0])) for at in (2, 3))
            text = f"{outside:.2g} % of the rows are outside, standard error {error:.2g}; dp.{table.name}"
            return Remark(text, confirm=True)
        count, error = len(table), float(str(table.columns[2][2][0]))
        return Remark(
            f"{count:,} value{'' if count == 1 else 's'}, of about {about(entry['threshold'])} {unit}s and more, "
            f"standard error of a count {error:.3g}; dp.{table.name}",
            confirm=True,
        )

    def _columns(self) -> list[tuple[Json, ColumnPolicy]]:
        looked = [*self.said["found"], *self.said["free"]]
        return [(entry, self.declared.table(entry["table"]).column(entry["column"])) for entry in looked]

    def __repr__(self) -> str:
        return f"Survey(id={self.id}, parts={len(self.tables)}, cost={self.cost:.9g}, guarantee={self.guarantee!r})"


@dataclass(eq=False)
class Surveyor:
    """Surveys of one connection."""

    batches: Batches
    finder: Finder
    bounds: BoundsFinder

    def plan(self, request: Request, delta: Fraction | None, max_groups: int) -> SurveyPlan:
        """What a survey would find out, and at which charge. Raises as ``Connection.plan_survey``."""
        books, policy = self.batches.books, self.finder.declared
        state, there, aside = reserved(books)
        schemas = self.batches.holdings.schemas()
        targets, skipped = _targets(policy, schemas)
        thresholds = sum(what == "values" for _, _, what in targets)
        chance = there.total / 2 if delta is None else delta
        share = shared(request, chance, books.budget, len(targets), thresholds, there.left)
        parts = tuple(self._part(share, max_groups, schemas, *one) for one in targets)
        state.check(share.charge)
        return SurveyPlan(parts, share.charge, skipped, aside)

    def find(
        self, request: Request, delta: Fraction | None, max_groups: int, *, fresh: bool, label: str
    ) -> tuple[Survey, ReleaseRecord]:
        """Charge, measure and record a survey; or the same of this version of the data again, at no cost."""
        books, declared = self.batches.books, self.finder.declared
        query = f"a survey at {request.epsilon} {request.rho} {delta} {max_groups} of {declared.to_toml()}"
        query = hashlib.sha256(query.encode()).hexdigest()
        with claimed(books.path, "discovery"):  # as discoveries, of which the first sets delta aside
            ledger = books.ledger()
            books.check_releases(ledger)
            earlier = None if fresh else earlier_release(books, query)
            if earlier is not None:
                entry, record = earlier
                return Survey(entry.id, 0.0, record.guarantee, declared, entry.description, _by_name(record)), record
            plan = self.plan(request, delta, max_groups)
            job = self._job(plan, query, label)
            made: list[ReleaseRecord] = []

            def payload(release: int, observed: Observed) -> bytes:
                made.append(_record(release, plan, _tables(plan, job, observed), label))
                return pack(made[0], Measurement((), "gaussian survey", plan.charge.mu_squared, 1, ""))

            number, _ = measure(job, self.batches.holdings.engine, ledger, payload)
        record = made[0]
        survey = Survey(number, plan.charge.amount, record.guarantee, declared, job.description, _by_name(record))
        return survey, record

    def _part(
        self, share: Share, groups: int, schemas: Schemas, table: TablePolicy, column: ColumnPolicy | None, kind: str
    ) -> Part:
        unit, state = unit_word(table), self.batches.books.state()
        if column is None:
            plan = rows_plan(self.finder.declared, table, schemas, state, share.request)
            return Part(table.name, None, unit, _largest_error(plan), plan=plan, minimum=table.minimum)
        if kind == "bounds":
            scale, limit = scale_of(type_of(schemas, table, column), column.where), None if table.unit == "row" else 1
            plan = self.bounds.plan(table.name, column, scale, schemas, share.request, limit)
            return Part(table.name, column.name, unit, _largest_error(plan), plan=plan, scale=scale)
        part = Charge("gaussian", share.units, "gaussian", "a part of a survey", None, share.fails)
        law = share.threshold(1 if table.unit == "row" else groups)
        prospect = Prospect(table.name, column.name, unit, law.groups, Way(part, law), None, table.minimum)
        check_reach(table, prospect)
        return Part(table.name, column.name, unit, prospect.stderr, prospect=prospect)

    def _job(self, plan: SurveyPlan, query: str, label: str) -> SurveyJob:
        """The job; its description says of each part table, column, type and view."""
        policy, schemas = self.finder.declared, self.batches.holdings.schemas()
        taken, names = names_taken(self.batches.books.entries()), []
        looked: dict[str, list[Any]] = {"rows": [], "found": [], "free": _free(policy, schemas)}
        counts: list[Job] = []
        values: list[DiscoveryJob] = []
        for part in plan.parts:
            table = policy.table(part.table)
            column = ColumnPolicy("rows") if part.column is None else table.column(part.column)
            is_bounds = part.column is not None and part.plan is not None
            name = view_name(table, column, taken, "_bounds" if is_bounds else "")
            check_name(name)
            names.append(name)
            taken.add(fold(name))
            entry: dict[str, object] = {"table": table.name, "name": name, "unit": part.unit}
            if part.column is not None:
                entry |= {"column": column.name, "type": type_of(schemas, table, column), "bounds": is_bounds}
            if part.prospect is not None:
                values.append(self.finder.job(part.prospect, (table, column), schemas, name))
                entry |= {"threshold": part.prospect.threshold, "groups": part.prospect.groups}
            elif part.plan is not None:
                counts.append(job_at_once(part.plan, self.batches.holdings.sources, {}, ""))
            looked["rows" if part.column is None else "found"].append(entry)
        read = [name for job in values for name in job.source.tables]
        read += [name for job in counts for layout in job.layouts for name in layout.source.tables]
        description = {
            **{"kind": KIND, "asked": query, "noise": "gaussian", "names": names, **looked},
            "tables": list(dict.fromkeys(part.table for part in plan.parts)),
            "units": units_in(policy.tables, list(dict.fromkeys(read))),
            "limits": limits_in(policy.tables, list(dict.fromkeys(read))),
        }
        return SurveyJob(tuple(counts), tuple(values), plan.charge, description, label, plan.aside)


def _targets(policy: Policy, schemas: Schemas) -> tuple[list[_Target], tuple[str, ...]]:
    """What is asked of each table and column, and what is not and why. Public."""
    targets: list[_Target] = []
    skipped: list[str] = []
    for table in policy.tables.values():
        if table.public or table.counts is not None:
            continue
        targets.append((table, None, "rows"))
        for column in table.columns.values():
            if column.values is not None or column.lower is not None or column.public:
                continue
            kind = type_of(schemas, table, column)
            try:
                target_of(policy, f"{table.name}.{column.name}")
                if column_type(kind).kind == "text":
                    targets.append((table, column, "values"))
                elif column_type(kind).kind != "boolean":
                    scale_of(kind, column.where)
                    targets.append((table, column, "bounds"))
            except PolicyError as error:
                skipped.append(f"not looked at: {error}")
    if not targets:
        raise PolicyError("there is nothing to find: the policy has public tables and tables of counts alone")
    return targets, tuple(skipped)


def _free(policy: Policy, schemas: Schemas) -> list[Json]:
    """The columns whose values their types tell."""
    return [
        {"table": table.name, "column": column.name, "free": True}
        for table in policy.tables.values()
        for column in table.columns.values()
        if not table.public and column.values is None and column_type(type_of(schemas, table, column)).kind == "boolean"
    ]


def _both(column: ColumnPolicy) -> ColumnPolicy:
    return replace(column, values=(False, True))


def _largest_error(plan: Plan) -> float:
    return max(float(np.max(np.asarray(errors))) for errors in plan.stderr.values())


def _tables(plan: SurveyPlan, job: SurveyJob, observed: Observed) -> tuple[ReleaseTable, ...]:
    """The tables of all parts, in their order."""
    ys, discovered = iter(observed[0]), iter(zip(job.values, observed[1], strict=True))
    names: list[str] = job.description["names"]
    out = []
    for part, name in zip(plan.parts, names, strict=True):
        if part.prospect is not None:
            of, (texts, counts) = next(discovered)
            out.append(values_table(part.prospect, of, texts, counts))
            continue
        assert part.plan is not None  # noqa: S101 - a part is one of the two
        (measured,) = release_tables(part.plan, next(ys))
        assert isinstance(measured, ReleaseTable)  # noqa: S101 - no ranges are asked
        if part.column is None:
            out.append(rows_table(name, measured, part.minimum))
        elif part.scale is not None:
            rows = list(zip(*(values for _, _, values in measured.columns), strict=True))
            out.append(bounds_table(name, bounds_of(rows, part.scale)))
    return tuple(out)


def _record(release: int, plan: SurveyPlan, tables: tuple[ReleaseTable, ...], label: str) -> ReleaseRecord:
    return ReleaseRecord(
        release_id=release,
        released_at=dt.datetime.now(dt.UTC),
        tables=tables,
        label=label or None,
        guarantee=plan.charge.guarantee,
        purse=plan.charge.account,
        cost=plan.charge.amount,
        noise=plan.charge.noise,
        strategy="a survey: values from thresholds on, outermost buckets with rows, units by their rows",
        queries=sum(len(table) for table in tables),
        sql="-- a policy proposed from the data, found privately",
        unit=f"one {listed(list(dict.fromkeys(part.unit for part in plan.parts)))}",
    )


def _by_name(record: ReleaseRecord) -> dict[str, ReleaseTable]:
    return {table.name: table for table in record.listed}
