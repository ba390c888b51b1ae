"""Results of all ranges: rows worked out in Python and by the view, what the ledger keeps, refusals."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpsql.errors import DataError, IntegrityError, InterfaceError
from dpsql.release import Numbers, RangeNumber, RangeRows, RangeTable, ReleaseRecord, ReleaseStore, ReleaseTable

SHOWN = (
    ("d_from", "DATE", ("from", 0)),
    ("d_to", "DATE", ("to", 0)),
    ("s", "VARCHAR", ("key", 0)),
    ("s_other", "BOOLEAN", ("other", 0)),
    ("n", "DOUBLE", ("value", 0)),
    ("n_stderr", "DOUBLE", ("stderr", 0)),
    ("n_low", "DOUBLE", ("low", 0)),
    ("n_high", "DOUBLE", ("high", 0)),
)
KEYS = ((("x'y", None, None), (False, True, False)),)


def _table(spread: str, name: str = "v", n: int = 9, kind: str = "DATE") -> RangeTable:
    rng = np.random.default_rng(n)
    sums = np.cumsum(rng.normal(size=(3, n + 1)), axis=1)
    numbers = (RangeNumber(Numbers(sums.ravel()), (1.0, 2.0, 0.5), 3.25, 1.96),)
    lengths = Numbers(np.sqrt(np.arange(n + 1.0))) if spread == "lengths" else None
    blocks = () if spread == "lengths" else ((6, -0.25), (3, -0.125), (1, 1.5))
    shown = tuple((c, kind if part[0] in ("from", "to") else k, part) for c, k, part in SHOWN)
    values: tuple[Any, ...] = (18_000, n) if kind in ("DATE", "INTEGER") else tuple(f"w'{i:02d}" for i in range(n))
    return RangeTable(name, True, shown, values, kind, numbers, KEYS, lengths, blocks, kind != "VARCHAR")


def _record(*tables: RangeTable) -> ReleaseRecord:
    return ReleaseRecord(1, dt.datetime(2026, 1, 1), tables)


@pytest.mark.parametrize("kind", ["DATE", "INTEGER", "VARCHAR"])
@pytest.mark.parametrize("spread", ["lengths", "blocks"])
@pytest.mark.few(every=2)
def test_the_view_has_the_rows(tmp_path: Path, spread: str, kind: str) -> None:
    table = _table(spread, kind=kind)
    rows = table.rows(0, len(table))
    assert len(rows) == len(table) == 3 * 45
    first = [(table.value(0), table.value(j)) for j in range(9)]
    assert [row[:2] for row in rows[:10]] == [*first, (table.value(1), table.value(1))]
    assert len({row[:4] for row in rows}) == len(rows)
    store = ReleaseStore(tmp_path / "r.duckdb")
    store.write(_record(table))
    found = store.sql("SELECT * FROM v").fetchall()
    order = {row[:4]: row for row in found}
    assert len(order) == len(rows)
    for row in rows:
        assert order[row[:4]][4:] == pytest.approx(row[4:], rel=1e-12)
    assert store.names() == ("v",)


def test_a_row_by_hand() -> None:
    table = RangeTable(
        "v",
        True,
        (
            ("a", "INTEGER", ("from", 0)),
            ("n", "DOUBLE", ("value", 0)),
            ("e", "DOUBLE", ("stderr", 0)),
            ("l", "DOUBLE", ("low", 0)),
        ),
        (5, 3),
        "INTEGER",
        (RangeNumber(Numbers(np.array([0.0, 1.0, 4.0, 9.0])), (2.0,), 0.5, 3.0),),
        lengths=Numbers(np.array([0.0, 1.0, 4.0, 16.0])),
    )
    assert table.rows(0, 6) == [
        (5, 1.5, 2.0, -4.5),
        (5, 4.5, 4.0, -7.5),
        (5, 9.5, 8.0, -14.5),
        (6, 3.5, 2.0, -2.5),
        (6, 8.5, 4.0, -3.5),
        (7, 5.5, 2.0, -0.5),
    ]
    assert RangeRows(table)[-1] == (7, 5.5, 2.0, -0.5)
    with pytest.raises(IndexError):
        RangeRows(table)[6]


@pytest.mark.parametrize("kind", ["DATE", "VARCHAR"])
@pytest.mark.parametrize("spread", ["lengths", "blocks"])
def test_the_ledger_keeps_all_of_it(spread: str, kind: str) -> None:
    record = _record(_table(spread, n=30_000 if kind == "DATE" else 9, kind=kind))
    again = ReleaseRecord.from_bytes(record.to_bytes())
    (before,), (after,) = record.tables, again.tables
    assert isinstance(before, RangeTable)
    assert isinstance(after, RangeTable)
    assert after == before
    assert after.rows(0, 50) == before.rows(0, 50)
    assert again.to_bytes() == record.to_bytes()


def test_both_kinds_of_results_answer_the_same_questions() -> None:
    """Where rows are listed and where not: names and noise, stored rows, results with columns left out, formats."""
    ranges = _table("lengths")
    names, kinds = [name for name, _, _ in ranges.shown], [kind for _, kind, _ in ranges.shown]
    columns = list(zip(*ranges.rows(0, len(ranges)), strict=True))
    rows = ReleaseTable("w", True, tuple(zip(names, kinds, columns, strict=True)))
    assert (ranges.listed, rows.listed) == (False, True)
    assert [name for name, _ in ranges.noisy] == [name for name, _ in rows.noisy] == names
    assert [name for name, noisy in ranges.noisy if noisy] == ["n", "n_low", "n_high"]
    assert (ranges.stored, rows.stored) == (30, len(ranges))
    assert ranges.result().fetchall() == rows.result().fetchall()
    few, same = (table.result({"n_low", "n_high", "s_other"}) for table in (ranges, rows))
    assert (few.columns, few.types, few.fetchall()) == (same.columns, same.types, same.fetchall())
    assert few.columns == tuple(name for name in names if name not in ("n_low", "n_high", "s_other"))
    packed = ReleaseTable("p", True, (("n", "DOUBLE", Numbers(np.zeros(20_000))),))
    assert [table.format for table in (rows, packed, ranges)] == [1, 2, 3]
    record = ReleaseRecord(1, dt.datetime(2026, 1, 1), (rows, ranges, packed))
    assert json.loads(record.to_bytes())["format"] == 3
    assert record.listed == (rows, packed)


def test_results_show_a_few_rows_and_refuse_all() -> None:
    held = _table("lengths", n=2000).result()
    assert len(held) == 3 * 2000 * 2001 // 2
    assert [len(held.fetchmany(3)), len(held.fetchmany(0))] == [3, 0]
    assert "the first 40 of 6,003,000 rows; the others are worked out when they are asked for: query dp.v" in str(held)
    assert "<table " in held._repr_html_()
    assert held == _table("lengths", n=2000).result()
    with pytest.raises(InterfaceError, match="v has 6,003,000 rows"):
        held.fetchall()
    small = _table("lengths").result()
    assert small.fetchall() == list(small)
    assert small.column("s")[0] == "x'y"


def test_names_and_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(IntegrityError, match="two columns 'N'"):
        RangeTable("v", True, (("n", "DOUBLE", ("value", 0)), ("N", "DOUBLE", ("value", 0))), (0, 2), "INTEGER", ())
    with pytest.raises(IntegrityError, match="kept for dpsql"):
        RangeTable("releases", True, (), (0, 2), "INTEGER", ())
    with pytest.raises(IntegrityError, match="unnamed result"):
        RangeTable("v", False, (), (0, 2), "INTEGER", ())
    with pytest.raises(DataError, match="not those of its values"):
        RangeTable("v", True, (), (0, 2), "INTEGER", (RangeNumber(Numbers(np.zeros(2)), (1.0,), 0.0, 2.0),))
    with pytest.raises(IntegrityError, match="kept for the parts of 'v'"):
        _record(_table("lengths"), _table("lengths", "V#Points"))


def test_both_ends_of_a_type_have_values() -> None:
    """No place beside the line is computed in the column's own narrow type."""
    table = RangeTable(
        "v",
        True,
        (("a", "TINYINT", ("from", 0)), ("b", "TINYINT", ("to", 0))),
        (-128, 256),
        "TINYINT",
        (),
        lengths=Numbers(np.zeros(257)),
    )
    from dpsql.release.range_table import write_ranges

    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA r1")
    write_ranges(connection, table, "r1")
    found = connection.execute("SELECT min(a), max(a), min(b), max(b), count(*) FROM r1.v").fetchall()
    assert found == [(-128, 127, -128, 127, 256 * 257 // 2)]
