"""What rows of another table say of a row, written as joins that find one row at most.

IN and EXISTS: ``EXISTS (SELECT ... FROM d WHERE d.pid = v.pid AND ...)``.

The subquery becomes a derived table with one row for each value that it is asked for, joined by LEFT JOIN, and the
condition asks whether a row was found. Over private rows that is a table of units (``per_unit``), so that a row depends
on its own unit alone. A NULL that the subquery finds says nothing here, where SQL's NOT IN would hold for no row.

A LEFT JOIN that is grouped by the left table's key, ``FROM p LEFT JOIN v ON ... GROUP BY p.id``: the aggregates of the
right table by that key, joined to the left one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.flatten import Rows, aggregates
from dpsql.sql.resolve.relations import conjuncts, whole

Sources = Sequence[tuple[str, Rows]]

# What EXISTS does not look at.
_IGNORED = frozenset({"expressions", "from_", "joins", "where", "with_", "distinct", "order", "limit"})


def with_joins(
    select: exp.Select, inside: Callable[[exp.Select], Sources | None], by_unit: Callable[[exp.Select], bool]
) -> exp.Select:
    """``select``, over rows, with the subqueries of IN and EXISTS in its items and WHERE among its joins.

    ``inside`` says what a subquery's FROM reads, None where that is not rows; ``by_unit`` whether a SELECT with GROUP
    BY has a row for each unit. The same object where there are none. Raises SQLError for subqueries that anything but
    equalities with the unit ties to the row.
    """
    if not any(_asked(clause) for clause in _clauses(select)):
        return select
    out = select.copy()
    joins = list(out.args.get("joins") or [])
    for clause in _clauses(out):
        for node in list(_asked(clause)):
            made = _joined(node, f"dpsql_in_{len(joins)}", inside, by_unit)
            if made is not None:
                joins.append(made.join)
                node.replace(made.found)
    out.set("joins", joins)
    return out


def _clauses(select: exp.Select) -> list[exp.Expression]:
    where = select.args.get("where")
    return [*select.expressions, *([where] if where is not None else [])]


def _asked(clause: exp.Expression) -> list[exp.Exists | exp.In]:
    """The conditions that ask a subquery, but for those inside of other subqueries."""
    found: list[exp.Exists | exp.In] = []
    waiting = [clause]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Exists) or (isinstance(node, exp.In) and node.args.get("query")):
            found.append(node)
        elif not isinstance(node, exp.Query):
            waiting.extend(node.iter_expressions())
    return found


@dataclass(frozen=True)
class _Made:
    join: exp.Join
    found: exp.Expression


def _joined(
    node: exp.Exists | exp.In,
    alias: str,
    inside: Callable[[exp.Select], Sources | None],
    by_unit: Callable[[exp.Select], bool],
) -> _Made | None:
    query = node.this if isinstance(node, exp.Exists) else node.args["query"]
    while isinstance(query, exp.Subquery):
        query = query.this
    sources = inside(query) if isinstance(query, exp.Select) else None
    if sources is None or not isinstance(query, exp.Select):
        return None
    pairs: list[tuple[exp.Expression, exp.Expression]] = []
    if isinstance(node, exp.In):
        left = node.this.unnest()
        asked = list(left.expressions) if isinstance(left, exp.Tuple) else [left]
        items = [item.this if isinstance(item, exp.Alias) else item for item in query.expressions]
        if len(items) != len(asked):
            raise refuse(f"IN compares {len(asked)} columns with {len(items)}; select as many", node, code="subquery")
        pairs += zip(items, asked, strict=True)
        if query.args.get("limit"):
            raise refuse(
                "LIMIT in the subquery of IN looks at several units at once; leave it out", query, code="subquery"
            )
    ordered: list[_Ordered] = []
    rest = list(_untied(query, sources, pairs, ordered if isinstance(node, exp.Exists) else None))
    if not pairs:
        raise refuse(
            "nothing ties EXISTS (...) to the row; add an equality of the unit's columns to its WHERE",
            node,
            code="subquery",
        )
    derived = query.copy() if query.args.get("group") else _grouped(query, [mine for mine, _ in pairs], rest)
    if query.args.get("group") and (isinstance(node, exp.Exists) or len(pairs) > len(query.expressions)):
        raise refuse(
            "a subquery with GROUP BY is answered as column IN (SELECT column ... GROUP BY column) alone",
            node,
            code="subquery",
        )
    if ordered:
        (bound,) = ordered
        derived.append("expressions", bound.extreme)
    if not by_unit(derived):
        raise refuse(
            "IN and EXISTS over private rows look at rows of the same unit alone; compare the columns that hold the "
            "unit",
            node,
            code="subquery",
        )
    names = [f"k{number}" for number in range(len(pairs))]
    if not ordered:
        derived.append("expressions", exp.Count(this=exp.Star()))
    listed = [exp.to_identifier(name) for name in (*names, "found")]
    read = exp.Subquery(this=derived, alias=exp.TableAlias(this=exp.to_identifier(alias), columns=listed))
    keys = [exp.column(name, alias) for name in names]
    on = whole(exp.EQ(this=theirs.copy(), expression=key.copy()) for (_, theirs), key in zip(pairs, keys, strict=True))
    found: exp.Expression = exp.Not(this=exp.Is(this=exp.column("found", alias), expression=exp.Null()))
    if ordered:
        held = type(ordered[0].part)(this=exp.column("found", alias), expression=ordered[0].theirs.copy())
        found = exp.Case(ifs=[exp.If(this=held, true=exp.Boolean(this=True))], default=exp.Boolean(this=False))
    return _Made(exp.Join(this=read, side="LEFT", on=on), exp.Paren(this=found))


@dataclass(frozen=True)
class _Ordered:
    """``part``: a row's own number is less or greater than ``theirs``, of the row outside.

    Some row's is greater where the greatest of them is.
    """

    part: exp.Binary
    theirs: exp.Expression

    @property
    def extreme(self) -> exp.Expression:
        kind = exp.Max if isinstance(self.part, exp.GT | exp.GTE) else exp.Min
        return kind(this=self.part.this.copy())


_TURNED: dict[type[exp.Expr], type[exp.Binary]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}


def _untied(
    query: exp.Select,
    sources: Sources,
    pairs: list[tuple[exp.Expression, exp.Expression]],
    ordered: list[_Ordered] | None,
) -> Iterator[exp.Expression]:
    """The conditions of a subquery that are about its own rows.

    Equalities with the row outside go to ``pairs``, one inequality with it to ``ordered``.
    """
    aliases = {fold(alias) for alias, _ in sources}
    names = {fold(name) for _, rows in sources for name in rows.names}

    def is_own(column: exp.Column) -> bool:
        return fold(column.table) in aliases if column.table else fold(column.name) in names

    where = query.args.get("where")
    for part in () if where is None else conjuncts(where.this):
        columns = list(part.find_all(exp.Column))
        if all(is_own(column) for column in columns):
            yield part  # type: ignore[misc]
            continue
        if type(part) in _TURNED and ordered == []:
            whose = [[is_own(column) for column in side.find_all(exp.Column)] for side in (part.this, part.expression)]
            if whose[0] and all(whose[0]) and not any(whose[1]):
                ordered.append(_Ordered(part, part.expression))  # type: ignore[arg-type]
                continue
            if whose[1] and all(whose[1]) and not any(whose[0]):
                turned = _TURNED[type(part)](this=part.expression, expression=part.this)
                ordered.append(_Ordered(turned, part.this))
                continue
        sides = [part.this.unnest(), part.expression.unnest()] if isinstance(part.unnest(), exp.EQ) else []
        own = [isinstance(side, exp.Column) and is_own(side) for side in sides]
        if own not in ([True, False], [False, True]) or not all(isinstance(side, exp.Column) for side in sides):
            raise refuse(
                "a subquery is tied to the row by equalities of columns, that of EXISTS by one < or > besides; compare "
                "its MIN or MAX: JOIN (SELECT unit, MIN(x) AS x FROM ... GROUP BY unit), and a condition on x",
                part,
                code="subquery",
            )
        mine, theirs = sides if own[0] else sides[::-1]
        pairs.append((mine, theirs))


def _grouped(query: exp.Select, keys: Sequence[exp.Expression], rest: Sequence[exp.Expression]) -> exp.Select:
    """The subquery's rows by its keys."""
    for clause, value in query.args.items():
        if value and (clause not in _IGNORED or any(aggregates(item) for item in query.expressions)):
            raise refuse(
                f"{clause.strip('_').upper()} in the subquery of IN or EXISTS is not answered; leave it out",
                query,
                code="subquery",
            )
    where = whole(rest)
    made = {
        "with_": query.args.get("with_"),
        "expressions": [
            exp.Alias(this=key.copy(), alias=exp.to_identifier(f"k{number}")) for number, key in enumerate(keys)
        ],
        "from_": query.args["from_"].copy(),
        "joins": [join.copy() for join in query.args.get("joins") or []],
        "where": None if where is None else exp.Where(this=where),
        "group": exp.Group(expressions=[key.copy() for key in keys]),
    }
    return exp.Select(**{key: value for key, value in made.items() if value})


def grouped_first(select: exp.Select, sources: Sources, key: Sequence[str]) -> exp.Select:
    """``FROM l LEFT JOIN r ON l.k = r.f AND ... GROUP BY l.k`` with r grouped before it is joined.

    ``key`` are the columns of l that no two of its rows share; where GROUP BY has all of them, a group is a row of l.
    The same object for any other SELECT.
    """
    joins, group = select.args.get("joins") or [], select.args.get("group")
    if group is None or len(joins) != 1 or str(joins[0].side).upper() != "LEFT" or joins[0].args.get("on") is None:
        return select
    (left, rows), (right, others) = sources
    named = {fold(name): left for name in rows.names} | {fold(name): right for name in others.names}

    def whose(node: exp.Expr) -> set[str]:
        return {fold(column.table or named.get(fold(column.name), "")) for column in node.find_all(exp.Column)}

    items = [item.this if isinstance(item, exp.Alias) else item for item in select.expressions]
    keys = [_meant(item, items) for item in group.expressions]
    if not key or not {fold(name) for name in key} <= {fold(k.name) for k in keys if isinstance(k, exp.Column)}:
        return select
    if any(whose(part) != {fold(left)} for part in keys) or any(group.args.get(name) for name in ("rollup", "cube")):
        return select
    pairs: list[tuple[exp.Expression, exp.Expression]] = []
    rest = []
    for part in conjuncts(joins[0].args["on"]):
        sides = [part.this.unnest(), part.expression.unnest()] if isinstance(part, exp.EQ) else []
        if whose(part) == {fold(right)}:
            rest.append(part)
        elif len(sides) == 2 and {frozenset(whose(side)) for side in sides} == {
            frozenset({fold(left)}),
            frozenset({fold(right)}),
        }:
            pairs.append((sides[0], sides[1]) if whose(sides[0]) == {fold(right)} else (sides[1], sides[0]))
        else:
            return select
    found: dict[str, exp.Expr] = {}
    out = select.copy()
    for clause in [*out.expressions, *([out.args["having"]] if out.args.get("having") else [])]:
        for node in [part for part in clause.find_all(exp.AggFunc) if not part.find_ancestor(exp.AggFunc)]:
            whole_node = node.parent if isinstance(node.parent, exp.Filter) else node
            if whose(whole_node) != {fold(right)}:
                return select
            text = whole_node.sql("duckdb")
            found.setdefault(text, whole_node.copy())
            column: exp.Expression = exp.column(f"a{list(found).index(text)}", "dpsql_grouped")
            if isinstance(node, exp.Count | exp.CountIf):
                column = exp.Coalesce(this=column, expressions=[exp.Literal.number(0)])
            whole_node.replace(column)
    derived = _grouped_by(joins[0].this, rest, pairs, list(found.values()))
    names = [*(f"k{number}" for number in range(len(pairs))), *(f"a{number}" for number in range(len(found)))]
    alias = exp.TableAlias(this=exp.to_identifier("dpsql_grouped"), columns=[exp.to_identifier(name) for name in names])
    on = whole(
        exp.EQ(this=theirs.copy(), expression=exp.column(f"k{number}", "dpsql_grouped"))
        for number, (_, theirs) in enumerate(pairs)
    )
    having = out.args.pop("having", None)
    out.args.pop("group")
    out.set("joins", [exp.Join(this=exp.Subquery(this=derived, alias=alias), side="LEFT", on=on)])
    if having is not None:
        where = out.args.get("where")
        parts = [having.this, *([where.this] if where is not None else [])]
        out.set("where", exp.Where(this=whole(parts)))
    return out


def _meant(item: exp.Expression, items: Sequence[exp.Expression]) -> exp.Expression:
    if isinstance(item, exp.Literal) and not item.is_string and 0 < int(item.this) <= len(items):
        return items[int(item.this) - 1]
    return item


def _grouped_by(
    table: exp.Expression,
    rest: Sequence[exp.Expr],
    pairs: Sequence[tuple[exp.Expression, exp.Expression]],
    items: Sequence[exp.Expr],
) -> exp.Select:
    where = whole(rest)
    keys = [mine.copy() for mine, _ in pairs]
    out = exp.Select(expressions=[*keys, *items], from_=exp.From(this=table.copy()))
    out.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    if where is not None:
        out.set("where", exp.Where(this=where))
    return out
