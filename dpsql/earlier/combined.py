"""A batch answered from earlier measurements alone: estimates, errors and what formulas need of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsql.prepare import Prepared, cores_of
from dpsql.privacy.noise import Noise
from dpsql.reconstruct.combined import CombinedAnswers, Observed, White, combined_answers
from dpsql.reconstruct.spread import Floats
from dpsql.sql import Answer
from dpsql.workload.batch import Core
from dpsql.workload.compile import Compiled

from .joint import Joint, Past, join


@dataclass(frozen=True, eq=False)
class Combination:
    """The answers of a batch from earlier measurements; what ``dpsql.tables`` makes result tables of.

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


def combine(prepared: Prepared, pasts: Sequence[Past], alpha: float) -> Combination | None:
    """What ``pasts`` say together about a batch; None where they do not determine every number of it.

    Generalised least squares over all of them (``dpsql.reconstruct.combined``). Free: post-processing of what was
    released. Batches in blocks or closed forms are not combined. Where all earlier batches together tell too many cells
    apart, those are taken, from the newest back, that fit.
    """
    compiled = prepared.compiled
    if not isinstance(compiled, Compiled) or not pasts:
        return None
    joint = _joined(prepared, pasts)
    if joint is None or not joint.observations:
        return None
    observed = [Observed(o.matrix, o.divisor, o.y, Noise(o.noise, o.parameter)) for o in joint.observations]
    answers = combined_answers(
        joint.rows.astype(np.float64).multiply(joint.scale[:, None]), observed, compiled.common_steps
    )
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


def _joined(prepared: Prepared, pasts: Sequence[Past]) -> Joint | None:
    """All of ``pasts`` over joint cells, or the newest that fit."""
    found = join(prepared.understood, pasts)
    if found is not None or len(pasts) == 1:
        return found
    fitting: list[Past] = []
    for past in reversed(pasts):
        more = join(prepared.understood, [past, *fitting])
        if more is not None:
            fitting.insert(0, past)
            found = more
    return found
