"""Many columns: the factored iteration and column generation against the plain one."""

import numpy as np
import pytest
from scipy import sparse

from dpsql import strategy, workload
from dpsql.linalg.inner import Dense, Product
from dpsql.strategies.core.axes import Written, find_axes, group_rows
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.core.symmetric import DualState
from dpsql.strategies.gaussian import optimal
from dpsql.strategies.gaussian.optimal import generate
from dpsql.workload import Workload


def batch(first=20, second=8, third=5, seed=0):
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.integers(0, first, size=(12, 2)), axis=1)
    j = np.arange(first)
    boxes = ((ends[:, :1] <= j) & (j <= ends[:, 1:])).astype(np.int64)
    one = [np.ones((1, s), dtype=np.int64) for s in (first, second, third)]
    rows = [
        np.kron(np.kron(boxes, one[1]), one[2]),
        np.kron(np.kron(one[0], np.eye(second, dtype=np.int64)), one[2]),
        np.kron(np.kron(one[0], one[1]), np.tri(third, dtype=np.int64)),
    ]
    return Workload.from_rows(np.vstack(rows), np.linspace(1, 2, sum(r.shape[0] for r in rows)))


def test_axes_are_found_and_exact():
    (block,) = reduce_workload(batch())
    axes = find_axes(block.columns)
    assert axes is not None
    assert axes.codes.shape[0] == 3
    E = np.zeros((axes.table.shape[1], block.columns.shape[1]))
    for g, code in enumerate(axes.codes):
        E[axes.starts[g] + code, np.arange(code.size)] = 1
    assert np.array_equal(axes.table @ E, block.columns.toarray())
    assert np.array_equal(Written(axes).matrix(), block.columns.T.toarray())


def test_factored_state_equals_the_plain_one():
    (block,) = reduce_workload(batch())
    axes, R = find_axes(block.columns), block.factor()
    lam = np.random.default_rng(1).random(block.columns.shape[1])
    lam /= lam.sum()
    plain = DualState([(1.0, Dense((R @ block.columns.toarray()).T))], lam)
    wide = DualState([(1.0, Product(Written(axes), R.T))], lam)
    assert wide.t == pytest.approx(plain.t)
    assert np.allclose(wide.q, plain.q)
    one, other = (state.halves[0].T @ state.halves[0] for state in (wide, plain))
    assert np.allclose(one, other)


def test_three_routes_agree(monkeypatch):
    W = batch()
    (block,) = reduce_workload(W)
    plain = optimal.solve(block, 1e-4, np.inf)
    monkeypatch.setattr(optimal, "_DENSE_ENTRIES", 10)
    factored = optimal.solve(block, 1e-4, np.inf)
    generated = generate(block, block.factor(), 1e-3, np.inf)
    assert plain.gap <= 1e-4
    assert factored.gap <= 1e-4
    assert generated.gap <= 1.1e-3
    assert factored.upper == pytest.approx(plain.upper, rel=2e-4)
    assert plain.lower <= generated.upper * (1 + 1e-5)
    assert generated.lower <= plain.upper


def test_column_generation_over_boxes_without_axes():
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(30):
        a, b = (np.sort(rng.integers(0, 60, size=2)) for _ in range(2))
        j = np.arange(60)
        x, y = ((e[0] <= j) & (j <= e[1]) for e in (a, b))
        rows.append(np.outer(x, y).ravel())
    W = Workload.from_rows(np.array(rows, dtype=np.int64), np.ones(30))
    (block,) = reduce_workload(W)
    found = generate(block, block.factor(), 1e-3, np.inf)
    plain = optimal.solve(block, 1e-4, np.inf)
    assert found.gap <= 1.1e-3
    assert found.lower <= plain.upper
    assert plain.lower <= found.upper * (1 + 1e-5)


@pytest.mark.long
def test_a_large_batch_is_certified_and_quick():
    W = batch(first=93, second=36, third=16, seed=1)
    assert W.shape[1] == 53_568
    S = strategy.select(W)
    assert S.gap <= 1e-3
    for noise in ("gaussian", "laplace"):
        S = strategy.select(W, noise)
        # Exact sensitivities on a sample of cells never exceed those stated.
        some = np.random.default_rng(0).choice(W.shape[1], size=200)
        B = S.mixing.astype(object) @ S.basis[:, some].toarray().astype(object)
        assert max(np.abs(B).sum(axis=0)) <= S.l1
        assert max((B * B).sum(axis=0)) <= S.l2_squared


@pytest.mark.long
def test_pair_of_range_marginals_reaches_its_reference_figure():
    from dpsql import bounds

    n = 256
    W = workload.stack(
        workload.kron(workload.all_range(n), workload.total(n)),
        workload.kron(workload.total(n), workload.all_range(n)),
    )
    S = strategy.select(W)
    assert bounds.svd_bound(W) == pytest.approx(1.03021e6, rel=1e-5)
    assert S.gap <= 1e-3
    assert 1.0101 <= S.expected / bounds.svd_bound(W) <= 1.0115


def test_rows_of_one_axis_are_kept_together():
    groups = group_rows(sparse.csr_array(batch().rows))
    # The row of ones at the end splits no class of any group; it stays with the first.
    assert [len(g) for g in groups] == [13, 8, 4]
