"""Statements: names, weights, places, and what comments and strings may hold."""

from __future__ import annotations

import random

import duckdb
import pytest
from helpers import scratch
from sqlglot import exp, parse_one

from dpsql.errors import SQLError
from dpsql.sql import parse
from dpsql.sql.parse.names import result_names
from dpsql.sql.parse.statements import hints_of
from dpsql.sql.parse.tokens import MAX_STATEMENTS
from dpsql.sql.parse.trees import place
from dpsql.sql.values.comparisons import _after_prefix, fits


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
    tree = parse(sql)[0].tree
    assert isinstance(tree, exp.Select)
    assert hints_of(tree).weight == weight


def test_semicolons_and_parentheses_in_strings_and_comments_do_not_count() -> None:
    deep = "(" * 99 + "; NOT NOT "
    (statement,) = parse(f"SELECT COUNT(*) -- {deep}\n FROM t /* {deep} */ WHERE a = '{deep}' AND \"{deep}\" = 1")
    assert statement.name == "q1"
    assert len(parse("SELECT ';', COUNT(*) FROM t; -- ;\n SELECT COUNT(*) FROM t /* ; */ ;")) == 2


def test_the_largest_batch_is_read() -> None:
    assert len(parse("SELECT 1;" * 500)) == 500
    with pytest.raises(SQLError, match="split it"):
        parse("SELECT 1;" * (MAX_STATEMENTS + 1))


@pytest.mark.parametrize(
    "asked",
    [
        *("PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY x DESC)", "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY x)"),
        *("SUM(if(a, 1, 2))", "COUNT_IF(a LIKE ANY ('b', 'c'))", "COUNT_IF(z > TIMESTAMPTZ '2024-01-01 00:00:00+00')"),
    ],
)
def test_writing_a_statement_leaves_its_tree_alone(asked: str) -> None:
    """A cursor reads its statements again after their text was asked for."""
    (statement,) = parse(f"SELECT {asked} AS n FROM t")
    before = repr(statement.tree)
    assert statement.text == statement.text != ""
    assert repr(statement.tree) == before


def test_a_byte_order_mark_is_a_space_outside_of_quotes() -> None:
    """As are the other spaces that DuckDB strips."""
    found = parse(
        "\ufeffSELECT\u00a0COUNT(*)\u2003FROM\u3000t\u200b -- '\n;\ufeffSELECT 'a\u00a0\ufeff', \"b\ufeff\" FROM t"
    )
    assert [one.text for one in found] == ["SELECT COUNT(*) FROM t", "SELECT 'a\u00a0\ufeff', \"b\ufeff\" FROM t"]
    assert duckdb.sql("\ufeffSELECT\u00a01\u3000\u2060").fetchall() == [(1,)]


def test_the_parser_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SQLError, match="COMMAND"):
        parse("CREATE VIEW v AS VACUUM FULL t")
    (statement,) = parse("SELECT count(*) FROM t WHERE to_char(d, 'YYYY') = $$2024$$ AND $a$it's$a$ = g")
    assert statement.text.endswith(" = '2024' AND 'it''s' = g")
    assert caplog.records == []
    parse_one("SELECT to_char(d, 'YYYY')", dialect="duckdb").sql("duckdb")
    assert caplog.records != []  # of other calls it does


def test_places_are_those_of_the_text() -> None:
    (statement,) = parse("SELECT COUNT(*)\nFROM t\nWHERE first = 1\n  AND second = 2")
    places = {node.name: place(node) for node in statement.tree.find_all(exp.Column)}
    assert places == {"first": (3, 7, (3, 11)), "second": (4, 7, (4, 12))}


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
    assert all(fits(value, pattern) for value in matches)
    assert not any(fits(value, pattern) for value in others)


def test_the_string_after_a_prefix() -> None:
    assert _after_prefix("ab") == "ac"
    assert _after_prefix("a\U0010ffff") == "b"
    assert _after_prefix("\U0010ffff") == ""
    # Surrogates are stepped over, as no text holds them.
    assert _after_prefix("a\ud7ff") == "a\ue000"
    assert _after_prefix("") == ""


def test_like_is_quick_on_hostile_patterns() -> None:
    value = "a" * 2_000
    assert not fits(value, "%_" * 500 + "%!")
    assert not fits(value, "%a" * 500 + "%!")
    assert fits(value, "%a" * 500 + "%")
    assert not fits(value, "%" * 5_000 + "b")


def test_like_agrees_with_duckdb() -> None:
    rng = random.Random(5)
    con = duckdb.connect()
    cases = []
    for _ in range(1_500):
        value = "".join(rng.choices("ab日", k=rng.randint(0, 7)))
        cases.append((value, "".join(rng.choices("ab日%%_", k=rng.randint(0, 6)))))
    con.execute("CREATE TABLE t(i INT, value VARCHAR, pattern VARCHAR)")
    con.executemany("INSERT INTO t VALUES (?, ?, ?)", [(i, *case) for i, case in enumerate(cases)])
    theirs = [row[0] for row in con.execute("SELECT value LIKE pattern FROM t ORDER BY i").fetchall()]
    assert [fits(value, pattern) for value, pattern in cases] == theirs


@pytest.mark.parametrize(
    ("sql", "items"),
    [
        ("SELECT a, countif(a>.5) FROM t", ("a", "countif(a>.5)")),
        ("SELECT count(*) AS n FROM t", None),
        ("SELECT 1; SELECT /* x, */ count( * ) , 1_000 * sum(a), FROM t", ("count( * )", "1_000 * sum(a)")),
        ("CREATE VIEW v(x, y) AS (SELECT count(*), sum(CASE WHEN a IN (1, 2) THEN 1 END) FROM t)",
         ("count(*)", "sum(CASE WHEN a IN (1, 2) THEN 1 END)")),
        ("FROM t SELECT count(';'), 2*count(*) WHERE a = 1;", ("count(';')", "2*count(*)")),
        ("SELECT count(*) FROM t WHERE a IN (SELECT 1)", None),
    ],
)  # fmt: skip
def test_items_are_the_text_of_the_user(sql: str, items: tuple[str, ...] | None) -> None:
    assert parse(sql)[-1].items == items


@pytest.mark.parametrize(
    "item",
    [
        "countif(a>5)",
        "COUNT_IF(a > 1_000)",
        "count(*) FILTER (WHERE x > .5)",
        "count(*) FILTER (WHERE a NOTNULL)",
        "count(*) FILTER (WHERE (a > 1) IS NOT TRUE)",
        "count(*) -- note\n + 1",
        "sum(t.a)/2",
    ],
)
def test_names_are_those_of_duckdb_for_the_text_as_written(item: str) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t(a INTEGER, x DOUBLE)")
    wanted = con.execute(f"SELECT {item} FROM t").description[0][0]
    (statement,) = parse(f"SELECT {item} FROM t")
    schema = {"a": "INTEGER", "x": "DOUBLE"}
    assert result_names(statement.tree.expressions, schema, statement.items) == [wanted]


def test_a_name_that_duckdb_has_not_is_short() -> None:
    (statement,) = parse(f"SELECT no_such_function({'1 + ' * 200}1) FROM t")
    (name,) = result_names(statement.tree.expressions, {"a": "INTEGER"}, statement.items)
    assert len(name) == 200
    assert name.startswith("NO_SUCH_FUNCTION(1 + 1")


def test_strings_with_escapes_are_duckdbs() -> None:
    generator = random.Random(16)
    pieces = (
        "\\n",
        "\\\\",
        "\\'",
        "''",
        "\\101",
        "\\x41",
        "\\xc3\\xa9",
        "\\u0041",
        "\\q",
        "é",
        "a",
        "\\xff",
        "\\0",
        "$",
    )
    read = 0
    for _ in range(300):
        text = f"E'{''.join(generator.choices(pieces, weights=[4] * 11 + [1] * 3, k=4))}'"
        try:
            wanted = scratch().execute(f"SELECT {text}").fetchall()[0][0]
        except duckdb.ParserException:
            with pytest.raises(SQLError):
                parse(f"SELECT count(*) FROM t WHERE s = {text}")
            continue
        read += 1
        (statement,) = parse(f"SELECT count(*) FROM t WHERE s = {text}")
        (constant,) = statement.tree.find_all(exp.Literal)
        assert constant.this == wanted, text
    assert read > 100
