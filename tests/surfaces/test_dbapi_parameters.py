"""Parameters become literals of their own type, whatever they hold and wherever they stand."""

from __future__ import annotations

import datetime as dt
import enum
import math
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from helpers import scratch
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.sql.parse.parameters import literal, prepare


class Plan(enum.StrEnum):
    FREE = "it's free"


class Level(enum.IntEnum):
    TWO = 2


@pytest.mark.parametrize(
    ("text", "parameters", "filled"),
    [
        ("a = ?", [1], "a = 1"),
        ("a=?AND b=?", [1, "x"], "a=1 AND b='x'"),
        ("? ? ?", (1, 2, 3), "1 2 3"),
        ("$2 $1 $2", [1, 2], "2 1 2"),
        ("a BETWEEN :lo AND :hi", {"lo": 1, "hi": 2, "more": 3}, "a BETWEEN 1 AND 2"),
        ("a = $lo", {"lo": 1}, "a = 1"),
        ("(:a,:a)", {"a": 5}, "(5,5)"),
        ("IN (?,?)", np.array([1, 2]), "IN (1,2)"),
        ("x-?", [-1], "x- (-1)"),
        ("?::DATE", ["2020-01-01"], "'2020-01-01' ::DATE"),
        ("a=:x::INT", {"x": 1}, "a=1 ::INT"),
        ("a = :select", {"select": 1}, "a = 1"),
        ("E?", ["\\"], "E '\\'"),
        ("'a'?", ["b"], "'a' 'b'"),
        ("'?' \"?\" $$?$$ /* ? :x */ -- $x ?\n ?", [1], "'?' \"?\" $$?$$ /* ? :x */ -- $x ?\n 1"),
        ("'it''s ?' ?", [1], "'it''s ?' 1"),
        ("'\\' ?", [1], "'\\' 1"),
        ("{'a':x, 'b': y}['a'] q[1:n] q[:n] z:n ::INT :v", {"v": 0}, "{'a':x, 'b': y}['a'] q[1:n] q[:n] z:n ::INT 0"),
        ("no parameters", None, "no parameters"),
        ("no parameters", [], "no parameters"),
        ("a::INT", {}, "a::INT"),
        ("é = ? -- é", ["ü"], "é = 'ü' -- é"),
    ],
)
def test_where_parameters_stand(text: str, parameters: Any, filled: str) -> None:
    assert prepare(text).fill(parameters) == filled


UTC = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "kind", "held"),
    [
        (None, '"NULL"', None),
        (True, "BOOLEAN", True),
        (np.bool_(False), "BOOLEAN", False),
        (0, "INTEGER", 0),
        (-7, "INTEGER", -7),
        (Level.TWO, "INTEGER", 2),
        (np.int64(2**40), "BIGINT", 2**40),
        (10**37, "HUGEINT", 10**37),
        (1.5, "DOUBLE", 1.5),
        (-0.1, "DOUBLE", -0.1),
        (1e300, "DOUBLE", 1e300),
        (5e-324, "DOUBLE", 5e-324),
        (np.float32(0.5), "DOUBLE", 0.5),
        (Decimal("-1.50"), "DECIMAL(3,2)", Decimal("-1.50")),
        (Decimal("1E+3"), "INTEGER", 1000),
        ("it's -- /* ? */ \\", "VARCHAR", "it's -- /* ? */ \\"),
        ("a\nb", "VARCHAR", "a\nb"),
        (np.str_("x"), "VARCHAR", "x"),
        (Plan.FREE, "VARCHAR", "it's free"),
        (dt.date(1, 1, 1), "DATE", dt.date(1, 1, 1)),
        (np.datetime64("2020-02-29"), "DATE", dt.date(2020, 2, 29)),
        (dt.datetime(2020, 1, 1, 1, 2, 3, 4), "TIMESTAMP", dt.datetime(2020, 1, 1, 1, 2, 3, 4)),
        (np.datetime64("2020-01-01T01:02:03.000004000"), "TIMESTAMP", dt.datetime(2020, 1, 1, 1, 2, 3, 4)),
        (pd.Timestamp("2020-01-01 01:02:03"), "TIMESTAMP", dt.datetime(2020, 1, 1, 1, 2, 3)),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), "TIMESTAMP WITH TIME ZONE", None),
        (dt.time(1, 2, 3), "TIME", dt.time(1, 2, 3)),
        (pd.NaT, '"NULL"', None),
        (np.datetime64("NaT"), '"NULL"', None),
    ],
    ids=repr,
)
def test_a_literal_is_what_duckdb_reads_it_as(value: object, kind: str, held: object) -> None:
    with scratch() as duck:
        text = literal(value, "number 1")
        duck.execute("SET TimeZone = 'UTC'")
        row = duck.execute(
            f"SELECT typeof({text}), {text}::VARCHAR, {text if kind[:9] != 'TIMESTAMP' else 0}"
        ).fetchone()
    assert row is not None
    assert row[0] == kind
    if isinstance(held, dt.datetime):
        assert dt.datetime.fromisoformat(row[1]) == held
    elif kind == "TIMESTAMP WITH TIME ZONE":
        assert row[1] == "2019-12-31 22:00:00+00"
    else:
        assert row[2] == held


DUCK = duckdb.connect()
# A whole alphabet of Unicode takes seconds to be made: what SQL and Unicode treat apart is enough.
TEXT = st.text("ab 0'\"\\`$%?:;,()[]{}-/*\n\r\t\x01\x1b\x7f\x85\xa0\u0301\u200b\u2028\u202e\ufeff\uffff\U0001f600")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(TEXT, min_size=1, max_size=3), st.sampled_from(["{}", "({})", "{}||''", "''||{}", "lower({})", "x'{}'"])
)
def test_no_text_leaves_its_literal(values: list[str], shape: str) -> None:
    items = [f"{shape.format('?')} AS c{number}" for number, _ in enumerate(values) if "x'" not in shape]
    if not items:  # inside of a literal there are no parameters
        assert prepare(shape.format("?")).spots == ()
        return
    row = DUCK.execute(prepare("SELECT " + ", ".join(items)).fill(values)).fetchone()
    expected = [DUCK.execute("SELECT lower($1)", [v]).fetchone()[0] if "lower" in shape else v for v in values]
    assert list(row or ()) == expected


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("?", None),
        (":x", None),
        ("$1", None),
        ("?", []),
        ("?", [1, 2]),
        ("", [1]),
        ("$2", [1]),
        ("? $1", [1, 2]),
        ("? :x", [1]),
        ("$1 :x", {"x": 1}),
        (":x", {}),
        (":x", {"X": 1}),
        (":x", [1]),
        ("?", {"x": 1}),
        ("?", "a"),
        ("?", b"a"),
        ("?", 1),
        ("?", {1}),
        ("?", np.array([[1]])),
        ("?", [b"a"]),
        ("?", [bytearray(b"a")]),
        ("?", [[1]]),
        ("?", [(1,)]),
        ("?", [np.array([1])]),
        ("?", [Ellipsis]),
        ("?", [1j]),
        ("?", [dt.timedelta(1)]),
        ("?", [np.timedelta64(1, "D")]),
        ("?", [dt.time(1, tzinfo=dt.UTC)]),
        ("?", [pd.NA]),
        ("?1", [1]),
        ("??", [1, 2]),
        ("'a ?", [1]),
        (1, None),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_a_programming_error(text: Any, parameters: Any) -> None:
    with pytest.raises(dpsql.ProgrammingError) as caught:
        prepare(text).fill(parameters)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, np.float64("nan"), Decimal("NaN"), Decimal("1e40"), Decimal("1e-1000000"), 10**38),
        *("a\x00b", "\ud800", np.datetime64(1, "ns"), pd.Timestamp(1)),
    ],
    ids=repr,
)
def test_a_value_that_no_column_compares_with_is_a_data_error(value: object) -> None:
    with pytest.raises(dpsql.DataError, match="number 1"):
        prepare("?").fill([value])
