"""Outer SQL: what DuckDB does with noisy tables once they are released. Public, and free.

A relation is something to select from: the noisy table of a query, an earlier result of the batch, a
SELECT over relations, or a set operation of them. Its SQL comes in two forms, with the columns that say
how far a number may be off and without them; companions of a column are those of it that
follow it under its name, such as n_stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dpsql.common.quoting import free_name, identifier

ERRORS = ("_stderr", "_low", "_high")
OTHER = ("_other",)
HIDDEN = ("_hidden",)
OPTIONAL = (*ERRORS, *OTHER)
"""Companions that a cursor shows with ``errors=True`` alone, since programs unpack the columns that they select."""


def beside_numbers(minimum: int | None) -> tuple[str, ...]:
    """The companions of a private number, under a policy that hides small counts or not."""
    return ERRORS if minimum is None else (*ERRORS, *HIDDEN)


def companion_names(names: Sequence[str], suffixes: Iterable[tuple[int, str]]) -> list[str]:
    """Names for companions: ``names[column] + suffix``, numbered where some column is already called that."""
    taken = {name.lower() for name in names}
    return [free_name(f"{names[column]}{suffix}", taken) for column, suffix in suffixes]


@dataclass(frozen=True)
class Item:
    """A column of a SELECT: its SQL, its name, and (suffix, SQL) of each companion."""

    sql: str
    name: str
    companions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ColumnInfo:
    """A column that a relation shows, and (suffix, name) of its companions."""

    name: str
    companions: tuple[tuple[str, str], ...] = ()

    @property
    def suffixes(self) -> frozenset[str]:
        """The companions' suffixes."""
        return frozenset(suffix for suffix, _ in self.companions)


class Relation(Protocol):
    """Something to select from."""

    def sql(self, errors: bool) -> str:
        """A query expression; with the columns of errors or without."""
        ...

    @property
    def columns(self) -> tuple[ColumnInfo, ...]: ...


@dataclass(frozen=True)
class Named:
    """The noisy table of a query, or an earlier result of the batch."""

    name: str
    columns: tuple[ColumnInfo, ...]

    def sql(self, errors: bool) -> str:
        """All its columns: the table itself is written with or without errors."""
        return f"SELECT * FROM {identifier(self.name)}"  # noqa: S608


@dataclass(frozen=True)
class United:
    """The rows of noisy ``tables``, one table after the other; a column that a table lacks is NULL in its rows.

    ``bits``: columns of its own, a whole number for each table. ``name`` is what one table of all the rows may be
    called, which DuckDB reads at once where thousands of tables in one statement would take it minutes.
    """

    name: str
    tables: tuple[Named, ...]
    bits: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def sql(self, errors: bool) -> str:
        """UNION ALL BY NAME of the tables."""
        parts = []
        for number, table in enumerate(self.tables):
            beside = "".join(f", {values[number]} AS {identifier(name)}" for name, values in self.bits)
            parts.append(f"SELECT *{beside} FROM ({table.sql(errors)})")  # noqa: S608
        return " UNION ALL BY NAME ".join(parts)

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """Those of all tables, in the order in which they come."""
        found = {column.name: column for table in self.tables for column in table.columns}
        return (*found.values(), *(ColumnInfo(name) for name, _ in self.bits))


@dataclass(frozen=True)
class Selected:
    """SELECT ``items`` ``clauses``: a query over ``sources``, whose places ``clauses`` and items mark.

    ``clauses`` runs from FROM to QUALIFY, ``order`` from ORDER BY to the end.
    """

    items: tuple[Item, ...]
    clauses: str
    sources: tuple[Relation, ...] = ()
    distinct: str = ""
    order: str = ""

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """Its items and their companions."""
        names = iter(self._companion_names(self.items))
        return tuple(ColumnInfo(item.name, tuple((c[0], next(names)) for c in item.companions)) for item in self.items)

    def sql(self, errors: bool) -> str:
        """The SELECT, companions beside their columns."""
        items = self.items if errors else tuple(_without_errors(item) for item in self.items)
        names = iter(self._companion_names(items))
        written = []
        for item in items:
            written.append(f"{item.sql} AS {identifier(item.name)}")
            written.extend(f"{sql} AS {identifier(next(names))}" for _, sql in item.companions)
        text = f"SELECT {self.distinct}{', '.join(written)} {self.clauses}{self.order}"
        return filled(text, self.sources, errors)

    def shown(self) -> list[tuple[str, str]] | None:
        """(its own name, name in a noisy table) of every column, where it does no more than show noisy tables."""
        if self.clauses != f"FROM {hole(0)}" or len(self.sources) != 1 or self.distinct or self.order:
            return None
        if not isinstance(self.sources[0], United):
            return None
        named: dict[str, str] = {}
        for info in self.sources[0].columns:
            named |= {identifier(name): name for name in (info.name, *(name for _, name in info.companions))}
        pairs = []
        for item, info in zip(self.items, self.columns, strict=True):
            pairs.append((info.name, item.sql))
            pairs += [(name, sql) for (_, name), (_, sql) in zip(info.companions, item.companions, strict=True)]
        if any(sql not in named for _, sql in pairs):
            return None
        return [(name, named[sql]) for name, sql in pairs]

    def keeping(self, companions: Sequence[frozenset[str]]) -> Selected:
        """The same with only those companions, item by item."""
        items = tuple(
            replace(item, companions=tuple(c for c in item.companions if c[0] in suffixes))
            for item, suffixes in zip(self.items, companions, strict=True)
        )
        return replace(self, items=items)

    @staticmethod
    def _companion_names(items: Sequence[Item]) -> list[str]:
        pairs = [(number, suffix) for number, item in enumerate(items) for suffix, _ in item.companions]
        return companion_names([item.name for item in items], pairs)


def _without_errors(item: Item) -> Item:
    return replace(item, companions=tuple(c for c in item.companions if c[0] not in ERRORS))


@dataclass(frozen=True)
class Combined:
    """A set operation such as UNION ALL of two relations, with what follows it."""

    left: Relation
    operator: str
    right: Relation
    order: str = ""
    sources: tuple[Relation, ...] = ()

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        return self.left.columns

    def sql(self, errors: bool) -> str:
        """Both sides in parentheses."""
        order = filled(self.order, self.sources, errors)
        return f"({self.left.sql(errors)}) {self.operator} ({self.right.sql(errors)}){order}"


def combined(left: Relation, operator: str, right: Relation, order: str = "") -> Combined:
    """A set operation; under UNION ALL by position a column keeps the companions that both sides have."""
    a, b = [c.suffixes for c in left.columns], [c.suffixes for c in right.columns]
    if operator == "UNION ALL" and len(a) == len(b):
        kept = [x & y for x, y in zip(a, b, strict=True)]
        return Combined(keep(left, kept), operator, keep(right, kept), order)
    return Combined(bare(left), operator, bare(right), order)


def gathered(relation: Relation) -> tuple[Relation, dict[str, United]]:
    """The relation with one table instead of every union of several noisy tables, and these unions by name."""
    unions: dict[str, United] = {}

    def named(part: Relation) -> Relation:
        if isinstance(part, United) and (len(part.tables) > 1 or part.bits):
            unions[part.name] = part
            return Named(part.name, part.columns)
        return _over(part, named)

    return named(relation), unions


def _over(relation: Relation, change: Callable[[Relation], Relation]) -> Relation:
    """The relation with what it reads changed."""
    if isinstance(relation, Selected):
        return replace(relation, sources=tuple(change(source) for source in relation.sources))
    if isinstance(relation, Combined):
        sources = tuple(change(source) for source in relation.sources)
        return replace(relation, left=change(relation.left), right=change(relation.right), sources=sources)
    return relation


def bare(relation: Relation) -> Relation:
    """The relation without any companions."""
    return keep(relation, [frozenset[str]()] * len(relation.columns))


def keep(relation: Relation, companions: Sequence[frozenset[str]]) -> Relation:
    """The relation with those companions only, column by column."""
    if isinstance(relation, Selected):
        return relation.keeping(companions)
    if isinstance(relation, Combined):
        return replace(relation, left=keep(relation.left, companions), right=keep(relation.right, companions))
    if all(column.suffixes <= suffixes for column, suffixes in zip(relation.columns, companions, strict=True)):
        return relation
    items = tuple(
        Item(
            identifier(column.name),
            column.name,
            tuple((s, identifier(name)) for s, name in column.companions if s in suffixes),
        )
        for column, suffixes in zip(relation.columns, companions, strict=True)
    )
    return Selected(items, f"FROM {hole(0)}", (relation,))


def hole(number: int) -> str:
    """The mark where a source goes; NUL and SOH stand in no SQL that was read."""
    return f"\x00{number}\x01"


def filled(text: str, sources: Sequence[Relation], errors: bool) -> str:
    """SQL with each mark replaced by its source, in parentheses."""
    first, *rest = text.split("\x00")
    out = [first]
    for part in rest:
        number, _, after = part.partition("\x01")
        out.append(f"({sources[int(number)].sql(errors)}){after}")
    return "".join(out)
