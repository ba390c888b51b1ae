"""Marginals by rows of signs: exact sensitivity, least squares and error against B written out; no cliff when wide."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.marginals.marginal_strategy import sign_strategy
from dpsql.strategies.marginals.sign_blocks import order_of, signs

SMALL = [([2] * 4, 2), ([2, 3, 4], 2), ([5, 2], 1), ([2, 2, 2], 3)]


@pytest.mark.parametrize(("sizes", "order"), SMALL)
def test_against_the_matrix_written_out(sizes: list[int], order: int) -> None:
    W = workload.marginals(sizes, order)
    S = sign_strategy(W)
    B, ends = S.matrix(), np.cumsum(S.blocks)
    assert S.shape == B.shape
    assert ends[-1] == B.shape[0]
    tops = [np.abs(B[end - m : end]).max(axis=0) for m, end in zip(S.blocks, ends, strict=True)]
    assert np.unique(np.sum(tops, axis=0)).tolist() == [S.l1]  # every record moves every block by its all
    assert S.l2_squared == (B * B).sum(axis=0).max()
    R, asked = S.reconstruction(W), W.explicit().matrix()
    assert np.allclose(R @ B, asked)
    spread = np.repeat([(m + 1) * (m + 2) / 6 for m in S.blocks], S.blocks)
    assert S.l1**2 * (R * R) @ spread == pytest.approx(S.variances(W), rel=1e-9)
    assert S.expected == pytest.approx(S.variances(W).sum(), rel=1e-9)
    written = S.written_out()
    assert written is not None
    assert written.blocks == S.blocks
    assert written.error(workload.weighted(W.explicit(), 1.0)) == pytest.approx(written.expected, rel=1e-9)
    assert written.expected <= S.expected * (1 + 1e-9)
    if all(order_of(d) == d for d in sizes):
        assert written.expected == pytest.approx(S.expected, rel=1e-9)


def test_exact_tables_come_back_without_noise() -> None:
    W = workload.marginals([2, 3, 2], 2)
    S = sign_strategy(W)
    x = np.random.default_rng(3).integers(0, 50, size=(2, 3, 2))
    tables = {T: x.sum(axis=tuple(i for i in range(3) if i not in T)) for T in S.maximal}
    found = S.solve(S.integers(tables))
    for T, table in found.items():
        assert np.allclose(table, x.sum(axis=tuple(i for i in range(3) if i not in T)))


@pytest.mark.parametrize(
    ("d", "order", "ratio"),
    [(16, 2, 22.7), (30, 2, 70.8), pytest.param(100, 2, 745.5, marks=pytest.mark.long), (60, 1, 12.0)],
)
def test_wide_marginals_have_no_cliff(d: int, order: int, ratio: float) -> None:
    """Over the singular value bound; one by the number of sets, where whole tables go by its square."""
    W = workload.marginals([2] * d, order)
    assert sign_strategy(W).expected / bounds.svd_bound(W) < ratio


@pytest.mark.long
def test_the_better_of_tables_and_signs_is_taken() -> None:
    few, many = workload.marginals([2] * 5, 2), workload.marginals([2] * 12, 2)
    assert strategy.select(few, noise="pure").method != "sign-blocks"
    S = strategy.select(many, noise="pure")
    assert S.method == "sign-blocks"
    assert {name for name, _ in S.considered} == {"sign-blocks", "marginal-blocks"}
    laplace = strategy.select(many, noise="laplace")
    assert laplace.blocks == ()
    assert laplace.expected > 1.5 * S.expected
    with pytest.raises(DataError, match="pure"):
        strategy.select(many, noise="laplace", method="sign-blocks")


def test_rows_of_signs() -> None:
    for d in (2, 3, 4, 5, 8):
        H, D = signs(d), order_of(d)
        assert np.array_equal(np.abs(H), np.ones((D - 1, d)))
        assert np.array_equal(H.T @ H, D * np.eye(d) - np.ones((d, d)))


def test_joining_blocks_never_hurts() -> None:
    """The plan is at most that of a block for each order, and of one for all."""
    W = workload.marginals([2] * 10, 2)
    plan = sign_strategy(W)
    sizes = {T: len(T) for T in itertools.chain(*[list(plan.multipliers)])}
    apart = [sum(1 for order in sizes.values() if order == k) for k in range(3)]
    weight = dict.fromkeys(range(3), 0.0)
    for T, g in W.residuals().items():
        weight[len(T)] += g * W.dimension(T)
    factors = [(m + 1) * (m + 2) / 6 for m in apart]
    by_order = sum((f * weight[k]) ** (1 / 3) for k, f in enumerate(factors)) ** 3
    assert plan.expected <= by_order * (1 + 1e-3)
