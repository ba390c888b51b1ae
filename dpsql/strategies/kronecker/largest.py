"""Batches of blocks planned for the least largest error: their rows weighed, and planned again for the total.

For every w >= 0 with sum 1 over the rows, max_i p_i / c_i^2 >= sum_i w_i p_i / c_i^2, the total error of the rows times
(w_i)^1/2 / c_i. Here w is a product: one weight for each result column, times one for each row of each of its factors,
so that the weighed batch is one of blocks, too. They rise with the errors, w <- w r^2 (r with Laplace noise), less from
round to round, r of a factor's row being the mean of p / c^2 over all rows with it. The best weights need not be a
product. Rows of groups alone stay equal, which is right by symmetry where nothing else tells the groups apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.strategies.core.limits import ENOUGH
from dpsql.strategies.kronecker.structured import OneUnit, StructuredStrategy, structured_strategy
from dpsql.workloads.compile.structured import Structured, is_marginal

_ROUNDS = 12  # of weighing; more gain little
_IDLE = 3  # rounds without gain after which weighing stops

Span = tuple[int, int]


def least_largest(
    batch: Structured,
    noise: str,
    *,
    tolerance: float,
    time_limit: float | None,
    say: Callable[[str], None],
    targets: Floats | None = None,
) -> StructuredStrategy:
    """The strategy of a batch of blocks whose largest p_i / ``targets``_i^2 (m,) is least of all rounds.

    Without targets that is the largest squared error, each times its block's squared weight. ``expected`` and
    ``lower_bound`` are of that largest ratio; the bound is that of equal weights (None where they had none). A target
    must be the same for all groups of a result column: the least of them counts.
    Cost: up to 12 times ``structured_strategy``. Raises as that does.
    """
    deadline = None if time_limit is None else monotonic() + time_limit
    weights = _Weights(batch, targets)
    best: tuple[float, StructuredStrategy] | None = None
    lower, idle = None, 0
    for number in range(_ROUNDS):
        left = None if deadline is None else deadline - monotonic()
        if best is not None and left is not None and left <= 0:
            break
        share = None if left is None else max(left, 1e-9)
        found = structured_strategy(weights.weighed(), noise, tolerance=tolerance, time_limit=share)
        found = replace(found, planned=replace(found.planned, blocks=batch.blocks))
        ratios = weights.ratios(found)
        largest = max(float(ratio.max()) for ratio in ratios)
        lower = found.lower_bound if best is None else lower
        idle = idle + 1 if best is not None and largest > best[0] * (1.0 - ENOUGH) else 0
        if best is None or largest < best[0]:
            best = largest, found
            say(f"{found.method}: largest error {largest:.6g}")
        if idle == _IDLE:
            break
        weights.raised(ratios, (2.0 if noise == "gaussian" else 1.0) / (1.0 + number / 2.0))
    assert best is not None  # noqa: S101 - the first round always finds one
    largest, chosen = best
    return replace(
        chosen,
        expected=largest,
        lower_bound=lower if noise == "gaussian" else None,
        considered=((chosen.method, largest),),
        objective="max",
    )


class _Weights:
    """w of every span (a result column), and of the rows of every matrix that several spans may share."""

    def __init__(self, batch: Structured, targets: Floats | None) -> None:
        self.batch = batch
        self.spans: list[Span] = sorted({(block.start, block.stop) for block in batch.blocks})
        self.blocks: dict[Span, list[RowBlock]] = {span: [] for span in self.spans}
        for block in batch.blocks:
            self.blocks[block.start, block.stop].append(block)
        if targets is None:
            self.targets = [1.0 / self.blocks[span][0].weight for span in self.spans]
        else:
            self.targets = [float(targets[start:stop].min()) for start, stop in self.spans]
        self.sizes = np.array([stop - start for start, stop in self.spans], dtype=np.float64)
        self.of_span = np.full(len(self.spans), 1.0 / float(self.sizes.sum()))
        self.of_rows: dict[int, Floats] = {}
        for span in self.spans:
            for factor in self._weighable(span):
                self.of_rows[id(factor.matrix)] = np.ones(factor.matrix.shape[0])

    def _weighable(self, span: Span) -> Iterator[RowFactor]:
        """Factors whose rows may be weighed: of one block alone, and not groups."""
        if len(self.blocks[span]) == 1 and self.blocks[span][0].outputs == 1:
            yield from (f for f in self.blocks[span][0].factors if f.keys and not is_marginal(f.matrix))

    def weighed(self) -> Structured:
        """The batch with rows times w^1/2 over their targets."""
        matrices = {
            number: sparse.csr_array(sparse.diags_array(np.sqrt(w)) @ matrix)
            for number, (matrix, w) in self._matrices().items()
        }
        held: dict[int, RowFactor] = {}
        blocks = []
        for span, w, target in zip(self.spans, self.of_span.tolist(), self.targets, strict=True):
            for block in self.blocks[span]:
                free = {id(factor) for factor in self._weighable(span)}
                factors = []
                for f in block.factors:
                    if id(f) in free:
                        f = held.setdefault(id(f), RowFactor(f.axes, f.keys, matrices[id(f.matrix)]))
                    factors.append(f)
                blocks.append(replace(block, weight=w**0.5 / target, factors=tuple(factors)))
        return replace(self.batch, blocks=tuple(blocks))

    def _matrices(self) -> dict[int, tuple[sparse.csr_array, Floats]]:
        found = {}
        for span in self.spans:
            for factor in self._weighable(span):
                found[id(factor.matrix)] = factor.matrix, self.of_rows[id(factor.matrix)]
        return found

    def ratios(self, strategy: StructuredStrategy) -> list[Floats]:
        """p_i / target^2 of the rows of each span."""
        errors = strategy.answers_of(strategy.planned).errors(OneUnit(strategy.noise), 1)
        times = float(strategy.l2_squared) if strategy.noise == "gaussian" else float(strategy.l1) ** 2
        return [
            times * (errors[start:stop] / target) ** 2
            for (start, stop), target in zip(self.spans, self.targets, strict=True)
        ]

    def raised(self, ratios: Sequence[Floats], power: float) -> None:
        """Weights rise with the errors, as much as the ratios to ``power``."""
        shares: dict[int, tuple[Floats, Floats]] = {
            number: (np.zeros(len(w)), np.zeros(len(w))) for number, w in self.of_rows.items()
        }
        means = np.zeros(len(self.spans))
        for number, (span, ratio) in enumerate(zip(self.spans, ratios, strict=True)):
            shape = self.blocks[span][0].key_sizes
            held, weight = ratio.reshape(shape), np.full(shape, self.of_span[number])
            free = list(self._weighable(span))
            for f in free:
                weight = weight * self._along(f, self.of_rows[id(f.matrix)], shape)
            means[number] = float((weight * held).sum() / weight.sum()) if free else float(ratio.max())
            for f in free:
                gone = tuple(k for k in range(len(shape)) if k not in f.keys)
                above, below = shares[id(f.matrix)]
                above += (weight * held).sum(axis=gone).ravel()
                below += weight.sum(axis=gone).ravel()
        for number, (above, below) in shares.items():
            raised = self.of_rows[number] * (above / below) ** power
            raised = np.maximum(raised / float(raised.mean()), 1e-9)
            self.of_rows[number] = raised / float(raised.mean())
        each = self.of_span * means**power
        each = np.maximum(each / float(each @ self.sizes), 1e-12 / float(self.sizes.sum()))
        self.of_span = each / float(each @ self.sizes)

    @staticmethod
    def _along(factor: RowFactor, w: Floats, shape: tuple[int, ...]) -> Floats:
        """The weights of a factor's rows, along its keys."""
        sizes = [shape[k] if k in factor.keys else 1 for k in range(len(shape))]
        return w.reshape([shape[k] for k in factor.keys]).transpose(np.argsort(factor.keys)).reshape(sizes)
