"""What a kept strategy is worth: every figure worked out again, from its integers and the caller's workload."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpsql.arrays import Array, Csr, Json, Matrix
from dpsql.linalg import exact, modular
from dpsql.linalg.basis import Basis, sketched_coordinates
from dpsql.linalg.columns import distinct_columns
from dpsql.strategy.cached.cache_entries import unpack_certificate, unpack_matrix
from dpsql.strategy.core.certificate import dual_value
from dpsql.strategy.core.frame import Frame
from dpsql.strategy.core.integer import full_rank
from dpsql.strategy.core.matrix_strategy import MatrixStrategy
from dpsql.workload.families.matrix import Workload

_PRODUCT = 2e9  # multiplications from which equal columns are merged before norms are taken
_PLAIN = 512  # rank up to which the bound is evaluated in one piece
_ROUNDING = 1e-9


def admitted(
    held: tuple[Json, dict[str, Array]],
    W: Workload,
    noise: str,
    method: str,
    tolerance: float,
    known: Sequence[str],
) -> MatrixStrategy:
    """The Strategy of an entry, with every figure worked out again. ValueError and its like where one is wrong."""
    head, arrays = held
    mixing, basis = unpack_matrix(arrays, "mixing"), unpack_matrix(arrays, "basis")
    if not isinstance(basis, sparse.csr_array) or mixing.shape[1] != basis.shape[0] or basis.shape[1] != W.shape[1]:
        raise ValueError("shapes do not fit")
    chosen = head["method"]
    considered = tuple((str(name), float(error)) for name, error in head["considered"])
    if chosen not in known or method not in ("auto", chosen) or not {name for name, _ in considered} <= set(known):
        raise ValueError("an unknown method")
    if not _fits(mixing, basis, W.contributions):
        raise ValueError("integers out of range")
    moved = sparse.csc_array(W.moved(basis))
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
        lower = dual_value(W, unpack_certificate(head, arrays), known_rows, moved)
        if not 0 < lower <= error * (1.0 + 1e-9):
            raise ValueError("a bound above the error")
        if method == "auto" and error > (1.0 + tolerance) * (1.0 + 1e-6) * lower:
            raise ValueError("not certified")
    # The figures of the first selection where they are right but for rounding, and no frame: what is worked out from
    # them is then the same, to the last digit, whether a strategy was kept or not.
    error = _same(error, head["expected"])
    lower = None if lower is None else _same(lower, head["lower"])
    return MatrixStrategy(chosen, noise, mixing, basis, W.contributions, l1, l2_squared, error, lower, considered, W)


def _same(found: float, kept: object) -> float:
    """``kept`` where it is ``found`` but for rounding."""
    return kept if isinstance(kept, float) and abs(kept - found) <= _ROUNDING * found else found


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
    """Has the integer ``mixing`` (p x u) full column rank? Its connected parts are proved one by one."""
    held = sparse.csc_array(mixing)
    held.eliminate_zeros()
    p = held.shape[0]
    graph: Csr = sparse.block_array([[None, held], [held.T, None]], format="csr")
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
