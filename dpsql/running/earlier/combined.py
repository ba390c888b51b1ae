"""A batch answered from earlier measurements alone: estimates, errors and what formulas need of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats
from dpsql.errors import InternalError, SQLError
from dpsql.planning.prepare import Prepared, cores_of
from dpsql.reconstruct.combined import MOST_COLUMNS, CombinedAnswers, Observed, White, answers_alone, combined_answers
from dpsql.sql import Answer
from dpsql.sql.outer.answers import Understood
from dpsql.sql.resolve.batch_tables import united
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.structured import regions_of
from dpsql.workloads.compile.units import retention_order
from dpsql.workloads.expr.batch import Core

from .joint import Joint, Past, join

_MOST_PRODUCT = 4 * MOST_COLUMNS
"""Combinations of regions of joint cells, before those merge that no batch tells apart."""
_MOST_PASTS = 200


@dataclass(frozen=True, eq=False)
class Combination:
    """The answers of a batch from earlier measurements; what ``dpsql.running.result_tables`` makes result tables of.

    ``errors`` and ``widths`` (m,): standard errors and half-widths at 1 - ``alpha``. ``rests_on``: the releases used.
    """

    queries: tuple[Answer, ...] = field(repr=False)
    compiled: Compiled = field(repr=False)
    answers: CombinedAnswers = field(repr=False)
    errors: Floats = field(repr=False)
    widths: Floats = field(repr=False)
    alpha: float
    rests_on: tuple[int, ...]

    @property
    def values(self) -> Floats:
        """The estimates (m,), constants left out."""
        return self.answers.values()

    @property
    def noise(self) -> White:
        """The law with which ``answers.rows`` are read."""
        return self.answers.law

    def mean_square(self, part: slice) -> float:
        """The mean squared error of the numbers ``part``."""
        return float(np.mean(self.errors[part] ** 2)) if part.stop > part.start else 0.0

    @property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]:
        """Every core of every statement in order, with the rows of W that each of its outputs takes."""
        return cores_of(self.queries, self.compiled.spans)


def combine(
    prepared: Prepared, pasts: Sequence[Past], alpha: float, first: frozenset[int] = frozenset()
) -> Combination | None:
    """What ``pasts`` say together about a batch; None where they do not determine every number of it.

    Generalised least squares over all of them (``dpsql.reconstruct.combined``). Free: post-processing of what was
    released. Batches in blocks or closed forms are not combined. Where all earlier batches together tell too many cells
    apart, those are left out that do not fit (``joined``), those of ``first`` last.
    """
    compiled = prepared.compiled.matrix
    if compiled is None or not pasts:
        return None
    joint = joined(prepared, pasts, first)
    if joint is None or not joint.observations:
        return None
    answers = combined_answers(workload_of(joint), observed_of(joint), compiled.common_steps)
    if answers is None:
        return None
    return Combination(
        prepared.understood.answers,
        compiled,
        answers,
        answers.errors(),
        answers.widths(None, alpha),
        alpha,
        tuple(o.release for o in joint.observations),
    )


def alone(prepared: Prepared, past: Past, alpha: float) -> Combination | None:
    """What a release says of its own batch, by its measurement alone: as ``combine``, over however many cells."""
    compiled = prepared.compiled.matrix
    if compiled is None or len(past.parts) > 1 or compiled.rows.shape != past.rows.shape:
        return None
    if abs(sparse.csr_array(compiled.rows) - past.rows).sum():
        return None
    held = past.measurement
    matrix = sparse.csr_array(past.integers.mixing) @ sparse.csr_array(past.integers.basis)
    one = Observed(matrix, held.common_steps, held.y, held.law)
    workload = sparse.csr_array(compiled.rows).astype(np.float64).multiply(compiled.scale[:, None])
    answers = answers_alone(workload, one, compiled.common_steps)
    if answers is None:
        return None
    queries, widths = prepared.understood.answers, answers.widths(None, alpha)
    return Combination(queries, compiled, answers, answers.errors(), widths, alpha, (past.release,))


def workload_of(joint: Joint) -> Csr:
    """W over joint cells, in floats."""
    return sparse.csr_array(joint.rows.astype(np.float64).multiply(joint.scale[:, None]))


def observed_of(joint: Joint) -> list[Observed]:
    """Every earlier measurement, as it is combined."""
    return [Observed(o.matrix, o.divisor, o.y, o.noise) for o in joint.observations]


def joined(
    prepared: Prepared, pasts: Sequence[Past], first: frozenset[int] = frozenset(), *, beside: bool = False
) -> Joint | None:
    """The batch and earlier ones over joint cells, as many as fit: those of ``first``, which an earlier answer of the
    same batch rests on, so that no answer becomes worse; then those that read all its columns and few others.

    What fits is decided by the regions that all of them tell apart together, before any cell is made. Where a unit has
    more rows than count, only releases that kept the same ones are combined: those of the nearest, or, ``beside`` a
    new measurement of the batch, those that it keeps.
    """
    order = retention_order(prepared.compiled.layouts) if beside else {}
    return _joined(prepared, tuple(pasts), first, tuple(order.items()))


@functools.lru_cache(maxsize=4)  # a plan asks what is free, too, and where units lose no rows that is the same
def _joined(
    prepared: Prepared, pasts: tuple[Past, ...], first: frozenset[int], order: tuple[tuple[str, str], ...]
) -> Joint | None:
    understood = prepared.understood
    names = {query.table for query in understood.queries}
    read = _read(prepared.compiled.layouts)
    mine = [past for past in pasts if names & past.tables]
    chosen: list[Past] = []

    def far(past: Past) -> tuple[bool, bool, int, int]:
        columns = _read(past.layouts)
        return past.release not in first, not read <= columns, len(columns), -past.release

    near = []
    orders = dict(order)
    for past in sorted(mine, key=far):
        if past.keeps(orders):
            near.append(past)
            orders = {**past.row_order, **orders}
    near = near[:_MOST_PASTS]
    if near and _cells(understood, near) <= min(MOST_COLUMNS, _MOST_PRODUCT):  # so that each of them fits
        near, chosen = [], near
    for past in near:
        # One batch may have cells that merge; of several, none that was taken may be lost again.
        taken = {number for other in chosen for number in other.parts}
        room = MOST_COLUMNS if chosen else _MOST_PRODUCT
        if (chosen and taken.issuperset(past.parts)) or _cells(understood, [*chosen, past]) <= room:
            chosen.append(past)
    while chosen:
        found = join(understood, sorted(chosen, key=lambda past: past.release))
        if found is not None and found.rows.shape[1] <= MOST_COLUMNS:
            return found
        chosen = chosen[: len(chosen) // 2]
    return None


def _read(layouts: Sequence[Layout]) -> set[tuple[str, str]]:
    """What a batch tells rows apart by: table and column, or predicate."""
    return {(layout.table, axis.name) for layout in layouts for axis in layout.cells.axes}


def _cells(understood: Understood, pasts: Sequence[Past]) -> float:
    """Combinations of regions that all these batches tell apart together; infinite where they do not go together."""
    parts = list({id(part): part for past in pasts for part in past.parts.values()}.values())
    try:
        tables = united(table for part in (understood, *parts) for table in part.tables.values())
        queries = [query for part in parts for query in part.queries]
        return sum(map(prod, regions_of([*queries, *understood.queries], tables)))
    except (SQLError, InternalError):
        return inf
