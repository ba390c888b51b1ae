"""What every strategy answers, whatever it keeps: the protocol ``Strategy``.

A strategy is the integers B that are measured as y = B x + integer noise, their exact sensitivity, and the error of
what is worked out from y by least squares. The noise is independent, but where a pure strategy gathers measurements
into blocks (``dpsql.strategies.core.blocks``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.chain import Step
from dpsql.errors import DataError
from dpsql.reconstruct import Answers
from dpsql.strategies.core.limits import WRITTEN
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.families.marginals import Marginals, spelled
from dpsql.workloads.families.matrix import Workload

AnyWorkload: TypeAlias = Workload | Marginals | Batch
"""Queries as some strategy knows them; each refuses, with DataError, what it was not made for."""

NOISES = ("gaussian", "laplace")
PURE = "pure"  # what ``select`` is asked for: "laplace", in blocks where these are better
OBJECTIVES = ("total", "max")


@dataclass(frozen=True, eq=False)
class Terms:
    """What a method of an extension may use: the noise, a gap for the L2 optimum, a deadline (monotonic), products."""

    noise: str
    tolerance: float
    deadline: float
    work: float


@runtime_checkable
class Strategy(Protocol):
    """Integers B to be measured, their exact sensitivity and their error.

    ``noise``: "gaussian" or "laplace". ``l1``, ``l2_squared``: the largest L1 and squared L2 norms of what one record
    changes of B x, exact; where what a unit can change is not listed, bounds (``dpsql.workloads.compile.sensitivity``).
    ``expected``: the total squared error of the planned queries at sensitivity 1, the privacy
    factor left out: times 2 / epsilon^2 for Laplace noise, times the variance of a unit-sensitivity Gaussian mechanism
    otherwise. ``lower_bound``: no Gaussian matrix mechanism has a lower error (None where none is known, and for
    Laplace noise). ``considered``: (method, error) of every candidate that was computed. ``objective``: what was
    minimised, the "total" squared error or the largest one of a query ("max"); then ``lower_bound`` and
    ``considered`` are of the largest, ``expected`` is the total all the same. ``planned``: the queries that it is for.
    ``blocks``: the sizes of the blocks of measurements, with "laplace" alone; none where all are single, which is
    Laplace noise. ``l1`` is then in the norm of the blocks.
    """

    noise: str
    method: str
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    planned: AnyWorkload
    objective: str
    blocks: tuple[int, ...] = ()

    @property
    def measured(self) -> Integers:
        """B as it is measured, an operator: products with exact data, norms and a digest, whatever its size."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n columns)."""
        return self.measured.shape

    @property
    def independent(self) -> int:
        """At least the number of measurements that do not depend on each other."""
        return self.shape[0]

    @property
    def sensitivity(self) -> float:
        """The largest change of B x by one record, in the norm of its noise: L2 for gaussian, L1 or by blocks else."""
        return sqrt(self.l2_squared) if self.noise == "gaussian" else float(self.l1)

    @property
    def value(self) -> float:
        """What was minimised on the planned queries: ``expected``, or the largest squared error of a query."""
        return self.largest(self.planned) if self.objective == "max" else self.expected

    @property
    def gap(self) -> float | None:
        """error / lower bound - 1, from the integers that are measured; None where no near bound is known."""
        if self.noise != "gaussian" or self.lower_bound is None or self.objective == "max":
            return None
        return max(0.0, self.value / self.lower_bound - 1.0)

    @property
    def reduced(self) -> Workload | None:
        """The workload that was split into independent problems (``reduce_workload``), where that was done."""
        return None

    @property
    def steps(self) -> tuple[Step, ...]:
        """How it was chosen for what it is planned for: the least error of several ways, or the one there is."""
        ratios = {name: error / self.expected for name, error in self.considered if name != self.method}
        others = [f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items(), key=lambda one: one[1])[:3]]
        text = f"; squared errors of others over its own: {', '.join(others)}" if others else ""
        return (Step("choose", False, f"{self.method}{text}", self.gap),)

    def matrix(self) -> Floats:
        """B (p x n) as floats. Raises DataError above 2^24 entries; ``measured`` serves at any size."""
        p, n = self.shape
        if p * n > WRITTEN:
            raise DataError(f"strategy: B would have {p:,} x {spelled(n)} entries; use measured")
        columns = [self.measured.times([int(i == j) for i in range(n)], 1) for j in range(n)]
        return np.array(columns, dtype=np.float64).reshape(n, p).T

    def error(self, W: AnyWorkload) -> float:
        """The total squared error of W without the privacy factor; ``inf`` where B does not support W."""
        ...

    def variances(self, W: AnyWorkload) -> Floats:
        """The squared errors (m,) of the queries of W without the privacy factor; they add up to ``error``.

        Raises an Error where B does not support W, DataError where its queries are too many to be taken one by one.
        """
        ...

    def largest(self, W: AnyWorkload) -> float:
        """The largest squared error of a query of W, without the privacy factor; see ``variances``."""
        return float(self.variances(W).max())

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """The singular value bound of the planned queries, NaN where none is known; ``of`` is that of a workload."""
        ...

    def as_measured(self, batch: Batch) -> Batch:
        """The compiled batch with what this strategy measures of it."""
        return batch

    def answers_of(self, batch: Batch) -> Answers:
        """How the noisy measurements become the answers of the batch, or of the planned queries."""
        ...
