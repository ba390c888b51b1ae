"""Predicted errors against whole measurements, with the integer samplers that a release uses."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse, stats

from dpsql import strategy, workload
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise, sample_from
from dpsql.workload import Workload

RUNS = 1500
LEVEL = 1e-6  # how often a right prediction may fail

STACK = workload.stack(workload.prefix(7), workload.total(7))
RANGES = workload.all_range(6)
SUMS = Workload.from_rows(
    [[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 0], [1, 2, 0, 0, 0, 0], [0, 0, 0, 3, 0, 1]],
    [1, 1, 0.5, 1],
    contributions=np.kron(np.eye(3, dtype=int), [[1, 1], [1, -1]]),
)


def source(seed):
    """Repeatable bytes: a test's stand-in for the operating system's entropy."""
    counter = 0

    def take(size):
        nonlocal counter
        counter += 1
        return hashlib.shake_256(f"{seed} {counter}".encode()).digest(size)

    return take


def noise_of(S, scale=1):
    """The law that a release at mu = 1 or epsilon = 1 draws, its standard deviation times ``scale``."""
    if S.noise == "gaussian":
        return gaussian_noise(S.l2_squared * scale**2, Fraction(1))
    return pure_noise(S.l1 * scale, Fraction(1))


def squared_errors(W, S, law, seed, runs=RUNS):
    """Total squared error of each of ``runs`` measurements y = B x + z, integers up to the reconstruction."""
    B = np.vectorize(int, otypes=[object])(S.mixing.toarray() if sparse.issparse(S.mixing) else S.mixing)
    B = B @ S.basis.toarray().astype(object)
    x = np.random.default_rng(seed).integers(0, 1000, size=B.shape[1]).astype(object)
    z = np.array(sample_from(law, B.shape[0] * runs, source(seed)), dtype=object).reshape(runs, -1)
    y = (B @ x)[None, :] + z
    R = S.reconstruction(W)
    R = R.toarray() if sparse.issparse(R) else R
    answers = y.astype(np.float64) @ R.T
    return ((answers - W.matrix() @ x.astype(np.float64)) ** 2).sum(axis=1), R


def interval(S, R, law, runs=RUNS):
    """Where the mean squared error lies but once in a million: a chi-square of its mean and variance.

    z' M z with M = R^T R and independent z of variance v and excess kurtosis k has mean v tr M and variance
    v^2 (2 ||M||_F^2 + k sum M_ii^2); k is 0 for the Gaussian and 3 for the Laplace law.
    """
    M = R.T @ R
    v = law.variance
    mean = v * np.trace(M)
    excess = 0.0 if S.noise == "gaussian" else 3.0
    spread = v * v * (2 * (M * M).sum() + excess * (np.diag(M) ** 2).sum()) / runs
    degrees = 2 * mean**2 / spread
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], degrees)
    return mean, mean * low / degrees, mean * high / degrees


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("method", [m for m in strategy.CATALOGUE if m != "norm-blocks"])
@pytest.mark.few(every=6)
def test_predicted_errors_of_every_method(method, noise):
    W = RANGES if method == "range-transform" else STACK
    S = strategy.select(W, noise, method=method)
    law = noise_of(S)
    errors, R = squared_errors(W, S, law, seed=len(method))
    mean, low, high = interval(S, R, law)
    assert S.expected / S.sensitivity**2 * law.variance == pytest.approx(mean, rel=1e-6)
    assert low < errors.mean() < high


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_predicted_errors_of_counts_beside_sums(noise):
    S = strategy.select(SUMS, noise)
    law = noise_of(S)
    errors, R = squared_errors(SUMS, S, law, seed=7)
    _, low, high = interval(S, R, law)
    assert low < errors.mean() < high


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("factor", [Fraction(9, 10), Fraction(11, 10)])
@pytest.mark.few(every=2)
def test_wrong_noise_is_noticed(noise, factor):
    S = strategy.select(STACK, noise)
    law = noise_of(S)
    wrong = Noise(law.kind, law.parameter * (factor**2 if noise == "gaussian" else factor))
    errors, R = squared_errors(STACK, S, wrong, seed=3, runs=4 * RUNS)
    _, low, high = interval(S, R, law, runs=4 * RUNS)
    assert not low < errors.mean() < high
