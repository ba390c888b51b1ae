"""Every function of DuckDB that a scan on Spark may call, by its name.

Arithmetic, rounding and extremes of Spark: the values that DuckDB gives, on every row.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.extensions.spark import calendar, texts
from dpsql.extensions.spark.calendar import near_moment
from dpsql.extensions.spark.values import (
    INTEGERS,
    OPERATOR,
    Expr,
    Rule,
    column,
    fits,
    kinds,
    ranged,
    refusal,
    short,
    wholes,
    widest,
)

_HALF_WHOLE = "4503599627370496.0D"  # 2^52: every DOUBLE from there on is whole
_END = "9.223372036854776E18D"  # 2^63, the first DOUBLE that BIGINT does not hold


def _products(a: Expr, b: Expr) -> tuple[int, int]:
    every = (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
    return min(every), max(every)


def arithmetic(operator: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        if len(of) == 1:
            (a,) = of
            kinds(of, "DOUBLE", "a negative")
            return Expr(f"-{a.inner}", "DOUBLE", rank=OPERATOR)
        a, b = of
        text = f"{a.inner} {operator} {b.inner}"
        if a.whole and b.whole:
            reach = {
                "+": (a.low + b.low, a.high + b.high),
                "-": (a.low - b.high, a.high - b.low),
                "*": _products(a, b),
            }
            return ranged(text, widest(of), *reach[operator], f"a result of {operator}", OPERATOR)
        if a.type == b.type == "DOUBLE":
            return Expr(text, "DOUBLE", rank=OPERATOR)
        if operator == "-" and a.type == b.type == "DATE":
            days = f"CAST(unix_date({a.text}) AS BIGINT) - unix_date({b.text})"
            return Expr(days, "BIGINT", -(2**32), 2**32, rank=OPERATOR)
        if operator == "+" and a.type == "DATE" and b.type == "INTEGER":
            return Expr(f"date_add({a.text}, {b.text})", "DATE")
        if operator == "+" and a.type == "TIMESTAMP" and b.type == "INTERVAL":
            return Expr(f"{near_moment(a)} + {b.text}", "TIMESTAMP", rank=OPERATOR)
        raise refusal(f"{operator} of {a.type} and {b.type} is not admitted", "write it over stored columns")

    return rule


def divided(of: Sequence[Expr]) -> Expr:
    # NULL by zero where DuckDB has infinity: the statement asks for the divisor first.
    kinds(of, "DOUBLE", "/")
    return Expr(f"{of[0].inner} / {of[1].inner}", "DOUBLE", rank=OPERATOR)


def quotient(of: Sequence[Expr]) -> Expr:
    wholes(of, "//")
    a, b = of
    most = max(abs(a.low), abs(a.high))
    low, high = (0, most) if a.low >= 0 and b.low >= 0 else (-most, most)
    if b.low == b.high and b.low:
        ends = [abs(end) // abs(b.low) * (1 if (end >= 0) == (b.low > 0) else -1) for end in (a.low, a.high)]
        low, high = min(ends), max(ends)
    if widest(of) == "HUGEINT" and not fits(low, high, "BIGINT"):
        # div gives a BIGINT, whatever it divides.
        raise refusal("a quotient of HUGEINT may leave 64 bits", "divide smaller numbers, or as DOUBLE")
    found = f"{a.inner} div {b.inner}"
    return ranged(found, widest(of), low, high, "a quotient", OPERATOR)


def remainder(of: Sequence[Expr]) -> Expr:
    a, b = of
    if a.type == b.type == "DOUBLE":
        return Expr(f"{a.inner} % {b.inner}", "DOUBLE", rank=OPERATOR)
    wholes(of, "%")
    most = max(abs(b.low), abs(b.high), 1) - 1
    return ranged(f"{a.inner} % {b.inner}", widest(of), max(min(a.low, 0), -most), min(max(a.high, 0), most),
                  "a remainder", OPERATOR)  # fmt: skip


def both(of: Sequence[Expr]) -> Expr:
    """The bits that two whole numbers from 0 on have in common."""
    wholes(of, "&")
    return Expr(f"{of[0].inner} & {of[1].inner}", widest(of), 0, max(0, min(of[0].high, of[1].high)), rank=OPERATOR)


def shifted(of: Sequence[Expr]) -> Expr:
    """A whole number from 0 on without its lowest bits, as many as a constant says."""
    wholes(of, ">>")
    a, b = of
    return Expr(f"shiftright({a.text}, CAST({b.text} AS INT))", a.type, 0, max(0, a.high >> b.low))


def absolute(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if a.type == "DOUBLE":
        return Expr(f"abs({a.text})", "DOUBLE")
    wholes(of, "abs")
    return ranged(f"abs({a.text})", a.type, max(a.low, -a.high, 0), max(-a.low, a.high), "abs")


def sign(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if a.type != "DOUBLE":
        wholes(of, "sign")
    # A whole number keeps its sign as DOUBLE; the sign of NaN casts to 0.
    return Expr(f"CAST(signum(CAST({a.text} AS DOUBLE)) AS TINYINT)", "TINYINT", -1, 1)


def rounding(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        if len(of) == 2:
            raise refusal("ROUND to decimals of a DOUBLE is another number there", "round to whole numbers")
        kinds(of, "DOUBLE", function)
        x = of[0].inner
        whole = f"CAST({x} AS BIGINT)"
        # The first branch keeps the sign of zero, which a later division would see.
        zero, found = {
            "floor": (f"{x} >= 0.0D AND {x} < 1.0D", f"floor({x})"),
            "ceil": (f"{x} > -1.0D AND {x} <= 0.0D", f"ceil({x})"),
            "trunc": (f"abs({x}) < 1.0D", whole),
            # Twice what is behind the point is 1 or -1 before it from one half on.
            "round": (f"abs({x}) < 0.5D", f"{whole} + CAST(({x} - CAST({whole} AS DOUBLE)) * 2.0D AS BIGINT)"),
        }[function]
        return short(Expr(
            f"CASE WHEN {zero} THEN {x} * 0.0D WHEN abs({x}) < {_HALF_WHOLE} THEN CAST({found} AS DOUBLE) "
            f"ELSE {x} END",
            "DOUBLE",
        ))  # fmt: skip

    return rule


def _rounded(of: Sequence[Expr]) -> Expr:
    """``TRY_CAST(round(x) AS BIGINT)``: as ``rounding``, on all that BIGINT holds, where no sign of zero is seen."""
    kinds(of, "DOUBLE", "round")
    x = of[0].inner
    whole = f"CAST({x} AS BIGINT)"
    found = f"{whole} + CAST(({x} - CAST({whole} AS DOUBLE)) * 2.0D AS BIGINT)"
    return column(short(Expr(f"CASE WHEN {x} >= -{_END} AND {x} < {_END} THEN {found} END", "")).text, "BIGINT")


def extreme(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        if len(of) < 2:
            raise refusal(f"{function} of one value", "leave it out")
        text = f"{function}({', '.join(e.text for e in of)})"
        if all(e.whole for e in of):
            # A NULL leaves the other values, so that a constant bounds the result on its side only.
            lows, highs = [e.low for e in of], [e.high for e in of]
            fixed = [e.constant for e in of if isinstance(e.constant, int)]
            low, high = (max([min(lows), *fixed]), max(highs)) if function == "greatest" else (
                min(lows), min([max(highs), *fixed]))  # fmt: skip
            return ranged(text, widest(of), low, high, function)
        kinds(of, of[0].type, function)
        return Expr(text, of[0].type)

    return rule


def isnan(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if a.type not in ("DOUBLE", "FLOAT"):
        raise refusal(f"isnan of {a.type} is not admitted", "leave it out")
    # Never NULL on Spark, and NULL of NULL in DuckDB.
    return short(Expr(f"CASE WHEN {a.inner} IS NOT NULL THEN isnan({a.text}) END", "BOOLEAN"))


def _hash(of: Sequence[Expr]) -> Expr:
    """Another number than DuckDB's: of a unit with more rows than count, others remain, no less evenly."""
    return Expr(f"xxhash64({', '.join(e.text for e in of)})", "BIGINT", *INTEGERS["BIGINT"])


def _signbit(of: Sequence[Expr]) -> Expr:
    (a,) = of
    # Told apart behind an equal value alone, where it is minus zero beside zero; every NaN is one to the scan.
    return Expr(f"CAST({a.text} AS STRING) = '-0.0'", "BOOLEAN", rank=3)


_YEARS = (-6_000_000, 6_000_000)
FUNCTIONS: dict[str, Rule] = {
    **{operator: arithmetic(operator) for operator in "+-*"},
    "/": divided,
    "//": quotient,
    "%": remainder,
    "&": both,
    ">>": shifted,
    "abs": absolute,
    "sign": sign,
    "isnan": isnan,
    **{name: rounding(name) for name in ("floor", "ceil", "trunc", "round")},
    **{name: extreme(name) for name in ("greatest", "least")},
    **{"list_extract": texts.list_extract, "list_value": texts.list_value, "text_place": texts.text_place},
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
    **{"hash": _hash, "signbit": _signbit, "rounded": _rounded},
}
"""Every function of DuckDB that a statement for Spark may call."""
