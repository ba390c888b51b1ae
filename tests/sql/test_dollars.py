"""Parameters and strings that begin with a dollar sign are read where DuckDB reads them."""

from __future__ import annotations

import random

import duckdb
import pytest
import sqlglot
from sqlglot import TokenType
from sqlglot.errors import TokenError

from dpsql.errors import SQLError
from dpsql.sql.parse.tokens import tokens_of

PIECES = (
    *("$1", "$2", "$lo", "$é", "$$", "$t$", "$t$x'\ny$t$", '$$b"$$', "$t1$$t1$", " ", ",", "+", "'s'", "'it''s'"),
    *('"q$"', "--c$\n", "/* k $ */", "/* a /* $t$ */ */", "a$b", "::INT", "(", ")", "\n", "E'\\'$'", "x"),
)


def duckdbs(text: str) -> list[tuple[int, str]]:
    """Where each token of DuckDB begins, and of which kind it is; comments left out."""
    return [(at, kind.name) for at, kind in duckdb.tokenize(text) if kind.name != "comment"]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("SELECT a IN ($1,$2)", ["1", "2"]),
        ("SELECT $lo+$hi", ["lo", "hi"]),
        ("SELECT (a<$1)OR(a>$2)", ["1", "2"]),
        ("SELECT $1::INT+$2::INT,$3", ["1", "2", "3"]),
        ("SELECT $a,$$b,$c$$,$d,$t$e,$f$t$,$g", ["a", "d", "g"]),
        ("SELECT $1/*$2*/,$3--$4\n,$5,'$6',\"$7\",a$8,$9", ["1", "3", "5", "9"]),
        ("SELECT '$t$',$1,'$t$'", ["1"]),
    ],
)
def test_parameters_need_no_white_space(text: str, keys: list[str]) -> None:
    tokens = tokens_of(text)
    marks = [at for at, token in enumerate(tokens) if token.token_type is TokenType.PARAMETER]
    assert [tokens[at + 1].text for at in marks] == keys
    assert all(text[tokens[at].start] == "$" for at in marks)


def test_tokens_are_duckdbs() -> None:
    generator = random.Random(46)
    read = 0
    for _ in range(800):
        text = "SELECT " + "".join(generator.choice(PIECES) for _ in range(generator.randint(1, 9)))
        try:
            tokens = tokens_of(text)
            statements = duckdb.extract_statements(text)
        except (SQLError, duckdb.Error):
            continue
        read += 1
        strings = [at for at, kind in duckdbs(text) if kind == "string_const" and text.encode()[at : at + 1] == b"$"]
        mine = [len(text[: t.start].encode()) for t in tokens if t.token_type is TokenType.HEREDOC_STRING]
        assert mine == strings, text
        keys = {tokens[at + 1].text for at, t in enumerate(tokens) if t.token_type is TokenType.PARAMETER}
        assert keys == {key for one in statements for key in one.named_parameters}, text
    assert read > 15


def test_a_string_without_an_end_is_refused() -> None:
    with pytest.raises(SQLError, match=r"Missing \$t\$"):
        tokens_of("SELECT $1,\n$t$ $2 $tt$ " + " ".join(f"$t{n}$" for n in range(10_000)))


def test_texts_that_sqlglot_reads_keep_their_tokens() -> None:
    generator = random.Random(47)
    read = 0
    for _ in range(1_000):
        text = " ".join(generator.choice(PIECES[2:]) for _ in range(generator.randint(1, 6)))
        try:
            expected = sqlglot.tokenize(text, read="duckdb")
        except TokenError:
            continue
        if any(token.token_type is TokenType.PARAMETER for token in expected) or "$$t1$" in text:
            continue
        read += 1
        for token in expected:
            if token.token_type is TokenType.BYTE_STRING:  # E'...', a string like any other
                token.token_type = TokenType.STRING
        assert list(map(repr, tokens_of(text))) == list(map(repr, expected)), text
    assert read > 100
