"""Refusals that say what to write instead: what they say can be planned, and the refused place is underlined."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from helpers import settled, unwrapped

import dpsql
from dpsql.errors import SQLError
from dpsql.planning.text import plan_text
from dpsql.policy import Policy

POLICY = """
dataset = "suggestions-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.visits]
unit = "row"
[tables.visits.columns]
age = { lower = 0, upper = 9 }
cost = { lower = 0.0, upper = 100.0, step = 0.5 }
state = { values = ["NY", "CA"] }
name = {}
day = { lower = 2020-01-01, upper = 2020-01-05 }
[tables.zones]
public = true
key = ["zone"]
"""

COUNT = "SELECT COUNT(*) FROM visits"
BY_STATE = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"

# The refused statement, what its message says, and what can be written instead.
SUGGESTED = [
    ("SELECT * FROM visits", "select COUNT(*), SUM(column) or another", "SELECT COUNT(*), SUM(cost) FROM visits"),
    ("SELECT age, COUNT(*) FROM visits", "add it to GROUP BY", "SELECT age, COUNT(*) FROM visits GROUP BY age"),
    ("SELECT state FROM visits", "aggregate it", "SELECT COUNT(state) FROM visits"),
    ("SELECT state FROM visits GROUP BY state", "select COUNT(*), COUNT_IF(...) or SUM", BY_STATE),
    (
        "SELECT COUNT(DISTINCT age, state) FROM visits",
        "write COUNT(DISTINCT (age, state))",
        "SELECT COUNT(DISTINCT (age, state)) FROM visits",
    ),
    ("SELECT SUM(DISTINCT cost) FROM visits", "leave DISTINCT out", "SELECT SUM(cost) FROM visits"),
    (f"{COUNT} WHERE name ~ 'a'", "write regexp_matches", f"{COUNT} WHERE regexp_matches(name, 'a')"),
    (f"{COUNT} WHERE name GLOB 'a*'", "write LIKE with a constant pattern", f"{COUNT} WHERE name LIKE 'a%'"),
    (f"{COUNT} WHERE age <=> 3", "write IS NOT DISTINCT FROM", f"{COUNT} WHERE age IS NOT DISTINCT FROM 3"),
    ("SELECT DISTINCT state FROM visits", "GROUP BY the column's declared groups", BY_STATE),
    (
        "SELECT COUNT(*) OVER () FROM visits",
        "OVER after GROUP BY",
        "SELECT state, SUM(COUNT(*)) OVER () FROM visits GROUP BY state",
    ),
    (
        "SELECT DISTINCT ON (state) state, COUNT(*) AS n FROM visits GROUP BY state",
        "use QUALIFY row_number() OVER (...) = 1",
        f"{BY_STATE} QUALIFY row_number() OVER (PARTITION BY state) = 1",
    ),
    (
        f"{COUNT} WHERE age IN (1e3, 3000000000000000000000)",
        "write 1000 instead of 1e3",
        f"{COUNT} WHERE age IN (1000, 3) OR age = 3",
    ),
    (
        f"{COUNT} WHERE age BETWEEN SYMMETRIC 5 AND 1",
        "write the lower bound first",
        f"{COUNT} WHERE age BETWEEN 1 AND 5",
    ),
    (f"{COUNT} WHERE age = '5'", "compare it with a number", f"{COUNT} WHERE age = 5"),
    (f"{COUNT} WHERE name = 5", "compare it with a string", f"{COUNT} WHERE name = '5'"),
    (f"{COUNT} WHERE day > 5", "a date such as DATE '2020-01-31'", f"{COUNT} WHERE day > DATE '2020-01-03'"),
    (f"{COUNT} WHERE 1 = 'a'", "write TRUE or FALSE", f"{COUNT} WHERE TRUE"),
    (f"{COUNT} WHERE age", "a condition compares it with a constant", f"{COUNT} WHERE age <> 0"),
    (f"{COUNT} USING SAMPLE 10", "leave it out", COUNT),
    (f"{COUNT} TABLESAMPLE 10%", "write a plain table", COUNT),
    ("SELECT COUNT(*) FROM visit", "did you mean visits?", COUNT),
    (f"{COUNT} WHERE agee > 3", "did you mean age?", f"{COUNT} WHERE age > 3"),
    (
        "CREATE TABLE t AS SELECT COUNT(*) FROM visits",
        "write CREATE VIEW name AS SELECT ...",
        "CREATE VIEW t AS SELECT COUNT(*) FROM visits",
    ),
    ("SELECT MAD(cost) FROM visits", "use one of COUNT, COUNT(DISTINCT)", "SELECT AVG(age), MAX(age) FROM visits"),
    ("SELECT MODE(state), COUNT(*) FROM visits", "in a statement of its own", "SELECT MODE(state) FROM visits"),
    (
        f"{COUNT} FULL JOIN zones ON state = zone",
        "write JOIN, or LEFT JOIN",
        f"{COUNT} LEFT JOIN zones ON state = zone",
    ),
    (f"{COUNT} NATURAL JOIN zones", "or ON a.k = b.k", f"{COUNT} AS a JOIN zones AS b ON a.state = b.zone"),
    (
        f"{COUNT} JOIN zones ON state > zone",
        "write ON visits.column = zones.zone",
        f"{COUNT} JOIN zones ON visits.state = zones.zone",
    ),
    (
        "SELECT state, COUNT(*) AS n FROM visits GROUP BY state, state WITH TOTALS",
        "write GROUP BY ROLLUP (...)",
        "SELECT state, COUNT(*) AS n FROM visits GROUP BY ROLLUP (state)",
    ),
    (
        "SELECT state, COUNT(*) FROM visits GROUP BY dp_marginals(3, state, age)",
        "dp_marginals(2, a, b, c)",
        "SELECT state, COUNT(*) FROM visits GROUP BY dp_marginals(2, state, age)",
    ),
    (
        "SELECT /*+ WEIGHT(x) */ COUNT(*) FROM visits",
        "write /*+ WEIGHT(4) */",
        "SELECT /*+ WEIGHT(4) */ COUNT(*) FROM visits",
    ),
    (
        "SELECT COUNT(*) /*+ WEIGHT(4) */ FROM visits",
        "write it right after SELECT",
        "SELECT /*+ WEIGHT(4) */ COUNT(*) FROM visits",
    ),
    (
        "SELECT state, rank() OVER v FROM visits GROUP BY state WINDOW w AS (ORDER BY COUNT(*))",
        "write the window into OVER (...)",
        "SELECT state, rank() OVER (ORDER BY COUNT(*)) FROM visits GROUP BY state",
    ),
    (
        "SELECT n FROM (SELECT COUNT(*) AS n FROM visits) WHERE COLUMNS('n') > 1",
        "list the columns",
        "SELECT n FROM (SELECT COUNT(*) AS n FROM visits) WHERE n > 1",
    ),
    (
        "SELECT QUANTILE_CONT(age, 2) FROM visits",
        "a column and one constant between 0 and 1",
        "SELECT QUANTILE_CONT(age, 0.9) FROM visits",
    ),
    ("SELECT COUNT(*) FROM visits AS v(a, b)", "use the columns' own names", "SELECT COUNT(v.age) FROM visits AS v"),
    ("SELECT 1", "write FROM a table of the policy", COUNT),
    (
        "SELECT sqrt(cost), COUNT(*) FROM visits GROUP BY 1",
        "group by WIDTH_BUCKET(cost, 0, 100, 10), or by CASE",
        "SELECT WIDTH_BUCKET(cost, 0, 100, 10), COUNT(*) FROM visits GROUP BY 1",
    ),
    (
        "SELECT COUNT(*) FROM (SELECT UNNEST([1, 2]) FROM visits)",
        "leave it out",
        "SELECT COUNT(*) FROM (SELECT age FROM visits)",
    ),
    ("SELECT age FROM visits UNION SELECT age FROM visits", "add the counts", f"{COUNT} UNION ALL {COUNT}"),
    (
        f"{COUNT} WHERE age + 'x' > 3",
        "write TRY_CAST(... AS DOUBLE)",
        f"{COUNT} WHERE age + TRY_CAST('1' AS DOUBLE) > 3",
    ),
]

# The refused statement and the part of it that is underlined.
UNDERLINED = [
    ("SELECT age, COUNT(*) FROM visits", "age"),
    (f"{COUNT} WHERE name ~ 'a'", "name ~ 'a'"),
    (f"{COUNT} WHERE regexp_matches(name, 'a)(')", "regexp_matches(name, 'a)(')"),
    ("SELECT MAD(cost) AS m FROM visits", "MAD(cost)"),
    (f"{COUNT} WHERE age <=> 3", "<=>"),
    (f"{COUNT} WHERE day < current_date", "day < current_date"),  # the parser keeps no place of current_date itself
    (f"{COUNT} GROUP BY dp_ranges(age + 1)", "dp_ranges(age + 1)"),
    ("SELECT COUNT(*)\nFROM visits\nWHERE agee > 3 AND cost > 5", "agee"),
    ("SELECT COUNT(*) FROM visits; SELECT SUM(name) FROM visits", "name"),
    ("SELECT '数値', age FROM visits", "age"),
]


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    database = duckdb.connect()
    database.execute(
        "CREATE TABLE visits (age INTEGER, cost DOUBLE, state VARCHAR, name VARCHAR, day DATE);"
        "CREATE TABLE zones (zone VARCHAR, region VARCHAR)"
    )
    ledger = tmp_path_factory.mktemp("suggestions") / "a.ledger"
    with dpsql.connect(database, policy=Policy.parse(POLICY), ledger=ledger) as connection:
        yield settled(connection)


def refusal(con: dpsql.Connection, sql: str) -> SQLError:
    with pytest.raises(SQLError) as caught:
        con.plan(sql, epsilon=1.0, delta=1e-9)
    return caught.value


@pytest.mark.parametrize(("refused", "said", "instead"), SUGGESTED, ids=[case[0] for case in SUGGESTED])
@pytest.mark.few(every=3)
def test_what_is_suggested_is_planned(con: dpsql.Connection, refused: str, said: str, instead: str) -> None:
    assert said in str(refusal(con, refused))
    assert con.plan(instead, epsilon=1.0, delta=1e-9).errors.size


@pytest.mark.parametrize(("sql", "part"), UNDERLINED, ids=[case[1] for case in UNDERLINED])
def test_the_refused_part_is_underlined(con: dpsql.Connection, sql: str, part: str) -> None:
    error = refusal(con, sql)
    assert "\n" not in str(error)
    (note,) = error.__notes__
    assert note == error.pointed(sql)
    text, carets = note.split("\n")
    assert text.strip() in sql.split("\n")
    # Two columns for each of the wide characters that stand before.
    wide = sum(ord(character) > 0x2E80 for character in text)
    start = carets.index("^") - wide
    assert text[start : start + carets.count("^")] == part


def test_a_long_line_is_cut_around_the_place(con: dpsql.Connection) -> None:
    sql = f"{COUNT} WHERE {' OR '.join(f'age = {n}' for n in range(60))} OR agee = 1 OR {'age = 2 OR ' * 30}age = 3"
    text, carets = refusal(con, sql).pointed(sql).split("\n")
    assert text.startswith("    ...")
    assert text.endswith("...")
    assert len(text) < 120
    assert text[carets.index("^") : len(carets)] == "agee"


def test_without_a_place_nothing_is_underlined() -> None:
    assert SQLError("no such thing").pointed("SELECT 1") == ""
    assert SQLError("no such thing", 7, 1).pointed("SELECT 1") == ""
    assert SQLError("no such thing", 1, 99).pointed("SELECT 1") == ""
    assert SQLError("no such thing", 1, 8).pointed("SELECT 1") == "    SELECT 1\n           ^"


def test_a_part_over_several_lines_is_underlined_to_the_end_of_its_first() -> None:
    error = SQLError("no such thing", 1, 8, (3, 4))
    assert error.pointed("SELECT f(  \n a,\n b)") == "    SELECT f(  \n           ^^"


@pytest.mark.parametrize(
    ("condition", "notes"),
    [
        ("state = 'NYC'", ["'NYC' is no declared value of state (line 1, column 35): did you mean NY?"]),
        ("state IN ('NY', 'XX')", ["'XX' is no declared value of state (line 1, column 35): choose from CA, NY"]),
        ("state <> 'ny' OR state IS DISTINCT FROM 'CA'", ["'ny' is no declared value of state (line 1, column 35): "
                                                          "did you mean NY?"]),
        ("state IN ('NY', 'CA') AND name = 'none' AND age = 99 AND state LIKE 'N%'", []),
    ],
)  # fmt: skip
def test_a_value_that_is_not_declared_is_noted(con: dpsql.Connection, condition: str, notes: list[str]) -> None:
    plan = con.plan(f"{COUNT} WHERE {condition}; {COUNT}", epsilon=1.0, delta=1e-9)
    # One more says that the batch counts no row of an undeclared state.
    notes = [*notes, *(note for note in plan.notes if note.startswith("rows of"))]
    assert len(plan.notes) == len(notes)
    assert set(plan.notes) == set(notes)
    assert [text for label, text in plan_text(plan).facts if label == "Note"] == list(plan.notes)
    assert all(note in unwrapped(plan.explain()) for note in notes)
