"""End-to-end privacy: noisy measurements of neighbouring databases, compared in mu (or epsilon), not in delta.

A bound on epsilon from counts of events never catches a doubled rho; the distance of two means in standard
deviations does after some hundred measurements. Nothing of the mechanism is taken for granted but the shape of its
noise, which ``dpsql.extensions.audit.noise`` holds against its law.

Gaussian. For neighbours D and D', y on the direction of B x(D') - B x(D) has means that lie at most mu standard
deviations apart if the release is mu-GDP. m units that all move y alike lie m mu apart (group privacy,
Dong, Roth and Su 2022, Theorem 3), so m is chosen to bring that near 4, where N measurements tell a doubled rho
best. The found distance has the standard error sqrt(2 / N + (m mu)^2 / 4N).

Laplace. Let b be the scale and d the change. epsilon is sum |d_i| / b over the coordinates that move; m units pay
m epsilon. It is found from the means of y_i, signed by d_i, and b from the mean |noise|. For one unit that moves up
to three coordinates, P(E | D') - e^epsilon P(E | D) is tested besides, E being that all pass their values under D':
pure privacy allows no event more than 0, whatever the noise.

Blocks. epsilon is the sum over blocks of max |d_i| / b: of each block the coordinate that moves most is taken, and b
from the mean |noise| over what its law has. In a block for patterns a unit that moves groups alike has no more steps.

Runs in rounds. What a run releases has a law that can be written down: integer noise for every answer, the exponential
mechanism for every selection, the estimate fixed by what came before. So for a transcript and two neighbouring
databases the quotient of its probabilities is computed, not sampled, and no transcript may have a quotient above
e^epsilon; for Gaussian noise no run may tell more mu^2 than is charged. The transcripts are those of runs on either
database, where the most is likeliest found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import special

from dpsql.common.arrays import Floats
from dpsql.common.pattern_block import PatternBlock, law_of
from dpsql.extensions.audit.database import KEYS, OWN, SHARED, Rows
from dpsql.extensions.audit.noise import chi_square_of
from dpsql.extensions.audit.sensitivity import NUMBER, Search
from dpsql.extensions.audit.world import World, WorldOf
from dpsql.measure import synthetic
from dpsql.measure.adaptive import AdaptiveJob, Step
from dpsql.privacy import cubes
from dpsql.privacy.noise import Noise

GAUSSIAN_AIM, LAPLACE_AIM = 4.0, 12.0
MOST_UNITS = (KEYS - SHARED) // OWN - 4


@dataclass(frozen=True)
class Distance:
    """The privacy loss between neighbours: ``estimated`` and ``claimed``, in mu or epsilon of ``units`` units.

    ``z``: standard errors that ``estimated`` lies above the claim. ``power``: what z a doubled rho (or epsilon) would
    have had here. ``event``: standard errors of the event test, None where it was not made.
    """

    measure: str
    trials: int
    units: int
    claimed: float
    estimated: float
    z: float
    power: float
    event: float | None = None


def distance(world: World, worst: Search, trials: int) -> Distance:
    """Measure both databases ``trials`` times each and compare. Cost: 2 x ``trials`` measurements."""
    step = _step(world, worst, 1)
    claimed = _claimed(world)
    aim = GAUSSIAN_AIM if world.gaussian else LAPLACE_AIM
    units = max(1, min(round(aim / claimed), MOST_UNITS))
    change = _step(world, worst, units)
    if change != [units * d for d in step]:
        units, change = 1, step  # the units get in each other's way
    shift = np.array([float(value) for value in change])
    plain = _measured(world, worst.base, trials)
    other = _measured(world, _beside(world, worst, units), trials) + shift
    if world.gaussian:
        return Distance("mu", trials, units, units * claimed, *_gaussian(plain, other, shift, units * claimed))
    if world.plan.noise.blocks:
        estimated, z, power = _in_blocks(plain, other, shift, units * claimed, world.plan.noise)
    else:
        estimated, z, power = _laplace(plain, other, shift, units * claimed)
    event = None
    alone = np.array([float(value) for value in step])
    if (alone != 0).sum() <= 3:
        with_one = other if units == 1 else _measured(world, _beside(world, worst, 1), trials) + alone
        event = _event(plain, with_one, alone, claimed)
    return Distance("epsilon", trials, units, units * claimed, estimated, z, power, event)


def _beside(world: World, worst: Search, units: int) -> Rows:
    """The base with ``units`` units like the worst one."""
    rows = {name: list(mine) for name, mine in worst.base.items()}
    for name, mine in _rows(world, worst, units).items():
        rows[name] = [*rows.get(name, []), *mine]
    return rows


def _claimed(world: World) -> float:
    charge = world.plan.charge
    return math.sqrt(charge.mu_squared) if world.gaussian else float(charge.epsilon or 0)


def _rows(world: World, worst: Search, units: int) -> Rows:
    """``units`` units like the worst one, numbered past those that stand beside them."""
    found: Rows = {}
    for unit in range(units):
        number = NUMBER if unit == 0 else unit + NUMBER + 1
        for name, mine in world.tables.orderly_unit(worst.label, number, worst.cells).items():
            found[name] = [*found.get(name, []), *mine]
    return found


def _step(world: World, worst: Search, units: int) -> list[int]:
    return world.change(worst.base, _rows(world, worst, units))


def _measured(world: World, rows: Rows, trials: int) -> Floats:
    """Noisy measurements less the exact values of those very rows (trials x p)."""
    world.tables.fill(rows)
    exact = world.exact()
    still = synthetic.StillEngine(world.tables.engine)
    found = np.empty((trials, len(exact)))
    for trial in range(trials):
        y = synthetic.noisy(world.job, still)
        found[trial] = [float(a - b) for a, b in zip(y, exact, strict=True)]
    return found


def _gaussian(plain: Floats, other: Floats, shift: Floats, claimed: float) -> tuple[float, float, float]:
    trials = len(plain)
    unit = shift / (np.linalg.norm(shift) or 1.0)
    without, with_units = plain @ unit, other @ unit
    deviation = math.sqrt((without.var(ddof=1) + with_units.var(ddof=1)) / 2)
    found = float(with_units.mean() - without.mean()) / deviation
    error = math.sqrt(2 / trials + claimed**2 / (4 * trials))
    wrong = claimed * math.sqrt(2)
    return found, (found - claimed) / error, (wrong - claimed) / math.sqrt(2 / trials + wrong**2 / (4 * trials))


def _laplace(plain: Floats, other: Floats, shift: Floats, claimed: float) -> tuple[float, float, float]:
    trials = len(plain)
    moving = shift != 0
    noise = np.concatenate([plain.ravel(), (other - shift).ravel()])
    scale = _scale(float(np.abs(noise).mean()))
    apart = (other - plain)[:, moving] @ np.sign(shift[moving]) / scale
    found = float(apart.mean())
    # |noise| has the deviation of its mean: the scale's relative error is 1 / sqrt(draws).
    error = math.sqrt(4.0 * moving.sum() / trials + claimed**2 / noise.size)
    return (
        found,
        (found - claimed) / error,
        claimed / math.sqrt(4.0 * moving.sum() / trials + 4 * claimed**2 / noise.size),
    )


def _in_blocks(plain: Floats, other: Floats, shift: Floats, claimed: float, noise: Noise) -> tuple[float, float, float]:
    trials, ends = len(plain), np.cumsum(noise.blocks)
    most = [end - m + int(np.argmax(np.abs(shift[end - m : end]))) for m, end in zip(noise.blocks, ends, strict=True)]
    most = [at for at in most if shift[at]]
    each = np.repeat([_mean_size(m, noise.parameter) for m in noise.blocks], noise.blocks)
    sizes = (np.abs(plain).mean(axis=0) + np.abs(other - shift).mean(axis=0)) / 2
    scale = float(noise.parameter) * float((sizes / each).mean())
    found = float(((other - plain)[:, most] @ np.sign(shift[most])).mean()) / scale
    spread = 2.0 * float(noise.variances[most].sum()) / scale**2
    draws = 2 * trials * len(noise.blocks)
    error = math.sqrt(spread / trials + claimed**2 / draws)
    return found, (found - claimed) / error, claimed / math.sqrt(spread / trials + 4 * claimed**2 / draws)


def _mean_size(block: int, scale: Fraction) -> float:
    return law_of(block).mean_size * float(scale) if isinstance(block, PatternBlock) else cubes.mean_size(block, scale)


def _scale(mean: float) -> float:
    """b of a discrete Laplace law with that mean of |Z|: 2q / (1 - q^2), q = exp(-1/b)."""
    if mean == 0:
        return 1e-9
    q = (math.sqrt(1 + mean * mean) - 1) / mean
    return -1 / math.log(q) if q < 1 else mean


def _event(plain: Floats, other: Floats, shift: Floats, epsilon: float) -> float:
    trials = len(plain)
    at = np.flatnonzero(shift)
    without, with_unit = (
        float(((values[:, at] - shift[at]) * np.sign(shift[at]) >= 0).all(axis=1).mean()) for values in (plain, other)
    )
    low = max(without, 1 / trials)
    factor = math.exp(epsilon)
    error = math.sqrt((with_unit * (1 - with_unit) + factor**2 * low * (1 - low)) / trials)
    return (with_unit - factor * without) / error


@dataclass(frozen=True)
class Quotients:
    """The most that a transcript tells of neighbours, of the ``claimed`` budget: an |log quotient|, or mu^2.

    ``selection`` and ``answer``: the largest part of one selection and of one answer, over what each is allowed.
    """

    transcripts: int
    largest: float
    claimed: float
    selection: float
    answer: float


def quotients(world: WorldOf[AdaptiveJob], worst: Search, runs: int) -> Quotients:
    """``runs`` transcripts of either database: the one that moves most, without and with its unit.

    For Gaussian noise mu^2 is added up: of an answer by its shift, of a selection by the range of its log quotients.
    """
    job = world.job
    rows = world.tables.orderly_unit(worst.label, NUMBER, worst.cells)
    world.tables.fill(worst.base)
    without = world.exact()
    having = world.with_rows(rows)
    largest, chosen, answered = 0.0, 0.0, 0.0
    for exact in (without, having):
        for _ in range(runs):
            transcript = synthetic.transcript_of(job, exact)
            total = 0.0
            for step, number, answer in steps_of(job, transcript):
                if step.number is None:
                    apart = selection_quotients(job, step, without, having)
                    used = float(np.ptp(apart)) / float(step.selection)
                    chosen = max(chosen, used)
                    spent = float(job.cost(step) - step.measure) * used**2
                    total += spent if world.gaussian else float(apart[number - step.first])
                if world.gaussian:
                    part = job.part(number)
                    moved = sum((a - b) ** 2 for a, b in zip(without[part], having[part], strict=True))
                    told = step.times**2 * moved / job.law(step, number).parameter
                else:
                    told = answer_quotient(job, step, number, answer, without, having)
                total += float(told)
                answered = max(answered, abs(float(told / step.measure)))
            largest = max(largest, abs(total))
    return Quotients(2 * runs, largest, float(job.spends), selection=chosen, answer=answered)


def steps_of(job: AdaptiveJob, transcript: Sequence[int]) -> Iterator[tuple[Step, int, Sequence[int]]]:
    """The steps of a transcript: each with the candidate that it measured, and its answer."""
    course, at = job.course(), 0
    while (step := course.step()) is not None:
        number = step.number
        if number is None:
            number, at = transcript[at], at + 1
        part = job.part(number)
        at += len(step.transcript)
        answer, at = transcript[at : at + part.stop - part.start], at + part.stop - part.start
        yield step, number, answer
        course.learn(number, step.times, answer)


def log_quotient(
    job: AdaptiveJob, transcript: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> tuple[list[float], list[Fraction]]:
    """log P(transcript | left) / P(transcript | right), in parts: of each selection, and of each answer (exact).

    ``left`` and ``right`` are the exact candidates (p,) of two databases; for Laplace noise.
    """
    selections, answers = [], []
    for step, number, answer in steps_of(job, transcript):
        if step.number is None:
            selections.append(float(selection_quotients(job, step, left, right)[number - step.first]))
        answers.append(answer_quotient(job, step, number, answer, left, right))
    return selections, answers


def selection_quotients(job: AdaptiveJob, step: Step, left: Sequence[int], right: Sequence[int]) -> Floats:
    """log P(i | left) / P(i | right) of every candidate that a step may select."""
    law = job.selection(step)
    one, other = (logs(law.exponents(job.scores(step, exact))) for exact in (left, right))
    return np.asarray(one - other)


def logs(exponents: Sequence[Fraction]) -> np.ndarray:
    """log P of each candidate (m,): exponents are exact until here, and at least one of them is 0."""
    held = -np.array([float(value) for value in exponents])
    return np.asarray(held - special.logsumexp(held))


def answer_quotient(
    job: AdaptiveJob, step: Step, number: int, answer: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> Fraction:
    """A discrete Laplace law's log quotient at ``answer``: the difference of two distances over the scale."""
    part = job.part(number)
    further = sum(
        abs(a - step.times * r) - abs(a - step.times * l)
        for a, l, r in zip(answer, left[part], right[part], strict=True)  # noqa: E741
    )
    return Fraction(further) / job.law(step, number).parameter


@dataclass(frozen=True)
class Draws:
    """Draws of one selection against the exact law."""

    draws: int
    p: float
    candidates: int


def selected(world: WorldOf[AdaptiveJob], worst: Search, count: int) -> Draws:
    """``count`` draws of a first selection, from the database that moves most, tested against its law by chi-square."""
    job = world.job
    world.tables.fill(worst.base)
    exact = world.exact()
    step = next(s for s, _, _ in steps_of(job, synthetic.transcript_of(job, exact)) if s.number is None)
    found = np.array(synthetic.selections_of(job, step, exact, count), dtype=float)
    expected = np.exp(logs(job.selection(step).exponents(job.scores(step, exact)))) * count
    order = np.argsort(-expected)  # so that the rarest candidates are counted together
    return Draws(count, chi_square_of(found[order], expected[order]), len(found))
