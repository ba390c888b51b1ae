"""FROM with joins: what is one row of which table, what is refused and why, and DuckDB's own joins as the judge."""

from __future__ import annotations

from fractions import Fraction

import duckdb
import pytest
import sqlglot
from helpers import engine_of
from unit_rows import Ask, exact, policy_of, rows_of, tables_of

from dpsql.errors import SQLError
from dpsql.sql.resolve.batch_tables import distinct_table, united
from dpsql.workloads.expr.conditions import TRUE

POLICY = policy_of("""
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.patients.columns]
id = {}
sex = { values = ["f", "m"], nulls = false }
age = { lower = 0, upper = 120 }
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 500
key = ["id"]
references = { patient_id = "patients.id" }
[tables.visits.columns]
id = {}
kind = { values = ["a", "b"], other = true }
cost = { lower = -2, upper = 4 }
age = {}
[tables.labs]
unit = "visits.patient_id"
max_rows_per_unit = 500
references = { visit_id = "visits.id" }
[tables.labs.columns]
v = { lower = -3, upper = 3 }
[tables.notes]
unit = "patient_id"
max_rows_per_unit = 500
references = { visit_id = "visits.id" }
[tables.notes.columns]
w = { lower = 0, upper = 2 }
[tables.swabs]
unit = "patient_id"
max_rows_per_unit = 5
key = ["id"]
references = { note = "notes2.id" }
[tables.notes2]
unit = "visits.patient_id"
max_rows_per_unit = 5
key = ["id"]
references = { visit_id = "visits.id" }
[tables.doctors]
unit = "doctor_id"
max_rows_per_unit = 1
key = ["doctor_id"]
[tables.beds]
unit = "row"
key = ["id"]
[tables.beds.columns]
place = {}
[tables.regions]
public = true
key = ["id"]
[tables.regions.columns]
name = { values = ["n", "s"], other = true }
[tables.prices]
public = true
key = ["kind", "region"]
[tables.nokey]
public = true
""")

SETUP = """
CREATE TABLE patients (id INTEGER, sex VARCHAR, age INTEGER, region INTEGER);
INSERT INTO patients SELECT i, CASE WHEN i % 3 = 0 THEN 'f' ELSE 'm' END, i * 7 % 90, i % 4 FROM range(40) r(i);
CREATE TABLE visits (id BIGINT, patient_id BIGINT, region INTEGER, kind VARCHAR, cost INTEGER, age INTEGER);
INSERT INTO visits SELECT i, CASE WHEN i % 11 > 0 THEN i * 13 % 45 END, CASE WHEN i % 7 > 0 THEN i % 5 END,
    CASE i % 4 WHEN 0 THEN 'a' WHEN 1 THEN 'b' WHEN 2 THEN 'zz' END, i % 9 - 3, i % 3 FROM range(200) r(i);
CREATE TABLE labs (visit_id INTEGER, v INTEGER);
INSERT INTO labs SELECT CASE WHEN i % 13 > 0 THEN i * 7 % 220 END, i % 8 - 4 FROM range(300) r(i);
CREATE TABLE notes (patient_id INTEGER, visit_id INTEGER, w INTEGER);
INSERT INTO notes SELECT patient_id, id, id % 4 FROM visits WHERE id % 2 = 0;
CREATE TABLE swabs (id INTEGER, patient_id INTEGER, note INTEGER);
CREATE TABLE notes2 (id INTEGER, visit_id INTEGER);
CREATE TABLE doctors (doctor_id INTEGER, id INTEGER);
CREATE TABLE beds (id INTEGER, region INTEGER, place VARCHAR, patient_id INTEGER);
INSERT INTO beds SELECT i, i % 5, 'p', i FROM range(20) r(i);
CREATE TABLE regions (id INTEGER, name VARCHAR, big BOOLEAN);
INSERT INTO regions VALUES (0, 'n', true), (1, 's', false), (2, 'n', NULL), (3, 'other', true);
CREATE TABLE prices (kind VARCHAR, region INTEGER, price INTEGER);
INSERT INTO prices SELECT k, i, i FROM range(4) r(i), (VALUES ('a'), ('b')) v(k);
CREATE TABLE nokey (id INTEGER);
"""


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    found.execute(SETUP)
    return found


SAME = [
    "visits v JOIN patients p ON v.patient_id = p.id",
    "visits v JOIN patients p ON p.id = v.patient_id WHERE p.age > 30 AND v.age < 2",
    "patients JOIN visits ON patients.id = visits.patient_id WHERE patients.age BETWEEN 10 AND 60",
    "visits v LEFT JOIN patients p ON v.patient_id = p.id WHERE p.sex = 'f' OR p.age IS NULL",
    "visits v LEFT JOIN patients p ON v.patient_id = p.id WHERE p.sex IS NULL",
    "patients p, visits v WHERE p.id = v.patient_id AND p.age > 20",
    "patients p CROSS JOIN visits v WHERE p.id = v.patient_id AND (p.age > 20 OR v.cost > 0)",
    "labs JOIN visits ON visit_id = visits.id JOIN patients p ON patient_id = p.id WHERE p.age > visits.age",
    "labs l LEFT JOIN visits v ON l.visit_id = v.id LEFT JOIN regions r ON v.region = r.id WHERE r.big OR l.v > 1",
    "labs l LEFT JOIN visits v ON l.visit_id = v.id JOIN regions r ON v.region = r.id",
    "notes n JOIN visits v ON n.visit_id = v.id WHERE v.cost > n.w",
    "notes n JOIN visits v ON n.visit_id = v.id JOIN patients p ON v.patient_id = p.id WHERE p.sex = 'f'",
    "visits v JOIN patients p ON v.patient_id = p.id JOIN regions r ON r.id = v.region "
    "JOIN regions q ON q.id = p.region WHERE r.name = 'n' AND (q.name <> 's' OR q.big)",
    "visits v JOIN prices USING (kind, region) WHERE price > 1",
    "visits v JOIN patients p ON v.patient_id = p.id JOIN prices c ON c.kind = v.kind AND c.region = p.region",
    "visits v LEFT JOIN prices c ON c.kind = v.kind AND c.region = v.region WHERE c.price IS NULL",
    "beds JOIN regions ON beds.region = regions.id WHERE place = name OR big",
    "visits v INNER JOIN patients p ON v.patient_id = p.id AND p.age > 30 AND v.cost > 0",
]  # fmt: skip


@pytest.mark.parametrize("source", SAME)
@pytest.mark.few(every=2)
def test_rows_are_those_of_duckdb(con: duckdb.DuckDBPyConnection, source: str) -> None:
    row = con.execute(f"SELECT count(*) FROM {source}").fetchone()
    assert row is not None
    assert row[0] > 0
    assert exact([Ask(source)], POLICY, con) == [[row[0]]]


def test_one_scan_answers_statements_with_different_joins(con: duckdb.DuckDBPyConnection) -> None:
    sources = [source for source in SAME if source.startswith(("visits", "patients"))]
    wanted = [con.execute(f"SELECT count(*) FROM {source}").fetchall()[0][0] for source in sources]
    found = exact([Ask(source) for source in [*sources, "visits"]], POLICY, con)
    assert [int(answer) for (answer,) in found] == [*wanted, 200]


def test_groups_and_sums_over_joined_columns(con: duckdb.DuckDBPyConnection) -> None:
    source = "labs l JOIN visits v ON l.visit_id = v.id JOIN patients p ON v.patient_id = p.id"
    count, total = exact([Ask(source, ("sex",), ("p.age",))], POLICY, con)
    wanted = con.execute(f"SELECT sex, count(*), sum(p.age) FROM {source} GROUP BY 1 ORDER BY 1").fetchall()
    # The policy knows no NULL sex, and an inner join makes none.
    assert [("f", int(count[0]), int(total[0])), ("m", int(count[1]), int(total[1]))] == wanted
    outer = exact([Ask(source.replace("JOIN", "LEFT JOIN"), ("sex",))], POLICY, con)[0]
    assert outer[:2] == count
    assert outer[2] == 300 - sum(count)


def test_distinct_units(con: duckdb.DuckDBPyConnection) -> None:
    sources = [
        "visits", "visits WHERE cost > 0 OR age = 1", "labs JOIN visits v ON visit_id = v.id WHERE v > 0 OR cost > 1",
        "visits v JOIN patients p ON v.patient_id = p.id WHERE p.age > 30",
    ]  # fmt: skip
    found = exact([Ask(source, distinct=True) for source in sources], POLICY, con)
    for source, (answer,) in zip(sources, found, strict=True):
        assert [(int(answer),)] == con.execute(f"SELECT count(DISTINCT patient_id) FROM {source}").fetchall()
    by_kind = exact([Ask("visits", ("kind",), distinct=True)], POLICY, con)[0]
    counts = [
        f"count(DISTINCT patient_id) FILTER (WHERE {condition})"
        for condition in ("kind = 'a'", "kind = 'b'", "kind = 'zz'", "kind IS NULL")
    ]
    wanted = con.execute(f"SELECT {', '.join(counts)} FROM visits").fetchall()
    assert [tuple(map(int, by_kind))] == wanted


def test_names_of_columns(con: duckdb.DuckDBPyConnection) -> None:
    tables = tables_of(POLICY, engine_of(con))

    def found(source: str, name: str) -> str:
        return rows_of(source, POLICY, tables).find(sqlglot.parse_one(name, dialect="duckdb")).name  # type: ignore[arg-type]

    joined = "visits v JOIN patients p ON v.patient_id = p.id"
    assert found(joined, "V.COST") == "cost"
    assert found(joined, "sex") == "patients(patient_id).sex"
    assert found(joined, '"P"."Age"') == "patients(patient_id).age"
    assert found(joined.replace("JOIN", "LEFT JOIN"), "sex") == "patients(patient_id)?.sex"
    assert found("visits JOIN prices USING (kind, region)", "kind") == "kind"
    assert found("visits JOIN patients ON patient_id = patients.id", "visits.age") == "age"
    assert found("labs JOIN visits ON visit_id = id", "kind") == "visits(visit_id).kind"
    for source, name, reason in [
        (joined, "age", "could be v.age or p.age"),
        (joined, "visits.age", "visits is no table of this statement"),
        (joined, "q.age", "q is no table of this statement"),
        (joined, "colour", "no table of this statement has a column colour"),
        (joined, "p.colour", "patients has no column colour"),
        (joined, "p.region", "not declared in the policy"),
        (joined, "region", "could be v.region or p.region"),
        ("visits", "region", "not declared in the policy"),
        ("visits", "cots", "did you mean cost"),
    ]:
        with pytest.raises(SQLError, match=reason):
            found(source, name)


REFUSED = [
    ("visits v JOIN visits w ON v.patient_id = w.patient_id", "self-join"),
    ("visits v JOIN visits w ON v.id = w.id", "self-join"),
    ("visits v, patients p", "nothing joins"),
    ("visits v CROSS JOIN patients p", "nothing joins"),
    ("visits v JOIN patients p ON v.patient_id > p.id", "nothing joins"),
    ("visits v JOIN patients p ON v.patient_id = p.id OR v.cost > 3", "nothing joins"),
    ("visits v JOIN patients p ON v.age = p.age", "could meet several rows of p, whose key is"),
    # A key of the unit would be false.
    ("patients p LEFT JOIN visits v ON p.id = v.patient_id", "all of one patient_id; join a subquery that groups v"),
    ("regions r LEFT JOIN visits v ON v.region = r.id", "write FROM v first"),
    ("visits v RIGHT JOIN patients p ON v.patient_id = p.id", "RIGHT JOIN keeps rows"),
    ("visits v FULL JOIN patients p ON v.patient_id = p.id", "FULL JOIN keeps rows"),
    ("visits v SEMI JOIN patients p ON v.patient_id = p.id", "SEMI JOIN asks"),
    ("visits v ANTI JOIN patients p ON v.patient_id = p.id", "ANTI JOIN asks"),
    ("visits NATURAL JOIN patients", "NATURAL JOIN depends"),
    ("visits v ASOF JOIN patients p ON v.patient_id >= p.id", "ASOF JOIN"),
    ("visits v POSITIONAL JOIN patients p", "POSITIONAL JOIN"),
    ("visits v JOIN nokey n ON v.region = n.id", "declares no key of nokey; if no two rows share id, the custodian"),
    ("visits v JOIN prices c ON c.kind = v.kind", "join c on its whole key"),
    ("visits v LEFT JOIN patients p ON v.patient_id = p.id AND p.age > 3", "belongs into WHERE or FILTER"),
    ("visits v LEFT JOIN patients p ON v.patient_id = p.id AND v.age = p.age", "takes the key of p alone"),
    ("visits v JOIN doctors d ON v.region = d.doctor_id", "protects one doctor_id"),
    ("beds b JOIN patients p ON b.patient_id = p.id", 'is "row"'),
    ("visits v JOIN beds b ON v.region = b.id", "protects one row of beds"),
    ("notes n JOIN patients p ON n.patient_id = p.id", "declares no reference from notes to patients"),
    ("labs l JOIN patients p ON l.v = p.id", "declares no reference from labs to patients"),
    ("swabs s JOIN notes2 n ON s.note = n.id", "found through visits and not stored"),
    ("visits v JOIN regions r ON v.kind = r.id", "keys of two types"),
    ("visits JOIN prices USING (kind, price)", "not in both tables"),
    ("visits v JOIN patients v ON v.patient_id = v.id", "two tables of the statement are named v"),
    ("visits v JOIN (SELECT 1) s ON true", "takes tables of the policy"),
    ("visits v JOIN range(3) r ON v.id = r.range", "no functions or files|takes tables"),
    ("regions", "is public"),
    ("regions r JOIN prices p ON p.region = r.id", "public"),
    ("unknown u JOIN visits v ON u.id = v.id", "the policy has no table unknown"),
    ("visits AS v(a, b)", "column names is not answered"),
    ("visits TABLESAMPLE 10%", "in FROM is not answered|SAMPLE"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "reason"), REFUSED)
@pytest.mark.few(every=2)
def test_refused(con: duckdb.DuckDBPyConnection, source: str, reason: str) -> None:
    tables = tables_of(POLICY, engine_of(con))
    with pytest.raises(SQLError, match=reason):
        rows_of(source, POLICY, tables)


def test_many_joins_are_refused(con: duckdb.DuckDBPyConnection) -> None:
    tables = tables_of(POLICY, engine_of(con))
    source = "visits " + " ".join(f"JOIN regions r{i} ON visits.region = r{i}.id" for i in range(40))
    with pytest.raises(SQLError, match="more than 32 tables"):
        rows_of(source, POLICY, tables)


def test_units_among_the_columns(con: duckdb.DuckDBPyConnection) -> None:
    tables = tables_of(POLICY, engine_of(con))

    def is_unit(source: str, name: str) -> bool:
        return rows_of(source, POLICY, tables).is_unit(sqlglot.parse_one(name, dialect="duckdb"))

    assert is_unit("visits", "patient_id")
    assert not is_unit("visits", "id")
    assert is_unit("visits v JOIN patients p ON v.patient_id = p.id", "p.id")
    assert not is_unit("visits v LEFT JOIN patients p ON v.patient_id = p.id", "p.id")
    assert is_unit("labs l JOIN visits v ON l.visit_id = v.id", "v.patient_id")
    assert is_unit("notes n JOIN visits v ON n.visit_id = v.id", "v.patient_id")
    assert not is_unit("labs l JOIN visits v ON l.visit_id = v.id", "v.id")
    assert not is_unit("beds", "id")
    assert not is_unit("visits", "patient_id + 1")


def test_distinct_tables_are_named_by_what_they_count(con: duckdb.DuckDBPyConnection) -> None:
    tables = tables_of(POLICY, engine_of(con))
    one = rows_of("visits", POLICY, tables).table
    other = rows_of("visits v JOIN patients p ON v.patient_id = p.id", POLICY, tables).table
    same = {distinct_table(table, TRUE, ()).name for table in (one, other)}
    assert len(same) == 1
    (name,) = same
    found = united([distinct_table(one, TRUE, ()), distinct_table(other, TRUE, ()), one])
    assert set(found) == {name, "visits"}
    assert found[name].source is not None
    assert [join.name for join in found[name].source.joins] == ["patients(patient_id)"]


def test_a_unit_with_too_many_rows_loses_some_and_no_other_does() -> None:
    policy = policy_of(
        '[tables.t]\nunit = "u"\nmax_rows_per_unit = 3\n[tables.t.columns]\nv = { lower = 0, upper = 9 }\n'
    )
    con = duckdb.connect()
    unit = "CASE WHEN i < 10 THEN 0 WHEN i < 13 THEN 1 WHEN i < 40 THEN NULL ELSE i END"
    con.execute(f"CREATE TABLE t AS SELECT {unit} AS u, i % 10 AS v FROM range(50) r(i)")
    # Three of unit 0, three of 1, three of those without a unit, who are one together, and ten of one row each.
    assert exact([Ask("t")], policy, con) == [[Fraction(19)]]
    first = exact([Ask("t", (), ("v",))], policy, con)
    assert all(exact([Ask("t", (), ("v",))], policy, con) == first for _ in range(3))
    assert exact([Ask("t", distinct=True)], policy, con) == [[Fraction(12)]]
