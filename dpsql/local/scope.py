"""What questions to a local release may name: released columns, public columns of its rows, public tables."""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from dpsql.errors import SQLError
from dpsql.local.device import Categories
from dpsql.local.released import Released, shown_type
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.values import Key, fold
from dpsql.quoting import dotted
from dpsql.sql import table_of
from dpsql.workload.expr.batch import Table


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


def _summable(column: Categories, kind: str, held: TablePolicy) -> ColumnPolicy:
    """A released column as it was declared; numbers with the bounds and grid of their values, which SUM needs."""
    where = held.key("columns", column.name)
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
