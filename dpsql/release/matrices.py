"""Integer matrices as text that JSON can hold, for the ledger: what was measured, beside what came out."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from scipy import sparse

MOST_ENTRIES = 2**23
"""Non-zero entries of one matrix that the ledger keeps; a measurement by a larger one is not combined with others."""


def fits(matrix: Any) -> bool:
    """Whether ``to_text`` takes the matrix."""
    return int(sparse.csr_array(matrix).nnz) <= MOST_ENTRIES


def to_text(matrix: Any) -> dict[str, Any]:
    """An integer matrix, dense or sparse, as JSON: row ends, columns and values as compressed 64-bit words."""
    held = sparse.csr_array(matrix)
    held.sort_indices()
    return {
        "shape": [int(size) for size in held.shape],
        "ends": _packed(held.indptr),
        "columns": _packed(held.indices),
        "values": _packed(held.data),
    }


def from_text(body: dict[str, Any]) -> Any:
    """The csr matrix (int64) of ``to_text``. ValueError, KeyError or TypeError where it is none."""
    ends, columns, values = (_words(body[name]) for name in ("ends", "columns", "values"))
    rows, width = (int(size) for size in body["shape"])
    if len(ends) != rows + 1 or len(columns) != len(values) or ends[0] != 0 or ends[-1] != len(values):
        raise ValueError("the parts of a matrix do not fit")
    if np.any(np.diff(ends) < 0) or (columns.size and not 0 <= columns.min() <= columns.max() < width):
        raise ValueError("a matrix has entries outside its shape")
    return sparse.csr_array((values, columns, ends), shape=(rows, width))


def _packed(words: Any) -> str:
    """Byte by byte of all words, first the lowest: what is left of small numbers are runs of zeros, packed at once."""
    planes = np.asarray(words, dtype="<i8").view(np.uint8).reshape(-1, 8).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode("ascii")


def _words(text: str) -> Any:
    try:
        found = zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error:
        found = None
    if found is None or len(found) % 8:
        raise ValueError("a matrix is damaged")
    planes = np.frombuffer(found, dtype=np.uint8).reshape(8, -1)
    return np.ascontiguousarray(planes.T).view("<i8").ravel().astype(np.int64)
