"""How many rows a table has, and one unit of it: a noisy histogram of units by their number of rows.

The histogram is a batch over rows of units, so that a unit is in one bucket of it, whatever rows it has, and moves its
counts by 1 in all (``dpsql.sql.resolve.per_unit``). Where a row is the unit, or another table says whose a row is, the
rows that count are counted alone. From it follow, as post-processing, the rows that a bound would leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from scipy.special import ndtri

from dpsql.common.quoting import identifier
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.text import Remark
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.release import ReleaseTable
from dpsql.running.minimum import counted

ENDS: tuple[int, ...] = (*range(1, 21), 50, 100, 200, 500)
"""The largest number of rows of each bucket but the last, which has no end."""
SHARE = 0.01
"""How many units may have more rows than a proposed bound."""


def has_units(policy: Policy, held: TablePolicy) -> bool:
    """Whether a column of the table itself says whose a row is."""
    unit = policy.units[held.name]
    return unit is not None and not unit.path


def rows_plan(
    policy: Policy, held: TablePolicy, schemas: Mapping[str, Mapping[str, str]], state: BudgetState, request: Request
) -> Plan:
    """The plan of the histogram, or of the rows that count."""
    where = ".".join(identifier(part) for part in held.name.split("."))
    shown = replace(held, minimum=None)  # ``rows_table`` hides small counts: their errors are needed
    if not has_units(policy, held):
        plain = replace(policy, tables={**policy.tables, held.name: shown})
        return make_plan(f"SELECT COUNT(*) AS n FROM {where}", plain, schemas, state, request, PlanOptions())  # noqa: S608
    counting = {**policy.tables, held.name: replace(shown, max_rows_per_unit=ENDS[-1] + 1, at_most=())}
    cases = " ".join(f"WHEN n <= {end} THEN {at}" for at, end in enumerate(ENDS))
    own = identifier(held.unit)
    sql = (
        f"SELECT CASE {cases} ELSE {len(ENDS)} END AS bucket, COUNT(*) AS units "  # noqa: S608
        f"FROM (SELECT {own}, COUNT(*) AS n FROM {where} GROUP BY {own}) GROUP BY 1"
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
    """Rows of a table: ``units`` of each bucket of `ENDS` and the standard error of each; or its ``total`` alone."""

    table: str
    unit: str
    name: str
    units: tuple[float, ...]
    stderr: float
    total: float | None = None

    @classmethod
    def read(cls, table: str, unit: str, shown: ReleaseTable) -> RowCounts:
        """What a table of ``rows_table`` shows; counts that are not shown stand for 0."""
        columns = {
            column: [0.0 if v is None else float(str(v)) for v in values]
            for column, kind, values in shown.columns
            if kind == "DOUBLE"
        }
        if "rows" in columns:
            return cls(table, unit, shown.name, (), columns["rows_stderr"][0], columns["rows"][0])
        return cls(table, unit, shown.name, tuple(columns["units"]), max(columns["units_stderr"]))

    def weighed(self, weights: tuple[float, ...]) -> tuple[float, float]:
        """A sum over the buckets up to the last that certainly has units, and its standard error: noise is independent.

        Beyond it weights are large and counts are noise.
        """
        kept = list(zip(weights, self.units, strict=True))[: self._filled]
        return sum(w * n for w, n in kept), self.stderr * math.hypot(*(w for w, _ in kept))

    @property
    def _filled(self) -> int:
        """How many buckets there are up to the last whose count noise alone hardly reaches (5 % for all together)."""
        least: float = self.stderr * float(ndtri(1 - 0.05 / (len(ENDS) + 1)))
        return max((at for at, n in enumerate(self.units, 1) if n > least), default=1)

    def above(self, most: int) -> tuple[float, float]:
        """How many units have more than ``most`` rows, one of `ENDS`, and its standard error."""
        return self.weighed(tuple(float(end > most) for end in (*ENDS, math.inf)))

    @property
    def most(self) -> int:
        """The least bound that leaves rows out for at most `SHARE` of the units, as far as noise lets one see."""
        everybody = max(1.0, self.weighed((1.0,) * (len(ENDS) + 1))[0])
        for end in ENDS:
            n, error = self.above(end)
            if n - error <= SHARE * everybody:
                return end
        return ENDS[-1]

    def lost(self, most: int) -> float:
        """At least how many rows a bound leaves out; wide buckets by their start."""
        starts = (1, *(end + 1 for end in ENDS))
        return self.weighed(tuple(float(max(0, start - most)) for start in starts))[0]

    def rows(self, most: int) -> tuple[float, float]:
        """How many rows count under a bound, and its standard error; wide buckets by their middle."""
        middles = (*((start + 1 + end) / 2 for start, end in pairwise((0, *ENDS))), float(ENDS[-1]))
        return self.weighed(tuple(min(middle, float(most)) for middle in middles))

    def expected(self) -> tuple[int, float]:
        """The rows that count under the proposed bound, at least 1, and the standard error."""
        number, error = (self.total, self.stderr) if self.total is not None else self.rows(self.most)
        return max(1, round(number)), error

    def into(self, held: TablePolicy) -> TablePolicy:
        """The table as it is proposed."""
        bound = held.max_rows_per_unit if self.total is not None else self.most
        kept = tuple(one.within(bound) for one in held.at_most) if bound is not None else ()
        kept = tuple(one for one in kept if one.rows is not None or one.groups is not None)
        return replace(held, expected_rows=self.expected()[0], max_rows_per_unit=bound, at_most=kept)

    def remarks(self, held: TablePolicy) -> dict[str, Remark]:
        """What to say of the lines that are proposed, by their full keys."""
        error = self.expected()[1]
        out = {held.key("expected_rows"): Remark(f"standard error {error:,.0f}; dp.{self.name}", confirm=True)}
        if self.total is None:
            beyond = [n for end, n in zip((*ENDS, math.inf), self.units, strict=True) if end > self.most]
            everybody = max(1.0, self.weighed((1.0,) * (len(ENDS) + 1))[0])
            share, error = (100 * n / everybody for n in (sum(beyond), self.stderr * math.sqrt(len(beyond))))
            text = (
                f"{max(0.0, share):.2g} % of about {everybody:,.0f} {self.unit}s have more rows, standard error "
                f"{error:.2g}; as far as noise lets one see at least {max(0.0, self.lost(self.most)):,.0f} rows are "
                f"left out; {held.max_rows_per_unit} was declared"
            )
            out[held.key("max_rows_per_unit")] = Remark(text, confirm=True)
        return out
