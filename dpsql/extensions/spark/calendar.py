"""Dates and times of Spark. Their functions overflow at the ends of its calendar, so that values are clamped before."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.extensions.spark.values import (
    OPERATOR,
    Expr,
    Rule,
    date_constant,
    kinds,
    moment_constant,
    refusal,
    short,
    wholes,
)

# Days that every function of Spark works on, about 290,000 years around 1970.
_FAR_DAYS = 106_000_000


def day(of: Expr) -> str:
    """The date of a date or timestamp, clamped to years that all functions have."""
    shown = of.inner if of.type == "DATE" else f"CAST({of.text} AS DATE)"
    return _clamped(shown, date_constant(-_FAR_DAYS).text, date_constant(_FAR_DAYS).text)


def _clamped(text: str, low: str, high: str) -> str:
    # No least() and greatest(): they would make a date of NULL.
    return short(Expr(f"CASE WHEN {text} < {low} THEN {low} WHEN {text} > {high} THEN {high} ELSE {text} END", "")).text


def midnight(of: Expr) -> str:
    """Midnight of the day, as a timestamp."""
    return f"CAST({day(of)} AS TIMESTAMP_NTZ)"


def near_moment(of: Expr) -> str:
    far = 80_000_000 * 86_400_000_000
    return _clamped(of.inner, moment_constant(-far).text, moment_constant(far).text)


def _dated(of: Sequence[Expr], what: str) -> Expr:
    (a,) = of
    if a.type not in ("DATE", "TIMESTAMP"):
        raise refusal(f"{what} of {a.type} is not admitted", "store it as DATE or TIMESTAMP_NTZ")
    return a


def part(template: str, low: int, high: int) -> Rule:
    """A part of the date. Spark has no infinite dates: what DuckDB stores as one is a day like any other."""

    def rule(of: Sequence[Expr]) -> Expr:
        a = _dated(of, "a part of the date")
        shown = a.text if a.type == "DATE" else f"CAST({a.text} AS DATE)"
        return short(Expr(f"CAST({template.format(shown)} AS BIGINT)", "BIGINT", low, high))

    return rule


def clock(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        a = _dated(of, function)
        if a.type == "DATE":
            return Expr(f"CASE WHEN {a.inner} IS NOT NULL THEN 0L END", "BIGINT", 0, 0)
        return Expr(f"CAST({function}({a.text}) AS BIGINT)", "BIGINT", 0, 59)

    return rule


def century(length: int) -> str:
    return f"CASE WHEN year({{0}}) > 0 THEN (year({{0}}) - 1) div {length} + 1 ELSE year({{0}}) div {length} - 1 END"


def yearweek() -> str:
    year, week = "extract(YEAROFWEEK FROM {0})", "weekofyear({0})"
    return f"{year} * 100 + CASE WHEN {year} > 0 THEN {week} ELSE -{week} END"


def months(of: Sequence[Expr]) -> Expr:
    (a,) = of
    wholes(of, "an interval")
    return Expr(f"make_ym_interval(0, {a.text})", "INTERVAL")


def micros(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if not isinstance(a.constant, int):
        raise refusal("an interval that is not constant", "write INTERVAL with a constant")
    whole, rest = divmod(abs(a.constant), 1_000_000)
    sign = "-" if a.constant < 0 else ""
    return Expr(f"INTERVAL '{sign}{whole}.{rest:06d}' SECOND", "INTERVAL")


_STARTS = {
    "day": "{m}",
    "hour": "{m} + make_dt_interval(0, hour({t}))",
    "minute": "{m} + make_dt_interval(0, hour({t}), minute({t}))",
    "second": "{m} + make_dt_interval(0, hour({t}), minute({t}), second({t}))",
    "week": "CAST(trunc({d}, 'WEEK') AS TIMESTAMP_NTZ)",
    "month": "CAST(trunc({d}, 'MONTH') AS TIMESTAMP_NTZ)",
    "quarter": "CAST(trunc({d}, 'QUARTER') AS TIMESTAMP_NTZ)",
    "year": "CAST(trunc({d}, 'YEAR') AS TIMESTAMP_NTZ)",
    **{
        unit: f"CAST(make_date(CAST(year({{d}}) div {years} * {years} AS INT), 1, 1) AS TIMESTAMP_NTZ)"
        for unit, years in (("decade", 10), ("century", 100), ("millennium", 1000))
    },
}


def truncated(of: Sequence[Expr]) -> Expr:
    unit, a = of
    kinds([a], "TIMESTAMP", "date_trunc")
    template = _STARTS.get(str(unit.constant))
    if template is None:
        raise refusal(f"date_trunc to {unit.constant} is not admitted", f"take one of {', '.join(sorted(_STARTS))}")
    near = Expr(near_moment(a), "TIMESTAMP")
    text = template.format(t=near.text, d=day(near), m=midnight(near))
    return short(Expr(text, "TIMESTAMP", rank=OPERATOR if template.startswith("{m} +") else 9))


_COUNTED = {
    "day": "CAST(unix_date({0}) AS BIGINT)",
    "month": "(year({0}) * 12L + month({0}))",
    "quarter": "((year({0}) * 12L + month({0}) - 1) div 3)",
    "year": "CAST(year({0}) AS BIGINT)",
    "decade": "(year({0}) div 10)",
    "century": "(year({0}) div 100)",
}


def difference(of: Sequence[Expr]) -> Expr:
    unit, a, b = of
    template = _COUNTED.get(str(unit.constant))
    if template is None or not a.type == b.type or a.type not in ("DATE", "TIMESTAMP"):
        raise refusal(
            f"date_diff by {unit.constant} is not admitted", f"take one of {', '.join(_COUNTED)}, of two dates"
        )
    text = f"{template.format(day(b))} - {template.format(day(a))}"
    return short(Expr(text, "BIGINT", -(2**33), 2**33, rank=OPERATOR))
