"""DuckDB's column types as far as a policy must know them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dpsql.errors import PolicyError, nearest

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_RANGES: dict[str, tuple[int, int]] = {name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in _BITS.items()}
_RANGES |= {f"U{name}": (0, 2**bits - 1) for name, bits in _BITS.items()}

_KINDS = dict.fromkeys(_RANGES, "integer")
_KINDS |= {
    "FLOAT": "float",
    "DOUBLE": "float",
    "DECIMAL": "decimal",
    "VARCHAR": "text",
    "ENUM": "text",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
}

_ALIASES = {
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "SHORT": "SMALLINT",
    "INT": "INTEGER",
    "INT4": "INTEGER",
    "SIGNED": "INTEGER",
    "INT8": "BIGINT",
    "LONG": "BIGINT",
    "INT128": "HUGEINT",
    "REAL": "FLOAT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "DOUBLE PRECISION": "DOUBLE",
    "NUMERIC": "DECIMAL",
    "TEXT": "VARCHAR",
    "STRING": "VARCHAR",
    "CHAR": "VARCHAR",
    "BPCHAR": "VARCHAR",
    "BOOL": "BOOLEAN",
    "LOGICAL": "BOOLEAN",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE",
}

_SHAPE = re.compile(r"([A-Z][A-Z0-9_ ]*?)\s*(?:\((.*)\))?", re.DOTALL)

Schemas = Mapping[str, Mapping[str, str]]
"""Table name to column name to DuckDB type, as DESCRIBE shows it."""


@dataclass(frozen=True)
class SqlType:
    """A type by its DuckDB name; ``str()`` never shows ENUM members, which may have come from data."""

    name: str
    kind: str
    """integer, decimal, float, text, boolean, date, timestamp, timestamptz, or other (nested and rare)."""
    width: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"DECIMAL({self.width},{self.scale})" if self.kind == "decimal" else self.name

    def holds(self, value: int) -> bool:
        """Whether an integer type can hold ``value``; other types hold any."""
        if self.name not in _RANGES:
            return True
        low, high = _RANGES[self.name]
        return low <= value <= high


def column_type(text: str) -> SqlType:
    """The type that DuckDB's schema shows as ``text``; nested and unknown ones have kind other."""
    stripped = text.strip()
    upper = stripped.upper()
    shape = _SHAPE.fullmatch(upper)
    if shape is None:
        head = re.match(r"[A-Z0-9_]+", upper)
        return SqlType((head.group() if head else "unknown") + ("[]" if upper.endswith("]") else ""), "other")
    name = _ALIASES.get(shape.group(1), shape.group(1))
    kind = _KINDS.get(name, "other")
    arguments = shape.group(2)
    if kind == "decimal":
        size = re.fullmatch(r"\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?", "18,3" if arguments is None else arguments)
        if size is None:
            return SqlType(name, "other")
        width, scale = int(size.group(1)), int(size.group(2) or 0)
        return SqlType(name, kind, width, scale) if 1 <= width <= 38 and scale <= width else SqlType(name, "other")
    if arguments is not None and name not in ("ENUM", "VARCHAR"):
        return SqlType(name, "other")
    return SqlType(name, kind)


def joinable(left: str, right: str) -> bool:
    """Whether values of two types, as a schema shows them, compare as keys: exactly, and whatever they are.

    Whole numbers of any width with each other, but UHUGEINT only with itself, since no type holds
    it beside negative numbers; text with ENUM; else equal types. Binary floats are no keys.
    """
    a, b = column_type(left), column_type(right)
    if a.kind == b.kind == "integer":
        return "UHUGEINT" not in (a.name, b.name) or a.name == b.name
    if a.kind == b.kind == "text":
        return True
    if a.kind in ("boolean", "date", "decimal", "timestamp", "timestamptz"):
        return str(a) == str(b)
    return a.name == b.name == "UUID"


def sql_type(text: str, where: str) -> SqlType:
    """The type that a policy declares under the key ``where``; PolicyError unless it is a plain one."""
    found = column_type(text)
    if found.kind == "other" or found.name == "ENUM":
        known = [name for name in _KINDS if name != "ENUM"]
        raise PolicyError(f"{where} {text!r} is not a type that dpsql works with; {nearest(text, [*known, *_ALIASES])}")
    return found
