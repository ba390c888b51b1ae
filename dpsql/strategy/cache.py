"""Selected strategies kept on disk, so that the same batch plans at once the next time.

A strategy depends on public things only: the workload (the SQL text, the policy and the column types; never a row),
the kind of noise, the method, tolerance and effort asked for, and this package's own code. So the files may be read
by whoever may read a plan, and deleted at any time.

What is read back is not trusted. An entry holds integers (mixing, basis), the name of the method, the errors of the
methods that were compared, and the dual weights of the lower bound. From these and the caller's workload

- shapes, types and ranges are checked; no product that int64 might not hold is formed;
- the sensitivity is worked out from B and the contributions in exact integers, as at first. A changed B is another
  strategy with its own sensitivity: it may cost accuracy, never privacy, which holds for any integer matrix whose
  sensitivity is known. Noise is calibrated to that figure, and a measurement works it out once more;
- B has full rank and the workload lies in its row space: both exactly (modulo a prime), as at first;
- the error is computed from B, the lower bound from the dual weights (``dpsql.strategy.certificate``): weights that
  someone else chose prove a lower bound too, only a worse one. A certified method whose gap is then above the
  tolerance is selected again.

Two things are the file's word: which other methods were compared, with what (higher) errors, which is shown and never
acted on; and, for Laplace noise, that the search found nothing better, for which no certificate exists.

An entry that is damaged, foreign or fails a check is removed and the strategy selected anew; a folder that cannot be
read or written is as good as none. Files are written aside and renamed, so readers see whole entries only; the oldest
go when the folder outgrows its cap.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from io import BytesIO
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpsql.errors import DataError, Error
from dpsql.linalg import exact, modular
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import Basis, sketched_coordinates
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.forms import is_sparse
from dpsql.strategy.base import Strategy
from dpsql.strategy.certificate import Certificate, dual_value
from dpsql.strategy.frame import Frame
from dpsql.strategy.integer import full_rank
from dpsql.workload.matrix import MATRIX_CAP, Workload

log = logging.getLogger("dpsql")

VARIABLE = "DPSQL_CACHE"
FOLDER_CAP = 2**28  # bytes of all entries
ENTRY_CAP = 2**26  # bytes of one entry, and an eighth of what it may unpack to

_FORMAT = 1
_ENTRY = 2**52  # as in rounding: integers of B's factors stay below
_PRODUCT = 2e9  # multiplications from which equal columns are merged before norms are taken
_PLAIN = 512  # rank up to which the bound is evaluated in one piece
# What reading a file that is not ours, or computing with what it holds, can raise.
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, RuntimeError, ArithmeticError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, Error),
)


def default_folder() -> Path | None:
    """Where the planner keeps strategies: ``DPSQL_CACHE``, else ``dpsql/strategies`` in the user's cache folder.

    ``DPSQL_CACHE=off`` keeps none (None); the user's cache folder is ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() == "off":
        return None
    try:
        if named:
            return Path(named).expanduser()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (base if base.is_absolute() else Path.home() / ".cache") / "dpsql" / "strategies"
    except RuntimeError:  # no home folder is known
        return None


def key_of(W: Workload, noise: str, method: str, tolerance: float, effort: float) -> str | None:
    """SHA-256 of everything that a selection depends on; None for a workload whose form has no hash.

    The name of W does not count. Cost O(nnz).
    """
    digest = hashlib.sha256()
    digest.update(f"dpsql strategy {_FORMAT} {_code()} {noise} {method} ".encode())
    digest.update(struct.pack("<dd", tolerance, effort))
    try:
        _feed_workload(digest, W)
    except DataError:
        return None
    return digest.hexdigest()


_ROUNDING = 1e-9


def load(
    folder: Path, key: str, W: Workload, noise: str, method: str, tolerance: float, known: Sequence[str]
) -> Strategy | None:
    """The strategy kept under ``key``, checked as the module says, or None. ``known``: the names of methods."""
    path = folder / f"{key}.npz"
    try:
        if not path.is_file():
            return None
        with np.errstate(all="ignore"):
            return _admitted(_read(path, key), W, noise, method, tolerance, known)
    except _DAMAGED as error:
        log.debug("a kept strategy was ignored: %s", type(error).__name__)
    with suppress(OSError):
        path.unlink()
    return None


def store(folder: Path, key: str, S: Strategy, certificate: Certificate | None, cap: int = FOLDER_CAP) -> None:
    """Keep S under ``key``; nothing happens where the folder cannot be written or the entry is too large."""
    try:
        packed = _packed(key, S, certificate)
        if len(packed) > min(ENTRY_CAP, cap):
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=folder, prefix=key[:8], suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(packed)
            os.replace(name, folder / f"{key}.npz")
        finally:
            Path(name).unlink(missing_ok=True)
        _trim(folder, cap)
    except (OSError, ValueError, MemoryError) as error:
        log.debug("a strategy was not kept: %s", type(error).__name__)


def _trim(folder: Path, cap: int) -> None:
    """Remove the oldest entries, and parts that a killed process left, until ``cap`` bytes hold the rest."""
    found = []
    for path in (*folder.glob("*.npz"), *folder.glob("*.part")):
        with suppress(OSError):
            held = path.stat()
            found.append((held.st_mtime_ns, path.name, held.st_size, path))
    total = sum(size for _, _, size, _ in found)
    for _, _, size, path in sorted(found):
        if total <= cap:
            return
        with suppress(OSError):
            path.unlink()
            total -= size


@cache
def _code() -> str:
    """A digest of the code that selects: another optimiser finds other strategies."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parent.parent
    for room in ("linalg", "strategy"):
        for path in sorted((package / room).glob("*.py")):
            with suppress(OSError):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _feed(digest: Any, tag: str, *arrays: Any) -> None:
    for array in arrays:
        values = np.ascontiguousarray(array)
        digest.update(f"{tag} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.tobytes())


def _feed_workload(digest: Any, W: Workload) -> None:
    _feed_matrix(digest, "span", W.span)
    _feed_inner(digest, W.inner)
    if W.contributions is not None:
        _feed_matrix(digest, "contributions", W.contributions)
    if W.groups is not None:
        _feed(digest, "groups", W.groups.astype(np.int64))
    if W.exact is not None:
        _feed(digest, "exact", W.exact)
    digest.update(f"factors {len(W.factors)} ".encode())
    for factor in W.factors:
        _feed_workload(digest, factor)


def _feed_matrix(digest: Any, tag: str, matrix: Any) -> None:
    csr = sparse.csr_array(matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    digest.update(f"{csr.shape} ".encode())
    _feed(digest, tag, *(part.astype(np.int64, copy=False) for part in (csr.indptr, csr.indices, csr.data)))


def _feed_inner(digest: Any, inner: Any) -> None:
    """By name and fields: F is a value, whose fields are numbers, arrays and other F."""
    if type(inner).__module__ != algebra.__name__:
        raise DataError("strategy: this workload has no hash")
    digest.update(f"{type(inner).__name__}( ".encode())
    for field in fields(inner):
        value = getattr(inner, field.name)
        if isinstance(value, tuple) and value and not isinstance(value[0], int | float):
            for part in value:
                _feed_inner(digest, part)
        else:
            _feed(digest, field.name, np.asarray(value, dtype=np.float64))
    digest.update(b") ")


def _packed(key: str, S: Strategy, certificate: Certificate | None) -> bytes:
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
        "format": _FORMAT,
        "key": key,
        "method": S.method,
        "considered": [[name, float(error)] for name, error in S.considered],
        "expected": float(S.expected),
        "lower": None if S.lower_bound is None else float(S.lower_bound),
        "certificates": len(parts),
        "product": certificate is not None and bool(certificate.factors),
    }
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    out = BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def _pack_matrix(arrays: dict[str, Any], name: str, matrix: Any) -> None:
    if is_sparse(matrix):
        held = sparse.csr_array(matrix).copy()
        held.sum_duplicates()
        arrays[f"{name}_shape"] = np.asarray(held.shape, dtype=np.int64)
        for part in ("indptr", "indices", "data"):
            arrays[f"{name}_{part}"] = _narrow(getattr(held, part))
    else:
        arrays[name] = _narrow(matrix)


def _narrow(values: Any) -> Any:
    """The same integers in the narrowest type that holds them."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.int64)


def _read(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(head, arrays) of a file; ValueError and its like where it is not an entry of this key."""
    if path.stat().st_size > ENTRY_CAP:
        raise ValueError("too large")
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > 8 * ENTRY_CAP:
            raise ValueError("unpacks to too much")
        for member in members:
            content = archive.read(member)
            _check_header(content)
            name = member.filename.removesuffix(".npy")
            arrays[name] = np.lib.format.read_array(BytesIO(content), allow_pickle=False)
    head = json.loads(arrays["head"].astype(np.uint8).tobytes())
    if not isinstance(head, dict) or head.get("format") != _FORMAT or head.get("key") != key:
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


def _integers(values: Any) -> NDArray[np.int64]:
    if values.dtype.kind != "i":
        raise ValueError("not integers")
    out = np.ascontiguousarray(values, dtype=np.int64)
    if exact.max_abs(out) >= _ENTRY:
        raise ValueError("integers out of range")
    return out


def _unpack_matrix(arrays: dict[str, Any], name: str) -> Any:
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


def _unpack_certificate(head: dict[str, Any], arrays: dict[str, Any]) -> Certificate:
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


def _admitted(
    held: tuple[dict[str, Any], dict[str, Any]],
    W: Workload,
    noise: str,
    method: str,
    tolerance: float,
    known: Sequence[str],
) -> Strategy:
    """The Strategy of an entry, with every figure worked out again. Raises one of ``_DAMAGED`` where one is wrong."""
    head, arrays = held
    mixing, basis = _unpack_matrix(arrays, "mixing"), _unpack_matrix(arrays, "basis")
    if not is_sparse(basis) or mixing.shape[1] != basis.shape[0] or basis.shape[1] != W.shape[1]:
        raise ValueError("shapes do not fit")
    chosen = head["method"]
    considered = tuple((str(name), float(error)) for name, error in head["considered"])
    if chosen not in known or method not in ("auto", chosen) or not {name for name, _ in considered} <= set(known):
        raise ValueError("an unknown method")
    if not _fits(mixing, basis, W.contributions):
        raise ValueError("integers out of range")
    moved = sparse.csc_array(basis if W.contributions is None else basis @ W.contributions)
    columns = moved
    if mixing.shape[0] * mixing.shape[1] * moved.shape[1] > _PRODUCT:
        columns = moved[:, distinct_columns(moved, up_to_sign=True).keep]
    l1, l2_squared = exact.column_norms(mixing, columns)
    sensitivity = sqrt(l2_squared) if noise == "gaussian" else float(l1)
    if not _full_rank(mixing):
        raise ValueError("rank is lost")
    frame, coords = _framed(mixing, basis, W)
    error = float(sensitivity**2 * frame.trace(W))
    own = dict(considered)[chosen]
    if not (0 < error <= (1.0 + tolerance) * own and own == min(value for _, value in considered)):
        raise ValueError("not the best of what was compared")
    lower = None
    if noise == "gaussian":
        known_rows = Basis(basis, coords) if basis.shape[0] <= _PLAIN and frame.rows is basis else None
        lower = dual_value(W, _unpack_certificate(head, arrays), known_rows, moved)
        if not 0 < lower <= error * (1.0 + 1e-9):
            raise ValueError("a bound above the error")
        if method == "auto" and error > (1.0 + tolerance) * (1.0 + 1e-6) * lower:
            raise ValueError("not certified")
    # The figures of the first selection where they are right but for rounding, and no frame: what is worked out from
    # them is then the same, to the last digit, whether a strategy was kept or not.
    error = _same(error, head["expected"])
    lower = None if lower is None else _same(lower, head["lower"])
    return Strategy(chosen, noise, mixing, basis, W.contributions, l1, l2_squared, error, lower, considered, W)


def _same(found: float, kept: Any) -> float:
    """``kept`` where it is ``found`` but for rounding."""
    return kept if isinstance(kept, float) and abs(kept - found) <= _ROUNDING * found else found


def _framed(mixing: Any, basis: Any, W: Workload) -> tuple[Frame, Any]:
    """(least squares with B, coordinates of W); ValueError where W is not in the row space of B.

    The exact test comes first: what it proves need not be found out again in floats.
    """
    apart = int(np.bincount(basis.indices, minlength=1).max()) <= 1
    if apart or W.exact is not None:
        # Rows that share no column are independent, and coordinates in them are read off entry by entry. Rows of a
        # workload in floats are integers to 2^-36 only, and so is the test.
        frame = Frame(mixing, basis)
        return frame, frame.coordinates(W)
    independent = modular.spans(W.span, basis)
    frame = Frame(mixing, basis, independent)
    if not independent and not modular.spans(W.span, frame.rows):
        raise ValueError("another row space")
    if frame.rows.shape[0] <= _PLAIN:
        frame.hold(W.span, sketched_coordinates(W.span, frame.rows))
    return frame, frame.coordinates(W)


def _fits(mixing: Any, basis: Any, contributions: Any) -> bool:
    """Do basis @ contributions and the sums of its columns fit int64? (Products with ``mixing`` watch themselves.)"""
    reach = 1
    if contributions is not None:
        reach = exact.max_abs(contributions) * int(np.bincount(contributions.indices, minlength=1).max())
    return exact.max_abs(basis) * reach * int(mixing.shape[1]) < 2**62


def _full_rank(mixing: Any) -> bool:
    """Has the integer ``mixing`` (p x u) full column rank? Its connected parts are proved one by one."""
    held = sparse.csc_array(mixing)
    held.eliminate_zeros()
    p = held.shape[0]
    graph: Any = sparse.block_array([[None, held], [held.T, None]], format="csr")
    number, labels = connected_components(graph, directed=False)
    if number == 1:
        return full_rank(np.asarray(held.toarray()))
    left, right = labels[:p], labels[p:]
    tall, wide = np.bincount(left, minlength=number), np.bincount(right, minlength=number)
    if bool((tall < wide).any()):
        return False
    for part in np.flatnonzero(wide > 1):  # a part of one column is not zero: it has a row
        block = held[:, np.flatnonzero(right == part)].toarray()[np.flatnonzero(left == part)]
        if not full_rank(np.asarray(block)):
            return False
    return True
