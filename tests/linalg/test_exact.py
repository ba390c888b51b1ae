import numpy as np
import pytest
from scipy import linalg, sparse

from dpsql.linalg import exact, norms


def brute(mixing, columns):
    B = np.asarray(mixing).astype(object) @ columns.toarray().astype(object)
    size = np.abs(B)
    return max(size.sum(axis=0)), max((size * size).sum(axis=0))


@pytest.mark.parametrize("bits", [3, 20, 28, 40, 50])
@pytest.mark.parametrize("big", [1, 2**9])
def test_column_norms_are_exact(bits, big):
    rng = np.random.default_rng(bits)
    mixing = rng.integers(-(2**bits), 2**bits, size=(7, 5))
    columns = sparse.csc_array(rng.integers(-big, big + 1, size=(5, 40)))
    assert norms.column_norms(mixing, columns) == brute(mixing, columns)


def test_ties_beyond_float_precision_are_told_apart():
    mixing = np.array([[2**60, 2**60 + 1]])
    columns = sparse.csc_array(np.eye(2, dtype=np.int64))
    assert norms.column_norms(mixing, columns) == (2**60 + 1, (2**60 + 1) ** 2)


def test_entries_beyond_int64_do_not_wrap():
    mixing = np.array([[2**62, 2**62], [2**62, -(2**62)]])
    columns = sparse.csc_array(np.array([[3], [3]], dtype=np.int64))
    assert norms.column_norms(mixing, columns) == (6 * 2**62, (6 * 2**62) ** 2)


def test_whole_numbers_in_floats_are_not_rounded_beyond_int64():
    mixing, columns = np.array([[2.0**52 + 1, 2.0**52 - 1]]), sparse.csc_array([[2**13 + 1], [2**13 - 1]])
    assert norms.column_norms(mixing, columns) == brute(mixing.astype(np.int64), columns)


@pytest.mark.long
def test_the_route_through_the_gram_matrix_agrees():
    rng = np.random.default_rng(4)
    mixing = rng.integers(0, 2**20, size=(60, 50))
    rows = rng.integers(0, 50, size=(2, 9000))
    columns = sparse.csc_array(
        (np.ones(18000, dtype=np.int64), (rows.ravel(), np.tile(np.arange(9000), 2))), shape=(50, 9000)
    )
    assert norms.few_entries(mixing, columns) is not None
    assert norms.column_norms(mixing, columns) == brute(mixing, columns)


def test_sparse_mixing():
    mixing = sparse.csr_array(np.array([[2, 0], [0, -3]]))
    columns = sparse.csc_array(np.array([[1, 1], [0, 1]]))
    assert norms.column_norms(mixing, columns) == (5, 13)


@pytest.mark.long
def test_norms_of_parts_add_up_exactly(monkeypatch):
    rng = np.random.default_rng(5)
    monkeypatch.setattr(norms, "_WORTH_PARTING", 0)
    parted = 0
    for turn in range(200):
        shapes = [(int(rng.integers(1, 4)), int(rng.integers(1, 4))) for _ in range(rng.integers(1, 5))]
        M = linalg.block_diag(*(rng.integers(-5, 6, size=shape) for shape in shapes)).astype(np.int64)
        M = M[rng.permutation(M.shape[0])][:, rng.permutation(M.shape[1])] * (2**42 if turn % 3 == 0 else 1)
        Y = rng.integers(-3, 4, size=(M.shape[1], rng.integers(1, 30)))
        parted += norms.parts_of(M, sparse.csc_array(Y)) is not None
        B = M.astype(object) @ Y.astype(object)
        assert norms.column_norms(M, sparse.csc_array(Y)) == (max(abs(B).sum(axis=0)), max((B * B).sum(axis=0)))
    assert parted > 100


def test_norms_by_blocks_of_parts_add_up_exactly(monkeypatch):
    """Of parts that were found for a matrix, too, once more of its entries are 0."""
    rng = np.random.default_rng(6)
    monkeypatch.setattr(norms, "_WORTH_PARTING", 0)
    parted = 0
    for turn in range(100):
        shapes = [(int(rng.integers(2, 6)), int(rng.integers(1, 5))) for _ in range(rng.integers(1, 5))]
        M = linalg.block_diag(*(rng.integers(-5, 6, size=shape) for shape in shapes)).astype(np.int64)
        M *= 2**50 if turn % 3 == 0 else 1
        sizes, left = [], M.shape[0]
        while left:
            sizes.append(int(min(left, rng.integers(1, 4))))
            left -= sizes[-1]
        Y = rng.integers(-3, 4, size=(M.shape[1], rng.integers(1, 30)))
        found = norms.parts_of(M, sparse.csc_array(Y), sizes)
        parted += found is not None
        for mixing in (M, M * rng.integers(0, 2, size=M.shape)):
            size = abs(mixing.astype(object) @ Y.astype(object))
            wanted = max(np.maximum.reduceat(size, norms.block_starts(sizes), axis=0).sum(axis=0))
            assert norms.block_norm(mixing, sparse.csc_array(Y), sizes, found) == wanted
    assert parted > 30


@pytest.mark.parametrize("held", [np.asarray, sparse.csr_array])
def test_products_are_those_of_the_rows_that_both_reach(held):
    rng = np.random.default_rng(3)
    mixing = rng.integers(-9, 10, size=(6, 5))
    mixing[:2, 2:] = mixing[4:, :3] = 0
    left, right = rng.integers(-3, 4, size=(5, 7)), rng.integers(-3, 4, size=(5, 4))
    for kept in (slice(None), slice(0, 3), slice(0, 2)):
        one, other = left.copy(), right.copy()
        one[2:], other[:3] = 0, 0
        other[kept] = right[kept]
        found = exact.products(held(mixing), sparse.csc_array(one), sparse.csc_array(other))
        assert np.array_equal(found, (mixing @ one).T @ (mixing @ other))
    mixing[2:4, :3] = 0
    other[:3] = 0
    assert not exact.products(held(mixing), sparse.csc_array(one), sparse.csc_array(other)).any()
