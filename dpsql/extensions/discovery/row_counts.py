"""How many rows a table has, and one unit of it: a noisy histogram of units by their number of rows.

The histogram is a batch over rows of units, so that a unit is in one bucket of it, whatever rows it has, and moves its
counts by 1 in all (``dpsql.sql.resolve.per_unit``). Where a row is the unit, or another table says whose a row is, the
rows that count are counted alone. From it follow, as post-processing, the rows that a bound would leave out, and the
bound at which they and the noise of COUNT(*) are least together (``limit_candidates``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from dpsql.common.quoting import identifier
from dpsql.extensions.discovery.limit_candidates import candidates_of, filled
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.text import Remark
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.noise import Noise
from dpsql.reconstruct.unit_histogram import Estimate, UnitHistogram
from dpsql.release import ReleaseTable
from dpsql.running.minimum import counted

ENDS: tuple[int, ...] = (*range(1, 21), 50, 100, 200, 500)
"""The largest number of rows of each bucket but the last, which has no end."""
_OPEN = Fraction(2 * ENDS[-1])
"""Where the last bucket is taken to end if no largest number of rows is public."""


def has_units(policy: Policy, table: TablePolicy) -> bool:
    """Whether a column of the table itself says whose a row is."""
    unit = policy.units[table.name]
    return unit is not None and not unit.path


def rows_plan(
    policy: Policy, table: TablePolicy, schemas: Mapping[str, Mapping[str, str]], state: BudgetState, request: Request
) -> Plan:
    """The plan of the histogram, or of the rows that count."""
    where = ".".join(identifier(part) for part in table.name.split("."))
    shown = replace(table, minimum=None)  # ``rows_table`` hides small counts: their errors are needed
    if not has_units(policy, table):
        plain = replace(policy, tables={**policy.tables, table.name: shown})
        return make_plan(f"SELECT COUNT(*) AS n FROM {where}", plain, schemas, state, request, PlanOptions())  # noqa: S608
    counting = {**policy.tables, table.name: replace(shown, max_rows_per_unit=ENDS[-1] + 1, at_most=())}
    cases = " ".join(f"WHEN n <= {end} THEN {at}" for at, end in enumerate(ENDS))
    unit = identifier(table.unit)
    sql = (
        f"SELECT CASE {cases} ELSE {len(ENDS)} END AS bucket, COUNT(*) AS units "  # noqa: S608
        f"FROM (SELECT {unit}, COUNT(*) AS n FROM {where} GROUP BY {unit}) GROUP BY 1"
    )
    return make_plan(sql, replace(policy, tables=counting), schemas, state, request, PlanOptions())


def rows_table(name: str, measured: ReleaseTable, minimum: int | None) -> ReleaseTable:
    """What is released of it: numbers of rows, from and to (NULL: or more), and the units that have so many.

    Counts that may lie under ``minimum`` are not shown, as everywhere.
    """
    columns = {column: values for column, _, values in measured.columns}
    number = "units" if "units" in columns else "n"
    order = [at for at, b in enumerate(columns.get("bucket", [0])) if b is not None and int(str(b)) >= 0]
    names = (number, f"{number}_stderr", f"{number}_low", f"{number}_high")
    shown = [(column, [columns[column][at] for at in order]) for column in names]
    named = [(f"rows{column.removeprefix('n')}" if number == "n" else column, "DOUBLE", v) for column, v in shown]
    if number == "n":
        return ReleaseTable(name, True, counted("rows", named, minimum))
    starts = [1, *(end + 1 for end in ENDS)]
    buckets = [int(str(columns["bucket"][at])) for at in order]
    low = ("rows_from", "INTEGER", [starts[bucket] for bucket in buckets])
    high = ("rows_to", "INTEGER", [(*ENDS, None)[bucket] for bucket in buckets])
    return ReleaseTable(name, True, counted("units", (low, high, *named), minimum))


@dataclass(frozen=True)
class RowCounts:
    """Rows of a table: ``units`` of each bucket of `ENDS` and the standard error of each; or its ``total`` alone.

    ``noise``: the standard error of COUNT(*) at the whole charge, were one row of a unit counted.
    """

    table: str
    unit: str
    name: str
    units: tuple[float, ...]
    stderr: float
    noise: float
    total: float | None = None

    @classmethod
    def read(cls, table: str, unit: str, shown: ReleaseTable, parts: int) -> RowCounts:
        """What a table of ``rows_table`` shows, of so many equal parts of a charge; hidden counts stand for 0."""
        columns = {
            column: [0.0 if v is None else float(str(v)) for v in values]
            for column, kind, values in shown.columns
            if kind == "DOUBLE"
        }
        if "rows" in columns:
            return cls(table, unit, shown.name, (), columns["rows_stderr"][0], 0.0, columns["rows"][0])
        error = max(columns["units_stderr"])
        return cls(table, unit, shown.name, tuple(columns["units"]), error, error / math.sqrt(parts))

    def weighed(self, weights: tuple[float, ...]) -> tuple[float, float]:
        """A sum over the buckets up to the last that certainly has units, and its standard error: noise is independent.

        Beyond it weights are large and counts are noise.
        """
        kept = list(zip(weights, self.units, strict=True))[: self._filled]
        return sum(w * n for w, n in kept), self.stderr * math.hypot(*(w for w, _ in kept))

    @property
    def _filled(self) -> int:
        return max(1, filled(np.array(self.units), np.full(len(self.units), self.stderr)))

    def most(self, table: TablePolicy) -> int:
        """The bound, one of `ENDS`, with the least squared error of COUNT(*); the declared one if units are too few."""
        largest = Fraction(table.largest_unit or _OPEN)
        edges = (*(Fraction(end) for end in ENDS if end < largest), largest)
        last = len(edges) - 1  # of units with more rows than is public, too
        beyond = sum(self.units[last:]), self.stderr * math.sqrt(len(self.units) - last)
        counts = [*((n, self.stderr) for n in self.units[:last]), beyond]
        rows = [(at, n, error, 0.0, n) for at, (n, error) in enumerate(counts, 1)]
        noise = [self.noise * float(edge) for edge in edges]
        _, chosen = candidates_of(rows, edges, noise, 1, whole=True)
        return (table.max_rows_per_unit or 1) if chosen is None else min(int(edges[chosen]), ENDS[-1])

    def lost(self, most: int) -> float:
        """At least how many rows a bound leaves out; wide buckets by their start."""
        starts = (1, *(end + 1 for end in ENDS))
        return self.weighed(tuple(float(max(0, start - most)) for start in starts))[0]

    def rows(self, most: int) -> tuple[float, float]:
        """How many rows count under a bound, and its standard error; wide buckets by their middle."""
        middles = (*((start + 1 + end) / 2 for start, end in pairwise((0, *ENDS))), float(ENDS[-1]))
        return self.weighed(tuple(min(middle, float(most)) for middle in middles))

    def expected(self, table: TablePolicy) -> tuple[int, float]:
        """The rows that count under the proposed bound, at least 1, and the standard error."""
        number, error = (self.total, self.stderr) if self.total is not None else self.rows(self.most(table))
        return max(1, round(number)), error

    def cut(self, limit: int, largest: int) -> Estimate:
        """How many rows a bound leaves out, with an interval, where no unit has more than ``largest`` rows."""
        ends = (*(end for end in ENDS if end < largest), largest)
        law = Noise.gaussian(Fraction(max(self.stderr**2, 1e-6)))
        return UnitHistogram(ends, tuple(map(round, self.units[: len(ends)])), law).rows_beyond(limit)

    def into(self, table: TablePolicy) -> TablePolicy:
        """The table as it is proposed."""
        bound = table.max_rows_per_unit if self.total is not None else self.most(table)
        caps = tuple(filter(None, (one.within(bound) for one in table.at_most))) if bound is not None else ()
        caps = tuple(one for one in caps if one.rows is not None or one.groups is not None)
        return replace(table, expected_rows=self.expected(table)[0], max_rows_per_unit=bound, at_most=caps)

    def remarks(self, table: TablePolicy) -> dict[str, Remark]:
        """What to say of the lines that are proposed, by their full keys."""
        error = self.expected(table)[1]
        out = {table.key("expected_rows"): Remark(f"standard error {error:,.0f}; dp.{self.name}", confirm=True)}
        if self.total is None:
            most = self.most(table)
            lost = f"at least {max(0.0, self.lost(most)):,.0f} rows, as far as noise lets one see,"
            if table.largest_unit is not None:
                cut = self.cut(most, table.largest_unit)
                lost = f"about {cut.value:,.0f} rows ({cut.low:,.0f} to {cut.high:,.0f})"
            everybody = max(1.0, self.weighed((1.0,) * (len(ENDS) + 1))[0])
            text = (
                f"about {everybody:,.0f} {self.unit}s; under this bound {lost} are left out, and COUNT(*) has standard "
                f"error {most * self.noise:,.0f} at this charge, the least of both together; "
                f"{table.max_rows_per_unit} was declared"
            )
            out[table.key("max_rows_per_unit")] = Remark(text, confirm=True)
        return out
