"""Joins: FROM as rows of one private table with at most one row of every other table beside each.

A statement's FROM is read as a graph: tables, and equalities between their columns, from ON and USING and, for
inner joins, WHERE alike. One private table is the base: every other one must be reached from it by its whole
declared key, so that a row of the base stays one row. FROM may name the base anywhere: patients JOIN visits is
visits with their patients. Public tables are reached by any columns; private ones along declared
references and only within the base's privacy unit, since a row of another unit would change answers about this one.

All joins are LEFT joins to the scan, which a batch's statements share; an inner join is the condition that a row was
found. Guarantee and proof: ``dpsql.workload.rows``.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.errors import InternalError, SQLError
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.settings import fix
from dpsql.policy.types import column_type, joinable
from dpsql.policy.units import ForeignKey, foreign_keys
from dpsql.policy.values import fold
from dpsql.sql.relations import Equality, Place, Relation, Relations, relations_of, whole
from dpsql.sql.relations import conjuncts as conjuncts_of
from dpsql.sql.statements import refuse
from dpsql.workload.batch import CaseKey, Column, Key, Table
from dpsql.workload.conditions import TRUE, Condition, LineAtom, conjunction
from dpsql.workload.lines import line_of
from dpsql.workload.rows import MATCHED, Join, RowSource
from dpsql.workload.rows import united as united_sources
from dpsql.workload.values import Stored


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

    def find(self, node: exp.Column) -> Column:
        """The column that ``node`` names, of the base or of a joined table; SQLError otherwise."""
        place = self._relations.place(node)
        relation = self._relations.every[place.relation]
        name = self._joins[place.relation]
        key = place.column if not name else _column_name(name, place.column, relation.outer)
        found = self.table.columns.get(fold(key))
        if found is None:
            policy = relation.table.policy
            if policy.public:
                kind = column_type(relation.table.schema[place.column])
                raise refuse(f"column {place.column} of {policy.name} is {kind}, a type that is not answered", node)
            raise refuse(
                f"column {place.column} of {policy.name} is not declared in the policy, so it cannot be used; "
                f"the custodian may add it under {policy.key('columns')}",
                node,
            )
        return found

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


def read_rows(select: exp.Select, policy: Policy, tables: Mapping[str, Table]) -> RowScope:
    """The rows of a SELECT over tables of the policy.

    ``tables`` are all of them, public ones too, by the policy's names. Raises SQLError, with its place, for joins that
    could give a row of the base twice, reach a private table in another way than by a declared reference,
    or are no equalities; and where no private table is read.
    """
    relations = relations_of(select, policy, tables)
    node = select.args.get("where")
    where = None if node is None else node.this
    if len(relations.every) == 1:
        (relation,) = relations.every
        table = _base(relation, policy, tables)
        return RowScope(table, TRUE, where, table.schema, relations, {0: ""})
    parts = [] if where is None else list(conjuncts_of(where))
    graph = _Graph(relations, policy, tables, [*relations.pool, *parts])
    placed = graph.placed()
    left = [part for part in graph.conjuncts if not any(part is used for used in placed.used)]
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
        schema = {**relation.table.schema, **schema}
    return RowScope(replace(table, columns=columns), conjunction(*found), whole(left), schema, relations, placed.names)


def unit_of(rows: RowScope, node: exp.Expr) -> bool:
    """Whether COUNT(DISTINCT node) over these rows counts their privacy units."""
    return rows.is_unit(node)


def distinct_table(table: Table, condition: Condition, keys: Sequence[Key]) -> Table:
    """``table`` as units: one Query over it, with these keys and one count of ``condition``, counts units with a row.

    The name is fresh, one for equal tables, conditions and keys. Each unit counts in at most
    ``max_rows_per_unit`` groups, and not where it is NULL. Groups must not overlap (compile refuses them).
    Raises InternalError for a table of single rows.
    """
    if table.source is None or table.source.unit is None:
        raise InternalError(f"{table.name} has no unit to count")
    asked = [
        (key.name, key.labels, key.conditions) if isinstance(key, CaseKey) else (key.column, len(key)) for key in keys
    ]
    mark = hashlib.sha256(repr((condition, asked)).encode()).hexdigest()[:16]
    name = f"{table.name} by {table.source.unit.name} #{mark}"
    return replace(table, name=name, source=replace(table.source, distinct=True))


def united(tables: Iterable[Table]) -> dict[str, Table]:
    """One table for each name, with the columns and joins of all tables of that name.

    Raises InternalError where two of them mean different things by one column.
    """
    found: dict[str, dict[int, Table]] = {}
    for table in tables:
        found.setdefault(table.name, {})[id(table)] = table
    return {name: _union(list(mates.values())) for name, mates in found.items()}


def _union(tables: Sequence[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    columns: dict[str, Column] = {}
    for table in tables:
        for name, column in table.columns.items():
            before = columns.setdefault(name, column)
            if before is not column and (before.value, before.type, before.line) != (
                column.value,
                column.type,
                column.line,
            ):
                raise InternalError(f"two columns of {table.name} are named {column.name}")
    sources = list(dict.fromkeys(table.source for table in tables if table.source is not None))
    return replace(tables[0], columns=columns, source=united_sources(sources) if sources else None)


# -- the base and its unit -----------------------------------------------------------------------


def _base(relation: Relation, policy: Policy, tables: Mapping[str, Table]) -> Table:
    """The relation's table as the base of a scan, with the way to its unit."""
    table = relation.table
    if table.policy.public:
        raise refuse(f"{table.name} is public: query it directly, it needs no privacy budget", relation.node)
    if table.policy.counts is not None:
        raise refuse(
            f"{table.policy.key('counts')}: pre-aggregated tables are not answered; give one row per unit",
            relation.node,
        )
    return replace(table, source=source_of(table, policy, tables))


def source_of(table: Table, policy: Policy, tables: Mapping[str, Table]) -> RowSource:
    """The rows of a private table alone, with the joins that lead to its unit."""
    unit = policy.units[table.name]
    if unit is None:
        return RowSource(table.name, protects=policy.labels[table.name])
    joins: list[Join] = []
    name, at = "", table
    for step, key in enumerate(unit.path):
        target = _table(tables, key.table)
        decides = unit.path[step + 1].columns if step + 1 < len(unit.path) else (unit.column,)
        joined = _join_name(name, key.table, key.columns)
        joins.append(
            Join(
                joined,
                target.name,
                tuple(
                    (_stored(at, column, name), _stored(target, other, joined))
                    for column, other in zip(key.columns, key.key, strict=True)
                ),
                first=tuple(_stored(target, column, joined) for column in decides),
                private=True,
            )
        )
        name, at = joined, target
    limit = table.policy.max_rows_per_unit
    return RowSource(
        table.name,
        tuple(joins),
        _stored(at, unit.column, name),
        tuple(join.name for join in joins),
        1 if limit is None else limit,
        policy.labels[table.name],
    )


def _table(tables: Mapping[str, Table], name: str) -> Table:
    return next(table for known, table in tables.items() if fold(known) == fold(name))


def _stored(table: Table, column: str, source: str) -> Stored:
    name = next(known for known in table.schema if fold(known) == fold(column))
    return Stored(name, table.schema[name], source)


def _join_name(source: str, table: str, columns: Sequence[str]) -> str:
    """A name that says what is joined by what: "patients(patient_id)", one name for one join in any statement."""
    prefix = f"{source}." if source else ""
    return f"{table}({', '.join(prefix + column for column in columns)})"


def _column_name(join: str, column: str, outer: bool) -> str:
    """How a joined column is called; the columns of a LEFT JOIN, which are NULL without a match, apart."""
    return f"{join}{'?' if outer else ''}.{column}"


# -- the graph -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Placed:
    """A base with everything else joined to it; ``used`` are the conjuncts that the joins stand for."""

    base: Table
    source: RowSource
    names: Mapping[int, str]
    used: tuple[exp.Expr, ...]


class _Graph:
    """Relations and the equalities between them."""

    def __init__(
        self, relations: Relations, policy: Policy, tables: Mapping[str, Table], conjuncts: Sequence[exp.Expr]
    ) -> None:
        self.relations = relations
        self.policy = policy
        self.tables = tables
        self.conjuncts = list(conjuncts)
        every = relations.every
        free = [edge for part in self.conjuncts for edge in [relations.equality(part)] if edge is not None]
        free += [edge for number, edge in relations.using if not every[number].outer]
        # By relation, the equalities that may reach it: a LEFT JOIN's own, else all that are not a LEFT JOIN's.
        self.edges: dict[int, list[Equality]] = {}
        for number, relation in enumerate(every):
            if relation.outer:
                own = [edge for at, edge in relations.using if at == number]
                for part in relation.on:
                    edge = relations.equality(part)
                    if edge is None or number not in (edge.left.relation, edge.right.relation):
                        raise refuse(
                            f"ON of a LEFT JOIN takes equalities with {relation.alias} alone; a condition on "
                            f"{relation.alias} belongs into WHERE or FILTER",
                            part,
                        )
                    own.append(edge)
                self.edges[number] = own
            else:
                self.edges[number] = [edge for edge in free if number in (edge.left.relation, edge.right.relation)]

    def placed(self) -> _Placed:
        """The first private table of FROM from which all others are reached; SQLError where there is none."""
        every = self.relations.every
        candidates = [i for i, r in enumerate(every) if not r.table.policy.public and not r.outer]
        if not candidates:
            raise self._no_base()
        first: SQLError | None = None
        for number in candidates:
            try:
                return self._from(number)
            except SQLError as error:
                # With several private tables the reason that counts is that of the most specific one: the
                # table that holds the references. It is the last that fails where one is a key of the other.
                first = error if first is None or self._refers(number) else first
        raise first if first is not None else self._no_base()

    def _refers(self, number: int) -> bool:
        """Whether the relation's table declares a reference to another table of the statement."""
        here = self.relations.every[number].table
        others = {fold(r.table.name) for i, r in enumerate(self.relations.every) if i != number}
        return any(fold(key.table) in others for key in foreign_keys(self.policy.tables, here.policy))

    def _no_base(self) -> SQLError:
        private = next((r for r in self.relations.every if not r.table.policy.public), None)
        if private is None:
            return refuse("all tables of the statement are public: query them directly", self.relations.every[0].node)
        return refuse(
            f"a LEFT JOIN to {private.alias} keeps rows of a table without it, whose number would show; write "
            f"FROM {private.alias} first: every declared group has a row in the result anyway",
            private.node,
        )

    def _from(self, base: int) -> _Placed:
        every = self.relations.every
        table = _base(every[base], self.policy, self.tables)
        assert table.source is not None  # noqa: S101 - narrows the type for the checker
        names = {base: ""}
        joins = {join.name: join for join in table.source.joins}
        used: list[exp.Expr] = []
        waiting = [i for i in range(len(every)) if i != base]
        while waiting:
            for number in waiting:
                pairs = self._reached(number, names)
                if pairs is not None:
                    break
            else:
                raise self._unreached(waiting, names)
            waiting.remove(number)
            join = self._join(number, pairs, names, table.source)
            names[number] = join.name
            joins.setdefault(join.name, join)
            used += [edge.node for edge in pairs if edge.node is not None and not every[number].outer]
            self._check_left(number, pairs)
        return _Placed(table, replace(table.source, joins=tuple(joins.values())), names, tuple(used))

    def _check_left(self, number: int, pairs: Sequence[Equality]) -> None:
        """A LEFT JOIN matches on its key alone: more equalities would need a second look at the row found."""
        relation = self.relations.every[number]
        if relation.outer and len(pairs) < len(self.edges[number]):
            extra = next(edge for edge in self.edges[number] if not any(edge is pair for pair in pairs))
            raise refuse(
                f"ON of a LEFT JOIN takes the key of {relation.alias} alone, "
                f"({', '.join(relation.table.policy.unique)}); other conditions belong into WHERE or FILTER",
                extra.node if extra.node is not None else relation.node,
            )

    def _reached(self, number: int, names: Mapping[int, str]) -> list[Equality] | None:
        """Equalities, turned so that the relation is on the right, that give its whole key from one that is placed."""
        key = self.relations.every[number].table.policy.unique
        if not key:
            return None
        from_one: dict[int, dict[str, Equality]] = {}
        for edge in self.edges[number]:
            turned = edge if edge.right.relation == number else Equality(edge.right, edge.left, edge.node)
            if turned.right.relation == number and turned.left.relation in names:
                from_one.setdefault(turned.left.relation, {}).setdefault(fold(turned.right.column), turned)
        every: dict[str, Equality] = {}
        for found in from_one.values():
            if all(fold(column) in found for column in key):
                return [found[fold(column)] for column in key]
            every = {**found, **every}
        # A key of several columns may come from several tables.
        return [every[fold(column)] for column in key] if all(fold(column) in every for column in key) else None

    def _unreached(self, waiting: Sequence[int], names: Mapping[int, str]) -> SQLError:
        """Why none of the relations that wait can be joined."""
        every = self.relations.every
        base = every[next(number for number, name in names.items() if not name)]
        edged = [i for i in waiting if any({e.left.relation, e.right.relation} & names.keys() for e in self.edges[i])]
        number = edged[0] if edged else waiting[0]
        relation = every[number]
        policy = relation.table.policy
        if relation.table.name == base.table.name:
            return refuse(
                f"{relation.alias} joins {base.table.name} with itself, so that a row counts once for each of its "
                "mates; a self-join is not answered",
                relation.node,
            )
        if not edged:
            return refuse(
                f"nothing joins {relation.alias} to {base.alias} by an equality of columns: every row would meet every "
                f"row of it; write ON {base.alias}.column = {relation.alias}.{(policy.unique or ('key',))[0]}",
                relation.node,
            )
        if not policy.unique:
            return refuse(
                f"a row of {base.alias} could meet several rows of {relation.alias}, since the policy declares no key "
                f"of {policy.name}; the custodian may add {policy.key('key')}",
                relation.node,
            )
        return refuse(
            f"a row of {base.alias} could meet several rows of {relation.alias}, whose key is "
            f"({', '.join(policy.unique)}); join {relation.alias} on its whole key",
            relation.node,
        )

    def _join(self, number: int, pairs: Sequence[Equality], names: Mapping[int, str], source: RowSource) -> Join:
        """The join of a relation by its key, once every rule is held."""
        relation = self.relations.every[number]
        target = relation.table
        base = self.relations.every[next(i for i, name in names.items() if not name)]
        node = next((edge.node for edge in pairs if edge.node is not None), relation.node)
        lefts = [self._held(edge.left, names) for edge in pairs]
        for edge, left in zip(pairs, lefts, strict=True):
            right = _stored(target, edge.right.column, "")
            if not joinable(left.type, right.type):
                raise refuse(
                    f"{left.name} is {column_type(left.type)} and {relation.alias}.{right.name} is "
                    f"{column_type(right.type)}; keys of two types are not compared",
                    node,
                )
        name = _name_of(lefts, target.name)
        found = tuple((left, _stored(target, e.right.column, name)) for left, e in zip(lefts, pairs, strict=True))
        if target.policy.public:
            return Join(name, target.name, found)
        if fold(target.name) == fold(base.table.name):
            raise refuse(
                f"{relation.alias} joins {target.name} with itself; a self-join of a private table is not answered",
                node,
            )
        self._check_private(relation, base, pairs, names, source, node)
        on_path = next((join for join in source.joins if join.name == name), None)
        if on_path is not None:
            return on_path
        unit = self.policy.units[target.name]
        assert unit is not None and source.unit is not None  # noqa: S101, PT018 - held by _check_private
        if unit.path:
            raise refuse(
                f"the unit of {target.name} is found through {unit.path[0].table} and not stored with its rows, so it "
                f"cannot be joined to {base.alias}; join it where it leads to the unit, or store the unit in it",
                node,
            )
        mine = _stored(target, unit.column, name)
        if not joinable(source.unit.type, mine.type):
            raise refuse(
                f"the units of {base.table.name} and {target.name} have types that are not compared, "
                f"{column_type(source.unit.type)} and {column_type(mine.type)}",
                node,
            )
        return Join(name, target.name, found, unit=(source.unit, mine), private=True)

    def _held(self, place: Place, names: Mapping[int, str]) -> Stored:
        return _stored(self.relations.every[place.relation].table, place.column, names[place.relation])

    def _check_private(
        self,
        relation: Relation,
        base: Relation,
        pairs: Sequence[Equality],
        names: Mapping[int, str],
        source: RowSource,
        node: exp.Expr,
    ) -> None:
        """A private table is joined within one privacy unit, along a declared reference."""
        target, policy = relation.table, self.policy
        if source.unit is None:
            raise refuse(
                f'{base.table.policy.key("unit")} is "row": a row of {target.name} that goes would change several rows '
                f"of {base.alias}; join public tables, or declare the unit that both tables share",
                node,
            )
        if policy.labels[target.name] != policy.labels[base.table.name]:
            raise refuse(
                f"{target.name} protects one {policy.labels[target.name]}, {base.table.name} one "
                f"{policy.labels[base.table.name]}: rows of one unit would depend on another; join tables of one unit",
                node,
            )
        holders = {edge.left.relation for edge in pairs}
        holder = self.relations.every[next(iter(holders))].table
        wanted = {(fold(edge.left.column), fold(edge.right.column)) for edge in pairs}
        declared = len(holders) == 1 and any(
            _matches(key, target.policy, wanted) for key in foreign_keys(policy.tables, holder.policy)
        )
        if not declared:
            listed = ", ".join(f'{e.left.column} = "{target.name}.{e.right.column}"' for e in pairs)
            raise refuse(
                f"the policy declares no reference from {holder.name} to {target.name} by these columns; the custodian "
                f"may add {holder.policy.key('references')} = {{ {listed} }}",
                node,
            )


def _matches(key: ForeignKey, target: TablePolicy, wanted: set[tuple[str, str]]) -> bool:
    pairs = {(fold(column), fold(other)) for column, other in zip(key.columns, key.key, strict=True)}
    return fold(key.table) == fold(target.name) and pairs == wanted


def _name_of(lefts: Sequence[Stored], table: str) -> str:
    sources = {left.source for left in lefts}
    if len(sources) == 1:
        return _join_name(lefts[0].source, table, [left.name for left in lefts])
    shown = [f"{left.source}.{left.name}" if left.source else left.name for left in lefts]
    return _join_name("", table, shown)


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


def _flag(join: str) -> Column:
    """TRUE where the join found a row, NULL elsewhere."""
    name = f"{join} found"
    return Column(name, "BOOLEAN", line_of("BOOLEAN"), ColumnPolicy(name), Stored(MATCHED, "BOOLEAN", join))
