import numpy as np
import pytest
from scipy import sparse

from dpsql import workload
from dpsql.errors import DataError
from dpsql.workload import Workload


def test_rows_become_primitive_and_scales_take_the_divisor():
    W = Workload.from_rows(np.array([[2, 4, 0], [0, 3, 9], [0, 0, 0]]), [0.5, 1.0, 7.0])
    assert W.rows.toarray().tolist() == [[1, 2, 0], [0, 1, 3], [0, 0, 0]]
    assert W.scale.tolist() == [1.0, 3.0, 7.0]
    assert np.allclose(W.matrix(), [[1, 2, 0], [0, 3, 9], [0, 0, 0]])
    assert np.allclose(W.gram(), W.matrix().T @ W.matrix())
    assert W.rank == 2
    assert W.shape == (3, 3)


def test_from_rows_does_not_change_its_arguments():
    rows = sparse.csr_array(np.array([[2, 4]], dtype=np.int64))
    scale = np.array([1.0])
    Workload.from_rows(rows, scale)
    assert rows.toarray().tolist() == [[2, 4]]
    assert scale.tolist() == [1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload.from_rows([[0.5, 1]], [1.0]), "integers"),
        (lambda: Workload.from_rows([[1, 1]], [1.0, 2.0]), "one a row"),
        (lambda: Workload.from_rows([[1, 1]], [np.nan]), "not finite"),
        (lambda: Workload.from_rows([[1, 1]], [1.0], groups=[1, 2]), "group labels"),
        (lambda: Workload.from_rows([[1, 1]], [1.0], contributions=np.eye(3, dtype=int)), "contributions"),
        (lambda: workload.from_matrix([[np.inf]]), "not finite"),
        (lambda: workload.from_matrix(np.zeros((0, 3))), "at least one"),
        (lambda: workload.identity(0), "at least 1"),
        (lambda: workload.identity(2.5), "at least 1"),
        (lambda: workload.all_range(()), "axis"),
        (lambda: workload.weighted(workload.identity(2), [1.0, 0.0]), "not zero"),
        (lambda: workload.weighted(workload.identity(2), [1.0]), "one a query"),
        (lambda: workload.stack(workload.identity(2), workload.identity(3)), "equal numbers"),
        (lambda: workload.wdiscrete(2, 2, 0, p=2.0), "probability"),
        (lambda: workload.all_range(40_000).matrix(), "cap"),
        (lambda: workload.prefix(40_000).gram(), "cap"),
        (lambda: workload.all_range(4).rows, "row by row"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_from_matrix_keeps_integers_and_scaled_integers_exactly():
    W = workload.from_matrix([[0.1, -0.1, 0.0], [3, 6, 9]])
    assert np.array_equal(W.matrix(), [[0.1, -0.1, 0.0], [3, 6, 9]])
    assert W.rows.toarray().tolist() == [[1, -1, 0], [1, 2, 3]]


def test_from_matrix_of_floats_merges_columns_and_keeps_the_entries():
    rng = np.random.default_rng(1)
    M = np.repeat(rng.normal(size=(5, 3)), 2, axis=1)
    W = workload.from_matrix(np.hstack([M, np.zeros((5, 1))]))
    assert W.rank == 3
    assert np.array_equal(W.matrix()[:, :6], M)
    assert np.allclose(W.inner.matrix() @ W.span.toarray(), W.matrix())


def test_from_matrix_of_low_rank_floats():
    W = workload.wrelated(12, 30, 4, seed=2)
    assert W.rank == 4
    spanned = W.inner.matrix() @ W.span.toarray()
    assert np.abs(spanned - W.matrix()).max() < 1e-9 * np.abs(W.matrix()).max()
