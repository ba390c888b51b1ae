"""Program 4.1 against brute force, and workload generalisation."""

import numpy as np
import pytest

from dpsql import bounds, workload
from dpsql.errors import DataError
from dpsql.strategy import level_selection as ls


def total(G, M):
    return float(np.trace(np.linalg.solve(M, G)))


@pytest.mark.parametrize("shape", [(9,), (3, 4), (2, 3, 2)])
def test_the_best_cut_is_that_of_brute_force(shape):
    rng = np.random.default_rng(0)
    n = int(np.prod(shape))
    root = rng.normal(size=(n, n))
    G = root @ root.T
    M = np.eye(n) + np.ones((n, n))
    P = np.linalg.inv(M)
    box = tuple((0, s) for s in shape)
    found = {}
    for axis, size in enumerate(shape):
        for place in range(1, size):
            first = ls.box_cells(shape, (*box[:axis], (0, place), *box[axis + 1 :]))
            q1 = np.zeros(n)
            q1[first] = 1
            q2 = 1 - q1
            trial = M - np.ones((n, n)) + np.outer(q1, q1) + np.outer(q2, q2)
            found[axis, place] = total(G, trial)
    best = min(found, key=found.get)
    assert ls.best_cut(P, P @ G @ P, shape, box) == (best if found[best] < total(G, M) else None)


@pytest.mark.parametrize("shape", [(12,), (4, 4)])
def test_errors_are_those_of_the_rows(shape):
    W = workload.all_range(shape)
    G = W.gram()
    found = ls.select_levels(G, shape)
    assert list(found.errors) == sorted(found.errors, reverse=True)
    for noise in ("gaussian", "laplace"):
        A = found.rows(noise)
        order = 2 if noise == "gaussian" else 1
        norms = np.linalg.norm(A, ord=order, axis=0) ** order
        assert np.allclose(norms, len(found.boxes) + 1)  # column uniform
    A = found.rows("gaussian")
    assert (len(found.boxes) + 1) * total(G, A.T @ A) == pytest.approx(found.errors[-1], rel=1e-9)
    for level in found.boxes:
        cells = np.concatenate([ls.box_cells(shape, box) for box in level])
        assert sorted(cells) == list(range(G.shape[0]))


def test_more_levels_never_raise_the_error_and_stay_near_the_bound():
    W = workload.all_range(32)
    errors = [ls.select_levels(W.gram(), (32,), most=k).errors[-1] for k in (1, 3, 6, 40)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] <= 1.08 * bounds.svd_bound(W)


def test_generalisation_is_close():
    W = workload.all_range(64)
    found = ls.generalised_levels(W.gram(), 4)
    A = found.rows("gaussian")
    M = A.T @ A
    assert np.diag(M).max() * total(W.gram(), M) == pytest.approx(min(found.errors), rel=1e-9)
    assert min(found.errors) <= 1.3 * bounds.svd_bound(W)


def test_refusals():
    with pytest.raises(DataError, match="does not fit"):
        ls.select_levels(np.eye(4), (3,))
    with pytest.raises(DataError, match="merged cells"):
        ls.generalised_levels(np.eye(4), 5)
