"""The strategy of a batch over one long line: the product of the line's and of the small batch's.

Both error and least error of a product of workloads are products, where the changes that a row makes are products too:
with dual weights lambda and mu for the parts, lambda (x) mu is one for the whole (``dpsql.strategy.gaussian.optimal``),
and the nuclear norm of a product is the product of theirs. So error, lower bound and singular value bound multiply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpsql.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.reconstruct import LineAnswers, MatrixAnswers
from dpsql.strategy.core.base import AnyWorkload, Batch, Strategy
from dpsql.strategy.core.matrix_strategy import MatrixStrategy
from dpsql.strategy.ranges.line_strategy import LinePlan, line_strategy
from dpsql.workload.compile.line_batch import Lined, LineIntegers
from dpsql.workload.families.marginals import Marginals
from dpsql.workload.families.matrix import Workload


@dataclass(frozen=True, eq=False)
class LinedStrategy(Strategy):
    """What is measured of a batch over a long line: ``rest`` of the small batch, ``along`` of the line.

    ``l1``, ``l2_squared``: sensitivity to a whole unit, over ``common_multiplicity`` (its square); products of both
    parts', exact. ``expected``: total squared error at sensitivity 1 in the objective's units. ``method`` is the
    line's, and the small batch's where that has more than one number.
    """

    planned: Lined = field(repr=False)
    rest: MatrixStrategy = field(repr=False)
    along: LinePlan
    noise: str
    method: str
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    objective: str = "total"

    @property
    def measured(self) -> LineIntegers:
        return LineIntegers(self.rest.measured, self.along.line)

    def error(self, W: AnyWorkload) -> float:
        """The product of both parts' errors."""
        if W is self.planned:
            return self.expected
        inner = self._lined(W).inner
        return self.rest.error(inner.workload(inner.objective)) * self.along.error

    def variances(self, W: AnyWorkload) -> Floats:
        """The squared errors (m,): the numbers of the small batch, each over all ranges by first and last value."""
        return np.asarray(np.kron(*self._parts(W)), dtype=np.float64)

    def largest(self, W: AnyWorkload) -> float:
        """The largest squared error: the product of both parts' largest."""
        small, line = self._parts(W)
        return float(small.max() * line.max())

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """The product of both parts' bounds."""
        return of(self.rest.planned) * self.along.svd_bound

    def answers_of(self, batch: Batch) -> LineAnswers:
        """Prefix sums of the line for each number of the small batch."""
        inner = self.planned.inner
        some = MatrixAnswers(self.rest.reconstruction(inner.workload(inner.scale)), inner.answered, inner.numbers)
        return LineAnswers(self.along.line, some.whole.toarray(), self.planned.key.family)

    def _parts(self, W: AnyWorkload) -> tuple[Floats, Floats]:
        """The squared errors of the small batch, and those of the line's ranges."""
        inner = self._lined(W).inner
        if len(self.planned.key) > MATRIX_CAP:
            raise DataError(f"strategy: {len(self.planned.key):,} ranges are too many to be listed one by one")
        times = float(self.along.line.l2_squared if self.noise == "gaussian" else self.along.line.l1**2)
        return self.rest.variances(inner.workload(inner.objective)), times * self.along.line.spread.of(*self._ranges())

    def _ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first, stop) of the line's ranges, or of its prefixes."""
        n = self.planned.length
        if self.along.family == "prefixes":
            return np.zeros(n, dtype=np.int64), np.arange(1, n + 1)
        first, last = np.triu_indices(n)
        return first, last + 1

    def _lined(self, W: AnyWorkload) -> Lined:
        if not isinstance(W, Lined) or (W.length, W.key.family) != (self.planned.length, self.along.family):
            raise DataError(f"strategy: this one is for {self.along.family} over {self.planned.length:,} values")
        return W


def lined_strategy(batch: Lined, rest: MatrixStrategy, objective: str = "total") -> LinedStrategy:
    """The strategy for ``batch``, whose small batch is measured by ``rest``. DataError for another objective."""
    if objective != "total":
        raise DataError(
            f"{batch.key.text} has {len(batch.key):,} groups and is planned for the least total error; leave "
            f"objective={objective!r} out"
        )
    along = line_strategy(batch.length, batch.key.family, rest.noise)
    line, expected = along.line, rest.expected * along.error
    method = along.method if rest.shape == (1, 1) else f"{along.method} x {rest.method}"
    known = rest.lower_bound is not None and along.lower_bound is not None
    return LinedStrategy(
        *(batch, rest, along, rest.noise, method, rest.l1 * line.l1, rest.l2_squared * line.l2_squared, expected),
        lower_bound=(rest.lower_bound or 0.0) * (along.lower_bound or 0.0) if known else None,
        considered=((method, expected),),
    )
