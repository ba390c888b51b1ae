"""Statements: names, weights, places, and what comments and strings may hold."""

from __future__ import annotations

import pytest
from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql import parse
from dpsql.sql.predicates import _after_prefix, like
from dpsql.sql.statements import MAX_STATEMENTS, place


def test_unnamed_results_are_numbered_in_order() -> None:
    found = parse("SELECT COUNT(*) FROM t; CREATE VIEW v AS SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM u;")
    assert [(s.name, s.named, s.replace) for s in found] == [
        ("q1", False, True),
        ("v", True, False),
        ("q2", False, True),
    ]
    (view,) = parse('CREATE OR REPLACE VIEW "Two words" (a, "b c") AS SELECT COUNT(*), 1 + COUNT(*) FROM t')
    assert (view.name, view.replace, view.columns) == ("Two words", True, ("a", "b c"))


@pytest.mark.parametrize(
    ("sql", "weight"),
    [
        ("SELECT /*+ WEIGHT(4) */ COUNT(*) FROM t", 4.0),
        ("SELECT /*+weight( 0.5 )*/ COUNT(*) FROM t", 0.5),
        ("/*+ WEIGHT(1e3) */ SELECT COUNT(*) FROM t", 1000.0),
        ("CREATE VIEW v AS SELECT /*+ WEIGHT(2) */ COUNT(*) FROM t", 2.0),
        ("SELECT /* WEIGHT(4) */ COUNT(*) FROM t", 1.0),
    ],
)
def test_weights(sql: str, weight: float) -> None:
    assert parse(sql)[0].weight == weight


def test_semicolons_and_parentheses_in_strings_and_comments_do_not_count() -> None:
    deep = "(" * 99 + "; NOT NOT "
    (statement,) = parse(f"SELECT COUNT(*) -- {deep}\n FROM t /* {deep} */ WHERE a = '{deep}' AND \"{deep}\" = 1")
    assert statement.name == "q1"
    assert len(parse("SELECT ';', COUNT(*) FROM t; -- ;\n SELECT COUNT(*) FROM t /* ; */ ;")) == 2


def test_the_largest_batch_is_read() -> None:
    assert len(parse("SELECT 1;" * 500)) == 500
    with pytest.raises(SQLError, match="split it"):
        parse("SELECT 1;" * (MAX_STATEMENTS + 1))


def test_places_are_those_of_the_text() -> None:
    (statement,) = parse("SELECT COUNT(*)\nFROM t\nWHERE first = 1\n  AND second = 2")
    places = {node.name: place(node) for node in statement.select.find_all(exp.Column)}
    assert places == {"first": (3, 7), "second": (4, 7)}


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("a%", ["a", "ab", "a\nb"], ["", "b", "A", "ba"]),
        ("_", ["a", "日", "😀", "\n"], ["", "ab"]),
        ("a.c", ["a.c"], ["abc"]),
        ("%(x)[y]*%", ["(x)[y]*", "..(x)[y]*.."], ["x", "(x)y"]),
        ("a\\_", ["a\\b", "a\\_"], ["a_"]),
        ("", [""], ["a"]),
        ("%_%", ["a", "ab"], [""]),
    ],
)
def test_like_as_a_python_test(pattern: str, matches: list[str], others: list[str]) -> None:
    test = like(pattern)
    assert all(test(value) for value in matches)
    assert not any(test(value) for value in others)


def test_the_string_after_a_prefix() -> None:
    assert _after_prefix("ab") == "ac"
    assert _after_prefix("a\U0010ffff") == "b"
    assert _after_prefix("\U0010ffff") == ""
    # Surrogates are stepped over, as no text holds them.
    assert _after_prefix("a\ud7ff") == "a\ue000"
    assert _after_prefix("") == ""
