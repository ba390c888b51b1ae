"""The types of arrays, matrices and parsed JSON that annotations name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Objects: TypeAlias = NDArray[np.object_]
Array: TypeAlias = NDArray[Any]  # of integers, floats or Python integers, as its function says
Csr: TypeAlias = "sparse.csr_array[Any]"
Sparse: TypeAlias = "Csr | sparse.csc_array[Any]"
Matrix: TypeAlias = "Array | Sparse"
Json: TypeAlias = Mapping[str, Any]  # an object of JSON as it was read; who reads it checks what it holds
Row: TypeAlias = tuple[Any, ...]  # of a result: the DuckDB types of its columns say what it holds
Values: TypeAlias = Sequence[Any]  # of one column of a result
