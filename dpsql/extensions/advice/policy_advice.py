"""What a policy allows and its author can hardly have meant, and what a first one leaves open. Public input alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType

from dpsql.errors import listed
from dpsql.extensions.advice.proposals import Keys, candidates
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import TablePolicy
from dpsql.policy.policy import Policy
from dpsql.policy.types import Schemas
from dpsql.policy.values import dotted, fold, quote, shown

_SECTION = re.compile(r"\s*\[([^\[\]]+)\]")
_OPEN = re.compile(r"\s*#\s*confirm:\s*([^=]+?)\s*=")
_NO_VALUE = ("null", "none", "na", "n/a", "nan", "")


def undecided(content: str) -> dict[str, tuple[str, ...]]:
    """What a first policy's text still marks to be confirmed: a message, and the full keys that it is about."""
    marked: dict[str, list[tuple[int, str]]] = {}
    section = ""
    for line, words in enumerate(content.splitlines(), 1):
        if match := _SECTION.match(words):
            section = match[1].strip()
        elif match := _OPEN.match(words):
            marked.setdefault(section, []).append((line, match[1]))
    found: dict[str, tuple[str, ...]] = {}
    for place, lines in marked.items():
        first, last = lines[0][0], lines[-1][0]
        which = f"line {first}" if first == last else f"lines {first} to {last}"
        closed = ", or delete its line to keep the column closed" if place.endswith(".columns") else ""
        verb = "is" if len(lines) == 1 else "are"
        names = listed([name for _, name in lines])
        found[f'{place}: {names} {verb} undecided ({which}); correct each, remove "# confirm:" in front{closed}'] = (
            tuple(f"{place}.{name}" for _, name in lines)
        )
    return found


def advice(
    policy: Policy,
    schemas: Schemas,
    required: Mapping[str, Set[str]],
    keys: Keys,
    collations: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> list[str]:
    """A line for each declaration that its author should look at again; none of them keeps a batch from running.

    ``required`` and ``keys``: the columns of each table that its schema says are NOT NULL, and its primary key.
    ``collations``: the COLLATE by column of each table.
    """
    types = {fold(name): columns for name, columns in schemas.items()}
    never_null = {fold(table): {fold(column) for column in columns} for table, columns in required.items()}
    primary = {fold(table): key for table, key in keys.items()}
    collated = {fold(table): columns for table, columns in collations.items()}
    found = list(policy.doubtful_units)
    for table in policy.tables.values():
        named = fold(table.name).removeprefix("main.")
        key = table.unique or primary.get(named, ())
        if not table.public and table.unit == "row" and table.counts is None:
            found += _of_rows(table, types.get(fold(table.name), {}), key)
        for column in table.columns.values():
            is_required = fold(column.name) in never_null.get(named, ())
            is_key = len(key) == 1 and fold(column.name) == fold(key[0])
            found += _of_column(column, is_required=is_required, is_key=is_key)
        found += _of_collations(table, collated.get(named, {}))
    return found


def _of_collations(table: TablePolicy, collations: Mapping[str, str]) -> Iterator[str]:
    """Units, keys, references and groups whose texts the database compares by another rule than the policy."""
    parts = {fold(column.name): column.where for column in table.columns.values() if column.values or column.groups}
    parts |= {fold(name): table.key("key") for name in table.unique}
    parts |= {fold(name): table.key("references", name) for name in table.references}
    parts |= {} if table.public else {fold(table.unit): table.key("unit")}
    for name, rule in collations.items():
        if fold(name) in parts:
            yield (
                f"{parts[fold(name)]}: column {name} has COLLATE {rule}, by which the database takes texts for equal "
                "that the policy takes for different, so that units, groups or joined rows may be others than "
                f"declared; store it without, as ALTER TABLE ... ALTER {dotted(name)} TYPE VARCHAR does"
            )


def _of_rows(table: TablePolicy, types: Mapping[str, str], key: tuple[str, ...]) -> Iterator[str]:
    """A unit of one row beside columns whose values may repeat and mark a person."""
    found = candidates(table.name, types, {table.name: key}, {table.name: table.references})
    likely = [name for name in found if [fold(part) for part in key] != [fold(name)]]
    if likely:
        yield (
            f'{table.key("unit")} is "row" beside {listed(likely)}: if values repeat and mark a person, nobody with '
            f"several rows is protected as a whole; write unit = {quote(likely[0])} and max_rows_per_unit, or "
            f"key = [{quote(likely[0])}] if no two rows share it"
        )


def _of_column(column: ColumnPolicy, *, is_required: bool, is_key: bool) -> Iterator[str]:
    """Groups that no row can be in, and texts that were meant as NULL."""
    has_domain = column.values is not None or column.lower is not None
    if column.nulls and has_domain and (is_required or is_key):
        why = "the column is NOT NULL" if is_required else "the column is the table's key"
        yield (
            f"{column.where} has a group for NULL that no row can be in, since {why}; write nulls = false, which "
            "saves its noise"
        )
    if column.other and column.values is not None and set(column.values) == {False, True}:
        yield f"{column.key('other')} is true, but true and false are all values that there are; leave other out"
    for i, value in enumerate(column.values or ()):
        if isinstance(value, str) and value.strip().lower() in _NO_VALUE:
            group = (
                "no row without a value is in any group, as nulls = false"
                if not column.nulls
                else ("rows without a value have a group of their own already")
            )
            yield (
                f"{column.key('values')}[{i}] {shown(value)} is a text like any other and not NULL; {group}; keep it "
                f"only if {dotted(column.name)} holds that text"
            )
