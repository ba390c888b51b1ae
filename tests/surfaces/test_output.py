"""Tables that fit, prose that wraps, JSON that every reader takes."""

from __future__ import annotations

import json
import math

import pytest

from dpsql.release import Result
from dpsql.surfaces import output


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


BESIDE = ("_stderr", "_low", "_high")


def test_json_is_strict_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"rows": [[1, "ä", None], [2.5, True, math.nan]], "empty": [], "inner": {"x": {}}, "inf": -math.inf}
    output.print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == {
        "rows": [[1, "ä", None], [2.5, True, None]],
        "empty": [],
        "inner": {"x": {}},
        "inf": None,
    }
    assert '    [1, "\\u00e4", null],\n' in text


def test_wide_tables_lose_their_intervals_first() -> None:
    names = [f"{long}{end}" for long in ("a_long_column", "another") for end in ("", "_stderr", "_low")]
    names += ["x_low"]
    result = Result(names, ["DOUBLE"] * 7, [(1.0, 0.5, 0.0) * 2 + (3.0,)])
    shown = output.table_text(result)
    assert max(map(len, shown.splitlines())) <= 80
    assert "a_long_column_low" not in shown
    assert "x_low" in shown
    assert shown.endswith("(1 row, too wide for the _low and _high columns)")


def test_still_wider_tables_go_row_by_row() -> None:
    result = Result([f"column_{i}" for i in range(20)], ["VARCHAR"] * 20, [["v" * 9] * 20, [None] * 20])
    shown = output.table_text(result)
    assert "row 2 of 2\ncolumn_0   NULL" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert output.table_text(Result(result.columns, result.types, [])).endswith("(0 rows)")


def test_a_row_by_row_table_has_errors_beside_their_numbers() -> None:
    names = [f"{name}{end}" for name in ("first_number", "second_one", "third") for end in ("", *BESIDE)]
    row = (12.345, 1.5, 9.3, 15.4, None, None, 0.0, None, 7.0, 0.0, 7.0, 7.0)
    shown = output.table_text(Result(names, ["DOUBLE"] * 12, [row])).splitlines()
    assert shown == [
        "row 1 of 1",
        "first_number  12.3 (standard error 1.5; 9.3 to 15.4)",
        "second_one    NULL (standard error NULL; 0 to NULL)",
        "third         7 (standard error 0; 7 to 7)",
    ]


def test_prose_wraps_under_its_label() -> None:
    lines = output.prose("Strategy   " + "word " * 30 + "\n\nend").splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(" " * 11 + "word")
    assert lines[-2:] == ["", "end"]
