"""Tables of a release: the user's names stay, derived names give way."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.free_sql import limits
from dpsql.running import post_process as afterwards
from dpsql.running import result_tables as tables

POLICY = """
dataset = "n-1"
[budget]
epsilon = 40.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 3 }
g = { values = ["x", "y"], other = true }
"""


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    folder: Path = tmp_path_factory.mktemp("tables")
    with duckdb.connect(folder / "n.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT range::INT % 4 AS a, 'x' AS g FROM range(40)")
    (folder / "n.toml").write_text(POLICY)
    return dpsql.connect(folder / "n.duckdb", policy=folder / "n.toml")


@pytest.mark.parametrize(
    ("items", "columns"),
    [
        ("count(*) AS n, count_if(a = 0) AS n_stderr",
         ["n", "n_stderr_1", "n_low", "n_high", "n_stderr", "n_stderr_stderr", "n_stderr_low", "n_stderr_high"]),
        ("count(*) AS n, count_if(a = 0) AS N_Low, count_if(a = 1) AS n_low_1",
         ["n", "n_stderr", "n_low_2", "n_high", "N_Low", "N_Low_stderr", "N_Low_low", "N_Low_high",
          "n_low_1", "n_low_1_stderr", "n_low_1_low", "n_low_1_high"]),
        ("g, count(*) AS g_other", ["g", "g_other_1", "g_other", "g_other_stderr", "g_other_low", "g_other_high"]),
    ],
)  # fmt: skip
@pytest.mark.few(every=2)
def test_names_of_the_user_come_first(con: dpsql.Connection, items: str, columns: list[str]) -> None:
    group = " GROUP BY g" if items.startswith("g,") else ""
    release = con.run(f"SELECT {items} FROM t{group}", epsilon=1.0)
    assert list(release["q1"].columns) == columns


def test_without_errors_the_names_are_the_users_alone(con: dpsql.Connection) -> None:
    release = con.run("SELECT count(*) AS n, count_if(a = 0) AS n_stderr FROM t", epsilon=1.0, errors=False)
    assert list(release["q1"].columns) == ["n", "n_stderr"]


LONG = "SELECT repeat('x', {0}) AS words, COUNT(*) AS n FROM t"


def test_too_much_text_is_refused_before_the_charge(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afterwards, "MOST_BYTES", 1000)
    spent = con.budget.spent
    with pytest.raises(
        dpsql.SQLError, match=r"q1: .*makes 1 rows with 1,001 bytes of text.*nothing was charged"
    ) as told:
        con.run(LONG.format(1001), epsilon=1.0)
    assert told.value.code == "too-large"
    with pytest.raises(dpsql.SQLError, match="q2: "):  # results of one batch share the room
        con.run(f"{LONG.format(700)}; {LONG.format(701)}", epsilon=1.0)
    assert con.budget.spent == spent
    assert con.run(LONG.format(1000), epsilon=1.0)["q1"].fetchall()[0][0] == "x" * 1000


@pytest.mark.long
def test_outer_sql_that_takes_too_long_is_refused_before_the_charge(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(afterwards, "OUTER_SECONDS", 0.1)
    for name in ("MOST_AT_ONCE", "MOST_STEPS"):
        monkeypatch.setattr(limits, name, 10**12)
    endless = "SELECT list_sum(list_transform(range(3000), x -> list_sum(range(20000 + x)))) AS l, COUNT(*) AS n FROM t"
    with pytest.raises(dpsql.SQLError, match=r"q1: .*takes longer than .*nothing was charged"):
        con.run(endless, epsilon=1.0)


def test_too_much_text_after_the_charge_leaves_the_noisy_table(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(afterwards, "MOST_BYTES", 1000)
    plan = con.plan("SELECT repeat('x', least(2000, greatest(0, COUNT(*)::INTEGER))) AS words FROM t", epsilon=1.0)
    (small,) = tables.release_tables(plan, [0] * plan.strategy.shape[0])
    assert small.columns[0][0] == "words"
    y = [10**6] * plan.strategy.shape[0]
    (large,) = tables.release_tables(plan, y)
    assert "words" not in [column[0] for column in large.columns]
    with pytest.raises(dpsql.SQLError, match="nothing was charged"):
        tables.release_tables(plan, y, rehearsal=True)
