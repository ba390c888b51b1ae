"""What makes batches of many statements fast must not show: shapes of outer SQL, walks over trees, the collector."""

from __future__ import annotations

import gc
import random
import threading

import pytest
from batch_texts import batch
from batches import JOINS
from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy import Policy
from dpsql.sql import parse, table_of, understand
from dpsql.sql.outer.answers import Understood
from dpsql.sql.outer.sandbox import Sandbox, shape_of
from dpsql.sql.parse.shapes import parsed
from dpsql.sql.parse.tokens import tokens_of
from dpsql.sql.parse.trees import DUCKDB, loosened, nodes, uncollected, written


@pytest.mark.parametrize(
    ("sql", "shape"),
    [
        ('SELECT "c0" AS "n" FROM t WHERE "c0" > 500', 'SELECT "c0" AS "n" FROM t WHERE "c0" > #'),
        ("(c0) <= 7 AND d <> 12 OR e = 0)", "(c0) <= # AND d <> # OR e = #)"),
        ("CASE WHEN n >= 5 THEN 5 ELSE 6 END", "CASE WHEN n >= # THEN 5 ELSE 6 END"),
        ('n < 5 AS "few", m', 'n < # AS "few", m'),
        ("FROM t LIMIT 10 OFFSET 20", "FROM t LIMIT # OFFSET #"),
    ],
)
def test_numbers_that_no_type_depends_on_are_one_shape(sql: str, shape: str) -> None:
    assert shape_of(sql) == shape


@pytest.mark.parametrize(
    "sql",
    [
        "n + 5", "ROUND(n, 2)", "n > 5 + 1", "n > 5.0", "n > 1e3", "n > 5::TINYINT", "n > '5'", "n > -5", "n > 1_000",
        "n > 1234567890", "LIMIT 10 PERCENT", "a -> 5", "SELECT ' > 5'", 'SELECT x AS "a > 5"', "' it''s > 5 AND '",
        "n > 5 AND s = e'\\' > 5 AND '", "n > 5 AND s = $$ ' > 5 AND $$",
    ],
)  # fmt: skip
def test_all_else_is_kept(sql: str) -> None:
    assert shape_of(sql) == sql


def test_duckdb_says_the_same_of_every_number_in_a_comparison() -> None:
    """Whatever type stands on the left: the premise of ``shape_of``."""
    kinds = "BOOLEAN TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT UBIGINT UHUGEINT FLOAT DOUBLE DECIMAL(4,1) "
    kinds += "DECIMAL(38,38) DECIMAL(38,0) VARCHAR BLOB DATE TIME TIMESTAMP TIMESTAMPTZ INTERVAL UUID ENUM('a') BIT"
    for kind in kinds.split():
        with Sandbox() as sandbox:
            sandbox.create("t", [("x", kind)])
            for operator in ("=", "<"):
                said = [
                    sandbox.describe(f"SELECT x {operator} {number} AS a, 1 AS b FROM t LIMIT {number}")
                    for number in ("0", "2", "007", "300", "70000", "999999999")
                ]
                assert all(one == said[0] for one in said), kind


@pytest.mark.long
def test_nodes_are_those_of_a_walk() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        for statement in batch(rng, list(JOINS)):
            for tree in DUCKDB.parse(statement.user):
                assert isinstance(tree, exp.Expr)
                assert [id(node) for node in nodes(tree)] == [id(node) for node in tree.walk()]


def test_hints_and_parentheses_are_found_in_any_statement_of_a_batch() -> None:
    plain = "SELECT COUNT(*) FROM t; " * 3
    with pytest.raises(SQLError, match="stands where none is read"):
        parse(plain + "SELECT COUNT(*) /*+ WEIGHT(2) */ FROM t; " + plain)
    statements = parse(plain + "SELECT COUNT(*) FROM (a JOIN b ON a.k = b.k) JOIN c ON b.k = c.k; " + plain)
    assert [type(s.tree.args["from_"].this) for s in statements] == [exp.Table] * 7


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(SQLError):
        parse("SELECT (")
    assert gc.isenabled()
    gc.disable()
    try:
        parse("SELECT 1 FROM t")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_returns_after_the_last_of_several_threads() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with uncollected():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


SHAPES = (
    "SELECT COUNT(*) FROM t WHERE a BETWEEN {0} AND {1}",
    "SELECT s, COUNT_IF(a < {0}) FROM t WHERE a IN ({1}, -{2}, {0}) OR s = '{0}' GROUP BY s HAVING COUNT(*) > {1}",
    "SELECT SUM(a) FILTER (WHERE a >= -{0}), 1_000 * COUNT( * ) FROM t WHERE d < DATE '2020-01-{3}' AND a <> {1} + 1",
    "SELECT a, CASE WHEN a = {0} THEN {1} END FROM t AS u JOIN v USING (k) WHERE s LIKE '{0}' LIMIT {1}",
    "SELECT x[{0}], a -> {1} FROM t WHERE x[{0}] = {1} AND INTERVAL {0} DAY > INTERVAL '{1}' DAY AND 'a' = '{2}' 'c'",
    "SELECT COUNT(*) FROM t WHERE a = {0}.5 AND b = '{1} o''clock' AND c = {0}e3 AND d NOT BETWEEN {0} AND {0}",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tree_made_of_a_shape_is_what_the_parser_makes(shape: str) -> None:
    """Its nodes, their places and its text, of every statement that differs in constants from others."""
    rng = random.Random(shape)
    constants = [
        [str(rng.choice((0, 7, 10, 12_345))), *(str(rng.randint(0, 300)) for _ in range(2)), "17"] for _ in "12345"
    ]
    sql = "; ".join(shape.format(*each) for each in constants)
    found = parsed(sql, tokens_of(sql))
    trees = DUCKDB.parse(sql)
    assert [_all_of(one.tree) for one in found] == [_all_of(tree) for tree in trees]
    for one, tree, statement in zip(found, trees, parse(sql), strict=True):
        assert isinstance(tree, exp.Expr)
        assert one.text in (None, written(tree))
        assert statement.text == written(tree)
    # Of constants in brackets, of odd ones and of other texts every statement has a shape of its own.
    assert any(one.text for one in found) != ("[" in shape or "e3" in shape)


def _all_of(tree: exp.Expr | None) -> list[object]:
    assert tree is not None
    return [
        (type(node), node.arg_key, node.index, node.comments, node.meta, node.args.keys(), node.args.get("this"))
        for node in nodes(tree)
    ]


def test_places_and_names_are_those_of_each_statement() -> None:
    batch = "SELECT COUNT_IF(a > {}) FROM t WHERE s = '{}';\n"
    asked = _asked("".join(batch.format(number, "xxxzx"[number]) for number in range(5)))
    assert [note.partition(":")[0] for note in asked.notes] == ["'z' is no declared value of s (line 4, column 37)"]
    statements = parse("".join(batch.format(number, number) for number in range(1, 5)))
    assert [statement.items for statement in statements] == [(f"COUNT_IF(a > {number})",) for number in range(1, 5)]


ASKED = (
    "SELECT COUNT(*) FROM t WHERE a > 3",
    "SELECT s, COUNT(*) AS n, SUM(a) / COUNT(*) FROM t GROUP BY s HAVING n > 3 ORDER BY n",
    "SELECT s, AVG(a) AS m FROM t GROUP BY ROLLUP (s)",
    "SELECT COUNT(DISTINCT a) FROM t WHERE s = 'no such'",
    "SELECT a + 1 AS b, COUNT(*) FROM t GROUP BY b",
    "SELECT u.n FROM (SELECT COUNT(*) AS n FROM t) AS u",
)


def test_what_is_asked_again_means_the_same() -> None:
    """As where each repetition is written with other spaces, and so read anew; notes and their places, too."""
    again = _asked("; ".join(ASKED * 3))
    anew = _asked("; ".join(sql.replace(" ", "\n" * n, 1) for n in range(1, 4) for sql in ASKED))
    assert [answer.name for answer in again.answers] == [f"q{number}" for number in range(1, 19)]
    assert repr(again.answers) == repr(anew.answers)
    assert [answer.meaning for answer in again.answers] == [answer.meaning for answer in anew.answers]
    assert repr(again.tables) == repr(anew.tables)
    assert [sum("no such" in note for note in asked.notes) for asked in (again, anew)] == [3, 3]


def test_a_result_by_the_name_of_what_is_read_is_read() -> None:
    """``q1`` and ``v`` are results of the batch, however often they are read; ``q2`` is a table where there is one."""
    sql, over = "SELECT COUNT(*) AS a FROM t", "SELECT SUM(a) AS a FROM {}"
    asked = _asked(
        "; ".join([sql, *[over.format("q1")] * 3, f"CREATE VIEW v AS {sql}", *[over.format("v")] * 3, sql, sql])
    )
    assert [len(answer.cores) for answer in asked.answers] == [1, 0, 0, 0, 1, 0, 0, 0, 1, 1]
    assert [answer.reads for answer in asked.answers] == [(), *[("q1",)] * 3, (), *[("v",)] * 3, (), ()]
    named = _asked("; ".join([over.format("q2")] * 3), "q2")
    assert [len(answer.cores) for answer in named.answers] == [1, 1, 1]


def test_views_among_selects_are_parsed_as_by_themselves() -> None:
    sql = "SELECT COUNT(*) FROM t WHERE a = {0}; CREATE OR REPLACE VIEW v{0} AS SELECT COUNT(*) AS n FROM t; "
    sql += "CREATE VIEW w{0} (m) AS SELECT 1"
    batch = "; ".join(sql.format(number) for number in range(4))
    found = parsed(batch, tokens_of(batch))
    assert [_all_of(one.tree) for one in found] == [_all_of(tree) for tree in DUCKDB.parse(batch)]
    assert [one.text is not None for one in found].count(True) == 2


def test_comments_between_statements_leave_shapes_alone_and_hints_do_not() -> None:
    plain = [f"SELECT COUNT(*) FROM t WHERE a BETWEEN {number} AND 9" for number in range(5)]
    noted = "; -- one more\n".join(f"-- number {number}\n{sql}" for number, sql in enumerate(plain))
    assert sum(one.text is not None for one in parsed(noted, tokens_of(noted))) == 3
    assert [(one.text, one.source) for one in parse(noted)] == [
        (one.text, one.source) for one in parse(";".join(plain))
    ]
    for other in (
        "SELECT /*+ WEIGHT(2) */ 1 AS n FROM t",
        "SELECT 1 AS n /* one */ FROM t",
        "/*+ WEIGHT(2) */ SELECT 1 AS n FROM t",
    ):
        batch = f"{noted}; {other}"
        assert all(one.text is None for one in parsed(batch, tokens_of(batch)))


def test_trees_that_were_read_are_freed_without_the_collector() -> None:
    """The statements', and the copies of them with their aliases written out; the first two of a shape make that."""
    sql = "; ".join(f"SELECT a + 1 AS b, SUM(a) AS n FROM t WHERE b > {n} GROUP BY b HAVING n > {n}" for n in range(9))
    with uncollected():
        _asked("SELECT COUNT(*) FROM t")
        before = sum(isinstance(one, exp.Select) for one in gc.get_objects())
        _asked(sql, free=True)
        after = sum(isinstance(one, exp.Select) for one in gc.get_objects())
    assert after - before <= 4


def _asked(sql: str, table: str = "t", *, free: bool = False) -> Understood:
    columns = "a = { lower = 0, upper = 9, nulls = false }\ns = { values = ['x', 'y'] }"
    policy = Policy.parse(
        f"dataset = 'd'\n[budget]\nepsilon = 1.0\n[tables.{table}]\nunit = 'row'\n[tables.{table}.columns]\n{columns}"
    )
    known = {table: table_of(policy.tables[table], {"a": "INTEGER", "s": "VARCHAR"})}
    statements = parse(sql)
    found = understand(statements, policy, known)
    for statement in statements if free else ():
        loosened(statement.tree)
    return found
