"""Unions of parts: problems that are alike planned once, and shares of parts that have rows of their own."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import block_diag

from dpsql.linalg.basis import Basis
from dpsql.linalg.forms import dense
from dpsql.linalg.inner import Diagonal
from dpsql.strategies.choose.task import Task
from dpsql.strategies.core.frame import Frame
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.core.time_left import TimeLeft, parts_seconds
from dpsql.strategies.selection import select
from dpsql.workloads.families.matrix import Workload

CELLS = 12


def prefixes_and_sum(copies: int = 1, weights: tuple[float, ...] = (1.0,)) -> Workload:
    """Prefixes of 12 cells, and a sum of values from 0 to 1 beside them, in each of some groups.

    A record is of one group and one cell and adds nothing or 1 to the sum.
    """
    rows = np.zeros((CELLS + 1, CELLS + 1), dtype=np.int64)
    rows[:CELLS, :CELLS], rows[CELLS, CELLS] = np.tri(CELLS), 1
    eye = np.eye(CELLS, dtype=np.int64)
    moved = np.vstack([np.hstack([eye, eye]), np.repeat([[0, 1]], CELLS, axis=1)])
    every = np.eye(copies, dtype=np.int64)
    return Workload.from_rows(
        np.kron(every, rows),
        np.repeat(np.resize(weights, copies), CELLS + 1),
        contributions=np.kron(every, moved),
        groups=np.tile([0] * CELLS + [1], copies),
    )


def union(W: Workload) -> Task:
    return Task(W, "laplace", 1e-3, TimeLeft.within(None), lambda _: None)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 3.0)])
def test_each_problem_has_a_union_of_its_own(weights: tuple[float, ...]) -> None:
    """But for where searches end, which differs between versions of SciPy by 0.1 %."""
    pieces, error = union(prefixes_and_sum(4, weights)).plan("union-of-parts")
    alone = union(prefixes_and_sum()).plan("union-of-parts")[1]
    assert error == pytest.approx(alone * float(np.square(np.resize(weights, 4)).sum()), rel=2e-3)
    assert [piece.copies for piece in pieces] == [4 // len(weights)] * len(weights)


def test_a_union_of_several_problems_is_measured_as_it_was_planned() -> None:
    W = prefixes_and_sum(3)
    found = select(W, "laplace", "union-of-parts")
    assert W.contributions is not None
    B, asked = found.matrix(), W.inner.matrix() @ W.span.toarray()
    sensitivity = np.abs(B @ W.contributions.toarray()).sum(axis=0).max()
    assert found.expected == pytest.approx(sensitivity**2 * np.sum((asked @ np.linalg.pinv(B)) ** 2), rel=1e-9)


def test_shares_of_parts_that_have_rows_of_their_own_are_the_best() -> None:
    (piece,), error = union(prefixes_and_sum()).plan("union-of-parts")
    assert piece.coords is None
    C, last = piece.root, np.flatnonzero(piece.root[:, -1])
    for up in (0.97, 0.99, 1.01, 1.03):
        other = C.copy()
        other[last] *= up
        moved = np.abs(other @ piece.columns.toarray()).sum(axis=0).max()
        assert piece.trace(other) * moved**2 > error


def test_a_gram_matrix_is_that_of_its_parts() -> None:
    rng = np.random.default_rng(1)
    blocks = [rng.integers(-2, 3, size=(9, 5)), rng.integers(1, 3, size=(40, 7)), np.eye(3, dtype=np.int64)]
    coords = sparse.csr_array(sparse.block_diag(blocks, format="csr")).astype(np.float64)
    order = rng.permutation(coords.shape[0])
    weights = rng.uniform(0.5, 2.0, coords.shape[0])
    basis = Basis(sparse.eye_array(coords.shape[1], dtype=np.int64, format="csr"), coords[order])
    held = coords.toarray()[order]
    assert np.allclose(basis.gram(Diagonal(weights)), held.T @ np.diag(weights**2) @ held, rtol=1e-12)


def test_queries_are_reconstructed_from_the_parts_that_they_reach() -> None:
    """Two parts of rows, of which one query needs both, some need one, and one needs none."""
    rng = np.random.default_rng(2)
    roots = [rng.integers(1, 9, size=(5, 3)), rng.integers(1, 9, size=(4, 3))]
    mixing = sparse.csr_array(sparse.block_diag(roots, format="csr")).astype(np.int64)
    rows = np.zeros((7, 6), dtype=np.int64)
    for i, j in product(range(3), range(3)):
        rows[i, j], rows[3 + i, 3 + j] = rng.integers(0, 5, size=2)
    rows[6] = 1
    rows[2] = 0
    W = Workload.from_rows(rows, np.ones(7))
    frame = Frame(mixing, sparse.eye_array(6, dtype=np.int64, format="csr"), independent=True)
    R, B = frame.reconstruction(W, 2**20), mixing.toarray().astype(float)
    best = rows @ np.linalg.pinv(B)
    assert R is not None
    assert np.allclose(dense(R), best, atol=1e-10)
    assert np.allclose(frame.variances(W), np.square(best).sum(axis=1), rtol=1e-9)


def test_the_trace_of_many_small_parts_is_that_of_the_whole() -> None:
    rng = np.random.default_rng(6)
    blocks = [rng.uniform(0.5, 2.0, size=(3, 2)) for _ in range(40)]
    root = np.asarray(block_diag(np.diag(rng.uniform(0.5, 2.0, 520)), *blocks))
    v = root.shape[1]
    half = rng.normal(size=(v, v))
    eye = sparse.eye_array(v, dtype=np.int64, format="csr")
    piece = Piece(eye, root, sparse.csc_array(eye), half.T @ half)
    whole = float(np.trace(half.T @ half @ np.linalg.inv(root.T @ root)))
    assert piece.trace(root) == pytest.approx(whole, rel=1e-9)
    for lost in (3, v - 1):
        less = root.copy()
        less[:, lost] = 0.0
        assert piece.trace(less) == np.inf


def test_weighings_of_rows_share_their_basis_and_nothing_else() -> None:
    W = prefixes_and_sum()
    for scale in (np.ones(CELLS + 1), np.linspace(1.0, 2.0, CELLS + 1)):
        (shared,), weighed = reduce_workload(W.weighed(scale)), W.scale * scale
        fresh = Workload.from_rows(W.span, weighed, contributions=W.contributions, groups=W.groups)
        (alone,) = reduce_workload(fresh)
        assert (shared.basis != alone.basis).nnz == 0
        assert np.allclose(shared.gram, alone.gram, rtol=1e-12)
        assert (shared.columns != alone.columns).nnz == 0


def test_parts_take_a_basis_of_their_cells_where_these_are_no_queries() -> None:
    assert parts_seconds(300, 300) == 0.0
    assert 0.0 < parts_seconds(301, 300) < parts_seconds(1500, 300) / 20.0
