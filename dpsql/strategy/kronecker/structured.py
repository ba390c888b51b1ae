"""Strategies for batches over many columns: each residual space measured by itself, by a product of small matrices.

A batch is blocks w = coefficient x (Kronecker product of factors) over histograms
(``dpsql.workload.compile.structured``). With C_i = I - 1 1^T / d_i on axis i, the part of w in residual T (a set of
axes) is w_T, centred along T and averaged over the other axes of w, and w x = sum_T w_T x_T. Each residual T of each
component (counts, or the sums of one measure) is measured by integers k_T B_T, B_T a Kronecker product of one matrix
for each axis of T whose rows span all that is orthogonal to 1 there. Then

    answers    w B^+ y = sum_T w_T B_T^+ y_T / k_T, unbiased, and all answers agree with one estimate of the x_T;
    error      sum_T e_T / k_T^2,  e_T = sum over blocks of weight^2 ||w_T B_T^+||^2;
    norm       at most sum_T k_T^2 n_T (L1: sum_T k_T l_T), n_T and l_T the longest columns of B_T
               (``dpsql.workload.compile.kronecker`` has the proof).

Weights. For Gaussian noise (sum k^2 n)(sum e / k^2) is least at k_T^2 ~ (e_T / n_T)^1/2, where it is
(sum_T (e_T n_T)^1/2)^2 (Cauchy-Schwarz); for Laplace noise (sum k l)^2 (sum e / k^2) at k_T ~ (e_T / l_T)^1/3. They are
rounded to whole numbers, doubled until the loss is below a tenth of the tolerance. Tables whose units differ are scaled
to one sensitivity, for no neighbour moves both; k rows of a unit count k-fold (``dpsql.workload.compile.sensitivity``).

Matrices: ``dpsql.strategy.kronecker.residual_matrices``. For marginals the error is the singular value bound,
certified; for mixtures it is computed from what is measured, exactly, and set against ``structured_bound`` where that
is within reach. For Laplace noise all of it is taken only where whole tables
(``dpsql.strategy.kronecker.structured_blocks``) have no lower error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import gcd, prod, sqrt
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import DataError, listed
from dpsql.linalg.blocks import Plain, Residual, RowBlock
from dpsql.strategy.kronecker.residual_matrices import Place, ResidualMatrices
from dpsql.strategy.kronecker.structured_blocks import METHOD as BLOCKS
from dpsql.strategy.kronecker.structured_blocks import block_residuals
from dpsql.strategy.kronecker.structured_bound import structured_bound
from dpsql.workload.compile.kronecker import KroneckerIntegers
from dpsql.workload.compile.layout import common_multiplicity
from dpsql.workload.compile.sensitivity import sensitivity_of
from dpsql.workload.compile.structured import Structured
from dpsql.workload.expr.too_many import to_leave_out

Floats = NDArray[np.float64]

METHOD, MIXED = "residual-basis", "residual-products"
MAX_MEASURED = 2**23
MAX_RESIDUALS = 200_000
MAX_AXES = 20  # of one statement
_STEPS = 2**16


@dataclass(frozen=True, eq=False)
class StructuredStrategy:
    """What is measured of a structured batch; the surface of ``Strategy`` that plans and runs use.

    ``structured``: the batch, with the histograms that are measured (those of the batch as compiled, or others).
    ``residuals`` in the order of y. ``l1``, ``l2_squared``: sensitivity to a whole unit, over
    ``common_multiplicity`` (its square). ``expected``: total squared error at sensitivity 1 in the objective's units.
    ``lower_bound``: no Gaussian matrix mechanism has a lower error; None where none is known.
    """

    structured: Structured = field(repr=False)
    residuals: tuple[Residual, ...] = field(repr=False)
    noise: str
    method: str
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    objective: str = "total"

    @cached_property
    def measured(self) -> KroneckerIntegers:
        """B as it is measured."""
        return KroneckerIntegers(self.structured.histograms, self.residuals)

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n entries of x)."""
        return self.measured.shape

    @property
    def value(self) -> float:
        """What was minimised: ``expected``."""
        return self.expected

    @property
    def gap(self) -> float | None:
        """error / lower bound - 1, from the integers that are measured; None where no bound is known."""
        if self.noise != "gaussian" or self.lower_bound is None:
            return None
        return max(0.0, self.expected / self.lower_bound - 1.0)


def structured_strategy(
    batch: Structured,
    noise: str,
    *,
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    objective: str = "total",
) -> StructuredStrategy:
    """The strategy of a structured batch. ``tolerance`` and ``time_limit`` go to the selections for single axes.

    Cost: the number of residuals times the axes, besides one selection for each distinct Gram matrix of an axis; none
    for marginals. Raises DataError above 200,000 residuals or 2^23 measurements.
    """
    if objective != "total":
        raise DataError(
            "objective 'max' is planned for batches whose columns make few combinations; leave it out, or ask for "
            "fewer groupings"
        )
    say = progress or (lambda _: None)
    wanted = _wanted(batch)
    say(f"{len(wanted):,} residuals of {len(batch.histograms):,} histograms")
    chooser = ResidualMatrices(batch, noise, tolerance, None if time_limit is None else monotonic() + time_limit)
    homes = _homes(batch)
    costs: dict[Place, float] = {}
    drafts: list[tuple[Residual, float]] = []
    measured = 0
    for place, blocks in wanted.items():
        table, component, axes = place
        mine = [block for block in blocks if chooser.reaches(block, axes)]
        if not mine:
            continue
        if noise == "laplace":
            plain = tuple(Plain(batch.sizes[table][axis]) for axis in axes)
            costs[place] = sum(chooser.squared(block, axes, plain) for block in mine)
        integers = chooser.integers(place, mine)
        residual = Residual(table, component, axes, homes[place], integers)
        error = sum(chooser.squared(block, axes, integers) for block in mine)
        measured += residual.rows
        if measured > MAX_MEASURED:
            raise _too_many_measurements(batch, wanted)
        drafts.append((residual, error))
    groups = _groups(batch, drafts)
    wanted_k = _weights(batch, drafts, groups, noise)
    residuals, expected, l1, l2 = _rounded(batch, drafts, wanted_k, noise, tolerance)
    method = METHOD if batch.pure else MIXED
    if noise == "laplace":
        found = _tables(batch, costs, tolerance)
        ranked = tuple(sorted([(method, expected)] + ([(found.method, found.expected)] if found else []), key=_second))
        if found is not None and found.expected < expected:
            return replace(found, considered=ranked)
        return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, None, ranked)
    exact = batch.pure and not any(block.component for block in batch.blocks)
    until = np.inf if chooser.deadline is None else chooser.deadline
    lower = _bound(batch, drafts, groups) if exact else structured_bound(batch, until)
    return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, lower, ((method, expected),))


def _second(entry: tuple[str, float]) -> float:
    return entry[1]


def _tables(batch: Structured, costs: Mapping[Place, float], tolerance: float) -> StructuredStrategy | None:
    """Whole tables for Laplace noise, with what they cost from the integers that are measured; None if too many."""
    unit = {table: batch.layouts[owned[0]].source.protects for table, owned in enumerate(batch.owners) if owned}
    found = block_residuals(batch, costs, _multiplicities(batch), unit, tolerance / 10.0)
    if found is None:
        return None
    extended, residuals, variance = found
    if sum(residual.rows for residual in residuals) > MAX_MEASURED:
        return None
    held = KroneckerIntegers(extended.histograms, residuals)
    held.check()
    common = common_multiplicity(extended.layouts)
    l1 = sensitivity_of("laplace", held, extended.layouts)
    l2 = sensitivity_of("gaussian", held, extended.layouts)
    expected = (l1 / common) ** 2 * variance
    return StructuredStrategy(
        extended, residuals, "laplace", BLOCKS, -(-l1 // common), -(-l2 // common**2), expected, None, ()
    )


def _wanted(batch: Structured) -> dict[Place, list[RowBlock]]:
    """The residuals that some block has a part in, with those blocks."""
    found: dict[Place, list[RowBlock]] = {}
    for block in batch.blocks:
        sizes = batch.sizes[block.table]
        wide = [axis for axis in block.axes if sizes[axis] > 1]
        if len(wide) > MAX_AXES:
            extra = sorted(wide, key=lambda axis: -sizes[axis])[: len(wide) - MAX_AXES]
            raise DataError(
                f"strategy: a statement combines {len(wide)} columns and conditions, at most {MAX_AXES} are planned: "
                f"leave out {len(extra)} of them, such as {listed([batch.names[block.table][a] for a in extra])}"
            )
        for order in range(len(wide) + 1):
            for axes in combinations(wide, order):
                found.setdefault((block.table, block.component, axes), []).append(block)
                if len(found) > MAX_RESIDUALS:
                    raise _too_many_residuals(batch)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1], len(item[0][2]), item[0][2])))


def _too_many_residuals(batch: Structured) -> DataError:
    wide = {(b.table, tuple(axis for axis in b.axes if batch.sizes[b.table][axis] > 1)) for b in batch.blocks}
    names = [[batch.names[table][axis] for axis in axes] for table, axes in wide]
    dropped = to_leave_out(names, [2 ** len(axes) for _, axes in wide], MAX_RESIDUALS)
    return DataError(
        f"strategy: the batch has more than {MAX_RESIDUALS:,} residuals, one for each set of columns within a "
        f"grouping: combine fewer columns, or leave out {listed(sorted(dropped))}"
    )


def _too_many_measurements(batch: Structured, wanted: Mapping[Place, object]) -> DataError:
    names = [[batch.names[table][axis] for axis in axes] for table, _, axes in wanted]
    sizes = [prod(batch.sizes[table][axis] for axis in axes) for table, _, axes in wanted]
    dropped = to_leave_out(names, sizes, MAX_MEASURED) or ["the finest of them"]
    return DataError(
        f"strategy: the batch needs about {sum(sizes):,} measurements, at most {MAX_MEASURED:,} are made: ask for "
        f"fewer groupings, coarsen the columns, or leave out {listed(dropped)}"
    )


def _homes(batch: Structured) -> dict[Place, int]:
    """The histogram that each residual is read from: the first that has its axes."""
    found: dict[Place, int] = {}
    for number, held in enumerate(batch.histograms):
        wide = [axis for axis, size in zip(held.axes, held.sizes, strict=True) if size > 1]
        for order in range(min(len(wide), MAX_AXES) + 1):
            for axes in combinations(wide, order):
                found.setdefault((held.table, held.component, axes), number)
    return found


# -- weights ----------------------------------------------------------------------------------------


def _groups(batch: Structured, drafts: Sequence[tuple[Residual, float]]) -> list[list[int]]:
    """The numbers of the drafts that one unit can move, unit by unit."""
    label = {table: batch.layouts[owned[0]].source.protects for table, owned in enumerate(batch.owners) if owned}
    found: dict[str, list[int]] = {}
    for number, (residual, _) in enumerate(drafts):
        found.setdefault(label[residual.table], []).append(number)
    return list(found.values())


def _multiplicities(batch: Structured) -> Mapping[int, int]:
    return {table: batch.layouts[owned[0]].multiplicity for table, owned in enumerate(batch.owners) if owned}


def _weights(
    batch: Structured, drafts: Sequence[tuple[Residual, float]], groups: Sequence[Sequence[int]], noise: str
) -> Floats:
    """The real multipliers at sensitivity 1 of every unit; see the module."""
    rows = _multiplicities(batch)
    out = np.zeros(len(drafts))
    for group in groups:
        error = np.array([drafts[i][1] for i in group])
        order = 0 if noise == "laplace" else 1
        norm = np.array([float(drafts[i][0].norms[order]) for i in group])
        times = np.array([float(rows[drafts[i][0].table]) for i in group])
        if noise == "laplace":
            k = np.cbrt(error / (norm * times))
            out[list(group)] = k / float(k @ (norm * times))
        else:
            k = (error / (norm * times**2)) ** 0.25
            out[list(group)] = k / sqrt(float(k**2 @ (norm * times**2)))
    return out


def _rounded(
    batch: Structured, drafts: Sequence[tuple[Residual, float]], wanted: Floats, noise: str, tolerance: float
) -> tuple[tuple[Residual, ...], float, int, int]:
    """(residuals with whole multipliers, error at sensitivity 1, L1, squared L2) within tolerance / 10 of the best."""
    error = np.array([e for _, e in drafts])
    target = float((error / wanted**2).sum())
    rows = _multiplicities(batch)
    common = common_multiplicity(batch.layouts)
    label = {t: batch.layouts[owned[0]].source.protects for t, owned in enumerate(batch.owners) if owned}
    step = 1
    while True:
        k = np.maximum(1, np.rint(wanted * (step / wanted.min()))).astype(np.int64)
        totals: dict[str, list[int]] = {}
        for (residual, _), times in zip(drafts, k.tolist(), strict=True):
            l1, l2 = residual.norms
            held = totals.setdefault(label[residual.table], [0, 0])
            held[0] += times * l1 * rows[residual.table]
            held[1] += times**2 * l2 * rows[residual.table] ** 2
        l1, l2 = max(held[0] for held in totals.values()), max(held[1] for held in totals.values())
        sensitivity = float(l1) ** 2 if noise == "laplace" else float(l2)
        found = sensitivity * float((error / k.astype(np.float64) ** 2).sum())
        if found <= (1.0 + tolerance / 10.0) * target or step >= _STEPS:
            break
        step *= 2
    shared = gcd(*k.tolist())
    k //= shared
    residuals = tuple(
        Residual(r.table, r.component, r.axes, r.histogram, r.integers, times)
        for (r, _), times in zip(drafts, k.tolist(), strict=True)
    )
    held_integers = KroneckerIntegers(batch.histograms, residuals)
    held_integers.check()
    # The figures that count are worked out from what is measured, as for any other strategy.
    l1 = sensitivity_of("laplace", held_integers, batch.layouts)
    l2 = sensitivity_of("gaussian", held_integers, batch.layouts)
    sensitivity = (l1 / common) ** 2 if noise == "laplace" else l2 / common**2
    expected = sensitivity * float((error / k.astype(np.float64) ** 2).sum())
    return residuals, expected, -(-l1 // common), -(-l2 // common**2)


def _bound(batch: Structured, drafts: Sequence[tuple[Residual, float]], groups: Sequence[Sequence[int]]) -> float:
    """The singular value bound of marginals, table by table: (sum_T (e_T n_T)^1/2)^2 for k rows of a unit.

    Tables apart: what units with rows in several cost beyond it is part of the gap.
    """
    rows, common = _multiplicities(batch), common_multiplicity(batch.layouts)
    found: dict[int, float] = {}
    for residual, error in drafts:
        found[residual.table] = found.get(residual.table, 0.0) + sqrt(error * residual.norms[1])
    return sum((rows[table] / common) ** 2 * root**2 for table, root in found.items())


__all__ = ["METHOD", "MIXED", "StructuredStrategy", "structured_strategy"]
