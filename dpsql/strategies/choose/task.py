"""One selection: what each method makes of a workload, and which methods are worth their time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from time import monotonic

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints, Sparse
from dpsql.errors import DataError, InternalError
from dpsql.linalg.columns import columns_at, distinct_columns
from dpsql.linalg.ranges import ends_of
from dpsql.registry import resolve, strategies
from dpsql.strategies.choose.very_wide import least_sizes
from dpsql.strategies.core.base import PURE, Terms
from dpsql.strategies.core.blocks import NORM_BLOCKS
from dpsql.strategies.core.certificate import Certificate, equal_weights_bound, of_blocks, of_factors, single_weights
from dpsql.strategies.core.copies import spread
from dpsql.strategies.core.integer import Piece, check_entries, normalise
from dpsql.strategies.core.parts import split, union_piece
from dpsql.strategies.core.reduce import Block, cholesky, distinct_cells, reduce_workload
from dpsql.strategies.core.simple import (
    cell_gram,
    cells_of,
    identity_piece,
    image_columns,
    product_piece,
    single_rows,
    workload_error,
    workload_piece,
)
from dpsql.strategies.core.time_left import (
    LateError,
    TimeLeft,
    cells_seconds,
    finish_seconds,
    parts_seconds,
    workload_seconds,
)
from dpsql.strategies.gaussian.optimal import solve
from dpsql.strategies.pure import norm_blocks, p_identity, row_mixing
from dpsql.strategies.pure.pattern_blocks import pattern_blocks
from dpsql.workloads.families.matrix import Workload

CELLS_AUTO, _CELLS_ASKED = 2048, 20_000  # cells up to which p-identity is tried
_CELLS_OF_RANGES = 4096  # the same where all queries are ranges of the cells in their order
WORK = 3.0e10  # multiplications that one search without a certificate may take, one to two seconds
_ROOM = 2e7  # rank squared times cells up to which mixings are searched
_IN_BLOCKS = 2**22  # rows times distinct columns up to which rows are gathered into blocks
_MANY_CHANGES = 2**14  # rows times changes of a unit from which less is tried of what was planned source by source
_SOME_CELLS = 2048  # that show how large the error of all is
_APART = ("p-identity", "union-of-parts")  # which do not see that sources are moved together
_MANY_QUERIES = 1.0e8  # queries x rank^2 from which a formula may rule out that they are measured as asked

FORMER_NAMES = {"low-rank": "row-mixing"}  # by which select and plans still know a strategy
CATALOGUE = (
    "optimal",
    "identity",
    "workload",
    "p-identity",
    "row-mixing",
    "union-of-parts",
    NORM_BLOCKS,
)
"""The strategies of the kernel; ``catalogue`` has those of extensions, too."""
LINE = "line"  # what a strategy needs that is for cells in an order
BY_SOURCE = "by-source"  # how teams of sources are planned (``by_source``), which is no method to ask for
NO_TIME = "no time for "
"""How what hears of progress is told of a method that was worth its time and is left out."""
Draft = tuple[float, str, tuple[Piece, ...]]
_QUICK = ("identity", "workload")  # methods without a search: computed even past the deadline


def catalogue() -> tuple[str, ...]:
    """The strategies that ``select`` may name: the kernel's, then those that extensions register."""
    return *CATALOGUE, *strategies()


def needs(name: str) -> str:
    """What the strategy of that name needs: ``PURE`` noise, cells on a ``LINE``, or nothing ("")."""
    return PURE if name == NORM_BLOCKS else strategies()[name].needs if name in strategies() else ""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The certified Gaussian optimum: ``pieces``, lower <= least error <= upper, and the weights that prove it.

    ``searched``: False where there was no time for a step of any search, and all cells are measured.
    """

    pieces: tuple[Piece, ...]
    upper: float
    lower: float
    certificate: Certificate
    searched: bool = True


@dataclass(eq=False)
class Task:
    """One selection: the workload, its limits, and what several methods share.

    ``in_blocks``: with "laplace", whether rows may be measured in blocks, too (noise "pure" of ``select``).
    ``turned``: what a unit changes adds up over cells, so that mixings are searched from several turns.
    ``known``: the least error of the methods that were tried before; a search that cannot come below it ends.
    ``source_pieces``: of each source of a unit by itself, of sensitivity 1 together, from which rows are turned.
    """

    W: Workload
    noise: str
    tolerance: float
    time: TimeLeft
    say: Callable[[str], None]
    work: float = WORK
    turned: bool = False
    in_blocks: bool = False
    known: float = np.inf
    source_pieces: tuple[Piece, ...] = ()
    _blocks: tuple[Block, ...] | None = None
    _optimum: Optimum | None = None
    _parts: tuple[Workload, ...] | None = None

    @property
    def deadline(self) -> float:
        """Of searches, in monotonic seconds."""
        return self.time.deadline

    @property
    def finish(self) -> float:
        """Seconds that rounding and reconstruction will take; 0 where time is not limited."""
        return 0.0 if self.time.last == np.inf else finish_seconds(self.blocks(), self.W)

    def seconds(self, name: str) -> float:
        """What the methods that take long over large matrices need besides their steps; 0 for others, and untimed."""
        if self.time.last == np.inf:
            return 0.0
        if name == "workload":
            return self.finish + workload_seconds(self.blocks(), self.W)
        if name == "union-of-parts":
            cells = sum(distinct_cells(part).keep.size for part in self.parts())
            return self.finish + parts_seconds(cells, sum(block.rank * block.count for block in self.blocks()))
        return self.finish + cells_seconds(self.blocks()) if name == "p-identity" else 0.0

    def below(self, error: float) -> None:
        """DataError for an ``error`` above what is known."""
        if error > self.known:
            raise DataError("strategy: another plan of the batch is known to have less error")

    def blocks(self) -> tuple[Block, ...]:
        if self._blocks is None:
            self._blocks = reduce_workload(self.W, self.time.deadline, self.time.last)
        return self._blocks

    def parts(self) -> tuple[Workload, ...]:
        if self._parts is None:
            self._parts = split(self.W)
        return self._parts

    def worthwhile(self, name: str, drafts: list[Draft]) -> bool:
        """Is the method worth its time when nobody asked for it?"""
        if self.noise == "gaussian":
            return name in ("identity", "workload") or (name == "optimal" and self.optimum().searched)
        registered = strategies()
        if name in registered and (self.work <= WORK or not registered[name].tried_with_effort):
            return False  # p-identity starts from the weighted hierarchy; few of the others ever won
        start = self._start if name in _APART or name == NORM_BLOCKS else None
        if start is not None and (name in _APART or max(start.blocks) == 1):
            return False
        if name == "union-of-parts":
            return len(self.parts()) > 1
        if self.very_wide:
            return name == "identity" and self._cell_by_cell(min((error for error, _, _ in drafts), default=np.inf))
        if name == NORM_BLOCKS:
            wide = max((b.rank * b.columns.shape[1] for b in self.blocks() if not b.solo), default=0)
            if not self.in_blocks or not 0 < wide <= _IN_BLOCKS:
                return False
            (block, *more) = self.blocks()
            return start is not None or bool(more) or block.count > 1 or not norm_blocks.too_large(block, self.known)
        if all(b.solo for b in self.blocks()):
            return name in ("identity", "workload")
        cells = self.cells
        rank = max(b.rank for b in self.blocks() if not b.solo)
        if name == "identity" and drafts and cells > _CELLS_ASKED:
            return self._cell_by_cell(min(error for error, _, _ in drafts))
        if name == "p-identity":
            return bool(cells <= CELLS_AUTO or (cells <= _CELLS_OF_RANGES and self._of_ranges()))
        if name == "workload" and drafts and drafts[0][0] <= self._workload_error():
            return False
        if name == "workload" and cells > _CELLS_ASKED and len(self.parts()) > 1:
            return False  # union-of-parts weighs the queries of each part at least as well
        if name in ("optimal", "row-mixing") or name in registered:
            # At nearly full rank the mixing has no room that p-identity does not have.
            room = rank * rank * cells
            return bool(room <= 1e5 or (2 * rank <= cells and room <= _ROOM))
        return True

    @functools.cached_property
    def very_wide(self) -> bool:
        """Is W, by a sample, so wide that ``worthwhile`` says no of all but its parts and its cells?"""
        if self.deadline < np.inf or self.source_pieces or self.work > WORK or self.W.units is not None:
            return False
        rank, cells = least_sizes(self.W)
        wide = cells > _CELLS_ASKED and rank * cells > _IN_BLOCKS and rank * rank * cells > _ROOM
        return wide and len(self.parts()) > 1

    @property
    def cells(self) -> int:
        """The columns of the widest problem; 0 where all are single rows."""
        return max((b.columns.shape[1] for b in self.blocks() if not b.solo), default=0)

    def _of_ranges(self) -> bool:
        return ends_of(sparse.csr_array(columns_at(self.W.span, distinct_cells(self.W).keep))) is not None

    def _cell_by_cell(self, rival: float) -> bool:
        """May every cell measured have an error below ``rival``? It is ||W||_F^2 over the distinct cells, at least."""
        diagonal, few = self.W.inner.diagonal(), np.arange(0, self.W.shape[1], self.W.shape[1] // _SOME_CELLS + 1)
        if diagonal is None:
            return True
        some = columns_at(self.W.span, few)
        if _squares(some, distinct_columns(some).keep, diagonal) >= rival:
            return False
        return _squares(self.W.span, distinct_cells(self.W).keep, diagonal) < rival

    def _workload_error(self) -> float:
        """The error of "workload" where queries are very many; 0 for few."""
        many = max((float(self.W.shape[0]) * b.rank**2 for b in self.blocks()), default=0.0) >= _MANY_QUERIES
        return workload_error(self.W) if many else 0.0

    def plan(self, name: str) -> tuple[tuple[Piece, ...], float]:
        """(pieces of sensitivity 1, error) of one method."""
        if name == "optimal":
            found = self.optimum()
            check_entries(found.pieces)
            return (found.pieces, found.upper) if self.noise == "gaussian" else normalise(found.pieces, self.noise)
        if name == "union-of-parts":
            return normalise(self._unions(), self.noise)
        registered = strategies().get(name)
        if registered is not None:
            terms = Terms(self.noise, self.tolerance, self.deadline, self.work)
            return normalise(resolve(registered.pieces)(name, self.W, terms), self.noise)
        if name == NORM_BLOCKS and len(self.blocks()) > 1:
            return self._each_in_blocks()
        pieces = tuple(spread(self._piece(name, b), b.copies) for b in self.blocks())
        check_entries(pieces)
        return normalise(pieces, self.noise)

    def _each_in_blocks(self) -> tuple[tuple[Piece, ...], float]:
        """Problems in turn, those of the largest errors first; DataError once they cannot come below ``known``."""
        blocks = self.blocks()
        least = [0.0 if b.solo else b.count * norm_blocks.least_of(b.gram, b.columns.toarray()) for b in blocks]
        found: dict[int, tuple[tuple[Piece, ...], float]] = {}
        for i in sorted(range(len(blocks)), key=lambda i: -least[i]):
            piece = spread(self._piece(NORM_BLOCKS, blocks[i]), blocks[i].copies)
            check_entries((piece,))
            found[i] = normalise((piece,), self.noise)
            self.below(sum(found[k][1] if k in found else least[k] for k in range(len(blocks))))
        return tuple(piece for i in range(len(blocks)) for piece in found[i][0]), sum(
            each[1] for each in found.values()
        )

    def _unions(self) -> tuple[Piece, ...]:
        """A union of parts for each problem, of equal ones once; of all of W where that is very wide."""
        diagonal = self.W.inner.diagonal()
        blocks = () if self.very_wide or diagonal is None else self.blocks()
        if diagonal is None or sum(block.count for block in blocks) <= 1:
            return (union_piece(self.W, self.parts(), self._part, self.noise)[0],)
        found, work = list[Piece](), self.work / len(blocks)
        for block in blocks:
            if block.solo:
                found.append(single_rows(block))
                continue
            W = _of_problem(self.W, diagonal, block)
            one = Task(W, self.noise, self.tolerance, self.time, self.say, work, in_blocks=self.in_blocks)
            found.append(spread(union_piece(W, one.parts(), one._part, self.noise)[0], block.copies))
        return tuple(found)

    def _part(self, part: Workload) -> tuple[tuple[Piece, ...], float]:
        """The best simple strategy of one part, with its share of the work."""
        share = self.work / len(self.parts())
        task = Task(part, self.noise, self.tolerance, self.time, self.say, share, in_blocks=self.in_blocks)
        pure = ("p-identity", "identity", "workload", NORM_BLOCKS)
        names = pure if self.noise == "laplace" else ("optimal",)
        found = list[Draft]()
        for name in names:
            if not (name == "identity" and found) and task.worthwhile(name, found):  # p-identity starts from the cells
                try:
                    pieces, error = task.plan(name)
                except DataError:
                    continue
                found.append((error, name, pieces))
                task.known = min(task.known, error)
        if not found:
            raise DataError("strategy: a part of the workload is too large; split the batch")
        error, _, pieces = min(found, key=lambda draft: draft[0])
        return pieces, error

    def _piece(self, name: str, block: Block) -> Piece:
        if block.solo and name != "identity":
            return single_rows(block)
        if name == "identity":
            return identity_piece(block, self.W)
        if name == "workload":
            return workload_piece(block, self.W)
        if name == "p-identity":
            return self._p_identity(block)
        if name == NORM_BLOCKS:
            return self._norm_blocks(block)
        metric = self._metric(block)
        Y = block.columns.toarray().astype(np.float64)
        start = row_mixing.symmetric_root(metric, block.gram)
        search = row_mixing.turned_search if self.turned else row_mixing.search
        rival = self.known / block.count
        C = search(block.gram, Y, start, self.deadline, self.work / len(self.blocks()), rival=rival)
        found = Piece(block.basis, C, block.columns, block.gram)
        joined = self._start
        if joined is None or max(joined.blocks) > 1 or joined.root.shape[0] != joined.root.shape[1]:
            return found
        # Over the columns that matter, as other turns.
        G, Z, width = joined.gram, _dense(joined), row_mixing.WIDTH * block.rank
        D = row_mixing.search(G, Z, joined.root, self.deadline, self.work, width)
        better = row_mixing.error_of(G, D, Z) < row_mixing.error_of(block.gram, C, Y)
        return replace(joined, root=D, blocks=()) if better else found

    def _p_identity(self, block: Block) -> Piece:
        lift, D = cells_of(block)
        N = D.shape[1]
        if N > _CELLS_ASKED:
            raise DataError(
                f"strategy: p-identity over {N} cells is above its cap of {_CELLS_ASKED}; use union-of-parts"
            )
        G = cell_gram(block, D)
        if 2 * block.rank < N:  # through a root of G
            objective = p_identity.Objective(None, (block.factor() @ D).astype(np.float64))
        else:
            objective = p_identity.Objective(G, None, tuple(f.shape[1] for f in self.W.factors))
        until = self.time.less(self.seconds("p-identity") / 2).deadline  # half of it comes after the search
        moved = image_columns(lift, self.W)
        rival = self.known / block.count / _one_sign(moved) ** 2
        _, Theta = p_identity.search(objective, G, until, self.work / len(self.blocks()), rival)
        if until < self.time.deadline and monotonic() > until:
            self.say(f"{NO_TIME}all of p-identity")
        # Cells hold the queries as they are.
        found = distinct_cells(self.W) if block.count == 1 and len(self.blocks()) == 1 else None
        placed = None if found is None or found.keep.size != N else (lift, columns_at(self.W.span, found.keep))
        return Piece(lift, p_identity.root_of(Theta), moved, G, placed=placed)

    @functools.cached_property
    def _start(self) -> Piece | None:
        """The rows of what was planned apart, where there are few of them beside very many changes of a unit."""
        held = self.source_pieces
        if not self.in_blocks or len(held) < 2 or any(piece.copies > 1 or piece.coords is not None for piece in held):
            return None
        (block, *more) = self.blocks()
        if more or block.solo or block.count > 1:
            return None
        if sum(piece.root.shape[0] for piece in held) > 2 * block.rank:
            return None
        if block.rank * block.columns.shape[1] < _MANY_CHANGES:
            return None
        # No query reads two sources.
        gram, root = (
            scipy.linalg.block_diag(*(np.diag(one) if one.ndim == 1 else one for one in each))
            for each in ([piece.gram for piece in held], [piece.root for piece in held])
        )
        rows = sparse.csr_array(sparse.vstack([piece.rows for piece in held], format="csr"))
        moved = self.W.moved(rows)
        columns = sparse.csc_array(moved[:, distinct_columns(moved, up_to_sign=True).keep])
        # A block for patterns is a start for one of the max-norm.
        sizes = tuple(int(size) for piece in held for size in piece.blocks or (1,) * piece.root.shape[0])
        return Piece(rows, root, columns, gram, blocks=sizes)

    def _norm_blocks(self, block: Block) -> Piece:
        if not self.in_blocks:
            raise DataError("strategy: norm-blocks is for noise='pure', whose noise may be drawn in blocks")
        patterns = pattern_blocks(self.W, block)
        error = np.inf if patterns is None else patterns.trace(patterns.root)
        try:
            found = self._turned_blocks(block, min(self.known / block.count, error))
        except DataError:
            if patterns is None:
                raise
            return patterns
        ((found,), other) = normalise((found,), self.noise)
        return found if patterns is None or other <= error * (1.0 + 1e-9) else patterns

    def _turned_blocks(self, block: Block, goal: float) -> Piece:
        """Rows in blocks of the max-norm."""
        start = self._start
        if start is None or 2 * max(start.blocks) > sum(start.blocks):
            # Rows of other sources may join a block of nearly all rows, which turning does not see.
            return self._in_blocks(block, goal)
        turned = norm_blocks.turned_on(start.gram, _dense(start), start.root, start.blocks, self.deadline)
        return replace(start, root=turned.C, blocks=turned.blocks)

    def _in_blocks(self, block: Block, rival: float) -> Piece:
        """Rows as they are or lifted, in one block or in blocks joined two by two, and turned."""
        v, work = block.rank, self.work / len(self.blocks())
        self.below(norm_blocks.least_in_blocks(block.gram, _dense(block)) * block.count)
        rows = sparse.csr_array(sparse.vstack([block.basis, _ones_over(block.basis)], format="csr"))
        moved = self.W.moved(rows)
        columns = sparse.csc_array(moved[:, distinct_columns(moved, up_to_sign=True).keep])
        Y = columns.toarray().astype(np.float64)
        total = np.linalg.lstsq(Y[:v].T, Y[v], rcond=None)[0]
        plain = norm_blocks.search(block.gram, Y[:v], [np.eye(v)], self.deadline, work, rival)
        rival = min(rival, plain.error)
        if np.abs(total @ Y[:v] - Y[v]).max() <= 1e-9:
            lifted = norm_blocks.lifted(Y[:v], total)
            found = norm_blocks.search(block.gram, Y[:v], [lifted], self.deadline, work, rival)
        else:
            gram = np.zeros((v + 1, v + 1))
            gram[:v, :v] = block.gram
            found = norm_blocks.search(gram, Y, [norm_blocks.lifted(Y, None)], self.deadline, work, rival)
            if found.error < plain.error:
                return Piece(rows, found.C, columns, gram, blocks=found.blocks)
        best = min(plain, found, key=lambda draft: draft.error) if found.C.shape[1] == v else plain
        return Piece(block.basis, best.C, block.columns, block.gram, blocks=best.blocks)

    def _metric(self, block: Block) -> Floats:
        return solve(block, max(self.tolerance, 1e-2), self.deadline).metric

    def optimum(self) -> Optimum:
        """The certified Gaussian optimum; factors and blocks apart."""
        if self._optimum is not None:
            return self._optimum
        W = self.W
        if len(W.factors) > 1 and W.inner.diagonal() is None:
            near = self.tolerance / len(W.factors)
            parts = [Task(f, "gaussian", near, self.time, self.say).optimum() for f in W.factors]
            upper, lower = prod(part.upper for part in parts), prod(part.lower for part in parts)
            piece = product_piece(W, [part.pieces for part in parts])
            proof = of_factors(tuple(part.certificate for part in parts))
            self._optimum = Optimum((piece,), upper, lower, proof, any(part.searched for part in parts))
            return self._optimum
        found: list[Piece] = []
        weights: list[tuple[Block, Floats, float]] = []
        upper = lower = 0.0
        left, late = self.time.less(self.finish), 0
        for block in self.blocks():
            if block.solo:
                piece = single_rows(block)
                error = piece.trace(piece.root)
                upper, lower = upper + error, lower + error
                found.append(piece)
                weights.append((block, single_weights(block), error))
                continue
            try:
                solution = solve(block, 0.9 * self.tolerance, left.deadline, self.say, left.fits)
            except LateError:
                # No step fits: every cell is measured.
                (piece,), error = normalise((identity_piece(block, W),), "gaussian")
                bound, N = equal_weights_bound(block, self.time.fits), block.columns.shape[1]
                found.append(spread(piece, block.copies))
                upper, lower = upper + block.count * error, lower + block.count * bound
                weights.append((block, np.full(N, 1.0 / N), bound))
                late += 1
                continue
            placed = None if block.coords is None else (block.basis, block.coords)
            piece = Piece(block.basis, cholesky(solution.metric), block.columns, block.gram, placed=placed)
            found.append(spread(piece, block.copies))
            upper, lower = upper + block.count * solution.upper, lower + block.count * solution.lower
            weights.append((block, solution.weights, solution.lower))
        several = sum(not block.solo for block in self.blocks())
        self._optimum = Optimum(tuple(found), upper, lower, of_blocks(weights), late < max(1, several))
        return self._optimum


def drafts(task: Task, method: str, hear: Callable[[Draft], None] = lambda _: None) -> list[Draft]:
    """(error, method, pieces of sensitivity 1) of every method that is tried, or of the one that is asked for.

    ``hear`` hears of each at once.

    Raises DataError where none of them takes so large a workload.
    """
    found: list[Draft] = []
    lower = task.optimum().lower if task.noise == "gaussian" else None
    for name in _in_turn(task) if method == "auto" else (method,):
        if found and lower is not None and found[0][0] <= (1.0 + task.tolerance) * lower:
            break  # certified: the others cannot be better by more than the tolerance
        if method == "auto" and not task.worthwhile(name, found):
            continue
        late = monotonic() > task.deadline and name not in _QUICK
        if found and (late or not task.time.fits(task.seconds(name))):
            task.say(f"{NO_TIME}{name}")
            continue
        try:
            pieces, error = task.plan(name)
        except (DataError, InternalError):  # too large, or too ill-conditioned for this way to plan
            if method != "auto":
                raise
            continue
        found.append((error, name, pieces))
        least, best, _ = min(found, key=lambda draft: draft[0])
        beside = "the best so far" if best == name else f"the best so far is {best} with {least:.6g}"
        task.say(f"{name}: error {error:.6g}; {beside}")
        hear(found[-1])
        task.known = min(task.known, error)
    if not found:
        raise DataError("strategy: the workload is too large for every method; split the batch")
    return found


def _in_turn(task: Task) -> tuple[str, ...]:
    """The catalogue, for pure noise with what takes no search and parts first; then others end where they cannot win,
    mixings, which take longest, last.

    Over very many cells, which pure noise hardly ever measures one by one, these come last. Not where time is limited:
    they are what takes no search.
    """
    if task.noise == "gaussian":
        return catalogue()
    searched = ("union-of-parts", "p-identity", NORM_BLOCKS)
    first: tuple[str, ...] = ("optimal", "identity", "workload", *searched)
    last: tuple[str, ...] = ()
    if not task.deadline < np.inf and (task.very_wide or task.cells > _CELLS_ASKED):
        first, last = ("optimal", "workload", *searched), ("identity",)
    return (*first, *(name for name in catalogue() if name not in (*first, *last)), *last)


def _squares(span: Csr, keep: Ints, diagonal: Floats) -> float:
    """The squares of the entries of the columns ``keep``, each row's times ``diagonal``, added up."""
    each = span.data.astype(np.float64) ** 2 * np.repeat(diagonal, np.diff(span.indptr))
    return float(np.bincount(span.indices, each, span.shape[1])[keep].sum())


def _of_problem(W: Workload, diagonal: Floats, block: Block) -> Workload:
    """The queries of one problem of W, the first of those that are alike; ``diagonal`` (q,): what rows weigh."""
    inside = np.zeros(W.shape[1])
    inside[block.basis.indices] = 1.0
    mine = np.flatnonzero((abs(W.span) @ inside > 0) & (diagonal > 0))
    return replace(W.some_rows(mine, np.sqrt(diagonal[mine])), groups=None if W.groups is None else W.groups[mine])


def _dense(piece: Piece | Block) -> Floats:
    """What each change of a unit moves of its rows."""
    return np.asarray(piece.columns.toarray(), dtype=np.float64)


def _one_sign(changes: Sparse) -> float:
    """How far a change of one sign moves cells, at most: so far do rows that are not negative, of sum 1 a cell, go."""
    held = sparse.csc_array(changes)
    size = np.asarray(abs(held).sum(axis=0)).ravel()
    whole = np.abs(np.asarray(held.sum(axis=0)).ravel())
    return float(size[whole == size].max(initial=1))


def _ones_over(basis: Csr) -> Csr:
    """The row that counts every column that ``basis`` reaches."""
    reached = np.asarray(abs(sparse.csr_array(basis)).sum(axis=0)).ravel() > 0
    return sparse.csr_array(reached.astype(np.int64)[None, :])
