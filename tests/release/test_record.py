"""Records survive the ledger byte for byte and refuse what could not."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal

import numpy as np
import pytest

from dpsql.errors import DataError, IntegrityError
from dpsql.release import ReleaseRecord, ReleaseTable, check_name

WHEN = dt.datetime(2026, 3, 1, 12, 30, 15, 250000)


def record(*tables: ReleaseTable, release_id: int = 1, **changes: object) -> ReleaseRecord:
    return ReleaseRecord(release_id, WHEN, tables, **changes)  # type: ignore[arg-type]


def test_every_kind_of_value_comes_back_equal() -> None:
    values = {
        "VARCHAR": ["", "O'Brien", 'quo"te', "naïve ☃ \U0001f600", "line\nbreak", None],
        "BIGINT": [0, -1, 2**63 - 1, -(2**63), 7, None],
        "HUGEINT": [2**100, -(2**100), 0, 1, 2, None],
        "DOUBLE": [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, None],
        "DATE": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2026, 2, 28)] * 2,
        "TIMESTAMP": [dt.datetime(2020, 2, 29, 1, 2, 3, 4), None] * 3,
        "TIME": [dt.time(1, 2, 3), None] * 3,
        "INTERVAL": [dt.timedelta(days=-1, microseconds=3), None] * 3,
        "DECIMAL(18,3)": [Decimal("1.500"), Decimal("-0.001"), None] * 2,
        "BOOLEAN": [True, False, None] * 2,
        "UUID": [uuid.UUID(int=5), None] * 3,
        "BLOB": [b"", b"\xff\x00", None] * 2,
        "ENUM('a', 'it''s')": ["a", "it's", None] * 2,
    }
    table = ReleaseTable("t", True, tuple((f"c{i}", kind, v) for i, (kind, v) in enumerate(values.items())))
    original = record(table, label="über", cost=0.1, gap=6e-4, queries=3, sql="SELECT '☃'")
    again = ReleaseRecord.from_bytes(original.to_bytes())
    assert again == original
    assert again.to_bytes() == original.to_bytes()
    for (_, _, before), (_, _, after) in zip(table.columns, again.tables[0].columns, strict=True):
        assert [type(v) for v in before] == [type(v) for v in after]
        assert repr(before) == repr(after)  # tells -0.0 from 0.0


def test_nan_comes_back() -> None:
    original = record(ReleaseTable("q1", False, (("n", "DOUBLE", [math.nan]),)))
    assert math.isnan(ReleaseRecord.from_bytes(original.to_bytes()).tables[0].columns[0][2][0])  # type: ignore[arg-type]


def test_random_floats_are_exact() -> None:
    bits = np.random.default_rng(0).integers(0, 2**63, 2000, dtype=np.uint64)
    floats = bits.view(np.float64)
    floats = floats[np.isfinite(floats)]
    table = ReleaseRecord.from_bytes(record(ReleaseTable("t", True, (("x", "DOUBLE", floats),))).to_bytes())
    assert list(table.tables[0].columns[0][2]) == floats.tolist()


def test_arrays_become_plain_values_and_zones_become_utc() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    table = ReleaseTable(
        "t",
        True,
        (
            ("n", "double", np.array([1, 2])),
            ("at", "TIMESTAMP WITH TIME ZONE", [dt.datetime(2026, 1, 1, 2, tzinfo=zone), None]),
            ("k", "INTEGER", [np.int32(3), 4]),
        ),
    )
    assert table.columns == (
        ("n", "DOUBLE", (1.0, 2.0)),
        ("at", "TIMESTAMP", (dt.datetime(2026, 1, 1), None)),
        ("k", "INTEGER", (3, 4)),
    )
    assert type(table.columns[2][2][0]) is int
    assert len(table) == 2
    assert ReleaseRecord(1, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), ()).released_at == dt.datetime(2026, 1, 1)


@pytest.mark.parametrize("name", ["releases", "Releases", "q1", "Q12", "", "a\0b"])
def test_kept_names_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError):
        check_name(name)
    with pytest.raises(IntegrityError):
        ReleaseTable(name, True, (("n", "DOUBLE", []),))


@pytest.mark.parametrize(
    "kind",
    [
        "INT); DROP TABLE x; --",
        "DOUBLE, y INT",
        "ENUM('a'); --')",
        "ENUM('a'b')",
        "",
        "DOUBLE DEFAULT (1)",
        "INT -- x",
        "INT\n",
    ],
)
def test_types_that_are_no_types_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match="unknown type"):
        ReleaseTable("t", True, (("n", kind, []),))


def test_misfits_are_refused() -> None:
    with pytest.raises(DataError, match="differ in length"):
        ReleaseTable("t", True, (("a", "DOUBLE", [1.0]), ("b", "DOUBLE", [])))
    with pytest.raises(DataError, match="no columns"):
        ReleaseTable("t", True, ())
    with pytest.raises(IntegrityError, match="two columns"):
        ReleaseTable("t", True, (("a", "DOUBLE", []), ("A", "DOUBLE", [])))
    with pytest.raises(IntegrityError, match="q1, q2"):
        ReleaseTable("first", False, (("a", "DOUBLE", []),))
    with pytest.raises(DataError, match="stored form"):
        ReleaseTable("t", True, (("a", "VARCHAR", [object()]),))
    one = ReleaseTable("One", True, (("a", "DOUBLE", []),))
    with pytest.raises(IntegrityError, match="two results"):
        record(one, ReleaseTable("one", True, (("a", "DOUBLE", []),)))
    with pytest.raises(DataError, match="counts from 1"):
        record(one, release_id=0)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"\xff", b'{"format": 1}', b'{"format": 2}'])
def test_damaged_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(IntegrityError):
        ReleaseRecord.from_bytes(payload)
