"""A query with what it reads by a derived table or WITH written into it, where that is one plain SELECT.

So its divisions stand in the outermost SELECT, where ratios have Fieller's interval (``intervals``), however small the
divisor: ``WITH r AS (SELECT plan, cost / n AS r FROM by_plan) SELECT plan, 2 * r AS twice FROM r`` becomes
``SELECT plan, 2 * (cost / n) AS twice FROM by_plan``. Only what keeps each row a row is merged, and only where each
name can mean one thing; any other query is left as it is.
"""

from __future__ import annotations

from sqlglot import exp

_PLAIN = frozenset({"expressions", "from_", "joins", "where", "kind", "operation_modifiers"})
_MANY = (exp.AggFunc, exp.Window, exp.Query, exp.Star, exp.Anonymous, exp.Unnest)


def merged(tree: exp.Expr) -> exp.Expr:
    """The query with its one source merged, and that source's, as far as that goes; else the same object."""
    found = _merged(tree)
    while found is not None:
        tree, found = found, _merged(found)
    return tree


def _merged(tree: exp.Expr) -> exp.Select | None:
    if not isinstance(tree, exp.Select) or tree.args.get("joins") or tree.args.get("laterals"):
        return None
    source = tree.args["from_"].this if tree.args.get("from_") else None
    inner, alias = _read(tree, source)
    if inner is None or not _keeps_rows(inner):
        return None
    given = {item.alias_or_name.lower(): item.unalias() for item in inner.expressions}
    outer = tree.copy()
    outer.set("from_", None)
    if isinstance(source, exp.Table):
        outer.set("with_", None)
    if len(given) < len(inner.expressions) or _is_unclear(outer, given) or _uses_itself(inner):
        return None
    for item in list(outer.expressions):
        if isinstance(item, exp.Column):
            item.replace(exp.alias_(item.copy(), item.name, quoted=True))
    for column in list(outer.find_all(exp.Column)):
        if column.table.lower() not in ("", alias):
            return None
        meant = given.get(column.name.lower())
        if meant is not None:
            column.replace(exp.paren(meant.copy()))
        elif column.table:
            return None
    outer.set("from_", inner.args["from_"].copy())
    outer.set("joins", [join.copy() for join in inner.args.get("joins") or []] or None)
    if inner.args.get("where") is not None:
        outer.where(inner.args["where"].this.copy(), copy=False)
    return outer


def _read(tree: exp.Select, source: exp.Expr | None) -> tuple[exp.Select | None, str]:
    """The SELECT that the source is, and what its columns are qualified by."""
    held = tree.args.get("with_")
    if isinstance(source, exp.Subquery) and held is None and _are_all(tree, source.this):
        alias = source.args.get("alias")
        if isinstance(source.this, exp.Select) and alias is not None and not alias.args.get("columns"):
            return source.this, source.alias.lower()
    if isinstance(source, exp.Table) and held is not None and not held.args.get("recursive"):
        named = [cte for cte in held.expressions if cte.alias.lower() == source.name.lower()]
        single = len(held.expressions) == 1 and len(named) == 1 and not source.db
        if single and _are_all(tree, named[0].this) and not named[0].args["alias"].args.get("columns"):
            return (named[0].this if isinstance(named[0].this, exp.Select) else None), source.alias_or_name.lower()
    return None, ""


def _are_all(tree: exp.Select, query: exp.Expr) -> bool:
    """Whether a query and what is within it are all the queries of ``tree``."""
    inside = {id(node) for node in query.find_all(exp.Query)}
    every = (node for node in tree.find_all(exp.Query) if node is not tree and not isinstance(node, exp.Subquery))
    return all(id(node) in inside for node in every)


def _keeps_rows(inner: exp.Select) -> bool:
    """Whether a SELECT has a row for each row that it reads, and items whose names are known."""
    if any(value and clause not in _PLAIN for clause, value in inner.args.items()) or not inner.args.get("from_"):
        return False
    items = inner.expressions
    return all(isinstance(item, exp.Alias | exp.Column) for item in items) and not any(
        item.find(*_MANY) is not None for item in items
    )


def _is_unclear(outer: exp.Select, given: dict[str, exp.Expr]) -> bool:
    """Whether a name of the outer query could mean a column of the source or an item of its own."""
    if any(item.find(exp.Star, exp.Columns) is not None for item in outer.expressions):
        return True
    own = _renamed(outer)
    # An item's own name may stand in ORDER BY by itself; elsewhere a column below the source might have it, too.
    ordered = outer.args.get("order")
    alone = {id(part.this) for part in ordered.expressions} if ordered is not None else set()
    return bool(own & (given.keys() | {c.name.lower() for c in outer.find_all(exp.Column) if id(c) not in alone}))


def _uses_itself(inner: exp.Select) -> bool:
    """Whether a SELECT reads an item's name where it is given, as DuckDB allows: ``SELECT s / n AS r, 2 * r AS q``."""
    return bool(_renamed(inner) & {column.name.lower() for column in inner.find_all(exp.Column)})


def _renamed(select: exp.Select) -> set[str]:
    """The names that items have which are no columns of that name."""
    return {
        item.alias.lower()
        for item in select.expressions
        if isinstance(item, exp.Alias)
        and not (isinstance(item.this, exp.Column) and item.this.name.lower() == item.alias.lower())
    }
