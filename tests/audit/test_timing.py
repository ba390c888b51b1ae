"""What time tells: scans of neighbours, and draws of large and small noise. Minutes, so with the long tests."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from audit_checks import BATCH, World
from scipy import stats

from dpsql.privacy.noise import Noise

ROUNDS = 300


@pytest.mark.long
def test_scans_of_neighbours_take_one_time(tmp_path: Path, assurance: Callable[..., None]) -> None:
    world = World.make(tmp_path, rows=[("a", i % 20, 0.5) for i in range(2000)])
    plan = world.con.plan(BATCH, rho=8)
    world.exact(plan)
    taken: dict[bool, list[int]] = {True: [], False: []}
    gc.disable()
    try:
        for number in range(2 * ROUNDS):
            # Turn by turn and in changing order, so that what else the machine does falls on both alike.
            extra = bool((number + number // 2) % 2)
            with world.with_row(("z", 2**63 - 1, float("nan")) if extra else ("a", 1, 0.5)):
                began = time.perf_counter_ns()
                world.exact(plan)
                taken[extra].append(time.perf_counter_ns() - began)
    finally:
        gc.enable()
    p = float(stats.mannwhitneyu(taken[True], taken[False]).pvalue)
    assurance("p that scans of neighbours take one time (Mann-Whitney)", p)
    assert p > 1e-6


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_time_of_a_draw_is_reported(kind: str, assurance: Callable[..., None]) -> None:
    noise = Noise(kind, Fraction(10**12))
    sizes, taken = [], []
    for _ in range(20_000):
        began = time.perf_counter_ns()
        (drawn,) = noise.sample(1)
        taken.append(time.perf_counter_ns() - began)
        sizes.append(abs(drawn))
    # No draw is timed by itself in a release: all are made together, before the scan. What remains is said here.
    found = float(stats.spearmanr(sizes, taken).statistic)
    assurance(f"rank correlation of a draw's size and its time ({kind})", found)
    assert np.isfinite(found)
