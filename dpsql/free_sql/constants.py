"""Constants: the extents of what a query or its parameters write out."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import replace
from math import inf

from .extents import NUMBER, Extent, series, text
from .parse import Node

_DATE = re.compile(r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T].*)?", re.DOTALL)


def constant(node: Node) -> Extent:
    literal = node.get("literal")
    if literal is not None:
        kind, written = literal["kind"], str(literal.get("text", ""))
        if kind == "STRING":
            return replace(text(len(written.encode())), constant=written)
        value = number_in(written)
        return Extent() if value is None else Extent(NUMBER, value, value)
    held = node.get("value") or {}  # of DuckDB 1
    value = held.get("value")
    if isinstance(value, str):
        return replace(text(len(value.encode())), constant=value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Extent(max(NUMBER, len(json.dumps(held)))) if value is not None else Extent()
    scale = ((held.get("type") or {}).get("type_info") or {}).get("scale", 0)
    number = float(value) / 10**scale
    return Extent(NUMBER, number, number)


def parameter(value: object) -> Extent:
    if isinstance(value, str | bytes):
        held = value.encode("utf-8", "replace") if isinstance(value, str) else value
        return replace(text(len(held)), constant=value if isinstance(value, str) else None)
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


def day(node: Node) -> int | None:
    """The day of a constant DATE or TIMESTAMP, counted from the year 1."""
    if node["class"] != "CAST":
        return None
    held = constant(node["child"]).constant if node["child"]["class"] == "CONSTANT" else None
    found = _DATE.fullmatch(held or "")
    try:
        return None if found is None else dt.date(int(found[1]), int(found[2]), int(found[3])).toordinal()
    except ValueError:
        return None
