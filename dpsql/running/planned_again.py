"""A batch planned again as an earlier release measured it: for what the ledger keeps the outcome of, not the integers.

Of blocks of histograms, boxes, long lines and very large batches a payload holds y, the law of its noise and a hash of
the integers B. They follow from the batch, the policy and the charge, so that planning gives them again; the hash tells
whether it did. Free: reads no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.planning.fine_noise import finest
from dpsql.planning.options import PlanOptions
from dpsql.planning.prepare import Prepared, cores_of, no_worse_than_one_by_one, scaled_sensitivity
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import Answers, Errors, MatrixAnswers
from dpsql.release.payload import Measurement
from dpsql.sql import Answer
from dpsql.strategies import Strategy
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.expr.batch import Core

_AT_ONCE = 2**24
"""Numbers of the noise of several measurements, multiplied at once."""


@dataclass(frozen=True, eq=False)
class PlannedAgain:
    """What result tables are made from (``result_tables.Planned``), of a release that measured ``y``.

    ``errors`` and ``widths``: of every number (m,), or of all ranges of a line.
    """

    prepared: Prepared = field(repr=False)
    compiled: Batch = field(repr=False)
    answers: Answers = field(repr=False)
    noise: Noise
    alpha: float
    release: int
    y: tuple[int, ...] = field(repr=False)

    @property
    def rests_on(self) -> tuple[int, ...]:
        """The one release whose measurement it is."""
        return (self.release,)

    @property
    def queries(self) -> tuple[Answer, ...]:
        return self.prepared.understood.answers

    @cached_property
    def errors(self) -> Errors:
        return self.answers.errors(self.noise, self.compiled.common_steps)

    @cached_property
    def widths(self) -> Errors:
        return self.answers.widths(self.noise, self.alpha, self.compiled.common_steps)

    @property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]:
        """Every core of every statement in order, with the rows of W that each of its outputs takes."""
        return cores_of(self.queries, self.compiled.spans)

    @cached_property
    def values(self) -> Floats:
        """The estimates R y / L, as the release shows them."""
        return self.answers.estimate(self.y, self.compiled.common_steps)

    def propagate(self, noise: Iterator[Floats]) -> Iterator[Floats]:
        """R z / L of each z (p,): how noise moves the estimates. Cost of one product, or one transform, each."""
        common = self.compiled.common_steps
        if not isinstance(self.answers, MatrixAnswers):
            yield from (self.answers.estimate(cast("Sequence[int]", z), common) for z in noise)
            return
        matrix, each = self.answers.whole / common, max(_AT_ONCE // max(len(self.y), 1), 1)
        held: list[Floats] = []
        for z in noise:
            held.append(z)
            if len(held) == each:
                yield from np.asarray(matrix @ np.stack(held, axis=1)).T
                held = []
        if held:
            yield from np.asarray(matrix @ np.stack(held, axis=1)).T


def planned_again(
    prepared: Prepared, charge: Charge, objective: str, measurement: Measurement, alpha: float, release: int
) -> PlannedAgain | None:
    """The batch with the strategy that ``measurement`` was made with; None where planning gives another one by now.

    That is after a search with other options, on other libraries, or under other declarations of how many rows count.
    Cost: planning.
    """
    blocks = prepared.as_blocks(objective) if charge.noise == "gaussian" else None
    bounds_left_out = prepared.without_bounds(), prepared.without_sum_bounds()
    for held in (prepared, blocks, *bounds_left_out, prepared.with_units_in_blocks()):
        found = None if held is None else _again(held, charge, objective, measurement, alpha, release)
        if found is not None:
            return found
    return None


def _again(
    prepared: Prepared, charge: Charge, objective: str, measurement: Measurement, alpha: float, release: int
) -> PlannedAgain | None:
    """``planned_again`` with the batch as it was compiled."""
    weighed = prepared.weighed(charge.noise, objective)
    for strategy in _candidates(prepared, charge, PlanOptions(alpha=alpha, objective=objective)):
        if strategy.measured.digest() != measurement.strategy:
            continue
        compiled = strategy.as_measured(weighed.compiled)
        noise = charge.calibrate(scaled_sensitivity(strategy, compiled), strategy.blocks)
        if compiled.common_steps != measurement.common_steps or noise != measurement.law:
            continue
        answers = strategy.answers_of(compiled)
        return PlannedAgain(prepared, compiled, answers, noise, alpha, release, measurement.y)
    return None


def _candidates(prepared: Prepared, charge: Charge, options: PlanOptions) -> Iterator[Strategy]:
    """What ``planning.make_plan`` may have taken, the likelier first."""
    weighed = prepared.weighed(charge.noise, options.objective)
    first = prepared.strategy(charge.noise, options)
    first = first if prepared.named else finest(weighed, charge, first, options)
    yield first
    if options.objective == "balanced":
        held = no_worse_than_one_by_one(prepared, first, options)
        if held is not first:
            yield held
