"""A limit on what one unit has, found privately: noise against what is cut, for every limit of a scale.

Four limits of a policy: what a unit adds to a sum, its rows for each value of a column, in how many values it has rows
(``at_most``), and its rows in all (``max_rows_per_unit``). For the first three a batch like any other counts units by
what each has, so that a unit moves the counts by 1 in all; with ``per``, units and groups, by what they have there. For
the last the histogram of the ledger is read that says what limits cut (``loss_histograms``). All else is
post-processing of the counts (``limit_candidates``).

Of a sum with values of both signs totals are counted by size, -B to B is the bound, and what is cut on both sides is
added up: a sum is wrong by at most that. What a unit has beyond the largest limit counts as that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from dpsql.common.arrays import Row
from dpsql.common.numerics import ALPHA
from dpsql.common.quoting import dotted, identifier
from dpsql.errors import DataError, PolicyError
from dpsql.extensions.discovery.discovery import Discovery
from dpsql.extensions.discovery.limit_candidates import Candidate, candidates_of
from dpsql.extensions.discovery.row_counts import has_units
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.at_most import AtMost
from dpsql.policy.text import bound_text
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.values import Bound, fold, shown
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.state import BudgetState
from dpsql.reconstruct.intervals import half_widths
from dpsql.reconstruct.unit_histogram import UnitHistogram, ends_of
from dpsql.release import Result
from dpsql.release.names import check_name
from dpsql.sql.caps import bounded_table
from dpsql.workloads.expr.batch import Column, Table

_STEPS = tuple(map(Fraction, ("1", "1.5", "2", "3", "5", "7")))  # about equal factors, 10^(1/6)
_DECADES = 5  # of bounds on a sum, below the largest total
_MOST_CUT = 0.5  # of the total; the table leaves out limits that cut more
Kind = Literal["sum", "rows", "groups"]


@dataclass(frozen=True, repr=False)
class UnitLimit(Discovery):
    """A limit on what one unit has: the ``candidates``, and ``chosen``, the one of least expected squared error.

    ``result`` is the table of them, ``limit`` the chosen one, ``bounds`` those of a sum, ``outside`` the share that it
    cuts of all, ``to_toml()`` the line of the policy; ``name`` is the view of the counts that all of it follows from.
    """

    candidates: tuple[Candidate, ...] = ()
    chosen: int | None = None
    bound: AtMost | None = None

    @property
    def limit(self) -> Fraction | None:
        """The limit of least error; None where too few units have rows for this budget."""
        return None if self.chosen is None else self.candidates[self.chosen].bound

    @property
    def bounds(self) -> tuple[Bound, Bound] | None:
        """Lower and upper bound of a sum, where one was found."""
        bound = self.bound
        return None if bound is None or bound.upper is None else (bound.lower or Fraction(0), bound.upper)

    def to_toml(self) -> str:
        """The line by which the policy declares the limit, in the table beside ``unit``."""
        if self.limit is None:
            return ""
        return f"at_most = [{bound_text(self.bound)}]" if self.bound else f"max_rows_per_unit = {shown(self.limit)}"

    def __repr__(self) -> str:
        limit = self.to_toml() or "no limit"
        return f"UnitLimit(id={self.id}, {self.table}: {limit}, cost={self.cost:.9g}, guarantee={self.guarantee!r})"


@dataclass(frozen=True)
class LimitQuestion:
    """The question: what each unit of ``table`` has, or each unit and value of a column, for limits of one kind.

    ``edges`` are all limits, rising; ``bound`` is the largest as ``at_most`` says it, None of ``max_rows_per_unit``.
    ``column``: whose limit it is. ``by`` and ``counted`` are the groups and aggregates of each unit, ``value`` what it
    has, in SQL; ``groups``: how many groups a unit may be in of a column without a domain.
    """

    kind: Kind
    policy: Policy
    table: TablePolicy
    column: ColumnPolicy
    bound: AtMost | None
    edges: tuple[Fraction, ...]
    by: tuple[str, ...] = ()
    counted: str = "COUNT(*) AS n"
    value: str = "n"
    groups: int | None = None

    @classmethod
    def of(cls, kind: Kind, policy: Policy, schemas: Schemas, target: str, per: str | None) -> LimitQuestion:
        """Checked: of "visits.cost" or an expression for sums, "visits" for rows, "visits.ward" for groups.

        PolicyError where units have nothing of the kind, or nothing with a public largest amount.
        """
        table, what = _parts(policy, target, kind)
        if kind == "rows" and per is None:
            edges = tuple(map(Fraction, ends_of(table.largest_unit or table.max_rows_per_unit or 1)))
            return cls(kind, policy, table, ColumnPolicy("rows"), None, edges)
        if fold(table.unit) in {fold(text) for text in (per, what) if text}:
            raise PolicyError(f"{table.unit} is the unit itself; name what its rows differ in, or leave per out")
        if kind == "sum":
            return cls._of_sum(policy, table, schemas, what, per)
        return cls._of_groups(kind, policy, table, schemas, what or per or "")

    @classmethod
    def _of_groups(cls, kind: Kind, policy: Policy, table: TablePolicy, schemas: Schemas, per: str) -> LimitQuestion:
        most = _most_rows(policy, table)
        column = table.columns.get(per)
        open_ = kind == "groups" and column is not None and column.values is None and column.lower is None
        size = most
        if not open_:
            size = _bounds(table, schemas, AtMost(_named(table, per), rows=1)).caps[0].axis.size
        of, unit = _sql(table, per), identifier(table.unit)
        largest = min(most, size) if kind == "groups" else most
        bound, edges = _limit(kind, _named(table, per), largest), tuple(map(Fraction, ends_of(largest)))
        column = column or ColumnPolicy(per)
        if kind == "rows":
            return cls(kind, policy, table, column, bound, edges, (unit, of))
        counted = f"COUNT(*) AS n, COUNT({of}) AS c, COUNT(DISTINCT {of}) AS m"
        value = "CASE WHEN n > c THEN m + 1 ELSE m END"  # rows without a value are a group of their own
        return cls(kind, policy, table, column, bound, edges, (unit,), counted, value, most if open_ else None)

    @classmethod
    def _of_sum(cls, policy: Policy, table: TablePolicy, schemas: Schemas, what: str, per: str | None) -> LimitQuestion:
        most = _most_rows(policy, table)
        by = None if per is None else _named(table, per)
        bound = AtMost(by, sum=_named(table, what), lower=Fraction(-1), upper=Fraction(1))
        summed = _bounds(table, schemas, bound).sums[0].column
        low, high = summed.ends
        if low == high == 0:
            raise PolicyError(f"{summed.policy.where} has bounds that leave 0 alone, so that every total is 0")
        largest = max(-low, high) * most
        bound = replace(bound, lower=-largest if low < 0 else None, upper=largest if high > 0 else Fraction(0))
        of, real = _sql(table, what), summed.line.kind == "real"
        if real and (summed.value is not None or summed.policy.step is None):
            digits = min(15, max(0, 6 - math.floor(math.log10(max(-low, high)))))
            of = f"CAST({of} AS DECIMAL(18, {digits}))"
        groups = (identifier(table.unit), *([] if per is None else [_sql(table, per)]))
        column, value = table.columns.get(what) or ColumnPolicy(what), "ABS(s)" if low < 0 else "s"
        edges = _edges(largest, summed)
        return cls("sum", policy, table, column, bound, edges, groups, f"SUM({of}) AS s", value)

    @property
    def name(self) -> str:
        """The view of the counts."""
        what = {"sum": f"{self.column.name}_totals", "rows": "rows", "groups": "groups"}[self.kind]
        by = "" if self.bound is None or self.bound.per is None else f"_by_{self.bound.per}"
        return f"{self.table.name}_{what}{by}".replace(".", "_").replace('"', "")

    @property
    def sql(self) -> str:
        """The batch: units, or units and groups, by bucket."""
        check_name(self.name)
        by = ", ".join(self.by)
        cases = " ".join(f"WHEN {self.value} <= {shown(edge)} THEN {at}" for at, edge in enumerate(self.edges[:-1], 1))
        nothing = "WHEN s IS NULL THEN 0" if self.kind == "sum" else "WHEN FALSE THEN 0"
        return (
            f"CREATE OR REPLACE VIEW {identifier(self.name)} AS "
            f"FROM (FROM {dotted(self.table.name)} SELECT {by}, {self.counted} GROUP BY {by}) "
            f"SELECT CASE {nothing} {cases} ELSE {len(self.edges)} END AS bucket, COUNT(*) AS units GROUP BY 1"
        )

    def at(self, edge: Fraction) -> AtMost | None:
        """The limit as ``at_most`` says it."""
        bound = self.bound
        if bound is None or self.kind != "sum":
            return None if bound is None else _limit(self.kind, bound.per, int(edge))
        lower = None if bound.lower is None else -edge
        return replace(bound, lower=lower, upper=edge if bound.upper else Fraction(0))

    def noise(self, schemas: Schemas, state: BudgetState, request: Request) -> tuple[list[float], int]:
        """The standard error of an answer under each limit, on average over its numbers, and how many these are.

        Of SUM, by ``per``; of COUNT(*), by ``per``; of COUNT(DISTINCT unit) by the column whose groups are limited, of
        which there are so many as a unit may have where it has no domain.
        """
        if self.groups is not None:
            return [count_noise(int(k), int(k), request, state.budget) for k in self.edges], self.groups
        if self.bound is None:
            return [count_noise(int(k), int(k) ** 2, request, state.budget) for k in self.edges], 1
        # Proportional to bounds that one row can reach; above them fewer rows than bounds may say more.
        one_row = self.edges[-1] / (self.table.max_rows_per_unit or 1)
        at = 0 if self.kind != "sum" else max(0, sum(edge <= one_row for edge in self.edges) - 1)
        bounds = (self.at(edge) for edge in self.edges[at:])
        plans = [self._answer(bound, schemas, state, request) for bound in bounds if bound is not None]
        noise = [math.sqrt(float(np.mean(np.square(np.asarray(plan.errors))))) for plan in plans]
        return [noise[0] * float(edge / self.edges[at]) for edge in self.edges[:at]] + noise, len(plans[0].errors)

    def _answer(self, bound: AtMost, schemas: Schemas, state: BudgetState, request: Request) -> Plan:
        others = (one for one in self.table.at_most if one.sum is None and (bound.sum or one.per != bound.per))
        table = replace(self.table, at_most=(*others, bound))
        unit, groups = identifier(table.unit), f" GROUP BY {bound.per}" if bound.per else ""
        what = {"sum": f"SUM({bound.sum})", "rows": "COUNT(*)", "groups": f"COUNT(DISTINCT {unit})"}[self.kind]
        policy = replace(self.policy, tables={**self.policy.tables, table.name: table})
        sql = f"FROM {dotted(table.name)} SELECT {what} AS s{groups}"
        return make_plan(sql, policy, schemas, state, request, PlanOptions(earlier=False))

    def limit(
        self, rows: Sequence[Row], noise: tuple[Sequence[float], int], of: tuple[int, float, str], name: str
    ) -> UnitLimit:
        """What counts of units say of every limit: bucket, units, and their standard error and interval.

        ``of``: number, cost and guarantee of their release; ``name``: their view.
        """
        buckets = sorted(row for row in rows if row[0] is not None and int(row[0]) > 0)
        candidates, chosen = candidates_of(buckets, self.edges, *noise, whole=self.kind != "sum")
        half = [one for at, one in enumerate(candidates) if one.share <= _MOST_CUT or at == chosen]
        marks = ["<" if chosen is not None and one is candidates[chosen] else "" for one in half]
        figures = [(f.name, "DOUBLE", [float(getattr(one, f.name)) for one in half]) for f in fields(Candidate)]
        table = Result.from_columns([*figures, ("least", "VARCHAR", marks)])
        least, outside = (None, 1.0) if chosen is None else (candidates[chosen].bound, candidates[chosen].share)
        bound = None if least is None else self.at(least)
        number, cost, guarantee = of
        release = (number, self.table.name, self.column, cost, guarantee, table, name, outside)
        return UnitLimit(*release, candidates=candidates, chosen=chosen, bound=bound)


def rows_of(histogram: UnitHistogram) -> list[Row]:
    """The buckets of a histogram of the ledger, as a release shows them."""
    error = math.sqrt(histogram.noise.variance)
    half = half_widths(np.ones((1, 1)), histogram.noise, ALPHA)[0]
    return [(at, n, error, n - half, n + half) for at, n in enumerate(histogram.units, 1)]


def count_noise(l1: int, squared: int, request: Request, budget: Budget) -> float:
    """The standard error of counts that one unit moves by ``l1`` in all, and by ``squared`` in squared L2 norm."""
    charges = charge_for(request, budget)
    laws = [charge.calibrate(squared if charge.noise == "gaussian" else l1) for charge in charges]
    return math.sqrt(min(law.variance for law in laws))


def _parts(policy: Policy, target: str, kind: Kind) -> tuple[TablePolicy, str]:
    """The table that a target names, the longest where several do, and what follows it."""
    tables = sorted(policy.tables, key=len, reverse=True)
    name = next((name for name in tables if fold(f"{target}.").startswith(fold(f"{name}."))), None)
    if name is None:  # which says so
        return policy.table(target.partition(".")[0]), ""
    what = target[len(name) + 1 :].strip()
    if (kind == "rows") == bool(what):
        form = 'a table, as in "visits"' if kind == "rows" else 'a table and a column, as in "visits.cost"'
        raise DataError(f"discover() needs {form}")
    return policy.table(name), what


def _most_rows(policy: Policy, table: TablePolicy) -> int:
    """How many rows of a unit are declared. PolicyError where that, or whose a row is, is not public."""
    if table.public or table.counts is not None or not has_units(policy, table):
        raise PolicyError(
            f"{table.where} has no column that says whose a row is, so that nobody has a total; name one as unit, "
            "or find bounds of single values with bounds=True"
        )
    if table.max_rows_per_unit is None or table.periods is not None:
        periods = "" if table.periods is None else " in all periods together"
        raise PolicyError(f"{table.where} has no public largest number of rows of a unit{periods}")
    if table.minimum is not None:
        raise PolicyError(f"{table.key('minimum')} hides small counts, and what a bound cuts is not known then")
    return table.max_rows_per_unit


def _limit(kind: Kind, per: str | None, most: int) -> AtMost:
    return AtMost(per, rows=most) if kind == "rows" else AtMost(per, groups=most)


def _bounds(table: TablePolicy, schemas: Schemas, bound: AtMost) -> Table:
    return bounded_table(table, schemas[table.name], {"discover()": bound})


def _sql(table: TablePolicy, what: str) -> str:
    """A declared column, quoted, or an expression."""
    return identifier(what) if fold(what) in map(fold, table.columns) else what


def _named(table: TablePolicy, what: str) -> str:
    """The same as a policy says it."""
    return what if what.isidentifier() else _sql(table, what)


def _edges(largest: Fraction, summed: Column) -> tuple[Fraction, ...]:
    """The ends of the buckets of totals, rising by about equal factors; the last is the largest of declared rows."""
    kind = column_type(summed.type)
    step = Fraction(1, 10**kind.scale) if kind.kind in ("integer", "decimal") else Fraction(0)
    step = step if summed.line.kind != "grid" else summed.policy.step or Fraction(0)
    power = math.floor(math.log10(largest)) - _DECADES
    every = (Fraction(10) ** (power + up) * times for up in range(_DECADES + 1) for times in _STEPS)
    return (*(e for e in every if e < largest and (not step or e % step == 0)), largest)
