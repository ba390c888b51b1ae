"""Packed columns: the same values, the same bytes, the same tables."""

from __future__ import annotations

import base64
import datetime as dt
import json
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpsql.errors import IntegrityError
from dpsql.release import ReleaseRecord, ReleaseStore, ReleaseTable, payload
from dpsql.release import columns as columns_module
from dpsql.release.columns import (
    PACKED,
    Coded,
    Numbers,
    coded,
    fetched,
    from_json,
    runs_of,
    stacked,
    to_json,
    write_table,
)
from dpsql.release.result import Result

N = PACKED + 7
LISTS: dict[tuple[str, str], list[Any]] = {
    ("x", "DOUBLE"): [None if i % 7 == 3 else i / 3 for i in range(N)],
    ("k", "BIGINT"): [None if i % 5 == 0 else i % 11 - 4 for i in range(N)],
    ("far", "BIGINT"): [(i % 3 - 1) * 2**62 for i in range(N)],
    ("t", "VARCHAR"): [["a", "ä'", None, ""][i % 4] for i in range(N)],
    ("d", "DATE"): [dt.date(2020, 1, 1 + i % 9) for i in range(N)],
    ("o", "BOOLEAN"): [[True, False, None][i % 3] for i in range(N)],
}


def packed(kind: str, values: list[Any]) -> Numbers | Coded:
    if kind == "DOUBLE":
        null = np.array([value is None for value in values])
        return Numbers(np.array([value or 0.0 for value in values]), null)
    return coded(values)


def table() -> ReleaseTable:
    return ReleaseTable(
        "big", True, tuple((name, kind, packed(kind, values)) for (name, kind), values in LISTS.items())
    )


def record() -> ReleaseRecord:
    return ReleaseRecord(1, dt.datetime(2024, 1, 1), (table(),))


def test_packed_columns_are_sequences_of_their_values() -> None:
    for (_, kind), values in LISTS.items():
        column = packed(kind, values)
        assert column == tuple(values)
        assert list(column) == values
        assert (len(column), column[5], column[-1], column[2:9]) == (N, values[5], values[-1], tuple(values[2:9]))
        assert column != tuple(values[:-1])
        with pytest.raises(IndexError):
            column[N]
        assert hash(column) == hash(tuple(values))
    # 1 and True are equal and not the same value.
    assert [type(value) for value in coded([1, True, 1.0])] == [int, bool, float]


def test_a_record_of_packed_columns_survives_its_bytes_and_the_file(tmp_path: Path) -> None:
    held = record()
    again = ReleaseRecord.from_bytes(held.to_bytes())
    assert again == held
    assert json.loads(held.to_bytes())["format"] == 2
    assert all(isinstance(values, Numbers | Coded) for _, _, values in again.tables[0].columns)
    store = ReleaseStore(tmp_path / "r.duckdb")
    store.write(again)
    found = store.sql("SELECT * FROM big")
    assert found == Result.from_columns(again.tables[0].columns)
    assert found.column("t") == LISTS["t", "VARCHAR"]


def test_short_columns_stay_tuples() -> None:
    short = ReleaseTable("s", True, (("x", "DOUBLE", Numbers(np.arange(3.0))), ("k", "BIGINT", coded([1, None, 2]))))
    assert short.columns == (("x", "DOUBLE", (0.0, 1.0, 2.0)), ("k", "BIGINT", (1, None, 2)))
    assert all(isinstance(values, tuple) for _, _, values in short.columns)


def test_what_duckdb_holds_is_fetched_as_it_is() -> None:
    con = duckdb.connect()
    kinds = ", ".join(f"{name} {kind}" for name, kind in LISTS)
    con.execute(f"CREATE TABLE t ({kinds}, n INTEGER)")
    for i in range(40):
        con.execute(f"INSERT INTO t VALUES ({'?, ' * len(LISTS)}NULL)", [values[i] for values in LISTS.values()])
    found = fetched(con, "t", [(name, kind) for name, kind in LISTS] + [("n", "INTEGER")])
    assert [list(column) for column in found] == [*(values[:40] for values in LISTS.values()), [None] * 40]


@pytest.mark.parametrize("damage", ["codes", "length", "null", "zip", "distinct"])
def test_damaged_columns_are_refused(damage: str) -> None:
    body = json.loads(record().to_bytes())
    columns = {name: content for name, _, content in body["tables"][0]["columns"]}
    if damage == "codes":
        columns["k"]["codes"] = base64.b64encode(zlib.compress(np.full(N, 99, dtype="<i4").tobytes())).decode()
    elif damage == "length":
        columns["x"]["length"] += 1
    elif damage == "null":
        columns["x"]["null"] = base64.b64encode(zlib.compress(b"\x00")).decode()
    elif damage == "zip":
        columns["x"]["floats"] = base64.b64encode(b"no such thing").decode()
    else:
        del columns["t"]["distinct"]
    with pytest.raises(IntegrityError, match="damaged"):
        ReleaseRecord.from_bytes(json.dumps(body).encode())


@pytest.mark.parametrize("rows", [PACKED - 1, PACKED, 50_000])
def test_runs_of_equal_rows_are_kept_as_their_lengths(rows: int) -> None:
    """Sorted codes take little room, and come back and into DuckDB as they were, in order."""
    codes = np.sort(np.random.default_rng(5).integers(0, 60, rows)).astype(np.int32)
    a = Coded(("x", "y", None, "z"), codes % 4)
    b = Coded(tuple(range(15)), codes // 4)
    assert (runs_of([a, b]) is None) == (rows < PACKED)
    mixed = np.random.default_rng(6).permutation(codes)
    assert runs_of([Coded(a.distinct, mixed % 4)]) is None
    for column in (a, b):
        body = to_json(column, lambda value: value)
        assert ("runs" in body) == (rows >= PACKED)
        back = from_json(body, lambda value: value)
        assert isinstance(back, Coded)
        assert np.array_equal(back.codes, column.codes)
        assert back.distinct == column.distinct
    with duckdb.connect() as connection:
        write_table(connection, "t", [("a", "VARCHAR", a), ("b", "INTEGER", b)])
        found = connection.execute("SELECT a, b FROM t").fetchall()
    assert found == list(zip(a.values(), b.values(), strict=True))


@pytest.mark.parametrize("lengths", [[1], [1, 0], [2, -1]])
def test_runs_that_do_not_fit_are_damage(lengths: list[int]) -> None:
    codes = np.repeat(np.arange(2, dtype=np.int32), PACKED)
    body = to_json(Coded(("x", "y"), codes), lambda value: value)
    raw = zlib.compress(np.array(lengths, dtype="<i8").tobytes(), 1)
    body["runs"] = base64.b64encode(raw).decode("ascii")
    with pytest.raises(ValueError, match="runs"):
        from_json(body, lambda value: value)


def test_many_codes_of_few_values_take_a_byte_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_LONG", 4)
    one, other = Coded(("x", None), np.array([0, 1, 1, 0])), Coded(("y", "x"), np.array([1, 0]))
    (_, _, joined), (_, _, lone) = stacked(
        [[("a", "VARCHAR", one)], [("a", "VARCHAR", other), ("b", "VARCHAR", other)]]
    )
    assert isinstance(joined, Coded)
    assert isinstance(lone, Coded)
    assert joined.codes.dtype == lone.codes.dtype == np.int8
    assert joined.values() == ["x", None, None, "x", "x", "y"]
    assert lone.values() == [None, None, None, None, "x", "y"]
    back = from_json(to_json(joined, lambda value: value), lambda value: value)
    assert isinstance(back, Coded)
    assert back.codes.dtype == np.int8
    assert back == joined
    many = Coded(tuple(range(128)), np.arange(128))
    ((_, _, wide),) = stacked([[("a", "INTEGER", many)]])
    assert isinstance(wide, Coded)
    assert wide.codes.dtype == np.int32
    with duckdb.connect() as connection:
        last = Coded(tuple(range(127)), np.arange(127, dtype=np.int8))
        write_table(connection, "t", [("a", "INTEGER", last)])
        assert connection.execute("SELECT min(a), max(a), count(*) FROM t").fetchall() == [(0, 126, 127)]


def test_a_long_measurement_is_kept_as_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact up to 64 bits; longer integers, and those of a shorter measurement, as their digits."""
    monkeypatch.setattr(payload, "_LONG", 3)
    kept = ReleaseRecord(1, dt.datetime(2024, 1, 1), (ReleaseTable("a", True, (("n", "BIGINT", (1, 2)),)),))
    for y, form in (((1, -(2**63), 2**63 - 1), 2), ((1, 2, 2**63), 1), ((1, 2), 1)):
        held = payload.Measurement(y, "gaussian", Fraction(7, 2), 1, "hash")
        raw = payload.pack(kept, held)
        assert json.loads(raw)["format"] == form
        assert payload.unpack(raw) == (kept, held)
        assert payload.record_of(raw) == kept
    with pytest.raises(IntegrityError, match="damaged"):
        payload.record_of(b"{")
