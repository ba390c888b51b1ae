"""DuckDB instances that stay open between writes and reads of releases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from dpsql.common.connection_pool import SpareInstances
from dpsql.release import instances
from dpsql.release.instances import CATALOG, attached
from dpsql.release.reading import isolated


@pytest.fixture(autouse=True)
def none_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "_spare", SpareInstances(instances._MOST_SPARE))


def test_what_was_written_is_in_the_file_and_the_instance_forgets_it(tmp_path: Path) -> None:
    with attached(tmp_path / "a.duckdb", writing=True) as first:
        first.execute(
            "CREATE TABLE main.t AS SELECT 1 AS n; CREATE SCHEMA dp; CREATE VIEW dp.v AS SELECT * FROM main.t"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a.duckdb"]
    assert instances._spare == {(None, False): first}
    databases = first.execute("SELECT database_name FROM duckdb_databases() WHERE NOT internal").fetchall()
    assert databases == [("memory",)]
    with attached(tmp_path / "a.duckdb") as second:
        assert second.execute("FROM dp.v").fetchall() == [(1,)]
        with pytest.raises(duckdb.InvalidInputException, match="read-only"):
            second.execute("CREATE TABLE main.u (n INTEGER)")
    with attached(tmp_path / "a.duckdb") as third:
        assert third is second
    with duckdb.connect(str(tmp_path / "a.duckdb")) as plain:  # views name no catalog
        assert plain.execute("FROM dp.v").fetchall() == [(1,)]


def test_one_that_failed_is_not_used_again(tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error), attached(tmp_path / "a.duckdb", writing=True) as first:
        first.execute("BEGIN; CREATE TABLE main.t (n INTEGER); SELECT * FROM nothing")
    with pytest.raises(duckdb.Error), attached(tmp_path / "none.duckdb"):
        pass
    assert instances._spare == {}
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


def test_a_question_leaves_nothing_to_the_next_and_the_file_to_others(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    with attached(path, writing=True) as made:
        made.execute("CREATE SCHEMA dp; CREATE TABLE dp.t AS SELECT 1 AS n")
    with isolated(path) as first:
        first.execute("CREATE TEMP VIEW q1 AS FROM dp.t")
        assert first.execute("FROM q1").fetchall() == first.execute("FROM t").fetchall() == [(1,)]
        with pytest.raises(duckdb.Error, match="locked"):
            first.execute("SET memory_limit = '3GB'")
    with duckdb.connect(str(path)) as plain:
        plain.execute("UPDATE dp.t SET n = 2")
    held = instances._spare[path, True]
    with isolated(path) as second:
        assert second.execute("FROM t").fetchall() == [(2,)]
        with pytest.raises(duckdb.CatalogException, match="q1"):
            second.execute("FROM q1")
    assert instances._spare[path, True] is held


def test_one_that_reads_reaches_its_file_alone(tmp_path: Path) -> None:
    """A view that somebody planted in the file shows no other file."""
    (tmp_path / "secret.csv").write_text("x\nhidden\n")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as plain:
        plain.execute(f"CREATE VIEW main.releases AS SELECT x FROM read_csv('{tmp_path}/secret.csv')")
    with pytest.raises(duckdb.PermissionException), attached(tmp_path / "a.duckdb") as reading:
        reading.execute("FROM main.releases")
    with pytest.raises(duckdb.Error, match="locked"), attached(tmp_path / "a.duckdb") as again:
        again.execute("SET enable_external_access = true")


@pytest.mark.long
def test_a_forked_child_ends_as_it_should(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from dpsql.engines.duckdb import instance
from dpsql.release.instances import attached
from dpsql.sql.outer.sandbox import Sandbox
path = Path({str(tmp_path / "a.duckdb")!r})
with attached(path, writing=True) as made:
    made.execute("CREATE TABLE main.t AS SELECT 1 AS n")
with attached(path) as read, instance(path), Sandbox() as sandbox:
    read.execute("FROM main.t")
    sandbox.create("t", [("n", "INTEGER")])
child = os.fork()
if child == 0:
    sys.exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "0\n"
