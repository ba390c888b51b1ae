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
from dpsql.sql import parse
from dpsql.sql.outer.sandbox import Sandbox, shape_of
from dpsql.sql.parse.trees import DUCKDB, nodes, uncollected


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
