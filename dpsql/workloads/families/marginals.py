"""Marginals and data cubes over any domain, kept by their sets of attributes.

The product of the attributes is never built: a domain of 10^100 cells is a tuple of sizes, and
what strategies and bounds need of the Gram matrix is one number for each residual space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb, isfinite, prod
from operator import index
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.workloads.families.matrix import Workload

AttributeSet = tuple[int, ...]

__all__ = ["Marginals", "data_cube", "marginals"]

SUBSETS_CAP = 2**22  # subsets of all attribute sets together


@dataclass(frozen=True)
class Marginals:
    """Weighted marginals (cuboids) over k attributes: one group of counts for each set of attributes.

    ``sizes`` (k,) numbers of values; ``sets`` ascending tuples of attribute numbers, () being the
    total; ``weights`` one a set, above zero: a weight of 2 makes the squared errors of that cuboid count
    fourfold. Row S of W is the Kronecker product of I for attributes in S and a row of ones for the
    others, times its weight. Raises DataError for unknown or repeated attributes or sets,
    and above 2^22 subsets of all sets together.
    """

    log2_scale: ClassVar[float] = 0.0
    sizes: tuple[int, ...]
    sets: tuple[AttributeSet, ...]
    weights: tuple[float, ...]
    name: str = ""
    _cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        k = len(self.sizes)
        if k == 0 or any(d < 1 for d in self.sizes):
            raise DataError(
                "marginals: each size of a shape must be a whole number of at least 1; give one an attribute"
            )
        if not self.sets:
            raise DataError("marginals: at least one set of attributes is needed")
        if len(self.weights) != len(self.sets):
            raise DataError(f"marginals: {len(self.weights)} weights for {len(self.sets)} sets; give one a set")
        for S in self.sets:
            if any(not 0 <= i < k for i in S) or list(S) != sorted(set(S)):
                raise DataError(f"marginals: {S} is no set of attributes 0 to {k - 1}; name each once")
            if prod(self.sizes[i] for i in S) > 10**300:  # near the largest float
                raise DataError(f"marginals: the marginal on {S} has over 1e300 cells; ask for smaller sets")
        if len(set(self.sets)) < len(self.sets):
            raise DataError("marginals: a set of attributes is named twice; add up its weights in squares instead")
        if not all(isfinite(w) and w > 0 for w in self.weights):
            raise DataError("marginals: weights must be finite and above zero; leave a set out instead")
        if sum(2 ** len(S) for S in self.sets) > SUBSETS_CAP:
            raise DataError(f"marginals: the sets have more than {SUBSETS_CAP} subsets; ask for smaller sets")

    def __repr__(self) -> str:
        return f"<Marginals {self.name or 'W'}: {len(self.sets)} sets over {len(self.sizes)} attributes>"

    @property
    def shape(self) -> tuple[int, int]:
        """(m queries, n cells) as Python integers of any size."""
        return (sum(prod(self.sizes[i] for i in S) for S in self.sets), prod(self.sizes))

    @property
    def rank(self) -> int:
        """Rank of W: the sum of the dimensions of its residual spaces, exact."""
        return sum(self.dimension(T) for T in self.residuals())

    @property
    def as_marginals(self) -> Marginals:
        """Itself; None of other workloads."""
        return self

    def named(self, name: str) -> Marginals:
        """The same under another name, where one is given."""
        return Marginals(self.sizes, self.sets, self.weights, name) if name else self

    def dimension(self, T: AttributeSet) -> int:
        """Dimension of the residual space of T: prod over i in T of (d_i - 1)."""
        return prod(self.sizes[i] - 1 for i in T)

    def residuals(self) -> dict[AttributeSet, float]:
        """{T: g_T} for every T inside a set: on the residual space of T, G = W^T W is n g_T.

        The residual space of T is that of (x) over i of I - J / d_i for i in T, J / d_i otherwise.
        A marginal on S has Gram matrix (x) of I (in S) or J (not in S): it acts there as
        prod over i not in S of d_i where T is inside S, as 0 elsewhere. So
        g_T = sum over S containing T of w_S^2 / prod over i in S of d_i. Spaces of dimension
        zero (an attribute of one value in T) are left out. Cost O(sum 2^|S|), kept.
        """
        if "residuals" not in self._cache:
            found: dict[AttributeSet, float] = {}
            for S, w in zip(self.sets, self.weights, strict=True):
                share = w * w / prod(self.sizes[i] for i in S)
                wide = [i for i in S if self.sizes[i] > 1]
                for order in range(len(wide) + 1):
                    for T in combinations(wide, order):
                        found[T] = found.get(T, 0.0) + share
            self._cache["residuals"] = dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))
        out: dict[AttributeSet, float] = self._cache["residuals"]
        return out

    def explicit(self) -> Workload:
        """The same queries as a Workload over all n cells, each set a group of its own.

        Rows in the order of ``sets``, within one by its attributes with the last one fastest.
        Raises DataError above 2^27 non-zero entries.
        """
        _, n = self.shape
        if n * len(self.sets) > MATRIX_CAP:
            raise DataError(
                f"marginals: {len(self.sets)} sets over {spelled(n)} cells are too large to be written out (the cap is "
                f"{MATRIX_CAP} entries); keep them apart as marginals, or stack and weigh marginals only"
            )
        cell = np.arange(n).reshape(self.sizes)
        rows, groups = [], []
        for label, S in enumerate(self.sets):
            others = tuple(i for i in range(len(self.sizes)) if i not in S)
            by_row = np.transpose(cell, (*S, *others)).reshape(prod(self.sizes[i] for i in S), -1)
            count, length = by_row.shape
            start = np.arange(count + 1, dtype=np.int64) * length
            ones = np.ones(n, dtype=np.int64)
            rows.append(sparse.csr_array((ones, by_row.ravel(), start), shape=(count, n)))
            groups.append(np.full(count, label, dtype=np.int64))
        label_of = np.concatenate(groups)
        scale = np.asarray(self.weights)[label_of]
        span = sparse.csr_array(sparse.vstack(rows, format="csr"))
        return Workload(span, algebra.Diagonal(scale), groups=label_of, name=self.name or "marginals")

    def gram(self) -> Floats:
        """G = W^T W (n x n), dense. Raises DataError above 2^27 entries."""
        n = self.shape[1]
        if n * n > MATRIX_CAP:
            raise DataError(f"marginals: their Gram matrix would have {n} x {n} entries, above the cap of {MATRIX_CAP}")
        out = np.zeros((n, n))
        for S, w in zip(self.sets, self.weights, strict=True):
            part = np.full((1, 1), w * w)
            for i, d in enumerate(self.sizes):
                part = np.kron(part, np.eye(d) if i in S else np.ones((d, d)))
            out += part
        return out

    def matrix(self) -> Floats:
        """W (m x n), dense float64. Raises DataError above 2^27 entries."""
        m, n = self.shape
        if m * n > MATRIX_CAP:
            raise DataError(f"marginals: their matrix would have {m} x {n} entries, above the cap of {MATRIX_CAP}")
        return self.explicit().matrix()


def marginals(
    shape: Sequence[int],
    order: int | Iterable[int] | None = None,
    *,
    sets: Iterable[Iterable[int]] | None = None,
    weights: float | Sequence[float] | Mapping[AttributeSet, float] = 1.0,
) -> Marginals:
    """The marginals of the given ``order`` (or orders), or on the given ``sets`` of attributes.

    ``order=2``: all sets of exactly two attributes; ``order=(1, 2)``: of one and of two;
    ``sets=[(0, 1), (2,)]``: these. ``weights``: one number, one a set, or a mapping from sets.
    (Marginals and weighted data cubes: Li and Miklau 2013, section 5.1.) Cost O(number of sets).
    Raises DataError as ``Marginals`` and where both or none of ``order`` and ``sets`` are given.
    """
    if not isinstance(shape, Sequence | np.ndarray) or isinstance(shape, str):
        raise DataError("marginals: shape is the list of the sizes of the attributes")
    sizes = tuple(_whole(d, "each size of a shape") for d in shape)
    if (order is None) == (sets is None):
        raise DataError("marginals: give either the order of the marginals or their sets")
    if sets is not None:
        given = [tuple(S) if isinstance(S, Iterable) else (S,) for S in sets]
        chosen = [tuple(sorted(_whole(i, "an attribute") for i in S)) for S in given]
        label = f"marginals({len(chosen)} sets over {len(sizes)} attributes)"
    else:
        orders = sorted({_whole(o, "an order") for o in (order if isinstance(order, Iterable) else (order,))})
        if any(not 0 <= o <= len(sizes) for o in orders):
            raise DataError(f"marginals: an order must be between 0 and the {len(sizes)} attributes")
        if sum(comb(len(sizes), o) * 2**o for o in orders) > SUBSETS_CAP:
            raise DataError(
                f"marginals: sets of these orders have more than {SUBSETS_CAP} subsets; ask for lower orders"
            )
        chosen = [S for o in orders for S in combinations(range(len(sizes)), o)]
        label = f"marginals(order {', '.join(map(str, orders))} over {len(sizes)} attributes)"
    return Marginals(sizes, tuple(chosen), _weights(weights, chosen), label)


def data_cube(shape: Sequence[int], weights: float | Sequence[float] | Mapping[AttributeSet, float] = 1.0) -> Marginals:
    """All 2^k cuboids over k attributes, or those that a mapping {attributes: weight} names.

    ``weights``: one number, one for each order from 0 to k, or the mapping (Li and Miklau 2013, section 5.1).
    Raises DataError as ``marginals``.
    """
    if isinstance(weights, Mapping):
        found = marginals(shape, sets=list(weights), weights=weights)
        return Marginals(found.sizes, found.sets, found.weights, f"data_cube({len(found.sets)} cuboids)")
    k = len(shape) if isinstance(shape, Sequence | np.ndarray) else 0
    found = marginals(shape, order=range(k + 1))
    given: list[float] = np.asarray(weights, dtype=np.float64).ravel().tolist()
    if len(given) not in (1, k + 1):
        raise DataError(f"marginals: {len(given)} weights for orders 0 to {k}; give one number or one an order")
    own = tuple(given[0] if len(given) == 1 else given[len(S)] for S in found.sets)
    return Marginals(found.sizes, found.sets, own, f"data_cube({k} attributes)")


def spelled(n: int) -> str:
    """A number of cells for a message: its digits, or its order where they are many."""
    return str(n) if n < 10**15 else f"about 10^{int((n.bit_length() - 1) * 0.30103)}"


def _whole(value: object, what: str) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DataError(f"marginals: {what} must be a whole number") from None


def _weights(
    weights: float | Sequence[float] | Mapping[AttributeSet, float], sets: Sequence[AttributeSet]
) -> tuple[float, ...]:
    if isinstance(weights, Mapping):
        given = {tuple(sorted(S)): float(w) for S, w in weights.items()}
        if set(given) != set(sets):
            raise DataError("marginals: weights and sets differ; give one weight for each set")
        return tuple(given[S] for S in sets)
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim == 0:
        return (float(values),) * len(sets)
    return tuple(float(w) for w in values.ravel())
