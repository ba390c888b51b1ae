"""Selected strategies kept on disk, so that the same batch plans at once the next time.

A strategy depends on public things only: the workload (the SQL text, the policy and the column types; never a row),
the kind of noise, the method, tolerance and effort asked for, and this package's own code. So the files may be read
by whoever may read a plan, and deleted at any time.

What is read back is not trusted. An entry holds integers (mixing, basis), the name of the method, the errors of the
methods that were compared, and the dual weights of the lower bound. From these and the caller's workload

- shapes, types and ranges are checked; no product that int64 might not hold is formed;
- the sensitivity is worked out from B, its blocks and the contributions in exact integers, as at first. A changed B is
  another strategy with its own sensitivity: it may cost accuracy, never privacy, which holds for any integer matrix
  whose sensitivity is known. Noise is calibrated to that figure, and a measurement works it out once more;
- B has full rank and the workload lies in its row space: both exactly (modulo a prime), as at first;
- the error is computed from B, the lower bound from the dual weights (``dpsql.strategies.core.certificate``): weights
  that someone else chose prove a lower bound too, only a worse one. A certified method whose gap is then above the
  tolerance is selected again.

Two things are the file's word: which other methods were compared, with what (higher) errors, which is shown and never
acted on; and, for Laplace noise, that the search found nothing better, for which no certificate exists.

An entry that is damaged, foreign or fails a check is removed and the strategy selected anew; a folder that cannot be
read or written is as good as none. Files are written aside and renamed, so readers see whole entries only; the oldest
go when the folder outgrows its cap.

What a kept strategy is worth: every figure worked out again, from its integers and the caller's workload.
"""

from __future__ import annotations

import hashlib
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
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Json, Matrix
from dpsql.common.numerics import ROUNDING
from dpsql.common.pattern_block import decoded
from dpsql.errors import DataError, Error
from dpsql.linalg import exact, modular, norms
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import Basis, sketched_coordinates
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.linked import linked_by
from dpsql.strategies.cached.cache_entries import FORMAT, packed, read, unpack_certificate, unpack_matrix
from dpsql.strategies.core.blocks import evened, standing
from dpsql.strategies.core.certificate import Certificate, dual_value
from dpsql.strategies.core.frame import LARGE_PRODUCT, Frame
from dpsql.strategies.core.integer import full_rank
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.workloads.families.contributions import Contributions
from dpsql.workloads.families.matrix import Workload

log = logging.getLogger("dpsql")

VARIABLE = "DPSQL_CACHE"
FOLDER_CAP = 2**28  # bytes of all entries
ENTRY_CAP = 2**26  # bytes of one entry, and an eighth of what it may unpack to

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
    digest.update(f"dpsql strategy {FORMAT} {_code()} {noise} {method} ".encode())
    digest.update(struct.pack("<dd", tolerance, effort))
    try:
        _feed_workload(digest, W)
    except DataError:
        return None
    return digest.hexdigest()


def load(
    folder: Path, key: str, W: Workload, noise: str, method: str, tolerance: float, methods: Sequence[str]
) -> MatrixStrategy | None:
    """The strategy kept under ``key``, checked as the module says, or None. ``methods``: their names."""
    path = folder / f"{key}.npz"
    try:
        if not path.is_file():
            return None
        with np.errstate(all="ignore"):
            return admitted(read(path, key, ENTRY_CAP), W, noise, method, tolerance, methods)
    except _DAMAGED as error:
        log.debug("a kept strategy was ignored: %s", type(error).__name__)
    with suppress(OSError):
        path.unlink()
    return None


def store(folder: Path, key: str, S: MatrixStrategy, certificate: Certificate | None, cap: int = FOLDER_CAP) -> None:
    """Keep S under ``key``; nothing happens where the folder cannot be written or the entry is too large."""
    try:
        content = packed(key, S, certificate)
        if len(content) > min(ENTRY_CAP, cap):
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=folder, prefix=key[:8], suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
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


def _selecting() -> list[Path]:
    """The modules that select: another optimiser finds other strategies."""
    package = Path(__file__).resolve().parents[2]
    rooms = ("linalg", "strategies", "extensions/papers")
    return [path for room in rooms for path in sorted((package / room).rglob("*.py"))]


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for path in _selecting():
        with suppress(OSError):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, tag: str, *arrays: Array) -> None:
    for array in arrays:
        values = np.ascontiguousarray(array)
        digest.update(f"{tag} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.tobytes())


def _feed_workload(digest: hashlib._Hash, W: Workload) -> None:
    _feed_matrix(digest, "span", W.span)
    _feed_inner(digest, W.inner)
    if W.contributions is not None:
        _feed_matrix(digest, "contributions", W.contributions)
    if W.groups is not None:
        _feed(digest, "groups", W.groups.astype(np.int64))
    if W.exact is not None:
        _feed(digest, "exact", W.exact)
    if W.units is not None:
        _feed_units(digest, W.units)
    digest.update(f"factors {len(W.factors)} ".encode())
    for factor in W.factors:
        _feed_workload(digest, factor)


def _feed_units(digest: hashlib._Hash, C: Contributions) -> None:
    digest.update(f"units {C.size} {[len(parts) for parts in C.units]} {sorted(C.tied)} ".encode())
    for part in (part for parts in C.units for part in parts):
        digest.update(f"part {part.times} {part.most} ".encode())
        _feed_matrix(digest, "corners", part.corners)
        _feed(digest, "label", part.labels.astype(np.int64))
    for kind, patterns in sorted(C.patterns.items()):
        for one in patterns:
            digest.update(f"patterns {kind} {one.most} {one.parts} ".encode())
            _feed(digest, "cells", one.cells.astype(np.int64))
            for name, told in (("rows", one.rows), ("classes", one.classes)):
                _feed(digest, name, np.zeros(0, np.int64) if told is None else told.astype(np.int64))
    for _, tied in sorted(C.tied.items()):
        digest.update(f"tied {tied.most} {tied.limit} ".encode())
        _feed_matrix(digest, "first", tied.first)
        _feed_matrix(digest, "more", tied.more)
        _feed(digest, "label", tied.label.astype(np.int64))


def _feed_matrix(digest: hashlib._Hash, tag: str, matrix: Matrix) -> None:
    csr = sparse.csr_array(matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    digest.update(f"{csr.shape} ".encode())
    _feed(digest, tag, *(part.astype(np.int64, copy=False) for part in (csr.indptr, csr.indices, csr.data)))


def _feed_inner(digest: hashlib._Hash, inner: Any) -> None:
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


_PLAIN = 512  # rank up to which the bound is evaluated in one piece


def admitted(
    entry: tuple[Json, dict[str, Array]],
    W: Workload,
    noise: str,
    method: str,
    tolerance: float,
    methods: Sequence[str],
) -> MatrixStrategy:
    """The Strategy of an entry, with every figure worked out again. ValueError and its like where one is wrong."""
    head, arrays = entry
    mixing, basis = unpack_matrix(arrays, "mixing"), unpack_matrix(arrays, "basis")
    if not isinstance(basis, sparse.csr_array) or mixing.shape[1] != basis.shape[0] or basis.shape[1] != W.shape[1]:
        raise ValueError("shapes do not fit")
    chosen = head["method"]
    considered = tuple((str(name), float(error)) for name, error in head["considered"])
    if chosen not in methods or method not in ("auto", chosen) or not {name for name, _ in considered} <= set(methods):
        raise ValueError("an unknown method")
    if not _fits(mixing, basis, W.contributions):
        raise ValueError("integers out of range")
    moved = sparse.csc_array(W.moved(basis))
    columns = moved
    if mixing.shape[0] * mixing.shape[1] * moved.shape[1] > LARGE_PRODUCT:
        columns = moved[:, distinct_columns(moved, up_to_sign=True).keep]
    blocks = tuple(decoded(block) for block in head["blocks"])
    if blocks and (any(m < 1 for m in blocks) or sum(blocks) != mixing.shape[0]):
        raise ValueError("not the blocks of these rows")
    if blocks and noise == "gaussian":
        raise ValueError("blocks are for pure noise")
    l1, l2_squared = norms.column_norms(mixing, columns)
    l1 = norms.block_norm(mixing, columns, blocks) if blocks else l1
    sensitivity = sqrt(l2_squared) if noise == "gaussian" else float(l1)
    if not _full_rank(mixing):
        raise ValueError("rank is lost")
    frame, coords = _framed(evened(mixing, blocks), basis, W)
    error = float(sensitivity**2 * frame.trace(W))
    own, first = dict(considered)[chosen], min(standing(*one) for one in considered)
    if not (0 < error <= (1.0 + tolerance) * own and standing(chosen, own) == first):
        raise ValueError("not the best of what was compared")
    lower = None
    if noise == "gaussian":
        known_rows = Basis(basis, coords) if basis.shape[0] <= _PLAIN and frame.rows is basis else None
        lower = dual_value(W, unpack_certificate(head, arrays), known_rows, moved)
        if not 0 < lower <= error * (1.0 + 1e-9):
            raise ValueError("a bound above the error")
        if method == "auto" and error > (1.0 + tolerance) * (1.0 + 1e-6) * lower:
            raise ValueError("not certified")
    # The figures of the first selection where they are right but for rounding, and no frame: what is worked out from
    # them is then the same, to the last digit, whether a strategy was kept or not.
    error = _same(error, head["expected"])
    lower = None if lower is None else _same(lower, head["lower"])
    figures = (l1, l2_squared, error, lower, considered, W)
    return MatrixStrategy(chosen, noise, mixing, basis, W.contributions, *figures, blocks=blocks)


def _same(computed: float, stored: object) -> float:
    """``stored`` where it is ``computed`` but for rounding."""
    return stored if isinstance(stored, float) and abs(stored - computed) <= ROUNDING * computed else computed


def _framed(mixing: Matrix, basis: Csr, W: Workload) -> tuple[Frame, Matrix]:
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


def _fits(mixing: Matrix, basis: Csr, contributions: Csr | None) -> bool:
    """Do basis @ contributions and the sums of its columns fit int64? (Products with ``mixing`` watch themselves.)"""
    reach = 1
    if contributions is not None:
        reach = exact.max_abs(contributions) * int(np.bincount(contributions.indices, minlength=1).max())
    return exact.max_abs(basis) * reach * int(mixing.shape[1]) < 2**62


def _full_rank(mixing: Matrix) -> bool:
    """Has the integer ``mixing`` (p x u) full column rank? Its connected parts are proved, equal ones once."""
    entries = sparse.csc_array(mixing)
    entries.eliminate_zeros()
    number, left, right = linked_by(entries)
    if number == 1:
        return full_rank(np.asarray(entries.toarray()))
    tall, wide = np.bincount(left, minlength=number), np.bincount(right, minlength=number)
    if bool((tall < wide).any()):
        return False
    rows, columns = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    places = np.empty_like(rows)
    places[rows] = np.arange(rows.size)
    ordered = sparse.csc_array(entries[:, columns])
    indices = places[ordered.indices] - np.repeat((np.cumsum(tall) - tall)[right[columns]], np.diff(ordered.indptr))
    proved: set[tuple[bytes, ...]] = set()
    firsts = np.cumsum(wide) - wide
    for part in np.flatnonzero(wide > 1).tolist():  # a part of one column is not zero: it has a row
        starts = ordered.indptr[firsts[part] : firsts[part] + wide[part] + 1]
        inside = slice(starts[0], starts[-1])
        key = (starts - starts[0]).tobytes(), indices[inside].tobytes(), ordered.data[inside].tobytes()
        if key not in proved:
            shape = int(tall[part]), int(wide[part])
            block = sparse.csc_array((ordered.data[inside], indices[inside], starts - starts[0]), shape=shape)
            if not full_rank(np.asarray(block.toarray())):
                return False
            proved.add(key)
    return True
