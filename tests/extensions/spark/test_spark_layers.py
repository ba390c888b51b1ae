"""Values used several times: computed once, in the levels that they need; their text grows with the statement alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpsql.errors import NotSupportedError
from dpsql.extensions.spark.engine import Source, packed, written
from dpsql.extensions.spark.layers import Layers
from dpsql.extensions.spark.session import private_session
from dpsql.extensions.spark.values import Expr
from dpsql.measure.from_sql import rows_of
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.rows import KEPT, OfUnit, RowSource, Units
from dpsql.workloads.expr.scan import Select, Table, same
from dpsql.workloads.expr.values import Cast, Compared, Constant, CountRows, Name, Stored, Value, Word, bare, whole

LINE = Line("integer", "BIGINT", 0, 9)
TABLE = {"t": Source("t", {"x": "DOUBLE", "y": "DOUBLE"})}


def _written(value: Value) -> str:
    return written(Select((("n", CountRows()), ("s", Word(value, high=False, most=2**42))), Table("t", "b")), TABLE)[0]


def test_conditions_of_rows_of_units_are_columns() -> None:
    """As in DuckDB's scan: no WHERE, but a flag that is the least of a unit's rows, and counts."""
    tables = {"t": Source("t", {"u": "INTEGER", "x": "INTEGER"})}
    rows = RowSource("t", unit=Stored("u", "INTEGER"), limit=3)
    units = Units(rows, Compared(Stored("x", "INTEGER"), "=", Constant(3, "INTEGER")), "u", ())
    source = RowSource("t", unit=Stored("u", "INTEGER"), of=units)
    text, _ = written(Select((*same(KEPT), ("n", CountRows())), rows_of(source, (), same(KEPT)), group_by=1), tables)
    assert "WHERE" not in text
    truth = "CASE {} WHEN TRUE THEN 0 WHEN FALSE THEN 1 ELSE 2 END"
    assert f"{truth.format('`dpsql_base`.`x` = 3')} AS `dpsql_w0`" in text
    assert f"min({truth.format('`dpsql_values`.`dpsql_w0` = 0')}) AS `dpsql kept`" in text
    counted = replace(units, columns=(OfUnit("c", "count", whole(1), LINE, LINE),))
    select = Select((("n", CountRows()),), rows_of(replace(source, of=counted), (), same(KEPT)))
    with pytest.raises(NotSupportedError, match="aggregates of each unit"):
        written(select, tables)


def _long(value: Value) -> Value:
    return Cast(value, "BIGINT", tries=True)


def test_a_value_used_once_stands_in_its_place() -> None:
    layers = Layers()
    x = layers.column("b.x")
    once = layers.marked(f"f({x})")
    assert layers.written([f"g({once})", "1"], "t AS b") == (["g(f(b.x))", "1"], "t AS b")


def test_a_value_used_twice_is_computed_once_and_below_what_needs_it() -> None:
    layers = Layers()
    x, y = layers.column("b.x"), layers.column("b.y")
    first = layers.marked(f"f({x})")
    second = layers.marked(f"g({first}, {first})")
    texts, source = layers.written([f"{second} + {second}", f"{y} > 0"], "t AS b")
    below = "(SELECT b.x AS dpsql_v0, b.y AS dpsql_v1, f(b.x) AS dpsql_v2 FROM t AS b) AS dpsql_layer"
    assert texts == ["dpsql_v3 + dpsql_v3", "dpsql_v1 > 0"]
    assert source == f"(SELECT *, g(dpsql_v2, dpsql_v2) AS dpsql_v3 FROM {below}) AS dpsql_layer"
    assert layers.inlined(second) == "g(f(b.x), f(b.x))"


def test_equal_texts_are_one_value_and_constants_none() -> None:
    layers = Layers()
    x = layers.column("b.x")
    assert layers.marked(f"f({x})") == layers.marked(f"f({x})")
    assert layers.marked("f(1)") == "f(1)"


def test_the_text_grows_with_the_depth_and_does_not_double() -> None:
    value: Value = Name("x", "b")
    sizes = []
    for _ in range(12):
        value = bare("round", value, type="DOUBLE")
        sizes.append(len(_written(_long(value))))
    assert sizes[-1] < 2 * sizes[5] < 10_000
    assert "\x01" not in _written(_long(value))


def test_a_sum_of_a_value_has_its_two_parts_of_one_column() -> None:
    text = _written(_long(bare("floor", Name("x", "b"), type="DOUBLE")))
    assert text.count("floor(") == 1
    assert "GROUP BY" not in text


def test_a_sum_that_64_bits_hold_is_added_up_in_one_part() -> None:
    for most, parts in ((2**25 - 1, 1), (2**25, 2)):
        word = Word(Cast(Name("x", "b"), "BIGINT", tries=True), high=False, most=most)
        assert written(Select((("s", word), ("n", CountRows())), Table("t", "b")), TABLE)[0].count("sum(") == parts


KEYS = [
    [(1, None, -3), (None, 7, -1), (2, 5, -3), (2, None, None), (1, 7, -2)],
    [(-(2**31), None), (2**31 - 1, 0), (0, -128), (None, 127)],
]


@pytest.mark.spark
@pytest.mark.parametrize("rows", KEYS, ids=("three", "two"))
def test_keys_come_back_from_their_one_number(rows: list[tuple[int | None, ...]], spark: Any) -> None:
    columns = list(zip(*rows, strict=True))
    ranges = [(min(v for v in c if v is not None), max(v for v in c if v is not None)) for c in columns]
    text, digits = packed([Expr(f"k{at}", "BIGINT", *reach) for at, reach in enumerate(ranges)])
    values = ", ".join(
        f"({', '.join('NULL' if v is None else f'{v}L' for v in row)}, {at})" for at, row in enumerate(rows)
    )
    names = ", ".join(f"k{at}" for at in range(len(columns)))
    one = f"SELECT {text} AS dpsql_key FROM VALUES {values} AS t({names}, at) ORDER BY at"
    key = np.asarray(private_session(spark).sql(one).toArrow().column(0))
    got = zip(*(digit.of(key).tolist() for digit in digits), strict=True)
    assert [tuple(None if value != value else value for value in row) for row in got] == rows


def test_keys_stay_apart_where_one_number_does_not_hold_them() -> None:
    wide = Expr("k", "BIGINT", 0, 2**31)
    none = Expr("k", "BIGINT", 1, 0)
    for keys in ([wide], [wide, wide], [Expr("k", "HUGEINT", 0, 1), wide], [none, Expr("k", "BIGINT", 0, 1)]):
        assert packed(keys) == ("", [])


def test_a_name_with_the_character_of_a_mark_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="control character 1"):
        written(Select((("n", CountRows()),), Table("t")), {"t": Source("t", {"x\x010\x02": "DOUBLE"})})
