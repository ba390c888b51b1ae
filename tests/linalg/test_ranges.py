"""What ranges depend on, by the graph that they are, against the rank of the matrix and its product."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg import basis, modular
from dpsql.linalg.inner import Diagonal
from dpsql.linalg.ranges import ends_of, forest_of, rank_of


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
