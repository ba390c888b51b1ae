"""The strategy of a batch over one long line: the product of the line's and of the small batch's.

Both error and least error of a product of workloads are products, where the changes that a row makes are products too:
with dual weights lambda and mu for the parts, lambda (x) mu is one for the whole (``dpsql.strategy.gaussian.optimal``),
and the nuclear norm of a product is the product of theirs. So error, lower bound and singular value bound multiply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dpsql.errors import DataError
from dpsql.strategy.core.base import Strategy
from dpsql.strategy.ranges.line_strategy import LineStrategy, line_strategy
from dpsql.workload.compile.line_batch import Lined, LineIntegers


@dataclass(frozen=True, eq=False)
class LinedStrategy:
    """What is measured of a batch over a long line; the surface of ``Strategy`` that plans and runs use.

    ``rest`` is the small batch's strategy, ``along`` the line's. ``l1``, ``l2_squared``: sensitivity to a whole unit,
    over ``common_multiplicity`` (its square).
    """

    batch: Lined = field(repr=False)
    rest: Strategy = field(repr=False)
    along: LineStrategy

    @property
    def noise(self) -> str:
        """Of both."""
        return self.along.noise

    @property
    def method(self) -> str:
        """The line's, and the small batch's where it has more than one number."""
        alone = self.rest.shape == (1, 1)
        return self.along.method if alone else f"{self.along.method} x {self.rest.method}"

    @property
    def objective(self) -> str:
        """The total squared error."""
        return "total"

    @property
    def l1(self) -> int:
        """A product, exact."""
        return self.rest.l1 * self.along.line.l1

    @property
    def l2_squared(self) -> int:
        """A product, exact."""
        return self.rest.l2_squared * self.along.line.l2_squared

    @property
    def measured(self) -> LineIntegers:
        """B as it is measured."""
        return LineIntegers(self.rest.measured, self.along.line)

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n entries of x)."""
        return self.measured.shape

    @property
    def expected(self) -> float:
        """Total squared error at sensitivity 1 in the objective's units."""
        return self.rest.expected * self.along.error

    @property
    def value(self) -> float:
        """What was minimised: ``expected``."""
        return self.expected

    @property
    def lower_bound(self) -> float | None:
        """No Gaussian matrix mechanism has a lower error; None for Laplace noise."""
        if self.rest.lower_bound is None or self.along.lower_bound is None:
            return None
        return self.rest.lower_bound * self.along.lower_bound

    @property
    def considered(self) -> tuple[tuple[str, float], ...]:
        """The one strategy that there is for such a line."""
        return ((self.method, self.expected),)

    @property
    def gap(self) -> float | None:
        """error / lower bound - 1, from the integers that are measured; None where no bound is known."""
        if self.noise != "gaussian" or self.lower_bound is None:
            return None
        return max(0.0, self.expected / self.lower_bound - 1.0)


def lined_strategy(batch: Lined, rest: Strategy, objective: str = "total") -> LinedStrategy:
    """The strategy for ``batch``, whose small batch is measured by ``rest``. DataError for another objective."""
    if objective != "total":
        raise DataError(
            f"{batch.key.text} has {len(batch.key):,} groups and is planned for the least total error; leave "
            f"objective={objective!r} out"
        )
    return LinedStrategy(batch, rest, line_strategy(batch.length, batch.key.family, rest.noise))
