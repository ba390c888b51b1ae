"""Noise for 0/1 patterns, audited: persons by wards, end to end, and faults that each check must catch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dpsql
from dpsql.common.pattern_block import PatternBlock
from dpsql.extensions.audit.ledger import check_ledger
from dpsql.extensions.audit.noise import fit
from dpsql.extensions.audit.privacy import distance
from dpsql.extensions.audit.sensitivity import brute_force
from dpsql.extensions.audit.world import World
from dpsql.linalg import norms
from dpsql.privacy import charge as charges
from dpsql.privacy import noise as noises

POLICY = """
dataset = "wards-1"
[budget]
epsilon = 100.0
[tables.visits]
unit = "person"
max_rows_per_unit = 3
[tables.visits.columns]
ward = { values = [1, 2, 3, 4, 5, 6], nulls = false }
person = { nulls = false }
"""
BATCH = "SELECT ward, COUNT(DISTINCT person) AS n FROM visits GROUP BY ward"
Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
REAL = noises.pattern


def made(folder: Path) -> World:
    return World.of(dpsql.Policy.parse(POLICY), BATCH, folder, epsilon=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return made(tmp_path_factory.mktemp("patterns"))


def halved(patch: Patch) -> None:
    """Noise for half the sensitivity."""
    real = charges.pure_noise
    patch.setattr(charges, "pure_noise", lambda s, epsilon, blocks=(): real(max(s // 2, 1), epsilon, blocks))


def half_a_pattern(patch: Patch) -> None:
    """A change counts half of its steps: the sensitivity, and the check of it, are too small."""
    real = norms.sizes_of
    patch.setattr(norms, "sizes_of", lambda v, limit: real(v, limit) // 2 if v.dtype == object else real(v, limit))
    patch.setattr("dpsql.workloads.compile.unlisted_pure._patterned", lambda *_: 1)
    patch.setattr("dpsql.measure.job.Job.check_sensitivity", lambda job: None)


def of_fewer_ones(patch: Patch) -> None:
    """Noise for patterns with one more one: the wrong gauge."""
    patch.setattr(noises, "pattern", lambda word, size, limit, t, s: REAL(word, size, limit + 1, t, s))


def a_tenth_less(patch: Patch) -> None:
    """A scale that is too small by a tenth."""
    patch.setattr(noises, "pattern", lambda word, size, limit, t, s: REAL(word, size, limit, 9 * t, 10 * s))


def one_draw_for_all(patch: Patch) -> None:
    """The same draw for every release."""
    drawn: dict[int, list[int]] = {}
    patch.setattr(
        noises,
        "pattern",
        lambda word, size, limit, t, s: drawn.setdefault(size, REAL(word, size, limit, t, s)),
    )


def moves_too_far(world: World) -> bool:
    """Brute force finds neighbours further apart, in patterns, than the noise covers."""
    return brute_force(world, pairs=20).largest > world.paid


def has_another_law(world: World) -> bool:
    """The chi-square of gauges and of single coordinates."""
    return fit(world, 12_000).p < 1e-6


def is_correlated(world: World) -> bool:
    """The correlation of draws."""
    found = fit(world, 3_000)
    return max(abs(found.between_neighbours), abs(found.between_releases)) > 5


def is_too_far(world: World) -> bool:
    """The measured epsilon is above the claim."""
    return distance(world, brute_force(world, pairs=20), 200).z > 5


def breaks_the_ledger(world: World) -> bool:
    """One of the checks of the ledger."""
    return not all(outcome.holds for outcome in check_ledger(world))


CHECKS = (moves_too_far, has_another_law, is_correlated, is_too_far, breaks_the_ledger)
MUTANTS: list[tuple[Mutant, Callable[[World], bool]]] = [
    (halved, moves_too_far),
    (halved, is_too_far),
    (half_a_pattern, moves_too_far),
    (of_fewer_ones, has_another_law),
    (a_tenth_less, has_another_law),
    (one_draw_for_all, is_correlated),
]


def test_the_batch_is_in_a_block_for_patterns(world: World) -> None:
    assert world.plan.strategy.blocks == (PatternBlock(6, 3),)
    assert world.job.noise == world.plan.noise
    assert "K-norm mechanisms of what one unit can change" in " ".join(world.plan.explain().split())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.few("has_another_law")
def test_nothing_is_found_where_nothing_is_wrong(world: World, check: Callable[[World], bool]) -> None:
    assert not check(world), check.__doc__


@pytest.mark.parametrize(("mutant", "caught"), MUTANTS, ids=[f"{m.__name__}-{c.__name__}" for m, c in MUTANTS])
@pytest.mark.few("a_tenth_less-has_another_law")
def test_a_mutant_is_caught(
    tmp_path: Path, monkeypatch: Patch, mutant: Mutant, caught: Callable[[World], bool], assurance: Callable[..., None]
) -> None:
    mutant(monkeypatch)
    assert caught(made(tmp_path)), mutant.__doc__
    assurance("mutants killed", threat="", mutant=mutant.__name__, by=f"audit: {caught.__name__}")
