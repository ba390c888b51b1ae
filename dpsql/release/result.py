"""A table of released values: public, immutable, easy to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dpsql.errors import InterfaceError

from .text_table import SHOWN_ROWS, html_table, text_table

if TYPE_CHECKING:
    import pandas

_INTEGERS = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
}


class Result:
    """Rows of public values with column names and DuckDB types.

    ``columns`` and ``types`` are tuples of equal length. ``fetchall()`` is always the whole
    table; ``fetchone()`` and ``fetchmany()`` walk through it once, as PEP 249 has it;
    iterating, ``len`` and equality do not move that place. NULL is None.
    Raises InterfaceError where rows and columns do not fit together.
    """

    __slots__ = ("_place", "_rows", "columns", "types")

    columns: tuple[str, ...]
    types: tuple[str, ...]

    def __init__(self, columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        names, kinds = tuple(columns), tuple(types)
        table = [tuple(row) for row in rows]
        if len(names) != len(kinds) or any(len(row) != len(names) for row in table):
            raise InterfaceError("a result needs one type per column and one value per column in each row")
        object.__setattr__(self, "columns", names)
        object.__setattr__(self, "types", kinds)
        object.__setattr__(self, "_rows", table)
        object.__setattr__(self, "_place", [0])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Result cannot be changed; {name!r} stays as it is")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Result cannot be changed; {name!r} stays as it is")

    @classmethod
    def from_columns(cls, columns: Sequence[tuple[str, str, Sequence[object]]]) -> Result:
        """The table of (name, DuckDB type, values) triples."""
        rows = list(zip(*(values for _, _, values in columns), strict=True))
        return cls([name for name, _, _ in columns], [kind for _, kind, _ in columns], rows)

    @property
    def description(self) -> tuple[tuple[str, str, None, None, None, None, bool], ...]:
        """PEP 249's seven items per column; the type code is DuckDB's name of the type."""
        return tuple(
            (name, kind, None, None, None, None, True) for name, kind in zip(self.columns, self.types, strict=True)
        )

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(tuple(self._table))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        return (self.columns, self.types, self._table) == (other.columns, other.types, other._table)

    __hash__ = None  # type: ignore[assignment]

    @property
    def _table(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = object.__getattribute__(self, "_rows")
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows, as a new list."""
        return list(self._table)

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, None after the last."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next ``size`` rows, fewer at the end."""
        place: list[int] = object.__getattribute__(self, "_place")
        rows = self._table[place[0] : place[0] + max(size, 0)]
        place[0] += len(rows)
        return rows

    def column(self, name: str) -> list[Any]:
        """The values of one column; names match as in DuckDB, without regard to case.

        Raises InterfaceError with the known names for another one.
        """
        lowered = [c.lower() for c in self.columns]
        if name.lower() not in lowered:
            raise InterfaceError(f"no column {name!r}; the result has {', '.join(self.columns)}")
        at = lowered.index(name.lower())
        return [row[at] for row in self._table]

    def df(self) -> pandas.DataFrame:
        """A pandas DataFrame: float64, intN (Int64 with NULLs), datetime64[us], else object.

        Raises InterfaceError where pandas is not installed.
        """
        pd = _optional("pandas", "a data frame needs pandas: pip install 'dpsql[pandas]'")
        series = []
        for at, kind in enumerate(self.types):
            values = [row[at] for row in self._table]
            series.append(pd.Series(values, dtype=_pandas_type(kind, None in values)))
        frame = pd.concat(series, axis=1) if series else pd.DataFrame()
        frame.columns = list(self.columns)
        return cast("pandas.DataFrame", frame)

    def arrow(self) -> Any:
        """A ``pyarrow.Table``, columns typed after the DuckDB types.

        Raises InterfaceError where pyarrow is not installed.
        """
        pa = _optional("pyarrow", "an Arrow table needs pyarrow: pip install 'dpsql[arrow]'")
        known = {
            "DOUBLE": pa.float64(),
            "FLOAT": pa.float32(),
            "BOOLEAN": pa.bool_(),
            "VARCHAR": pa.string(),
            "DATE": pa.date32(),
            "TIMESTAMP": pa.timestamp("us"),
            **{kind: getattr(pa, dtype)() for kind, dtype in _INTEGERS.items()},
        }
        arrays = [
            pa.array([row[at] for row in self._table], type=known.get(kind)) for at, kind in enumerate(self.types)
        ]
        return pa.Table.from_arrays(arrays, names=list(self.columns))

    def __str__(self) -> str:
        return text_table(self.columns, self.types, self._table)

    def __repr__(self) -> str:
        return f"Result({len(self)} rows: {', '.join(self.columns)})\n{self}"

    def _repr_html_(self) -> str:
        """The same table for notebooks, at most ``SHOWN_ROWS`` rows, every text escaped."""
        return html_table(self.columns, self.types, self._table, SHOWN_ROWS)


def _optional(module: str, advice: str) -> Any:
    """The module of an optional extra, or InterfaceError with the advice."""
    try:
        return import_module(module)
    except ImportError:
        pass  # raised below, outside, so that the message is the whole story
    raise InterfaceError(advice)


def _pandas_type(kind: str, has_null: bool) -> str:
    if kind in ("DOUBLE", "FLOAT"):
        return "float64" if kind == "DOUBLE" else "float32"
    if kind in _INTEGERS:
        plain = _INTEGERS[kind]
        nullable = plain.replace("uint", "UInt") if plain.startswith("u") else plain.replace("int", "Int")
        return nullable if has_null else plain
    if kind == "BOOLEAN":
        return "boolean" if has_null else "bool"
    return "datetime64[us]" if kind in ("DATE", "TIMESTAMP") else "object"
