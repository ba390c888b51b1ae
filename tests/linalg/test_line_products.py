"""Exact products of long vectors with convolutions and nested blocks, against Python integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from dpsql.errors import DataError, InternalError
from dpsql.linalg.exact import words_of
from dpsql.linalg.lines import BlockLine, CyclicLine
from dpsql.linalg.norms import largest_norm
from dpsql.linalg.prefix_line import PrefixLine
from dpsql.strategies.ranges.line_strategy import line_strategy


def _long(rng: np.random.Generator, n: int) -> list[int]:
    """Integers of up to 110 bits, of both signs."""
    high, low = rng.integers(-(2**40), 2**40, n), rng.integers(-(2**60), 2**60, n)
    return [int(a) * 2**70 + int(b) for a, b in zip(high, low, strict=True)]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 100])
def test_convolutions_are_exact(n: int) -> None:
    rng = np.random.default_rng(n)
    held = CyclicLine(rng.integers(-(2**20), 2**20, n))
    x = _long(rng, n)
    assert held.times(x, 112) == list(held.matrix().astype(object) @ np.array(x, dtype=object))


def test_the_largest_counts_are_exact() -> None:
    held = CyclicLine(np.full(5000, 2**20 - 1, dtype=np.int64))
    x = [2**63 - 1] * 5000
    each = (2**20 - 1) * (2**63 - 1)
    assert held.times(x, 63) == [5000 * each] * 5000


@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 32, 33, 100])
def test_products_spreads_and_norms_of_prefixes_are_those_of_the_matrix(n: int, weighed: bool) -> None:
    line = line_strategy(n, "prefixes", "gaussian").line
    assert isinstance(line, PrefixLine)
    line = replace(line, weights=np.arange(n, dtype=np.int64) % 7 + 1 if weighed else None)
    B, x = line.matrix(), _long(np.random.default_rng(n), n)
    assert line.times(x, 112) == list(B.astype(object) @ np.array(x, dtype=object))
    assert line.l1 == np.abs(B).sum(axis=0).max()
    assert line.l2_squared == (B.astype(object) ** 2).sum(axis=0).max()
    assert (line.largest_norm(1), line.largest_norm(2)) == pytest.approx((line.l1, line.l2_squared), rel=1e-9)
    inverse = np.linalg.inv(B.astype(float))
    R, y = np.tri(n) @ inverse, np.arange(n) - 3.0
    assert line.prefix_sums(y)[1:] == pytest.approx(R @ y, rel=1e-8, abs=1e-8 * np.abs(R).max())
    assert line.spread.of(np.zeros(n, np.int64), np.arange(1, n + 1)) == pytest.approx((R * R).sum(axis=1), rel=1e-8)


def test_a_kernel_of_prefixes_falls_and_has_full_rank() -> None:
    with pytest.raises(DataError, match="n \\+ 1 integers"):
        PrefixLine(np.array([4, 2]), np.array([1, 1]))
    with pytest.raises(InternalError, match="not decreasing"):
        PrefixLine(np.array([2, 4, 1]), np.array([1, 1]))
    with pytest.raises(InternalError, match="full rank"):
        PrefixLine(np.array([0, 0, 0]), np.array([1, 1]))
    with pytest.raises(DataError, match="weights are positive"):
        PrefixLine(np.array([4, 2, 1]), np.array([1, 1]), np.array([1, 0]))
    with pytest.raises(DataError, match="do not fit 64 bits"):
        PrefixLine(np.array([2**23, 2**22, 1]), np.array([1, 1]), np.array([2**12, 2**9]))


@pytest.mark.parametrize("n", [1, 5, 16, 100, 128])
def test_sums_over_blocks_are_exact(n: int) -> None:
    rng = np.random.default_rng(n)
    held = BlockLine(n, 128, (128, 16, 4, 1), (3, 5, 1, 2))
    x = _long(rng, n)
    assert held.rows == 1 + 8 + 32 + 128
    assert held.times(x, 112) == list(held.matrix().astype(object) @ np.array(x, dtype=object))


def test_words_add_up_to_the_numbers() -> None:
    x = [-(2**100), -1, 0, 1, 2**100 - 1, 12345678901234567890]
    words = words_of(x, 101, 40, 40)
    assert [sum(int(w[i]) << (40 * k) for k, w in enumerate(words)) for i in range(len(x))] == x


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="kernel is a vector"):
        CyclicLine(np.array([2**24]))
    with pytest.raises(DataError, match="3 values for a matrix of 2 columns"):
        CyclicLine(np.array([1, 2])).times([1, 2, 3], 63)
    with pytest.raises(DataError, match="divide each other"):
        BlockLine(10, 16, (16, 5, 1), (1, 1, 1))
    with pytest.raises(DataError, match="single cells"):
        BlockLine(10, 16, (16, 4), (1, 1))
    with pytest.raises(DataError, match="2 values for a matrix of 10 columns"):
        BlockLine(10, 16, (4, 1), (1, 1)).times([1, 2], 63)
    with pytest.raises(DataError, match="not written out"):
        CyclicLine(np.ones(5000, dtype=np.int64)).matrix()


def test_the_norms_of_single_counts_of_very_many_groups() -> None:
    """A sparse matrix too large to be written out has the norms of its columns all the same."""
    factors = np.arange(1, 20_001, dtype=np.int64)
    mixing = sparse.csr_array(sparse.diags_array(factors, dtype=np.int64))
    columns = sparse.identity(20_000, dtype=np.int64, format="csc") * 3
    assert largest_norm(mixing, columns, 1) == 60_000
    assert largest_norm(mixing, columns, 2) == pytest.approx(60_000.0**2)
