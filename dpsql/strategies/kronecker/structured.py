"""Strategies for batches over many columns: each residual space measured by itself, by a product of small matrices.

A batch is blocks w = coefficient x (Kronecker product of factors) over histograms
(``dpsql.workloads.compile.structured``). With C_i = I - 1 1^T / d_i on axis i, the part of w in residual T (a set of
axes) is w_T, centred along T and averaged over the other axes of w, and w x = sum_T w_T x_T. Each residual T of each
component (counts, or the sums of one measure) is measured by integers k_T B_T, B_T a Kronecker product of one matrix
for each axis of T whose rows span all that is orthogonal to 1 there; or, with a centre v_i of the axis in place of
1 / d_i (``dpsql.strategies.kronecker.centres``), all that is orthogonal to v_i. Then

    answers    w B^+ y = sum_T w_T B_T^+ y_T / k_T, unbiased, and all answers agree with one estimate of the x_T;
    error      sum_T e_T / k_T^2,  e_T = sum over blocks of weight^2 ||w_T B_T^+||^2;
    norm       at most sum_T k_T^2 n_T (L1: sum_T k_T l_T), n_T and l_T the longest columns of B_T
               (``dpsql.workloads.compile.kronecker`` has the proof).

Weights. For Gaussian noise (sum k^2 n)(sum e / k^2) is least at k_T^2 ~ (e_T / n_T)^1/2, where it is (sum_T (e_T
n_T)^1/2)^2 (Cauchy-Schwarz); for Laplace noise (sum k l)^2 (sum e / k^2) at k_T ~ (e_T / l_T)^1/3. They are rounded to
whole numbers, doubled until the loss is below a tenth of the tolerance. Tables whose units differ are scaled to one
sensitivity, for no neighbour moves both; k rows of a unit count k-fold (``dpsql.workloads.compile.sensitivity``), or
less where a bound keeps them apart (``dpsql.strategies.kronecker.weights_under_bounds``).

Matrices: ``dpsql.strategies.kronecker.residual_matrices``. For marginals the error is the singular value bound,
certified; for mixtures it is computed from what is measured, exactly, and set against ``structured_bound`` where that
is within reach. For Laplace noise all of it is taken only where whole tables
(``dpsql.strategies.kronecker.structured_blocks``) have no lower error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, prod, sqrt
from time import monotonic

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.chain import Step
from dpsql.errors import DataError, listed
from dpsql.linalg.blocks import Plain, Residual, RowBlock
from dpsql.reconstruct import ResidualAnswers
from dpsql.strategies.core.base import AnyWorkload, Strategy
from dpsql.strategies.core.limits import ENOUGH, MEASURED
from dpsql.strategies.kronecker.centres import centres_of
from dpsql.strategies.kronecker.residual_matrices import ResidualMatrices
from dpsql.strategies.kronecker.structured_blocks import METHOD as BLOCKS
from dpsql.strategies.kronecker.structured_blocks import block_residuals
from dpsql.strategies.kronecker.weights_under_bounds import ApartWeights, table_bound
from dpsql.strategies.marginals.multipliers import Place, homes, subsets, whole_multipliers
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.kronecker import KroneckerIntegers
from dpsql.workloads.compile.layout import Layout, common_multiplicity
from dpsql.workloads.compile.rows_in_classes import Reach, class_bounds
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.expr.too_many import to_leave_out
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload

METHOD, MIXED = "residual-basis", "residual-products"
MAX_RESIDUALS = 200_000
MAX_AXES = 20  # of one statement


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
    objective's units, or what else was minimised (``dpsql.strategies.targets``).
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

    @property
    def steps(self) -> tuple[Step, ...]:
        """Groupings as sums of residuals."""
        text = f"each grouping is a sum of residuals, centred along its columns; {len(self.residuals):,} are measured"
        return Step("residuals", False, text), *super().steps

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
        batch = self._batch(W)
        common = common_multiplicity(self.planned.layouts)
        reach = sensitivity_of(self.noise, self.measured, self.planned.layouts)
        square = (reach / common) ** 2 if self.noise == "laplace" else reach / common**2
        return np.asarray(square * (batch.weights * self._answers(batch).errors(OneUnit(self.noise), 1)) ** 2)

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """The lower bound, where one is known."""
        return float("nan") if self.lower_bound is None else self.lower_bound

    def as_measured(self, batch: Batch) -> Structured:
        """The batch that was planned: the strategy chooses its histograms."""
        return self.planned

    def answers_of(self, batch: Batch) -> ResidualAnswers:
        """Least squares, block by block."""
        return self._answers(self.planned)

    def _batch(self, W: AnyWorkload) -> Structured:
        if not isinstance(W, Structured) or W.sizes != self.planned.sizes:
            raise DataError("strategy: residuals of a batch answer batches over the same regions; plan this one")
        return W

    def _answers(self, W: Structured) -> ResidualAnswers:
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
    by_place = _blocks_by_place(batch)
    say(f"{len(by_place):,} residuals of {len(batch.histograms):,} histograms")
    until = np.inf if time_limit is None else monotonic() + time_limit
    centres = centres_of(batch, by_place, (3.0 * monotonic() + until) / 4.0) if noise == "gaussian" else {}
    units, around = _Units.of(batch), centres
    while True:
        chooser = ResidualMatrices(batch, noise, tolerance, None if time_limit is None else until, around)
        try:
            drafts, costs = _drafts(batch, by_place, chooser)
            tables = _Tables(drafts, units) if noise == "gaussian" else None
            residuals, expected, l1, l2 = _rounded(batch, drafts, units, tables, tolerance)
        except DataError:
            if not around:
                raise
        else:
            if not around or KroneckerIntegers(batch.histograms, residuals).fits:
                break
        around = {}  # matrices around centres have larger integers than those around the mean, and these may fit
    method = METHOD if batch.pure else MIXED
    if tables is None:
        found = _tables(batch, costs, units, tolerance)
        ranked = tuple(sorted([(method, expected)] + ([(found.method, found.expected)] if found else []), key=_second))
        if found is not None and found.expected < expected:
            return replace(found, considered=ranked)
        return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, None, ranked)
    from dpsql.strategies.kronecker.structured_bound import structured_bound

    exact = batch.pure and not any(block.component for block in batch.blocks)
    weights = {key: held.weights for key, held in centres.items()}
    enough = expected / (1.0 + min(tolerance, ENOUGH))
    lower = _bound(batch, drafts, tables) if exact else structured_bound(batch, until, weights, enough)
    return StructuredStrategy(batch, residuals, noise, method, l1, l2, expected, lower, ((method, expected),))


def _drafts(
    batch: Structured, by_place: Mapping[Place, Sequence[RowBlock]], chooser: ResidualMatrices
) -> tuple[list[tuple[Residual, float]], dict[Place, float]]:
    """The residuals with their errors e_T, and for Laplace noise the errors where every region is measured."""
    home = homes(batch.histograms, by_place)
    costs: dict[Place, float] = {}
    drafts: list[tuple[Residual, float]] = []
    measured = 0
    for place, blocks in by_place.items():
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
        if measured > MEASURED:
            raise _too_many_measurements(batch, by_place)
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
    layouts: Mapping[int, Layout] = field(repr=False)

    @classmethod
    def of(cls, batch: Structured) -> _Units:
        first = {table: batch.layouts[owned[0]] for table, owned in enumerate(batch.owners) if owned}
        return cls(
            {table: layout.source.protects for table, layout in first.items()},
            {table: layout.multiplicity for table, layout in first.items()},
            common_multiplicity(batch.layouts),
            first,
        )

    def most(self, reached: Iterable[tuple[int, int]]) -> int:
        """The largest that one unit can reach, of what it reaches in each table: units of one kind are in several."""
        total: dict[str, int] = {}
        for table, amount in reached:
            total[self.label[table]] = total.get(self.label[table], 0) + amount
        return max(total.values())


class _Tables:
    """For Gaussian noise the residuals of each table, what is measured of them, and how far a unit moves it."""

    def __init__(self, drafts: Sequence[tuple[Residual, float]], units: _Units) -> None:
        self.units = units
        self.places: dict[int, list[int]] = {}
        for number, (residual, _) in enumerate(drafts):
            self.places.setdefault(residual.table, []).append(number)
        self.residuals = {table: [drafts[i][0] for i in mine] for table, mine in self.places.items()}
        self.errors = {table: np.array([drafts[i][1] for i in mine]) for table, mine in self.places.items()}
        self.norms = {table: [residual.norms[1] for residual in mine] for table, mine in self.residuals.items()}
        self.reaches = {
            table: [reach for one in class_bounds(units.layouts[table]) if (reach := Reach.of(mine, one)) is not None]
            for table, mine in self.residuals.items()
        }

    def squared(self, table: int, squares: Sequence[int]) -> int:
        """What a unit moves of a table, squared, as ``sensitivity_of`` has it."""
        whole = self.units.rows[table] ** 2 * sum(k * n for k, n in zip(squares, self.norms[table], strict=True))
        return min([whole, *(reach.squared(squares) for reach in self.reaches[table])])

    def largest(self, squares: Mapping[int, int]) -> int:
        """The same of all tables of a unit, of the squares by the numbers of residuals."""
        reached = ((table, self.squared(table, [squares[i] for i in mine])) for table, mine in self.places.items())
        return self.units.most(reached)

    @cached_property
    def planned(self) -> dict[int, tuple[float, Floats, tuple[Reach, float] | None]]:
        """(Error at sensitivity 1, squared multipliers, the bound used and for how many rows) of each table."""
        return {table: self._planned(table) for table in self.places}

    def _planned(self, table: int) -> tuple[float, Floats, tuple[Reach, float] | None]:
        error, norm = self.errors[table], np.array(self.norms[table], dtype=np.float64) * self.units.rows[table] ** 2
        squares = np.sqrt(error / norm)
        reached = float(squares @ norm)
        whole = float((error / squares).sum()) * reached
        best: tuple[float, Floats, tuple[Reach, float] | None] = (whole, squares / reached, None)
        for reach in self.reaches[table]:
            value, found, mean = ApartWeights(reach, error).best()
            if value < best[0]:
                best = value, found, (reach, mean)
        return best

    @property
    def weights(self) -> Floats:
        """The real multipliers at sensitivity 1 of every unit, whose tables share it by the roots of their errors."""
        out = np.zeros(sum(map(len, self.places.values())))
        total: dict[str, float] = {}
        for table, (error, _, _) in self.planned.items():
            label = self.units.label[table]
            total[label] = total.get(label, 0.0) + sqrt(error)
        for table, (error, squares, _) in self.planned.items():
            out[self.places[table]] = np.sqrt(squares * (sqrt(error) / total[self.units.label[table]]))
        return out


def _sensitivities(batch: Structured, residuals: tuple[Residual, ...]) -> tuple[int, int]:
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
    if sum(residual.rows for residual in residuals) > MEASURED:
        return None
    l1, l2 = _sensitivities(extended, residuals)
    common = common_multiplicity(extended.layouts)
    expected = (l1 / common) ** 2 * variance
    return StructuredStrategy(
        extended, residuals, "laplace", BLOCKS, -(-l1 // common), -(-l2 // common**2), expected, None, ()
    )


def _blocks_by_place(batch: Structured) -> dict[Place, list[RowBlock]]:
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


def _too_many_measurements(batch: Structured, places: Mapping[Place, object]) -> DataError:
    names = [[batch.names[table][axis] for axis in axes] for table, _, axes in places]
    sizes = [prod(batch.sizes[table][axis] for axis in axes) for table, _, axes in places]
    dropped = to_leave_out(names, sizes, MEASURED) or ["the finest of them"]
    return DataError(
        f"strategy: the batch needs about {sum(sizes):,} measurements, at most {MEASURED:,} are made: ask for "
        f"fewer groupings, coarsen the columns, or leave out {listed(dropped)}"
    )


# -- weights ----------------------------------------------------------------------------------------


def _laplace_weights(drafts: Sequence[tuple[Residual, float]], units: _Units) -> Floats:
    """The real multipliers at sensitivity 1 of every unit; see the module."""
    out = np.zeros(len(drafts))
    groups: dict[str, list[int]] = {}
    for number, (residual, _) in enumerate(drafts):
        groups.setdefault(units.label[residual.table], []).append(number)
    for group in groups.values():
        error = np.array([drafts[i][1] for i in group])
        norm = np.array([float(drafts[i][0].norms[0]) for i in group])
        times = np.array([float(units.rows[drafts[i][0].table]) for i in group])
        k = np.cbrt(error / (norm * times))
        out[group] = k / float(k @ (norm * times))
    return out


def _rounded(
    batch: Structured,
    drafts: Sequence[tuple[Residual, float]],
    units: _Units,
    tables: _Tables | None,
    tolerance: float,
) -> tuple[tuple[Residual, ...], float, int, int]:
    """(residuals with whole multipliers, error at sensitivity 1, L1, squared L2) within tolerance / 10 of the best.

    ``tables`` for Gaussian noise, None for Laplace noise. Where multipliers so fine are too large to measure exactly,
    the finest that are not, or 1 at the least; the error is theirs.
    """
    error = np.array([e for _, e in drafts])
    norms = [residual.norms[0] for residual, _ in drafts]
    wanted = _laplace_weights(drafts, units) if tables is None else tables.weights

    def squares(k: Mapping[int, int]) -> float:
        return float((error / np.array(list(k.values()), dtype=np.float64) ** 2).sum())

    def loss(k: Mapping[int, int]) -> float:
        if tables is None:
            reached = ((r.table, k[i] * norms[i] * units.rows[r.table]) for i, (r, _) in enumerate(drafts))
            return float(units.most(reached)) ** 2 * squares(k)
        return float(tables.largest({number: times**2 for number, times in k.items()})) * squares(k)

    target = (1.0 + tolerance / 10.0) * float((error / wanted**2).sum())
    finest = 2**16
    while True:
        k = whole_multipliers(dict(enumerate(wanted.tolist())), loss, target, finest)
        finest = min(k.values()) // 2
        shared = gcd(*k.values())
        k = {number: times // shared for number, times in k.items()}
        residuals = tuple(replace(residual, multiplier=k[number]) for number, (residual, _) in enumerate(drafts))
        if not finest or KroneckerIntegers(batch.histograms, residuals).fits:
            break
    # Where rows are apart, what they move is no multiple of their number, by which norms are divided.
    common = tuple(replace(residual, multiplier=residual.multiplier * units.common) for residual in residuals)
    if tables is not None and any(tables.reaches.values()) and KroneckerIntegers(batch.histograms, common).fits:
        residuals, error = common, error / units.common**2
    l1, l2 = _sensitivities(batch, residuals)
    sensitivity = (l1 / units.common) ** 2 if tables is None else l2 / units.common**2
    return residuals, sensitivity * squares(k), -(-l1 // units.common), -(-l2 // units.common**2)


def _bound(
    batch: Structured,
    drafts: Sequence[tuple[Residual, float]],
    tables: _Tables,
) -> float:
    """The singular value bound of marginals: t = sum_T (e_T n_T)^1/2 of a table, of which the empty T has |m|.

    Of a table whose rows are kept apart ``table_bound``, by the bound that is used, or what so many rows do that may
    be in one cell.
    """
    from dpsql.strategies.kronecker.structured_bound import bound_of_tables, together

    found: dict[int, tuple[float, float]] = {}
    for residual, error in drafts:
        t, mean = found.get(residual.table, (0.0, 0.0))
        own = sqrt(error * residual.norms[1])
        found[residual.table] = t + own, mean if residual.axes or residual.component else own
    rows: dict[int, float] = {}
    for table, (_, _, bound) in tables.planned.items():
        for reach in tables.reaches[table]:
            mean = bound[1] if bound is not None and bound[0] is reach else float(reach.bound.most)
            if len(tables.reaches[table]) > 1 and (bound is None or bound[0] is not reach):
                continue  # it may forbid what is least by the other
            least = table_bound(tables.residuals[table], tables.errors[table], reach, mean)
            times = rows.get(table, together(batch, table))
            if least is not None and least[0] > times * found[table][0]:
                found[table], rows[table] = least, 1.0
    return bound_of_tables(batch, found, rows)


__all__ = ["METHOD", "MIXED", "OneUnit", "StructuredStrategy", "structured_strategy"]
