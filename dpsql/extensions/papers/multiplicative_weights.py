"""A table made up to agree with noisy answers: multiplicative weights, from a transcript. Post-processing, free.

The state is w (R,) >= 0 over the rays of the possible data (a ray: a row in a cell, at a corner of its sums), whose
mass is a number of rows. It begins even and is pulled towards one measured answer after the other (Hardt, Ligett and
McSherry 2012, Figure 1, with its replays: every pass goes over all answers so far):

    w_r <- w_r exp(a_r (answer - a.w) / (2 mass)), then scaled back to the mass,      a the query, |a_r| <= 1.

Which query was measured when, and what came out, is the transcript: whole numbers (total, i_1, answer_1, i_2, ...).
All else follows from it and from public values, so the same function serves the measurement, which needs the answers of
w between two queries, and whoever reads the release later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Sparse
from dpsql.errors import InternalError

PASSES = 8
"""Passes over all answers so far, after each new one."""
_LEAST = 1e-12
"""No ray falls below this share of an even one, so that a noisy answer of 0 can be taken back."""


@dataclass(frozen=True, eq=False)
class Model:
    """``queries`` (p x R csr, float): the measured quantities over the rays, query 0 the number of rows.

    ``norms`` (p,): the largest |entry| of each, > 0. ``scale``: L, what the transcript's answers are divided by.
    """

    queries: Csr = field(repr=False)
    norms: Floats = field(repr=False)
    scale: int

    def start(self, total: int) -> Fit:
        """The even state whose mass is the noisy number of rows, 1 at least."""
        return Fit(self, max(total / self.scale, 1.0))

    def replayed(self, transcript: Sequence[int]) -> Fit:
        """The state after a transcript. Raises InternalError where that is none."""
        if len(transcript) % 2 != 1:
            raise InternalError("a transcript is a total and pairs of a query and its answer")
        fit = self.start(transcript[0])
        for number, answer in zip(transcript[1::2], transcript[2::2], strict=True):
            fit.learn(number, answer)
        return fit


class Fit:
    """The state w of a ``Model`` while answers come in."""

    def __init__(self, model: Model, mass: float) -> None:
        self.model = model
        self._mass = mass
        self._learnt: list[tuple[int, float]] = []
        rays = model.queries.shape[1]
        self.w: Floats = np.full(rays, mass / rays)
        self._sum = mass

    def learn(self, number: int, answer: int) -> None:
        """Take in one noisy answer (in units of 1/L) to query ``number``."""
        model = self.model
        if not 0 < number < model.queries.shape[0]:
            raise InternalError("a transcript names a query that there is not")
        self._learnt.append((number, answer / model.scale / float(model.norms[number])))
        for _ in range(PASSES):
            for query, aim in self._learnt:
                self._pull(query, aim)
            self.w *= self._mass / float(self.w.sum())
            np.maximum(self.w, _LEAST * self._mass / len(self.w), out=self.w)
            self._sum = float(self.w.sum())

    def _pull(self, query: int, aim: float) -> None:
        """One step; ``w`` is scaled back to the mass after each pass alone, so that a step costs what the query has."""
        held = self.model.queries
        part = slice(held.indptr[query], held.indptr[query + 1])
        at, a = held.indices[part], held.data[part] / self.model.norms[query]
        before = self.w[at]
        # Beyond what the mass allows an answer says no more than that; this keeps the exponent small, too.
        off = float(np.clip(aim, -self._mass, self._mass)) - float(a @ before) * (self._mass / self._sum)
        after = before * np.exp(a * (off / (2 * self._mass)))
        self._sum += float(after.sum()) - float(before.sum())
        self.w[at] = after

    def answer(self, number: int) -> float:
        """The value of one query on w, in natural units."""
        held = self.model.queries
        part = slice(held.indptr[number], held.indptr[number + 1])
        return float(held.data[part] @ self.w[held.indices[part]])

    def answers(self) -> Floats:
        """The queries' values on w (p,), in natural units."""
        return np.asarray(self.model.queries @ self.w)

    def whole_answers(self) -> list[int]:
        """``answers`` in units of 1/L, rounded to whole numbers (p,)."""
        scale = self.model.scale
        if scale == 1:
            return [int(value) for value in np.rint(self.answers()).tolist()]
        return [round(value * scale) if scale < 2**40 else int(value) * scale for value in self.answers().tolist()]


def model_of(candidates: Csr, rays: Sparse, scale: int) -> Model:
    """The model of integer ``candidates`` (p x n) over ``rays`` (n x R)."""
    queries = sparse.csr_array(sparse.csr_array(candidates) @ rays).astype(np.float64)
    queries.sort_indices()
    norms = np.asarray(abs(queries).max(axis=1).todense(), dtype=np.float64).ravel()
    if not (norms > 0).all():
        raise InternalError("a candidate that no row can change has nothing to measure")
    return Model(queries, norms, scale)
