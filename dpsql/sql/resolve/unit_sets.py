"""Sets of units: UNION, INTERSECT and EXCEPT of columns that hold the unit, as conditions on the rows of one."""

from __future__ import annotations

from sqlglot import exp

from dpsql.sql.resolve.relations import whole


def combined_units(tree: exp.SetOperation) -> tuple[exp.Select, list[exp.Select]] | None:
    """UNION, INTERSECT or EXCEPT of one column each as one SELECT DISTINCT, with the SELECTs that it combines.

    INTERSECT and EXCEPT are IN and NOT IN, of what is not NULL; UNION of two parts of one table is OR. None for others.
    """
    if not tree.args.get("distinct", True) or any(tree.args.get(key) for key in ("by_name", "order", "limit", "with_")):
        return None
    sides: list[exp.Select] = []
    found: list[exp.Select] = []
    for side in (tree.this.unnest(), tree.expression.unnest()):
        inner = combined_units(side) if isinstance(side, exp.SetOperation) else None
        mine = inner[0] if inner is not None else side
        plain = {"expressions", "from_", "joins", "where", "distinct"}
        if not isinstance(mine, exp.Select) or {key for key, value in mine.args.items() if value} - plain:
            return None
        items = [item.this if isinstance(item, exp.Alias) else item for item in mine.expressions]
        if len(items) != 1 or not isinstance(items[0], exp.Column):
            return None
        sides.append(mine)
        found.extend(inner[1] if inner is not None else [mine])
    left, right = sides
    out = left.copy()
    conditions = [side.args["where"].this.copy() if side.args.get("where") else None for side in sides]
    if isinstance(tree, exp.Union):
        items = [side.expressions[0].unalias() for side in sides]
        if any(side.args.get("joins") for side in sides) or left.args["from_"] != right.args["from_"]:
            return None
        if items[0] != items[1]:
            return None
        some = [exp.Paren(this=condition) for condition in conditions if condition is not None]
        out.set("where", exp.Where(this=exp.Or(this=some[0], expression=some[1])) if len(some) == 2 else None)
    else:
        asked = out.expressions[0].this if isinstance(out.expressions[0], exp.Alias) else out.expressions[0]
        among: exp.Expression = exp.In(this=asked.copy(), query=exp.Subquery(this=right.copy()))
        if isinstance(tree, exp.Except):
            among = exp.Not(this=among)
        given = [exp.Not(this=exp.Is(this=asked.copy(), expression=exp.Null())), among]
        out.set("where", exp.Where(this=whole([*(exp.Paren(this=c) for c in conditions[:1] if c is not None), *given])))
    out.set("distinct", exp.Distinct())
    return out, found
