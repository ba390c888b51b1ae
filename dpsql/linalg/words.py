"""Exact integer products of any size, without a check that depends on data.

int64 products wrap silently. Here the data are split into words so short that every partial
sum provably fits, by a bound on the public matrix alone; the words are put together again as
Python integers. How many words there are follows from a public bound on the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.errors import DataError


def word_width(matrix: Any) -> int:
    """How many bits of the data one int64 product with ``matrix`` (p x v integers) can take.

    w + log2(columns x largest |entry|) < 63. Raises DataError where less than 4 bits are left; it
    depends on the public matrix alone, so call it before a charge.
    """
    largest = int(abs(matrix).max()) if 0 not in matrix.shape else 0
    width = 62 - (largest * int(matrix.shape[1])).bit_length()
    if width < 4:
        raise DataError("the strategy's integers are too large to measure exactly; plan with a larger tolerance")
    return width


def product(matrix: Any, vector: Sequence[int], bits: int) -> list[int]:
    """``matrix @ vector``: integer matrix (p x v, dense or sparse) times Python ints (v,), exactly.

    ``bits``: a public bound, |vector| < 2^bits. Two's complement words, the sign in the top one.
    Cost: (bits / w + 1) int64 products. Raises DataError as ``word_width``.
    """
    held: Any = matrix if sparse.issparse(matrix) else np.asarray(matrix)
    rows, columns = held.shape
    if rows == 0 or columns == 0:
        return [0] * rows
    width = word_width(held)
    count = bits // width + 1
    words = np.empty((columns, count), dtype=np.int64)
    mask = (1 << width) - 1
    rest = np.array(vector, dtype=object)
    for number in range(count - 1):
        words[:, number] = (rest & mask).astype(np.int64)
        rest = rest >> width
    # What is left is below 2^(bits - w (count - 1)) <= 2^w in size, by the bound on the data.
    words[:, count - 1] = rest.astype(np.int64)
    parts = held.astype(np.int64) @ words
    total = parts[:, count - 1].astype(object)
    for number in range(count - 2, -1, -1):
        total = (total << width) + parts[:, number].astype(object)
    return [int(value) for value in total]


def product_bits(matrix: Any, bits: int) -> int:
    """A bound on ``product``: |matrix @ vector| < 2^result for every |vector| < 2^bits."""
    largest = int(abs(matrix).max()) if 0 not in matrix.shape else 0
    return bits + (largest * int(matrix.shape[1])).bit_length()
