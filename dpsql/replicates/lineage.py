"""Which columns of a query noise reaches, and whether it decides which rows there are.

Rows of an answer and of its replicates are matched by the columns that noise does not reach, so these must be told from
the others by what a query says, not by how its numbers came out. Where this reader does not understand a query, a
column counts as free of noise only if a column of that name is, in what the query reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.errors import SqlglotError

Columns = Sequence[tuple[str, bool]]
"""(name, whether it depends on noise)."""

_AGGREGATES = (exp.AggFunc, exp.Window, exp.Anonymous, exp.AnonymousAggFunc, exp.Filter, exp.WithinGroup)


@dataclass(frozen=True)
class Lineage:
    """Whether noise reaches each column of a query, by its place, and whether it decides what rows there are.

    ``divisors``: for each column, what its numbers are divided by that depends on noise, as SQL.
    """

    noisy: tuple[bool, ...]
    rows: bool
    divisors: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Relation:
    """What stands in FROM: its columns, and whether noise decides its rows.

    ``others``: whether noise reaches its columns of names that are not known, None where it has no such.
    """

    columns: Columns
    rows: bool = False
    others: bool | None = None

    def has(self, name: str) -> bool | None:
        """Whether noise reaches a column, None where there is none of the name."""
        return {column.lower(): noisy for column, noisy in self.columns}.get(name, self.others)


@dataclass(frozen=True)
class _Scope:
    """What names mean where an expression stands."""

    sources: Mapping[str, _Relation]
    queries: Mapping[str, _Relation]
    items: Mapping[str, bool] = field(default_factory=dict)
    outer: _Scope | None = None


def lineage(tree: exp.Expr, read: Sequence[tuple[exp.Table, Columns]], names: Sequence[str]) -> Lineage:
    """What noise reaches of a query; ``read``: nodes of it that are released tables; ``names``: of its columns."""
    found = _understood(tree, read)
    if found is not None and len(found[0].columns) == len(names):
        noisy = tuple(is_noisy for _, is_noisy in found[0].columns)
        return Lineage(noisy, found[0].rows, tuple(found[1]) or ((),) * len(names))
    clean = {name.lower() for _, columns in read for name, noisy in columns if not noisy}
    return Lineage(tuple(name.lower() not in clean for name in names), True, ((),) * len(names))


def _understood(
    tree: exp.Expr, read: Sequence[tuple[exp.Table, Columns]]
) -> tuple[_Relation, list[tuple[str, ...]]] | None:
    """The relation that a query is, and the divisors of its columns; None where it is not understood."""
    try:
        whole, held = qualified(tree, read)
        if whole.find(exp.Pivot, exp.Columns) is not None:
            return None
        relation = _relation(whole, _Scope({}, held))
    except (SqlglotError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if relation is None:
        return None
    return relation, _divisors(whole, tree, held)


def qualified(tree: exp.Expr, read: Sequence[tuple[exp.Table, Columns]]) -> tuple[exp.Expr, dict[str, _Relation]]:
    """The query with the table of each of its columns named, ``read[i]`` as dpsql_read_i, and what these are.

    Raises errors of sqlglot and of Python for what it does not understand.
    """
    from sqlglot.optimizer.qualify import qualify  # takes long to import, and few connections need it

    numbers = {id(node): at for at, node in enumerate(tree.walk())}
    places = [numbers[id(table)] for table, _ in read]
    copy = tree.copy()
    nodes = list(copy.walk())
    schema: dict[str, object] = {}
    held: dict[str, _Relation] = {}
    for number, (place, (table, columns)) in enumerate(zip(places, read, strict=True)):
        name, node = f"dpsql_read_{number}", nodes[place]
        if not node.args.get("alias"):
            node.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        node.set("this", exp.to_identifier(name))
        node.set("db", None)
        node.set("catalog", None)
        schema[name] = {column.lower(): "double" for column, _ in columns}
        held[name] = _Relation(columns)
    whole = qualify(copy, schema=schema, dialect="duckdb", validate_qualify_columns=False, quote_identifiers=False)
    return whole, held


def _relation(node: exp.Expr, scope: _Scope) -> _Relation | None:
    if isinstance(node, exp.Subquery):
        return _renamed(_relation(node.this, _with(node, scope)), node)
    if isinstance(node, exp.SetOperation):
        return _united(node, _with(node, scope))
    if isinstance(node, exp.Select):
        return _selected(node, _with(node, scope))[0]
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        touched = any(
            _noisy(child, scope) for child in node.iter_expressions() if not isinstance(child, exp.TableAlias)
        )
        return _renamed(_Relation((), touched, touched), node)
    if isinstance(node, exp.Table):
        return _renamed(scope.queries.get(node.name.lower()), node)
    if isinstance(node, exp.Values | exp.Unnest | exp.Lateral):
        alias = node.args.get("alias")
        listed = [column.name for column in alias.args.get("columns") or ()] if alias is not None else []
        touched = _touched(node, scope)
        return _Relation([(name, touched) for name in listed], touched, None if listed else touched)
    return None


def _renamed(relation: _Relation | None, node: exp.Expr) -> _Relation | None:
    """The relation with the names that its alias gives its columns."""
    alias = node.args.get("alias")
    columns = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    if relation is None or not columns:
        return relation
    names = [column.name for column in columns]
    if relation.others is not None and not relation.columns:
        return _Relation([(name, relation.others) for name in names], relation.rows)
    names += [name for name, _ in relation.columns[len(names) :]]
    return _Relation(list(zip(names, (noisy for _, noisy in relation.columns), strict=True)), relation.rows)


def _with(node: exp.Expr, scope: _Scope) -> _Scope:
    """The scope with what WITH defines; a recursive query counts as reached by noise all over."""
    clause = node.args.get("with_")
    if clause is None:
        return scope
    queries = dict(scope.queries)
    for part in clause.expressions:
        here = _Scope(scope.sources, queries, outer=scope.outer)
        if clause.args.get("recursive") and part.this.find(exp.Table) is not None:
            first = _relation(part.this.this if isinstance(part.this, exp.SetOperation) else part.this, here)
            if first is None:
                raise KeyError(part.alias)
            looped = isinstance(part.this, exp.SetOperation) and _touched(part.this, here)
            found: _Relation | None = _Relation([(n, noisy or looped) for n, noisy in first.columns], looped)
        else:
            found = _relation(part.this, here)
        renamed = _renamed(found, part)
        if renamed is None:
            raise KeyError(part.alias)
        queries[part.alias.lower()] = renamed
    return _Scope(scope.sources, queries, outer=scope.outer)


def _united(node: exp.SetOperation, scope: _Scope) -> _Relation | None:
    left, right = _relation(node.left, scope), _relation(node.right, scope)
    if left is None or right is None or len(left.columns) != len(right.columns) or node.args.get("by_name"):
        return None
    columns = [(name, a or b) for (name, a), (_, b) in zip(left.columns, right.columns, strict=True)]
    apart = not (isinstance(node, exp.Union) and not node.args.get("distinct"))
    rows = left.rows or right.rows or (apart and any(noisy for _, noisy in columns))
    return _Relation(columns, rows or _is_cut(node, _Scope({}, scope.queries, dict(columns)), rows=rows))


def _selected(node: exp.Select, scope: _Scope) -> tuple[_Relation, _Scope]:
    """The columns and rows of a SELECT, and the scope of its expressions."""
    sources: dict[str, _Relation] = {}
    within = _Scope(sources, scope.queries, outer=scope)
    rows = False
    source = node.args.get("from_")
    joins = node.args.get("joins") or []
    items = [*([source.this] if source is not None else []), *(join.this for join in joins)]
    items += node.args.get("laterals") or []
    for item in items:
        found = _relation(item, within)
        if found is None:
            raise KeyError(item.sql())
        sources[item.alias_or_name.lower()] = found
        rows = rows or found.rows
    rows = rows or any(_noisy(join.args["on"], within) for join in joins if join.args.get("on"))
    where, group = node.args.get("where"), node.args.get("group")
    rows = rows or (where is not None and _noisy(where.this, within))
    keys = group is not None and any(_noisy(key, within) for key in _expressions(group))
    every = group is not None and bool(group.args.get("all"))
    aggregated = any(part.find(exp.AggFunc) and not part.find(exp.Window) for part in node.expressions)
    changed = rows or keys
    columns: list[tuple[str, bool]] = []
    for part in node.expressions:
        over = part.find(*_AGGREGATES) is not None
        keys = keys or (every and not over and _noisy(part, within))
    for part in node.expressions:
        over = part.find(*_AGGREGATES) is not None
        columns.append((part.alias_or_name, _noisy(part, within) or (over and (changed or keys))))
    beside = _Scope(sources, scope.queries, {name.lower(): noisy for name, noisy in columns}, scope)
    out = keys or (rows and (group is not None or not aggregated))
    for clause in ("having", "qualify"):
        part = node.args.get(clause)
        out = out or (
            part is not None and (_noisy(part.this, beside) or (changed and part.find(*_AGGREGATES) is not None))
        )
    distinct = node.args.get("distinct")
    out = out or (distinct is not None and (any(noisy for _, noisy in columns) or _noisy(distinct, beside)))
    out = out or _is_cut(node, beside, rows=rows)
    if distinct is not None and distinct.args.get("on") is not None and _ordered(node, beside):
        out = True
    return _Relation(columns, out), within


def _is_cut(node: exp.Expr, scope: _Scope, *, rows: bool) -> bool:
    """Whether noise decides what LIMIT and OFFSET keep."""
    cut = [part for part in (node.args.get("limit"), node.args.get("offset")) if part is not None]
    return bool(cut) and (rows or _ordered(node, scope) or any(_noisy(part, scope) for part in cut))


def _ordered(node: exp.Expr, scope: _Scope) -> bool:
    order = node.args.get("order")
    return order is not None and _noisy(order, scope)


def _expressions(group: exp.Expr) -> Iterator[exp.Expr]:
    for part in ("expressions", "grouping_sets", "rollup", "cube"):
        yield from (found for found in group.args.get(part) or () if isinstance(found, exp.Expr))


def _touched(node: exp.Expr, scope: _Scope) -> bool:
    """Whether any column or table of noise is named within."""
    tables = (scope.queries.get(table.name.lower()) for table in node.find_all(exp.Table))
    if any(found is not None and (found.rows or any(noisy for _, noisy in found.columns)) for found in tables):
        return True
    return any(_column(column, scope) for column in node.find_all(exp.Column))


def _noisy(node: exp.Expr, scope: _Scope) -> bool:
    """Whether the value of an expression depends on noise."""
    if isinstance(node, exp.Query):
        found = _relation(node, _Scope({}, scope.queries, outer=scope))
        return found is None or found.rows or any(noisy for _, noisy in found.columns)
    if isinstance(node, exp.Column):
        return _column(node, scope)
    return any(_noisy(child, scope) for child in node.iter_expressions())


def _column(node: exp.Column, scope: _Scope) -> bool:
    """Whether a column depends on noise; one that is not found counts as if it did."""
    name, table = node.name.lower(), node.table.lower()
    here: _Scope | None = scope
    while here is not None:
        if not table and name in here.items:
            return here.items[name]
        for alias, source in here.sources.items():
            found = source.has(name)
            if table in ("", alias) and found is not None:
                return found
        here = here.outer
    return True


def _divisors(whole: exp.Expr, tree: exp.Expr, relations: Mapping[str, _Relation]) -> list[tuple[str, ...]]:
    """What each column of the outermost SELECT is divided by, as the query's own text says it.

    Nothing of SELECT DISTINCT, GROUP BY ALL and of stars, to which no column can be added without a change of meaning.
    """
    if not (isinstance(whole, exp.Select) and isinstance(tree, exp.Select)):
        return []
    group = tree.args.get("group")
    plain = tree.args.get("distinct") is None and not (group is not None and group.args.get("all"))
    if not plain or len(whole.expressions) != len(tree.expressions):
        return []
    _, scope = _selected(whole, _with(whole, _Scope({}, relations)))
    found: list[tuple[str, ...]] = []
    for meant, written in zip(whole.expressions, tree.expressions, strict=True):
        pairs = zip(_divided(meant), _divided(written), strict=False)
        found.append(tuple(b.expression.sql("duckdb") for a, b in pairs if _noisy(a.expression, scope)))
    return found


def _divided(node: exp.Expr) -> Iterator[exp.Expr]:
    """The divisions of an expression that are not within an aggregate or a query of its own."""
    if isinstance(node, exp.Div | exp.IntDiv):
        yield node
    if not isinstance(node, exp.Query | exp.AggFunc | exp.Window):
        for child in node.iter_expressions():
            yield from _divided(child)
