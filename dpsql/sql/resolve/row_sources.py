"""Row sources: the rows of one private table, and the joins that lead from a row to the unit it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpsql.policy import Policy
from dpsql.policy.types import column_type
from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.relations import Relation
from dpsql.workloads.expr.batch import Table
from dpsql.workloads.expr.rows import Join, RowSource
from dpsql.workloads.expr.values import Stored


def base_of(relation: Relation, policy: Policy, tables: Mapping[str, Table]) -> Table:
    """The relation's table as the base of a scan, with the way to its unit."""
    table = relation.table
    if table.policy.public:
        name = table.policy.name
        raise refuse(
            f"{name} is public: query it directly, it needs no privacy budget", relation.node, code="public-table"
        )
    if table.policy.counts is not None:
        raise refuse(
            f"{table.policy.key('counts')}: pre-aggregated tables are not answered; give one row per unit",
            relation.node,
        )
    return replace(table, source=source_of(table, policy, tables))


def source_of(table: Table, policy: Policy, tables: Mapping[str, Table]) -> RowSource:
    """The rows of a private table alone, with the joins that lead to its unit; of rows of units, as they were made."""
    if table.source is not None:
        return table.source
    unit = policy.units[table.name]
    if unit is None:
        return RowSource(table.name, protects=policy.labels[table.name])
    joins: list[Join] = []
    name, at = "", table
    for step, key in enumerate(unit.path):
        target = _table(tables, key.table)
        decides = unit.path[step + 1].columns if step + 1 < len(unit.path) else (unit.column,)
        joined = join_name(name, key.table, key.columns)
        joins.append(
            Join(
                joined,
                target.name,
                tuple(
                    (stored(at, column, name), stored(target, other, joined))
                    for column, other in zip(key.columns, key.key, strict=True)
                ),
                first=tuple(stored(target, column, joined) for column in decides),
                private=True,
                order=order_of(target, joined),
            )
        )
        name, at = joined, target
    limit = 1 if table.policy.max_rows_per_unit is None else table.policy.max_rows_per_unit
    single = not joins and [fold(name) for name in table.policy.unique] == [fold(unit.column)]
    declared = table.columns.get(fold(unit.column))
    return RowSource(
        table.name,
        tuple(joins),
        stored(at, unit.column, name),
        tuple(join.name for join in joins),
        limit,
        policy.labels[table.name],
        caps=table.caps,
        single=single,
        order=order_of(table) if single and limit == 1 else (),
        given=not joins and declared is not None and not declared.policy.nulls,
    )


def order_of(table: Table, source: str = "") -> tuple[Stored, ...]:
    """The columns whose least row is taken where several rows of a unit have one key, ``source`` as in ``stored``.

    All that the policy declares, in its order, then the others that its settings name: the unit, the key, references.
    So ties are equal in all that a batch may read of a private row. Values of other types are never read.
    """
    names = dict.fromkeys(fold(name) for name in (*table.policy.columns, *table.policy.named_columns))
    columns = [stored(table, name, source) for name in names if name in map(fold, table.schema)]
    types = [column_type(column.type) for column in columns]
    return tuple(c for c, kind in zip(columns, types, strict=True) if kind.kind != "other" or kind.name == "UUID")


def _table(tables: Mapping[str, Table], name: str) -> Table:
    return next(table for known, table in tables.items() if fold(known) == fold(name))


def stored(table: Table, column: str, source: str) -> Stored:
    """A column of a table, by its name in any case, as the scan reads it from ``source``, a join or "" for the base."""
    name = next(known for known in table.schema if fold(known) == fold(column))
    return Stored(name, table.schema[name], source)


def join_name(source: str, table: str, columns: Sequence[str]) -> str:
    """A name that says what is joined by what: "patients(patient_id)", one name for one join in any statement."""
    prefix = f"{source}." if source else ""
    return f"{table}({', '.join(prefix + column for column in columns)})"
