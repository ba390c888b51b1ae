"""Constants: the extents of what a query or its parameters write out."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import replace
from math import inf

from .extents import NUMBER, Extent, series, text
from .parse import Node

_DATE = re.compile(r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})([ T][0-9:.]+ *(?:Z|[+-][0-9:]+)?)?")
_PART = re.compile(r"(?<![^ ])([0-9]{1,9}) *([a-z]+?)s?(?![^ ])")
MOMENTS = frozenset(
    ["date", "timestamp", "datetime", "timestamptz", *(f"timestamp_{x}" for x in ("s", "ms", "us", "ns"))]
)
"""Types of moments whose extents are counted in days."""
DAYS = {
    "to_microseconds": (1 / 86_400_000_000, 1 / 86_400_000_000),
    "to_milliseconds": (1 / 86_400_000, 1 / 86_400_000),
    "to_seconds": (1 / 86_400, 1 / 86_400),
    "to_minutes": (1 / 1_440, 1 / 1_440),
    "to_hours": (1 / 24, 1 / 24),
    "to_days": (1, 1),
    "to_weeks": (7, 7),
    "to_months": (28, 31),
    "to_quarters": (89, 92),
    "to_years": (365, 366),
}
"""The least and the most days of an interval, by the function that makes it of a number."""
_UNITS = {name.removeprefix("to_").removesuffix("s"): days for name, days in DAYS.items()}


def constant(node: Node) -> Extent:
    literal = node.get("literal")
    if literal is not None:
        kind, written = literal["kind"], str(literal.get("text", ""))
        if kind == "STRING":
            return replace(text(len(written.encode())), constant=written)
        value = number_in(written)
        return Extent() if value is None else Extent(NUMBER, value, value)
    content = node.get("value") or {}  # of DuckDB 1
    value = content.get("value")
    if isinstance(value, str):
        return replace(text(len(value.encode())), constant=value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Extent(max(NUMBER, len(json.dumps(content)))) if value is not None else Extent()
    scale = ((content.get("type") or {}).get("type_info") or {}).get("scale", 0)
    number = float(value) / 10**scale
    return Extent(NUMBER, number, number)


def type_of(node: Node) -> str:
    """The type of a written constant as columns of its kind have it: INTEGER, VARCHAR, or "" for others."""
    literal = node.get("literal")
    if literal is not None:
        whole = str(literal.get("text", "")).isdigit()
        return "VARCHAR" if literal["kind"] == "STRING" else "INTEGER" if whole else ""
    kind = str(((node.get("value") or {}).get("type") or {}).get("id", ""))
    return kind if kind in ("INTEGER", "VARCHAR") else ""


def parameter(value: object) -> Extent:
    if isinstance(value, str | bytes):
        encoded = value.encode("utf-8", "replace") if isinstance(value, str) else value
        return replace(text(len(encoded)), constant=value if isinstance(value, str) else None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Extent(NUMBER, float(value), float(value)) if abs(value) < 1e300 else Extent()
    if isinstance(value, list | tuple | dict):
        return series(len(value), max((len(str(one)) for one in value), default=NUMBER))
    return Extent(max(NUMBER, len(str(value)))) if value is not None else Extent()


def number_in(written: str) -> float | None:
    try:
        value = float(written.replace("_", ""))
    except ValueError:
        return None
    return value if abs(value) < inf else None


def moment(written: str) -> Extent:
    """A date or time that is written out, in days from the year 1, whatever its time zone is."""
    match = _DATE.fullmatch(written)
    try:
        day = None if match is None else dt.date(int(match[1]), int(match[2]), int(match[3])).toordinal()
    except ValueError:
        return Extent()
    if match is None or day is None:
        return Extent()
    return Extent(NUMBER, day - 1, day + 2) if match[4] else Extent(NUMBER, day, day)


def interval(written: str) -> Extent:
    """An interval that is written out, such as 1 day 12 hours, in days."""
    parts = [(int(number), _UNITS.get(unit)) for number, unit in _PART.findall(written.lower())]
    if not parts or _PART.sub("", written.lower()).strip() or any(days is None for _, days in parts):
        return Extent()
    ends = [(number * days[0], number * days[1]) for number, days in parts if days]
    return Extent(NUMBER, sum(least for least, _ in ends), sum(most for _, most in ends))
