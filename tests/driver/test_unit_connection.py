"""Units and joins from the connection's end: plans, releases, the sensitivity held twice, changed schemas."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest
from helpers import filled, unwrapped
from scipy import sparse

import dpsql
from dpsql.errors import IntegrityError, SQLError
from dpsql.planning.text import plan_text
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile import units as units_of
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.units import retention_order

pytestmark = pytest.mark.usefixtures("short_searches")

POLICY = """
dataset = "units-1"
[budget]
epsilon = 2000000.0
delta = 1e-9
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.patients.columns]
sex = { values = ["f", "m"] }
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 4
key = ["id"]
references = { patient_id = "patients.id", region = "regions.id" }
[tables.visits.columns]
kind = { values = ["a", "b"] }
cost = { lower = 0, upper = 10 }
[tables.regions]
public = true
key = ["id"]
[tables.regions.columns]
name = { values = ["n", "s"] }
[tables.beds]
unit = "row"
"""
BATCH = """
CREATE VIEW by_sex AS SELECT sex, COUNT(*) AS n, SUM(cost) AS total
    FROM visits v JOIN patients p ON v.patient_id = p.id GROUP BY sex;
CREATE VIEW by_region AS SELECT name, COUNT(DISTINCT patient_id) AS people
    FROM visits JOIN regions r ON region = r.id WHERE cost > 2 GROUP BY name;
CREATE VIEW everyone AS SELECT COUNT(*) AS n FROM patients;
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "d.duckdb"
    with filled(path) as con:
        sex = "CASE WHEN i % 2 = 0 THEN 'f' ELSE 'm' END"
        con.execute(f"CREATE TABLE patients AS SELECT i AS id, {sex} AS sex FROM range(50) r(i)")
        columns = "i AS id, i % 50 AS patient_id, i % 2 AS region, i % 11 AS cost"
        kind = "CASE WHEN i % 3 = 0 THEN 'a' ELSE 'b' END"
        con.execute(f"CREATE TABLE visits AS SELECT {columns}, {kind} AS kind FROM range(200) r(i)")
        con.execute("CREATE TABLE regions AS SELECT 0 AS id, 'n' AS name UNION ALL SELECT 1, 's'")
        con.execute("CREATE TABLE beds AS SELECT 1 AS id")
    (tmp_path / "p.toml").write_text(POLICY)
    return path


def connect(database: Path) -> dpsql.Connection:
    return dpsql.connect(database, policy=database.parent / "p.toml")


def test_a_batch_over_units_is_released(database: Path) -> None:
    with connect(database) as con:
        release = con.run(BATCH, epsilon=1_000_000.0, delta=5e-10)  # half a person, or unit of cost: 9 deviations
        with duckdb.connect(database, read_only=True) as exact:
            joined = "visits v JOIN patients p ON v.patient_id = p.id"
            wanted = exact.execute(f"SELECT sex, count(*), sum(cost) FROM {joined} GROUP BY 1 ORDER BY 1").fetchall()
            units = "SELECT region, count(DISTINCT patient_id) FROM visits WHERE cost > 2 GROUP BY 1 ORDER BY 1"
            people = exact.execute(units).fetchall()
        found = con.sql("SELECT sex, n, total FROM by_sex WHERE sex IS NOT NULL ORDER BY sex").fetchall()
        assert [(sex, round(n), round(total)) for sex, n, total in found] == wanted
        found = con.sql("SELECT name, people FROM by_region WHERE name IS NOT NULL ORDER BY name").fetchall()
        assert [round(n) for _, n in found] == [n for _, n in people]
        assert round(release["everyone"].fetchall()[0][0]) == 50


def test_a_plan_says_whom_it_protects(database: Path) -> None:
    with connect(database) as con:
        plan = con.plan(BATCH, epsilon=1.0, delta=1e-10)
        assert plan.privacy.endswith(
            "for adding or removing all rows of one patient_id in visits (at most 4 count) and of the same id in "
            "patients (at most 1 count)"
        )
        alone = con.plan("SELECT COUNT(*) FROM visits", epsilon=1.0, delta=1e-10)
        assert alone.sensitivity == (4 * alone.strategy.l1) ** 2
        assert alone.gap is not None
        assert alone.gap < 1e-3
        together = con.plan("SELECT COUNT(*) FROM visits; SELECT COUNT(*) FROM patients", epsilon=1.0, delta=1e-10)
        # A patient who is in both tables costs both, and the gap says so.
        assert together.gap is not None
        assert together.gap >= 0
        assert together.stderr["q1"][0] > alone.stderr["q1"][0]
        row = con.plan("SELECT COUNT(*) FROM beds", epsilon=1.0, delta=1e-10)
        assert row.privacy.endswith("for adding or removing one row of beds")


def test_errors_grow_with_the_rows_of_a_unit(database: Path) -> None:
    policy = database.parent / "p.toml"
    errors = []
    for k in (1, 4, 8):
        policy.write_text(POLICY.replace("max_rows_per_unit = 4", f"max_rows_per_unit = {k}"))
        with connect(database) as con:
            plan = con.plan("SELECT kind, COUNT(*), SUM(cost) FROM visits GROUP BY kind", epsilon=1.0, delta=1e-10)
        errors.append(plan.stderr["q1"].max())
    assert errors[1] == pytest.approx(4 * errors[0], rel=1e-3)
    assert errors[2] == pytest.approx(8 * errors[0], rel=1e-3)


@pytest.mark.long
def test_a_plan_may_count_fewer_rows_of_a_unit(database: Path) -> None:
    """As a policy of fewer rows does: the same errors, the same text; and the release is one of that question alone."""
    batch = "SELECT kind, COUNT(*) AS n FROM visits GROUP BY kind"
    with connect(database) as con:
        whole, fewer = (con.plan(batch, epsilon=2, delta=1e-10, rows_per_unit=k) for k in (None, 2))
        assert fewer.stderr["q1"] == pytest.approx(whole.stderr["q1"] / 2, rel=0.01)
        assert "(at most 2 count)" in fewer.privacy
        assert con.plan(batch, epsilon=2, delta=1e-10, rows_per_unit=9).stderr["q1"] == pytest.approx(
            whole.stderr["q1"]
        )
        assert con.budget_for(batch, 20.0, rows_per_unit=2) < con.budget_for(batch, 20.0)
        plans = [con.plan(batch, epsilon=1000, delta=1e-10, rows_per_unit=k) for k in (None, 2, 2)]
        both = [con.run(plan, errors=False) for plan in plans]
        assert [round(sum(n for _, n in release["q1"].fetchall()), -2) for release in both] == [200, 100, 100]
        assert [release.cost > 0 for release in both] == [True, True, False]
        for wrong in (0, 1.5, "2"):
            with pytest.raises(dpsql.Error, match="rows_per_unit"):
                con.plan(batch, epsilon=1, rows_per_unit=wrong)


def test_a_certificate_says_for_which_units_it_is(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sources of one table, or bounds, let C do more than a unit can; else of every mechanism, without a word.

    So it is where not all that a unit can change is listed.
    """
    policy = database.parent / "p.toml"
    by_kind = "SELECT kind, COUNT(*) AS n FROM visits GROUP BY kind"
    units = "SELECT kind, COUNT(DISTINCT patient_id) AS n FROM visits GROUP BY kind"
    said = "% smaller, averaged over the columns"
    three = f"{by_kind}; {units}; SELECT COUNT(DISTINCT patient_id) AS n FROM visits"
    sums = three.replace("COUNT(*)", "SUM(cost)")
    with connect(database) as con:
        for sql in (by_kind, f"{by_kind}; {units}", three, sums):
            assert proof_of(con.plan(sql, rho=0.1)).endswith(said)
    spread = 'at_most = [{ rows = 3, per = "kind" }]'
    policy.write_text(POLICY.replace("max_rows_per_unit = 4", f"max_rows_per_unit = 4\n{spread}"))
    with connect(database) as con:
        plan = con.plan(by_kind, rho=0.1)
        assert proof_of(plan).endswith(said)
        assert "(at most 4 count, 3 rows for each value of kind)" in unwrapped(plan)
    monkeypatch.setattr(units_of, "contributions_of_unit", lambda *_: None)
    with connect(database) as con:
        assert f"{said}; this bound is for a wider class of units: those that do not keep to at_most" in proof_of(
            con.plan(by_kind, rho=0.2)
        )
        text = proof_of(con.plan(sums, rho=0.2))
        wider = "those that could change each scan of visits by itself and do not keep to at_most"
        assert f"{said}; this bound is for a wider class of units: {wider}" in text


def proof_of(plan: dpsql.Plan) -> str:
    """What a plan says of how near its error is to the least."""
    return dict(plan_text(plan).facts)["Proof"]


def test_a_plan_that_forgot_the_rows_of_a_unit_is_not_measured(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(database) as con:
        with monkeypatch.context() as patch:
            patch.setattr(Layout, "multiplicity", property(lambda layout: 1))
            patch.setattr(units_of, "contributions_of_unit", lambda *_: None)
            plan = con.plan(BATCH, epsilon=1.0, delta=1e-10)
            assert plan.sensitivity > 0
            job = con._batches.job(plan, "key", "")
        with pytest.raises(IntegrityError, match="sensitivity is not that of its strategy"):
            job.check_sensitivity()  # type: ignore[union-attr]


def test_a_changed_column_of_a_joined_table_stops_the_run(database: Path) -> None:
    with connect(database) as con:
        plan = con.plan(BATCH, epsilon=1.0, delta=1e-10)
        with duckdb.connect(database) as other:
            other.execute("ALTER TABLE regions ADD COLUMN later INTEGER")
        with pytest.raises(IntegrityError, match="the columns of regions have changed"):
            con.run(plan)
        assert con.budget.spent == 0


def test_refusals_reach_the_user_with_their_place(database: Path) -> None:
    with connect(database) as con:
        for sql, reason in [
            ("SELECT COUNT(*)\nFROM visits v JOIN visits w ON v.patient_id = w.patient_id", r"self-join.*line 2"),
            ("SELECT COUNT(*) FROM patients LEFT JOIN visits ON patients.id = patient_id", "could meet several rows"),
            ("SELECT COUNT(DISTINCT kind, day) FROM visits", "COUNT.DISTINCT"),
            ("SELECT AVG(DISTINCT id) FROM beds", "AVG.DISTINCT"),
            ("SELECT COUNT(*) FROM regions", "public"),
        ]:
            with pytest.raises(SQLError, match=reason):
                con.plan(sql, epsilon=1.0, delta=1e-10)


def test_files_that_became_one_since_the_plan_are_refused(tmp_path: Path) -> None:
    """Two tables of rows over one file share a unit: a plan from before does not know."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("k\n1\n2\n")
    (tmp_path / "p.toml").write_text(
        'dataset = "apart-1"\n[budget]\nepsilon = 10\n'
        + "".join(
            f'[tables.{name}]\nunit = "row"\nsource = "{name}.csv"\n[tables.{name}.columns]\n'
            'k = { lower = 0, upper = 3, type = "INTEGER" }\n'
            for name in ("a", "b")
        )
    )
    con = dpsql.connect(policy=tmp_path / "p.toml")
    plan = con.plan("SELECT COUNT(*) FROM a; SELECT COUNT(*) FROM b", epsilon=1)
    (tmp_path / "b.csv").unlink()
    (tmp_path / "b.csv").hardlink_to(tmp_path / "a.csv")
    with pytest.raises(dpsql.Error, match="one file"):
        con.run(plan)
    assert con.budget.spent == 0


KEPT = """
dataset = "kept-1"
[budget]
epsilon = 2000000.0
[tables.visits]
unit = "pid"
max_rows_per_unit = 1
[tables.visits.columns]
ward = { values = ["a", "b"], nulls = false }
place = { values = ["a", "b", "c", "d"], nulls = false }
day = { lower = 1, upper = 2, nulls = false }
[tables.labs]
unit = "pid"
max_rows_per_unit = 1
[tables.labs.columns]
ward = { values = ["a", "b"], nulls = false }
"""


def kept_worlds(folder: Path) -> dpsql.Connection:
    """400 persons of two rows each, one of which counts: in wards a and b, places c and d, on days 2 and 1."""
    path = folder / "d.duckdb"
    with duckdb.connect(path) as duck:
        columns = "i // 2 AS pid, ['a', 'b'][1 + i % 2] AS ward, ['c', 'd'][1 + i % 2] AS place, 2 - i % 2 AS day"
        duck.execute(f"CREATE TABLE visits AS SELECT {columns} FROM range(800) r(i)")
        duck.execute("CREATE TABLE labs AS SELECT pid, ward FROM visits")
    (folder / "p.toml").write_text(KEPT)
    return connect(path)


def test_releases_that_kept_other_rows_of_units_are_not_combined(tmp_path: Path) -> None:
    """Of two rows of everyone one counts: that in ward a where only it is asked for, else either."""
    with kept_worlds(tmp_path) as con:
        alone = con.run("SELECT COUNT(*) FROM visits WHERE ward = 'a'", epsilon=50)["q1"].fetchall()
        by_ward = con.run("SELECT ward, COUNT(*) FROM visits GROUP BY ward", epsilon=50)["q1"].fetchall()
        numbers = [row[1] for row in by_ward]
        assert alone[0][0] == pytest.approx(400, abs=5)
        assert sum(numbers) == pytest.approx(400, abs=5)
        assert 120 < min(numbers) < max(numbers) < 280
        both = con.run("SELECT COUNT(*) FROM visits WHERE ward = 'a'; SELECT COUNT(*) FROM visits", epsilon=50)
        # All rows matter, as in the second, and both tell the same of them; the first kept others.
        assert both["q1"].fetchall()[0][0] == pytest.approx(numbers[0], abs=5)
        assert both["q2"].fetchall()[0][0] == pytest.approx(400, abs=5)


@pytest.mark.parametrize(
    ("asked", "again"),
    [
        # Conditions that cut the same values, and count others of them.
        (
            [
                "SELECT COUNT(*) FROM visits WHERE place IN ('a', 'c')",
                "SELECT COUNT(*) FROM visits WHERE place IN ('a', 'd')",
            ],
            "SELECT COUNT(*) FROM visits WHERE place IN ('a', 'c'); "
            "SELECT COUNT(*) FROM visits WHERE place IN ('a', 'd')",
        ),
        # A table that the nearest release does not read.
        (
            [
                "SELECT COUNT(*) FROM labs WHERE ward = 'a'",
                "SELECT ward, COUNT(*) FROM labs GROUP BY ward",
                "SELECT ward, COUNT(*) FROM visits GROUP BY ward",
            ],
            "SELECT COUNT(*) FROM labs WHERE ward = 'a'; SELECT COUNT(*) FROM labs; SELECT COUNT(*) FROM visits",
        ),
        # Rows of one order by ward and of another by day.
        (
            [
                "SELECT ward, COUNT(*) FROM visits GROUP BY ward",
                "SELECT day, COUNT(*) FROM visits GROUP BY day",
            ],
            "SELECT ward, day, COUNT(*) FROM visits GROUP BY ward, day",
        ),
    ],
    ids=["values", "tables", "orders"],
)
@pytest.mark.few("values")
def test_no_release_rests_on_rows_that_another_left_out(tmp_path: Path, asked: list[str], again: str) -> None:
    with kept_worlds(tmp_path) as con:
        for sql in asked:
            con.run(sql, epsilon=50)
        told = [{*retention_order(con.plan(sql, epsilon=50, earlier=False).compiled.layouts).values()} for sql in asked]
        plan = con.plan(again, epsilon=50)
        release = con.run(plan)
        numbers = [row[-4] for name in release.views for row in release[name].fetchall()]
        if "day" in again:
            assert not plan.rests_on
            assert len(set.union(*told)) == 2
            assert sum(numbers) == pytest.approx(400, abs=8)
        elif "place" in again:
            assert len(set.union(*told)) == 2
            # A batch of both keeps one row of everyone that either counts.
            assert sum(numbers) == pytest.approx(400, abs=8)
        else:
            assert 120 < numbers[0] < 280
            assert numbers[1:] == pytest.approx([400, 400], abs=8)


DAYS = """
dataset = "days-1"
[budget]
epsilon = 2000000.0
[tables.visits]
unit = "pid"
max_rows_per_unit = 6
at_most = [{{ rows = 1, per = "{per}" }}]
[tables.visits.columns]
{unit}
day = {{ lower = 1, upper = 6, nulls = false }}
ward = {{ values = ["a", "b"], other = true, nulls = false }}
"""


@pytest.mark.parametrize(
    ("per", "unit", "keys", "apart"),
    [
        ("day", "pid = { lower = 0, upper = 99, nulls = false }", "day", False),
        ("day", "pid = { lower = 0, upper = 99, nulls = false }", "day, ward", False),
        ("day % 3", "pid = { lower = 0, upper = 99, nulls = false }", "day % 3", False),
        (
            "day % 3",
            "pid = { lower = 0, upper = 99, nulls = false }",
            "day",
            False,
        ),  # a day is in one group of the bound
        ("day", "pid = { lower = 0, upper = 99, nulls = false }", "day % 3", True),  # two groups of days in one
        ("day", "pid = { lower = 0, upper = 99 }", "day", True),  # a unit may be NULL
        ("ward", "pid = { lower = 0, upper = 99, nulls = false }", "ward", True),  # others are one group, of many wards
    ],
)
@pytest.mark.few(every=4)
def test_where_a_unit_has_one_row_a_group_rows_count_units(
    tmp_path: Path, per: str, unit: str, keys: str, apart: bool
) -> None:
    path = tmp_path / "d.duckdb"
    with duckdb.connect(path) as duck:
        wards = "['a', 'b', 'c'][1 + i % 3]"
        duck.execute(
            f"CREATE TABLE visits AS SELECT i % 50 AS pid, 1 + i % 4 AS day, {wards} AS ward FROM range(300) r(i)"
        )
    (tmp_path / "p.toml").write_text(DAYS.format(per=per, unit=unit))
    with connect(path) as con:
        plan = con.plan(f"SELECT {keys}, COUNT(DISTINCT pid) AS n FROM visits GROUP BY {keys}", epsilon=1000)
        assert [layout.source.distinct for layout in plan.compiled.layouts] == [apart]
        if keys == per and not apart:
            counted = con.run(plan)["q1"].fetchall()
            with duckdb.connect(path, read_only=True) as duck:
                truth = dict(duck.execute(f"SELECT {per}, COUNT(DISTINCT pid) FROM visits GROUP BY 1").fetchall())
            assert {row[0]: round(row[1]) for row in counted if abs(row[1]) > 0.5} == truth


def test_rows_that_fall_together_when_columns_are_added_up_are_told_apart(tmp_path: Path) -> None:
    """46 independent rows over 471 columns, of which a sketch of 248 columns tells only 45."""
    columns = "pid INTEGER, ward INTEGER, sex VARCHAR, age INTEGER, missed BOOLEAN, cost INTEGER, stay DOUBLE"
    with duckdb.connect(tmp_path / "d.duckdb") as duck:
        duck.execute(f"CREATE TABLE visits ({columns})")
    (tmp_path / "p.toml").write_text("""
dataset = "apart-1"
[budget]
rho = 1.0
[tables.visits]
unit = "pid"
max_rows_per_unit = 4
[tables.visits.columns]
ward = { lower = 1, upper = 6, nulls = false }
sex = { values = ["f", "m"], nulls = false }
age = { lower = 0, upper = 99, nulls = false }
missed = { nulls = false }
cost = { lower = 0, upper = 1000, nulls = false }
stay = { lower = -5, upper = 40 }
""")
    batch = """
    SELECT age // 10 AS decade, AVG(cost), SUM(stay) FROM visits GROUP BY decade;
    SELECT ward, COUNT(*), SUM(stay) FROM visits GROUP BY ward;
    SELECT sex, COUNT(DISTINCT pid) FROM visits GROUP BY sex;
    SELECT COUNT(*), SUM(stay) FROM visits WHERE missed
    """
    with connect(tmp_path / "d.duckdb") as con:
        gap = con.plan(batch, rho=0.5).gap
        assert gap is not None
        assert gap < 2e-3


COUNTS_OF_VALUES = """
CREATE VIEW kinds AS SELECT COUNT(DISTINCT kind) AS n FROM visits;
CREATE VIEW by_kind AS SELECT kind, COUNT(DISTINCT kind) AS n FROM visits GROUP BY kind;
CREATE VIEW open AS SELECT COUNT(DISTINCT cost) AS n FROM visits;
CREATE VIEW half AS SELECT 1 - COUNT(DISTINCT kind) / 2.0 AS n, COUNT(DISTINCT kind) + COUNT(*) AS k FROM visits;
"""


def test_counts_of_declared_values_are_noised_and_shown_within_their_number(database: Path) -> None:
    with connect(database) as con:
        plan = con.plan(COUNTS_OF_VALUES, epsilon=0.01, delta=1e-10)
        assert [note for note in plan.notes if "values" in note or "value " in note] == [
            "kinds.n counts at most 2 values: intervals end at 0 and there, estimates may lie beyond",
            "by_kind.n counts at most 1 value in each group: intervals end at 0 and there, estimates may lie beyond",
            "half.n lies between 0 and 1, by the number of values that can be counted: intervals end there, estimates "
            "may lie beyond",
        ]
        con.run(plan)
        for name, most in (("kinds", 2), ("by_kind", 1), ("half", 1)):
            for low, high in con.sql(f"SELECT n_low, n_high FROM {name}").fetchall():
                assert 0 <= low <= high <= most
        n, low, high = con.sql("SELECT n, n_low, n_high FROM open").fetchone()
        assert (high - low) / 2 == pytest.approx(float(plan.half_width["open"][0]))
        assert (high + low) / 2 == pytest.approx(n)


@pytest.mark.parametrize(
    ("sql", "moved"),
    [
        ("SELECT COUNT(DISTINCT kind) FROM visits", 2),
        ("SELECT COUNT(DISTINCT CASE WHEN cost > 2 THEN kind END) FROM visits", 2),
        ("SELECT kind, COUNT(DISTINCT kind) FROM visits GROUP BY kind", 2),
        ("SELECT COUNT(DISTINCT cost) FROM visits WHERE cost BETWEEN 3 AND 5", 3),
        ("SELECT COUNT(DISTINCT cost) FROM visits", 4),
        ("SELECT name, COUNT(DISTINCT kind) FROM visits JOIN regions r ON region = r.id GROUP BY name", 4),
        # All visits of a patient are of one sex.
        ("SELECT sex, COUNT(DISTINCT kind) FROM visits v JOIN patients p ON v.patient_id = p.id GROUP BY sex", 2),
    ],
)
def test_a_unit_adds_as_many_values_as_there_are(database: Path, sql: str, moved: int) -> None:
    with connect(database) as con:
        compiled = con.plan(sql, epsilon=1.0, delta=1e-10).compiled
        assert isinstance(compiled, Compiled)
        eye = np.eye(compiled.rows.shape[1], dtype=np.int64)
        assert sensitivity_of("laplace", Factored(eye, sparse.csr_array(eye)), compiled.layouts) == moved
