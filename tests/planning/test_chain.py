"""The chain of a plan: each step that was applied, by hand for batches of every way to carry one."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql

POLICY = """
dataset = "chain"
[budget]
epsilon = 10.0
delta = 1e-6
[tables.v]
unit = "row"
[tables.v.columns.ward]
values = ["a", "b", "c", "d", "e"]
[tables.v.columns.sex]
values = ["f", "m"]
[tables.v.columns.day]
lower = 1
upper = 2000
[tables.v.columns.age]
lower = 0
upper = 99
"""


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    return _connected(tmp_path, POLICY)


@pytest.fixture
def pure(tmp_path: Path) -> dpsql.Connection:
    return _connected(tmp_path, POLICY.replace("delta = 1e-6\n", ""))


def _connected(tmp_path: Path, text: str) -> dpsql.Connection:
    database = duckdb.connect()
    database.execute("CREATE TABLE v (ward VARCHAR, sex VARCHAR, day INTEGER, age INTEGER)")
    policy = tmp_path / "policy.toml"
    policy.write_text(text)
    return dpsql.connect(database, policy, ledger=tmp_path / "l.ledger")


def _steps(text: str) -> list[tuple[str, str]]:
    """(name, kind) of each step; what follows on further lines is indented."""
    return [(line[:13].strip(), line[13:24].strip()) for line in text.splitlines() if line.strip() and line[0] != " "]


def test_rows_that_are_there_twice_are_planned_once(con: dpsql.Connection) -> None:
    by = "SELECT ward, COUNT(*) AS n FROM v GROUP BY ward"
    plan = con.plan(f"{by}; SELECT COUNT(*) AS m FROM v; {by}", epsilon=1.0, delta=1e-7)
    assert _steps(plan.chain) == [("deduplicate", "exact"), ("merge cells", "exact"), ("choose", "<= 0.01%")]
    # Five wards and NULL, twice, and all: by hand.
    assert "13 numbers, of which 7 differ" in plan.chain
    assert "6 cells" in plan.chain
    assert plan.chain in plan.explain()


def test_groups_that_share_no_cell_are_split_and_counted(con: dpsql.Connection) -> None:
    apart = "; ".join(
        f"SELECT sex, COUNT(*) AS n FROM v WHERE ward = '{ward}' GROUP BY sex; SELECT COUNT(*) AS m FROM v "
        f"WHERE ward = '{ward}'"
        for ward in "abcd"
    )
    plan = con.plan(apart, epsilon=1.0, delta=1e-7)
    assert [name for name, _ in _steps(plan.chain)] == ["merge cells", "split", "copies", "choose"]
    assert "4 independent problems" in plan.chain
    assert "which leaves 1" in plan.chain


def test_a_long_line_is_a_heuristic_with_its_certificate(con: dpsql.Connection) -> None:
    plan = con.plan("SELECT dp_ranges(day), COUNT(*) AS n FROM v GROUP BY dp_ranges(day)", epsilon=1.0, delta=1e-7)
    names = dict(_steps(plan.chain))
    assert names["line"] == "heuristic"
    assert plan.gap is not None
    assert names["choose"] == f"<= {plan.gap:.2%}"


def test_pure_noise_has_no_certificate_and_names_what_else_was_tried(pure: dpsql.Connection) -> None:
    plan = pure.plan("SELECT ward, COUNT(*) AS n FROM v GROUP BY ward; SELECT COUNT(*) AS m FROM v", epsilon=1.0)
    assert dict(_steps(plan.chain))["choose"] == "heuristic"
    assert "squared errors of others over its own: " in " ".join(plan.chain.split())


def test_every_line_fits_eighty_columns(con: dpsql.Connection) -> None:
    plan = con.plan("SELECT ward, sex, age, COUNT(*) AS n FROM v GROUP BY CUBE(ward, sex, age)", epsilon=1.0)
    assert max(map(len, plan.chain.splitlines())) <= 80
