"""Joint cells: what earlier batches and a new one tell apart together, and every earlier measurement over them.

An earlier measurement is y = B (L x) + z over the cells of its own batch. Compiled beside other batches, its cells fall
into finer ones, and x = M x' for the x' of the finer cells, with one entry 1 in each column of M at most. M is found
from W alone: a fine cell lies in the coarse one that has the same columns of W, which are distinct there. Whatever is
found is then held against the equation that it must fulfil, W M = W' in exact integers.

A row that breaks a declaration of the policy (a value outside closed ``values``, NULL where there is none) counts in no
cell of a batch that uses the column, and in those of a batch that does not. Combinations take the policy at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from dpsql.errors import InternalError, SQLError
from dpsql.linalg.columns import distinct_columns
from dpsql.planning.prepare import understood_of
from dpsql.policy import Policy
from dpsql.privacy.noise import Noise
from dpsql.release.payload import Measurement
from dpsql.sql.outer.answers import Understood
from dpsql.sql.resolve.batch_tables import united
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.compiled import compile_rows
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.units import UNORDERED, retention_order
from dpsql.workloads.expr.batch import Query

from .stored_measurements import integers_of, is_of, meaning_of, same_cells


@dataclass(frozen=True, eq=False)
class Past:
    """An earlier release, understood again: what it measured, of what, and what came out.

    ``parts``: the batches, by their releases, whose cells it measured: its own, and those of earlier ones where an
    older version measured it beside them. ``rows``: W of all of them, its own last.
    """

    release: int
    parts: Mapping[int, Understood] = field(repr=False)
    layouts: tuple[Layout, ...] = field(repr=False)
    rows: sparse.csr_array = field(repr=False)
    integers: Factored = field(repr=False)
    measurement: Measurement = field(repr=False)
    first: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def tables(self) -> set[str]:
        """The tables that it reads, by the names that queries use."""
        return {query.table for part in self.parts.values() for query in part.queries}

    def keeps(self, first: Mapping[str, str]) -> bool:
        """Whether it kept the same rows of units as ``first`` says, in all that both read (``retention_order``)."""
        mine = self.row_order
        return all(mine[table] == first[table] for table in mine.keys() & first.keys())

    @cached_property
    def row_order(self) -> Mapping[str, str]:
        """``retention_order`` of it; that of a table by an older version, which wrote none down, equals no other.

        But where the unit is the key, such releases have equal ones, as the policy says that none lost rows.
        """
        keys, unknown = {layout.table for layout in self.layouts if layout.source.single}, f"release {self.release}"
        return {
            table: self.first.get(table, UNORDERED if table in keys else f"unknown to {unknown}")
            for table in retention_order(self.layouts)
        }


@dataclass(frozen=True, eq=False)
class Observation:
    """y = matrix @ (divisor x) + z: an earlier measurement over joint cells. ``noise``: the law of z."""

    release: int
    matrix: sparse.csr_array = field(repr=False)
    divisor: int
    y: tuple[int, ...] = field(repr=False)
    noise: Noise


@dataclass(frozen=True, eq=False)
class Joint:
    """W of the new batch over joint cells, and what was observed of them.

    ``layouts`` say where rows of tables go.
    """

    layouts: tuple[Layout, ...] = field(repr=False)
    rows: sparse.csr_array = field(repr=False)
    scale: np.ndarray = field(repr=False)
    observations: tuple[Observation, ...]


def past_of(
    release: int,
    sql: str,
    measurement: Measurement,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    understood: Callable[[str], Understood] | None = None,
    texts: Mapping[int, str] | None = None,
) -> Past | None:
    """An earlier release as the policy and types of today read its batch; None where it cannot be combined.

    That is where nothing was kept of its integers, where the policy says other things of tables and columns by now, and
    where the batch comes to another W. ``texts``: the batches of the releases beside which it was measured.
    ``understood`` may remember what a text means, as equal texts are then compiled once.
    """
    stored = measurement.stored
    if stored is None or not same_cells(stored) or stored.get("policy") != meaning_of(policy.to_toml()):
        return None
    read = understood or (lambda text: understood_of(text, policy, schemas))
    beside = [int(number) for number in stored.get("beside", ())]
    try:
        parts = {number: read((texts or {})[number]) for number in beside} | {release: read(sql)}
        layouts, rows, scale = _compiled([parts[number] for number in beside], parts[release])
    except (SQLError, InternalError, KeyError):
        return None
    integers = integers_of(stored)
    mine = rows.shape[0] - _numbers(parts[release].queries)
    if not is_of(stored, sparse.csr_array(rows[mine:]), scale[mine:]) or integers.shape != (
        len(measurement.y),
        rows.shape[1],
    ):
        return None
    return Past(release, parts, layouts, rows, integers, measurement, stored.get("first", {}))


def join(understood: Understood, pasts: Sequence[Past]) -> Joint | None:
    """The new batch and earlier ones over the cells that they tell apart together; None where these are too many.

    Earlier batches over other tables are left out. Cost: one compilation of all batches together.
    """
    names = {query.table for query in understood.queries}
    mine = [past for past in pasts if names & past.tables]
    held = {number: part for past in mine for number, part in past.parts.items()}
    beside = tuple(sorted(held))
    try:
        layouts, rows, scale = _compiled([held[number] for number in beside], understood)
    except (SQLError, InternalError):  # too many cells; or one name for two computed columns
        return None
    starts, start = {}, 0
    for part in _once([held[number] for number in beside]):
        starts[id(part)] = start
        start += _numbers(part.queries)
    observations = []
    for past in mine:
        last = past.parts[past.release]
        others = _once([past.parts[number] for number in sorted(past.parts) if number != past.release])
        at = [np.arange(starts[id(part)], starts[id(part)] + _numbers(part.queries)) for part in (*others, last)]
        onto = onto_joint(past.layouts, past.rows, layouts, sparse.csr_array(rows[np.concatenate(at)]))
        if onto is None:
            return None
        matrix = sparse.csr_array(past.integers.mixing @ (past.integers.basis @ onto))
        found = past.measurement
        observations.append(Observation(past.release, matrix, found.common_steps, found.y, found.law))
    return Joint(layouts, sparse.csr_array(rows[start:]), scale[start:], tuple(observations))


def _compiled(
    beside: Sequence[Understood], last: Understood
) -> tuple[tuple[Layout, ...], sparse.csr_array, np.ndarray]:
    """Layouts, rows and scale of several batches together, one of equal texts once, and of ``last``, always last."""
    parts = [*_once(beside), last]
    tables = united(
        [*last.tables.values(), *(t for part in parts[:-1] for t in part.tables.values())],
    )
    return compile_rows([query for part in parts for query in part.queries], tables)


def _once(parts: Sequence[Understood]) -> list[Understood]:
    return list({id(part): part for part in parts}.values())


def _numbers(queries: Sequence[Query]) -> int:
    """How many rows of W queries have."""
    return sum(query.rows * len(query.outputs) for query in queries)


def onto_joint(
    coarse_layouts: Sequence[Layout], coarse_rows: sparse.csr_array, layouts: Sequence[Layout], rows: sparse.csr_array
) -> sparse.csr_array | None:
    """M (entries of a batch x joint entries), x = M x'; None where it is not found. ``rows``: the batch's, joint."""
    by_table = {layout.table: layout for layout in layouts}
    old_columns, new_columns = sparse.csc_array(coarse_rows), sparse.csc_array(rows)
    at_old, at_new = [], []
    for old in coarse_layouts:
        new = by_table[old.table]
        places = [0, *(1 + new.measures.index(measure) if measure in new.measures else -1 for measure in old.measures)]
        if -1 in places:
            return None
        coarse, fine = distinct_cells(old.entry), distinct_cells(new.entry)
        stacked = sparse.vstack(
            [
                sparse.hstack([_columns(old_columns, coarse[number]), _columns(new_columns, fine[place])], format="csr")
                for number, place in enumerate(places)
            ],
            format="csr",
        )
        label = distinct_columns(stacked).label
        cell_of = {int(mark): cell for cell, mark in enumerate(label[: coarse.shape[1]]) if mark >= 0}
        found = np.array([cell_of.get(int(mark), -1) for mark in label[coarse.shape[1] :]], dtype=np.int64)
        inside = found >= 0
        for number, place in enumerate(places):
            entry, joint = coarse[number][found[inside]], fine[place][inside]
            if np.any(joint[entry >= 0] < 0):
                return None
            at_old.append(entry[entry >= 0])
            at_new.append(joint[entry >= 0])
    old_entries, new_entries = np.concatenate(at_old), np.concatenate(at_new)
    onto = sparse.csr_array(
        (np.ones(len(old_entries), dtype=np.int64), (old_entries, new_entries)),
        shape=(coarse_rows.shape[1], rows.shape[1]),
    )
    apart = abs(sparse.csr_array(coarse_rows @ onto - rows)).sum()
    return onto if apart == 0 else None


def distinct_cells(entry: np.ndarray) -> np.ndarray:
    """One column of ``entry`` for each merged cell that fills an entry."""
    filled = entry[:, (entry >= 0).any(axis=0)]
    return np.asarray(filled[:, np.unique(filled.max(axis=0), return_index=True)[1]])


def _columns(rows: sparse.csc_array, entries: np.ndarray) -> sparse.csc_array:
    """The columns of these entries, zeros for -1."""
    if (entries >= 0).all():
        return rows[:, entries]
    taken = rows[:, np.maximum(entries, 0)]
    return sparse.csc_array(taken @ sparse.diags_array((entries >= 0).astype(np.int64), dtype=np.int64))
