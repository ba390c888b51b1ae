"""The strategy of a state of the dual with columns of unit length: feasible, of the stated error, near the optimum."""

import numpy as np
import pytest
import scipy

from dpsql.linalg.inner import Dense
from dpsql.strategies.core.ascent import ascend
from dpsql.strategies.gaussian.optimal import ColumnState

NEAR = 1e-2  # from where unit length is tried


def problem(cells, low, high):
    """(root R of all prefix counts and the sum, columns Y): a unit has one cell, and there one of two values."""
    Y = np.vstack([np.tile(np.eye(cells), 2), np.concatenate([low, high])])
    return scipy.linalg.block_diag(np.tril(np.ones((cells, cells))), [[3.0]]), Y


def between(cells):
    """All cells have values between the same bounds: every column has weight at the optimum."""
    return problem(cells, np.full(cells, -1.0), np.ones(cells))


def drawn(cells):
    """Bounds are drawn, so that some columns have no weight and are shorter than 1."""
    return problem(cells, *np.sort(np.random.default_rng(cells).uniform(-1, 1, size=(2, cells)), axis=0))


def states(R, Y):
    """The states of an ascent, in turn."""
    seen = []

    def evaluate(weights):
        seen.append(ColumnState(Dense((R @ Y).T), NEAR, weights))
        return seen[-1]

    ascend(evaluate, np.full(Y.shape[1], 1.0 / Y.shape[1]), 1e-9, np.inf, 60)
    return seen


@pytest.mark.parametrize("made", [between, drawn])
@pytest.mark.parametrize("cells", [5, 30])
def test_the_stated_error_is_that_of_a_feasible_strategy(cells, made):
    R, Y = made(cells)
    for state in states(R, Y):
        error, B = state.scaled
        X = R.T @ B.T @ B @ R
        assert np.einsum("ij,ij->j", Y, X @ Y).max() <= 1 + 1e-9
        assert np.trace(np.linalg.solve(X, R.T @ R)) == pytest.approx(error, rel=1e-8)
        assert state.lower <= error <= state.t * state.q.max() * (1 + 1e-12)


@pytest.mark.parametrize("made", [between, drawn])
@pytest.mark.parametrize("cells", [30, 60])
def test_unit_length_is_nearer_to_the_least_than_the_longest_column(cells, made):
    """The same state, divided by its longest column alone, has an error at least twice as far from the least."""
    seen = states(*made(cells))
    least = max(state.lower for state in seen)
    near = [state for state in seen if state.t * state.q.max() <= (1 + NEAR) * state.t**2]
    nearer = [(state.t * state.q.max() - least) / (state.upper() - least) for state in near]
    assert len(nearer) > 3
    assert np.median(nearer) > 2
