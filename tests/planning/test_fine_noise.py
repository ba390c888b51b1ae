"""Pure plans at a large epsilon: small integers, whose geometric noise has less variance than 2 / epsilon^2."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import numpy as np
import pytest
from helpers import unwrapped

import dpsql
from dpsql.privacy.noise import Noise

POLICY = """
dataset = "fine-1"
[budget]
epsilon = 100.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 11 }
"""
RANGES = "; ".join(f"SELECT COUNT_IF(a BETWEEN {low} AND {low + 6}) AS n FROM t" for low in range(6))


@pytest.fixture
def con(tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY)
    held = duckdb.connect()
    held.execute("CREATE TABLE t AS SELECT range % 12 AS a FROM range(100)")
    return dpsql.connect(held, policy=tmp_path / "policy.toml", ledger=tmp_path / "l", releases=tmp_path / "r.duckdb")


@pytest.mark.parametrize("epsilon", [2, 4])
def test_counts_have_geometric_noise(con, epsilon):
    plan = con.plan("SELECT a, COUNT(*) AS n FROM t GROUP BY a", epsilon=epsilon)
    assert plan.noise.parameter == pytest.approx(1 / epsilon)
    errors = np.unique(np.asarray(plan.stderr["q1"]).round(12))
    assert errors.tolist() == pytest.approx([1 / (math.sqrt(2) * math.sinh(epsilon / 2))], rel=1e-9)
    assert errors[0] ** 2 < (0.73 if epsilon == 2 else 0.31) * 2 / epsilon**2


def total(plan):
    return sum(float(np.sum(np.square(values))) for values in plan.stderr.values())


def test_small_integers_win_where_epsilon_is_large(con, monkeypatch):
    """The same batch at a small epsilon keeps its weights; at a large one it is measured by whole cells."""
    small = con.plan(RANGES, epsilon=0.5, objective="total")
    large = con.plan(RANGES, epsilon=6, objective="total")
    monkeypatch.setattr("dpsql.planning.plan.finest", lambda prepared, charge, found, options: found)
    without = con.plan(f"{RANGES} ", epsilon=6, objective="total")  # another text, as the same is planned once
    assert without.strategy.method == small.strategy.method != large.strategy.method
    assert total(large) < 0.75 * total(without)
    assert {name for name, _ in without.strategy.considered} <= {name for name, _ in large.strategy.considered}


@pytest.mark.long
def test_they_win_for_the_largest_error_as_well(con):
    """Six cells of geometric noise each, where reweighted rows had 3.2 times the variance."""
    plan = con.plan(RANGES, epsilon=4, objective="max")
    largest = max(float(np.max(values)) for values in plan.stderr.values())
    assert largest**2 == pytest.approx(6 / (2 * math.sinh(2) ** 2), rel=1e-9)
    times, of = plan.least_of_pure
    assert 1 < times < 3
    assert f"largest squared error is at most {times:.2f} times the least of {of}" in unwrapped(plan.explain())


@pytest.mark.parametrize("epsilon", [0.5, 2, 4])
def test_a_lower_bound_is_below_what_integers_reach(con, epsilon):
    """Of one count geometric noise is the least: no plan may claim a lower bound above its variance."""
    plan = con.plan("SELECT COUNT(*) AS n FROM t", epsilon=epsilon)
    times, of = plan.least_of_pure
    least = float(np.asarray(plan.stderr["q1"]).ravel()[0]) ** 2 / times
    geometric = 1 / (2 * math.sinh(epsilon / 2) ** 2)
    assert of == "any Laplace strategy"
    assert 0.98 * geometric <= least <= geometric * (1 + 1e-9)


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_integers_in_blocks_have_no_less_than_geometric_noise_has(size):
    """Their variance over that on the reals, at every scale: what a bound on the reals may be multiplied by."""
    for scale in (Fraction(1, 10), Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(3), Fraction(40)):
        x = 1 / (2 * float(scale))
        held = Noise("blocks", scale, (size,)).variances[0] / ((size + 1) * (size + 2) * float(scale) ** 2 / 3)
        assert held >= (x / math.sinh(x)) ** 2 * (1 - 1e-9)
