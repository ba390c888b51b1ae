"""Matrices of the sine transform against their entries in Python integers."""

import numpy as np
import pytest
from scipy import fft

from dpsql.errors import DataError, InternalError
from dpsql.linalg.sine import SineMatrix, cosine_sums, kernel_of

SIZES = [1, 2, 3, 5, 8, 31, 64]


def kernels(n):
    rng = np.random.default_rng(n)
    return [
        rng.integers(-(2**17), 2**17, size=n + 2),
        np.full(n + 2, 2**19 - 1),
        np.where(np.arange(n + 2) % 2, -1, 1) * (2**19 - 1),
        (2.0**17 / np.sqrt(np.arange(n + 2) + 0.5)).astype(np.int64),
    ]


@pytest.mark.parametrize("n", SIZES)
def test_products_are_exact_for_every_int64(n):
    rng = np.random.default_rng(n)
    for f in kernels(n):
        C = SineMatrix(f)
        M = C.matrix().astype(object)
        for x in (np.full(n, 2**63 - 1), np.full(n, -(2**63)), rng.integers(-(2**63), 2**63 - 1, size=n)):
            assert C.product(x).integers() == list(M @ x.astype(object))
            for d in (np.full(n, 2**20 - 1), rng.integers(0, 2**20, size=n)):
                assert C.product(x, d).integers() == list(M @ (x.astype(object) * d.astype(object)))
        small = rng.integers(-(2**8), 2**8, size=n)
        assert C.product(small, bits=8).integers() == list(M @ small.astype(object))


@pytest.mark.parametrize("n", SIZES)
def test_norms_and_row_sums_are_exact(n):
    for f in kernels(n):
        C = SineMatrix(f)
        M = C.matrix().astype(object)
        assert list(C.square_diagonal()) == list((M * M).sum(axis=0))
        assert C.row_sum >= np.abs(M).sum(axis=1).max()
        assert not C.decreasing or (M >= 0).all()
    assert SineMatrix(kernels(n)[3]).decreasing


@pytest.mark.parametrize("n", SIZES)
def test_eigenvalues_powers_and_inverse(n):
    C = SineMatrix(kernels(n)[3])
    M = C.matrix().astype(float)
    assert np.allclose(np.sort(np.linalg.eigvalsh(M)), np.sort(C.eigenvalues()))
    x = np.random.default_rng(n).normal(size=n)
    assert np.allclose(M @ C.inverse(x), x)
    h = C.power_kernel(-2.0)
    full, i = np.concatenate([h, h[-2:0:-1]]), np.arange(1, n + 1)
    assert np.allclose(full[np.abs(i[:, None] - i)] - full[i[:, None] + i], np.linalg.inv(M @ M))
    assert np.allclose(cosine_sums(kernel_of(C.eigenvalues()))[1:-1], C.eigenvalues())


def test_a_large_product_by_random_projection():
    n = 2**16 + 3
    rng = np.random.default_rng(1)
    f = (2.0**17 / np.sqrt(np.arange(n + 2) + 0.5)).astype(np.int64)
    C, x, d = SineMatrix(f), rng.integers(-(2**63), 2**63 - 1, size=n), rng.integers(0, 2**18, size=n)
    y = C.product(x, d).integers()
    period, j, u = np.concatenate([f, f[-2:0:-1]]), np.arange(1, n + 1), x.astype(object) * d.astype(object)
    for i in (1, 2, n // 3, n - 1, n):
        assert y[i - 1] == int(((period[np.abs(i - j)] - period[i + j]).astype(object) * u).sum())


def test_cosine_sums_of_an_awkward_length():
    f = np.random.default_rng(0).normal(size=16_412)  # 2 x 16,411 has a large prime factor
    assert np.allclose(cosine_sums(f), fft.dct(f, type=1), rtol=0, atol=1e-11 * np.abs(f).sum())


def test_refusals():
    with pytest.raises(DataError, match="kernel"):
        SineMatrix(np.ones(5))
    with pytest.raises(DataError, match="kernel"):
        SineMatrix(np.ones(2, dtype=np.int64))
    with pytest.raises(DataError, match="fewer bits"):
        SineMatrix(np.full(4, 2**24))
    with pytest.raises(DataError, match="exact products"):
        SineMatrix(np.full(2**20, 2**24 - 1))
    C = SineMatrix(np.array([5, 2, 1, 0]))
    for x in (np.ones(2), np.ones(3, dtype=np.int64), [1, 2], np.array([1, 2**70], dtype=object)):
        with pytest.raises(DataError, match="exact product"):
            C.product(x)
    for d in (np.array([-1, 1]), np.array([1, 2**20]), np.ones(2)):
        with pytest.raises(DataError, match="factors"):
            C.product(np.ones(2, dtype=np.int64), d)
    wide = SineMatrix(np.full(66, 2**24 - 1))
    with pytest.raises(DataError, match="two words"):
        wide.product(np.ones(64, dtype=np.int64), np.full(64, 2**20 - 1))
    with pytest.raises(DataError, match="written out"):
        SineMatrix(np.arange(5000, 0, -1)).matrix()
    with pytest.raises(DataError, match="squares"):
        SineMatrix(np.full(2**14, 2**24 - 1)).square_diagonal()
    with pytest.raises(InternalError, match="full rank"):
        SineMatrix(np.full(6, 3)).eigenvalues()
