"""Constants and casts of a scan in Spark's SQL.

Of casts only those with the same value for everything that the operand can be. Casts of text to other types are none:
each engine reads more than the other. Nor are texts of floats, decimals, dates and times, DOUBLE of what it does not
hold exactly (each engine rounds its own way), or rounding to decimals.
"""

from __future__ import annotations

from dpsql.extensions.spark.calendar import midnight
from dpsql.extensions.spark.values import (
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
from dpsql.workloads.expr.total import clamped_moment, decimal_sizes, digits

_EXACT = 2**53


def sizes(kind: str) -> tuple[int, int]:
    """Width and scale of a DECIMAL."""
    return decimal_sizes(kind) or (0, 0)


def constant(value: bool | int | float | str | None, kind: str) -> Expr:
    """A constant as its type's line holds it; a whole number without a type where ``kind`` is empty."""
    if value is None:
        return Expr(f"CAST(NULL AS {spark_type(kind)})", kind)
    if kind == "VARCHAR":
        return string(str(value))
    if kind == "BOOLEAN":
        return Expr("TRUE" if value else "FALSE", kind)
    if kind in ("FLOAT", "DOUBLE"):
        shown = repr(float(value)).replace("inf", "Infinity").replace("nan", "NaN")
        return Expr(f"CAST('{shown}' AS DOUBLE)", "DOUBLE")
    number = int(value)
    if kind == "DATE":
        return date_constant(number)
    if kind == "TIMESTAMP":
        return moment_constant(clamped_moment(number))
    if kind.startswith("DECIMAL("):
        return Expr(f"CAST('{digits(number, sizes(kind)[1])}' AS {kind})", kind)
    return integer(number, kind)


def cast(e: Expr, kind: str, what: object, *, tries: bool) -> Expr:
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


def _decimal(e: Expr, kind: str, what: object) -> Expr:
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
