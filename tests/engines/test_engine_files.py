"""Sources of many files: folders, patterns and partitions, and what is refused of them before any charge."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import duckdb
import pytest
from helpers import counts_of, exact, scratch

import dpsql
from dpsql.engines.base import TableSource
from dpsql.engines.duckdb import ConnectionEngine, FileEngine
from dpsql.engines.limits import Limits
from dpsql.errors import OperationalError, PolicyError
from dpsql.policy import Policy

FLIGHTS = (
    "SELECT i AS id, i % 7 AS a, (2010 + i % 3)::INTEGER AS year, ['x=y', 'é/ü', 'w*?['][1 + i % 3] AS place "
    "FROM range(30) r(i)"
)
COLUMNS = "a = { lower = 0, upper = 6 }"
PARTED = f"{COLUMNS}\nyear = {{ type = 'INTEGER', lower = 2010, upper = 2012 }}\nplace = {{ type = 'VARCHAR' }}"


def _write(path: Path, select: str, options: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch().execute(f"COPY ({select}) TO '{path}' (FORMAT parquet{options})")
    return path


def _policy(folder: Path, source: str, columns: str = COLUMNS) -> Policy:
    path = folder / "p.toml"
    path.write_text(
        "dataset = 'f-1'\n[budget]\nepsilon = 4.0\n[tables.t]\nunit = 'row'\n"
        f"source = '{source}'\n[tables.t.columns]\n{columns}\n"
    )
    return Policy.load(path)  # type: ignore[return-value]


def _counted(folder: Path, source: str, columns: str = COLUMNS) -> list[int]:
    batch = "SELECT COUNT(*) FROM t; SELECT a, COUNT(*) FROM t GROUP BY a"
    return [int(answer) for answer in exact(batch, _policy(folder, source, columns), None).answers]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Thirty rows in three files, in two folders."""
    for number, name in enumerate(("one/p0.parquet", "one/p1.parquet", "two/deep/p2.PARQUET")):
        _write(tmp_path / "data" / name, f"SELECT * FROM ({FLIGHTS}) WHERE id % 3 = {number}")
    return tmp_path


ALL = [30, 5, 5, 4, 4, 4, 4, 4, 0]


@pytest.mark.parametrize("source", ["data", "data/", "./data/"])
def test_a_folder_is_all_parquet_files_below_it(split: Path, source: str) -> None:
    assert _counted(split, source) == ALL


def test_what_other_writers_hide_is_left_out(split: Path) -> None:
    for name in ("_temporary/0/x.parquet", ".x.parquet", "one/_metadata.parquet", "one/notes.txt"):
        path = split / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no parquet")
    assert _counted(split, "data/") == ALL


@pytest.mark.parametrize("source", ["data/one/*.parquet", "data/one/p?.parquet", "data/*/p[01].parquet"])
def test_a_pattern_is_the_files_that_match(split: Path, source: str) -> None:
    assert _counted(split, source)[0] == 20


def test_a_pattern_may_go_into_folders_of_any_depth(split: Path) -> None:
    _write(split / "data" / "two" / "deeper" / "still" / "p3.parquet", FLIGHTS)
    assert _counted(split, "data/**/*.parquet")[0] == 50


def test_a_folder_may_be_named_like_a_file(tmp_path: Path) -> None:
    _write(tmp_path / "t.parquet" / "part-0.parquet", FLIGHTS)
    assert _counted(tmp_path, "t.parquet") == ALL


def test_the_policys_own_folder_is_never_a_pattern(tmp_path: Path) -> None:
    inside, beside = tmp_path / "a[b]", tmp_path / "ab"
    for folder in (inside, beside):
        _write(beside / "x0.parquet", FLIGHTS)
        folder.mkdir(exist_ok=True)
    with pytest.raises(OperationalError, match="no file matches"):
        _counted(inside, "x*.parquet")
    with pytest.raises(OperationalError, match="is not a file"):
        _counted(inside, "x0.parquet")
    (inside / "x0.parquet").write_bytes((beside / "x0.parquet").read_bytes())
    with pytest.raises(OperationalError, match="reads as a pattern"):
        _counted(inside, "x*.parquet")


def test_an_open_connection_reads_them_too(split: Path) -> None:
    batch = "SELECT COUNT(*) FROM t"
    with duckdb.connect() as connection:
        assert exact(batch, _policy(split, "data/"), connection).answers == [30]


# --- partitions ------------------------------------------------------------------------------------------------


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    """Thirty rows by year and place, which stand in the folders' names alone."""
    _write(tmp_path / "data", FLIGHTS, ", PARTITION_BY (year, place)")
    return tmp_path


@pytest.mark.parametrize("source", ["data/", "data/*/*/*.parquet", "data/**/*.parquet"])
def test_partitions_are_columns_where_declared(hive: Path, source: str) -> None:
    policy = _policy(hive, source, PARTED)
    batch = (
        "SELECT COUNT(*) FROM t; SELECT year, COUNT(*) FROM t GROUP BY year; SELECT COUNT_IF(place = 'é/ü') FROM t; "
        "SELECT COUNT_IF(place = 'w*?['), SUM(year) FROM t WHERE a < 3"
    )
    wanted = scratch().execute(f"SELECT count(*) FILTER (WHERE place = 'w*?['), sum(year) FROM ({FLIGHTS}) WHERE a < 3")
    assert exact(batch, policy, None).answers == [30, 10, 10, 10, 0, 10, *(wanted.fetchone() or ())]
    assert _counted(hive, source) == ALL  # undeclared, they are in nobody's way


@pytest.mark.parametrize(
    ("source", "columns", "hinted"),
    [
        ("data/", "year = {}", True),
        ("data/*/*/*.parquet", "year = {}", True),
        ("data/", 'month = { type = "INTEGER" }', False),  # which no folder has
        ("data", "place = {}\n[tables.u]\nsource = 'data/'\nunit = 'year'\nmax_rows_per_unit = 1", True),
    ],
)
def test_a_partition_without_a_type_is_refused_with_a_hint(hive: Path, source: str, columns: str, hinted: bool) -> None:
    policy = _policy(hive, source, columns)
    with pytest.raises(PolicyError, match="there is no") as refused:
        dpsql.connect(policy=policy, ledger=hive / "h.ledger").schemas()
    assert ('needs its type, as in year = { type = "INTEGER" }' in str(refused.value)) == hinted


def test_one_file_may_stand_in_partitions(hive: Path) -> None:
    (path,) = (hive / "data" / "year=2011").rglob("*.parquet")
    policy = _policy(hive, str(path.relative_to(hive)), PARTED)
    assert exact("SELECT COUNT(*), COUNT_IF(year = 2011) FROM t", policy, None).answers == [10, 10]


def test_no_value_of_a_partition_makes_a_scan_fail(hive: Path) -> None:
    source = next((hive / "data").rglob("*.parquet"))
    odd = ("2013x", "99999999999999999999", "__HIVE_DEFAULT_PARTITION__", "", "%zz", "1e400")
    for number, value in enumerate(odd):
        folder = hive / "data" / f"year={value}" / f"place={value}"
        folder.mkdir(parents=True)
        (folder / f"{number}.parquet").write_bytes(source.read_bytes())
    found = exact("SELECT COUNT(*), COUNT(year), COUNT(place) FROM t", _policy(hive, "data/", PARTED), None)
    assert found.answers == [90, 30, 80]


def test_partitions_of_csv(tmp_path: Path) -> None:
    for year in (2010, 2011):
        path = tmp_path / f"year={year}" / "x.csv"
        path.parent.mkdir()
        path.write_text("a\n1\n2\nno number\n")
    columns = "a = { type = 'INTEGER', lower = 0, upper = 6 }\nyear = { type = 'SMALLINT', lower = 2010, upper = 2011 }"
    batch = "SELECT COUNT(*), SUM(a) FROM t; SELECT year, COUNT(a) FROM t GROUP BY year"
    assert exact(batch, _policy(tmp_path, "*/*.csv", columns), None).answers == [6, 6, 2, 2, 0]


@pytest.mark.parametrize("other", ["year=3/x", "zz", "year=2013/place=x/year=2014/x", "year=2013/place=%FF/x"])
def test_folders_of_other_forms_are_refused(hive: Path, other: str) -> None:
    _write(hive / "data" / f"{other}.parquet", "SELECT 1::BIGINT AS id, 2::BIGINT AS a")
    with pytest.raises(OperationalError, match="do not all have the same form key=value") as caught:
        _counted(hive, "data/", PARTED)
    assert "2013" not in str(caught.value)


def test_a_column_of_files_and_folders_is_refused_where_one_must_be_read_from_folders(tmp_path: Path) -> None:
    _write(tmp_path / "year=2010" / "place=x" / "x.parquet", FLIGHTS)
    # Both are in the file, which is what counts.
    assert exact("SELECT COUNT_IF(year = 2011) FROM t", _policy(tmp_path, "*/*/*.parquet", PARTED), None).answers == [
        10
    ]
    _write(tmp_path / "year=2010" / "place=x" / "x.parquet", f"SELECT * EXCLUDE (place) FROM ({FLIGHTS})")
    with pytest.raises(OperationalError, match="both in the files and in the names of folders"):
        _counted(tmp_path, "*/*/*.parquet", PARTED)


# --- several CSV files -----------------------------------------------------------------------------------------

TYPED = "a = { type = 'INTEGER', lower = 0, upper = 6 }"


def test_a_pattern_of_csv_files(tmp_path: Path) -> None:
    (tmp_path / "x1.csv").write_text("id,a\n1,2\n2,no number\n")
    (tmp_path / "x2.csv").write_text('id,a\n3,"4"\n"a quote left open')
    assert exact("SELECT COUNT(a), SUM(a) FROM t", _policy(tmp_path, "x*.csv", TYPED), None).answers == [2, 6]
    (tmp_path / "x1.csv.gz").write_bytes(gzip.compress(b"id,a\n1,5\n"))
    assert exact("SELECT COUNT(a), SUM(a) FROM t", _policy(tmp_path, "*.csv.gz", TYPED), None).answers == [1, 5]


@pytest.mark.parametrize("kind", ["INTEGER", "DOUBLE", "DATE", "BOOLEAN", "DECIMAL(4,1)", "TIMESTAMPTZ"])
@pytest.mark.few(every=3)
def test_a_line_counts_whatever_its_values_are(tmp_path: Path, kind: str) -> None:
    (tmp_path / "t.csv").write_text("a,b\nneither,1\n,2\n1e999,no number\n")
    policy = _policy(tmp_path, "t.csv", f"a = {{ type = '{kind}' }}\nb = {{ type = 'INTEGER', lower = 0, upper = 9 }}")
    for batch, wanted in (
        ("COUNT(*)", [3]),
        ("COUNT(*), COUNT(b), SUM(b)", [3, 2, 3]),
        ("COUNT(*), COUNT_IF(a IS NULL)", [3]),
    ):
        assert exact(f"SELECT {batch} FROM t", policy, None).answers[: len(wanted)] == wanted


@pytest.mark.parametrize("header", ["a,id", "id", "id,a,b", "ID,a"])
def test_csv_files_of_other_headers_are_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "x1.csv").write_text("id,a\n1,2\n")
    (tmp_path / "x2.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(OperationalError, match="different header lines"):
        _counted(tmp_path, "x*.csv", TYPED)
    # A file without a header line: its first row must not be shown.
    (tmp_path / "x2.csv").write_text("secret,1\n")
    with pytest.raises(OperationalError, match="different header lines") as caught:
        _counted(tmp_path, "x*.csv", TYPED)
    assert "secret" not in str(caught.value)


def test_a_csv_file_without_any_header_is_refused_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "x1.csv").write_text("id,a\n1,2\n")
    (tmp_path / "xsecret.csv").write_text("")
    with pytest.raises(OperationalError, match=r"a file of .* has no header line") as caught:
        _counted(tmp_path, "x*.csv", TYPED)
    assert "secret" not in str(caught.value)


# --- refusals, all before any charge ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        "SELECT 1::BIGINT AS id, '7' AS a, 2010::INTEGER AS year, 'x' AS place",
        "SELECT 1::BIGINT AS id, 2010::INTEGER AS year, 'x' AS place",
        "SELECT 1::BIGINT AS id, 7::BIGINT AS a, 2010::INTEGER AS year, 'x' AS place, 1 AS more",
        "SELECT 1::BIGINT AS id, 7::HUGEINT AS a, 2010::INTEGER AS year, 'x' AS place",
    ],
)
def test_files_of_different_schemas_are_refused(split: Path, other: str) -> None:
    _write(split / "data" / "secret.parquet", other)
    connection = dpsql.connect(policy=_policy(split, "data/"), ledger=split / "t.ledger")
    with pytest.raises(OperationalError, match=r"have different schemas: not all have column (a|more) ") as caught:
        connection.run("SELECT COUNT(*) FROM t", epsilon=1)
    assert "secret" not in str(caught.value)
    assert float(connection.budget.spent) == 0


def test_the_order_of_columns_and_what_wrote_them_do_not_matter(split: Path) -> None:
    _write(split / "data" / "x.parquet", "SELECT 'x' AS place, 3::BIGINT AS a, 1::BIGINT AS id, 2010::INTEGER AS year")
    assert _counted(split, "data/")[0] == 31


def test_a_file_that_comes_with_another_schema_after_the_plan_is_refused_before_the_charge(split: Path) -> None:
    connection = dpsql.connect(policy=_policy(split, "data/"), ledger=split / "t.ledger")
    plan = connection.plan("SELECT COUNT(*) FROM t", epsilon=1)
    _write(split / "data" / "new.parquet", "SELECT 1 AS a")
    with pytest.raises(OperationalError, match="different schemas"):
        connection.run(plan)
    assert float(connection.budget.spent) == 0
    _write(split / "data" / "new.parquet", f"SELECT * FROM ({FLIGHTS}) WHERE id = 3")
    connection.run(plan)
    assert float(connection.budget.spent) > 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gone.parquet", "gone.parquet is not a file"),
        ("gone/", "gone is not a file"),
        ("gone*.parquet", r"no file matches .*gone\*\.parquet"),
        ("empty/", "empty holds no .parquet file"),
        ("changed/", "changed is a table of Delta, .* CREATE TABLE ... AS"),
        ("ice/", "ice is a table of Iceberg"),
    ],
)
def test_nothing_to_read_is_said(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "changed" / "_delta_log").mkdir(parents=True)
    (tmp_path / "ice" / "metadata").mkdir(parents=True)
    (tmp_path / "ice" / "metadata" / "v1.metadata.json").write_text("{}")
    with pytest.raises(OperationalError, match=message):
        _counted(tmp_path, source)


def test_a_file_that_is_none_is_refused_without_its_name(split: Path) -> None:
    (split / "data" / "secret.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(OperationalError, match="the schema of t cannot be read") as caught:
        _counted(split, "data/")
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", [b"secret\xff.parquet", b"secret*.parquet"])
def test_names_that_duckdb_would_not_read_as_they_stand_are_refused(split: Path, name: bytes) -> None:
    os.rename(split / "data" / "one" / "p0.parquet", os.fsencode(split / "data") + b"/" + name)
    with pytest.raises(OperationalError, match="rename the file or its folder") as caught:
        _counted(split, "data/")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("source", ["a.txt", "a*", "a/*.txt", "a.parquet/*"])
def test_other_sources_are_refused_by_the_policy(tmp_path: Path, source: str) -> None:
    with pytest.raises(
        PolicyError, match=r"tables\.t\.source is .*; name a \.parquet or \.csv file, a pattern such as"
    ):
        _policy(tmp_path, source)


def test_an_instance_reads_no_other_file_of_the_folder(split: Path) -> None:
    outside = _write(split / "outside.parquet", FLIGHTS)
    engine, found = FileEngine(None), {}
    source = TableSource("t", split / "data" / "one" / "*.parquet", pattern=True)
    from dpsql.engines.files import located  # the engine's own step

    with engine._open([located(source)]) as connection:
        for path in (outside, split / "data" / "two" / "deep" / "p2.PARQUET", split / "data" / "one" / "p0.parquet"):
            try:
                connection.execute(f"FROM read_parquet('{path}')").fetchall()
                found[path.name] = True
            except duckdb.Error:
                found[path.name] = False
    assert found == {"outside.parquet": False, "p2.PARQUET": False, "p0.parquet": True}
    assert ConnectionEngine(duckdb.connect()).schemas([source])["t"]["a"] == "BIGINT"


@pytest.mark.long
def test_a_scan_under_a_small_memory_limit_is_right(tmp_path: Path) -> None:
    """Ten million rows in four files, by every pair of two columns, in 200 MB."""
    select = "SELECT i AS id, (i * 7919) % 100 AS a, i % 97 AS b FROM range(10_000_000) r(i)"
    for part in range(4):
        _write(tmp_path / "data" / f"{part}.parquet", f"SELECT * FROM ({select}) WHERE id % 4 = {part}")
    source = TableSource("t", tmp_path / "data")
    found = FileEngine(None, Limits("200MB")).scan(counts_of(source, "a", "b"))
    wanted = scratch().execute(f"SELECT a, b, count(*) FROM ({select}) GROUP BY 1, 2").fetchall()
    assert {(a, b): n for a, b, n in wanted} == {
        (a, b): n for a, b, n in zip(*(found[name].tolist() for name in ("a0", "a1", "n")), strict=True)
    }
    # A group for every row does not fit, and spills.
    each = FileEngine(None, Limits("200MB")).scan(counts_of(source, "id"))
    assert len(each["n"]) == int(each["n"].sum()) == 10_000_000
