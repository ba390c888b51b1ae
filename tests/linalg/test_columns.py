import numpy as np
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
