"""Stand-ins: public data that nobody has, of as many rows as a policy expects, on which errors are estimated.

They follow from sizes, a number of rows and fixed seeds. What comes out on them is a guess of what comes out on data
like them, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from dpsql.common.arrays import Floats

Axes = tuple[int, ...]

_SEED = 20220131
_SAMPLE, _MANY = 2**18, 2**21  # rows that one is made of
_KINDS, _SHARE = 6, 0.4  # of rows whose columns go together


def stand_in_tables(sizes: Sequence[int], sets: Sequence[Axes], rows: int) -> list[dict[Axes, Floats]]:
    """Marginals on the ``sets`` of axes of two tables: columns by Zipf's law, apart, and with kinds in common."""
    made = []
    for shared in (0.0, _SHARE):
        size = max(1, min(rows, _SAMPLE))
        columns = _columns(sizes, sorted({i for S in sets for i in S}), size, shared)
        tables = {}
        for S in sets:
            shape = [sizes[i] for i in S]
            flat = np.ravel_multi_index([columns[i] for i in S], shape) if S else np.zeros(size, dtype=np.int64)
            tables[S] = np.rint(np.bincount(flat, minlength=prod(shape)).reshape(shape) * (rows / size))
        made.append(tables)
    return made


def sparse_counts(shape: Sequence[int], rows: int) -> list[Floats]:
    """The counts of the groups that have rows, of the two tables of ``stand_in_tables`` over all of ``shape``."""
    made = []
    for shared in (0.0, _SHARE):
        size = max(1, min(rows, _MANY))
        columns = _columns(shape, range(len(shape)), size, shared)
        _, counts = np.unique(np.ravel_multi_index(list(columns.values()), shape), return_counts=True)
        made.append(np.rint(counts * (rows / size)))
    return made


def _columns(sizes: Sequence[int], axes: Sequence[int], rows: int, shared: float) -> dict[int, np.ndarray]:
    """The values of ``axes`` in every row: by Zipf's law, or that of the row's kind, as which a part ``shared`` is."""
    draws = np.random.default_rng(_SEED)
    kind, of_kind = draws.integers(0, _KINDS, rows), draws.random(rows) < shared
    columns = {}
    for axis in axes:
        d = sizes[axis]
        law = 1.0 / np.arange(1, d + 1)
        columns[axis] = np.where(of_kind, kind * 7 % d, draws.choice(d, rows, p=law / law.sum()))
    return columns


def stand_in_rays(rays: int, rows: int, draws: np.random.Generator | None = None) -> list[Floats]:
    """``rows`` rows even over cells (and corners of sums), by Zipf's law over shuffled ones, and in few of them."""
    draws = np.random.default_rng(_SEED) if draws is None else draws
    zipf = 1.0 / np.arange(1, rays + 1)
    few = np.zeros(rays)
    few[: max(1, round(rays**0.5))] = 1.0
    made = [np.ones(rays), zipf[draws.permutation(rays)], few[draws.permutation(rays)]]
    return [held * (rows / float(held.sum())) for held in made]


def noise_like(kind: str, variance: float | Floats, size: int, draws: np.random.Generator | None = None) -> Floats:
    """Noise of floats with the variance of integer noise of a ``kind``: for estimates, and nothing else."""
    draws = np.random.default_rng(_SEED) if draws is None else draws
    if kind == "gaussian":
        return draws.normal(0.0, np.sqrt(variance), size)
    return draws.laplace(0.0, np.sqrt(variance / 2), size)
