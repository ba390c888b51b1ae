"""Flattening: row-wise WITH queries, derived tables and named views written into the SELECT that reads them.

A row-wise SELECT keeps, drops or computes columns of single rows and drops rows by a condition. Whatever
reads it may as well read its tables: its columns become the expressions behind them, its WHERE and
joins move up. What is left is one SELECT over tables of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import made, nodes, standing_for
from dpsql.sql.values.admitted import is_admitted

_Tree = TypeVar("_Tree", bound=exp.Expr)

MAX_NODES = 100_000
CALLED = "dpsql_called"
"""In the meta of a table: the alias of the derived table that is made of it."""
LOOKED_UP = "dpsql_in_"
"""How the aliases of joins begin that stand for IN and EXISTS: their columns are called by their alias alone."""

# What a row-wise SELECT may have: all that is written into the query that reads it, and an order, which nothing sees.
_ROW_WISE = frozenset({"expressions", "from_", "joins", "where", "order", "with_"})

_PLACE = ("line", "col", "start", "end")

# A SELECT with one of these is not row-wise: it looks at other rows.
_NOT_ROW_WISE = ("group", "having", "distinct", "limit", "offset", "qualify", "windows", "sample", "pivots", "laterals")


@dataclass(frozen=True)
class Base:
    """A table that FROM or JOIN names, under its alias there, with its column names in order."""

    alias: str
    node: exp.Table = field(repr=False)
    names: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Rows:
    """Rows of base tables, as something that FROM can read.

    ``bases`` are the tables in order, ``joins`` what joins all but the first of them, ``where`` the condition.
    ``columns`` are (name, expression over the bases); None for the bases' own. ``filtered``: the same rows without
    ``where``, for an outer join, where the base itself applies it.
    """

    bases: tuple[Base, ...]
    joins: tuple[exp.Join, ...] = field(default=(), repr=False)
    where: exp.Expression | None = field(default=None, repr=False)
    columns: tuple[tuple[str, exp.Expression], ...] | None = field(default=None, repr=False)
    filtered: Rows | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that can be read."""
        if self.columns is not None:
            return tuple(name for name, _ in self.columns)
        return tuple(name for base in self.bases for name in base.names)

    def placeless(self) -> Rows:
        """The same rows of a text that is not the batch's: messages find no place in them."""
        bases = tuple(replace(base, node=_placeless(base.node)) for base in self.bases)
        columns = None if self.columns is None else tuple((name, _placeless(node)) for name, node in self.columns)
        where = None if self.where is None else _placeless(self.where)
        return replace(self, bases=bases, joins=tuple(map(_placeless, self.joins)), where=where, columns=columns)


def _placeless(tree: _Tree) -> _Tree:
    copy = tree.copy()
    for node in nodes(copy):
        for key in _PLACE:
            node.meta.pop(key, None)
    return made(copy)


def is_row_wise(select: exp.Select) -> bool:
    """Whether a SELECT keeps rows apart: no groups, aggregates, windows or limits."""
    if any(select.args.get(clause) for clause in _NOT_ROW_WISE):
        return False
    return not any(aggregates(item) for item in select.expressions)


def aggregates(item: exp.Expression) -> bool:
    """Whether an expression holds an aggregate or a window function."""
    return any(isinstance(part, exp.AggFunc | exp.Filter | exp.WithinGroup | exp.Window) for part in nodes(item))


def flattened(select: exp.Select, sources: Sequence[tuple[str, Rows]]) -> exp.Select:
    """``select`` over base tables alone; ``sources`` are FROM's item and those of its joins, with their aliases.

    The same object where it reads nothing else already. Raises SQLError where an outer join would have to
    keep a condition of a derived table, for ambiguous names, and past 100,000 nodes.
    """
    if all(rows.columns is None and len(rows.bases) == 1 for _, rows in sources):
        return select
    rows, rewrite = _assembled(select, sources)
    out = exp.Select()
    aliases = {fold(item.alias) for item in select.expressions if isinstance(item, exp.Alias)}
    for key, value in select.args.items():
        if key in {"with_", "from_", "joins", "where"} or not value:
            continue
        if key == "expressions":
            out.set(key, [_item(item, rewrite) for item in value])
        elif key == "order":
            out.set(key, rewrite(value, aliases))
        elif isinstance(value, list):
            out.set(key, [rewrite(part) if isinstance(part, exp.Expression) else part for part in value])
        else:
            out.set(key, rewrite(value) if isinstance(value, exp.Expression) else value)
    out.comments = select.comments
    out.set("from_", exp.From(this=rows.bases[0].node))
    if rows.joins:
        out.set("joins", list(rows.joins))
    if rows.where is not None:
        out.set("where", exp.Where(this=rows.where))
    if sum(1 for _ in out.walk()) > MAX_NODES:
        raise refuse(
            "the statement is too large once its WITH queries are written in; use fewer of them",
            select,
            code="too-large",
        )
    return out


def rows_of(select: exp.Select, sources: Sequence[tuple[str, Rows]], names: Sequence[str]) -> Rows:
    """A row-wise SELECT as rows; ``names`` are those of its items, stars expanded (see ``expanded``).

    Raises SQLError for what may not keep one row one row, read or not: UNNEST in a column gives several.
    """
    for clause, value in select.args.items():
        if value and clause not in _ROW_WISE:
            raise refuse(f"{clause.strip('_').upper()} of a derived table is not answered; leave it out", select)
    order = select.args.get("order")
    for part in (*select.expressions, *(order.expressions if order is not None else ())):
        strange = next((node for node in part.walk() if not is_admitted(node)), None)
        if strange is not None:
            raise refuse(
                f"{shown(strange)} in a derived table is not admitted: it may give several rows, or depend "
                "on others; leave it out",
                strange,
                code="several-rows",
            )
    rows, rewrite = _assembled(select, sources)
    columns = tuple((name, rewrite(_bare(item))) for name, item in zip(names, select.expressions, strict=True))
    return Rows(rows.bases, rows.joins, rows.where, columns)


def _bare(item: exp.Expression) -> exp.Expression:
    return item.this if isinstance(item, exp.Alias) else item


Rewrite = Callable[..., exp.Expression]


def _assembled(select: exp.Select, sources: Sequence[tuple[str, Rows]]) -> tuple[Rows, Rewrite]:
    """FROM, joins and WHERE over base tables, and how an expression of the SELECT is written over them."""
    taken: set[str] = set()
    sides = ["", *(str(join.side) for join in select.args.get("joins") or [])]
    read = [rows.filtered if side and rows.filtered else rows for (_, rows), side in zip(sources, sides, strict=True)]
    renamed = [(alias, _renamed(rows, taken)) for (alias, _), rows in zip(sources, read, strict=True)]
    for alias, rows in renamed:
        for base in rows.bases if alias.startswith(LOOKED_UP) else ():
            base.node.meta[LOOKED_UP] = True
        if alias and rows.columns is not None and len(rows.bases) == 1:
            rows.bases[0].node.meta[CALLED] = alias
    using = [part.name for join in select.args.get("joins") or [] for part in join.args.get("using") or []]
    rewrite = _rewriter(renamed, using)
    first = renamed[0][1]
    bases, merged = list(first.bases), list(first.joins)
    wheres = [] if first.where is None else [first.where]
    for at, (join, (_, rows)) in enumerate(zip(select.args.get("joins") or [], renamed[1:], strict=True)):
        plain = rows.columns is None and len(rows.bases) == 1
        if join.side and not plain and (rows.where is not None or rows.joins or str(join.side).upper() != "LEFT"):
            raise refuse(
                "an outer join to a derived table with a condition or join of its own is not answered; join the "
                "table itself",
                join.this,
                code="outer-join",
            )
        if join.args.get("using") and not all(r.columns is None for _, r in renamed[: at + 2]):
            raise refuse(
                "JOIN ... USING a derived table is not answered; write ON a.k = b.k", join.this, code="join-kind"
            )
        placed = exp.Join(**{key: value for key, value in join.args.items() if key not in {"this", "on"}})
        placed.set("this", rows.bases[0].node)
        if join.args.get("on"):
            placed.set("on", rewrite(join.args["on"]))
        merged.extend([placed, *rows.joins])
        bases.extend(rows.bases)
        wheres.extend([] if rows.where is None else [rows.where])
    where = select.args.get("where")
    if where is not None:
        wheres.append(rewrite(where.this))
    whole: exp.Expression | None = None
    for part in wheres:
        one = exp.Paren(this=part.copy()) if len(wheres) > 1 else part
        whole = one if whole is None else exp.And(this=whole, expression=one)
    return Rows(tuple(bases), tuple(merged), whole), rewrite


def _renamed(rows: Rows, taken: set[str]) -> Rows:
    """The same rows with aliases that are not taken; a copy, to be written into another statement."""
    change: dict[str, str] = {}
    bases = []
    for base in rows.bases:
        alias, copy = base.alias, 1
        while fold(alias) in taken:
            copy += 1
            alias = f"{base.alias}_{copy}"
        taken.add(fold(alias))
        change[fold(base.alias)] = alias
        node = base.node.copy()
        if alias != node.alias_or_name:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        bases.append(Base(alias, node, base.names))

    def over_aliases(node: exp.Expression) -> exp.Expression:
        out = node.copy()
        for column in list(out.find_all(exp.Column)):
            if column.table and fold(column.table) in change:
                column.set("table", exp.to_identifier(change[fold(column.table)], quoted=True))
        return out

    joins = []
    for join, base in zip(rows.joins, bases[1:], strict=True):
        copied = over_aliases(join)
        copied.set("this", base.node)
        joins.append(copied)
    where = None if rows.where is None else over_aliases(rows.where)
    columns = None if rows.columns is None else tuple((name, over_aliases(node)) for name, node in rows.columns)
    return Rows(tuple(bases), tuple(joins), where, columns)  # type: ignore[arg-type]


def _rewriter(sources: Sequence[tuple[str, Rows]], using: Sequence[str]) -> Rewrite:
    """How an expression that names the columns of ``sources`` is written over their base tables."""
    shared = {fold(name) for name in using}

    def find(column: exp.Column) -> exp.Expression | None:
        name, qualifier = fold(column.name), fold(column.table)
        if isinstance(column.this, exp.Star):  # there is a row where the first of the tables has one
            first = next((rows.bases[0].alias for alias, rows in sources if fold(alias) == qualifier), column.table)
            return exp.Column(this=column.this.copy(), table=exp.to_identifier(first, quoted=True))
        columns = [
            (alias, rows)
            for alias, rows in sources
            if (fold(alias) == qualifier if qualifier else not alias.startswith(LOOKED_UP))
            and name in {fold(n) for n in rows.names}
        ]
        if not columns:
            if qualifier and any(fold(alias) == qualifier for alias, _ in sources):
                source = next(rows for alias, rows in sources if fold(alias) == qualifier)
                if source.columns is not None:
                    raise refuse(f"{column.table} has no column {column.name}", column, code="unknown-column")
            return None
        if len(columns) > 1 and name not in shared:
            raise refuse(
                f"{column.name} is a column of {columns[0][0]} and {columns[1][0]}; write which",
                column,
                code="unknown-column",
            )
        _, rows = columns[0]
        if rows.columns is not None:
            expression = next(node for n, node in rows.columns if fold(n) == name).copy()
            inside = any(part.meta_get("start") is not None for part in nodes(expression))  # of the same text
            found_as = expression if isinstance(expression, exp.Column) else exp.Paren(this=expression)
            return standing_for(found_as, column, inside=inside)
        base = next(b for b in rows.bases if name in {fold(n) for n in b.names})
        out = column.copy()
        out.set("table", exp.to_identifier(base.alias, quoted=True))
        return out

    def rewrite(node: exp.Expression, left_alone: frozenset[str] | set[str] = frozenset()) -> exp.Expression:
        if isinstance(node, exp.Column):
            if not node.table and fold(node.name) in left_alone:
                return node.copy()
            return find(node) or node.copy()
        out = node.copy()
        # A subquery has columns of its own.
        stack = [out]
        while stack:
            part = stack.pop()
            if isinstance(part, exp.Query) and part is not out:
                continue
            for child in list(part.iter_expressions()):
                if isinstance(child, exp.Column):
                    if child.table or fold(child.name) not in left_alone:
                        new = find(child)
                        if new is not None:
                            child.replace(new)
                else:
                    stack.append(child)
        return out

    return rewrite


def _item(item: exp.Expression, rewrite: Rewrite) -> exp.Expression:
    """An item of SELECT over the base tables; a column that was computed keeps its name."""
    if isinstance(item, exp.Column) and not isinstance(item.this, exp.Star):
        written = rewrite(item)
        if not isinstance(written, exp.Column) or fold(written.name) != fold(item.name):
            return exp.Alias(this=written, alias=exp.to_identifier(item.name, quoted=True))
        return written
    return rewrite(item)
