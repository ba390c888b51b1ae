"""A result of all ranges of a long line: too many rows to store, each worked out when it is asked for.

The releases database holds the n + 1 prefix sums of every number, and the spreads of ranges; the result is a view that
joins the sums with themselves, so that a condition on where a range begins or stops reads few of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import duckdb
import numpy as np

from dpsql.common.arrays import Array, Floats, Ints, Json, Row
from dpsql.common.quoting import identifier
from dpsql.errors import DataError, InterfaceError

from .columns import Coded, Numbers, Reader, Writer, from_json, to_json
from .names import check_result
from .result import Result

MOST_ROWS = 1_000_000
_EPOCH = dt.date(1970, 1, 1)

Part: TypeAlias = tuple[str, int]
"""What a column shows: "from" or "to" (0), "key" or "other" (k), "value", "stderr", "low" or "high" (j)."""


@dataclass(frozen=True)
class RangeNumber:
    """One private number of every range: ``sums`` (g (n + 1),) prefix sums, from 0 on, by group, ``constant`` more.

    Its standard error is ``scale`` (g,) times the root of the range's spread, its interval ``deviations`` of those.
    """

    sums: Numbers = field(repr=False)
    scale: tuple[float, ...]
    constant: float
    deviations: float


@dataclass(frozen=True)
class RangeTable:
    """A result with a row for each range of n values in each of g groups; the surface of ``ReleaseTable``.

    ``shown`` are its columns: name, DuckDB type and part. ``values``: the first place of a run of whole numbers or days
    and how many, or the values themselves. ``keys``: (values of the g groups, whether each is OTHER) for each other
    key. ``lengths`` (n + 1,): the spread of a range by its length; or ``blocks``: sizes and factors
    (``dpsql.linalg.lines``). ``places``: of replicates, which of the n + 1 sums there are, where not all; no
    release has such. Raises IntegrityError for a name of a column that is there twice.
    """

    name: str
    named: bool
    shown: tuple[tuple[str, str, Part], ...]
    values: Row
    kind: str
    numbers: tuple[RangeNumber, ...] = field(repr=False)
    keys: tuple[tuple[Row, tuple[bool, ...]], ...] = ()
    lengths: Numbers | None = field(default=None, repr=False)
    blocks: tuple[tuple[int, float], ...] = ()
    run: bool = True
    places: Ints | None = field(default=None, repr=False)
    listed: ClassVar[Literal[False]] = False
    format: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_result(self.name, self.named, [column for column, _, _ in self.shown])
        if any(len(number.sums) != self.groups * len(self.points) for number in self.numbers):
            raise DataError(f"the sums of {self.name!r} are not those of its values and groups")

    @property
    def n(self) -> int:
        return int(self.values[1]) if self.run else len(self.values)

    @property
    def points(self) -> Ints:
        """The places of the prefix sums of a group."""
        return np.arange(self.n + 1, dtype=np.int64) if self.places is None else self.places

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the tables under the view: prefix sums, and spreads by length."""
        return f"{self.name}#points", f"{self.name}#lengths"

    @property
    def noisy(self) -> list[tuple[str, bool]]:
        """The names of its columns, and whether noise reaches them."""
        return [(name, part in ("value", "low", "high")) for name, _, (part, _) in self.shown]

    @property
    def stored(self) -> int:
        """The rows that are stored of it: prefix sums."""
        return self.groups * (self.n + 1)

    def result(self, left_out: Collection[str] = ()) -> Result:
        """Its rows, worked out when they are taken, without the columns that are ``left_out``."""
        few = replace(self, shown=tuple(column for column in self.shown if column[0] not in left_out))
        return Result.from_rows([n for n, _, _ in few.shown], [k for _, k, _ in few.shown], RangeRows(few))

    def at(self, places: Ints) -> RangeTable:
        """The same with the prefix sums at some places alone."""
        numbers = tuple(
            replace(number, sums=Numbers(number.sums.data.reshape(-1, self.n + 1)[:, places].ravel()))
            for number in self.numbers
        )
        return replace(self, numbers=numbers, places=places)

    @property
    def groups(self) -> int:
        """Combinations of the other keys."""
        return len(self.keys[0][0]) if self.keys else 1

    def __len__(self) -> int:
        return self.groups * self.n * (self.n + 1) // 2

    def value(self, at: int) -> object:
        """The declared value number ``at``."""
        if not self.run:
            return self.values[at]
        place = int(self.values[0]) + at
        return _EPOCH + dt.timedelta(days=place) if self.kind == "DATE" else place

    def rows(self, start: int, stop: int) -> list[Row]:
        """Rows ``start`` to ``stop``, group by group, by where a range begins and then where it stops."""
        each = self.n * (self.n + 1) // 2
        group, place = np.divmod(np.arange(max(start, 0), min(stop, len(self)), dtype=np.int64), each)
        # Of the ranges from the end on, place-th: the largest i with i (i + 1) / 2 at most what is left.
        left = each - 1 - place
        back = ((np.sqrt(8.0 * left + 1.0) - 1.0) / 2.0).astype(np.int64)
        return self.between(group, self.n - 1 - back, self.n - 1 - (left - back * (back + 1) // 2))

    def row(self, group: int, first: int, last: int) -> Row:
        """The row of the range from value number ``first`` to ``last`` in a group."""
        return self.between(np.array([group]), np.array([first]), np.array([last]))[0]

    def between(self, group: Ints, first: Ints, last: Ints) -> list[Row]:
        """The rows of k ranges: their groups, first and last values by number (k,)."""
        root = np.sqrt(self._spread(first, last + 1))
        out: list[list[object]] = []
        for _, _, (part, at) in self.shown:
            if part in ("from", "to"):
                out.append([self.value(place) for place in (first if part == "from" else last).tolist()])
            elif part in ("key", "other"):
                values = self.keys[at][part == "other"]
                out.append([values[place] for place in group.tolist()])
            else:
                number, base = self.numbers[at], group * (self.n + 1)
                value = number.sums.data[base + last + 1] - number.sums.data[base + first] + number.constant
                error = np.array(number.scale)[group] * root
                half = number.deviations * error
                out.append({"value": value, "stderr": error, "low": value - half, "high": value + half}[part].tolist())
        return list(zip(*out, strict=True))

    def _spread(self, i: Ints, e: Ints) -> Floats:
        if self.lengths is not None:
            return np.asarray(self.lengths.data[e - i])
        total = np.zeros(len(i))
        for size, factor in self.blocks:
            begin, end = i // size, (e - 1) // size
            ends = ((size - i % size) ** 2 + ((e - 1) % size + 1) ** 2) / size
            several = factor * (ends + (end - begin - 1) * size)
            total += np.where(begin == end, factor * (e - i) ** 2 / size, several)
        return total

    # -- the ledger ----------------------------------------------------------------------------

    def to_json(self, encode: Writer) -> Json:
        """JSON for the ledger; ``encode`` writes one value."""
        return {
            "name": self.name,
            "named": self.named,
            "ranges": {
                "shown": [[name, kind, list(part)] for name, kind, part in self.shown],
                "values": [encode(value) for value in self.values],
                "kind": self.kind,
                "run": self.run,
                "numbers": [
                    {
                        "sums": to_json(number.sums, encode),
                        "scale": [encode(value) for value in number.scale],
                        "constant": encode(number.constant),
                        "deviations": encode(number.deviations),
                    }
                    for number in self.numbers
                ],
                "keys": [[[encode(v) for v in values], list(others)] for values, others in self.keys],
                "lengths": None if self.lengths is None else to_json(self.lengths, encode),
                "blocks": [[size, encode(factor)] for size, factor in self.blocks],
            },
        }

    @staticmethod
    def from_json(body: Json, decode: Reader) -> RangeTable:
        """The result of ``to_json``. Raises ValueError, KeyError or TypeError where it is none."""
        held = body["ranges"]
        numbers = tuple(
            RangeNumber(
                _numbers(number["sums"], decode),
                tuple(float(decode(value)) for value in number["scale"]),
                float(decode(number["constant"])),
                float(decode(number["deviations"])),
            )
            for number in held["numbers"]
        )
        return RangeTable(
            body["name"],
            body["named"],
            tuple((name, kind, (part[0], part[1])) for name, kind, part in held["shown"]),
            tuple(decode(value) for value in held["values"]),
            held["kind"],
            numbers,
            tuple((tuple(decode(v) for v in values), tuple(others)) for values, others in held["keys"]),
            None if held["lengths"] is None else _numbers(held["lengths"], decode),
            tuple((size, float(decode(factor))) for size, factor in held["blocks"]),
            held["run"],
        )


def _numbers(body: Json, decode: Reader) -> Numbers:
    found = from_json(body, decode)
    if isinstance(found, Coded):
        raise TypeError("codes where numbers are expected")
    return found


@dataclass(frozen=True)
class RangeRows(Sequence[Row]):
    """The rows of a ``RangeTable``; a part of at most a million is worked out when it is taken, else InterfaceError."""

    table: RangeTable

    @property
    def others(self) -> str:
        """Where the rows are that are not shown."""
        return f"the others are worked out when they are asked for: query dp.{self.table.name}"

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            self._check_few(stop - start)
            return self.table.rows(start, stop)[::step]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(at)
        return self.table.rows(place, place + 1)[0]

    def _check_few(self, count: int) -> None:
        if count > MOST_ROWS:
            names = [name for name, _, (part, _) in self.table.shown if part in ("from", "to")]
            asked = " AND ".join(f"{name} = ..." for name in names) or "..."
            query = f"SELECT * FROM dp.{self.table.name} WHERE {asked}"  # noqa: S608
            raise InterfaceError(
                f"{self.table.name} has {len(self):,} rows, which are worked out when they are asked for; at most "
                f"{MOST_ROWS:,} are fetched at once: {query}"
            )


# -- the releases database ---------------------------------------------------------------------


def write_ranges(connection: duckdb.DuckDBPyConnection, table: RangeTable, schema: str) -> None:
    """Create the tables of prefix sums and spreads, and the view of all ranges over them."""
    points, lengths = (f"{schema}.{identifier(name)}" for name in table.parts)
    n, g, places = table.n, table.groups, table.points
    each = len(places)
    arrays: dict[str, Array] = {"place": np.tile(places, g), "grp": np.repeat(np.arange(g, dtype=np.int64), each)}
    lists: list[Sequence[object]] = []
    selected = ["CAST(place AS BIGINT) AS place", "CAST(grp AS INTEGER) AS grp"]
    for column, place, there in (("low", "place", f"place < {n}"), ("high", "place - 1", "place > 0")):
        selected.append(f"CASE WHEN {there} THEN {_value_sql(table, place, lists)} END AS {column}")
    for number, (values, others) in enumerate(table.keys):
        key_kind = next((k for _, k, part in table.shown if part == ("key", number)), "VARCHAR")
        if key_kind == "BIGINT" and all(type(value) is int for value in values):
            arrays[f"k{number}"] = np.repeat(np.array(values, dtype=np.int64), each)
            selected.append(f"k{number}")
        else:
            lists.append([None if value is None else str(value) for value in values])
            selected.append(f"CAST(list_extract(?::VARCHAR[], CAST(grp + 1 AS BIGINT)) AS {key_kind}) AS k{number}")
        if any(others):
            lists.append(list(others))
        other = "list_extract(?::BOOLEAN[], CAST(grp + 1 AS BIGINT))" if any(others) else "FALSE"
        selected.append(f"{other} AS o{number}")
    for number, held in enumerate(table.numbers):
        arrays[f"c{number}"] = held.sums.data
        arrays[f"e{number}"] = np.repeat(np.array(held.scale), each)
        selected += [f"c{number}", f"e{number}"]
    _insert(connection, points, arrays, selected, lists)
    joined = f"FROM {points} lo JOIN {points} hi ON hi.place > lo.place"
    if g > 1:
        joined += " AND hi.grp = lo.grp"
    if table.lengths is not None:
        arrays = {"place": np.arange(n + 1, dtype=np.int64), "spread": table.lengths.data}
        _insert(connection, lengths, arrays, ["CAST(place AS BIGINT) AS place", "spread"], [])
        joined += f" JOIN {lengths} w ON w.place = hi.place - lo.place"
        root = "sqrt(w.spread)"
    else:
        root = f"sqrt({' + '.join(_block_sql(size, factor) for size, factor in table.blocks)})"
    items = [f"{_part_sql(table, part, root)} AS {identifier(name)}" for name, _, part in table.shown]
    connection.execute(f"CREATE VIEW {schema}.{identifier(table.name)} AS SELECT {', '.join(items)} {joined}")
    said = f"{len(table):,} rows, worked out when they are asked for"
    connection.execute(f"COMMENT ON VIEW {schema}.{identifier(table.name)} IS '{said}'")


def _insert(
    connection: duckdb.DuckDBPyConnection,
    target: str,
    arrays: Mapping[str, Array],
    selected: Sequence[str],
    lists: Sequence[Sequence[object]],
) -> None:
    connection.register("dpsql_packed", dict(arrays))
    try:
        connection.execute(f"CREATE TABLE {target} AS SELECT {', '.join(selected)} FROM dpsql_packed", list(lists))  # noqa: S608
    finally:
        connection.unregister("dpsql_packed")


def _value_sql(table: RangeTable, place: str, lists: list[Sequence[object]]) -> str:
    """The declared value at a place, of the column's type."""
    if not table.run:
        lists.append([str(value) for value in table.values])
        return f"CAST(list_extract(?::VARCHAR[], CAST({place} + 1 AS BIGINT)) AS {table.kind})"
    first = int(table.values[0])
    if table.kind == "DATE":
        return f"CAST(DATE '1970-01-01' + CAST({first} + {place} AS INTEGER) AS DATE)"
    return f"CAST({first} + {place} AS {table.kind})"


def _block_sql(size: int, factor: float) -> str:
    """factor x the squared norm of a range averaged over blocks of ``size`` cells (``lines.averaged``)."""
    if size == 1:
        return f"({factor!r}::DOUBLE * (hi.place - lo.place))"
    begin, end = f"(lo.place // {size})", f"((hi.place - 1) // {size})"
    ends = f"({size} - lo.place % {size}) ** 2 + ((hi.place - 1) % {size} + 1) ** 2"
    return (
        f"({factor!r}::DOUBLE * CASE WHEN {begin} = {end} THEN (hi.place - lo.place) ** 2 / {size} "
        f"ELSE ({ends}) / {size} + ({end} - {begin} - 1) * {size} END)"
    )


def _part_sql(table: RangeTable, part: Part, root: str) -> str:
    what, at = part
    if what in ("from", "to"):
        return "lo.low" if what == "from" else "hi.high"
    if what in ("key", "other"):
        return f"lo.{'k' if what == 'key' else 'o'}{at}"
    held = table.numbers[at]
    value, error = f"(hi.c{at} - lo.c{at})", f"(lo.e{at} * {root})"
    if held.constant:
        value = f"({value} + {held.constant!r}::DOUBLE)"
    half = f"{held.deviations!r}::DOUBLE * {error}"
    return {"value": value, "stderr": error, "low": f"({value} - {half})", "high": f"({value} + {half})"}[what]
