"""SQL over releases: which functions and tables it may name, and that what it can build is known before it runs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from growing import grown

import dpsql
from dpsql.errors import SQLError
from dpsql.free_sql import expressions, limits
from dpsql.free_sql.bounds import check
from dpsql.free_sql.functions import AGGREGATES, GATHERING, SCALARS, STEPS
from dpsql.free_sql.tables import Bounds, table, table_in
from dpsql.release import reading
from dpsql.sql import routing
from dpsql.sql.outer.sandbox import Sandbox

COLUMNS = [("g", "VARCHAR"), ("n", "DOUBLE"), ("words", "VARCHAR[]")]
SHORT = {"g": 20.0}
TABLES = {
    "t": table(COLUMNS, 50, SHORT),
    "u": replace(table([("g", "VARCHAR"), ("m", "DOUBLE")], 50, SHORT), keys=(("g", 50),)),
    "big": table(COLUMNS, 1_000_000, SHORT),
    "few": replace(table(COLUMNS, 1_000_000, SHORT), measure=lambda columns: 20_000 if "g" in columns else 1_000_000),
    "many": replace(table(COLUMNS, 1_000_000, SHORT), measure=lambda columns: 3 if "g" in columns else 1_000_000),
    "old": table(COLUMNS, 50),  # of whose texts nothing is known
}


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": "1"}) as connection:
        yield connection


def judged(sql: str, parser: duckdb.DuckDBPyConnection) -> Bounds | None:
    return check(sql, parser, lambda path: TABLES.get(path[-1]))


GROWS = [
    # One call, a nested one, and what grows from query to query or from item to item.
    "SELECT levenshtein(repeat('a', 40000), repeat('b', 40000))",
    "SELECT damerau_levenshtein(repeat('a', 20000), repeat('b', 20000))",
    "SELECT length(repeat('a', 2600000000))",
    "SELECT repeat(repeat('a', 30000), 30000)",
    "SELECT replace(replace(replace(repeat('a', 9999), 'a', 'bbbbbbbbbb'), 'b', 'cccccccccc'), 'c', 'dd')",
    "SELECT regexp_replace(repeat('a', 9999), 'a', repeat('b', 9999), 'g')",
    "SELECT regexp_replace(repeat('a', 9999), '.*', '\\0' || repeat('\\0', 100))",
    "SELECT lpad('a', 1000000000, 'b')",
    "SELECT rpad(g, 1000000000, 'x') FROM t",
    "SELECT 'a'.repeat(2000000000)",
    "SELECT main.repeat('a', 2000000000)",
    "SELECT repeat('a', n::INTEGER) FROM t",
    "SELECT repeat(g, length(g) * 9999999) FROM t",
    "SELECT printf('%1000000000d', 5)",
    "SELECT printf('%*d', 1000000000, 5)",
    "SELECT printf(g, 5) FROM t",
    "SELECT format('{:>1000000000}', 'a')",
    "SELECT format('{:>{}}', 'a', 1000000000)",
    "SELECT bar(n, 0, 10, 1000000000) FROM t",
    "SELECT array_to_string(list_transform(range(1000), lambda x: repeat('a', 10000)), ',')",
    "SELECT array_to_string(range(20000), repeat('a', 10000))",
    "SELECT list_aggregate(range(20000), 'String_Agg', repeat('a', 10000))",
    "SELECT list_aggr(range(20000), 'string' || '_agg', repeat('a', 10000))",
    "SELECT concat_ws(repeat('a', 99999)" + ", 1" * 64 + ")",
    "SELECT range(1000000000)",
    "SELECT range(-1000000000, 0)",
    "SELECT len(generate_series(0, 10000000000, 2))",
    "SELECT list_resize([1], 1000000000)",
    "SELECT list_sort(range(9999999))",
    "SELECT [[x + y for x in range(9999)] for y in range(9999)]",
    "SELECT * FROM (VALUES (repeat('a', 2000000000)))",
    "SELECT 1 ORDER BY repeat('a', 2000000000)",
    "SELECT 1 LIMIT length(repeat('a', 2000000000))",
    "SELECT count(*) FILTER (WHERE repeat('a', 2000000000) > 'b') FROM t",
    "SELECT sum(n) OVER (PARTITION BY repeat('a', 2000000000)) FROM t",
    "SELECT * REPLACE (repeat('a', 2000000000) AS g) FROM t",
    "SELECT COLUMNS(repeat('a', 2000000000)) FROM t",
    "SELECT * FROM t PIVOT (max(repeat('a', 2000000000)) FOR g IN ('a'))",
    "SELECT * FROM t WHERE g IN (SELECT repeat('a', 2000000000))",
    "SELECT CASE WHEN true THEN repeat('a', 2000000000) END",
    "SELECT repeat('a', 2000000000) COLLATE NOCASE = 'a'",
    "DESCRIBE SELECT repeat('a', 2000000000)",
    "SUMMARIZE SELECT repeat('a', 2000000000) AS x",
    "WITH a AS (SELECT repeat('a', 99999) AS x), b AS (SELECT x || x AS x FROM a), c AS (SELECT x || x AS x FROM b), "
    "d AS (SELECT x || x AS x FROM c) SELECT x || x FROM d",
    "SELECT repeat('a', 99999) AS x, x || x AS y, y || y AS z, z || z AS w, w || w AS v",
    "SELECT repeat(s, 99999) FROM (SELECT string_agg(g, '') AS s FROM t)",
    "SELECT string_agg(g, ',') OVER (ORDER BY n) FROM big",
    "SELECT " + " || ".join(["g"] * 200) + " || repeat('a', 99999) FROM old",
    # Steps and rows.
    "SELECT repeat('a', 99999) FROM range(1000000)",
    "SELECT sum(levenshtein(a.g, b.g)) FROM big a, t b",
    "SELECT max(levenshtein(repeat('a', 9999) || g, repeat('b', 9999) || g)) FROM t",
    "SELECT regexp_matches(repeat('a', 99999), repeat('a?', 9999))",
    "SELECT regexp_matches(repeat('a', 99999), '((a?){0,500}){0,2}b')",
    "SELECT g LIKE repeat('%a', 9999) FROM (SELECT repeat('a', 99999) AS g)",
    "SELECT count(*) FROM range(100000) a, range(100000) b",
    "SELECT count(*) FROM range(1000000000)",
    "SELECT count(*) FROM big a, big b",
    "SELECT count(*) FROM big a JOIN big b ON a.n < b.n",
    "SELECT count(*) FROM big a FULL JOIN big b ON a.n = b.n + 1",
    "SELECT (SELECT count(*) FROM big b WHERE b.n < a.n) FROM big a",
    "SELECT count(*) FROM big a WHERE EXISTS (SELECT 1 FROM big b WHERE b.n < a.n)",
    "SELECT count(*) FROM big a, LATERAL (SELECT * FROM big b WHERE b.n < a.n)",
    "SELECT count(*) FROM (SELECT 1 AS k FROM big) a JOIN (SELECT 1 AS k FROM big) b USING (k)",
    "SELECT * FROM range(100000) a JOIN range(100000) b ON a.range // 100000 = b.range // 100000",
    "SELECT unnest(range(9999)), unnest(range(9999))",
    "SELECT unnest(range(9999)) FROM big",
    "SELECT * FROM big, unnest(range(9999))",
    "SELECT * FROM generate_series(DATE '2020-01-01', DATE '2030-01-01', INTERVAL 1 SECOND)",
    "SELECT * FROM generate_series(TIMESTAMP '9999-01-01 (BC)', TIMESTAMP '2030-01-01', INTERVAL 1 DAY)",
    "SELECT * FROM range(DATE '2020-01-01', DATE '2030-01-01', INTERVAL 1 DAY - INTERVAL 86399 SECOND)",
    "SELECT unnest(range(DATE '2020-01-01', DATE '2030-01-01', INTERVAL '1 minute'))",
    # An equality of columns that hold many rows each, or that compares what is cast.
    "SELECT count(*) FROM few a JOIN few b USING (g)",
    "SELECT count(*) FROM few a, few b WHERE a.g = b.g AND a.n < b.n",
    "SELECT count(*) FROM few a LEFT JOIN few b ON a.g = b.g",
    "SELECT count(*) FROM u LEFT JOIN few a ON u.g = a.g LEFT JOIN few b ON u.g = b.g",
    "SELECT count(*) FROM big a, big b QUALIFY a.g = b.g",
    "SELECT count(*) FROM (many a CROSS JOIN many b) LEFT JOIN u ON a.g = b.g AND u.g = a.g",
    "SELECT count(*) FROM many a FULL JOIN many b ON a.g = b.g, many c WHERE a.n = c.n",
    "SELECT count(*) FROM many a JOIN (SELECT n AS g FROM big) b ON a.g = b.g",
    "SELECT count(*) FROM (SELECT upper(g) AS g FROM many) a JOIN (SELECT upper(g) AS g FROM many) b USING (g)",
    "SELECT count(*) FROM (SELECT g, n FROM big GROUP BY ALL) a JOIN (SELECT g, n FROM big GROUP BY ALL) b USING (g)",
    "SELECT count(*) FROM few a WHERE EXISTS (SELECT 1 FROM few b WHERE b.g = a.g AND b.n < a.n)",
    "SELECT count(*) FROM few a, LATERAL (SELECT count(*) FROM few b WHERE b.n < a.n)",
    "WITH x AS (SELECT n FROM big LIMIT 1000) "
    "SELECT 1 FROM x a, x b, LATERAL (SELECT count(*) FROM t WHERE n < a.n + b.n)",
    "SELECT count(*) FROM big a, LATERAL (SELECT levenshtein(a.g, b.g) FROM t b WHERE b.n = a.n)",
    "SELECT count(*) FROM big GROUP BY CUBE(g, n, words, 1, 2, 3)",
]


@pytest.mark.parametrize("sql", GROWS)
def test_what_can_grow_too_large_is_refused_as_a_whole(sql: str, parser: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(SQLError) as error:
        judged(sql, parser)
    assert error.value.code == "too-large"


@pytest.mark.parametrize(
    ("sql", "fragment"),
    [
        ("WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT * FROM r", "WITH RECURSIVE"),
        ("SELECT list_reduce(['a', 'b'], lambda a, b: a || b)", "the value of list_reduce"),
        ("SELECT list_reduce([[1], [2]], lambda a, b: a || a)", "the value of list_reduce"),
        ("SELECT list_reduce([1], x)", "list_reduce takes a list and a lambda"),
        ("SELECT bitstring('1', 1000000000)", "the function bitstring"),
        ("SELECT equi_width_bins(0, 10, 100000000, true)", "the function equi_width_bins"),
        ("SELECT '1'::BIGNUM", "a cast to BIGNUM"),
        ("SELECT NULL::INTEGER[100000000]", "operator_cast can build"),
        ("SELECT NULL::INTEGER[1000][1000]", "operator_cast can build"),
        ("SELECT [NULL, NULL]::INTEGER[99999][]", "operator_cast can build"),
        ("SELECT current_setting('allowed_paths')", "the function current_setting"),
        ("SELECT sleep_ms(10000)", "the function sleep_ms"),
        ("FROM query('FROM duckdb_' || 'databases()')", "the table function query"),
        ("FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))", "json_execute_serialized_sql"),
        ("FROM pg_settings", "pg_settings is not among what may be read"),
        ("FROM system.main.duckdb_databases", "is not among what may be read"),
        ("SHOW DATABASES", "SHOW databases"),
        ("SELECT 1\nFROM t WHERE\n  getenv('HOME') = g", "(line 3, column 3)"),
    ],
)
def test_what_is_on_no_list_is_refused(sql: str, fragment: str, parser: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(SQLError) as error:
        judged(sql, parser)
    assert fragment in str(error.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g || ' (' || n || ')' AS x, string_agg(g, ', ' ORDER BY g) FROM t GROUP BY ALL LIMIT 10",
        "SELECT a.g, a.n / b.m FROM big a JOIN u b USING (g)",
        "SELECT a.g FROM many a, many b WHERE a.g = b.g AND a.n < b.n",
        "SELECT a.g, (SELECT m FROM u WHERE u.g = a.g) FROM big a WHERE EXISTS (SELECT 1 FROM big b WHERE b.g = a.g)",
        "SELECT lpad(n::INT::VARCHAR, 9, ' '), format('{:,.2f}', n), printf('%5.1f %s', n, g), bar(n, 0, 9, 9) FROM t",
        "SELECT repeat('#', least(n, 100)::INT) FROM t",
        "SELECT replace(upper(g), 'A', 'bb') FROM big WHERE g ILIKE '%a%' OR levenshtein(g, 'hello') < 3",
        "SELECT levenshtein(a.g, b.g) FROM t a, u b",
        "SELECT a.g FROM few a JOIN u USING (g) LEFT JOIN many b ON b.g = u.g AND b.n > a.n",
        "SELECT a.g FROM few a JOIN (SELECT g, sum(n) AS s FROM few GROUP BY g) b ON a.g = b.g",
        "SELECT a.g FROM few a JOIN (SELECT DISTINCT g FROM few) b USING (g) "
        "JOIN (SELECT g FROM few GROUP BY ALL) USING (g)",
        "WITH x AS (SELECT g AS k, n FROM many WHERE n > 3) SELECT * FROM x JOIN x AS y USING (k)",
        "SELECT * FROM few WHERE g IN (SELECT g FROM few) AND EXISTS (SELECT 1 FROM few b WHERE b.g = few.g)",
        "SELECT * FROM few a SEMI JOIN few b USING (g) ANTI JOIN big c ON a.n = c.n",
        "SELECT * FROM few a, LATERAL (SELECT * FROM u WHERE u.g = a.g) l",
        "SELECT a.g, (SELECT count(*) FROM few b WHERE b.g = a.g) FROM few a",
        "SELECT * FROM range(1000) r(i) JOIN big ON big.n = i",
        "SELECT * FROM many a FULL JOIN many b ON a.g = b.g FULL JOIN u ON u.g = b.g",
        "SELECT * FROM big POSITIONAL JOIN big b",
        "SELECT i, coalesce(n, 0) FROM range(12) r(i) LEFT JOIN t ON t.n = i",
        "SELECT d FROM generate_series(DATE '2020-01-01', DATE '2030-01-01', INTERVAL 1 DAY) s(d)",
        "SELECT unnest(words), [x + 1 for x in range(10)], list_sum(list_transform(range(9), lambda x: x * 2)) FROM t",
        "SELECT * FROM range(TIMESTAMP '2020-01-01', TIMESTAMP '2020-01-02 12:00', INTERVAL '6 hours')",
        "SELECT unnest(range(today() - 30, today(), INTERVAL 1 DAY)), INTERVAL 1 MONTH * 2",
        "SELECT * FROM generate_series(DATE '2020-02-01', DATE '2020-01-01', -INTERVAL 15 MINUTE)",
        "SELECT array_distance([n, 1]::DOUBLE[2], [0, 0]::DOUBLE[2]), list_resize([n], 384)::DOUBLE[384] FROM t",
        "SELECT list_reduce(list(n), lambda a, b: a + b), list_reduce(['a', 'b'], lambda a, b: greatest(a, b)) FROM t",
        "SELECT list_reduce([1, 2], lambda a, b, i: a + b * i, 10)",
        "FROM (FROM t PIVOT (sum(n) FOR g IN ('a', 'b')))",
        "UNPIVOT u ON m",
        "SUMMARIZE t",
        "SELECT * FROM t ASOF JOIN u ON t.g = u.g AND t.n >= u.m",
        "SELECT GROUPING(g), count(*), quantile_cont(n, [0.25, 0.5]) FROM t GROUP BY ROLLUP(g)",
        "SELECT {'a': g}, row(g, n), MAP {'a': 1}, n::DECIMAL(10,2), TRY_CAST(g AS INT), n ** 2, INTERVAL 5 DAY FROM t",
        "SELECT g FROM t UNION ALL BY NAME SELECT g, m FROM u ORDER BY g",
    ],
)
def test_what_people_write_is_answered(sql: str, parser: duckdb.DuckDBPyConnection) -> None:
    assert judged(sql, parser) is not None


def test_the_list_of_functions_is_closed(parser: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of DuckDB that has no line in the table is refused by its name, and every line is a function."""
    monkeypatch.setattr(expressions, "nearest", lambda *_: "")  # which takes longer than all else
    held = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type <> 'pragma' AND internal"
    names = {str(name) for (name,) in parser.execute(held).fetchall() if str(name).isidentifier()}
    answered = SCALARS.keys() | AGGREGATES | GATHERING
    for name in sorted(names - answered):
        with pytest.raises(SQLError, match="is not among those that run over releases"):
            judged(f'SELECT "{name}"(1)', parser)
    words = {name for name in answered if name.isidentifier()}
    assert len(words - names) < 20  # synonyms of another version, and words of the parser
    assert STEPS.keys() <= SCALARS.keys() | GATHERING


def test_no_value_is_longer_than_its_bound(parser: duckdb.DuckDBPyConnection) -> None:
    parser.execute("CREATE OR REPLACE TABLE v AS FROM (VALUES ('aab', 'w1'), ('ébb', 'x,a')) v(g, w)")
    held = table_in(parser, "v")
    compared = 0
    for seed in range(150):
        draw = random.Random(seed)
        sql = f"SELECT {grown(draw, draw.randint(1, 3), 6)} AS x FROM v"
        found: Bounds | None = None
        with contextlib.suppress(SQLError):
            found = check(sql, parser, lambda path: held if path == ("v",) else None)
        if found is None:
            continue
        try:
            (longest,) = parser.execute(f"SELECT max(strlen(x)) FROM ({sql})").fetchone() or (0,)
        except duckdb.InvalidInputException:  # BLOBs that are no text
            continue
        assert (longest or 0) <= found.columns["x"].size, sql
        compared += 1
    assert compared > 120


def test_a_long_text_is_refused_before_anything_reads_it(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    con.run("CREATE OR REPLACE VIEW some AS SELECT COUNT(*) AS n FROM visits", epsilon=0.1)
    monkeypatch.setattr(limits, "LONGEST", 1_000)
    monkeypatch.setattr(reading, "ask", lambda *_: pytest.fail("the text was read"))
    monkeypatch.setattr(routing, "_pieces", lambda *_: pytest.fail("the text was read"))
    with pytest.raises(SQLError, match="at most 1,000 are read") as error:
        con.sql("SELECT n" + " + n" * 500 + " FROM some")
    assert error.value.code == "too-large"


POLICY = """
dataset = "visits-1"
[budget]
epsilon = 4.0
[tables.visits]
unit = "row"
[tables.visits.columns]
age = { lower = 0, upper = 9 }
"""


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    folder = tmp_path_factory.mktemp("visits")
    with duckdb.connect(folder / "visits.duckdb") as raw:
        raw.execute("CREATE TABLE visits AS SELECT (i % 10)::INTEGER AS age FROM range(100) t(i)")
    (folder / "visits.toml").write_text(POLICY)
    with dpsql.connect(folder / "visits.duckdb", policy=folder / "visits.toml") as found:
        yield found


def test_noisy_tables_are_joined_by_their_keys(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "visits.duckdb") as raw:
        raw.execute("CREATE TABLE visits AS SELECT 1 AS age")
    (tmp_path / "visits.toml").write_text(POLICY.replace("upper = 9", "upper = 4999"))
    counts = "(SELECT age AS k, COUNT(*) AS n FROM visits GROUP BY age)"
    with dpsql.connect(tmp_path / "visits.duckdb", policy=tmp_path / "visits.toml") as connection:
        connection.plan(f"SELECT a.k, a.n / b.n AS r FROM {counts} a JOIN {counts} b USING (k)", epsilon=0.1)
        with pytest.raises(SQLError, match="can be joined to 25,010,001 rows"):
            connection.plan(f"SELECT a.k, a.n / b.n AS r FROM {counts} a JOIN {counts} b USING (n)", epsilon=0.1)


OUTER = [
    "SELECT COUNT(*) + levenshtein(repeat('a', 40000), repeat('b', 40000)) AS x FROM visits",
    "SELECT COUNT(*) + length(repeat('a', 1200000000)) AS x FROM visits",
    "WITH a AS (SELECT COUNT(*) AS n, repeat('a', 99999) AS s FROM visits), b AS (SELECT s || s || s || s AS s FROM a) "
    "SELECT s || s || s || s AS s FROM b",
    "CREATE VIEW r AS SELECT repeat('a', 9999) AS s, COUNT(*) AS n FROM visits; "
    "SELECT replace(s, 'a', repeat('b', 9999)) AS s FROM r",
    "SELECT COUNT(*) + length(repeat('a', 1200000000)) AS x FROM visits LIMIT 0",
]


@pytest.mark.parametrize("sql", OUTER)
def test_outer_sql_is_refused_before_duckdb_sees_it(
    sql: str, con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Sandbox, "describe", lambda _, text: (seen.append(text), ([("s", "VARCHAR")], ""))[1])
    spent = con.budget
    for ask in (
        lambda: con.plan(sql, epsilon=0.1),
        lambda: con.run(sql, epsilon=0.1),
        lambda: con.cursor().execute(sql),
    ):
        with pytest.raises(SQLError) as error:
            ask()
        assert error.value.code == "too-large"
    assert not any("1200000000" in text or "40000" in text or "replace" in text for text in seen)
    assert con.budget == spent


def test_questions_over_releases_are_refused_before_they_run(
    con: dpsql.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con.run("CREATE OR REPLACE VIEW all_of_them AS SELECT COUNT(*) AS n FROM visits", epsilon=0.1)
    spent = con.budget
    monkeypatch.setattr(limits, "MOST_BYTES", 1_000)
    for sql in (
        "SELECT repeat('a', 2000) FROM all_of_them",
        "SELECT repeat(?, 2000) FROM all_of_them",
        "SELECT n FROM all_of_them WHERE getenv('HOME') = ''",
        "FROM duckdb_databases",
        "FROM pragma_database_list",
        "FROM pg_catalog.pg_settings",
        "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT x FROM r",
        "FROM query('FROM all_of_them')",
    ):
        with pytest.raises(SQLError):
            con.sql(sql, ["a"] if "?" in sql else None)
    assert con.sql("SELECT repeat('a', 900) AS a, n FROM all_of_them").fetchall()[0][0] == "a" * 900
    assert con.budget == spent
