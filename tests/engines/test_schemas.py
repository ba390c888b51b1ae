"""The instances that describe tables: kept by the files that each can reach, and a file is free between two looks."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dpsql.engines import schemas as room
from dpsql.engines.base import TableSource
from dpsql.engines.duckdb import FileEngine
from dpsql.engines.schemas import described
from dpsql.errors import OperationalError
from dpsql.spare import SpareInstances


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_kept", SpareInstances(room._MOST_KEPT))


def made(folder: Path, name: str, columns: str = "a INTEGER") -> Path:
    path = folder / f"{name}.duckdb"
    with duckdb.connect(path) as con:
        con.execute(f"CREATE OR REPLACE TABLE t ({columns})")
    return path


def test_a_table_that_changes_is_described_anew(tmp_path: Path) -> None:
    engine = FileEngine(made(tmp_path, "x"))
    assert engine.schemas([TableSource("t")]) == {"t": {"a": "INTEGER"}}
    (kept,) = room._kept.values()
    made(tmp_path, "x", "a INTEGER, b DATE")  # nobody holds the file meanwhile
    assert engine.schemas([TableSource("t")]) == {"t": {"a": "INTEGER", "b": "DATE"}}
    (tmp_path / "x.duckdb").unlink()
    made(tmp_path, "x", "c DOUBLE")
    assert engine.schemas([TableSource("t")]) == {"t": {"c": "DOUBLE"}}
    assert list(room._kept.values()) == [kept]


def test_an_instance_reaches_its_own_files_alone(tmp_path: Path) -> None:
    first, other = made(tmp_path, "first"), made(tmp_path, "other")
    (tmp_path / "some.csv").write_text("a\n1\n")
    for _ in range(2):
        with described(first) as connection:
            for text in (f"ATTACH '{other}' AS o", f"FROM read_csv('{tmp_path}/some.csv')", "SET threads = 2"):
                with pytest.raises(duckdb.Error):
                    connection.execute(text)


def test_few_are_kept_and_none_that_failed(tmp_path: Path) -> None:
    paths = [made(tmp_path, f"x{number}") for number in range(6)]
    for path in paths:
        with described(path):
            pass
    assert [reached[0] for reached in room._kept] == paths[-room._MOST_KEPT :]
    with pytest.raises(OperationalError, match="not a file"), described(tmp_path / "none.duckdb"):
        pass
    with pytest.raises(ZeroDivisionError), described(paths[-1]) as failed:
        1 / 0  # noqa: B018
    with pytest.raises(duckdb.ConnectionException):
        failed.execute("SELECT 1")
    assert [reached[0] for reached in room._kept] == paths[-room._MOST_KEPT : -1]


def test_two_at_once_are_two_and_one_is_kept(tmp_path: Path) -> None:
    path = made(tmp_path, "x")
    with described(path) as first, described(path) as second:
        assert first is not second
    assert len(room._kept) == 1


def test_a_child_takes_none_of_its_parents(tmp_path: Path) -> None:
    with described(made(tmp_path, "x")) as held:
        pass
    room._kept._forked()
    assert room._kept == {}
    assert held.execute("SELECT 1").fetchall() == [(1,)]  # not closed
