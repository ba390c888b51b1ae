import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg import columns


def test_distinct_columns_by_hand():
    M = sparse.csr_array(np.array([[1, 0, 1, 2, -1], [0, 0, 0, 1, 0]]))
    found = columns.distinct_columns(M)
    assert found.keep.tolist() == [0, 3, 4]
    assert found.label.tolist() == [0, -1, 0, 1, 2]
    assert columns.distinct_columns(M, up_to_sign=True).label.tolist() == [0, -1, 0, 1, 0]


def test_the_slow_comparison_agrees():
    rng = np.random.default_rng(0)
    M = sparse.csr_array(rng.integers(0, 2, size=(4, 300)))
    fast = columns.distinct_columns(M)
    csc = sparse.csc_array(M)
    csc.sort_indices()
    slow = columns._distinct_slowly(csc.indptr, csc.indices, csc.data.astype(np.int64))
    assert np.array_equal(fast.keep, slow.keep)
    assert np.array_equal(fast.label, slow.label)


def test_blocks_follow_shared_columns_and_couplings():
    M = sparse.csr_array(np.array([[1, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]]))
    number, label = columns.disjoint_blocks(M, np.arange(4))
    assert number == 3
    assert label[0] == label[1]
    assert len(set(label.tolist())) == 3
    number, label = columns.disjoint_blocks(M, np.array([0, 1, 2, 2]))
    assert number == 2
    assert label[2] == label[3]


def test_equal_columns_are_those_that_a_dictionary_finds():
    rng = np.random.default_rng(3)
    for turn in range(200):
        M = rng.integers(-1, 2, size=(rng.integers(1, 5), rng.integers(1, 40))) * rng.integers(0, 2)
        M = np.abs(M) if turn % 3 == 0 else M
        for up_to_sign in (False, True):
            seen: dict[tuple[int, ...], int] = {}
            label = []
            for column in M.T.tolist():
                lead = next((value for value in column if value), 0)
                key = tuple(-value for value in column) if up_to_sign and lead < 0 else tuple(column)
                label.append(seen.setdefault(key, len(seen)) if lead else -1)
            found = columns.distinct_columns(sparse.csr_array(M), up_to_sign=up_to_sign)
            assert found.label.tolist() == label
            assert found.keep.tolist() == [label.index(one) for one in range(len(seen))]


@pytest.mark.parametrize("apart", [False, True])
def test_many_columns_link_rows_as_few_do(apart):
    rng = np.random.default_rng(5)
    M = np.zeros((12, 5000), dtype=np.int64)
    for row in range(12):  # a chain: each row reaches a third of the next one's columns
        M[row, 300 * row : 300 * row + 400] = rng.integers(1, 9, size=400)
    M[6:, :1900] = 0 if apart else M[6:, :1900]
    assert columns.disjoint_blocks(sparse.csr_array(M), np.arange(12))[0] == 1 + apart
