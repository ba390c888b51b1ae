"""Answers that were counted one by one: each number has an error of its own and combines with no other."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.common.arrays import Floats, Matrix
from dpsql.common.numerics import ALPHA
from dpsql.errors import InternalError
from dpsql.planning.prepare import cores_of
from dpsql.privacy.noise import Noise
from dpsql.reconstruct.spread import NoiseModel
from dpsql.sql import Answer
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.batch import Core


@dataclass(frozen=True, eq=False)
class Counted:
    """The answers of a batch from counts of discoveries; NaN where there is none. As ``earlier.Combination``.

    ``low``, ``high`` (m,): ends of intervals, given that a value is shown.
    """

    queries: tuple[Answer, ...] = field(repr=False)
    compiled: Compiled = field(repr=False)
    values: Floats = field(repr=False)
    errors: Floats = field(repr=False)
    low: Floats = field(repr=False)
    high: Floats = field(repr=False)
    rests_on: tuple[int, ...]
    alpha: float = ALPHA
    noise: Noise = field(default=Noise.gaussian(Fraction(1)), repr=False)  # no number is worked out of others

    @property
    def answers(self) -> Counted:
        """Itself: what combinations of answers need."""
        return self

    def rows(self, parts: object, noise: NoiseModel) -> Matrix:
        """There are none, as nothing is combined."""
        raise InternalError("counts of a discovery are not combined")

    @property
    def widths(self) -> Floats:
        """From the lower end: what a small count is judged by."""
        return self.values - self.low

    @property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]:
        """Every core of every statement in order, with the rows of W that each of its outputs takes."""
        return cores_of(self.queries, self.compiled.spans)

    def interval(self, part: slice, constant: float, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Those of the numbers ``part``."""
        return self.low[part], self.high[part]
