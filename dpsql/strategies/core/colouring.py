"""Finds the isotypic parts of a problem whose pairs of cells are coloured by their orbits.

A group of permutations of the N cells splits the pairs of cells into orbits, the *colours*. A matrix is *invariant* if
it is constant on colours, so that its L entries say all of it, and products of invariant matrices are invariant: with
k_opr cells z such that (x, z) is of colour o and (z, y) of colour p, for any pair (x, y) of colour r, the 0/1 matrices
of the colours have I_o I_p = sum_r k_opr I_r. In the basis I_o / |o|^1/2, |o| the number of pairs, multiplication from
the left is a matrix of order L with the same eigenvalues (the regular representation): whatever the number of cells,
all that follows is of order L.

Let a be a random symmetric invariant matrix. Its eigenspaces are the copies of isotypic parts
(``dpsql.strategies.core.symmetric``), e_i the projections on them. Two of them are copies of the same space if e_i b
e_j is not 0 for another random b, and then u_ij = e_i b e_j, normed to u_ij u_ij^T = e_i, takes one to the other. With
T_i (N x rho) a basis of each copy, u_ij = T_i T_j^T, and for an invariant M and a contribution c

    M = sum_k sum_ij M_k,ij u_k,ij,    M_k,ij = <M, u_k,ij> / rho_k,    N_k,ij = c^T u_k,ij c.

In real numbers that holds for representations of real type only. It is checked: a third random matrix and the Gram
matrix must be the sums above to 1e-9, or the colouring is refused. Under cyclic shifts of several measures they are
not, and parts found without the check would prove a false lower bound. Colours on which products are not constant, so
that they are the orbits of no group, are refused as well, by a random vector (Freivalds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpsql.common.arrays import Flags, Floats, Ints
from dpsql.common.numerics import ROUNDING, SEED
from dpsql.linalg.long_calls import eigh
from dpsql.strategies.core.symmetric import Part

_NEGLIGIBLE = 1e-11  # of the largest eigenvalue: what no query asks


@dataclass(frozen=True, eq=False)
class Colouring:
    """``colour`` (N x N): the number of the orbit of each pair of cells, from 0; L of them."""

    colour: Ints

    @cached_property
    def size(self) -> Floats:
        """|o| (L,)."""
        return np.bincount(self.colour.ravel()).astype(np.float64)

    @cached_property
    def identity(self) -> Floats:
        """The entries of the identity (L,)."""
        return np.isin(np.arange(self.size.size), np.diag(self.colour)).astype(np.float64)

    @cached_property
    def transposed(self) -> Ints:
        """The colour of (y, x) for a pair (x, y) of each colour (L,)."""
        out = np.zeros(self.size.size, dtype=np.int64)
        out[self.colour.ravel()] = self.colour.T.ravel()
        return out

    @cached_property
    def table(self) -> Floats:
        """k_opr |r|^1/2 / |p|^1/2 (o, r, p)."""
        L, place = self.size.size, np.zeros(self.size.size, dtype=np.int64)
        place[self.colour.ravel()] = np.arange(self.colour.size)  # any pair of the colour will do
        out = np.zeros((L, L, L))
        for r, (x, y) in enumerate(zip(*np.unravel_index(place, self.colour.shape), strict=True)):
            both = self.colour[x] * L + self.colour[:, y]
            out[:, r, :] = np.bincount(both, minlength=L * L).reshape(L, L)
        root = np.sqrt(self.size)
        return out * (root[:, None] / root[None, :])

    def entries(self, M: Floats) -> Floats:
        """The means of a matrix (N x N) over each colour."""
        return np.asarray(np.bincount(self.colour.ravel(), weights=M.ravel()) / self.size)

    def constant(self, M: Floats) -> bool:
        """Whether a matrix (N x N) is invariant, to 1e-9 of its largest entry."""
        return bool(np.abs(self.entries(M)[self.colour] - M).max() <= ROUNDING * np.abs(M).max())

    def pairs(self, cells: Ints, times: Ints) -> tuple[int, ...]:
        """How many pairs of each colour the contribution has that is ``times`` in ``cells``, and 0 in all others."""
        weights = np.outer(times, times).ravel()
        counts = np.bincount(self.colour[np.ix_(cells, cells)].ravel(), weights, minlength=self.size.size)
        return tuple(counts.round().astype(np.int64).tolist())

    def product(self, a: Floats, b: Floats) -> Floats:
        """The entries of a product."""
        root = np.sqrt(self.size)
        return np.asarray(np.tensordot(a, self.table, axes=1) @ (b * root) / root)


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The isotypic parts of a colouring: ``units`` u_k (d_k x d_k x L) of each, ``copies`` rho_k (parts,)."""

    cells: Colouring
    units: tuple[Floats, ...]

    @classmethod
    def of(cls, cells: Colouring, support: Flags | None = None) -> Decomposition | None:
        """The parts of a colouring; None where it is refused. Cost: O(L^2 N + N^2 + L^3 s), s eigenspaces.

        ``support`` (L,): the colours on which an invariant matrix may be other than 0, if not all; products keep it.
        """
        rng = np.random.default_rng(SEED)
        for _ in range(3):  # random matrices may nearly have one eigenvalue twice
            one, two, three = rng.normal(size=(3, cells.size.size)) * (1.0 if support is None else support)
            a, b, c = (each + each[cells.transposed] for each in (one, two, three))
            units = _linked(cells, a, b)
            split = None if units is None else cls(cells, units)
            x = rng.normal(size=len(cells.colour))
            twice, once = a[cells.colour] @ (b[cells.colour] @ x), cells.product(a, b)[cells.colour] @ x
            closed = np.abs(once - twice).max() <= ROUNDING * np.abs(twice).max()
            if split is not None and split.adds_up(c) and closed:
                return split
        return None

    @cached_property
    def copies(self) -> list[float]:
        """rho_k: the squared norm of a projection."""
        return [float(round(self.cells.size @ u[0, 0] ** 2)) for u in self.units]

    def coordinates(self, M: Floats) -> list[Floats]:
        """M_k of an invariant matrix (L,) in every part."""
        return [u @ (self.cells.size * M) / rho for rho, u in zip(self.copies, self.units, strict=True)]

    def combined(self, metrics: Sequence[Floats]) -> Floats:
        """The invariant, symmetric matrix (L,) of its M_k."""
        half = np.sum([np.tensordot(M, u, axes=2) for M, u in zip(metrics, self.units, strict=True)], axis=0) / 2.0
        return np.asarray(half + half[self.cells.transposed])

    def adds_up(self, M: Floats) -> bool:
        """Whether an invariant matrix (L,) is the sum of what it is in the parts."""
        return bool(np.abs(self.combined(self.coordinates(M)) - M).max() <= ROUNDING * np.abs(M).max())

    def moments(self, pairs: Floats) -> list[Floats]:
        """N_k (orbits x d x d) of contributions by their ``pairs`` (orbits x L), in every part."""
        least = ROUNDING**1.5 * np.abs(pairs).sum(axis=1)[:, None, None]  # rounding, where a part does not see them
        moments = [np.tensordot(pairs, u, axes=(1, 2)) for u in self.units]
        return [np.where(np.abs(N).max(axis=(1, 2), keepdims=True) > least, N, 0.0) for N in moments]

    def parts(self, gram: Floats, pairs: Floats) -> list[Part] | None:
        """The parts of the queries' Gram matrix (L,) and of contributions by their ``pairs`` (orbits x L).

        None where the Gram matrix is not the sum of its parts.
        """
        if not self.adds_up(gram):
            return None
        spectra = [np.linalg.eigh(G) for G in self.coordinates(gram)]
        least = _NEGLIGIBLE * max(float(s[-1]) for s, _ in spectra)
        roots = [(V[:, s > least] * np.sqrt(s[s > least])).T for s, V in spectra]
        return [Part(*part) for part in zip(self.copies, roots, self.moments(pairs), strict=True)]


def _linked(cells: Colouring, a: Floats, b: Floats) -> tuple[Floats, ...] | None:
    """u_k: the projections on the eigenspaces of a, and what takes one to the other where b links them.

    None where a projection has no whole number of dimensions: eigenvalues of a that should be apart are too close.
    """
    root, left = np.sqrt(cells.size), np.tensordot(a, cells.table, axes=1)
    s, V = eigh((left + left.T) / 2.0)
    spaces = np.split(V, np.flatnonzero(np.diff(s) > 10.0 * ROUNDING * (s[-1] - s[0])) + 1, axis=1)
    projections = [basis @ (basis.T @ (cells.identity * root)) / root for basis in spaces]
    copies = [float((cells.size * cells.identity) @ e) for e in projections]
    if any(abs(rho - round(rho)) > ROUNDING * len(cells.colour) or rho < 0.5 for rho in copies):
        return None
    rest, units = list(range(len(copies))), list[Floats]()
    while rest:
        i = rest[0]
        seen = np.tensordot(cells.product(projections[i], b), cells.table, axes=1)  # e_i b from the left
        across = {j: seen @ (projections[j] * root) / root for j in rest}
        length = {j: float(np.sqrt(cells.size @ u**2)) for j, u in across.items()}
        alike = [j for j in rest[1:] if length[j] > 100.0 * ROUNDING * float(np.abs(b).max())]
        row = [projections[i], *(across[j] * (np.sqrt(copies[i]) / length[j]) for j in alike)]
        units.append(np.array([[cells.product(one[cells.transposed], other) for other in row] for one in row]))
        rest = [j for j in rest[1:] if j not in alike]
    return tuple(units)
