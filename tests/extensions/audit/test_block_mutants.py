"""Noise in blocks, audited: a batch of overlapping filters, end to end, and faults that each check must catch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.extensions.audit.ledger import check_ledger
from dpsql.extensions.audit.noise import fit
from dpsql.extensions.audit.privacy import distance
from dpsql.extensions.audit.sensitivity import brute_force
from dpsql.extensions.audit.world import World
from dpsql.linalg import norms
from dpsql.privacy import charge as charges
from dpsql.privacy import draws
from dpsql.privacy.noise import Noise

POLICY = """
dataset = "filters-1"
[budget]
epsilon = 100.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 9 }
b = { lower = 0, upper = 9 }
c = { lower = 0, upper = 9 }
g = { values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }
"""
BATCH = (
    "SELECT COUNT_IF(a > 4) AS a, COUNT_IF(b > 4) AS b, COUNT_IF(c > 4) AS c FROM t; "
    "SELECT g, COUNT(*) AS n FROM t GROUP BY g"
)
Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def made(folder: Path) -> World:
    return World.of(dpsql.Policy.parse(POLICY), BATCH, folder, epsilon=2)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return made(tmp_path_factory.mktemp("blocks"))


# -- the faults -------------------------------------------------------------------------------------


def one_block_paid(patch: Patch) -> None:
    """A split of epsilon that does not add up: the dearest block alone is paid for."""
    real = norms.block_norm

    def largest(mixing: Any, columns: Any, blocks: Any, *_: Any) -> int:
        parts = np.split(np.arange(sum(blocks)), np.cumsum(blocks)[:-1])
        return max(real(mixing[rows], columns, (len(rows),)) for rows in parts)

    patch.setattr(norms, "block_norm", largest)
    _unheld(patch)


def halved(patch: Patch) -> None:
    """Noise for half the sensitivity."""
    real = charges.pure_noise
    patch.setattr(charges, "pure_noise", lambda s, epsilon, blocks=(): real(max(s // 2, 1), epsilon, blocks))


def norm_of_one(patch: Patch) -> None:
    """The wrong norm: single Laplace draws where the sensitivity is that of a block."""
    patch.setattr(draws, "cube", lambda word, size, t, s: [draws.laplace(word, t, s) for _ in range(size)])


def cubes_of_another_radius(patch: Patch) -> None:
    """The radius of a block of one coordinate less."""
    real = draws.cube_radius
    patch.setattr(draws, "cube_radius", lambda word, size, t, s: real(word, size - 1, t, s))


def one_point_for_all(patch: Patch) -> None:
    """A block is one number, repeated: the radius is right, the point is not uniform."""
    real = draws.cube
    patch.setattr(draws, "cube", lambda word, size, t, s: real(word, size, t, s)[:1] * size)


def _unheld(patch: Patch) -> None:
    """The measurement's own check of the sensitivity is off, or it would refuse first."""
    patch.setattr("dpsql.measure.job.Job.check_sensitivity", lambda job: None)


# -- the checks -------------------------------------------------------------------------------------


def moves_too_far(world: World) -> bool:
    """Brute force finds neighbours further apart, in the norm of the blocks, than the noise covers."""
    return brute_force(world, pairs=20).largest > world.paid


def has_another_law(world: World) -> bool:
    """The chi-square of blocks and of single coordinates."""
    return fit(world, 9_000).p < 1e-6


def is_correlated(world: World) -> bool:
    """The correlation of draws."""
    found = fit(world, 2_000)
    return max(abs(found.between_neighbours), abs(found.between_releases)) > 5


def is_too_far(world: World) -> bool:
    """The measured epsilon is above the claim."""
    found = brute_force(world, pairs=20)
    return distance(world, found, 200).z > 5


def breaks_the_ledger(world: World) -> bool:
    """One of the checks of the ledger."""
    return not all(outcome.holds for outcome in check_ledger(world))


CHECKS = (moves_too_far, has_another_law, is_correlated, is_too_far, breaks_the_ledger)
MUTANTS: list[tuple[Mutant, Callable[[World], bool]]] = [
    (one_block_paid, moves_too_far),
    (halved, moves_too_far),
    (halved, is_too_far),
    (norm_of_one, has_another_law),
    (cubes_of_another_radius, has_another_law),
    (one_point_for_all, is_correlated),
]


def test_the_batch_is_in_blocks(world: World) -> None:
    """One of several rows, and the plan says so."""
    assert max(world.plan.strategy.blocks) > 1
    assert world.plan.noise == Noise("blocks", world.plan.noise.parameter, world.plan.strategy.blocks)
    assert "K-norm mechanism" in " ".join(world.plan.explain().split())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.few("moves_too_far", "is_correlated", "breaks_the_ledger")
def test_nothing_is_found_where_nothing_is_wrong(world: World, check: Callable[[World], bool]) -> None:
    assert not check(world), check.__doc__


@pytest.mark.parametrize(("mutant", "caught"), MUTANTS, ids=[f"{m.__name__}-{c.__name__}" for m, c in MUTANTS])
@pytest.mark.few("one_block_paid-moves_too_far", "norm_of_one-has_another_law")
def test_a_mutant_is_caught(
    tmp_path: Path, monkeypatch: Patch, mutant: Mutant, caught: Callable[[World], bool], assurance: Callable[..., None]
) -> None:
    mutant(monkeypatch)
    assert caught(made(tmp_path)), mutant.__doc__
    assurance("mutants killed", threat="", mutant=mutant.__name__, by=f"audit: {caught.__name__}")
