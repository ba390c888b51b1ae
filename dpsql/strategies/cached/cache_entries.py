"""How a kept strategy stands in a file: integers in an archive of arrays, which is read without trust.

Types, shapes and sizes are checked here, and nothing large is allotted on a file's word; what the integers are worth is
for ``dpsql.strategies.cached.cache``.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Array, Json, Matrix
from dpsql.common.pattern_block import encoded
from dpsql.linalg import exact
from dpsql.linalg.forms import MATRIX_CAP, is_sparse
from dpsql.strategies.core.certificate import Certificate
from dpsql.strategies.core.matrix_strategy import MatrixStrategy

FORMAT = 2


def packed(key: str, S: MatrixStrategy, certificate: Certificate | None) -> bytes:
    arrays: dict[str, Any] = {}
    _pack_matrix(arrays, "mixing", S.mixing)
    _pack_matrix(arrays, "basis", S.basis)
    parts: tuple[Certificate, ...] = ()
    if certificate is not None:
        parts = certificate.factors or (certificate,)
    for number, part in enumerate(parts):
        arrays[f"places{number}"] = _narrow(part.places)
        arrays[f"weights{number}"] = part.weights
    head = {
        "format": FORMAT,
        "key": key,
        "method": S.method,
        "considered": [[name, float(error)] for name, error in S.considered],
        "expected": float(S.expected),
        "lower": None if S.lower_bound is None else float(S.lower_bound),
        "blocks": [encoded(block) for block in S.blocks],
        "certificates": len(parts),
        "product": certificate is not None and bool(certificate.factors),
    }
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    out = BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def _pack_matrix(arrays: dict[str, Array], name: str, matrix: Matrix) -> None:
    if is_sparse(matrix):
        held = sparse.csr_array(matrix).copy()
        held.sum_duplicates()
        arrays[f"{name}_shape"] = np.asarray(held.shape, dtype=np.int64)
        for part in ("indptr", "indices", "data"):
            arrays[f"{name}_{part}"] = _narrow(getattr(held, part))
    else:
        arrays[name] = _narrow(matrix)


def _narrow(values: Array) -> Array:
    """The same integers in the narrowest type that holds them."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.int64)


def read(path: Path, key: str, cap: int) -> tuple[Json, dict[str, Array]]:
    """(head, arrays) of a file of at most ``cap`` bytes; ValueError and its like where it is no entry of this key."""
    if path.stat().st_size > cap:
        raise ValueError("too large")
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > 8 * cap:
            raise ValueError("unpacks to too much")
        for member in members:
            content = archive.read(member)
            _check_header(content)
            name = member.filename.removesuffix(".npy")
            arrays[name] = np.lib.format.read_array(BytesIO(content), allow_pickle=False)
    head = json.loads(arrays["head"].astype(np.uint8).tobytes())
    if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("key") != key:
        raise ValueError("another entry")
    return head, arrays


def _check_header(content: bytes) -> None:
    """ValueError unless an array's header asks for the bytes that are there, so that nothing large is allotted."""
    stream = BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another format")
    shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    count = 1
    for size in shape:
        count *= int(size)
    if kind.kind not in "iuf" or count * kind.itemsize != len(content) - stream.tell():
        raise ValueError("a header that does not fit")


def _integers(values: Array) -> NDArray[np.int64]:
    if values.dtype.kind != "i":
        raise ValueError("not integers")
    out = np.ascontiguousarray(values, dtype=np.int64)
    if exact.max_abs(out) >= 2**52:  # as in rounding: integers of B's factors stay below
        raise ValueError("integers out of range")
    return out


def unpack_matrix(arrays: Mapping[str, Array], name: str) -> Matrix:
    if name in arrays:
        found = _integers(arrays[name])
        if found.ndim != 2 or not 0 < found.size <= MATRIX_CAP:
            raise ValueError("not a matrix")
        return found
    p, n = (int(size) for size in _integers(arrays[f"{name}_shape"]))
    data, indices, indptr = (_integers(arrays[f"{name}_{part}"]) for part in ("data", "indices", "indptr"))
    if not (data.ndim == indices.ndim == indptr.ndim == 1) or p < 1 or n < 1:
        raise ValueError("not a matrix")
    ordered = indptr.size == p + 1 and indptr[0] == 0 and bool((np.diff(indptr) >= 0).all())
    if not ordered or indptr[-1] != data.size or data.size != indices.size:
        raise ValueError("not a sparse matrix")
    if indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < n):
        raise ValueError("not a sparse matrix")
    out = sparse.csr_array((data, indices, indptr), shape=(p, n))
    if not out.has_canonical_format:
        raise ValueError("not a sparse matrix in canonical form")
    return out


def unpack_certificate(head: Json, arrays: Mapping[str, Array]) -> Certificate:
    parts = []
    for number in range(int(head["certificates"])):
        weights = arrays[f"weights{number}"]
        if weights.dtype != np.float64:
            raise ValueError("weights are floats")
        parts.append(Certificate(_integers(arrays[f"places{number}"]), weights))
    if not head["product"]:
        (only,) = parts
        return only
    if not parts:
        raise ValueError("a product without factors")
    return Certificate(np.zeros(0, dtype=np.int64), np.zeros(0), tuple(parts))
