"""Plans whose answers rest on earlier releases and on a new measurement together.

A batch is planned alone, with its own strategy: what is measured, with which noise, and what is charged for it are as
if there were no earlier releases. Its answers are the best linear unbiased ones of the new measurement and the earlier
ones (``dpsql.reconstruct.combined``), over the cells that all of their batches tell apart. So the guarantee of the
release is that of its charge, and errors are known before: they depend on what was measured and how noisily, never on
what came out.

The earlier measurements are in the ledger for good: a plan stays valid whatever is released between it and its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Matrix
from dpsql.common.notes import Note, in_order
from dpsql.errors import InternalError
from dpsql.planning.figures import releases_named
from dpsql.planning.plan import Plan
from dpsql.planning.plan_values import Accuracy
from dpsql.planning.prepare import Prepared, cores_of, scaled_sensitivity
from dpsql.planning.target_errors import hint_notes
from dpsql.planning.text import errors_text, plan_rows
from dpsql.privacy.charge import Charge
from dpsql.reconstruct import mean_square
from dpsql.reconstruct.combined import CombinedAnswers, Observed, White, combined_answers
from dpsql.reconstruct.spread import NoiseModel
from dpsql.strategies import MatrixStrategy
from dpsql.workloads.compile.compiled import Compiled

from .combined import Combination, joined, observed_of, workload_of
from .joint import Joint, Past, onto_joint

if TYPE_CHECKING:
    from dpsql.privacy.noise import Noise

_WORTH = 0.02
"""Earlier releases must take this part off the squared error of a plan for it to rest on them."""


@dataclass(frozen=True, eq=False)
class AnswersWithEarlier:
    """``Answers`` from earlier measurements and a new y, which ``combined`` observes last (zeros until it is known).

    ``workload``: W over joint cells (m x n).
    """

    combined: CombinedAnswers = field(repr=False)
    workload: Matrix = field(repr=False)

    @property
    def law(self) -> White:
        """The law with which ``rows`` are read."""
        return self.combined.law

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """Generalised least squares (m,)."""
        *before, new = self.combined.observed
        return replace(self.combined, observed=(*before, replace(new, y=tuple(y), divisor=divisor))).values()

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        """Standard errors (m,), of a new measurement with ``noise``."""
        return self._under(noise).errors()

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths (m,) of the pointwise intervals at level 1 - alpha."""
        return self._under(noise).widths(None, alpha)

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """Rows of several columns of one result, to be read under ``law``."""
        return self._under(noise).rows(parts)

    def with_noise(self, noise: NoiseModel) -> CombinedAnswers | None:
        """The answers, were the new measurement made with ``noise``; None where not all numbers are determined."""
        *before, new = self.combined.observed
        if noise == new.noise:
            return self.combined
        return combined_answers(self.workload, [*before, replace(new, noise=noise)], self.combined.divisor)

    def _under(self, noise: NoiseModel) -> CombinedAnswers:
        found = self.combined if isinstance(noise, White) else self.with_noise(noise)
        if found is None:
            raise InternalError("earlier measurements and a new one of very different noise cannot be combined")
        return found


@dataclass(frozen=True, eq=False)
class CombinedPlan(Plan):
    """A plan whose ``errors`` and ``widths`` are those of earlier measurements and the new one together.

    ``without_earlier`` is the plan without them: it measures the same, at the same charge. ``gap`` is None: that the
    new measurement is the best one beside earlier ones is not certified.
    """

    without_earlier: Plan = field(kw_only=True, repr=False)

    @property
    def error(self) -> float:
        """What the objective minimises, of all measurements together."""
        squares = np.square(np.asarray(self.errors) * self.compiled.weights)
        return float(squares.max() if self.strategy.objective == "max" else squares.sum())

    @property
    def gap(self) -> None:
        """None: nothing is certified."""
        return None

    @property
    def bound_ratio(self) -> float:
        """Error over the SVD bound of the batch without earlier releases: it may be below 1."""
        return float(self.without_earlier.bound_ratio * self.error / self.without_earlier.error)

    @property
    def alone(self) -> Plan:
        """The plan without earlier releases."""
        return self.without_earlier


@dataclass(frozen=True, eq=False)
class Combining:
    """A strategy of a batch beside earlier releases: the answers of all measurements together, whatever it is paid.

    ``matrix``: what the strategy measures, over joint cells.
    """

    joint: Joint = field(repr=False)
    compiled: Compiled = field(repr=False)
    strategy: MatrixStrategy
    matrix: sparse.csr_array = field(repr=False)

    def answers(self, charge: Charge) -> AnswersWithEarlier | None:
        """The answers, the strategy being measured at ``charge``; None where not all numbers are determined."""
        noise = charge.calibrate(scaled_sensitivity(self.strategy, self.compiled), self.strategy.blocks)
        new = Observed(self.matrix, self.compiled.common_steps, (0,) * self.matrix.shape[0], noise)
        return answers_of_all(self.joint, [*observed_of(self.joint), new], self.compiled.common_steps)

    def plan(self, plan: Plan, answers: AnswersWithEarlier) -> CombinedPlan:
        """``plan``, of the same strategy without earlier releases, with ``answers``."""
        return plan_with(plan, answers, tuple(o.release for o in self.joint.observations))


def combining(
    prepared: Prepared, strategy: object, pasts: Sequence[Past], first: frozenset[int] = frozenset()
) -> Combining | None:
    """A strategy of a batch beside ``pasts``; None where nothing of them touches it, or where it is not one matrix over
    listed cells. Cost: one compilation of all batches together.
    """
    compiled = prepared.compiled.matrix
    if compiled is None or not isinstance(strategy, MatrixStrategy):
        return None
    if any(layout.source.distinct for layout in compiled.layouts):
        return None
    joint = joined(prepared, pasts, first, beside=True)
    if joint is None or not joint.observations:
        return None
    touched = np.unique(joint.rows.indices)
    if not any(one.matrix.tocsc()[:, touched].nnz for one in joint.observations):
        return None  # they know nothing of its cells
    onto = onto_joint(compiled.layouts, compiled.rows, joint.layouts, joint.rows)
    if onto is None or not np.array_equal(joint.scale[compiled.answered], compiled.scale[compiled.answered]):
        return None
    matrix = sparse.csr_array(strategy.mixing @ (strategy.basis @ onto))
    return Combining(joint, compiled, strategy, matrix)


def answers_of_all(joint: Joint, observed: Sequence[Observed], divisor: int) -> AnswersWithEarlier | None:
    """The answers of a batch from what was ``observed`` over joint cells, the batch's own measurement last."""
    workload = workload_of(joint)
    combined = combined_answers(workload, observed, divisor)
    return None if combined is None else AnswersWithEarlier(combined, workload)


def plan_with(plan: Plan, answers: AnswersWithEarlier, releases: tuple[int, ...]) -> CombinedPlan:
    """``plan``, which rests on no earlier release, with the ``answers`` that rest on ``releases``."""
    accuracy = Accuracy.of(answers, answers.law, plan.alpha, plan.compiled.common_steps)
    notes = plan.notes
    if plan.origin is not None and plan.wanted is None:
        notes = plan.origin.prepared.understood.notes
        notes += tuple(hint_notes(plan.queries, cores_of(plan.queries, plan.compiled.spans), accuracy.widths))
    changed = {
        "accuracy": accuracy,
        "notes": in_order(notes),
        "rests_on": releases,
        "without_earlier": plan,
    }
    return CombinedPlan(**{**{one.name: getattr(plan, one.name) for one in fields(Plan)}, **changed})


def combined_plan(plan: Plan, pasts: Sequence[Past], first: frozenset[int] = frozenset()) -> Plan:
    """``plan``, with the answers of all measurements together where that makes them better."""
    beside = None if plan.origin is None else combining(plan.origin.prepared, plan.strategy, pasts, first)
    answers = None if beside is None else beside.answers(plan.charge)
    if beside is None or answers is None:
        return plan
    made = beside.plan(plan, answers)
    # Where noise is as coarse as its lattice, intervals of several measurements are rounded outward more.
    narrower = mean_square(made.widths) < mean_square(plan.widths)
    return made if narrower and made.error <= (1.0 - _WORTH) * plan.error else plan


def noted(plan: Plan, free: Combination) -> Plan:
    """The plan with a note that earlier releases answer the batch as well, and with which errors."""
    answers = AnswersWithEarlier(free.answers, free.answers.weights)
    accuracy = Accuracy(cast("Noise", free.noise), answers, plan.alpha, free.errors, free.widths)
    rows = plan_rows(replace(plan, compiled=free.compiled, accuracy=accuracy))
    answer = f"{releases_named(free.rests_on)} answer{'' if len(free.rests_on) > 1 else 's'} this with no more error"
    notes = Note(f"{answer}: a run is free"), Note(f"{errors_text(rows)}, as answered for free")
    return replace(plan, notes=(*plan.notes, *notes))
