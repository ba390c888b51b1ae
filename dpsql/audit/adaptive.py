"""Runs in rounds (MWEM) held to their promise on generated neighbours: likelihoods of whole transcripts, exactly.

What a run releases has a law that can be written down: discrete Laplace for every answer, the exponential mechanism for
every selection, the made-up table fixed by what came before. So for a transcript and two neighbouring databases the
quotient of its probabilities is computed, not sampled, and no transcript may have a quotient above e^epsilon. The
transcripts are those of runs on either database, where a quotient that is too large is likeliest to be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import special

from dpsql.audit.noise import chi_square_of
from dpsql.audit.sensitivity import NUMBER, Found
from dpsql.audit.world import World
from dpsql.errors import InternalError
from dpsql.measure import synthetic
from dpsql.measure.adaptive import AdaptiveJob


@dataclass(frozen=True)
class Quotients:
    """The largest |log quotient| of a transcript's probabilities on neighbours, of the ``epsilon`` that is charged.

    ``selection`` and ``answer``: the largest part of one selection and of one answer, over what each is allowed.
    """

    transcripts: int
    largest: float
    epsilon: float
    selection: float
    answer: float


def quotients(world: World, worst: Found, runs: int) -> Quotients:
    """``runs`` transcripts of either database: the one that moves most, without and with its unit."""
    job = job_of(world)
    rows = world.tables.orderly_unit(worst.label, NUMBER, worst.cells)
    world.tables.fill(worst.base)
    without = world.exact()
    having = world.with_rows(rows)
    largest, chosen, answered = 0.0, 0.0, 0.0
    for exact in (without, having):
        for _ in range(runs):
            transcript = synthetic.transcript_of(job, exact)
            selections, answers = log_quotient(job, transcript, without, having)
            largest = max(largest, abs(sum(selections) + float(sum(answers))))
            chosen = max([chosen, *map(abs, selections)])
            answered = max([answered, *(abs(float(part)) for part in answers)])
    return Quotients(
        *(2 * runs, largest, float(job.charge.epsilon or 0)),
        selection=chosen / float(job.each_selection),
        answer=answered / float(job.each_measure),
    )


def log_quotient(
    job: AdaptiveJob, transcript: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> tuple[list[float], list[Fraction]]:
    """log P(transcript | left) / P(transcript | right), in parts: of each selection, and of each answer (exact).

    ``left`` and ``right`` are the exact candidates (1 + m,) of two databases.
    """
    table = job.start(transcript[0])
    answers = [_answer(job, 0, transcript[0], left, right)]
    selections = []
    for number, answer in zip(transcript[1::2], transcript[2::2], strict=True):
        known = table.whole_answers()
        law = [logs(job.selection.exponents(scores(exact, known))) for exact in (left, right)]
        selections.append(float(law[0][number - 1] - law[1][number - 1]))
        answers.append(_answer(job, number, answer, left, right))
        table.learn(number, answer)
    return selections, answers


def scores(exact: Sequence[int], known: Sequence[int]) -> list[int]:
    """The distance of each candidate but the first."""
    return [abs(a - b) for a, b in zip(exact[1:], known[1:], strict=True)]


def logs(exponents: Sequence[Fraction]) -> np.ndarray:
    """log P of each candidate (m,): exponents are exact until here, and at least one of them is 0."""
    held = -np.array([float(value) for value in exponents])
    return np.asarray(held - special.logsumexp(held))


def _answer(job: AdaptiveJob, number: int, answer: int, left: Sequence[int], right: Sequence[int]) -> Fraction:
    """A discrete Laplace law's log quotient at ``answer``: the difference of two distances over the scale."""
    further = abs(answer - right[number]) - abs(answer - left[number])
    return further * job.each_measure / job.reach[number]


@dataclass(frozen=True)
class Draws:
    """Draws of one selection against the exact law."""

    draws: int
    p: float
    candidates: int


def selected(world: World, worst: Found, count: int) -> Draws:
    """``count`` draws of a first selection, from the database that moves most, held against the law by chi-square."""
    job = job_of(world)
    world.tables.fill(worst.base)
    exact = world.exact()
    distances = scores(exact, job.start(exact[0]).whole_answers())
    found = np.bincount(synthetic.selections_of(job, distances, count), minlength=len(distances)).astype(float)
    expected = np.exp(logs(job.selection.exponents(distances))) * count
    order = np.argsort(-expected)  # so that the rarest candidates are counted together
    return Draws(count, chi_square_of(found[order], expected[order]), len(distances))


def job_of(world: World) -> AdaptiveJob:
    """The world's job, which is one of rounds."""
    if not isinstance(world.job, AdaptiveJob):
        raise InternalError("this batch is measured at once, not in rounds")
    return world.job
