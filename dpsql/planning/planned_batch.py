"""What a plan knows of a batch: strategy, charge, and the error of every number. Public and free."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from dpsql.common.interrupted_calls import guards_calls
from dpsql.common.notes import Note
from dpsql.planning.one_by_one import HELD, Columns, one_by_one
from dpsql.planning.plan_values import Accuracy, Alternative, Of, Origin, Payment, Statements
from dpsql.planning.prepare import cores_of, scaled_sensitivity, true_error
from dpsql.planning.target_errors import Wanted
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.privacy.periods import Reads
from dpsql.reconstruct import Answers, Errors, mean_square
from dpsql.registry import provided
from dpsql.release.by_result import ByResult
from dpsql.release.cut import Cut
from dpsql.sql import Answer
from dpsql.strategies import MatrixStrategy, Strategy
from dpsql.strategies.core.blocks import deviations
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.layout import common_multiplicity
from dpsql.workloads.compile.units import relation_text, wider_than_true
from dpsql.workloads.expr.batch import Core, Measured
from dpsql.workloads.families.contributions import Contributions

BOUNDED = 2048  # cells up to which pure plans are bounded from below and plans of small integers tried
HUGE = 20.0  # half of an epsilon from which integers have next to no noise


class LocalComparison(Protocol):
    """How a local release of the same columns compares; its text says it in a line."""

    def as_dict(self) -> dict[str, object]:
        """The comparison for programs."""
        ...


@guards_calls
@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """A batch understood and planned: its figures, which the views of a ``Plan`` show.

    Everything here is public: it depends on the SQL text, the policy, the column types and the requested budget, never
    on a row. What the values ``statements``, ``payment`` and ``accuracy`` have, the plan has under the same names.
    ``notes`` say what may be a slip of the pen: a constant that is none of a column's declared values.
    ``wanted``: the half-widths that the budget was found for (``dpsql.planning.budget_search``), None where a budget
    was given. ``rests_on``: the earlier releases that the answers rest on besides the new measurement, and
    ``without_earlier`` the plan without them. ``finds``: the columns whose groups are found before (the extension
    ``discovery``); the plan is of stand-ins for them then. ``cut``: what limits are known to cut of each table that the
    batch counts rows of (``Connection.losses``); None where nothing was measured, or the plan is of no connection.
    """

    statements: Statements
    compiled: Batch = field(repr=False)
    strategy: Strategy = field(repr=False)
    payment: Payment
    accuracy: Accuracy
    notes: tuple[Note, ...] = ()
    origin: Origin | None = field(default=None, repr=False)
    wanted: Wanted | None = field(default=None, repr=False)
    rests_on: tuple[int, ...] = ()
    without_earlier: PlannedBatch | None = field(default=None, repr=False)
    finds: tuple[object, ...] = ()
    cut: Mapping[str, Cut] | None = None

    sql = Of[str]("statements")
    dataset = Of[str]("statements")
    queries = Of[tuple[Answer, ...]]("statements")
    schemas = Of[Mapping[str, Mapping[str, str]]]("statements")
    policy = Of[str]("statements")
    expected_rows = Of[Mapping[str, int]]("statements")
    rows_per_unit = Of[int | None]("statements")
    reads = Of[Reads | None]("statements")
    named = Of[str]("statements")
    charge = Of[Charge]("payment")
    affordable = Of[bool]("payment")
    alternatives = Of[tuple[Alternative, ...]]("payment")
    noise = Of[Noise]("accuracy")
    answers = Of[Answers]("accuracy")
    alpha = Of[float]("accuracy")
    errors = Of[Errors]("accuracy")
    widths = Of[Errors]("accuracy")

    @property
    def estimated(self) -> bool:
        """Whether the errors are estimates, by simulation on public stand-ins for the data; else they are exact."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        """A copy by pickle leaves out what the plan was made from: it can be run, and not be planned again
        otherwise.
        """
        return {**self.__dict__, "origin": None}

    def after(self, y: Sequence[int]) -> Self:
        """The plan with the errors of a release that measured ``y``: its own, but where errors are estimated only."""
        return self

    @property
    def cells(self) -> int:
        """How many cells the batch distinguishes."""
        return self.compiled.cells

    @property
    def sensitivity(self) -> int:
        """How far one privacy unit can move what is measured: L1 for Laplace, *squared* L2 for Gaussian noise."""
        return scaled_sensitivity(self.strategy, self.compiled)

    @property
    def error(self) -> float:
        """What the objective minimises (total or largest squared error, in comparable units), noise included."""
        return self.charge.unit_variance * true_error(self.strategy, self.compiled)

    @property
    def privacy(self) -> str:
        """The guarantee of this release by itself, with its neighbouring relation."""
        return f"differential privacy at {self.charge.guarantee}, for adding or removing {self.unit}"

    @property
    def unit(self) -> str:
        """What neighbours differ in, in words: "all rows of one patient_id in visits (at most 5 count)"."""
        return relation_text(self.compiled.layouts)

    @property
    def gap(self) -> float | None:
        """Gaussian: error <= (1 + gap) x the least of any Gaussian matrix mechanism; None for pure noise, which
        ``least_of_pure`` bounds.

        The bound is over all that one unit can change of all tables (``dpsql.workloads.families.contributions``), or
        over more, where ``against`` says so. For batches of blocks and of long lines it is for units with rows in one
        table: a mechanism for units with rows in several can do no better, and what such units cost beyond it counts
        as gap. So does what rounding the noise to integers adds: 1/12 beside sigma^2 of each measurement.
        """
        alone, compiled = self.strategy.gap, self.compiled
        if alone is None:
            return None
        alone = (1.0 + alone) * (self.noise.variance / float(self.noise.parameter)) - 1.0
        if compiled.matrix is not None:
            return alone
        rows = compiled.common_steps * common_multiplicity(compiled.layouts)
        shared = -(-self.sensitivity // rows**2) / self.strategy.l2_squared
        return alone if shared == 1.0 else (1.0 + alone) * shared - 1.0

    @functools.cached_property
    def against(self) -> str:
        """For which units the certificate is, where these are more than the policy's: units that ...; else empty."""
        return wider_than_true(self.compiled.layouts, self.contributions)

    @property
    def contributions(self) -> Contributions | None:
        """All that one unit can change, or more, where cells are listed."""
        return self.compiled.units

    @functools.cached_property
    def bound_ratio(self) -> float:
        """Error of the strategy over the SVD bound of the batch's merged cells (privacy factor left out).

        The bound holds for Gaussian noise (Li and Miklau 2013, Thm 4.2); beside Laplace noise it is a
        yardstick. Cost: one eigendecomposition. NaN for a batch of blocks for which no bound is known.
        """
        from dpsql import lower_bounds

        return float(self.strategy.expected / self.strategy.singular_bound(lower_bounds.svd_bound))

    @functools.cached_property
    def least_of_pure(self) -> tuple[float, str] | None:
        """(r, of what): the squared error that the objective minimises, total or largest, is at most r times the least
        of any Laplace strategy, for a strategy in blocks of any in blocks, Laplace ones included
        (``dpsql.lower_bounds``).

        The bounds are of noise on the reals. Integers have less at large epsilon: where a record moves them by 1 in all
        at least, no less than (x / sinh x)^2 of it, x = epsilon / 2, as geometric noise has; the plan's own is as it is
        drawn. For units the bounds are over all that one can change, or more, where ``against`` says so. None for
        Gaussian noise, and where cells are not listed or too many. Cost: the Gaussian optimum to 1 %.
        """
        strategy = self.strategy
        planned = strategy.planned if isinstance(strategy, MatrixStrategy) else None
        if strategy.noise == "gaussian" or planned is None or planned.shape[1] > BOUNDED:
            return None
        x = float(self.charge.epsilon or 0) / 2
        if not 0 < x < HUGE:
            return None
        from dpsql import lower_bounds

        objective = "max" if strategy.objective == "max" else "total"
        times = strategy.value * (math.sinh(x) / x) ** 2 / (2.0 * float(self.noise.parameter) ** 2)
        if not strategy.blocks:
            return times * self.noise.variance / lower_bounds.laplace_bound(planned, objective), "any Laplace strategy"
        times *= float((self.noise.variances / deviations(strategy.blocks) ** 2).max())
        return times / lower_bounds.pure_bound(planned, objective), "any strategy in blocks"

    @functools.cached_property
    def stderr(self) -> ByResult[Errors]:
        """Standard errors by result: (rows,), or (rows, columns) where it has several private columns.

        Of all ranges of a line too long to list them: ``RangeErrors``, column by column, which gives those of some.
        """
        return self._by_result(self.errors)

    @functools.cached_property
    def half_width(self) -> ByResult[Errors]:
        """Half-widths of the pointwise intervals at level 1 - alpha, shaped as ``stderr``."""
        return self._by_result(self.widths)

    @functools.cached_property
    def naive_errors(self) -> Errors:
        """What each number's standard error would be, were every result column paid for apart (of W's rows).

        The same charge split evenly over the result columns, each measured at its own sensitivity
        with the same kind of noise (epsilon / k for Laplace, mu^2 / k for Gaussian).
        """
        return one_by_one(self.compiled, self.charge.noise, self.charge.unit_variance)

    @property
    def worse_than_alone(self) -> bool:
        """Whether a column that weighs no less than others has a larger error than ``naive_errors``, by 2 % or more."""
        return self.compiled.matrix is not None and self.worse_in(Columns.of(self.compiled))

    def worse_in(self, columns: Columns) -> bool:
        """The same of the ``columns`` of this batch, whichever way that was compiled."""
        errors, alone = (columns.sums(np.asarray(found) ** 2) for found in (self.errors, self.naive_errors))
        return bool((errors > HELD * alone)[columns.weights >= 1].any())

    @functools.cached_property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]:
        """Every core of every statement in order, with the rows of W that each of its outputs takes."""
        return cores_of(self.queries, self.compiled.spans)

    def mean_square(self, part: slice) -> float:
        """The mean squared standard error of some numbers, in the order of W's rows."""
        return mean_square(self.errors[part])

    def naive_square(self, part: slice) -> float:
        """The mean of the squares of ``naive_errors`` of some numbers."""
        return mean_square(self.naive_errors[part])

    def _by_result(self, values: Errors) -> ByResult[Errors]:
        """The values of all measured columns, statement by statement; groupings of one statement below each other."""
        cores = iter(self.cores)
        found: ByResult[Errors] = ByResult()
        for answer in self.queries:
            mine, parts = [next(cores) for _ in answer.cores], []
            if any(core.is_view for core, _ in mine):
                found[answer.name] = values[mine[0][1][0].start : mine[-1][1][-1].stop]
                continue
            for core, slices in mine:
                outputs = [column.output for column in core.columns if isinstance(column, Measured)]
                columns = [np.asarray(values[slices[output]]) for output in outputs]
                parts.append(np.stack(columns, axis=1) if columns else np.zeros((core.rows, 0)))
            wide = max((part.shape[1] for part in parts), default=0)
            whole = np.concatenate([part for part in parts if part.shape[1] == wide] or [np.zeros((0, 0))])
            found[answer.name] = whole[:, 0] if wide == 1 else whole
        return found

    @functools.cached_property
    def local_comparison(self) -> LocalComparison | None:
        """The errors beside those of a local release of the same columns at the same epsilon, and which wins.

        None where the policy allows no local release (``rows_public`` and ``local_epsilon``).
        """
        if self.origin is None or not self.origin.prepared.policy.budget.local_epsilon:
            return None
        compared = provided("compared_locally")
        if compared is None:
            return None
        prepared, numbers = self.origin.prepared, self.compiled.numbers
        epsilon = self.origin.request.epsilon
        found: LocalComparison = compared(
            prepared.understood, prepared.policy, prepared.schemas, epsilon, self.mean_square, numbers
        )
        return found
