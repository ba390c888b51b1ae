"""Casts of a generated statement in Spark's SQL: only those with the same value for everything the operand can be.

Casts of text to other types are none: each engine reads more than the other. Nor are texts of floats, decimals, dates
and times, DOUBLE of what it does not hold exactly (each engine rounds its own way), or rounding to decimals.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re

from dpsql.engines.spark.calendar import midnight
from dpsql.engines.spark.values import (
    INTEGERS,
    Expr,
    column,
    date_constant,
    fits,
    integer,
    moment_constant,
    ranged,
    refusal,
    spark_type,
    string,
)

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_DAY = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( \(BC\))?", re.ASCII)
_MOMENT = re.compile(r"(\S+(?: \(BC\))?) (\d\d:\d\d:\d\d\.\d{6})", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,39}", re.ASCII)
_PLAIN = re.compile(r"-?(\d+)(?:\.(\d+))?", re.ASCII)
_REAL = re.compile(r"-?(\d{1,17}(\.\d{1,20})?(e[+-]?\d{1,3})?|inf(inity)?)|nan", re.ASCII)
_EXACT = 2**53
_INFINITIES = ("infinity", "-infinity")
_INFINITE_DAY, _INFINITE_MOMENT = 2**31 - 1, 2**63 - 1


def sizes(kind: str) -> tuple[int, int]:
    """Width and scale of a DECIMAL."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def constant(text: str, kind: str) -> Expr:
    """CAST('...' AS type) of a constant that ``value_sql`` wrote; any other text is refused, as engines read more."""
    if kind == "VARCHAR":
        return string(text)
    found = None
    if kind == "DOUBLE" and _REAL.fullmatch(text):
        shown = repr(float(text)).replace("inf", "Infinity").replace("nan", "NaN")
        found = Expr(f"CAST('{shown}' AS DOUBLE)", kind)
    elif kind in INTEGERS and _WHOLE.fullmatch(text):
        found = integer(int(text), kind)
    elif kind.startswith("DECIMAL(") and _plain(text, *sizes(kind)):
        found = Expr(f"CAST('{text}' AS {kind})", kind)
    elif kind in ("DATE", "TIMESTAMP"):
        with contextlib.suppress(ValueError):  # the 30th of February
            found = _moment(text) if kind == "TIMESTAMP" else date_constant(_day(text))
    if found is None:
        raise refusal(f"a text as a constant of type {kind} is not admitted", "write it as a number, a date or a time")
    return found


def _plain(text: str, width: int, scale: int) -> bool:
    """Whether a text is a DECIMAL of that width and scale."""
    found = _PLAIN.fullmatch(text)
    if found is None:
        return False
    whole, part = found[1].lstrip("0"), found[2] or ""
    return len(whole) <= width - scale and len(part) <= scale


def _moment(text: str) -> Expr | None:
    if text in _INFINITIES:
        return moment_constant(-_INFINITE_MOMENT if text.startswith("-") else _INFINITE_MOMENT)
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    clock = dt.time.fromisoformat(found[2])
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    return moment_constant((_day(found[1]) * 86_400 + seconds) * 1_000_000 + clock.microsecond)


def _day(text: str) -> int:
    """The number of a day that DuckDB writes, in any year."""
    if text in _INFINITIES:
        return -_INFINITE_DAY if text.startswith("-") else _INFINITE_DAY
    found = _DAY.fullmatch(text)
    if found is None:
        raise refusal(f"the date {text} is not admitted", "write it as '2020-01-31'")
    year = 1 - int(found[1]) if found[4] else int(found[1])
    cycles, rest = divmod(year - 2000, 400)
    return dt.date(2000 + rest, int(found[2]), int(found[3])).toordinal() - 719_163 + cycles * 146_097


def cast(e: Expr, kind: str, what: str, *, tries: bool) -> Expr:
    """CAST, or TRY_CAST where ``tries``; ``what`` names it in a message."""
    if e.type == kind:
        return e
    to = spark_type(kind)
    if e.whole and kind in INTEGERS:
        if isinstance(e.constant, int):
            return integer(e.constant, kind)
        least, most = INTEGERS[kind]
        if tries and not fits(e.low, e.high, kind):
            inside = f"{e.inner} >= {integer(least, kind).inner} AND {e.inner} <= {integer(most, kind).inner}"
            return column(f"CASE WHEN {inside} THEN CAST({e.text} AS {to}) END", kind)
        # The front end casts to a narrower type only what fits.
        return ranged(f"CAST({e.text} AS {to})", kind, max(e.low, least), min(e.high, most), what)
    if e.whole and kind == "DOUBLE":
        if e.type == "HUGEINT" and not (e.low >= -_EXACT and e.high <= _EXACT):
            raise refusal(f"{what} rounds a HUGEINT to DOUBLE, which engines do differently", "declare narrower bounds")
        return Expr(f"CAST({e.text} AS DOUBLE)", kind)
    if e.type == "BOOLEAN" and kind in INTEGERS and kind != "HUGEINT":
        return Expr(f"CAST({e.text} AS {to})", kind, 0, 1)
    if (e.whole or e.type == "BOOLEAN") and kind == "VARCHAR":
        return Expr(f"CAST({e.text} AS STRING)", kind)
    if e.type == "FLOAT" and kind == "DOUBLE":
        return Expr(f"CAST({e.text} AS DOUBLE)", kind)
    if e.type == "DOUBLE" and kind in INTEGERS and kind != "HUGEINT" and tries:
        # Rounded to even, as DuckDB rounds; NaN is above everything, and 2^63 is a DOUBLE that BIGINT does not hold.
        least, most = INTEGERS[kind]
        rounded = f"rint({e.text})"
        inside = f"{rounded} >= {float(least)!r}D AND {rounded} < {float(most + 1)!r}D".replace("e+", "E")
        return column(f"CASE WHEN {inside} THEN CAST({rounded} AS {to}) END", kind)
    if e.type == "TIMESTAMP" and kind == "DATE":
        return Expr(f"CAST({e.text} AS DATE)", kind)
    if e.type == "DATE" and kind == "TIMESTAMP":
        return Expr(midnight(e), kind)
    if e.type.startswith("DECIMAL("):
        return _decimal(e, kind, what)
    raise refusal(
        f"{what} casts {e.type} to {kind}, which each engine does its own way", "store the column in that type"
    )


def _decimal(e: Expr, kind: str, what: str) -> Expr:
    width, scale = sizes(e.type)
    if kind == "DOUBLE" and width <= 15:
        # A quotient of two whole numbers that DOUBLE holds is rounded once, on both engines.
        return Expr(f"CAST({e.text} AS DOUBLE)", kind)
    if kind == "DOUBLE" and width <= 18 and scale <= 15:
        # As DuckDB: one quotient while the digits are exact, else the whole part and the decimals, each by itself.
        few = f"abs({e.text}) <= CAST('{_EXACT // 10**scale}' AS DECIMAL(18,0))"
        whole = f"CAST({e.text} AS BIGINT)"
        apart = f"CAST({whole} AS DOUBLE) + CAST({e.inner} - CAST({whole} AS DECIMAL(18,0)) AS DOUBLE)"
        return Expr(f"CASE WHEN {few} THEN CAST({e.text} AS DOUBLE) ELSE {apart} END", kind)
    if kind in INTEGERS and not scale:
        most = 10**width - 1
        return ranged(f"CAST({e.text} AS {spark_type(kind)})", kind, -most, most, what)
    if kind == "DOUBLE":
        raise refusal(
            f"{what} rounds {e.type} to DOUBLE, which engines do differently", "declare its step, or store 15 digits"
        )
    raise refusal(f"{what} casts {e.type} to {kind}", "store the column in that type")


def unscaled(e: Expr, kind: str) -> Expr:
    """A DECIMAL times ten to its scale, as a whole number."""
    width, scale = sizes(e.type)
    most = 10**width - 1
    if width + scale + 2 <= 38:
        text = f"{e.inner} * CAST({10**scale} AS DECIMAL({scale + 1},0))"
        return ranged(f"CAST({text} AS {spark_type(kind)})", kind, -most, most, "a decimal")
    # The product would lose digits: the whole part and the decimals apart. The text of one and a fraction has all of
    # its decimals and no exponent.
    whole = f"CAST(floor({e.text}) AS DECIMAL({min(38, width - scale + 1)},0))"
    rest = f"CAST(CAST({e.inner} - {whole} AS DECIMAL({scale + 1},{scale})) + 1 AS STRING)"
    decimals = f"CAST(substring({rest}, 3) AS DECIMAL({scale},0))"
    wide = f"CAST({whole} * CAST({10**scale} AS DECIMAL({scale + 1},0)) AS DECIMAL(38,0))"
    return ranged(f"CAST({wide} + {decimals} AS {spark_type(kind)})", kind, -most, most, "a decimal")
