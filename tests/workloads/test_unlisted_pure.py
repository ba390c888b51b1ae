"""How far a unit moves B x in L1 and by blocks where that is not listed: against every contribution of small worlds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import linalg, sparse

from dpsql.common.arrays import Array
from dpsql.workloads.compile import unlisted_pure
from dpsql.workloads.compile.sensitivity import sensitivity_over
from dpsql.workloads.families import contributions
from dpsql.workloads.families.contributions import Contributions, Part, Tied

Found = tuple[int, int, bool]


def norm(moved: Array, blocks: tuple[int, ...]) -> int:
    """The sum over blocks of the largest entry, of the longest column."""
    starts = np.cumsum([0, *blocks[:-1]])
    return int(np.maximum.reduceat(abs(moved), starts, axis=0).sum(axis=0).max())


def drawn_blocks(rng: np.random.Generator, rows: int) -> tuple[int, ...]:
    """Sizes of blocks, all single once in four times."""
    blocks = []
    while (left := rows - sum(blocks)) > 0:
        blocks.append(int(rng.integers(1, min(4, left) + 1)))
    return (1,) * rows if rng.random() < 0.25 else tuple(blocks)


def claimed(B: tuple[Array, Array], units: Contributions, blocks: tuple[int, ...]) -> int:
    """What is said where nothing is listed but parts of the rows."""
    mixing, basis = B
    whole = Contributions(units.units, units.size, units.tied)
    object.__setattr__(whole, "count", contributions.MOST_LISTED + 1)  # more than are listed
    given = () if max(blocks) == 1 else blocks
    return sensitivity_over("laplace", mixing, sparse.csr_array(basis), whole, given)


def of_sources(seed: int) -> Found:
    """(the longest of all sums of corners, what is claimed, whether it should be reached)."""
    rng = np.random.default_rng(seed)
    kind, parts, start = seed % 4, [], 0
    for _ in range(int(rng.integers(1, 3))):
        size = int(rng.integers(2, 6))
        label = np.sort(rng.integers(0, size, size=size)) if rng.random() < 0.5 else np.arange(size)
        most = int(rng.integers(1, np.unique(label).size + 1))
        parts.append((start, size, label, int(rng.integers(1, 4)), most))
        start += size
    n = start
    held = tuple(
        Part(
            sparse.csc_array(np.eye(n, dtype=np.int64)[:, a : a + size]),
            times,
            most,
            None if np.unique(label).size == size else label,
        )
        for a, size, label, times, most in parts
    )
    if kind == 0:  # rows of one source each, in parts
        basis = np.eye(n, dtype=np.int64)
        mixing = linalg.block_diag(*(rng.integers(-3, 4, size=(3, size)) for _, size, *_ in parts)).astype(np.int64)
        blocks = tuple(size for _ in parts for size in drawn_blocks(rng, 3))
    elif kind == 1:  # rows that tell classes apart, and rows that tell corners apart in all of them
        own = np.concatenate([label + 10 * k for k, (_, _, label, *_) in enumerate(parts)])
        other = rng.integers(0, 3, size=n)
        told = [own == one for one in np.unique(own)] + [other == k for k in range(3)]
        basis = np.stack(told)
        first = np.unique(own).size
        mixing = linalg.block_diag(rng.integers(-3, 4, size=(3, first)), np.eye(3, dtype=int)).astype(np.int64)
        blocks = (*drawn_blocks(rng, 3), 1, 1, 1)
    else:
        basis = rng.integers(-2, 3, size=(4, n))
        mixing = rng.integers(-2, 3, size=(5, 4)) * (rng.random((5, 4)) < 0.5)
        blocks = drawn_blocks(rng, 5)
    basis = basis.astype(np.int64)
    units = Contributions((held,), n)
    choices = [
        [np.zeros(n, dtype=np.int64), *(one.corners.toarray()[:, list(c)].sum(axis=1) * one.times for c in one.sums())]
        for one in held
    ]
    every = np.array([sum(moves) for moves in itertools.product(*choices)]).T
    return norm(mixing @ basis @ every, blocks), claimed((mixing, basis), units, blocks), kind == 0


def of_tied(seed: int) -> Found:
    """The same of rows and the units that they count, by every way in which a unit may have its rows."""
    rng = np.random.default_rng(seed)
    groups, most = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    each = int(rng.integers(1, 3)) if groups < 3 else 1
    free = int(rng.random() < 0.3)
    label = np.concatenate([np.repeat(np.arange(groups), each), np.full(free, -1)])
    c, n = label.size, label.size + groups
    more = np.concatenate([np.diag(rng.choice([1, 1, 2, -1], size=c)), np.zeros((groups, c), dtype=int)])
    first = more.copy()
    for corner, one in enumerate(label):
        if one >= 0:
            first[c + one, corner] += 1
    apart = seed % 2 == 0
    if apart:  # each group measured by itself
        places = [np.r_[np.flatnonzero(label == one), c + one] for one in range(groups)]
        places += [np.flatnonzero(label == -1)] if free else []
        basis = np.eye(n, dtype=np.int64)[np.concatenate(places)]
        mixing = linalg.block_diag(*(rng.integers(-3, 4, size=(3, len(one))) for one in places)).astype(np.int64)
        blocks = tuple(size for _ in places for size in drawn_blocks(rng, 3))
    else:
        basis, mixing = np.eye(n, dtype=np.int64), rng.integers(-2, 3, size=(4, n))
        blocks = drawn_blocks(rng, 4)
    tied = Tied(sparse.csc_array(first), sparse.csc_array(more), label, most)
    rows = Part(sparse.csc_array(more), most, 1)
    counted = Part(sparse.csc_array(np.eye(n, dtype=np.int64)[:, c:]), 1, min(most, groups))
    every = []
    for size in range(1, most + 1):
        for chosen in itertools.combinations_with_replacement(range(c), size):
            counts = np.zeros(n, dtype=np.int64)
            counts[[c + one for one in {label[corner] for corner in chosen} if one >= 0]] = 1
            every.append(more[:, list(chosen)].sum(axis=1) + counts)
    # Rows without a unit are no unit's.
    every += [most * more[:, corner] for corner in range(c)]
    units = Contributions(((rows, counted),), n, {0: tied})
    return norm(mixing @ basis @ np.array(every).T, blocks), claimed((mixing, basis), units, blocks), apart


WORLDS = {"sources": of_sources, "tied": of_tied}


def fails(longest: int, claim: int, exact: bool) -> bool:
    """Whether a claim is too small, or too large where it should be reached."""
    return claim < longest or (exact and claim > longest)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.few("sources")
def test_no_claim_is_too_small_and_some_are_reached(world: str) -> None:
    found = [WORLDS[world](seed) for seed in range(120)]
    assert not [one for one in found if fails(*one)]
    assert sum(longest == claim for longest, claim, _ in found) >= 80


def one_block_of_all(patch: pytest.MonkeyPatch) -> None:
    real = unlisted_pure._norms
    patch.setattr(unlisted_pure, "_norms", lambda held, owner: real(held, owner * 0))


def parts_that_cut_blocks(patch: pytest.MonkeyPatch) -> None:
    real = unlisted_pure._alone
    patch.setattr(unlisted_pure, "_alone", lambda held, parts, owner: (real(held, parts, owner) or 1) - 1)


def other_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = unlisted_pure._tied

    def fewer(mixing: Array, basis: Array, tied: Tied, owner: Array) -> int | None:
        return real(mixing, basis, Tied(tied.first, tied.more * 0, tied.label, tied.most), owner)

    patch.setattr(unlisted_pure, "_tied", fewer)


def one_class_too_few(patch: pytest.MonkeyPatch) -> None:
    real = unlisted_pure.distinct_corners

    def fewer(held: Array, part: Part, corners: Array) -> Part:
        found = real(held, part, corners)
        return Part(found.corners, found.times, max(1, found.most - 1), found.label)

    patch.setattr(unlisted_pure, "distinct_corners", fewer)


MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "one block of all": ("sources", one_block_of_all),
    "less than a part moves": ("sources", parts_that_cut_blocks),
    "one class too few": ("sources", one_class_too_few),
    "other rows forgotten": ("tied", other_rows_forgotten),
    "one block of all tied": ("tied", one_block_of_all),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few(every=2)
def test_the_worlds_see(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, change = MUTANTS[mutant]
    change(monkeypatch)
    found = [WORLDS[world](seed) for seed in range(40)]
    assert any(claim < longest for longest, claim, _ in found)


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_nor_in_many_worlds(world: str) -> None:
    assert not [seed for seed in range(120, 2_500) if fails(*WORLDS[world](seed))]
