"""Tables that read one file are protected by one unit or refused: a row of it would count in both of a batch."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.common.pattern_block import PatternBlock
from dpsql.policy import Policy

HEAD = 'dataset = "d-1"\n[budget]\nepsilon = 4.0\n'
BATCH = "SELECT COUNT(*) FROM x; SELECT COUNT(*) FROM y"


def table(name: str, source: str, unit: str = 'unit = "row"') -> str:
    return f'[tables.{name}]\n{unit}\nsource = "{source}"\n[tables.{name}.columns]\na = {{ lower = 0, upper = 9 }}\n'


def connected(folder: Path, *tables: str) -> dpsql.Connection:
    policy = Policy.parse(HEAD + "".join(tables), path=folder / "p.toml")
    return dpsql.connect(policy=policy, ledger=folder / "l.ledger")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        duckdb.sql("SELECT i::INTEGER AS a, i::INTEGER AS owner FROM range(9) r(i)").write_parquet(
            str(tmp_path / f"{name}.parquet")
        )
    (tmp_path / "link.parquet").symlink_to(tmp_path / "one.parquet")
    os.link(tmp_path / "one.parquet", tmp_path / "hard.parquet")
    return tmp_path


@pytest.mark.parametrize("other", ["one.parquet", "./one.parquet", "link.parquet", "hard.parquet", "o*.parquet", "./"])
@pytest.mark.parametrize("first", ['unit = "row"', 'unit = "a"\nmax_rows_per_unit = 2', "public = true"])
@pytest.mark.few(every=3)
def test_one_file_in_two_tables_is_refused(folder: Path, first: str, other: str) -> None:
    con = connected(
        folder, table("x", "one.parquet", first), table("y", other, 'unit = "owner"\nmax_rows_per_unit = 2')
    )
    with pytest.raises(dpsql.Error, match="tables x and y read one file") as raised:
        con.plan(BATCH, 1)
    assert ".parquet" not in str(raised.value)  # names of files may be made of values


def test_files_apart_and_tables_of_one_unit_are_planned(folder: Path) -> None:
    con = connected(folder, table("x", "one.parquet"), table("y", "two.parquet"))
    assert con.plan(BATCH, 1).sensitivity == 1
    unit = 'unit = "owner"\nmax_rows_per_unit = 2'
    again = connected(folder, table("x", "one.parquet", unit), table("y", "link.parquet", unit))
    plan = again.plan(BATCH, 1)
    moved = plan.strategy.matrix() @ np.array([[2, 2, 0], [2, 0, 2]])
    # One block of both counts, for patterns: a unit moves both at once. A step more for changes between these.
    assert plan.strategy.blocks == (PatternBlock(2, 2),)
    assert plan.sensitivity == abs(moved).max() + 1
