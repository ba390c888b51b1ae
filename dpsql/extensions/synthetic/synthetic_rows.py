"""Synthetic rows: tables whose counts agree with those that a release shows. Post-processing, free.

The release's tables of counts (``released_counts``) become marginals over the regions of their columns
(``row_values``), and ``row_fit`` finds rows that agree with them (``row_model``). Where the batch counts two tables of
which one refers to the other, its rows get the keys of rows of that one: as many for each as were released (counts of
units by their number of rows, as ``SELECT n, COUNT(*) FROM (SELECT unit, COUNT(*) AS n ...) GROUP BY n``) or as chance
has it, and of rows with the values that were counted beside them. How far the rows are from what was released is shown
table by table, beside what its noise alone makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.common.arrays import Ints
from dpsql.errors import DataError, NotSupportedError, listed
from dpsql.extensions.synthetic.released_counts import CountTable, counts_of
from dpsql.extensions.synthetic.row_fit import matched, rounded
from dpsql.extensions.synthetic.row_model import TableModel, agreement, usable
from dpsql.extensions.synthetic.row_values import region_of
from dpsql.release import ReleaseRecord, Result
from dpsql.release.columns import Coded
from dpsql.release.synthetic import SyntheticRows
from dpsql.replicates.noise import Generator, generator_of
from dpsql.sql.outer.answers import Understood
from dpsql.workloads.expr.batch import Table
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.rows import Join


def made_from(record: ReleaseRecord, batch: Understood, n: int, seed: int) -> SyntheticRows:
    """Rows of the tables that a release counts, ``n`` of the one that no other of them refers to from.

    The same rows for the same ``seed``. Raises DataError, NotSupportedError.
    """
    counts, left_out = counts_of(record, batch)
    kept, why = usable(counts, batch)
    left_out += why
    names = list(dict.fromkeys(count.table for count in kept))
    if not names:
        reasons = f" ({'; '.join(dict.fromkeys(left_out))})" if left_out else ""
        raise DataError(
            f"release {record.release_id} shows no counts by groups of columns{reasons}; release COUNT(*) by the "
            "columns that rows are to have, such as GROUP BY dp_marginals(2, a, b, c)"
        )
    generator = generator_of("synthetic rows", record.release_id, seed)
    parent, children = _order(names, batch, record.release_id)
    models = {name: TableModel.of(name, kept, batch) for name in names}
    first = models[parent]
    rows = first.rows(n, generator)
    shown = first.shown(rows, generator)
    pairs, tables = [(first, rows)], {parent: shown}
    for name, link in children.items():
        per_unit = next((count for count in counts if _is_of_units(count, batch, name)), None)
        child = _Child(batch.tables[name], models[name], link)
        made, owners = child.rows(shown, first.total, per_unit, generator)
        pairs.append((models[name], made))
        alone = [a.name for a in models[name].axes if a.source == link.name and a.name not in shown.columns]
        left_out += [f"{column} of {parent} is counted beside {name} alone, and no row has it" for column in alone]
        keys = _numbered(link, link.pairs[0][0].name, n, owners)
        tables[name] = models[name].shown(made, generator, without=link.name, first=[keys])
    for link in list(children.values())[:1]:
        numbers = _numbered(link, _key(link)[0], n, np.arange(n))
        held = [triple for triple in shown.triples() if triple[0] != numbers[0]]
        tables[parent] = Result.from_columns([numbers, *held])
    left_out += [reason for model in models.values() for reason in model.left_out]
    titled = {batch.tables[name].name: table for name, table in tables.items()}
    return SyntheticRows(titled, agreement(pairs), tuple(dict.fromkeys(left_out)))


def _order(names: Sequence[str], batch: Understood, release: int) -> tuple[str, dict[str, Join]]:
    """The table that the others refer to, and by which join each of them does."""
    if len(names) == 1:
        return names[0], {}
    for parent in names:
        links: dict[str, Join] = {}
        for child in names:
            source = batch.tables[child].source
            found = [j for j in (source.joins if source else ()) if j.table == parent and len(j.pairs) == 1]
            if child != parent and len(found) == 1 and found[0].pairs[0][0].source == "" and found[0].of is None:
                links[child] = found[0]
        kinds = {_key(link) for link in links.values()}
        if len(links) == len(names) - 1 and len(kinds) == 1:
            return parent, links
    raise NotSupportedError(
        f"release {release} counts the rows of {listed(names)}, of which not all are joined to one by one column; "
        "count a table by columns of the one that it refers to, in the same batch, or release each table by itself"
    )


def _key(link: Join) -> tuple[str, str]:
    """The column that rows are referred to by, and its type here."""
    key = link.pairs[0][1]
    if key.type == "VARCHAR":
        return key.name, "VARCHAR"
    if line_of(key.type).kind == "integer":
        return key.name, "BIGINT"
    raise NotSupportedError(
        f"rows of {link.table} are referred to by {key.name}, of type {key.type}; synthetic rows have keys that are "
        "whole numbers or text"
    )


def _numbered(link: Join, name: str, n: int, rows: Ints) -> tuple[str, str, Coded]:
    """The column ``name`` of keys of so many rows out of ``n``, which are numbered from 1."""
    kind = _key(link)[1]
    numbers = tuple(str(at) if kind == "VARCHAR" else at for at in range(1, n + 1))
    return name, kind, Coded(numbers, rows.astype(np.int32))


def _is_of_units(count: CountTable, batch: Understood, child: str) -> bool:
    """Whether units are counted by how many rows of a table they have, and by nothing else."""
    source = batch.tables[count.table].source
    units = None if source is None else source.of
    known = batch.tables[child].source
    if units is None or known is None or len(count.keys) != 1 or units.having is not None or units.where is not None:
        return False
    (key,) = count.keys
    same = units.of.table == known.table and [c.function for c in units.columns] == ["count"]
    return same and isinstance(key, KeyDomain) and all(type(value) is int for value in key.values)


@dataclass(frozen=True, eq=False)
class _Child:
    """A table whose rows refer to those of another one, by ``link``."""

    table: Table
    model: TableModel
    link: Join

    def rows(
        self, parents: Result, total: float, per_unit: CountTable | None, generator: Generator
    ) -> tuple[Ints, Ints]:
        """Rows of regions, and the row of ``parents``, of ``total`` rows as released, that each refers to."""
        n = len(parents)
        source = self.table.source
        limit = 1 if source is None else source.limit
        wanted = min(round(n * self.model.total / total), n * limit)
        if per_unit is None:
            room = min(limit, 1 + 20 * wanted // max(n, 1))  # more for each would change little and cost memory
            slots = generator.permutation(np.repeat(np.arange(n), room))
        else:
            slots = self._slots(n, total, limit, per_unit, generator)
            if len(slots) < 0.9 * wanted:  # units of more rows than are counted one by one: as many of each are kept
                free = generator.permutation(np.setdiff1d(np.arange(n), slots))
                slots = np.concatenate([slots, np.repeat(free, limit)[: wanted - len(slots)]])
            slots = generator.permutation(slots)
            wanted = len(slots)
        made = self.model.rows(wanted, generator)
        beside = [(at, axis) for at, axis in enumerate(self.model.axes) if axis.source == self.link.name]
        held: dict[int, Ints] = {}
        mine, theirs = np.zeros(wanted, dtype=np.int64), np.zeros(n, dtype=np.int64)
        names = [name.lower() for name in parents.columns]
        for at, axis in beside:
            if axis.name.lower() not in names:
                continue
            column = parents.column_at(names.index(axis.name.lower()))
            assert isinstance(column, Coded)  # noqa: S101 - narrows the type for the checker
            known = np.array([region_of(axis, value) for value in column.distinct], dtype=np.int64)
            held[at] = known[column.codes]
            mine = mine * (len(axis.regions) + 1) + made[at]
            theirs = theirs * (len(axis.regions) + 1) + held[at]
        one, two = matched(mine, theirs[slots])
        owners = np.full(wanted, -1, dtype=np.int64)
        owners[one] = slots[two]
        owners[owners < 0] = np.delete(slots, two)[: wanted - len(one)]
        for at, regions in held.items():
            made[at] = np.where(regions[owners] >= 0, regions[owners], made[at])
        return made, owners

    def _slots(self, n: int, total: float, limit: int, per_unit: CountTable, generator: Generator) -> Ints:
        """Each of ``n`` rows as often as it is referred to, as many of them each number of times as was released."""
        (key,) = per_unit.keys
        assert isinstance(key, KeyDomain)  # noqa: S101 - as `_is_of_units` says
        times = [*(int(str(value)) for value in key.values), *[limit] * (len(key) - len(key.values))]
        units = np.maximum(per_unit.counts, 0.0) * n / total
        units = units * min(1.0, n / max(float(units.sum()), 1e-300))
        often = np.repeat(np.minimum(times, limit), rounded(units, generator))[:n]
        whose = generator.permutation(n)[: len(often)]
        return np.repeat(whose, often)
