"""Functions of values: which calls are admitted, with the types that each takes and gives.

A function is admitted where it is deterministic and row-local: where it has no value it is NULL. The tables here and
in ``text_functions`` say so by name, and everything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import TypeAlias

from sqlglot import exp

from dpsql.errors import SQLError, nearest
from dpsql.sql.outer.sandbox import changing_function
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.refusals import called, duckdb_functions, no_function
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values import arithmetic, buckets, calendar, labels, text_functions, zones
from dpsql.sql.values.arithmetic import numbers
from dpsql.sql.values.civil import MICROS
from dpsql.sql.values.evaluation import evaluate_one
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.text_functions import text_function
from dpsql.sql.values.typed import Typed, as_real, exact, flat, gaps, settled
from dpsql.workloads.expr.lines import to_float
from dpsql.workloads.expr.values import Call, CaseValue, Compared, Constant, Test, Value

Inner: TypeAlias = Callable[[exp.Expr], Typed]
Stretches: TypeAlias = tuple[tuple[float, float], ...]
"""Closed intervals on each of which a function rises or falls; it has no value between them."""
_SPARE = Fraction(1, 2**40)  # of a bound's size: libraries of mathematics are right to 2^-50
_TINY = 5e-324  # the least positive DOUBLE
_LINE: Stretches = ((-inf, inf),)
_RIGHT: Stretches = ((0.0, inf),)


@dataclass(frozen=True)
class Real:
    """A function of one DOUBLE, with the stretches on which it rises or falls; it is NULL outside them.

    Bounds are DuckDB's own values at the ends of each stretch that the operand reaches, widened by more than their
    rounding: a help for sums, never what a scan rests on.

    ``least``: below it some versions of DuckDB raise instead of giving NaN; ``at_zero`` is the value at zero where
    they do so there, too.
    """

    made: Callable[[Value], Value]
    stretches: Stretches = _LINE
    least: float | None = None
    at_zero: float | None = None


def _named(function: str, *first: Constant) -> Callable[[Value], Value]:
    return lambda x: Call(function, (*first, x), "DOUBLE")


RULES: Mapping[type[exp.Expr], Real] = {
    exp.Sqrt: Real(_named("sqrt"), _RIGHT, 0.0),
    exp.Cbrt: Real(_named("cbrt")),
    exp.Exp: Real(_named("exp")),
    exp.Ln: Real(_named("ln"), _RIGHT, _TINY, -inf),
}
_TESTS: Mapping[type[exp.Expr], str] = {exp.IsNan: "isnan", exp.IsInf: "isinf"}


def real_function(node: exp.Expr, inner: Inner) -> Typed | None:
    """The value of a function of DOUBLEs; None for any other node."""
    if isinstance(node, exp.Log):
        return _logarithm(node, inner)
    if isinstance(node, exp.Pow):
        return _power(node, inner)
    if isinstance(node, exp.IsNan | exp.IsInf):
        x = settled(_real(inner(node.this), node))
        return Typed("boolean", Call(_TESTS[type(node)], (x.value,), "BOOLEAN"), nulls=x.nulls)
    rule = RULES.get(type(node))
    return None if rule is None else _over(rule, inner(node.this), node)


def _logarithm(node: exp.Log, inner: Inner) -> Typed:
    """LOG(x) to base 10, LOG(base, x) to a constant base."""
    base, part = (10.0, node.this) if node.expression is None else (_constant(node.this), node.expression)
    if base is None or base <= 0.0 or base == 1.0:
        raise refuse(f"{shown(node)} takes a positive constant base other than 1, as in log(2, x)", node)
    function = {2.0: "log2", 10.0: "log10"}.get(base)
    made = _named("log", _double(base)) if function is None else _named(function)
    return _over(Real(made, _RIGHT, _TINY, -inf if base > 1.0 else inf), inner(part), node)


def _power(node: exp.Pow, inner: Inner) -> Typed:
    """x to the y, by IEEE 754: NULL where a negative number has no such power."""
    base, exponent = _constant(node.this), _constant(node.expression)
    if exponent is not None:
        stretches = ((-inf, 0.0), *_RIGHT) if exponent.is_integer() else _RIGHT
        made = lambda x: Call("pow", (x, _double(exponent)), "DOUBLE")  # noqa: E731 - one of three alike
        return _over(Real(made, stretches), inner(node.this), node)
    if base is not None and base > 0.0:
        return _over(Real(_named("pow", _double(base))), inner(node.expression), node)
    x, y = (settled(_real(inner(part), node)) for part in (node.this, node.expression))
    value = Call("pow", (x.value, y.value), "DOUBLE")
    return Typed("real", value, "double", undefined=True, gap=gaps(x, y))


def _over(rule: Real, t: Typed, node: exp.Expr) -> Typed:
    """A function of a number, NULL where it has no value."""
    x = _real(t, node)
    value = rule.made(x.value)
    if rule.least is not None:
        branches: list[tuple[Test, Value]] = []
        if rule.at_zero is not None:
            branches.append((Compared(x.value, "=", _double(0.0)), _double(rule.at_zero)))
        inside = rule.made(Call("greatest", (x.value, _double(rule.least)), "DOUBLE"))
        branches.append((Compared(x.value, ">=", _double(rule.least)), inside))
        value = CaseValue(tuple(branches), None, "DOUBLE")
    bounds = _bounds(rule, x)
    undefined = bounds is None or x.undefined
    return Typed("real", value, "double", bounds=bounds, nulls=x.nulls or undefined, undefined=undefined, gap=gaps(t))


def _bounds(rule: Real, x: Typed) -> tuple[Fraction, Fraction] | None:
    """The least and greatest value over the operand's own bounds; None where it may have none, or is infinite."""
    if x.bounds is None:
        return None
    low, high = (to_float(end) for end in x.bounds)
    if low < rule.stretches[0][0] or high > rule.stretches[-1][1]:
        return None
    ends: list[float] = []
    for first, last in rule.stretches:
        if first <= high and low <= last:
            for end in (max(first, low), min(last, high)):
                at_zero = rule.at_zero if end == 0.0 else None
                ends.append(evaluate_one(rule.made(_double(end)), "real") if at_zero is None else at_zero)
    if not all(map(isfinite, ends)):
        return None
    spare = max(abs(Fraction(value)) for value in ends) * _SPARE
    return Fraction(min(ends)) - spare, Fraction(max(ends)) + spare


def _real(t: Typed, node: exp.Expr) -> Typed:
    numbers(node, t)
    return as_real(t, node)


def _double(value: float) -> Constant:
    return Constant(value, "DOUBLE")


def _constant(part: exp.Expr) -> float | None:
    """A finite constant number; None for anything else."""
    value = fold(part) if is_constant(part) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        return None
    number = to_float(Fraction(value)) if not isinstance(value, float) else value
    return number if isfinite(number) else None


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
NAMED = frozenset(
    {"date_part", "datepart", "date_sub", "datesub", "timezone", "epoch_us", *_NAMED_PARTS, *text_functions.NAMED}
)
"""The admitted functions that the parser knows by name alone."""
_NAMES = (
    *(
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "greatest",
        "least",
        "coalesce",
        "nullif",
        "if",
        "sqrt",
        "cbrt",
    ),
    *("exp", "ln", "log", "log2", "log10", "pow", "isnan", "isinf", "width_bucket", "year", "quarter", "month", "week"),
    *(
        "day",
        "dayofyear",
        "dayofweek",
        "isodow",
        "hour",
        "minute",
        "second",
        "epoch",
        "epoch_us",
        "date_part",
        "extract",
    ),
    *(
        "date_trunc",
        "date_diff",
        "date_sub",
        "date_add",
        "make_date",
        "last_day",
        "time_bucket",
        "strftime",
        "monthname",
    ),
    *(
        "dayname",
        "strptime",
        "try_strptime",
        "timezone",
        "lower",
        "upper",
        "length",
        "strlen",
        "substr",
        "left",
        "right",
    ),
    *("trim", "ltrim", "rtrim", "lpad", "rpad", "concat", "replace", "split_part", "strpos", "prefix", "suffix"),
    *(
        "starts_with",
        "ends_with",
        "contains",
        "regexp_matches",
        "regexp_full_match",
        "regexp_extract",
        "regexp_replace",
    ),
)
# What other dialects, or DuckDB itself, also call a function that is admitted.
_KNOWN_AS = {
    **{"to_char": "strftime", "date_format": "strftime", "to_date": "strptime", "str_to_date": "strptime"},
    **{"instr": "strpos", "position": "strpos", "charindex": "strpos", "nvl": "coalesce", "isnull": "coalesce"},
    **{
        "epoch_ms": "epoch",
        "age": "date_diff",
        "dateadd": "date_add",
        "bit_length": "strlen",
        "octet_length": "strlen",
    },
    **{"rlike": "regexp_matches", "regexp_like": "regexp_matches", "string_split": "split_part", "power": "pow"},
}


def call(node: exp.Expr, inner: Inner) -> Typed:
    """The value of a function call; SQLError for one that is not admitted."""
    if isinstance(node, exp.Subquery | exp.Exists | exp.Select):
        raise refuse("a subquery depends on other rows; split it into views of its own", node, code="subquery")
    if isinstance(node, exp.AggFunc | exp.Window):
        raise _of_rows(node)
    for reader in (_number, real_function, _time, text_function):
        result = reader(node, inner)
        if result is not None:
            return result
    if isinstance(node, exp.Any | exp.All) and node.find(exp.Query) is not None:
        raise refuse("a subquery depends on other rows; split it into views of its own", node, code="subquery")
    if isinstance(node, exp.UDTF | exp.Explode):
        raise refuse(f"{shown(node)} makes several rows of one; leave it out", node, code="several-rows")
    changing = changing_function(node.sql("duckdb"))
    if changing not in {None, "error"}:
        raise refuse(f"{changing} gives another result each time; write a constant", node, code="changing-function")
    if isinstance(node, exp.Func) and called(node).lower() in duckdb_functions()[1]:
        raise _of_rows(node)  # the parser does not know that it is one
    missing = no_function(node)
    if missing is not None:
        raise missing
    raise refuse(
        f"{shown(node)} is not an admitted expression{_instead(node)}; docs/sql.md lists what is, under Conditions "
        "and functions",
        node,
        code="function",
    )


def _of_rows(node: exp.Expr) -> SQLError:
    return refuse(
        "an aggregate inside an expression depends on other rows; compute it over the released view",
        node,
        code="aggregate-of-rows",
    )


def _instead(node: exp.Expr) -> str:
    """The admitted function whose name is nearest to that of a call."""
    if not isinstance(node, exp.Func):
        return ""
    name = called(node).lower()
    advice = f"did you mean {_KNOWN_AS[name]}?" if name in _KNOWN_AS else nearest(name, _NAMES)
    return f": {advice}" if advice.startswith("did you mean") else ""


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
        return calendar.time_between(a, b, node)
    return arithmetic.subtracted(a, b, node)


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
        return _part(_word(node.this, node), inner(node.expression), node)
    if isinstance(node, exp.TimeToUnix):
        return _part("epoch", inner(node.this), node)
    if isinstance(node, exp.Interval):
        return calendar.interval(node)
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
    if isinstance(node, exp.TimeToStr):
        # DuckDB takes the two in either order.
        form, of = (node.this, node.args["format"]) if is_constant(node.this) else (node.args["format"], node.this)
        return labels.formatted(inner(of), fold(form) if is_constant(form) else None, node)
    if isinstance(node, exp.Monthname | exp.Dayname):
        return labels.name_of("monthname" if isinstance(node, exp.Monthname) else "dayname", inner(node.this), node)
    if isinstance(node, exp.LastDay):
        return buckets.last_day(inner(node.this), node)
    if isinstance(node, exp.DateBin):
        third = node.args.get("unit")
        if isinstance(third, exp.Var):  # the parser's word for a column there
            raise refuse(f"{shown(node)} takes a constant date, time or interval to count from", node)
        origin = third if third is None or isinstance(third, exp.Interval) else inner(third)
        return buckets.bucket(node.this, inner(node.expression), origin, node)
    if isinstance(node, exp.AtTimeZone):
        return _zoned(node.args["zone"], node.this, inner, node)
    if isinstance(node, exp.Anonymous):
        called = str(node.this).lower()
        if called == "timezone" and len(node.expressions) == 2:
            return _zoned(node.expressions[0], node.expressions[1], inner, node)
        if called in {"date_sub", "datesub"} and len(node.expressions) == 3:
            unit, start, end = node.expressions
            return calendar.difference(_word(unit, node), inner(start), inner(end), node, "date_sub")
        if called in {"date_part", "datepart"} and len(node.expressions) == 2:
            return _part(_word(node.expressions[0], node), inner(node.expressions[1]), node)
        if called == "epoch_us" and len(node.expressions) == 1:
            return calendar.epoch(inner(node.expressions[0]), node, Fraction(1))
        if called in _NAMED_PARTS and len(node.expressions) == 1:
            return calendar.part(called, inner(node.expressions[0]), node)
    return None


def _part(name: str, t: Typed, node: exp.Expr) -> Typed:
    if calendar.part_name(name) == "epoch":
        return calendar.epoch(t, node, Fraction(MICROS["second"]))
    return calendar.part(name, t, node)


def _zoned(zone: exp.Expr, of: exp.Expr, inner: Inner, node: exp.Expr) -> Typed:
    return zones.at_zone(fold(zone) if is_constant(zone) else None, inner(of), node)


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
