"""Names, keys and scalars of a policy: how they compare, print and stay exact."""

from __future__ import annotations

import re
import string
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

from dpsql.errors import PolicyError

Key = str | bool | int | Decimal | date | datetime
"""A group key: what ``values`` may hold and ``domain()`` returns."""

Bound = Fraction | date | datetime
"""A ``lower`` or ``upper``: an exact number, a DATE, or a TIMESTAMP (aware ones are UTC)."""

# Numbers of a policy must stay small enough for exact arithmetic on every machine: an exponent
# such as 1e-999999999 is a short text, but a fraction of a gigabyte.
DIGITS = 30

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,29})(\.[0-9]{1,29})?")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def fold(name: str) -> str:
    """``name`` as DuckDB compares identifiers: ASCII letters in lower case, all others as they are."""
    return name.lower() if name.isascii() else name.translate(_LOWER)


def quote(text: str) -> str:
    """``text`` as a TOML basic string on one line."""
    out = []
    for char in text:
        control = ord(char) < 0x20 or ord(char) == 0x7F
        out.append(_ESCAPES.get(char, f"\\u{ord(char):04x}" if control else char))
    return '"' + "".join(out) + '"'


def dotted(*parts: str) -> str:
    """The TOML key of nested tables, quoted where TOML needs it: ``tables."main.visits".unit``."""
    return ".".join(part if _BARE.fullmatch(part) else quote(part) for part in parts)


def number(where: str, value: object) -> Fraction:
    """``value`` as an exact fraction; ``where`` is the key that messages name.

    A binary float is refused since it is not the decimal that its author wrote.
    """
    if isinstance(value, str) and (plain := unquoted(value)):
        raise PolicyError(f"{where} is in quotes, which make it a string; write {plain} without them")
    if isinstance(value, bool) or not isinstance(value, int | Decimal | Fraction):
        raise PolicyError(f"{where} is {kind_of(value)}; write a number such as 120 or 0.01")
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise PolicyError(f"{where} is {value}; write a finite number")
        exponent = value.as_tuple().exponent
        # A coefficient of zero has no leading digit, but its exponent still makes a huge fraction.
        leading = value.adjusted() if value else 0
        if not isinstance(exponent, int) or exponent < -DIGITS or leading >= DIGITS:
            raise PolicyError(f"{where} has a magnitude out of reach; keep to {DIGITS} digits each side")
        return Fraction(0) if not value else Fraction(value)
    # Compared, not printed: an integer of thousands of digits has no text in Python.
    if abs(value) >= 10**DIGITS:
        raise PolicyError(f"{where} has a magnitude out of reach; keep to {DIGITS} digits each side")
    return Fraction(value)


def unquoted(text: str) -> str:
    """The date, time or number that a string spells, as TOML without quotes; empty where it spells none."""
    try:
        read = datetime.fromisoformat(text)
        return shown(read if len(text) > len("2024-01-31") else read.date())
    except (ValueError, OverflowError):
        return text if _NUMBER.fullmatch(text) else ""


def moment(where: str, value: date | datetime) -> date | datetime:
    """A date or timestamp, the ones with an offset turned to UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        try:
            return value.astimezone(UTC)
        except OverflowError:
            pass
        raise PolicyError(f"{where} leaves the years 1 to 9999 in UTC; write a nearer time")
    return value


def kind_of(value: object) -> str:
    """What ``value`` is, in words for messages; two values of one ``kind_of`` can be compared."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, Decimal):
        return "a decimal number"
    if isinstance(value, Fraction):
        return "a number"
    if isinstance(value, float):
        return "a binary float"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, datetime):
        return "a timestamp" if value.tzinfo is None else "a timestamp with time zone"
    if isinstance(value, date):
        return "a date"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return f"a {type(value).__name__}"


def shown(value: Bound | Key) -> str:
    """``value`` as TOML text that reads back as the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        return _finite_decimal(value)
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text if "." in text else text + ".0"
    return str(value)


def _finite_decimal(value: Fraction) -> str:
    """The decimal text of a fraction; only twos and fives divide its denominator."""
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
        if digits > 200:
            raise PolicyError(f"{value} has no finite decimal text; a policy holds decimals only")
    scaled = str(abs(int(value * 10**digits))).rjust(digits + 1, "0")
    return ("-" if value < 0 else "") + scaled[:-digits] + "." + scaled[-digits:]
