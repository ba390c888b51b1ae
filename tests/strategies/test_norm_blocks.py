"""Pure strategies in blocks: what they reach, their exact sensitivity, least squares, and what is kept of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import linalg, optimize, sparse

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError, InternalError
from dpsql.linalg import norms
from dpsql.reconstruct import covariance
from dpsql.reconstruct.intervals import half_widths, log_concave_quantile
from dpsql.replicates.noise import replicates
from dpsql.strategies.choose import task
from dpsql.strategies.core.blocks import deviations, factor
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.strategies.pure import norm_blocks, row_mixing
from dpsql.workloads.families.matrix import Workload


def filters(m: int) -> workload.Workload:
    """m overlapping conditions: a cell for every combination of them."""
    return workload.from_matrix(np.array(list(itertools.product((0, 1), repeat=m))).T)


def by_hand(S: strategy.MatrixStrategy) -> tuple[float, float]:
    """(sensitivity, error) from B written out."""
    B, ends = S.matrix(), np.cumsum(S.blocks)
    tops = [np.abs(B[end - m : end]).max(axis=0) for m, end in zip(S.blocks, ends, strict=True)]
    sensitivity = float(np.sum(tops, axis=0).max())
    spread = np.repeat([(m + 1) * (m + 2) / 6 for m in S.blocks], S.blocks) ** 0.5
    R = S.planned.matrix() @ np.linalg.pinv(B / spread[:, None])
    return sensitivity, sensitivity**2 * float((R * R).sum())


@pytest.mark.parametrize(("m", "error"), [(4, 14.0), (6, 36.0)])
@pytest.mark.few(every=2)
def test_overlapping_filters_reach_the_hull_of_their_records(m: int, error: float) -> None:
    """m (m + 2)(m + 3) / 12; Laplace noise stays Laplace noise, and worse."""
    S, laplace = (strategy.select(filters(m), noise=noise) for noise in ("pure", "laplace"))
    assert S.expected == pytest.approx(error, rel=1e-6)
    assert (S.blocks, S.method, S.noise) == ((m + 1,), "norm-blocks", "laplace")
    assert laplace.blocks == ()
    assert laplace.expected > 1.8 * error
    assert by_hand(S) == pytest.approx((S.l1, S.expected), rel=1e-9)


def test_rows_of_signs_reach_the_cube() -> None:
    signs = np.random.default_rng(0).choice([-1, 1], size=(6, 400))
    W = workload.from_matrix(signs)
    S = strategy.select(W, noise="pure")
    assert S.expected == pytest.approx(6 * 7 * 8 / 6, rel=1e-6)
    assert S.expected / bounds.svd_bound(W) < 1.6


@pytest.mark.long
def test_pure_is_never_worse_than_laplace_and_keeps_it_where_it_is_best() -> None:
    for W in (workload.prefix(16), workload.identity(8), workload.random_ranges(10, 64, 1)):
        pure, laplace = (strategy.select(W, noise=noise) for noise in ("pure", "laplace"))
        assert pure.expected <= laplace.expected * (1 + 1e-9)


def test_a_little_less_error_in_blocks_is_not_taken() -> None:
    """Five counts and five sums of 0 to 30 of five groups: blocks of two have 0.1 % less error, and are not taken."""
    each = np.eye(5, dtype=np.int64)
    corners = sparse.csr_array(np.block([[each, each], [0 * each, 30 * each]]))  # what a row adds, its value 0 or 30
    W = Workload.from_rows(np.eye(10), np.repeat([1.0, 1 / 60], 5), contributions=corners)
    S = strategy.select(W, noise="pure")
    known = dict(S.considered)
    assert known["norm-blocks"] < min(error for method, error in known.items() if method != "norm-blocks")
    assert S.blocks == ()


@pytest.mark.long
def test_parts_of_a_batch_are_mixed() -> None:
    """Filters in a block beside a histogram in single counts, by shares of epsilon."""
    axes = np.array(list(itertools.product((0, 1), (0, 1), (0, 1), range(12)))).T
    rows = np.vstack([axes[:3], axes[3] == np.arange(12)[:, None]]).astype(np.int64)
    W = workload.Workload.from_rows(rows, np.ones(15), groups=[0] * 3 + [1] * 12)
    pure, laplace = (strategy.select(W, noise=noise) for noise in ("pure", "laplace"))
    assert pure.expected < 0.9 * laplace.expected
    assert by_hand(pure) == pytest.approx((pure.l1, pure.expected), rel=1e-6)


def test_groups_that_are_alike_have_a_block_each() -> None:
    """A record is in one of the groups: no more than for one of them."""
    W = workload.from_matrix(np.kron(np.eye(5), filters(4).matrix()))
    S = strategy.select(W, noise="pure")
    assert S.blocks == (5,) * 5
    assert S.expected == pytest.approx(5 * 14.0, rel=1e-6)
    assert by_hand(S) == pytest.approx((S.l1, S.expected), rel=1e-6)


def test_weights_and_their_rounding_keep_the_exact_sensitivity() -> None:
    W = workload.weighted(filters(4), [1.0, 1.0, 3.0, 9.0])
    S = strategy.select(W, noise="pure")
    assert by_hand(S) == pytest.approx((S.l1, S.expected), rel=1e-6)
    assert S.expected <= strategy.select(W, noise="laplace").expected


@pytest.mark.long
def test_answers_vary_as_their_covariance_says() -> None:
    """Standard errors, covariances and intervals of W x from drawn noise; at independent noise they would be wrong."""
    from dpsql.privacy.noise import pure_noise

    S = strategy.select(filters(4), noise="pure")
    noise = pure_noise(64 * S.l1, 1, S.blocks)
    R = S.reconstruction(S.planned)
    errors = replicates(noise, 7, 40_000, S.shape[0]) @ np.asarray(R).T
    held = covariance(R, noise)
    assert np.abs(errors.T @ errors / len(errors) - held).max() < 0.05 * held.max()
    assert held[0, 1] == pytest.approx(held[0, 0] / 2, rel=1e-9)  # the lift's row is common to all
    inside = (np.abs(errors) <= half_widths(R, noise, 0.05)).mean(axis=0)
    assert (inside > 0.95).all()
    assert (inside < 0.98).all()
    assert np.trace(held) == pytest.approx(2 * 64**2 * S.expected, rel=1e-3)


@pytest.mark.parametrize("alpha", [0.3, 0.05, 1e-3])
def test_no_log_concave_law_has_a_larger_quantile(alpha: float) -> None:
    """Random ones: minima of lines, cut off somewhere, and mixtures of cubes by their radius."""
    rng, y = np.random.default_rng(1), np.linspace(0.0, 1.0, 20_001)
    largest = 0.0
    for _ in range(300):
        slopes, cuts = rng.exponential(30.0, 4), rng.uniform(0, 1, 4) * rng.integers(0, 2, 4)
        logs = -np.maximum(slopes[:, None] * (y - cuts[:, None]), 0.0).max(axis=0)
        weights = np.exp(logs)
        weights /= weights.sum()
        at = np.searchsorted(np.cumsum(weights), 1 - alpha)
        largest = max(largest, y[min(at, y.size - 1)] / np.sqrt(weights @ y**2))
    assert largest <= log_concave_quantile(alpha) * 1.003
    assert largest > 0.9 * log_concave_quantile(alpha)


def test_a_kept_strategy_comes_back_with_its_blocks(tmp_path, monkeypatch) -> None:
    from dpsql.strategies import selection as module

    monkeypatch.setattr(module, "_WORTH", 0.0)
    first = strategy.select(filters(4), noise="pure", cache=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]
    again = strategy.select(filters(4), noise="pure", cache=tmp_path)
    assert (again.blocks, again.l1, again.expected) == (first.blocks, first.l1, first.expected)
    assert strategy.select(filters(4), noise="laplace", cache=tmp_path).blocks == ()


def test_the_norm_is_exact_where_floats_are_not() -> None:
    columns = workload.identity(3).span.tocsc()
    large = np.array([[2**52, 1, 0], [0, 2**52 + 1, 5], [3, 2**52 - 1, 2**52]])
    assert norms.block_norm(large, columns, (2, 1)) == 2**53
    assert norms.block_norm(large, columns, (1, 1, 1)) == norms.column_norms(large, columns)[0]
    assert norms.block_norm(large, columns, (3,)) == 2**52 + 1


def test_norms_by_blocks_are_those_of_the_written_product() -> None:
    """Rows alone in a block take ways of their own, where nothing is negative and where something is."""
    rng = np.random.default_rng(3)
    for trial in range(60):
        low, sizes = int(rng.integers(-1, 1)) * 4, rng.integers(1, 4, size=rng.integers(1, 6)).tolist()
        mixing = rng.integers(low, 9, size=(sum(sizes), 4)) * 10 ** (trial % 3 * 7)
        columns = sparse.csc_array(rng.integers(0, 3, size=(4, 9)) * rng.integers(0, 2, size=(4, 9)))
        size, starts = np.abs(mixing @ columns.toarray()), norms.block_starts(sizes)
        wanted = int(np.maximum.reduceat(size, starts, axis=0).sum(axis=0).max())
        assert norms.block_norm(mixing, columns, sizes) == wanted
        for held in (mixing, sparse.csr_array(mixing)):
            assert norms.largest_norm(held, columns, 1, sizes) == pytest.approx(wanted, rel=1e-5)


def test_no_blocks_come_below_the_bound_by_which_they_are_left_out() -> None:
    rng = np.random.default_rng(4)
    nearest = np.inf
    for _ in range(200):
        blocks = tuple(rng.integers(1, 4, size=rng.integers(1, 4)).tolist())
        C, Y = rng.normal(size=(sum(blocks), 2 if sum(blocks) > 1 else 1)), rng.choice([-1.0, 0.0, 1.0], size=(9, 30))
        Y = Y[: C.shape[1]]
        half = rng.normal(size=(5, C.shape[1]))
        found = norm_blocks.error_of(half.T @ half, C, Y, blocks)
        least = norm_blocks.least_of(half.T @ half, Y) * min(factor(m) / m for m in blocks)
        assert found >= least * (1 - 1e-9)
        nearest = min(nearest, found / least)
    assert nearest < 1.5


def test_what_cannot_come_below_a_known_error_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several problems those that are left, each at its lower bound."""
    W = workload.from_matrix(linalg.block_diag(filters(4).matrix(), filters(3).matrix(), filters(2).matrix()))
    search, searched = norm_blocks.search, list[int]()

    def counted(gram: np.ndarray, *given: Any) -> norm_blocks.Draft:
        searched.append(len(gram))
        return search(gram, *given)

    def planned(known: float) -> float:
        searched.clear()
        limits = 1e-3, TimeLeft.within(None), lambda _: None, task.WORK
        held = task.Task(replace(W, _cache={}), "laplace", *limits, in_blocks=True, known=known)
        return held.plan("norm-blocks")[1]

    monkeypatch.setattr(norm_blocks, "search", counted)
    error = planned(np.inf)
    assert {4, 3, 2} <= set(searched)
    assert planned(error * 1.001) == pytest.approx(error, rel=1e-6)
    with pytest.raises(DataError, match="less error"):
        planned(error * 0.6)
    assert 4 in searched
    assert 2 not in searched


def test_blocks_are_refused_where_they_do_not_belong() -> None:
    with pytest.raises(DataError, match="pure"):
        strategy.select(filters(3), noise="laplace", method="norm-blocks")
    S = strategy.select(filters(3), noise="pure")
    with pytest.raises(InternalError, match="all rows"):
        replace(S, blocks=(2,))
    with pytest.raises(InternalError, match="pure noise"):
        replace(S, noise="gaussian")


def test_the_gradient_is_that_of_the_objective() -> None:
    rng = np.random.default_rng(5)
    C, Y, blocks = rng.normal(size=(4, 4)), rng.normal(size=(4, 30)), (2, 1, 1)
    objective = norm_blocks._Objective(np.diag([1.0, 2.0, 3.0, 1.0]), Y, blocks, 12, 0.1, 30.0)
    _, slope = objective(C.ravel())
    for at in range(16):
        step = np.zeros(16)
        step[at] = 1e-6
        numeric = (objective(C.ravel() + step)[0] - objective(C.ravel() - step)[0]) / 2e-6
        assert slope[at] == pytest.approx(numeric, rel=1e-4, abs=1e-6)


def test_factors_of_blocks() -> None:
    assert [factor(m) for m in (1, 2, 5)] == [1.0, 2.0, 7.0]
    assert deviations((2, 1)).tolist() == pytest.approx([2**0.5, 2**0.5, 1.0])


@pytest.mark.parametrize("seed", range(6))
def test_blocks_are_joined_as_if_every_pair_was_tried(seed: int) -> None:
    """Two blocks become one, each time the pair of least error, by definition."""
    rng, v = np.random.default_rng(seed), 6
    Y, gram = rng.integers(-1, 2, size=(v, 40)).astype(float), np.diag(rng.uniform(0.5, 2.0, v))
    groups = [[i] for i in range(v)]

    def error(groups: list[list[int]]) -> float:
        cost = np.array([factor(len(g)) * np.diag(gram)[g].sum() for g in groups])
        share = np.cbrt(cost)
        tops = np.array([np.abs(Y[g]).max(axis=0) for g in groups])
        return float((share @ tops).max() ** 2 * (cost / share**2).sum())

    while len(groups) > 1:
        trials = [
            [*(g for g in groups if g is not one and g is not other), one + other]
            for one, other in itertools.combinations(groups, 2)
        ]
        best = min(trials, key=error)
        if error(best) >= error(groups) * (1.0 - 1e-9):
            break
        groups = best
    found = norm_blocks._joined(gram, np.eye(v), Y, (1,) * v)
    assert sorted(found.blocks) == sorted(map(len, groups))
    assert found.error == pytest.approx(error(groups), rel=1e-9)


def test_mixings_that_are_far_above_another_error_end_after_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    Y, gram, calls = rng.integers(0, 2, size=(5, 30)).astype(float), np.eye(5), list[float]()
    minimize = optimize.minimize

    def counted(objective: row_mixing._Objective, *args: Any, **options: Any) -> Any:
        calls.append(objective.soft)
        return minimize(objective, *args, **options)

    monkeypatch.setattr(optimize, "minimize", counted)
    full = row_mixing.search(gram, Y, np.eye(5), np.inf, 1e9)
    error = row_mixing.error_of(gram, full, Y)
    assert len(calls) == 3
    assert np.array_equal(row_mixing.search(gram, Y, np.eye(5), np.inf, 1e9, rival=error), full)
    assert len(calls) == 6
    row_mixing.search(gram, Y, np.eye(5), np.inf, 1e9, rival=error / 4.0)
    assert len(calls) == 7
