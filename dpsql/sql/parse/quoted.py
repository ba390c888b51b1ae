"""Expressions in messages: quoted as the user wrote them.

The parser knows the places of names and constants alone, and writes an expression with words and signs of its own:
``list(x)`` as ARRAY_AGG(x), ``x::DATE`` as CAST(x AS DATE). So the text around these places is read again, from the
shortest piece on, until one means the expression.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError

from dpsql.sql.parse.names import Source
from dpsql.sql.parse.spellings import respelled
from dpsql.sql.parse.tokens import nesting
from dpsql.sql.parse.trees import DUCKDB, nodes, original, written

_LONGEST = 60
_NEAR = 12  # tokens on either side of the names and constants of an expression that may belong to it
_reading: ContextVar[Source | None] = ContextVar("_reading", default=None)


@contextmanager
def reading(source: Source | None) -> Iterator[None]:
    """What is quoted within is looked for in ``source``."""
    before = _reading.set(source)
    try:
        yield
    finally:
        _reading.reset(before)


def shown(node: exp.Expr) -> str:
    """An expression for a message, in at most 60 characters: the user's text of it, else what sqlglot writes."""
    text = " ".join((as_written(node) or written(_readable(original(node)), copy=False)).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def as_written(node: exp.Expr) -> str | None:
    """The user's text of an expression; None where it does not stand in the text that is read."""
    found, source = written_at(node), _reading.get()
    return None if found is None or source is None else source.text[found[0].start : found[1].end + 1]


def texts_of(items: Sequence[exp.Expr]) -> list[str | None]:
    """The user's texts of the items of a SELECT that have no names of their own."""
    return [None if isinstance(item, exp.Alias | exp.Column) else as_written(item) for item in items]


def called_as(node: exp.Expr) -> str:
    """The name by which the user calls a function, else sqlglot's."""
    source, place = _reading.get(), node.meta
    name = "" if source is None or "start" not in place else source.text[place["start"] : place["end"] + 1]
    return name if name.isidentifier() else written(node).partition("(")[0]


def written_at(node: exp.Expr) -> tuple[Token, Token] | None:
    """The first and the last token of an expression in the text that is read; None where it does not stand there."""
    source, node = _reading.get(), original(node)
    places = [part.meta for part in nodes(node) if part.meta_get("start") is not None]
    if source is None or not places:
        return None
    tokens = source.tokens
    first = bisect.bisect_left(tokens, min(place["start"] for place in places), key=lambda token: token.start)
    last = bisect.bisect_right(tokens, max(place["end"] for place in places), key=lambda token: token.end) - 1
    while first > 1 and tokens[first - 1].token_type is TokenType.DOT:
        first -= 2  # the table of a column, which resolving it has changed
    wanted = _meaning(node)
    for left, right in sorted(
        ((left, right) for left in _beside(tokens, first, -1) for right in _beside(tokens, last, 1)),
        key=lambda ends: ends[1] - ends[0],
    ):
        if _is_whole(tokens[left : right + 1]) and _reads(tokens[left : right + 1], source.text) == wanted:
            return tokens[left], tokens[right]
    return None


def _beside(tokens: list[Token], at: int, step: int) -> list[int]:
    """``at`` and the tokens beside it in one direction, of the same statement."""
    found = list[int]()
    while 0 <= at < len(tokens) and tokens[at].token_type is not TokenType.SEMICOLON and len(found) <= _NEAR:
        found.append(at)
        at += step
    return found


def _is_whole(tokens: list[Token]) -> bool:
    depth = 0
    for token in tokens:
        depth += nesting(token)
        if depth < 0:
            return False
    return bool(tokens) and depth == 0


def _reads(tokens: list[Token], text: str) -> str | None:
    """What a piece of a text means by itself; None where it is no expression."""
    try:
        (found,) = DUCKDB.parser().parse(list(tokens), text)
        return None if found is None else _meaning(respelled(exp.Paren(this=found)).this)
    except (ParseError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _meaning(node: exp.Expr) -> str:
    """An expression as text, whatever it was written with: names without their tables and quotes."""
    copy = node.copy()
    for column in [part for part in nodes(copy) if isinstance(part, exp.Column)]:
        for qualifier in ("table", "db", "catalog"):
            column.set(qualifier, None)
    for name in [part for part in nodes(copy) if isinstance(part, exp.Identifier)]:
        name.set("quoted", False)
    return written(copy, copy=False).lower()


def _readable(node: exp.Expr) -> exp.Expr:
    """A copy without the tables that stand for subqueries by the unit."""
    copy = exp.Paren(this=node.copy())
    for column in [part for part in nodes(copy) if isinstance(part, exp.Column) and " by " in part.table]:
        column.replace(exp.Var(this=column.name))
    readable: exp.Expr = copy.this
    return readable
