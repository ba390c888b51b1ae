"""What a schema declares about its columns: types, bounds of CHECK constraints, members of ENUM types.

For the first draft of a policy. Everything comes from the catalog of a database, the footer of a
Parquet file or the header line of a CSV file: no row is read, no statistic, minimum or maximum.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import duckdb
import sqlglot
from sqlglot import exp

from dpsql.engines import csv_files
from dpsql.engines.base import TableSource
from dpsql.engines.duckdb import FileEngine, instance
from dpsql.engines.files import WILDCARDS, located
from dpsql.engines.schemas import ALIAS

Bound: TypeAlias = "int | Decimal | dt.date | dt.datetime"

_INTEGER = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
_NUMBER = re.compile(r"FLOAT|DOUBLE|DECIMAL\(.*\)")
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
LONGEST = 10_000  # characters of a constraint that is worth parsing


@dataclass(frozen=True)
class Declared:
    """One table: DuckDB types, inclusive (lower, upper) of CHECK constraints and ENUM members, by column.

    ``required`` columns are NOT NULL, ``key`` are those of the primary key, and ``references`` has the (table, column)
    that each foreign key of one column refers to. ``collations`` has the COLLATE of each column with a rule by which
    texts of different bytes may be equal.
    """

    columns: Mapping[str, str]
    bounds: Mapping[str, tuple[Bound, Bound]] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()
    references: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    collations: Mapping[str, str] = field(default_factory=dict)


def read_declared(database: Path | None, sources: Mapping[str, Path]) -> dict[str, Declared]:
    """What the base tables of ``database`` and the files in ``sources`` (name to path) declare.

    Tables of schema main go by their name, others as "schema.table". Columns of a CSV file are
    VARCHAR, since their types could only be sniffed from rows. A column has bounds where CHECK
    constraints, joined by AND, compare it with constants on both sides. Views are left out.
    Raises OperationalError where a file cannot be read.
    """
    tables = {} if database is None else _tables(database)
    for name, path in sources.items():
        source = located(TableSource(name, path, pattern=bool(WILDCARDS & set(str(path)))))
        if path.name.lower().endswith((".csv", ".csv.gz")):
            tables[name] = Declared(dict.fromkeys(csv_files.header(source), "VARCHAR"))
        else:
            tables[name] = Declared(FileEngine(None).schemas([source])[name])
    return tables


def _tables(database: Path) -> dict[str, Declared]:
    declared = {}
    with instance(database) as connection:
        tables = connection.execute(
            "SELECT schema_name, table_name, sql FROM system.main.duckdb_tables() "
            "WHERE database_name = ? ORDER BY schema_name != 'main', 1, 2",
            [ALIAS],
        ).fetchall()
        for schema, table, created in tables:
            name = table if schema == "main" else f"{schema}.{table}"
            columns = _columns(connection, schema, table)
            members = {c: _members(kind) for c, kind in columns.items() if kind.startswith("ENUM(")}
            held = _constraints(connection, schema, table)
            declared[name] = Declared(
                columns,
                _bounds([text for kind, _, text in held if kind == "CHECK"], columns),
                members,
                frozenset(column for kind, named, _ in held if kind in ("NOT NULL", "PRIMARY KEY") for column in named),
                next((named for kind, named, _ in held if kind == "PRIMARY KEY"), ()),
                dict(_foreign(schema, held)),
                _collations(created),
            )
    return declared


def _columns(connection: duckdb.DuckDBPyConnection, schema: str, table: str) -> dict[str, str]:
    rows = connection.execute(
        "SELECT column_name, data_type FROM system.main.duckdb_columns() "
        "WHERE database_name = ? AND schema_name = ? AND table_name = ? ORDER BY column_index",
        [ALIAS, schema, table],
    ).fetchall()
    return {str(name): str(kind) for name, kind in rows}


_Constraint: TypeAlias = tuple[str, tuple[str, ...], str]
"""What kind it is, its columns, and its text (of a CHECK, the condition)."""

# A name as DuckDB writes it: bare, or in quotes that are doubled inside.
_NAME = r'((?:"(?:[^"]|"")*"|[^"(), .])+)'
_FOREIGN = re.compile(rf"FOREIGN KEY \({_NAME}\) REFERENCES (?:{_NAME}\.)?{_NAME} ?\({_NAME}\)")


def _constraints(connection: duckdb.DuckDBPyConnection, schema: str, table: str) -> list[_Constraint]:
    rows = connection.execute(
        "SELECT constraint_type, constraint_column_names, coalesce(expression, constraint_text) "
        "FROM system.main.duckdb_constraints() WHERE database_name = ? "
        "AND schema_name = ? AND table_name = ? ORDER BY constraint_index",
        [ALIAS, schema, table],
    ).fetchall()
    return [(str(kind), tuple(columns), str(text)) for kind, columns, text in rows]


def _foreign(schema: str, constraints: Sequence[_Constraint]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The foreign keys of one column: it, and the table and column that it refers to."""
    for kind, _, text in constraints:
        match = _FOREIGN.match(text) if kind == "FOREIGN KEY" else None
        if match:
            column, place, table, key = (
                part[1:-1].replace('""', '"') if part and part.startswith('"') else part for part in match.groups()
            )
            yield column, (table if (place or schema) == "main" else f"{place or schema}.{table}", key)


_BY_BYTES = ("binary", "c", "posix")  # collations that take texts for equal only where their bytes are


def _collations(created: str) -> dict[str, str]:
    """Collation by column of a CREATE TABLE as DuckDB prints it; nothing else in the catalog tells."""
    if "COLLATE" not in created:
        return {}
    try:
        tree = sqlglot.parse_one(created, dialect="duckdb")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return {}
    rules = {
        column.name: rule.this.sql("duckdb", identify=False).strip('"').lower()
        for column in tree.find_all(exp.ColumnDef)
        for rule in column.find_all(exp.CollateColumnConstraint)
    }
    return {name: rule for name, rule in rules.items() if rule not in _BY_BYTES}


def _members(kind: str) -> tuple[str, ...]:
    return tuple(member.replace("''", "'") for member in _MEMBER.findall(kind))


def _bounds(checks: Sequence[str], columns: Mapping[str, str]) -> dict[str, tuple[Bound, Bound]]:
    """Columns that the constraints bound on both sides; the tightest of several bounds counts."""
    types = {name.lower(): (name, kind) for name, kind in columns.items()}
    lower: dict[str, Bound] = {}
    upper: dict[str, Bound] = {}
    for check in checks:
        for column, operator, literal in _comparisons(check):
            name, kind = types.get(column.lower(), ("", ""))
            value = _value(literal, kind)
            if value is None:
                continue
            # Only whole numbers have a nearest one inside a strict bound; elsewhere the bound itself is
            # declared, one point more than the constraint has.
            if isinstance(value, int) and operator in ("<", ">"):
                value += 1 if operator == ">" else -1
            if operator in (">", ">="):
                lower[name] = max(lower.get(name, value), value)
            else:
                upper[name] = min(upper.get(name, value), value)
    # Both bounds of a column have its one type, which the checker cannot know.
    return {
        name: (lower[name], upper[name])
        for name in columns
        if name in lower and name in upper and lower[name] < upper[name]  # type: ignore[operator]
    }


_OPERATORS: dict[type[exp.Expr], tuple[str, str]] = {
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
}


def _comparisons(check: str) -> Iterator[tuple[str, str, exp.Expr]]:
    """(column, operator, constant) of every comparison that holds whenever ``check`` does."""
    if len(check) > LONGEST:
        return
    try:
        tree = sqlglot.parse_one(check, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return
    waiting: list[exp.Expr] = [tree]
    while waiting:
        node = waiting.pop(0).unnest()
        if isinstance(node, exp.And):
            waiting += [node.left, node.right]
        elif isinstance(node, exp.Between) and isinstance(node.this, exp.Column):
            yield node.this.name, ">=", node.args["low"]
            yield node.this.name, "<=", node.args["high"]
        elif type(node) in _OPERATORS:
            plain, turned = _OPERATORS[type(node)]
            left, right = node.this.unnest(), node.expression.unnest()
            if isinstance(left, exp.Column):
                yield left.name, plain, right
            elif isinstance(right, exp.Column):
                yield right.name, turned, left


def _value(literal: exp.Expr, kind: str) -> Bound | None:
    """The constant as a value of the column's type, None for anything else."""
    if isinstance(literal, exp.Cast):
        literal = literal.this
    sign = 1
    if isinstance(literal, exp.Neg):
        sign, literal = -1, literal.this
    if not isinstance(literal, exp.Literal):
        return None
    text = str(literal.this)
    try:
        if literal.is_string:
            if kind == "DATE":
                return dt.date.fromisoformat(text)
            moment = dt.datetime.fromisoformat(text) if kind == "TIMESTAMP" else None
            return moment if moment is not None and moment.tzinfo is None else None
        number = sign * Decimal(text)
    except (ValueError, ArithmeticError):
        return None
    if not number.is_finite() or abs(number.adjusted()) > 30:
        return None
    if _INTEGER.fullmatch(kind):
        return int(number) if number == number.to_integral_value() else None
    return number if _NUMBER.fullmatch(kind) else None
