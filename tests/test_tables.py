"""Tables of a release: the user's names stay, derived names give way."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql

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
def test_names_of_the_user_come_first(con: dpsql.Connection, items: str, columns: list[str]) -> None:
    group = " GROUP BY g" if items.startswith("g,") else ""
    release = con.run(f"SELECT {items} FROM t{group}", epsilon=1.0)
    assert list(release["q1"].columns) == columns


def test_without_errors_the_names_are_the_users_alone(con: dpsql.Connection) -> None:
    release = con.run("SELECT count(*) AS n, count_if(a = 0) AS n_stderr FROM t", epsilon=1.0, errors=False)
    assert list(release["q1"].columns) == ["n", "n_stderr"]
