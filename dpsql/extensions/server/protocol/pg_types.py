"""DuckDB's types as PostgreSQL's: object ids, and values as text and as binary."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from dpsql.errors import DataError, NotSupportedError
from dpsql.release.text_table import in_json

TEXT, BINARY = 0, 1
_EPOCH = dt.datetime(2000, 1, 1)
_SECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class PgType:
    """One of PostgreSQL's types: its object id, bytes of a value (-1: any number), and a modifier (-1: none)."""

    oid: int
    size: int
    modifier: int = -1


BOOL, BYTEA, INT8, INT2, INT4 = PgType(16, 1), PgType(17, -1), PgType(20, 8), PgType(21, 2), PgType(23, 4)
STRING, OID, FLOAT4, FLOAT8 = PgType(25, -1), PgType(26, 4), PgType(700, 4), PgType(701, 8)
DATE, TIME, TIMESTAMP, TIMESTAMPTZ = PgType(1082, 4), PgType(1083, 8), PgType(1114, 8), PgType(1184, 8)
INTERVAL, NUMERIC, UUID, JSON = PgType(1186, 16), PgType(1700, -1), PgType(2950, 16), PgType(114, -1)
INT4S, STRINGS, INT8S, FLOAT8S = PgType(1007, -1), PgType(1009, -1), PgType(1016, -1), PgType(1022, -1)

_OF_DUCKDB = {
    "BOOLEAN": BOOL,
    **dict.fromkeys(("TINYINT", "UTINYINT", "SMALLINT"), INT2),
    **dict.fromkeys(("USMALLINT", "INTEGER"), INT4),
    **dict.fromkeys(("UINTEGER", "BIGINT"), INT8),
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT", "DECIMAL", "BIGNUM"), NUMERIC),
    "FLOAT": FLOAT4,
    "DOUBLE": FLOAT8,
    "DATE": DATE,
    "TIME": TIME,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), TIMESTAMP),
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
    "INTERVAL": INTERVAL,
    "UUID": UUID,
    "JSON": JSON,
    "BLOB": BYTEA,
}
_LISTS = {"INTEGER": INT4S, "BIGINT": INT8S, "DOUBLE": FLOAT8S, "VARCHAR": STRINGS}
_ITEMS = {INT4S: INT4, INT8S: INT8, FLOAT8S: FLOAT8, STRINGS: STRING}


def type_of(duckdb_type: str) -> PgType:
    """PostgreSQL's type for the values of a column; text for what it has no type for, such as a STRUCT."""
    if duckdb_type.endswith("]"):
        return _LISTS.get(duckdb_type.removesuffix("[]"), STRING)
    digits = re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", duckdb_type)
    if digits:
        return PgType(NUMERIC.oid, -1, (int(digits[1]) << 16 | int(digits[2])) + 4)
    return _OF_DUCKDB.get(duckdb_type.partition("(")[0], STRING)


# -- results -------------------------------------------------------------------------------------------

Encoder = Callable[[Any], bytes]


def encoder(kind: PgType, form: int) -> Encoder:
    """What writes a value, not None, of a type as text (0) or binary (1). Raises NotSupportedError."""
    if form == TEXT:
        return _AS_TEXT.get(kind.oid, _text)
    found = _AS_BINARY.get(kind.oid)
    if found is None:
        raise NotSupportedError(f"values of the type {kind.oid} have no binary form here; ask for text")
    return found


def _text(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list | dict | tuple):
        return json.dumps(in_json(value), ensure_ascii=False).encode()
    return str(value).encode()


def _float(value: float) -> bytes:
    if not math.isfinite(value):
        return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
    return repr(float(value)).removesuffix(".0").encode()


def _float4(value: float) -> bytes:
    return _float(value) if not math.isfinite(value) else str(np.float32(value)).removesuffix(".0").encode()


def _moment(value: object) -> bytes:
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "+00"
        value = value if value.tzinfo is None else value.astimezone(dt.UTC)
        return f"{value.replace(tzinfo=None).isoformat(sep=' ')}{zone}".encode()
    return str(value).encode()


def _interval(value: dt.timedelta) -> bytes:
    days, rest = divmod(value, dt.timedelta(days=1))
    return f"{days} days {rest}".encode()


def _array(value: Sequence[object]) -> bytes:
    parts = []
    for item in value:
        if item is None:
            parts.append("NULL")
        elif isinstance(item, str):
            parts.append('"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"')
        else:
            parts.append((_float(item) if isinstance(item, float) else str(item).encode()).decode())
    return ("{" + ",".join(parts) + "}").encode()


_AS_TEXT: dict[int, Encoder] = {
    BOOL.oid: lambda value: b"t" if value else b"f",
    FLOAT4.oid: _float4,
    FLOAT8.oid: _float,
    TIMESTAMP.oid: _moment,
    TIMESTAMPTZ.oid: _moment,
    INTERVAL.oid: _interval,
    NUMERIC.oid: lambda value: f"{value:f}".encode() if isinstance(value, Decimal) else str(value).encode(),
    BYTEA.oid: lambda value: b"\\x" + bytes(value).hex().encode(),
    **{kind.oid: _array for kind in _ITEMS},
}


def _packed(form: str) -> Encoder:
    return struct.Struct(form).pack


def _microseconds(value: dt.datetime) -> int:
    moment = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // _SECOND


def _numeric(value: Decimal | float | str) -> bytes:
    """Binary numeric: count of digits of base 10,000, power of the first, sign, places after the point, digits."""
    held = value if isinstance(value, Decimal) else Decimal(value)
    if not held.is_finite():
        return struct.pack("!hhHh", 0, 0, 0xC000, 0)
    sign, digits, exponent = held.as_tuple()
    scale = max(0, -int(exponent))
    whole = int("".join(map(str, digits))) * 10 ** max(0, int(exponent))
    whole *= 10 ** (-scale % 4)
    groups: list[int] = []
    while whole:
        whole, part = divmod(whole, 10_000)
        groups.append(part)
    power = len(groups) - 1 - -(-scale // 4)
    groups.reverse()
    while groups and groups[-1] == 0:
        groups.pop()
    return struct.pack(f"!hhHh{len(groups)}h", len(groups), power, 0x4000 * sign, scale, *groups)


def _span(value: dt.timedelta) -> bytes:
    days, rest = divmod(value, dt.timedelta(days=1))
    return struct.pack("!qii", rest // _SECOND, days, 0)


def _array_of(item: PgType) -> Encoder:
    def written(value: Sequence[object]) -> bytes:
        one = _AS_BINARY[item.oid]
        parts = [struct.pack("!iiI", 1 if value else 0, int(None in value), item.oid)]
        if value:
            parts.append(struct.pack("!ii", len(value), 1))
        for held in value:
            body = None if held is None else one(held)
            parts.append(struct.pack("!i", -1) if body is None else struct.pack("!i", len(body)) + body)
        return b"".join(parts)

    return written


_AS_BINARY: dict[int, Encoder] = {
    BOOL.oid: _packed("!?"),
    INT2.oid: _packed("!h"),
    INT4.oid: _packed("!i"),
    INT8.oid: _packed("!q"),
    FLOAT4.oid: _packed("!f"),
    FLOAT8.oid: _packed("!d"),
    STRING.oid: _text,
    JSON.oid: _text,
    BYTEA.oid: bytes,
    UUID.oid: lambda value: (value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))).bytes,
    DATE.oid: lambda value: struct.pack("!i", (value - _EPOCH.date()).days),
    TIME.oid: lambda value: struct.pack("!q", (dt.datetime.combine(_EPOCH.date(), value) - _EPOCH) // _SECOND),
    TIMESTAMP.oid: lambda value: struct.pack("!q", _microseconds(value)),
    TIMESTAMPTZ.oid: lambda value: struct.pack("!q", _microseconds(value)),
    INTERVAL.oid: _span,
    NUMERIC.oid: _numeric,
    **{kind.oid: _array_of(item) for kind, item in _ITEMS.items()},
}

# -- parameters ----------------------------------------------------------------------------------------

UNKNOWN = (0, 705)
_TEXTS = (18, 19, 25, 114, 1042, 1043, 2950)
_WHOLE = {INT2.oid: 2, INT4.oid: 4, INT8.oid: 8, OID.oid: 4}
_BOOLEANS = {"t": True, "true": True, "1": True, "on": True, "yes": True} | dict.fromkeys(
    ("f", "false", "0", "off", "no"), False
)


def parameter(oid: int, form: int, data: bytes | None, number: int) -> object:
    """The value of parameter ``number``, which a client sent as text (0) or binary (1). Raises DataError.

    Text of an unknown type stays a text. Raises NotSupportedError for types that no literal has.
    """
    if data is None:
        return None
    try:
        return _from_text(oid, data.decode()) if form == TEXT else _from_binary(oid, data)
    except (ValueError, OverflowError, struct.error, InvalidOperation):
        pass
    raise DataError(f"parameter {number} is no value of the type {oid} that the client says it has; check the value")


def _from_text(oid: int, text: str) -> object:
    if oid in _TEXTS or oid in UNKNOWN:
        return text
    word = text.strip()
    if oid in _WHOLE:
        return int(Decimal(word)) if "." in word and Decimal(word) % 1 == 0 else int(word)
    if oid in (FLOAT4.oid, FLOAT8.oid):
        return float(word)
    if oid == NUMERIC.oid:
        return Decimal(word)
    if oid == BOOL.oid:
        return _BOOLEANS[word.lower()] if word.lower() in _BOOLEANS else int("no boolean")
    if oid == DATE.oid:
        # Java's driver writes the zone of the machine behind a date; it says nothing of the day.
        return dt.date.fromisoformat(re.sub(r"\s*[+-]\d\d(?::?\d\d)?$", "", word) if len(word) > 10 else word)
    if oid == TIME.oid:
        return dt.time.fromisoformat(word)
    if oid in (TIMESTAMP.oid, TIMESTAMPTZ.oid):
        moment = dt.datetime.fromisoformat(word)
        return moment.replace(tzinfo=None) if oid == TIMESTAMP.oid else moment
    raise _without_literal(oid)


def _from_binary(oid: int, data: bytes) -> object:
    if (oid in _TEXTS and oid != UUID.oid) or oid in UNKNOWN:
        return data.decode()
    if oid in _WHOLE:
        if len(data) != _WHOLE[oid]:
            raise ValueError
        return int.from_bytes(data, "big", signed=oid != OID.oid)
    if oid == BOOL.oid:
        return bool(struct.unpack("!?", data)[0])
    if oid in (FLOAT4.oid, FLOAT8.oid):
        return float(struct.unpack("!f" if oid == FLOAT4.oid else "!d", data)[0])
    if oid == UUID.oid:
        return str(uuid.UUID(bytes=data))
    if oid == DATE.oid:
        return _EPOCH.date() + dt.timedelta(days=struct.unpack("!i", data)[0])
    if oid == TIME.oid:
        return (_EPOCH + dt.timedelta(microseconds=struct.unpack("!q", data)[0])).time()
    if oid in (TIMESTAMP.oid, TIMESTAMPTZ.oid):
        moment = _EPOCH + dt.timedelta(microseconds=struct.unpack("!q", data)[0])
        return moment if oid == TIMESTAMP.oid else moment.replace(tzinfo=dt.UTC)
    if oid == NUMERIC.oid:
        return _from_numeric(data)
    raise _without_literal(oid)


def _from_numeric(data: bytes) -> Decimal:
    count, power, sign, scale = struct.unpack_from("!hhHh", data)
    groups = struct.unpack_from(f"!{count}h", data, 8)
    if sign not in (0, 0x4000) or scale < 0 or any(not 0 <= group < 10_000 for group in groups):
        raise ValueError
    whole = 0
    for group in groups:
        whole = whole * 10_000 + group
    # Made of its digits: arithmetic of decimals would round it.
    return Decimal(f"{'-' * bool(sign)}{whole}E{4 * (power - count + 1)}")


def _without_literal(oid: int) -> NotSupportedError:
    return NotSupportedError(
        f"a parameter has the type {oid}, and a parameter is a number, text, boolean, date or time; pass one"
    )
