"""What ranges depend on, by the graph that they are, against the rank of the matrix and its product."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg import basis, modular
from dpsql.linalg.inner import Diagonal
from dpsql.linalg.ranges import changes_of, ends_of, forest_of, gram_of, product_of, rank_of


def drawn(q: int, N: int, seed: int) -> np.ndarray:
    ends = np.sort(np.random.default_rng(seed).integers(0, N + 1, (q, 2)), axis=1)
    at = np.arange(N)
    rows = (ends[:, :1] <= at) & (at < ends[:, 1:])
    return rows[rows.any(axis=1)].astype(np.int64)


@pytest.mark.parametrize("seed", range(40))
def test_forest_spans_all_rows_and_is_independent(seed: int) -> None:
    N = 3 + seed
    D = drawn(5 + 2 * (seed % 20), N, seed)
    ends = ends_of(sparse.csr_array(D))
    assert ends is not None
    picked, coords = forest_of(ends, N)
    assert picked.size == rank_of(ends, N) == np.linalg.matrix_rank(D) == np.linalg.matrix_rank(D[picked])
    assert (np.diff(picked) > 0).all()
    assert np.array_equal(coords @ D[picked], D)
    assert set(np.unique(coords.data)) <= {-1.0, 1.0}


@pytest.mark.parametrize("row", [[1, 0, 1], [0, 2, 2], [0, -1, 0], [0, 0, 0]])
def test_other_rows_are_no_ranges(row: list[int]) -> None:
    assert ends_of(sparse.csr_array(np.array([[1, 1, 0], row]))) is None


@pytest.mark.parametrize(("q", "N"), [(160, 400), (700, 150)])
def test_the_basis_of_many_ranges_is_found_without_elimination(q: int, N: int, monkeypatch) -> None:
    D = sparse.csr_array(drawn(q, N, 1))

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(basis, "_pivots", never)
    monkeypatch.setattr(modular, "rank", never)
    found = basis.choose_basis(D, Diagonal(np.ones(D.shape[0])))
    assert (found.rows.shape[0] == N) == (q == 700)
    assert np.array_equal((found.coords @ found.rows).toarray(), D.toarray())


def test_products_of_ranges_are_running_sums() -> None:
    draw = np.random.default_rng(7)
    q, v = 300, 100
    first, last = np.sort(draw.integers(0, v, size=(2, q)), axis=0)
    ranges = ((first[:, None] <= np.arange(v)) & (np.arange(v) <= last[:, None])) * draw.integers(1, 4, size=(q, 1))
    ranges[: q // 2] += (np.arange(v) >= last[: q // 2, None]) * 2  # sums of two
    C, X, weights = sparse.csr_array(ranges.astype(np.float64)), draw.normal(size=(v, 7)), draw.uniform(1, 2, size=q)
    changes = changes_of(C)
    assert changes is not None
    assert changes.nnz < C.nnz / 8
    assert np.allclose(product_of(changes, X), ranges @ X, rtol=1e-12, atol=1e-12)
    assert np.allclose(gram_of(changes, weights), ranges.T @ (weights[:, None] * ranges), rtol=1e-12)


def test_rows_that_change_often_have_no_running_sums() -> None:
    draw = np.random.default_rng(8)
    assert changes_of(sparse.csr_array(draw.integers(0, 2, size=(50, 100)).astype(np.float64))) is None
    assert changes_of(sparse.csr_array(np.eye(50))) is None
    assert changes_of(np.ones((50, 100))) is None
