"""The pixels of a workload or a strategy: its entries, or the largest of each stretch where it has many.

An implicit matrix is never written out: only the rows that are drawn are made, one at a time, from its structure.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np

from dpsql.arrays import Floats
from dpsql.errors import InterfaceError
from dpsql.linalg import inner as algebra
from dpsql.pictures.matrices import PIXELS, extremes
from dpsql.strategy import Strategy
from dpsql.workload import Workload

_WHOLE = 2**21  # entries up to which a matrix is written out
_WIDEST = 2**22  # columns


def workload_pixels(W: Workload) -> tuple[Floats, str]:
    """At most `PIXELS` x `PIXELS` pixels of W, and what one of them shows, where it is not one entry."""
    m, n = W.shape
    if m * n <= _WHOLE:
        return _few(W.matrix(), m, n)
    return _spread(m, n, lambda at: inner_row(W.inner, at) @ W.span)


def strategy_pixels(strategy: Strategy) -> tuple[Floats, str]:
    """At most `PIXELS` x `PIXELS` pixels of B, and what one of them shows, where it is not one entry.

    Raises InterfaceError for a strategy that has no rows to show.
    """
    p, n = strategy.shape
    if p * n <= _WHOLE:
        return _few(strategy.matrix(), p, n)
    mixing, basis = getattr(strategy, "mixing", None), getattr(strategy, "basis", None)
    if mixing is None or basis is None:
        raise InterfaceError(f"the strategy {strategy.method} has {p:,} x {n:,} entries and is not kept by rows")
    return _spread(p, n, lambda at: mixing[[at], :] @ basis)


def _few(matrix: Floats, rows: int, columns: int) -> tuple[Floats, str]:
    pixels = extremes(extremes(np.asarray(matrix, dtype=np.float64), PIXELS, 0), PIXELS, 1)
    return pixels, "" if pixels.shape == (rows, columns) else "each pixel: the largest entry of its stretch"


def _spread(rows: int, columns: int, row: Any) -> tuple[Floats, str]:
    """Evenly spaced rows, each in few pixels."""
    if columns > _WIDEST:
        raise InterfaceError(f"a matrix of {columns:,} columns is too wide for a picture; draw a part of the batch")
    count = min(rows, PIXELS)
    chosen = sorted(
        {at * (rows - 1) // max(count - 1, 1) for at in range(count)}
    )  # Python integers: 2^100 rows are fine
    pixels = np.stack([extremes(_flat(row(at)), PIXELS, 0) for at in chosen])
    if len(chosen) == rows:
        return pixels, "each pixel: the largest entry of its stretch"
    several = "" if columns <= PIXELS else ", each pixel the largest entry of its stretch"
    return pixels, f"{len(chosen)} of {rows:,} rows, evenly spaced{several}"


def _flat(row: Any) -> Floats:
    held = row.toarray() if hasattr(row, "toarray") else np.asarray(row)
    return np.asarray(held, dtype=np.float64).reshape(-1)


def inner_row(inner: algebra.Inner, at: int) -> Any:
    """Row ``at`` of an inner factor F as a (1, q) array, without the others. Raises InterfaceError for other kinds."""
    q = inner.shape[1]
    found = np.zeros((1, q))
    if isinstance(inner, algebra.Diagonal):
        found[0, at] = inner.scale[at]
    elif isinstance(inner, algebra.Dense):
        found[0] = inner.entries[at]
    elif isinstance(inner, algebra.Ranges):
        start, stop = _range(q, at)
        found[0, start:stop] = 1.0
    elif isinstance(inner, algebra.Prefixes):
        found[0, : at + 1] = 1.0
    elif isinstance(inner, algebra.Kron):
        row: Any = np.ones((1, 1))
        for factor in reversed(inner.factors):
            at, place = divmod(at, factor.shape[0])
            row = np.kron(inner_row(factor, place), row)
        found = row
    elif isinstance(inner, algebra.Blocks):
        column = 0
        for part, weight in zip(inner.parts, inner.weights, strict=True):
            if at < part.shape[0]:
                found[0, column : column + part.shape[1]] = weight * inner_row(part, at)[0]
                break
            at -= part.shape[0]
            column += part.shape[1]
    elif isinstance(inner, algebra.Predicates):
        found[0] = [((at >> bit) & 1) * 2.0**-inner.log2_scale for bit in range(q)]
    else:
        raise InterfaceError(f"a workload of kind {type(inner).__name__} is not kept by rows and cannot be drawn")
    return found


def _range(q: int, at: int) -> tuple[int, int]:
    """First column and end of interval ``at`` of q columns; the intervals go by first column, then by last."""
    left = q * (q + 1) // 2 - 1 - at  # intervals after it: those of later first columns number 0, 1, 3, 6, ...
    first = q - 1 - (isqrt(8 * left + 1) - 1) // 2
    return first, first + 1 + at - (first * q - first * (first - 1) // 2)
