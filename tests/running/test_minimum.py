"""Small counts are NULL, with a mark, wherever results are shown."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.running import minimum
from dpsql.running.minimum import hidden
from dpsql.running.result_tables import release_tables
from dpsql.surfaces.cli import main
from dpsql.workloads.expr.batch import Core, Measured

pytestmark = pytest.mark.usefixtures("short_searches")

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
COUNT_IF(cost >= 50) + 5 * COUNT(*) AS six FROM visits GROUP BY ward;
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_probe_a_report_and_the_command_line_show_no_more(
    con: dpsql.Connection, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy, batch = str(con.policy.path), "SELECT ward, COUNT(*) AS n, AVG(cost) AS mean FROM visits GROUP BY ward"
    assert main(["run", "--sql", batch, "--policy", policy, "--epsilon", "6"]) == 0
    shown = capsys.readouterr().out
    assert "n_hidden" in shown or "NULL" in shown
    assert main(["policy", "check", policy]) == 0
    assert "counts that may lie under 30 are not shown" in capsys.readouterr().out
    for command in ("report plan --epsilon 6 --sql", "report release"):
        words = [*command.split(), *([batch] if "--sql" in command else []), "--policy", policy]
        assert main([*words, "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()


def test_ranges_too_many_to_hide_one_by_one_are_refused_before_a_charge(con: dpsql.Connection) -> None:
    spent = con.budget.spent
    with pytest.raises(dpsql.InterfaceError, match="too many for a policy that hides small counts"):
        con.run("SELECT dp_ranges(age), COUNT(*) AS n FROM visits GROUP BY dp_ranges(age)", epsilon=1.0)
    assert con.budget.spent == spent


@pytest.mark.parametrize("unit", ["row", "patient"])
@pytest.mark.long
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


# -- numbers that are written in another way ---------------------------------------------------------

FORMS = """
dataset = "forms-1"
[budget]
rho = 1000000.0
[tables.t]
unit = "id"
max_rows_per_unit = 1
minimum = 10
[tables.t.columns]
id = {}
g = { values = ["a", "b", "c"], nulls = false }
age = { lower = 0, upper = 100, nulls = false }
rare = { lower = 0, upper = 1, nulls = false }
even = { lower = 0, upper = 1, nulls = false }
"""
COUNTS = "COUNT(*) AS k, COUNT_IF(g = 'a') AS ka, COUNT_IF(g = 'b') AS kb"


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    """300 rows of a, 300 of b and 3 of c, the rare ones; the total shows c to nobody who is not told a and b."""
    held = duckdb.connect(":memory:")
    held.execute(
        "CREATE TABLE t AS SELECT i::INTEGER AS id, CASE WHEN i < 300 THEN 'a' WHEN i < 600 THEN 'b' ELSE 'c' END "
        "AS g, (i % 90)::INTEGER AS age, (i >= 600)::INTEGER AS rare, (i % 2)::INTEGER AS even FROM range(603) t(i)"
    )
    ledger = tmp_path_factory.mktemp("forms") / "forms.ledger"
    return dpsql.connect(held, policy=dpsql.Policy.parse(FORMS), ledger=ledger)


def first_numbers(con: dpsql.Connection, numbers: list[str]) -> list[object]:
    """Each number as a statement by itself beside counts, a few in one batch, with so little noise that it is exact."""
    found = []
    for start in range(0, len(numbers), 6):
        some = numbers[start : start + 6]
        batch = ";\n".join(f"SELECT {number} AS n, {COUNTS} FROM t" for number in some)
        release = con.run(batch, rho=10000.0, fresh=True, errors=False)
        found += [release[f"q{at + 1}"].fetchall()[0][0] for at in range(len(some))]
    return found


class Forms:
    """Numbers that tell how many rows have one value of g, in the words of a random generator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def indicator(self, value: str) -> str:
        """An expression of two values, one of them in the rows of the value alone."""
        low, high = self.rng.randint(-3, 5), self.rng.randint(6, 9)
        return self.rng.choice(
            [
                f"CASE WHEN g = '{value}' THEN {high} ELSE {low} END",
                f"IF(g <> '{value}', {low}, {high})",
                f"(g = '{value}')::INT",
                f"(NOT g = '{value}')::INT",
                f"{high} * (g = '{value}')::INT + {low}",
                f"CASE g WHEN '{value}' THEN {low} WHEN 'a' THEN {high} ELSE {high} END",
                f"COALESCE(CASE WHEN g = '{value}' THEN {low} END, {high})",
                f"COALESCE(NULLIF((g <> '{value}')::INT, 0), {high})",
                f"({low} - CASE WHEN g = '{value}' THEN 1 ELSE 0 END)",
            ]
        )

    def number(self, value: str) -> str:
        """A number from which the count of the value follows, beside COUNT(*)."""
        i, rest = self.indicator(value), f"g <> '{value}'"
        n = self.rng.choice(
            [
                f"AVG({i})",
                f"{self.rng.randint(1, 9)} - AVG({i})",
                f"AVG({i}) * COUNT(*)",
                f"VAR_POP({i})",
                f"STDDEV({i})",
                f"CORR(age, {i})",
                f"REGR_SLOPE({i}, age)",
                f"COVAR_POP({i}, age)",
                f"SUM({i})",
                f"SUM({i}) / COUNT(*)",
                f"COUNT(*) - COUNT(*) FILTER (WHERE {rest})",
                f"COUNT_IF({rest}) / COUNT(*)",
                f"COUNT(*) - 2 * COUNT_IF({rest})",
                f"COUNT(DISTINCT id) - COUNT(DISTINCT CASE WHEN {rest} THEN id END)",
                f"COUNT(DISTINCT CASE WHEN {rest} THEN id END) / COUNT(DISTINCT id)",
                f"AVG(age) FILTER (WHERE g = '{value}')",
            ]
        )
        return self.rng.choice([n, f"ROUND({n}, 4)", f"GREATEST(COUNT(*), 0) * ({n})", f"-2 * ({n}) + 7"])


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.few(every=24)
def test_a_small_count_is_hidden_in_every_form_and_a_large_one_in_none(forms: dpsql.Connection, seed: int) -> None:
    """A number over the rows of c, or over all others, is hidden; the same number of b is shown."""
    made = Forms(seed)
    state = made.rng.getstate()
    small = [made.number("c") for _ in range(3)]
    made.rng.setstate(state)
    large = [made.number("b") for _ in range(3)]
    assert [n for n, v in zip(small, first_numbers(forms, small), strict=True) if v is not None] == []
    assert [n for n, v in zip(large, first_numbers(forms, large), strict=True) if v is None] == []


@pytest.mark.long
def test_what_varies_is_judged_by_its_rows_and_a_column_of_two_values_by_each(forms: dpsql.Connection) -> None:
    hidden = ["AVG(rare)", "SUM(rare)", "AVG(5 + rare)", "AVG(CASE WHEN g = 'c' THEN age ELSE 0 END)",
              "AVG(age * (g = 'c')::INT)", "AVG(CASE WHEN g = 'c' THEN age + 1 ELSE age END) - AVG(age)",
              "AVG(LEAST(GREATEST(age, 88), 89))", "AVG(LEAST(GREATEST(age, 88), 91))",
              "AVG(SIGN(GREATEST(age - 88, 0)))"]  # fmt: skip
    shown = ["AVG(even)", "SUM(even)", "AVG(5 + even)", "AVG(CASE WHEN g = 'b' THEN age ELSE 0 END)", "AVG(age)",
             "AVG(LEAST(age, 60))", "SUM(2 * age)", "AVG(age) / AVG(even)"]  # fmt: skip
    got = dict(zip(hidden + shown, first_numbers(forms, hidden + shown), strict=True))
    assert {number: got[number] for number in hidden if got[number] is not None} == {}
    assert {number: got[number] for number in shown if got[number] is None} == {}


def test_a_number_of_very_many_others_is_hidden(forms: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [" + ".join(f"GREATEST(COUNT_IF(age < {age}), 0)" for age in range(20, 20 + 15 * n, 15)) for n in (3, 4)]
    monkeypatch.setattr(minimum, "MOST_TOGETHER", 3)
    assert [number is None for number in first_numbers(forms, numbers)] == [False, True]


@pytest.mark.long
def test_what_judges_a_number_of_many_others_does_not_overflow(forms: dpsql.Connection) -> None:
    batch = "SELECT " + " + ".join(f"GREATEST(COUNT_IF(id < 2 * {k}), 0)" for k in range(120, 295)) + " AS n FROM t"
    assert forms.run(batch, rho=10000.0, fresh=True, errors=False)["q1"].fetchall() == [(None,)]


def test_a_rule_that_looks_at_the_form_of_a_number_would_be_noticed(
    forms: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_form(core: Core, used: Sequence[int], _: object = None) -> list[dict[int, float]]:
        return [{at: 1.0} for at in used if core.outputs[at].counts]

    monkeypatch.setattr("dpsql.running.minimum.judged_by", by_form)
    with pytest.raises(AssertionError):
        test_a_small_count_is_hidden_in_every_form_and_a_large_one_in_none(forms, 0)


@pytest.mark.parametrize("alpha", [0.05, 0.9])
def test_noisy_counts_judge_at_95_percent_whatever_the_data_are(forms: dpsql.Connection, alpha: float) -> None:
    """What is hidden follows from estimates and the law of the noise; ``alpha`` of the results changes nothing."""
    plan = forms.plan(f"SELECT AVG(even) AS n, {COUNTS} FROM t", rho=0.02, alpha=alpha)
    ((core, slices),) = plan.cores
    usual = forms.plan(f"SELECT AVG(even) AS n, {COUNTS} FROM t", rho=0.02)
    at = next(i for i, output in enumerate(core.outputs) if output.counts and len(output.terms) == 1)
    count = next(c for c in core.columns if isinstance(c, Measured) and c.output == at)
    width = float(usual.widths[slices[at]][0])
    for above, small in ((-0.5, True), (0.5, False)):
        values = np.zeros(len(plan.widths))
        values[slices[at]] = 10 + width + above
        assert hidden(core, count, values, plan, slices).tolist() == [small]


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.few(every=2)
def test_prefixes_of_a_long_column_are_hidden_by_their_own_errors(con: dpsql.Connection, alpha: float) -> None:
    """One row a value, measured without noise: what is hidden at any ``alpha`` follows from the 95 % intervals."""
    text = "SELECT dp_prefixes(age) AS a, COUNT(*) AS n FROM visits GROUP BY 1"
    plan, usual = (con.plan(text, epsilon=1.0, delta=1e-6, alpha=each) for each in (alpha, 0.05))
    (table,) = release_tables(plan, plan.strategy.measured.times([1] * 4001, 2))
    columns = {name: values for name, _, values in table.columns}
    small = np.arange(1, 4002) - usual.widths < 30
    assert 0 < small.sum() < 4001
    assert list(columns["n_hidden"]) == small.tolist()
    assert [value is None for value in columns["n"]] == small.tolist()


def test_sums_of_units_are_judged_by_the_rows_that_enter_them(tmp_path: Path) -> None:
    """A bound on what one person adds changes nothing in it: 1,200 is no number of rows."""
    bounds = 'unit = "pid"\nmax_rows_per_unit = 20\nat_most = [{ sum = "cost", upper = 500, per = "ward" }]'
    policy = POLICY.replace('unit = "row"', bounds).replace("upper = 100 }", "upper = 100, nulls = false }")
    (tmp_path / "visits.toml").write_text(policy, encoding="utf-8")
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as held:
        held.execute(
            "CREATE TABLE visits AS SELECT i % 1000 AS pid, CASE WHEN i < 3000 THEN 'big' ELSE 'small' END AS ward, "
            "100 AS cost, 1 AS age, 'w' AS word FROM range(3012) t(i)"
        )
    con = dpsql.connect(policy=tmp_path / "visits.toml")
    con.run(
        "CREATE VIEW alone AS SELECT ward, SUM(cost) AS total FROM visits GROUP BY ward; CREATE VIEW beside AS SELECT "
        "ward, COUNT(*) AS n, SUM(cost) AS total, SUM(cost) / COUNT(*) AS each FROM visits GROUP BY ward",
        epsilon=9.0,
    )
    assert rows(con, "SELECT total_hidden FROM dp.alone") == [(True,)] * 3
    shown = rows(con, "SELECT n_hidden, total_hidden, each_hidden FROM dp.beside")
    assert shown == [(False,) * 3, (True,) * 3, (True,) * 3]
