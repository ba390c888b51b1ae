import numpy as np
import pytest
from scipy import sparse

from dpsql import workload
from dpsql.errors import DataError, InternalError
from dpsql.linalg import basis as basis_module
from dpsql.linalg.basis import choose_basis, coordinates
from dpsql.linalg.forms import dense
from dpsql.linalg.inner import Diagonal

CASES = {
    "ranges": workload.random_ranges(40, 64, 1).span,
    "more rows than cells": workload.random_ranges(200, 12, 1).span,
    "signs": workload.wdiscrete(30, 50, 2, p=0.4).span,
    "repeated": sparse.csr_array(np.repeat(np.eye(4, dtype=np.int64), 3, axis=0)),
    "zero row and column": sparse.csr_array(np.array([[0, 0, 0], [1, 0, 2], [2, 0, 4]])),
    "one": sparse.csr_array(np.array([[1, 1, 1]])),
    # Rank 90 and above 400: below and above what the first few hundred columns of a sketch can show.
    "many rows of low rank": sparse.csr_array(
        np.random.default_rng(1).integers(0, 2, (700, 90)) @ sparse.eye_array(90, 2000, dtype=np.int64)
        + np.random.default_rng(2).integers(0, 2, (700, 90)) @ sparse.eye_array(90, 2000, k=300, dtype=np.int64)
    ),
    "rank beyond the first sketch": sparse.csr_array(
        sparse.vstack([workload.random_ranges(420, 1500, 4).span, workload.random_ranges(420, 1500, 4).span])
    ),
    "many columns": workload.kron(workload.random_ranges(20, 90, 3), workload.total(30)).span,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(
    "ranges",
    "more rows than cells",
    "signs",
    "repeated",
    "zero row and column",
    "one",
    "many rows of low rank",
    "many columns",
)
def test_basis_spans_and_is_independent(name):
    span = CASES[name]
    found = choose_basis(span, Diagonal(np.ones(span.shape[0])))
    coords = found.coords.toarray() if sparse.issparse(found.coords) else found.coords
    assert np.allclose(coords @ found.rows.toarray(), span.toarray(), atol=1e-9)
    assert found.rows.shape[0] == np.linalg.matrix_rank(span.toarray().astype(float))
    assert np.allclose(found.gram(Diagonal(np.full(span.shape[0], 2.0))), 4 * coords.T @ coords)
    again = coordinates(span, found.rows)
    again = again.toarray() if sparse.issparse(again) else again
    assert np.allclose(again, coords, atol=1e-8)


def test_coordinates_refuse_what_is_not_in_the_row_space():
    with pytest.raises(InternalError, match="row space"):
        coordinates(sparse.csr_array(np.array([[1, 2]])), sparse.csr_array(np.array([[1, 1]])))


@pytest.mark.parametrize("seed", range(6))
def test_a_basis_of_rows_that_fall_into_parts_spans_all_of_them(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 3, size=(v, N)) for v, N in ((9, 4), (3, 7), (1, 2), (6, 6))] * 2
    parts[1][2] = parts[1][0] + parts[1][1]  # dependent
    rows = sparse.block_diag(parts).toarray()
    rows = rows[rng.permutation(rows.shape[0])][:, np.sort(rng.integers(0, rows.shape[1], size=60))]
    chosen = choose_basis(sparse.csr_array(rows), Diagonal(np.ones(rows.shape[0])))
    assert chosen.rows.shape[0] == np.linalg.matrix_rank(rows)
    assert np.allclose(np.asarray((chosen.coords @ chosen.rows).todense()), rows, atol=1e-9)
    if chosen.picked is not None:
        assert (rows[chosen.picked] == chosen.rows.toarray()).all()


@pytest.mark.parametrize("seed", range(12))
def test_coordinates_in_rows_that_fall_into_parts_are_those_of_all_at_once(seed):
    """Parts of one row and of several, alike and not, narrow and wide, their rows and columns in any order."""
    rng = np.random.default_rng(seed)
    alike = rng.integers(-3, 4, size=(3, 6))
    parts = [alike] * 4 + [rng.integers(-3, 4, size=(v, rng.integers(v, 90))) for v in (1, 1, 2, 3, 1)]
    parts = [
        part if np.linalg.matrix_rank(part) == len(part) else np.eye(*part.shape, dtype=np.int64) for part in parts
    ]
    rows = sparse.block_diag(parts).toarray()
    rows = rows[rng.permutation(rows.shape[0])][:, rng.permutation(rows.shape[1])]
    true = rng.integers(-2, 3, size=(25, rows.shape[0])) * (rng.random((25, rows.shape[0])) < 0.3)
    found = coordinates(sparse.csr_array(true @ rows), sparse.csr_array(rows))
    assert sparse.issparse(found)
    assert np.allclose(found.toarray(), true, atol=1e-10)
    outside = true @ rows + (rng.random((25, rows.shape[1])) < 0.02)
    if np.linalg.matrix_rank(np.vstack([rows, outside])) > len(rows):
        with pytest.raises(InternalError, match="row space"):
            coordinates(sparse.csr_array(outside), sparse.csr_array(rows))


@pytest.mark.parametrize("q", [0, 3])
def test_coordinates_of_nothing_in_rows_that_fall_into_parts_are_zeros(q):
    rows = sparse.csr_array(np.kron(np.eye(2, dtype=np.int64), [[1, 1, 0], [0, 1, 1]]))
    found = coordinates(sparse.csr_array((q, 6), dtype=np.int64), rows)
    assert (found.shape, found.nnz) == ((q, 4), 0)


@pytest.mark.long
def test_coordinates_in_more_rows_of_a_part_than_it_has_columns():
    rows = sparse.csr_array(np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 2]]))
    span = sparse.csr_array(np.array([[2, 3, 0], [0, 0, 4], [1, -1, 2]]))
    coords = coordinates(span, rows)
    assert np.allclose((coords @ rows).toarray(), span.toarray())


@pytest.mark.long
def test_coordinates_of_a_large_span_are_held_to_every_column():
    rows = sparse.csr_array(np.random.default_rng(3).integers(0, 3, (20, 22_000)))
    mixed = np.random.default_rng(4).integers(-2, 3, (200, 20))
    span = sparse.csr_array(mixed @ rows)
    assert np.allclose(coordinates(span, rows), mixed, atol=1e-8)
    span.data[-1] += 1
    with pytest.raises(InternalError, match="row space"):
        coordinates(span, rows)


def test_conditioning_of_chosen_rows_is_moderate():
    W = workload.random_ranges(256, 1024, 0)
    rows = choose_basis(W.span, W.inner).rows.toarray().astype(float)
    assert np.linalg.cond(rows) < 1e4


def test_a_basis_that_needs_a_large_matrix_is_refused_before_it_is_made(monkeypatch):
    span = CASES["ranges"]
    monkeypatch.setattr(basis_module, "_MOST_ENTRIES", span.shape[0] * 10)
    monkeypatch.setattr(basis_module, "compress", lambda *_: pytest.fail("made"))
    with pytest.raises(DataError, match=r"40 queries over \d+ cells depend on each other .* ask for fewer groups"):
        choose_basis(span, Diagonal(np.ones(span.shape[0])))


def test_coordinates_that_are_no_numbers_are_refused():
    rows = sparse.csr_array(np.eye(3, dtype=np.int64))
    for coords in (np.full((2, 3), np.nan), sparse.csr_array(np.full((2, 3), np.nan))):
        with pytest.raises(InternalError, match="row space"):
            basis_module.check(sparse.csr_array(np.ones((2, 3), dtype=np.int64)), coords, rows)


def test_whole_coordinates_are_proven_or_not_given():
    D = sparse.csr_array(np.vstack([np.eye(3, 9, dtype=np.int64), [[1, 1, 1, 0, 0, 0, 0, 0, 0]]]))
    rows, picked = sparse.csr_array(D[:3]), np.arange(3)
    right = np.vstack([np.eye(3), np.ones(3)])
    near = basis_module._whole_coordinates(D, rows, picked, right + 1e-9)
    assert near is not None
    assert (near == right).all()
    for wrong in (right - 0.5, np.vstack([np.eye(3), [1, 1, 2]])):
        assert basis_module._whole_coordinates(D, rows, picked, wrong) is None
    twice = sparse.csr_array(D[[0, 0, 2]])  # coordinates that fit, in rows that depend on each other
    assert basis_module._whole_coordinates(twice, twice, picked, np.eye(3)) is None


@pytest.mark.parametrize("wrong", [0.0, 1.0, 0.5, 2.0**31, 1e-6])
def test_sparse_coordinates_are_held_against_every_row(wrong):
    rows = sparse.csr_array(np.random.default_rng(7).integers(0, 3, size=(6, 40)))
    coords = np.random.default_rng(8).integers(-2, 3, size=(9, 6)).astype(float)
    coords[4] /= 4.0  # no whole numbers
    span = sparse.csr_array((coords * np.array([[1]] * 4 + [[4]] + [[1]] * 4)).astype(np.int64) @ rows.toarray())
    coords[4] *= 4.0 if wrong != 0.5 else 1.0
    coords[7, 2] += wrong
    if wrong:
        with pytest.raises(InternalError, match="row space"):
            basis_module.check(span, sparse.csr_array(coords), rows)
    else:
        basis_module.check(span, sparse.csr_array(coords), rows)


def test_a_basis_of_few_rows_over_many_columns_is_one_of_all():
    cells = np.arange(9_000)
    ranges = np.array([(low <= cells) & (cells < high) for low, high in ((0, 3_000), (1_000, 5_000), (2_500, 9_000))])
    rows = np.vstack([ranges.astype(np.int64), ranges[0].astype(np.int64) + ranges[1]])
    found = choose_basis(sparse.csr_array(rows), Diagonal(np.ones(4)))
    assert found.picked is not None
    assert found.picked.size == found.rows.shape[0] == 3
    assert (dense(found.coords) @ found.rows.toarray() == rows).all()
    rows[3, 8_998] += 1  # which few columns do not show, but the check of all does
    found = choose_basis(sparse.csr_array(rows), Diagonal(np.ones(4)))
    assert np.linalg.matrix_rank(found.rows.toarray()) == found.rows.shape[0] == 4
