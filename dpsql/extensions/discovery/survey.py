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
    found_table,
    known_again,
    names_taken,
    reserved,
    target_of,
    type_of,
    unit_word,
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
from dpsql.running.jobs import job_of
from dpsql.running.result_tables import release_tables
from dpsql.running.run import Batches

_Wanted: TypeAlias = "tuple[TablePolicy, ColumnPolicy | None, str]"


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
        lines = [first, *(f"  {part}" for part in self.parts), *(f"  {said}" for said in self.skipped)]
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
            said["table"]: RowCounts.read(said["table"], said["unit"], self.tables[said["name"]], self.parts)
            for said in self.said["rows"]
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
        for said, column in self._columns():
            made = _both(column) if said.get("free") else with_domain(column, said, tuple(self.tables.values()))
            if made is not None:
                table = tables[said["table"]]
                tables[table.name] = replace(table, columns={**table.columns, column.name: made})
        return replace(self.declared, tables=tables)

    def to_toml(self) -> str:
        """The proposed policy; what was found is marked to be confirmed, with its error, and closed until then."""
        held, parts = self.policy, self.parts
        head = (
            f"# Proposed from release {self.id}, at {self.guarantee} in one charge, an equal share of it for each of "
            f'{parts} parts.\n# Read each line that starts with "# confirm:", correct it, then remove "# confirm: " '
            "in front of it.\n\n"
        )
        places = {"database": held.database, "anchor": held.anchor}
        return head + policy_text(held.dataset, held.budget, held.tables, held.views, places, self.remarks())

    def remarks(self) -> dict[str, Remark]:
        """What to say of each line that was found, by its full key."""
        out: dict[str, Remark] = {}
        for name, counts in self.rows.items():
            out |= counts.remarks(self.declared.table(name))
        return out | {column.where: self._remark(said) for said, column in self._columns()}

    def _remark(self, said: Json) -> Remark:
        if said.get("free"):
            return Remark("all values of the type, at no cost", confirm=True)
        table, unit = self.tables[said["name"]], said["unit"]
        if not len(table):
            return Remark(f"nothing was found: too few {unit}s for this charge")
        if said["bounds"]:
            outside, error = (100 * float(str(table.columns[at][2][0])) for at in (2, 3))
            text = f"{outside:.2g} % of the rows are outside, standard error {error:.2g}; dp.{table.name}"
            return Remark(text, confirm=True)
        count, error = len(table), float(str(table.columns[2][2][0]))
        return Remark(
            f"{count:,} value{'' if count == 1 else 's'}, of about {about(said['threshold'])} {unit}s and more, "
            f"standard error of a count {error:.3g}; dp.{table.name}",
            confirm=True,
        )

    def _columns(self) -> list[tuple[Json, ColumnPolicy]]:
        looked = [*self.said["found"], *self.said["free"]]
        return [(said, self.declared.table(said["table"]).column(said["column"])) for said in looked]

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
        wanted, skipped = _wanted(policy, schemas)
        thresholds = sum(what == "values" for _, _, what in wanted)
        chance = there.total / 2 if delta is None else delta
        share = shared(request, chance, books.budget, len(wanted), thresholds, there.left)
        parts = tuple(self._part(share, max_groups, schemas, *one) for one in wanted)
        state.check(share.charge)
        return SurveyPlan(parts, share.charge, skipped, aside)

    def find(
        self, request: Request, delta: Fraction | None, max_groups: int, *, fresh: bool, label: str
    ) -> tuple[Survey, ReleaseRecord]:
        """Charge, measure and record a survey; or the same of this version of the data again, at no cost."""
        books, declared = self.batches.books, self.finder.declared
        asked = f"a survey at {request.epsilon} {request.rho} {delta} {max_groups} of {declared.to_toml()}"
        asked = hashlib.sha256(asked.encode()).hexdigest()
        with claimed(books.path, "discovery"):  # as discoveries, of which the first sets delta aside
            ledger = books.ledger()
            books.check_releases(ledger)
            known = None if fresh else known_again(books, asked)
            if known is not None:
                entry, record = known
                return Survey(entry.id, 0.0, record.guarantee, declared, entry.description, _by_name(record)), record
            plan = self.plan(request, delta, max_groups)
            job = self._job(plan, asked, label)
            made: list[ReleaseRecord] = []

            def payload(release: int, observed: Observed) -> bytes:
                made.append(_record(release, plan, _tables(plan, job, observed), label))
                return pack(made[0], Measurement((), "gaussian survey", plan.charge.mu_squared, 1, ""))

            number, _ = measure(job, self.batches.holdings.engine, ledger, payload)
        record = made[0]
        found = Survey(number, plan.charge.amount, record.guarantee, declared, job.description, _by_name(record))
        return found, record

    def _part(
        self, share: Share, max_groups: int, schemas: Schemas, held: TablePolicy, column: ColumnPolicy | None, what: str
    ) -> Part:
        unit, state = unit_word(held), self.batches.books.state()
        if column is None:
            plan = rows_plan(self.finder.declared, held, schemas, state, share.request)
            return Part(held.name, None, unit, _largest_error(plan), plan=plan, minimum=held.minimum)
        if what == "bounds":
            scale = scale_of(type_of(schemas, held, column), column.where)
            plan = self.bounds.plan(held.name, column, scale, schemas, share.request, None if held.unit == "row" else 1)
            return Part(held.name, column.name, unit, _largest_error(plan), plan=plan, scale=scale)
        part = Charge("gaussian", share.units, "gaussian", "a part of a survey", None, share.fails)
        law = share.threshold(1 if held.unit == "row" else max_groups)
        prospect = Prospect(held.name, column.name, unit, law.groups, Way(part, law), None, held.minimum)
        check_reach(held, prospect)
        return Part(held.name, column.name, unit, prospect.stderr, prospect=prospect)

    def _job(self, plan: SurveyPlan, asked: str, label: str) -> SurveyJob:
        """The job; its description says of each part table, column, type and view."""
        policy, schemas = self.finder.declared, self.batches.holdings.schemas()
        taken, names = names_taken(self.batches.books.entries()), []
        looked: dict[str, list[Any]] = {"rows": [], "found": [], "free": _free(policy, schemas)}
        counts: list[Job] = []
        values: list[DiscoveryJob] = []
        for part in plan.parts:
            held = policy.table(part.table)
            column = ColumnPolicy("rows") if part.column is None else held.column(part.column)
            is_bounds = part.column is not None and part.plan is not None
            name = view_name(held, column, taken, "_bounds" if is_bounds else "")
            check_name(name)
            names.append(name)
            taken.add(fold(name))
            said: dict[str, object] = {"table": held.name, "name": name, "unit": part.unit}
            if part.column is not None:
                said |= {"column": column.name, "type": type_of(schemas, held, column), "bounds": is_bounds}
            if part.prospect is not None:
                values.append(self.finder.job(part.prospect, held, column, schemas, name))
                said |= {"threshold": part.prospect.threshold, "groups": part.prospect.groups}
            elif part.plan is not None:
                job = job_of(part.plan, self.batches.holdings.sources, {}, "")
                assert isinstance(job, Job)  # noqa: S101 - no plan of a survey is adaptive
                counts.append(job)
            looked["rows" if part.column is None else "found"].append(said)
        read = [name for job in values for name in job.source.tables]
        read += [name for job in counts for layout in job.layouts for name in layout.source.tables]
        description = {
            **{"kind": KIND, "asked": asked, "noise": "gaussian", "names": names, **looked},
            "tables": list(dict.fromkeys(part.table for part in plan.parts)),
            "units": units_in(policy.tables, list(dict.fromkeys(read))),
            "limits": limits_in(policy.tables, list(dict.fromkeys(read))),
        }
        return SurveyJob(tuple(counts), tuple(values), plan.charge, description, label, plan.aside)


def _wanted(policy: Policy, schemas: Schemas) -> tuple[list[_Wanted], tuple[str, ...]]:
    """What is asked of each table and column, and what is not and why. Public."""
    found: list[_Wanted] = []
    skipped: list[str] = []
    for held in policy.tables.values():
        if held.public or held.counts is not None:
            continue
        found.append((held, None, "rows"))
        for column in held.columns.values():
            if column.values is not None or column.lower is not None or column.public:
                continue
            kind = type_of(schemas, held, column)
            try:
                target_of(policy, f"{held.name}.{column.name}")
                if column_type(kind).kind == "text":
                    found.append((held, column, "values"))
                elif column_type(kind).kind != "boolean":
                    scale_of(kind, column.where)
                    found.append((held, column, "bounds"))
            except PolicyError as error:
                skipped.append(f"not looked at: {error}")
    if not found:
        raise PolicyError("there is nothing to find: the policy has public tables and tables of counts alone")
    return found, tuple(skipped)


def _free(policy: Policy, schemas: Schemas) -> list[Json]:
    """The columns whose values their types tell."""
    return [
        {"table": held.name, "column": column.name, "free": True}
        for held in policy.tables.values()
        for column in held.columns.values()
        if not held.public and column.values is None and column_type(type_of(schemas, held, column)).kind == "boolean"
    ]


def _both(column: ColumnPolicy) -> ColumnPolicy:
    return replace(column, values=(False, True))


def _largest_error(plan: Plan) -> float:
    return max(float(np.max(np.asarray(errors))) for errors in plan.stderr.values())


def _tables(plan: SurveyPlan, job: SurveyJob, observed: Observed) -> tuple[ReleaseTable, ...]:
    """The tables of all parts, in their order."""
    ys, found = iter(observed[0]), iter(zip(job.values, observed[1], strict=True))
    names: list[str] = job.description["names"]
    out = []
    for part, name in zip(plan.parts, names, strict=True):
        if part.prospect is not None:
            of, (texts, counts) = next(found)
            out.append(found_table(part.prospect, of, texts, counts))
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
