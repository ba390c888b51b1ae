"""Integer products of any size: exact up to the public bound, whatever the data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql.errors import DataError
from dpsql.linalg.exact import product, product_bits, word_width


@pytest.mark.parametrize("bits", [1, 63, 64, 120, 263, 500])
@pytest.mark.parametrize("top", [1, 3, 2**20, 2**40])
def test_products_are_exact_to_the_edge_of_the_bound(bits, top):
    rng = np.random.default_rng(7)
    matrix = rng.integers(-top, top + 1, size=(5, 9))
    matrix[0, 0] = top
    edge = 2**bits - 1
    vector = [int(rng.integers(-1, 2)) * edge for _ in range(9)]
    expected = [sum(int(a) * x for a, x in zip(row, vector, strict=True)) for row in matrix]
    assert product(matrix, vector, bits) == expected
    assert product(sparse.csr_array(matrix), vector, bits) == expected
    assert all(abs(value) < 2 ** product_bits(matrix, bits) for value in expected)


def test_a_matrix_without_room_is_refused_before_any_data():
    matrix = np.full((1, 4), 2**58)
    with pytest.raises(DataError, match="too large to measure exactly"):
        word_width(matrix)
