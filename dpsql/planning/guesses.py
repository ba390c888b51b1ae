"""Answers as they are to be expected, and errors of averages, ratios and quantiles, in groups of a guessed size.

Public and free. Errors of averages, ratios and quantiles depend on the answer, above all on how many rows a group has.
A guess takes the rows that the policy expects of the table (``expected_rows``), spread evenly over the groups, and
values that lie evenly within their bounds; without it, groups of ``USUAL_ROWS`` rows. What comes out is an estimate,
and is said to be one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpsql.errors import DataError
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.target_errors import Reading, Wanted, answer_at, at_guess, parts_of, rows_for
from dpsql.workloads.expr.batch import Core, Derived, Output, Ranked
from dpsql.workloads.expr.formulas import affine

USUAL_ROWS = 1000.0
MOST_GROUPS = 2_000
"""Groups up to which errors are guessed: the covariances of their parts are worked out for each."""


@dataclass(frozen=True)
class Guess:
    """What an average, ratio or quantile would have: ``stderr``, ``half_width`` of its interval, ``naive`` one by one.

    ``rows`` of a group, None where the errors do not depend on them, as of a difference of counts; ``value``: the
    answer, None where it does not follow from ``expected_rows``.
    """

    rows: float | None
    value: float | None
    stderr: float
    half_width: float
    naive: float


class Guesses:
    """What is guessed of a plan's answers; nothing of a copy of a plan without its origin."""

    def __init__(self, plan: PlannedBatch) -> None:
        self.plan = plan
        self.reading = None if plan.origin is None or plan.estimated else Reading(plan.origin.prepared, Wanted())

    def answer(self, core: Core, output: Output) -> float | None:
        """The answer in a group of a count, a sum or a combination of such; None without ``expected_rows``."""
        if self.reading is None or core.line is not None:
            return None
        try:
            return self.reading.answer(core.name.split("#")[0], core, output)
        except DataError:
            return None

    def errors(self, core: Core, slices: tuple[slice, ...], column: Derived | Ranked) -> Guess | None:
        """The errors of an average, ratio or quantile; None for very many groups."""
        plan, reading = self.plan, self.reading
        if reading is None or core.rows > MOST_GROUPS:
            return None
        name, query = core.name.split("#")[0], core.places[0][0]
        declared = True
        try:
            rows = reading.rows(name, core, query)
        except DataError:
            declared, rows = False, USUAL_ROWS
            reading = Reading(reading.prepared, Wanted(expected=((name, rows),)))
        estimates = reading.estimates(name, core, column)
        parts, common = parts_of(column, slices), plan.compiled.common_steps
        apart = np.concatenate([np.asarray(plan.naive_errors[part]) for part in parts])
        alone = plan.charge.calibrate(plan.sensitivity)  # one by one nothing is in blocks
        each = sparse.diags_array(apart * common / alone.variance**0.5, format="csr")
        (stderr, half_width), (naive, _) = (
            at_guess(column, estimates, core.rows, made, law, plan.alpha, common)
            for made, law in ((rows_for(column, plan.answers, parts, plan.noise), plan.noise), (each, alone))
        )
        value = float(answer_at(column, estimates[None, :])[0]) if declared else None
        linear = isinstance(column, Derived) and affine(column.formula, len(core.outputs)) is not None
        return Guess(None if linear else rows, value, stderr, half_width, naive) if np.isfinite(stderr) else None
