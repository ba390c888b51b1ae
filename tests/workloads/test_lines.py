"""Lines: constants as positions, cuts and what a type cannot hold."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction

import duckdb
import numpy as np
import pandas as pd
import pytest

from dpsql.errors import DataError
from dpsql.workloads.expr.lines import Scalar, line_of, plain, scientific


@pytest.mark.parametrize(
    ("kind", "constant", "point"),
    [
        ("INTEGER", 3, ((3, 0), (4, 0))),
        ("INTEGER", Fraction(7, 2), None),
        ("TINYINT", 127, ((127, 0), None)),
        ("TINYINT", -128, (None, (-127, 0))),
        ("TINYINT", 128, None),
        ("UHUGEINT", 2**128 - 1, ((2**128 - 1, 0), None)),
        ("UHUGEINT", -1, None),
        ("HUGEINT", 1e300, None),
        ("DECIMAL(9,2)", Fraction(1, 100), ((1, 0), (2, 0))),
        ("DECIMAL(9,2)", Fraction(1, 1000), None),
        ("DOUBLE", Fraction(1, 10), ((0.1, 0), (0.1, 1))),
        ("FLOAT", Fraction(1, 10), ((float(np.float32(0.1)), 0), (float(np.float32(0.1)), 1))),
        ("FLOAT", 0.1, ((0.1, 0), (0.1, 1))),
        ("BOOLEAN", True, ((1, 0), None)),
        ("DATE", "1970-01-02", ((1, 0), (2, 0))),
        ("DATE", dt.datetime(1970, 1, 2, 12), None),
        ("TIMESTAMP", dt.date(1970, 1, 2), ((86_400_000_000, 0), (86_400_000_001, 0))),
        ("TIMESTAMP WITH TIME ZONE", "1970-01-01 01:00:00+01", ((0, 0), (1, 0))),
        ("VARCHAR", "a", (("a", 0), ("a", 1))),
    ],
)
def test_points(kind: str, constant: Scalar, point: object) -> None:
    assert line_of(kind).point(constant) == point


@pytest.mark.parametrize(
    ("kind", "constant"),
    [
        ("INTEGER", "3"),
        ("INTEGER", True),
        ("VARCHAR", 3),
        ("BOOLEAN", 1),
        ("DATE", 3),
        ("DATE", "2020-01-01 12:00"),
        ("DATE", "20200101"),
        ("TIMESTAMP", "2020-01-01 00:00:00+02"),
        ("TIMESTAMP", "2020-W01-1"),
        ("TIMESTAMP", "２０２０-01-01"),
        ("TIMESTAMP WITH TIME ZONE", "0001-01-01 00:00:00+01"),
        ("TIMESTAMP WITH TIME ZONE", "9999-12-31 23:59:59-01"),
        ("INTEGER[]", 3),
        ("BLOB", "x"),
    ],
)
def test_constants_of_another_kind(kind: str, constant: Scalar) -> None:
    with pytest.raises(DataError) as caught:
        line_of(kind).place(constant)
    assert str(caught.value).isprintable()


def test_huge_numbers_become_infinite_doubles() -> None:
    assert line_of("DOUBLE").place(10**400) == float("inf")
    assert line_of("FLOAT").place(-(10**400)) == float("-inf")
    # Beyond FLOAT's range nothing is rounded to infinity.
    assert line_of("FLOAT").place(Fraction(10**39)) == 1e39


def test_strict_and_inclusive_cuts_agree_on_discrete_lines() -> None:
    line = line_of("BIGINT")
    assert line.above(Fraction(3)) == line.below(Fraction(4))
    assert line.below(Fraction(7, 2)) == line.above(Fraction(7, 2)) == (4, 0)


@pytest.mark.parametrize(
    ("kind", "constant", "agrees"),
    [
        ("INTEGER", 3.5, True),
        ("INTEGER", 2.0**53, True),
        ("UINTEGER", 1e300, True),
        ("BIGINT", 2.0**53, False),
        ("BIGINT", -(2.0**53), False),
        ("BIGINT", 2.0**53 - 1, True),
        ("BIGINT", 0.5, True),
        ("BIGINT", 2.0**63, False),
        ("BIGINT", 2.0**63 + 2048, True),
        ("UBIGINT", -1e300, True),
        ("UBIGINT", 2.0**64, False),
        ("HUGEINT", 1e38, False),
        ("DECIMAL(15,2)", 3.0, True),
        ("DECIMAL(15,2)", 0.5, True),
        ("DECIMAL(16,2)", 0.5, False),
        ("DECIMAL(16,2)", 3.0, False),
        ("DECIMAL(38,10)", 0.0, True),
        ("DECIMAL(38,10)", 1e28, False),
        ("DECIMAL(38,10)", 1e29, True),
    ],
)
def test_floats_beside_exact_lines(kind: str, constant: float, agrees: bool) -> None:
    line = line_of(kind)
    assert line.same_as_double(constant) is agrees
    if agrees:
        assert float(line.place(constant) / 10**line.scale) == constant
    else:
        with pytest.raises(DataError, match=r"write -?\d.* instead of"):
            line.place(constant)


@pytest.mark.parametrize(("digits", "scale"), [(4, 1), (8, 2), (9, 9), (15, 3), (15, 15)])
def test_doubles_beside_decimals_are_compared_as_duckdb_does(digits: int, scale: int) -> None:
    """Every decimal drawn, with the doubles of its neighbours, those next to them, and its own."""
    line = line_of(f"DECIMAL({digits},{scale})")
    rng = np.random.default_rng(digits * 100 + scale)
    steps = [int(n) for n in rng.integers(-(10**digits) + 2, 10**digits - 1, 400)]
    pairs: list[tuple[int, str, float]] = []
    for n in steps:
        for near in (n - 1, n, n + 1):
            double = near / 10**scale
            exact = format(Decimal(n).scaleb(-scale), "f")
            pairs += [(n, exact, d) for d in (double, math.nextafter(double, 9e99), math.nextafter(double, -9e99))]
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t (n BIGINT, x DECIMAL({digits},{scale}), d DOUBLE)")
    con.register("pairs", pd.DataFrame(pairs, columns=["n", "x", "d"]))
    con.execute("INSERT INTO t SELECT n, x, d FROM pairs")
    for n, d, less, same in con.execute("SELECT n, d, x < d, x = d FROM t").fetchall():
        place = line.place(d)
        assert (n < place, n == place) == (less, same)


@pytest.mark.parametrize(
    ("constant", "exact", "double"),
    [
        (0.1, "0.1", "1e-1"),
        (-2.5, "-2.5", "-2.5e0"),
        (1000.0, "1000", "1e3"),
        (1e38, "1" + "0" * 38, "1e38"),
        (1e-300, "a number without exponent", "1e-300"),
    ],
)
def test_floats_are_shown_as_sql_writes_them(constant: float, exact: str, double: str) -> None:
    assert (plain(constant), scientific(constant)) == (exact, double)
