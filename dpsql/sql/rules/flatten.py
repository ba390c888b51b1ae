"""Flatten: row-wise WITH queries, derived tables and views of the policy written into the SELECT that reads them.

What is left is one SELECT over tables of the policy (``resolve/flatten.py``), the private one first.

    >>> stage("flatten", "SELECT COUNT(*) FROM (SELECT age // 10 AS d FROM people WHERE age > 17) AS w WHERE d = 3")
    SELECT COUNT(*) FROM people WHERE ("people".age > 17) AND (("people".age // 10) = 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.flatten import Rows, flattened
from dpsql.sql.resolve.stars import has_columns
from dpsql.sql.rules.qualify import SelectInProgress
from dpsql.sql.rules.rule import Rule, tree_text, unplaced

_UNSURE = (exp.Case, exp.Coalesce, exp.Is, exp.If)


def _from_the_private_side(select: exp.Select, sources: Sequence[tuple[str, Rows]]) -> exp.Select:
    """``select`` with a private table first where it LEFT JOINs one to a public one: FROM regions LEFT JOIN visits.

    The declared groups of a result are all there without any join, so the statement means what the inner join written
    from the private side means, but for one thing: SQL counts a region without visits as one row. COUNT(*) would
    therefore be off by one in empty groups, which only the data can tell, and is refused. Else ``select`` itself.

    ``sources`` are FROM's public item and the private one that is joined. Raises SQLError where an aggregate would
    count rows of the public table that have no partner.
    """
    joins = select.args.get("joins") or []
    if len(joins) != 1 or str(joins[0].side).upper() != "LEFT":
        return select
    alias, rows = sources[1]
    names = {fold(name) for name in rows.names} - {fold(name) for name in sources[0][1].names}

    def is_private(column: exp.Column) -> bool:
        return fold(column.table) == fold(alias) if column.table else fold(column.name) in names

    for part in select.walk():
        if not isinstance(part, exp.AggFunc) or isinstance(part.parent, exp.Window):
            continue
        plain = isinstance(part, exp.Count | exp.Sum | exp.Avg) and not any(part.find_all(*_UNSURE))
        if isinstance(part, exp.CountIf):
            plain = not any(part.find_all(*_UNSURE, exp.Not))
        if not plain or not any(is_private(column) for column in part.find_all(exp.Column)):
            raise refuse(
                f"{shown(part)} counts rows of {sources[0][0]} without any of {alias} too; write "
                f"COUNT({alias}.column), SUM or AVG of a column of {alias}, or FROM {alias} first",
                part,
                code="outer-count",
            )
    out = select.copy()
    (join,) = out.args["joins"]
    public, private = out.args["from_"].this, join.this
    options = {key: value for key, value in join.args.items() if key in {"on", "using"}}
    out.set("from_", exp.From(this=private.copy()))
    out.set("joins", [exp.Join(this=public.copy(), **options)])
    return out


def _broken(given: SelectInProgress) -> exp.Expr | None:
    return given.tree if has_columns(given.tree) else unplaced(given.tree)


def _flattened(given: SelectInProgress) -> SelectInProgress:
    tree = flattened(given.tree, given.sources)
    if len(given.sources) == 2 and [given.context.is_public(rows) for _, rows in given.sources] == [True, False]:
        tree = _from_the_private_side(tree, given.sources)
    return given if tree is given.tree else replace(given, tree=tree, texts=None)


FLATTEN: Rule[SelectInProgress, SelectInProgress] = Rule(
    "flatten",
    "row-wise subqueries, WITH and views of the policy written into the SELECT that reads them",
    "that each column has its place or stands for one that has, and that no item is a pattern of columns",
    broken=_broken,
    apply=_flattened,
    text=lambda given: tree_text(given.tree),
)
