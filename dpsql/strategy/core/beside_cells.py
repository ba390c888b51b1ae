"""A strategy of every cell and few sums beside them, A = [D; T] with D diagonal: least squares without a factor of A.

With X = C D^-1, Y = T D^-1 and S = I + Y Y^T (p x p for the p rows of T) Woodbury's identity gives, M = A^T A,

    C M^-1 A^T = [X - X Y^T S^-1 Y, X Y^T S^-1],    tr(G M^-1) = tr(D^-1 G D^-1) - tr(S^-1 Y D^-1 G D^-1 Y^T):

products of O(p v^2) where a factor of A takes O(v^3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from dpsql.arrays import Floats

_FEW = 0.5  # rows of T a column, at most
_LEFT = 1e-3  # of the first trace: less that is left of it shows its rounding


@dataclass(frozen=True, eq=False)
class BesideCells:
    """``diagonal`` (v,) of D, ``scaled`` (p x v) Y, and the lower Cholesky factor ``lower`` (p x p) of S."""

    diagonal: Floats
    scaled: Floats
    lower: Floats

    @classmethod
    def of(cls, A: Floats) -> BesideCells | None:
        """None for A (p + v x v) of another form."""
        v = A.shape[1]
        diagonal = A.diagonal()
        if not v < A.shape[0] <= (1.0 + _FEW) * v or not diagonal.all() or np.count_nonzero(A[:v]) > v:
            return None
        scaled = A[v:] / diagonal
        S = scaled @ scaled.T
        S.flat[:: S.shape[0] + 1] += 1.0
        return cls(diagonal, scaled, linalg.cholesky(S, lower=True))

    def trace(self, gram: Floats) -> float | None:
        """tr(gram M^-1); None where rounding may show in it."""
        first = float(np.sum(np.diag(gram) / self.diagonal**2))
        half = linalg.solve_triangular(self.lower, self.scaled, lower=True) / self.diagonal
        found = first - float(np.sum((half @ gram) * half))
        return found if found > _LEFT * first else None

    def half(self, coords: Floats) -> Floats:
        """``answers``: C M^-1 C^T is its product with its transpose."""
        return self.answers(coords)

    def answers(self, coords: Floats) -> Floats:
        """C M^-1 A^T (q x v + p) for C = ``coords`` (q x v)."""
        X = coords / self.diagonal
        beside = linalg.cho_solve((self.lower, True), (X @ self.scaled.T).T).T
        return np.concatenate([X - beside @ self.scaled, beside], axis=1)
