"""Products of one-dimensional queries over sets of columns, against dense matrices over all cells."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from dpsql import strategy, workload
from dpsql.errors import DataError, InternalError
from dpsql.linalg.blocks import Mixed
from dpsql.strategies.kronecker import centres, root_parts
from dpsql.strategies.kronecker import structured_bound as structured_bound_module
from dpsql.strategies.kronecker.root_parts import Barb, root_trace
from dpsql.strategies.kronecker.structured_bound import structured_bound
from dpsql.workloads.compile import kronecker
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.families.matrix import Workload


def dense(columns: list[Workload], sets: list[tuple[int, ...]]) -> np.ndarray:
    """All queries over all cells."""
    found = []
    for S in sets:
        out = np.ones((1, 1))
        for i, W in enumerate(columns):
            out = np.kron(out, W.matrix() if i in S else np.ones((1, W.shape[1])))
        found.append(out)
    return np.vstack(found)


def over_cells(batch: Structured) -> np.ndarray:
    """How the histograms follow from the cells (entries x cells)."""
    sizes = batch.sizes[0]
    out = []
    for held in batch.histograms:
        part = np.ones((1, 1))
        for i, d in enumerate(sizes):
            part = np.kron(part, np.eye(d) if i in held.axes else np.ones((1, d)))
        out.append(part)
    return np.vstack(out)


def some(kind: str) -> tuple[list[Workload], list[tuple[int, ...]]]:
    odd = workload.from_matrix(np.array([[1, 1, 0, 0], [0, 0, 0, 2], [1, 0, 1, 1], [1, 1, 1, 1]]))
    lists = {
        "prefixes": [workload.prefix(4), workload.prefix(3), workload.prefix(4)],
        "any": [workload.prefix(4), workload.all_range(3), odd],
        "beside points": [workload.identity(3), workload.prefix(5), workload.total(2)],
    }
    return lists[kind], [(0, 1), (0, 2), (1, 2)]


def _without_levels(patch: pytest.MonkeyPatch) -> None:
    """Sets that nest are planned around centres, as those that do not are."""
    patch.setattr("dpsql.strategies.selection.level_strategy", lambda *_: None)


@pytest.mark.parametrize("kind", ["prefixes", "any", "beside points"])
def test_what_is_planned_is_what_the_matrices_say(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_levels(monkeypatch)
    columns, sets = some(kind)
    batch = workload.products(*columns, sets=sets)
    S = strategy.select(batch)
    W, H = dense(columns, sets), over_cells(batch)
    B = S.matrix() @ H
    centres = [p for r in S.residuals for p in r.integers if isinstance(p, Mixed) and p.centre is not None]
    assert centres
    # Least squares, and the exact sensitivity.
    back = W @ np.linalg.pinv(B, rcond=1e-11)
    np.testing.assert_allclose(back @ B, W, atol=1e-7)
    np.testing.assert_allclose(S.variances(batch), S.l2_squared * (back**2).sum(axis=1), rtol=1e-6)
    assert S.expected == pytest.approx(float(S.variances(batch).sum()), rel=1e-9)
    assert float((B**2).sum(axis=0).max()) <= S.l2_squared
    # Without noise the answers are exact.
    x = np.random.default_rng(1).integers(0, 9, H.shape[1])
    y = S.measured.times([int(v) for v in H @ x], 20)
    np.testing.assert_allclose(S.answers_of(batch).estimate(y, 1), W @ x, rtol=1e-9, atol=1e-9)
    # The bound is one: the optimum over all cells lies between it and the error.
    least = strategy.select(workload.from_matrix(W.astype(np.int64)), tolerance=1e-3)
    assert S.lower_bound is not None
    assert least.lower_bound is not None
    assert S.lower_bound <= least.expected * (1 + 1e-9)
    assert least.lower_bound <= S.expected * (1 + 1e-9)
    assert S.gap is not None
    assert S.gap < 0.03


def test_weights_of_regions_give_the_bound_of_their_product(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, sets = some("any")
    batch = workload.products(*columns, sets=sets)
    weights = [np.array([4.0, 1, 2, 3]), np.array([1.0, 5, 2]), np.array([3.0, 1, 1, 2])]
    lam = np.ones(1)
    for part in weights:
        lam = np.kron(lam, part / part.sum())
    W = dense(columns, sets)
    exact = max(
        float(np.linalg.svd(W * np.sqrt(held), compute_uv=False).sum()) ** 2 for held in (lam, np.ones(48) / 48)
    )
    given = {(0, axis): part for axis, part in enumerate(weights)}
    assert structured_bound(batch, weights=given) == pytest.approx(exact, rel=2e-9)
    monkeypatch.setattr(root_parts, "_SMALL", 2)  # as an arrow
    found = structured_bound(batch, weights=given)
    assert found is not None
    assert exact * (1 - 3e-4) < found <= exact
    enough = structured_bound(batch, weights=given, enough=0.0)
    assert enough is not None
    assert enough <= found * (1 + 1e-9)


def test_first_weights_that_give_enough_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, sets = some("any")
    batch = workload.products(*columns, sets=sets)
    best = structured_bound(batch, weights={})
    tried: list[float] = []
    monkeypatch.setattr(structured_bound_module._Table, "at", _listing(tried, structured_bound_module._Table.at))
    given = {(0, axis): np.ones(W.shape[1]) for axis, W in enumerate(columns)}
    assert structured_bound(batch, weights=given, enough=0.99 * best) == pytest.approx(best, rel=1e-9)
    assert len(tried) == 1
    structured_bound(batch, weights=given)
    assert len(tried) == 3


def _listing(tried: list[float], at: Callable[..., tuple[float, float]]) -> Callable[..., tuple[float, float]]:
    def listed(table: object, share: float) -> tuple[float, float]:
        tried.append(share)
        return at(table, share)

    return listed


def test_columns_alike_are_centred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_levels(monkeypatch)
    solved: list[int] = []
    solve = centres._Axis.solve
    monkeypatch.setattr(centres._Axis, "solve", lambda axis, g: (solved.append(axis.d), solve(axis, g))[1])
    batch = workload.products(*[workload.prefix(5)] * 4, workload.prefix(4), sets=list(combinations(range(5), 2)))
    S = strategy.select(batch)
    held = {part.matrix.tobytes() for r in S.residuals for part in r.integers if part.d == 5 and len(r.axes) == 1}
    assert len(held) == 1
    assert solved.count(5) == solved.count(4) > 20


@pytest.mark.parametrize(("shared", "own"), [(5, [7, 9, 4]), (1, [12]), (0, [6, 3]), (4, [0, 5, 0])])
def test_the_root_of_an_arrow(shared: int, own: list[int]) -> None:
    rng = np.random.default_rng(shared)
    n = shared + sum(own)
    K, shaft, barbs, at = np.zeros((n, n)), np.zeros((shared, shared)), [], shared
    for p in own:
        few = min(shared, 3 - len(barbs) % 2)
        ends = np.sort(rng.choice(shared, few, replace=False)) if shared else np.zeros(0, dtype=np.int64)
        places = np.concatenate([np.arange(at, at + p), ends])
        X = rng.normal(size=(len(places),) * 2) * np.exp(-6 * rng.random(len(places)))
        part = X.T @ X
        K[np.ix_(places, places)] += part
        shaft[np.ix_(ends, ends)] += part[p:, p:]
        barbs.append(Barb(part[:p, :p], part[:p, p:], ends))
        at += p
    exact = float(np.sqrt(np.maximum(np.linalg.eigvalsh(K), 0.0)).sum())
    found = root_trace(shaft, barbs)
    assert exact * (1 - 1e-4) < found <= exact


@pytest.mark.parametrize("shapes", [[(2, 2), (40, 30)], [(40, 30), (2, 3)], [(9, 9), (9, 9)]])
def test_products_of_small_and_large_parts_are_kronecker_products(shapes: list[tuple[int, int]]) -> None:
    left, right = (np.random.default_rng(3).normal(size=shape) for shape in shapes)
    assert np.array_equal(root_parts._kron([left, right]), np.kron(left, right))


def test_a_centre_of_another_axis_is_refused() -> None:
    with pytest.raises(InternalError, match="orthogonal to its centre"):
        Mixed(np.array([[1, -1, 0], [0, 1, -1]]), np.array([1, 1, 2]))


def test_pairs_of_prefixes_are_certified() -> None:
    for d, n, most in ((2, 10, 1e-3), (4, 6, 0.02)):
        S = strategy.select(workload.products(*[workload.prefix(n)] * d, order=2))
        assert S.gap is not None
        assert S.gap < most


@pytest.mark.long
def test_the_largest_error_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.strategies.kronecker.largest._ROUNDS", 4)
    columns, sets = some("prefixes")
    batch = workload.products(*columns, sets=sets, weights=[1.0, 2.0, 1.0])
    S, T = strategy.select(batch, objective="max"), strategy.select(batch)
    assert S.value == pytest.approx(S.largest(batch), rel=1e-9)
    assert S.value <= T.largest(batch) * (1 + 1e-9)
    W = dense(columns, sets) * np.repeat([1.0, 2.0, 1.0], [12, 16, 12])[:, None]
    least = strategy.select(workload.from_matrix(W.astype(np.int64)), objective="max", tolerance=1e-2)
    assert S.lower_bound is not None
    assert S.lower_bound <= least.value * (1 + 1e-9)
    assert S.value <= least.value * 1.15
    assert S.gap is None
    monkeypatch.setattr("dpsql.strategies.kronecker.largest._ROUNDS", 1)
    pure = strategy.select(batch, noise="laplace", objective="max")
    assert pure.gap is None
    assert pure.value == pytest.approx(pure.largest(batch), rel=1e-9)


def test_columns_with_contributions_are_no_products() -> None:
    with pytest.raises(DataError, match="products needs at least one part"):
        workload.products(order=1)


def test_where_integers_around_centres_are_too_large_those_that_add_up_to_nothing_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without_levels(monkeypatch)
    columns, sets = some("prefixes")
    monkeypatch.setattr(kronecker, "_LEAST", 28)
    found = strategy.select(workload.products(*columns, sets=sets))
    assert not [p for r in found.residuals for p in r.integers if isinstance(p, Mixed) and p.centre is not None]
    assert found.lower_bound is not None
    assert found.expected < 1.25 * found.lower_bound


@pytest.mark.long
def test_all_pairs_of_a_census_are_planned() -> None:
    """Groups of values, and a region that no group counts, on each of fourteen columns."""
    sizes = (86, 10, 101, 17, 8, 16, 7, 6, 3, 101, 101, 100, 43, 3)
    columns = [workload.from_matrix(np.eye(d, dtype=np.int64)[:-1]) for d in sizes]
    found = strategy.select(workload.products(*columns, sets=list(combinations(range(len(sizes)), 2))))
    assert found.lower_bound is not None
    assert found.expected < 1.005 * found.lower_bound


def test_long_axes_are_centred_over_runs_of_their_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = workload.products(workload.prefix(12), workload.prefix(12), sets=[(0, 1)])
    whole = strategy.select(batch)
    monkeypatch.setattr(centres, "_FEW_CUBES", 3000)
    monkeypatch.setattr(centres, "_RUNS", 9)
    by_runs = strategy.select(batch)
    assert any(p.centre is not None for r in by_runs.residuals for p in r.integers if isinstance(p, Mixed))
    assert by_runs.gap is not None
    assert by_runs.gap < 0.01
    assert by_runs.expected <= 1.005 * whole.expected
