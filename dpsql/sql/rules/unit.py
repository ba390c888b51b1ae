"""Unit: the privacy unit of each row, how many rows of each unit are counted, and columns computed from them.

The joins that lead from a row to its unit are among those that ``join`` makes (``resolve/row_sources.py``).

    >>> stage("unit", "SELECT COUNT(*) AS n FROM visits")
    a row belongs to person
    at most 3 rows of each unit are counted
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from dpsql.sql.rules.join import Joined, column_text
from dpsql.sql.rules.rule import Rule
from dpsql.sql.values.computed import Computed
from dpsql.workloads.expr.rows import RowSource


@dataclass(frozen=True)
class Owned(Joined):
    """A SELECT with its rows, and with the columns that the batch computes of them."""

    computed: Computed


def _broken(given: Joined) -> exp.Expr | None:
    table, tables = given.rows.table, given.context.tables
    read = () if table.source is None else (join.table for join in table.source.joins)
    return None if table.source is not None and {table.name, *read} <= tables.keys() else given.tree


def _owned(given: Joined) -> Owned:
    table, computed = given.rows.table, given.context.computed
    if table.name not in computed:
        computed[table.name] = Computed(table)
    return Owned(**vars(given), computed=computed[table.name].over(table))


def _text(given: Owned) -> str:
    source = given.rows.table.source
    if source is None or source.unit is None:
        return "each row is a unit of its own"
    return "\n".join([f"a row belongs to {column_text(source.unit)}", *_limits(source)])


def _limits(source: RowSource) -> Iterator[str]:
    yield f"at most {source.limit:,} {'row of each unit is' if source.limit == 1 else 'rows of each unit are'} counted"
    yield from (f"at most {cap.text}" for cap in source.caps)


UNIT: Rule[Joined, Owned] = Rule(
    "unit",
    "the privacy unit of each row, and how many rows of each unit are counted",
    "that the rows and all that is joined to them are those of tables of the policy or of their units",
    broken=_broken,
    apply=_owned,
    text=_text,
)
