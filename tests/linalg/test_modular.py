import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg import modular


@pytest.mark.parametrize(("v", "n", "r"), [(5, 9, 3), (70, 70, 70), (130, 200, 100), (200, 90, 64), (65, 65, 1)])
def test_rank_of_random_products(v, n, r):
    rng = np.random.default_rng(v + n)
    M = rng.integers(-9, 10, size=(v, r)) @ rng.integers(-9, 10, size=(r, n))
    assert modular.rank(M) == np.linalg.matrix_rank(M.astype(float)) == r


def test_rank_sees_what_floats_do_not():
    M = np.array([[2**50, 2**50 + 1], [2**50 - 1, 2**50]])  # determinant 1
    assert modular.rank(M) == 2
    assert modular.rank(np.array([[2**50, 2**49], [2**51, 2**50]])) == 1


def test_spans_is_exact():
    rng = np.random.default_rng(3)
    basis = sparse.csr_array(rng.integers(-4, 5, size=(40, 1000)))
    inside = sparse.csr_array(rng.integers(-3, 4, size=(60, 40)) @ basis)
    assert modular.spans(inside, basis)
    off = inside.toarray()
    off[17, 800] += 1
    assert not modular.spans(sparse.csr_array(off), basis)
    dependent = sparse.csr_array(sparse.vstack([basis, basis[:1] + basis[1:2]]))
    assert not modular.spans(inside, dependent)


@pytest.mark.parametrize("wide", [5, 4000])
def test_rows_are_independent_exactly_where_none_is_a_combination_of_others(wide):
    rng = np.random.default_rng(2)
    rows = rng.integers(-4, 5, size=(4, wide))
    assert modular.independent(sparse.csr_array(rows))
    assert not modular.independent(sparse.csr_array(np.vstack([rows, 3 * rows[0] - 2 * rows[2]])))
