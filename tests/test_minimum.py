"""Small counts are NULL, with a mark, wherever results are shown."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 40.0
delta = 1e-6
discovery_delta = 1e-7
[tables.visits]
unit = "row"
minimum = 30
[tables.visits.columns]
ward = { values = ["big", "small", "none"], nulls = false }
cost = { lower = 0, upper = 100 }
age = { lower = 0, upper = 4000 }
word = {}
"""
BATCH = """
CREATE VIEW by_ward AS SELECT ward, COUNT(*) AS n, AVG(cost) AS mean, SUM(cost) AS total FROM visits GROUP BY ward;
CREATE VIEW shares AS SELECT ward, 2 * COUNT(*) AS twice, COUNT_IF(cost > 50) / COUNT(*) AS share
FROM visits GROUP BY 1;
CREATE VIEW sums AS SELECT ward, SUM(cost) AS alone, COUNT_IF(cost > 50) - COUNT_IF(cost <= 50) AS apart
FROM visits GROUP BY ward;
CREATE VIEW multiples AS SELECT ward, 9 * COUNT(*) AS nine, SUM(100) AS hundred,
COUNT_IF(cost >= 0) + 5 * COUNT(*) AS six FROM visits GROUP BY ward;
CREATE VIEW ranks AS SELECT ward, MEDIAN(cost) AS middle FROM visits GROUP BY ward;
CREATE VIEW ordered AS SELECT ward, n, n - 1 AS less FROM by_ward ORDER BY n DESC NULLS LAST
"""


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    folder = tmp_path_factory.mktemp("minimum")
    with duckdb.connect(str(folder / "visits.duckdb")) as held:
        held.execute(
            "CREATE TABLE visits AS SELECT CASE WHEN i < 3000 THEN 'big' ELSE 'small' END AS ward, "
            "(i % 100)::INTEGER AS cost, (i % 4000)::INTEGER AS age, 'w' AS word FROM range(3012) t(i)"
        )
    (folder / "visits.toml").write_text(POLICY, encoding="utf-8")
    con = dpsql.connect(policy=folder / "visits.toml")
    con.run(BATCH, epsilon=6.0)
    return con


def rows(con: dpsql.Connection, query: str) -> list[tuple[object, ...]]:
    return con.sql(query).fetchall()


def test_small_counts_and_what_rests_on_them_are_null_with_a_mark(con: dpsql.Connection) -> None:
    for name, numbers in {
        "by_ward": ("n", "mean", "total"),
        "shares": ("twice", "share"),
        "multiples": ("nine", "hundred", "six"),
        "ranks": ("middle",),
    }.items():
        table = {row["ward"]: row for _, row in con.sql(f"SELECT * FROM dp.{name}").df().iterrows()}
        for number in numbers:
            assert not table["big"][f"{number}_hidden"]
            for suffix in ("", "_stderr", "_low", "_high"):
                assert np.isfinite(table["big"][f"{number}{suffix}"])
                assert np.isnan(table["small"][f"{number}{suffix}"])
                assert np.isnan(table["none"][f"{number}{suffix}"])
            assert table["small"][f"{number}_hidden"]
    # Sums without a count of the same rows beside them have nothing to be judged by.
    assert rows(con, "SELECT COUNT(alone), COUNT(apart) FROM dp.sums") == [(0, 0)]
    assert rows(con, "SELECT ward, less IS NULL FROM dp.ordered ORDER BY 1") == [
        ("big", False),
        ("none", True),
        ("small", True),
    ]


def test_mode_names_no_value_of_a_hidden_count(con: dpsql.Connection) -> None:
    for where, most in (("cost >= 0", "big"), ("ward <> 'big'", None)):
        release = con.run(f"SELECT MODE(ward) AS m FROM visits WHERE {where}", epsilon=6.0)
        assert release.fetchall() == [(most,)]
        assert release.draws("q1", 5).df().m.tolist() == [most] * 5


@pytest.mark.long
def test_replicates_cursors_and_free_answers_hide_the_same(con: dpsql.Connection) -> None:
    release = con.run(BATCH, epsilon=6.0)
    drawn = release.draws("by_ward", 50).df()
    assert drawn[drawn.ward != "big"][["n", "mean", "total"]].isna().all().all()
    assert drawn[drawn.ward == "big"].n.notna().all()
    computed = con.sql("SELECT ward, n + 1 AS m FROM dp.by_ward", errors=True).df().set_index("ward")
    assert computed.loc["big", "m_stderr"] > 0
    assert computed.loc["small"][["m", "m_stderr", "m_low", "m_high"]].isna().all()
    total = con.sql("SELECT SUM(n) AS s FROM dp.by_ward", errors=True).df()
    assert abs(total["s"][0] - 3000) < 6 * total["s_stderr"][0] + 1
    cursor = con.cursor().execute("SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward")
    assert [column[0] for column in cursor.description] == ["ward", "n", "n_hidden"]
    assert [row[1] is None for row in cursor.fetchall()] == [False, True, True]
    feasible = con.run(BATCH, epsilon=6.0, estimates="feasible")["by_ward"].df()
    assert feasible[feasible.ward != "big"].n.isna().all()
    found = con.discover("visits.word", epsilon=1.0, delta=1e-9)
    assert found.result.columns[-1] == "n_hidden"
    assert (found.counts[0] or 0) > 1000


def test_a_probe_a_report_and_the_command_line_show_no_more(
    con: dpsql.Connection, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = str(con.policy.path)
    assert main(["run", "--sql", BATCH, "--policy", policy, "--epsilon", "6"]) == 0
    shown = capsys.readouterr().out
    assert "n_hidden" in shown or "NULL" in shown
    assert main(["policy", "check", policy]) == 0
    assert "counts that may lie under 30 are not shown" in capsys.readouterr().out
    for command in ("report plan --epsilon 6 --sql", "report release"):
        words = [*command.split(), *([BATCH] if "--sql" in command else []), "--policy", policy]
        assert main([*words, "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()


def test_ranges_too_many_to_hide_one_by_one_are_refused_before_a_charge(con: dpsql.Connection) -> None:
    spent = con.budget.spent
    with pytest.raises(dpsql.InterfaceError, match="too many for a policy that hides small counts"):
        con.run("SELECT dp_ranges(age), COUNT(*) AS n FROM visits GROUP BY dp_ranges(age)", epsilon=1.0)
    assert con.budget.spent == spent


@pytest.mark.parametrize("unit", ["row", "patient"])
@pytest.mark.few("patient")
def test_what_is_found_of_such_a_table_is_found_without_its_small_counts(tmp_path: Path, unit: str) -> None:
    policy = POLICY.replace("age = { lower = 0, upper = 4000 }", "age = {}")
    policy = policy.replace(
        'unit = "row"', 'unit = "patient"\nmax_rows_per_unit = 2' if unit != "row" else 'unit = "row"'
    )
    (tmp_path / "visits.toml").write_text(policy, encoding="utf-8")
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as held:
        held.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, CASE WHEN i < 3000 THEN 'big' ELSE 'other' END AS ward, "
            "(i % 100)::INTEGER AS cost, (i % 4000)::INTEGER AS age, 'w' AS word FROM range(3012) t(i)"
        )
    con = dpsql.connect(policy=tmp_path / "visits.toml")
    found = con.survey(epsilon=6.0, delta=1e-8)
    assert found.policy.table("visits").column("word").values == ("w",)
    assert abs((found.policy.table("visits").expected_rows or 0) - 3012) < 200
    assert (found.policy.table("visits").column("age").upper or 0) >= 1999
    hidden = "rows" if unit == "row" else "units"
    shown = con.sql(f"SELECT * FROM dp.{found.rows['visits'].name}").df()
    assert list(shown[f"{hidden}_hidden"]) == list(shown[hidden].isna())
    assert con.discover("visits.age", epsilon=6.0, bounds=True).bounds is not None
    missed = {one.column: one for one in con.coverage(epsilon=6.0).missed}
    assert missed["cost"].rows is missed["cost"].stderr is missed["ward"].high is None
    empty = dpsql.connect(policy=tmp_path / "visits.toml", ledger=tmp_path / "more.ledger")
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as held:
        held.execute("DELETE FROM visits WHERE cost > 0 OR ward = 'other' OR age > 500")
    few = empty.survey(epsilon=6.0, delta=1e-8)
    assert few.policy.table("visits").expected_rows == 1
    assert few.policy.table("visits").column("age").lower is None


def test_a_minimum_is_a_positive_number_of_a_private_table() -> None:
    for wrong in ("minimum = 0", "minimum = true", "minimum = 1.5"):
        with pytest.raises(dpsql.PolicyError, match="minimum"):
            dpsql.Policy.parse(POLICY.replace("minimum = 30", wrong))
    policy = dpsql.Policy.parse(POLICY)
    assert dpsql.Policy.parse(policy.to_toml()) == policy
    with pytest.raises(dpsql.PolicyError, match="minimum is for private tables"):
        dpsql.Policy.parse(POLICY.replace('unit = "row"', "public = true"))


@pytest.mark.parametrize("alone", ["visits", "people"])
@pytest.mark.few("visits")
def test_the_minimum_of_every_table_that_decides_which_rows_count_holds(tmp_path: Path, alone: str) -> None:
    """A joined table's, and that of one in IN or EXISTS, as well as the base's."""
    held = duckdb.connect(":memory:")
    held.execute("CREATE TABLE people AS SELECT i AS patient, IF(i < 200, 'f', 'm') AS sex FROM range(205) t(i)")
    held.execute("CREATE TABLE visits AS SELECT i AS patient, IF(i < 200, 'big', 'small') AS g FROM range(205) t(i)")
    tables = {
        "people": 'unit = "patient"\nmax_rows_per_unit = 1\nkey = ["patient"]',
        "visits": 'unit = "patient"\nmax_rows_per_unit = 2\nreferences = { patient = "people.patient" }',
    }
    columns = {
        "people": 'sex = { values = ["f", "m"], nulls = false }',
        "visits": 'g = { values = ["big", "small"], nulls = false }',
    }
    text = 'dataset = "m-1"\n[budget]\nepsilon = 1000.0\n'
    for name, lines in tables.items():
        least = "minimum = 30\n" if name == alone else ""
        text += f"[tables.{name}]\n{lines}\n{least}[tables.{name}.columns]\npatient = {{}}\n{columns[name]}\n"
    con = dpsql.connect(held, policy=dpsql.Policy.parse(text), ledger=tmp_path / "m.ledger")
    small = "SELECT patient FROM visits WHERE g = 'small'"
    for sql in (
        "SELECT g, COUNT(*) AS n FROM visits JOIN people USING (patient) GROUP BY g",
        f"SELECT sex, COUNT(*) AS n FROM people WHERE patient IN ({small}) GROUP BY sex",
        f"SELECT sex, COUNT(*) AS n FROM people p WHERE EXISTS ({small} AND visits.patient = p.patient) GROUP BY sex",
    ):
        shown = dict(row[:2] for row in con.run(sql, epsilon=100)["q1"].fetchall())
        assert None in shown.values(), sql
        assert all(n is None or n > 100 for n in shown.values()), sql
