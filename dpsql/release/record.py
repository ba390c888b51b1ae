"""A release as a value, and as the bytes that the ledger keeps of it."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from dpsql.common.arrays import Json, Values
from dpsql.errors import DataError, IntegrityError, InternalError, LedgerError

from .columns import PACKED, Coded, Numbers, Writer, from_json, to_json
from .names import check_result
from .range_table import RangeTable
from .result import Result

Value: TypeAlias = (
    bool | int | float | str | bytes | Decimal | dt.date | dt.datetime | dt.time | dt.timedelta | uuid.UUID | None
)
Column: TypeAlias = "tuple[str, str, Values]"

FORMAT = 1
PACKED_FORMAT = 2  # of a record with packed columns

# Words, digits, quoted ENUM members and array marks: nothing that could end a CREATE TABLE.
_TYPE = re.compile(
    r"[A-Za-z][A-Za-z0-9_]*(?: [A-Za-z]+)*"
    r"(?:\(\s*(?:\d+|'(?:[^']|'')*')\s*(?:,\s*(?:\d+|'(?:[^']|'')*')\s*)*\))?(?:\[\d*\])*\Z"
)
_NUMBERS = frozenset({"cost", "gap", "purse_total", "purse_spent", "purse_remaining"})
_FLOATS = frozenset({"DOUBLE", "FLOAT", "REAL", "FLOAT8", "FLOAT4"})
_ZONED = frozenset({"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"})
_IN_JSON = frozenset({bool, int, str, type(None)})
_FLOAT_OR_NULL = frozenset({float, type(None)})
_PLAIN = _IN_JSON | {float, bytes, Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID}
"""Types of values that are stored as they are; one look at the types of a column spares one at each value."""


class UnreadableReleaseError(LedgerError, IntegrityError):
    """A release of the ledger is damaged, or of a newer format: what its custodian has to mend."""


@dataclass(frozen=True)
class ReleaseTable:
    """One result: its name and its columns as (name, DuckDB type, values).

    ``named`` tells a view that the batch named from an unnamed result (then the name is
    q1, q2, ...). Values may come as list or ndarray; they are kept as tuples of plain
    Python values, numbers of DOUBLE columns as float, and long packed columns as they come (``columns``).
    Zoned timestamps become UTC
    TIMESTAMP. Raises IntegrityError for a name that is taken, DataError for columns of
    different lengths, an unknown type text or a value that has no serialised form.
    """

    name: str
    named: bool
    columns: tuple[Column, ...]
    listed: ClassVar[Literal[True]] = True
    parts: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_result(self.name, self.named, [column for column, _, _ in self.columns])
        columns = tuple(_column(self.name, *column) for column in self.columns)
        if not columns:
            raise DataError(f"the result {self.name!r} has no columns")
        if len({len(values) for _, _, values in columns}) > 1:
            raise DataError(f"the columns of {self.name!r} differ in length")
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(self.columns[0][2])

    @property
    def noisy(self) -> list[tuple[str, bool]]:
        """The names of its columns, and whether noise reaches them; of some that is not looked at, and said of all."""
        return [(name, True) for name, _, _ in self.columns]

    @property
    def stored(self) -> int:
        """The rows that are stored of it."""
        return len(self)

    @property
    def format(self) -> int:
        """The version of the record's format from which on it can be read."""
        return PACKED_FORMAT if any(isinstance(values, Numbers | Coded) for _, _, values in self.columns) else FORMAT

    def result(self, left_out: Collection[str] = ()) -> Result:
        """Its rows, without the columns that are ``left_out``."""
        return Result.from_columns([column for column in self.columns if column[0] not in left_out])

    def to_json(self, encode: Writer) -> Json:
        """JSON for the ledger; ``encode`` writes one value."""
        columns = [[name, kind, _encoded(values)] for name, kind, values in self.columns]
        return {"name": self.name, "named": self.named, "columns": columns}


ResultTable: TypeAlias = ReleaseTable | RangeTable
"""A result of a release: rows that are ``listed``, or prefix sums and a view that works its rows out of them."""


@dataclass(frozen=True)
class ReleaseRecord:
    """Everything public about one release; the payload of its ledger entry.

    release_id: positive, increasing with time; cost: what the account was charged, in the
    account's unit (0 for an answer from earlier releases); gap: certified relative distance
    from the least error, None where there is no certificate; queries: rows of the workload;
    sql: the batch as planned; purse_total, purse_spent, purse_remaining: what its account holds in all, what was spent
    of it when this release had been charged, and what was left, as the ledger says when the record is written to a
    file. unit: what neighbours differ in, in words. period: the first day of the period that a standing batch was
    measured of, as ISO 8601 writes it; "" for any other. released_at is UTC, kept without a zone.
    """

    release_id: int
    released_at: dt.datetime
    tables: tuple[ResultTable, ...]
    label: str | None = None
    guarantee: str = ""
    purse: str = ""
    cost: float = 0.0
    noise: str = ""
    strategy: str = ""
    queries: int = 0
    gap: float | None = None
    sql: str = ""
    purse_total: float | None = None
    purse_spent: float | None = None
    purse_remaining: float | None = None
    unit: str = ""
    period: str = ""

    def __post_init__(self) -> None:
        if self.release_id < 1:
            raise DataError(f"a release id counts from 1, not {self.release_id!r}")
        object.__setattr__(self, "released_at", _utc(self.released_at))
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "cost", float(self.cost))
        for name in _NUMBERS - {"cost"}:
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        seen: set[str] = set()
        for table in self.tables:
            if table.name.lower() in seen:
                raise IntegrityError(f"the batch names two results {table.name!r}; rename one of them")
            seen.add(table.name.lower())
        for table in self.tables:
            for part in table.parts:
                if part.lower() in seen:
                    raise IntegrityError(f"the name {part!r} is kept for the parts of {table.name!r}; rename it")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its tables, in the order of the batch."""
        return tuple(table.name for table in self.tables)

    @property
    def listed(self) -> tuple[ReleaseTable, ...]:
        """The tables whose rows are listed."""
        return tuple(table for table in self.tables if table.listed)

    def to_bytes(self) -> bytes:
        """JSON in UTF-8 that ``from_bytes`` turns into an equal record; floats are exact."""
        body: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        body["format"] = max((table.format for table in self.tables), default=FORMAT)
        body["released_at"] = self.released_at.isoformat()
        if not self.period:  # as versions wrote it that knew no periods
            del body["period"]
        for name in _NUMBERS:
            body[name] = _encode(getattr(self, name))
        body["tables"] = [table.to_json(_encode) for table in self.tables]
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
        # Lone surrogates are legal in Python text and not in UTF-8.
        return text.encode("utf-8", "surrogatepass")

    @staticmethod
    def from_bytes(payload: bytes) -> ReleaseRecord:
        """The record of ``to_bytes``. Raises IntegrityError where the bytes are no such record."""
        try:
            body = json.loads(payload.decode("utf-8", "surrogatepass"))
            if body.pop("format") not in (FORMAT, PACKED_FORMAT, RangeTable.format):
                raise UnreadableReleaseError("a release in the ledger has a newer format; upgrade dpsql to read it")
            body["released_at"] = dt.datetime.fromisoformat(body["released_at"])
            for name in _NUMBERS & body.keys():
                body[name] = _decode(body[name])
            body["tables"] = tuple(
                RangeTable.from_json(table, _decode)
                if "ranges" in table
                else ReleaseTable(
                    table["name"],
                    table["named"],
                    tuple((name, kind, _decoded(values)) for name, kind, values in table["columns"]),
                )
                for table in body["tables"]
            )
            return ReleaseRecord(**body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableReleaseError(
                "a release in the ledger is damaged and cannot be read; restore the ledger from a good copy"
            ) from error


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)


def _column(table: str, name: str, kind: str, values: Iterable[object]) -> Column:
    if not name or "\x00" in name:
        raise DataError(f"a column of {table!r} needs a name of at least one character and no NUL")
    if not _TYPE.match(kind):
        raise DataError(f"the column {name!r} of {table!r} has the unknown type {kind!r}")
    upper = kind.upper()
    kind = "TIMESTAMP" if upper in _ZONED else upper if upper in _FLOATS else kind
    if isinstance(values, Numbers | Coded) and len(values) >= PACKED:
        if isinstance(values, Coded):
            if all(type(value) in (int, str) for value in values.distinct):
                return name, kind, values  # stored as they are, however many
            return name, kind, values.mapped(lambda value: _plain(table, name, value))
        if upper in _FLOATS:
            return name, kind, values
    plain: Values = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if (_FLOAT_OR_NULL if upper in _FLOATS else _PLAIN).issuperset(map(type, plain)):
        return name, kind, tuple(plain)
    if upper in _FLOATS:
        return name, kind, tuple(None if v is None else float(v) for v in plain)
    return name, kind, tuple(_plain(table, name, v) for v in plain)


def _plain(table: str, column: str, value: object) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dt.datetime):
        return _utc(value)
    if value is None or isinstance(
        value, bool | int | float | str | bytes | Decimal | dt.date | dt.time | dt.timedelta | uuid.UUID
    ):
        return value
    raise DataError(f"the column {column!r} of {table!r} holds a {type(value).__name__}, which has no stored form")


def _encoded(values: Values) -> object:
    if isinstance(values, Numbers | Coded):
        return to_json(values, _encode)
    kinds = set(map(type, values))
    if kinds <= _IN_JSON or (kinds == {float} and all(map(math.isfinite, values))):
        return list(values)
    return [_encode(value) for value in values]


def _decoded(values: Json | list[object]) -> Values:
    if isinstance(values, dict):
        return from_json(values, _decode)
    return tuple(map(_decode, values) if dict in map(type, values) else values)


def _encode(value: Value) -> object:
    """JSON for one value: itself where JSON has it, else {tag: text}."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, dt.datetime):  # before date, of which it is a kind
        return {"datetime": value.isoformat()}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    if isinstance(value, dt.time):
        return {"time": value.isoformat()}
    if isinstance(value, dt.timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, uuid.UUID):
        return {"uuid": str(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    raise InternalError(f"no stored form for {type(value).__name__}")


def _decode(value: Any) -> Value:
    if not isinstance(value, Mapping):
        return value  # type: ignore[no-any-return]
    ((tag, content),) = value.items()
    if tag == "timedelta":
        return dt.timedelta(*content)
    readers = {
        "float": float,
        "datetime": dt.datetime.fromisoformat,
        "date": dt.date.fromisoformat,
        "time": dt.time.fromisoformat,
        "decimal": Decimal,
        "uuid": uuid.UUID,
        "bytes": bytes.fromhex,
    }
    return readers[tag](content)  # type: ignore[operator, no-any-return]
