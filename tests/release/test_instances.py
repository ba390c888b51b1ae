"""DuckDB instances that stay open between writes and reads of releases."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dpsql.release import instances
from dpsql.release.instances import CATALOG, attached


@pytest.fixture(autouse=True)
def none_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "_spare", [])


def test_what_was_written_is_in_the_file_and_the_instance_forgets_it(tmp_path: Path) -> None:
    with attached(tmp_path / "a.duckdb", writing=True) as first:
        first.execute(
            "CREATE TABLE main.t AS SELECT 1 AS n; CREATE SCHEMA dp; CREATE VIEW dp.v AS SELECT * FROM main.t"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a.duckdb"]
    assert instances._spare == [first]
    databases = first.execute("SELECT database_name FROM duckdb_databases() WHERE NOT internal").fetchall()
    assert databases == [("memory",)]
    with attached(tmp_path / "a.duckdb") as second:
        assert second is first
        assert second.execute("FROM dp.v").fetchall() == [(1,)]
        with pytest.raises(duckdb.InvalidInputException, match="read-only"):
            second.execute("CREATE TABLE main.u (n INTEGER)")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as plain:  # views name no catalog
        assert plain.execute("FROM dp.v").fetchall() == [(1,)]


def test_one_that_failed_is_not_used_again(tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error), attached(tmp_path / "a.duckdb", writing=True) as first:
        first.execute("BEGIN; CREATE TABLE main.t (n INTEGER); SELECT * FROM nothing")
    with pytest.raises(duckdb.Error), attached(tmp_path / "none.duckdb"):
        pass
    assert instances._spare == []
    with pytest.raises(duckdb.ConnectionException):
        first.execute("SELECT 1")


def test_a_file_is_read_while_another_is_written(tmp_path: Path) -> None:
    with attached(tmp_path / "a.duckdb", writing=True) as old:
        old.execute("CREATE TABLE main.t AS SELECT 1 AS n")
    with attached(tmp_path / "b.duckdb", writing=True) as new, attached(tmp_path / "a.duckdb") as read:
        assert new is not read
        new.execute("CREATE TABLE main.t AS SELECT 2 AS n")
        assert read.execute(f"FROM {CATALOG}.main.t").fetchall() == [(1,)]
    assert len(instances._spare) == 2
