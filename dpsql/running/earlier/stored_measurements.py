"""What the ledger keeps of a measurement beside its outcome, so that later questions can rest on it."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql.common.arrays import Json, Matrix
from dpsql.errors import IntegrityError
from dpsql.workloads.cells.integers import Factored, Integers
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.units import retention_order

_SOURCE = re.compile(r'^source = "[^\n]*"\n', re.MULTILINE)
CELLS = 3
"""How batches become cells, and how integers are written. Raised where one text comes to mean other cells, or other
integers: what was kept before is then left alone. Since 3 words are as narrow as they can be, in the hash of W, too.
"""
_SAME_CELLS = (2, CELLS)
_WIDTHS = ("<i1", "<i2", "<i4", "<i8")
MOST_ENTRIES = 2**23
"""Non-zero entries of one matrix that the ledger keeps; a measurement by a larger one is not combined with others."""


def keep(batch: Batch, integers: Integers, policy: str) -> Json | None:
    """What a payload holds of a measurement y = B (L x) + z of a compiled batch; None where it cannot be combined.

    The batch's text and the types of its tables are kept elsewhere (release and charge); x follows from them, and W,
    whose hash is here, shows that it does. Batches of many histograms, of boxes and of more than
    ``MOST_ENTRIES`` integers are not combined. Older versions wrote "beside", too: the
    releases whose batches made the measured cells finer. "first": which rows of larger units were kept
    (``workload.compile.units.retention_order``); older versions wrote none.
    """
    compiled = batch.matrix
    if compiled is None or not isinstance(integers, Factored):
        return None
    if any(layout.boxes is not None or layout.source.distinct for layout in compiled.layouts):
        return None
    mixing, basis = (sparse.csr_array(matrix) for matrix in (integers.left, integers.basis))
    if not (fits(mixing) and fits(basis)):
        return None
    return {
        "cells": CELLS,
        "policy": meaning_of(policy),
        "workload": workload_hash(compiled.rows, compiled.scale),
        "first": retention_order(compiled.layouts),
        "mixing": to_text(mixing),
        "basis": to_text(basis),
    }


def integers_of(stored: Json) -> Factored:
    """The integers of ``keep``. Raises IntegrityError where they are damaged."""
    try:
        found = Factored(from_text(stored["mixing"]), from_text(stored["basis"]))
        if found.mixing.shape[1] == found.basis.shape[0]:
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise IntegrityError("the integers of an earlier release are damaged; restore the ledger from a good copy")


def meaning_of(policy: str) -> str:
    """A mark of all that a policy's text says but for its data set and budget: equal marks, equal meaning of a
    batch.
    """
    return hashlib.sha256(declarations(policy).encode()).hexdigest()


def declarations(policy: str) -> str:
    """The part of a policy's text that gives words their meaning: tables, columns, views.

    Where a table lies is no part of it: that its rows are those of before is what the declared data set says.
    """
    _, _, rest = policy.partition("\n[budget]\n")  # a line of its own: a data version may have the word in it
    rest = rest[rest.index("\n[") :] if "\n[" in rest else ""
    # The text is written by ``Policy.to_toml``: a column called source has braces, and no text spans lines.
    return _SOURCE.sub("", rest)


def same_cells(stored: Json) -> bool:
    """Whether a batch becomes the same cells by now as it did when ``stored`` was written."""
    return stored.get("cells") in _SAME_CELLS


def is_of(stored: Json, rows: Matrix, scale: np.ndarray) -> bool:
    """Whether ``stored`` is of W: its integer rows and their scales."""
    return bool(workload_hash(rows, scale, narrow=stored.get("cells") == CELLS) == stored.get("workload"))


def workload_hash(rows: Matrix, scale: np.ndarray, *, narrow: bool = True) -> str:
    """SHA-256 of W: its integer rows and their scales; ``narrow`` but for what versions before ``CELLS`` 3 kept."""
    rows = sparse.csr_array(rows)
    rows.sort_indices()
    digest = hashlib.sha256(repr(rows.shape).encode())
    for part in (rows.indptr, rows.indices, rows.data):
        words = _narrow(part) if narrow else np.asarray(part, dtype="<i8")
        if narrow:
            digest.update(words.dtype.str.encode())
        digest.update(np.ascontiguousarray(words).data)
    digest.update(np.asarray(scale, dtype="<f8").tobytes())
    return digest.hexdigest()


def fits(matrix: Matrix) -> bool:
    """Whether ``to_text`` takes the matrix."""
    return int(sparse.csr_array(matrix).nnz) <= MOST_ENTRIES


def to_text(matrix: Matrix) -> Json:
    """An integer matrix, dense or sparse, as JSON: row ends, columns and values as compressed words."""
    held = sparse.csr_array(matrix)
    held.sort_indices()
    return {
        "shape": [int(size) for size in held.shape],
        "ends": _packed(held.indptr),
        "columns": _packed(held.indices),
        "values": _packed(held.data),
    }


def from_text(body: Json) -> sparse.csr_array:
    """The csr matrix (int64) of ``to_text``. ValueError, KeyError or TypeError where it is none."""
    rows, width = (int(size) for size in body["shape"])
    ends = _words(body["ends"], rows + 1)
    columns, values = (_words(body[name], int(ends[-1])) for name in ("columns", "values"))
    if ends[0] != 0:
        raise ValueError("the parts of a matrix do not fit")
    if np.any(np.diff(ends) < 0) or (columns.size and not 0 <= columns.min() <= columns.max() < width):
        raise ValueError("a matrix has entries outside its shape")
    return sparse.csr_array((values, columns, ends), shape=(rows, width))


def _narrow(words: np.ndarray) -> np.ndarray:
    """The integers in the fewest bytes that hold each of them."""
    low, high = int(words.min(initial=0)), int(words.max(initial=0))
    kind = next(kind for kind in _WIDTHS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return words.astype(kind, copy=False)


def _packed(words: np.ndarray) -> str:
    """Byte by byte of all words, first the lowest: what is left of small numbers are runs of zeros, packed at once."""
    held = np.ascontiguousarray(_narrow(words))
    planes = held.view(np.uint8).reshape(-1, held.itemsize).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode("ascii")


def _words(text: str, count: int) -> npt.NDArray[np.int64]:
    """So many words of ``_packed``; versions before ``CELLS`` 3 wrote each of 8 bytes."""
    try:
        found = zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error:
        found = None
    width = 1 if count == 0 else len(found or b"") // count
    if found is None or len(found) != width * count or f"<i{width}" not in _WIDTHS:
        raise ValueError("a matrix is damaged")
    planes = np.frombuffer(found, dtype=np.uint8).reshape(width, -1)
    return np.ascontiguousarray(planes.T).view(f"<i{width}").ravel().astype(np.int64)
