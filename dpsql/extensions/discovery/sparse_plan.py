"""Plans of counts by very many groups, of which those that pass a threshold are shown. Public and free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Self, cast

import numpy as np

from dpsql.common.arrays import Floats, Json
from dpsql.common.notes import BIAS, ERROR, Note
from dpsql.errors import DataError
from dpsql.extensions.discovery.sparse_strategy import MOST_SHOWN, SparseHistogram, sparse_histogram
from dpsql.measure import TableSource
from dpsql.measure.sparse import SparseJob
from dpsql.planning.estimated import EstimatedPlan, TranscriptAnswers, charge_of, no_rows
from dpsql.planning.figures import figure
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan_values import Accuracy, Payment, Statements
from dpsql.planning.prepare import Prepared, understood_for
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.counts_above_threshold import GeometricThreshold
from dpsql.privacy.shown_counts import intervals
from dpsql.privacy.threshold import Integers
from dpsql.release import ResultTable
from dpsql.running.jobs import job_of
from dpsql.running.result_tables import Planned, release_tables, tables_of
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.sparse_counts import MOST_GROUPS, SparseCounts, compile_sparse


@dataclass(frozen=True, eq=False)
class SparsePlan(EstimatedPlan):
    """A plan of one count by groups, of which the result lists those that pass a threshold with their noise.

    ``errors`` and ``widths`` are those of a count that is shown: one number before it is measured.
    """

    compiled: SparseCounts = field(repr=False)
    strategy: SparseHistogram = field(repr=False)

    @property
    def law(self) -> GeometricThreshold:
        """The law of what is shown."""
        return GeometricThreshold(self.strategy.scale, self.strategy.least)

    @property
    def error(self) -> float:
        """The expected total error of all groups, in rows, on the worse stand-in."""
        return self.strategy.expected_error

    @property
    def naive_errors(self) -> Floats:
        """There is one column."""
        return np.asarray(self.errors)

    def after(self, y: Sequence[int]) -> Self:
        """The plan of the groups that are shown, which only ``y`` tells."""
        listed = len(y) // 2
        errors, widths = (np.full(listed, float(np.asarray(sizes)[0])) for sizes in (self.errors, self.widths))
        accuracy = replace(self.accuracy, errors=errors, widths=widths)
        return replace(self, compiled=self.compiled.listing(listed), accuracy=accuracy)

    def shown(self, y: Sequence[int]) -> tuple[Integers, Integers]:
        """The numbers of the groups that are shown, and their counts; of a rehearsal's zeros, the first ones."""
        pairs = np.array(y, dtype=np.int64).reshape(-1, 2)
        if len(pairs) and not pairs.any():
            return np.arange(len(pairs)), np.full(len(pairs), self.strategy.least)
        return pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True)
class Passed:
    """Counts of groups that passed: ``values`` (n,), and intervals of what is behind them, at least 0."""

    values: Floats = field(repr=False)
    low: Floats = field(repr=False)
    high: Floats = field(repr=False)

    @classmethod
    def of(cls, plan: SparsePlan, counts: Integers) -> Passed:
        """Given that a group is shown its interval covers with at least 1 - alpha (``privacy.threshold.intervals``)."""
        low, high = intervals(plan.law, counts, plan.alpha)
        return cls(counts.astype(np.float64), low.astype(np.float64), high.astype(np.float64))

    def interval(self, part: slice, constant: float, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Those of the numbers ``part``, constants added."""
        return self.low[part] + constant, self.high[part] + constant


@job_of.register
def _job(plan: SparsePlan, sources: Mapping[str, TableSource], description: Json, label: str) -> SparseJob:
    """Everything public that counting groups and showing those that pass a threshold needs."""
    return SparseJob(plan.compiled, plan.law, MOST_SHOWN, plan.charge, plan.schemas, sources, description, label)


@release_tables.register
def _tables(
    plan: SparsePlan, y: Sequence[int], *, errors: bool = True, rehearsal: bool = False, estimates: str = "unbiased"
) -> tuple[ResultTable, ...]:
    """The groups that passed. ``estimates`` are as they are: each shown count is its own."""
    groups, counts = plan.shown(y)
    passed = Passed.of(plan, counts)
    listed = cast("Planned", plan.after(y))
    return tables_of(listed, passed.values, errors=errors, rehearsal=rehearsal, possible=passed, groups=groups)


def make_sparse_plan(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    state: BudgetState,
    request: Request,
    options: PlanOptions,
) -> SparsePlan:
    """Plan one count by groups, of which there may be billions. Free: reads no row and spends nothing.

    Paid with pure epsilon alone. The policy's ``expected_rows`` choose the threshold. Raises SQLError, PolicyError,
    DataError and BudgetError before any data are touched.
    """
    if options.rounds is not None:
        raise DataError("rounds are those of method='adaptive' and 'mwem'; leave rounds out")
    policy = policy.counting(options.rows_per_unit)
    understood, reads = understood_for(sql, policy, schemas, most_numbers=MOST_GROUPS)
    state = state.within(reads)
    compiled = compile_sparse(understood.queries, understood.tables)
    charge = charge_of("sparse", request, state)
    assert charge.epsilon is not None  # noqa: S101 - as it is pure
    (layout,) = compiled.layouts
    table = layout.source.table
    expected = policy.table(table).expected_rows
    if expected is None:
        raise DataError(
            f"method='sparse' chooses its threshold by how many rows are expected, and the policy does not say it of "
            f"{table}; add expected_rows to [tables.{table}]"
        )
    options.say(f"{compiled.groups:,} groups, on stand-ins for the data")
    shape = tuple(len(key) for key in compiled.queries[0].keys)
    GeometricThreshold(Fraction(layout.multiplicity) / charge.epsilon, 1)  # refused before anything is computed with it
    chosen = sparse_histogram(compiled.groups, layout.multiplicity, charge.epsilon, expected, shape, compiled.digest())
    noise = GeometricThreshold(chosen.scale, chosen.least).noise
    errors = np.array([noise.variance**0.5])
    widths = np.array([_width(float(chosen.scale), options.alpha)])
    prepared = Prepared(sql, policy, schemas, understood, cast("Batch", compiled), options.rows_per_unit, reads)
    return SparsePlan(
        statements=Statements.of(prepared, prepared.compiled),
        compiled=compiled,
        strategy=chosen,
        payment=Payment(charge, state.affords(charge)),
        accuracy=Accuracy(noise, TranscriptAnswers(chosen, no_rows(), errors**2), options.alpha, errors, widths),
        notes=(*understood.notes, *_notes(chosen, expected, options.alpha)),
    )


def _width(scale: float, alpha: float) -> float:
    """The least whole w with P(|Z| > w) <= alpha: 2 q^(w + 1) / (1 + q)."""
    q = float(np.exp(-1 / scale))
    return max(0.0, float(np.ceil(scale * np.log(2 / (alpha * (1 + q))) - 1 - 1e-9)))


def _notes(strategy: SparseHistogram, rows: int, alpha: float) -> tuple[Note, ...]:
    share = strategy.expected_error / rows
    return (
        Note(
            f"the result lists only groups whose count with noise is {strategy.least:,} or more; how many these are "
            f"depends on the data, by way of the noise; an absent group stands for 0: it has at most "
            f"{strategy.unseen(alpha):,} rows, with {100 * (1 - alpha):g}% confidence; about {figure(strategy.stray)} "
            "groups without rows are listed",
            BIAS,
        ),
        Note(
            f"the error of all groups together is expected to be {figure(share)} of the {rows:,} expected rows, "
            f"estimated on stand-ins for the data, and at most {figure(strategy.worst / rows)} of them whatever the "
            f"data; with all counts shown it would be {figure(strategy.unbiased_error / rows)}; at most "
            f"{MOST_SHOWN:,} groups are listed, the largest",
            ERROR,
        ),
    )
