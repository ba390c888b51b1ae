"""A local release as a value, its table, what the ledger keeps beside the table to read it again, and its scope.

Questions may name released columns, public columns of the rows, and public tables (``released_scope``).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Array, Json
from dpsql.common.quoting import dotted
from dpsql.errors import IntegrityError, SQLError
from dpsql.extensions.local.device import OTHER, Categories, Domain
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.values import Key, fold
from dpsql.privacy.amounts import show
from dpsql.privacy.response import Codes, Response
from dpsql.release import ReleaseTable
from dpsql.release.columns import Coded
from dpsql.release.record import Value
from dpsql.sql import table_of
from dpsql.sql.outer.relation import companion_names
from dpsql.workloads.expr.batch import Table

FLOATS = ("DOUBLE", "FLOAT")


@dataclass(frozen=True)
class Released:
    """Which columns of ``table`` were randomised together, over which domain and at which epsilon a row.

    ``types``: the DuckDB type of each released column; ``ids``: (name, type) of the public columns beside them.
    ``rows`` is n. ``rows_per_unit``: what one unit may have of them, so that it paid that many times ``epsilon``.
    """

    table: str
    name: str
    domain: Domain
    types: tuple[str, ...]
    ids: tuple[tuple[str, str], ...]
    epsilon: Fraction
    rows_per_unit: int
    rows: int = 0
    release: int = 0
    has_units: bool = False

    @cached_property
    def response(self) -> Response:
        """The law by which one row was randomised."""
        return Response.of(self.domain.size, self.epsilon)

    @property
    def guarantee(self) -> str:
        """The release's guarantee, for people."""
        rows = self.rows_per_unit
        each = "" if rows == 1 else f" ({rows} rows at {show(self.epsilon)} each)"
        who = "unit" if self.has_units else "row"
        return f"epsilon {show(self.response.unit_epsilon(rows))} (local, replace one {who}{each})"

    def as_dict(self) -> dict[str, object]:
        """JSON that `of` reads back."""
        columns = [
            {"name": c.name, "type": t, "values": [_written(v) for v in c.values], "other": c.other, "nulls": c.nulls}
            for c, t in zip(self.domain.columns, self.types, strict=True)
        ]
        return {
            **{"table": self.table, "name": self.name, "columns": columns, "ids": [list(i) for i in self.ids]},
            **{"epsilon": str(self.epsilon), "rows_per_unit": self.rows_per_unit, "rows": self.rows},
            "has_units": self.has_units,
        }

    @classmethod
    def of(cls, body: Json, release: int) -> Released:
        """The release of `as_dict`. Raises IntegrityError where it is none."""
        found = None
        try:
            columns = tuple(
                Categories(c["name"], tuple(map(_read, c["values"])), bool(c["other"]), bool(c["nulls"]))
                for c in body["columns"]
            )
            found = cls(
                str(body["table"]),
                str(body["name"]),
                Domain(columns),
                tuple(str(c["type"]) for c in body["columns"]),
                tuple((str(name), str(kind)) for name, kind in body["ids"]),
                Fraction(body["epsilon"]),
                int(body["rows_per_unit"]),
                int(body["rows"]),
                release,
                bool(body.get("has_units", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        if found is None:
            raise IntegrityError(f"release {release} in the ledger is damaged; restore the ledger from a good copy")
        return found


def table_of_rows(released: Released, codes: Codes, ids: Sequence[Array]) -> ReleaseTable:
    """The table that users see: public columns, then released ones, OTHER as NULL with <column>_other = TRUE."""
    columns: list[tuple[str, str, Sequence[Value]]] = [
        (name, shown_type(kind), _plain(values)) for (name, kind), values in zip(released.ids, ids, strict=True)
    ]
    flags = _flags(released)
    repeated = None
    if not ids:  # rows of one combination stand together
        codes, repeated = counted(codes, released.domain.size)
    for column, kind, places in zip(
        released.domain.columns, released.types, released.domain.places(codes), strict=True
    ):
        held = places.astype(np.int32)
        held = held if repeated is None else np.repeat(held, repeated)
        shown = tuple(None if value is OTHER else value for value in column.all)
        columns.append((column.name, shown_type(kind), Coded(shown, held)))
        if column.other:
            columns.append((flags[column.name], "BOOLEAN", Coded(tuple(v is OTHER for v in column.all), held)))
    return ReleaseTable(released.name, True, tuple(columns))


def counted(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """The distinct combinations, ascending, and how many rows each has. O(n + size), or a sort where that is less."""
    if size > 4 * codes.size + 1_000_000:
        distinct, counts = np.unique(codes, return_counts=True)
        return distinct, counts
    every = np.bincount(codes, minlength=size)
    distinct = np.flatnonzero(every)
    return distinct, every[distinct]


def places_of(released: Released, table: ReleaseTable) -> tuple[NDArray[np.integer], ...]:
    """The category of each released column in every row of its table: the inverse of `table_of_rows`."""
    held = {name: values for name, _, values in table.columns}
    flags = _flags(released)
    out: list[NDArray[np.integer]] = []
    for column, kind in zip(released.domain.columns, released.types, strict=True):
        values = held[column.name]
        if isinstance(values, Coded):
            out.append(values.codes)
            continue
        other = held[flags[column.name]] if column.other else [False] * len(values)
        number: dict[tuple[object, object], int] = {
            (None if v is OTHER or v is None else float(v) if kind in FLOATS else v, v is OTHER): at
            for at, v in enumerate(column.all)
        }
        out.append(np.array([number[pair] for pair in zip(values, other, strict=True)], dtype=np.int64))
    return tuple(out)


def _flags(released: Released) -> dict[str, str]:
    """The name of the column that says OTHER, for each released column that has it."""
    names = [*(name for name, _ in released.ids), *released.domain.names]
    first = len(released.ids)
    wanted = [at for at, column in enumerate(released.domain.columns) if column.other]
    made = companion_names(names, [(first + at, "_other") for at in wanted])
    return {released.domain.columns[at].name: name for at, name in zip(wanted, made, strict=True)}


def shown_type(kind: str) -> str:
    """The type in which values of a column are shown: the members of an ENUM as text."""
    return "VARCHAR" if kind.upper().startswith("ENUM") else kind


def _plain(values: Array) -> list[Value]:
    """Public values as Python holds them, NULL as None; dates and times without numpy's own types."""
    held = np.ma.getdata(values)
    listed: list[Value] = (held.astype("datetime64[us]") if held.dtype.kind == "M" else held).tolist()
    null = np.ma.getmaskarray(values)
    return [None if gone else value for value, gone in zip(listed, null.tolist(), strict=True)]


def _written(value: object) -> object:
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, dt.datetime):
        return {"datetime": value.isoformat()}
    return {"date": value.isoformat()} if isinstance(value, dt.date) else value


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    readers = {"decimal": Decimal, "datetime": dt.datetime.fromisoformat, "date": dt.date.fromisoformat}
    return readers[kind](text)  # type: ignore[operator]


def released_scope(released: Released, policy: Policy, schemas: Schemas) -> tuple[Policy, dict[str, Table]]:
    """The policy and tables under which questions are read; every row is a unit of its own, as rows were randomised.

    The released table keeps its name, and answers to the name of the release, too. ``schemas``: the column types of
    the policy's tables. What was released counts, as it was declared then: not what the policy says of it by now.
    """
    held = policy.table(released.table)
    columns = {column.name: held.column(column.name) for name, _ in released.ids for column in [held.column(name)]}
    for column, kind in zip(released.domain.columns, released.types, strict=True):
        columns[column.name] = _summable(column, kind, held)
    table = TablePolicy(held.name, columns=columns, where=held.where)
    types = {name: shown_type(kind) for name, kind in released.ids}
    types |= {c.name: shown_type(kind) for c, kind in zip(released.domain.columns, released.types, strict=True)}
    public = {name: declared for name, declared in policy.tables.items() if declared.public}
    views = {**policy.views}
    if fold(released.name) not in {fold(name) for name in (*policy.tables, *views)}:
        views[released.name] = f"SELECT * FROM {dotted(held.name)}"  # noqa: S608
    scope = Policy(policy.dataset, policy.budget, {held.name: table, **public}, policy.path, views)
    tables = {name: table_of(declared, schemas[name]) for name, declared in public.items()}
    return scope, {held.name: table_of(table, types), **tables}


def explained(error: SQLError, sql: str, released: Released, policy: Policy) -> SQLError:
    """The refusal of a column, or table, that was not released, in words of the release; others as they are."""
    if error.code not in ("unknown-column", "unknown-table"):
        return error
    said = str(error.args[0]).split(" (line ")[0]
    held = policy.table(released.table)
    name = _named(error, sql)
    listed = ", ".join([*released.domain.names, *(column for column, _ in released.ids)])
    if error.code == "unknown-table":
        what = f"{said}; a local release answers over {released.table} and public tables"
    elif fold(name) in {fold(column) for column in held.columns}:
        what = (
            f"column {name} of {held.name} was not released with {released.name}, so nothing can be said of it; "
            f"released are {listed}"
        )
    else:
        what = f"{said}; released are {listed}"
    return SQLError(what, error.line, error.column, error.end, code=error.code)


def _named(error: SQLError, sql: str) -> str:
    """The name at the place of a refusal, without its table and quotes; empty where no place is known."""
    lines = sql.split("\n")
    if error.line is None or error.column is None or not 1 <= error.line <= len(lines):
        return ""
    found = re.match(
        r"""(?:"(?:[^"]|"")*"|\w+)(?:\s*\.\s*(?:"(?:[^"]|"")*"|\w+))*""", lines[error.line - 1][error.column - 1 :]
    )
    return found[0].rpartition(".")[2].strip().strip('"') if found else ""


def _summable(column: Categories, kind: str, spec: TablePolicy) -> ColumnPolicy:
    """A released column as it was declared; numbers with the bounds and grid of their values, which SUM needs."""
    where = spec.key("columns", column.name)
    given: dict[str, Any] = {"other": column.other, "nulls": column.nulls, "where": where}
    numbers = [_number(value) for value in column.values]
    exact = [number for number in numbers if number is not None]
    if len(exact) < len(numbers):
        return ColumnPolicy(column.name, values=column.values, **given)
    given |= {"lower": min(exact), "upper": max(exact), "step": _grid(exact)}
    whole = given["step"] is not None and len(exact) == (given["upper"] - given["lower"]) / given["step"] + 1
    if whole and column_type(kind).kind in ("integer", "decimal"):
        return ColumnPolicy(column.name, **given)  # the same groups, without a list of them
    return ColumnPolicy(column.name, values=column.values, **given)


def _number(value: Key) -> Fraction | None:
    if isinstance(value, bool | str) or hasattr(value, "year"):
        return None
    return Fraction(str(value))


def _grid(values: list[Fraction]) -> Fraction | None:
    """The largest step that all values lie on."""
    low = min(values)
    away = [value - low for value in values if value != low]
    if not away:
        return None
    denominator = lcm(*(value.denominator for value in away))
    return Fraction(gcd(*(int(value * denominator) for value in away)), denominator)
