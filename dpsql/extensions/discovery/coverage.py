"""How many rows the domains of a policy miss, and how many units or rows repeat its keys: a batch like any other,
planned, charged and measured as one.

Of each private table one SELECT: for each column with a domain the rows whose value is not in it, or which have none
where the policy says that none is without. A row moves each count by at most 1.

For each declared key of a private table one SELECT more. Where a column of the table is its unit: in how many units two
rows have one key, of all rows of the unit, since a table of units is made of them all; a unit moves it by at most 1.
Where a row is a unit: how many rows come after the first of their key, which is COUNT less COUNT(DISTINCT); a row moves
each of the two by at most 1. NULL repeats nothing, but rows without a unit are one unit together, as everywhere.
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
class Repeated:
    """How many units have two rows with one ``key``, or how many rows have the key of another before them where
    ``unit`` is "row"; with standard error and interval, all None under a ``minimum``.
    """

    table: str
    key: tuple[str, ...]
    unit: str
    number: float | None
    stderr: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Coverage:
    """What a release says of each domain and key; ``id``, ``cost`` and ``guarantee`` are those of the release."""

    id: int
    cost: float
    guarantee: str
    missed: tuple[Missed, ...]
    repeated: tuple[Repeated, ...]

    @classmethod
    def of(cls, asked: Asked, release: Release) -> Coverage:
        """What a release of ``asked.sql`` says, domain by domain and key by key."""
        missed, repeated = [], []
        for held, columns in asked.domains:
            (row,) = release[_view(held)].fetchall()
            width = 1 + len(beside_numbers(held.minimum))
            for at, column in enumerate(columns):
                missed.append(Missed(held.name, column.name, *_shown(row[width * at :])))
        for held in asked.keys:
            (row,) = release[_view(held, "repeated")].fetchall()
            repeated.append(Repeated(held.name, held.unique, held.unit, *_shown(row)))
        return cls(release.id, release.cost, release.guarantee, tuple(missed), tuple(repeated))


def _shown(row: tuple[object, ...]) -> list[float | None]:
    """A number with its standard error and the ends of its interval."""
    return [None if value is None else float(str(value)) for value in row[:4]]


@dataclass(frozen=True)
class Asked:
    """The private tables with the columns whose domains can be checked, and those whose keys can; ``refused`` says of
    each other key in one sentence why it is not counted.
    """

    domains: tuple[tuple[TablePolicy, list[ColumnPolicy]], ...]
    keys: tuple[TablePolicy, ...]
    refused: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Asked:
        """What can be asked of ``policy``; PolicyError where there is neither a domain nor a key."""
        domains, keys, refused = [], [], []
        for held in policy.tables.values():
            columns = [column for column in held.columns.values() if _listed(column)]
            if columns and not held.public and held.counts is None:
                domains.append((held, columns))
            why = _not_counted(held, policy, schemas) if held.unique else ""
            if why:
                refused.append(f"{held.name} ({', '.join(held.unique)}): {why}")
            elif held.unique:
                keys.append(held)
        if not domains and not keys:
            raise PolicyError(
                "no private table has a column with a domain, which could miss rows, or a key that can be counted; "
                "find some first",
                *(f"key {one}" for one in refused),
            )
        return cls(tuple(domains), tuple(keys), tuple(refused))

    @property
    def sql(self) -> str:
        """The batch that counts the rows outside of each domain, as visits_outside, and what repeats each key, as
        visits_repeated.
        """
        return ";\n".join([*(_of_table(*one) for one in self.domains), *(_of_key(held) for held in self.keys)])


def _not_counted(held: TablePolicy, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> str:
    """Why what repeats a declared key is not counted, in a sentence; empty where it is."""
    if held.public:
        return "not counted, since the table is public: anybody can look"
    if held.unit != "row" and "." in held.unit:
        return f"not counted, since the table finds its unit through {held.unit}; count it where the unit is a column"
    for column, text in schemas.get(held.name, {}).items():
        if fold(column) in map(fold, _beside_unit(held)) and column_type(text).kind == "other":
            return f"not counted, since {column} is {column_type(text)}, which no batch reads"
    try:
        understood_of(_of_key(held), policy, schemas)
    except SQLError as error:
        return f"not counted: {one_line(str(error).partition(' (line ')[0])}"
    return ""


def opened(policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Policy:
    """The policy in which no domain is closed: without OTHER, rows of other values would be taken for impossible.

    Columns of keys may be read, whether or not they are declared.
    """
    tables = {}
    for name, held in policy.tables.items():
        types = {fold(column): column_type(text).kind for column, text in schemas.get(name, {}).items()}
        columns = {c.name: c if c.values is None else replace(c, other=True) for c in held.columns.values()}
        for column in held.unique:
            if fold(column) not in map(fold, columns) and types.get(fold(column), "other") != "other":
                columns[column] = ColumnPolicy(column)
        tables[name] = held if held.public else replace(held, columns=columns)
    return replace(policy, tables=tables)


def _listed(column: ColumnPolicy) -> bool:
    if column.values is None:
        return column.lower is not None
    return len(column.values) <= MOST_LISTED and not any("\0" in v for v in column.values if isinstance(v, str))


def _view(held: TablePolicy, what: str = "outside") -> str:
    return f"{held.name}_{what}".replace(".", "_")


def _from(held: TablePolicy) -> str:
    return ".".join(identifier(part) for part in held.name.split("."))


def _of_table(held: TablePolicy, columns: list[ColumnPolicy]) -> str:
    counts = ", ".join(f"COUNT(*) FILTER (WHERE {_outside(c)}) AS {identifier(c.name)}" for c in columns)
    return f"CREATE OR REPLACE VIEW {identifier(_view(held))} AS SELECT {counts} FROM {_from(held)}"  # noqa: S608


def _beside_unit(held: TablePolicy) -> list[str]:
    """The columns of a table's key but for its unit."""
    return [name for name in held.unique if fold(name) != fold(held.unit)]


def _of_key(held: TablePolicy) -> str:
    begin = f"CREATE OR REPLACE VIEW {identifier(_view(held, 'repeated'))} AS SELECT"
    names = list(map(identifier, _beside_unit(held)))
    texts = " || '\x1f' || ".join(f"CAST({name} AS VARCHAR)" for name in names)
    key = names[0] if len(names) == 1 else texts
    if held.unit == "row":
        return f"{begin} COUNT({key}) - COUNT(DISTINCT {key}) AS repeated FROM {_from(held)}"
    unit = identifier(held.unit)
    if not names:  # the unit is the key
        units, more = f"SELECT {unit}, COUNT(*) AS n", "n > 1"
    else:
        units, more = f"SELECT {unit}, COUNT({key}) AS n, COUNT(DISTINCT {key}) AS k", "n > k"
    return f"{begin} COUNT_IF({more}) AS repeated FROM ({units} FROM {_from(held)} GROUP BY {unit})"


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
