"""Relations: what FROM names, under which aliases, and the conditions that join it.

ON, USING and WHERE are taken apart into conjuncts. Those of inner joins and of WHERE mean the same and are one
pool; those of a LEFT JOIN are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.errors import nearest
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.flatten import CALLED, LOOKED_UP
from dpsql.sql.values.scope import find_table
from dpsql.workloads.expr.batch import Table

MAX_RELATIONS = 32

_KINDS = {
    "SEMI": "a SEMI JOIN asks whether other rows exist; write JOIN on the other table's declared key",
    "ANTI": "an ANTI JOIN asks whether other rows exist; write LEFT JOIN and WHERE key IS NULL",
    "ASOF": "an ASOF JOIN looks at neighbouring rows; write an equality on the other table's declared key",
    "NATURAL": "a NATURAL JOIN depends on all names of both tables; write USING (key) or ON a.k = b.k",
    "POSITIONAL": "a POSITIONAL JOIN depends on the order of rows; write an equality on the other table's declared key",
    "RIGHT": "a RIGHT JOIN keeps rows of the other table; turn it round: write that table first and LEFT JOIN",
    "FULL": "a FULL JOIN keeps rows of both tables; write JOIN, or LEFT JOIN from the table whose rows count",
}


@dataclass(frozen=True)
class Relation:
    """A table that FROM names; ``outer``: the right side of a LEFT JOIN, whose conjuncts are ``on``.

    ``nearest`` is the inequality of rows along a value, its own column on the left.
    """

    alias: str
    table: Table
    node: exp.Table = field(repr=False)
    named: bool = False
    outer: bool = False
    on: tuple[exp.Expr, ...] = field(default=(), repr=False)
    nearest: exp.Binary | None = field(default=None, repr=False)

    @property
    def called(self) -> str:
        """What the user calls it: by the alias of the derived table that it is all of, if it is of one."""
        return str(self.node.meta.get(CALLED, self.alias))

    @property
    def looked_up(self) -> bool:
        """Whether it stands for IN or EXISTS, so that no name of the statement means a column of it."""
        return LOOKED_UP in self.node.meta

    def stored(self, name: str) -> str | None:
        """The column of that name in any case, as the schema writes it; None where the table has none."""
        wanted = fold(name)
        found = self.table.columns.get(wanted)
        if found is not None and found.value is None:
            return found.name
        return next((column for column in self.table.schema if fold(column) == wanted), None)

    def answers_to(self, qualifier: str) -> bool:
        """Whether ``qualifier.column`` means a column of this relation."""
        own = () if self.named else (fold(self.table.name).split(".")[-1],)
        return fold(qualifier) in {fold(self.alias), *own}


@dataclass(frozen=True)
class Place:
    """A column of a relation, by the relation's number."""

    relation: int
    column: str


@dataclass(frozen=True)
class Equality:
    """``left = right`` over two relations; ``node`` is the conjunct, None for one of USING."""

    left: Place
    right: Place
    node: exp.Expr | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Relations:
    """FROM, taken apart: relations in order, conjuncts of inner joins' ON, equalities of USING by relation."""

    every: tuple[Relation, ...]
    pool: tuple[exp.Expr, ...] = field(default=(), repr=False)
    using: tuple[tuple[int, Equality], ...] = ()
    merged: Mapping[str, int] = field(default_factory=dict)

    def place(self, node: exp.Column) -> Place:
        """What a column names. SQLError where it is unknown or could be a column of two tables."""
        if node.args.get("db") or node.args.get("catalog"):
            raise refuse("write a column as name or table.name", node)
        if node.table:
            known = self._named(node)
        else:
            known = [i for i, relation in enumerate(self.every) if not relation.looked_up]
        found = [(i, column) for i in known for column in [self.every[i].stored(node.name)] if column is not None]
        if len(found) > 1 and not node.table and fold(node.name) in self.merged:
            first = self.merged[fold(node.name)]
            found = [(i, column) for i, column in found if i == first]
        if not found:
            if isinstance(node.this, exp.Star) or (not node.table and any(r.answers_to(node.name) for r in self.every)):
                raise refuse(
                    f"{shown(node)} is a whole row; name a column of it, or write COUNT(*)", node, code="unknown-column"
                )
            names = [c for i in known for c in self.every[i].table.schema]
            where = self.every[known[0]].table.name if len(known) == 1 else "no table of this statement"
            said = f"{where} has no column" if len(known) == 1 else f"{where} has a column"
            raise refuse(f"{said} {node.name}: {nearest(node.name, names)}", node, code="unknown-column")
        if len(found) > 1:
            which = " or ".join(f"{self.every[i].called}.{column}" for i, column in found[:2])
            raise refuse(f"{node.name} could be {which}; write which", node, code="unknown-column")
        return Place(*found[0])

    def named(self, node: exp.Column) -> int:
        """The number of the first relation that a column says it is of."""
        return self._named(node)[0]

    def _named(self, node: exp.Column) -> list[int]:
        found = [i for i, relation in enumerate(self.every) if relation.answers_to(node.table)]
        if not found:
            aliases = [relation.alias for relation in self.every]
            raise refuse(
                f"{node.table} is no table of this statement; {nearest(node.table, aliases)}",
                node,
                code="unknown-column",
            )
        return found

    def equality(self, node: exp.Expr) -> Equality | None:
        """A conjunct as an equality of columns of two relations, None where it is none."""
        if isinstance(node, exp.Paren):
            return self.equality(node.this)
        if not isinstance(node, exp.EQ):
            return None
        left, right = node.this.unnest(), node.expression.unnest()
        if not isinstance(left, exp.Column) or not isinstance(right, exp.Column):
            return None
        one, other = self.place(left), self.place(right)
        return None if one.relation == other.relation else Equality(one, other, node)


def relations_of(select: exp.Select, policy: Policy, tables: Mapping[str, Table]) -> Relations:
    """The relations of a SELECT whose FROM names tables of the policy alone. SQLError for other joins."""
    source = select.args.get("from_")
    if source is None:
        raise refuse("the statement reads no table; write FROM a table of the policy", select)
    every = [_relation(source.this, policy, tables)]
    pool: list[exp.Expr] = []
    using: list[tuple[int, Equality]] = []
    merged: dict[str, int] = {}
    for join in [*(source.this.args.get("joins") or []), *(select.args.get("joins") or [])]:
        every.append(_joined(join, policy, tables))
        if len(every) > MAX_RELATIONS:
            raise refuse(
                f"the statement joins more than {MAX_RELATIONS} tables; join fewer", join.this, code="too-large"
            )
        on = join.args.get("on")
        if on is not None and not every[-1].outer:
            pool.extend(conjuncts(on))
        for part in join.args.get("using") or ():
            using.append((len(every) - 1, _used(part, every, merged)))
    seen: set[str] = set()
    for relation in every:
        if fold(relation.alias) in seen:
            raise refuse(f"two tables of the statement are named {relation.called}; give one an alias", relation.node)
        seen.add(fold(relation.alias))
    return Relations(tuple(every), tuple(pool), tuple(using), merged)


def _relation(node: exp.Expr, policy: Policy, tables: Mapping[str, Table]) -> Relation:
    if not isinstance(node, exp.Table):
        raise refuse(
            "FROM takes tables of the policy, row-wise queries over them and their joins", node, code="not-a-table"
        )
    for clause, value in node.args.items():
        if value and clause not in {"this", "db", "catalog", "alias", "joins"}:
            code = "sample" if clause == "sample" else "not-a-table"
            shown = "TABLESAMPLE" if clause == "sample" else clause.strip("_").upper()
            raise refuse(f"{shown} in FROM is not answered; write a plain table", node, code=code)
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise refuse("a table alias with column names is not answered; use the columns' own names", node)
    table = find_table(node, policy, tables)
    name = "" if alias is None else str(alias.name)
    return Relation(name or table.name.split(".")[-1], table, node, bool(name))


def _joined(join: exp.Join, policy: Policy, tables: Mapping[str, Table]) -> Relation:
    if str(join.method or "").upper() == "ASOF":
        relation = _relation(join.this, policy, tables)
        source = relation.table.source
        if source is not None and source.of is not None and source.of.along is not None:  # EXISTS was written so
            *equal, nearest = conjuncts(join.args["on"])
            return replace(relation, outer=True, on=tuple(equal), nearest=nearest)  # type: ignore[arg-type]
    for word in (join.method, join.side, join.kind):
        refusal = _KINDS.get(str(word or "").upper())
        if refusal is not None:
            raise refuse(refusal, join.this, code="join-kind")
    for clause, value in join.args.items():
        if value and clause not in {"this", "on", "using", "side", "kind", "method"}:
            raise refuse(
                f"JOIN with {clause.strip('_').upper()} is not answered; write JOIN ... ON a.k = b.k",
                join.this,
                code="join-kind",
            )
    if str(join.kind or "").upper() not in {"", "INNER", "OUTER", "CROSS"}:
        raise refuse(f"{join.kind} JOIN is not answered; write JOIN or LEFT JOIN", join.this, code="join-kind")
    relation = _relation(join.this, policy, tables)
    outer = str(join.side or "").upper() == "LEFT"
    on = tuple(conjuncts(join.args["on"])) if outer and join.args.get("on") is not None else ()
    return Relation(relation.alias, relation.table, relation.node, relation.named, outer, on)


def _used(part: exp.Expr, every: Sequence[Relation], merged: dict[str, int]) -> Equality:
    """USING (name): the name in the newest relation equals the one before."""
    name, last = part.name, len(every) - 1
    mine = every[last].stored(name)
    before = [(i, column) for i, r in enumerate(every[:-1]) for column in [r.stored(name)] if column is not None]
    if fold(name) in merged:
        before = [(i, column) for i, column in before if i == merged[fold(name)]]
    if mine is None or len(before) != 1:
        why = "not in both tables" if mine is None or not before else "in several tables before it"
        raise refuse(f"USING ({name}): the column is {why}; write ON a.k = b.k", every[last].node)
    merged[fold(name)] = before[0][0]
    return Equality(Place(*before[0]), Place(last, mine))


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The operands of a chain of ANDs, from the left; without recursion, as chains are long."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, exp.Paren) and isinstance(part.this, exp.And | exp.Paren):
            waiting.append(part.this)
        elif isinstance(part, exp.And):
            waiting += [part.expression, part.this]
        elif isinstance(part.unnest(), exp.Or):
            yield from _shared(part)
        else:
            yield part


def _shared(node: exp.Expr) -> list[exp.Expr]:
    """An OR whose branches all hold an equality of columns as that equality, and the OR of what is left.

    ``a = b AND p OR a = b AND q`` is ``a = b AND (p OR q)``, with NULL too; only so can a join be found in it.
    """
    branches: list[list[exp.Expr]] = []
    waiting = [node]
    while waiting:
        part = waiting.pop().unnest()
        if isinstance(part, exp.Or):
            waiting += [part.expression, part.this]
        else:
            branches.append(list(conjuncts(part)))
            if not any(_is_equality(one) for one in branches[-1]):
                return [node]
    every = [one for one in branches[0] if _is_equality(one) and all(one in branch for branch in branches)]
    if not every:
        return [node]
    rests = [whole(one for one in branch if one not in every) for branch in branches]
    kept = [rest for rest in rests if rest is not None]
    if len(kept) < len(rests):
        return every  # a branch is nothing else: it holds wherever another does
    return [*every, functools.reduce(lambda left, right: exp.Or(this=left, expression=right), kept)]


def _is_equality(node: exp.Expr) -> bool:
    return isinstance(node, exp.EQ) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Column)


def whole(parts: Iterable[exp.Expr]) -> exp.Expr | None:
    """The conjunction of conjuncts, None of none; copies, so that the statement's own tree stays as it is."""
    found: exp.Expr | None = None
    for part in parts:
        one = part.copy()
        if isinstance(one, exp.Or):
            one = exp.Paren(this=one)
        found = one if found is None else exp.And(this=found, expression=one)
    return found
