"""Every function of DuckDB that a scan on Spark may call, by its name."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.engines.spark import calendar, numbers, texts
from dpsql.engines.spark.values import INTEGERS, Expr, Rule


def _hash(of: Sequence[Expr]) -> Expr:
    """Another number than DuckDB's: of a unit with more rows than count, others remain, no less evenly."""
    return Expr(f"xxhash64({', '.join(e.text for e in of)})", "BIGINT", *INTEGERS["BIGINT"])


def _signbit(of: Sequence[Expr]) -> Expr:
    (a,) = of
    # Told apart behind an equal value alone, where it is minus zero beside zero; every NaN is one to the scan.
    return Expr(f"CAST({a.text} AS STRING) = '-0.0'", "BOOLEAN", rank=3)


_YEARS = (-6_000_000, 6_000_000)
FUNCTIONS: dict[str, Rule] = {
    **{operator: numbers.arithmetic(operator) for operator in "+-*"},
    "/": numbers.divided,
    "//": numbers.quotient,
    "%": numbers.remainder,
    "abs": numbers.absolute,
    "sign": numbers.sign,
    "isnan": numbers.isnan,
    **{name: numbers.rounding(name) for name in ("floor", "ceil", "trunc", "round")},
    **{name: numbers.extreme(name) for name in ("greatest", "least")},
    **{"list_extract": texts.list_extract, "list_value": texts.list_value, "list_position": texts.list_position},
    "strlen": texts.of_text("CAST(octet_length({0}) AS BIGINT)", "BIGINT", 1),
    "concat": texts.concat,
    "substring": texts.substring,
    "left": texts.end("left"),
    "right": texts.end("right"),
    **{"trim": texts.trim("BOTH"), "ltrim": texts.trim("LEADING"), "rtrim": texts.trim("TRAILING")},
    **{"lower": texts.cased("lower"), "upper": texts.cased("upper")},
    "||": texts.join,
    "length": texts.of_text("CAST(char_length({0}) AS BIGINT)", "BIGINT", 1),
    "strpos": texts.searched("CAST(instr({0}, {1}) AS BIGINT)", "BIGINT"),
    "starts_with": texts.of_text("startswith({0}, {1})", "BOOLEAN", 2),
    "ends_with": texts.of_text("endswith({0}, {1})", "BOOLEAN", 2),
    "contains": texts.searched("contains({0}, {1})", "BOOLEAN"),
    "year": calendar.part("year({0})", *_YEARS),
    "isoyear": calendar.part("extract(YEAROFWEEK FROM {0})", *_YEARS),
    "decade": calendar.part("year({0}) div 10", *_YEARS),
    "century": calendar.part(calendar.century(100), *_YEARS),
    "millennium": calendar.part(calendar.century(1000), *_YEARS),
    "quarter": calendar.part("quarter({0})", 1, 4),
    "month": calendar.part("month({0})", 1, 12),
    "week": calendar.part("weekofyear({0})", 1, 53),
    "yearweek": calendar.part(calendar.yearweek(), -600_000_053, 600_000_053),
    "day": calendar.part("day({0})", 1, 31),
    "dayofyear": calendar.part("dayofyear({0})", 1, 366),
    "dayofweek": calendar.part("dayofweek({0}) - 1", 0, 6),
    "isodow": calendar.part("weekday({0}) + 1", 1, 7),
    **{name: calendar.clock(name) for name in ("hour", "minute", "second")},
    "date_trunc": calendar.truncated,
    "date_diff": calendar.difference,
    "to_months": calendar.months,
    "to_microseconds": calendar.micros,
    **{"hash": _hash, "signbit": _signbit},
}
"""Every function of DuckDB that a statement for Spark may call."""
