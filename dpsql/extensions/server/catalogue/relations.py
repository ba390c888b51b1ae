"""What there is to ask, as a catalogue lists it: private tables with their declared columns, and released views."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.extensions.server.protocol.pg_types import PgType, type_of
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.values import fold, shown

MAIN, RELEASED = "main", "dp"
_FIRST_OID = 16384
_OIDS = 2**31 - 1 - _FIRST_OID
_LISTED = 12
_TEXT = 200


@dataclass(frozen=True)
class Column:
    """A column: its name, DuckDB type, what is public of its values, and whether NULL is ruled out."""

    name: str
    kind: str
    comment: str = ""
    required: bool = False

    @property
    def type(self) -> PgType:
        """PostgreSQL's type of it."""
        return type_of(self.kind)


@dataclass(frozen=True)
class Relation:
    """A table ("r") or view ("v"), with its columns in order; ``key`` and ``references`` as declared."""

    schema: str
    name: str
    kind: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    references: tuple[tuple[str, str, str], ...] = ()

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each column, from 1, by its folded name."""
        return {fold(column.name): number for number, column in enumerate(self.columns, 1)}


def numbered(relations: Iterable[Relation]) -> dict[int, Relation]:
    """The relations by object id, which stays the same whatever else is released."""
    found: dict[int, Relation] = {}
    for relation in sorted(relations, key=lambda held: (held.schema, held.name)):
        oid = _FIRST_OID + zlib.crc32(f"{relation.schema}.{relation.name}".encode()) % _OIDS
        while oid in found:
            oid += 1
        found[oid] = relation
    return found


def declared(policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> list[Relation]:
    """The tables of a policy with the columns that may be asked."""
    found = []
    for name, table in policy.tables.items():
        schema, _, last = name.rpartition(".")
        kinds = {fold(column): kind for column, kind in schemas[name].items()}
        names = list(table.columns) if not table.public else list(schemas[name])
        columns = [_column(column, kinds[fold(column)], table) for column in names if fold(column) in kinds]
        references = tuple((column, *target) for column, target in table.references.items())
        found.append(
            Relation(schema or MAIN, last, "r", _of_table(table), tuple(columns), tuple(table.unique), references)
        )
    return found


def views(named: Mapping[str, Sequence[tuple[str, str]]], schema: str, comment: str) -> list[Relation]:
    """Views by name, with (name, DuckDB type) of their columns."""
    return [
        Relation(schema, name, "v", comment, tuple(Column(column, kind) for column, kind in columns))
        for name, columns in named.items()
    ]


def _column(name: str, kind: str, table: TablePolicy) -> Column:
    held = next((column for key, column in table.columns.items() if fold(key) == fold(name)), None)
    # The members of an ENUM may have been made from the data.
    plain = "VARCHAR" if kind.upper().startswith("ENUM") else kind
    return Column(name, plain) if held is None else Column(name, plain, _of_column(held, table), not held.nulls)


def _of_table(table: TablePolicy) -> str:
    if table.public:
        return "public"
    if table.counts is not None:
        return f"private; a row stands for as many units as {table.counts} says"
    if table.unit == "row":
        return "private; protects each row"
    most = table.max_rows_per_unit
    return f"private; protects each {table.unit}, of which at most {most} row{'s' * (most != 1)} count"


def _of_column(column: ColumnPolicy, table: TablePolicy) -> str:
    said = []
    if column.values is not None:
        listed = ", ".join(shown(value) for value in column.values[:_LISTED])
        more = len(column.values) - _LISTED
        said.append(f"one of {listed}" + (f" and {more:,} more" if more > 0 else ""))
    if column.lower is not None or column.upper is not None:
        low, high = (None if bound is None else shown(bound) for bound in (column.lower, column.upper))
        said.append(f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}")
    if column.step is not None:
        said.append(f"in steps of {shown(column.step)}")
    if not said:
        said.append("no domain declared; for conditions only")
    if column.other:
        said.append("other values are one group")
    if fold(column.name) == fold(table.unit):
        said.append("identifies who is protected")
    text = "; ".join(said)
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
