"""The join graph: which table of FROM is the base, and how every other one hangs on it by its whole key.

Tables are nodes, equalities between their columns edges. From the first private table that reaches all others
each next table is joined by its declared key, so that a row of the base stays one row. Private tables are
joined along declared references and within one privacy unit alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.types import column_type, joinable
from dpsql.policy.units import ForeignKey, foreign_keys
from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.relations import Equality, Place, Relation, Relations
from dpsql.sql.resolve.row_sources import base_of, join_name, order_of, source_of, stored
from dpsql.workloads.expr.batch import Table
from dpsql.workloads.expr.rows import EVERY, Join, RowSource
from dpsql.workloads.expr.values import Compared, Stored


@dataclass(frozen=True)
class Placed:
    """A base with everything else joined to it; ``used`` are the conjuncts that the joins stand for."""

    base: Table
    source: RowSource
    names: Mapping[int, str]
    used: tuple[exp.Expr, ...]


class JoinGraph:
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
                            f"ON of a LEFT JOIN takes equalities with {relation.called} alone; a condition on "
                            f"{relation.called} belongs into WHERE or FILTER",
                            part,
                            code="outer-join",
                        )
                    own.append(edge)
                self.edges[number] = own
            else:
                self.edges[number] = [edge for edge in free if number in (edge.left.relation, edge.right.relation)]

    def placed(self) -> Placed:
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
            return refuse(
                "all tables of the statement are public: query them directly",
                self.relations.every[0].node,
                code="public-table",
            )
        return refuse(
            f"a LEFT JOIN to {private.called} keeps rows of a table without it, whose number would show; write "
            f"FROM {private.called} first: every declared group has a row in the result anyway",
            private.node,
            code="outer-join",
        )

    def _from(self, base: int) -> Placed:
        every = self.relations.every
        table = base_of(every[base], self.policy, self.tables)
        assert table.source is not None  # noqa: S101 - narrows the type for the checker
        names = {base: ""}
        joins = {join.name: join for join in table.source.joins}
        used: list[exp.Expr] = []
        waiting = [i for i in range(len(every)) if i != base and every[i].nearest is None]
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
        return Placed(table, replace(table.source, joins=tuple(joins.values())), names, tuple(used))

    def nearest(self, number: int, name: str, compared: Compared, placed: Placed) -> Join:
        """The join called ``name`` of a relation along a value, found by its key and an inequality."""
        pairs = self._reached(number, placed.names)
        if pairs is None:
            raise self._unreached([number], placed.names)
        return self._join(number, pairs, placed.names, placed.source, (name, compared))

    def _check_left(self, number: int, pairs: Sequence[Equality]) -> None:
        """A LEFT JOIN matches on its key alone: more equalities would need a second look at the row found."""
        relation = self.relations.every[number]
        if relation.outer and len(pairs) < len(self.edges[number]):
            extra = next(edge for edge in self.edges[number] if not any(edge is pair for pair in pairs))
            if relation.looked_up:
                raise refuse(
                    "IN and EXISTS over private rows are tied by the columns that hold the unit, and by one equality "
                    "or two inequalities of other columns besides; write NOT EXISTS for NOT IN of several columns",
                    extra.node,
                    code="subquery",
                )
            raise refuse(
                f"ON of a LEFT JOIN takes the key of {relation.called} alone, "
                f"({', '.join(relation.table.policy.unique)}); other conditions belong into WHERE or FILTER",
                extra.node if extra.node is not None else relation.node,
                code="outer-join",
            )

    def _reached(self, number: int, names: Mapping[int, str]) -> list[Equality] | None:
        """Equalities, turned so that the relation is on the right, that give its whole key from one that is placed."""
        key = self.relations.every[number].table.policy.unique
        if not key:
            return None
        if key == (EVERY,):
            return []
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
                f"{relation.called} joins {base.table.name} with itself, so that a row counts once for each of its "
                "mates; a self-join is not answered",
                relation.node,
                code="self-join",
            )
        if not edged:
            return refuse(
                f"nothing joins {relation.called} to {base.called} by an equality of columns: every row would meet "
                f"every row of it; write ON {base.called}.column = {relation.called}.{(policy.unique or ('key',))[0]}",
                relation.node,
                code="join-without-key",
            )
        sides = [side for edge in self.edges[number] for side in (edge.left, edge.right)]
        on = list(dict.fromkeys(side.column for side in sides if side.relation == number))
        of_unit = policy.unit is not None and [fold(column) for column in on] == [fold(policy.unit)]
        if of_unit and policy.max_rows_per_unit != 1:  # no key of the unit would be true
            return refuse(
                f"a row of {base.called} could meet several rows of {relation.called}, all of one {on[0]}; join a "
                f"subquery that groups {relation.called} by {on[0]}",
                relation.node,
                code="join-multiplies",
            )
        if not policy.unique:
            return refuse(
                f"a row of {base.called} could meet several rows of {relation.called}, since the policy declares no "
                f"key of {policy.name}; if no two rows share {', '.join(on)}, the custodian may add "
                f"{policy.key('key')}",
                relation.node,
                code="join-multiplies",
            )
        return refuse(
            f"a row of {base.called} could meet several rows of {relation.called}, whose key is "
            f"({', '.join(policy.unique)}); join {relation.called} on its whole key",
            relation.node,
            code="join-multiplies",
        )

    def _join(
        self,
        number: int,
        pairs: Sequence[Equality],
        names: Mapping[int, str],
        source: RowSource,
        near: tuple[str, Compared] | None = None,
    ) -> Join:
        """The join of a relation by its key, once every rule is held; ``near``: along a value, this name and test."""
        relation = self.relations.every[number]
        target = relation.table
        base = self.relations.every[next(i for i, name in names.items() if not name)]
        node = next((edge.node for edge in pairs if edge.node is not None), relation.node)
        lefts = [self._stored(edge.left, names) for edge in pairs]
        for edge, left in zip(pairs, lefts, strict=True):
            right = stored(target, edge.right.column, "")
            if not joinable(left.type, right.type):
                raise refuse(
                    f"{left.name} is {column_type(left.type)} and {relation.called}.{right.name} is "
                    f"{column_type(right.type)}; keys of two types are not compared",
                    node,
                    code="join-types",
                )
        name, nearest = (_name_of(lefts, target.name), None) if near is None else near
        found = tuple((left, stored(target, e.right.column, name)) for left, e in zip(lefts, pairs, strict=True))
        found = found or ((Stored(EVERY, "BOOLEAN"), Stored(EVERY, "BOOLEAN", name)),)
        if target.policy.public:
            of = None if target.source is None else target.source.of
            return Join(name, target.name if of is None else of.of.table, found, of=of, nearest=nearest)
        if target.source is not None and target.source.windows is not None:
            raise refuse(
                f"{relation.called} has windows and is joined to {base.called}; begin FROM with {relation.called}, "
                "or join an aggregate by the unit",
                relation.node,
                code="row-window",
            )
        if fold(target.name) == fold(base.table.name):
            raise refuse(
                f"{relation.called} joins {target.name} with itself; a self-join of a private table is not answered",
                node,
                code="self-join",
            )
        self._check_private(relation, base, pairs, names, source, node)
        on_path = next((join for join in source.joins if join.name == name), None)
        if on_path is not None:
            return on_path
        own = source_of(target, self.policy, self.tables)
        assert own.unit is not None and source.unit is not None  # noqa: S101, PT018 - held by _check_private
        if own.path:
            raise refuse(
                f"the unit of {target.name} is found through {own.joins[0].table} and not stored with its rows, so it "
                f"cannot be joined to {base.called}; join it where it leads to the unit, or store the unit in it",
                node,
                code="join-of-units",
            )
        mine = stored(target, own.unit.name, name)
        if not joinable(source.unit.type, mine.type):
            raise refuse(
                f"the units of {base.table.name} and {target.name} have types that are not compared, "
                f"{column_type(source.unit.type)} and {column_type(mine.type)}",
                node,
                code="join-of-units",
            )
        order = order_of(target, name) if own.of is None else ()
        unit = (source.unit, mine)
        return Join(name, own.table, found, unit=unit, private=True, of=own.of, nearest=nearest, order=order)

    def _stored(self, place: Place, names: Mapping[int, str]) -> Stored:
        return stored(self.relations.every[place.relation].table, place.column, names[place.relation])

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
                f"of {base.called}; join public tables, or declare the unit that both tables share",
                node,
                code="join-of-units",
            )
        own = source_of(target, policy, self.tables)
        if own.protects != source.protects:
            raise refuse(
                f"{target.name} protects one {own.protects}, {base.table.name} one {source.protects}: rows of one unit "
                "would depend on another; join tables of one unit",
                node,
                code="join-of-units",
            )
        if own.of is not None and source.unit is not None:
            if [self._stored(edge.left, names) for edge in pairs] == [source.unit]:
                return  # both say whose the row is
            raise refuse(
                f"rows of each {own.of.unit} are joined to {base.called} by what says whose its rows are: "
                f"{source.unit.name} = {relation.called}.{own.of.unit}",
                node,
                code="join-undeclared",
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
                code="join-undeclared",
            )


def _matches(key: ForeignKey, target: TablePolicy, expected: set[tuple[str, str]]) -> bool:
    pairs = {(fold(column), fold(other)) for column, other in zip(key.columns, key.key, strict=True)}
    return fold(key.table) == fold(target.name) and pairs == expected


def _name_of(lefts: Sequence[Stored], table: str) -> str:
    sources = {left.source for left in lefts}
    if len(sources) == 1:
        return join_name(lefts[0].source, table, [left.name for left in lefts])
    shown = [f"{left.source}.{left.name}" if left.source else left.name for left in lefts]
    return join_name("", table, shown)
