"""Spectral functions of symmetric matrices, folded in half where they are mirror-symmetric.

A matrix with M = J M J (J the reversal) splits into an even and an odd part of half the
order; two eigendecompositions of order n/2 cost a quarter of one of order n.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from dpsql.arrays import Floats


class Spectrum:
    """Powers of a symmetric positive definite M (n x n); ``mirror`` promises M = J M J up to rounding."""

    def __init__(self, M: Floats, mirror: bool) -> None:
        self._n = M.shape[0]
        self._mirror = mirror and self._n > 3
        parts = self._fold(M) if self._mirror else [M]
        self._parts = []
        for part in parts:
            s, V = linalg.eigh(part, driver="evd", check_finite=False)
            self._parts.append((np.maximum(s, max(float(s[-1]), 1e-300) * 1e-15), V))

    def _fold(self, M: Floats) -> list[Floats]:
        h = self._n // 2
        A, BJ = M[:h, :h], M[:h, self._n - h :][:, ::-1]
        odd = A - BJ
        if self._n % 2 == 0:
            return [A + BJ, odd]
        c = np.sqrt(2.0) * M[:h, h]
        even = np.block([[A + BJ, c[:, None]], [c[None, :], M[h : h + 1, h : h + 1]]])
        return [even, odd]

    def trace_power(self, p: float) -> float:
        return float(sum((s**p).sum() for s, _ in self._parts))

    def diagonal_power(self, p: float) -> Floats:
        found = [np.einsum("ij,ij,j->i", V, V, s**p) for s, V in self._parts]
        if not self._mirror:
            return np.asarray(found[0])
        even, odd = found
        h = self._n // 2
        half = 0.5 * (even[:h] + odd)
        return np.concatenate([half, even[h:], half[::-1]])

    def power(self, p: float) -> Floats:
        found = [(V * s**p) @ V.T for s, V in self._parts]
        if not self._mirror:
            return np.asarray(found[0])
        even, odd = found
        n, h = self._n, self._n // 2
        out = np.empty((n, n))
        A, B = 0.5 * (even[:h, :h] + odd), 0.5 * (even[:h, :h] - odd)[:, ::-1]
        out[:h, :h], out[:h, n - h :] = A, B
        out[n - h :, :h], out[n - h :, n - h :] = B[::-1, ::-1], A[::-1, ::-1]
        if n % 2:
            middle = even[:h, h] / np.sqrt(2.0)
            out[:h, h] = out[h, :h] = middle
            out[n - h :, h] = out[h, n - h :] = middle[::-1]
            out[h, h] = even[h, h]
        return out
