"""weighted, stack and kron with Marginals: still Marginals where they can be, else written out or refused."""

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.workload import Marginals, Workload

A = workload.marginals([2, 3], order=1)
B = workload.marginals([2, 3], sets=[(0, 1), (0,)], weights=[2.0, 3.0])
LARGE = workload.marginals([10] * 40, order=1)


def test_a_weight_scales_marginals():
    W = workload.weighted(B, 2.0)
    assert isinstance(W, Marginals)
    assert W.weights == (4.0, 6.0)
    assert np.allclose(W.matrix(), 2 * B.matrix())
    assert workload.weighted(LARGE, 3).weights == (3.0,) * 40


def test_one_weight_a_query_is_one_a_set_where_they_agree():
    W = workload.weighted(A, [5, 5, 7, 7, 7])
    assert isinstance(W, Marginals)
    assert W.weights == (5.0, 7.0)
    assert np.allclose(W.matrix(), np.diag([5, 5, 7, 7, 7]) @ A.matrix())


@pytest.mark.parametrize("weights", [[5, 6, 7, 7, 7], [-1] * 5, -2.0])
def test_other_weights_write_marginals_out(weights):
    W = workload.weighted(A, weights)
    assert isinstance(W, Workload)
    assert np.allclose(W.matrix(), np.diag(np.broadcast_to(weights, 5)) @ A.matrix())


def test_a_stack_of_marginals():
    C = workload.marginals([2, 3], sets=[()])
    W = workload.stack(A, C, name="both")
    assert isinstance(W, Marginals)
    assert (W.sets, W.name) == (((0,), (1,), ()), "both")
    assert np.allclose(W.matrix(), np.vstack([A.matrix(), C.matrix()]))
    assert workload.stack(LARGE, workload.marginals([10] * 40, sets=[()])).shape == (401, 10**40)


def test_a_set_named_twice_has_its_weights_added_in_squares():
    W = workload.stack(A, B)
    assert isinstance(W, Marginals)
    assert W.sets == ((0,), (1,), (0, 1))
    assert W.weights == pytest.approx((10**0.5, 1.0, 2.0))
    assert np.allclose(W.gram(), A.gram() + B.gram())
    least = strategy.select(workload.stack(A.explicit(), B.explicit()), tolerance=1e-5).expected
    assert strategy.select(W, tolerance=1e-5).expected == pytest.approx(least, rel=2e-5)


def test_marginals_of_other_attributes_with_as_many_cells_are_written_out():
    other = workload.marginals([3, 2], order=1)
    W = workload.stack(A, other)
    assert isinstance(W, Workload)
    assert np.allclose(W.matrix(), np.vstack([A.matrix(), other.matrix()]))


def test_marginals_stacked_on_another_workload_are_written_out():
    W = workload.stack(workload.prefix(6), A)
    assert isinstance(W, Workload)
    assert np.allclose(W.matrix(), np.vstack([workload.prefix(6).matrix(), A.matrix()]))
    assert W.groups.tolist() == [0] * 6 + [1] * 5
    assert strategy.select(W).gap <= 1e-3


def test_a_product_of_marginals_runs_by_pairs_of_sets():
    C = workload.marginals([4], sets=[(0,), ()], weights=[1.0, 5.0])
    W = workload.kron(B, C)
    assert isinstance(W, Marginals)
    assert W.sizes == (2, 3, 4)
    assert W.sets == ((0, 1, 2), (0, 1), (0, 2), (0,))
    assert W.weights == (2.0, 10.0, 3.0, 15.0)
    assert np.allclose(W.gram(), np.kron(B.gram(), C.gram()))
    blocks = [
        np.kron(w * workload.marginals([2, 3], sets=[S]).matrix(), v * workload.marginals([4], sets=[T]).matrix())
        for S, w in zip(B.sets, B.weights, strict=True)
        for T, v in zip(C.sets, C.weights, strict=True)
    ]
    assert np.allclose(W.matrix(), np.vstack(blocks))
    assert bounds.svd_bound(W) == pytest.approx(bounds.svd_bound(B) * bounds.svd_bound(C))
    assert workload.kron(LARGE, LARGE).shape[1] == 10**80
    assert workload.kron(LARGE) is LARGE


def test_marginals_times_another_workload_are_written_out():
    W = workload.kron(A, workload.prefix(3))
    assert isinstance(W, Workload)
    assert np.allclose(W.matrix(), np.kron(A.matrix(), workload.prefix(3).matrix()))


def test_what_is_too_large_to_be_written_out_is_refused():
    few = workload.marginals([10] * 40, sets=[(0,)])
    for combine in (
        lambda: workload.kron(LARGE, workload.prefix(2)),
        lambda: workload.weighted(LARGE, -1.0),
        lambda: workload.weighted(few, np.arange(1.0, 11.0)),
    ):
        with pytest.raises(DataError, match=r"sets over about 10\^4\d cells|sets over about 10\^39 cells"):
            combine()
    with pytest.raises(DataError, match=r"parts of about 10\^\d+, 6 columns cannot be stacked"):
        workload.stack(LARGE, workload.prefix(6))
    same_cells = workload.marginals([100] * 20, order=1)
    with pytest.raises(DataError, match="stack and weigh marginals only"):
        workload.stack(LARGE, same_cells)


@pytest.mark.parametrize("weights", [0.0, float("nan"), [1.0, 2.0], [[1.0]], "heavy"])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(DataError, match="weights"):
        workload.weighted(A, weights)


def test_products_past_the_cap_on_subsets_are_refused():
    wide = workload.marginals([2] * 11, sets=[range(11)])
    with pytest.raises(DataError, match="subsets"):
        workload.kron(wide, workload.marginals([2] * 12, sets=[range(12)]))
