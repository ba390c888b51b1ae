"""Plans of runs in rounds, whose error depends on the data. Public and free; errors are estimated, not certified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy
from scipy import sparse

from dpsql.arrays import Csr, Floats, Matrix
from dpsql.errors import BudgetError, DataError, InternalError
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import Chooser, prepare
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise
from dpsql.privacy.selection import MU_SQUARED
from dpsql.reconstruct import NoiseModel
from dpsql.strategy import MatrixStrategy
from dpsql.workload.compile.compiled import Compiled, compile_batch
from dpsql.workload.compile.cone import cone_of
from dpsql.workload.compile.structured import MAX_NUMBERS, Structured, compile_structured
from dpsql.workload.expr.batch import Derived, Ranked

if TYPE_CHECKING:
    from dpsql.strategy.adaptive.marginals import AdaptiveMarginals
    from dpsql.strategy.adaptive.mwem import Mwem


@dataclass(frozen=True, eq=False)
class AdaptivePlan(Plan):
    """A plan whose strategy is an ``AdaptiveMarginals`` or a ``Mwem``: ``errors`` are estimates, ``gap`` is None.

    ``errors`` are root mean squares over runs on public stand-ins for the data (``dpsql.strategy.adaptive``), bias
    included, ``widths`` a normal law's multiples of them. Both are of as many rows as the policy expects; what a
    release states follows from its transcript, too (``after``).
    """

    strategy: Any = field(repr=False)

    @property
    def estimated(self) -> bool:
        """True: the errors depend on the data."""
        return True

    def after(self, y: Sequence[int]) -> Self:
        """The plan with the errors that the transcript ``y`` tells of: never smaller, larger where the table has more
        rows than expected, or others than the stand-ins (``stretch`` of the strategy). Post-processing; an estimate.
        """
        if not any(y):  # a rehearsal's zeros are no transcript
            return self
        stretch = self.strategy.stretch(list(y))
        widths = self.widths * stretch
        if self.compiled.numbers > MAX_NUMBERS:  # on the grid of the numbers, never narrower
            from dpsql.strategy.adaptive.steps import GRID

            widths = np.ceil(widths / GRID) * GRID
        return replace(self, errors=self.errors * stretch, widths=widths)

    @property
    def sensitivity(self) -> int:
        """The most by which one unit can move any candidate."""
        return int(max(self.strategy.reach))

    @property
    def error(self) -> float:
        """Estimated total squared error, each number in units of what one row can change."""
        compiled = self.compiled
        if not isinstance(compiled, Compiled):
            return float((np.asarray(self.errors) ** 2).sum())
        scale = np.where(compiled.scale == 0, 1.0, compiled.scale)
        return float(((self.errors * compiled.objective / scale) ** 2).sum())

    @property
    def gap(self) -> None:
        """None: nothing is certified."""
        return None

    @property
    def bound_ratio(self) -> float:
        """NaN: the bounds are for mechanisms whose noise does not depend on the data."""
        return float("nan")


@dataclass(frozen=True, eq=False)
class TranscriptAnswers:
    """Answers of the table that a transcript makes up; ``answers`` (m x R) are W's rows over its rays."""

    strategy: Any
    answers: Csr = field(repr=False)
    squares: Floats = field(repr=False)

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """W's rows on the made-up table (m,). A rehearsal's zeros are an empty transcript."""
        transcript = list(y)
        if not any(transcript):
            return np.zeros(self.answers.shape[0])
        return np.asarray(self.answers @ self.strategy.model.replayed(transcript).w)

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        """Standard errors (m,), estimated by simulation."""
        return np.sqrt(self.squares)

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """A normal law's multiple of ``errors``."""
        return np.sqrt(self.squares) * float(-scipy.special.ndtri(alpha / 2))

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """There are none: the answers are no linear function of what is measured."""
        raise InternalError("a made-up table's answers are not linear in what was measured")


@dataclass(frozen=True, eq=False)
class MarginalAnswers(TranscriptAnswers):
    """Answers of the marginals that a transcript makes up."""

    strategy: AdaptiveMarginals

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """The batch's numbers (m,). A rehearsal's zeros are an empty transcript."""
        transcript = list(y)
        if not any(transcript):
            return np.zeros(len(self.squares))
        return self.strategy.numbers(transcript)


def make_adaptive_plan(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    state: BudgetState,
    request: Request,
    options: PlanOptions,
) -> AdaptivePlan:
    """Plan a batch for a mechanism of ``strategy.adaptive.steps.METHODS``. Free: reads no row and spends nothing.

    MWEM is paid with pure epsilon alone, "adaptive" by any account of additive noise. The policy's ``expected_rows``
    are needed for the estimates; the number of rows is measured. Raises SQLError, PolicyError, DataError and
    BudgetError before any data are touched.
    """
    from dpsql.strategy.adaptive.marginals import adaptive_marginals
    from dpsql.strategy.adaptive.mwem import MOST_RAYS, mwem
    from dpsql.strategy.adaptive.steps import METHODS

    method = options.method
    if method not in METHODS:
        *known, last = map(repr, ("auto", *METHODS))
        raise DataError(f"method {method!r} is not known; use {', '.join(known)} or {last}")
    prepared = prepare(
        *(sql, policy, schemas, options.progress), rows_per_unit=options.rows_per_unit, blocks=method == "adaptive"
    )
    understood, policy, state = prepared.understood, prepared.policy, state.within(prepared.reads)
    compiled = prepared.compiled
    if method == "adaptive" and not isinstance(compiled, Structured):
        compiled = compile_structured(understood.queries, understood.tables)
    elif isinstance(compiled, Structured) and method == "mwem-strategy":
        raise DataError(
            "method='mwem-strategy' selects among the rows of one strategy, and this batch is measured block by block; "
            "use method='mwem', or ask for fewer columns in one batch"
        )
    elif isinstance(compiled, Structured) and method == "mwem" and compiled.cells <= MOST_RAYS:
        compiled = compile_batch(understood.queries, understood.tables, boxes=False)
    if method != "adaptive" and not isinstance(compiled, Compiled):
        raise DataError(
            f"method={method!r} keeps a weight for each cell, {compiled.cells:,} here, at most {MOST_RAYS:,}; ask for "
            "fewer or coarser columns in one batch, or use method='adaptive'"
        )
    for core in (core for answer in understood.answers for core in answer.cores):
        for column in core.columns:
            if isinstance(column, Derived | Ranked):
                raise DataError(
                    f"method={method!r} answers counts and sums; {column.title or column.name} is worked out from "
                    "several of them, with an interval that needs their joint error: ask for the counts and sums and "
                    "divide the results, or use method='auto'"
                )
    charge = charge_of(method, request, state)
    (table, *_) = [layout.source.table for layout in compiled.layouts]
    expected = policy.table(table).expected_rows
    if expected is None:
        raise DataError(
            f"method={method!r} estimates its error on public stand-ins for the data, and the policy does not say how "
            f"many rows {table} is expected to have; add expected_rows to [tables.{table}]"
        )
    strategy: AdaptiveMarginals | Mwem
    answers: TranscriptAnswers
    if isinstance(compiled, Structured):
        strategy, squares = adaptive_marginals(
            *(compiled, charge.noise, charge.epsilon or charge.mu_squared),
            *(partial(_selecting, charge.noise), expected),
            rounds=options.rounds,
            progress=options.progress,
        )
        compiled = strategy.planned
        noise = _first_noise(charge.noise, strategy.unit, strategy.each_measure)
        answers = MarginalAnswers(strategy, no_rows(), squares)
    else:
        assert charge.epsilon is not None and isinstance(compiled, Compiled)  # noqa: S101, PT018 - as was held above
        strategy, squares = mwem(
            *(compiled, method, charge.epsilon, expected),
            rounds=options.rounds,
            blocks=lambda: _blocks(compiled, options),
            progress=options.progress,
        )
        noise = pure_noise(strategy.reach[0], strategy.each_measure)
        over_rays = compiled.rows @ cone_of(compiled).rays
        over_rays = over_rays.astype(np.float64).tocsr()
        over_rays.data *= np.repeat(compiled.scale, np.diff(over_rays.indptr))
        answers = TranscriptAnswers(strategy, over_rays, squares)
    return AdaptivePlan(
        sql=sql,
        dataset=policy.dataset,
        queries=understood.answers,
        compiled=compiled,
        strategy=strategy,
        charge=charge,
        noise=noise,
        alternatives=(),
        alpha=options.alpha,
        policy=policy.to_toml(),
        schemas={name: dict(schemas[name]) for layout in compiled.layouts for name in layout.source.tables},
        answers=answers,
        errors=answers.errors(noise, 1),
        widths=answers.widths(noise, options.alpha, 1),
        affordable=state.affords(charge),
        notes=understood.notes,
        expected_rows={name: t.expected_rows for name, t in policy.tables.items() if t.expected_rows is not None},
        rows_per_unit=prepared.rows_per_unit,
        reads=prepared.reads,
    )


def no_rows() -> Csr:
    """Answers that follow from a transcript otherwise."""
    return sparse.csr_array((0, 0))


def charge_of(method: str, request: Request, state: BudgetState) -> Charge:
    """The way to pay: the first that the account affords, of Laplace noise alone for MWEM. Raises BudgetError."""
    charges = [c for c in charge_for(request, state.budget) if method == "adaptive" or c.noise == "laplace"]
    if not charges:
        raise BudgetError(
            f"method={method!r} is pure: it is paid with epsilon alone, from an account that the policy keeps with "
            "pure_epsilon, or from a policy of epsilon without delta"
        )
    return next((charge for charge in charges if state.affords(charge)), charges[0])


def _selecting(noise: str, epsilon: Fraction) -> Fraction:
    """What a selection at ``epsilon`` costs of a budget for that noise."""
    return MU_SQUARED * epsilon**2 if noise == "gaussian" else epsilon


def _first_noise(noise: str, unit: int, budget: Fraction) -> Noise:
    return gaussian_noise(unit * unit, budget) if noise == "gaussian" else pure_noise(unit, budget)


def _blocks(compiled: Compiled, options: PlanOptions) -> MatrixStrategy:
    """The strategy whose rows are the building blocks of the batch."""
    found = Chooser(compiled).strategy("laplace", replace(options, objective=None))
    assert isinstance(found, MatrixStrategy)  # noqa: S101 - of a compiled batch
    return found
