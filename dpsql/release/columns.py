"""Columns of many values, held as arrays: numbers with NULLs, or codes of the few distinct values that keys have.

A release of a million numbers has tens of millions of values; as Python objects they would cost gigabytes and minutes.
Packed columns are sequences of the same values all the same, equal to the tuple that they stand for.
"""

from __future__ import annotations

import base64
import datetime as dt
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Array, Json, Row, Values
from dpsql.common.quoting import identifier

PACKED = 20_000
"""Columns of fewer values are kept as tuples."""
_DENSE = 2**20
_LONG, _FEW = 2**20, 127  # codes of so many rows take a byte each where there are so few values
_AS_LISTS = 500  # rows that are quicker as lists than as arrays, which DuckDB reads through a view
_LISTED = 1_000  # DuckDB reads a whole list of constants for every 2048 rows
_INT64 = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})

Writer: TypeAlias = Callable[[Any], object]
"""What writes one value as JSON."""
Reader: TypeAlias = Callable[[Any], Any]
"""What reads it back."""


class _Column(Values):
    """What both kinds share: a sequence that is made of Python values when it is looked at."""

    def values(self) -> list[object]:
        raise NotImplementedError

    def __getitem__(self, at: int | slice) -> Any:
        found = self._part(at if isinstance(at, slice) else slice(at, None if at == -1 else at + 1))
        if isinstance(at, slice):
            return tuple(found)
        if not found:
            raise IndexError(at)
        return found[0]

    def _part(self, at: slice) -> list[object]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str):
            return len(self) == len(other) and tuple(self.values()) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.values()))


@dataclass(frozen=True, eq=False)
class Numbers(_Column):
    """Floats, NULL where ``null``."""

    data: NDArray[np.float64] = field(repr=False)
    null: NDArray[np.bool_] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.data)

    def values(self) -> list[object]:
        return self._part(slice(None))

    def _part(self, at: slice) -> list[object]:
        found: list[object] = self.data[at].tolist()
        if self.null is not None:
            for place in np.flatnonzero(self.null[at]).tolist():
                found[place] = None
        return found


@dataclass(frozen=True, eq=False)
class Coded(_Column):
    """``distinct[codes[i]]`` for every i; None stands for NULL."""

    distinct: Row = field(repr=False)
    codes: Array = field(repr=False)  # int32, or int8 of many rows

    def __len__(self) -> int:
        return len(self.codes)

    def values(self) -> list[object]:
        return self._part(slice(None))

    def _part(self, at: slice) -> list[object]:
        held = self.distinct
        return [held[code] for code in self.codes[at].tolist()]

    def mapped(self, change: Writer) -> Coded:
        """With every distinct value changed."""
        return Coded(tuple(change(value) for value in self.distinct), self.codes)


Packed = Numbers | Coded
Columns = Sequence[tuple[str, str, Values]]


def coded(values: Iterable[object]) -> Coded:
    """Values of all kinds as codes, told apart by type and value."""
    known: dict[tuple[type, object], int] = {}
    codes = [known.setdefault((type(value), value), len(known)) for value in values]
    return Coded(tuple(value for _, value in known), np.array(codes, dtype=np.int32))


def runs_of(columns: Sequence[Coded]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Where runs of rows with the same codes begin, and how long they are; None where there are too many to pay."""
    size = len(columns[0])
    if size < PACKED:
        return None
    starts = np.ones(size, dtype=np.bool_)
    starts[1:] = False
    for column in columns:
        starts[1:] |= column.codes[1:] != column.codes[:-1]
    first = np.flatnonzero(starts)
    return None if 8 * len(first) > size else (first, np.diff(first, append=size))


def to_json(column: Packed, encode: Writer) -> Json:
    """A packed column for JSON: compressed little-endian arrays in base 64, exact; runs of a code as their lengths."""
    if isinstance(column, Numbers):
        out = {"floats": packed_text(column.data.astype("<f8"))}
        if column.null is not None and column.null.any():
            out["null"] = packed_text(np.packbits(column.null))
        return {**out, "length": len(column)}
    distinct = [encode(value) for value in column.distinct]
    runs = runs_of([column])
    if runs is None:
        return {"codes": packed_text(column.codes.astype("<i4")), "distinct": distinct}
    first, lengths = runs
    return {
        "codes": packed_text(column.codes[first].astype("<i4")),
        "runs": packed_text(lengths.astype("<i8")),
        "distinct": distinct,
    }


def from_json(body: Json, decode: Reader) -> Packed:
    """The column of ``to_json``. Raises ValueError, KeyError or TypeError where it is none."""
    if "floats" in body:
        data = np.frombuffer(packed_bytes(body["floats"]), dtype="<f8").astype(np.float64)
        if len(data) != body["length"]:
            raise ValueError("a column of another length")
        null = None
        if "null" in body:
            bits = np.frombuffer(packed_bytes(body["null"]), dtype=np.uint8)
            null = np.unpackbits(bits)[: len(data)].astype(np.bool_)
            if len(null) != len(data):
                raise ValueError("NULLs of another length")
        return Numbers(data, null)
    read = np.frombuffer(packed_bytes(body["codes"]), dtype="<i4")
    distinct = tuple(decode(value) if isinstance(value, dict) else value for value in body["distinct"])
    if len(read) and not (int(read.min()) >= 0 and int(read.max()) < len(distinct)):
        raise ValueError("codes of no value")
    codes: Array = read.astype(np.int8 if len(distinct) <= _FEW else np.int32)
    if "runs" in body:
        lengths = np.frombuffer(packed_bytes(body["runs"]), dtype="<i8")
        if len(lengths) != len(codes) or (len(lengths) and int(lengths.min()) < 1):
            raise ValueError("runs of another number")
        codes = np.repeat(codes, lengths)
    if len(codes) < _LONG:
        codes = codes.astype(np.int32)
    return Coded(distinct, codes)


def packed_text(array: Array) -> str:
    """A little-endian array as compressed text in base 64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 1)).decode("ascii")


def packed_bytes(text: str) -> bytes:
    """The bytes of ``packed_text``. Raises ValueError where it is none."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error:
        pass
    raise ValueError("a column that cannot be unpacked")


def fetched(connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[tuple[str, str]]) -> list[Packed]:
    """The values of a table's (quoted name, type) columns in the order of its rows, packed."""
    out: list[Packed] = []
    for name, kind in columns:
        found = connection.execute(f"SELECT {name} AS c FROM {table}")  # noqa: S608
        if kind in ("DOUBLE", "FLOAT"):
            held = found.fetchnumpy()["c"]
            mask = np.ma.getmaskarray(held) if isinstance(held, np.ma.MaskedArray) else None
            out.append(Numbers(np.asarray(np.ma.getdata(held), dtype=np.float64), mask))
        elif kind in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"):
            out.append(_integers(found.fetchnumpy()["c"]))
        else:
            out.append(coded(row[0] for row in found.fetchall()))
    return out


def _integers(array: Any) -> Coded:
    data = np.asarray(np.ma.getdata(array), dtype=np.int64)
    null = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else np.zeros(len(data), dtype=np.bool_)
    present = data[~null]
    if not present.size:
        return Coded((None,), np.zeros(len(data), dtype=np.int32))
    low = int(present.min())
    if int(present.max()) - low < _DENSE:  # a table of the values in between is quicker than a sort
        there = np.zeros(int(present.max()) - low + 1, dtype=np.bool_)
        there[present - low] = True
        number = np.cumsum(there) - 1
        values = np.flatnonzero(there) + low
        codes = number[np.where(null, 0, data - low)]
    else:
        values, codes = np.unique(np.where(null, low, data), return_inverse=True)
    distinct: tuple[object, ...] = tuple(values.tolist())
    if null.any():
        codes, distinct = np.where(null, len(distinct), codes.ravel()), (*distinct, None)
    return Coded(distinct, codes.ravel().astype(np.int32))


def stacked(tables: Sequence[Columns]) -> list[tuple[str, str, Packed]]:
    """(name, DuckDB type, values) of the columns of all ``tables``, in the order in which they come.

    A row has NULL in a column that its table lacks. Tables that share a column's name share its type and kind of array.
    Cost: an array of all rows for each column, whatever the number of tables.
    """
    ends = np.cumsum([0, *(len(columns[0][2]) for columns in tables)])
    rows = int(ends[-1])
    parts: dict[str, tuple[str, list[tuple[int, Values]]]] = {}
    for at, columns in enumerate(tables):
        for name, kind, values in columns:
            parts.setdefault(name, (kind, []))[1].append((int(ends[at]), values))
    return [(name, kind, _one(found, rows)) for name, (kind, found) in parts.items()]


def _one(parts: Sequence[tuple[int, Values]], rows: int) -> Packed:
    """One column of so many rows from its parts, each with the row at which it begins."""
    if isinstance(parts[0][1], Numbers):
        data, null = np.zeros(rows), np.ones(rows, dtype=np.bool_)
        for begin, values in parts:
            assert isinstance(values, Numbers)  # noqa: S101 - narrows the type for the checker
            data[begin : begin + len(values)] = values.data
            null[begin : begin + len(values)] = False if values.null is None else values.null
        return Numbers(data, null if null.any() else None)
    known: dict[tuple[type, object], int] = {}
    numbers: dict[int, NDArray[np.int32]] = {}  # by identity: 1 and TRUE are equal, and not the same value
    for _, values in parts:
        assert isinstance(values, Coded)  # noqa: S101 - narrows the type for the checker
        if id(values.distinct) not in numbers:
            listed = [known.setdefault((type(value), value), len(known)) for value in values.distinct]
            numbers[id(values.distinct)] = np.array(listed, dtype=np.int32)
    codes: Array = np.full(rows, -1, dtype=np.int8 if rows >= _LONG and len(known) < _FEW else np.int32)
    for begin, values in parts:
        assert isinstance(values, Coded)  # noqa: S101 - narrows the type for the checker
        codes[begin : begin + len(values)] = numbers[id(values.distinct)][values.codes]
    if (codes < 0).any():
        codes[codes < 0] = known.setdefault((type(None), None), len(known))
    return Coded(tuple(value for _, value in known), codes)


# -- into a DuckDB


def write_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Columns,
    schema: str = "main",
) -> None:
    """Create a table of (name, DuckDB type, values) columns."""
    target, named = f"{schema}.{identifier(name)}", [(identifier(column), kind) for column, kind, _ in columns]
    if len(columns[0][2]):
        fill(connection, f"CREATE TABLE {target} AS", columns, names=[column for column, _ in named])
    else:
        connection.execute(f"CREATE TABLE {target} ({', '.join(f'{column} {kind}' for column, kind in named)})")


def fill(
    connection: duckdb.DuckDBPyConnection,
    into: str,
    columns: Columns,
    first: str = "",
    names: Sequence[str] = (),
) -> None:
    """Put the rows of the columns ``into``, which is INSERT INTO or CREATE TABLE AS, then with the ``names``, quoted.

    ``first``: the text of constants that stand before the values of each row.
    """
    if not len(columns[0][2]):
        return
    ends = [f" AS {name}" for name in names] or [""] * len(columns)
    if len(columns[0][2]) == 1:  # a third of the time
        single = [(kind, *_parameter(kind, list(values))) for _, kind, values in columns]
        shown = [f"CAST(?::{carrier} AS {kind}){end}" for (kind, carrier, _), end in zip(single, ends, strict=True)]
        connection.execute(f"{into} SELECT {first}{', '.join(shown)}", [value for _, _, (value,) in single])
        return
    packed = [(kind, values) for _, kind, values in columns if isinstance(values, Numbers | Coded)]
    if len(packed) == len(columns) and len(packed[0][1]) > _AS_LISTS:
        _fill_packed(connection, into, packed, first, ends)
        return
    # One list per column: a tenth of the time of VALUES at a thousand rows.
    carried = [(kind, *_parameter(kind, values)) for _, kind, values in columns]
    selected = ", ".join(
        (f"unnest(?::{kind}[])" if carrier == kind else f"CAST(unnest(?::{carrier}[]) AS {kind})") + end
        for (kind, carrier, _), end in zip(carried, ends, strict=True)
    )
    connection.execute(f"{into} SELECT {first}{selected}", [values for _, _, values in carried])


def _fill_packed(
    connection: duckdb.DuckDBPyConnection,
    into: str,
    columns: Sequence[tuple[str, Packed]],
    first: str,
    ends: Sequence[str],
) -> None:
    """Arrays go to DuckDB as they are; codes are looked up in a list of the distinct values, once for a run of rows."""
    arrays: dict[str, Array] = {}
    coded = [values for _, values in columns if isinstance(values, Coded)]
    runs = runs_of(coded) if len(coded) == len(columns) else None
    selected: list[str] = []
    lists: list[object] = []
    for at, (kind, values) in enumerate(columns):
        if isinstance(values, Numbers):
            arrays[f"c{at}"] = values.data
            value = f"c{at}"
            if values.null is not None:
                arrays[f"n{at}"] = values.null
                value = f"CASE WHEN n{at} THEN NULL ELSE c{at} END"
            selected.append(f"CAST({value} AS {kind})")
            continue
        if len(values.distinct) > _LISTED and kind in _INT64 and all(type(value) is int for value in values.distinct):
            codes = values.codes if runs is None else values.codes[runs[0]]
            arrays[f"c{at}"] = np.array(values.distinct, dtype=np.int64)[codes]
            selected.append(f"CAST(c{at} AS {kind})")
            continue
        carrier, held = _parameter(kind, values.distinct)
        arrays[f"c{at}"] = values.codes if runs is None else values.codes[runs[0]]
        lists.append(held)
        selected.append(f"CAST(list_extract(?::{carrier}[], c{at} + 1) AS {kind})")
    ended = ", ".join(f"{value}{end}" for value, end in zip(selected, ends, strict=True))
    rows = f"SELECT {first}{ended} FROM dpsql_packed"  # noqa: S608
    if runs is not None:
        arrays["length"] = runs[1]
        named = ", ".join(f"{value} AS v{at}" for at, value in enumerate(selected))
        shown = ", ".join(f"v{at}{end}" for at, end in enumerate(ends))
        rows = f"SELECT {first}{shown} FROM (SELECT {named}, unnest(range(length)) AS place FROM dpsql_packed)"  # noqa: S608
    connection.register("dpsql_packed", arrays)
    try:
        connection.execute(f"{into} {rows}", lists)
    finally:
        connection.unregister("dpsql_packed")


def _parameter(kind: str, values: Sequence[Any]) -> tuple[str, list[object]]:
    """A list parameter and the type that carries it to DuckDB without loss.

    Everything but numbers with a like type in Python travels as text. So do NaN, which the
    list conversion of DuckDB 1.x takes for NULL, and integers, which it may narrow.
    """
    known = [v for v in values if v is not None]
    if kind in ("DOUBLE", "FLOAT", "REAL", "FLOAT4", "FLOAT8") and all(v == v for v in known):
        return "DOUBLE", list(values)
    if all(isinstance(v, bool) for v in known):
        return "BOOLEAN", list(values)
    if all(isinstance(v, bytes) for v in known):
        return "BLOB", list(values)
    if all(isinstance(v, dt.timedelta) for v in known):
        return "INTERVAL", list(values)
    return "VARCHAR", [None if v is None else _text(v) for v in values]


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
