"""How many rows the domains of a policy miss: a batch like any other, planned, charged and measured as one.

Of each private table one SELECT: for each column with a domain the rows whose value is not in it, or which have none
where the policy says that none is without. A row moves each count by at most 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from dpsql.common.quoting import identifier, string
from dpsql.errors import PolicyError
from dpsql.extensions.discovery.discovered_bounds import literal
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.values import Key
from dpsql.release.release import Release
from dpsql.sql.outer.relation import beside_numbers

MOST_LISTED = 2000
"""Values of a domain that is checked: all of them stand in the text of the batch."""


@dataclass(frozen=True)
class Missed:
    """How many rows a declared domain misses, with standard error and interval; all None under a ``minimum``."""

    table: str
    column: str
    rows: float | None
    stderr: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Coverage:
    """What a release says of each domain; ``id``, ``cost`` and ``guarantee`` are those of the release."""

    id: int
    cost: float
    guarantee: str
    missed: tuple[Missed, ...]

    @classmethod
    def of(cls, policy: Policy, release: Release) -> Coverage:
        """What a release of ``coverage_sql`` says, domain by domain."""
        found = []
        for held, columns in checkable(policy):
            (row,) = release[_view(held)].fetchall()
            width = 1 + len(beside_numbers(held.minimum))
            for at, column in enumerate(columns):
                shown = row[width * at : width * at + 4]
                n, stderr, low, high = (None if value is None else float(str(value)) for value in shown)
                found.append(Missed(held.name, column.name, n, stderr, low, high))
        return cls(release.id, release.cost, release.guarantee, tuple(found))


def checkable(policy: Policy) -> list[tuple[TablePolicy, list[ColumnPolicy]]]:
    """The private tables with the columns whose domains can be checked; PolicyError where there is none."""
    found = []
    for held in policy.tables.values():
        columns = [column for column in held.columns.values() if _listed(column)]
        if columns and not held.public and held.counts is None:
            found.append((held, columns))
    if not found:
        raise PolicyError("no private table has a column with a domain, so none could miss rows; find some first")
    return found


def opened(policy: Policy) -> Policy:
    """The policy in which no domain is closed: without OTHER, rows of other values would be taken for impossible."""
    tables = {}
    for name, held in policy.tables.items():
        columns = {c.name: c if c.values is None else replace(c, other=True) for c in held.columns.values()}
        tables[name] = held if held.public else replace(held, columns=columns)
    return replace(policy, tables=tables)


def coverage_sql(policy: Policy) -> str:
    """The batch that counts the rows outside of each domain, one view a table: visits_outside."""
    return ";\n".join(_of_table(held, columns) for held, columns in checkable(policy))


def _listed(column: ColumnPolicy) -> bool:
    if column.values is None:
        return column.lower is not None
    return len(column.values) <= MOST_LISTED and not any("\0" in v for v in column.values if isinstance(v, str))


def _view(held: TablePolicy) -> str:
    return f"{held.name}_outside".replace(".", "_")


def _of_table(held: TablePolicy, columns: list[ColumnPolicy]) -> str:
    where = ".".join(identifier(part) for part in held.name.split("."))
    counts = ", ".join(f"COUNT(*) FILTER (WHERE {_outside(c)}) AS {identifier(c.name)}" for c in columns)
    return f"CREATE OR REPLACE VIEW {identifier(_view(held))} AS SELECT {counts} FROM {where}"  # noqa: S608


def _outside(column: ColumnPolicy) -> str:
    return " OR ".join(_conditions(column))


def _conditions(column: ColumnPolicy) -> Iterator[str]:
    name = identifier(column.name)
    if column.values is not None:
        yield f"{name} NOT IN ({', '.join(_key(value) for value in column.values)})"
    elif column.lower is not None and column.upper is not None:
        yield f"{name} < {literal(column.lower)} OR {name} > {literal(column.upper)}"
    if not column.nulls:
        yield f"{name} IS NULL"


def _key(value: Key) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return string(value)
    return str(value) if isinstance(value, int | Decimal) else literal(value)
