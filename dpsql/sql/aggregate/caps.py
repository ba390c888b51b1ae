"""What a policy's ``at_most`` says of a table: its expressions as groups of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsql.errors import PolicyError, SQLError
from dpsql.policy import TablePolicy
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.relations import Relation
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope, uncapped_table
from dpsql.workloads.expr.batch import CaseKey, Key, Table
from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.rows import Cap


def capped_table(policy: TablePolicy, schema: Mapping[str, str]) -> Table:
    """``uncapped_table`` with the bounds of ``at_most``.

    Raises PolicyError, too, where ``per`` is no expression over declared columns of the table with finitely many
    public values.
    """
    table = uncapped_table(policy, schema)
    if not policy.at_most:
        return table
    computed = Computed(table)
    rows = RowScope.alone(Relation(table.name, table, exp.to_table(table.name)))
    scope = Scope(rows.find, computed, truth)
    caps = []
    for i, bound in enumerate(policy.at_most):
        where = f"{policy.key('at_most')}[{i}].per"
        try:
            key = key_of(_expression(bound.per), scope)
        except SQLError as error:
            said = str(error.args[0]).removesuffix(f" (line {error.line}, column {error.column})")
            raise PolicyError(f"{where} is {bound.per}: {said}") from None
        parts = _parts(key)
        if parts is None:
            raise PolicyError(
                f"{where} is {bound.per}; name a column with declared values or bounds, or an expression of one column "
                "with a small range, such as month(day)"
            )
        column = computed.named(parts[0].column)
        caps.append(Cap(column.name, column.line, column.value, parts, bound.rows, bound.groups, str(bound)))
    return replace(table, caps=tuple(caps))


def _parts(key: Key) -> tuple[LineAtom, ...] | None:
    """Where each declared group is, over one column; None where the groups are of another kind."""
    if isinstance(key, KeyDomain):
        return tuple(LineAtom(key.column, (point,)) for point in key.points if point is not None) or None
    if not isinstance(key, CaseKey):
        return None
    parts = [one for one in key.conditions if isinstance(one, LineAtom)]
    if len(parts) < len(key.conditions) or len({one.column for one in parts}) != 1:
        return None
    return tuple(one for one in parts if not one.on_null) or None


def _expression(text: str) -> exp.Expr:
    """One expression of DuckDB. SQLError for anything else."""
    try:
        found = sqlglot.parse(f"SELECT {text}", read="duckdb")
    except (SqlglotError, RecursionError):
        found = []
    select = found[0] if len(found) == 1 else None
    if isinstance(select, exp.Select) and len(select.expressions) == 1:
        item = select.expressions[0]
        plain = not any(value for name, value in select.args.items() if name != "expressions")
        if plain and isinstance(item, exp.Expr) and not isinstance(item, exp.Alias):
            return item
    raise SQLError("it is no expression; write one, such as month(day)")
