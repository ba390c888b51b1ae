"""Every gradient that a search uses, against central differences."""

import numpy as np
import pytest
from scipy import linalg

from dpsql import workload
from dpsql.extensions.papers import decomposition
from dpsql.linalg.inner import Dense, Product
from dpsql.strategies.core import parts
from dpsql.strategies.core.axes import Written, find_axes
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.core.symmetric import DualState, Lines
from dpsql.strategies.gaussian.optimal import CellState, solve_cells
from dpsql.strategies.pure import row_mixing
from dpsql.workload import Workload


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def slopes(f, x, step=1e-6):
    """Central differences of f in every entry of x."""
    out = np.zeros(x.size)
    for k in range(x.size):
        h = np.zeros(x.size)
        h[k] = step
        out[k] = (f(x + h.reshape(x.shape)) - f(x - h.reshape(x.shape))) / (2 * step)
    return out.reshape(x.shape)


@pytest.mark.parametrize("stage", row_mixing._STAGES[:2])
def test_row_mixing(stage, rng):
    Y, root = rng.normal(size=(4, 9)), rng.normal(size=(4, 4))
    objective = row_mixing._Objective(root @ root.T + np.eye(4), Y)
    objective.soft, objective.sharp = stage
    C = rng.normal(size=(4, 4)) + 2 * np.eye(4)
    value, gradient = objective(C.ravel())
    assert np.allclose(gradient, slopes(lambda c: objective(c)[0], C.ravel()), rtol=1e-5, atol=1e-7)
    # Multiples of C have one value: the gradient is orthogonal to C.
    assert objective(3 * C.ravel())[0] == pytest.approx(value)
    assert gradient @ C.ravel() == pytest.approx(0, abs=1e-9)


def test_row_mixing_smooths_the_true_error_from_above(rng):
    Y = rng.normal(size=(4, 9))
    objective, C = row_mixing._Objective(np.eye(4), Y), rng.normal(size=(4, 4)) + 2 * np.eye(4)
    P = np.linalg.inv(C)
    true = np.log((P**2).sum()) + 2 * np.log(np.abs(C @ Y).sum(axis=0).max())
    values = []
    for objective.soft, objective.sharp in row_mixing._STAGES:
        values.append(objective(C.ravel())[0])
    assert values == sorted(values, reverse=True)
    assert true <= values[-1] <= true + 0.1


@pytest.mark.parametrize("squares", [True, False])
def test_shares_of_a_union(squares, rng):
    roots = rng.normal(size=(3, 5, 5))
    metrics, gram = np.einsum("gij,gik->gjk", roots, roots), workload.prefix(5).gram()
    logs = rng.normal(size=3)
    value, gradient = parts.log_error(logs, metrics, gram, squares)
    assert np.allclose(gradient, slopes(lambda x: parts.log_error(x, metrics, gram, squares)[0], logs), rtol=1e-6)
    alpha = np.exp(logs)
    alpha /= np.sqrt((alpha**2).sum()) if squares else alpha.sum()
    M = sum(a * a * m for a, m in zip(alpha, metrics, strict=True))
    assert value == pytest.approx(np.log(np.trace(np.linalg.solve(M, gram))))


@pytest.mark.parametrize("squares", [True, False])
def test_shares_of_two_parts_are_the_best(squares, rng):
    """Of two metrics, one of them singular, no other share has less error."""
    roots = [rng.normal(size=(2, 5)), rng.normal(size=(5, 5))]
    metrics, gram = np.array([root.T @ root for root in roots]), workload.prefix(5).gram()
    share = parts._refine(np.array([0.5, 0.5]), metrics, gram, squares)
    best = parts.log_error(np.log(share), metrics, gram, squares)[0]
    others = [parts.log_error(np.array([log, 0.0]), metrics, gram, squares)[0] for log in np.linspace(-6, 6, 400)]
    assert best <= min(others) + 1e-9


def low(columns, lam):
    """The dual of one part, over columns."""
    return DualState([(1.0, columns)], lam)


def test_slope_of_the_dual_is_half_of_q(rng):
    # t = tr (Lambda^1/2 G Lambda^1/2)^1/2 has dt / dlambda_j = q_j / 2: what the ascent climbs by.
    U = rng.normal(size=(3, 7))
    lam = rng.random(7) + 0.1
    assert np.allclose(2 * slopes(lambda x: low(Dense(U.T), x).t, lam), low(Dense(U.T), lam).q, rtol=1e-6)
    root = rng.normal(size=(6, 6))
    G, lam = root @ root.T, rng.random(6) + 0.1

    def cells(x, gram=G, singular=False):
        return CellState([(gram, np.ones(6))], singular, x)

    assert np.allclose(2 * slopes(lambda x: cells(x).t, lam), cells(lam).q, rtol=1e-6)
    assert cells(lam).t == pytest.approx(low(Dense(root), lam).t)
    assert np.allclose(np.diag(cells(lam).metrics()[0]), 1)
    assert cells(lam).upper() == pytest.approx(np.trace(G @ np.linalg.inv(cells(lam).metrics()[0])))
    for v in (np.full(6, 1 / 6), rng.normal(size=6)):
        v = v / v.sum()
        centred = root - (root @ v)[:, None]
        state = cells(lam, centred.T @ centred, True)
        factored = low(Dense(linalg.qr(centred, mode="r")[0][:5].T), lam)
        assert (state.t, state.upper()) == pytest.approx((factored.t, factored.upper()))
        assert np.allclose(state.metrics()[0] @ v, 0, atol=1e-7)
        assert np.diag(state.metrics()[0]).max() == pytest.approx(1)


@pytest.mark.parametrize("n", [5, 8, 9])
@pytest.mark.parametrize("singular", [False, True])
def test_opposite_cells_are_an_orbit(n, singular, rng):
    root = rng.normal(size=(2 * n, n))
    root -= singular * root.mean(axis=1, keepdims=True)
    G = root.T @ root
    G = G + G[::-1, ::-1]
    start = rng.random(n)
    start = (start + start[::-1]) / (2 * start.sum())
    plain, folded = (solve_cells(G, 1e-9, np.inf, start, mirror=mirror, singular=singular) for mirror in (False, True))
    assert folded.lower == pytest.approx(plain.lower, rel=1e-8)
    assert folded.upper == pytest.approx(plain.upper, rel=1e-8)
    assert np.allclose(folded.metric, plain.metric, atol=1e-3)
    assert np.allclose(folded.weights, folded.weights[::-1])
    assert folded.weights.sum() == pytest.approx(1)


def test_slope_of_the_dual_over_axes(rng):
    ends = np.array([[0, 2], [1, 4], [3, 5]])
    j = np.arange(6)
    boxes = ((ends[:, :1] <= j) & (j <= ends[:, 1:])).astype(np.int64)
    W = Workload.from_rows(
        np.vstack(
            [np.kron(boxes, np.ones((1, 4), dtype=int)), np.kron(np.ones((1, 6), dtype=int), np.eye(4, dtype=int))]
        ),
        np.ones(7),
    )
    (block,) = reduce_workload(W)
    axes = find_axes(block.columns)
    assert axes is not None
    columns = Product(Written(axes), block.factor().T)
    lam = rng.random(block.columns.shape[1]) + 0.1
    found = slopes(lambda x: low(columns, x).t, lam)
    assert np.allclose(2 * found, low(columns, lam).q, rtol=1e-5)


def test_slope_of_the_eigen_design(rng):
    Q = np.linalg.qr(rng.normal(size=(6, 6)))[0][:4]
    squares, sigma, lam = Q * Q, rng.random(4) + 0.5, rng.random(6) + 0.1

    def at(x):
        return DualState([], x, [Lines(np.ones(4), np.sqrt(sigma), squares.T)])

    state = at(lam)
    assert np.allclose(2 * slopes(lambda x: at(x).t, lam), state.q, rtol=1e-6)
    assert lam @ state.q == pytest.approx(state.t)
    # Weak duality, by hand: t^2 is at most the error of any weights scaled to sensitivity 1.
    lam /= lam.sum()
    t = at(lam).t
    for _ in range(50):
        u = rng.exponential(size=4)
        assert t**2 <= (sigma / u).sum() * (u @ squares).max() * (1 + 1e-12)


def test_subproblem_of_the_low_rank_mechanism(rng):
    # The augmented Lagrangian of Yuan et al. 2012, Eq. 8, at fixed multiplier and penalty.
    W, L, multiplier, beta = rng.normal(size=(5, 6)), rng.normal(size=(3, 6)), rng.normal(size=(5, 6)), 1.7

    def value(B, L):
        rest = W - B @ L
        return 0.5 * (B * B).sum() + (multiplier * rest).sum() + 0.5 * beta * (rest * rest).sum()

    weighted = beta * W + multiplier
    B = weighted @ L.T @ np.linalg.inv(beta * L @ L.T + np.eye(3))  # Eq. 9
    assert np.allclose(slopes(lambda b: value(b, L), B), 0, atol=1e-6)
    Q, P = beta * (B.T @ B), B.T @ weighted
    assert np.allclose(slopes(lambda x: value(B, x), L), Q @ L - P, rtol=1e-5, atol=1e-6)
    # One projected step of that gradient never raises the value.
    step = decomposition.nesterov(Q, P, decomposition.project_columns(L), 1)
    assert value(B, step) <= value(B, decomposition.project_columns(L)) + 1e-12
