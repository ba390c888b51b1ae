"""Weighted sums of noise in blocks: their moment generating functions, of which ``intervals`` reads quantiles off.

A block z in R^m of density proportional to exp(-max |z_i|) is r u, with r of the Gamma law of m + 1 and u uniform in
[-1, 1]^m. So a sum T = w z of weights w has E exp(s T) = E (1 - s w u)^-(m + 1), analytic but for s real and at least
1 / sum |w_i| in size. Of a block of one that is Laplace's 1 / (1 - (w s)^2), and a block of two is two of them, of the
weights w_1 + w_2 and w_1 - w_2: the square is the diamond, turned.

Of larger blocks w u / sum |w_i|, a symmetric variable within [-1, 1], is read by a quadrature: weights v at the nodes
x_a >= 0 of Gauss and Legendre with E f = sum v_a f(x_a) for every even polynomial f of a degree below twice the number
of nodes. One w_i after the other is taken in: v' interpolates, at the new nodes, f over the product of both rules, so
that nothing cancels. Quantiles are right to 10^-4 for 10^-3 <= alpha <= 1/20 and to 10^-3 up to 1/10, with at most 8
weights of a block; sums of more lie so near 0, against how far they reach, that the nodes miss it. Tests compare with
the closed form of one coordinate, P(|z_i| > x) = Q(m + 1, x) - (x / m) Q(m, x) for Q the regularised incomplete Gamma
function, and with sums over the density of w u. Ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpsql.common.arrays import Flags, Floats, Ints, Matrix
from dpsql.common.pattern_block import PatternBlock, law_of

_HALF = 16
_NODES, _WEIGHTS = (half[_HALF:] for half in np.polynomial.legendre.leggauss(2 * _HALF))
_EVEN = np.square(_NODES)
_GAPS = _EVEN[:, None] - _EVEN[None, :] + np.eye(_HALF)
_BARYCENTRIC = np.reciprocal(np.prod(_GAPS, axis=1))
_AT_ONCE = 64
MOST_TOGETHER = 8
"""Weights of one block that are not zero."""
_DIGITS = 7.0
"""Decimal digits that (1 - s x)^-(m + 1) may cost where the line of integration crosses the real axis."""

Complex = NDArray[np.complex128]


def variance(size: int) -> float:
    """Of a coordinate of a block of the scale 1, continuous: E r^2 / 3; of one for patterns ``PatternLaw.variance``."""
    if isinstance(size, PatternBlock):
        return law_of(size).variance
    return (size + 1) * (size + 2) / 3.0


def covariance_root(blocks: Sequence[int], variances: Floats, *, inverse: bool = False) -> sp.csr_array[np.float64]:
    """The symmetric root (p x p) of the covariance matrix of noise in ``blocks``, or its inverse.

    ``variances`` (p,) of the coordinates, which are uncorrelated but in blocks for patterns: there the matrix is v (1 -
    c) I + v c J, J of ones, with the root a I + (b - a) J / m, a^2 = v (1 - c), b^2 = v (1 - c + m c).
    """
    if not any(isinstance(block, PatternBlock) for block in blocks):
        return sp.csr_array(sp.diags_array(np.sqrt(variances) ** (-1 if inverse else 1)))
    parts, at, power = [], 0, -1 if inverse else 1
    for block in blocks:
        v, m = variances[at : at + block], int(block)
        at += m
        part = np.diag(np.sqrt(v) ** power)
        if isinstance(block, PatternBlock):
            shared = law_of(block).covariance / law_of(block).variance
            a, b = (np.sqrt(v[0] * (1.0 - shared + more)) ** power for more in (0.0, m * shared))
            part = np.eye(m) * a + (b - a) / m
        parts.append(part)
    return sp.csr_array(sp.block_diag(parts, format="csr"))


@dataclass(frozen=True, eq=False)
class Cubes:
    """Blocks of one size in many sums: sum ``rows[i]`` has one of weights that add up to ``reach[i]``.

    ``variance[i]``: what it adds. ``rule`` (k x 16): of distinct weights over their sum; ``which[i]`` of them it is.
    """

    size: int
    rows: Ints = field(repr=False)
    reach: Floats = field(repr=False)
    variance: Floats = field(repr=False)
    which: Ints = field(repr=False)
    rule: Floats = field(repr=False)

    @property
    def crossing(self) -> float:
        """How far, in 1 / reach, the line of integration may cross the real axis from 0."""
        return float(-np.expm1(-_DIGITS * np.log(10.0) / (self.size + 1)))

    def multiply(self, product: Complex, s: Complex, scale: Floats) -> None:
        """Multiply E exp(s T) of each block into ``product`` (rows x nodes), T of weights over ``scale`` (rows,)."""
        power = -(self.size + 1.0)
        for at in range(0, len(self.rows), _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            rows, v = self.rows[part], self.rule[self.which[part]]
            reached = s[rows] * (self.reach[part] / scale[rows])[:, None]
            by_node = reached[:, :, None] * _NODES
            found = np.exp(power * np.log(1.0 - by_node)) + np.exp(power * np.log(1.0 + by_node))
            np.multiply.at(product, rows, 0.5 * np.einsum("rsa,ra->rs", found, v))


@dataclass(frozen=True, eq=False)
class Parted:
    """Sums (m of them) as absolute weights, sorted: ``single`` (m x p') of Laplace noise, ``large`` by block size."""

    single: Floats = field(repr=False)
    large: dict[int, Floats] = field(repr=False)

    @classmethod
    def of(cls, rows: Matrix, blocks: Sequence[int]) -> Parted:
        """Of rows (m x p) over noise in ``blocks``. ``large[size]`` is (m x the most of that size in a row x size).

        Blocks that a row has no weight on are left out of it, so that rows over few of many blocks stay short.
        """
        held = sp.coo_array(sp.csr_array(rows))
        m, starts = held.shape[0], np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        block = np.searchsorted(starts, held.col, side="right") - 1
        groups, at = np.unique(held.row.astype(np.int64) * len(blocks) + block, return_inverse=True)
        owner, size = groups // max(len(blocks), 1), np.asarray(blocks, dtype=np.int64)[groups % max(len(blocks), 1)]
        single: list[tuple[Ints, Floats]] = []
        large: dict[int, Floats] = {}
        for d in np.unique(size).tolist():
            mine = np.flatnonzero(size == d)
            place = np.full(groups.size, -1, dtype=np.int64)
            place[mine] = np.arange(mine.size)
            some = place[at] >= 0
            weights = np.zeros((mine.size, d))
            weights[place[at[some]], held.col[some] - starts[block[some]]] = held.data[some]
            if d == 2:
                weights = np.stack([weights[:, 0] + weights[:, 1], weights[:, 0] - weights[:, 1]], axis=1)
            if d <= 2:
                single.append((np.repeat(owner[mine], d), np.abs(weights).reshape(-1, 1)))
            else:
                large[d] = _by_owner(owner[mine], np.sort(np.abs(weights), axis=1)[:, ::-1], m)
        owners = np.concatenate([groups[:0], *(mine for mine, _ in single)])
        values = np.concatenate([np.zeros((0, 1)), *(weights for _, weights in single)])
        order = np.argsort(owners, kind="stable")
        kept = np.sort(_by_owner(owners[order], values[order], m)[:, :, 0], axis=1)
        kept = kept if kept.shape[1] else np.zeros((m, 1))
        kept = kept[:, kept.any(axis=0) | (np.arange(kept.shape[1]) == 0)]
        for d, parts in large.items():  # which block is which is all one
            order = np.argsort(parts.sum(axis=2), axis=1, kind="stable")[:, :, None]
            large[d] = np.take_along_axis(parts, order, axis=1)
        return cls(kept, large)

    @property
    def read(self) -> Flags:
        """Which sums (m,) are read by their law: no larger block has more than ``MOST_TOGETHER`` weights in them."""
        found = np.ones(len(self.single), dtype=np.bool_)
        for parts in self.large.values():
            found &= (np.count_nonzero(parts, axis=2) <= MOST_TOGETHER).all(axis=1)
        return found

    def distinct(self, among: Ints) -> tuple[Parted, Ints]:
        """Those of the sums ``among`` that differ, and which of them each is."""
        own = [self.single[among], *(parts[among].reshape(len(among), parts[0].size) for parts in self.large.values())]
        _, first, which = np.unique(np.concatenate(own, axis=1), axis=0, return_index=True, return_inverse=True)
        kept = among[first]
        found = Parted(self.single[kept], {size: parts[kept] for size, parts in self.large.items()})
        return found, which.reshape(-1).astype(np.int64)

    def cubes(self, most: int) -> list[Cubes] | None:
        """The larger blocks; None for more than ``most`` numbers in all distinct ones."""
        found = []
        for size, parts in self.large.items():
            rows, at = np.nonzero(parts.any(axis=2))
            weights = parts[rows, at]
            reach = weights.sum(axis=1)
            distinct, which = np.unique(np.round(weights / reach[:, None], 12), axis=0, return_inverse=True)
            most -= distinct.size
            if most < 0:
                return None
            squares = variance(size) * (weights**2).sum(axis=1)
            found.append(Cubes(size, rows, reach, squares, which.reshape(-1), _rules(distinct)))
        return found


def _by_owner(owner: Ints, values: Floats, m: int) -> Floats:
    """Values (k x d) as (m x the most of one owner x d), zeros after those of each; ``owner`` (k,) ascends."""
    count = np.bincount(owner, minlength=m)
    out = np.zeros((m, int(count.max(initial=0)), values.shape[1]))
    out[owner, np.arange(owner.size) - (np.cumsum(count) - count)[owner]] = values
    return out


def _rules(weights: Floats) -> Floats:
    """The rule of each row of ``weights`` (k x size), the largest first, not all zero."""
    found = np.tile(_WEIGHTS, (len(weights), 1))  # of both halves together, of one weight alone
    sides = np.concatenate([_NODES, -_NODES])
    halves = np.tile(_WEIGHTS / 2.0, 2)
    for low in range(0, len(weights), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        reach = weights[part, 0].copy()
        for more in weights[part, 1:].T:
            if not more.any():
                break
            total = reach + more
            points = (reach[:, None, None] * _NODES[:, None] + more[:, None, None] * sides) / total[:, None, None]
            found[part] = np.einsum("ka,g,kagb->kb", found[part], halves, _interpolated(points**2), optimize=True)
            reach = total
    return found


def _interpolated(points: Floats) -> Floats:
    """The values of every Lagrange polynomial in x^2 over the nodes, at squares ``points``; one more axis."""
    apart = points[..., None] - _EVEN
    met = np.abs(apart) < 1e-15
    apart[met] = 1.0
    terms = _BARYCENTRIC / apart
    found = np.asarray(terms / terms.sum(axis=-1, keepdims=True))
    on = met.any(axis=-1)
    found[on] = met[on]
    return found
