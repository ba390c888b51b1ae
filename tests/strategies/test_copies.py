"""Problems that are alike are reduced, solved and rounded once, and each gets the same strategy over its own cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from dpsql.errors import DataError
from dpsql.linalg import basis as basis_module
from dpsql.strategies.choose.task import Task
from dpsql.strategies.core import certificate, frame, integer, matrix_strategy, reduce, simple
from dpsql.strategies.core.copies import copies_of, spread
from dpsql.strategies.core.integer import Piece, check_entries
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.core.time_left import NO_LIMIT
from dpsql.strategy import select
from dpsql.workloads.families.matrix import Workload

PART = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 1, 1]])


def repeated(count: int, *, shuffled: bool = False, sums: bool = False) -> Workload:
    """``count`` problems of four queries over five cells; with ``sums`` a record moves a cell's pair of entries."""
    rows = sparse.csr_array(sparse.kron(sparse.eye_array(count, dtype=np.int64), PART, format="csr"))
    contributions = None
    if sums:
        rows = sparse.csr_array(sparse.kron(rows, np.array([[1, 0], [0, 1]]), format="csr"))
        corner = np.array([[1, 1], [1, -1]])
        contributions = sparse.csr_array(sparse.kron(sparse.eye_array(5 * count, dtype=np.int64), corner, format="csr"))
    if shuffled:
        rows = sparse.csr_array(rows[np.random.default_rng(3).permutation(rows.shape[0])])
    return Workload.from_rows(rows, np.ones(rows.shape[0]), contributions=contributions)


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("method", ["auto", "identity", "workload", "optimal"])
@pytest.mark.few(every=3)
def test_the_strategy_of_many_is_that_of_one_many_times(noise, method, sums):
    one, many = (select(repeated(k, sums=sums), noise, method) for k in (1, 12))
    assert many.expected == pytest.approx(12 * one.expected, rel=3e-3)
    if noise == "gaussian":
        assert many.lower_bound == pytest.approx(12 * one.lower_bound, rel=1e-6)
    B = many.matrix()
    moved = B if many.contributions is None else B @ many.contributions.toarray()
    assert many.l1 == np.abs(moved).sum(axis=0).max()
    assert many.l2_squared == (moved**2).sum(axis=0).max()
    W = many.planned.matrix()
    R = many.reconstruction(many.planned)
    assert np.allclose((R.toarray() if sparse.issparse(R) else R) @ B, W)
    assert many.sensitivity**2 * np.sum((W @ np.linalg.pinv(B)) ** 2) == pytest.approx(many.expected, rel=1e-9)


def test_one_of_them_is_reduced_and_its_columns_are_merged_once(monkeypatch):
    calls = {"distinct": 0, "basis": 0}
    whole = reduce.distinct_columns

    def counted(matrix, **options):
        calls["distinct"] += 1
        return whole(matrix, **options)

    chosen = reduce.choose_basis

    def chosen_once(*args, **options):
        calls["basis"] += 1
        return chosen(*args, **options)

    for module in (reduce, simple, basis_module):
        monkeypatch.setattr(module, "distinct_columns", counted)
    monkeypatch.setattr(reduce, "choose_basis", chosen_once)
    (block,) = reduce_workload(repeated(500))
    assert block.count == 500
    assert calls == {"distinct": 3, "basis": 1}  # the rows, the columns, and those of one problem's basis
    select(repeated(500))
    assert calls["distinct"] < 12


def test_problems_in_another_order_are_solved_apart_and_as_well():
    W, shuffled = repeated(6), repeated(6, shuffled=True)
    assert sum(block.count for block in reduce_workload(shuffled)) == 6
    assert select(shuffled).expected == pytest.approx(select(W).expected, rel=3e-3)


def test_alike_means_equal_weights_too():
    W = repeated(3)
    weight = np.ones(12)
    label = np.repeat(np.arange(3), 4)
    assert [c.count for c in copies_of(W.span, weight, W.span, label)] == [3]
    weight[5] = 2.0
    assert sorted(c.count for c in copies_of(W.span, weight, W.span, label)) == [1, 2]
    assert copies_of(W.span, weight, W.span, np.arange(12)) == []


def test_the_certificate_of_copies_proves_their_bound():
    W = repeated(7)
    task = Task(W, "gaussian", 1e-3, NO_LIMIT, lambda _: None)
    found = task.optimum()
    fresh = repeated(7)
    assert certificate.dual_value(fresh, found.certificate) == pytest.approx(found.lower, rel=1e-9)
    uneven = found.certificate.weights * np.linspace(0.5, 1.5, found.certificate.weights.size)
    lower = certificate.dual_value(fresh, replace(found.certificate, weights=uneven))
    assert 0.8 * found.lower < lower < found.lower


def test_matrices_of_copies_have_a_cap(monkeypatch):
    (block,) = reduce_workload(repeated(4))
    piece = spread(Piece(block.basis, np.eye(block.rank), block.columns, block.gram), block.copies)
    check_entries((piece,))
    monkeypatch.setattr(integer, "MEASURED", 4 * block.rank**2 - 1)
    with pytest.raises(DataError, match=r"4 parts of the workload would be measured by matrices of \d+ entries, above"):
        check_entries((piece,))
    plan = select(repeated(4))
    assert plan.method in ("identity", "workload")  # what is left, and how far it may be from the least error
    assert plan.gap > 1e-3


def test_a_limit_that_ends_in_the_reduction_refuses_with_the_size(monkeypatch):
    ticks = iter([0.0, 5.0])
    monkeypatch.setattr(reduce, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(reduce, "_FEW", 0)
    with pytest.raises(
        DataError, match=r"falls into 6 parts over 30 cells, .* ended when 2 of them were reduced; allow"
    ):
        reduce_workload(repeated(6, shuffled=True), 3.0)


def test_past_the_limit_the_first_rounding_that_keeps_the_rank_is_taken(monkeypatch):
    rounds = []
    whole = integer.full_rank

    def counted(root):
        rounds.append(root)
        return whole(root)

    monkeypatch.setattr(integer, "full_rank", counted)
    monkeypatch.setattr(integer, "_FIRST_BITS", 6)
    W = repeated(1)
    task = Task(W, "gaussian", 1e-6, NO_LIMIT, lambda _: None)
    pieces, error = task.plan("optimal")
    args = (W, "optimal", "gaussian", pieces, error, 1e-6, task.optimum().lower, (("optimal", error),))
    precise = integer.finish(*args)
    many, rounds[:] = len(rounds), []
    quick = integer.finish(*args, -np.inf)
    assert len(rounds) == 1 < many
    assert precise.gap < quick.gap < 0.5
    again = quick.sensitivity**2 * np.sum((W.matrix() @ np.linalg.pinv(quick.matrix())) ** 2)
    assert quick.expected == pytest.approx(again)


def test_a_reconstruction_of_few_entries_is_sparse_and_the_dense_one(monkeypatch):
    part = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    rows = sparse.csr_array(sparse.kron(sparse.eye_array(12, dtype=np.int64), part, format="csr"))
    W = Workload.from_rows(rows, np.ones(48))
    S = select(W, "gaussian", "optimal")
    found = S.reconstruction(W)
    m, p = found.shape
    assert p < m
    assert sparse.issparse(found)
    variances, error = S.variances(W), S._frame().trace(W)
    monkeypatch.setattr(frame, "_FEW", 0.0)
    dense = S.reconstruction(W)
    assert isinstance(dense, np.ndarray)
    assert np.allclose(S.variances(W), variances, rtol=1e-12)
    assert S._frame().trace(W) == pytest.approx(error, rel=1e-12)
    monkeypatch.undo()
    assert np.allclose(found.toarray(), dense, rtol=0, atol=1e-12 * np.abs(dense).max())
    assert found.nnz <= (m * p - 1) // 4
    monkeypatch.setattr(matrix_strategy, "MATRIX_CAP", m * p - 1)
    assert sparse.issparse(S.reconstruction(W))
    monkeypatch.setattr(matrix_strategy, "MATRIX_CAP", 4 * (12 * 9 - 1))  # fewer than the parts' inverses have
    with pytest.raises(DataError, match=f"the reconstruction would have {m} x {p} entries, above the cap"):
        S.reconstruction(W)
