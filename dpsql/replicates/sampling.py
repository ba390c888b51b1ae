"""What sampling adds: the rows of a table as independent draws of a population, on top of the noise.

Had another sample of about as many rows been drawn, the N rows of a cell would be a Poisson number of them, and its
entries of x would move with the covariance of sums of N independent rows: Var(count) = N, Cov(count, sum u) = sum u,
Var(sum u) = sum u^2, for values u in [-1, 1] about the middle of the bounds (a marked Poisson process). N and sum u are
the least-squares estimates of what was released, of least length where several x agree with it; sum u^2 as well
where a variance was asked of the column, else it is taken at the most that bounds allow: N. Sums of several columns
move together as far as their counts do, and independently beside. W times these moves is added to each replicate, so
that everything that is computed from the release moves as it would from one sample to the next.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import lsqr

from dpsql.arrays import Floats
from dpsql.earlier import Combination
from dpsql.errors import NotSupportedError
from dpsql.running.planned_again import PlannedAgain
from dpsql.workload.cells.boxes import Boxes
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.layout import Layout

from .noise import normals

_APART = 0x5A4D504C45
"""Takes the seed of sampling apart from those of noise."""


def sampled(combination: Combination | PlannedAgain, seed: int, count: int) -> Floats:
    """Moves (count x m) of a release's numbers from sample to sample. Raises NotSupportedError where it cannot tell."""
    compiled = combination.compiled if isinstance(combination, Combination) else combination.prepared.over_cells
    if not isinstance(compiled, Compiled):
        raise NotSupportedError(
            'population="sample" needs the cells of a batch one by one; of blocks of histograms with very many cells '
            "and of long lines leave it out"
        )
    W = sp.csr_array(sp.diags_array(np.asarray(compiled.scale, dtype=np.float64)) @ compiled.rows.astype(np.float64))
    x = cast("Floats", lsqr(W, combination.values, atol=1e-12, btol=1e-12, iter_lim=10_000)[0])
    moves = [_moves(layout, x) for layout in compiled.layouts]
    factor = sp.hstack(moves, format="csr")
    return np.asarray((W @ (factor @ normals(seed ^ _APART, count, factor.shape[1]).T)).T)


def _moves(layout: Layout, x: Floats) -> sp.csr_array:
    """F (n x latent): how the entries of x that a table fills move with independent normal variables."""
    several = layout.multiplicity > 1 or layout.source.counts_units or layout.source.each is not None
    if several or isinstance(layout.cells, Boxes) or layout.every is not None:
        raise NotSupportedError(
            f'population="sample" takes the rows of {layout.source.table} as drawn independently, each in one cell: a '
            "unit with several rows and a batch of boxes are not told apart like that; leave it out"
        )
    entry = layout.entry[:, (layout.entry >= 0).any(axis=0)]
    atoms, cells = np.unique(entry, axis=1), np.zeros(len(x))
    used = atoms[0][atoms[0] >= 0]
    if (atoms[0] < 0).any():
        raise NotSupportedError(
            f'population="sample" needs to know how many rows of {layout.source.table} a sum is of: release COUNT(*), '
            "too"
        )
    np.add.at(cells, used, 1.0)
    N = np.maximum(x[atoms[0]], 0.0) / cells[atoms[0]]  # of cells that share a count, equal parts
    rows, columns, values = [atoms[0]], [np.arange(len(N))], [np.sqrt(N)]
    latent = len(N)
    squares = {measure.column: k for k, measure in enumerate(layout.measures, 1) if measure.power == 2}
    for k, measure in enumerate(layout.measures, 1):
        there = np.flatnonzero(atoms[k] >= 0)
        at, n = atoms[k][there], N[there]
        whole = np.zeros(len(x))
        np.add.at(whole, at, n)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.clip(np.nan_to_num(x[at] / whole[at]), -1.0, 1.0)  # of cells that share a sum, one mean
        second = np.ones(len(n))
        beside = squares.get(measure.column)
        if measure.power == 1 and beside is not None and (atoms[beside][there] >= 0).all():
            held = np.zeros(len(x))
            np.add.at(held, atoms[beside][there], n)
            with np.errstate(invalid="ignore", divide="ignore"):
                of_square = np.nan_to_num(x[atoms[beside][there]] / held[atoms[beside][there]])
            second = np.clip((of_square + 1) / 2, 0.0, 1.0)  # a square is measured as 2 u^2 - 1
        rows += [at, at]
        columns += [there, latent + np.arange(len(there))]
        values += [mean * np.sqrt(n), np.sqrt(n * np.maximum(second - mean**2, 0.0))]
        latent += len(there)
    where = np.concatenate(rows), np.concatenate(columns)
    return sp.csr_array((np.concatenate(values), where), shape=(len(x), latent))
