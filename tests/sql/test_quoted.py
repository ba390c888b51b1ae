"""Messages quote what the user wrote, under carets, and never what it is read as."""

from __future__ import annotations

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

from dpsql.errors import SQLError

POLICY = policy_of("""
[tables.v]
unit = "pid"
max_rows_per_unit = 4
references = { pid = "p.id" }
[tables.v.columns]
pid = {}
age = { lower = 0, upper = 99 }
w = { lower = 0, upper = 10 }
day = { lower = 2024-01-01, upper = 2024-12-31 }
ts = { lower = 2024-01-01T00:00:00, upper = 2024-12-31T00:00:00 }
tz = {}
state = { values = ["a", "b"] }
note = {}
[tables.p]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.p.columns]
id = {}
sex = { values = ["f", "m"], nulls = false }
[tables.r]
public = true
key = ["state"]
[tables.r.columns]
region = { values = ["e", "w"] }
people = {}
[views.old]
sql = "SELECT *, w * 2 AS twice, month(note) AS m FROM v WHERE age > 60"
[views.odd]
sql = "SELECT pid, concat_ws('-', state, note) AS tag FROM v"
""")


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    con = duckdb.connect()
    con.execute(
        """CREATE TABLE v AS SELECT i // 4 AS pid, i % 90 AS age, i % 9 + 0.5::DOUBLE AS w,
        DATE '2024-01-01' + (i % 99)::INT AS day, TIMESTAMP '2024-01-01' + INTERVAL (i) HOUR AS ts,
        ts::TIMESTAMPTZ AS tz, ['a', 'b'][i % 2 + 1] AS state, 'n' || i AS note FROM range(40) r(i);
        CREATE TABLE p AS SELECT i AS id, ['f', 'm'][i % 2 + 1] AS sex FROM range(10) r(i);
        CREATE TABLE r AS SELECT 'a' AS state, 'e' AS region, 3 AS people"""
    )
    return Pipeline.of(POLICY, con)


BY_UNIT = "FROM (SELECT pid, AVG(age) AS a, COUNT(*) AS n FROM v GROUP BY pid)"


@pytest.mark.parametrize(
    ("sql", "said", "part"),
    [
        # The words of the text, not of the parser.
        ("SELECT AVG(1) FROM (SELECT pid, list(age) FROM v GROUP BY pid)", "list(age) over the rows", "list(age)"),
        (
            "SELECT COUNT(*) FROM v WHERE string_agg(note, ',') = 'x'",
            "an aggregate inside an expression",
            "string_agg(note, ',')",
        ),
        ("SELECT COUNT(*) FROM v WHERE note::INT8 + note = 3", "note::INT8 + note needs numbers", "note::INT8 + note"),
        ("SELECT COUNT(*) FROM v WHERE day < current_date", "gives another result", "day < current_date"),
        (
            "SELECT COUNT(*) FROM v WHERE extract(year FROM note) > 3",
            "extract(year FROM note) needs a DATE",
            "extract(year FROM note)",
        ),
        (
            "SELECT COUNT(*) FROM v WHERE CASE WHEN age > 3 THEN age ELSE note END = 3",
            "CASE WHEN age > 3 THEN age ELSE note END mixes",
            "CASE WHEN age > 3 THEN age ELSE note END",
        ),
        ("SELECT COUNT(*) FROM v WHERE concat_ws('-',note) > 'a'", "concat_ws('-',note) is", "concat_ws('-',note)"),
        ("SELECT mean(note) FROM v", "mean needs a number; note holds VARCHAR", "note"),
        ("SELECT var_samp(v.note) FROM v", "var_samp needs a number; v.note holds", "v.note"),
        ("SELECT COUNT(*) FROM v WHERE age + 1", "age + 1 is a number and no condition", "age + 1"),
        ("SELECT COUNT(*) FROM v WHERE upper(age) = 'A'", "upper(age) takes text, not a number", "upper(age)"),
        ("SELECT list(n) FROM (SELECT COUNT(*) AS n FROM v)", "column list(n) is a DOUBLE[]", ""),
        ("SELECT CORR(DISTINCT age, w) FROM v", "CORR lacks an argument", ")"),
        # Aggregates by the unit, whatever they are worked out of.
        (f"SELECT COUNT(*) {BY_UNIT} WHERE a > 'x'", "a: the column holds DOUBLE", "a > 'x'"),
        (f"SELECT COUNT(*) {BY_UNIT} WHERE a AND TRUE", "a is a DOUBLE and no condition", "a"),
        (f"SELECT COUNT(*) {BY_UNIT} WHERE month(a) = 3", "month(a) needs a DATE or TIMESTAMP", "month(a)"),
        (f"SELECT MAX(a || 'x') {BY_UNIT}", "a || 'x': the text of such a value", "a || 'x'"),
        (f"SELECT n || 'x', a {BY_UNIT} GROUP BY n", "a is a raw value", "a"),
        (
            "SELECT AVG(a) FROM (SELECT pid, AVG(note) AS a FROM v GROUP BY pid)",
            "AVG of a unit needs numbers; note is text",
            "note",
        ),
        (
            "SELECT AVG(a) FROM (SELECT pid, stddev(w) AS a FROM v GROUP BY pid)",
            "stddev(w) of a unit adds up whole numbers",
            "w",
        ),
        (
            "SELECT COUNT(*) FROM p WHERE (SELECT MIN(x.note) FROM v x WHERE x.pid = p.id) > 3",
            "(SELECT MIN(x.note) FROM v x WHERE x.pid = p.id): the column",
            "(SELECT MIN(x.note) FROM v x WHERE x.pid = p.id) > 3",
        ),
        # Derived tables, aliases and joins by the names that they have in the text.
        (
            "SELECT COUNT(*) FROM (SELECT note || 'x' AS a, a + 1 AS b FROM v) WHERE b > 3",
            "a + 1 needs numbers",
            "a + 1",
        ),
        ("SELECT n.x, COUNT(*) FROM (SELECT w * 2 AS x FROM v) n GROUP BY n.x", "GROUP BY w * 2 has no", "w * 2"),
        ("SELECT COUNT(*) FROM v JOIN (SELECT pid FROM v) u ON v.pid = u.pid", "u joins v with itself", "v"),
        ("SELECT p.id, COUNT(*) FROM v JOIN p ON v.pid = p.id GROUP BY p.id", "GROUP BY p.id looks at single", "p.id"),
        ("SELECT SUM(r.people) FROM v JOIN r USING (state)", "SUM(r.people) needs bounds", "r.people"),
        ("SELECT COUNT(v) FROM v", "v is a whole row", "v"),
        # What a view of the policy computes has no place in the text.
        ("SELECT twice, COUNT(*) FROM old GROUP BY twice", "GROUP BY twice has no", "twice"),
        ("SELECT COUNT(*) FROM old o WHERE o.m = 3", "o.m needs a DATE", "o.m"),
        ("SELECT COUNT(*) FROM odd", "view odd of the policy: concat_ws('-', state, note) in a derived", "odd"),
        # Advice that fits the column, and words for what was written.
        ("SELECT COUNT(*) FROM v GROUP BY ts", "group by a part of it, such as date_trunc('month', ts)", "ts"),
        ("SELECT COUNT(*) FROM v GROUP BY tz", "add lower and upper to tables.v.columns.tz", "tz"),
        ("SELECT COUNT(*) FROM v GROUP BY w", "or group by WIDTH_BUCKET(w, 0, 10, 10)", "w"),
        ("SELECT COUNT(*) FROM v GROUP BY note", "declared: add values to tables.v.columns.note", "note"),
        ("SELECT COUNT(*) FROM v TABLESAMPLE 10%", "TABLESAMPLE in FROM", "v TABLESAMPLE 10"),
        ("SELECT COUNT(*) FROM v USING SAMPLE 10%", "USING SAMPLE is random", "COUNT(*) FROM v USING SAMPLE 10"),
        (
            "SELECT COUNT(*) FROM v WHERE state IN (SELECT a.state FROM r a JOIN r b ON a.state = b.state)",
            "IN and EXISTS over several public tables",
            "a.state FROM r a JOIN r b ON a.state = b.state",
        ),
        ("SELECT MEDIAN(DISTINCT age) FROM v", "MEDIAN(DISTINCT ...) depends on which", "MEDIAN(DISTINCT age)"),
        ("SELECT regr_slope(DISTINCT age, w) FROM v", "regr_slope(DISTINCT ...) is not", "regr_slope(DISTINCT age, w)"),
    ],
)
def test_the_text_is_quoted_and_underlined(pipeline: Pipeline, sql: str, said: str, part: str) -> None:
    with pytest.raises(SQLError) as refusal:
        pipeline.plan(sql)
    assert said in str(refusal.value)
    text, carets = (refusal.value.pointed(sql) or "\n").split("\n")
    start = carets.find("^")
    assert text[start : start + carets.count("^")] == part


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(n ORDER BY state)[1] FROM (SELECT state, COUNT(*) AS n FROM v GROUP BY state)",
        "SELECT a.n, string_agg(a.state, ',') FROM (SELECT state, COUNT(*) AS n FROM v GROUP BY state) a GROUP BY a.n",
        "SELECT *, n::INT FROM (SELECT COUNT(*) AS n FROM (SELECT * FROM v WHERE age::INT > 3))",
        "SELECT count(*)::INT, 1_000 + count(*) FROM (SELECT age AS x FROM v)",
    ],
)
def test_columns_have_duckdbs_names(pipeline: Pipeline, sql: str) -> None:
    names, _ = rows_of(pipeline.results(sql)[-1])
    assert names == [column[0] for column in pipeline.connection.execute(sql).description]
