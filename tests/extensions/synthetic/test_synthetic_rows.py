"""Synthetic rows: they agree with what was released, hold what is declared, and read nothing private."""

from __future__ import annotations

import datetime as dt
from itertools import combinations
from pathlib import Path

import duckdb
import numpy as np
import pytest
from helpers import filled

import dpsql
from dpsql.extensions.synthetic import row_fit, synthetic_rows
from dpsql.extensions.synthetic.released_counts import CountTable
from dpsql.extensions.synthetic.row_model import TableModel
from dpsql.extensions.synthetic.row_values import axis_of
from dpsql.policy import ColumnPolicy
from dpsql.release.synthetic import SyntheticRows
from dpsql.replicates.noise import generator_of
from dpsql.workloads.expr.batch import Column
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.rows import Join
from dpsql.workloads.expr.values import Stored

POLICY = """
dataset = "made up"
[budget]
epsilon = 10000.0
delta = 1e-9
[tables.person]
unit = "id"
key = ["id"]
max_rows_per_unit = 1
expected_rows = 3000
[tables.person.columns]
id = {}
sex = { values = ["f", "m"], nulls = false }
city = { values = ["a", "b"], other = true }
age = { lower = 0, upper = 19, nulls = false }
born = { lower = 1950-01-01, upper = 1959-12-31, nulls = false }
income = { lower = 0, upper = 100 }
share = { lower = 0, upper = 1, nulls = false }
seen = {}
[tables.visit]
unit = "person"
max_rows_per_unit = 4
expected_rows = 6000
references = { person = "person.id" }
[tables.visit.columns]
ward = { values = ["x", "y"], nulls = false }
"""
ROWS = """
CREATE TABLE person AS SELECT i::BIGINT AS id, CASE WHEN i % 3 = 0 THEN 'f' ELSE 'm' END AS sex,
    CASE WHEN i % 10 = 0 THEN NULL WHEN i % 3 = 0 THEN 'a' WHEN i % 5 < 3 THEN 'b' ELSE 'elsewhere' END AS city,
    (i * 37 % 20)::INTEGER AS age, DATE '1950-01-01' + (i * 11 % 3650)::INTEGER AS born,
    CASE WHEN i % 20 = 0 THEN NULL ELSE (i * 7 % 100)::DECIMAL(9, 2) END AS income, (i % 100) / 100.0::DOUBLE AS share,
    TIMESTAMP '2020-01-01' + INTERVAL (i) HOUR AS seen FROM range(3000) AS t(i);
CREATE TABLE visit AS SELECT (i // 2)::BIGINT AS person, CASE WHEN (i // 2) % 3 = 0 THEN 'x' ELSE 'y' END AS ward
    FROM range(6000) AS t(i) WHERE i % 4 <> 1;
"""
PAIRS = "SELECT sex, city, age, COUNT(*) AS n FROM person GROUP BY dp_marginals(2, sex, city, age)"


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    with filled(tmp_path / "t.duckdb") as made:
        made.execute(ROWS)
    return dpsql.connect(tmp_path / "t.duckdb", policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "t.ledger")


def agreement(rows: SyntheticRows) -> dict[str, tuple[float, float | None]]:
    """(distance, that of noise) by keys."""
    return {keys: (l1, noise) for _, keys, _, _, l1, noise in rows.agreement.fetchall()}


def test_rows_agree_with_a_precise_release_and_have_declared_types_and_nulls(con: dpsql.Connection) -> None:
    rows = con.run(PAIRS, epsilon=500).synthetic_rows(3000)
    assert list(rows) == ["person"]
    table = rows.only
    assert (table.columns, table.types) == (("sex", "city", "age"), ("VARCHAR", "VARCHAR", "INTEGER"))
    assert len(table) == 3000
    assert rows.left_out == ()
    assert {"f", "m"} == set(table.column("sex"))
    assert {"a", "b", "other", None} == set(table.column("city"))  # what is not listed is no value of the data
    assert abs(rows.sql("SELECT COUNT(*) FROM person WHERE city IS NULL").fetchall()[0][0] - 300) <= 3
    assert len(agreement(rows)) == 6
    assert max(l1 for l1, _ in agreement(rows).values()) < 0.02 * 3000
    together = rows.sql("SELECT COUNT(*) FROM person WHERE sex = 'f' AND city = 'b'").fetchall()[0][0]
    assert together <= 5  # nobody has both


def test_the_same_rows_come_for_one_seed_and_others_for_another(con: dpsql.Connection) -> None:
    release = con.run(PAIRS, epsilon=1)
    first = release.synthetic_rows(500)
    assert release.synthetic_rows(500).only == first.only
    assert release.synthetic_rows(500, seed=1).only != first.only
    assert len(release.synthetic_rows(0).only) == 0


def test_nothing_private_is_read_and_nothing_spent(con: dpsql.Connection, tmp_path: Path) -> None:
    release = con.run(PAIRS, epsilon=1)
    spent, first = con.budget.spent, release.synthetic_rows(200)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as made:
        made.execute("DELETE FROM person")
    again = con.run(PAIRS, epsilon=1)
    assert again.id == release.id
    assert again.synthetic_rows(200).only == first.only
    assert con.budget.spent == spent


@pytest.mark.long
def test_values_lie_in_the_groups_that_were_counted(con: dpsql.Connection) -> None:
    sql = """
        SELECT age // 10 AS decade, sex, COUNT(*) AS n FROM person GROUP BY age // 10, sex ORDER BY n DESC;
        SELECT age, COUNT(*) AS n FROM person GROUP BY age;
        SELECT year(born) AS y, COUNT(*) AS n FROM person GROUP BY year(born);
        SELECT CASE WHEN income < 33.5 THEN 'low' WHEN income >= 33.5 THEN 'high' END AS g, COUNT(*) AS n FROM person
            GROUP BY g;
        SELECT CASE WHEN share < 0.25 THEN 0 WHEN share <= 0.5 THEN 1 ELSE 2 END AS g, COUNT(*) AS n FROM person
            GROUP BY g;
        SELECT CASE WHEN seen < TIMESTAMP '2020-02-01' THEN 'soon' WHEN seen < TIMESTAMP '2020-03-01' THEN 'later'
            ELSE 'last' END AS g, COUNT(*) AS n FROM person GROUP BY g
    """
    release = con.run(sql, epsilon=5000, errors=False)
    rows = release.synthetic_rows(3000)
    assert rows.left_out == ()
    kinds = dict(zip(rows.only.columns, rows.only.types, strict=True))
    assert kinds == {
        **{"age": "INTEGER", "sex": "VARCHAR", "born": "DATE", "income": "DECIMAL(9,2)", "share": "DOUBLE"},
        "seen": "TIMESTAMP",
    }
    for number, statement in enumerate(sql.split(";")):
        *keys, _ = release[number].columns
        listed = ", ".join(keys)
        counted = f"SELECT {listed}, n FROM ({statement.split('ORDER BY')[0]}) ORDER BY ALL"
        mine = rows.sql(counted).fetchall()
        theirs = {row[:-1]: row[-1] for row in release[number].fetchall()}
        assert {row[:-1] for row in mine} == {key for key, n in theirs.items() if n > 1}
        assert all(abs(row[-1] - theirs[row[:-1]]) <= 4 for row in mine), statement
    born = rows.only.column("born")
    assert len(set(born)) > 800  # spread within a year
    assert min(born) >= dt.date(1950, 1, 1)
    assert max(born) <= dt.date(1959, 12, 31)
    assert {None} < set(rows.only.column("income"))
    assert all(0 <= share <= 1 for share in rows.only.column("share"))


@pytest.mark.long
def test_adaptive_releases_have_rows_too(con: dpsql.Connection) -> None:
    release = con.run(PAIRS, epsilon=50, method="adaptive", rounds=4)
    rows = release.synthetic_rows(1000)
    assert agreement(rows)["sex"][0] < 0.02 * 3000


def test_unbiased_counts_below_zero_become_possible_ones(con: dpsql.Connection) -> None:
    release = con.run("SELECT city, age, COUNT(*) AS n FROM person GROUP BY city, age", epsilon=0.1)
    assert min(release.only.column("n")) < -1
    ((l1, noise),) = agreement(release.synthetic_rows(3000)).values()
    assert noise is not None
    assert l1 < 1.5 * noise


JOINED = """
SELECT sex, city, COUNT(*) AS n FROM person GROUP BY sex, city;
SELECT ward, p.sex, COUNT(*) AS n FROM visit AS v JOIN person AS p ON v.person = p.id GROUP BY ward, p.sex
"""


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.few(every=2)
def test_rows_of_two_tables_refer_to_each_other(con: dpsql.Connection, counted: bool) -> None:
    of_units = "SELECT n, COUNT(*) AS c FROM (SELECT person, COUNT(*) AS n FROM visit GROUP BY person) GROUP BY n"
    rows = con.run(JOINED + f"; {of_units}" * counted, epsilon=500).synthetic_rows(3000)
    assert (rows["person"].columns, rows["visit"].columns) == (("id", "sex", "city"), ("person", "ward"))
    assert len(rows["person"]) == 3000
    assert abs(len(rows["visit"]) - 4500) < 20
    dangling = "SELECT COUNT(*) FROM visit LEFT JOIN person ON visit.person = person.id WHERE person.id IS NULL"
    assert rows.sql(dangling).fetchall() == [(0,)]
    assert rows.sql("SELECT COUNT(DISTINCT id) FROM person").fetchall() == [(3000,)]
    found = dict(rows.sql(of_units).fetchall())
    assert max(found) <= 4
    if counted:  # of those with visits, half have one and half have two
        assert found.keys() == {1, 2}
        assert abs(found[1] - 1500) < 10
    else:
        assert 3 in found
    beside = "SELECT ward, sex, COUNT(*) FROM visit JOIN person ON visit.person = person.id GROUP BY ALL"
    assert sum(n for ward, sex, n in rows.sql(beside).fetchall() if (ward == "x") != (sex == "f")) < 30
    with pytest.raises(dpsql.DataError, match="there are 2 synthetic tables"):
        rows.df()
    with pytest.raises(dpsql.NoResultError, match="no synthetic table is called 'visits'"):
        rows["visits"]


@pytest.mark.long
def test_rows_beyond_those_that_units_are_counted_by_fall_on_others(tmp_path: Path) -> None:
    """Half of the persons with visits have two where one is counted: they are in no group of n, one of each is kept."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as made:
        made.execute(ROWS)
    policy = dpsql.Policy.parse(POLICY.replace("max_rows_per_unit = 4", "max_rows_per_unit = 1"))
    con = dpsql.connect(tmp_path / "t.duckdb", policy=policy, ledger=tmp_path / "t.ledger")
    of_units = "SELECT n, COUNT(*) AS c FROM (SELECT person, COUNT(*) AS n FROM visit GROUP BY person) GROUP BY n"
    rows = con.run(f"{JOINED}; {of_units}", epsilon=500).synthetic_rows(3000)
    assert abs(len(rows["visit"]) - 3000) < 20
    assert max(dict(rows.sql(of_units).fetchall())) == 1


def test_a_column_that_only_the_other_table_counts_is_left_out(con: dpsql.Connection) -> None:
    rows = con.run(JOINED.replace("SELECT sex, city", "SELECT city").replace("BY sex, city", "BY city"), epsilon=50)
    made = rows.synthetic_rows(100)
    assert made.left_out == ("sex of person is counted beside visit alone, and no row has it",)
    assert (made["person"].columns, made["visit"].columns) == (("id", "city"), ("person", "ward"))


@pytest.mark.long
def test_files_and_questions(con: dpsql.Connection, tmp_path: Path) -> None:
    rows = con.run(JOINED, epsilon=10).synthetic_rows(100)
    rows.write(tmp_path / "made")
    read = duckdb.connect().sql(f"SELECT COUNT(*) FROM '{tmp_path}/made/person.parquet'").fetchall()
    assert read == [(100,)]
    with pytest.raises(dpsql.DataError, match="take one by name"):
        rows.write(tmp_path / "one.parquet")
    with pytest.raises(dpsql.DataError, match="place must be"):
        rows.write(7)  # type: ignore[arg-type]
    for refused in ("SELECT 1; SELECT 2", "DROP TABLE person"):
        with pytest.raises(dpsql.SQLError, match="one SELECT at a time runs over synthetic rows"):
            rows.sql(refused)
    with pytest.raises(dpsql.SQLError, match="nobody"):
        rows.sql("SELECT * FROM nobody")
    with pytest.raises(dpsql.SQLError):
        rows.sql(f"SELECT * FROM '{tmp_path}/made/person.parquet'")
    assert "SyntheticRows(person (100 rows), visit (" in repr(rows)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT sex, COUNT(*) AS n FROM person WHERE age < 50 GROUP BY sex", "its WHERE leaves rows out"),
        ("SELECT sex, COUNT(*) AS n FROM person GROUP BY sex LIMIT 1", "it does not show every group"),
        ("SELECT sex, AVG(age) AS a FROM person GROUP BY sex", r"it shows no COUNT\(\*\)"),
        ("SELECT ward, COUNT(DISTINCT person) AS n FROM visit GROUP BY ward", "it counts units, not rows"),
        ("SELECT COUNT(*) AS n FROM person", "shows no counts by groups of columns; release"),
        ("SELECT sex, COUNT(*) + 1 AS n FROM person GROUP BY sex", "it shows no"),
        ("SELECT age > income AS g, COUNT(*) AS n FROM person GROUP BY g", "is no set of groups of one stored column"),
        (
            "SELECT sex, city, COUNT(*) AS n FROM person GROUP BY dp_marginals(2, sex, city) ORDER BY n",
            "its groupings are filtered or sorted",
        ),
    ],
)
@pytest.mark.few(every=3)
def test_releases_without_tables_of_counts_are_refused(con: dpsql.Connection, sql: str, why: str) -> None:
    release = con.run(sql, epsilon=1)
    with pytest.raises(dpsql.DataError, match=why):
        release.synthetic_rows(10)


def test_what_else_is_refused(con: dpsql.Connection) -> None:
    release = con.run(PAIRS, epsilon=1)
    for wrong in (-1, 2.5, 10**9, "ten"):
        with pytest.raises(dpsql.DataError, match="n must be"):
            release.synthetic_rows(wrong)  # type: ignore[arg-type]
    apart = con.run(
        "SELECT sex, COUNT(*) AS n FROM person GROUP BY sex; SELECT ward, COUNT(*) AS n FROM visit GROUP BY ward",
        epsilon=1,
    )
    with pytest.raises(dpsql.NotSupportedError, match="of which not all are joined to one by one column"):
        apart.synthetic_rows(10)
    with pytest.raises(dpsql.DataError, match="no counts of nobody by groups of columns in any release"):
        con.synthetic_rows("nobody", 10)
    with pytest.raises(dpsql.DataError, match="no counts of person by groups of columns in release 9"):
        con.synthetic_rows("person", 10, release=9)
    assert con.synthetic_rows("PERSON", 10, release=release.id).only == release.synthetic_rows(10).only


def test_a_release_of_another_policy_is_refused(con: dpsql.Connection, tmp_path: Path) -> None:
    release = con.run(PAIRS, epsilon=1)
    changed = dpsql.Policy.parse(POLICY.replace('city = { values = ["a", "b"], other = true }', ""))
    other = dpsql.connect(tmp_path / "t.duckdb", policy=changed, ledger=tmp_path / "t.ledger")
    with pytest.raises(dpsql.NotSupportedError, match="the policy has changed since release"):
        other.synthetic_rows("person", 10, release=release.id)


def test_keys_are_numbers_or_text_and_counts_are_of_rows() -> None:
    for kind, column in (("INTEGER", (1, 3)), ("VARCHAR", ("1", "3"))):
        join = Join("p", "person", ((Stored("person", kind), Stored("id", kind, "p")),))
        assert tuple(synthetic_rows._numbered(join, "person", 3, np.array([0, 2]))[2].values()) == column
    join = Join("p", "person", ((Stored("person", "UUID"), Stored("id", "UUID", "p")),))
    with pytest.raises(dpsql.NotSupportedError, match="referred to by id, of type UUID"):
        synthetic_rows._key(join)
    key = KeyDomain("sex", "VARCHAR", ("f",), (Line("text", "VARCHAR").point("f"),), nulls=False)
    policy = ColumnPolicy("sex", values=("f",), nulls=False)
    axis = axis_of(0, Column("sex", "VARCHAR", Line("text", "VARCHAR"), policy), [key])
    model = TableModel((axis,), (CountTable("q1", "t", (key,), np.array([-3.0]), None),), ())
    with pytest.raises(dpsql.DataError, match="the released counts add up to no rows"):
        model.rows(5, generator_of(1))


# -- rows that agree with tables ------------------------------------------------------------------


def _wide() -> tuple[tuple[int, ...], list[row_fit.Target], int]:
    """Counts by all pairs of six columns that depend on each other."""
    sizes, n = (20, 9, 16, 6, 5, 2), 5000
    generator = generator_of("a wide table")
    kind = generator.integers(0, 6, n)
    columns = [np.where(generator.random(n) < 0.5, kind * 7 % d, generator.integers(0, d, n)) for d in sizes]
    faces = [row_fit.Face(at, np.arange(d), d) for at, d in enumerate(sizes)]
    targets = []
    for i, j in combinations(range(len(sizes)), 2):
        table = np.zeros((sizes[i], sizes[j]))
        np.add.at(table, (columns[i], columns[j]), 1.0)
        targets.append(row_fit.Target((faces[i], faces[j]), table))
    return sizes, targets, n


def _apart(rows: np.ndarray, targets: list[row_fit.Target], n: int) -> float:
    """Mean L1 / n of the tables of rows from their targets."""
    found = (np.bincount(t.cells(rows), minlength=t.counts.size) - t.counts.ravel() for t in targets)
    return float(np.mean([np.abs(over).sum() / n for over in found]))


def test_rows_are_fitted_to_all_pairs_of_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, targets, n = _wide()
    found = _apart(row_fit.fitted(sizes, targets, n, generator_of(1)), targets, n)
    monkeypatch.setattr(row_fit._Search, "_improve", lambda self, number: None)
    start = _apart(row_fit.fitted(sizes, targets, n, generator_of(1)), targets, n)
    assert found < 0.02
    assert start > 3 * found


def test_one_table_is_met_to_less_than_a_row_in_each_cell() -> None:
    generator = generator_of(2)
    counts = generator.random((7, 5)) * 20
    faces = (row_fit.Face(0, np.arange(7), 7), row_fit.Face(1, np.array([0, 1, 1, 2, 3, 4, 4, 4]), 5))
    target = row_fit.Target(faces, counts * 300 / counts.sum())
    rows = row_fit.fitted((7, 8), [target], 300, generator)
    over = np.bincount(target.cells(rows), minlength=35) - target.counts.ravel()
    assert np.abs(over).max() <= 1
    assert {4, 5} & set(rows[1].tolist())
    expected = np.array([0.3, 2.6, 0.0, 1.1])
    drawn = np.array([row_fit.rounded(expected, generator) for _ in range(2000)])
    assert np.abs(drawn - expected).max() < 1
    assert np.abs(drawn.mean(axis=0) - expected).max() < 0.04
