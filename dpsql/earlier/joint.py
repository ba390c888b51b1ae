"""Joint cells: what earlier batches and a new one tell apart together, and every earlier measurement over them.

An earlier measurement is y = B (L x) + z over the cells of its own batch. Compiled beside other batches, its cells fall
into finer ones, and x = M x' for the x' of the finer cells, with one entry 1 in each column of M at most. M is found
from W alone: a fine cell lies in the coarse one that has the same columns of W, which are distinct there. Whatever is
found is then held against the equation that it must fulfil, W M = W' in exact integers.

A row that breaks a declaration of the policy (a value outside closed ``values``, NULL where there is none) counts in no
cell of a batch that uses the column, and in those of a batch that does not. Combinations take the policy at its word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from scipy import sparse

from dpsql.errors import InternalError, SQLError
from dpsql.linalg.columns import distinct_columns
from dpsql.policy import Policy
from dpsql.prepare import understood_of
from dpsql.release.payload import Measurement
from dpsql.sql.answers import Understood
from dpsql.sql.batch_tables import united
from dpsql.workload.batch import Query, Table
from dpsql.workload.compile import compile_batch, compile_rows
from dpsql.workload.integers import Factored
from dpsql.workload.layout import Layout

from .kept import CELLS, integers_of, meaning_of, workload_hash


@dataclass(frozen=True, eq=False)
class Past:
    """An earlier release, understood again: what it measured, of what, and what came out."""

    release: int
    queries: tuple[Query, ...] = field(repr=False)
    tables: Mapping[str, Table] = field(repr=False)
    layouts: tuple[Layout, ...] = field(repr=False)
    rows: sparse.csr_array = field(repr=False)
    integers: Factored = field(repr=False)
    measurement: Measurement = field(repr=False)


@dataclass(frozen=True, eq=False)
class Observation:
    """y = matrix @ (divisor x) + z: an earlier measurement over joint cells. ``noise`` is "gaussian" or "laplace"."""

    release: int
    matrix: sparse.csr_array = field(repr=False)
    divisor: int
    y: tuple[int, ...] = field(repr=False)
    noise: str
    parameter: Fraction


@dataclass(frozen=True, eq=False)
class Joint:
    """W of the new batch over joint cells, and what was observed of them; ``numbers`` of W (m,)."""

    rows: sparse.csr_array = field(repr=False)
    scale: np.ndarray = field(repr=False)
    observations: tuple[Observation, ...]


def past_of(
    release: int,
    sql: str,
    measurement: Measurement,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
) -> Past | None:
    """An earlier release as the policy and types of today read its batch; None where it cannot be combined.

    That is where nothing was kept of its integers, where the policy says other things of tables and columns by now, and
    where the batch comes to another W.
    """
    kept = measurement.kept
    if kept is None or kept.get("cells") != CELLS or kept.get("policy") != meaning_of(policy.to_toml()):
        return None
    try:
        understood = understood_of(sql, policy, schemas)
        compiled = compile_batch(understood.queries, understood.tables, boxes=False)
    except SQLError:
        return None
    integers = integers_of(kept)
    if workload_hash(compiled) != kept.get("workload") or integers.shape != (
        len(measurement.y),
        compiled.rows.shape[1],
    ):
        return None
    return Past(release, understood.queries, understood.tables, compiled.layouts, compiled.rows, integers, measurement)


def join(understood: Understood, pasts: Sequence[Past]) -> Joint | None:
    """The new batch and earlier ones over the cells that they tell apart together; None where these are too many.

    Earlier batches over other tables are left out. Cost: one compilation of all batches together.
    """
    names = {query.table for query in understood.queries}
    mine = [past for past in pasts if names & {query.table for query in past.queries}]
    try:
        tables = united([*understood.tables.values(), *(t for past in mine for t in past.tables.values())])
        queries = [query for past in mine for query in past.queries]
        layouts, rows, scale = compile_rows([*queries, *understood.queries], tables)
    except (SQLError, InternalError):  # too many cells; or one name for two computed columns
        return None
    start, observations = 0, []
    for past in mine:
        stop = start + past.rows.shape[0]
        onto = _onto(past, layouts, sparse.csr_array(rows[start:stop]))
        start = stop
        if onto is None:
            return None
        matrix = sparse.csr_array(past.integers.mixing @ (past.integers.basis @ onto))
        found = past.measurement
        observations.append(
            Observation(past.release, matrix, found.common_steps, found.y, found.noise, found.parameter)
        )
    return Joint(sparse.csr_array(rows[start:]), scale[start:], tuple(observations))


def _onto(past: Past, layouts: Sequence[Layout], rows: sparse.csr_array) -> sparse.csr_array | None:
    """M (entries of the past x joint entries), x = M x'; None where it is not found. ``rows``: the past's, joint."""
    by_table = {layout.table: layout for layout in layouts}
    at_old, at_new = [], []
    for old in past.layouts:
        new = by_table[old.table]
        places = [0, *(1 + new.measures.index(measure) if measure in new.measures else -1 for measure in old.measures)]
        if -1 in places:
            return None
        coarse, fine = _cells(old.entry), _cells(new.entry)
        stacked = sparse.vstack(
            [
                sparse.hstack([_columns(past.rows, coarse[number]), _columns(rows, fine[place])], format="csr")
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
        shape=(past.rows.shape[1], rows.shape[1]),
    )
    apart = abs(sparse.csr_array(past.rows @ onto - rows)).sum()
    return onto if apart == 0 else None


def _cells(entry: np.ndarray) -> np.ndarray:
    """One column of ``entry`` for each merged cell that fills an entry."""
    filled = entry[:, (entry >= 0).any(axis=0)]
    return np.asarray(filled[:, np.unique(filled.max(axis=0), return_index=True)[1]])


def _columns(rows: sparse.csr_array, entries: np.ndarray) -> sparse.csr_array:
    """The columns of these entries, zeros for -1."""
    taken = sparse.csc_array(rows)[:, np.maximum(entries, 0)]
    return sparse.csr_array(taken @ sparse.diags_array((entries >= 0).astype(np.int64), dtype=np.int64))
