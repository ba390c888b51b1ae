"""Regions of a run of whole numbers or days: the scan's expression on every kind of value."""

from __future__ import annotations

import duckdb
import pytest

from dpsql.measure.region_sql import is_inside, region
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import RunAxis, is_total
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import render

INTEGERS = {
    "TINYINT": ["-128", "127", "0"],
    "INTEGER": ["-2147483648", "2147483647", "0"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
    "UBIGINT": ["18446744073709551615", "0"],
    "HUGEINT": ["-170141183460469231731687303715884105728", "170141183460469231731687303715884105727"],
    "UHUGEINT": ["340282366920938463463374607431768211455", "0"],
}


def _regions(axis: RunAxis, kind: str, values: list[str]) -> list[tuple[int, bool]]:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE {BASE} (c {kind})")
    listed = ", ".join(f"('{value}'::{kind})" for value in values)
    connection.execute(f"INSERT INTO {BASE} VALUES {listed}, (NULL)")
    inside = f"COALESCE({render(is_inside(axis, {}))}, FALSE)"
    return connection.execute(f"SELECT {render(region(axis, {}))}, {inside} FROM {BASE}").fetchall()


@pytest.mark.parametrize("kind", INTEGERS)
def test_whole_numbers(kind: str) -> None:
    first = 3 if kind.startswith("U") else -5
    axis = RunAxis("c", line_of(kind), first, 10)
    values = [*(str(first + at) for at in range(10)), str(first - 1), str(first + 10), *INTEGERS[kind]]
    expected = [(at, True) for at in range(10)] + [(-1, False)] * 2
    for value in INTEGERS[kind]:
        at = int(value) - first
        expected.append((at, True) if 0 <= at < 10 else (-1, False))
    assert _regions(axis, kind, values) == [*expected, (-1, False)]
    assert not is_total(axis)


def test_days() -> None:
    axis = RunAxis("c", line_of("DATE"), -1, 3)
    values = ["1969-12-31", "1970-01-01", "1970-01-02", "1969-12-30", "1970-01-03", "infinity", "-infinity"]
    found = _regions(axis, "DATE", values)
    assert found == [(0, True), (1, True), (2, True), *[(-1, False)] * 5]


def test_the_ends_of_a_type() -> None:
    whole = RunAxis("c", line_of("TINYINT"), -128, 256)
    assert _regions(whole, "TINYINT", ["-128", "127", "0"]) == [(0, True), (255, True), (128, True), (-1, False)]
