"""Domains that were found privately: of the ledger's releases, and part of the policy from then on.

What a discovery showed is public, so that a policy with it means as much as one whose author listed the same values. A
domain that the policy declares itself counts before one that was found; of several found ones the newest does. One that
was found on an earlier version of the data stays the column's domain, as one that is declared would.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpsql.common.arrays import Json
from dpsql.errors import DatabaseError, PolicyError
from dpsql.policy import ColumnPolicy, Policy
from dpsql.policy.types import column_type
from dpsql.policy.values import Bound, Key, fold
from dpsql.privacy.entries import Entry
from dpsql.release import ReleaseTable
from dpsql.release.books import Books
from dpsql.release.payload import unpack

KIND = "discovery"


@dataclass(frozen=True)
class FoundDomain:
    """What release ``release`` found of a column on data set ``dataset``: a ``column`` for the policy."""

    table: str
    column: ColumnPolicy
    release: int
    dataset: str


def of_column(
    column: ColumnPolicy, values: Sequence[Key] = (), bounds: tuple[Bound, Bound] | None = None
) -> ColumnPolicy:
    """A column with a domain that was found: the values, all others together, or bounds."""
    if bounds is not None:
        return replace(column, lower=bounds[0], upper=bounds[1])
    return replace(column, values=tuple(values), other=True)


def key_of(text: str, kind: str) -> Key | None:
    """The key that DuckDB writes as ``text``; None for one that no policy can hold, such as an infinite date."""
    found = column_type(kind)
    with suppress(ValueError, ArithmeticError, PolicyError):
        value = _read(text, found.kind)
        ColumnPolicy("key", values=(value,))  # its checks
        return value
    return None


def _read(text: str, kind: str) -> Key:
    if kind == "integer":
        return int(text)
    if kind == "boolean":
        return text == "true"
    if kind == "decimal":
        return Decimal(text)
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind in ("timestamp", "timestamptz"):
        return dt.datetime.fromisoformat(text)
    return text


class FoundDomains:
    """The policy as it is by now: that of the custodian, with the domains that its ledger's releases found."""

    def __init__(self, declared: Policy, books: Books) -> None:
        self.declared = declared
        self._books = books
        self._seen: tuple[int, int] | None = None
        self._read: dict[int, tuple[FoundDomain, ...]] = {}
        self.found: tuple[FoundDomain, ...] = ()
        self.policy = declared

    def refresh(self) -> Policy:
        """The policy, read again where the ledger was written to; the same object where nothing was found since.

        Of a ledger that cannot be read it is as it was: whatever needs the ledger says why.
        """
        with suppress(OSError, DatabaseError):
            state = os.stat(self._books.path)
            mark = state.st_mtime_ns, state.st_size
            if mark != self._seen:
                self._update(self._books.entries())
                self._seen = mark
        return self.policy

    def _update(self, entries: Iterable[Entry]) -> None:
        newest: dict[tuple[str, str], FoundDomain] = {}
        for entry in entries:
            if entry.released is None or entry.description.get("kind") != KIND:
                continue
            if entry.id not in self._read:
                shown = unpack(self._books.ledger().release(entry.id).payload or b"")[0].listed
                domains = (self._domain(entry, said, shown) for said in parts_of(entry))
                self._read[entry.id] = tuple(domain for domain in domains if domain is not None)
            for domain in self._read[entry.id]:
                newest[fold(domain.table), fold(domain.column.name)] = domain
        found = tuple(newest.values())
        if found == self.found:
            return
        self.found = found
        tables = dict(self.declared.tables)
        for domain in found:
            table = tables[domain.table]
            columns = {**table.columns, domain.column.name: domain.column}
            tables[domain.table] = replace(table, columns=columns)
        self.policy = replace(self.declared, tables=tables)

    def _domain(self, entry: Entry, part: Json, shown: Sequence[ReleaseTable]) -> FoundDomain | None:
        """The domain that a release shows, None if the policy has no such column any more or declares its domain."""
        with suppress(PolicyError):
            table = self.declared.table(str(part["table"]))
            column = table.column(str(part["column"]))
            if column.values is not None or column.lower is not None:
                return None
            made = with_domain(column, part, shown)
            return None if made is None else FoundDomain(table.name, made, entry.id, entry.dataset)
        return None


def parts_of(entry: Entry) -> list[Json]:
    """What a discovery looked for: one column, or those of a survey; each with its table, type and view."""
    return list(entry.description.get("found", [{**entry.description, "name": entry.description["names"][0]}]))


def with_domain(column: ColumnPolicy, part: Json, shown: Sequence[ReleaseTable]) -> ColumnPolicy | None:
    """The column with the domain that the table of ``part`` shows; None where that table is empty."""
    table = next(table for table in shown if table.name == part["name"])
    if not len(table):
        return None
    if part.get("bounds"):
        return of_column(column, bounds=bounds_in(table))
    return of_column(column, values_in(table, str(part["type"])))


def bounds_in(table: ReleaseTable) -> tuple[Bound, Bound] | None:
    """The bounds that a discovery's table shows, None where none were found."""
    (low, high), kept = (values for _, _, values in table.columns[:2]), len(table)
    return (_bound(str(low[0])), _bound(str(high[0]))) if kept else None


def _bound(text: str) -> Bound:
    with suppress(ValueError, ArithmeticError):
        return Fraction(Decimal(text))
    return dt.datetime.fromisoformat(text) if "T" in text else dt.date.fromisoformat(text)


def values_in(table: ReleaseTable, kind: str) -> list[Key]:
    """The values that a discovery's table lists, of a column of type ``kind``: its times have lost their zone, UTC."""
    found: list[Any] = list(table.columns[0][2])
    return [value.replace(tzinfo=dt.UTC) for value in found] if column_type(kind).kind == "timestamptz" else found
