"""Tokens of a batch, as the parser reads them: their places in the text, and the text with some of it replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from sqlglot import Token, TokenType
from sqlglot.errors import TokenError

from dpsql.errors import SQLError
from dpsql.sql.parse.dollars import tokens_with_dollars
from dpsql.sql.parse.trees import DUCKDB

QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)

_OPEN = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSE = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})


QUOTING_SQL = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?(?:\*/|\Z)"
"""Texts, quoted names and comments."""

# What DuckDB reads as a space outside of quotes, a byte-order mark among them; and what quotes.
_SPACE = re.compile("[\u00a0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff]")
_QUOTING = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?(?:\*/|\Z)"""
_QUOTED_OR_SPACE = re.compile(rf"{_QUOTING}|{_SPACE.pattern}", re.DOTALL)


MAX_BATCH = 8_000_000
MAX_STATEMENT = 100_000
MAX_STATEMENTS = 20_000
_SKIPPED_OR_END = re.compile(rf"{QUOTING_SQL}|;", re.DOTALL)


def check_size(text: str) -> None:
    """Raise SQLError for a batch or a statement that is too long, or for too many of them, before tokens are read."""
    if len(text) > MAX_BATCH:
        raise SQLError(
            f"the batch has {len(text):,} characters, at most {MAX_BATCH:,} are read: split it", code="too-large"
        )
    if len(text) <= MAX_STATEMENT and text.count(";") <= MAX_STATEMENTS:
        return
    ends = (found.start() for found in _SKIPPED_OR_END.finditer(text) if found.group() == ";")
    start = 0
    for number, end in enumerate(chain(ends, [len(text)])):
        if end - start > MAX_STATEMENT:
            raise SQLError(
                f"a statement has {end - start:,} characters, at most {MAX_STATEMENT:,} are read: "
                "split it, or shorten its IN list",
                code="too-large",
            )
        if number > MAX_STATEMENTS:
            raise SQLError(f"the batch has more than {MAX_STATEMENTS:,} statements: split it", code="too-large")
        start = end + 1


def tokens_of(text: str) -> list[Token]:
    """The tokens of a batch. Raises SQLError where a quote or a comment has no end, and past the limits of sizes."""
    check_size(text)
    if _SPACE.search(text):
        text = _QUOTED_OR_SPACE.sub(lambda part: _SPACE.sub(" ", part[0]) if len(part[0]) == 1 else part[0], text)
    try:
        tokens = tokens_with_dollars(text) if "$" in text else DUCKDB.tokenize(text)
    except TokenError as error:
        raise SQLError(f"the batch cannot be read: {first_line(str(error))}; check its quotes", code="syntax") from None
    for token in tokens:
        if token.token_type is TokenType.BYTE_STRING:
            token.token_type, token.text = TokenType.STRING, _unescaped(text[token.start + 2 : token.end], token)
    return tokens


_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))|''", re.DOTALL)
_SIGNS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _unescaped(body: str, token: Token) -> str:
    """What E'body' holds, as DuckDB reads it: its escapes are bytes."""

    def sign(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, other = match.groups()
        if octal or hexadecimal:
            return bytes([int(octal, 8) % 256 if octal else int(hexadecimal, 16)])
        return b"'" if other is None else _SIGNS.get(other, other)

    try:
        text = _ESCAPE.sub(sign, body.encode()).decode()
    except UnicodeError:
        text = "\0"
    if "\0" in text:
        raise refuse_token("the escapes of E'...' give no text: a NUL, or bytes that are no UTF-8", token, "syntax")
    return text


def first_line(text: str) -> str:
    """The first line of what the parser says, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text.strip().splitlines()[0]) if text.strip() else "unreadable"


def place_of(token: Token) -> tuple[int, int]:
    """Line and column (from 1) of a token's first character; the tokenizer says where it ends."""
    return int(token.line), max(1, int(token.col) - (int(token.end) - int(token.start)))


def place_at(text: str, at: int) -> tuple[int, int]:
    """Line and column (from 1) of a character."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def refuse_token(message: str, token: Token, code: str = "not-answered") -> SQLError:
    """The error that refuses a token, with its place."""
    return SQLError(message, *place_of(token), code=code)


def nesting(token: Token) -> int:
    """1 for what opens a parenthesis, bracket or brace, -1 for what closes one, else 0."""
    return (token.token_type in _OPEN) - (token.token_type in _CLOSE)


def items_of(tokens: Sequence[Token], ends: Iterable[TokenType] = ()) -> list[list[Token]]:
    """The items at the commas outside of inner parentheses, up to a token of ``ends``; one empty item of nothing."""
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += nesting(token)
        if depth < 0 or (depth == 0 and token.token_type in ends):
            break
        if depth == 0 and token.token_type is TokenType.COMMA:
            items.append([])
        else:
            items[-1].append(token)
    return items


def replaced(text: str, parts: Iterable[tuple[int, int, str]]) -> str:
    """The text with other text from ``start`` to ``stop`` of each part; the parts go by their places."""
    out, last = [], 0
    for start, stop, new in parts:
        out += [text[last:start], new]
        last = stop
    return "".join(out) + text[last:]
