"""Exact amounts: what a person wrote as a rational, and the integer grid of 1e-12.

A ledger adds integers, never floats: 1 + 1e5 * 1e-17 is 1 in floats and 0.9 + nan > 1 is false.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np

from dpsql.errors import DataError, Error, quoted

GRID = 10**12  # units to one: every amount is an integer number of 1e-12
LARGEST = 2**62  # units; one account and its sums stay inside a signed 64-bit integer

_HAIR = Fraction(1, 10**14)
_SEARCH = Fraction(1, 10**9)

Number = int | float | str | Decimal | Fraction


def exact(name: str, value: object, error: type[Error] = DataError, *, shortest: bool = False) -> Fraction:
    """The exact positive rational that ``value`` denotes; text and Decimal count as written.

    A float counts as its binary value, or with ``shortest`` as its shortest decimal text, which is
    what a person wrote in a policy. Refuses bool, NaN, infinity, zero, negative and other types.
    """
    number: Fraction | None = None
    if isinstance(value, str | Decimal) or (shortest and isinstance(value, float)):
        try:
            decimal = Decimal(str(value).strip().replace("_", ""))
        except InvalidOperation:
            decimal = Decimal("NaN")
        # An exponent of millions would take all memory as a fraction.
        if decimal.is_finite() and abs(decimal.adjusted()) < 400:
            number = Fraction(decimal)
    elif isinstance(value, int | Fraction) and not isinstance(value, bool):
        number = Fraction(value)
    elif isinstance(value, float):
        number = Fraction(value) if math.isfinite(value) else None
    elif isinstance(value, np.generic):
        return exact(name, value.item(), error, shortest=shortest)
    example = f"write for example {name}={'1e-9' if name == 'delta' else '0.5'}"
    if number is None:
        raise error(f"{name} must be a finite number, not {quoted(value)}; {example}")
    if number <= 0:
        raise error(f"{name} must be positive, not {quoted(value)}; {example}")
    return number


def to_units(value: Fraction) -> int:
    """``value`` on the grid of 1e-12, rounded down."""
    return value.numerator * GRID // value.denominator


def show(value: Fraction, digits: int = 9) -> str:
    """``value`` in at most ``digits`` digits, rounded up, so that a guarantee or what is spent is never understated.

    Up means from one part in 1e14: the float nearest to 1e-9 shows as 1e-9.
    """
    return _shown(value, digits, up=True)


def show_left(value: Fraction, digits: int = 9, hair: Fraction = _HAIR) -> str:
    """``value`` in at most ``digits`` digits, rounded down, so that what is left is never overstated.

    Down means from one part in 1e14, or from ``hair`` on: the float nearest to 0.7, which is below it, shows as 0.7,
    and what a search for the largest epsilon ends a hair below shows as that epsilon.
    """
    return _shown(value, digits, up=False, hair=hair)


def show_grantable(epsilon: float, digits: int) -> str:
    """``show_left`` of an epsilon that was found by a search (``BudgetState.remaining``)."""
    return show_left(Fraction(epsilon), digits, _SEARCH)


def _shown(value: Fraction, digits: int, *, up: bool, hair: Fraction = _HAIR) -> str:
    if value <= 0:
        return "0"
    shown = Decimal(f"{Decimal(value.numerator) / Decimal(value.denominator):.{digits - 1}e}")
    step = Decimal(1).scaleb(shown.adjusted() - digits + 1)
    if up and Fraction(shown) < value * (1 - _HAIR):
        shown += step
    elif not up and Fraction(shown) > value * (1 + hair):
        shown -= step
    return f"{shown.normalize():f}" if -5 < shown.adjusted() < 16 else f"{shown.normalize():e}"


def float_down(value: Fraction) -> float:
    """The largest float not above ``value``."""
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, 0.0)
