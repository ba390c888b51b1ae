"""Measures: what is summed in a cell, as exact integers with a public bound.

The count of a cell adds 1 for every row. The sum of a column v with bounds [lower, upper]
adds, for every row, z = (v' - mid) / half in [-1, 1], where v' is v clamped to the bounds and
rounded to the grid of ``step``; NULL adds 0. In units of half a step z is an integer
z' in [-steps, steps], and

    SUM(v) = mid * COUNT(v) + half * SUM(z)          (over rows where v is not NULL).

Where 0 is on the grid, NULL may add the z of 0 instead (``at_zero``). It adds nothing to SUM(v) then either,

    SUM(v) = mid * COUNT(*) + half * SUM(z)          (over all rows),

and rows with NULL need not be told apart from others for it.

One row changes the pair (count, z) within the box {1} x [-1, 1], so sensitivities are decided
at the corners of the box.

Squares, for variances, add t = 2 z^2 - 1 in [-1, 1] on a grid of at most 2^20 steps, so that

    SUM((v - mid)^2) = half^2 (COUNT(v) + SUM(t)) / 2.

(z, t) lies on a parabola within [-1, 1]^2: the box bounds it, and is exact where only one of the two is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.errors import PolicyError
from dpsql.workloads.expr.lines import Line

# A column without a declared step or a grid of its own has this many steps, one whose squares are summed no more.
DEFAULT_STEPS = 2**20
MAX_STEPS = 2**40


@dataclass(frozen=True)
class Measure:
    """The centred, quantised sum of one column, or with ``power`` 2 of its squared distances from the middle.

    SUM = mid * COUNT + half * SUM(z') / steps, with |z'| <= steps for every row. ``grid`` is the number of
    steps from lower to upper. ``at_null``: z' of a row where the column is NULL, where such
    rows are not told apart from others; None where they are, and add z' = 0.
    """

    column: str
    line: Line
    lower: Fraction
    upper: Fraction
    step: Fraction
    power: int = 1
    at_null: int | None = field(default=None, repr=False)  # changes no answer's meaning

    @property
    def at_zero(self) -> int | None:
        """z' of the value 0; None where 0 is outside of the bounds or off the grid, and for squares."""
        steps = -self.lower / self.step if self.step else -self.lower
        on_grid = self.power == 1 and steps.denominator == 1 and self.lower <= 0 <= self.upper
        return int(2 * steps) - self.grid if on_grid else None

    @property
    def grid(self) -> int:
        """The number of steps between the bounds."""
        return int((self.upper - self.lower) / self.step) if self.step else 0

    @property
    def steps(self) -> int:
        """The largest |z'| of one row."""
        return self.grid if self.power == 1 else self.grid**2

    @property
    def mid(self) -> Fraction:
        """Centre of what a row can add: of the bounds, or of the squares."""
        return (self.lower + self.upper) / 2 if self.power == 1 else self.half

    @property
    def half(self) -> Fraction:
        """Half the width of what a row can add."""
        half = (self.upper - self.lower) / 2
        return half if self.power == 1 else half**2 / 2


def measure_of(
    column: str, line: Line, lower: Fraction, upper: Fraction, step: Fraction | None, where: str, power: int = 1
) -> Measure:
    """The measure of a column; ``where`` is its key in the policy, for messages.

    The grid is the declared ``step``, else 1 for integers, the last decimal for DECIMAL, and
    a 2^-20 part of the width for floating point. Raises PolicyError past 2^40 steps.
    """
    width = upper - lower
    if step is None:
        if line.kind == "integer" and width.denominator == 1:
            step = Fraction(1)
        elif line.kind == "decimal" and (width * 10**line.scale).denominator == 1:
            step = Fraction(1, 10**line.scale)
        else:
            step = width / DEFAULT_STEPS
    if power == 2 and width and width / step > DEFAULT_STEPS:
        if line.kind == "grid":
            raise PolicyError(
                f"{where} has {int(width / step):,} steps between its bounds, at most {DEFAULT_STEPS:,} are "
                "squared for a variance: declare larger steps or narrower bounds of the columns that it is made of"
            )
        step = width / DEFAULT_STEPS
    measure = Measure(column, line, lower, upper, step if width else Fraction(0), power)
    if measure.steps > MAX_STEPS:
        raise PolicyError(
            f"{where} has {measure.steps:,} steps between its bounds, at most {MAX_STEPS:,} are summed: "
            "declare a larger step or narrower bounds"
        )
    if line.kind == "integer" and measure.step and not (lower >= -(2**63) and upper < 2**63):
        raise PolicyError(f"{where} has bounds beyond 64 bits; SUM takes bounds from -2^63 to 2^63 - 1: narrow them")
    return measure
