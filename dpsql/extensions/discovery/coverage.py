"""How many rows the domains of a policy miss, and how many units or rows break its keys and references: a batch like
any other, planned, charged and measured as one.

Of each private table one SELECT: for each column with a domain the rows whose value is not in it, or which have none
where the policy says that none is without. A row moves each count by at most 1.

Of each key: in how many units two rows share it, of all rows of the unit; a unit moves it by at most 1. Where several
units can share it: how many rows come after the first of their key, COUNT less COUNT(DISTINCT) of the rows that count;
a row moves each by at most 1. Of each reference: how many units, or rows that are units, have one without NULL that
leads nowhere; each moves it by at most 1. NULL repeats nothing; rows without a unit are one unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from dpsql.common.quoting import identifier, string
from dpsql.errors import PolicyError, SQLError, one_line
from dpsql.extensions.discovery.discovered_bounds import literal
from dpsql.planning.prepare import understood_of
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.types import column_type
from dpsql.policy.values import Key, fold
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
class Broken:
    """How many units of a column, or rows where ``unit`` is "row", repeat a key, or refer to no row of ``target``; with
    standard error and interval, all None under a ``minimum``.
    """

    table: str
    columns: tuple[str, ...]
    target: str | None
    unit: str
    number: float | None
    stderr: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Coverage:
    """What a release says of domains, keys and references; ``id``, ``cost`` and ``guarantee`` are the release's."""

    id: int
    cost: float
    guarantee: str
    missed: tuple[Missed, ...]
    broken: tuple[Broken, ...]

    @classmethod
    def of(cls, checks: Checks, release: Release) -> Coverage:
        """What a release of ``asked.sql`` says, in its order."""

        def shown(view: str, at: int = 0) -> list[float | None]:
            (row,) = release[view].fetchall()
            return [None if value is None else float(str(value)) for value in row[at : at + 4]]

        missed = []
        for table, columns in checks.domains:
            width = 1 + len(beside_numbers(table.minimum))
            missed += [Missed(table.name, c.name, *shown(_view(table), width * at)) for at, c in enumerate(columns)]
        broken = (Broken(p.table.name, p.columns, p.target, p.unit, *shown(p.view)) for p in checks.promises)
        return cls(release.id, release.cost, release.guarantee, tuple(missed), tuple(broken))


@dataclass(frozen=True)
class _Promise:
    """A key, or columns that refer to the key of ``target``; counted are units of the column ``unit``, or rows."""

    table: TablePolicy
    columns: tuple[str, ...]
    target: str | None
    unit: str

    @property
    def view(self) -> str:
        return _view(self.table, f"without_{self.target}" if self.target else f"repeated_by_{self.unit}")

    @property
    def sql(self) -> str:
        begin = f"CREATE OR REPLACE VIEW {identifier(self.view)} AS SELECT"
        own, unit = _from(self.table.name), identifier(self.unit)
        if self.target:
            count = "COUNT(*)" if self.unit == "row" else f"COUNT(DISTINCT {unit})"
            ties = {identifier(name): identifier(self.table.references[name][1]) for name in self.columns}
            tied = " AND ".join(f"{own}.{name} = there.{key}" for name, key in ties.items())
            here = " AND ".join(f"{name} IS NOT NULL" for name in ties)
            without = f"NOT EXISTS (FROM {_from(self.target)} AS there WHERE {tied})"
            return f"{begin} {count} AS broken FROM {own} WHERE {here} AND {without}"
        names = [identifier(name) for name in self.columns if fold(name) != fold(self.unit)]
        key = names[0] if len(names) == 1 else " || '\x1f' || ".join(f"CAST({name} AS VARCHAR)" for name in names)
        if self.unit == "row":
            return f"{begin} COUNT({key}) - COUNT(DISTINCT {key}) AS broken FROM {own}"
        counts = f"COUNT({key}) AS n, COUNT(DISTINCT {key}) AS k" if names else "COUNT(*) AS n, 1 AS k"
        units = f"SELECT {unit}, {counts}"
        return f"{begin} COUNT_IF(n > k) AS broken FROM ({units} FROM {own} GROUP BY {unit})"


@dataclass(frozen=True)
class Checks:
    """The private tables with the columns whose domains can be checked, and what is counted of keys and references;
    ``refused`` says of each other one in one sentence why it is not counted.
    """

    domains: tuple[tuple[TablePolicy, list[ColumnPolicy]], ...]
    promises: tuple[_Promise, ...]
    refused: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Checks:
        """What can be asked of ``policy``; PolicyError where there is nothing."""
        domains, counted, refused = [], [], list[str]()
        for table in policy.tables.values():
            columns = [column for column in table.columns.values() if _listed(column)]
            if columns and not table.public and table.counts is None:
                domains.append((table, columns))
            for one in _promises(table):
                if why := _not_counted(one, policy, schemas):
                    kind = "reference" if one.target else "key"
                    refused.append(f"{kind} {table.name} ({', '.join(one.columns)}): not counted{why}")
                else:
                    counted.append(one)
        if domains or counted:
            return cls(tuple(domains), tuple(counted), tuple(dict.fromkeys(refused)))
        raise PolicyError("no private table has a domain, a key or a reference to count by; find some first", *refused)

    @property
    def sql(self) -> str:
        """Views: of the rows outside of each domain visits_outside, of each promise one as visits_without_wards."""
        return ";\n".join([*(_of_table(*one) for one in self.domains), *(one.sql for one in self.promises)])


def _promises(table: TablePolicy) -> Iterator[_Promise]:
    unit = "row" if "." in table.unit else table.unit
    if table.unique:
        yield _Promise(table, table.unique, None, unit)
        if unit != "row" and fold(unit) not in map(fold, table.unique):  # units may share a key
            yield _Promise(table, table.unique, None, "row")
    for target in () if table.public else dict.fromkeys(other for other, _ in table.references.values()):
        columns = tuple(name for name, (other, _) in table.references.items() if other == target)
        yield _Promise(table, columns, target, unit)


def _not_counted(one: _Promise, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> str:
    """Why a promise is not counted, after "not counted"; empty where it is."""
    if one.table.public:
        return ", since the table is public: anybody can look"
    if one.target and one.table.unit.startswith(f"{one.target}."):
        return ", since a row whose unit is not found belongs to nobody"
    read = {*map(fold, one.columns)} - {fold(one.unit)}
    for column, text in schemas.get(one.table.name, {}).items():
        if fold(column) in read and column_type(text).kind == "other":
            return f", since {column} is {column_type(text)}, which no batch reads"
    try:
        understood_of(one.sql, policy, schemas)
    except SQLError as error:
        return f": {one_line(str(error).partition(' (line ')[0])}"
    return ""


def opened(policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Policy:
    """The policy in which no domain is closed: without OTHER, rows of other values would be taken for impossible.

    Columns of keys and references may be read, whether or not they are declared.
    """
    tables = {}
    for name, table in policy.tables.items():
        types = {fold(column): column_type(text).kind for column, text in schemas.get(name, {}).items()}
        columns = {c.name: c if c.values is None else replace(c, other=True) for c in table.columns.values()}
        for column in (*table.unique, *table.references):
            if fold(column) not in map(fold, columns) and types.get(fold(column), "other") != "other":
                columns[column] = ColumnPolicy(column)
        tables[name] = table if table.public else replace(table, columns=columns)
    return replace(policy, tables=tables)


def _listed(column: ColumnPolicy) -> bool:
    if column.values is None:
        return column.lower is not None
    return len(column.values) <= MOST_LISTED and not any("\0" in v for v in column.values if isinstance(v, str))


def _view(table: TablePolicy, what: str = "outside") -> str:
    return f"{table.name}_{what}".replace(".", "_")


def _from(name: str) -> str:
    return ".".join(identifier(part) for part in name.split("."))


def _of_table(table: TablePolicy, columns: list[ColumnPolicy]) -> str:
    counts = ", ".join(f"COUNT(*) FILTER (WHERE {_outside(c)}) AS {identifier(c.name)}" for c in columns)
    return f"CREATE OR REPLACE VIEW {identifier(_view(table))} AS SELECT {counts} FROM {_from(table.name)}"  # noqa: S608


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
