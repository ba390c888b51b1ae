"""Bounds of a number or a time, found privately: a histogram over a fixed scale, and its outermost buckets with rows.

The histogram is a batch like any other: rows by bucket, of a scale that depends on the column's type alone, planned,
charged and measured as all batches are, with the guarantee of its release. The bounds are post-processing of it: from
the lowest to the highest bucket of which the lower end of its confidence interval is above 0, at a level at which all
intervals hold together with 95 %. So a bucket without rows is hardly ever taken for one with rows, and a few rows far
out, such as one that holds the largest value, are no bound: they are clamped, and counted in ``outside``.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpsql.common.arrays import Row
from dpsql.common.quoting import identifier, string
from dpsql.errors import PolicyError
from dpsql.extensions.discovery.discovery import Discovery, earlier_release, target_of, type_of
from dpsql.measure.discovery import set_aside
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.policy import ColumnPolicy, Policy
from dpsql.policy.limits import limits_in
from dpsql.policy.types import column_type
from dpsql.policy.values import Bound, fold, shown
from dpsql.privacy import reserve
from dpsql.privacy.accountant import Request
from dpsql.release import ReleaseRecord, ReleaseTable, Result
from dpsql.release.names import check_name
from dpsql.release.payload import Measurement, pack
from dpsql.running.found_domains import KIND, bounds_in, of_column
from dpsql.running.run import Batches

CONFIDENCE = 0.05
_SMALLEST, _LARGEST = -6, 15  # powers of ten of a scale of DOUBLE
_YEARS = (1900, 2100)


@dataclass(frozen=True)
class Scale:
    """Public points that cut a column's line into buckets; bucket i ends below ``edges[i]``, the last has no end.

    ``gap``: the distance from an edge to the largest value below it, which is the inclusive upper bound.
    """

    edges: tuple[Bound, ...]
    gap: Fraction | dt.timedelta

    def bounds(self, first: int, last: int) -> tuple[Bound, Bound]:
        """Bounds of the buckets ``first`` to ``last``; the outermost edges where these have no end."""
        low: Any = self.edges[max(first - 1, 0)]
        high: Any = self.edges[min(last, len(self.edges) - 1)]
        return low, max(low, high - self.gap)


def scale_of(kind: str, where: str) -> Scale:
    """The scale of a column type: 1, 2 and 5 times powers of ten with both signs and 0, or years. PolicyError."""
    found = column_type(kind)
    if found.kind in ("date", "timestamp", "timestamptz"):
        zone = dt.UTC if found.kind == "timestamptz" else None
        years = range(_YEARS[0], _YEARS[1] + 1)
        if found.kind == "date":
            return Scale(tuple(dt.date(year, 1, 1) for year in years), dt.timedelta(days=1))
        return Scale(tuple(dt.datetime(year, 1, 1, tzinfo=zone) for year in years), dt.timedelta(0))
    if found.kind not in ("integer", "decimal", "float"):
        raise PolicyError(f"{where} is {found}, which has no bounds; find its values, without bounds=True")
    least, most = (_SMALLEST, _LARGEST) if found.kind == "float" else (-found.scale, 37)
    gap = Fraction(0) if found.kind == "float" else Fraction(1, 10**found.scale)
    powers = [Fraction(10) ** power for power in range(least, most + 1)]
    above = [sign * step * power for power in powers for step in (1, 2, 5) for sign in (-1, 1)]
    fits = [edge for edge in (*above, Fraction(0)) if _fits(edge, kind)]
    return Scale(tuple(sorted(fits)), gap)


def _fits(edge: Fraction, kind: str) -> bool:
    found = column_type(kind)
    if found.kind == "decimal":
        return abs(edge) < Fraction(10) ** (found.width - found.scale)
    return found.kind == "float" or (abs(edge) < 10**18 and found.holds(int(edge)))


def histogram_sql(table: str, column: str, scale: Scale, name: str) -> str:
    """The batch: rows by bucket, -1 those without a value."""
    held = identifier(column)
    cases = " ".join(f"WHEN {held} < {literal(edge)} THEN {i}" for i, edge in enumerate(scale.edges))
    where = ".".join(identifier(part) for part in table.split("."))
    return (
        f"CREATE OR REPLACE VIEW {identifier(name)} AS SELECT CASE WHEN {held} IS NULL THEN -1 {cases} "  # noqa: S608
        f"ELSE {len(scale.edges)} END AS bucket, COUNT(*) AS n FROM {where} GROUP BY 1"
    )


def literal(edge: Bound) -> str:
    """A bound in SQL."""
    if isinstance(edge, Fraction):
        return shown(edge)
    if isinstance(edge, dt.datetime):
        kind = "TIMESTAMP" if edge.tzinfo is None else "TIMESTAMPTZ"
        return f"{kind} {string(edge.isoformat(sep=' '))}"
    return f"DATE {string(edge.isoformat())}"


@dataclass(eq=False)
class BoundsFinder:
    """Bounds of columns of one connection."""

    batches: Batches
    declared: Policy

    def find(self, target: str, request: Request, *, fresh: bool, label: str) -> tuple[Discovery, ReleaseRecord]:
        """Measure the histogram and record the bounds that it shows; or the same of this version of the data again.

        Raises PolicyError for a column without bounds, and as planning and running do.
        """
        table, column = target_of(self.declared, target)
        books = self.batches.books
        query = f"bounds of {fold(target)} at {request.epsilon} {request.delta} {request.rho}"
        earlier = None if fresh else earlier_release(books, query)
        if earlier is not None:
            entry, record = earlier
            return _discovery(record, table.name, column, 0.0, entry.charge.guarantee), record
        schemas = self.batches.holdings.schemas()
        kind = type_of(schemas, table, column)
        plan = self.plan(table.name, column, scale_of(kind, column.where), schemas, request)
        aside = reserve.missing(books.budget, books.state().charges) if plan.charge.account == "gaussian" else None
        if aside is not None:
            books.state().check(replace(plan.charge, units=plan.charge.units + aside[0].units))
            set_aside(books.ledger(), aside)
        release = self.batches.run(plan, fresh=fresh, label=label)
        row = bounds_of(release.only.fetchall(), scale_of(kind, column.where))
        name = f"{table.name}_{column.name}_bounds".replace(".", "_")
        guarantee = f"free, from release {release.id}"
        description = {
            **{"kind": KIND, "bounds": True, "asked": query, "names": [name], "tables": [table.name]},
            **{"table": table.name, "column": column.name, "type": kind},
            **{"rests_on": [release.id], "guarantee": guarantee},
            "limits": limits_in(self.batches.holdings.policy.tables, [table.name]),
        }
        made: list[ReleaseRecord] = []
        shown_ = bounds_table(name, row)

        def payload(number: int) -> bytes:
            made.append(_record(number, shown_, guarantee, target, label))
            return pack(made[0], Measurement((), "none", Fraction(0), 1, ""))

        books.ledger().answer(payload, description, label=label)
        return _discovery(made[0], table.name, column, release.cost, release.guarantee), made[0]

    def plan(
        self,
        table: str,
        column: ColumnPolicy,
        scale: Scale,
        schemas: Mapping[str, Mapping[str, str]],
        request: Request,
        rows_per_unit: int | None = None,
    ) -> Plan:
        """The plan of the histogram over a scale, with intervals that hold together at 95 %."""
        name = f"{table}_{column.name}_scale".replace(".", "_")
        check_name(name)
        options = PlanOptions(CONFIDENCE / (len(scale.edges) + 2), rows_per_unit=rows_per_unit)
        sql = histogram_sql(table, column.name, scale, name)
        return make_plan(sql, self.batches.holdings.policy, schemas, self.batches.books.state(), request, options)


def _discovery(record: ReleaseRecord, table: str, column: ColumnPolicy, cost: float, guarantee: str) -> Discovery:
    (shown_,) = record.listed
    bounds = bounds_in(shown_)
    found = column if bounds is None else of_column(column, bounds=bounds)
    result = Result.from_columns(shown_.columns)
    outside = 1.0 if bounds is None else float(str(shown_.columns[2][2][0]))
    return Discovery(record.release_id, table, found, cost, guarantee, result, shown_.name, outside)


@dataclass(frozen=True)
class Bounds:
    """Bounds, and the share of rows with a value outside of them with its standard error."""

    low: Bound
    high: Bound
    outside: float
    stderr: float


def bounds_of(rows: Sequence[Row], scale: Scale) -> Bounds | None:
    """The bounds of the buckets that have rows; None where none has. ``rows``: bucket, n, n_stderr, n_low, n_high.

    Buckets are measured apart, each by its own noise, so that errors of their sums are sums of squares. Small ones that
    a ``minimum`` hides are taken for empty ones, with the largest error of those that are shown.
    """
    most = max((float(row[2]) for row in rows if row[2] is not None), default=0.0)
    counts = {
        int(row[0]): (0.0, most, 0.0) if row[1] is None else tuple(map(float, row[1:4]))
        for row in rows
        if row[0] is not None and int(row[0]) >= 0
    }
    filled = [bucket for bucket, (_, _, low) in counts.items() if low > 0]
    total = sum(n for n, _, _ in counts.values())
    if not filled or total <= 0:
        return None
    first, last = min(filled), max(filled)
    beyond = [(n, error) for bucket, (n, error, _) in counts.items() if not first <= bucket <= last]
    share = min(1.0, max(0.0, sum(n for n, _ in beyond) / total))
    return Bounds(*scale.bounds(first, last), share, math.hypot(*(error for _, error in beyond)) / total)


def bounds_table(name: str, bounds: Bounds | None) -> ReleaseTable:
    """The table that shows bounds, without rows where none were found; ``bounds_in`` reads it."""
    rows = [] if bounds is None else [bounds]
    columns = (
        ("lower", "VARCHAR", [_text(row.low) for row in rows]),
        ("upper", "VARCHAR", [_text(row.high) for row in rows]),
        ("outside", "DOUBLE", [row.outside for row in rows]),
        ("outside_stderr", "DOUBLE", [row.stderr for row in rows]),
    )
    return ReleaseTable(name, True, columns)


def _record(number: int, table: ReleaseTable, guarantee: str, target: str, label: str) -> ReleaseRecord:
    return ReleaseRecord(
        release_id=number,
        released_at=dt.datetime.now(dt.UTC),
        tables=(table,),
        label=label or None,
        guarantee=guarantee,
        strategy="outermost buckets with rows",
        queries=len(table),
        sql=f"-- the bounds of {target}, found privately",
    )


def _text(bound: Bound) -> str:
    return str(Decimal(shown(bound))) if isinstance(bound, Fraction) else bound.isoformat()
