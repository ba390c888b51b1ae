"""Spellings: forms of DuckDB's SQL that mean the same as a plainer one, written as that one.

What comes after the parser reads the plainer forms alone. The forms are DuckDB's own, its NULLs included: rows in
parentheses are compared field by field with IS NOT DISTINCT FROM, and a list that is searched with ``= ANY`` hands on
its NULL as IN does, one that is searched with ``list_contains`` does not.

Lists of quantiles and MODE become what has a number or a value in each row of a result. ``QUANTILE_CONT(x, [0.25,
0.75]) AS q`` is one column for each share, ``q_1`` and ``q_2``, as results hold no lists; an element of it,
``(...)[2]``, is that one. ``SELECT g, MODE(x) ... GROUP BY g`` is the value of x that counts most of those of its
group: GROUP BY g, x, and QUALIFY over the counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlglot import Token, TokenType, exp

from dpsql.policy.values import fold
from dpsql.sql.parse.trees import nodes

_CUBES: Mapping[str, type[exp.Expr]] = {"cube": exp.Cube, "rollup": exp.Rollup}  # functions to the parser
_LISTS = ("list_contains", "list_has", "array_contains", "array_has")
_AGGREGATES = (  # which the parser takes for functions of a row
    *("dp_regression", "dp_ttest", "dp_chisq", "dp_gini", "geomean", "geometric_mean", "kurtosis_pop", "sem", "mad"),
    *("entropy", "product", "favg", "fsum", "kahan_sum", "sumkahan", "wavg", "weighted_avg"),
)
_CALLED = frozenset({"mean", "mode", "count_star", "row", *_LISTS, *_CUBES, *_AGGREGATES})
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_QUANTIFIERS = frozenset({TokenType.ANY, TokenType.ALL, TokenType.SOME})
_CLAUSES = frozenset({TokenType.FETCH, TokenType.WINDOW, TokenType.PIVOT, TokenType.CUBE, TokenType.ROLLUP})
_TRIGGERS = _QUANTIFIERS | _CLAUSES
_ENTRIES = frozenset({TokenType.IN, TokenType.EQ, TokenType.NEQ, TokenType.NOT})
_BEFORE_LISTS = frozenset({TokenType.COMMA, TokenType.L_PAREN, TokenType.ARRAY})
_AFTER = frozenset({TokenType.L_PAREN, TokenType.IN})


def has_spellings(tokens: Sequence[Token]) -> bool:
    """Whether a batch could have one of the forms: most have none, and a walk over each tree costs its time."""
    kinds = {token.token_type for token in tokens}
    if not kinds.isdisjoint(_TRIGGERS):
        return True
    for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
        kind, last = first.token_type, third.token_type
        if second.token_type is TokenType.L_PAREN:
            # FROM (a JOIN b), a function of the list.
            if kind is TokenType.FROM or first.text.lower() in _CALLED:
                return True
        elif second.token_type is TokenType.L_BRACKET and kind in _BEFORE_LISTS:
            return True  # QUANTILE_CONT(x, [0.25, 0.75])
        elif kind is TokenType.DOT:
            if last is TokenType.DOT:
                return True
        elif kind is TokenType.R_PAREN and second.token_type in _ENTRIES and last in _AFTER:
            return True  # (a, b) = (1, 2), (a, b) NOT IN ((1, 2))
    return False


def respelled(tree: exp.Expr) -> exp.Expr:
    """The statement in the plainer forms. The tree is changed, and belongs to the caller."""
    for clause in list(tree.find_all(exp.From)):
        _without_parentheses(clause)
    around: dict[int, set[tuple[str, str]]] = {}
    for select in list(tree.find_all(exp.Select)):  # outer ones first
        _windows_written(select)
        _limited(select)
        _unqualified(select, around)
        ranks_written(select)
    for node in [node for node in nodes(tree) if type(node) in _REPLACED][::-1]:
        new = _REPLACED[type(node)](node)
        if new is not None and node is not tree:
            new.meta.update(node.meta)  # its place, where it has one
            node.replace(new)
    return tree


def _without_parentheses(clause: exp.From) -> None:
    """FROM (a JOIN b ...) JOIN c as FROM a JOIN b ... JOIN c, which is the same; other parentheses stay."""
    inner, select = clause.this, clause.parent
    while isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Table | exp.Subquery):
        if any(value for key, value in inner.args.items() if key not in {"this", "joins"}):
            break
        joins = [*(inner.this.args.get("joins") or []), *(inner.args.get("joins") or [])]
        inner = inner.this
        inner.set("joins", joins or None)
    if inner is not clause.this and isinstance(select, exp.Select):
        select.set("joins", [*(inner.args.get("joins") or []), *(select.args.get("joins") or [])] or None)
        inner.set("joins", None)
        clause.set("this", inner)


# -- clauses of a SELECT -------------------------------------------------------------------------


def _limited(select: exp.Select) -> None:
    """FETCH FIRST 2 ROWS ONLY as LIMIT 2."""
    fetch = select.args.get("limit")
    if isinstance(fetch, exp.Fetch) and not fetch.args.get("percent") and not fetch.args.get("with_ties"):
        options = fetch.args.get("limit_options")
        if options is None or not (options.args.get("percent") or options.args.get("with_ties")):
            select.set("limit", exp.Limit(expression=fetch.args.get("count") or exp.Literal.number(1)))


def _windows_written(select: exp.Select) -> None:
    """WINDOW w AS (...) written into each OVER w and OVER (w ...) of the SELECT."""
    defined: dict[str, exp.Window] = {}
    for window in select.args.get("windows") or []:
        if window.args.get("alias") and not _filled(window, defined):
            return
        defined[fold(window.name)] = window
    if not defined:
        return
    mine = [node for node in _nodes_of(select) if isinstance(node, exp.Window) and node.args.get("alias")]
    filled = [_filled(node, defined) for node in mine]
    if all(filled):
        select.set("windows", None)


def _filled(window: exp.Window, defined: Mapping[str, exp.Window]) -> bool:
    """Whether a window's base is known; then it has the base's parts. Its own ORDER BY must not meet another."""
    base = defined.get(fold(window.args["alias"].name))
    parts = ("partition_by", "order", "spec")
    if base is None or any(base.args.get(part) and window.args.get(part) for part in parts):
        return False
    for part in parts:
        if base.args.get(part):
            held = base.args[part]
            window.set(part, [one.copy() for one in held] if isinstance(held, list) else held.copy())
    window.set("alias", None)
    return True


def _unqualified(select: exp.Select, around: dict[int, set[tuple[str, str]]]) -> None:
    """main.trips.fare as trips.fare, where FROM names that very table without an alias; shop.main.trips as main.trips.

    So does FROM of a query around, whose name no query between them gives away. A policy is of one database, so that
    its tables stand in one catalog. ``around``: the names that are seen in each SELECT, which this one joins.
    """
    clause = select.args.get("from_")
    sources = [] if clause is None else [clause.this, *(clause.this.args.get("joins") or [])]
    sources += select.args.get("joins") or []
    tables = [source.this if isinstance(source, exp.Join) else source for source in sources]
    hidden = {fold(table.alias_or_name) for table in tables}
    known = {
        (_schema(table), fold(table.name))
        for table in tables
        if isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier) and not table.alias
    }
    outer = select.parent_select
    known |= {parts for parts in around.get(id(outer), ()) if parts[1] not in hidden}
    around[id(select)] = known
    for column in [node for node in _nodes_of(select) if isinstance(node, exp.Column) and node.args.get("db")]:
        if (_schema(column), fold(column.table)) in known:
            column.set("db", None)
            column.set("catalog", None)
    for table in tables:
        if isinstance(table, exp.Table) and table.args.get("db"):
            table.set("catalog", None)


def _schema(node: exp.Table | exp.Column) -> str:
    schema = node.args.get("db")
    return "main" if schema is None else fold(schema.name)


def _nodes_of(select: exp.Select) -> Iterable[exp.Expr]:
    """The nodes of a SELECT without those of the queries in it."""
    waiting: list[exp.Expr] = [select]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(part for part in node.iter_expressions() if not isinstance(part, exp.Query))


# -- expressions ---------------------------------------------------------------------------------


def _called(node: exp.Anonymous) -> exp.Expr | None:
    """A function that has another name as well."""
    name, given = fold(str(node.this)), node.expressions
    if name == "mean" and len(given) == 1:
        return exp.Avg(this=given[0])
    if name == "count_star" and not given:
        return exp.Count(this=exp.Star())
    if name in _AGGREGATES:
        return exp.AnonymousAggFunc(this=name, expressions=given)
    if name in _CUBES and isinstance(node.parent, exp.Group | exp.GroupingSets):
        return _CUBES[name](expressions=given)
    return None


def _listed(node: exp.Expr | None) -> list[exp.Expr] | None:
    """The elements of a list that is written out; None for anything else."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node.expressions if isinstance(node, exp.Array) and not _queries(node) else None


def _queries(node: exp.Expr) -> bool:
    return any(isinstance(part, exp.Query) for part in node.expressions)


def fields_of(node: exp.Expr) -> list[exp.Expr] | None:
    """The fields of a row in parentheses, or of ROW(...); None for anything else."""
    if isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and fold(str(node.this)) == "row"):
        return node.expressions
    return None


def _compared(node: exp.Expr) -> exp.Expr | None:
    """``x = ANY([1, 2])`` as IN, other comparisons with the elements of a list one by one; rows field by field."""
    left, right = node.this, node.expression
    rows = fields_of(left), fields_of(right)
    if rows[0] is not None and rows[1] is not None and isinstance(node, exp.EQ | exp.NEQ):
        same = _same_row(rows[0], rows[1])
        return same if isinstance(node, exp.EQ) or same is None else exp.Not(this=exp.Paren(this=same))
    called = fold(str(right.this)) if isinstance(right, exp.Anonymous) else right.key
    if called not in {"any", "some", "all"}:
        return None
    every = called == "all"
    given = right.expressions if isinstance(right, exp.Anonymous) else [right.this]
    listed = _listed(given[0]) if len(given) == 1 else None
    if listed is None:
        return None
    if not listed:
        return exp.Boolean(this=every)
    if isinstance(node, exp.EQ) and not every:
        return exp.In(this=left, expressions=listed)
    if isinstance(node, exp.NEQ) and every:
        return exp.Not(this=exp.In(this=left, expressions=listed))
    return _joined(exp.And if every else exp.Or, [type(node)(this=left.copy(), expression=part) for part in listed])


def _among(node: exp.In) -> exp.Expr | None:
    """``(a, b) IN ((1, 2), (3, 4))`` as an OR of rows that are the same."""
    fields = fields_of(node.this)
    rows = [fields_of(part) for part in node.expressions]
    if fields is None or not rows or any(row is None for row in rows):
        return None
    found = [_same_row([field.copy() for field in fields], row) for row in rows if row is not None]
    return _joined(exp.Or, [one for one in found if one is not None]) if all(found) else None


def _same_row(left: Sequence[exp.Expr], right: Sequence[exp.Expr]) -> exp.Expr | None:
    if len(left) != len(right) or not left:
        return None
    pairs = zip(left, right, strict=True)
    return _joined(exp.And, [exp.NullSafeEQ(this=one, expression=other) for one, other in pairs])


def _contained(node: exp.ArrayContains) -> exp.Expr | None:
    """``list_contains([1, 2], x)`` as IN, which a NULL in the list does not change."""
    listed = [part for part in _listed(node.this) or [] if not isinstance(part, exp.Null)]
    return exp.In(this=node.expression, expressions=listed) if listed else None


def _joined(kind: type[exp.And] | type[exp.Or], parts: Sequence[exp.Expr]) -> exp.Expr:
    """Conditions in one chain, in parentheses where there are several."""
    if len(parts) == 1:
        return parts[0]
    return exp.Paren(this=functools.reduce(lambda one, other: kind(this=one, expression=other), parts))


_REPLACED: Mapping[type[exp.Expr], Callable[..., exp.Expr | None]] = {
    exp.Anonymous: _called,
    exp.In: _among,
    exp.ArrayContains: _contained,
    **dict.fromkeys(_COMPARED, _compared),
}


_QUANTILES = (exp.PercentileCont, exp.PercentileDisc, exp.Quantile, exp.ApproxQuantile)
_ELEMENT = frozenset({"list_extract", "list_element", "array_extract"})
_SHARES = ("expression", "quantile", "this")


def ranks_written(select: exp.Select) -> None:
    """Change a SELECT, which belongs to the caller, to the plainer forms."""
    for node in [*select.find_all(exp.Bracket), *select.find_all(exp.Anonymous)]:
        one = _element(node)
        if one is not None:
            node.replace(one)
    _one_each(select)
    _mode(select)


def _quantile(node: exp.Expr) -> exp.Expr | None:
    """The quantile with a list of shares that an aggregate is."""
    node = node.unnest()
    while isinstance(node, exp.Filter | exp.WithinGroup):
        node = node.this
    return node if isinstance(node, _QUANTILES) and _list(node) is not None else None


def _list(node: exp.Expr) -> exp.Array | None:
    held = next((node.args[name] for name in _SHARES if node.args.get(name) is not None), None)
    return held if isinstance(held, exp.Array) and held.expressions else None


def _single(aggregate: exp.Expr, at: int) -> exp.Expr:
    """An aggregate with one of its shares."""
    out = aggregate.copy()
    shares = _list(_quantile(out) or out)
    assert shares is not None  # noqa: S101 - as the caller found
    shares.replace(shares.expressions[at])
    return out


def _element(node: exp.Expr) -> exp.Expr | None:
    """An element of a list of quantiles; None for anything else."""
    if isinstance(node, exp.Anonymous):
        if fold(str(node.this)) not in _ELEMENT or len(node.expressions) != 2:
            return None
        aggregate, at = node.expressions
    else:
        aggregate, at = node.this, node.expressions[0] if len(node.expressions) == 1 else None
    found = _quantile(aggregate)
    shares = None if found is None else _list(found)
    if shares is None or not isinstance(at, exp.Literal) or at.is_string or not at.this.isdigit():
        return None
    number = int(at.this)
    return _single(aggregate, number - 1) if 0 < number <= len(shares.expressions) else None


def _one_each(select: exp.Select) -> None:
    """Items that are a list of quantiles as one item for each share, where no position counts the items after."""
    out: list[exp.Expr] = []
    several = False
    for item in select.expressions:
        whole = item.this if isinstance(item, exp.Alias) else item
        found = _quantile(whole)
        shares = None if found is None else _list(found)
        if shares is None:
            out.append(item)
            continue
        parts = [_single(whole, at) for at in range(len(shares.expressions))]
        if isinstance(item, exp.Alias):
            names = [f"{item.alias}_{number}" for number in range(1, len(parts) + 1)]
            parts = [exp.alias_(part, name, quoted=True) for part, name in zip(parts, names, strict=True)]
        out.extend(parts)
        several = True
    if several and not _by_position(select):
        select.set("expressions", out)


def _by_position(select: exp.Select) -> bool:
    """Whether GROUP BY or ORDER BY names items by their positions."""
    clauses = [select.args.get("group"), select.args.get("order")]
    items = [item for clause in clauses if clause is not None for item in clause.expressions]
    return any(isinstance(item.this if isinstance(item, exp.Ordered) else item, exp.Literal) for item in items)


def _mode(select: exp.Select) -> None:
    """MODE beside keys alone, as the key whose count is largest."""
    items = list(select.expressions)
    whole = [item.this if isinstance(item, exp.Alias) else item for item in items]
    modes = [at for at, item in enumerate(whole) if isinstance(item, exp.Mode) and item.this is not None]
    others = [item for at, item in enumerate(whole) if at not in modes]
    if len(modes) != 1 or any(item.find(exp.AggFunc, exp.Window, exp.Query) for item in others):
        return
    group = select.args.get("group") or exp.Group(expressions=[])
    several = any(value for name, value in group.args.items() if name not in {"expressions", "all"})
    if several or any(select.args.get(name) for name in ("having", "qualify", "distinct", "windows")):
        return
    (at,) = modes
    of, every = whole[at].this, bool(group.args.get("all"))
    keys = others if every else [_key(key, whole, items) for key in group.expressions]
    named = items[at].alias if isinstance(items[at], exp.Alias) else f"mode({of.sql('duckdb')})"
    # A count under the table's minimum is NULL, and the value that it would have named is NULL with it.
    seen = exp.Not(this=exp.Is(this=exp.Count(this=exp.Star()), expression=exp.Null()))
    items[at] = exp.alias_(exp.Case(ifs=[exp.If(this=seen, true=of.copy())]), named, quoted=True)
    select.set("expressions", items)
    known, where = exp.Not(this=exp.Is(this=exp.Paren(this=of.copy()), expression=exp.Null())), select.args.get("where")
    held = known if where is None else exp.And(this=exp.Paren(this=where.this), expression=known)
    select.set("where", exp.Where(this=held))
    grouped = [key.copy() for key in keys if key.find(exp.Column)] if every else [key.copy() for key in keys]
    select.set("group", exp.Group(expressions=[*grouped, of.copy()]))
    most = exp.Order(expressions=[exp.Ordered(this=exp.Count(this=exp.Star()), desc=True)])
    window = exp.Window(this=exp.RowNumber(), partition_by=[key.copy() for key in keys], order=most, over="OVER")
    select.set("qualify", exp.Qualify(this=exp.EQ(this=window, expression=exp.Literal.number(1))))


def _key(key: exp.Expr, whole: list[exp.Expr], items: list[exp.Expr]) -> exp.Expr:
    """What an item of GROUP BY means: an item by position or alias, else itself."""
    if isinstance(key, exp.Literal) and not key.is_string and 0 < int(key.this) <= len(whole):
        return whole[int(key.this) - 1]
    named = [w for w, item in zip(whole, items, strict=True) if isinstance(item, exp.Alias) and item.alias == key.name]
    return named[0] if isinstance(key, exp.Column) and not key.table and named else key
