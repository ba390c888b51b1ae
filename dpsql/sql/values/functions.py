"""Functions of values: which calls are admitted, with the types that each takes and gives.

A function is admitted where it is deterministic and row-local: where it has no value it is NULL. The tables here, in
``text_functions`` and in ``real_functions`` say so by name, and everything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isfinite

from sqlglot import exp

from dpsql.sql.outer.sandbox import changing_function
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values import arithmetic, calendar, text_functions
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.real_functions import real_function
from dpsql.sql.values.text_functions import text_function
from dpsql.sql.values.typed import Typed, as_real, exact, flat, settled, shown
from dpsql.workload.expr.values import CaseValue, Compared, Constant, Test, Value

Inner = Callable[[exp.Expr], Typed]

_ROUNDED: dict[type[exp.Expr], str] = {exp.Floor: "floor", exp.Ceil: "ceil", exp.Trunc: "trunc", exp.Round: "round"}
_PARTS: dict[type[exp.Expr], str] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.Week: "week",
    exp.WeekOfYear: "week",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfYear: "dayofyear",
    exp.DayOfWeek: "dayofweek",
    exp.DayOfWeekIso: "isodow",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
}
_NAMED_PARTS = frozenset({"isoyear", "weekday", "yearweek", "decade", "century", "millennium"})
NAMED = frozenset({"date_part", "datepart", *_NAMED_PARTS, *text_functions.NAMED})
"""The admitted functions that the parser knows by name alone."""
_NAMES = (
    "+ - * / // %, ABS, SIGN, FLOOR, CEIL, ROUND, TRUNC, GREATEST, LEAST, COALESCE, NULLIF, CASE, IF, CAST, TRY_CAST, "
    "SQRT, CBRT, EXP, LN, LOG, LOG2, LOG10, POW, ISNAN, ISINF, YEAR to SECOND, EXTRACT, date_trunc, date_diff, "
    "make_date, strptime, try_strptime, WIDTH_BUCKET, LOWER, UPPER, LENGTH, SUBSTR, LEFT, RIGHT, TRIM, ||, CONCAT, "
    "replace, split_part, strpos, prefix, suffix, starts_with, ends_with, contains, "
    "regexp_matches, regexp_full_match, regexp_extract, regexp_replace"
)


def call(node: exp.Expr, inner: Inner) -> Typed:
    """The value of a function call; SQLError for one that is not admitted."""
    if isinstance(node, exp.Subquery | exp.Exists | exp.Select):
        raise refuse("a subquery depends on other rows; split it into views of its own", node, code="subquery")
    if isinstance(node, exp.AggFunc | exp.Window):
        raise refuse(
            "an aggregate inside an expression depends on other rows; compute it over the released view",
            node,
            code="aggregate-of-rows",
        )
    for found in (_number, real_function, _time, text_function):
        result = found(node, inner)
        if result is not None:
            return result
    if isinstance(node, exp.Any | exp.All) and node.find(exp.Query) is not None:
        raise refuse("a subquery depends on other rows; split it into views of its own", node, code="subquery")
    if isinstance(node, exp.UDTF | exp.Explode):
        raise refuse(f"{shown(node)} makes several rows of one; leave it out", node, code="several-rows")
    changing = changing_function(node.sql("duckdb"))
    if changing not in {None, "error"}:
        raise refuse(f"{changing} gives another result each time; write a constant", node, code="changing-function")
    raise refuse(
        f"{shown(node)} is not an admitted expression; admitted are {_NAMES}",
        node,
        code="function",
    )


def plus(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    """a + b: numbers, or a date and days."""
    if a.kind == "date" and b.numeric:
        return calendar.shifted_days(a, b, node, forward=True)
    if b.kind == "date" and a.numeric:
        return calendar.shifted_days(b, a, node, forward=True)
    return arithmetic.added(a, b, node)


def minus(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    """a - b: numbers, two dates, or a date and days."""
    if a.kind == "date" and b.numeric:
        return calendar.shifted_days(a, b, node, forward=False)
    if "date" in (a.kind, b.kind) or "timestamp" in (a.kind, b.kind) or "timestamptz" in (a.kind, b.kind):
        return calendar.days_between(a, b, node)
    return arithmetic.subtracted(a, b, node)


def moved(a: Typed, interval: exp.Interval, node: exp.Expr, *, forward: bool) -> Typed:
    """A date or timestamp plus or minus a constant interval."""
    return calendar.shifted_by(a, interval, node, forward=forward)


def _number(node: exp.Expr, inner: Inner) -> Typed | None:
    if isinstance(node, exp.Abs):
        return arithmetic.absolute(inner(node.this), node)
    if isinstance(node, exp.Sign):
        return arithmetic.sign(inner(node.this), node)
    if isinstance(node, exp.Floor | exp.Ceil | exp.Trunc | exp.Round):
        if node.args.get("decimals") is not None and not isinstance(node, exp.Round):
            raise refuse(f"{shown(node)} takes one number; write ROUND(x, 2) for decimals", node)
        digits = _integer(node.args["decimals"], node, 15) if node.args.get("decimals") is not None else 0
        return arithmetic.rounded(_ROUNDED[type(node)], inner(node.this), node, digits)
    if isinstance(node, exp.Greatest | exp.Least):
        function = "greatest" if isinstance(node, exp.Greatest) else "least"
        return arithmetic.extreme(function, [inner(part) for part in (node.this, *node.expressions)], node)
    if isinstance(node, exp.WidthBucket):
        return _width_bucket(node, inner)
    return None


def _width_bucket(node: exp.WidthBucket, inner: Inner) -> Typed:
    """SQL's WIDTH_BUCKET, which DuckDB lacks: 0 below low, 1 to n within, n + 1 from high on; NULL on NULL and NaN."""
    sides = [node.args[name] for name in ("min_value", "max_value", "num_buckets")]
    if not all(is_constant(side) for side in sides):
        raise refuse("WIDTH_BUCKET takes constants for low, high and the number of buckets", node)
    count = _integer(sides[2], node, 1_000)
    low, high = (_rational(side, node) for side in sides[:2])
    if count < 1 or not low < high:
        raise refuse("WIDTH_BUCKET takes low < high and at least one bucket", node)
    t = inner(node.this)
    arithmetic.numbers(node, t)
    edges = [low + (high - low) * k / count for k in range(count + 1)]
    if t.kind == "exact":
        t = flat(t, node)
        # A cut outside the number's own range is as good as one at its end, and of its type.
        first, last = t.low, t.high
        cuts: list[Value] = [Constant(max(first, min(last, -(-edge // t.unit))), t.value.type) for edge in edges]
        past = [-(-edge // t.unit) > last for edge in edges]
    else:
        t = settled(as_real(t, node))
        cuts = [Constant(float(edge), "DOUBLE") for edge in edges]
        past = [False] * len(cuts)
    branches: list[tuple[Test, Value]] = [
        (Compared(t.value, "<=" if over else "<", cut), Constant(number, "BIGINT"))
        for number, (cut, over) in enumerate(zip(cuts, past, strict=True))
    ]
    branches.append((Compared(t.value, ">=", cuts[-1]), Constant(count + 1, "BIGINT")))
    return exact(CaseValue(tuple(branches), None, "BIGINT"), 0, count + 1, "integer", t, gap=False)


def _time(node: exp.Expr, inner: Inner) -> Typed | None:
    name = _PARTS.get(type(node))
    if name is not None:
        return calendar.part(name, inner(node.this), node)
    if isinstance(node, exp.Extract):
        return calendar.part(_word(node.this, node), inner(node.expression), node)
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
        return calendar.truncated(_word(node.args["unit"], node), inner(node.this), node)
    if isinstance(node, exp.DateDiff):
        return calendar.difference(_word(node.args["unit"], node), inner(node.expression), inner(node.this), node)
    if isinstance(node, exp.DateAdd | exp.DateSub) and isinstance(node.expression, exp.Interval):
        return calendar.shifted_by(inner(node.this), node.expression, node, forward=isinstance(node, exp.DateAdd))
    if isinstance(node, exp.Date) and not node.expressions:
        return calendar.day_of(inner(node.this), node)
    if isinstance(node, exp.DateFromParts):
        year, month, day = (node.args.get(name) for name in ("year", "month", "day"))
        if year is None or month is None or day is None:
            raise refuse(f"{shown(node)} takes a year, a month and a day", node)
        return calendar.made(inner(year), inner(month), inner(day), node)
    if isinstance(node, exp.Anonymous):
        called = str(node.this).lower()
        if called in {"date_part", "datepart"} and len(node.expressions) == 2:
            return calendar.part(_word(node.expressions[0], node), inner(node.expressions[1]), node)
        if called in _NAMED_PARTS and len(node.expressions) == 1:
            return calendar.part(called, inner(node.expressions[0]), node)
    return None


def _word(part: exp.Expr, node: exp.Expr) -> str:
    if isinstance(part, exp.Literal | exp.Var | exp.Column | exp.Identifier):
        return str(part.name)
    raise refuse(f"{shown(node)} takes a constant part such as 'month'", node)


def _integer(part: exp.Expr, node: exp.Expr, most: int) -> int:
    value = fold(part) if is_constant(part) else None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > most:
        raise refuse(f"{shown(node)} takes whole-number constants between -{most} and {most}", node)
    return value


def _rational(part: exp.Expr, node: exp.Expr) -> Fraction:
    value = fold(part)
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise refuse(f"{shown(node)} takes numbers for its bounds", node)
    if isinstance(value, float) and not isfinite(value):
        raise refuse(f"{shown(node)} takes finite bounds; this one overflows to infinity", part)
    return Fraction(value)
