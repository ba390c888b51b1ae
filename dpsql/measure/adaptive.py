"""Measurement in rounds: what is measured next depends, privately, on what was measured before.

Neighbours as in ``dpsql.measure``. Guarantee: epsilon-DP, purely, with epsilon = T e_s + (T + 1) e_m.

Let r_0, ..., r_m be the candidates (integer rows over x) and D_i, in exact integers, the most by which one unit can
move L r_i x. The run releases the transcript: L r_0 x + Z_0, and for each of T rounds a candidate i drawn by the
exponential mechanism at e_s, and L r_i x + Z, the Z discrete Laplace of scale D / e_m. Proof: given the transcript so
far, the made-up table and its whole-number answers e_i are fixed, so the score |L r_i x - e_i| moves by at most D_i
between neighbours (the triangle inequality), and the draw is e_s-DP (``dpsql.privacy.selection``); given i, the
answer is e_m-DP. Adaptive composition of pure mechanisms adds (Dwork, Rothblum and Vadhan 2010; for T fixed beforehand,
as here, by multiplying conditional probabilities). All else is a function of the transcript.

The whole epsilon is charged once, before the first row is read; a crash at any step leaves the charge. The noise is
drawn before the scan. The selections cannot be: how long one takes depends on the scores (``selection``). Exact values
live in the frame of ``_rounds`` alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Protocol

import numpy as np
from scipy import sparse

from dpsql import measure as room
from dpsql.arrays import Json
from dpsql.engines.base import Engine, TableSource
from dpsql.errors import IntegrityError
from dpsql.measure.shield import shielded
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.noise import Noise, pure_noise
from dpsql.privacy.selection import Selection
from dpsql.workload.cells.corners import corners_of
from dpsql.workload.cells.integers import Factored
from dpsql.workload.compile.layout import Layout


class MadeUp(Protocol):
    """A made-up table in the course of a run: a function of the transcript alone."""

    def learn(self, number: int, answer: int, /) -> None:
        """Take in a noisy answer, in units of 1/L."""
        ...

    def whole_answers(self) -> list[int]:
        """Its answers to all candidates, in units of 1/L."""
        ...


@dataclass(frozen=True)
class AdaptiveJob:
    """A run in rounds over the cells of ``layouts``; the fields of ``Job``, and what is peculiar to rounds.

    ``integers``: the candidates (1 + m x n), row 0 the number of rows. ``reach`` (1 + m,): D_i, in units of 1/L.
    ``start(total)`` makes the table that the noisy total alone tells of.
    """

    layouts: tuple[Layout, ...]
    integers: Factored = field(repr=False)
    common_steps: int
    reach: tuple[int, ...] = field(repr=False)
    rounds: int
    each_selection: Fraction
    each_measure: Fraction
    start: Callable[[int], MadeUp] = field(repr=False)
    charge: Charge
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    sources: Mapping[str, TableSource] = field(repr=False)
    description: Json = field(repr=False)
    label: str = ""

    @property
    def noise(self) -> Noise:
        """The law of the noise of the number of rows, measured once; others have the scale of their own reach."""
        return pure_noise(self.reach[0], self.each_measure)

    @property
    def selection(self) -> Selection:
        """The law of one selection among the candidates but the first."""
        return Selection(self.each_selection, self.reach[1:])

    @property
    def spent(self) -> Fraction:
        """epsilon of the whole run."""
        return self.rounds * self.each_selection + (self.rounds + 1) * self.each_measure


def measure_adaptively(
    job: AdaptiveJob, engine: Engine, ledger: Ledger, payload: Callable[[int, list[int]], bytes]
) -> tuple[int, list[int]]:
    """Charge, measure and record one run; its number and the transcript (1 + 2 T whole numbers).

    The transcript: the noisy number of rows, then the number of the candidate and its noisy answer, round by round.
    ``payload`` and errors as ``measure``.
    """
    room._check_schemas(job, engine)
    check_reach(job)
    room.check_periods(job)
    release = ledger.charge(job.charge, secrets.token_hex(16), job.description, label=job.label)
    transcript = shielded(partial(_observed, job, engine, noise_of(job)), room.FAILED)
    ledger.record(release, payload(release, transcript))
    return release, transcript


def check_reach(job: AdaptiveJob) -> None:
    """Work the reach of every candidate out again, from the cells that the scan fills, and the epsilon of the parts.

    Over the corners of what a row can do (``dpsql.workload.cells.corners``), in exact integers. Before the charge;
    depends on public values only. Raises IntegrityError where a figure is smaller than it must be.
    """
    job.integers.check()
    epsilon = job.charge.epsilon
    found = np.zeros(job.integers.shape[0], dtype=object)
    apart = len({layout.source.protects for layout in job.layouts}) == len(job.layouts)
    for layout in job.layouts:
        moved = abs(sparse.csr_array(job.integers.basis @ corners_of([layout.entry], job.integers.shape[1])))
        most = np.asarray(moved.max(axis=1).todense(), dtype=np.int64).ravel() if moved.shape[1] else found
        found = np.maximum(found, most.astype(object) * (layout.multiplicity * job.common_steps))
    identity = sparse.eye_array(job.integers.shape[0], format="csr")
    unmixed = sparse.csr_array(job.integers.mixing - identity).count_nonzero() == 0
    if (
        epsilon is None
        or job.spent > epsilon
        or not (apart and unmixed)
        or any(claimed < least for claimed, least in zip(job.reach, found.tolist(), strict=True))
    ):
        raise IntegrityError(
            "the plan's sensitivities are not those of its candidates; plan again (nothing was charged)"
        )


def noise_of(job: AdaptiveJob) -> dict[int, list[int]]:
    """Noise for every reach that a candidate has: one draw for the number of rows, one a round."""
    laws = {reach: pure_noise(reach, job.each_measure) for reach in sorted(set(job.reach))}
    return {reach: law.sample(job.rounds + 1) for reach, law in laws.items()}


def _observed(job: AdaptiveJob, engine: Engine, noise: dict[int, list[int]]) -> list[int]:
    """The transcript of one scan."""
    return _rounds(job, room._observe(job, engine, [0] * job.integers.shape[0]), noise)


def _rounds(job: AdaptiveJob, exact: Sequence[int], noise: dict[int, list[int]]) -> list[int]:
    """The transcript for exact candidates ``exact`` (1 + m,), which die with this frame."""
    transcript = [exact[0] + noise[job.reach[0]].pop()]
    table, selection = job.start(transcript[0]), job.selection
    for _ in range(job.rounds):
        known = table.whole_answers()
        number = 1 + selection.sample([abs(a - b) for a, b in zip(exact[1:], known[1:], strict=True)])
        transcript += [number, exact[number] + noise[job.reach[number]].pop()]
        table.learn(number, transcript[-1])
    return transcript
