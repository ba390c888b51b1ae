"""The releases file: written whole, readable by plain DuckDB, closed to everything else."""

from __future__ import annotations

import datetime as dt
import math
import multiprocessing
import os
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpsql.common.connection_pool import SpareInstances
from dpsql.errors import IntegrityError, OperationalError, SQLError
from dpsql.release import ReleaseRecord, ReleaseStore, ReleaseTable, instances
from dpsql.release import lock as lock_module
from dpsql.release import reading as reading_module
from dpsql.release import store as store_module


def table(name: str, *values: float, named: bool = True) -> ReleaseTable:
    keys = [f"k{i}" for i in range(len(values))]
    return ReleaseTable(name, named, (("key", "VARCHAR", keys), ("n", "DOUBLE", list(values))))


def record(release_id: int, *tables: ReleaseTable, **changes: object) -> ReleaseRecord:
    when = dt.datetime(2026, 1, 1) + dt.timedelta(days=release_id)
    return ReleaseRecord(release_id, when, tables, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> ReleaseStore:
    return ReleaseStore(tmp_path / "it's here.releases.duckdb")


def content(path: Path) -> list[object]:
    """Everything in the file, as plain DuckDB sees it."""
    with duckdb.connect(str(path), read_only=True) as connection:
        query = "SELECT schema_name, view_name FROM duckdb_views() WHERE schema_name = 'dp' ORDER BY ALL"
        views = connection.execute(query).fetchall()
        query = "SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL"
        tables = connection.execute(query).fetchall()
        found: list[object] = []
        for schema, name in views + tables:
            quoted = name.replace('"', '""')
            cursor = connection.execute(f'SELECT * FROM {schema}."{quoted}"')
            types = [(d[0], str(d[1])) for d in cursor.description]
            found.append((schema, name, types, cursor.fetchall()))
        return found


def test_write_and_read(store: ReleaseStore) -> None:
    assert store.names() == tuple(store.shown()) == ()
    store.write(
        record(
            1,
            table("by_state", 1.5, -2.5),
            table("q1", 7.0, named=False),
            label="first",
            guarantee="epsilon = 1",
            purse="pure",
            cost=1.0,
            noise="laplace",
            strategy="identity",
            queries=3,
            gap=1e-3,
            sql="SELECT 1",
            purse_total=4.0,
            purse_spent=3.0,
            purse_remaining=1.0,
            unit="one row of t",
        )
    )
    assert store.names() == ("by_state", "q1")
    assert tuple(store.shown()) == (1,)
    assert store.sql("SELECT * FROM by_state ORDER BY n").fetchall() == [("k1", -2.5), ("k0", 1.5)]
    assert store.sql("FROM dp.q1").fetchall() == store.table(1, "q1").fetchall() == [("k0", 7.0)]
    assert store.sql("SELECT n FROM by_state WHERE key = ?", ["k0"]).fetchall() == [(1.5,)]
    assert store.sql("SELECT n FROM by_state WHERE key = $k", {"k": "k0"}).fetchall() == [(1.5,)]
    listing = store.sql("FROM releases")
    assert listing.fetchall() == [
        (
            *(
                1,
                dt.datetime(2026, 1, 2),
                "first",
                "epsilon = 1",
                "pure",
                1.0,
                "laplace",
                "identity",
                3,
                1e-3,
            ),
            *(["by_state", "q1"], "SELECT 1", 4.0, 3.0, 1.0, "one row of t", None),
        )
    ]
    assert listing.types[:2] == ("BIGINT", "TIMESTAMP")
    assert not list(store.path.parent.glob("*.wal"))
    assert not list(store.path.parent.glob(".*.tmp"))


def test_a_draft_is_synced_whole_before_it_has_the_name(store: ReleaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    replace, sync = os.replace, os.fsync
    monkeypatch.setattr(store_module.os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), sync(file)))

    def replaced(draft: Path, path: Path) -> None:
        assert synced.pop() == draft.stat().st_size
        replace(draft, path)

    monkeypatch.setattr(store_module.os, "replace", replaced)
    for number in (1, 2):
        store.write(record(number, table("a", float(number))))
    assert store.sql("FROM a").fetchall() == [("k0", 2.0)]
    assert not synced


def test_a_file_without_the_figures_of_accounts_gets_their_columns(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    with duckdb.connect(str(store.path)) as held:
        held.execute("DROP VIEW dp.releases")
        for name in ("purse_total", "purse_spent", "purse_remaining", "unit"):
            held.execute(f"ALTER TABLE main.releases DROP COLUMN {name}")
        held.execute("CREATE VIEW dp.releases AS SELECT * FROM main.releases ORDER BY release_id")
    store.write(record(2, table("a", 2.0), purse_total=3.0, purse_spent=1.0, purse_remaining=2.0, unit="one row of t"))
    seen = store.sql("SELECT release_id, purse_total, purse_spent, purse_remaining, unit FROM releases").fetchall()
    assert seen == [(1, None, None, None, None), (2, 3.0, 1.0, 2.0, "one row of t")]


def test_views_show_the_latest_release_of_each_name(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0), table("b", 1.0)))
    store.write(record(3, table("A", 3.0)))
    store.write(record(2, table("a", 2.0), table("b", 2.0), table("c", 2.0)))
    values = {name: store.sql(f"SELECT n FROM {name}").fetchall() for name in "abc"}
    assert values == {"a": [(3.0,)], "b": [(2.0,)], "c": [(2.0,)]}
    assert store.sql("SELECT n FROM r1.a").fetchall() == [(1.0,)]
    assert [n.lower() for n in store.names()] == ["a", "b", "c"]


def test_writing_again_changes_nothing(store: ReleaseStore) -> None:
    one, two = record(1, table("a", 1.0)), record(2, table("a", 2.0))
    store.write(one)
    before = content(store.path)
    store.write(one)
    assert content(store.path) == before
    store.write(one, two, two)
    assert tuple(store.shown()) == (1, 2)


def test_values_keep_their_types(store: ReleaseStore) -> None:
    columns = (
        ("i", "UTINYINT", [255, None]),
        ("h", "HUGEINT", [2**100, None]),
        ("d", "DECIMAL(18,3)", [Decimal("1.250"), None]),
        ("day", "DATE", [dt.date(2026, 1, 31), None]),
        ("at", "TIMESTAMP", [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None]),
        ("clock", "TIME", [dt.time(23, 59, 1), None]),
        ("b", "BOOLEAN", [True, None]),
        ("e", "ENUM('it''s', 'b')", ["it's", None]),
        ("raw", "BLOB", [b"\x00\xff", None]),
        ("x", "DOUBLE", [0.1 + 0.2, None]),
        ("inf", "DOUBLE", [math.inf, -math.inf]),
        ("text", "VARCHAR", ["nan", None]),
    )
    store.write(record(1, ReleaseTable("t", True, columns)))
    result = store.sql("FROM t")
    assert result.fetchall() == [tuple(values[i] for _, _, values in columns) for i in range(2)]
    assert [t.replace(" ", "") for t in result.types] == [kind.replace(" ", "") for _, kind, _ in columns]


def test_nan_is_not_null(store: ReleaseStore) -> None:
    store.write(record(1, ReleaseTable("t", True, (("x", "DOUBLE", [math.nan, None, 0.1]),))))
    first, second, third = store.sql("SELECT x FROM t").column("x")
    assert math.isnan(first)
    assert (second, third) == (None, 0.1)


NAMES = ["order", "SELECT", "naïve größe", 'say "hi"', "it's", "a.b", "日本", "; DROP SCHEMA dp; --", "main"]


def test_names_of_any_kind(store: ReleaseStore) -> None:
    made = [ReleaseTable(name, True, ((name, "DOUBLE", [float(i)]),)) for i, name in enumerate(NAMES)]
    store.write(record(1, *made))
    assert set(store.names()) == set(NAMES)
    for i, name in enumerate(NAMES):
        quoted = '"' + name.replace('"', '""') + '"'
        result = store.sql(f"SELECT {quoted} FROM {quoted}")
        assert result.columns == (name,)
        assert result.fetchall() == [(float(i),)] == store.table(1, name).fetchall()


def test_rebuild_equals_what_was_written(store: ReleaseStore, tmp_path: Path) -> None:
    made = [
        record(1, table("a", 1.0), table("q1", 5.0, named=False)),
        record(2, table("b", 2.0), label="zwei"),
        record(3, table("a", 3.0), ReleaseTable("empty", True, (("n", "DOUBLE", []),))),
    ]
    for one in made:
        store.write(one)
    other = ReleaseStore(tmp_path / "other.duckdb")
    other.rebuild(ReleaseRecord.from_bytes(one.to_bytes()) for one in reversed(made))
    assert content(other.path) == content(store.path)
    before = content(store.path)
    store.path.write_bytes(b"not a database at all")
    with pytest.raises(OperationalError, match="dpsql releases rebuild"):
        store.sql("FROM a")
    with pytest.raises(OperationalError, match="dpsql releases rebuild"):
        store.write(record(4, table("a", 4.0)))
    store.rebuild(made)
    assert content(store.path) == before
    store.rebuild([])
    assert store.names() == ()
    assert store.sql("FROM releases").fetchall() == []


REFUSED = [
    "",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW dp.a",
    "COPY a TO 'out.csv'",
    "COPY (SELECT 1) TO 'out.csv'",
    "EXPORT DATABASE 'out'",
    "ATTACH 'other.db'",
    "DETACH dpsql_releases",
    "USE memory",
    "INSTALL json",
    "LOAD json",
    "SET threads = 1",
    "SET search_path = 'main'",
    "RESET lock_configuration",
    "SET enable_external_access = true",
    "PRAGMA database_size",
    "CALL pragma_version()",
    "CREATE TABLE t (a INT)",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "DROP VIEW dp.a",
    "INSERT INTO r1.a VALUES ('k', 1)",
    "UPDATE r1.a SET n = 0",
    "DELETE FROM r1.a",
    "PREPARE p AS SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "FROM read_csv('/etc/passwd')",
    "FROM '/etc/passwd'",
    "FROM 'secret.csv'",
    "FROM read_text('/etc/passwd')",
    "FROM read_blob('/etc/passwd')",
    "FROM glob('/etc/*')",
    "FROM read_parquet('x.parquet')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "FROM python_variable",
    "SELECT * FROM frame_of_the_caller",
    "SELECT getenv('HOME')",
    "SELECT now()",
    "SELECT",
    "SELECT n FROM",
    "SELECT n / 'x' FROM a",
    "SELECT '\ud800'",
    "SELECT ?",
    "/* SELECT",
]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> ReleaseStore:
    """A store with one release, for tests that only ask."""
    store = ReleaseStore(tmp_path_factory.mktemp("held") / "it's here.releases.duckdb")
    store.write(record(1, table("a", 1.0, 2.0)))
    (store.path.parent / "secret.csv").write_text("private\n42\n")
    return store


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.few(every=3)
def test_everything_but_one_select_is_refused(held: ReleaseStore, text: str) -> None:
    import pandas as pd

    python_variable = pd.DataFrame({"private": [42]})
    frame_of_the_caller = python_variable
    assert frame_of_the_caller is python_variable
    before = {path: path.read_bytes() for path in held.path.parent.iterdir()}
    with pytest.raises(SQLError) as caught:
        held.sql(text)
    assert "\n" not in str(caught.value)
    assert "42" not in str(caught.value)
    assert {path: path.read_bytes() for path in held.path.parent.iterdir()} == before


@pytest.mark.parametrize(
    "text",
    [
        *(
            "FROM a",
            "SELECT * FROM a;",
            "(SELECT 1)",
            "VALUES (1), (2)",
            "TABLE a",
            "SHOW TABLES",
            "DESCRIBE a",
        ),
        *(
            "SUMMARIZE a",
            "WITH x AS (FROM a) SELECT sum(n) FROM x",
            "SELECT rank() OVER (ORDER BY n) FROM dp.a",
        ),
        "SELECT a.n FROM a JOIN r1.a AS b USING (key) ORDER BY 1 LIMIT 3",
    ],
)
def test_questions_are_answered(held: ReleaseStore, text: str) -> None:
    assert len(held.sql(text)) >= 1


def test_an_unknown_name_is_explained(store: ReleaseStore) -> None:
    store.write(record(1, table("by_state", 1.0)))
    with pytest.raises(SQLError, match=r"no release is called 'by_stat'; did you mean by_state\?"):
        store.sql("FROM by_stat")


def test_a_missing_file_says_what_to_do(store: ReleaseStore) -> None:
    with pytest.raises(OperationalError, match="dpsql releases rebuild"):
        store.sql("SELECT 1")
    with pytest.raises(OperationalError, match="dpsql releases rebuild"):
        store.attach_to(duckdb.connect())
    assert not store.path.exists()


def test_time_zone_is_utc(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    assert store.sql("SELECT hour(TIMESTAMPTZ '2026-01-01 12:00:00+00')").fetchall() == [(12,)]


HOLDER = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read")
connection.execute("FROM dp.a").fetchall()
print("ready", flush=True)
sys.stdin.read()
"""


def test_readers_never_block_a_release_and_a_foreign_writer_is_named(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    for mode in ("read", "write"):
        command = [sys.executable, "-c", HOLDER, str(store.path), mode]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert holder.stdout.readline() == b"ready\n"
            if mode == "read":
                store.write(record(2, table("a", 2.0)))
                assert store.sql("SELECT n FROM a").fetchall() == [(2.0,)]
            else:
                with pytest.raises(OperationalError, match="dpsql releases rebuild"):
                    store.sql("SELECT n FROM a")
                with pytest.raises(OperationalError, match="dpsql releases rebuild"):
                    store.write(record(3, table("a", 3.0)))
            holder.stdin.close()
    store.write(record(3, table("a", 3.0)))
    assert tuple(store.shown()) == (1, 2, 3)


def write_one(path: str, release_id: int) -> None:
    ReleaseStore(path).write(record(release_id, table(f"t{release_id}", 1.0)))


def test_no_write_is_lost_between_processes(store: ReleaseStore) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_one, args=(str(store.path), i)) for i in range(1, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert tuple(store.shown()) == (1, 2)


def test_no_write_is_lost_between_threads(store: ReleaseStore) -> None:
    threads = [threading.Thread(target=write_one, args=(str(store.path), i)) for i in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert tuple(store.shown()) == (1, 2, 3, 4, 5)


def test_waiting_for_a_writer_ends(store: ReleaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_WAIT", 0.05)
    with (
        lock_module.exclusive(str(store.path), 1),
        pytest.raises(OperationalError, match="dpsql releases rebuild"),
    ):
        store.write(record(1, table("a", 1.0)))


def test_a_failed_write_leaves_the_old_file(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    before = store.path.read_bytes()
    wrong = ReleaseTable("b", True, (("k", "ENUM('x')", ["y"]),))
    with pytest.raises(OperationalError, match="cannot write the releases"):
        store.write(record(2, wrong))
    assert store.path.read_bytes() == before
    assert not list(store.path.parent.glob(".*.tmp*"))


def test_an_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="check the directory"):
        ReleaseStore(tmp_path / "no such" / "r.duckdb").write(record(1, table("a", 1.0)))


def test_attach_follows_the_file(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    user = duckdb.connect()
    user.execute("CREATE SCHEMA r1; CREATE TABLE r1.a (decoy INT)")
    store.attach_to(user)
    store.attach_to(user)
    ask = "SELECT n FROM dpsql_releases.dp.a"
    assert user.execute(ask).fetchall() == [(1.0,)]
    store.write(record(2, table("a", 2.0)))
    assert user.execute(ask).fetchall() == [(1.0,)]  # as it was attached, whole
    store.attach_to(user)
    assert user.execute(ask).fetchall() == [(2.0,)]
    with pytest.raises(duckdb.Error):
        user.execute("CREATE TABLE dpsql_releases.dp.mine (a INT)")
    assert store.sql("SELECT n FROM a").fetchall() == [(2.0,)]
    assert user.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchall() == [(2,)]


def test_attach_through_another_cursor_and_another_store(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    user = duckdb.connect()
    store.attach_to(user)
    cursor = user.cursor()
    ReleaseStore(store.path).attach_to(cursor)
    assert cursor.execute("SELECT n FROM dpsql_releases.dp.a").fetchall() == [(1.0,)]


def test_attach_refusals(store: ReleaseStore, tmp_path: Path) -> None:
    store.write(record(1, table("a", 1.0)))
    user = duckdb.connect()
    user.execute("ATTACH ':memory:' AS dpsql_releases")
    with pytest.raises(IntegrityError, match="another database"):
        store.attach_to(user)
    shut = duckdb.connect(config={"enable_external_access": "false"})
    with pytest.raises(OperationalError, match="cannot attach"):
        store.attach_to(shut)
    shut.close()
    with pytest.raises(OperationalError, match="cannot attach"):
        store.attach_to(shut)


def test_a_new_file_takes_the_place_of_one_that_is_in_use(store: ReleaseStore) -> None:
    store.write(record(1, table("a", 1.0)))
    user = duckdb.connect()
    store.attach_to(user)
    ask = "SELECT n FROM dpsql_releases.dp.a"
    user.execute("USE dpsql_releases.dp")
    other = user.cursor()
    other.execute("BEGIN TRANSACTION")
    assert other.execute(ask).fetchall() == [(1.0,)]
    open_result = user.execute(ask)
    store.write(record(2, table("a", 2.0)))
    store.attach_to(user)
    assert open_result.fetchall() == [(1.0,)]  # it was not disturbed
    assert user.execute("SELECT n FROM a").fetchall() == [(2.0,)]
    assert other.execute(ask).fetchall() == [(1.0,)]  # a transaction sees what it began with
    other.execute("COMMIT")
    assert other.execute(ask).fetchall() == [(2.0,)]
    assert [path.name for path in store.path.parent.iterdir() if path.suffix == ".tmp"] == []


class Counted:
    """A connection that counts what it is told."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, told: list[str]) -> None:
        self.connection, self.told = connection, told

    def __getattr__(self, name: str) -> Any:
        self.told.append(name)
        return getattr(self.connection, name)


def test_a_table_takes_few_statements_whatever_its_rows(store: ReleaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    write = store_module.write_records
    monkeypatch.setattr(store_module, "write_records", lambda con, records: write(Counted(con, told), records))
    counts = []
    for number, (tables, rows) in enumerate([(10, 10), (20, 10), (20, 100)], 1):
        told.clear()
        store.write(record(number, *(table(f"t{i}", *map(float, range(rows))) for i in range(tables))))
        counts.append(len(told))
    assert counts[1] - counts[0] <= 4 * 10
    assert counts[2] == counts[1]


def test_a_question_has_limits(store: ReleaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(record(1, table("a", 1.0)))
    with reading_module.isolated(store.path) as connection:
        settings = dict(
            connection.execute(
                "SELECT name, value FROM duckdb_settings() WHERE name IN ('memory_limit', 'temp_directory')"
            ).fetchall()
        )
    assert settings == {"memory_limit": "1.8 GiB", "temp_directory": ""}
    monkeypatch.setattr(reading_module, "MOST_ROWS", 1000)
    assert len(store.sql("FROM range(1000)")) == 1000
    with pytest.raises(OperationalError, match=r"more than 1,000 rows; add a LIMIT"):
        store.sql("FROM range(1001)")
    monkeypatch.setitem(instances.FOR_USER, "memory_limit", "30MB")
    monkeypatch.setattr(instances, "_spare", SpareInstances(1))
    with pytest.raises(OperationalError, match="was stopped: Out of Memory"):
        store.sql("SELECT list(repeat(i::VARCHAR, 50)) FROM range(2_000_000) r(i)")
    assert store.sql("SELECT count(*) FROM a").fetchall() == [(1,)]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_the_file_of_an_account_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "ann.duckdb", list[tuple[str, int]]()
    writes = store_module.write_records

    def look(*given: Any) -> None:
        seen.extend((place.name, place.stat().st_mode & 0o777) for place in tmp_path.iterdir())
        writes(*given)
        seen.extend((place.name, place.stat().st_mode & 0o777) for place in tmp_path.iterdir())

    monkeypatch.setattr(store_module, "write_records", look)
    before = os.umask(0)
    try:
        store = ReleaseStore(path, private=True)
        store.write(record(1, table("a", 1.0)))
        store.write(record(2, table("b", 2.0)))
        store.rebuild([record(1, table("a", 1.0))])
        path.chmod(0o644)  # as a version before made it
        ReleaseStore(path, private=True).point(record(1, table("a", 1.0)))
        path.unlink()
        store.rebuild([record(1, table("a", 1.0))])
        opened = ReleaseStore(tmp_path / "everybody.duckdb")
        opened.write(record(1, table("a", 1.0)))
        assert opened.path.stat().st_mode & 0o777 == 0o666
        opened.path.chmod(0o640)  # as a custodian may wish
        opened.rebuild([record(1, table("a", 1.0))])
        assert opened.path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
    assert {mode for name, mode in seen if "ann" in name and ".empty" not in name} == {0o600}
    left = sorted(place.name for place in tmp_path.iterdir() if "ann" in place.name)
    assert left == [
        "ann.duckdb",
        "ann.duckdb.lock",
    ]
    assert all(place.stat().st_mode & 0o777 == 0o600 for place in tmp_path.iterdir() if "ann" in place.name)
