"""Lists of quantiles and MODE, written as what has a number or a value in each row of a result.

``QUANTILE_CONT(x, [0.25, 0.75]) AS q`` is one column for each share, ``q_1`` and ``q_2``, as results hold no lists; an
element of it, ``(...)[2]``, is that one. ``SELECT g, MODE(x) ... GROUP BY g`` is the value of x that counts most of
those of its group: GROUP BY g, x, and QUALIFY over the counts.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.policy.values import fold

_QUANTILES = (exp.PercentileCont, exp.PercentileDisc, exp.Quantile, exp.ApproxQuantile)
_ELEMENT = frozenset({"list_extract", "list_element", "array_extract"})
_SHARES = ("expression", "quantile", "this")


def ranks_written(select: exp.Select) -> None:
    """Change a SELECT, which belongs to the caller, to the plainer forms."""
    for node in [*select.find_all(exp.Bracket), *select.find_all(exp.Anonymous)]:
        one = _element(node)
        if one is not None:
            node.replace(one)
    _listed(select)
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


def _listed(select: exp.Select) -> None:
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
