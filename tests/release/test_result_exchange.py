"""Results in the formats of other libraries: the same values by every way, and by none where an extra is missing."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow
import pytest

from dpsql.errors import InterfaceError, OperationalError
from dpsql.release import Result
from dpsql.release.columns import PACKED, Coded, Numbers
from dpsql.release.files import file_name, write_result, write_text

VALUES: list[tuple[str, str, list[Any]]] = [
    ("d", "DOUBLE", [1.5, None]),
    ("f", "FLOAT", [0.5, float("nan")]),
    ("i", "INTEGER", [1, 2]),
    ("j", "BIGINT", [-(2**63), None]),
    ("u", "UBIGINT", [2**64 - 1, None]),
    ("b", "BOOLEAN", [True, False]),
    ("day", "DATE", [dt.date(2026, 1, 2), None]),
    ("at", "TIMESTAMP", [dt.datetime(2026, 1, 2, 3, 4, 5, 6), None]),
    ("t", "TIME", [dt.time(1, 2, 3), None]),
    ("s", "VARCHAR", ['it\'s "ä"\n', None]),
    ("de", "DECIMAL(10,2)", [Decimal("1.25"), None]),
    ("bytes", "BLOB", [b"a\x00b", None]),
    ("list", "INTEGER[]", [[1, 2], None]),
    ("struct", "STRUCT(a INTEGER, b VARCHAR)", [{"a": 1, "b": "x"}, None]),
]
TYPED = Result.from_columns(VALUES)


def packed() -> Result:
    """More rows than are kept as Python values."""
    n = PACKED + 1
    null = np.zeros(n, dtype=np.bool_)
    null[3] = True
    codes = (np.arange(n) % 3).astype(np.int32)
    return Result.from_columns(
        [
            ("k", "VARCHAR", Coded(("a", "b", None), codes)),
            ("n", "DOUBLE", Numbers(np.arange(float(n)), null)),
        ]
    )


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Equal, NaN included."""
    assert repr(found) == repr(expected)


def test_arrow_has_the_values_and_the_types() -> None:
    table = TYPED.arrow()
    assert isinstance(table, pyarrow.Table)
    assert table.schema.names == list(TYPED.columns)
    same([tuple(row.values()) for row in table.to_pylist()], TYPED.fetchall())
    assert [str(kind) for kind in table.schema.types][:5] == ["double", "float", "int32", "int64", "uint64"]
    huge = Result(["h"], ["HUGEINT"], [(2**100,)]).arrow()
    assert huge.to_pylist() == [{"h": Decimal(2**100)}]  # Arrow's integers have 64 bits
    assert pyarrow.RecordBatchReader.from_stream(TYPED).read_all().num_rows == 2


def test_polars_has_the_values() -> None:
    for frame in (TYPED.pl(), polars.DataFrame(TYPED)):
        assert frame.columns == list(TYPED.columns)
        same(frame.rows(), TYPED.fetchall())
    spans = Result(["k", "iv"], ["VARCHAR", "INTERVAL"], [("a", dt.timedelta(days=1, seconds=5)), ("b", None)])
    assert spans.pl().rows() == [("a", "1 day, 0:00:05"), ("b", None)]  # polars has no INTERVAL
    assert spans.arrow().column("iv")[0].as_py().nanoseconds == 5_000_000_000
    with pytest.raises(InterfaceError, match="two are called 'a'"):
        Result(["a", "a"], ["INTEGER", "INTEGER"], [(1, 2)]).pl()


def test_pandas_and_duckdb_take_a_result_directly() -> None:
    simple = Result(["k", "n"], ["VARCHAR", "DOUBLE"], [("a", 1.0), ("b", None)])
    if hasattr(pandas.DataFrame, "from_arrow"):  # since pandas 3
        assert pandas.DataFrame.from_arrow(simple)["k"].tolist() == ["a", "b"]
    with duckdb.connect(":memory:") as connection:
        assert connection.sql("SELECT * FROM simple").fetchall() == simple.fetchall()
        assert connection.sql("SELECT * FROM TYPED").types[8].id == "time"


def test_columns_of_a_large_release_stay_arrays() -> None:
    result = packed()
    table = result.arrow()
    assert table.column("n").null_count == 1
    assert table.column("n").to_pylist()[-1] == PACKED
    assert result.df()["n"].isna().sum() == 1
    assert result.pl()["k"].null_count() == (PACKED + 1) // 3
    held = object.__getattribute__(result, "_data")
    assert held.rows is None  # nobody asked for rows
    assert len(result) == PACKED + 1
    assert result.column("n")[3] is None
    rows = result.fetchall()
    assert rows[:4] == [("a", 0.0), ("b", 1.0), (None, 2.0), ("a", None)]
    again = Result(result.columns, result.types, rows)
    assert again == result
    assert again.arrow().equals(table)


def test_a_frame_is_a_copy() -> None:
    result = packed()
    frame = result.df()
    frame.loc[0, "n"] = -1.0
    assert result.column("n")[0] == 0.0


def test_what_has_no_arrow_form_is_said() -> None:
    with pytest.raises(InterfaceError, match="without columns"):
        Result([], [], []).__arrow_c_stream__()
    with pytest.raises(InterfaceError, match=r"no Arrow form: .*cast the column to VARCHAR"):
        Result(["x"], ["NO_SUCH_TYPE"], [(1,)]).arrow()
    nothing = Result(["x", "y"], ["NULL", '"NULL"'], [(None, None)]).arrow()
    assert nothing.to_pylist() == [{"x": None, "y": None}]
    assert Result(["x"], ["DOUBLE"], []).arrow().num_rows == 0
    with pytest.raises(InterfaceError, match="differ in length"):
        Result.from_columns([("a", "DOUBLE", [1.0]), ("b", "DOUBLE", [])])


@pytest.mark.parametrize(("module", "method"), [("polars", "pl"), ("pyarrow", "arrow"), ("pandas", "df")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, method: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InterfaceError, match=f"install '{module}>="):
        getattr(TYPED, method)()


ALONE = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "pandas"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
from dpsql.release import Result
result = Result(["k", "n"], ["VARCHAR", "DOUBLE"], [("a", 1.0), ("b", None)])
print(result.pl().rows())
"""


@pytest.mark.skipif(duckdb.__version__.startswith("1."), reason="DuckDB 1.x makes Arrow streams with pyarrow")
def test_polars_needs_no_pyarrow() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=900)
    assert done.stdout == "[('a', 1.0), ('b', None)]\n", done.stderr


def test_files_of_one_table(tmp_path: Path) -> None:
    named = Result(["a", "A", "a_1"], ["INTEGER", "VARCHAR", "NULL"], [(1, "x", None)])
    for kind in ("csv", "parquet"):
        write_result(named, kind, tmp_path / f"t.{kind}")
        assert duckdb.sql(f"FROM '{tmp_path}/t.{kind}'").columns == ["a", "A_1", "a_1_1"]
    with pytest.raises(OperationalError, match="choose another place"):
        write_result(named, "csv", tmp_path / "no" / "where.csv")
    with pytest.raises(OperationalError, match="choose another place"):
        write_text("x", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.parquet"]


def test_names_of_files() -> None:
    assert file_name("by_town") == "by_town"
    assert file_name("../a b") == "..%2Fa b"
    assert file_name("..") == "%2E%2E"
    assert file_name("a:b\n") == "a%3Ab%0A"
