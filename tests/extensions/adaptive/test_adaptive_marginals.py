"""Marginals made up from those that were measured: exact where all is known, the product where nothing is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpsql.errors import InternalError
from dpsql.extensions.adaptive.adaptive_answers import MarginalModel, on_simplex

SIZES = (3, 4, 2)
CANDIDATES = tuple(S for order in (1, 2, 3) for S in combinations(range(3), order))


def marginals() -> dict[tuple[int, ...], np.ndarray]:
    table = np.random.default_rng(5).integers(1, 30, SIZES)
    return {S: table.sum(axis=tuple(i for i in range(3) if i not in S)) for S in CANDIDATES}


def test_what_is_measured_without_noise_comes_out() -> None:
    fit, true = MarginalModel(SIZES, CANDIDATES, 1.0).start(), marginals()
    fit.learn((0, 1, 2), 3, (3 * true[0, 1, 2]).ravel().tolist())
    fit.learn((1,), 1, true[1,].tolist())
    for S, table in fit.tables().items():
        assert table == pytest.approx(true[S], abs=1e-6)


def test_what_is_not_measured_has_the_largest_entropy() -> None:
    fit, true = MarginalModel(SIZES, CANDIDATES, 1.0).start(), marginals()
    rows = float(true[0,].sum())
    for i in range(3):
        fit.learn((i,), 2, (2 * true[i,]).tolist())
    found = fit.tables()
    product = np.einsum("i,j,k->ijk", true[0,], true[1,], true[2,]) / rows**2
    assert found[0, 1, 2] == pytest.approx(product, rel=1e-6)
    fit.learn((0, 1), 1, true[0, 1].ravel().tolist())  # then 2 is apart from what 0 and 1 do together
    given = np.einsum("ij,k->ijk", true[0, 1], true[2,]) / rows
    assert fit.tables()[0, 1, 2] == pytest.approx(given, rel=1e-5)


def test_a_pair_that_was_not_measured_goes_together_as_a_third_axis_has_it() -> None:
    """Axes 0 and 2 are what 1 makes of them: where 0 is 1 and 2 are known their pair is that of the chain."""
    chain = np.einsum("ij,jk->ijk", [[9, 1, 0, 4], [0, 8, 2, 2], [3, 0, 6, 5]], [[1, 3], [2, 0], [0, 5], [1, 1]])
    pairs = tuple(S for S in CANDIDATES if len(S) < 3)
    true = {S: chain.sum(axis=tuple(i for i in range(3) if i not in S)) for S in pairs}
    fit = MarginalModel(SIZES, pairs, 1.0).start()
    for S in ((0,), (1,), (2,), (0, 1), (1, 2)):
        fit.learn(S, 2, 2 * true[S].ravel())
    product = np.outer(true[0,], true[2,]) / chain.sum()
    given = np.einsum("ij,j,jk->ik", true[0, 1], 1 / true[1,], true[1, 2])
    assert fit.tables()[0, 2] == pytest.approx(given, rel=1e-5)
    assert np.abs(given - product).sum() > 5
    assert fit.guess(0)[0, 2] == pytest.approx(given, rel=1e-5)  # takes up what was found before


def test_measurements_count_by_their_precision() -> None:
    """A marginal on one axis, at 1 and at 3: by hand (y1 + 3 y3) / 10."""
    fit = MarginalModel((2,), ((0,),), 1.0).start()
    fit.learn((0,), 1, [10, 20])
    fit.learn((0,), 3, [33, 57])
    assert fit.tables()[0,] == pytest.approx(np.array([10 + 99, 20 + 171]) / 10)


def test_tables_of_noise_are_possible_and_agree() -> None:
    draws, fit = np.random.default_rng(7), MarginalModel(SIZES, CANDIDATES, 400.0).start()
    for S in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 2)):
        fit.learn(S, 1, np.rint(draws.normal(5, 20, [SIZES[i] for i in S])).astype(int).ravel().tolist())
    found = fit.tables()
    for S, again in fit.tables().items():
        assert (again == found[S]).all()  # an answer is the same however often it is asked for
    for S in CANDIDATES:
        assert found[S].min() >= 0
        for T in (T for T in CANDIDATES if set(T) < set(S)):
            gone = tuple(at for at, axis in enumerate(S) if axis not in T)
            assert found[S].sum(axis=gone) == pytest.approx(found[T], abs=1e-6)


def test_answers_of_another_size_are_no_transcript() -> None:
    with pytest.raises(InternalError):
        MarginalModel(SIZES, CANDIDATES, 1.0).start().learn((0,), 1, [1, 2])


def test_the_simplex() -> None:
    assert on_simplex(np.array([3.0, -1.0, 1.0])) == pytest.approx([2.5, 0, 0.5])
    assert on_simplex(np.array([-3.0, 1.0])) == pytest.approx([0, 0])
    assert on_simplex(np.array([2.0, 1.0])) == pytest.approx([2, 1])


def test_what_is_beyond_the_candidates_is_made_up_of_them() -> None:
    """No entry negative, and the marginals are those of its parts, which it does not move."""
    pairs, true = tuple(S for S in CANDIDATES if len(S) < 3), marginals()
    alone, beside = (MarginalModel(SIZES, pairs, 1.0, beyond).start() for beyond in ((), ((0, 1, 2),)))
    for fit in (alone, beside):
        for S in ((0, 1), (1, 2), (0, 2)):
            fit.learn(S, 2, 2 * true[S].ravel() + 7)
    kept, found = alone.tables(), beside.tables()
    table = found.pop((0, 1, 2))
    assert table.min() >= 0
    assert found.keys() == kept.keys()
    for S, held in kept.items():
        assert np.array_equal(found[S], held)
        assert table.sum(axis=tuple(i for i in range(3) if i not in S)) == pytest.approx(held, rel=1e-3)
