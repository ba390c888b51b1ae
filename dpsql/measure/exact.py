"""Exact integer products of any size, without a check that depends on data.

int64 products wrap silently. Here the data are split into words so short that every partial
sum provably fits, by a bound on the public matrix alone; the words are put together again as
Python integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.errors import DataError

# Data up to 2^256: counts and sums of 64-bit steps over any table, times the common scale.
_DATA_BITS = 256


def product(matrix: Any, vector: Sequence[int]) -> list[int]:
    """``matrix @ vector``: integer matrix (p x v, dense or sparse) times Python ints (v,), exactly.

    Words of w bits with w + log2(largest row sum of |matrix|) < 63, two's complement on top.
    Cost: (256 / w) int64 products. Raises DataError where the matrix alone leaves less than 4 bits.
    """
    held: Any = matrix if sparse.issparse(matrix) else np.asarray(matrix)
    rows, columns = held.shape
    if rows == 0 or columns == 0:
        return [0] * rows
    largest = int(abs(held).max())
    width = 62 - (largest * columns).bit_length()
    if width < 4:
        raise DataError("the strategy's integers are too large to measure exactly; plan with a larger tolerance")
    count = -(-_DATA_BITS // width)
    words = np.empty((columns, count), dtype=np.int64)
    mask = (1 << width) - 1
    rest = np.array(vector, dtype=object)
    for number in range(count - 1):
        words[:, number] = (rest & mask).astype(np.int64)
        rest = rest >> width
    # The top word keeps the sign; within 2^256 it is short.
    words[:, count - 1] = rest.astype(np.int64)
    parts = held.astype(np.int64) @ words
    total = parts[:, count - 1].astype(object)
    for number in range(count - 2, -1, -1):
        total = (total << width) + parts[:, number].astype(object)
    return [int(value) for value in total]
