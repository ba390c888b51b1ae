"""Routing: whether a batch asks private tables or reads what is released. Only names decide.

A mistake here can cost a clear message, never privacy: private tables are reached through a plan alone, and the
database that answers free questions holds released values only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlglot import Token, TokenType, exp

from dpsql.errors import Error, NotSupportedError, SQLError, nearest
from dpsql.free_sql import limits
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.parse.options import read_options
from dpsql.sql.parse.statements import Statement, refuse
from dpsql.sql.parse.tokens import place_of, replaced, tokens_of
from dpsql.sql.rules.parse import parse

# What a statement may start with that is no SELECT of a batch: it runs over the releases.
_READS = frozenset({"SHOW", "DESCRIBE", "DESC", "SUMMARIZE", "VALUES", "TABLE"})
_QUERIES = frozenset({"SELECT", "WITH", "FROM", "PIVOT", "PIVOT_WIDER", "UNPIVOT"})
_FINAL = "every release is final when it is made, and nothing was or will be undone; leave it out"
_CHANGES = "private tables are only measured and releases never change; leave it out"
_REFUSED = {
    **dict.fromkeys(("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "ALTER", "COPY", "IMPORT", "EXPORT"), _CHANGES),
    **dict.fromkeys(("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT"), _FINAL),
    **dict.fromkeys(("SET", "RESET", "PRAGMA", "USE", "ATTACH", "DETACH", "INSTALL", "LOAD", "CHECKPOINT", "VACUUM"),
                    "a connection keeps the settings that it was opened with; leave it out"),
    "DROP": "a release stays in the ledger, whatever view shows it; leave it out",
    "EXPLAIN": "con.plan(sql) shows what a batch measures, with its errors, for free",
    "ANALYZE": "statistics of private tables are private; leave it out",
    "CALL": "there are no stored procedures; write a SELECT",
    "EXECUTE": "there are no prepared statements; pass parameters beside the text",
    "PREPARE": "there are no prepared statements; pass parameters beside the text",
}  # fmt: skip
_RELEASED = re.compile(r"dp|r[1-9][0-9]*|dpsql_releases", re.IGNORECASE)
_CATALOGUES = frozenset({"information_schema", "pg_catalog"})
_CATALOGUE = re.compile(r"(?:duckdb|pragma|pg|sqlite)_\w+", re.IGNORECASE)


@dataclass(frozen=True)
class Piece:
    """One statement of the text: where it stands, how it starts, its query, and the tables that it names.

    ``query`` is None for what is no query of a batch (SHOW, DESCRIBE, VALUES, ...) and for a SELECT that only
    DuckDB's own parser reads. ``tables`` leave out names that WITH gives.
    """

    text: str
    word: str
    query: Statement | None = field(default=None, repr=False)
    tables: tuple[exp.Table, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Route:
    """Where a batch goes: ``private`` (planned and measured), else its pieces are read one by one.

    ``constant``: it names no view, only functions or DuckDB's catalogue if anything, so that no releases are needed.
    """

    private: bool
    pieces: tuple[Piece, ...]
    constant: bool = False


def route(text: str, policy: Policy, released: Callable[[], tuple[str, ...]]) -> Route:
    """Where the batch ``text`` goes. ``released`` gives the names of the released views; asked if need be.

    A plain name is a WITH query, a view or table of the policy, an earlier result of the batch, or a released view,
    in this order; ``dp.name`` and ``r12.name`` are released. Raises NotSupportedError for statements that change
    something, SQLError for syntax errors, unknown names, and batches that need both.
    """
    pieces = _pieces(text, policy)
    found: dict[str, int] = {}
    needed = False
    results: set[str] = set()
    for number, piece in enumerate(pieces, 1):
        kinds: dict[str, exp.Table] = {}
        for node in piece.tables:
            kinds.setdefault(_kind(node, policy, results, released), node)
        measured = kinds.get("private") or kinds.get("result")
        if measured is not None and "released" in kinds:
            raise refuse(
                f"{measured.sql('duckdb')} is measured and {kinds['released'].sql('duckdb')} is released "
                "already: one statement reads the one or the other; release the former under a name, then join the two",
                kinds["released"],
            )
        needed = needed or "released" in kinds
        kind = "private" if "private" in kinds or ("result" in kinds and "released" not in kinds) else "free"
        if piece.query is not None:
            if piece.query.named and kind != "private":
                raise refuse(
                    f"{piece.query.name} reads no private table, and only what is measured becomes a view; select "
                    "from it directly, or write it into the batch that releases what it reads",
                    piece.query.tree,
                )
            results.add(fold(piece.query.name))
        found.setdefault(kind, number)
    if len(found) > 1:
        raise SQLError(
            f"statement {found['private']} asks private tables and statement {found['free']} does not: a batch is "
            "measured together or reads releases; execute them one after the other"
        )
    return Route("private" in found, pieces, not needed)


def tables_read(text: str, policy: Policy, released: Callable[[], tuple[str, ...]]) -> str:
    """Which tables of the policy a text asks that was meant for releases: "private", "public" alone, or none, empty."""
    if len(text) > limits.LONGEST:  # which nothing answers
        return ""
    try:
        going = route(text, policy, released)
    except Error:
        return ""
    public = {fold(table.name) for table in policy.tables.values() if table.public}
    named = {fold(node.name) for piece in going.pieces for node in piece.tables}
    return "" if not going.private else "public" if named <= public else "private"


def _kind(node: exp.Table, policy: Policy, results: set[str], released: Callable[[], tuple[str, ...]]) -> str:
    """private, result (of the batch), released, or catalogue: functions and DuckDB's lists."""
    name, schema = node.name, node.args.get("db")
    if not isinstance(node.this, exp.Identifier):
        return "catalogue"
    if _declared(node, policy):
        return "private"
    if schema is not None and fold(schema.name) in _CATALOGUES:
        return "catalogue"
    if node.args.get("catalog") is not None or (schema is not None and _RELEASED.fullmatch(schema.name)):
        return "released"
    if schema is None:
        if policy.view(name) is not None:
            return "private"
        if fold(name) in results:
            return "result"
        known = released()
        if fold(name) in {fold(view) for view in known} or fold(name) == "releases":
            return "released"
        if _CATALOGUE.fullmatch(name):
            return "catalogue"
    else:
        known = released()
    written = f"{schema.name}.{name}" if schema is not None else name
    raise refuse(
        f"no table of the policy and no released view is called {written}: "
        f"{nearest(written, {*policy.tables, *known})}",
        node,
        code="unknown-table",
    )


def _declared(node: exp.Table, policy: Policy) -> bool:
    """Whether the policy has the table, as ``sql.values.scope.find_table`` looks for it."""
    written = ".".join(part.name for part in (node.args.get("db"), node.this) if part)
    wanted = {fold(written), fold(written).removeprefix("main.")}
    return any(fold(name).removeprefix("main.") in wanted or fold(name) in wanted for name in policy.tables)


def _pieces(text: str, policy: Policy) -> tuple[Piece, ...]:
    blanked, _ = read_options(text)
    try:
        tokens = tokens_of(blanked) if isinstance(text, str) else []
    except SQLError:
        tokens = []
    parts = list(_split(tokens))
    if not parts:
        parse(text)  # says what is wrong
        raise SQLError("the batch is empty; write at least one SELECT", code="syntax")
    words = [_word(part) for part in parts]
    for part, word in zip(parts, words, strict=True):
        _refuse_changes(part, word)
    pieces = []
    queries: Iterator[Statement] = iter(())
    others = [part for part, word in zip(parts, words, strict=True) if word in _READS]
    if len(others) < len(parts):
        failure: SQLError | None = None
        try:
            queries = iter(parse(_without(blanked, others)))
        except SQLError as error:
            failure = error
        if failure is not None:
            # DuckDB reads more than the front end does, and over releases it may.
            if any(_names_private(part, policy) for part in parts) or "CREATE" in words:
                raise failure
            return tuple(
                Piece(_slice(text, part), word, None, (exp.table_("releases", "dp"),))
                for part, word in zip(parts, words, strict=True)
            )
    for part, word in zip(parts, words, strict=True):
        query = None if word in _READS else next(queries)
        tree: exp.Expr | None = query.tree if query is not None else _object(part, word, blanked)
        pieces.append(Piece(_slice(text, part), word, query, tuple(named_tables(tree)) if tree is not None else ()))
    return tuple(pieces)


def _split(tokens: list[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            if part:
                yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def _without(text: str, parts: list[list[Token]]) -> str:
    """The text with these statements blanked out; whatever else is there keeps its place."""
    spans = [(part[0].start, part[-1].end + 1) for part in parts]
    return replaced(text, [(start, stop, re.sub(r"[^\n]", " ", text[start:stop])) for start, stop in spans])


def _slice(text: str, part: list[Token]) -> str:
    return text[part[0].start : part[-1].end + 1]


def _word(part: list[Token]) -> str:
    """The first word of a statement, after opening parentheses."""
    return next((token.text.upper() for token in part if token.token_type is not TokenType.L_PAREN), "")


def _refuse_changes(part: list[Token], word: str) -> None:
    advice = _REFUSED.get(word)
    if word == "CREATE":
        kinds = [token.text.upper() for token in part[1:6] if token.text.upper() not in {"OR", "REPLACE"}]
        if kinds[:1] != ["VIEW"]:
            word, advice = f"CREATE {kinds[0] if kinds else ''}".strip(), _CHANGES
    place = place_of(part[0])
    if advice is not None:
        raise NotSupportedError(f"{word} is not answered: {advice} (line {place[0]}, column {place[1]})")
    if word not in _READS | _QUERIES | {"CREATE"}:
        raise SQLError(
            f"a statement starts with {word[:40]!r}; write SELECT or CREATE VIEW name AS SELECT",
            *place,
            code="not-select",
        )


def _names_private(part: list[Token], policy: Policy) -> bool:
    names = {fold(name).split(".")[-1] for name in policy.tables} | {fold(name) for name in policy.views}
    return any(fold(token.text) in names for token in part if token.token_type is not TokenType.STRING)


def _object(part: list[Token], word: str, text: str) -> exp.Expr | None:
    """What DESCRIBE, SUMMARIZE and TABLE are about: a query or a name; None for SHOW and VALUES."""
    rest = part[1:]
    if word in {"SHOW", "VALUES"} or not rest:
        return None
    if _word(rest) in _QUERIES:
        (statement,) = parse(text[rest[0].start : rest[-1].end + 1])
        return statement.tree
    names = [token.text for token in rest if token.token_type is not TokenType.DOT]
    if len(names) > 3 or len(rest) != 2 * len(names) - 1:
        return None
    last, schema, catalogue = [*reversed(names), None, None][:3]
    return exp.table_(last or "", schema, catalogue, quoted=True)


def named_tables(tree: exp.Expr) -> Iterator[exp.Table]:
    """The tables that a query names, but for those that WITH gives where they stand."""
    todo: list[tuple[exp.Expr, frozenset[str]]] = [(tree, frozenset())]
    while todo:
        node, scope = todo.pop()
        clause = node.args.get("with_")
        if clause is not None:
            for part in clause.expressions:
                name = fold(part.alias)
                todo.append((part.this, scope | {name} if clause.args.get("recursive") else scope))
                scope = scope | {name}
        if isinstance(node, exp.Table):
            plain = node.args.get("db") is None and node.args.get("catalog") is None
            if not (plain and isinstance(node.this, exp.Identifier) and fold(node.name) in scope):
                yield node
        todo.extend((child, scope) for child in node.iter_expressions() if child is not clause)
