"""Tokens of a text with dollar signs, which begin a parameter ($1, $name) or quote a string ($$...$$, $tag$...$tag$).

sqlglot takes all up to the next dollar sign for a tag, so that it reads no two parameters without white space between
them. As in DuckDB, a tag is a name here. In place of each string in dollar quotes sqlglot reads one in plain quotes
between two blanks, of the same length in all, so that every token keeps its place.
"""

from __future__ import annotations

import re

from sqlglot import Token, TokenType
from sqlglot.errors import TokenError

from dpsql.sql.parse.trees import DUCKDB

_NEXT = re.compile(
    r"""--[^\n]* | (?P<comment>/\*) | [eE]'(?:[^'\\]|\\.|'')*+' | '(?:[^']|'')*+' | "(?:[^"]|"")*+"
    | (?P<quote>\$(?:[^\W\d]\w*+)?\$) | [^\W\d][\w$]*+""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")


class _Tokenizer(DUCKDB.tokenizer_class):  # type: ignore[name-defined, misc]
    HEREDOC_STRINGS: list[str] = []  # noqa: RUF012 - as its base class has it


def tokens_with_dollars(text: str) -> list[Token]:
    """The tokens of a text. Raises TokenError where a quote or a comment has no end."""
    bodies = _quoted(text)
    plain, last = [], 0
    for start, (stop, _) in bodies.items():
        plain += [text[last:start], " '", re.sub(r"[^\r\n]", "x", text[start + 2 : stop - 2]), "' "]
        last = stop
    tokens: list[Token] = _Tokenizer(dialect=DUCKDB).tokenize("".join(plain) + text[last:])
    for token in tokens:
        if token.start - 1 in bodies:
            token.start, token.end, token.col = token.start - 1, token.end + 1, token.col + 1
            token.token_type, token.text = TokenType.HEREDOC_STRING, bodies[token.start][1]
    return tokens


def _quoted(text: str) -> dict[int, tuple[int, str]]:
    """Where each string in dollar quotes ends, and what is in it, by where it begins.

    Raises TokenError where one has no end.
    """
    found, at = dict[int, tuple[int, str]](), 0
    while (part := _NEXT.search(text, at)) is not None:
        start, at, quote = part.start(), part.end(), part["quote"]
        if part["comment"]:
            at = _end_of_comment(text, start)
        elif quote:
            end = text.find(quote, at)
            if end < 0:
                raise TokenError(f"Missing {quote} from {text.count(chr(10), 0, start) + 1}:{start}")
            found[start] = end + len(quote), text[at:end]
            at = end + len(quote)
    return found


def _end_of_comment(text: str, at: int) -> int:
    """Where the comment ends that begins at ``at``; comments nest."""
    depth = 0
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(text)
