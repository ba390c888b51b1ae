"""What rows of another table say of a row, written as joins that find one row at most.

IN and EXISTS: ``EXISTS (SELECT ... FROM d WHERE d.pid = v.pid AND ...)``; values of such rows:
``(SELECT MAX(d.x) FROM d WHERE d.pid = v.pid)``.

The subquery becomes a derived table with one row for each value that it is asked for, joined by LEFT JOIN, and the
condition asks whether a row was found. Over private rows that is a table of units (``per_unit``), so that a row depends
on its own unit alone. Where IN may be NULL and not FALSE, ``null_of_in`` says what is looked up besides. A NULL among
private rows says nothing there, as it is another unit's, where SQL's NOT IN would hold for no row.
An inequality besides (``ties``) is asked of the least or greatest value; of two the first finds the nearest row, by an
ASOF LEFT JOIN, which knows the least or greatest from there on.

A LEFT JOIN that is grouped by the left table's key, ``FROM p LEFT JOIN v ON ... GROUP BY p.id``: the aggregates of the
right table by that key, joined to the left one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import SQLError, listed
from dpsql.policy.values import fold
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import made_column, standing_for, written
from dpsql.sql.resolve import ties
from dpsql.sql.resolve.flatten import LOOKED_UP, Rows, aggregates, flattened
from dpsql.sql.resolve.null_of_in import Lookup, Pairs, counts_as_false, lookups, or_null
from dpsql.sql.resolve.relations import conjuncts, whole
from dpsql.sql.resolve.stars import expanded
from dpsql.sql.resolve.ties import IsDate, Sources

# What EXISTS does not look at.
_IGNORED = frozenset({"expressions", "from_", "joins", "where", "with_", "distinct", "order", "limit"})


@dataclass(frozen=True)
class Catalog:
    """The facts about tables: what a subquery's FROM reads, None where that is not rows (``inside``); whether a SELECT
    with GROUP BY has a row for each unit (``by_unit``); whether a column of a subquery's rows is a DATE (``is_date``);
    the columns that no two rows of a public table share (``public_key``), None of other rows.
    """

    inside: Callable[[exp.Select], Sources | None]
    by_unit: Callable[[exp.Select], bool]
    is_date: IsDate
    public_key: Callable[[Rows], tuple[str, ...] | None]


def with_joins(select: exp.Select, catalog: Catalog) -> exp.Select:
    """``select``, over rows, with the subqueries of IN and EXISTS in its items and WHERE among its joins.

    The same object where there are none. Raises SQLError for subqueries that anything but equalities with the unit, and
    two inequalities, ties to the row.
    """
    if not any(_subqueries(clause) for clause in _clauses(select)):
        return select
    out = select.copy()
    joins = list(out.args.get("joins") or [])
    for clause in _clauses(out):
        for node in list(_subqueries(clause)):
            made = _joined(node, f"{LOOKED_UP}{len(joins)}", catalog)
            if made is not None:
                joins.extend(made.joins)
                over = node.parent if isinstance(node, exp.In) and counts_as_false(node) else None
                replaced = over if isinstance(over, exp.Coalesce) else node
                replaced.replace(standing_for(made.result, replaced.copy()))
    if len(joins) == len(select.args.get("joins") or []):
        return select
    out.set("joins", joins)
    return out


def _clauses(select: exp.Select) -> list[exp.Expression]:
    where = select.args.get("where")
    return [*select.expressions, *([where] if where is not None else [])]


def _subqueries(clause: exp.Expression) -> list[exp.Exists | exp.In | exp.Subquery]:
    """What asks a subquery, but for those inside of other subqueries."""
    subqueries: list[exp.Exists | exp.In | exp.Subquery] = []
    waiting = [clause]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Exists | exp.Subquery) or (isinstance(node, exp.In) and node.args.get("query")):
            subqueries.append(node)
        elif not isinstance(node, exp.Query):
            waiting.extend(node.iter_expressions())
    return subqueries


@dataclass(frozen=True)
class _Made:
    joins: Sequence[exp.Join]
    result: exp.Expression


def _joined(node: exp.Exists | exp.In | exp.Subquery, alias: str, catalog: Catalog) -> _Made | None:
    query = node.args["query"] if isinstance(node, exp.In) else node.this
    while isinstance(query, exp.Subquery):
        query = query.this
    sources = catalog.inside(query) if isinstance(query, exp.Select) else None
    if sources is None or not isinstance(query, exp.Select):
        return None
    public = len(sources) == 1 and catalog.public_key(sources[0][1]) is not None
    unknown = isinstance(node, exp.In) and not counts_as_false(node)
    if isinstance(node, exp.In):
        query = expanded(query, [(name, rows.names) for name, rows in sources])
        if public and unknown and query.args.get("group"):
            query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=query.subquery("dpsql_rows")))
            sources = catalog.inside(query) or sources
            query = expanded(query, [(name, rows.names) for name, rows in sources])
    if public:
        # Over the public table itself, whose key is declared.
        query = flattened(query, sources)
        sources = [(base.alias, Rows((base,))) for base in sources[0][1].bases]
    if isinstance(node, exp.Subquery):
        return _value(query, sources, alias, catalog)
    compared: Pairs = []
    if isinstance(node, exp.In):
        left = node.this.unnest()
        lefts = list(left.expressions) if isinstance(left, exp.Tuple) else [left]
        items = [item.this if isinstance(item, exp.Alias) else item for item in query.expressions]
        if len(items) != len(lefts):
            raise refuse(f"IN compares {len(lefts)} columns with {len(items)}; select as many", node, code="subquery")
        compared = list(zip(items, lefts, strict=True))
        if query.args.get("limit"):
            raise refuse(
                "LIMIT in the subquery of IN looks at several units at once; leave it out", query, code="subquery"
            )
    tied = ties.tied(query, sources, catalog.is_date)
    made = _matched(node, query, sources, compared, tied, alias, catalog)
    if not unknown:
        return made
    joins, nulls = _unknown(
        query, lookups(compared, tied, 1 if public else len(compared)), tied, alias, catalog, public=public
    )
    return _Made([*made.joins, *joins], or_null(made.result, nulls))


def _unknown(
    query: exp.Select, columns: Sequence[Lookup], tied: ties.Tied, alias: str, catalog: Catalog, *, public: bool
) -> tuple[list[exp.Join], list[exp.Expression]]:
    """The joins and conditions that say where IN is NULL if it is not TRUE.

    Rows of other units say nothing: where the columns that hold the unit are NULL, some row is taken to be there.
    """
    joins: list[exp.Join] = []
    nulls: list[exp.Expression] = []
    for lookup in columns:
        if not public and not _finds_units(query, lookup.keys, tied, catalog):
            condition = lookup.outside
        elif len(lookup.ordered) > 2:
            raise refuse(
                "what IN is of NULL in so many columns is not answered; write EXISTS (SELECT 1 FROM d WHERE d.k = v.k "
                "AND ...), which is never NULL",
                query,
                code="subquery",
            )
        else:
            derived = _grouped(query, [mine for mine, _ in lookup.keys], tied.inner)
            name, kinds = f"{alias}_{len(joins)}", lookup.kinds
            along = lookup.ordered[:-1]
            for item in (*(ordered.along for ordered in along), *kinds):
                derived.append("expressions", item)
            joins.append(_left_join(derived, name, lookup.keys, along, results=len(kinds)))
            condition = lookup.finds([made_column(f"found{number or ''}", name) for number in range(len(kinds))])
        nulls.append(exp.Paren(this=whole([condition, *tied.outside])))
    return joins, nulls


def _finds_units(query: exp.Select, keys: Pairs, tied: ties.Tied, catalog: Catalog) -> bool:
    """Whether columns of private rows hold their unit."""
    try:
        return bool(keys) and catalog.by_unit(_grouped(query, [mine for mine, _ in keys], tied.inner))
    except SQLError as error:
        if error.code != "per-unit":
            raise
        return False


def _matched(
    node: exp.Exists | exp.In,
    query: exp.Select,
    sources: Sources,
    compared: Pairs,
    tied: ties.Tied,
    alias: str,
    catalog: Catalog,
) -> _Made:
    """Whether a row of the subquery is equal in the columns that IN compares; never NULL."""
    pairs: Pairs = [*compared, *tied.pairs]
    ordered: Sequence[ties.Ordered] = tied.ordered
    key = catalog.public_key(sources[0][1]) if len(sources) == 1 < len(pairs) else None
    if key is not None and not ordered and not query.args.get("group"):
        return _by_key(query, sources[0], key, pairs, tied, alias)
    if key is None and len(pairs) > 1 and not query.args.get("group"):
        pairs, ordered = _split(query, pairs, tied, catalog)
    if not pairs:
        raise refuse(
            "nothing ties EXISTS (...) to the row; add an equality of its columns with those of the row to its WHERE"
            + ("" if catalog.public_key(sources[0][1]) is not None else ", the unit's among them"),
            node,
            code="subquery",
        )
    derived = query.copy() if query.args.get("group") else _grouped(query, [mine for mine, _ in pairs], tied.inner)
    tie = isinstance(node, exp.Exists) or len(pairs) > len(query.expressions) or ordered or tied.outside
    if query.args.get("group") and tie:
        raise refuse(
            "a subquery with GROUP BY is answered as column IN (SELECT column ... GROUP BY column) alone",
            node,
            code="subquery",
        )
    if len(ordered) == 2:
        derived.append("expressions", ordered[0].along)
    if ordered:
        derived.append("expressions", ordered[-1].extreme)
    if not catalog.by_unit(derived):
        raise refuse(
            "IN and EXISTS over private rows look at rows of the same unit alone; compare the columns that hold the "
            "unit",
            node,
            code="subquery",
        )
    if not ordered:
        derived.append("expressions", exp.Count(this=exp.Star()))
    join = _left_join(derived, alias, pairs, ordered[:-1])
    result: exp.Expression = exp.Not(this=exp.Is(this=made_column("found", alias), expression=exp.Null()))
    if ordered or tied.outside:
        condition = whole([ordered[-1].holds(made_column("found", alias)) if ordered else result, *tied.outside])
        result = exp.Case(ifs=[exp.If(this=condition, true=exp.Boolean(this=True))], default=exp.Boolean(this=False))
    return _Made([join], exp.Paren(this=result))


def _left_join(
    derived: exp.Select,
    alias: str,
    pairs: Pairs,
    along: Sequence[ties.Ordered] = (),
    results: int = 1,
) -> exp.Join:
    """A join to rows by their keys k0, k1, ..., and to the nearest of them; last come columns found, found1, ..."""
    keys = [made_column(f"k{number}", alias) for number in range(len(pairs))]
    on: list[exp.Expr] = [
        exp.EQ(this=theirs.copy(), expression=key.copy()) for (_, theirs), key in zip(pairs, keys, strict=True)
    ]
    on += [ordered.holds(made_column("along", alias)) for ordered in along]
    last = [f"found{number or ''}" for number in range(results)]
    listed = [exp.to_identifier(name) for name in (*(key.name for key in keys), *("along" for _ in along), *last)]
    read = exp.Subquery(this=derived, alias=exp.TableAlias(this=exp.to_identifier(alias), columns=listed))
    return exp.Join(this=read, side="LEFT", on=whole(on), method="ASOF" if along else None)


def _split(query: exp.Select, pairs: Pairs, tied: ties.Tied, catalog: Catalog) -> tuple[Pairs, Sequence[ties.Ordered]]:
    """The equalities of columns that hold the unit; one of another column as "at least" and "at most"."""
    of_unit = [pair for pair in pairs if _finds_units(query, [pair], tied, catalog)]
    others = [pair for pair in pairs if pair not in of_unit]
    if not of_unit or not others:
        return pairs, tied.ordered
    if len(others) > 1 or tied.ordered:
        raise refuse(
            f"{shown(others[0][0])} is no column that holds the unit; a subquery over private rows is tied by these, "
            "and by one equality or two inequalities of other columns besides",
            others[0][0],
            code="subquery",
        )
    ((mine, theirs),) = others
    return of_unit, [ties.Ordered(kind(this=mine, expression=theirs), theirs) for kind in (exp.GTE, exp.LTE)]


def _by_key(
    query: exp.Select,
    source: tuple[str, Rows],
    key: tuple[str, ...],
    pairs: Pairs,
    tied: ties.Tied,
    alias: str,
) -> _Made:
    """Several columns of a public table: the one row that its declared key finds, of which the rest is asked."""
    name, rows = source
    named = {fold(mine.name): theirs for mine, theirs in pairs if isinstance(mine, exp.Column)}
    if not key or not {fold(column) for column in key} <= set(named):
        raise refuse(
            f"{name} is asked for several columns at once, which finds its rows by their key; "
            + (f"compare {listed(list(key))} too" if key else "declare those that no two rows share as its key"),
            query,
            code="subquery",
        )
    _check_plain(query)
    names = {fold(column): f"k{number}" for number, column in enumerate(rows.names)}

    def on_join(node: exp.Expr) -> exp.Expr:
        """An expression of the subquery's rows, over what the join reads of them."""
        inner = node.find(exp.Query)
        if inner is not None:
            raise _not_answered("SELECT", inner)
        return node.transform(
            lambda part: (
                made_column(names[fold(part.name)], alias)
                if isinstance(part, exp.Column) and fold(part.name) in names
                else part  # a name that the table has not is looked for outside, as in SQL
            )
        )

    keys = [made_column(names[fold(column)], alias) for column in key]
    on = whole(exp.EQ(this=named[fold(k)].copy(), expression=at) for k, at in zip(key, keys, strict=True))
    joined = {id(named[fold(column)]) for column in key}
    equal = [exp.EQ(this=theirs.copy(), expression=on_join(mine)) for mine, theirs in pairs if id(theirs) not in joined]
    present = exp.Not(this=exp.Is(this=keys[0].copy(), expression=exp.Null()))
    matches = whole([present, *equal, *map(on_join, tied.inner), *tied.outside])
    items = [
        exp.alias_(made_column(exp.to_identifier(column, quoted=True)), names[fold(column)]) for column in rows.names
    ]
    read = exp.Select(expressions=items, from_=exp.From(this=rows.bases[0].node.copy()))
    case = exp.Case(ifs=[exp.If(this=matches, true=exp.Boolean(this=True))], default=exp.Boolean(this=False))
    join = exp.Join(
        this=exp.Subquery(this=read, alias=exp.TableAlias(this=exp.to_identifier(alias))), side="LEFT", on=on
    )
    return _Made([join], exp.Paren(this=case))


def _check_plain(query: exp.Select) -> None:
    """Refuse clauses of a subquery that would look at its rows together."""
    for clause, value in query.args.items():
        if value and (clause not in _IGNORED or any(aggregates(item) for item in query.expressions)):
            raise _not_answered(clause.strip("_").upper(), query)


def _not_answered(clause: str, node: exp.Expr) -> SQLError:
    return refuse(f"{clause} in the subquery of IN or EXISTS is not answered; leave it out", node, code="subquery")


def _value(query: exp.Select, sources: Sources, alias: str, catalog: Catalog) -> _Made | None:
    """``(SELECT MAX(x) FROM d WHERE d.pid = v.pid)``, an aggregate of the rows with a key; None of any other value."""
    item = query.expressions[0].unalias() if len(query.expressions) == 1 else None
    clauses = {key for key, value in query.args.items() if value} - {"expressions", "from_", "joins", "where", "with_"}
    plain = not clauses and isinstance(item, exp.AggFunc | exp.Filter)
    public = all(catalog.public_key(rows) is not None for _, rows in sources)
    if not public and (not plain or query.args.get("where") is None):
        return None
    tied = ties.tied(query, sources, catalog.is_date)
    if public and not tied.pairs:
        raise refuse(
            "a value of a public table is looked up for each row, tied to it by an equality of columns; one for all "
            "rows is no secret: ask DuckDB for it and write the constant",
            query,
            code="subquery",
        )
    if not plain or item is None or not tied.pairs:
        return None
    if tied.ordered or tied.outside:
        raise refuse(
            "a subquery that gives a value is tied to the row by equalities of columns alone", query, code="subquery"
        )
    rows = query.copy()
    rows.set("expressions", [exp.Literal.number(1)])
    derived = _grouped(rows, [mine for mine, _ in tied.pairs], tied.inner)
    derived.append("expressions", item.copy())
    if not catalog.by_unit(derived):
        raise refuse(
            "a subquery over private rows looks at rows of the same unit alone; compare the columns that hold the unit",
            query,
            code="subquery",
        )
    result: exp.Expression = made_column("found", alias)
    if isinstance(item.this if isinstance(item, exp.Filter) else item, exp.Count | exp.CountIf):
        result = exp.Coalesce(this=result, expressions=[exp.Literal.number(0)])  # of no rows there are none
    return _Made([_left_join(derived, alias, tied.pairs)], exp.Paren(this=result))


def _grouped(query: exp.Select, keys: Sequence[exp.Expression], rest: Sequence[exp.Expression]) -> exp.Select:
    """The subquery's rows by its keys; without any all of them as one group."""
    _check_plain(query)
    where = whole(rest)
    made = {
        "with_": query.args.get("with_"),
        "expressions": [
            exp.Alias(this=key.copy(), alias=exp.to_identifier(f"k{number}")) for number, key in enumerate(keys)
        ],
        "from_": query.args["from_"].copy(),
        "joins": [join.copy() for join in query.args.get("joins") or []],
        "where": None if where is None else exp.Where(this=where),
        "group": exp.Group(expressions=[key.copy() for key in keys] or [exp.Boolean(this=True)]),
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
            text = written(whole_node)
            found.setdefault(text, whole_node.copy())
            column: exp.Expression = made_column(f"a{list(found).index(text)}", "dpsql_grouped")
            if isinstance(node, exp.Count | exp.CountIf):
                column = exp.Coalesce(this=column, expressions=[exp.Literal.number(0)])
            whole_node.replace(standing_for(column, whole_node.copy()))
    derived = _grouped_by(joins[0].this, rest, pairs, list(found.values()))
    names = [*(f"k{number}" for number in range(len(pairs))), *(f"a{number}" for number in range(len(found)))]
    alias = exp.TableAlias(this=exp.to_identifier("dpsql_grouped"), columns=[exp.to_identifier(name) for name in names])
    on = whole(
        exp.EQ(this=theirs.copy(), expression=made_column(f"k{number}", "dpsql_grouped"))
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
