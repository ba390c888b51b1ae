import numpy as np
import pytest

from dpsql import workload
from dpsql.errors import DataError

SMALL = {
    "identity": workload.identity(5),
    "total": workload.total(5),
    "prefix": workload.prefix(6),
    "all_range": workload.all_range(6),
    "boxes": workload.all_range((3, 2)),
    "kron": workload.kron(workload.prefix(3), workload.identity(2), workload.total(2)),
    "stack": workload.stack(workload.all_range(4), workload.identity(4), workload.total(4)),
    "weighted": workload.weighted(workload.all_range(3), np.arange(1.0, 7.0)),
    "weighted stack": workload.weighted(workload.stack(workload.prefix(3), workload.identity(3)), 3.0),
    "all_predicate": workload.all_predicate(5),
    "predicates by ranges": workload.kron(workload.all_predicate(3), workload.all_range(2)),
    "weighted predicates": workload.weighted(workload.all_predicate(3), 2.0),
    "boxes over three axes": workload.all_range((2, 3, 2)),
    "ranges": workload.random_ranges(7, 9, 0),
    "wdiscrete": workload.wdiscrete(4, 6, 0, p=0.5),
    "wrelated": workload.wrelated(6, 8, 3, 0),
    "kron of two low ranks": workload.kron(workload.wrelated(4, 5, 2, 0), workload.wrelated(4, 5, 2, 1)),
    "kron of floats": workload.kron(workload.wrelated(4, 5, 2, 0), workload.total(2)),
}


@pytest.mark.parametrize("name", SMALL)
def test_algebra_agrees_with_entries(name):
    W = SMALL[name]
    M = W.matrix()
    assert M.shape == W.shape
    assert np.allclose(W.gram(), M.T @ M)
    assert W.rank == np.linalg.matrix_rank(M)
    inner = W.inner.matrix()
    inner = inner.toarray() if hasattr(inner, "toarray") else inner
    assert np.allclose(W.inner.gram(), inner.T @ inner)
    diagonal = W.inner.diagonal()
    if diagonal is not None:
        assert np.allclose(np.diag(diagonal), W.inner.gram())
    labels = W.inner.coupling()
    apart = labels[:, None] != labels[None, :]
    assert not np.any(W.inner.gram()[apart])


def test_ranges_by_hand():
    M = workload.all_range(3).matrix()
    assert sorted(map(tuple, M.astype(int).tolist())) == [
        (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0), (1, 1, 1)
    ]  # fmt: skip
    assert workload.prefix(2).matrix().tolist() == [[1, 0], [1, 1]]
    assert np.array_equal(workload.kron(workload.prefix(2), workload.total(2)).matrix(), [[1, 1, 0, 0], [1, 1, 1, 1]])


def test_gram_of_all_ranges_is_the_inverse_of_the_second_difference():
    n = 7
    second = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    assert np.allclose(workload.all_range(n).gram() @ second, (n + 1) * np.eye(n))


def test_random_families_depend_on_the_seed_alone():
    for make in (
        lambda s: workload.random_ranges(5, 20, s),
        lambda s: workload.wdiscrete(5, 20, s),
        lambda s: workload.wrelated(5, 20, 2, s),
        lambda s: workload.wrange(5, 20, s),
    ):
        assert np.array_equal(make(3).matrix(), make(3).matrix())
        assert not np.array_equal(make(3).matrix(), make(4).matrix())


def test_wdiscrete_has_ones_at_its_rate():
    M = workload.wdiscrete(200, 500, 1, p=0.02).matrix()
    assert set(np.unique(M)) == {-1.0, 1.0}
    assert abs((M > 0).mean() - 0.02) < 0.002


def test_all_predicates_by_hand():
    M = workload.all_predicate(3).matrix()
    assert sorted(map(tuple, M.astype(int).tolist())) == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)
    ]  # fmt: skip
    assert workload.all_predicate(1).matrix().tolist() == [[0], [1]]


def test_all_predicates_past_float_range_are_scaled():
    W = workload.all_predicate(1024)
    assert W.shape == (2**1024, 1024)
    assert W.log2_scale == 511
    assert np.array_equal(W.gram(), np.eye(1024) + 1)
    small = workload.all_predicate(512)
    assert small.log2_scale == 0
    assert small.gram()[0, 0] == 2.0**511
    assert workload.kron(W, workload.all_predicate(600)).log2_scale == 511 + 299
    assert workload.weighted(W, 3.0).log2_scale == 511
    assert workload.stack(W, W).log2_scale == 511
    with pytest.raises(DataError, match="log2_scale"):
        workload.stack(W, workload.identity(1024))
    with pytest.raises(DataError, match="cap"):
        W.matrix()


def test_large_stacks_do_not_count_their_rows():
    W = workload.stack(workload.all_range(2**16), workload.identity(2**16))
    assert W.groups is None
    assert W.shape[0] == 2**16 * (2**16 + 1) // 2 + 2**16
