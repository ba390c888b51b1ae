"""``{{x}}``: the value of a Python variable written into a batch as one typed literal, never as SQL.

A marker is found among the tokens of the batch, so that nothing inside strings, quoted names or comments is one, and
its value goes through ``dpsql.sql.parse.parameters.literal``, as the parameters of ``execute`` do: text becomes a
string with its quotes doubled, and no value can leave its literal. A list becomes literals with commas between them,
where parentheses stand around the marker: ``IN ({{states}})``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from sqlglot import Token, TokenType
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError

from dpsql.errors import DataError, ProgrammingError, SQLError
from dpsql.notebook.line import variable
from dpsql.sql.parse.parameters import literal
from dpsql.sql.parse.statements import MAX_BATCH

_NAME = re.compile(r"\s*([^\W\d]\w*)\s*")
_MARKER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
MOST = 10_000
"""Items of a list that a batch may hold."""


def fill(text: str, variables: Mapping[str, object]) -> str:
    """``text`` with a literal in place of each ``{{x}}``. Cost: linear in the text.

    Raises SQLError for a marker that holds no name or stands in quotes, InterfaceError for an unknown variable,
    ProgrammingError and DataError for values without a literal (bytes, frames, NaN).
    """
    if not any(mark in text for mark in ("{{", "{%")) or len(text) > MAX_BATCH:
        return text
    tokens: list[Token] = []
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(text)
    except TokenError:
        return text  # the parser says what is wrong with it
    out, last, at = [], 0, 0
    while at < len(tokens):
        token = tokens[at]
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            _refuse_quoted(text, token)
        if token.token_type in (TokenType.BLOCK_START, TokenType.BLOCK_END):
            raise _refuse("{% ... %} is not answered: only {{x}} is filled in; write loops in Python", token)
        if not _double(tokens, at, TokenType.L_BRACE):
            at += 1
            continue
        stop = at + 2
        while stop < len(tokens) and not _double(tokens, stop, TokenType.R_BRACE):
            stop += 1
        inside = text[tokens[at + 1].end + 1 : tokens[stop].start] if stop < len(tokens) else ""
        found = _NAME.fullmatch(inside)
        if found is None:
            raise _refuse("{{...}} holds the name of one variable; compute the value in a cell before this one", token)
        alone = at > 0 and tokens[at - 1].token_type is TokenType.L_PAREN
        alone = alone and stop + 2 < len(tokens) and tokens[stop + 2].token_type is TokenType.R_PAREN
        out += [text[last : token.start], f" {_written(found[1], variable(found[1], variables), alone)} "]
        last = tokens[stop + 1].end + 1
        at = stop + 2
    return "".join(out) + text[last:]


def _double(tokens: Sequence[Token], at: int, kind: TokenType) -> bool:
    """Two braces that touch; DuckDB's own structs and maps have none."""
    if at + 1 >= len(tokens):
        return False
    first, second = tokens[at], tokens[at + 1]
    return first.token_type is kind and second.token_type is kind and second.start == first.end + 1


def _written(name: str, value: object, alone: bool) -> str:
    shown = "{{" + name + "}}"
    items = _items(value)
    if items is None:
        return literal(value, shown)
    if not alone:
        raise ProgrammingError(f"{shown} is a list, which stands in parentheses of its own: write IN ({shown})")
    if not items:
        raise DataError(f"{shown} is an empty list, and IN () is no condition; leave the condition out")
    if len(items) > MOST:
        raise DataError(
            f"{shown} has {len(items):,} items, and a batch takes {MOST:,}; write a range or a join instead"
        )
    return ", ".join(literal(item, shown) for item in items)


def _items(value: object) -> list[object] | None:
    """The items of a list-like value, sets in order; None for a scalar and for what has no literal."""
    if isinstance(value, list | tuple | range):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (str(type(item)), str(item)))
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim == 1 else None
    if type(value).__name__ in ("Series", "Index") and hasattr(value, "tolist"):
        return list(value.tolist())
    return None


def _refuse_quoted(text: str, token: Token) -> None:
    written = text[token.start : token.end + 1]
    if not _MARKER.search(written):
        return
    if token.token_type is TokenType.IDENTIFIER:
        raise _refuse("{{...}} is a value and cannot name a table or column; write the name itself", token)
    raise _refuse("{{...}} stands in quotes; leave them out: the value becomes a literal with quotes of its own", token)


def _refuse(message: str, token: Token) -> SQLError:
    return SQLError(
        message, int(token.line), max(1, int(token.col) - (int(token.end) - int(token.start))), code="syntax"
    )
