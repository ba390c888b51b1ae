"""Kronecker blocks: rows of a workload over histograms, and integer measurements of their residual parts.

A histogram counts rows by the regions of some axes of sizes d_i. A ``RowBlock`` is a Kronecker product of ``RowFactor``
matrices, each over one axis or a few. What is measured of one axis is one of three integer matrices with d columns

    Centre      d I - 1 1^T       everything but the total
    Plain       I                 the counts themselves
    Mixed       any integers      with a generalised inverse worked out once

of which a reconstruction uses the part orthogonal to 1 only: ``solve`` is C B^+ with C = I - 1 1^T / d.

Centres. An axis may have another centre than the mean: a vector v with 1^T v = 1, so that I = (I - v 1^T) + v 1^T. Then
each ``Mixed`` of it has B v = 0, so that B x = B z for z = x - v 1^T x, which adds up to 0 and is what ``solve`` gives;
and the part of a row that is not along the axis is its product with v.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeAlias

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints, Matrix
from dpsql.errors import InternalError
from dpsql.linalg.exact import max_abs
from dpsql.linalg.forms import dense, quick, row_squares


@dataclass(frozen=True)
class Centre:
    """The factor d I - 1 1^T of order d."""

    d: int

    @property
    def p(self) -> int:
        return self.d

    @property
    def growth(self) -> int:
        """The largest sum of absolute values of a row: |B x| <= growth |x|."""
        return 2 * (self.d - 1)

    @property
    def norms(self) -> tuple[int, int]:
        """The largest (L1, squared L2) norm of a column, exact."""
        return 2 * (self.d - 1), self.d * (self.d - 1)

    def times(self, x: Ints, axis: int) -> Ints:
        """B along one axis, in int64."""
        return np.asarray(self.d * x - x.sum(axis=axis, keepdims=True))

    def solve(self, y: Floats, axis: int) -> Floats:
        """C B^+ along one axis: C / d."""
        return np.asarray((y - y.mean(axis=axis, keepdims=True)) / self.d)

    def weights(self, rows: Matrix) -> Floats:
        """rows C B^+ (m x p) of rows (m x d)."""
        held = _dense(rows)
        return np.asarray((held - held.mean(axis=1, keepdims=True)) / self.d)

    def squares(self, rows: Matrix) -> Floats:
        """The squared norms (m,) of ``weights``, without them."""
        total = np.asarray(rows.sum(axis=1)).ravel()
        return np.asarray(np.maximum(row_squares(rows) - total**2 / self.d, 0.0) / self.d**2)

    def feed(self, digest: hashlib._Hash) -> None:
        """Add the factor to a hash."""
        digest.update(f"centre {self.d} ".encode())


@dataclass(frozen=True)
class Plain:
    """The identity factor of order d."""

    d: int

    @property
    def p(self) -> int:
        return self.d

    @property
    def growth(self) -> int:
        return 1

    @property
    def norms(self) -> tuple[int, int]:
        return 1, 1

    def times(self, x: Ints, axis: int) -> Ints:
        return x

    def solve(self, y: Floats, axis: int) -> Floats:
        return np.asarray(y - y.mean(axis=axis, keepdims=True))

    def weights(self, rows: Matrix) -> Floats:
        held = _dense(rows)
        return np.asarray(held - held.mean(axis=1, keepdims=True))

    def squares(self, rows: Matrix) -> Floats:
        """As ``Centre.squares``, d^2 times as large."""
        return Centre(self.d).squares(rows) * float(self.d) ** 2

    def feed(self, digest: hashlib._Hash) -> None:
        """Add the factor to a hash."""
        digest.update(f"plain {self.d} ".encode())


@dataclass(frozen=True, eq=False)
class Mixed:
    """An integer matrix (p x d, int64) whose rows span what is orthogonal to 1, and perhaps 1.

    With a ``centre`` n (d,), integers whose sum is not 0, its rows span what is orthogonal to n instead. Raises
    InternalError where one is not.
    """

    matrix: Ints = field(repr=False)
    centre: Ints | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.centre is not None:
            exact = self.matrix if self._top * int(np.abs(self.centre).sum()) < 2**62 else self.matrix.astype(object)
            if any((exact @ self.centre.astype(exact.dtype)).tolist()) or not self.centre.sum():
                raise InternalError("what is measured of an axis is not orthogonal to its centre")

    @cached_property
    def mean(self) -> Floats:
        """v (d,), adding up to 1: the centre, all alike where there is none."""
        d = self.d
        return np.full(d, 1.0 / d) if self.centre is None else np.asarray(self.centre / float(self.centre.sum()))

    @property
    def d(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def p(self) -> int:
        return int(self.matrix.shape[0])

    @cached_property
    def growth(self) -> int:
        if self._top * self.d < 2**62:
            return int(np.abs(self.matrix).sum(axis=1).max())
        return max(sum(abs(int(v)) for v in row) for row in self.matrix.tolist())

    @cached_property
    def norms(self) -> tuple[int, int]:
        if self._top**2 * self.p < 2**62:
            size = np.abs(self.matrix)
            return int(size.sum(axis=0).max()), int((size * size).sum(axis=0).max())
        columns = self.matrix.T.tolist()
        return max(sum(abs(v) for v in c) for c in columns), max(sum(v * v for v in c) for c in columns)

    @cached_property
    def _top(self) -> int:
        """The largest absolute entry."""
        return max_abs(self.matrix)

    @cached_property
    def inverse(self) -> Floats:
        """C B^+ (d x p): the reconstruction of what is left without the centre."""
        p, d = self.matrix.shape
        if self.centre is not None:  # z = E c with E = [I; -1^T], and c = (B E)^+ y
            short = (self.matrix[:, :-1] - self.matrix[:, -1:]).astype(np.float64)
            found = _inverse_of_triangular(short)
            part = np.asarray(np.linalg.pinv(short, rcond=1e-12)) if found is None else found
            return np.vstack([part, -part.sum(axis=0)])
        if p == d - 1 and not self.matrix.sum(axis=1).any():
            # B = S [I, -1] with a triangular S, and C B^+ = [I, -1]^T (I - 1 1^T / d) S^-1.
            found = _inverse_of_triangular(self.matrix[:, :-1].astype(np.float64))
            if found is not None:
                part = found - found.sum(axis=0) / d
                return np.vstack([part, -part.sum(axis=0)])
        held = np.linalg.pinv(self.matrix.astype(np.float64), rcond=1e-12)
        return np.asarray(held - held.mean(axis=0, keepdims=True))

    def times(self, x: Ints, axis: int) -> Ints:
        """B along one axis, in int64."""
        return np.moveaxis(np.tensordot(self.matrix, x, axes=(1, axis)), 0, axis)

    def solve(self, y: Floats, axis: int) -> Floats:
        return np.moveaxis(np.tensordot(self.inverse, y, axes=(1, axis)), 0, axis)

    def weights(self, rows: Matrix) -> Floats:
        return np.asarray(quick(rows) @ self.inverse)

    def squares(self, rows: Matrix) -> Floats:
        """The squared norms of ``weights``."""
        found = self.weights(rows)
        return row_squares(found)

    def feed(self, digest: hashlib._Hash) -> None:
        """Add the factor to a hash."""
        digest.update(f"mixed {self.matrix.shape} ".encode() + np.ascontiguousarray(self.matrix).tobytes())


def _inverse_of_triangular(S: Floats) -> Floats | None:
    """S^-1; None for another matrix than an upper triangular one of full rank."""
    size = np.abs(np.diag(S))
    if S.shape[0] != S.shape[1] or np.tril(S, -1).any() or size.min() <= 1e-10 * size.max():
        return None
    return np.asarray(scipy.linalg.solve_triangular(S, np.eye(len(S)), check_finite=False))


AxisIntegers: TypeAlias = Centre | Plain | Mixed


@dataclass(frozen=True, eq=False)
class RowFactor:
    """Rows over the product of the regions of ``axes`` (ascending), the last fastest.

    ``keys`` are positions among the keys of a result; ``matrix`` (csr floats) has one row for each combination of their
    groups, the last fastest, and one row without keys.
    """

    axes: tuple[int, ...]
    keys: tuple[int, ...]
    matrix: Csr = field(repr=False)

    def part(self, inside: tuple[int, ...], means: Sequence[Floats]) -> Matrix:
        """The rows averaged over the axes that are not ``inside``: (rows x product of the inner axes' regions).

        ``means`` are the centres of all axes of the table. Not centred: what measures an axis takes that part itself.
        """
        if inside == self.axes:
            return self.matrix
        if not inside:
            weight: Floats = np.ones(1)
            for axis in self.axes:
                weight = np.multiply.outer(weight, means[axis]).ravel()
            return np.asarray(self.matrix @ weight).reshape(-1, 1)
        held = self.matrix.toarray().reshape(-1, *(len(means[i]) for i in self.axes))
        for at, axis in reversed(list(enumerate(self.axes))):
            if axis not in inside:
                held = np.tensordot(held, means[axis], axes=(1 + at, 0))
        return np.asarray(held.reshape(self.matrix.shape[0], -1))

    def weights(self, inside: tuple[int, ...], integers: Sequence[AxisIntegers], means: Sequence[Floats]) -> Floats:
        """The centred part of the rows on the axes ``inside``, times what undoes ``integers``: (rows x measured)."""
        if len(inside) == 1 == len(self.axes):
            return integers[0].weights(self.matrix)
        held = _dense(self.part(inside, means)).reshape(-1, *(len(means[i]) for i in inside))
        for at, part in enumerate(integers):
            moved = np.moveaxis(held, 1 + at, -1)
            done = part.weights(moved.reshape(-1, moved.shape[-1])).reshape(*moved.shape[:-1], part.p)
            held = np.moveaxis(done, -1, 1 + at)
        return np.asarray(held.reshape(held.shape[0], -1))

    def squares(self, inside: tuple[int, ...], integers: Sequence[AxisIntegers], means: Sequence[Floats]) -> Floats:
        """The squared norms (rows,) of ``weights``."""
        if len(inside) == 1 == len(self.axes):
            return integers[0].squares(self.matrix)
        held = self.weights(inside, integers, means)
        return row_squares(held)

    def centred(self, inside: tuple[int, ...], means: Sequence[Floats]) -> Floats:
        """The part (rows, regions of each inner axis), centred along the inner axes."""
        held = _dense(self.part(inside, means)).reshape(-1, *(len(means[i]) for i in inside))
        for at in range(len(inside)):
            held = held - held.mean(axis=1 + at, keepdims=True)
        return np.asarray(held)

    def length(self, inside: tuple[int, ...], means: Sequence[Floats]) -> float:
        """The squared norm of ``centred``."""
        if len(self.axes) == 1 and inside:
            return float(Plain(len(means[inside[0]])).squares(self.matrix).sum())
        held = self.centred(inside, means)
        return float((held * held).sum())


def even(sizes: Sequence[int]) -> tuple[Floats, ...]:
    """The centres of axes of ``sizes`` where all regions are alike."""
    held = {d: np.full(d, 1.0 / d) for d in set(sizes)}
    return tuple(held[d] for d in sizes)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows [start, stop) of W: coefficient x the Kronecker product of ``factors`` on one component of one table.

    Axes and keys of the factors are disjoint; every key of ``key_sizes`` is in one of them, and rows run through the
    keys with the last fastest. ``component`` 0 are the counts of ``table``, k > 0 the sums of its k-th measure.
    ``weight``: what errors of these rows are multiplied by before they are compared with others'. ``outputs``: how
    many columns of the result they are, one after the other, which are the first key where there are several.
    """

    start: int
    stop: int
    table: int
    component: int
    coefficient: float
    weight: float
    key_sizes: tuple[int, ...]
    factors: tuple[RowFactor, ...]
    outputs: int = 1

    @cached_property
    def split(self) -> tuple[RowBlock, ...]:
        """A block for each output."""
        if self.outputs == 1:
            return (self,)
        lead = next(factor for factor in self.factors if 0 in factor.keys)
        others = [_renamed(factor, -1) for factor in self.factors if factor is not lead]
        rows, length = lead.matrix.shape[0] // self.outputs, (self.stop - self.start) // self.outputs
        keys, out = tuple(key - 1 for key in lead.keys[1:]), []
        for at in range(self.outputs):
            start, mine = self.start + at * length, lead.matrix[at * rows : (at + 1) * rows]
            factors = (RowFactor(lead.axes, keys, mine), *others)
            parts = start, start + length, self.table, self.component, self.coefficient, self.weight
            out.append(RowBlock(*parts, self.key_sizes[1:], factors))
        return tuple(out)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        return tuple(sorted(axis for factor in self.factors for axis in factor.axes))

    def outer(self, parts: list[Floats]) -> Floats:
        """The Kronecker product of one vector for each factor (over its rows), in the order of the rows."""
        out = np.ones((1,) * len(self.key_sizes))
        scalar = 1.0
        for factor, part in zip(self.factors, parts, strict=True):
            if not factor.keys:
                scalar *= float(part[0])
                continue
            shape = [1] * len(self.key_sizes)
            for key in factor.keys:
                shape[key] = self.key_sizes[key]
            order = np.argsort(factor.keys)
            held = part.reshape([self.key_sizes[key] for key in factor.keys]).transpose(order)
            out = out * held.reshape(shape)
        return np.asarray(np.broadcast_to(out, self.key_sizes)).ravel() * scalar


def joined(blocks: Sequence[RowBlock], sizes: Sequence[int]) -> RowBlock | None:
    """Blocks whose rows follow each other as one, whose first key says which; None where they differ in two factors.

    They have the same keys; ``sizes`` are those of all axes of their table.
    """
    first, last = blocks[0], blocks[-1]
    places = [{factor.axes: factor for factor in block.factors} for block in blocks]
    axes = dict.fromkeys(axes for held in places for axes in held)
    unlike = [key for key in axes if len({id(held.get(key)) for held in places}) > 1]
    if len(unlike) != 1 or len({axis for key in axes for axis in key}) < sum(map(len, axes)):
        return None
    (own,) = unlike
    found = [held[own] for held in places if own in held]
    if len({factor.keys for factor in found}) > 1 or (len(found) < len(blocks) and found[0].keys):
        return None
    whole = sparse.csr_array(np.ones((1, prod(sizes[axis] for axis in own))))  # a condition that holds for all rows
    stack = sparse.vstack([held[own].matrix if own in held else whole for held in places], format="csr")
    lead = RowFactor(own, (0, *(key + 1 for key in found[0].keys)), sparse.csr_array(stack))
    others = tuple(_renamed(factor, 1) for factor in first.factors if factor.axes != own)
    parts = first.start, last.stop, first.table, first.component, first.coefficient, first.weight
    return RowBlock(*parts, (len(blocks), *first.key_sizes), (lead, *others), len(blocks))


def _renamed(factor: RowFactor, by: int) -> RowFactor:
    """The same factor where keys stand further back."""
    return RowFactor(factor.axes, tuple(key + by for key in factor.keys), factor.matrix)


@dataclass(frozen=True, eq=False)
class Residual:
    """One residual as it is measured: multiplier x (the product of ``integers``) on the marginal on ``axes``.

    Of component ``component`` of table ``table``; ``histogram`` says which stretch of x holds it. ``whole``: the counts
    themselves are measured, all ``integers`` plain, and answers use all of them: what they say of the residual, and of
    those of its subsets.
    """

    table: int
    component: int
    axes: tuple[int, ...]
    histogram: int
    integers: tuple[AxisIntegers, ...]
    multiplier: int = 1
    whole: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows measured, axis by axis."""
        return tuple(part.p for part in self.integers)

    @property
    def rows(self) -> int:
        """How many rows are measured."""
        return prod(self.shape)

    @property
    def norms(self) -> tuple[int, int]:
        """The largest (L1, squared L2) norm of a column, exact: norms of Kronecker products multiply."""
        l1 = self.multiplier * prod(part.norms[0] for part in self.integers)
        return l1, self.multiplier**2 * prod(part.norms[1] for part in self.integers)

    def feed(self, digest: hashlib._Hash) -> None:
        """Add the factor to a hash."""
        digest.update(f"{self.histogram} {self.axes} {self.multiplier} ".encode())
        for part in self.integers:
            part.feed(digest)


def digest_of(residuals: tuple[Residual, ...], histograms: object) -> str:
    """SHA-256 of all that is measured."""
    digest = hashlib.sha256(repr(histograms).encode())
    for residual in residuals:
        residual.feed(digest)
    return digest.hexdigest()


def _dense(rows: Matrix) -> Floats:
    return np.asarray(dense(rows), dtype=np.float64)
