"""Keys of one column, as one key whose groups are the combinations that a row can have.

``GROUP BY year(d), quarter(d)`` has no row of a year whose quarter is NULL. Where the groups of several keys are values
of one stored column, or of what is computed of it, that column's regions say which groups meet. What is possible is
taken from ``dpsql.workloads.expr.related``; where it does not know that, all combinations stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dpsql.sql.aggregate.groups import MAX_GROUPS
from dpsql.workloads.expr.batch import CaseKey, Key, Table
from dpsql.workloads.expr.conditions import And, Condition, LineAtom, complement, gather, union
from dpsql.workloads.expr.regions import AxisTruths, IntArray, LabelColumn, line_axis
from dpsql.workloads.expr.related import Functions, related
from dpsql.workloads.expr.within import Within


@dataclass(frozen=True)
class Joined:
    """A key among others, or the joined one that shows it from its label number ``first`` on."""

    key: Key
    first: int = 0


@dataclass(frozen=True)
class _Parts:
    """A key by the regions of its one column: the group of each, and the labels and conditions of its groups."""

    number: int
    column: str
    label: LabelColumn
    atoms: tuple[LineAtom, ...]


def joined(keys: Sequence[Key], table: Table, within: Within) -> tuple[Joined, ...]:
    """What stands for each of ``keys``, without combinations in which no row ``within`` can be.

    Cost: that of ``related`` for each column under several keys.
    """
    out = [Joined(key) for key in keys]
    parts = [part for number, key in enumerate(keys) for part in [_parts(number, key)] if part is not None]
    if len(parts) < 2:
        return tuple(out)
    names = list(dict.fromkeys(part.column for part in parts))
    columns = {column.name: column for column in table.columns.values()}
    functions = Functions(table.columns, table.evaluate)
    axes = []
    for name in names:
        column = columns[name]
        atoms = [atom for part in parts if part.column == name for atom in part.atoms]
        axes.append(line_axis(name, column.line, atoms, closed=column.closed, nulls=column.nulls))
    found = related([(truths.axis, functions.of(truths.axis)) for truths in axes], table.evaluate)
    met = {at for one in found for at in one.axes}
    clusters = [(one.axes, one.possible) for one in found if one.possible is not None]
    clusters += [((at,), np.arange(truths.axis.size)[None]) for at, truths in enumerate(axes) if at not in met]
    for at, possible in clusters:
        mine = [part for part in parts if part.column in {names[number] for number in at}]
        groups = [_groups(part, axes[names.index(part.column)]) for part in mine]
        if len(mine) < 2 or any(group is None for group in groups):
            continue
        seen = np.stack([
            np.append(group, -1)[possible[at.index(names.index(part.column))]]
            for part, group in zip(mine, groups, strict=True)
            if group is not None
        ])  # fmt: skip
        combined = _key(mine, np.unique(seen[:, (seen >= 0).all(axis=0)], axis=1), within)
        if combined is not None:
            for first, part in enumerate(mine):
                out[part.number] = Joined(combined, first)
    return tuple(out)


def _parts(number: int, key: Key) -> _Parts | None:
    """A key whose groups are values of one column and have a label each; None for others."""
    if not key.listed or key.has_other or len(key.labels) > 1:
        return None
    atoms = [atom for atom in key.atoms if atom is not None]
    if not atoms:
        return None
    rest = LineAtom(atoms[0].column, complement(union([part for atom in atoms for part in atom.intervals])))
    return _Parts(number, rest.column, key.labels[0], tuple(rest if atom is None else atom for atom in key.atoms))


def _groups(part: _Parts, truths: AxisTruths) -> IntArray | None:
    """The group of each region, -1 for none; None where groups overlap."""
    group = np.full(truths.axis.size, -1, dtype=np.int64)
    for at, atom in enumerate(part.atoms):
        regions = truths.regions(atom)
        if (group[regions] >= 0).any():
            return None
        group[regions] = at
    return group


def _key(parts: Sequence[_Parts], groups: IntArray, within: Within) -> CaseKey | None:
    """The key whose groups are these combinations; None where they are all, or too many."""
    if not 0 < groups.shape[1] <= MAX_GROUPS:
        return None
    listed = groups.T.tolist()
    conditions: list[Condition] = [
        gather(And, *(part.atoms[at] for part, at in zip(parts, group, strict=True))) for group in listed
    ]
    left = [at for at, condition in enumerate(conditions) if not within.excludes(condition)] or range(len(listed))
    if len(left) == prod(len(part.atoms) for part in parts):
        return None
    labels = tuple(
        LabelColumn(part.label.name, part.label.type, tuple(part.label.values[listed[at][number]] for at in left))
        for number, part in enumerate(parts)
    )
    text = ", ".join(part.label.name for part in parts)
    return None if labels[1].name == "other" else CaseKey(text, labels, tuple(conditions[at] for at in left))
