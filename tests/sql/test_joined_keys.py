"""GROUP BY of several functions of one column: the groups that a row can be in, and all of them."""

from __future__ import annotations

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

from dpsql.sql.aggregate import joined_keys

POLICY = policy_of("""
[tables.t]
unit = "person"
max_rows_per_unit = 3000
at_most = [{ rows = 40, per = "month(day)" }]
[tables.t.columns]
person = { nulls = false }
day = { lower = 2022-01-01, upper = 2023-12-31 }
seen = {}
age = { lower = 0, upper = 39, nulls = false }
sex = { values = ["f", "m", "x"], other = "(other)" }
size = { values = [1, 2, 3], other = true }
""")


@pytest.fixture(scope="module")
def full() -> Pipeline:
    """A table in which every group that a row can be in has one."""
    con = duckdb.connect()
    con.execute(
        """CREATE TABLE t AS SELECT i % 97 AS person,
        CASE WHEN i % 11 > 0 THEN DATE '2022-01-01' + CAST(i * 7 % 730 AS INTEGER) END AS day,
        CASE WHEN i % 13 > 0 THEN TIMESTAMP '1999-12-31' + INTERVAL (i * 7) HOUR END AS seen, i % 40 AS age,
        (['f', 'm', 'x', 'F', NULL])[1 + i % 5] AS sex, ([1, 2, 3, 4, NULL])[1 + i // 5 % 5] AS size
        FROM range(12000) r(i)"""
    )
    return Pipeline.of(POLICY, con)


# Keys, WHERE, and how many groups there are beside those in which DuckDB finds a row.
LISTED = [
    ("year(day), quarter(day)", "TRUE", 0),
    ("year(day), month(day), quarter(day), dayname(day)", "TRUE", 0),
    ("day, year(day), monthname(day)", "TRUE", 0),
    ("year(day), sex, quarter(day)", "TRUE", 0),
    ("year(day), quarter(day)", "day BETWEEN '2022-06-01' AND '2023-03-31'", 0),
    ("year(day), day >= DATE '2023-06-01'", "TRUE", 0),
    ("age // 10, age // 5, age % 3", "TRUE", 0),
    ("age < 10, age > 20, CASE WHEN age < 30 THEN 'young' ELSE 'old' END", "TRUE", 0),
    ("month(seen), quarter(seen)", "TRUE", 0),
    ("hour(seen), hour(seen) < 12", "TRUE", 0),
    ("sex, upper(sex), sex = 'f'", "TRUE", 4),  # OTHER may be M, X, OTHER or too long a text in capitals
    ("size, age // 20", "TRUE", 0),  # OTHER has a companion here, and all combinations stay
]


@pytest.mark.parametrize(("keys", "where", "more"), LISTED)
@pytest.mark.few(every=3)
def test_groups_are_those_of_rows(full: Pipeline, keys: str, where: str, more: int) -> None:
    sql = f"SELECT {keys}, COUNT(*) AS n FROM t WHERE {where} GROUP BY ALL"
    names, found = rows_of(full.results(sql)[0])
    width = keys.count(",") + 1
    theirs = full.connection.execute(sql).fetchall()
    if "sex" in keys or "size" in keys:  # whose OTHER has several values
        assert sum(row[-1] for row in found) == sum(row[-1] for row in theirs)
    else:
        assert {row for row in found if row[-1]} == {(*row[:-1], float(row[-1])) for row in theirs}
    assert len(found) == len({row[:-1] for row in found}) == len([row for row in found if row[-1]]) + more
    assert len(names) == width + 1 + ("size_other" in names)


def test_all_ways_to_group_leave_them_out(full: Pipeline) -> None:
    keys = "year(day) AS y, quarter(day) AS q"
    rolled, counted, averaged, parts = full.results(
        f"""SELECT {keys}, GROUPING(y, q) AS g, COUNT(*) AS n FROM t GROUP BY ROLLUP (y, q);
        SELECT {keys}, COUNT(DISTINCT person) AS n, COUNT(*) AS m FROM t GROUP BY y, q;
        SELECT q, y, AVG(age) AS a, MEDIAN(age) AS m FROM (SELECT {keys}, age FROM t) GROUP BY y, q ORDER BY q, y;
        SELECT {keys}, COUNT(*) FILTER (WHERE age < 0) AS n FROM t GROUP BY y, q HAVING n < 1"""
    )
    assert [len(rows_of(one)[1]) for one in (rolled, counted, averaged, parts)] == [13, 9, 9, 9]
    theirs = full.connection.execute("SELECT year(day), quarter(day), COUNT(DISTINCT person) FROM t GROUP BY 1, 2")
    assert {row[:3] for row in rows_of(counted)[1]} == set(theirs.fetchall())


def test_a_fault_is_seen(full: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: no key is joined with another."""
    monkeypatch.setattr(joined_keys, "_parts", lambda *_: None)
    (result,) = full.results("SELECT year(day), quarter(day), COUNT(*) FROM t GROUP BY ALL")
    assert len(rows_of(result)[1]) == 15
