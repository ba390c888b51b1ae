"""Codes of refusals: each family of refusals has its own, and docs/sql.md lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from helpers import settled

import dpsql
from dpsql.errors import SQLError
from dpsql.policy import Policy

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "sql.md").read_text()
LISTED = [
    code for line in re.findall(r"^- (`.*?`):", DOCUMENT, re.MULTILINE) for code in re.findall(r"`([a-z-]+)`", line)
]

SETUP = re.search(r"```sql\n(.*?)```", DOCUMENT, re.DOTALL)
POLICY = re.search(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)

COUNT = "SELECT COUNT(*) FROM visits"
# Ways out of SELECT, SQL that looks at other rows, joins that multiply rows, groups that are not public.
ESCAPES = {
    "SELECT COUNT(*) FROM visits; COPY visits TO 'a.csv'": "not-select",
    "ATTACH 'a.duckdb'": "not-select",
    "CREATE TABLE t AS SELECT COUNT(*) FROM visits": "not-select",
    "SELECT COUNT(*) FROM query('FROM visits')": "not-a-table",
    "SELECT COUNT(*) FROM read_csv('/etc/passwd')": "not-a-table",
    "SELECT COUNT(*) FROM '/etc/passwd'": "unknown-table",
    "SELECT COUNT(*) FROM held_frame": "unknown-table",
    "SELECT COUNT(*) FROM regions": "public-table",
}
OTHER_ROWS = {
    f"{COUNT} WHERE cost > (SELECT AVG(cost) FROM visits)": "subquery",
    f"{COUNT} v WHERE NOT EXISTS (SELECT 1 FROM patients p WHERE p.age > v.age)": "subquery",
    f"{COUNT} WHERE state IN (SELECT state FROM patients)": "subquery",
    "SELECT COUNT(*) FROM (SELECT patient_id, age FROM visits GROUP BY patient_id, ROLLUP (age))": "per-unit",
    f"{COUNT} WHERE age > ALL (SELECT age FROM visits)": "subquery",
    f"{COUNT} WHERE age > AVG(age)": "aggregate-of-rows",
    "SELECT rank() OVER (ORDER BY age) FROM visits": "row-window",
    "SELECT COUNT(*) FROM (SELECT row_number() OVER () AS n FROM visits) WHERE n < 5": "row-window",
    f"{COUNT} USING SAMPLE 10%": "sample",
    "SELECT COUNT(*) FROM (SELECT * FROM visits TABLESAMPLE 10%)": "sample",
    f"{COUNT} WHERE random() < 0.5": "changing-function",
    f"{COUNT} WHERE seen < now()": "changing-function",
    "SELECT COUNT(*), random() AS r FROM visits": "changing-function",
    f"{COUNT} WHERE UNNEST([TRUE, FALSE])": "several-rows",
    "SELECT COUNT(*) FROM (SELECT UNNEST(range(qty)) FROM visits)": "several-rows",
    "SELECT COUNT(*) FROM (SELECT generate_subscripts([1, 2], 1) FROM visits)": "several-rows",
    "SELECT COUNT(*) FROM (SELECT age FROM visits ORDER BY UNNEST([1, 2]))": "several-rows",
    "SELECT DISTINCT age FROM visits": "chosen-rows",
    "SELECT COUNT(*) FROM (SELECT age FROM visits LIMIT 5)": "chosen-rows",
    "SELECT note FROM visits": "raw-value",
    "SELECT * FROM visits": "raw-value",
    "SELECT COUNT(*) FROM visits HAVING note = 'flu'": "raw-value",
    "WITH RECURSIVE t AS (SELECT 1) SELECT COUNT(*) FROM visits": "recursive",
    "SELECT COUNT(*) FROM (SELECT age FROM visits UNION ALL SELECT age FROM visits)": "union-of-rows",
    "SELECT COUNT(*) FROM visits v JOIN (SELECT COUNT(*) AS n FROM visits) w ON v.age = w.n": "rows-with-results",
}
JOINS = {
    f"{COUNT} a JOIN visits b ON a.patient_id = b.patient_id": "self-join",
    f"{COUNT} CROSS JOIN regions": "join-without-key",
    f"{COUNT} v JOIN regions r ON v.age < r.people": "join-without-key",
    f"{COUNT} v JOIN patients p ON v.state = p.state": "join-multiplies",
    f"{COUNT} v JOIN patients p ON v.id = p.id": "join-undeclared",
    "SELECT COUNT(*) FROM kinds k JOIN patients p ON k.i64 = p.id": "join-of-units",
    f"{COUNT} v JOIN patients p ON v.note = p.id": "join-types",
    f"{COUNT} v SEMI JOIN patients p ON v.patient_id = p.id": "join-kind",
    f"{COUNT} v FULL JOIN regions r USING (state)": "join-kind",
    f"{COUNT} v LEFT JOIN patients p ON v.patient_id = p.id AND p.sex = 'f'": "outer-join",
    "SELECT region, COUNT(*) FROM regions LEFT JOIN visits USING (state) GROUP BY region": "outer-count",
}
GROUPS = {
    "SELECT note, COUNT(*) FROM visits GROUP BY note": "unknown-groups",
    "SELECT upper(note), COUNT(*) FROM visits GROUP BY 1": "unknown-groups",
    "SELECT cost, COUNT(*) FROM visits GROUP BY cost": "too-many-groups",
    "SELECT SUM(DISTINCT age) FROM visits": "count-distinct",
    "SELECT LIST(state) FROM visits": "aggregate",
}
FAILING = {
    f"{COUNT} WHERE note = 7": "mixed-types",
    f"{COUNT} WHERE sin(cost) > 0": "function",
    "SELECT COUNT(*) FROM kinds WHERE coalesce(i128, 0.5) > 1": "overflow",
    "SELECT SUM(length(note)) FROM visits": "no-bounds",
}
FAMILIES = (ESCAPES, OTHER_ROWS, JOINS, GROUPS, FAILING)
REST = {
    "SELECT COUNT(* FROM visits": "syntax",
    f"{COUNT} WHERE {'(' * 30}smoker{')' * 30}": "too-large",
    f"{COUNT} WHERE agee > 3": "unknown-column",
    "SELECT /*+ FAST */ COUNT(*) FROM visits": "hint",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 1, k = 2) COUNT(*) FROM visits": "options",
    "SELECT STRLEN2(COUNT(*)) AS n FROM visits": "after-the-noise",
    f"{COUNT} WHERE age BETWEEN SYMMETRIC 1 AND 2": "not-answered",
}
EVERY = {sql: code for family in (*FAMILIES, REST) for sql, code in family.items()}


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    assert SETUP is not None
    assert POLICY is not None
    database = duckdb.connect()
    database.execute(SETUP[1])
    ledger = tmp_path_factory.mktemp("codes") / "a.ledger"
    return settled(dpsql.connect(database, policy=Policy.parse(POLICY[1]), ledger=ledger))


@pytest.mark.parametrize(("sql", "code"), EVERY.items(), ids=lambda value: value[:70])
def test_a_refusal_has_its_code(con: dpsql.Connection, sql: str, code: str) -> None:
    held_frame = {"age": [1]}
    with pytest.raises(SQLError) as caught:
        con.plan(sql, epsilon=1, delta=1e-9)
    assert (caught.value.code, held_frame) == (code, {"age": [1]}), str(caught.value)


def test_families_share_no_code() -> None:
    found = [set(family.values()) for family in FAMILIES]
    assert sum(map(len, found)) == len(set().union(*found))
    assert "not-answered" not in set().union(*found)


def test_codes_are_those_of_the_document() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "dpsql").rglob("*.py"))
    found = re.findall(r'\bcode(?:: str)? ?= ?"([a-z-]+)"(?: if .* else "([a-z-]+)")?', written)
    assert {code for pair in found for code in pair if code} == set(LISTED)
    assert len(LISTED) == len(set(LISTED))
