"""Batches planned on levels: exact answers, sensitivity and the least error by brute force, levels against matrices."""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pytest
from helpers import engine_of, policy_of, tables_of, understood
from scipy import sparse
from test_structured import ROWS, compiled, con, corners, dense, exact, job_of, nulls_of, whole

from dpsql.errors import DataError
from dpsql.linalg.levels import levels_of
from dpsql.measure import cells
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import half_widths
from dpsql.strategies import selection
from dpsql.strategies.core.symmetric import Part, solve
from dpsql.strategies.kronecker.level_strategy import LevelStrategy, level_strategy
from dpsql.strategy import Strategy, StructuredStrategy, select, structured_strategy
from dpsql.workloads.compile.level_integers import LevelIntegers
from dpsql.workloads.compile.sensitivity import rough_sensitivity, sensitivity_of
from dpsql.workloads.compile.structured import compile_structured

__all__ = ["con"]

NESTED = (
    "SELECT c // 2 AS h, b, COUNT(*) AS n FROM t GROUP BY h, b; SELECT c // 4 AS q, AVG(v) AS m, COUNT(*) AS n FROM t "
    "GROUP BY q; SELECT c, SUM(v) AS x FROM t GROUP BY c; SELECT COUNT(*) AS n FROM t"
)
PAIRS = "SELECT a, b, s, COUNT(*) AS n, AVG(v) AS mean FROM t GROUP BY dp_marginals(2, a, b, s)"
BATCHES = ["rollup", PAIRS, "sums", "averages", "variance", "units", NESTED,
           "SELECT b, s, SUM(v) AS x FROM t GROUP BY CUBE (b, s)"]  # fmt: skip


def planned(name: str, con: duckdb.DuckDBPyConnection) -> LevelStrategy:
    found = level_strategy(compiled(name, con)[0], 1e-3, np.inf)
    assert found is not None
    return found


def measured(strategy: LevelStrategy, con: duckdb.DuckDBPyConnection) -> list[int]:
    return cells.observed(job_of(strategy.planned, strategy.measured), engine_of(con), [0] * strategy.shape[0])


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few(every=6)
def test_without_noise_answers_are_exact(con: duckdb.DuckDBPyConnection, name: str) -> None:
    strategy, joint = planned(name, con), compiled(name, con)[1]
    found = strategy.answers_of(strategy.planned).estimate(measured(strategy, con), joint.common_steps)
    np.testing.assert_allclose(found, exact(joint, con), atol=1e-7)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few(every=6)
def test_error_bars_are_those_of_the_dense_matrix(con: duckdb.DuckDBPyConnection, name: str) -> None:
    strategy = planned(name, con)
    batch, answers, noise = strategy.planned, strategy.answers_of(strategy.planned), Noise.gaussian(10**12)
    R = dense(answers, strategy.shape[0])  # type: ignore[arg-type]
    np.testing.assert_allclose(answers.errors(noise, 7), np.sqrt((R * R).sum(axis=1) * noise.variance) / 7, rtol=1e-9)
    np.testing.assert_allclose(answers.widths(noise, 0.1, 7), half_widths(R, noise, 0.1) / 7, rtol=2e-3)
    for query in {span.query for span in batch.spans}:
        parts = [slice(span.start, span.stop) for span in batch.spans if span.query == query]
        rows = np.asarray(answers.rows(parts, noise)).reshape(len(parts), parts[0].stop - parts[0].start, -1)
        mine = np.stack([R[part] for part in parts])
        np.testing.assert_allclose(
            np.einsum("igp,jgp->gij", rows, rows), np.einsum("igp,jgp->gij", mine, mine), atol=1e-9 * (R * R).max()
        )
    # Rows of B: R times what is measured of x is what blocks say of x, whatever the row.
    assert isinstance(strategy, Strategy)
    x = np.random.default_rng(0).integers(0, 9, strategy.shape[1])
    assert strategy.measured.times(x.tolist(), 4) == np.rint(strategy.matrix() @ x).astype(int).tolist()
    assert strategy.error(batch) == pytest.approx(strategy.variances(batch).sum())
    with pytest.raises(DataError, match="plan this batch"):
        strategy.variances(compiled("across", con)[0])


@pytest.mark.parametrize("name", [name for name in BATCHES if name != "units"])
@pytest.mark.few("sums", "rollup")
def test_no_row_moves_more_than_claimed_and_some_row_as_much(name: str) -> None:
    own = duckdb.connect()
    own.execute("CREATE TABLE t (a VARCHAR, b INTEGER, c INTEGER, v INTEGER, w INTEGER, s VARCHAR)")
    own.execute("CREATE TABLE u (owner INTEGER, g INTEGER, h VARCHAR, m INTEGER)")
    strategy = planned(name, own)
    rng, largest = np.random.default_rng(4), 0
    before = measured(strategy, own)
    every = [*ROWS, ("x", 9, 1, 2, 7, "r"), (None, None, None, None, None, None)]
    chosen = [every[i] for i in rng.choice(len(every), 30, replace=False)] + every[-2:]
    for row in [*chosen, ("x", 1, 1, 10, 4, "p"), ("x", 1, 1, -3, 0, "p"), ("x", 1, 1, None, 4, "p")]:
        own.execute("DELETE FROM t")
        own.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", row)
        largest = max(largest, sum((y - x) ** 2 for x, y in zip(before, measured(strategy, own), strict=True)))
    claim = sensitivity_of("gaussian", strategy.measured, strategy.planned.layouts) * strategy.planned.common_steps**2
    assert largest <= claim
    assert largest > 0.95 * claim
    rough = rough_sensitivity("gaussian", strategy.measured, strategy.planned.layouts)
    assert rough == pytest.approx(claim / strategy.planned.common_steps**2, rel=1e-9)
    for layout in strategy.planned.layouts:
        for order in (1, 2):
            part = strategy.measured.norms(layout.entry)[order - 1]
            assert strategy.measured.largest_norm(layout.entry, order) == pytest.approx(part, rel=1e-9)


def least(name: str, con: duckdb.DuckDBPyConnection) -> tuple[float, float]:
    """(lower, upper) of the least error over all cells and corners of the one table, by the dual of one matrix."""
    batch = compiled(name, con)[0]
    table = next(number for number, owned in enumerate(batch.owners) if owned)
    W, cells = whole(batch, table)
    moved = W.reshape(batch.numbers, -1) @ corners(W, cells, nulls_of(batch, table))[0]
    columns = np.unique(moved.round(12), axis=1)
    values, V = np.linalg.eigh(columns @ columns.T)
    used = values > 1e-12 * values[-1]
    U = (V[:, used].T @ columns).T
    found = solve([Part(1.0, np.eye(U.shape[1]), U)], 1e-4)
    return found.lower, found.upper


@pytest.mark.parametrize("name", [name for name in BATCHES if name != "units"])
@pytest.mark.few(every=2)
def test_the_certificate_is_that_of_all_cells(con: duckdb.DuckDBPyConnection, name: str) -> None:
    strategy = planned(name, con)
    low, high = least(name, con)
    assert strategy.lower_bound is not None
    assert strategy.lower_bound == pytest.approx(low, rel=2e-3)
    assert strategy.lower_bound <= high * (1 + 1e-9)
    assert low * (1 - 1e-9) <= strategy.expected <= 1.001 * strategy.lower_bound
    assert strategy.expected <= structured_strategy(strategy.planned, "gaussian").expected * (1 + 1e-4)


def test_rows_are_sums_of_their_levels() -> None:
    sizes, rng = [3, 3, 2, 2, 2], np.random.default_rng(2)
    order = rng.permutation(14)
    label = np.empty(14, dtype=int)
    label[order] = np.repeat(np.arange(5), [*sizes[:4], 4])
    label[order[12:]] = -1  # two regions in no group
    groups = np.array([label == g for g in range(5)], dtype=float)
    upper = np.array([np.isin(label, [0, 1]), np.isin(label, [2, 3])], dtype=float)
    matrices = [sparse.csr_array(m) for m in (3.0 * groups, upper, np.eye(14)[order[:12]])]
    axis = levels_of(14, matrices)
    assert axis is not None
    assert len(axis.levels) == 7
    for matrix, rows in zip(matrices, axis.rows, strict=False):
        found = np.zeros(matrix.shape)
        for level, kind in rows.parts():
            own = axis.levels[level]
            weights = rows.times[level, kind] * rows.whole[level, kind][axis.orbit]
            for row in np.flatnonzero(rows.kind == kind):
                at = rows.at[level, row]
                mates = own.child // own.alike == at // own.alike
                share = (own.child == at) - np.where(mates & (own.child >= 0), 1 / own.alike, 0) * (own.alike > 1)
                found[row] += share * weights
        np.testing.assert_allclose(found, matrix.toarray(), atol=1e-12)
    dims = sum(own.children * own.share * np.unique(axis.orbit[own.child >= 0]).size for own in axis.levels)
    assert dims == pytest.approx(14)


def test_sets_that_overlap_or_differ_in_a_row_have_no_levels(con: duckdb.DuckDBPyConnection) -> None:
    overlap = sparse.csr_array(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]))
    assert levels_of(3, [overlap]) is None
    assert levels_of(3, [sparse.csr_array(np.array([[1.0, 2.0, 0.0]]))]) is None
    for name in ("across", "ranges", "two tables"):
        assert level_strategy(compiled(name, con)[0], 1e-3, np.inf) is None


def test_periods_of_many_lengths_have_levels() -> None:
    lengths = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]  # whose common multiple is above 2^63
    label = np.repeat(np.arange(len(lengths)), lengths)
    periods = sparse.csr_array((np.arange(len(lengths))[:, None] == label[None, :]).astype(float))
    axis = levels_of(len(label), [periods, sparse.csr_array(sparse.eye_array(len(label)))])
    assert axis is not None
    assert axis.orbits == len(lengths)
    assert axis.rows[1].times[0, :].tolist() == [1.0 / length for length in lengths]


def test_counts_of_some_regions_keep_residuals_where_these_are_as_good(con: duckdb.DuckDBPyConnection) -> None:
    # Estimates that a table could have are found over residuals, cell by cell.
    some = (
        "SELECT a, b, COUNT(*) AS n FROM t WHERE b IN (1, 2) GROUP BY a, b; "
        "SELECT c, s, COUNT(*) AS n FROM t GROUP BY c, s"
    )
    found = select(compiled(some, con)[0], tolerance=0.01)
    assert isinstance(found, StructuredStrategy)
    assert found.gap is not None
    assert found.gap <= 0.01
    nested = select(compiled(NESTED, con)[0], tolerance=0.01)
    assert isinstance(nested, LevelStrategy)


def test_levels_answer_where_residuals_have_integers_too_large(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise DataError("the strategy's integers are too large")

    monkeypatch.setattr(selection, "structured_strategy", refuses)
    assert isinstance(select(compiled(NESTED, con)[0], tolerance=1e-9), LevelStrategy)
    with pytest.raises(DataError, match="too large"):
        select(compiled("across", con)[0])


def test_orbits_cover_every_row_that_there_is(con: duckdb.DuckDBPyConnection) -> None:
    strategy = planned(NESTED, con)
    integers = strategy.measured
    nulls = nulls_of(strategy.planned, 0)
    kept = {tuple(int(a.orbit[r]) for a, r in zip(integers.axes, at, strict=True)) for at, _ in integers.corners(nulls)}
    assert kept == set(itertools.product(*(range(axis.orbits) for axis in integers.axes)))
    assert isinstance(integers, LevelIntegers)
    assert integers.digest() != planned("sums", con).measured.digest()


def test_no_unit_of_several_rows_moves_more_than_claimed_and_three_alike_as_much() -> None:
    own = duckdb.connect()
    own.execute("CREATE TABLE t (a VARCHAR, b INTEGER, c INTEGER, v INTEGER, w INTEGER, s VARCHAR)")
    own.execute("CREATE TABLE u (owner INTEGER, g INTEGER, h VARCHAR, m INTEGER)")
    strategy = planned("units", own)
    before, largest = measured(strategy, own), 0
    for m in (0, 2, None):
        own.execute("DELETE FROM u")
        own.executemany("INSERT INTO u VALUES (?, ?, ?, ?)", [(1, 1, "k", m)] * 5)  # three of them count
        largest = max(largest, sum((y - x) ** 2 for x, y in zip(before, measured(strategy, own), strict=True)))
    layouts, steps = strategy.planned.layouts, strategy.planned.common_steps
    assert largest == sensitivity_of("gaussian", strategy.measured, layouts) * steps**2
    for noise in ("gaussian", "laplace"):
        claim = sensitivity_of(noise, strategy.measured, layouts)
        assert rough_sensitivity(noise, strategy.measured, layouts) == pytest.approx(claim, rel=1e-9)


def test_null_takes_no_value_s_place_where_values_are_summed() -> None:
    policy = policy_of(
        '[tables.e]\nunit = "row"\n[tables.e.columns]\ne = { lower = -2, upper = 2 }\ng = { values = [1, 2] }\n'
    )
    own = duckdb.connect()
    own.execute("CREATE TABLE e (e INTEGER, g INTEGER)")
    sql = "SELECT e, COUNT(*) AS n FROM e GROUP BY e; SELECT g, SUM(e) AS s FROM e GROUP BY g"  # the middle is 0
    found = understood(sql, policy, tables_of(policy, engine_of(own)))
    strategy = level_strategy(compile_structured(found.queries, found.tables), 1e-3, np.inf)
    assert strategy is not None
    (((_, axis), at),) = nulls_of(strategy.planned, 0).items()
    orbit = strategy.measured.axes[axis].orbit
    assert np.count_nonzero(orbit == orbit[at]) == 1
