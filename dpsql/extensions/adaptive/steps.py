"""One step of a run in rounds, and what runs have in common (``dpsql.measure.adaptive`` says what becomes of them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

ROUNDS = "rounds must be a whole number from 1 to 1000; leave it out to have it chosen"


@dataclass(frozen=True)
class Step:
    """What a run does next: candidate ``number``, or one selected from ``first`` on, is measured ``times`` fold.

    ``measure``: what that may cost, epsilon or mu^2; ``selection``: the epsilon of the selection, by the distances to
    ``estimate`` (whole numbers, of all candidates in turn) less ``penalties``. ``transcript``: entries of this step.
    """

    number: int | None
    measure: Fraction
    times: int = 1
    selection: Fraction = Fraction(0)
    first: int = 0
    estimate: Sequence[int] = field(default=(), repr=False)
    penalties: Sequence[int] = field(default=(), repr=False)
    transcript: tuple[int, ...] = ()


def later(misfits: Sequence[float]) -> float:
    """The root mean square over the later half of the rounds."""
    late = np.asarray(misfits[len(misfits) // 2 :])
    return float(np.sqrt(np.mean(late**2))) if late.size else 0.0
