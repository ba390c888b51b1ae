"""Products with Gram matrices through their structure, against the matrix."""

import numpy as np
import pytest

from dpsql import workload
from dpsql.strategies.pure import p_identity
from dpsql.strategies.pure.p_identity import gram_times

STRUCTURED = {
    "ranges": (workload.all_range(200), ()),
    "prefixes": (workload.prefix(200), ()),
    "weighted sum of both": (
        workload.stack(workload.all_range(90), workload.weighted(workload.prefix(90), 3.0)),
        (),
    ),
    "boxes": (workload.all_range((12, 7, 3)), (12, 7, 3)),
    "any ranges of many cells": (workload.random_ranges(600, 700, 0), ()),
    "product of unlike axes": (workload.kron(workload.prefix(11), workload.random_ranges(9, 13, 0)), (11, 13)),
}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("name", STRUCTURED)
def test_against_the_matrix(name, rng):
    W, shape = STRUCTURED[name]
    G = W.gram()
    found = gram_times(G, shape)
    assert found is not None
    assert found.cost < G.size
    Z = rng.normal(size=(5, G.shape[0]))
    assert np.allclose(found.times(Z), Z @ G, rtol=1e-9, atol=1e-9 * np.abs(Z @ G).max())


@pytest.mark.parametrize(
    ("W", "shape"),
    [
        (workload.random_ranges(60, 100, 0), ()),
        (workload.random_ranges(60, 100, 0), (10, 10)),
        (workload.all_range(30), ()),
        (workload.identity(100), (10, 5)),
    ],
)
def test_no_structure(W, shape):
    assert gram_times(W.gram(), shape) is None


@pytest.mark.parametrize("name", STRUCTURED)
def test_objective_and_gradient_do_not_change(name, rng):
    W, shape = STRUCTURED[name]
    G = W.gram()
    Theta = rng.random((3, G.shape[0]))
    quick, plain = p_identity.Objective(G, None, shape), p_identity.Objective(G, None)
    plain._quick = None
    assert quick.cost < plain.N**2
    value, gradient = quick(Theta.ravel())
    expected, other = plain(Theta.ravel())
    assert value == pytest.approx(expected, rel=1e-9)
    assert np.allclose(gradient, other, atol=1e-8 * np.abs(other).max())
    step = rng.normal(size=Theta.size) * 1e-6
    ahead, behind = quick(Theta.ravel() + step)[0], quick(Theta.ravel() - step)[0]
    assert (ahead - behind) / 2 == pytest.approx(float(gradient @ step), rel=1e-4)
