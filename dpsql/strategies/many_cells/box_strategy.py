"""Strategies for boxes: cells too many to list, a certified optimum over some of them, norms over all.

The dual iteration (``dpsql.strategies.gaussian.optimal``) runs on an active set of columns, as in
``dpsql.strategies.gaussian.optimal``; here the scan that finds violated columns is a sweep
(``dpsql.workloads.cells.boxes``), first over some of the states, and over all of them at the end. The lower bound from
the active columns holds for the whole problem: fewer columns are a weaker constraint. The strategy is scaled by its
largest norm over all columns, in exact integers, so that the gap is honest however early the search stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from math import sqrt
from time import monotonic

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Floats, Ints, Matrix
from dpsql.common.numerics import AT_ONCE, SEED
from dpsql.errors import DataError, InternalError
from dpsql.linalg.basis import Basis, choose_basis
from dpsql.linalg.forms import RANK_CAP, row_squares
from dpsql.linalg.long_calls import eigh
from dpsql.strategies.core.ascent import ascend, exchange
from dpsql.strategies.core.certificate import nuclear_norm
from dpsql.strategies.core.integer import Piece, finish
from dpsql.strategies.core.limits import RIDGE, ROUNDS
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.core.reduce import cholesky
from dpsql.strategies.core.symmetric import DualState
from dpsql.workloads.cells.boxes import Boxes, BoxIntegers, BoxWorkload

METHODS = ("optimal", "workload")
WORK = 4.0e12
"""Multiplications that a search without a time limit may take: two or three minutes of one core."""

_STEPS = 12  # dual steps between two scans
_SOME = 8192  # states that an early scan looks at
_UNSEEN = 1.1  # by which weights that were not scanned are thought worse than their own columns show
_CLOSE = 0.02  # gap from which every scan looks at all states
_FINAL = 2.7  # what follows the search, in scans of single precision


@dataclass(frozen=True, eq=False, repr=False)
class BoxStrategy(MatrixStrategy):
    """B = mixing @ basis over the counts of boxes (v x blocks), of which one row moves many.

    Neighbouring relation: one record more or less, which moves x by one of the columns of ``boxes``. ``l1`` and
    ``l2_squared`` are over all of them (``Boxes.norms``); ``contributions`` are some.
    """

    boxes: Boxes | None = field(default=None)

    @property
    def reduced(self) -> None:
        """None: it is planned whole."""
        return None

    @property
    def measured(self) -> BoxIntegers:
        if self.boxes is None:
            raise InternalError("strategy: boxes without boxes")
        return BoxIntegers(self.mixing, self.basis, boxes=self.boxes)


@dataclass(frozen=True)
class Effort:
    """When a search ends: at a gap of ``tolerance``, at ``deadline`` in seconds of ``clock``, or, where that is
    infinite, after ``work`` multiplications. ``say`` hears how far it is.
    """

    tolerance: float
    deadline: float
    say: Callable[[str], None]
    clock: Callable[[], float] = monotonic
    work: float = WORK


def box_strategy(W: BoxWorkload, noise: str, method: str, effort: Effort) -> BoxStrategy:
    """The better of a certified search and measuring every block, for Gaussian noise; the latter for Laplace noise.

    The search leaves the time that its last scan will take, and does not begin where there is not as much before the
    deadline; where it ends for want of time or work, it ends with the gap reached. Cost of a step: O(v^3 + v^2 k), v
    blocks and some 10 v active columns; of a scan as ``Boxes.squares``. Raises DataError for other methods and for
    more than 6000 independent blocks.
    """
    if method not in ("auto", *METHODS) or (noise == "laplace" and method == "optimal"):
        raise DataError(f"strategy: {method} is not planned over {W.boxes.pairs:,} sets of rows; use auto, or split it")
    plain = _blocks_alone(W, noise)
    effort.say(f"workload: error {plain.expected:.6g}")
    if noise == "laplace":
        return plain
    chosen = choose_basis(W.span, W.inner)
    if chosen.rows.shape[0] > RANK_CAP:
        raise DataError(
            f"strategy: the workload has rank {chosen.rows.shape[0]}, above the cap of {RANK_CAP}; split the batch"
        )
    search = _Search(W, chosen, effort)
    found = search.run()
    lower = search.lower()
    drafts = [_with(plain, lower_bound=lower)]
    if found is not None and method != "workload":
        drafts.append(_integers(W, search.piece(found), effort.tolerance, lower))
        effort.say(f"optimal: error {drafts[-1].expected:.6g}")
    best = min(drafts, key=lambda S: S.expected)
    considered = tuple((S.method, S.expected) for S in reversed(drafts))
    return _with(best, considered=considered)


def _with(S: MatrixStrategy, **changed: object) -> BoxStrategy:
    """The strategy with other values."""
    held = {f.name: getattr(S, f.name) for f in fields(S) if f.name != "_cache"}
    return BoxStrategy(**{**held, **changed})


def _blocks_alone(W: BoxWorkload, noise: str) -> BoxStrategy:
    """Every block that a query uses, measured once: its sensitivity is the largest number of them at one place."""
    m = W.shape[1]
    used = np.unique(sparse.csr_array(W.span).indices)
    basis = sparse.csr_array((np.ones(used.size, dtype=np.int64), (np.arange(used.size), used)), shape=(used.size, m))
    mixing = np.eye(used.size, dtype=np.int64)
    l1, l2 = W.boxes.norms(basis)
    square = l2 if noise == "gaussian" else l1**2
    error = float(square * (row_squares(W.rows) @ W.scale**2))
    return BoxStrategy(
        "workload", noise, mixing, basis, W.contributions, l1, l2, error, None, (("workload", error),), W, boxes=W.boxes
    )


def _integers(W: BoxWorkload, piece: Piece, tolerance: float, lower: float) -> BoxStrategy:
    """``piece`` in integers, at the sensitivity over all columns."""
    norm = sqrt(piece.real_norms()[1])
    piece = Piece(piece.rows, piece.root / norm, piece.columns, piece.gram)
    target = piece.trace(piece.root)
    S = finish(W, "optimal", "gaussian", (piece,), target, tolerance, lower, (("optimal", target),))
    l1, l2 = BoxIntegers(S.mixing, S.basis, boxes=W.boxes).norms(np.zeros((0, 0), dtype=np.int64))
    return _with(S, boxes=W.boxes, l1=l1, l2_squared=l2, expected=S.expected * (l2 / S.l2_squared))


class _Single:
    """Columns U (v x N) of which products are taken in float32: good to 1e-5, in half the time."""

    def __init__(self, U: Array) -> None:
        self._U = U

    def gram(self, weights: Floats | None = None) -> Floats:
        weighed = self._U if weights is None else self._U * weights.astype(np.float32)
        return np.asarray(weighed @ self._U.T, dtype=np.float64)

    def variances(self, root: Matrix | None = None) -> Floats:
        turned = self._U if root is None else root.T.astype(np.float32) @ self._U
        return np.asarray(np.einsum("ij,ij->j", turned, turned), dtype=np.float64)


class _Search:
    """Dual weights on active pairs of a state and a region, raised until the columns of all pairs agree."""

    def __init__(self, W: BoxWorkload, chosen: Basis, effort: Effort) -> None:
        self.work = effort.work if effort.deadline == np.inf else np.inf
        self.boxes, self.basis = W.boxes, chosen.rows
        self.gram = chosen.gram(W.inner)
        self.R = cholesky(self.gram)
        # U y for a column of blocks y is R basis y.
        self.root = np.asarray(self.R @ chosen.rows.toarray().astype(np.float64))
        self.tolerance, self.deadline, self.say, self.clock = (
            effort.tolerance,
            effort.deadline,
            effort.say,
            effort.clock,
        )
        self.rng = np.random.default_rng(SEED)
        self.some = _SOME
        self.changes = int(np.count_nonzero(np.diff(self.boxes.holds, axis=1)))
        # After the search all states are scanned once more, in double precision, and the strategy is rounded.
        self.reserve = _FINAL * self._scan_seconds()
        self.active = self.boxes.spread((10 if self._open() else 2) * len(self.boxes))
        self.lam: Floats = np.full(self.active.size, 1.0 / self.active.size)
        # The weights of the highest bound, and those of the strategy of least error: not always the same.
        self.best: tuple[float, Ints, Floats] = (0.0, self.active, self.lam)
        self.least: tuple[float, Ints, Floats] = (np.inf, self.active, self.lam)

    def run(self) -> Floats | None:
        """K^-1/2 of the weights of least error, None where there was no time for a search."""
        inner = 0.1
        if not self._open():
            U = self._columns(self.active, np.float32)
            state = DualState([(1.0, _Single(U))], self.lam, floor=RIDGE)
            self.best = (state.t, self.active, self.lam)
            return None
        for round_ in range(ROUNDS):
            U = self._columns(self.active, np.float32)
            state, self.lam, steps = ascend(
                partial(DualState, [(1.0, _Single(U))], floor=RIDGE),
                *(self.lam, inner, self.deadline - self.reserve, _STEPS),
                clock=self.clock,
            )
            v = len(U)
            self.work -= steps * (2.0 * v * v * U.shape[1] + 10.0 * v**3)
            if state.t > self.best[0]:
                self.best = (state.t, self.active, self.lam)
            if not self._open():
                # What other columns this state violates is not known: a little more than it violates of its own.
                self._keep(_UNSEEN * state.upper())
                break
            began = self.clock()
            looked, pairs, ratio = self._scan(state)
            number = self.boxes.alive.shape[1]
            self.reserve = _FINAL * (self.clock() - began) * number / looked
            self.work -= float(looked) * len(self.boxes) * self.changes
            top = float(ratio.max(initial=1.0))
            self._keep(state.t**2 * top)
            self.say(f"optimal: round {round_ + 1}, {self.active.size} columns, gap about {top - 1.0:.2g}")
            if top <= 1.0 + 0.7 * self.tolerance and looked == self.boxes.alive.shape[1]:
                break
            if top <= 1.0 + _CLOSE:
                self.some = self.boxes.alive.shape[1]
            inner = max(0.3 * self.tolerance, min(0.1, 0.4 * (top - 1.0)))
            self._exchange(state.q / state.t, pairs, ratio)
        return self._final()

    def _keep(self, upper: float) -> None:
        """The present weights make the strategy if ``upper``, its error as far as it is known, is the least so far."""
        if upper < self.least[0]:
            self.least = (upper, self.active, self.lam)

    def _open(self) -> bool:
        """Is there time, and work, to go on?"""
        return self.work > 0 and self.clock() < self.deadline - self.reserve

    def _scan_seconds(self) -> float:
        """What a scan of all states in single precision will take: as the quickest of a few parts of it."""
        number = self.boxes.alive.shape[1]
        ticks, sizes = [], []
        for _, part in self.boxes.squares(self.root, np.arange(min(number, AT_ONCE)), single=True):
            ticks.append(self.clock())
            sizes.append(len(part))
        each = [(after - before) / size for before, after, size in zip(ticks, ticks[1:], sizes[1:], strict=False)]
        return float(min(each, default=0.0) * number)

    def _columns(self, pairs: Ints, kind: type[np.floating]) -> Array:
        return np.asarray(self.root.astype(kind) @ self.boxes.sets(pairs).astype(kind))

    def _scan(self, state: DualState) -> tuple[int, Ints, Floats]:
        """(states looked at, pairs with q > t, their q / t)."""
        number = self.boxes.alive.shape[1]
        states = None
        if self.some < number:
            states = np.sort(self.rng.choice(number, size=self.some, replace=False))
        size = self.boxes.holds.shape[1]
        pairs, ratios = [], []
        for start, part in self.boxes.squares(state.halves[0] @ self.root, states, single=True):
            rows, regions = np.nonzero(part > state.t)
            number_of = start + rows if states is None else states[start + rows]
            pairs.append(number_of * size + regions)
            ratios.append(part[rows, regions] / state.t)
        return (number if states is None else self.some), np.concatenate(pairs), np.concatenate(ratios)

    def _exchange(self, ratio: Floats, pairs: Ints, violated: Floats) -> None:
        """Columns without weight leave; the worst of the violated, and some at random, join, equal ones once."""
        stay, join, weights = exchange(self.lam, ratio, violated, (len(self.R), 6 * len(self.R)), self.rng)
        joined = np.concatenate([self.active[stay], pairs[join]])
        packed = np.packbits(self.boxes.sets(joined), axis=0).T
        _, first = np.unique(packed, axis=0, return_index=True)
        first = np.sort(first)
        self.active, self.lam = joined[first], weights[first] / weights[first].sum()

    def _final(self) -> Floats:
        _, active, lam = self.least
        U = self._columns(active, np.float64)
        s, V = eigh((U * lam) @ U.T)
        return np.asarray((V / np.sqrt(np.maximum(s, s[-1] * RIDGE))) @ V.T)

    def lower(self) -> float:
        """The bound that the weights prove, below its exact value by rounding at most."""
        _, active, lam = self.best
        columns = sparse.csc_array(self.basis @ self.boxes.columns(active))
        return float(nuclear_norm(self.gram, columns, lam) ** 2)

    def piece(self, metric: Floats) -> Piece:
        """The strategy of these weights; its columns are those of most weight, which serve to round it."""
        M = self.R.T @ metric @ self.R
        _, active, lam = self.least
        heavy = np.sort(np.argsort(-lam, kind="stable")[: self.basis.shape[0]])
        columns = sparse.csc_array(self.basis @ self.boxes.columns(active[heavy]))
        return Piece(self.basis, cholesky(M), columns, self.gram)
