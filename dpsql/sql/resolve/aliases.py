"""Aliases that an expression of the same SELECT uses: SELECT age // 10 AS d, d + 1 AS e ... WHERE d = 3.

As in DuckDB a column of that name comes first, an item sees the aliases of the items before it, WHERE sees all. What
is measured or asked of rows is written out; what is left for after the noise reads the alias's own column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import nodes, standing_for

MAX_WRITTEN = 20_000
"""Parts of expressions that aliases are written out to; each could hold the one before it twice."""


def aliases_written(select: exp.Select, columns: Iterable[str], *, row_wise: bool) -> exp.Select:
    """The SELECT with the aliases that its WHERE and its aggregates use written out; the same object without any.

    ``columns`` are the names of all that FROM gives. ``row_wise``: in every item, not in aggregates alone.
    """
    if not any(isinstance(item, exp.Alias) for item in select.expressions):
        return select
    columns = {fold(name) for name in columns}
    used = {fold(node.name) for node in _columns(select)} - columns
    if not any(isinstance(item, exp.Alias) and fold(item.alias) in used for item in select.expressions):
        return select
    out = select.copy()
    meant: dict[str, exp.Expr] = {}
    spent = 0
    for item in out.expressions:
        parts = [item] if row_wise else [part for part in nodes(item) if isinstance(part, exp.AggFunc | exp.Filter)]
        for part in parts:
            spent += _written(part, meant, columns, select)
        if isinstance(item, exp.Alias):
            meant.setdefault(fold(item.alias), item.this)
        if spent > MAX_WRITTEN:
            raise refuse("the aliases of the SELECT come to too large expressions; use fewer", select, code="too-large")
    clauses = ("where", "order") if row_wise else ("where",)
    for clause in clauses:
        if out.args.get(clause) is not None:
            _written(out.args[clause], meant, columns, select)
    return out


def _columns(part: exp.Expr) -> list[exp.Column]:
    """The columns without a table in an expression, but for those of queries in it."""
    columns, waiting = [], [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Column):
            if not node.table and isinstance(node.this, exp.Identifier):
                columns.append(node)
        else:
            waiting.extend(inner for inner in node.iter_expressions() if not isinstance(inner, exp.Query))
    return columns


def _written(part: exp.Expr, meant: Mapping[str, exp.Expr], columns: set[str], select: exp.Select) -> int:
    """Write out the aliases in a part of the SELECT; how many nodes that makes."""
    size = 0
    for column in _columns(part):
        one = meant.get(fold(column.name)) if fold(column.name) not in columns else None
        if one is not None:
            size += sum(1 for _ in nodes(one))
            if size > MAX_WRITTEN:
                break
            column.replace(standing_for(exp.Paren(this=one.copy()), column, inside=True))
    return size
