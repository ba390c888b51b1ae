"""Whom a first policy may protect: units proposed from keys, references and names of columns. No row is read.

A column is taken for one that identifies somebody or something where the schema says so (it is a key, or refers to
one) or its name does (``patient_id``, ``customer_no``, ``ssn``). Which of several marks the persons is for the
custodian to say; the names of columns and tables order the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dpsql.policy.types import Schemas, column_type
from dpsql.policy.units import UnitColumn, doubtful_units
from dpsql.policy.values import fold

Keys = Mapping[str, tuple[str, ...]]
"""Table to the columns of its primary key."""

References = Mapping[str, Mapping[str, tuple[str, str]]]
"""Table to column to the (table, column) that it refers to."""

_ID = r"(.*[_\- .])?(id|uid|uuid|guid|no|nr|num|number|ssn|mrn|nhs|email|phone)|.*[a-z](Id|ID|No|Nr)"
_PERSON = (
    r"patient|person|people|customer|client|user|member|subject|student|pupil|employee|staff|nurse|doctor|worker|"
    r"citizen|resident|household|voter|respondent|participant|donor|tenant|driver|rider|passenger|guest|owner|holder|"
    r"insured|policyholder|taxpayer|borrower|subscriber|account|device|ssn|mrn|nhs|email|phone"
)


def looks_like_id(column: str) -> bool:
    """Whether a column's name says that its values identify something."""
    return re.fullmatch(_ID, column) is not None or re.fullmatch(_ID, fold(column)) is not None


def _marks_person(table: str, column: str) -> bool:
    """Whether names say that a column's values identify persons: its own, or of its table where it is a plain id."""
    said = table if fold(column) in ("id", "key", "no", "nr", "number", "uuid") else column
    return re.search(_PERSON, fold(said)) is not None


@dataclass(frozen=True)
class Proposal:
    """What a first policy proposes for one table; ``unit`` is None where no column could mark a person.

    ``most`` rows of a unit are the default of ``max_rows_per_unit``: one where the unit is the table's own key.
    ``others``: further columns of the table that identify something. ``person``: whether keys or names say that the
    unit is one. ``public``: everybody may see the table. ``decided``: a person said so.
    ``rows``: about how many rows a person says that there are.
    """

    unit: str | None = None
    most: int | None = None
    key: tuple[str, ...] = ()
    references: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    person: bool = True
    public: bool = False
    decided: bool = False
    rows: int | None = None


def candidates(table: str, columns: Mapping[str, str], keys: Keys, references: References) -> list[str]:
    """Columns of a table that could mark whom to protect, the likeliest first."""
    own = keys.get(table, ())
    leading = references.get(table, {})
    found = [
        column
        for column, kind in columns.items()
        if (column in own or column in leading or looks_like_id(column))
        and (column_type(kind).kind != "other" or kind == "UUID")
    ]

    def rank(column: str) -> tuple[bool, bool, bool]:
        target = leading.get(column, (table, column))
        named = _marks_person(table, column) or _marks_person(*target)
        # A key of its own numbers the table's rows, which are persons only if it says so.
        return (not named, own == (column,), column not in leading)

    return sorted(found, key=rank)


def propose(schemas: Schemas, keys: Keys, references: References) -> dict[str, Proposal]:
    """A unit for each table: a column of its own, or one that a reference leads to.

    Where columns are of equal name and one is the key of its table, the others are taken to refer to it. A table that
    holds persons is protected by its own column; one that holds none and leads to such a table by a single reference,
    by the unit found there.
    """
    led = {table: dict(_led(table, schemas, keys, references)) for table in schemas}
    units: dict[str, str] = {}
    for table, columns in schemas.items():
        for column in candidates(table, columns, keys, led)[:1]:
            target, key = led[table].get(column, (table, column))
            if _marks_person(table, column) or _marks_person(target, key):
                units[table] = column
    paths: dict[str, tuple[str, str]] = {}  # table without a person of its own, to (column, table) one step on
    waiting = list(units)
    while waiting:  # from the tables with persons outwards, so that each is reached by a shortest way
        reached = waiting.pop(0)
        for table in schemas:
            for column, (target, _) in led[table].items():
                if target == reached and table not in units and table not in paths:
                    paths[table] = (column, reached)
                    waiting.append(table)
    out: dict[str, Proposal] = {}
    for table, columns in schemas.items():
        found = candidates(table, columns, keys, led)
        own = keys.get(table, ())
        if table in units:
            unit = units[table]
            to = led[table].get(unit)
            linked = {unit: to} if to is not None and units.get(to[0]) == to[1] else {}
            most = 1 if own == (unit,) else 5
        elif table in paths:
            column, holder = paths[table]
            linked = {column: led[table][column]}
            while holder in paths:
                holder = paths[holder][1]
            unit, most = f"{holder}.{units[holder]}", 5
        else:
            # Nothing says that there are persons; an id that is not the table's own key may repeat.
            unit = next((column for column in found if own != (column,)), "")
            linked, most = {}, 5
        others = tuple(column for column in found if column != unit)
        person = table in units or table in paths
        out[table] = Proposal(unit or None, most if unit else None, own, linked, others, person)
    # Whatever a reference leads to must say that it is a key.
    for proposal in list(out.values()):
        for target, column in proposal.references.values():
            held = out[target]
            if not held.key:
                out[target] = replace(held, key=(column,))
    return out


def doubtful_proposals(proposals: Mapping[str, Proposal]) -> list[str]:
    """``doubtful_units`` of what a first policy proposes."""
    units = []
    for table, proposed in proposals.items():
        if proposed.unit and proposed.unit not in proposed.others and "." not in proposed.unit and not proposed.public:
            leads = {proposed.references[proposed.unit]} if proposed.unit in proposed.references else set()
            if proposed.key == (proposed.unit,):
                leads.add((table, proposed.unit))
            keys = frozenset((fold(name), fold(column)) for name, column in leads)
            units.append(UnitColumn(table, proposed.unit, keys))
    by_table = {unit.table: unit for unit in units}

    def linked(one: str, other: str) -> bool:
        a, b = by_table[one], by_table[other]
        return fold(a.column) == fold(b.column) or bool(a.leads & b.leads)

    return doubtful_units(units, linked)


def _led(table: str, schemas: Schemas, keys: Keys, references: References) -> Iterator[tuple[str, tuple[str, str]]]:
    """Declared references of a table's single columns, then those that equal names of a key suggest."""
    declared = references.get(table, {})
    yield from ((column, to) for column, to in declared.items() if keys.get(to[0], (to[1],)) == (to[1],))
    for column in schemas[table]:
        if column in declared or keys.get(table) == (column,):
            continue
        for other, key in keys.items():
            if other != table and len(key) == 1 and fold(key[0]) == fold(column) and fold(column) != "id":
                yield column, (other, key[0])
                break
