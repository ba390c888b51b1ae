"""Functions of whole numbers and decimals, with their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import z3
from calendar_terms import within
from value_row import Case, Number, Row, fits

from dpsql.workloads.expr.lines import line_of


def _sums() -> Iterator[Case]:
    pairs = [
        ("i8", "i64"),
        ("i64", "j64"),
        ("i128", "j128"),
        ("i128", "i64"),
        ("u64", "i8"),
        ("u64", "u64"),
        ("dec", "i32"),
        ("wide", "dec"),
        ("wide", "wide"),
        ("wide", "i128"),
        ("i128", "3"),
        ("2.5", "i64"),
        ("dec", "0.005"),
    ]
    clamped = [("small", "span"), ("price", "small"), ("sure", "i128")]
    for (a, b), held in [*((pair, False) for pair in pairs), *((pair, True) for pair in clamped)]:
        unit = 10**10 if "wide" in (a, b) else 1
        if "price" in (a, b):
            yield Case("+", f"{a} + {b}", lambda r, m, a=a, b=b: abs(r - m[a] - m[b]) <= Fraction(1, 8), clamped=held)
            continue

        def added(m: Row, a: str = a, b: str = b, unit: int = unit) -> Any:
            return z3.And(fits(m[a] + m[b], unit), fits(m[a], unit), fits(m[b], unit))

        def taken(m: Row, a: str = a, b: str = b, unit: int = unit) -> Any:
            return z3.And(fits(m[a] - m[b], unit), fits(m[a], unit), fits(m[b], unit))

        yield Case("+", f"{a} + {b}", lambda r, m, a=a, b=b: r == m[a] + m[b], added, clamped=held)
        yield Case("-", f"{a} - {b}", lambda r, m, a=a, b=b: r == m[a] - m[b], taken, clamped=held)


def _products() -> Iterator[Case]:
    pairs = [
        ("i8", "i64"),
        ("i64", "j64"),
        ("i64", "i64"),
        ("i128", "i64"),
        ("i128", "i128"),
        ("i128", "j128"),
        ("u64", "u64"),
        ("u64", "i64"),
        ("dec", "dec"),
        ("dec", "i32"),
        ("wide", "wide"),
        ("i128", "-2"),
        ("2.5", "dec"),
        ("i64", "0"),
    ]
    clamped = [("small", "span"), ("span", "span"), ("sure", "i64")]
    for (a, b), held in [*((pair, False) for pair in pairs), *((pair, True) for pair in clamped)]:
        unit = 10**20 if "wide" in (a, b) else 1
        yield Case(
            "*",
            f"{a} * {b}",
            lambda r, m, a=a, b=b: r == m[a] * m[b],
            lambda m, a=a, b=b, unit=unit: z3.And(fits(m[a] * m[b], unit), fits(m[a]), fits(m[b])),
            clamped=held,
        )


def _quotients() -> Iterator[Case]:
    pairs = [
        ("i8", "3"),
        ("i64", "-1"),
        ("i64", "7"),
        ("i128", "-1"),
        ("i128", "10"),
        ("u64", "3"),
        ("i64", "i8"),
        ("i64", "j64"),
        ("u64", "u8"),
        ("i128", "i64"),
        ("7", "i8"),
    ]
    clamped = [("small", "sure"), ("span", "4")]

    def quotient(r: Number, a: Number, b: Number) -> Any:
        # What is left of a has its sign and is smaller than b.
        left = a - r * b
        return z3.And(r.multiple(), abs(left) < abs(b), z3.Or(left == 0, (left.term > 0) == (a.term > 0)))

    def rest(r: Number, a: Number, b: Number) -> Any:
        # The quotient is a whole number: what is left of a is a multiple of b.
        return z3.And(abs(r) < abs(b), z3.Or(r == 0, (r.term > 0) == (a.term > 0)), multiple(a - r, b))

    def multiple(a: Number, b: Number) -> Any:
        if z3.is_int_value(b.term):
            return a.multiple(Fraction(abs(b.term.as_long()), b.scale))
        x, y, _ = a.beside(b)
        k = z3.Int("times")
        return z3.Exists([k], x == k * y)

    for (a, b), held in [*((pair, False) for pair in pairs), *((pair, True) for pair in clamped)]:
        yield Case(
            "//",
            f"{a} // {b}",
            lambda r, m, a=a, b=b: quotient(r, m[a], m[b]),
            lambda m, a=a, b=b: z3.And(z3.Not(m[b] == 0), fits(m[a])),
            clamped=held,
        )
    for a, b in [
        ("i64", "7"),
        ("i64", "-1"),
        ("i128", "7"),
        ("dec", "0.3"),
        ("wide", "3"),
        ("u64", "10"),
        ("u8", "2"),
        ("i64", "i8"),
        ("i64", "j64"),
        ("i128", "j128"),
        ("i64", "u8"),
        ("dec", "i8"),
        ("7", "i8"),
    ]:
        yield Case(
            "%",
            f"{a} % {b}",
            lambda r, m, a=a, b=b: rest(r, m[a], m[b]),
            lambda m, a=a, b=b: z3.And(z3.Not(m[b] == 0), fits(m[a])),
        )


def _of_one() -> Iterator[Case]:
    for a in ("i8", "i64", "i128", "u64", "dec", "wide", "flag"):
        if a != "flag":
            yield Case("- of one", f"-{a}", lambda r, m, a=a: r == -m[a])
            yield Case("abs", f"abs({a})", lambda r, m, a=a: r == abs(m[a]), lambda m, a=a: fits(m[a]))
            yield Case(
                "sign",
                f"sign({a})",
                lambda r, m, a=a: z3.And(within(r.term, -1, 1), r * abs(m[a]) == m[a], z3.Implies(m[a] == 0, r == 0)),
                lambda m, a=a: fits(m[a]),
            )
    yield Case("abs", "abs(span)", lambda r, m: r == abs(m["span"]), clamped=True)
    yield Case("abs", "abs(i8 - 3)", lambda r, m: r == abs(m["i8"] - 3))
    yield Case("/ by a constant", "span / 7", lambda r, m: r * 7 == m["span"], clamped=True)
    yield Case(
        "/ by a constant",
        "(small + span) / -0.3",
        lambda r, m: r * Fraction(-3, 10) == m["small"] + m["span"],
        clamped=True,
    )
    yield Case(
        "a column",
        "price",
        lambda r, m: z3.And(r.multiple(Fraction(1, 4)), abs(r - m["price"]) <= Fraction(1, 8)),
        clamped=True,
    )
    for a in ("small", "span", "sure", "dec", "wide", "i128"):
        yield Case("a column", a, lambda r, m, a=a: r == m[a], clamped=True)


def _rounded(function: str, r: Number, x: Number, step: Fraction) -> Any:
    on_grid = r.multiple(step)
    if function == "floor":
        return z3.And(on_grid, r <= x, x < r + step)
    if function == "ceil":
        return z3.And(on_grid, r >= x, x > r - step)
    if function == "trunc":
        return z3.And(on_grid, abs(r) <= abs(x), abs(x) < abs(r) + step, z3.Or(r == 0, (r.term > 0) == (x.term > 0)))
    near = z3.And(abs(r - x) <= step / 2, z3.Implies(abs(r - x) == step / 2, abs(r) >= abs(x)))
    return z3.And(on_grid, near)


def _roundings() -> Iterator[Case]:
    for function in ("floor", "ceil", "trunc", "round"):
        for a, over in [("dec", 1), ("wide", 1), ("i64", 1), ("i128", 1), ("i64", 10), ("i8", -3), ("dec", 7)]:
            text = f"{function}({a} / {over})" if over != 1 else f"{function}({a})"
            if a == "i64" and over == 10:
                text = f"{function}(i32 / {over})"  # of more than 53 bits a quotient is a DOUBLE
            column = "i32" if over == 10 else a

            def means(r: Number, m: Row, function: str = function, a: str = column, over: int = over) -> Any:
                return _rounded(function, r, m[a] * Fraction(1, over), Fraction(1))

            yield Case(function, text, means)
    for a, places in [("dec", 1), ("dec", -3), ("wide", 4), ("i32", -2), ("i64", -1), ("i128", -2), ("i128", 2)]:

        def to_places(r: Number, m: Row, a: str = a, places: int = places) -> Any:
            # Whole numbers are already on a finer grid.
            step = Fraction(10) ** -places
            return r == m[a] if a.startswith("i") and places > 0 else _rounded("round", r, m[a], step)

        yield Case(
            "round to places",
            f"round({a}, {places})",
            to_places,
            lambda m, a=a: fits(m[a]) if a == "i128" else z3.BoolVal(True),
        )


def _choices() -> Iterator[Case]:
    for a, b in [("i8", "i64"), ("i128", "u64"), ("dec", "i32"), ("wide", "dec"), ("d", "e"), ("ts", "us")]:
        for name in ("greatest", "least"):

            def extreme(r: Number, m: Row, a: str = a, b: str = b, name: str = name) -> Any:
                x, y = m[a], m[b]
                larger = (x >= y) if name == "greatest" else (x <= y)
                takes_a = z3.Or(m.null(b), z3.And(z3.Not(m.null(a)), larger))
                return z3.If(takes_a, r == x, r == y)

            yield Case(
                name,
                f"{name}({a}, {b})",
                extreme,
                lambda m, a=a, b=b: z3.Not(z3.And(m.null(a), m.null(b))),
                strict=False,
            )
        yield Case(
            "coalesce",
            f"coalesce({a}, {b})",
            lambda r, m, a=a, b=b: z3.If(m.null(a), r == m[b], r == m[a]),
            lambda m, a=a, b=b: z3.Not(z3.And(m.null(a), m.null(b))),
            strict=False,
        )
        yield Case(
            "nullif",
            f"nullif({a}, {b})",
            lambda r, m, a=a, b=b: z3.And(r == m[a], z3.Or(m.null(b), z3.Not(r == m[b]))),
            lambda m, a=a, b=b: z3.Not(z3.Or(m.null(a), z3.And(z3.Not(m.null(b)), m[a] == m[b]))),
            strict=False,
        )
        yield Case(
            "if",
            f"if(flag, {a}, {b})",
            lambda r, m, a=a, b=b: z3.If(z3.And(z3.Not(m.null("flag")), m["flag"] == 1), r == m[a], r == m[b]),
            lambda m, a=a, b=b: z3.Not(z3.If(z3.And(z3.Not(m.null("flag")), m["flag"] == 1), m.null(a), m.null(b))),
            strict=False,
        )
    yield Case(
        "nullif", "nullif(small, 0)", lambda r, m: r == m["small"], lambda m: z3.Not(m["small"] == 0), clamped=True
    )
    yield Case(
        "greatest",
        "greatest(sure, 3)",
        lambda r, m: z3.Or(z3.And(r == 3, m["sure"] <= 3), z3.And(r == m["sure"], r >= 3)),
        clamped=True,
    )
    yield Case(
        "least",
        "least(sure, i64, 3)",
        lambda r, m: z3.And(r <= 3, r <= m["sure"], z3.Or(m.null("i64"), r <= m["i64"])),
        strict=False,
        clamped=True,
    )
    yield Case(
        "coalesce",
        "coalesce(small, sure, i64)",
        lambda r, m: z3.If(m.null("small"), r == m["sure"], r == m["small"]),
        strict=False,
        clamped=True,
    )
    yield Case(
        "case",
        "CASE WHEN i8 > 3 THEN i64 WHEN dec <= 2.5 THEN 7 END",
        lambda r, m: z3.If(z3.And(z3.Not(m.null("i8")), m["i8"] >= 4), r == m["i64"], r == 7),
        lambda m: z3.If(
            z3.And(z3.Not(m.null("i8")), m["i8"] >= 4),
            z3.Not(m.null("i64")),
            z3.And(z3.Not(m.null("dec")), m["dec"] <= Fraction(5, 2)),
        ),
        strict=False,
    )
    yield Case(
        "case",
        "CASE WHEN j64 <> 0 THEN i64 // j64 ELSE -1 END",
        lambda r, m: z3.Or(r == -1, abs(r) <= abs(m["i64"])),
        lambda m: z3.Or(m.null("j64"), z3.Not(m.null("i64"))),
        strict=False,
    )
    yield Case(
        "width_bucket",
        "width_bucket(small, 0, 100, 7)",
        lambda r, m: z3.And(
            z3.Implies(m["small"] < 0, r == 0),
            z3.Implies(m["small"] >= 100, r == 8),
            z3.Implies(
                z3.And(m["small"] >= 0, m["small"] < 100),
                z3.And((r - 1) * Fraction(100, 7) <= m["small"], m["small"] < r * Fraction(100, 7)),
            ),
        ),
    )
    yield Case(
        "width_bucket",
        "width_bucket(wide, -1e30, 2.5, 2)",
        lambda r, m: z3.And(within(r.term, 1, 3), (r == 3) == (m["wide"] >= Fraction(5, 2))),
    )


def _casts() -> Iterator[Case]:
    def cast(r: Number, m: Row, a: str, kind: str) -> Any:
        return _rounded("round", r, m[a], Fraction(1, 10 ** line_of(kind).scale))

    def holds(m: Row, a: str, kind: str) -> Any:
        line = line_of(kind)
        # What rounds to the type's ends, and nothing beyond.
        x = m[a] * 10**line.scale
        return z3.And(
            abs(x * 2) < 2 * (line.high or 0) + 1
            if line.low == -(line.high or 0)
            else z3.And(x * 2 > 2 * (line.low or 0) - 1, x * 2 < 2 * (line.high or 0) + 1)
        )

    kinds = (
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "DECIMAL(9,2)",
        "DECIMAL(18,0)",
        "DECIMAL(38,10)",
    )
    for kind in kinds:
        for a in ("i128", "dec", "wide", "u8"):
            yield Case(
                f"cast to {kind}",
                f"{'TRY_' if a == 'u8' else ''}CAST({a} AS {kind})",
                lambda r, m, a=a, kind=kind: cast(r, m, a, kind),
                lambda m, a=a, kind=kind: z3.And(holds(m, a, kind), fits(m[a])),
            )
    yield Case("cast of a BOOLEAN", "CAST(flag AS INTEGER)", lambda r, m: r == m["flag"])
    yield Case("cast to BOOLEAN", "CAST(i64 AS BOOLEAN)", lambda r, m: (r == 1) == z3.Not(m["i64"] == 0))


_FAMILIES = (_sums, _products, _quotients, _of_one, _roundings, _choices, _casts)
CASES = tuple(case for family in _FAMILIES for case in family())
