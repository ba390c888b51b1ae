"""What is measured: an integer matrix B, known by what it does rather than by its entries.

A measurement needs of B only that it can be multiplied with exact data, how far one row of a table can move the
product, and a name for the ledger. Where a strategy is one matrix, B = mixing @ basis; where it is many small ones on
the marginals of histograms (``dpsql.workloads.compile.kronecker``), B is never written out.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Matrix
from dpsql.linalg.exact import product, product_bits, word_width
from dpsql.linalg.forms import SMALL, is_sparse
from dpsql.linalg.norms import column_norms, largest_norm
from dpsql.workloads.cells.corners import corners_of
from dpsql.workloads.expr.regions import IntArray


class Integers(Protocol):
    """An integer matrix B (p x n). ``entry`` below is a layout's: the entries of x that its cells fill."""

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n entries of x)."""
        ...

    @property
    def written(self) -> tuple[Matrix, Csr] | None:
        """(mixing, basis) with B = mixing @ basis, as ``Factored`` has them; None where B is never written out."""
        ...

    def check(self) -> None:
        """DataError where a product could not be formed exactly; depends on B alone."""
        ...

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """B x exactly, for |x| < 2^bits, a public bound."""
        ...

    def norms(self, entry: IntArray) -> tuple[int, int]:
        """(L1, squared L2) norm of B c, exact or above, the largest over all changes c that one row can make."""
        ...

    def largest_norm(self, entry: IntArray, order: int) -> float:
        """L1 (order 1) or squared L2 (order 2) of ``norms`` by another way, right to a relative 1e-5."""
        ...

    def share_no_measurement(self, entries: Sequence[IntArray]) -> bool:
        """Whether no measurement reaches the entries of two of them; False where that is not plain."""
        ...

    def digest(self) -> str:
        """SHA-256 of the integers that are measured."""
        ...


@dataclass(frozen=True, eq=False)
class Factored:
    """B = mixing @ basis: ``mixing`` (p x v, dense or csr) and ``basis`` (v x n, csr), int64."""

    mixing: Matrix = field(repr=False)
    basis: Csr = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.mixing.shape[0], self.basis.shape[1])

    @property
    def written(self) -> tuple[Matrix, Csr] | None:
        return self.left, self.basis

    @functools.cached_property
    def left(self) -> Matrix:
        """``mixing``, as csr where it is large and mostly zeros."""
        held = self.mixing
        if is_sparse(held) or held.size <= SMALL or 32 * np.count_nonzero(held) > held.size:
            return held
        return sparse.csr_array(held)

    def check(self) -> None:
        """Both products leave room for words of the data."""
        for matrix in (self.mixing, self.basis):
            word_width(matrix)

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """mixing @ (basis @ x), in words of x that cannot overflow."""
        return product(self.left, product(self.basis, x, bits), product_bits(self.basis, bits))

    def norms(self, entry: IntArray) -> tuple[int, int]:
        """Exact, over the corners of what one row can do (``dpsql.workloads.cells.corners``)."""
        corners = corners_of([entry], self.shape[1])
        if corners.shape[1] == 0:
            return 0, 0
        return column_norms(self.left, sparse.csc_array(self.basis @ corners))

    def largest_norm(self, entry: IntArray, order: int) -> float:
        """In float32 over the same corners."""
        corners = corners_of([entry], self.shape[1])
        return largest_norm(self.left, sparse.csc_array(self.basis @ corners), order)

    def share_no_measurement(self, entries: Sequence[IntArray]) -> bool:
        """Looks at where entries are not zero in either matrix, so that a sum that cancels counts as reached."""
        if len(entries) == 1:
            return True
        held = sparse.csc_array(abs(sparse.csr_array(self.basis)))
        left = sparse.csr_array(self.left).astype(np.int64)
        left.data = np.not_equal(left.data, 0).astype(np.int64)
        reached = np.zeros(left.shape[0], dtype=np.int64)
        for entry in entries:
            touched = np.asarray(held[:, np.unique(entry[entry >= 0])].sum(axis=1)).ravel() != 0
            reached += (left @ touched.astype(np.int64)) > 0
        return bool(reached.max(initial=0) <= 1)

    def digest(self) -> str:
        """Of both matrices as they are kept, dense or sparse."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        matrices: tuple[Matrix, Matrix] = (self.mixing, self.basis)
        for matrix in matrices:
            parts = [matrix]
            if is_sparse(matrix):
                held = matrix.tocsr()
                held.sort_indices()
                parts = [held.indptr, held.indices, held.data]
            digest.update(repr(matrix.shape).encode())
            for part in parts:
                digest.update(np.asarray(part, dtype=np.int64).tobytes())
        return digest.hexdigest()
