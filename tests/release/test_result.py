"""The table that users see: immutable, aligned, escaped, with or without the extras."""

from __future__ import annotations

import datetime as dt
import math
import sys

import pytest

from dpsql.errors import InterfaceError
from dpsql.release import Result

STATES = Result.from_columns(
    [
        ("state", "VARCHAR", ["NY", "<b>NJ</b>", None]),
        ("n", "DOUBLE", [1234.5678, -7.25, 0.001]),
        ("n_stderr", "DOUBLE", [3.21, 3.21, 3.21]),
        ("n_low", "DOUBLE", [1228.2, -13.5, -6.3]),
        ("n_high", "DOUBLE", [1240.9, -1.0, 6.3]),
    ]
)


def test_rows_columns_and_places() -> None:
    assert STATES.columns == ("state", "n", "n_stderr", "n_low", "n_high")
    assert STATES.types[:2] == ("VARCHAR", "DOUBLE")
    assert len(STATES) == 3
    result = Result(["a"], ["INTEGER"], [[1], [2], [3]])
    assert result.fetchone() == (1,)
    assert result.fetchmany(5) == [(2,), (3,)]
    assert result.fetchone() is None
    assert result.fetchall() == [(1,), (2,), (3,)] == list(result)
    assert result.column("A") == [1, 2, 3]
    assert result.description[0][:2] == ("a", "INTEGER")
    assert result == Result(["a"], ["INTEGER"], [(1,), (2,), (3,)])
    with pytest.raises(InterfaceError, match="no column 'b'; the result has a"):
        result.column("b")


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        STATES.columns = ()
    with pytest.raises(AttributeError, match="cannot be changed"):
        del STATES.types
    STATES.fetchall().clear()
    assert len(STATES) == 3
    with pytest.raises(InterfaceError):
        Result(["a"], ["INTEGER"], [[1, 2]])


def test_text_is_aligned_and_rounded_to_the_error() -> None:
    assert str(STATES).splitlines() == [
        "state           n  n_stderr   n_low  n_high",
        "---------  ------  --------  ------  ------",
        "NY         1234.6       3.2  1228.2  1240.9",
        "<b>NJ</b>    -7.2       3.2   -13.5    -1.0",
        "NULL          0.0       3.2    -6.3     6.3",
        "(3 rows)",
    ]
    assert repr(STATES).startswith("Result(3 rows: state, n,")


def test_text_of_large_and_tiny_errors() -> None:
    def shown(value: float, error: float) -> str:
        table = Result(["x", "x_stderr"], ["DOUBLE", "DOUBLE"], [[value, error]])
        return str(table).splitlines()[2].split()[0]

    assert shown(123456.789, 250.0) == "123457"
    assert shown(0.123456, 0.00123) == "0.1235"
    assert shown(-0.2, 44.0) == "0"
    assert shown(5.0, 0.0) == "5"
    # Digits that a DOUBLE has not say nothing, and all that an exact number has do.
    assert shown(2e6, 1.3e-13) == "2000000"
    assert shown(2e6 + 2**-20, 5.3e-44) == "2000000.00000095"
    assert shown(1 / 3, 0.0) == "0.333333333333333"
    assert shown(47571474.2402, 3e-8) == "47571474.2402"


def test_near_exact_errors_and_sums_without_any_keep_their_digits() -> None:
    rows: list[list[object]] = [[1e6, 3.8e-36], [666667.0, 3.8e-36]]
    assert str(Result(["n", "n_stderr"], ["DOUBLE"] * 2, rows)).splitlines()[2:4] == [
        "1000000   3.8e-36",
        " 666667   3.8e-36",
    ]
    rows[1][1] = 2.5  # beside which the other is exact
    assert str(Result(["n", "n_stderr"], ["DOUBLE"] * 2, rows)).splitlines()[2:4] == [
        "1000000.0       0.0",
        " 666667.0       2.5",
    ]
    texts = str(Result(["n"], ["DOUBLE"], [[123456789.4], [1234.5678], [1e-7], [2.5e20], [-math.inf]])).splitlines()
    assert [text.strip() for text in texts[2:7]] == ["123456789", "1234.57", "1e-07", "2.5e+20", "-inf"]


def test_text_of_wide_characters_breaks_and_long_tables() -> None:
    result = Result(["名前", "v"], ["VARCHAR", "INTEGER"], [["日本", 1], ["a\nb", 10], ["x" * 99, 5]])
    lines = str(result).splitlines()
    assert lines[0].startswith("名前")
    assert "a\\nb" in lines[3]
    assert "…" in lines[4]
    assert len(lines) == 6
    long = str(Result(["i"], ["INTEGER"], [[i] for i in range(100)])).splitlines()
    assert len(long) == 43
    assert long[-1] == "(100 rows, the first 40 shown; fetchall() and df() have them all)"
    assert str(Result(["i"], ["INTEGER"], [])).splitlines() == ["i", "-", "(0 rows)"]


def test_html_is_escaped() -> None:
    page = Result(["<script>"], ["VARCHAR"], [["<b>&'\""]])._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;&#x27;&quot;" in page
    assert STATES._repr_html_().count("<tr>") == 4


TYPED = Result.from_columns(
    [
        ("d", "DOUBLE", [1.5, None]),
        ("i", "INTEGER", [1, 2]),
        ("j", "BIGINT", [1, None]),
        ("u", "UBIGINT", [2**64 - 1, None]),
        ("b", "BOOLEAN", [True, False]),
        ("day", "DATE", [dt.date(2026, 1, 2), None]),
        ("at", "TIMESTAMP", [dt.datetime(2026, 1, 2, 3), None]),
        ("s", "VARCHAR", ["x", None]),
    ]
)


def test_data_frame() -> None:
    frame = TYPED.df()
    assert list(frame.columns) == list(TYPED.columns)
    assert [str(t) for t in frame.dtypes][:5] == ["float64", "int32", "Int64", "UInt64", "bool"]
    assert frame["u"][0] == 2**64 - 1
    assert str(frame["at"].dtype) == "datetime64[us]"
    assert frame["day"][0].date() == dt.date(2026, 1, 2)
    assert frame["s"].tolist() == ["x", None]
    assert Result(["a", "a"], ["DOUBLE", "DOUBLE"], []).df().shape == (0, 2)


def test_arrow_table() -> None:
    table = TYPED.arrow()
    assert [str(t) for t in table.schema.types] == [
        *("double", "int32", "int64", "uint64", "bool", "date32[day]", "timestamp[us]", "string"),
    ]
    assert table.to_pylist()[1] == dict(zip(TYPED.columns, TYPED.fetchall()[1], strict=True))


@pytest.mark.parametrize(("module", "method"), [("pandas", "df"), ("pyarrow", "arrow")])
def test_missing_extras_say_what_to_install(monkeypatch: pytest.MonkeyPatch, module: str, method: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InterfaceError, match=f"install '{module}>="):
        getattr(STATES, method)()
