"""No value of a file makes a scan fail, and nothing of a scan is left or depends on where it runs."""

from __future__ import annotations

import base64
import gzip
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pytest
from helpers import counts_of, exact, scratch

from dpsql.common.connection_pool import SpareInstances
from dpsql.engines import duckdb as engine_module
from dpsql.engines.base import TableSource
from dpsql.engines.duckdb import FileEngine
from dpsql.engines.limits import Limits
from dpsql.errors import OperationalError, PolicyError
from dpsql.policy import Policy

# One row, one column x, stored as INT96, which DuckDB reads but does not write.
INT96 = base64.b64decode(
    "UEFSMRUAFSQVJCwVAhUAFQYVBhwAAAACAAAAAgEAAAAAAAAAAIw9JQAVBBksNQAYBnNjaGVtYRUCABUGJQIYAXgAFgIZHBkcJgAc"
    "FQYZJQYAGRgBeBUAFgIWShZKJghJHBUAFQAVAgA8KQYZJgACAAAAFkoWAiYIFkoAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9u"
    "IDI2LjAuMRkcHAAAAHoAAABQQVIx"
)
MICROS = "00:00:00.000017"


def _written(path: Path, select: str) -> Path:
    scratch().execute(f"COPY ({select}) TO '{path}' (FORMAT parquet, COMPRESSION uncompressed)")
    return path


def _policy(folder: Path, source: str, columns: str) -> Policy:
    path = folder / "p.toml"
    path.write_text(
        'dataset = "f-1"\n[budget]\nepsilon = 4.0\n[tables.t]\nunit = "row"\n'
        f'source = "{source}"\n[tables.t.columns]\n{columns}\n'
    )
    return Policy.load(path)  # type: ignore[return-value]


def test_stored_types_whose_reading_may_fail_are_named(tmp_path: Path) -> None:
    path = _written(
        tmp_path / "t.parquet",
        f"SELECT TIMESTAMP_MS '1970-01-01 00:00:00.017' AS ms, {{'in': TIMESTAMP_MS '1970-01-01'}} AS nested, "
        f"TIMESTAMP '1970-01-01 {MICROS}' AS us, TIMESTAMPTZ '1970-01-01 {MICROS}+00' AS zoned, "
        "make_timestamp_ns(17) AS ns, 1.5::DECIMAL(4,1) AS d4, 1.5::DECIMAL(15,1) AS d15, "
        "1.5::DECIMAL(38,1) AS d38, 1::UTINYINT AS u, 'a' AS s",
    )
    assert FileEngine(None).schemas([TableSource("t", path)])["t"] == {
        "ms": "PARQUET TIMESTAMP_MILLIS",
        "nested": 'STRUCT("in" TIMESTAMP)',
        "us": "TIMESTAMP",
        "zoned": "TIMESTAMP WITH TIME ZONE",
        "ns": "PARQUET TIMESTAMP_NANOS",
        "d4": "DECIMAL(4,1)",
        "d15": "DECIMAL(15,1)",
        "d38": "DECIMAL(38,1)",
        "u": "UTINYINT",
        "s": "VARCHAR",
    }
    old = tmp_path / "old.parquet"
    old.write_bytes(INT96)
    assert FileEngine(None).schemas([TableSource("t", old)]) == {"t": {"x": "PARQUET INT96"}}


def test_a_declared_column_of_such_a_type_is_refused_with_its_name(tmp_path: Path) -> None:
    _written(tmp_path / "t.parquet", "SELECT TIMESTAMP_MS '2020-01-01' AS ts, 1 AS a")
    with pytest.raises(PolicyError, match=r"columns\.ts: .*PARQUET TIMESTAMP_MILLIS; leave the column out"):
        exact("SELECT COUNT(*) FROM t", _policy(tmp_path, "t.parquet", "ts = {}"), None)
    # Left undeclared, it is in nobody's way.
    policy = _policy(tmp_path, "t.parquet", "a = { lower = 0, upper = 10 }")
    assert exact("SELECT COUNT(*), SUM(a) FROM t", policy, None).answers == [1, 1]


@pytest.mark.parametrize(
    ("kind", "constant", "bound"),
    [
        ("TINYINT", "17", "5"),
        ("UTINYINT", "17", "5"),
        ("SMALLINT", "17", "5"),
        ("INTEGER", "17", "5"),
        ("BIGINT", "17", "5"),
        ("UBIGINT", "17", "5"),
        ("DECIMAL(4,1)", "1.7", "0.5"),
        ("DECIMAL(9,1)", "1.7", "0.5"),
        ("DECIMAL(18,1)", "1.7", "0.5"),
        ("DATE", "'1970-01-18'", "DATE '1970-01-02'"),
        ("TIMESTAMP", f"'1970-01-01 {MICROS}'", "TIMESTAMP '2000-01-01'"),
        ("TIMESTAMPTZ", f"'1970-01-01 {MICROS}+00'", "TIMESTAMPTZ '2000-01-01 00:00:00+00'"),
    ],
)
@pytest.mark.parametrize("last", [b"\x7f", b"\x80", b"\xff"])
@pytest.mark.few(every=5)
def test_every_bit_pattern_of_an_admitted_type_is_read(
    tmp_path: Path, kind: str, constant: str, bound: str, last: bytes
) -> None:
    path = _written(tmp_path / "plain.parquet", f"SELECT CAST({constant} AS {kind}) AS x")
    stored = path.read_bytes()
    physical = scratch().execute(f"SELECT type FROM parquet_schema('{path}') WHERE name = 'x'").fetchone()
    width = {"INT32": 4, "INT64": 8}[physical[0]]  # type: ignore[index]
    filler = b"\x00" if last == b"\x80" else b"\xff"
    changed = stored.replace((17).to_bytes(width, "little"), filler * (width - 1) + last, 1)
    assert changed != stored
    (tmp_path / "t.parquet").write_bytes(changed)
    policy = _policy(tmp_path, "t.parquet", "x = {}")
    found = exact(f"SELECT COUNT(*), COUNT(x), COUNT_IF(x < {bound}) FROM t", policy, None).answers
    assert found[:2] == [1, 1]


@pytest.mark.long
def test_what_a_type_does_not_hold_is_null(tmp_path: Path) -> None:
    """A writer that checks nothing: numbers of too many digits, moments before all moments."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def decimals(values: list[int], width: int, scale: int) -> Any:
        held = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
        return pa.Array.from_buffers(pa.decimal128(width, scale), len(values), [None, pa.py_buffer(held)])

    micros = [0, -(2**63), -(2**63) + 1, 2**63 - 1, -(2**63) + 2]
    columns = {
        "a": decimals([0, 2**63 - 1, -(2**63), 10**18 - 1, 10**18], 18, 0),
        "b": decimals([0, 2**31 - 1, -(2**31), 10**9 - 1, 10**9], 9, 2),
        "c": decimals([0, 2**127 - 1, -(2**127), 10**38 - 1, 10**38], 38, 3),
        "ts": pa.array(micros, pa.int64()).view(pa.timestamp("us")),
        "tz": pa.array(micros, pa.int64()).view(pa.timestamp("us", "UTC")),
        "d": pa.array([0, -(2**31), -(2**31) + 1, 2**31 - 1, 5], pa.int32()).view(pa.date32()),
    }
    policy = _policy(tmp_path, "t.parquet", "\n".join(f"{name} = {{}}" for name in columns))
    conditions = ["a + 1 > 5", "a * 1000 > 5", "b + a > 0", "round(b) > 3", "c > 0", "c % 7 > 1", "abs(c) > 1", "a > 0",
                  "CAST(a AS DOUBLE) > 3", "ts > TIMESTAMP '2000-01-01'", "CAST(ts AS DATE) > DATE '2000-01-01'",
                  "year(ts) > 3", "date_trunc('month', ts) > TIMESTAMP '2000-01-01'", "CAST(tz AS DATE) > d",
                  "date_diff('day', ts, TIMESTAMP '2000-01-01') > 3", "ts + INTERVAL 1 DAY > ts", "d + 1 > d",
                  "d - DATE '2000-01-01' > 0", "CAST(c AS DOUBLE) > 2", "sign(c) = 1", "c / 3 > 1",
                  "CAST(ts AS VARCHAR) LIKE '2020%'", "TRY_CAST(c AS DECIMAL(12,2)) = 1",
                  "year(d) > 3", "week(d) > 3", "CAST(d AS TIMESTAMP) > ts",
                  "hour(tz::TIMESTAMP) > 3", "TRY_CAST(a AS INTEGER) > 3", "CAST(d AS VARCHAR) > 'a'"]  # fmt: skip
    batches = [
        "SELECT " + ", ".join(f"COUNT_IF({condition})" for condition in conditions[start::7]) + " FROM t"
        for start in range(7)
    ]
    batches.append("SELECT COUNT(a), COUNT(b), COUNT(c), COUNT(ts), COUNT(tz), COUNT(d) FROM t")
    loaded = Policy.parse(policy.to_toml().replace('source = "t.parquet"', ""))
    for rows, counts in ((1, [1] * 6), (5, [2, 2, 2, 3, 3, 4])):
        pq.write_table(pa.table(columns).slice(0, rows), tmp_path / "t.parquet", store_decimal_as_integer=True)
        # DuckDB takes them into a table of its own as they are.
        con = duckdb.connect()
        con.execute(f"CREATE TABLE t AS FROM '{tmp_path / 't.parquet'}'")
        for held, database in ((policy, None), (loaded, con)):
            assert [exact(batch, held, database).answers for batch in batches][-1] == counts


def test_text_that_is_no_utf8_fails_no_scan_where_duckdb_can_read_it(tmp_path: Path) -> None:
    path = _written(tmp_path / "t.parquet", "SELECT unnest(['abcdefgh', 'bc', 'zz']) AS s")
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\xffb\xfe\xc3efgh"))
    policy = _policy(tmp_path, "t.parquet", "s = {}")
    batch = "SELECT COUNT(*), COUNT_IF(s = 'befgh'), COUNT_IF(s > 'bd'), COUNT_IF(s LIKE 'b%') FROM t"
    if int(duckdb.__version__.split(".")[0]) >= 2:
        assert exact(batch, policy, None).answers == [3, 1, 2, 2]
    else:  # a stated precondition of sources: DuckDB has no other way to read it
        with pytest.raises(OperationalError, match="is not shown") as caught:
            exact(batch, policy, None)
        assert caught.value.__context__ is None


def test_a_path_adds_no_columns_to_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "year=2020"
    folder.mkdir()
    path = _written(folder / "t.parquet", "SELECT 1 AS a")
    assert FileEngine(None).schemas([TableSource("t", path)]) == {"t": {"a": "INTEGER"}}


# --- CSV -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [10, 12, 20])
def test_a_damaged_gzip_is_an_error_of_ours(tmp_path: Path, at: int) -> None:
    stored = bytearray(gzip.compress(b"a\n1\n" + b"secret" * 3000))
    stored[at : at + 3] = b"\xff\xff\xff"
    path = tmp_path / "t.csv.gz"
    path.write_bytes(stored)
    with pytest.raises(OperationalError, match="has no header line") as caught:
        FileEngine(None).schemas([TableSource("t", path, {"a": "INTEGER"})])
    assert caught.value.__context__ is None


def test_a_header_ends_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,"b\nsecret,1\nother",2\n')
    with pytest.raises(OperationalError, match="has no header line") as caught:
        FileEngine(None).schemas([TableSource("t", path, {"a": "INTEGER"})])
    assert "secret" not in str(caught.value)


ZONED = """
from pathlib import Path
from typing import Any
from dpsql.engines.base import Scan, TableSource
from dpsql.engines.duckdb import FileEngine
from dpsql.engines.limits import Limits
from dpsql.workloads.expr.scan import Select, Table
from dpsql.workloads.expr.values import CaseValue, Compared, Constant, CountRows, Name, whole
source = TableSource("t", Path("t.csv"), {"ts": "TIMESTAMPTZ"})
two = Constant(1_577_844_000_000_000, "TIMESTAMP WITH TIME ZONE")  # 2020-01-01 02:00:00+00
below = CaseValue(((Compared(Name("ts"), "<", two), whole(1)),), whole(0), "INTEGER")
select = Select((("a0", below), ("n", CountRows())), Table("t"), group_by=1)
print(FileEngine(None).scan(Scan("t", (source,), select))["a0"].tolist())
"""


@pytest.mark.parametrize("zone", ["America/New_York", pytest.param("Asia/Tokyo", marks=pytest.mark.long)])
def test_a_time_without_a_zone_is_in_utc_everywhere(tmp_path: Path, zone: str) -> None:
    (tmp_path / "t.csv").write_text("ts\n2020-01-01 00:30:00\n2020-01-01 01:30:00\n")
    root = str(Path(engine_module.__file__).parents[2])
    settings = os.environ | {"TZ": zone, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", ZONED], cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.stdout == "[1]\n", done.stderr


# --- what a scan leaves ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_scan_spills_into_a_private_directory_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = tmp_path / "big.duckdb"
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT i AS a, i * 7 AS b FROM range(1_500_000) r(i)")
    given = []
    plain = engine_module._isolated

    def small(spill: str, *limits: Any) -> duckdb.DuckDBPyConnection:
        given.append((spill, stat.S_IMODE(Path(spill).stat().st_mode)))
        connection = plain(spill if allowed else "", *limits)
        connection.execute("SET memory_limit = '50MB'; SET threads = 1")
        return connection

    monkeypatch.setattr(engine_module, "_isolated", small)
    engine, asked = FileEngine(path), counts_of(TableSource("t"), "a", "b")
    allowed = False
    with pytest.raises(OperationalError, match="check memory, disk"):
        engine.scan(asked)
    allowed = True  # now it needs the directory, and may use it although its settings are locked
    assert int(engine.scan(asked)["n"].sum()) == 1_500_000
    assert [mode for _, mode in given] == [0o700, 0o700]
    assert all(Path(spill).parent == temporary for spill, _ in given)
    assert list(temporary.iterdir()) == list(work.iterdir()) == []


@pytest.mark.long
def test_an_instance_is_kept_for_the_next_scan_and_spills_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_spare", SpareInstances(2))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "big.duckdb"
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT i AS a, i * 7 AS b FROM range(1_000_000) r(i)")
    engine, asked = FileEngine(path, Limits("50MB")), counts_of(TableSource("t"), "a", "b")
    for _ in range(2):
        assert int(engine.scan(asked)["n"].sum()) == 1_000_000
        (kept,) = engine_module._spare.values()
        assert list(tmp_path.iterdir()) == [path]
        with duckdb.connect(path) as con:  # nobody holds the file
            con.execute("CREATE TABLE IF NOT EXISTS other (a INTEGER)")
    with engine.opened([TableSource("t")]) as held:
        assert held.connection is kept
        for text in ("SET threads = 2", f"ATTACH '{tmp_path}/other' AS o", f"COPY dpsql_source.t TO '{tmp_path}/c'"):
            with pytest.raises(duckdb.Error):
                held.connection.execute(text)
    monkeypatch.setattr(engine_module, "_reference", lambda *_: "nothing")
    with pytest.raises(OperationalError, match="failed inside DuckDB"):
        engine.scan(asked)
    assert not engine_module._spare


def test_names_of_spill_folders_that_others_took_stop_no_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_spare", SpareInstances(2))
    monkeypatch.setattr(engine_module, "_MOST_SCANS", 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = [tmp_path / f"dpsql-{engine_module._PROCESS}-{number}" for number in range(2)]
    taken[0].mkdir()
    taken[1].symlink_to(tmp_path)
    path = _written(tmp_path / "t.parquet", "SELECT 1 AS a")
    for _ in range(2):
        assert FileEngine(None).scan(counts_of(TableSource("t", path), "a"))["n"].tolist() == [1]
        assert sorted(tmp_path.iterdir()) == sorted([*taken, path])


def test_no_place_to_spill_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = _written(tmp_path / "t.parquet", "SELECT 1 AS a")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OperationalError, match="set TMPDIR"):
        FileEngine(None).schemas([TableSource("t", path)])
