"""Functions of values: which calls are admitted, with the types that each takes and gives.

A function is admitted where it is total and row-local on every value of its arguments' types; the
tables below say so by name, and everything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import isfinite

from sqlglot import exp

from dpsql.sql import arithmetic, calendar
from dpsql.sql.literals import fold, is_constant
from dpsql.sql.row_cost import LONGEST_PART, LONGEST_SET, LONGEST_WANTED, capped, longest
from dpsql.sql.sandbox import changing_function
from dpsql.sql.statements import refuse
from dpsql.sql.typed import Typed, as_real, exact, flat, settled, shown
from dpsql.workload.value_sql import LONGEST_READ
from dpsql.workload.values import Call, CaseValue, Compared, Constant, Test, Value

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
_CASES: dict[type[exp.Expr], str] = {exp.Lower: "lower", exp.Upper: "upper"}
_TESTS: dict[type[exp.Expr], str] = {exp.StartsWith: "starts_with", exp.EndsWith: "ends_with", exp.Contains: "contains"}
_NAMED_TESTS = {"prefix": "starts_with", "suffix": "ends_with"}
NAMED = frozenset({"date_part", "datepart", *_NAMED_PARTS, *_NAMED_TESTS})
"""The admitted functions that the parser knows by name alone."""
_NAMES = (
    "+ - * / // %, ABS, SIGN, FLOOR, CEIL, ROUND, TRUNC, GREATEST, LEAST, COALESCE, NULLIF, CASE, IF, CAST, TRY_CAST, "
    "YEAR to SECOND, EXTRACT, date_trunc, date_diff, WIDTH_BUCKET, LOWER, UPPER, LENGTH, SUBSTR, LEFT, RIGHT, TRIM, "
    "||, starts_with, ends_with, contains"
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
    for found in (_number, _time, _text):
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
        f"{shown(node)} is not an admitted expression: a function must have a value on every row; "
        f"admitted are {_NAMES}",
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
    if isinstance(node, exp.Anonymous):
        called = str(node.this).lower()
        if called in {"date_part", "datepart"} and len(node.expressions) == 2:
            return calendar.part(_word(node.expressions[0], node), inner(node.expressions[1]), node)
        if called in _NAMED_PARTS and len(node.expressions) == 1:
            return calendar.part(called, inner(node.expressions[0]), node)
    return None


def _text(node: exp.Expr, inner: Inner) -> Typed | None:
    if isinstance(node, exp.Lower | exp.Upper):
        (t,) = _texts(node, inner(node.this))
        return _built(_CASES[type(node)], t)
    if isinstance(node, exp.Length):
        (t,) = _texts(node, inner(node.this))
        return exact(Call("length", (t.value,), "BIGINT"), 0, LONGEST_READ, "integer", t)
    if isinstance(node, exp.StrPosition):
        t, wanted = _texts(node, inner(node.this), inner(node.args["substr"]), most=(LONGEST_READ, LONGEST_WANTED))
        return exact(Call("strpos", (t.value, wanted.value), "BIGINT"), 0, LONGEST_READ, "integer", t, wanted)
    if isinstance(node, exp.Substring):
        (t,) = _texts(node, inner(node.this))
        numbers = [node.args.get("start"), node.args.get("length")]
        listed = [Constant(_integer(part, node, 10**9), "BIGINT") for part in numbers if part is not None]
        return _built("substring", t, *listed)
    if isinstance(node, exp.Left | exp.Right):
        (t,) = _texts(node, inner(node.this))
        count = Constant(_integer(node.expression, node, 10**9), "BIGINT")
        return _built("left" if isinstance(node, exp.Left) else "right", t, count)
    if isinstance(node, exp.Trim):
        function = {"": "trim", "LEADING": "ltrim", "TRAILING": "rtrim", "BOTH": "trim"}[
            str(node.args.get("position") or "")
        ]
        held = [node.this] if node.expression is None else [node.this, node.expression]
        t, *taken = _texts(node, *(inner(part) for part in held), most=(LONGEST_READ, LONGEST_SET))
        return replace(_built(function, t, *(s.value for s in taken)), nulls=any(s.nulls for s in (t, *taken)))
    if isinstance(node, exp.DPipe):
        a, b = _texts(node, inner(node.this), inner(node.expression), most=(LONGEST_PART,))
        return replace(_built("||", a, b.value), nulls=a.nulls or b.nulls)
    if isinstance(node, exp.Concat):
        first, *rest = _texts(node, *(inner(part) for part in node.expressions), most=(LONGEST_PART,))
        return replace(_built("concat", first, *(t.value for t in rest)), nulls=False)
    function = _TESTS.get(type(node), "")
    held = [node.this, node.expression] if function else []
    if isinstance(node, exp.Anonymous) and len(node.expressions) == 2:
        function, held = _NAMED_TESTS.get(str(node.this).lower(), ""), node.expressions
    if function:
        a, b = _texts(node, *(inner(part) for part in held), most=(LONGEST_READ, LONGEST_WANTED))
        return Typed("boolean", Call(function, (a.value, b.value), "BOOLEAN"), nulls=a.nulls or b.nulls)
    return None


def _built(function: str, t: Typed, *others: Value) -> Typed:
    """A text made of another."""
    return Typed("text", Call(function, (t.value, *others), "VARCHAR"), nulls=t.nulls)


def _texts(node: exp.Expr, *of: Typed, most: tuple[int, ...] = (LONGEST_READ,)) -> tuple[Typed, ...]:
    """Arguments that are text, NULL where one has more bytes than ``most`` says; the last figure is for the rest."""
    found = []
    for number, t in enumerate(of):
        if t.kind != "text":
            raise refuse(
                f"{shown(node)} takes text, not {t.kind}; write CAST(... AS VARCHAR)", node, code="mixed-types"
            )
        cap = most[min(number, len(most) - 1)]
        if isinstance(t.value, Constant) and longest(t.value) > cap:
            raise refuse(
                f"{shown(node)} takes a constant of at most {cap:,} bytes; write a shorter one", node, code="too-large"
            )
        value = capped(t.value, cap)
        found.append(t if value is t.value else replace(t, value=value, nulls=True, column=None))
    return tuple(found)


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
