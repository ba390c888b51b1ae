"""The norm in floats that holds the exact one: by another way, and as large."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql.common.arrays import Matrix
from dpsql.linalg.norms import block_norm, column_norms, largest_norm

rng = np.random.default_rng(5)
BLOCKS = [(1,) * 9, (2, 2, 2, 1, 2), (1, 2, 3, 1, 2), (4, 5), (2, 7)]


@pytest.mark.parametrize("few", [False, True], ids=["dense", "few entries"])
@pytest.mark.parametrize("kept", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_rough_norms_are_the_exact_ones(few: bool, kept: type, blocks: tuple[int, ...]) -> None:
    mixing = rng.integers(-(2**26), 2**26, (9, 40)) * (rng.random((9, 40)) < (0.05 if few else 0.8))
    columns = sparse.csc_array(rng.integers(-3, 4, (40, 300)) * (rng.random((40, 300)) < (0.05 if few else 0.8)))
    held: Matrix = kept(mixing)
    for order, exact in zip((1, 2), column_norms(mixing, columns), strict=True):
        assert largest_norm(held, columns, order) == pytest.approx(exact, rel=1e-5)
    found = largest_norm(held, columns, 1, blocks)
    assert found == pytest.approx(block_norm(mixing, columns, blocks), rel=1e-5)
    brute = np.maximum.reduceat(np.abs(mixing @ columns.toarray()), np.cumsum([0, *blocks[:-1]]), axis=0).sum(axis=0)
    assert found == pytest.approx(brute.max(), rel=1e-5)


def test_the_same_without_rows_or_columns() -> None:
    nothing = sparse.csc_array((4, 0), dtype=np.int64)
    assert largest_norm(np.zeros((0, 4), dtype=np.int64), sparse.csc_array(np.eye(4, dtype=np.int64)), 1) == 0
    assert largest_norm(np.ones((2, 4), dtype=np.int64), nothing, 1, (2,)) == 0


@pytest.mark.parametrize("blocks", [(), (1, 2)])
def test_rough_norms_of_python_integers_over_single_entries(blocks: tuple[int, ...]) -> None:
    """A product of sparse matrices, which hold none of them."""
    mixing = np.zeros((3, 60), dtype=object)
    mixing[0, 0], mixing[1, 1], mixing[2, 1] = 2**80, 3, -(2**70)
    columns = sparse.csc_array(np.eye(60, dtype=np.int64))
    assert largest_norm(mixing, columns, 1, blocks) == pytest.approx(2**80, rel=1e-5)
