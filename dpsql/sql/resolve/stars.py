"""Names written out: stars, COLUMNS(...) and the aliases that an expression of the same SELECT uses, written out.

Which columns a pattern means is asked of a DuckDB that has their names and nothing else. An alias means as in DuckDB: a
column of that name comes first, an item sees the aliases of the items before it, WHERE sees all. What is measured or
asked of rows is written out; what is left for after the noise reads the alias's own column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.policy.values import fold
from dpsql.sql.parse.names import name_over, names_of
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import columns_in, made_column, nodes, standing_for, written

Sources = Sequence[tuple[str, Sequence[str]]]
"""What FROM gives: aliases and column names."""

_PATTERNS = (exp.Like, exp.ILike, exp.SimilarTo, exp.Glob)
# What may say which columns COLUMNS(lambda c: ...) means.
_SAID = (
    *(exp.Columns, exp.Lambda, exp.Identifier, exp.Column, exp.Literal, exp.Array, exp.Tuple, exp.Star, exp.Paren),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.In, exp.StartsWith, exp.EndsWith, exp.Contains, *_PATTERNS),
)


def expanded(select: exp.Select, sources: Sources) -> exp.Select:
    """``select`` with its stars and COLUMNS(...) written out; the same object where it has none."""
    if not any(_star_of(item) is not None for item in select.expressions) and not has_columns(select):
        return select
    shared = {fold(part.name) for join in select.args.get("joins") or [] for part in join.args.get("using") or []}
    items: list[exp.Expression] = []
    for item in select.expressions:
        if _star_of(item) is not None:
            items.extend(_columns(item, sources, shared))
        elif item.find(exp.Columns) is not None:
            items.extend(_each(item, sources, shared))
        else:
            items.append(item)
    out = select.copy()
    out.set("expressions", items)
    return out


def has_columns(select: exp.Select) -> bool:
    """Whether an item of a SELECT holds COLUMNS(...)."""
    return any(isinstance(node, exp.Columns) for item in select.expressions for node in nodes(item))


def _star_of(item: exp.Expression) -> exp.Star | None:
    """The star that an item is, with a table or without, and with a pattern or without."""
    node = item.this if isinstance(item, _PATTERNS) else item
    if isinstance(node, exp.Column):
        node = node.this
    return node if isinstance(node, exp.Star) else None


def _columns(item: exp.Expression, sources: Sources, shared: set[str]) -> list[exp.Expression]:
    """The items that a star stands for."""
    star, pattern = _star_of(item), item if isinstance(item, _PATTERNS) else None
    inner = item.this if pattern is not None else item
    table = fold(inner.table) if isinstance(inner, exp.Column) else None
    assert star is not None  # noqa: S101 - the caller has looked
    left_out = {fold(part.name) for part in star.args.get("except_") or star.args.get("except") or []}
    replaced = {fold(part.alias): part for part in star.args.get("replace") or []}
    renamed = {fold(part.this.name): part.alias for part in star.args.get("rename") or []}
    chosen = [(a, names) for a, names in sources if table is None or fold(a) == table]
    every = [name for _, names in chosen for name in names]
    unknown = [name for name in (*left_out, *replaced, *renamed) if name not in {fold(name) for name in every}]
    if unknown:
        raise refuse(f"* has no column {unknown[0]} here", item, code="unknown-column")
    matches = None if pattern is None else _matching(_with_plain_star(pattern), every, item)
    items: list[exp.Expression] = []
    for alias, name in _distinguished(chosen, shared):
        if fold(name) in left_out or (matches is not None and fold(name) not in matches):
            continue
        if fold(name) in replaced:
            items.append(replaced[fold(name)].copy())
            continue
        column = _column(alias, name)
        new = renamed.get(fold(name))
        items.append(column if new is None else exp.Alias(this=column, alias=exp.to_identifier(new, quoted=True)))
    if not items:
        raise refuse(f"{shown(item)} leaves no column", item, code="unknown-column")
    return items


def _with_plain_star(pattern: exp.Expression) -> exp.Expression:
    out = pattern.copy()
    out.set("this", exp.Star())
    return out


def _each(item: exp.Expression, sources: Sources, shared: set[str]) -> list[exp.Expression]:
    """An item with COLUMNS(...) once for each column that it means."""
    patterns = list(dict.fromkeys(written(part) for part in item.find_all(exp.Columns)))
    pattern = next(part for part in nodes(item) if isinstance(part, exp.Columns))
    if len(patterns) > 1 or pattern.args.get("unpack"):
        raise refuse("an item takes one COLUMNS(...), however often", item)
    strange = next((part for part in nodes(pattern) if not isinstance(part, _SAID)), None)
    if strange is not None:
        raise refuse(
            "COLUMNS takes *, a pattern, a list of names, or a lambda that compares the name with texts", strange
        )
    every = [name for _, names in sources for name in names]
    matches = _matching(pattern, every, item)
    alias = item.alias if isinstance(item, exp.Alias) else ""
    body = item.this if isinstance(item, exp.Alias) else item
    chosen = [(source, name) for source, name in _distinguished(sources, shared) if fold(name) in matches]
    if "\\" in alias or (alias and len(chosen) > 1):
        raise refuse(f"COLUMNS(...) AS {alias} would name {len(chosen)} columns alike; leave the alias out", item)
    items: list[exp.Expression] = []
    for source, name in chosen:
        one = exp.Paren(this=body.copy())
        for part in list(one.find_all(exp.Columns)):
            part.replace(_column(source, name))
        called = alias or name_over(_with_every_column(body), name)
        items.append(exp.Alias(this=one.this, alias=exp.to_identifier(called, quoted=True)))
    return items


def _with_every_column(body: exp.Expression) -> str:
    """An item with COLUMNS(*), of which DuckDB says how it calls each column."""
    out = exp.Paren(this=body.copy())
    for part in list(out.find_all(exp.Columns)):
        part.replace(exp.Columns(this=exp.Star()))
    for column in list(out.find_all(exp.Column)):
        column.replace(exp.Null())
    return written(out.this, copy=False)


def _distinguished(sources: Sources, shared: set[str]) -> list[tuple[str, str]]:
    """All columns with their aliases; those that USING shares once."""
    seen: set[str] = set()
    columns = []
    for alias, names in sources:
        for name in names:
            if fold(name) not in shared or fold(name) not in seen:
                columns.append((alias, name))
            seen.add(fold(name))
    return columns


def _column(alias: str, name: str) -> exp.Column:
    return made_column(exp.to_identifier(name, quoted=True), exp.to_identifier(alias, quoted=True))


def _matching(pattern: exp.Expression, names: Sequence[str], item: exp.Expression) -> set[str]:
    """The names, folded, of those that a pattern means."""
    by_name: Mapping[str, str] = {fold(name): name for name in names}
    listed = ", ".join(f"NULL AS {identifier(name)}" for name in by_name.values())
    matches = names_of(f"SELECT {written(pattern)} FROM (SELECT {listed}) AS t")  # noqa: S608
    if matches is None:
        raise refuse(f"{shown(pattern)} means no column here", item, code="unknown-column")
    return {fold(name) for name in matches}


MAX_WRITTEN = 20_000
"""Parts of expressions that aliases are written out to; each could hold the one before it twice."""


def aliases_written(select: exp.Select, columns: Iterable[str], *, row_wise: bool) -> exp.Select:
    """The SELECT with the aliases that its WHERE and its aggregates use written out; the same object without any.

    ``columns`` are the names of all that FROM gives. ``row_wise``: in every item, not in aggregates alone.
    """
    if not any(isinstance(item, exp.Alias) for item in select.expressions):
        return select
    columns = {fold(name) for name in columns}
    used = {fold(node.name) for node in _unqualified(select)} - columns
    if not any(isinstance(item, exp.Alias) and fold(item.alias) in used for item in select.expressions):
        return select
    out = select.copy()
    meant: dict[str, exp.Expr] = {}
    spent = 0
    for item in out.expressions:
        parts = [item] if row_wise else [part for part in nodes(item) if isinstance(part, exp.AggFunc | exp.Filter)]
        for part in parts:
            spent += _write_out(part, meant, columns, select)
        if isinstance(item, exp.Alias):
            meant.setdefault(fold(item.alias), item.this)
        if spent > MAX_WRITTEN:
            raise refuse("the aliases of the SELECT come to too large expressions; use fewer", select, code="too-large")
    clauses = ("where", "order") if row_wise else ("where",)
    for clause in clauses:
        if out.args.get(clause) is not None:
            _write_out(out.args[clause], meant, columns, select)
    return out


def _unqualified(part: exp.Expr) -> list[exp.Column]:
    """The columns without a table in an expression, but for those of queries in it."""
    columns = columns_in(part, queries=False)
    return [node for node in columns if not node.table and isinstance(node.this, exp.Identifier)]


def _write_out(part: exp.Expr, meant: Mapping[str, exp.Expr], columns: set[str], select: exp.Select) -> int:
    """Write out the aliases in a part of the SELECT; how many nodes that makes."""
    size = 0
    for column in _unqualified(part):
        one = meant.get(fold(column.name)) if fold(column.name) not in columns else None
        if one is not None:
            size += sum(1 for _ in nodes(one))
            if size > MAX_WRITTEN:
                break
            column.replace(standing_for(exp.Paren(this=one.copy()), column, inside=True))
    return size
