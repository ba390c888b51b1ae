"""Marginals in integers without their cells, against the dense product of 2 x 3 x 4."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from dpsql import strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.marginals.marginal_strategy import residual_strategy

SIZES, SETS = (2, 3, 4), [(0, 1), (1, 2), (2,), (0,)]


def tables_of(x, sets):
    return {S: x.sum(axis=tuple(i for i in range(x.ndim) if i not in S)) for S in sets}


def dense(S):
    """B over all cells, Python integers."""
    rows = []
    for T, k in S.multipliers.items():
        out = np.full((1, 1), k, dtype=object)
        for i, d in enumerate(S.sizes):
            axis = d * np.eye(d, dtype=np.int64) - 1 if i in T else np.ones((1, d), dtype=np.int64)
            out = np.kron(out, axis.astype(object))
        rows.append(out)
    return np.vstack(rows)


def marginal_rows(S):
    out = np.ones((1, 1))
    for i, d in enumerate(SIZES):
        out = np.kron(out, np.eye(d) if i in S else np.ones((1, d)))
    return out


@pytest.mark.parametrize("weights", [1.0, [1.0, 3.0, 0.25, 2.0]])
def test_integers_sensitivity_and_variances_against_the_dense_matrix(weights):
    W = workload.marginals(SIZES, sets=SETS, weights=weights)
    S = residual_strategy(W)
    B = dense(S)
    assert S.shape == B.shape
    assert {int(v) for v in (B * B).sum(axis=0)} == {S.l2_squared}
    assert {int(v) for v in np.abs(B).sum(axis=0)} == {S.l1}
    x = np.random.default_rng(0).integers(0, 50, size=SIZES)
    y = S.integers(tables_of(x, S.maximal))
    assert y == list(B @ x.ravel().astype(object))
    inverse = np.linalg.pinv((B.T @ B).astype(float))
    M = W.matrix()
    assert S.expected == pytest.approx(S.l2_squared * np.trace(M @ inverse @ M.T), rel=1e-9)
    assert S.expected <= (1 + 1e-5) * S.lower_bound
    assert S.gap <= 1e-5
    found = S.solve(y)
    assert set(found) == {tuple(s) for s in SETS}
    for T, table in found.items():
        assert np.allclose(table, tables_of(x, [T])[T], atol=1e-10)
        variance = np.diag(marginal_rows(T) @ inverse @ marginal_rows(T).T)
        assert np.allclose(variance, float(S.variance(T)), rtol=1e-9)
        assert isinstance(S.variance(T), Fraction)


def test_one_noise_is_private_exactly():
    S = residual_strategy(workload.marginals(SIZES, 2))
    mu_squared = Fraction(7, 1000)
    sigma_squared = S.l2_squared / mu_squared
    B = dense(S)
    for j in range(B.shape[1]):
        assert sum(Fraction(int(b)) ** 2 for b in B[:, j]) / sigma_squared <= mu_squared


def test_every_int64_is_measured_exactly():
    S = residual_strategy(workload.marginals((3, 4, 2), 2))
    B = dense(S)
    rng = np.random.default_rng(5)
    for x in (rng.integers(2**58, 2**59, size=(3, 4, 2)), -rng.integers(2**58, 2**59, size=(3, 4, 2))):
        assert S.integers(tables_of(x, S.maximal)) == list(B @ x.ravel().astype(object))
    whole = residual_strategy(workload.marginals((3, 4, 2), sets=[(0, 1, 2)]))
    x = np.full((3, 4, 2), -(2**63))
    x[::2] = 2**63 - 1
    assert whole.integers({(0, 1, 2): x}) == list(dense(whole) @ x.ravel().astype(object))


@pytest.mark.long
def test_unbiased_consistent_and_of_the_stated_variance():
    S = residual_strategy(workload.marginals(SIZES, sets=SETS))
    rng, runs = np.random.default_rng(9), 3000
    x = rng.integers(0, 30, size=SIZES)
    y = np.array(S.integers(tables_of(x, S.maximal)))
    sigma = np.sqrt(float(S.l2_squared))
    draws = []
    for _ in range(runs):
        found = S.solve((y + np.rint(rng.normal(size=y.size) * sigma).astype(np.int64)).tolist())
        assert np.allclose(found[(0, 1)].sum(axis=1), found[(0,)])
        assert np.allclose(found[(1, 2)].sum(axis=0), found[(2,)])
        draws.append(found)
    for T, truth in tables_of(x, [tuple(s) for s in SETS]).items():
        errors = np.array([d[T] for d in draws]) - truth
        variance = float(S.variance(T)) * (S.l2_squared + 1 / 12)
        assert (np.abs(errors.mean(axis=0)) < 6 * np.sqrt(variance / runs)).all()
        each = (errors**2).reshape(runs, -1).mean(axis=1)
        assert abs(each.mean() - variance) < 6 * each.std() / np.sqrt(runs)


def test_many_attributes_and_attributes_of_one_value():
    sizes = (5, 1, 4, 3, 6, 2)
    W = workload.marginals(sizes, (1, 3))
    S = residual_strategy(W)
    x = np.random.default_rng(2).integers(0, 9, size=sizes)
    assert S.maximal == tuple(combinations(range(6), 3))
    found = S.solve(S.integers(tables_of(x, S.maximal)))
    for T in W.sets:
        assert np.allclose(found[T], tables_of(x, [T])[T])
    assert S.solve(S.integers(tables_of(x, S.maximal)), [(0, 1)])[0, 1].shape == (5, 1)
    assert S.variance((1,)) == S.variance(())
    assert "about 10^399 cells" in repr(residual_strategy(workload.marginals([10] * 400, 1)))


def test_a_wider_tolerance_gives_smaller_integers():
    W = workload.marginals([10] * 8, 3)
    rough, fine = residual_strategy(W, tolerance=0.1), residual_strategy(W, tolerance=1e-8)
    assert max(rough.multipliers.values()) < max(fine.multipliers.values())
    assert rough.expected <= 1.1 * rough.lower_bound
    assert fine.expected <= (1 + 1e-8) * fine.lower_bound


def test_refusals():
    W = workload.marginals(SIZES, 2)
    S = strategy.residual_strategy(W)
    x = np.ones(SIZES, dtype=np.int64)
    tables = tables_of(x, S.maximal)
    for wrong in (
        {k: v for k, v in tables.items() if k != (1, 2)},
        {**tables, (1, 2): tables[(0, 1)]},
        {**tables, (1, 2): tables[(1, 2)].astype(float)},
        {**tables, (1, 2): tables[(1, 2)].astype(np.uint64)},
    ):
        with pytest.raises(DataError, match="marginal table"):
            S.integers(wrong)
    with pytest.raises(DataError, match="measurements"):
        S.solve([1])
    with pytest.raises(DataError, match="2\\^400"):
        S.solve([2**401] * S.shape[0])
    for T in ((0, 1, 2), (5,)):
        with pytest.raises(DataError, match="not planned"):
            S.variance(T)
    with pytest.raises(DataError, match="tolerance"):
        residual_strategy(W, tolerance=0)
    with pytest.raises(DataError, match="smaller marginals"):
        residual_strategy(workload.marginals([500] * 3, 3))
    with pytest.raises(DataError, match="too large"):
        residual_strategy(workload.marginals([10**7, 2], sets=[(0,), (1,)], weights=[1e-15, 1e15]), tolerance=1e-15)
