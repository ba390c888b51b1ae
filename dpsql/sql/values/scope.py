"""Scope: what a statement may name, that is the policy's columns with their types and domains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import DataError, PolicyError, nearest
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.values import fold
from dpsql.policy.values import shown as show
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.evaluation import evaluate
from dpsql.workloads.expr.batch import Column, Table, constant
from dpsql.workloads.expr.conditions import Condition
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.within import EVERYTHING, Within

MAX_KEYS = 200_000
OF_IN = "dpsql of in"
"""What marks an IS NULL that IN asks of its left side: it sees no value, so the policy need not declare the column."""


@dataclass(frozen=True)
class Truth:
    """Where an expression is TRUE and where it is FALSE; NULL elsewhere."""

    true: Condition
    false: Condition


@dataclass(frozen=True)
class Scope:
    """What an expression of a statement may name: ``resolve`` finds columns, ``computed`` keeps what it computes.

    Values hold conditions and conditions compare values. ``conditions`` is the reader of conditions,
    ``predicates.truth``, through which ``expressions`` below it reads those inside CASE. ``within`` is what holds of
    every row that the statement reads.
    """

    resolve: Callable[[exp.Column], Column]
    computed: Computed
    conditions: Callable[[exp.Expr, Scope], Truth]
    within: Within = EVERYTHING

    def truth(self, node: exp.Expr) -> Truth:
        """Where a condition inside a value is TRUE and FALSE."""
        return self.conditions(node, self)

    def column(self, name: str) -> Column:
        """The column of that very name, stored or computed."""
        return self.computed.named(name)


def uncapped_table(policy: TablePolicy, schema: Mapping[str, str]) -> Table:
    """Join a table's policy with its schema (column name -> DuckDB type).

    Assumes that ``check_schema`` has passed. Raises PolicyError where a declared value has no
    place in its column.
    """
    types = {fold(name): (name, kind) for name, kind in schema.items()}
    columns = {}
    for declared in policy.columns.values():
        name, kind = types[fold(declared.name)]
        column = Column(name, kind, line_of(kind), declared)
        try:
            column.closed  # noqa: B018 - every declared value must have a place on the line
        except DataError as error:
            raise PolicyError(f"{policy.key('columns', name, 'values')}: {error}") from None
        columns[fold(name)] = column
    return Table(policy.name, policy, columns, dict(schema), evaluate=evaluate)


def find_table(node: exp.Table, policy: Policy, tables: Mapping[str, Table]) -> Table:
    """The private table that FROM names: ``name``, ``schema.name`` or ``main.name``."""
    if node.args.get("catalog"):
        raise refuse("write the table as name or schema.name, as the policy does", node, code="unknown-table")
    parts = [part for part in (node.args.get("db"), node.this) if part]
    if not all(isinstance(part, exp.Identifier) for part in parts):
        raise refuse("only tables of the policy can be read, no functions or files", node, code="not-a-table")
    written = ".".join(part.name for part in parts)
    candidates = {fold(written)}
    if len(parts) == 2 and fold(parts[0].name) == "main":
        candidates.add(fold(parts[1].name))
    if len(parts) == 1:
        candidates.add(f"main.{fold(written)}")
    for name, table in tables.items():
        if fold(name) in candidates:
            return table
    for name, declared in policy.tables.items():
        if fold(name) in candidates and declared.public:
            raise refuse(
                f"{written} is public: query it directly, it needs no privacy budget", node, code="public-table"
            )
    raise refuse(f"the policy has no table {written}: {nearest(written, tables)}", node, code="unknown-table")


def refuse_unit(what: str, column: Column, table: Table, node: exp.Expr, code: str = "no-bounds") -> None:
    """Refuse what asks for bounds or values of the very column that says whose row it is."""
    unit = table.source.unit if table.source is not None else None
    if unit is None or unit.source or table.source is None:
        return
    joined = [pair for join in table.source.joins for pair in join.pairs]
    if fold(unit.name) != fold(column.name) and (unit, column.value) not in joined:
        return
    name = unit.name
    raise refuse(
        f"{what} looks at single units, and {name} says whose row it is: COUNT(DISTINCT {name}) counts them; a "
        f"subquery in FROM that groups by {name} has a row for each, with COUNT(*), SUM and the like of its rows",
        node,
        code=code,
    )


def declaring(what: str, policy: ColumnPolicy, instead: str) -> str:
    """What to do where a column's values or bounds are unknown; ``instead`` for one that is computed."""
    return f"add {what} to {policy.where} in the policy" if policy.declared else instead


def _groups_of(column: Column, text: str) -> str:
    """What makes groups of a column that the policy declares none for."""
    policy, kind = column.policy, column.line.kind
    around = "write a CASE with constant results around it"
    if kind in {"timestamp", "timestamptz"}:
        moment = text if kind == "timestamp" else f"CAST({text} AS TIMESTAMP)"
        bounds = declaring("lower and upper", policy, "") if policy.lower is None else ""
        return f"{bounds + ', and ' if bounds else ''}group by a part of it, such as date_trunc('month', {moment})"
    if kind in {"integer", "date"}:
        return declaring("values, or lower and upper,", policy, around)
    if column.line.numeric:
        low, high = policy.lower, policy.upper
        ends = "0, 100" if low is None or high is None else f"{show(low)}, {show(high)}"
        return f"{declaring('values', policy, around)}, or group by WIDTH_BUCKET({text}, {ends}, 10)"
    return declaring("values", policy, around)


def key_domain(column: Column, table: Table, node: exp.Expression) -> KeyDomain:
    """The groups of a GROUP BY column, from the policy alone."""
    policy = column.policy
    size = policy.size(column.type) or 0
    if size > MAX_KEYS:
        raise refuse(
            f"{shown(node)} has {size:,} groups; at most {MAX_KEYS:,} numbers are released by a statement: group by a "
            "coarser expression",
            node,
            code="too-many-groups",
        )
    values: Iterable[object] | None = policy.domain(column.type)
    if values is None and column.line.kind == "boolean":
        values = (False, True)
    if values is None:
        refuse_unit(f"GROUP BY {shown(node)}", column, table, node, "unknown-groups")
        remedy = _groups_of(column, shown(node))
        raise refuse(f"GROUP BY {shown(node)} needs its groups declared: {remedy}", node, code="unknown-groups")
    constants = tuple(constant(value) for value in values)
    points = tuple(column.line.point(value) for value in constants)
    kind = "VARCHAR" if column.type.upper().startswith("ENUM") else column.type
    nulls = policy.nulls and not column.never_null
    return KeyDomain(column.name, kind, tuple(values), points, policy.other, nulls, policy.other_label)  # type: ignore[arg-type]
