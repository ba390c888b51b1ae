"""Small results of the same columns: one table in the releases file, and everybody sees a result each."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from dpsql.common.arrays import Values
from dpsql.release import RangeTable, ReleaseRecord, ReleaseStore, ReleaseTable, shared_tables
from dpsql.release.custody import differing
from dpsql.release.instances import attached

KINDS = (("key", "VARCHAR"), ("n", "DOUBLE"), ("other", "BOOLEAN"))


def result(name: str, rows: int = 1, seed: float = 0.0, kinds: tuple[tuple[str, str], ...] = KINDS) -> ReleaseTable:
    values: dict[str, Values] = {
        "VARCHAR": [None if i % 3 == 2 else f"it's {i}" for i in range(rows)],
        "DOUBLE": [float("nan") if i % 5 == 4 else seed + i / 3 for i in range(rows)],
        "BOOLEAN": [i % 2 == 0 for i in range(rows)],
        "BIGINT": [2**60 + i for i in range(rows)],
    }
    named = not name.startswith("q")
    return ReleaseTable(name, named, tuple((column, kind, values[kind]) for column, kind in kinds))


def record(number: int, *tables: ReleaseTable | RangeTable, period: str = "") -> ReleaseRecord:
    return ReleaseRecord(number, dt.datetime(2026, 1, number), tables, period=period)


def tables_of(store: ReleaseStore) -> list[str]:
    with attached(store.path) as held:
        listed = "SELECT schema_name, table_name FROM duckdb_tables() WHERE schema_name <> 'main' ORDER BY ALL"
        return [f"{schema}.{name}" for schema, name in held.execute(listed).fetchall()]


@pytest.fixture
def store(tmp_path: Path) -> ReleaseStore:
    return ReleaseStore(tmp_path / "a.releases.duckdb")


BATCH = [result(f"q{i}", rows=i % 4, seed=i) for i in range(1, 10)]


@pytest.mark.long
def test_each_result_is_as_it_would_be_in_a_table_of_its_own(
    store: ReleaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(record(1, *BATCH, result("long", rows=1001), result("whole", kinds=(("n", "BIGINT"),))))
    assert tables_of(store) == ["r1.#1", "r1.long", "r1.whole"]
    monkeypatch.setattr(shared_tables, "FEWEST", 100)
    apart = ReleaseStore(tmp_path / "b.releases.duckdb")
    apart.write(record(1, *BATCH, result("long", rows=1001), result("whole", kinds=(("n", "BIGINT"),))))
    assert len(tables_of(apart)) == 11
    for name in apart.names():
        for said in (f"FROM dp.{name}", f"FROM r1.{name}", f"DESCRIBE {name}"):
            assert str(store.sql(said).fetchall()) == str(apart.sql(said).fetchall())  # NaN is NaN
    assert store.table(1, "q3").fetchall()[1] == ("it's 1", 3 + 1 / 3, False)
    assert store.names() == apart.names()
    assert store.shown_by() == apart.shown_by()


def test_a_later_release_and_new_names_take_the_views_along(store: ReleaseStore) -> None:
    first, second = record(1, *BATCH), record(2, *[result(f"q{i}", seed=50) for i in range(1, 10)])
    store.write(first)
    store.write(second)
    assert store.sql("SELECT n FROM q3").fetchall() == [(50.0,)]
    store.point(first)
    assert len(store.sql("FROM q3").fetchall()) == 3
    renamed = record(2, *second.tables[1:], result("mine", seed=7))
    store.write(renamed)
    assert store.sql("SELECT n FROM mine").fetchall() == [(7.0,)]
    assert tables_of(store) == ["r1.#1", "r2.#1"]
    store.write(record(2, *renamed.tables[:3]))
    assert tables_of(store) == ["r1.#1", "r2.q2", "r2.q3", "r2.q4"]
    assert store.sql("SELECT count(*) FROM q1").fetchall() == [(1,)]


def test_neither_the_table_nor_its_first_column_takes_a_name_of_a_result(store: ReleaseStore) -> None:
    kinds = (("DPSQL_result", "DOUBLE"), ("n", "BOOLEAN"))
    store.write(record(1, *[result(f"{'#' * (i == 1)}{i}", seed=i, kinds=kinds) for i in range(1, 10)]))
    assert tables_of(store) == ["r1.#2"]
    assert store.sql('SELECT * FROM "#1"').columns == ("DPSQL_result", "n")
    assert store.sql('SELECT DPSQL_result FROM "4"').fetchall() == [(4.0,)]


def test_a_file_with_a_table_for_each_result_is_what_the_ledger_makes(
    store: ReleaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a version before wrote it."""
    made = [record(1, *BATCH), record(2, result("a"), period="2024-01-01")]
    with monkeypatch.context() as before:
        before.setattr(shared_tables, "FEWEST", 100)
        store.write(*made)
    assert "r1.q1" in tables_of(store)
    assert differing(store, made) == []
    with attached(store.path, writing=True) as held:
        held.execute("UPDATE r1.q3 SET n = 5")
    assert differing(store, made) == ["r1.q3"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ('UPDATE r1."#1" SET n = 99 WHERE dpsql_result = 3', ["r1.#1", "r1.q3"]),
        ('INSERT INTO r1."#1" SELECT 77, * EXCLUDE (dpsql_result) FROM r1."#1"', ["r1.#1"]),
        ('CREATE TABLE r1."#2" AS FROM r1."#1"', ["r1.#2"]),
        ("CREATE OR REPLACE VIEW r1.q3 AS FROM r1.q2", ["r1.q3"]),
        ("DROP VIEW r1.q3", ["r1.q3"]),
        ('DROP TABLE r1."#1"', [f"r1.q{i}" for i in range(1, 10)]),
        ("CREATE OR REPLACE VIEW r1.q3 AS SELECT * EXCLUDE (x) FROM (SELECT 1 AS x, * FROM r1.q2)", ["r1.q3"]),
    ],
)
@pytest.mark.few(every=6)
def test_what_was_changed_by_hand_is_found(store: ReleaseStore, change: str, found: list[str]) -> None:
    made = [record(1, *BATCH)]
    store.write(*made)
    assert differing(store, made) == []
    with attached(store.path, writing=True) as held:
        held.execute(change)
    assert differing(store, made) == found


def test_a_view_put_in_by_hand_reads_no_other_file(store: ReleaseStore, tmp_path: Path) -> None:
    """Though all that it shows were right."""
    other, made = tmp_path / "other.csv", [record(1, *BATCH)]
    other.write_text("a\n1\n")
    store.write(*made)
    with attached(store.path, writing=True) as held:
        shown = 'SELECT * EXCLUDE (dpsql_result) FROM r1."#1" WHERE dpsql_result = 3'
        held.execute(f"CREATE OR REPLACE VIEW r1.q3 AS {shown} AND EXISTS (FROM '{other}')")
    assert len(store.sql("FROM r1.q2").fetchall()) == 2
    assert differing(store, made) == ["r1.q3"]
