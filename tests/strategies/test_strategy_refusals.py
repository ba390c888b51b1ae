"""What selection and workloads refuse, and how they say it."""

import numpy as np
import pytest
from scipy import sparse

from dpsql import workload
from dpsql.errors import DataError
from dpsql.extensions.papers import pieces
from dpsql.strategies.core import reduce
from dpsql.strategy import select
from dpsql.workload import Workload

NAN, INF = float("nan"), float("inf")
HUGE = sparse.csr_array(([0.5], ([0], [0])), shape=(20_001, 20_000))  # one entry that is no integer


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([[1.0, NAN]], "not finite"),
        ([[INF, 1.0]], "not finite"),
        (sparse.csr_array([[1.0, INF]]), "not finite"),
        (sparse.csr_array([[0.5, NAN]]), "not finite"),
        ([], "at least one row"),
        ([[]], "at least one row"),
        (np.zeros((0, 4)), "at least one row"),
        (np.zeros((2, 2, 2)), "at least one row"),
        (sparse.csr_array((0, 3)), "no queries or no cells"),
        (sparse.csr_array((3, 0)), "no queries or no cells"),
        ([[1.0, 2.0], [3.0]], "equal length"),
        ([["a", "b"]], "real numbers"),
        ([[1 + 2j]], "real numbers"),
        (sparse.csr_array([[1 + 2j]]), "real numbers"),
        ([[1e200, 1.0]], "1e150"),
        ([[1e-200, 0.0]], "1e-150"),
        (HUGE, "above the cap"),
    ],
)
def test_matrices_that_are_no_workloads(entries, message):
    with pytest.raises(DataError, match=message):
        workload.from_matrix(entries)


@pytest.mark.parametrize(
    ("rows", "scale", "message"),
    [
        ([[NAN, 1.0]], [1.0], "finite integers"),
        ([[INF, 1.0]], [1.0], "finite integers"),
        ([[0.5, 1.0]], [1.0], "must be integers"),
        ([[2.0**62, 1.0]], [1.0], r"2\^62"),
        (np.array([[2**63]], dtype=np.uint64), [1.0], r"2\^62"),
        ([["x"]], [1.0], "integers"),
        ([[1j]], [1.0], "integers"),
        ([[1, 2]], [1.0, 2.0], "2 scales for 1 rows"),
        ([[1, 2]], [NAN], "not finite"),
        ([[1, 2]], ["x"], "real numbers"),
        ([[1, 2]], [1e160], "1e150"),
        ([[1, 2]], [1e-160], "1e-150"),
        (np.zeros((0, 2), dtype=int), [], "no queries"),
    ],
)
def test_rows_that_are_no_workload(rows, scale, message):
    with pytest.raises(DataError, match=message):
        Workload.from_rows(rows, scale)


def test_large_integers_of_sparse_floats_are_taken_as_floats():
    W = workload.from_matrix(sparse.csr_array([[2.0**60, 0.0], [1.0, 1.0]]))
    assert np.array_equal(W.matrix(), [[2.0**60, 0.0], [1.0, 1.0]])


def test_a_record_that_could_overflow_int64_is_refused():
    # 2^61 * 4 wraps to 2^63 = -2^63 in int64: the sensitivity would be wrong, not merely large.
    corners = sparse.csr_array(np.array([[4], [0]]))
    with pytest.raises(DataError, match=r"2\^62"):
        Workload.from_rows([[2**61, 1]], [1.0], contributions=corners)
    fits = Workload.from_rows([[2**50, 1]], [1.0], contributions=corners)
    S = select(fits, method="workload")
    assert S.l1 == 4 * 2**50 * int(S.mixing[0, 0])


def test_floats_inside_a_workload_are_checked_too():
    from dpsql.linalg import inner

    eye = sparse.csr_array(np.eye(2, dtype=np.int64))
    for bad in (inner.Diagonal(np.array([1.0, NAN])), inner.Dense(np.array([[1.0, INF]]))):
        with pytest.raises(DataError, match="not finite"):
            Workload(eye, bad)
        with pytest.raises(DataError, match="not finite"):
            Workload(sparse.csr_array(sparse.kron(eye, eye)), inner.Kron((bad, inner.Diagonal(np.ones(2)))))
    with pytest.raises(DataError, match="not finite"):
        Workload(eye, inner.Blocks((inner.Diagonal(np.ones(2)),), (INF,)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": 0}, "tolerance"),
        ({"tolerance": -1e-3}, "tolerance"),
        ({"tolerance": 1.5}, "tolerance"),
        ({"tolerance": INF}, "tolerance"),
        ({"tolerance": NAN}, "tolerance"),
        ({"tolerance": "small"}, "tolerance"),
        ({"tolerance": True}, "tolerance"),
        ({"time_limit": 0}, "time_limit"),
        ({"time_limit": NAN}, "time_limit"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"effort": 0}, "effort"),
        ({"effort": INF}, "effort"),
        ({"effort": NAN}, "effort"),
        ({"effort": None}, "effort"),
        ({"noise": None}, "not known"),
        ({"method": "best"}, "not known"),
        ({"cache": 3}, "folder's path"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(DataError, match=message):
        select(workload.identity(3), **arguments)


@pytest.mark.parametrize("thing", [np.eye(3), None, "W", [[1, 2]]])
def test_only_workloads_are_selected_for(thing):
    with pytest.raises(DataError, match="from_matrix"):
        select(thing)


SMALL = workload.from_matrix([[1, 1, 0], [0, 0, 1]])
WIDER = workload.from_matrix([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]])


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("method", ["auto", "identity", "workload"])
def test_unsupported_queries_are_named_where_they_are_refused(noise, method):
    S = select(SMALL, noise, method=method)
    assert S.error(WIDER) == INF
    with pytest.raises(DataError, match=r"2 of 4 queries are not answered by this strategy: 1, 3"):
        S.reconstruction(WIDER)


def test_a_workload_over_other_columns_is_refused_everywhere():
    S = select(SMALL)
    for ask in (S.error, S.reconstruction, S.unsupported, S.require):
        with pytest.raises(DataError, match="measures 3 columns; the workload has 4"):
            ask(workload.identity(4))


def test_a_long_list_of_unsupported_queries_is_cut():
    S = select(workload.total(12))
    with pytest.raises(DataError, match=r"12 of 12 queries .*: 0, 1, 2, 3, 4, 5, 6, 7, \.\.\."):
        S.reconstruction(workload.identity(12))


def test_sizes_past_the_bounds_are_refused_before_memory_is_taken():
    with pytest.raises(DataError, match=r"rank 65536, above the cap of 6000"):
        select(workload.all_range((256, 256)), method="optimal")
    for method in ("auto", "identity"):
        with pytest.raises(DataError, match=r"65536 x 65536 entries, above the cap .* factors or parts"):
            select(workload.all_range((256, 256)), "laplace", method=method)


def test_too_many_queries_in_one_part_are_refused(monkeypatch):
    monkeypatch.setattr(reduce, "MATRIX_CAP", 200)
    with pytest.raises(DataError, match="split the batch"):
        select(workload.random_ranges(20, 60, 0))
    S = select(workload.identity(300))  # rows that share no column need no such matrix
    assert S.expected == 300


def test_rank_past_the_bound_is_refused(monkeypatch):
    monkeypatch.setattr(reduce, "RANK_CAP", 5)
    with pytest.raises(DataError, match="rank 9, above the cap of 5"):
        select(workload.random_ranges(9, 30, 5))


def test_matrices_past_the_bound_are_not_written_out(monkeypatch):
    S = select(workload.prefix(20))
    monkeypatch.setattr("dpsql.strategies.core.matrix_strategy.MATRIX_CAP", 300)
    with pytest.raises(DataError, match="20 x 20 entries, above the cap of 300"):
        S.matrix()
    with pytest.raises(DataError, match="20 x 20 entries, above the cap of 300; reconstruct fewer"):
        S.reconstruction(workload.prefix(20))


@pytest.mark.parametrize("method", ["smoothed", "level-selection", "augmented", "low-rank-mechanism"])
def test_methods_say_their_cap(method, monkeypatch):
    monkeypatch.setitem(pieces.CAPS, method, 5)
    with pytest.raises(DataError, match=r"over 9 distinct cells is above its cap of 5; use method='auto'"):
        select(workload.prefix(9), method=method)
