"""Program 4.1 against brute force, and workload generalisation."""

import numpy as np
import pytest

from dpsql import bounds, workload
from dpsql.errors import DataError
from dpsql.extensions.papers import level_selection as ls


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
    cuts = ls.Partition(shape, P, P @ G @ P).cuts()
    assert found[best] < total(G, M)
    ((change, _, axis, place),) = cuts
    assert (axis, place) == best
    assert change == pytest.approx(found[best] - total(G, M), rel=1e-9)


@pytest.mark.parametrize("shape", [(8,), (3, 4), (2, 2, 3)])
def test_every_box_gets_its_own_best_cut(shape):
    # After some cuts: each box against brute force over its own places, on the measured level itself.
    rng = np.random.default_rng(1)
    n = int(np.prod(shape))
    G = workload.all_range(shape).gram()
    M = np.eye(n) + np.ones((n, n))
    P = np.linalg.inv(M)
    level = ls.Partition(shape, P, P @ G @ P)
    for _ in range(4):
        cuts = level.cuts()
        for box, extent in enumerate(level.boxes):
            whole = np.zeros(n)
            whole[ls.box_cells(shape, extent)] = 1
            changes = {}
            for axis, (a, b) in enumerate(extent):
                for place in range(a + 1, b):
                    q1 = np.zeros(n)
                    q1[ls.box_cells(shape, (*extent[:axis], (a, place), *extent[axis + 1 :]))] = 1
                    q2 = whole - q1
                    trial = M - np.outer(whole, whole) + np.outer(q1, q1) + np.outer(q2, q2)
                    changes[axis, place] = total(G, trial) - total(G, M)
            own = [c for c in cuts if c.box == box]
            if not changes or min(changes.values()) >= 0:
                assert own == []
            else:
                assert own[0].change == pytest.approx(min(changes.values()), rel=1e-7)
                assert changes[own[0].axis, own[0].place] == pytest.approx(own[0].change, rel=1e-7)
        if not cuts:
            break
        level.split(cuts[rng.integers(len(cuts))])
        M = np.eye(n)
        for extent in level.boxes:
            cells = ls.box_cells(shape, extent)
            M[np.ix_(cells, cells)] += 1
        assert np.allclose(level.inverse(), np.linalg.inv(M))
    assert len(level.boxes) > 2


def test_orders_by_hand():
    # (change, box, age): a small old box with the better cut against a large young one.
    small, large = (-5.0, ((0, 2), (0, 1)), 0), (-1.0, ((2, 4), (0, 3)), 7)
    keys = {order: key for order, key in ls.ORDERS.items() if key is not None}
    first = {order: min((small, large), key=lambda c, key=key: key(*c)) for order, key in keys.items()}
    assert first == {"best": small, "largest": large, "oldest": small}


@pytest.mark.parametrize("order", ls.ORDERS)
def test_a_level_is_complete_when_no_cut_of_it_helps(order):
    G = workload.all_range(16).gram()
    (level,) = ls.select_levels(G, (16,), most=1, order=order).boxes
    M = np.eye(16)
    for ((a, b),) in level:
        M[a:b, a:b] += 1
    for ((a, b),) in level:
        for place in range(a + 1, b):
            trial = M.copy()
            trial[a:place, place:b] -= 1
            trial[place:b, a:place] -= 1
            assert total(G, trial) >= total(G, M) * (1 - 1e-9)


def test_a_round_is_the_program_as_it_stands():
    """Lines 4 to 9 with plain inverses: every box at its own best place, the others whole, while one is cut."""
    n = 14
    W = workload.random_ranges(9, n, 3)
    G, boxes = W.gram(), [(0, n)]

    def measured(level):
        M = np.eye(n)
        for a, b in level:
            M[a:b, a:b] += 1
        return M

    while True:
        whole, places = total(G, measured(boxes)), {}
        for k, (a, b) in enumerate(boxes):
            rest = boxes[:k] + boxes[k + 1 :]
            errors = {c: total(G, measured([*rest, (a, c), (c, b)])) for c in range(a + 1, b)}
            if errors and min(errors.values()) < whole * (1 - 1e-12):
                places[k] = min(errors, key=errors.get)
        if not places:
            break
        boxes = [
            box
            for k, (a, b) in enumerate(boxes)
            for box in ([(a, places[k]), (places[k], b)] if k in places else [(a, b)])
        ]
    (level,) = ls.select_levels(G, (n,), most=1).boxes
    assert sorted(box for (box,) in level) == boxes
    assert 3 < len(boxes) < n


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
    with pytest.raises(DataError, match="order 'smallest' is not known"):
        ls.select_levels(np.eye(4), (4,), order="smallest")
    with pytest.raises(DataError, match="merged cells"):
        ls.generalised_levels(np.eye(4), 5)
