"""Expected workloads: what their words mean, what they refuse, and that questions within them are free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dpsql
from dpsql.extensions.advice.expected_workload import workload_sql
from dpsql.surfaces.cli import main

POLICY = """
dataset = "clinic-1"
[budget]
epsilon = 100
delta = 1e-9
[tables.visits]
unit = "row"
source = "visits.csv"
[tables.visits.columns]
age = { lower = 0, upper = 20, type = "INTEGER", nulls = false }
sex = { values = ["f", "m"], type = "VARCHAR", nulls = false }
"the state" = { values = ["NY", "NJ", "CA"], type = "VARCHAR", nulls = false }
cost = { lower = 0, upper = 50, step = 1, type = "INTEGER" }
[tables.staff]
unit = "row"
source = "staff.csv"
[tables.staff.columns]
age = { lower = 0, upper = 4, type = "INTEGER", nulls = false }
"""
ROWS = [(i * 7 % 21, "fm"[i % 2], ("NY", "NJ", "CA")[i % 3], i % 51 if i % 7 else "") for i in range(400)]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "visits.csv").write_text(
        "age,sex,the state,cost\n" + "".join(f"{a},{s},{t},{c}\n" for a, s, t, c in ROWS)
    )
    (tmp_path / "staff.csv").write_text("age\n" + "".join(f"{i % 5}\n" for i in range(30)))
    (tmp_path / "p.toml").write_text(POLICY)
    return tmp_path / "p.toml"


def words(declared: str | list[str], table: str | None = "visits") -> list[str]:
    return workload_sql(dpsql.Policy.parse(POLICY), declared, table).split(";\n")


def test_ranges_and_prefixes() -> None:
    assert words("ranges(age)") == [
        'CREATE VIEW "ranges_age" AS SELECT dp_ranges("age"), COUNT(*) AS "n" FROM "visits" GROUP BY dp_ranges("age")'
    ]
    assert words(" Prefixes ( AGE ) of count, sum(cost), avg(cost), count(cost)") == [
        'CREATE VIEW "prefixes_age" AS SELECT dp_prefixes("age"), COUNT(*) AS "n", SUM("cost") AS "sum_cost", '
        'AVG("cost") AS "avg_cost", COUNT("cost") AS "n_cost" FROM "visits" GROUP BY dp_prefixes("age")'
    ]


def test_marginals_are_all_groupings_up_to_their_order() -> None:
    names = [statement.split('"')[1] for statement in words('marginals(2, sex, "the state", age)')]
    assert names == [
        *("marginal_sex_the state", "marginal_sex_age", "marginal_the state_age"),
        *("marginal_sex", "marginal_the state", "marginal_age", "marginal_total"),
    ]
    assert words("groups(sex, age)") == [
        'CREATE VIEW "groups_sex_age" AS SELECT "sex", "age", COUNT(*) AS "n" FROM "visits" GROUP BY "sex", "age"'
    ]


def test_what_two_declarations_share_is_asked_once() -> None:
    both = words(["marginals(1, sex)", "marginals(1, sex, age)"])
    assert len(both) == 3


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("range(age)", "declares no workload: did you mean ranges"),
        ("SELECT 1", "declares no workload; write ranges"),
        ("ranges()", "needs one column"),
        ("ranges(age, sex)", "needs one column"),
        ("groups(sex, sex)", "needs different columns"),
        ("marginals(sex, age)", "marginals need their order first"),
        ("marginals(3, sex, age)", "the order is from 1 to the number of columns, 2 here"),
        ("ranges(agee)", "visits has no column agee"),
        ("ranges(age) of median(cost)", "'median(cost)' is not measured"),
        ("ranges(age) of sum", "'sum' is not measured"),
        ([], "the workload is empty"),
        (["marginals(1, sex)", "marginals(1, sex) of sum(cost)"], "both called marginal_sex"),
    ],
)
def test_what_is_no_workload(declared: str | list[str], said: str) -> None:
    with pytest.raises(dpsql.Error) as refused:
        words(declared)
    assert said in str(refused.value)


def test_the_table_is_named_where_there_are_several() -> None:
    with pytest.raises(
        dpsql.DataError, match=r"several private tables; name one with table=\.\.\. \(--table NAME\): visits, staff"
    ):
        words("ranges(age)", None)
    with pytest.raises(dpsql.PolicyError, match="no private table visit: did you mean visits"):
        words("ranges(age)", "visit")
    assert '"staff"' in words("ranges(age)", "STAFF")[0]


def test_too_many_groupings() -> None:
    columns = "\n".join(f'c{i} = {{ values = ["x"], type = "VARCHAR", nulls = false }}' for i in range(21))
    policy = dpsql.Policy.parse(POLICY.replace("cost =", f"{columns}\ncost ="))
    listed = ", ".join(f"c{i}" for i in range(21))
    with pytest.raises(dpsql.DataError, match="the workload has 232 groupings, at most 200"):
        workload_sql(policy, f"marginals(2, {listed})", "visits")


def test_questions_within_are_free(policy: Path) -> None:
    con = dpsql.connect(policy=policy)
    made = con.release_workload(
        ["ranges(age) of count, avg(cost)", 'marginals(2, sex, "the state")'], epsilon=2, table="visits", label="first"
    )
    assert made.cost > 0
    assert made.views[0] == "ranges_age"
    assert con.answers_others(made.id)
    paid = [entry.charge.units for entry in con.releases()]
    for question, exact in (
        ("SELECT count(*) FROM visits WHERE age BETWEEN 3 AND 9", sum(3 <= a <= 9 for a, *_ in ROWS)),
        ("SELECT count(*) FROM visits WHERE age IN (1, 5, 20)", sum(a in (1, 5, 20) for a, *_ in ROWS)),
        ("SELECT sum(cost) FROM visits WHERE age BETWEEN 0 AND 9", sum(c or 0 for a, _, _, c in ROWS if a < 10)),
        (
            "SELECT count(*) FROM visits WHERE sex = 'f' AND \"the state\" = 'NY'",
            sum((s, t) == ("f", "NY") for _, s, t, _ in ROWS),
        ),
    ):
        answer = con.run(question)
        assert (answer.cost, answer.guarantee) == (0.0, "free, from release 1")
        ((value, error, *_),) = answer["q1"].fetchall()
        assert abs(value - exact) <= 7 * error
    assert con.cursor().execute("SELECT count(*) FROM visits WHERE age BETWEEN 2 AND 4").fetchone() is not None
    assert [entry.charge.units for entry in con.releases() if entry.charge.units] == paid
    assert con.releases()[0].label == "first"


def test_large_workloads_say_that_others_cannot_rest_on_them(policy: Path) -> None:
    text = POLICY.replace("upper = 20", "upper = 1500")
    policy.write_text(text)
    con = dpsql.connect(policy=policy)
    made = con.release_workload("prefixes(age)", epsilon=2, delta=1e-9, table="visits", tolerance=0.5)
    assert not con.answers_others(made.id)


@pytest.mark.long
def test_the_command(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["release", "--policy", str(policy), "--table", "visits", "--workload", "ranges(age)", "--epsilon", "1"]
    assert main([*asked, "--dry-run"]) == 0
    assert "ranges_age" in capsys.readouterr().out
    assert not policy.with_suffix(".ledger").exists()
    assert main([*asked, "--dry-run", "--json"]) == 0
    assert "dp_ranges" in json.loads(capsys.readouterr().out)["sql"]
    assert main([*asked, "--label", "custodian"]) == 0
    said = capsys.readouterr().out
    assert "Release 1, spent epsilon 1, delta 1e-9; ranges_age" in said
    assert "Questions within it are free from now on" in said
    assert main(["run", "--policy", str(policy), "--sql", "SELECT 1 FROM visits", "--epsilon", "1"]) == 1
    capsys.readouterr()
    assert main([*asked, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["release"], again["cost"], again["answers_others"]) == (1, 0.0, True)
    assert (
        main([*asked, "--sql", "CREATE VIEW two AS SELECT sex, count(*) AS n FROM visits GROUP BY sex", "--fresh"]) == 1
    )
    assert "a view named ranges_age exists already" in capsys.readouterr().err


def test_the_command_needs_a_workload(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as usage:
        main(["release", "--policy", str(policy), "--epsilon", "1"])
    assert usage.value.code == 2
    assert "the workload is missing" in capsys.readouterr().err
    assert main(["release", "--policy", str(policy), "--workload", "ranges(age)", "--epsilon", "1"]) == 1
    assert "(--table NAME): visits, staff" in capsys.readouterr().err
