"""Hints are read right after SELECT and refused wherever nothing would read them, also where the parser drops them."""

from __future__ import annotations

import duckdb
import pytest

import dpsql
from dpsql.errors import SQLError

POLICY = """
dataset = "hints-1"
[budget]
epsilon = 100
[tables.t]
unit = "row"
[tables.t.columns]
v = { lower = 0, upper = 2, step = 1, nulls = false }
h = { values = ["good", "poor"], nulls = false }
"""
HINT = "/*+ MAX_ERROR(50) */"
READ = (
    f"SELECT {HINT} COUNT(*) FROM t",
    f"{HINT} SELECT COUNT(*) FROM t",
    "SELECT /*+MAX_ERROR(50)*/ COUNT(*) FROM t",
    "SELECT --+ MAX_ERROR(50)\n COUNT(*) FROM t",
    f"SELECT * FROM (SELECT {HINT} h, COUNT(*) AS n FROM t GROUP BY h) s",
    f"WITH s AS (SELECT {HINT} h, COUNT(*) AS n FROM t GROUP BY h) SELECT sum(n) FROM s",
    f"SELECT {HINT} COUNT(*) AS n FROM t UNION ALL SELECT {HINT} COUNT(*) FROM t WHERE v > 1",
    f"SELECT {HINT} COUNT(*) FROM (SELECT * FROM t WHERE v > 1) s",
    f"SELECT {HINT} COUNT(*) FROM t; {HINT} SELECT COUNT(*) FROM t WHERE v > 1",
    f"SELECT {HINT} COUNT(*) FROM t;\n{HINT} SELECT COUNT(*) FROM t WHERE v > 1",
)
STRAY = (
    f"SELECT COUNT(*) FROM t WHERE {HINT} v > 1",
    f"SELECT COUNT(*) {HINT} FROM t",
    f"SELECT COUNT(*) FROM t {HINT}",
    f"SELECT COUNT({HINT} *) FROM t",
    f"SELECT COUNT(*) FROM t WHERE h LIKE {HINT} 'g%'",
    f"SELECT COUNT(*) FROM t UNION ALL {HINT} SELECT COUNT(*) FROM t",
    f"WITH s AS ({HINT} SELECT h, COUNT(*) AS n FROM t GROUP BY h) SELECT sum(n) FROM s",
    f"SELECT {HINT} COUNT(*) FROM t; SELECT COUNT({HINT} *) FROM t",
    f"CREATE VIEW a {HINT} AS SELECT COUNT(*) FROM t",
    f"SELECT COUNT(*) FROM t; {HINT}",
    f"{HINT};SELECT COUNT(*) FROM t",
    f"SELECT COUNT(*) FROM t {HINT};SELECT COUNT(*) FROM t",
    f"SELECT COUNT(*) FROM t; {HINT}; SELECT COUNT(*) FROM t",
)
ROWS = (
    f"SELECT COUNT(*) FROM (SELECT {HINT} * FROM t WHERE v > 1) s",
    f"WITH s AS (SELECT {HINT} * FROM t WHERE v > 1) SELECT COUNT(*) FROM s",
    "SELECT COUNT(*) FROM (SELECT * FROM (SELECT /*+ WEIGHT(2) */ h FROM t) a) s",
)


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    folder = tmp_path_factory.mktemp("hints")
    with duckdb.connect(folder / "h.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT range % 3 AS v, 'good' AS h FROM range(90)")
    (folder / "h.toml").write_text(POLICY)
    return dpsql.connect(folder / "h.duckdb", policy=folder / "h.toml")


@pytest.mark.parametrize("sql", READ, ids=range(len(READ)))
@pytest.mark.few("0", "3")
def test_hints_after_select_are_read(con: dpsql.Connection, sql: str) -> None:
    plan = con.plan(sql)  # no budget: the hint alone says what is wanted
    assert plan.wanted is not None
    assert plan.widths.max() <= 50


@pytest.mark.parametrize(
    ("sql", "said"),
    [(sql, "stands where none is read") for sql in STRAY] + [(sql, "and this SELECT gives rows") for sql in ROWS],
    ids=range(len(STRAY) + len(ROWS)),
)
def test_hints_that_nothing_would_read_are_refused(con: dpsql.Connection, sql: str, said: str) -> None:
    with pytest.raises(SQLError, match=said) as caught:
        con.plan(sql, epsilon=1)
    assert caught.value.code == "hint"
    assert caught.value.line == 1


def test_a_hint_that_the_parser_drops_is_underlined(con: dpsql.Connection) -> None:
    with pytest.raises(SQLError) as caught:
        con.plan(f"SELECT COUNT(*)\nFROM t WHERE h LIKE {HINT} 'g%'", epsilon=1)
    assert caught.value.line == 2


def test_plain_comments_stay_comments(con: dpsql.Connection) -> None:
    assert con.plan("SELECT COUNT(/* all + more */ *) FROM t -- WEIGHT(2)", epsilon=1).cells


def test_a_batch_of_slips_alone_says_which(con: dpsql.Connection) -> None:
    """A constant that is not declared makes a count 0 for every table; alone it leaves nothing to measure."""
    with pytest.raises(
        SQLError, match=r"nothing to measure \('god' is no declared value of h .* did you mean good\?\)"
    ):
        con.plan("SELECT COUNT(*) FROM t WHERE h = 'god'", epsilon=1)
