"""Lines in closed form: spreads, estimates, norms and bounds against dense matrices and the general search."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from dpsql import workload
from dpsql.errors import DataError
from dpsql.linalg.lines import BlockLine, averaged, averaged_over_ranges
from dpsql.strategies.ranges.line_strategy import FAMILIES, line_strategy
from dpsql.strategy import select

SIZES = [1, 2, 3, 5, 8, 33, 64, 256]


def _asked(n: int, family: str) -> tuple[np.ndarray, np.ndarray]:
    """(first, stop) of each range, and the 0/1 rows of W."""
    firsts = range(n) if family == "ranges" else [0]
    ends = np.array([(i, j) for i in firsts for j in range(i + 1, n + 1)])
    cell = np.arange(n)
    return ends, ((ends[:, :1] <= cell) & (cell < ends[:, 1:])).astype(float)


def _inverse(line: object, n: int) -> np.ndarray:
    """The estimate of the n cells as a matrix, by numpy's pseudo-inverse of what is measured, empty cells included."""
    if not isinstance(line, BlockLine):
        return np.linalg.inv(line.matrix().astype(float))  # type: ignore[attr-defined]
    held = line
    cell = np.arange(held.padded)
    levels = zip(held.sizes, held.weights, strict=True)
    whole = [w * (np.arange(held.padded // s)[:, None] == cell // s) for s, w in levels]
    return np.linalg.pinv(np.vstack(whole).astype(float))[:n]


@pytest.mark.long
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_forms_are_those_of_the_matrices(family: str, noise: str, n: int) -> None:
    found = line_strategy(n, family, noise)
    line = found.line
    ends, W = _asked(n, family)
    B = line.matrix().astype(float)
    R = W @ _inverse(line, n)
    variances = (R * R).sum(axis=1)
    assert B.shape == (line.rows, n)
    assert line.l1 == np.abs(B).sum(axis=0).max()
    exact = line.matrix().astype(object)  # squares beyond what floats hold
    assert line.l2_squared == (exact * exact).sum(axis=0).max()
    assert line.largest_norm(1) == pytest.approx(line.l1, rel=1e-9)
    assert line.largest_norm(2) == pytest.approx(line.l2_squared, rel=1e-9)
    assert line.spread.of(ends[:, 0], ends[:, 1]) == pytest.approx(variances, rel=1e-6)
    reach = line.l2_squared if noise == "gaussian" else line.l1**2
    assert found.error == pytest.approx(reach * variances.sum(), rel=1e-6)
    y = np.random.default_rng(n).normal(size=line.rows)
    sums = line.prefix_sums(y)
    assert sums[ends[:, 1]] - sums[ends[:, 0]] == pytest.approx(R @ y, abs=1e-7 * np.abs(R @ y).max())
    x = list(range(n))
    assert line.times(x, 63) == list(line.matrix() @ np.array(x))


@pytest.mark.parametrize(("family", "within"), [("ranges", 1.048), ("prefixes", 1.0006)])
def test_near_the_optimum_of_the_dense_search(family: str, within: float) -> None:
    """At n = 256 the certified optimum is at hand: no closed form beats it, and none is far above."""
    W = workload.all_range(256) if family == "ranges" else workload.prefix(256)
    best = select(W, "gaussian")
    found = line_strategy(256, family, "gaussian")
    assert best.lower_bound is not None
    assert found.lower_bound is not None
    assert found.lower_bound <= best.expected * (1 + 1e-9)
    assert 1.0 <= found.error / best.lower_bound <= within


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [7, 64])
def test_bounds_are_those_of_the_dense_gram_matrix(family: str, n: int) -> None:
    _, W = _asked(n, family)
    root = linalg.sqrtm(W.T @ W).real
    found = line_strategy(n, family, "gaussian")
    trace = float((np.diag(root) ** 2).sum())  # of the nuclear norm at these weights, which prefixes take whole
    if family == "prefixes":
        half = np.diag(root) ** 1.1
        half /= np.linalg.norm(half)
        trace = float(np.linalg.svd(W * half, compute_uv=False).sum() ** 2)
    assert found.lower_bound == pytest.approx(trace, rel=1e-7)
    assert found.svd_bound == pytest.approx(np.linalg.svd(W, compute_uv=False).sum() ** 2 / n, rel=1e-8)
    assert found.lower_bound >= found.svd_bound * (1 - 1e-9)


@pytest.mark.long
def test_ten_years_of_days_are_within_a_thousandth_and_longer_lines_within_five() -> None:
    near, far = (line_strategy(n, "prefixes", "gaussian") for n in (3_653, 5_000))
    assert near.lower_bound is not None
    assert far.lower_bound is not None
    assert 1.0 <= near.error / near.lower_bound < 1.001
    assert 1.0 <= far.error / far.lower_bound < 1.005


@pytest.mark.long
def test_a_million_cells() -> None:
    """Planned in a second or two, nothing of the size of the ranges; the certified gap is 2.6 %."""
    found = line_strategy(1_000_000, "ranges", "gaussian")
    assert found.lower_bound is not None
    assert 1.02 < found.error / found.lower_bound < 1.026
    assert found.error / found.svd_bound < 1.03
    every, whole = found.line.spread.of([0, 0], [1, 1_000_000])
    assert every < whole  # a longer range errs more
    pure = line_strategy(1_000_000, "ranges", "laplace")
    assert isinstance(pure.line, BlockLine)
    assert pure.line.rows < 1_200_000


@pytest.mark.parametrize("size", [1, 3, 4, 200])
def test_averages_over_blocks(size: int) -> None:
    n = 40
    total = 0.0
    for i in range(n):
        for e in range(i + 1, n + 1):
            q = np.zeros(600)
            q[i:e] = 1
            expected = float((q.reshape(-1, size).sum(axis=1) ** 2).sum() / size)
            assert float(averaged(size, i, e)) == pytest.approx(expected)
            total += expected
    assert averaged_over_ranges(size, n) == pytest.approx(total)


def test_other_sizes_and_families_are_refused() -> None:
    for n, family in ((0, "ranges"), (2**20 + 1, "ranges"), (5, "boxes")):
        with pytest.raises(DataError, match="lines of 1 to 1,048,576 cells"):
            line_strategy(n, family, "gaussian")
