"""Measurement in rounds: what is measured next depends, privately, on what was measured before.

Neighbours as in ``dpsql.measure``. Guarantee: what is charged, epsilon-DP for Laplace and mu-GDP for Gaussian noise.

Let c_1, ..., c_m be the candidates: stretches of L B x, integers. A unit moves c_i by at most R_i in L1 norm (hence in
L2), and w_i |c_i - e_i|_1 for any fixed e_i by at most w_i R_i <= D_i, by the triangle inequality, whatever whole
number is then taken off. The run releases a transcript. A step of it selects a candidate by the exponential mechanism
over those scores at some epsilon_s (or names one), then measures it: k c_i + Z, with the noise that a sensitivity of
k R_i and a budget b ask for. What comes next, e, k, epsilon_s, b and whether there is a step at all, is a function of
the transcript so far (``Course``). Given it, a selection is epsilon_s-DP and sqrt(3927 / 10000) epsilon_s-GDP
(``dpsql.privacy.selection``), an answer b-DP, or sqrt(b)-GDP.

Composition. Pure: a transcript's probability is the product of its steps', given what came before, so that its log
quotient is at most the sum of the epsilons along it. Gaussian: given the past, a mu-GDP step is a randomised function
of N(h mu, 1), h = 0 on one database and 1 on its neighbour (Dong, Roth and Su 2022, Thm 2.10), hence of the next mu^2
of time of a Brownian motion with drift h. A run whose mu^2 add up to at most M on every path is a function of that
motion until M, of which N(h M, M) is sufficient: sqrt(M)-GDP. ``_rounds`` adds up what every step costs, in exact
fractions, and stops the run before a step that would pass what was charged; so no course needs to be trusted with it.

The whole budget is charged once, before the first row is read; a crash at any step leaves the charge. Selections are
drawn after the scan, and how long one takes depends on the scores (``selection``); so is noise, as the transcript says
how much of it there is, and its time tells a little of its size, as everywhere. Exact values live in the frame of
``_rounds`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy import sparse

from dpsql.engines.base import Engine
from dpsql.errors import IntegrityError
from dpsql.measure import cells
from dpsql.measure.job import Job
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise
from dpsql.privacy.selection import Selection
from dpsql.workloads.cells.corners import corners_of
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.kronecker import KroneckerIntegers
from dpsql.workloads.compile.sensitivity import sensitivity_of


class Step(Protocol):
    """What a run does next; public, as it follows from the transcript.

    ``number``: the candidate to measure; None selects one of those from ``first`` on at ``selection`` (an epsilon), by
    how far each is from ``estimate`` (L B x, whole numbers) less its ``penalties``. It is measured ``times`` fold
    at ``measure``: epsilon, or mu^2 for Gaussian noise. ``transcript`` is noted before the answer.
    """

    @property
    def number(self) -> int | None: ...
    @property
    def first(self) -> int: ...
    @property
    def selection(self) -> Fraction: ...
    @property
    def estimate(self) -> Sequence[int]: ...
    @property
    def penalties(self) -> Sequence[int]: ...
    @property
    def times(self) -> int: ...
    @property
    def measure(self) -> Fraction: ...
    @property
    def transcript(self) -> tuple[int, ...]: ...


class Course(Protocol):
    """A run on its way: a function of the transcript alone."""

    def step(self) -> Step | None:
        """What comes next; None where the run has ended."""
        ...

    def learn(self, number: int, times: int, answer: Sequence[int], /) -> None:
        """Take in the noisy answer of the step, ``times`` the candidate."""
        ...


@dataclass(frozen=True, kw_only=True)
class AdaptiveJob(Job):
    """A run in rounds over the cells of ``layouts``; the fields of ``Job``, and what is peculiar to rounds.

    Candidate i is the rows of ``integers`` before ``stops[i]``, from the last one's stop. ``reach`` (m,): R_i,
    ``weights`` (m,): w_i, ``steep`` (m,): D_i, in units of 1/L. ``spends``: what all steps cost together at most.
    ``sensitivity``: the largest reach.
    """

    stops: tuple[int, ...] = field(repr=False)
    reach: tuple[int, ...] = field(repr=False)
    weights: tuple[int, ...] = field(repr=False)
    steep: tuple[int, ...] = field(repr=False)
    spends: Fraction
    course: Callable[[], Course] = field(repr=False)

    @property
    def noise(self) -> Noise:
        """The law of the noise of the first answer."""
        step = self.course().step()
        if step is None or step.number is None:
            raise IntegrityError("a run in rounds begins with a measurement; plan again (nothing was charged)")
        return self.law(step, step.number)

    def law(self, step: Step, number: int) -> Noise:
        """The law of the noise of a step that measures candidate ``number``."""
        change = step.times * self.reach[number]
        if self.charge.noise == "gaussian":
            return gaussian_noise(change * change, step.measure)
        return pure_noise(change, step.measure)

    def selection(self, step: Step) -> Selection:
        """The law of a step's selection."""
        return Selection(step.selection, self.steep[step.first :])

    def scores(self, step: Step, exact: Sequence[int]) -> list[int]:
        """The scores of the candidates from ``step.first`` on, of exact values of L B x."""
        off = abs(_whole(exact) - _whole(step.estimate))
        sums = np.add.reduceat(off, [0, *self.stops[:-1]]).tolist()
        penalties = step.penalties or [0] * len(sums)
        return [w * f - p for w, f, p in zip(self.weights, sums, penalties, strict=True)][step.first :]

    def cost(self, step: Step) -> Fraction:
        """What a step takes: epsilon, or mu^2."""
        if step.number is not None:
            return step.measure
        gaussian = self.charge.noise == "gaussian"
        return step.measure + (self.selection(step).mu_squared if gaussian else step.selection)

    def part(self, number: int) -> slice:
        """The rows of a candidate."""
        return slice(self.stops[number - 1] if number else 0, self.stops[number])

    @cached_property
    def least_reach(self) -> list[int]:
        """The largest L1 norm by which one unit can move each candidate, worked out again from what is measured."""
        integers = self.integers
        if isinstance(integers, KroneckerIntegers):
            alone = (replace(integers, residuals=(residual,)) for residual in integers.residuals)
            return [sensitivity_of("laplace", one, self.layouts) * self.common_steps for one in alone]
        reach = np.zeros(integers.shape[0], dtype=object)
        assert isinstance(integers, Factored)  # noqa: S101 - there are no others
        for layout in self.layouts:
            change = abs(sparse.csr_array(integers.basis @ corners_of([layout.entry], integers.shape[1])))
            most = np.asarray(change.max(axis=1).todense(), dtype=np.int64).ravel() if change.shape[1] else reach
            reach = np.maximum(reach, most.astype(object) * (layout.multiplicity * self.common_steps))
        return [int(value) for value in reach]

    def observe(self, engine: Engine) -> list[int]:
        """The transcript of one scan, step by step: the number of the candidate where it was selected, what the step
        says of itself, and the noisy answer.
        """
        return _rounds(self, cells.observed(self, engine, [0] * self.integers.shape[0]))

    def check_sensitivity(self) -> None:
        """Hold the reach of every candidate and score, and what the run may spend, to what is measured and charged.

        In exact integers, from the corners of what a row can do and the residuals' own norms. Before the charge;
        depends on public values only. Raises IntegrityError where a figure is smaller than it must be.
        """
        self.integers.check()
        integers, rows = self.integers, tuple(range(1, self.integers.shape[0] + 1))
        paid = self.charge.mu_squared if self.charge.noise == "gaussian" else self.charge.epsilon
        if isinstance(integers, KroneckerIntegers):
            disjoint = self.stops == tuple(np.cumsum([residual.rows for residual in integers.residuals]).tolist())
        else:
            identity = sparse.eye_array(integers.shape[0], format="csr")
            unmixed = isinstance(integers, Factored) and not (integers.mixing - identity).count_nonzero()
            sources = {layout.source.protects for layout in self.layouts}
            disjoint = unmixed and len(sources) == len(self.layouts) and self.stops == rows
        if (
            paid is None
            or self.over is not None  # what earlier periods paid for is one measurement, not rounds
            or self.spends > paid
            or not disjoint
            or any(claimed < least for claimed, least in zip(self.reach, self.least_reach, strict=True))
            or any(d < w * r for d, w, r in zip(self.steep, self.weights, self.reach, strict=True))
        ):
            raise IntegrityError(
                "the plan's sensitivities are not those of its candidates; plan again (nothing was charged)"
            )


def _whole(values: Sequence[int]) -> np.ndarray:
    """Whole numbers as an array in which the distance of two such, and its sums, are exact."""
    small = max(max(values), -min(values)) < 2**61 // len(values)
    return np.array(values, dtype=np.int64 if small else object)


def _rounds(job: AdaptiveJob, exact: Sequence[int]) -> list[int]:
    """The transcript for exact candidates ``exact`` (p,), which die with this frame; as the module says."""
    transcript: list[int] = []
    course, spent = job.course(), Fraction(0)
    while (step := course.step()) is not None:
        spent += job.cost(step)
        if spent > job.spends:
            raise IntegrityError("a run in rounds asked for more than its budget; report the batch")
        number = step.number
        if number is None:
            number = step.first + job.selection(step).sample(job.scores(step, exact))
            transcript.append(number)
        part = exact[job.part(number)]
        answer = [
            step.times * value + z for value, z in zip(part, job.law(step, number).sample(len(part)), strict=True)
        ]
        transcript += [*step.transcript, *answer]
        course.learn(number, step.times, answer)
    return transcript
