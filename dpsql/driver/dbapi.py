"""PEP 249's globals: what the module promises, type objects, constructors, exceptions of a connection."""

from __future__ import annotations

import datetime as dt
import re
import time

from dpsql import errors

apilevel = "2.0"
threadsafety = 2  # threads may share the module and connections; a cursor belongs to one thread at a time
paramstyle = "qmark"  # and :name, $name, $1

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes  # there to be called; as a parameter it is refused


def DateFromTicks(ticks: float) -> dt.date:
    """The local date at ``ticks``, seconds since 1970-01-01 UTC."""
    return dt.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> dt.time:
    """The local time of day at ``ticks``, to the second."""
    return dt.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> dt.datetime:
    """The local date and time at ``ticks``, to the second, without a zone."""
    return dt.datetime(*time.localtime(ticks)[:6])


class TypeObject:
    """A kind of column: equal to itself and to every DuckDB type name of the kind.

    ``cursor.description[i][1]`` is such a name, DECIMAL(18,2) say, so that ``description[i][1] == dpsql.NUMBER``.
    """

    __slots__ = ("_kinds", "name")

    def __init__(self, name: str, *kinds: str) -> None:
        self.name = name
        self._kinds = frozenset(kinds)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            # The type's first words: neither a DECIMAL's digits nor the members of an ENUM.
            return "[" not in other and re.split(r"\(", other, maxsplit=1)[0].strip().upper() in self._kinds
        return self is other

    # Type names that are equal to it have other hashes: look kinds up by comparison.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"dpsql.{self.name}"


STRING = TypeObject("STRING", "VARCHAR", "ENUM", "UUID", "JSON")
BINARY = TypeObject("BINARY", "BLOB", "BIT")
NUMBER = TypeObject(
    "NUMBER",
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("UHUGEINT", "BIGNUM", "DECIMAL", "FLOAT", "DOUBLE", "BOOLEAN"),
)
DATETIME = TypeObject(
    "DATETIME",
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    *("TIME WITH TIME ZONE", "TIME_NS", "INTERVAL"),
)
ROWID = TypeObject("ROWID")  # no result has one


class Exceptions:
    """The exceptions as attributes of a connection (PEP 249, optional extension)."""

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError
