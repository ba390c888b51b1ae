"""Nominal 95 % intervals cover: whole releases through strategies as selected, integer noise, both laws.

10,000 releases each; where the true coverage is 95 % the share that covers has a standard deviation of 0.22 %,
so [94 %, 96 %] is left once in 200,000, and seeds are fixed.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise
from dpsql.reconstruct import Derived, evaluate
from dpsql.strategy import select
from dpsql.workloads.expr.formulas import (
    Formula,
    Leaf,
    Negative,
    Number,
    Product,
    Quotient,
    Root,
    Sum,
    Variance,
)
from dpsql.workloads.families.matrix import Workload

RELEASES = 10_000
CELLS = 4
MID = HALF = 50.0  # a column in [0, 100]
STEPS = 50  # z' = v - 50 in [-50, 50]
EPSILON, MU_SQUARED = Fraction(1), Fraction(1, 30)  # (1, 1e-9) for Gaussian noise, MATHS section 5
BOUNDS = (0.0, 100.0)

COUNT = Leaf(0)
SUM = Sum((Product((Number(MID), Leaf(0))), Product((Number(HALF), Leaf(1)))))
CENTRED, SQUARES = Product((Number(HALF), Leaf(1))), Product((Number(HALF**2), Leaf(2)))


@dataclass(frozen=True)
class Strategic:
    """Reconstruction rows of every (measure, cell), the law of the noise, and L."""

    rows: Any
    noise: Noise
    divisor: int


@functools.cache
def strategic(kind: str, measures: int) -> Strategic:
    """Counts, sums and sums of squares by cell, their totals and running totals: a table by group with a few ranges."""
    sums = np.concatenate([np.eye(CELLS), np.ones((1, CELLS)), np.tril(np.ones((CELLS, CELLS)))[1:-1]])
    rows = np.kron(np.eye(measures), sums).astype(np.int64)
    signs = [(1,), (-1, 1), (0, 1)][:measures]
    corners = [np.kron(np.array(s), cell) for cell in np.eye(CELLS) for s in product(*signs)]
    contributions = sparse.csr_array(np.array(corners).T.astype(np.int64))
    W = Workload.from_rows(rows, np.ones(len(rows)), contributions=contributions)
    S = select(W, noise=kind)
    divisor = STEPS ** (measures - 1)
    if kind == "laplace":
        noise = pure_noise(S.l1 * divisor, EPSILON)
    else:
        noise = gaussian_noise(S.l2_squared * divisor**2, MU_SQUARED)
    R = S.reconstruction(W)
    dense = R.toarray() if sparse.issparse(R) else np.asarray(R)
    return Strategic(dense[np.flatnonzero(np.tile(np.arange(len(sums)) < CELLS, measures))], noise, divisor)


def draws(noise: Noise, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Integer noise by numpy: rounded normal numbers, or differences of geometric ones."""
    if noise.kind == "gaussian":
        return np.rint(rng.normal(0, math.sqrt(noise.parameter), shape))
    p = -math.expm1(-1 / float(noise.parameter))
    return (rng.geometric(p, shape) - rng.geometric(p, shape)).astype(float)


def released(kind: str, tables: list[np.ndarray], measures: int, seed: int) -> tuple[np.ndarray, np.ndarray, Strategic]:
    """Estimates (RELEASES x measures len(tables)) and their rows: the measures of cell 0, then of cell 1, ..."""
    found = strategic(kind, measures)
    y = draws(found.noise, (RELEASES, found.rows.shape[1]), np.random.default_rng(seed)) @ found.rows.T / found.divisor
    estimates, rows = [], []
    for cell, table in enumerate(tables):
        z = (table - MID) / HALF
        for measure, true in enumerate([len(z), z.sum(), (z**2).sum()][:measures]):
            estimates.append(true + y[:, measure * CELLS + cell])
            rows.append(np.tile(found.rows[measure * CELLS + cell], (RELEASES, 1)))
    return np.stack(estimates, axis=1), np.concatenate(rows), found


def table_of(size: int, mean: float, spread: float, seed: int = 0) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).normal(mean, spread, size).round(), *BOUNDS)


def covered(found: Derived, truth: float) -> float:
    assert np.isfinite([found.value, found.stderr, found.low, found.high]).all()
    return float(((found.low <= truth) & (truth <= found.high)).mean())


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("size", [100, 250, 2000])
@pytest.mark.few("100-gaussian", "250-gaussian", "2000-laplace", "2000-gaussian")
def test_counts_sums_and_averages(kind: str, size: int) -> None:
    table = table_of(size, 55, 20)
    estimates, rows, s = released(kind, [table], 2, 1)
    average = Quotient(SUM, COUNT, BOUNDS)
    for formula, truth in ((COUNT, size), (SUM, table.sum()), (average, table.mean())):
        found = evaluate(formula, estimates, rows, s.noise, divisor=s.divisor)
        assert 0.94 <= covered(found, truth) <= 0.96
        if formula != average or size > 100:  # a ratio's error has no moments; far from zero it is as stated
            assert found.value.std() == pytest.approx(np.median(found.stderr), rel=0.04)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_small_groups(kind: str) -> None:
    table = table_of(5, 55, 20)
    estimates, rows, s = released(kind, [table], 2, 2)
    for formula, truth in ((COUNT, 5), (SUM, table.sum()), (Quotient(SUM, COUNT, BOUNDS), table.mean())):
        assert covered(evaluate(formula, estimates, rows, s.noise, divisor=s.divisor), truth) >= 0.94


@pytest.mark.parametrize("scale", [0.9, 1.1])
@pytest.mark.few(every=2)
def test_wrong_noise_is_seen(scale: float) -> None:
    """Intervals for a tenth less or more noise than there is are found out."""
    table = table_of(250, 55, 20)
    for kind in ("laplace", "gaussian"):
        estimates, rows, s = released(kind, [table], 2, 1)
        for formula, truth in ((COUNT, 250), (SUM, table.sum()), (Quotient(SUM, COUNT, BOUNDS), table.mean())):
            found = evaluate(formula, estimates, rows * scale, s.noise, divisor=s.divisor)
            assert not 0.94 <= covered(found, truth) <= 0.96


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize(
    ("size", "sample", "most"),
    [(5, True, 1.0), (150, False, 0.985), pytest.param(2000, True, 0.96, marks=pytest.mark.long)],
)
@pytest.mark.few("5-True-1.0-gaussian", "150-False-0.985-gaussian")
def test_variances(kind: str, size: int, sample: bool, most: float) -> None:
    """Never below 95 % by more than chance; above it where the mean is poorly known."""
    table = table_of(size, 55, 20)
    estimates, rows, s = released(kind, [table], 3, 3)
    variance = Variance(COUNT, CENTRED, SQUARES, 2 * HALF, sample)
    root = evaluate(Root(variance), estimates, rows, s.noise, divisor=s.divisor)
    assert 0.94 <= covered(root, table.std(ddof=sample)) <= most  # as the variance's own: roots keep order


@pytest.mark.long
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("size", [5, 100, 1000])
def test_formulas_of_two_averages(kind: str, size: int) -> None:
    tables = [table_of(size, 55, 20, 1), table_of(size, 30, 8, 2)]
    estimates, rows, s = released(kind, tables, 2, 4)
    one, two = (
        Quotient(Sum((Product((Number(MID), Leaf(k))), Product((Number(HALF), Leaf(k + 1))))), Leaf(k), BOUNDS)
        for k in (0, 2)
    )
    a, b = (float(table.mean()) for table in tables)
    cases: list[tuple[Formula, float, float]] = [
        (Sum((one, Negative(two))), a - b, 0.96),
        (Sum((one, two, Number(3))), a + b + 3, 0.96),
        (Quotient(one, two, (0, 1000)), a / b, 0.96),
        (Product((one, two)), a * b, 1.0),
        (Product((COUNT, two)), size * b, 1.0),
        (Product((COUNT, Leaf(2))), size**2, 1.0),
    ]
    for formula, truth, most in cases:
        share = covered(evaluate(formula, estimates, rows, s.noise, divisor=s.divisor), truth)
        assert share >= 0.94
        assert share <= (most if size >= 100 else 1.0)
