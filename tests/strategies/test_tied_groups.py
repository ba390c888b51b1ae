"""Rows, their sums and the units that they are counted by, of groups that are alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from unit_worlds import least

from dpsql.linalg import exact
from dpsql.linalg import inner as algebra
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.gaussian import groups as groups_module
from dpsql.strategies.gaussian.groups import TiedGroups, plan_tied_groups
from dpsql.workloads.compile import unlisted_tied
from dpsql.workloads.families import reach
from dpsql.workloads.families.contributions import Tied
from dpsql.workloads.families.matrix import Workload

RNG = np.random.default_rng(5)


def tied(groups: int, most: int, corners: np.ndarray) -> Tied:
    """Rows that move their group by a row of ``corners`` (n x d), the last entry of which counts units."""
    n, d = corners.shape
    more = sparse.csc_array(np.kron(np.eye(groups, dtype=np.int64), corners.T))
    count = np.zeros((d, n), dtype=np.int64)
    count[-1] = 1
    return Tied(more + sparse.csc_array(np.kron(np.eye(groups, dtype=np.int64), count)), more,
                np.repeat(np.arange(groups), n), most)  # fmt: skip


def asked(held: Tied, weights: np.ndarray) -> Workload:
    span = sparse.csr_array(np.eye(held.first.shape[0], dtype=np.int64))
    groups = span.shape[0] // weights.size
    return Workload(span, algebra.Diagonal(np.tile(np.sqrt(weights), groups)), sparse.csr_array(held.columns))


COUNTS = np.array([[1, 0]])
SUMS = np.array([[1, 1, 0], [1, -1, 0]])
UNLIKE = np.array([[1, 2, 0], [1, -1, 0]])
# Two sums of columns that may be NULL: more corners than are tried in pairs.
NULLS = np.array([[1, v, w, 0] for v in (-1, 0, 1) for w in (-1, 0, 1)])


def planned(held: Tied, weights: np.ndarray) -> TiedGroups:
    (block,) = reduce_workload(asked(held, weights))
    found = plan_tied_groups(block, held, 1e-3, np.inf)
    assert found is not None
    return found


def moved(found_by: sparse.csr_array, root: np.ndarray, held: Tied) -> np.ndarray:
    """How far each listed contribution goes, squared."""
    columns = (sparse.csr_array(found_by) @ held.listed()).toarray()
    turned = root @ columns.reshape(-1, root.shape[1], columns.shape[1])
    return np.asarray((turned**2).sum(axis=(0, 1)))


@pytest.mark.parametrize("corners", [COUNTS, SUMS, UNLIKE, NULLS], ids=("counts", "sums", "unlike", "nulls"))
@pytest.mark.parametrize(("groups", "most"), [(2, 1), (3, 2), (4, 3), (3, 5)])
@pytest.mark.few("2-1-unlike", "4-3-sums", "3-5-counts", "3-2-nulls")
def test_bounds_hold_for_all_that_a_unit_can_do(groups: int, most: int, corners: np.ndarray) -> None:
    held, weights = tied(groups, most, corners), np.array([0.3, 1.0, 0.2, 5.0])[-corners.shape[1] :]
    found, V = planned(held, weights), asked(held, weights)
    true = least(V.matrix(), held.listed().T.toarray().astype(np.float64))
    assert found.lower <= true.upper * (1 + 1e-9)
    assert found.error >= true.lower * (1 - 1e-9)
    piece = found.apart
    assert moved(piece.rows, piece.root, held).max() == pytest.approx(1.0)
    assert piece.trace(piece.root) == pytest.approx(found.error)
    joint = found.joint(V)
    far = moved(joint.rows, joint.root, held).max()
    assert joint.trace(joint.root) * far <= true.lower * (1.03 if corners is UNLIKE else 1.002)
    assert found.lower >= true.lower * (0.97 if corners is UNLIKE else 0.998)


def a_row_too_few(patch: pytest.MonkeyPatch) -> None:
    real = groups_module._kinds

    def shorter(first: np.ndarray, more: np.ndarray, tied: Tied, limit: int) -> object:
        return real(first, more, replace(tied, most=tied.most - 1), limit)

    patch.setattr(groups_module, "_kinds", shorter)


def a_group_too_few(patch: pytest.MonkeyPatch) -> None:
    real = groups_module._kinds
    patch.setattr(groups_module, "_kinds", lambda first, more, tied, limit: real(first, more, tied, limit - 1))


def shared_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = groups_module._kinds
    patch.setattr(groups_module, "_kinds", lambda *given: (real(*given)[0], real(*given)[0]))


@pytest.mark.parametrize("mutant", [a_row_too_few, a_group_too_few, shared_forgotten])
def test_a_wrong_kind_is_seen(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        test_bounds_hold_for_all_that_a_unit_can_do(4, 3, COUNTS)


def test_what_is_not_alike_is_left_to_others() -> None:
    held = tied(3, 2, SUMS)
    uneven = replace(
        held, first=sparse.csc_array(held.first + sparse.csc_array(([1], ([2], [0])), shape=held.first.shape))
    )
    unclassed = replace(held, label=np.where(held.label == 2, -1, held.label))
    shared = replace(held, label=np.minimum(held.label, 1))
    for other in (uneven, unclassed, shared):
        for block in reduce_workload(asked(held, np.ones(3))):
            assert plan_tied_groups(block, other, 1e-3, np.inf) is None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.few(every=10)
def test_sums_of_groups_measured_apart_are_as_long_as_claimed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole numbers, of groups that are not alike, too."""
    draw = np.random.default_rng(seed)
    groups, most, d = int(draw.integers(2, 5)), int(draw.integers(1, 5)), int(draw.integers(2, 4))
    held = tied(groups, most, draw.integers(-3, 4, (int(draw.integers(1, 4)), d)))
    mixing = np.zeros((groups * d, groups * d), dtype=np.int64)
    for at in range(groups):
        mixing[at * d : at * d + d, at * d : at * d + d] = draw.integers(-4, 5, (d, d))
    true = int(((mixing @ held.listed().toarray()) ** 2).sum(axis=0).max())
    eye = sparse.csr_array(np.eye(groups * d, dtype=np.int64))
    monkeypatch.setattr(unlisted_tied, "ALL_PRODUCTS", 0)
    monkeypatch.setattr(exact, "SPARSE_COST", 0)
    found = unlisted_tied.norm_of_classes(sparse.csr_array(mixing), eye, held)
    assert found == true
    mixing[0, -1] = 9  # a measurement of two groups
    assert mixing[0, 0] * 9 == 0 or unlisted_tied.norm_of_classes(sparse.csr_array(mixing), eye, held) is None


@pytest.mark.long
def test_many_groups_are_planned_by_themselves() -> None:
    few, many = (planned(tied(groups, 12, SUMS), np.array([1.0, 0.3, 4.0])) for groups in (20, 2000))
    assert many.error < 1.006 * many.lower
    assert few.error > 1.02 * few.lower
    assert many.apart.root.shape == (3, 3)
    assert many.apart.copies == 2000


def drawn(seed: int, alike: bool) -> tuple[np.ndarray, Tied]:
    """Products of columns of some classes of corners, the same for all classes if ``alike``, and how they are tied."""
    draw = np.random.default_rng(seed)
    classes, corners, most = int(draw.integers(1, 5)), int(draw.integers(1, 4)), int(draw.integers(1, 5))
    label = np.tile(np.arange(classes), corners) if alike else draw.integers(-1, classes, classes * corners)
    label[0], c = 0, label.size
    moved = draw.normal(size=(3, 2 * c))
    if alike:
        each, shared = draw.normal(size=(2, 3, 2, corners))
        own = np.einsum("gh,dtk->gdtkh", np.eye(classes), each).reshape(3 * classes, -1)
        moved = np.vstack([own, np.repeat(shared.reshape(3, -1), classes, axis=1)])
    both = sparse.csc_array(np.eye(2 * c, dtype=np.int64))
    return moved.T @ moved, Tied(both[:, :c], both[:, c:], label, most, nobody=bool(draw.integers(2)))


def short(seeds: int, *, alike: bool) -> tuple[int, int]:
    """How often a sum is longer than what none is said to exceed, and how often none reaches that."""
    below = above = 0
    for seed in range(seeds):
        K, tied = drawn(seed, alike)
        sums = tied.listed().toarray()
        true, bound = np.einsum("ij,ij->j", sums, K @ sums).max(initial=0.0), reach.reach_tied(K, tied)
        below, above = below + bool(bound < true * (1 - 1e-9)), above + bool(bound > true * (1 + 1e-9))
    return below, above


def test_no_sum_exceeds_the_bound_and_one_of_alike_classes_reaches_it() -> None:
    assert short(200, alike=False)[0] == 0
    assert short(200, alike=True) == (0, 0)


@pytest.mark.parametrize("wrong", ["fewer rows", "one class", "no others"])
def test_sums_tell_a_bound_that_is_too_small(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = reach._tied_by_corners

    def small(K: np.ndarray, tied: Tied, known: float) -> float:
        if wrong == "no others":
            return float(real(np.diag(np.diag(K)), tied, known))
        other = replace(tied, most=max(1, tied.most - 1)) if wrong == "fewer rows" else replace(tied, classes=1)
        return float(real(K, other, known))

    monkeypatch.setattr(reach, "_tied_by_corners", small)
    assert short(100, alike=True)[0] > 0
