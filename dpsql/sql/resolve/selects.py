"""SELECT over relations: outer SQL that reads results, written again by the tree and never by the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from dpsql.common.quoting import distinct_names, identifier
from dpsql.policy.values import fold
from dpsql.sql.outer.relation import ColumnInfo, Item, Relation, Selected, hole
from dpsql.sql.parse.names import result_names
from dpsql.sql.parse.quoted import texts_of
from dpsql.sql.parse.statements import Hints, hints_of, refuse
from dpsql.sql.parse.trees import written
from dpsql.sql.resolve.stars import expanded

_CLAUSES = frozenset({
    *("expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "qualify"),
    *("distinct", "with_", "windows", "operation_modifiers"),
})  # fmt: skip
Nested = Callable[[exp.Query], Relation]


def sources_of(select: exp.Select) -> list[exp.Expression]:
    """What FROM and its joins name, in order."""
    clause = select.args.get("from_")
    items = [] if clause is None else [clause.this]
    return items + [join.this for join in select.args.get("joins") or []]


def declares(tables: Mapping[str, object], name: str) -> bool:
    """Whether the policy declares a table of that name."""
    return fold(name) in {fold(table) for table in tables} | {fold(table).removeprefix("main.") for table in tables}


def renamed(names: Sequence[str], columns: Sequence[str] | None, query: exp.Expr, of: str = "the query") -> list[str]:
    """The names of a query's columns, ``columns`` in place of the first; SQLError where these are more.

    ``of``: whose names they are.
    """
    given = columns or ()
    if len(given) > len(names):
        raise refuse(f"{of} names {len(given)} columns, its SELECT has {len(names)}", query)
    return distinct_names([*given, *names[len(given) :]])


def operator(tree: exp.SetOperation) -> str:
    """UNION ALL and its like, as DuckDB writes them."""
    if any(tree.args.get(key) for key in ("side", "kind", "on")):
        raise refuse("this set operation is not DuckDB's; write UNION, EXCEPT or INTERSECT", tree)
    words = [{exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}[type(tree)]]
    if not tree.args.get("distinct", True):
        words.append("ALL")
    if tree.args.get("by_name"):
        words.append("BY NAME")
    return " ".join(words)


def order_by(tree: exp.SetOperation) -> str:
    """ORDER BY, LIMIT and OFFSET that follow a set operation; they name its columns."""
    for clause, value in tree.args.items():
        if value and clause not in {"this", "expression", "distinct", "by_name", "with_", "order", "limit", "offset"}:
            raise refuse(f"{clause.strip('_').upper()} after a set operation is not answered", tree)
    text = ""
    for clause in ("order", "limit", "offset"):
        node = tree.args.get(clause)
        if node is not None:
            if any(isinstance(part, exp.Query) for part in node.walk()):
                raise refuse(f"{clause.upper()} after a set operation takes its columns and constants", node)
            text += " " + written(node).strip()
    return text


def over_relations(
    select: exp.Select, sources: Sequence[tuple[str, Relation]], columns: Sequence[str] | None, nested: Nested
) -> Selected:
    """A SELECT whose FROM names relations alone. A column that it passes on keeps its companions.

    ``columns`` rename its own from the left; ``nested`` reads a subquery in an expression. Raises
    SQLError for clauses that DuckDB does not have and for hints, which nothing would read.
    """
    for clause, value in select.args.items():
        if value and clause not in _CLAUSES:
            raise refuse(f"{clause.strip('_').upper()} over results is not answered; leave it out", select)
    hints = hints_of(select)
    if hints != Hints():
        name = "WEIGHT" if hints.max_error is None else "MAX_ERROR"
        raise refuse(f"{name} belongs to a SELECT over private rows", select, code="hint")
    if not sources and not any(part is not select for part in select.find_all(exp.Query)):
        raise refuse("the statement reads no table; write FROM a table of the policy", select)
    for join in select.args.get("joins") or []:
        if str(join.method or "").upper() == "NATURAL":
            raise refuse(
                "a NATURAL JOIN depends on all names of both results; write USING (key)", join.this, code="join-kind"
            )
    sources = _with_aliases(sources)
    whole = expanded(select, [(alias, [c.name for c in relation.columns]) for alias, relation in sources])
    for part in whole.find_all(exp.Columns):
        raise refuse("COLUMNS(...) stands in SELECT alone; list the columns", part)
    names = _names(whole, sources, columns)
    columns_read = {(fold(alias), fold(c.name)): c for alias, relation in sources for c in relation.columns}
    keeps = not any(whole.args.get(clause) for clause in ("group", "distinct", "having"))
    relations: list[Relation] = [relation for _, relation in sources]
    items = []
    tree = _without_queries(whole, [alias for alias, _ in sources], relations, nested)
    for item, name in zip(tree.expressions, names, strict=True):
        node = item.this if isinstance(item, exp.Alias) else item
        companions: tuple[tuple[str, str], ...] = ()
        if keeps and isinstance(node, exp.Column):
            companions = _passed_on(node, columns_read)
        items.append(Item(written(node), name, companions))
    distinct = ""
    if tree.args.get("distinct"):
        if tree.args["distinct"].args.get("on"):
            raise refuse("DISTINCT ON is not answered; use QUALIFY row_number() OVER (...) = 1", select)
        distinct = "DISTINCT "
    positions = {"order": _positions(tree, names)}
    for key, value in positions.items():
        if value is not None:
            tree.set(key, value)
    tail = exp.Select(**{key: tree.args[key] for key in _CLAUSES if tree.args.get(key) and key not in _NO_TAIL})
    ending = exp.Select(**{key: tree.args[key] for key in ("order", "limit", "offset") if tree.args.get(key)})
    return Selected(tuple(items), _after_select(tail), tuple(relations), distinct, _after_select(ending))


_NO_TAIL = frozenset({"expressions", "distinct", "with_", "order", "limit", "offset"})


def _after_select(tree: exp.Select) -> str:
    """The clauses of a tree without items, as text."""
    text = written(tree)
    rest = text.removeprefix("SELECT").strip()
    return f" {rest}" if rest else ""


def _names(select: exp.Select, sources: Sequence[tuple[str, Relation]], columns: Sequence[str] | None) -> list[str]:
    items = select.expressions
    schema = {column.name: "DOUBLE" for _, relation in sources for column in relation.columns}
    if all(isinstance(item, exp.Alias | exp.Column) for item in items):
        return renamed([str(item.alias_or_name) for item in items], columns, select)
    asked, texts = _unqualified(items)
    return renamed(result_names(asked, schema, texts), columns, select)


def _unqualified(items: Sequence[exp.Expression]) -> tuple[list[exp.Expression], list[str | None]]:
    """Copies whose columns have one table, or none, as DuckDB is asked over one; and the user's texts of those."""
    out, texts = [], texts_of(items)
    for at, item in enumerate(items):
        copied = item.copy()
        if any(isinstance(part, exp.Query) for part in copied.walk()):
            copied = exp.Alias(this=copied, alias=exp.to_identifier((texts[at] or written(copied))[:200], quoted=True))
        columns = list(copied.find_all(exp.Column))
        if texts[at] is None or len({column.table for column in columns}) > 1:
            texts[at] = None
            for column in columns:
                column.set("table", None)
        out.append(copied)
    return out, texts


def _passed_on(node: exp.Column, columns: Mapping[tuple[str, str], ColumnInfo]) -> tuple[tuple[str, str], ...]:
    """The companions of a column that is passed on as it is."""
    same = [
        column
        for (alias, name), column in columns.items()
        if name == fold(node.name) and (not node.table or alias == fold(node.table))
    ]
    if len(same) != 1:
        return ()
    prefix = f"{identifier(node.table)}." if node.table else ""
    return tuple((suffix, prefix + identifier(name)) for suffix, name in same[0].companions)


def _with_aliases(sources: Sequence[tuple[str, Relation]]) -> list[tuple[str, Relation]]:
    """The sources, those without an alias under the names that DuckDB gives them."""
    aliased, unnamed = [], 0
    for alias, relation in sources:
        if not alias:
            unnamed += 1
            alias = "unnamed_subquery" + (str(unnamed) if unnamed > 1 else "")
        aliased.append((alias, relation))
    return aliased


def _without_queries(select: exp.Select, aliases: Sequence[str], sources: list[Relation], nested: Nested) -> exp.Select:
    """The SELECT with marks where it reads: what FROM names, then each subquery in an expression."""
    count = len(sources)
    out = select.copy()
    out.set("with_", None)  # its queries are read where they are named, and measured once
    for number, (node, alias) in enumerate(zip(sources_of(out), aliases, strict=True)):
        mark = exp.Table(this=exp.to_identifier(hole(number), quoted=False))
        mark.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        _check_plain(node)
        node.replace(mark)
    while True:
        query = next(
            (part for part in out.find_all(exp.Query) if part is not out and isinstance(part, exp.Query)), None
        )
        if query is None:
            break
        parent = query.parent
        outermost, inner = query, query
        if isinstance(query, exp.Subquery):
            inner = query.this
        elif isinstance(parent, exp.Subquery):
            outermost = parent
        if isinstance(outermost.parent, exp.Any | exp.All):
            raise refuse(
                "ANY and ALL over a query are not answered; write IN, EXISTS or an aggregate",
                outermost,
                code="subquery",
            )
        sources.append(nested(inner))
        outermost.replace(exp.to_identifier(hole(count), quoted=False))
        count += 1
    return out


def _check_plain(node: exp.Expression) -> None:
    for key, value in node.args.items():
        if value and key not in {"this", "db", "catalog", "alias", "pivots"}:
            raise refuse(f"{key.strip('_').upper()} in FROM is not answered; leave it out", node)


def _positions(select: exp.Select, names: Sequence[str]) -> exp.Order | None:
    """ORDER BY with positions and ALL written as names: companions stand between the columns."""
    order = select.args.get("order")
    if order is None:
        return None
    out = []
    for part in order.expressions:
        node = part.this
        options = {key: value for key, value in part.args.items() if key != "this"}
        if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
            position = int(str(node.this)[:60])  # of 60 digits none is a position
            if not 1 <= position <= len(names):
                raise refuse(f"ORDER BY {str(node.this)[:20]} is not a position in SELECT", node)
            listed = [names[position - 1]]
        elif isinstance(node, exp.Var) and fold(node.name) == "all":
            listed = list(names)
        else:
            out.append(part)
            continue
        out.extend(exp.Ordered(this=exp.to_identifier(name, quoted=True), **options) for name in listed)
    return exp.Order(expressions=out)
