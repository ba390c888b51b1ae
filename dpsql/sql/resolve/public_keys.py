"""Keys from a public table: FROM regions LEFT JOIN visits, so that every region has a row.

The declared groups of a result are all there without any join, so the statement means what the inner
join written from the private side means, but for one thing: SQL counts a region without visits as one row.
COUNT(*) would therefore be off by one in empty groups, which only the data can tell, and is refused.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.flatten import Rows

_UNSURE = (exp.Case, exp.Coalesce, exp.Is, exp.If)


def from_the_private_side(select: exp.Select, sources: list[tuple[str, Rows, bool]]) -> exp.Select:
    """``select`` with a private table first where it LEFT JOINs one to a public one; else itself.

    ``sources`` are FROM's item and its joins: alias, rows, and whether they are public. Raises SQLError where
    an aggregate would count rows of the public table that have no partner.
    """
    joins = select.args.get("joins") or []
    if len(joins) != 1 or str(joins[0].side).upper() != "LEFT" or [public for _, _, public in sources] != [True, False]:
        return select
    alias, rows, _ = sources[1]
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
            shown = part.sql("duckdb", comments=False)[:60]
            raise refuse(
                f"{shown} counts rows of {sources[0][0]} without any of {alias} too; write COUNT({alias}.column), SUM "
                f"or AVG of a column of {alias}, or FROM {alias} first",
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
