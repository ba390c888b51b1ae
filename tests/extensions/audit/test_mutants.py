"""Mutants: faults put in by hand, each of which a check of the audit must catch.

The check is the very function that test_audit runs on the real code; here it passes first, then
the fault is put in and it must fail. A mutant that lives means that the audit is blind.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any

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
)

import dpsql
from dpsql import measure as room
from dpsql.engines import duckdb as engine
from dpsql.extensions.audit.ledger import check_ledger
from dpsql.extensions.audit.noise import fit
from dpsql.extensions.audit.privacy import distance
from dpsql.extensions.audit.sensitivity import Search, brute_force
from dpsql.extensions.audit.world import World as AuditWorld
from dpsql.measure import cells, from_sql, reading, scan_sql
from dpsql.planning import prepare as planning
from dpsql.planning.last_plans import LastPlans
from dpsql.privacy import chain as chains
from dpsql.privacy import charge as charges
from dpsql.privacy import ledger as ledgers
from dpsql.privacy import noise as noises
from dpsql.privacy.noise import Noise
from dpsql.workloads.cells import integers
from dpsql.workloads.compile import layout, one_unit, units
from dpsql.workloads.expr.scan import Select, same
from dpsql.workloads.expr.value_sql import render
from dpsql.workloads.expr.values import Cast, whole

Patch = pytest.MonkeyPatch
Check = Callable[[World, dpsql.Plan], None]

# The rows that matter for sensitivity and for the scan, few enough to be quick.
FEW = [
    row for row in ADVERSARIAL if row[0] != "z" and row[1] in (-8, 9, 44, None) and row[2] in (-7.5, 0.5, 1e308, None)
]
LARGE = [row for row in ADVERSARIAL if row[1] in (-(2**63), 2**63 - 1) and row[0] == "a"]


def sensitivity(world: World, plan: dpsql.Plan) -> None:
    """No row moves the measurement further than its noise covers."""
    check_sensitivity(world, plan, FEW)


def answers(world: World, plan: dpsql.Plan) -> None:
    """The scan agrees with brute force."""
    check_exact_answers(world, plan, BASE)


def total(world: World, plan: dpsql.Plan) -> None:
    """No row makes the scan fail."""
    check_total(world, plan, LARGE)


# -- the faults -------------------------------------------------------------------------------------


def sensitivity_halved(patch: Patch) -> None:
    """Noise for half the sensitivity."""
    gaussian, pure = charges.gaussian_noise, charges.pure_noise
    patch.setattr(charges, "gaussian_noise", lambda s, mu2: gaussian(s // 4, mu2))
    patch.setattr(charges, "pure_noise", lambda s, epsilon, *blocks: pure(s // 2, epsilon, *blocks))


def squared_forgotten(patch: Patch) -> None:
    """The norm where its square is due."""
    patch.setattr(charges, "gaussian_noise", lambda s, mu2: Noise.gaussian(Fraction(isqrt(s)) / mu2))


def mu_not_squared(patch: Patch) -> None:
    """mu squared is due as the divisor of the variance; its square is larger for mu above 1."""
    patch.setattr(charges, "gaussian_noise", lambda s, mu2: Noise.gaussian(Fraction(s) / mu2**2))


def count_left_out(patch: Patch) -> None:
    """The norm over the summed columns alone, without the count that moves with them."""
    real = planning.select

    def select(W: Any, *arguments: Any, **options: Any) -> Any:
        strategy = real(W, *arguments, **options)
        corners = strategy.contributions.toarray()
        counts = corners.min(axis=1) >= 0  # a sum goes both ways
        with_sums = (corners[~counts] != 0).any(axis=0)
        corners[np.ix_(counts, with_sums)] = 0
        columns = strategy.mixing.astype(object) @ (strategy.basis.toarray() @ corners).astype(object)
        return dataclasses.replace(strategy, l2_squared=int((columns * columns).sum(axis=0).max()))

    patch.setattr(planning, "select", select)


def one_column_at_a_time(patch: Patch) -> None:
    """The norm of each measure by itself instead of the joint one: a row moves them together."""

    def apart(entries: Any, size: int) -> Any:
        from scipy import sparse

        return sparse.csr_array(sparse.eye_array(size, dtype=np.int64))

    patch.setattr(units, "corners_of", apart)
    patch.setattr(integers, "corners_of", apart)


def without_clamp(side: str) -> Callable[[Patch], None]:
    """One side of the clamp of an integer column taken out of the scan."""

    def mutant(patch: Patch) -> None:
        real = scan_sql.shifted
        place = {"lower": 1, "upper": 2}[side]

        def unclamped(measure: Any, values: Any) -> Any:
            found: Any = real(measure, values)
            if measure.column == "v":
                missing, *ends = found.this.branches
                assert len(ends) == 2
                kept = (missing, ends[2 - place])
                found = dataclasses.replace(found, this=dataclasses.replace(found.this, branches=kept))
            return found

        patch.setattr(scan_sql, "shifted", unclamped)

    mutant.__name__ = f"no_{side}_clamp"
    return mutant


def null_region_dropped(patch: Patch) -> None:
    """Rows with a NULL key go to no cell."""
    real = scan_sql.region

    def dropped(axis: Any, values: Any) -> Any:
        found: Any = real(axis, values)
        if not isinstance(found, Cast):
            return found
        ((test, _),) = found.this.branches
        return dataclasses.replace(found, this=dataclasses.replace(found.this, branches=((test, whole(-1)),)))

    patch.setattr(scan_sql, "region", dropped)


def filter_as_guard(patch: Patch) -> None:
    """FILTER in place of CASE: the expression is evaluated for the rows that it leaves out."""
    real, text = scan_sql.select_list, engine.select_text
    guarded: dict[str, str] = {}

    def listed(layout: Any) -> Any:
        for measure in layout.measures:
            if measure.column == "v":
                v = render(scan_sql.operand(measure.column, measure.line, layout.values))
                bare = f"(CAST({v} - CAST({int(measure.lower)} AS BIGINT) AS BIGINT) * CAST(2 AS BIGINT))"
                inside = f"{v} BETWEEN {int(measure.lower)} AND {int(measure.upper)}"
                summed = f'system.main."sum"({render(scan_sql.shifted(measure, layout.values))})'
                guarded[summed] = f"system.main.sum({bare}) FILTER (WHERE {inside})"
        return real(layout)

    def filtered(*given: Any) -> str:
        found = text(*given)
        for summed, instead in guarded.items():
            found = found.replace(summed, instead)
        return found

    patch.setattr(reading, "select_list", listed)
    patch.setattr(engine, "select_text", filtered)


def noise_reused_between_releases(patch: Patch) -> None:
    """The same draws for every measurement."""
    real, kept = Noise.sample, {}

    def sample(self: Noise, count: int) -> list[int]:
        return list(kept.setdefault((self, count), real(self, count)))

    patch.setattr(Noise, "sample", sample)


def noise_reused_between_coordinates(patch: Patch) -> None:
    """One draw for all coordinates."""
    real = Noise.sample
    patch.setattr(Noise, "sample", lambda self, count: real(self, 1) * count)


def numpy_noise(patch: Patch) -> None:
    """A float generator of numpy in place of the exact sampler."""

    def sample(noise: Noise, count: int, _: object) -> list[int]:
        drawn = np.random.default_rng(1).normal(0, noise.variance**0.5, count)
        return [int(value) for value in np.rint(drawn)]

    patch.setattr(noises, "sample_from", sample)


def spend_after_release(patch: Patch) -> None:
    """The charge follows the answers."""

    def measure(job: Any, engine: Any, ledger: Any, payload: Any) -> tuple[int, list[int]]:
        noise = job.noise.sample(job.integers.shape[0])
        y = cells.observed(job, engine, noise)
        content = payload(1, y)
        release = ledger.charge(job.charge, "id", job.description, label=job.label)
        ledger.record(release, content)
        return release, y

    patch.setattr(room, "measure", measure)


def noise_after_scan(patch: Patch) -> None:
    """The draw's duration would then follow the data."""
    real = cells.observed

    def observe(job: Any, engine: Any, noise: list[int]) -> list[int]:
        exact = real(job, engine, [0] * len(noise))
        return [a + b for a, b in zip(exact, job.noise.sample(len(noise)), strict=True)]

    patch.setattr(cells, "observed", observe)


def refund_on_error(patch: Patch) -> None:
    """A failed scan gives its charge back."""
    real = room.measure

    def measure(job: Any, engine: Any, ledger: Any, payload: Any) -> tuple[int, list[int]]:
        try:
            return real(job, engine, ledger, payload)
        except dpsql.OperationalError:
            with sqlite3.connect(ledger.path) as connection:
                guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
                for name, _ in guards:
                    connection.execute(f'DROP TRIGGER "{name}"')
                connection.execute("UPDATE purses SET spent = spent - ?", (job.charge.units,))
                for _, text in guards:
                    connection.execute(text)
            connection.close()
            raise

    patch.setattr(room, "measure", measure)


# (its name in LISTED, or "" for a mutant beyond that list; the fault; what catches it)
MUTANTS: list[tuple[str, Callable[[Patch], None], Check]] = [
    ("sensitivity halved", sensitivity_halved, sensitivity),
    ("squared forgotten", squared_forgotten, sensitivity),
    ("squared forgotten", mu_not_squared, sensitivity),
    ("the COUNT column left out of a joint norm", count_left_out, sensitivity),
    ("the COUNT column left out of a joint norm", one_column_at_a_time, sensitivity),
    ("one clamp side removed", without_clamp("lower"), sensitivity),
    ("one clamp side removed", without_clamp("upper"), sensitivity),
    ("one clamp side removed", without_clamp("lower"), total),
    ("one clamp side removed", without_clamp("upper"), total),
    ("FILTER as guard", filter_as_guard, total),
    ("NULL region dropped", null_region_dropped, answers),
    ("noise reused", noise_reused_between_releases, check_noise_is_fresh),
    ("noise reused", noise_reused_between_coordinates, check_noise_is_fresh),
    ("a numpy generator for noise", numpy_noise, check_noise_is_fresh),
    ("a numpy generator for noise", numpy_noise, check_noise_comes_from_the_system),
    ("spend after release", spend_after_release, check_order),
    ("", noise_after_scan, check_order),
    ("refund on error", refund_on_error, check_nothing_is_refunded),
]


_PASSED: set[Check] = set()
"""The checks that the real code has passed in this process: several mutants share one."""


@pytest.mark.parametrize(
    ("threat", "mutant", "check"), MUTANTS, ids=[f"{m.__name__}-{c.__name__}" for _, m, c in MUTANTS]
)
@pytest.mark.few(every=4)
def test_a_mutant_is_caught(
    tmp_path: Path,
    monkeypatch: Patch,
    threat: str,
    mutant: Callable[[Patch], None],
    check: Check,
    assurance: Callable[..., None],
) -> None:
    if check not in _PASSED:
        (tmp_path / "real").mkdir()
        real = World.make(tmp_path / "real")
        check(real, real.con.plan(BATCH, rho=8))
        _PASSED.add(check)
    mutant(monkeypatch)
    wrong = World.make(tmp_path)
    with pytest.raises(AssertionError):
        check(wrong, wrong.con.plan(BATCH, rho=8))
    assurance("mutants killed", threat=threat, mutant=mutant.__name__, by=f"test: {check.__name__}")


# -- the same faults, and those of units, seen by the audit itself ------------------------------------

UNITS = """
dataset = "audit-2"
[budget]
rho = 1000000.0
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.patients.columns]
sex = { values = ["f", "m"], nulls = false }
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 3
key = ["id"]
references = { patient_id = "patients.id" }
[tables.visits.columns]
kind = { values = ["a", "b"], other = true }
cost = { lower = -2, upper = 4 }
"""
JOINED = "SELECT sex, count(*), sum(cost) FROM visits JOIN patients p ON patient_id = p.id GROUP BY sex"


def k_ignored(patch: Patch) -> None:
    """Noise for one row of a unit where it may have several."""
    patch.setattr(layout.Layout, "multiplicity", property(lambda self: 1))
    real = one_unit.readers_of
    patch.setattr(
        one_unit, "readers_of", lambda scans: [dataclasses.replace(reader, limit=1) for reader in real(scans)]
    )


def truncation_dropped(patch: Patch) -> None:
    """All rows of a unit count."""
    patch.setattr(from_sql, "_truncated", lambda rows, names, first, limit: Select(same(*names), rows))


def half_the_variance(patch: Patch) -> None:
    """Noise for half the variance, that is for twice the rho."""
    real = charges.gaussian_noise
    patch.setattr(charges, "gaussian_noise", lambda s, mu2: Noise.gaussian(real(s, mu2).parameter / 2))


def deviation_off(factor: Fraction) -> Callable[[Patch], None]:
    """Noise a twentieth too small or too large, drawn so while the plan says otherwise."""

    def mutant(patch: Patch) -> None:
        real = Noise.sample
        patch.setattr(Noise, "sample", lambda self, n: real(Noise(self.kind, self.parameter * factor**2), n))

    mutant.__name__ = "noise_5_percent_too_" + ("small" if factor < 1 else "large")
    return mutant


def chain_not_looked_at(patch: Patch) -> None:
    """A ledger that was altered by hand passes for whole."""
    for module in (ledgers, chains):
        if hasattr(module, "fault"):
            patch.setattr(module, "fault", lambda *_, **__: None)
    patch.setattr(chains, "intact", lambda *_: True)


_SEARCHED: dict[int, tuple[AuditWorld, Search]] = {}


def searched(world: AuditWorld) -> Search:
    """What brute force finds in a world; once, for several checks ask."""
    if id(world) not in _SEARCHED:
        _SEARCHED.clear()
        _SEARCHED[id(world)] = (world, brute_force(world, pairs=60))
    return _SEARCHED[id(world)][1]


def moves_too_far(world: AuditWorld) -> bool:
    """The audit finds neighbours further apart than the noise covers."""
    return searched(world).largest > world.paid


def makes_a_scan_fail(world: AuditWorld) -> bool:
    """The audit finds a row on which the scan fails."""
    try:
        searched(world)
    except dpsql.OperationalError:
        return True
    return False


def is_too_far_in_mu(world: AuditWorld) -> bool:
    """The audit measures more than the claimed mu."""
    return distance(world, searched(world), 300).z > 5


def has_another_law(world: AuditWorld) -> bool:
    """The audit's chi-square of the noise."""
    return fit(world, 50_000).p < 1e-6


def is_correlated(world: AuditWorld) -> bool:
    """The audit's correlation of draws."""
    found = fit(world, 2000)
    return max(abs(found.between_neighbours), abs(found.between_releases)) > 5


def breaks_the_ledger(world: AuditWorld) -> bool:
    """One of the audit's checks of the ledger."""
    return not all(outcome.holds for outcome in check_ledger(world))


ROWS = POLICY.format(budget="rho = 1000000.0")
AUDITED: list[tuple[str, Callable[[Patch], None], Callable[[AuditWorld], bool], str, str]] = [
    ("k ignored", k_ignored, moves_too_far, UNITS, JOINED),
    ("k ignored", truncation_dropped, moves_too_far, UNITS, JOINED),
    ("sensitivity halved", sensitivity_halved, moves_too_far, UNITS, JOINED),
    ("sensitivity halved", sensitivity_halved, moves_too_far, ROWS, BATCH),
    ("squared forgotten", squared_forgotten, moves_too_far, ROWS, BATCH),
    ("the COUNT column left out of a joint norm", count_left_out, moves_too_far, ROWS, BATCH),
    ("one clamp side removed", without_clamp("lower"), makes_a_scan_fail, ROWS, BATCH),
    ("one clamp side removed", without_clamp("upper"), makes_a_scan_fail, ROWS, BATCH),
    ("FILTER as guard", filter_as_guard, makes_a_scan_fail, ROWS, BATCH),
    ("noise reused", noise_reused_between_releases, is_correlated, ROWS, BATCH),
    ("noise reused", noise_reused_between_coordinates, is_correlated, ROWS, BATCH),
    ("a numpy generator for noise", numpy_noise, is_correlated, ROWS, BATCH),
    ("spend after release", spend_after_release, breaks_the_ledger, ROWS, BATCH),
    ("refund on error", refund_on_error, breaks_the_ledger, ROWS, BATCH),
    ("", half_the_variance, is_too_far_in_mu, ROWS, BATCH),
    ("", deviation_off(Fraction(19, 20)), has_another_law, ROWS, BATCH),
    ("", deviation_off(Fraction(21, 20)), has_another_law, ROWS, BATCH),
    ("", chain_not_looked_at, breaks_the_ledger, ROWS, BATCH),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("threat", "mutant", "caught", "policy", "batch"),
    AUDITED,
    ids=[f"{m.__name__}-{c.__name__}-{'rows' if p == ROWS else 'units'}" for _, m, c, p, _ in AUDITED],
)
def test_the_audit_catches_a_mutant(
    tmp_path: Path,
    monkeypatch: Patch,
    threat: str,
    mutant: Callable[[Patch], None],
    caught: Callable[[AuditWorld], bool],
    policy: str,
    batch: str,
    assurance: Callable[..., None],
) -> None:
    mutant(monkeypatch)
    assert caught(AuditWorld.of(dpsql.Policy.parse(policy), batch, tmp_path, rho=8))
    assurance("mutants killed", threat=threat, mutant=mutant.__name__, by=f"audit: {caught.__name__}")


@pytest.mark.long
@pytest.mark.parametrize(("policy", "batch"), [(ROWS, BATCH), (UNITS, JOINED)], ids=["rows", "units"])
def test_the_audit_finds_nothing_where_nothing_is_wrong(tmp_path: Path, policy: str, batch: str) -> None:
    world = AuditWorld.of(dpsql.Policy.parse(policy), batch, tmp_path, rho=8)
    for caught in dict.fromkeys(row[2] for row in AUDITED):
        assert not caught(world), caught.__doc__


# What must be caught, whatever else is.
LISTED = (
    "sensitivity halved", "squared forgotten", "k ignored", "the COUNT column left out of a joint norm",
    "one clamp side removed", "NULL region dropped", "noise reused", "spend after release", "refund on error",
    "FILTER as guard", "a numpy generator for noise",
)  # fmt: skip


def test_every_listed_mutant_has_a_row() -> None:
    assert {row[0] for row in (*MUTANTS, *AUDITED)} - {""} == set(LISTED)


@pytest.mark.long
def test_pure_noise_for_half_the_sensitivity_is_caught(tmp_path: Path, monkeypatch: Patch) -> None:
    world = World.make(tmp_path, "epsilon = 1000000.0")
    check_sensitivity(world, world.con.plan(BATCH, epsilon=1), ADVERSARIAL[::2])
    sensitivity_halved(monkeypatch)
    monkeypatch.setattr(world.con, "_plans", LastPlans())
    with pytest.raises(AssertionError, match="further"):
        sensitivity(world, world.con.plan(BATCH, epsilon=1))


def test_brute_force_norms_catch_a_calibration_to_less(tmp_path: Path, monkeypatch: Patch) -> None:
    world = World.make(tmp_path)
    plan = world.con.plan(BATCH, rho=8)
    check_brute_force_norms(plan)
    sensitivity_halved(monkeypatch)
    monkeypatch.setattr(world.con, "_plans", LastPlans())
    with pytest.raises(AssertionError):
        check_brute_force_norms(world.con.plan(BATCH, rho=8))
