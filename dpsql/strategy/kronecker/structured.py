"""Strategies for batches over many columns: each residual space measured by itself, by a product of small matrices.

A batch is blocks w = coefficient x (Kronecker product of factors) over histograms
(``dpsql.workload.compile.structured``). With C_i = I - 1 1^T / d_i on axis i, the part of w in residual T (a set of
axes) is w_T, centred along T and averaged over the other axes of w, and w x = sum_T w_T x_T. Each residual T of each
component (counts, or the sums of one measure) is measured by integers k_T B_T, B_T a Kronecker product of one matrix
for each axis of T whose rows span all that is orthogonal to 1 there; or, with a centre v_i of the axis in place of
1 / d_i (``dpsql.strategy.kronecker.centres``), all that is orthogonal to v_i. Then

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, prod, sqrt
from time import monotonic

import numpy as np

from dpsql.arrays import Floats
from dpsql.errors import DataError, listed
from dpsql.linalg.blocks import Plain, Residual, RowBlock
from dpsql.reconstruct import ResidualAnswers
from dpsql.strategy.core.base import AnyWorkload, Batch, Strategy
from dpsql.strategy.kronecker.centres import centres_of
from dpsql.strategy.kronecker.residual_matrices import ResidualMatrices
from dpsql.strategy.kronecker.structured_blocks import METHOD as BLOCKS
from dpsql.strategy.kronecker.structured_blocks import block_residuals
from dpsql.strategy.kronecker.structured_bound import bound_of_tables, structured_bound
from dpsql.strategy.marginals.multipliers import Place, homes, subsets, whole_multipliers
from dpsql.workload.compile.kronecker import KroneckerIntegers
from dpsql.workload.compile.layout import common_multiplicity
from dpsql.workload.compile.sensitivity import sensitivity_of
from dpsql.workload.compile.structured import Structured
from dpsql.workload.expr.too_many import to_leave_out
from dpsql.workload.families.marginals import Marginals
from dpsql.workload.families.matrix import Workload

METHOD, MIXED = "residual-basis", "residual-products"
MAX_MEASURED = 2**23
MAX_RESIDUALS = 200_000
MAX_AXES = 20  # of one statement
_STEPS = 2**16


@dataclass(frozen=True)
class OneUnit:
    """Noise of variance 1, whatever its kind: errors of answers are then the lengths of their rows."""

    kind: str
    parameter: Fraction = Fraction(1)
    variance: float = 1.0


@dataclass(frozen=True, eq=False)
class StructuredStrategy(Strategy):
    """What is measured of a structured batch.

    ``planned``: the batch, with the histograms that are measured (those of the batch as compiled, or others).
    ``residuals`` in the order of y. ``l1``, ``l2_squared``: sensitivity to a whole unit, over
    ``common_multiplicity`` (its square), rounded up. ``expected``: total squared error at sensitivity 1 in the
    objective's units, or what else was minimised (``dpsql.strategy.targets``).
    """

    planned: Structured = field(repr=False)
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
        return KroneckerIntegers(self.planned.histograms, self.residuals)

    @property
    def value(self) -> float:
        """What was minimised: ``expected``."""
        return self.expected

    def error(self, W: AnyWorkload) -> float:
        """The total squared error of a batch over the same regions, weighted; DataError for another workload."""
        return self.expected if W is self.planned and self.objective != "max" else float(self.variances(W).sum())

    def variances(self, W: AnyWorkload) -> Floats:
        """The squared errors of the numbers of a batch (m,), each in the units of its block's weight."""
        answers = self._answers(W)
        weight = np.zeros(answers.numbers)
        for block in answers.blocks:
            weight[block.start : block.stop] = block.weight
        common = common_multiplicity(self.planned.layouts)
        reach = sensitivity_of(self.noise, self.measured, self.planned.layouts)
        square = (reach / common) ** 2 if self.noise == "laplace" else reach / common**2
        return np.asarray(square * (weight * answers.errors(OneUnit(self.noise), 1)) ** 2)

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """The lower bound, where one is known."""
        return float("nan") if self.lower_bound is None else self.lower_bound

    def as_measured(self, batch: Batch) -> Structured:
        """The batch that was planned: the strategy chooses its histograms."""
        return self.planned

    def answers_of(self, batch: Batch) -> ResidualAnswers:
        """Least squares, block by block."""
        return self._answers(self.planned)

    def _answers(self, W: AnyWorkload) -> ResidualAnswers:
        if not isinstance(W, Structured) or W.sizes != self.planned.sizes:
            raise DataError("strategy: residuals of a batch answer batches over the same regions; plan this one")
        return ResidualAnswers(W.blocks, self.residuals, W.sizes, W.numbers)


def structured_strategy(
    batch: Structured,
    noise: str,
    *,
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> StructuredStrategy:
    """The strategy of a structured batch. ``tolerance`` and ``time_limit`` go to the selections for single axes.

    Cost: the number of residuals times the axes, besides one selection for each distinct Gram matrix of an axis; none
    for marginals. Raises DataError above 200,000 residuals or 2^23 measurements.
    """
    say = progress or (lambda _: None)
    wanted = _wanted(batch)
    say(f"{len(wanted):,} residuals of {len(batch.histograms):,} histograms")
    until = np.inf if time_limit is None else monotonic() + time_limit
    centres = centres_of(batch, wanted, (3.0 * monotonic() + until) / 4.0) if noise == "gaussian" else {}
    units, limit = _Units.of(batch), None if time_limit is None else until
    try:
        drafts, costs = _drafts(batch, wanted, ResidualMatrices(batch, noise, tolerance, limit, centres))
        residuals, expected, l1, l2 = _rounded(batch, drafts, units, noise, tolerance)
    except DataError:
        if not any(held.integers is not None for held in centres.values()):
            raise
        # Matrices around centres have larger integers than those around the mean, and these may fit.
        drafts, costs = _drafts(batch, wanted, ResidualMatrices(batch, noise, tolerance, limit))
        residuals, expected, l1, l2 = _rounded(batch, drafts, units, noise, tolerance)
    method = METHOD if batch.pure else MIXED
    if noise == "laplace":
        found = _tables(batch, costs, units, tolerance)
        ranked = tuple(sorted([(method, expected)] + ([(found.method, found.expected)] if found else []), key=_second))
        if found is not None and found.expected < expected:
            return replace(found, considered=ranked)
        return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, None, ranked)
    exact = batch.pure and not any(block.component for block in batch.blocks)
    weights = {key: held.weights for key, held in centres.items()}
    lower = _bound(batch, drafts) if exact else structured_bound(batch, until, weights)
    return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, lower, ((method, expected),))


def _drafts(
    batch: Structured, wanted: Mapping[Place, Sequence[RowBlock]], chooser: ResidualMatrices
) -> tuple[list[tuple[Residual, float]], dict[Place, float]]:
    """The residuals with their errors e_T, and for Laplace noise the errors where every region is measured."""
    home = homes(batch.histograms, wanted)
    costs: dict[Place, float] = {}
    drafts: list[tuple[Residual, float]] = []
    measured = 0
    for place, blocks in wanted.items():
        table, component, axes = place
        mine = [block for block in blocks if chooser.reaches(block, axes)]
        if not mine:
            continue
        if chooser.noise == "laplace":
            plain = tuple(Plain(batch.sizes[table][axis]) for axis in axes)
            costs[place] = sum(chooser.squared(block, axes, plain) for block in mine)
        integers = chooser.integers(place, mine)
        residual = Residual(table, component, axes, home[place], integers)
        error = sum(chooser.squared(block, axes, integers) for block in mine)
        measured += residual.rows
        if measured > MAX_MEASURED:
            raise _too_many_measurements(batch, wanted)
        drafts.append((residual, error))
    return drafts, costs


def _second(entry: tuple[str, float]) -> float:
    return entry[1]


@dataclass(frozen=True)
class _Units:
    """Of each table: whose rows its units are, and how many of them a unit has; ``common`` is a multiple of all."""

    label: Mapping[int, str]
    rows: Mapping[int, int]
    common: int

    @classmethod
    def of(cls, batch: Structured) -> _Units:
        first = {table: batch.layouts[owned[0]] for table, owned in enumerate(batch.owners) if owned}
        return cls(
            {table: layout.source.protects for table, layout in first.items()},
            {table: layout.multiplicity for table, layout in first.items()},
            common_multiplicity(batch.layouts),
        )

    def most(self, reached: Iterable[tuple[int, int]]) -> int:
        """The largest that one unit can reach, of what it reaches in each table: units of one kind are in several."""
        total: dict[str, int] = {}
        for table, amount in reached:
            total[self.label[table]] = total.get(self.label[table], 0) + amount
        return max(total.values())


def _known(batch: Structured, residuals: tuple[Residual, ...]) -> tuple[int, int]:
    """(L1, squared L2) sensitivity of what is measured, worked out as for any other strategy."""
    held = KroneckerIntegers(batch.histograms, residuals)
    held.check()
    return sensitivity_of("laplace", held, batch.layouts), sensitivity_of("gaussian", held, batch.layouts)


def _tables(
    batch: Structured, costs: Mapping[Place, float], units: _Units, tolerance: float
) -> StructuredStrategy | None:
    """Whole tables for Laplace noise, with what they cost from the integers that are measured; None if too many."""
    found = block_residuals(batch, costs, units.rows, units.label, tolerance / 10.0)
    if found is None:
        return None
    extended, residuals, variance = found
    if sum(residual.rows for residual in residuals) > MAX_MEASURED:
        return None
    l1, l2 = _known(extended, residuals)
    common = common_multiplicity(extended.layouts)
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
        for axes in subsets(wide):
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


# -- weights ----------------------------------------------------------------------------------------


def _weights(drafts: Sequence[tuple[Residual, float]], units: _Units, noise: str) -> Floats:
    """The real multipliers at sensitivity 1 of every unit; see the module."""
    out = np.zeros(len(drafts))
    groups: dict[str, list[int]] = {}
    for number, (residual, _) in enumerate(drafts):
        groups.setdefault(units.label[residual.table], []).append(number)
    order = 0 if noise == "laplace" else 1
    for group in groups.values():
        error = np.array([drafts[i][1] for i in group])
        norm = np.array([float(drafts[i][0].norms[order]) for i in group])
        times = np.array([float(units.rows[drafts[i][0].table]) for i in group])
        if noise == "laplace":
            k = np.cbrt(error / (norm * times))
            out[group] = k / float(k @ (norm * times))
        else:
            k = (error / (norm * times**2)) ** 0.25
            out[group] = k / sqrt(float(k**2 @ (norm * times**2)))
    return out


def _rounded(
    batch: Structured, drafts: Sequence[tuple[Residual, float]], units: _Units, noise: str, tolerance: float
) -> tuple[tuple[Residual, ...], float, int, int]:
    """(residuals with whole multipliers, error at sensitivity 1, L1, squared L2) within tolerance / 10 of the best.

    Where multipliers so fine are too large to measure exactly, the finest that are not; the error is theirs.
    """
    error = np.array([e for _, e in drafts])
    wanted = _weights(drafts, units, noise)
    tables = [residual.table for residual, _ in drafts]
    norms = [residual.norms for residual, _ in drafts]

    def squares(k: Mapping[int, int]) -> float:
        return float((error / np.array(list(k.values()), dtype=np.float64) ** 2).sum())

    def loss(k: Mapping[int, int]) -> float:
        if noise == "laplace":
            reached = ((t, k[i] * norms[i][0] * units.rows[t]) for i, t in enumerate(tables))
            return float(units.most(reached)) ** 2 * squares(k)
        return float(units.most((t, k[i] ** 2 * norms[i][1] * units.rows[t] ** 2) for i, t in enumerate(tables))) * (
            squares(k)
        )

    target = (1.0 + tolerance / 10.0) * float((error / wanted**2).sum())
    finest = _STEPS
    while True:
        k = whole_multipliers(dict(enumerate(wanted.tolist())), loss, target, finest)
        finest = min(k.values()) // 2
        shared = gcd(*k.values())
        k = {number: times // shared for number, times in k.items()}
        residuals = tuple(replace(residual, multiplier=k[number]) for number, (residual, _) in enumerate(drafts))
        if not finest or KroneckerIntegers(batch.histograms, residuals).fits:
            break
    l1, l2 = _known(batch, residuals)
    sensitivity = (l1 / units.common) ** 2 if noise == "laplace" else l2 / units.common**2
    return residuals, sensitivity * squares(k), -(-l1 // units.common), -(-l2 // units.common**2)


def _bound(batch: Structured, drafts: Sequence[tuple[Residual, float]]) -> float:
    """The singular value bound of marginals: t = sum_T (e_T n_T)^1/2 of a table, of which the empty T has |m|."""
    found: dict[int, tuple[float, float]] = {}
    for residual, error in drafts:
        t, mean = found.get(residual.table, (0.0, 0.0))
        own = sqrt(error * residual.norms[1])
        found[residual.table] = t + own, mean if residual.axes or residual.component else own
    return bound_of_tables(batch, found)


__all__ = ["METHOD", "MIXED", "OneUnit", "StructuredStrategy", "structured_strategy"]
