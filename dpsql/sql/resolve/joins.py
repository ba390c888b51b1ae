"""Joins: FROM as rows of one private table with at most one row of every other table beside each.

A statement's FROM is read as a graph: tables, and equalities between their columns, from ON and USING and, for
inner joins, WHERE alike. One private table is the base: every other one must be reached from it by its whole
declared key, so that a row of the base stays one row. FROM may name the base anywhere: patients JOIN visits is
visits with their patients. Public tables are reached by any columns; private ones along declared
references and only within the base's privacy unit, since a row of another unit would change answers about this one.

All joins are LEFT joins to the scan, which a batch's statements share; an inner join is the condition that a row was
found. Guarantee and proof: ``dpsql.workloads.expr.rows``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.policy import ColumnPolicy, Policy
from dpsql.policy.settings import fix
from dpsql.policy.types import column_type
from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.join_graph import JoinGraph, Placed
from dpsql.sql.resolve.relations import Relation, Relations, relations_of, whole
from dpsql.sql.resolve.relations import conjuncts as conjuncts_of
from dpsql.sql.resolve.row_sources import base_of
from dpsql.sql.values.comparisons import two_sides
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import OF_IN, Scope
from dpsql.workloads.expr.batch import Column, Table
from dpsql.workloads.expr.conditions import TRUE, Condition, LineAtom, conjunction
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.rows import MATCHED
from dpsql.workloads.expr.values import Compared, Stored, stored

# What the rows that EXISTS asks may lie between.
_ALONG = frozenset({"integer", "decimal", "grid", "real", "date", "timestamp"})


@dataclass(frozen=True)
class RowScope:
    """The rows that a statement is about, and what it may name of them.

    ``table`` is the base with the columns of joined tables beside its own; its ``source`` says what the scan reads.
    A row is in FROM where ``condition`` holds; ``where`` is what WHERE and inner joins' ON still ask of it.
    ``schema`` has the DuckDB types of all columns in scope, by name.
    """

    table: Table
    condition: Condition
    where: exp.Expr | None
    schema: Mapping[str, str] = field(repr=False)
    _relations: Relations = field(repr=False)
    _joins: Mapping[int, str] = field(repr=False)  # by relation: the join's name, "" for the base

    @classmethod
    def alone(cls, relation: Relation, where: exp.Expr | None = None) -> RowScope:
        """The rows of one table without joins."""
        return cls(relation.table, TRUE, where, relation.table.schema, Relations((relation,)), {0: ""})

    @property
    def minimum(self) -> int | None:
        """The least count that results show: the largest of what the tables ask for that decide which rows count."""
        held = (relation.table.policy.minimum for relation in self._relations.every)
        return max((each for each in held if each is not None), default=None)

    def find(self, node: exp.Column) -> Column:
        """The column that ``node`` names, of the base or of a joined table; SQLError otherwise.

        ``t.*`` of COUNT(t.*) is what is NULL where a LEFT JOIN found no row of t.
        """
        if isinstance(node.this, exp.Star) and isinstance(node.parent, exp.Count) and not any(node.this.args.values()):
            number = self._relations.named(node)
            name = self._joins[number]
            return _flag(name, always=not name or not self._relations.every[number].outer)
        place = self._relations.place(node)
        relation = self._relations.every[place.relation]
        name = self._joins[place.relation]
        key = place.column if not name else _column_name(name, place.column, relation.outer)
        found = self.table.columns.get(fold(key))
        if found is None and isinstance(node.parent, exp.Is) and OF_IN in node.parent.meta:
            value = Stored(place.column, relation.table.schema[place.column], name)
            return Column(key, value.type, line_of(value.type), ColumnPolicy(key), value)
        if found is None:
            policy = relation.table.policy
            if policy.public:
                kind = column_type(relation.table.schema[place.column])
                raise refuse(
                    f"column {place.column} of {policy.name} is {kind}, a type that is not answered",
                    node,
                    code="unknown-column",
                )
            raise refuse(
                f"column {place.column} of {policy.name} is not declared in the policy, so it cannot be used; "
                f"the custodian may add it under {policy.key('columns')}",
                node,
                code="unknown-column",
            )
        return found

    def stored(self, node: exp.Column) -> Stored | None:
        """The column of the base that ``node`` names, declared or not, as it is stored; None for other columns."""
        place = self._relations.place(node)
        if self._joins[place.relation] or place.column not in self.table.schema:
            return None
        return Stored(place.column, self.table.schema[place.column])

    def is_unit(self, node: exp.Expr) -> bool:
        """Whether an expression is the column that says whose row it is."""
        unit = self.table.source.unit if self.table.source is not None else None
        node = node.unnest()
        if unit is None or not isinstance(node, exp.Column):
            return False
        place = self._relations.place(node)
        name = self._joins[place.relation]
        if name and self._relations.every[place.relation].outer:
            return False  # NULL where nothing is found, whatever the unit
        if name == unit.source and fold(place.column) == fold(unit.name):
            return True
        # A column that equals the unit wherever the join finds a row.
        join = (
            next((join for join in self.table.source.joins if join.name == name), None) if self.table.source else None
        )
        pairs = () if join is None else (*join.pairs, *((join.unit,) if join.unit else ()))
        return any(left == unit and fold(right.name) == fold(place.column) for left, right in pairs)


def read_rows(
    select: exp.Select, policy: Policy, tables: Mapping[str, Table], bases: dict[str, Table] | None = None
) -> RowScope:
    """The rows of a SELECT over tables of the policy.

    ``tables`` are all of them, public ones too, by the policy's names; ``bases`` keeps, by name, the tables that
    statements read alone, with the way to their unit. Raises SQLError, with its place, for joins that
    could give a row of the base twice, reach a private table in another way than by a declared reference,
    or are no equalities; and where no private table is read.
    """
    relations = relations_of(select, policy, tables)
    node = select.args.get("where")
    where = None if node is None else node.this
    if len(relations.every) == 1:
        (relation,) = relations.every
        known = {} if bases is None else bases
        table = known.get(relation.table.name)
        if table is None:
            table = known[relation.table.name] = base_of(relation, policy, tables)
        return RowScope.alone(replace(relation, table=table), where)
    parts = [] if where is None else list(conjuncts_of(where))
    graph = JoinGraph(relations, policy, tables, [*relations.pool, *parts])
    placed = graph.placed()
    left = [part for part in graph.conjuncts if not any(part is used for used in placed.used)]
    rows = _rows(relations, placed, whole(left))
    for number, relation in enumerate(relations.every):
        if relation.nearest is not None:
            placed = _with_nearest(graph, number, relation.nearest, placed, rows)
            rows = _rows(relations, placed, rows.where)
    return rows


def _with_nearest(graph: JoinGraph, number: int, comparison: exp.Binary, placed: Placed, rows: RowScope) -> Placed:
    """``placed`` with a join of rows along a value, which ``comparison`` compares with a value of the row."""
    out = comparison.expression.copy()
    for column in [out] if isinstance(out, exp.Column) else list(out.find_all(exp.Column)):
        named = exp.to_identifier(rows.find(column).name, quoted=True)
        out = named if column is out else out
        column.replace(named)
    relation = graph.relations.every[number]
    operator = {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}[type(comparison)]
    name = f"{relation.table.name}({comparison.this.name} {operator} {out.sql('duckdb', comments=False)})"
    placed = replace(placed, names={**placed.names, number: name})
    rows_read = _rows(graph.relations, placed, None)
    scope = Scope(rows_read.find, Computed(rows_read.table), truth)
    mine, theirs = two_sides(comparison.this, comparison.expression, comparison, scope)
    assert mine.value is not None and theirs.value is not None  # noqa: S101, PT018 - both are computed
    texts = any(column_type(part.type).kind == "text" for part in stored(theirs.value))
    if texts or mine.line.kind not in _ALONG:
        raise refuse(
            "what ties EXISTS or IN to the row beside the unit compares numbers, dates and times alone",
            comparison,
            code="subquery",
        )
    (along,) = stored(mine.value)
    if mine.line.kind == "real" and line_of(along.type).kind != "real":
        # Several of its values would be one DOUBLE, and which of them is the nearest anybody's guess.
        raise refuse(
            "EXISTS and IN are tied to the row by two inequalities of one type; CAST both sides to DOUBLE",
            comparison,
            code="mixed-types",
        )
    join = graph.nearest(number, name, Compared(mine.value, operator, theirs.value), placed)
    joins = tuple(dict.fromkeys((*placed.source.joins, join)))
    return replace(placed, source=replace(placed.source, joins=joins))


def _rows(relations: Relations, placed: Placed, where: exp.Expr | None) -> RowScope:
    """The rows of what is placed."""
    table = replace(placed.base, source=placed.source, columns=dict(placed.base.columns))
    columns = dict(table.columns)
    found: list[Condition] = []
    for number, name in placed.names.items():
        relation = relations.every[number]
        if name:
            columns.update(_columns_of(relation, name))
            flag = _flag(name)
            columns[fold(flag.name)] = flag
            if not relation.outer:
                point = flag.line.point(True)
                assert point is not None  # noqa: S101 - TRUE is a value of every BOOLEAN
                found.append(LineAtom(flag.name, (point,)))
    schema: dict[str, str] = {}
    for relation in relations.every:
        schema = schema if relation.looked_up else {**relation.table.schema, **schema}
    return RowScope(replace(table, columns=columns), conjunction(*found), where, schema, relations, placed.names)


# -- columns of joined tables --------------------------------------------------------------------


def _columns_of(relation: Relation, join: str) -> dict[str, Column]:
    """The columns of a joined table that a statement may use, by folded name.

    In the scan all of them may be NULL, where no row is found; under an inner join the groups of a column are
    those that the policy declares. A public table needs no declaration for a condition on its columns.
    """
    table = relation.table
    held = dict(table.columns)
    if table.policy.public:
        for name, kind in table.schema.items():
            if fold(name) not in held and column_type(kind).kind != "other":
                held[fold(name)] = Column(
                    name, kind, line_of(kind), ColumnPolicy(name, where=table.policy.key("columns", name))
                )
    found = {}
    for column in held.values():
        policy = copy.copy(column.policy)
        fix(policy, "nulls", True)
        name = _column_name(join, column.name, relation.outer)
        never = not relation.outer and not column.policy.nulls
        value = Stored(column.name, column.type, join)
        found[fold(name)] = Column(name, column.type, column.line, policy, value, never)
    return found


def _flag(join: str, *, always: bool = False) -> Column:
    """TRUE where the join found a row, NULL elsewhere; ``always``: where it must have found one."""
    name = f"{join} found"
    policy = ColumnPolicy(name, nulls=not always)
    return Column(name, "BOOLEAN", line_of("BOOLEAN"), policy, Stored(MATCHED, "BOOLEAN", join), always)


def _column_name(join: str, column: str, outer: bool) -> str:
    """How a joined column is called; the columns of a LEFT JOIN, which are NULL without a match, apart."""
    return f"{join}{'?' if outer else ''}.{column}"
