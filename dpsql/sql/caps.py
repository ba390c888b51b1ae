"""What a policy's ``at_most`` says of a table: its expressions as groups of rows, and as sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsql.errors import PolicyError, SQLError
from dpsql.policy import TablePolicy
from dpsql.policy.at_most import AtMost
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.linear import in_parts
from dpsql.sql.aggregate.sums import exactly, sum_of
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.relations import Relation
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope, uncapped_table
from dpsql.workloads.expr.batch import Column, Key, OneUnit, Table
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.regions import KeyDomain

T = TypeVar("T")


def capped_table(policy: TablePolicy, schema: Mapping[str, str]) -> Table:
    """``uncapped_table`` with the bounds of ``at_most``. Raises as ``bounded_table``."""
    key = policy.key("at_most")
    return bounded_table(policy, schema, {f"{key}[{i}]": bound for i, bound in enumerate(policy.at_most)})


def bounded_table(policy: TablePolicy, schema: Mapping[str, str], bounds: Mapping[str, AtMost]) -> Table:
    """``uncapped_table`` with bounds, each by its place.

    Raises PolicyError, too, where ``per`` is no expression over declared columns of the table with finitely many
    public values, and where ``sum`` is none that SUM adds up.
    """
    table = uncapped_table(policy, schema)
    if not bounds:
        return table
    computed = Computed(table)
    rows = RowScope.alone(Relation(table.name, table, exp.to_table(table.name)))
    scope = Scope(rows.find, computed, truth)
    caps, sums = list[Cap](), list[OneUnit]()
    for where, bound in bounds.items():
        cap = None if bound.per is None else _cap(f"{where}.per", bound, scope, computed)
        if bound.sum is not None:
            sums.append(_sum(where, bound, cap, scope))
        elif cap is not None:
            caps.append(cap)
    return replace(table, caps=tuple(caps), sums=tuple(sums))


def _cap(where: str, bound: AtMost, scope: Scope, computed: Computed) -> Cap:
    """The groups of ``bound.per`` with what they bound."""
    per = bound.per or ""
    parts = _parts(_read(where, per, lambda node: key_of(node, scope)))
    if parts is None:
        raise PolicyError(
            f"{where} is {per}; name a column with declared values or bounds, or an expression of one column "
            "with a small range, such as month(day)"
        )
    column = computed.named(parts[0].column)
    return Cap(column.name, column.line, column.value, parts, bound.rows, bound.groups, str(bound))


def _sum(where: str, bound: AtMost, cap: Cap | None, scope: Scope) -> OneUnit:
    """What a bound on a sum says. PolicyError where the expression has no sum, or its values may be below 0."""
    asked, upper = bound.sum or "", bound.upper or Fraction(0)
    column = _read(f"{where}.sum", asked, lambda node: _summed(node, scope))
    if bound.lower is None and column.ends[0] < 0:
        raise PolicyError(f"{where}.lower is missing; {asked} may be below 0, so say how little one unit adds at least")
    return OneUnit(column, bound.lower or Fraction(0), upper, cap, f"at most {bound}")


def _summed(node: exp.Expr, scope: Scope) -> Column:
    """The column that SUM adds up. SQLError where it adds up others, for which the bound says nothing."""
    if in_parts(node):
        raise SQLError(
            "SUM of it is worked out of the sums of its parts, which no bound on the whole holds; bound the sum of "
            "what stands in the branches, or of what the constant is added to"
        )
    return exactly(sum_of(node, scope), node, scope)


def _read(where: str, written: str, read: Callable[[exp.Expr], T]) -> T:
    """What an expression of the policy is. PolicyError with its place where SQL refuses it."""
    try:
        return read(_expression(written))
    except SQLError as error:
        said = str(error.args[0]).removesuffix(f" (line {error.line}, column {error.column})")
        raise PolicyError(f"{where} is {written}: {said}") from None


def _parts(key: Key) -> tuple[LineAtom, ...] | None:
    """Where each declared group is, over one column; None where the groups are of another kind."""
    if isinstance(key, KeyDomain):
        return tuple(LineAtom(key.column, (point,)) for point in key.points if point is not None) or None
    return (tuple(one for one in key.atoms if not one.on_null) or None) if key.listed else None


def _expression(text: str) -> exp.Expr:
    """One expression of DuckDB. SQLError for anything else."""
    try:
        found = sqlglot.parse(f"SELECT {text}", read="duckdb")
    except (SqlglotError, RecursionError):
        found = []
    select = found[0] if len(found) == 1 else None
    if isinstance(select, exp.Select) and len(select.expressions) == 1:
        item = select.expressions[0]
        plain = not any(value for name, value in select.args.items() if name != "expressions")
        if plain and isinstance(item, exp.Expr) and not isinstance(item, exp.Alias):
            return item
    raise SQLError("it is no expression; write one, such as month(day)")
