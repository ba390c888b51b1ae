"""Results of several periods in a releases file: one table, a view of each release, a view of all."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from sqlglot import exp, parse_one
from test_store import record, table

from dpsql.common.quoting import string
from dpsql.release import ReleaseStore
from dpsql.release.columns import write_table
from dpsql.release.custody import differing
from dpsql.release.instances import attached
from dpsql.release.result import Result
from dpsql.release.series import series_sql
from dpsql.replicates.lineage import lineage


@pytest.fixture
def store(tmp_path: Path) -> ReleaseStore:
    return ReleaseStore(tmp_path / "r.duckdb")


def of_period(number: int, *values: float, name: str = "a"):  # type: ignore[no-untyped-def]
    return record(number, table(name, *values), period=f"2024-{number:02d}-01")


def rows(store: ReleaseStore, name: str = "a") -> list[tuple[object, ...]]:
    return [(str(period)[:7], *rest) for period, *rest in store.sql(f"FROM {name}").fetchall()]


@pytest.mark.long
def test_many_periods_are_no_deep_query() -> None:
    """As deep as their number it is not understood past some hundreds, and a trend is shown as if noise chose rows."""
    of_period = {f"{2000 + n // 12}-{1 + n % 12:02}-01": n for n in range(600)}
    tree = parse_one(series_sql("v", of_period), dialect="duckdb")
    tables = list(tree.find_all(exp.Table))
    assert sorted(table.db for table in tables) == sorted(f"r{n}" for n in range(600))
    assert [table.db for table in tree.find_all(exp.Table, bfs=False)] == [f"r{n}" for n in range(600)]
    read = [(table, [("n", True)]) for table in tables]
    found = lineage(tree, read, ["period", "n"])
    assert (found.noisy, found.rows) == ((False, True), False)


def test_periods_share_a_table_and_stay_apart(store: ReleaseStore) -> None:
    for number in (1, 3, 2):  # one of the past comes late
        store.write(of_period(number, number * 1.0, number * 10.0))
    assert store.sql("FROM r2.a").fetchall() == [("k0", 2.0), ("k1", 20.0)]
    assert rows(store) == [(f"2024-0{n}", f"k{k}", n * 10.0**k) for n in (1, 2, 3) for k in (0, 1)]
    assert rows(store, "a_latest") == rows(store)[-2:]
    with duckdb.connect(str(store.path), read_only=True) as plain:
        assert len(plain.sql("FROM duckdb_tables()").fetchall()) == 2  # releases, and the rows of all periods
        assert len(plain.sql("FROM dp.a").fetchall()) == 6
    with duckdb.connect() as user:
        user.execute(f"ATTACH {string(str(store.path))} AS held (READ_ONLY)")
        assert len(user.sql("FROM held.dp.a").fetchall()) == 6


def test_a_release_that_is_renamed_moves_and_leaves_the_others(store: ReleaseStore) -> None:
    store.write(of_period(1, 1.0), of_period(2, 2.0), of_period(3, 3.0))
    store.write(of_period(2, 2.0, name="b"))
    assert rows(store) == [("2024-01", "k0", 1.0), ("2024-03", "k0", 3.0)]
    assert rows(store, "b") == [("2024-02", "k0", 2.0)]
    assert store.sql("FROM r2.b").fetchall() == [("k0", 2.0)]


def test_a_name_that_has_no_period_any_more_has_no_latest(store: ReleaseStore) -> None:
    store.write(of_period(1, 1.0))
    assert rows(store, "a_latest")
    store.write(record(2, table("a", 2.0)))
    with duckdb.connect(str(store.path), read_only=True) as plain:
        views = plain.sql("SELECT view_name FROM duckdb_views() WHERE schema_name = 'dp'").fetchall()
        assert ("a",) in views
        assert ("a_latest",) not in views
        assert plain.sql("FROM dp.a").fetchall() == [("k0", 2.0)]


def test_of_two_releases_of_a_period_the_later_is_shown(store: ReleaseStore) -> None:
    store.write(of_period(1, 1.0), of_period(2, 2.0))
    store.write(record(9, table("a", 9.0), period="2024-01-01"))
    assert rows(store) == [("2024-01", "k0", 9.0), ("2024-02", "k0", 2.0)]
    assert store.sql("FROM r1.a").fetchall() == [("k0", 1.0)]


def test_a_file_of_before_with_a_table_for_each_period_goes_on(store: ReleaseStore) -> None:
    store.write(of_period(1, 1.0), of_period(2, 2.0))
    with attached(store.path, writing=True) as held:
        rest = held.execute("SELECT table_name FROM duckdb_tables() WHERE table_name <> 'releases'").fetchone()
        for number in (1, 2):
            held.execute(f"DROP VIEW r{number}.a")
            write_table(held, "a", table("a", number * 1.0).columns, f"r{number}")
        held.execute(f'DROP VIEW dp.a; DROP TABLE main."{rest[0]}"')  # type: ignore[index]
    store.write(of_period(3, 3.0))
    assert rows(store) == [("2024-01", "k0", 1.0), ("2024-02", "k0", 2.0), ("2024-03", "k0", 3.0)]


def test_a_row_that_was_altered_is_found_by_its_release(store: ReleaseStore) -> None:
    made = [of_period(1, 1.0), of_period(2, 2.0)]
    store.write(*made)
    assert differing(store, made) == []
    with attached(store.path, writing=True) as held:
        (name,) = held.execute("SELECT table_name FROM duckdb_tables() WHERE table_name <> 'releases'").fetchall()
        held.execute(f'UPDATE main."{name[0]}" SET n = 5 WHERE n = 2')
    assert differing(store, made) == ["r2.a"]


def test_a_trend_that_shows_its_intervals_is_drawn_as_it_is(store: ReleaseStore) -> None:
    """Errors of hundreds of periods take long to work out, and these are there."""

    def never() -> Result:
        raise AssertionError("worked out")

    store.write(of_period(1, 1.0), of_period(2, 2.0))
    found = store.sql("SELECT period, n, 1.0::DOUBLE AS n_stderr, n - 1 AS n_low FROM a ORDER BY period").drawn_with(
        never
    )
    assert found.plot().axes
    with pytest.raises(AssertionError, match="worked out"):
        store.sql("SELECT period, n, n + 1 AS m, n AS n_stderr FROM a").drawn_with(never).plot()


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO main.{0} SELECT 9, DATE '2023-12-01', * EXCLUDE (dpsql_release, period) FROM main.{0}",
        "UPDATE main.{0} SET period = DATE '2020-01-01' WHERE dpsql_release = 1",
        "UPDATE main.{0} SET period = NULL WHERE dpsql_release = 2",
        "CREATE TABLE main.{1} AS FROM main.{0}",
    ],
)
@pytest.mark.few(every=2)
def test_rows_of_no_release_or_of_another_period_are_found(store: ReleaseStore, change: str) -> None:
    made = [of_period(1, 1.0), of_period(2, 2.0)]
    store.write(*made)
    with attached(store.path, writing=True) as held:
        ((name,),) = held.execute("SELECT table_name FROM duckdb_tables() WHERE table_name <> 'releases'").fetchall()
        held.execute(change.format(f'"{name}"', '"a copy"'))
    assert differing(store, made) == ["main.a copy" if change.startswith("CREATE") else f"main.{name}"]
