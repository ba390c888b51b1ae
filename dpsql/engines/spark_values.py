"""Values of a generated statement in Spark's SQL: a closed list of functions, each with the types that it takes.

Every expression carries its DuckDB type and, for whole numbers, the range that follows from types and constants.
A rule gives Spark text with the same value on every row of every table, in a session whose settings are fixed
(``spark_session``): ANSI mode is off there, so that no step fails, whatever a row holds. What has no such text is
refused: the list below is all that is admitted. ``tests/spark`` holds each entry against DuckDB on odd values.

HUGEINT is DECIMAL(38,0), and refused where the range leaves 38 digits. Text constants are written in hexadecimal,
which no setting and no escape can change. A date is clamped to the years that every function of Spark has before one
that may overflow sees it; the statement itself gives those years no value.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpsql.errors import NotSupportedError

INTEGERS: dict[str, tuple[int, int]] = {
    name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))
}
_SPARK = {
    **{"TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INTEGER": "INT", "BIGINT": "BIGINT", "HUGEINT": "DECIMAL(38,0)"},
    **{"FLOAT": "FLOAT", "DOUBLE": "DOUBLE", "VARCHAR": "STRING", "BOOLEAN": "BOOLEAN", "DATE": "DATE"},
    **{"TIMESTAMP": "TIMESTAMP_NTZ"},
}
_MOST = 10**38 - 1  # DECIMAL(38,0)
_EXACT = 2**53  # whole numbers that DOUBLE holds
_OPERATOR = 5  # the rank of arithmetic; comparisons have 3, NOT 2, AND 1 and OR 0
_LONGEST = 2_000_000  # characters of one expression
# Days that every function of Spark works on, about 290,000 years around 1970.
_FAR_DAYS = 106_000_000
_FEW_TEXTS = 16
_HALF_WHOLE = "4503599627370496.0D"  # 2^52: every DOUBLE from there on is whole


@dataclass(frozen=True)
class Expr:
    """Spark text of a value and its DuckDB type; ``low`` and ``high`` of a whole number; ``constant`` of a literal.

    ``rank`` is 9 where the text is a whole by itself; an operator has less and stands in parentheses inside another,
    and nowhere else: Spark's parser takes exponential time over nested ones. Type "NULL" is an untyped NULL, "INTERVAL"
    the constant that a timestamp is moved by, "T[]" a constant list; ``items`` are the texts of one of VARCHAR.
    """

    text: str
    type: str
    low: int = 0
    high: int = 0
    constant: int | str | None = None
    rank: int = 9
    items: tuple[str, ...] = ()

    @property
    def inner(self) -> str:
        """The text as an operand."""
        return self.text if self.rank == 9 else f"({self.text})"

    @property
    def whole(self) -> bool:
        """True for whole numbers."""
        return self.type in INTEGERS


def spark_type(name: str) -> str:
    """Spark's name of a type."""
    return name if name.startswith("DECIMAL(") else _SPARK[name]


def column(text: str, kind: str) -> Expr:
    """A stored column or one of a subquery."""
    low, high = INTEGERS.get(kind, (0, 0))
    return Expr(text, kind, low, high)


def refusal(what: str, instead: str) -> NotSupportedError:
    """What a statement is refused with."""
    return NotSupportedError(f"Spark: {what}; {instead} (nothing was charged)")


def integer(number: int, kind: str = "") -> Expr:
    """A whole number, of the narrowest type from INTEGER on if none is given."""
    kind = kind or next(name for name in ("INTEGER", "BIGINT", "HUGEINT") if fits(number, number, name))
    if not fits(number, number, kind) or abs(number) > _MOST:
        raise refusal(f"the constant {number} does not fit {spark_type(kind)}", "write a smaller one")
    text = str(number) if kind == "INTEGER" and number > -(2**31) else f"CAST({number} AS {spark_type(kind)})"
    return Expr(text, kind, number, number, number, rank=_OPERATOR if text.startswith("-") else 9)


def string(value: str) -> Expr:
    """A text constant, in hexadecimal."""
    return Expr(f"CAST(X'{value.encode().hex()}' AS STRING)", "VARCHAR", constant=value)


def fits(low: int, high: int, kind: str) -> bool:
    """Whether a type holds a range."""
    least, most = INTEGERS[kind]
    return least <= low and high <= most


def ranged(text: str, kind: str, low: int, high: int, what: str, rank: int = 9) -> Expr:
    """A whole number computed in ``kind``; refused where HUGEINT's 38 digits may not hold it.

    Narrower types hold what the front end computes in them, though the range here may not show it.
    """
    if kind == "HUGEINT":
        if max(-low, high) > _MOST:
            raise refusal(
                f"{what} may leave 38 digits, the most that Spark's numbers have",
                "declare lower and upper of its columns, or store them as INT",
            )
        return Expr(f"CAST({text} AS DECIMAL(38,0))", kind, low, high)
    least, most = INTEGERS[kind]
    return Expr(text, kind, max(low, least), min(high, most), rank=rank)


def widest(of: Sequence[Expr]) -> str:
    """The widest of integer types."""
    return max((e.type for e in of), key=list(INTEGERS).index)


def date_constant(days: int) -> Expr:
    """A date by its day number."""
    return Expr(f"date_from_unix_date({days})", "DATE", constant=days)


def moment_constant(micros: int) -> Expr:
    """A timestamp by its microseconds; Spark reads all that 64 bits hold."""
    days, rest = divmod(micros, 86_400_000_000)
    cycles, day = divmod(days, 146_097)
    found = dt.datetime(1970, 1, 1) + dt.timedelta(days=day, microseconds=rest)
    year = found.year + 400 * cycles
    return Expr(f"TIMESTAMP_NTZ'{'-' if year < 0 else '+'}{abs(year):06d}-{found:%m-%d %H:%M:%S.%f}'", "TIMESTAMP",
                constant=micros)  # fmt: skip


# Arithmetic.

Rule = Callable[[Sequence[Expr]], Expr]


def _products(a: Expr, b: Expr) -> tuple[int, int]:
    every = (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
    return min(every), max(every)


def _arithmetic(operator: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        if len(of) == 1:
            (a,) = of
            _kinds(of, "DOUBLE", "a negative")
            return Expr(f"-{a.inner}", "DOUBLE", rank=_OPERATOR)
        a, b = of
        text = f"{a.inner} {operator} {b.inner}"
        if a.whole and b.whole:
            reach = {
                "+": (a.low + b.low, a.high + b.high),
                "-": (a.low - b.high, a.high - b.low),
                "*": _products(a, b),
            }
            return ranged(text, widest(of), *reach[operator], f"a result of {operator}", _OPERATOR)
        if a.type == b.type == "DOUBLE":
            return Expr(text, "DOUBLE", rank=_OPERATOR)
        if operator == "-" and a.type == b.type == "DATE":
            days = f"CAST(unix_date({a.text}) AS BIGINT) - unix_date({b.text})"
            return Expr(days, "BIGINT", -(2**32), 2**32, rank=_OPERATOR)
        if operator == "+" and a.type == "DATE" and b.type == "INTEGER":
            return Expr(f"date_add({a.text}, {b.text})", "DATE")
        if operator == "+" and a.type == "TIMESTAMP" and b.type == "INTERVAL":
            return Expr(f"{_near_moment(a)} + {b.text}", "TIMESTAMP", rank=_OPERATOR)
        raise refusal(f"{operator} of {a.type} and {b.type} is not admitted", "write it over stored columns")

    return rule


def _divided(of: Sequence[Expr]) -> Expr:
    # NULL by zero where DuckDB has infinity: the statement asks for the divisor first.
    _kinds(of, "DOUBLE", "/")
    return Expr(f"{of[0].inner} / {of[1].inner}", "DOUBLE", rank=_OPERATOR)


def _quotient(of: Sequence[Expr]) -> Expr:
    _wholes(of, "//")
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
    return ranged(found, widest(of), low, high, "a quotient", _OPERATOR)


def _remainder(of: Sequence[Expr]) -> Expr:
    a, b = of
    if a.type == b.type == "DOUBLE":
        return Expr(f"{a.inner} % {b.inner}", "DOUBLE", rank=_OPERATOR)
    _wholes(of, "%")
    most = max(abs(b.low), abs(b.high), 1) - 1
    return ranged(f"{a.inner} % {b.inner}", widest(of), max(min(a.low, 0), -most), min(max(a.high, 0), most),
                  "a remainder", _OPERATOR)  # fmt: skip


def _absolute(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if a.type == "DOUBLE":
        return Expr(f"abs({a.text})", "DOUBLE")
    _wholes(of, "abs")
    return ranged(f"abs({a.text})", a.type, max(a.low, -a.high, 0), max(-a.low, a.high), "abs")


def _sign(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if a.type != "DOUBLE":
        _wholes(of, "sign")
    # A whole number keeps its sign as DOUBLE; the sign of NaN casts to 0.
    return Expr(f"CAST(signum(CAST({a.text} AS DOUBLE)) AS TINYINT)", "TINYINT", -1, 1)


def _rounding(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        if len(of) == 2:
            raise refusal("ROUND to decimals of a DOUBLE is another number there", "round to whole numbers")
        _kinds(of, "DOUBLE", function)
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


def _extreme(function: str) -> Rule:
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
        _kinds(of, of[0].type, function)
        return Expr(text, of[0].type)

    return rule


def _isnan(of: Sequence[Expr]) -> Expr:
    (a,) = of
    if a.type not in ("DOUBLE", "FLOAT"):
        raise refusal(f"isnan of {a.type} is not admitted", "leave it out")
    # Never NULL on Spark, and NULL of NULL in DuckDB.
    return short(Expr(f"CASE WHEN {a.inner} IS NOT NULL THEN isnan({a.text}) END", "BOOLEAN"))


# Lists of constants: where a value lies among constants, and what stands at a place.


def listed(numbers: str, kind: str) -> Expr:
    """A list of constants "1, 2, 3", as text that is split and cast once, when the statement is optimised."""
    plain = numbers.replace(" ", "")
    if not plain or set(plain) - set("0123456789,-"):
        raise refusal("a list is not one of whole numbers", "plan again")
    return Expr(f"CAST(split('{plain}', ',') AS ARRAY<{spark_type(kind)}>)", f"{kind}[]")


def _list_value(of: Sequence[Expr]) -> Expr:
    if not all(isinstance(e.constant, str) and e.type == "VARCHAR" for e in of):
        raise refusal("a list is not one of text constants", "plan again")
    texts = tuple(e.text for e in of)
    return Expr(f"array({', '.join(texts)})", "VARCHAR[]", items=texts)


def _list_position(of: Sequence[Expr]) -> Expr:
    found, value = of
    _kinds([value], "VARCHAR", "a place among texts")
    if len(found.items) <= _FEW_TEXTS:
        # Compared one after the other in compiled code; an array is walked by a call for each row.
        places = " ".join(f"WHEN {text} THEN {at + 1}L" for at, text in enumerate(found.items))
        none = f"CASE WHEN {value.inner} IS NOT NULL THEN 0L END"
        return short(Expr(f"CASE {value.text} {places} ELSE {none} END", "BIGINT", 0, len(found.items)))
    return Expr(f"array_position({found.text}, {value.text})", "BIGINT", 0, 2**31)


def _list_extract(of: Sequence[Expr]) -> Expr:
    found, place = of
    kind = found.type.removesuffix("[]")
    _wholes([place], "a place")
    # NULL outside the list, and at the places 0 and below that no list has here.
    return Expr(f"get({found.text}, CAST({place.inner} - 1 AS INT))", kind, *INTEGERS[kind])


# Text.


def _like(of: Sequence[Expr]) -> Expr:
    value, pattern = of
    _kinds(of, "VARCHAR", "LIKE")
    if not isinstance(pattern.constant, str):
        raise refusal("LIKE takes a constant pattern", "write one")
    # DuckDB knows no escape: Spark is given a character that is not in the pattern.
    free = next((char for char in "!#$@^~|=+;" if char not in pattern.constant), None)
    if free is None:
        raise refusal("a LIKE pattern uses every character that could be its escape", "write a shorter pattern")
    return Expr(f"{value.inner} LIKE {pattern.text} ESCAPE '{free}'", "BOOLEAN", rank=3)


def _of_text(template: str, kind: str, count: int) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        _kinds(of, "VARCHAR", "a function of text")
        if len(of) != count:
            raise refusal("a function of text has too many arguments", "leave them out")
        text = template.format(*(e.text for e in of))
        return Expr(text, kind, *((0, 2**32) if kind == "BIGINT" else ()))

    return rule


def _concat(of: Sequence[Expr]) -> Expr:
    _kinds(of, "VARCHAR", "concat")
    return Expr(f"concat_ws('', {', '.join(e.text for e in of)})", "VARCHAR")


def _substring(of: Sequence[Expr]) -> Expr:
    value, start, *length = of
    if not isinstance(start.constant, int) or not all(isinstance(e.constant, int) for e in length):
        raise refusal("SUBSTRING takes constants", "write whole numbers")
    if start.constant < 1 or any(int(e.constant or 0) < 0 for e in length):
        raise refusal("SUBSTRING counts from the end in another way there", "start from 1 or later")
    rest = length[0].text if length else str(2**31 - 1)
    return Expr(f"substring({value.text}, {start.constant}, CAST({rest} AS INT))", "VARCHAR")


def _end(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        value, count = of
        if not isinstance(count.constant, int) or count.constant < 0:
            raise refusal(f"{function.upper()} takes a constant count there", "write a whole number from 0 on")
        return Expr(f"{function}({value.text}, {min(count.constant, 2**31 - 1)})", "VARCHAR")

    return rule


# What DuckDB trims where no characters are named: the separators of Unicode's class Zs.
_SPACES = "".join(map(chr, (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))


def _trim(side: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        _kinds(of, "VARCHAR", "TRIM")
        chars = of[1] if len(of) == 2 else string(_SPACES)
        if not chars.constant:
            raise refusal("TRIM takes constant characters", "write at least one")
        return Expr(f"trim({side} {chars.text} FROM {of[0].text})", "VARCHAR")

    return rule


def _cased(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        _kinds(of, "VARCHAR", function)
        plain, other = _cases(function)
        return Expr(f"translate({of[0].text}, {string(plain).text}, {string(other).text})", "VARCHAR")

    return rule


@functools.cache
def _cases(function: str) -> tuple[str, str]:
    """Characters that DuckDB's lower or upper changes, and what they become: one for one, whatever stands beside."""
    import duckdb

    plain, other = [], []
    with duckdb.connect() as con:
        rows = con.execute(
            f"SELECT chr(i), {function}(chr(i)) FROM (SELECT CAST(unnest(range(1, 1114112)) AS INTEGER) AS i) "  # noqa: S608
            "WHERE i NOT BETWEEN 55296 AND 57343"
        ).fetchall()
    for before, after in rows:
        if before != after:
            if len(after) != 1:
                raise refusal(f"{function.upper()} makes several characters of one", "compare the text as it is")
            plain.append(before)
            other.append(after)
    return "".join(plain), "".join(other)


# The calendar.


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


def _near_moment(of: Expr) -> str:
    far = 80_000_000 * 86_400_000_000
    return _clamped(of.inner, moment_constant(-far).text, moment_constant(far).text)


def _dated(of: Sequence[Expr], what: str) -> Expr:
    (a,) = of
    if a.type not in ("DATE", "TIMESTAMP"):
        raise refusal(f"{what} of {a.type} is not admitted", "store it as DATE or TIMESTAMP_NTZ")
    return a


def _part(template: str, low: int, high: int) -> Rule:
    """A part of the date. Spark has no infinite dates: what DuckDB stores as one is a day like any other."""

    def rule(of: Sequence[Expr]) -> Expr:
        a = _dated(of, "a part of the date")
        shown = a.text if a.type == "DATE" else f"CAST({a.text} AS DATE)"
        return short(Expr(f"CAST({template.format(shown)} AS BIGINT)", "BIGINT", low, high))

    return rule


def _clock(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        a = _dated(of, function)
        if a.type == "DATE":
            return Expr(f"CASE WHEN {a.inner} IS NOT NULL THEN 0L END", "BIGINT", 0, 0)
        return Expr(f"CAST({function}({a.text}) AS BIGINT)", "BIGINT", 0, 59)

    return rule


def _century(length: int) -> str:
    return f"CASE WHEN year({{0}}) > 0 THEN (year({{0}}) - 1) div {length} + 1 ELSE year({{0}}) div {length} - 1 END"


def _yearweek() -> str:
    year, week = "extract(YEAROFWEEK FROM {0})", "weekofyear({0})"
    return f"{year} * 100 + CASE WHEN {year} > 0 THEN {week} ELSE -{week} END"


def _months(of: Sequence[Expr]) -> Expr:
    (a,) = of
    _wholes(of, "an interval")
    return Expr(f"make_ym_interval(0, {a.text})", "INTERVAL")


def _micros(of: Sequence[Expr]) -> Expr:
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


def _truncated(of: Sequence[Expr]) -> Expr:
    unit, a = of
    _kinds([a], "TIMESTAMP", "date_trunc")
    template = _STARTS.get(str(unit.constant))
    if template is None:
        raise refusal(f"date_trunc to {unit.constant} is not admitted", f"take one of {', '.join(sorted(_STARTS))}")
    near = Expr(_near_moment(a), "TIMESTAMP")
    text = template.format(t=near.text, d=day(near), m=midnight(near))
    return short(Expr(text, "TIMESTAMP", rank=_OPERATOR if template.startswith("{m} +") else 9))


_COUNTED = {
    "day": "CAST(unix_date({0}) AS BIGINT)",
    "month": "(year({0}) * 12L + month({0}))",
    "quarter": "((year({0}) * 12L + month({0}) - 1) div 3)",
    "year": "CAST(year({0}) AS BIGINT)",
    "decade": "(year({0}) div 10)",
    "century": "(year({0}) div 100)",
}


def _difference(of: Sequence[Expr]) -> Expr:
    unit, a, b = of
    template = _COUNTED.get(str(unit.constant))
    if template is None or not a.type == b.type or a.type not in ("DATE", "TIMESTAMP"):
        raise refusal(
            f"date_diff by {unit.constant} is not admitted", f"take one of {', '.join(_COUNTED)}, of two dates"
        )
    text = f"{template.format(day(b))} - {template.format(day(a))}"
    return short(Expr(text, "BIGINT", -(2**33), 2**33, rank=_OPERATOR))


# Orders of rows.


def _hash(of: Sequence[Expr]) -> Expr:
    """Another number than DuckDB's: of a unit with more rows than count, others remain, no less evenly."""
    return Expr(f"xxhash64({', '.join(e.text for e in of)})", "BIGINT", *INTEGERS["BIGINT"])


def _signbit(of: Sequence[Expr]) -> Expr:
    (a,) = of
    # Told apart behind an equal value alone, where it is minus zero beside zero; every NaN is one to the scan.
    return Expr(f"CAST({a.text} AS STRING) = '-0.0'", "BOOLEAN", rank=3)


_YEARS = (-6_000_000, 6_000_000)
FUNCTIONS: dict[str, Rule] = {
    **{operator: _arithmetic(operator) for operator in "+-*"},
    **{"/": _divided, "//": _quotient, "%": _remainder, "abs": _absolute, "sign": _sign, "isnan": _isnan},
    **{name: _rounding(name) for name in ("floor", "ceil", "trunc", "round")},
    **{name: _extreme(name) for name in ("greatest", "least")},
    **{"list_extract": _list_extract, "list_value": _list_value, "list_position": _list_position},
    **{"~~": _like, "concat": _concat, "substring": _substring, "left": _end("left"), "right": _end("right")},
    **{"trim": _trim("BOTH"), "ltrim": _trim("LEADING"), "rtrim": _trim("TRAILING")},
    **{"lower": _cased("lower"), "upper": _cased("upper")},
    "||": _of_text("concat({0}, {1})", "VARCHAR", 2),
    "length": _of_text("CAST(char_length({0}) AS BIGINT)", "BIGINT", 1),
    "strpos": _of_text("CAST(instr({0}, {1}) AS BIGINT)", "BIGINT", 2),
    "starts_with": _of_text("startswith({0}, {1})", "BOOLEAN", 2),
    "ends_with": _of_text("endswith({0}, {1})", "BOOLEAN", 2),
    "contains": _of_text("contains({0}, {1})", "BOOLEAN", 2),
    "year": _part("year({0})", *_YEARS),
    "isoyear": _part("extract(YEAROFWEEK FROM {0})", *_YEARS),
    "decade": _part("year({0}) div 10", *_YEARS),
    "century": _part(_century(100), *_YEARS),
    "millennium": _part(_century(1000), *_YEARS),
    "quarter": _part("quarter({0})", 1, 4),
    "month": _part("month({0})", 1, 12),
    "week": _part("weekofyear({0})", 1, 53),
    "yearweek": _part(_yearweek(), -600_000_053, 600_000_053),
    "day": _part("day({0})", 1, 31),
    "dayofyear": _part("dayofyear({0})", 1, 366),
    "dayofweek": _part("dayofweek({0}) - 1", 0, 6),
    "isodow": _part("weekday({0}) + 1", 1, 7),
    **{name: _clock(name) for name in ("hour", "minute", "second")},
    **{"date_trunc": _truncated, "date_diff": _difference, "to_months": _months, "to_microseconds": _micros},
    **{"hash": _hash, "signbit": _signbit},
}
"""Every function of DuckDB that a statement for Spark may call."""


def _kinds(of: Sequence[Expr], kind: str, what: str) -> None:
    for e in of:
        if e.type != kind:
            raise refusal(f"{what} of {e.type} is not admitted", f"cast it to {kind} where the table is written")


def _wholes(of: Sequence[Expr], what: str) -> None:
    for e in of:
        if not e.whole:
            raise refusal(f"{what} of {e.type} is not admitted", "use whole numbers")


def short(found: Expr) -> Expr:
    """The text, refused where parts that stand in it several times have made it too long."""
    if len(found.text) > _LONGEST:
        raise refusal("the expression is too long there", "store a part of it as a column")
    return found
