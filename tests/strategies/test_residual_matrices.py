"""The matrices of residuals: in few bits after a few tries, and without a search once the time is over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpsql.linalg.blocks import Centre, Mixed, Plain
from dpsql.strategies.gaussian import optimal
from dpsql.strategies.kronecker import residual_matrices
from dpsql.strategies.kronecker.residual_matrices import ResidualMatrices, _root, _shortened


def centred_gram(d: int) -> np.ndarray:
    C = np.eye(d) - 1.0 / d
    rows = np.tril(np.ones((d, d))) @ C
    return rows.T @ rows


def test_a_matrix_is_shortened_in_few_tries(monkeypatch):
    calls = []
    whole = residual_matrices._squared_quotient

    def counted(*args):
        calls.append(args)
        return whole(*args)

    monkeypatch.setattr(residual_matrices, "_squared_quotient", counted)
    d = 30
    gram = centred_gram(d)
    rng = np.random.default_rng(1)
    S = rng.integers(-(2**40), 2**40, size=(d - 1, d - 1))
    matrix = np.hstack([S, -S.sum(axis=1, keepdims=True)])
    long, short = Mixed(matrix), _shortened(matrix, _root(gram), 1, 1e-3)
    assert 1 < len(calls) <= 6
    assert short.growth < long.growth // 2**16
    errors = [part.norms[1] * float(part.squares(_root(gram)).sum()) for part in (long, short)]
    assert errors[1] <= (1 + 1e-3) * errors[0] * (1 + 1e-9)
    assert not short.matrix.sum(axis=1).any()


@pytest.mark.parametrize("top", [5, 2**31 - 1, 2**40])
def test_norms_are_exact_at_any_size(top):
    matrix = np.array([[top, -top, 1], [0, top, -top], [3, 3, -6]])
    columns = [[abs(int(v)) for v in column] for column in matrix.T]
    assert Mixed(matrix).norms == (max(map(sum, columns)), max(sum(v * v for v in column) for column in columns))
    assert Mixed(matrix).growth == max(sum(abs(int(v)) for v in row) for row in matrix)


@pytest.mark.parametrize(("noise", "kind"), [("gaussian", Centre), ("laplace", Plain)])
def test_past_the_limit_no_axis_is_searched(noise, kind, monkeypatch):
    monkeypatch.setattr(residual_matrices, "searched", lambda *_, **__: pytest.fail("searched"))
    late = ResidualMatrices(None, noise, 1e-3, -np.inf)
    assert isinstance(late._solve(centred_gram(9), 9), kind)


@pytest.mark.parametrize("mirrored", [True, False])
def test_a_long_axis_is_searched_by_its_regions(mirrored, monkeypatch):
    """The same optimum as by rows e_a - e_d, which is certified, from fewer and smaller decompositions."""
    d = 24
    gram = centred_gram(d)
    if not mirrored:
        rows = np.tril(np.ones((d, d)))[::2] @ (np.eye(d) - 1.0 / d)
        gram = gram + 3 * rows.T @ rows
    held = ResidualMatrices(None, "gaussian", 1e-3, None)
    short, root = held._searched(gram, d, 1), _root(gram)
    monkeypatch.setattr(residual_matrices, "_LONG", d - 1)
    monkeypatch.setattr(residual_matrices, "searched", lambda *_, **__: pytest.fail("searched by rows"))
    long = held._selected(gram, d)
    assert not long.matrix.sum(axis=1).any()
    errors = [part.norms[1] * float(part.squares(root).sum()) for part in (long, short)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_long_axis_is_searched_around_a_centre(weight, monkeypatch):
    d = 24
    n = np.arange(1, d + 1)
    gram = centred_gram(d)
    held = ResidualMatrices(None, "gaussian", 1e-3, None)
    short, root = held._around(gram, d, n), _root(gram)
    assert short.centre is n
    monkeypatch.setattr(residual_matrices, "_LONG", d - 1)
    monkeypatch.setattr(residual_matrices, "searched", lambda *_, **__: pytest.fail("searched by rows"))
    held.weights[n.tobytes()] = np.r_[np.full(d - 1, 1.0), weight] / (d - 1 + weight)
    steps = []
    state = optimal.CellState
    monkeypatch.setattr(optimal, "CellState", lambda *args: steps.append(args) or state(*args))
    first, taken = held._around(gram, d, n), len(steps)
    again = held._around(gram, d, n)
    assert len(steps) < 2 * taken  # from where the first ended
    assert first.p == d - 1
    errors = [part.norms[1] * float(part.squares(root).sum()) for part in (short, first, again)]
    assert errors == pytest.approx(errors[:1] * 3, rel=1e-3)
    short = np.linalg.pinv((first.matrix[:, :-1] - first.matrix[:, -1:]).astype(float))
    assert np.allclose(first.inverse, np.vstack([short, -short.sum(axis=0)]))


def test_what_is_found_too_roughly_is_not_taken(monkeypatch):
    d = 12
    monkeypatch.setattr(residual_matrices, "_LONG", d - 1)
    skew = np.diag(np.r_[2.0, np.ones(d - 2), 0.5])
    C = np.eye(d) - 1.0 / d

    def worse(*given, **more):
        found = optimal.solve_cells(*given, **more)
        return replace(found, metric=C @ skew @ found.metric @ skew @ C)

    monkeypatch.setattr(residual_matrices, "solve_cells", worse)
    held = ResidualMatrices(None, "gaussian", 1e-3, None)
    assert held._of_long_axis(centred_gram(d), centred_gram(d)) is None
