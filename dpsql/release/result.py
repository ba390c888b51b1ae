"""A table of released values: public, immutable, easy to look at, and in the formats of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, cast

import duckdb
import numpy as np

from dpsql.common.arguments import is_whole, taking, text, whole
from dpsql.common.arrays import Row, Values
from dpsql.common.extras import install_command
from dpsql.common.interrupted_calls import guards_calls
from dpsql.common.quoting import identifier
from dpsql.errors import InterfaceError, quoted

from .columns import PACKED, Coded, Numbers, coded, write_table
from .cut import NOTHING, Cut, Losses
from .text_table import grid_of, paragraph

if TYPE_CHECKING:
    from types import ModuleType

    import pandas
    import polars
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


@guards_calls
class Result:
    """Rows of public values with column names and DuckDB types.

    ``columns`` and ``types`` are tuples of equal length. ``fetchall()`` is always the whole
    table; ``fetchone()`` and ``fetchmany()`` walk through it once, as PEP 249 has it;
    iterating, ``len`` and equality do not move that place. NULL is None.
    Any library that takes Arrow data reads a result directly (``__arrow_c_stream__``): ``polars.DataFrame(result)``,
    ``pyarrow.table(result)``, ``pandas.DataFrame.from_arrow(result)``, ``duckdb.sql("FROM result")``.
    Columns of a large release stay arrays until rows are asked for.
    Raises InterfaceError where rows and columns do not fit together.
    """

    __slots__ = ("_beside", "_data", "_losses", "_place", "columns", "types")

    columns: tuple[str, ...]
    types: tuple[str, ...]

    def __init__(self, columns: Sequence[str], types: Sequence[str], rows: Sequence[Values]) -> None:
        names, kinds = tuple(columns), tuple(types)
        table = [tuple(row) for row in rows]
        if len(names) != len(kinds) or any(len(row) != len(names) for row in table):
            raise InterfaceError("a result needs one type per column and one value per column in each row")
        self._fill(names, kinds, _Data(rows=table))

    def _fill(self, names: tuple[str, ...], kinds: tuple[str, ...], data: _Data) -> None:
        object.__setattr__(self, "columns", names)
        object.__setattr__(self, "types", kinds)
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_place", [0])
        object.__setattr__(self, "_beside", None)
        object.__setattr__(self, "_losses", NOTHING)

    def drawn_with(self, errors: Callable[[], Result]) -> Self:
        """Itself, drawn by ``plot`` from now on as what ``errors`` gives: the same table with columns of errors."""
        object.__setattr__(self, "_beside", errors)
        return self

    def with_losses(self, losses: Losses | Callable[[], Losses]) -> Self:
        """Itself, which says from now on what limits cut of the rows that it counts; worked out when it is asked."""
        object.__setattr__(self, "_losses", losses)
        return self

    @property
    def cut(self) -> Mapping[str, Cut] | None:
        """What limits cut of each table whose rows are counted; None where nothing was measured or nothing is cut."""
        return self._read_losses().cuts or None

    @property
    def notes(self) -> tuple[str, ...]:
        """The same in a sentence a table, or that it was not measured. Empty where no limit cuts rows."""
        return self._read_losses().notes

    def _read_losses(self) -> Losses:
        losses: Losses | Callable[[], Losses] = object.__getattribute__(self, "_losses")
        if callable(losses):
            losses = losses()
            object.__setattr__(self, "_losses", losses)
        return losses

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Result cannot be changed; {name!r} stays as it is")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Result cannot be changed; {name!r} stays as it is")

    @classmethod
    def from_columns(cls, columns: Sequence[tuple[str, str, Values]]) -> Result:
        """The table of (name, DuckDB type, values) triples; values of one length, else InterfaceError."""
        values = tuple(held for _, _, held in columns)
        if len({len(held) for held in values}) > 1:
            raise InterfaceError("a result needs one value per column in each row; its columns differ in length")
        made = cls((), (), ())
        made._fill(tuple(name for name, _, _ in columns), tuple(kind for _, kind, _ in columns), _Data(columns=values))
        return made

    @classmethod
    def from_rows(cls, columns: Sequence[str], types: Sequence[str], rows: Sequence[Row]) -> Self:
        """The table of rows that are kept as they are: those of ``RangeRows`` are worked out when they are taken."""
        made = cls((), (), ())
        made._fill(tuple(columns), tuple(types), _Data(rows=rows))
        return made

    @property
    def description(self) -> tuple[tuple[str, str, None, None, None, None, bool], ...]:
        """PEP 249's seven items per column; the type code is DuckDB's name of the type."""
        return tuple(
            (name, kind, None, None, None, None, True) for name, kind in zip(self.columns, self.types, strict=True)
        )

    def __len__(self) -> int:
        data: _Data = object.__getattribute__(self, "_data")
        return len(data.columns[0]) if data.columns else len(data.rows or ())

    def __iter__(self) -> Iterator[Row]:
        # Named as named tuples are, whatever the names: pandas.DataFrame(result) reads them.
        named = type("Row", (tuple,), {"_fields": self.columns, "__slots__": ()})
        return map(named, tuple(self.rows[:]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        return (self.columns, self.types, self.rows) == (other.columns, other.types, other.rows)

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> Sequence[Row]:
        """All rows, made when they are first asked for; too many ranges to list are worked out as they are taken."""
        data: _Data = object.__getattribute__(self, "_data")
        if data.rows is None:
            data.rows = list(zip(*(_values(column) for column in data.columns or ()), strict=True))
        return data.rows

    def column_at(self, at: int) -> Values:
        """Column number ``at``, from 0, as it is stored: arrays, or a sequence of values."""
        self._check_at(at)
        data: _Data = object.__getattribute__(self, "_data")
        return data.columns[at] if data.columns else [row[at] for row in self.rows[:]]

    def triples(self) -> list[tuple[str, str, Values]]:
        """(name, DuckDB type, values) of every column: what ``from_columns`` takes."""
        columns = enumerate(zip(self.columns, self.types, strict=True))
        return [(name, kind, self.column_at(at)) for at, (name, kind) in columns]

    def _check_at(self, at: object) -> None:
        if not is_whole(at, 0, len(self.columns) - 1):
            raise InterfaceError(f"no column number {quoted(at)}; the result has {len(self.columns)}, from 0")

    def fetchall(self) -> list[Row]:
        """Return all rows, as a new list."""
        return list(self.rows[:])

    def fetchone(self) -> Row | None:
        """The next row, None after the last."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    @taking(size=whole(0, 2**63))
    def fetchmany(self, size: int = 1) -> list[Row]:
        """The next ``size`` rows, fewer at the end."""
        place: list[int] = object.__getattribute__(self, "_place")
        rows = list(self.rows[place[0] : place[0] + max(size, 0)])
        place[0] += len(rows)
        return rows

    @taking(name=text())
    def column(self, name: str) -> list[Any]:
        """The values of one column; names match as in DuckDB, without regard to case.

        Raises InterfaceError with the known names for another one.
        """
        lowered = [c.lower() for c in self.columns]
        if name.lower() not in lowered:
            raise InterfaceError(f"no column {name!r}; the result has {', '.join(self.columns)}")
        return list(_values(self.column_at(lowered.index(name.lower()))))

    def df(self) -> pandas.DataFrame:
        """A pandas DataFrame: float64, intN (Int64 with NULLs), datetime64[us], else object.

        Raises InterfaceError where pandas is not installed.
        """
        pd = _optional("pandas", "a data frame needs pandas")
        series = []
        for at, kind in enumerate(self.types):
            column = self.column_at(at)
            if isinstance(column, Numbers):
                data = column.data if column.null is None else np.where(column.null, np.nan, column.data)
                series.append(pd.Series(data, dtype=_pandas_type(kind, False), copy=True))
                continue
            values = _values(column)
            series.append(pd.Series(values, dtype=_pandas_type(kind, None in values)))
        frame = pd.concat(series, axis=1) if series else pd.DataFrame()
        frame.columns = list(self.columns)
        if self.notes:
            frame.attrs["cut"] = list(self.notes)
        return cast("pandas.DataFrame", frame)

    def arrow(self) -> Any:
        """A ``pyarrow.Table`` over DuckDB's own buffers, columns typed as DuckDB exports its types.

        Raises InterfaceError where pyarrow is not installed.
        """
        pa = _optional("pyarrow", "an Arrow table needs pyarrow", "arrow")
        return pa.table(self)

    def pl(self) -> polars.DataFrame:
        """A polars DataFrame over DuckDB's own buffers; INTERVAL columns, which polars has not, are text.

        Raises InterfaceError where polars is not installed, and for two columns of one name.
        """
        twice = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if twice is not None:
            raise InterfaceError(
                f"polars has one column a name, and two are called {twice!r}; name one of them with AS"
            )
        pl = _optional("polars", "a polars frame needs polars")
        kinds = ["VARCHAR" if kind == "INTERVAL" else kind for kind in self.types]
        columns = [self.column_at(at) for at in range(len(kinds))]
        for at, kind in enumerate(self.types):
            if kind == "INTERVAL":
                columns[at] = [None if value is None else str(value) for value in columns[at]]
        held = Result.from_columns(list(zip(self.columns, kinds, columns, strict=True)))
        return cast("polars.DataFrame", pl.DataFrame(held))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as a PyCapsule of an Arrow stream, made by DuckDB; needs no other package from DuckDB 2 on."""
        columns = [(kind, self.column_at(at)) for at, kind in enumerate(self.types)]
        return _arrow_stream(self.columns, columns, requested_schema)

    def plot(self, ax: Axes | None = None, *, value: str | None = None) -> Figure:
        """The table as a picture with error bars, a matplotlib figure (``dpsql.release.pictures.plot_result``).

        What ``con.sql`` computed from releases without errors is drawn with them, worked out now unless the column of
        standard errors stands beside each number.
        ``value``: the column of numbers to draw, else each in a panel of its own. Raises InterfaceError where there is
        no number, and where matplotlib is not installed.
        """
        from dpsql.release.pictures import noted, plot_result

        beside: Callable[[], Result] | None = object.__getattribute__(self, "_beside")
        made = plot_result(self if beside is None or self._shows_errors() else beside(), ax, value=value)
        return made if ax is not None else noted(made, self.notes)

    def _shows_errors(self) -> bool:
        """Whether each DOUBLE has its standard error beside it."""
        names = {column.lower() for column in self.columns}
        numbers = {c.lower() for c, kind in zip(self.columns, self.types, strict=True) if kind == "DOUBLE"}
        errors = {f"{name}{end}" for name in numbers for end in ("_stderr", "_low", "_high")}
        asked = numbers - errors
        return bool(asked) and all(f"{name}_stderr" in names for name in asked)

    def table_text(self) -> str:
        """The table alone, without its ``notes``."""
        return grid_of(self.columns, self.types, self.rows).text()

    def __str__(self) -> str:
        return "\n".join([self.table_text(), *self.notes])

    def __repr__(self) -> str:
        return f"Result({len(self)} rows: {', '.join(self.columns)})\n{self}"

    def _repr_html_(self) -> str:
        """The same table for notebooks, at most ``SHOWN_ROWS`` rows, every text escaped."""
        shown = grid_of(self.columns, self.types, self.rows).html()
        return shown + "".join(paragraph(note, "dpsql-note") for note in self.notes)


class _Data:
    """Rows, or columns of which rows are made later."""

    __slots__ = ("columns", "rows")

    def __init__(self, rows: Sequence[Row] | None = None, columns: tuple[Values, ...] | None = None) -> None:
        self.columns = columns
        self.rows = rows if rows is not None or columns else []


def _values(column: Values) -> Values:
    """The Python values of a column."""
    return column.values() if isinstance(column, Numbers | Coded) else column


def _optional(module: str, need: str, extra: str = "") -> ModuleType:
    """The module of an optional extra, by default of the module's name, or InterfaceError that says how to get it."""
    try:
        return import_module(module)
    except ImportError:
        pass  # raised below, outside, so that the message is the whole story
    raise InterfaceError(f"{need}; install it with: {install_command(extra or module)}")


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


_ISOLATED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
}
# What DuckDB calls the type of a column that is nothing but NULL.
_NULLS = ("NULL", '"NULL"')


def _arrow_stream(
    names: Sequence[str], columns: Sequence[tuple[str, Values]], requested_schema: object = None
) -> object:
    """A PyCapsule named "arrow_array_stream" over the (DuckDB type, values) of ``columns``, in DuckDB's buffers.

    The capsule keeps the DuckDB in memory that made it. Raises InterfaceError where a type has no Arrow form, and for
    DuckDB 1.x, which needs pyarrow for this, where that is missing.
    """
    if not columns:
        raise InterfaceError("a result without columns has no Arrow form")
    if any(len(values) >= PACKED and not isinstance(values, Numbers | Coded) for _, values in columns):
        columns = [(kind, _packed(kind, values)) for kind, values in columns]
    connection = duckdb.connect(":memory:", config=_ISOLATED)
    connection.execute("SET TimeZone = 'UTC'")
    failure = ""
    try:
        kinds = ["INTEGER" if kind in _NULLS else kind for kind, _ in columns]
        held = [(f"c{at}", kinds[at], values) for at, (_, values) in enumerate(columns)]
        write_table(connection, "held", held)
        shown = ", ".join(f"c{at} AS {identifier(name)}" for at, name in enumerate(names))
        return connection.sql(f"SELECT {shown} FROM held").__arrow_c_stream__(requested_schema)  # noqa: S608
    except ImportError:
        failure = f"this version of DuckDB needs pyarrow for it; install it with: {install_command('arrow')}"
    except duckdb.Error as error:
        failure = str(error).strip().splitlines()[0].rstrip(". ") + "; cast the column to VARCHAR"
    raise InterfaceError(f"the result has no Arrow form: {failure}")


def _packed(kind: str, values: Values) -> Numbers | Coded:
    """Long columns go to DuckDB as arrays."""
    import numpy as np

    if isinstance(values, Numbers | Coded):
        return values
    if kind in ("DOUBLE", "FLOAT"):
        null = np.fromiter((value is None for value in values), dtype=np.bool_, count=len(values))
        data = np.array([0.0 if value is None else value for value in values], dtype=np.float64)
        return Numbers(data, null if null.any() else None)
    return coded(values)
