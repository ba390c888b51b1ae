"""The instances that describe and scan tables: kept by the files that each can reach, which are free between looks."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from helpers import counts_of, filled

from dpsql.common.connection_pool import SpareInstances
from dpsql.engines import duckdb as room
from dpsql.engines.base import TableSource
from dpsql.engines.duckdb import FileEngine, instance
from dpsql.errors import OperationalError


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_spare", SpareInstances(room._MOST_SPARE))


def made(folder: Path, name: str, columns: str = "a INTEGER") -> Path:
    path = folder / f"{name}.duckdb"
    with filled(path) as con:
        con.execute(f"CREATE OR REPLACE TABLE t ({columns})")
    return path


def test_a_table_that_changes_is_described_anew(tmp_path: Path) -> None:
    engine = FileEngine(made(tmp_path, "x"))
    assert engine.schemas([TableSource("t")]) == {"t": {"a": "INTEGER"}}
    (kept,) = room._spare.values()
    made(tmp_path, "x", "a INTEGER, b DATE")  # nobody holds the file meanwhile
    assert engine.schemas([TableSource("t")]) == {"t": {"a": "INTEGER", "b": "DATE"}}
    (tmp_path / "x.duckdb").unlink()
    made(tmp_path, "x", "c DOUBLE")
    assert engine.schemas([TableSource("t")]) == {"t": {"c": "DOUBLE"}}
    assert list(room._spare.values()) == [kept]


def test_an_instance_reaches_its_own_files_alone(tmp_path: Path) -> None:
    first, other = made(tmp_path, "first"), made(tmp_path, "other")
    (tmp_path / "some.csv").write_text("a\n1\n")
    for _ in range(2):
        with instance(first) as connection:
            for text in (f"ATTACH '{other}' AS o", f"FROM read_csv('{tmp_path}/some.csv')", "SET threads = 2"):
                with pytest.raises(duckdb.Error):
                    connection.execute(text)


def test_few_are_kept_and_none_that_failed(tmp_path: Path) -> None:
    paths = [made(tmp_path, f"x{number}") for number in range(6)]
    for path in paths:
        with instance(path):
            pass
    assert [reached[0] for reached, *_ in room._spare] == paths[-room._MOST_SPARE :]
    with pytest.raises(OperationalError, match="not a file"), instance(tmp_path / "none.duckdb"):
        pass
    with pytest.raises(ZeroDivisionError), instance(paths[-1]) as failed:
        1 / 0  # noqa: B018
    with pytest.raises(duckdb.ConnectionException):
        failed.execute("SELECT 1")
    assert [reached[0] for reached, *_ in room._spare] == paths[-room._MOST_SPARE : -1]


def test_two_at_once_are_two_that_spill_apart(tmp_path: Path) -> None:
    path = made(tmp_path, "x")
    with instance(path) as first, instance(path) as second:
        assert first is not second
    assert len({spill for *_, spill in room._spare}) == len(room._spare) == 2


def test_a_scan_has_the_instance_that_described_its_tables(tmp_path: Path) -> None:
    engine = FileEngine(made(tmp_path, "x"))
    engine.schemas([TableSource("t")])
    (kept,) = room._spare.values()
    assert engine.scan(counts_of(TableSource("t"), "a"))["n"].size == 0
    assert list(room._spare.values()) == [kept]


def test_a_child_takes_none_of_its_parents(tmp_path: Path) -> None:
    with instance(made(tmp_path, "x")) as held:
        pass
    room._spare._forked()
    assert room._spare == {}
    assert held.execute("SELECT 1").fetchall() == [(1,)]  # not closed
