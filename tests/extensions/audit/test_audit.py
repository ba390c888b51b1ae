"""End-to-end audit: what is released, of neighbouring tables, against what is claimed.

The audit works in mu, not in epsilon and delta: a bound on epsilon from counts never catches a
doubled rho, the difference of means in standard deviations does after some hundred trials.
Thresholds fail right code less than once in a million runs; every test also shows that
wrong noise, too little and too much, is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from audit_checks import (
    ADVERSARIAL,
    BASE,
    BATCH,
    POLICY,
    World,
    check_brute_force_norms,
    check_exact_answers,
    check_noise_comes_from_the_system,
    check_noise_is_fresh,
    check_nothing_is_refunded,
    check_order,
    check_sensitivity,
    check_total,
    expected,
    standardised,
)
from scipy import stats

import dpsql
from dpsql.extensions.audit.privacy import Distance, distance
from dpsql.extensions.audit.sensitivity import Search, brute_force
from dpsql.extensions.audit.world import World as AuditWorld
from dpsql.privacy import charge as charges
from dpsql.privacy.noise import Noise

COUNTS = "SELECT g, count(*) AS n FROM t GROUP BY g"


@pytest.fixture
def gaussian(tmp_path: Path) -> World:
    return World.make(tmp_path)


@pytest.fixture
def pure(tmp_path: Path) -> World:
    return World.make(tmp_path, "epsilon = 1000000.0")


# -- exact parts ------------------------------------------------------------------------------------


@pytest.mark.long
def test_no_row_moves_a_gaussian_measurement_further_than_its_noise(gaussian: World) -> None:
    plan = gaussian.con.plan(BATCH, rho=8)
    check_brute_force_norms(plan)
    check_sensitivity(gaussian, plan, ADVERSARIAL[::2])


def test_no_row_moves_a_pure_measurement_further_than_its_noise(pure: World) -> None:
    plan = pure.con.plan(BATCH, epsilon=1)
    assert plan.noise.kind != "gaussian"
    check_brute_force_norms(plan)
    check_sensitivity(pure, plan, ADVERSARIAL[::3])


@pytest.mark.long
@pytest.mark.parametrize(
    "batch",
    [
        "SELECT sum(v) FROM t",
        "SELECT sum(r) FROM t; SELECT sum(v) FROM t",
        "SELECT count(r), sum(r), count(v), sum(v) FROM t",
        "SELECT 3 * count(*) - 2 * sum(v) AS n FROM t",
        "SELECT count(*) FROM t WHERE v > 3 OR r < 0.5; SELECT count(*) FROM t WHERE NOT (v > 3 AND r < 0.5)",
        "SELECT g, sum(v) FILTER (WHERE r > 0.5) FROM t GROUP BY g; /*+ WEIGHT(4) */ SELECT count(*) FROM t",
    ],
)
def test_no_row_moves_other_batches_further(gaussian: World, batch: str) -> None:
    plan = gaussian.con.plan(batch, rho=8)
    check_brute_force_norms(plan)
    check_sensitivity(gaussian, plan, ADVERSARIAL[::4])


@pytest.mark.long
def test_the_scan_counts_every_row_once(gaussian: World) -> None:
    plan = gaussian.con.plan(BATCH, rho=8)
    check_exact_answers(gaussian, plan, BASE)
    for row in ADVERSARIAL[::3]:
        with gaussian.with_row(row):
            check_exact_answers(gaussian, plan, [*BASE, row])


def test_no_row_makes_the_scan_fail(gaussian: World) -> None:
    check_total(gaussian, gaussian.con.plan(BATCH, rho=8), ADVERSARIAL[::3])


def test_the_order_of_a_release(gaussian: World) -> None:
    check_order(gaussian, gaussian.con.plan(BATCH, rho=8))


def test_a_failed_scan_is_not_refunded(gaussian: World) -> None:
    check_nothing_is_refunded(gaussian, gaussian.con.plan(BATCH, rho=8))


def test_noise_is_fresh_and_from_the_system(gaussian: World) -> None:
    plan = gaussian.con.plan(BATCH, rho=8)
    check_noise_is_fresh(gaussian, plan)
    check_noise_comes_from_the_system(gaussian, plan)


# -- neighbouring tables ----------------------------------------------------------------------------


def rescaled(monkeypatch: pytest.MonkeyPatch, kind: str, factor: Fraction) -> None:
    """Let every charge calibrate noise of ``factor`` times the variance (Gaussian) or scale."""
    name = "gaussian_noise" if kind == "gaussian" else "pure_noise"
    real = getattr(charges, name)

    def wrong(sensitivity: int, budget: Fraction, *blocks: tuple[int, ...]) -> Noise:
        found = real(sensitivity, budget, *blocks)
        return replace(found, parameter=found.parameter * factor)

    monkeypatch.setattr(charges, name, wrong)


_WORST: dict[tuple[str, str], Search] = {}
"""What brute force finds for a batch and a budget: noise is no part of it, and generated rows are always the same."""


def distance_of(folder: Path, batch: str, budget: str, trials: int, **request: object) -> Distance:
    """The audit's own comparison of neighbours, over its own generated rows."""
    world = AuditWorld.of(dpsql.Policy.parse(POLICY.format(budget=budget)), batch, folder, **request)
    if (batch, budget) not in _WORST:
        _WORST[batch, budget] = brute_force(world, pairs=40)
    return distance(world, _WORST[batch, budget], trials)


# Noise as claimed, too little of it, and (which costs accuracy, not privacy) too much.
FACTORS = [(Fraction(1), 0), (Fraction(1, 2), 1), pytest.param(Fraction(2), -1, marks=pytest.mark.long)]


@pytest.mark.long
@pytest.mark.parametrize(("factor", "sign"), FACTORS)
def test_mu_of_neighbouring_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: Fraction, sign: int, assurance: Callable[..., None]
) -> None:
    rescaled(monkeypatch, "gaussian", factor)  # half the variance: twice the rho
    found = distance_of(tmp_path, BATCH, "rho = 1000000.0", 500, rho=8)
    assert abs(found.z) < 5 if sign == 0 else found.z * sign > 5, found
    assert found.power > 5
    if sign == 1:
        assurance("z of a doubled rho at 500 trials", found.z)


@pytest.mark.parametrize(
    ("rho", "units"),
    [(8, 1), (Fraction(1, 10), 9), (Fraction(1, 1000), 89)],
)
@pytest.mark.long
def test_a_doubled_rho_at_a_thousand_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rho: Fraction, units: int, assurance: Callable[..., None]
) -> None:
    rescaled(monkeypatch, "gaussian", Fraction(1, 2))
    found = distance_of(tmp_path, COUNTS, "rho = 1000000.0", 1000, rho=rho)
    assert found.units == units
    assert found.z > 5, found
    assurance(f"z of a doubled rho at 1,000 trials, rho {float(rho):g}", found.z)


@pytest.mark.long
@pytest.mark.parametrize(("factor", "sign"), FACTORS)
def test_epsilon_of_neighbouring_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: Fraction, sign: int, assurance: Callable[..., None]
) -> None:
    rescaled(monkeypatch, "laplace", factor)
    # One cell a group: a row moves one coordinate by 1, so that events are tested too.
    found = distance_of(tmp_path, COUNTS, "epsilon = 1000000.0", 1000, epsilon=2)
    assert found.event is not None
    assert abs(found.z) < 5 if sign == 0 else found.z * sign > 5, found
    assert found.event < 5 if sign <= 0 else found.event > 5, found
    if sign == 1:
        assurance("z of a doubled epsilon at 1,000 trials", found.z)


@pytest.mark.long
def test_mu_of_neighbouring_tables_sharply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    assert abs(distance_of(tmp_path / "right", BATCH, "rho = 1000000.0", 2_000, rho=8).z) < 5
    rescaled(monkeypatch, "gaussian", Fraction(3, 5))
    assert distance_of(tmp_path / "wrong", BATCH, "rho = 1000000.0", 2_000, rho=8).z > 5


# -- released numbers -------------------------------------------------------------------------------

RELEASES = 600


def check_law(found: dict[tuple[str, str], np.ndarray], kurtosis: float) -> None:
    """Unbiased, standard errors right both ways, intervals hold 95 times in a hundred."""
    spread, inside, cells = 0.0, 0.0, 0
    for key, pairs in found.items():
        z, covered = pairs[..., 0], pairs[..., 1]
        count = len(z)
        assert (np.abs(z.mean(axis=0)) * count**0.5 < 6).all(), f"{key} is biased"
        # z^2 has mean 1 and variance kurtosis - 1; 8 deviations leave room for its skew.
        limit = 8 * ((kurtosis - 1) / count) ** 0.5
        assert (np.abs((z**2).mean(axis=0) - 1) < limit).all(), f"the standard error of {key} is wrong"
        low, high = stats.binom.ppf([1e-9, 1 - 1e-9], count, [0.947, 0.965])
        shares = covered.sum(axis=0)
        assert (shares >= low).all(), f"intervals of {key} hold too rarely"
        assert (shares <= high).all(), f"intervals of {key} are too wide"
        spread, inside, cells = spread + (z**2).sum(), inside + covered.sum(), cells + z.size
    # All answers of a release are correlated: what counts as independent are the releases.
    assert abs(spread / cells - 1) < 8 * ((kurtosis - 1) / count) ** 0.5
    assert abs(inside / cells - 0.95) < 6 * (0.05 * 0.95 / count) ** 0.5


def rescaled_errors(found: dict[tuple[str, str], np.ndarray], factor: float) -> dict[tuple[str, str], np.ndarray]:
    """What would have been found, had the standard errors been stated ``factor`` times too small."""
    half = stats.norm.ppf(0.975)
    out = {}
    for key, pairs in found.items():
        z = pairs[..., 0] * factor
        out[key] = np.stack([z, (np.abs(z) <= half).astype(float)], axis=-1)
    return out


@pytest.mark.long
def test_the_law_of_gaussian_answers(gaussian: World) -> None:
    plan = gaussian.con.plan(BATCH, rho=Fraction(1, 50))  # noise far above the lattice
    found = standardised(gaussian, plan, RELEASES, expected(BASE))
    assert len(found) == 6
    check_law(found, 3)
    for factor in (2**0.5, 0.5**0.5):
        with pytest.raises(AssertionError, match="standard error"):
            check_law(rescaled_errors(found, factor), 3)


@pytest.mark.long
def test_the_law_of_pure_answers(pure: World) -> None:
    plan = pure.con.plan(BATCH, epsilon=Fraction(1, 20))
    assert plan.noise.kind != "gaussian"
    found = standardised(pure, plan, 3 * RELEASES // 2, expected(BASE))
    check_law(found, 6)
    for factor in (1.5, 1 / 1.8):
        with pytest.raises(AssertionError):
            check_law(rescaled_errors(found, factor), 6)


@pytest.mark.long
def test_the_law_of_answers_through_run(tmp_path: Path) -> None:
    """The whole of ``run``: ledger, engine with its own transaction, releases file. 200 groups a release."""
    duck = duckdb.connect(":memory:")
    duck.execute("CREATE TABLE t AS SELECT (i % 200)::INTEGER AS k FROM range(1000) r(i)")
    text = 'dataset = "d"\n[budget]\nepsilon = 1000.0\ndelta = 1e-9\n[tables.t]\nunit = "row"\n'
    policy = dpsql.Policy.parse(text + "[tables.t.columns]\nk = { lower = 0, upper = 199, nulls = false }\n")
    con = dpsql.connect(duck, policy=policy, ledger=tmp_path / "d.ledger")
    plan = con.plan("SELECT k, count(*) AS n FROM t GROUP BY k; SELECT count(*) AS n FROM t", 1, 1e-9)
    z, covered = [], 0
    for _ in range(8):
        table = con.run(plan, fresh=True)["q1"].fetchall()
        assert [row[0] for row in table] == list(range(200))
        z.extend((n - 5) / error for _, n, error, _, _ in table)
        covered += sum(low <= 5 <= high for *_, low, high in table)
    # The total that is measured besides couples the groups by less than one degree of freedom a release.
    low, high = stats.chi2.ppf([1e-8, 1 - 1e-8], len(z))
    assert low * 0.99 < float(np.sum(np.square(z))) < high * 1.01
    assert high * 1.01 < 2 * low * 0.99  # power: a variance wrong by a factor of 2 lies outside
    assert stats.binom.ppf(1e-8, len(z), 0.945) <= covered <= stats.binom.ppf(1 - 1e-8, len(z), 0.96)
