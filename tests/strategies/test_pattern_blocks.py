"""Counts of units by groups in blocks for patterns: their errors, how far a unit moves them, and what is read off."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dpsql import strategy
from dpsql.common.pattern_block import PatternBlock, law_of, sizes_of
from dpsql.linalg.norms import block_norm, largest_norm
from dpsql.privacy.noise import pure_noise
from dpsql.reconstruct import covariance, half_widths, standard_errors
from dpsql.reconstruct.spread import in_deviations, over_deviations
from dpsql.replicates.noise import replicates
from dpsql.strategies.pure.pattern_blocks import pattern_blocks
from dpsql.workloads.compile.sensitivity import sensitivity_over
from dpsql.workloads.compile.unlisted import bounded_norm
from dpsql.workloads.families.contributions import Contributions, Part
from dpsql.workloads.families.matrix import Workload

CUBE = PatternBlock(3, 2)


def source(first: int, groups: int, times: int, most: int, size: int) -> Part:
    entries = np.arange(first, first + groups)
    ones = np.ones(groups, dtype=np.int64)
    return Part(sparse.csc_array((ones, (entries, np.arange(groups))), shape=(size, groups)), times, most)


def over(rows: np.ndarray, *parts: Part) -> Workload:
    units = Contributions((parts,), rows.shape[1])
    return Workload.from_rows(rows, np.ones(len(rows)), contributions=units.columns, units=units)


def counts(groups: int, most: int, times: int = 1) -> Workload:
    return over(np.eye(groups, dtype=np.int64), source(0, groups, times, most, groups))


@pytest.mark.parametrize(
    ("groups", "most", "goal"),
    [(4, 4, 14.0), (13, 13, 260.0), (50, 50, 11_483.34), (12, 3, 80.516), (50, 10, 3_776.63)],
)
@pytest.mark.few(every=2)
def test_least_error(groups: int, most: int, goal: float) -> None:
    S = strategy.select(counts(groups, most), "pure")
    assert S.blocks == (PatternBlock(groups, most),)
    assert goal * (1 - 1e-5) <= S.expected <= goal * 1.001


def test_a_unit_that_counts_more_often_costs_the_square() -> None:
    """Beside one more count, at shares by the cube root."""
    rows, alone = np.eye(21, dtype=np.int64), law_of(PatternBlock(20, 4)).variance * 10
    for times in (1, 3):
        found = strategy.select(over(rows, source(0, 20, times, 4, 21), source(20, 1, 1, 1, 21)), "pure")
        assert found.expected == pytest.approx(((times**2 * alone) ** (1 / 3) + 1) ** 3, rel=1e-3)


def test_laplace_noise_is_not_drawn_for_patterns() -> None:
    assert strategy.select(counts(50, 10), "laplace").blocks == ()


@pytest.mark.parametrize(("m", "limit"), [(4, 2), (5, 3), (6, 6)])
def test_listed_and_bounded_sensitivities_agree_with_all_changes(m: int, limit: int) -> None:
    """By the list, by the bound where nothing is listed, in floats, and by the definition."""
    block, rng = PatternBlock(m, limit), np.random.default_rng(m)
    mixing = np.vstack([7 * np.eye(m, dtype=np.int64), rng.integers(-3, 4, (2, m))])
    blocks = (block, 1, 1)
    basis = sparse.csr_array(np.eye(m, dtype=np.int64))
    C = np.array([c for c in itertools.product((0, 1), repeat=m) if 1 <= sum(c) <= limit + 1]).T
    wanted = sizes_of((mixing[:m] @ C).astype(object), limit) + np.abs(mixing[m:] @ C).sum(axis=0)
    assert block_norm(mixing, sparse.csc_array(C), blocks) == max(wanted) + 1  # for what lies between
    assert largest_norm(mixing, sparse.csc_array(C), 1, blocks) == pytest.approx(max(wanted), abs=1.0)
    part = source(0, m, 1, limit + (limit < m), m)
    assert sensitivity_over("laplace", mixing, basis, Contributions(((part,),), m), blocks) == max(wanted) + 1
    assert max(wanted) <= bounded_norm(1, mixing, basis, [part], blocks=blocks) <= 2 * max(wanted)
    alone = bounded_norm(1, mixing[:m], basis, [source(0, m, 1, limit, m)], blocks=(block,))
    assert alone == 7


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.few(every=6)
def test_the_bound_is_never_below_what_a_unit_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, p = 16, 9
    label = rng.integers(0, 7, m) if seed % 2 else None
    corners = sparse.csc_array(rng.integers(0, 3, (m, m)) * (rng.random((m, m)) < 0.2))
    part = Part(corners, int(rng.integers(1, 4)), 5, label)
    blocks = (PatternBlock(5, int(rng.integers(2, 6))), 3, 1)
    mixing, basis = rng.integers(-4, 5, (p, m)), sparse.csr_array(np.eye(m, dtype=np.int64))
    bound = bounded_norm(1, mixing, basis, [part], blocks=blocks)
    for _ in range(400):
        chosen = rng.permutation(m)[: rng.integers(1, 6)]
        if label is not None:
            chosen = chosen[np.unique(label[chosen], return_index=True)[1]]
        v = mixing @ (part.times * corners[:, chosen].sum(axis=1))
        assert block_norm(np.eye(p, dtype=np.int64), sparse.csc_array(v[:, None]), blocks) - 1 <= bound


@pytest.mark.parametrize("seed", range(6))
def test_whole_changes_between_those_listed_take_no_more_steps(seed: int) -> None:
    """Of two blocks, with entries of both signs, where rounding up makes steps of halves."""
    rng = np.random.default_rng(seed)
    blocks = (PatternBlock(4, 3), PatternBlock(3, 2), 1)
    columns = rng.integers(-3, 4, (8, 5))
    listed = block_norm(np.eye(8, dtype=np.int64), sparse.csc_array(columns), blocks)
    weights = rng.dirichlet(np.ones(5), 4_000) * rng.choice([-1, 1], (4_000, 5))
    between = np.rint(columns @ weights.T).astype(np.int64)
    gauges = sizes_of(between[:4].astype(float), 3) + sizes_of(between[4:7].astype(float), 2) + np.abs(between[7])
    inside = gauges <= max(
        sizes_of(columns[:4].astype(float), 3) + sizes_of(columns[4:7].astype(float), 2) + np.abs(columns[7])
    )
    whole = between.astype(object)
    steps = sizes_of(whole[:4], 3) + sizes_of(whole[4:7], 2) + np.abs(whole[7])
    assert inside.sum() > 100
    assert max(steps[inside]) <= listed


def test_what_is_listed_is_measured_in_blocks_by_statement() -> None:
    rows = np.eye(9, dtype=np.int64)
    columns = [np.r_[c, d] for c in itertools.product((0, 1), repeat=5) for d in np.eye(4, dtype=int) if sum(c) <= 2]
    W = Workload.from_rows(
        rows, np.ones(9), contributions=sparse.csc_array(np.array(columns).T), groups=np.repeat([0, 1], [5, 4])
    )
    S = strategy.select(W, "pure", method="norm-blocks")
    by_statement = (law_of(PatternBlock(5, 2)).variance / 2 * 5) ** (1 / 3) + 4 ** (1 / 3)
    assert S.expected <= by_statement**3 * 1.001


def test_counts_of_overlapping_conditions_that_few_rows_meet_together() -> None:
    """At most two of eight conditions hold for a row: 26.2 where all of their patterns have 73.3."""
    columns = np.array([c for c in itertools.product((0, 1), repeat=8) if sum(c) <= 2]).T
    W = Workload.from_rows(columns, np.ones(8))
    goal = law_of(PatternBlock(8, 2)).variance / 2 * 8
    S = strategy.select(W, "pure", method="norm-blocks")
    assert S.expected <= goal * 1.001
    assert S.error(W) == pytest.approx(S.expected)
    # Least squares, not the rows alone: a total of all conditions knows that errors are correlated.
    total = Workload.from_rows(columns.sum(axis=0, keepdims=True), np.ones(1))
    law = law_of(PatternBlock(8, 2))
    if S.blocks == (PatternBlock(8, 2),):
        assert S.error(total) == pytest.approx((8 * law.variance + 56 * law.covariance) / 2, rel=1e-3)


def test_rows_are_none_for_too_many() -> None:
    from dpsql.strategies.core.reduce import reduce_workload

    W = Workload.from_rows(np.eye(300, dtype=np.int64), np.ones(300))
    assert all(pattern_blocks(W, block) is None for block in reduce_workload(W) if not block.solo)


def test_errors_of_sums_and_differences() -> None:
    noise = pure_noise(500, Fraction(1, 4), (CUBE, 1))
    R = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, -1, 0, 0], [0, 0, 2, 1], [0, 0, 0, 3]], dtype=float)
    law, b = law_of(CUBE), 2000.0
    v, c = law.variance * b * b, law.covariance * b * b
    wanted = [v, 3 * v + 6 * c, 2 * v - 2 * c, 4 * v + 2 * b * b, 18 * b * b]
    assert standard_errors(R, noise) ** 2 == pytest.approx(wanted, rel=2e-3)
    assert standard_errors(sparse.csr_array(R), noise) ** 2 == pytest.approx(wanted, rel=2e-3)
    assert covariance(R, noise)[0, 1] == pytest.approx(v + 2 * c, rel=2e-3)
    assert over_deviations(in_deviations(R, noise), noise) == pytest.approx(R)
    widths = half_widths(R, noise, 0.05)
    assert widths[0] == pytest.approx(law.quantile(0.05) * b, rel=1e-3)
    assert widths[4] == pytest.approx(3 * b * np.log(20), rel=1e-3)
    assert (widths[1:4] <= 2.18 * np.sqrt(wanted[1:4])).all()
    z = replicates(noise, 5, 1500, 4) @ R.T
    assert z.var(axis=0) == pytest.approx(wanted, rel=0.25)
    outside = (np.abs(z) > widths).mean(axis=0)
    assert (outside < 0.075).all()
    assert outside[0] == pytest.approx(0.05, abs=0.025)
