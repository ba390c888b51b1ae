"""Contributions: the lists against all that a unit can do, and the bound where they are too long to be listed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg import exact as whole_numbers
from dpsql.linalg.exact import products
from dpsql.workloads.compile import unlisted
from dpsql.workloads.compile.sensitivity import sensitivity_over
from dpsql.workloads.families import contributions, reach
from dpsql.workloads.families.contributions import Contributions, Part


def part(entries: list[int], times: int, most: int, size: int = 6) -> Part:
    """A source of counts: its corners are unit vectors."""
    corners = np.zeros((size, len(entries)), dtype=np.int64)
    corners[entries, np.arange(len(entries))] = 1
    return Part(sparse.csc_array(corners), times, most)


def every(units: Contributions) -> set[tuple[int, ...]]:
    """All that a unit can change, by the words of the module: one choice a source."""
    found = set()
    for parts in units.units:
        choices = []
        for one in parts:
            corners = one.corners.toarray().T * one.times
            sums = [np.zeros(units.size, dtype=np.int64)]
            for size in range(1, one.most + 1):
                sums += [
                    corners[list(chosen)].sum(axis=0) for chosen in itertools.combinations(range(len(corners)), size)
                ]
            choices.append(sums)
        found |= {tuple(int(v) for v in sum(moves)) for moves in itertools.product(*choices)}
    return found - {(0,) * units.size}


def test_lists_are_what_units_can_change() -> None:
    units = Contributions(((part([0, 1], 4, 1), part([2, 3, 4], 2, 2)), (part([5], 6, 1),)), 6)
    columns = units.columns.toarray().T
    assert units.common == 2
    assert units.count == len(columns) == 3 * 7 - 1 + 1
    assert {tuple(int(v) for v in column * 2) for column in columns} == every(units)
    assert not units.single
    assert not units.plain
    assert Contributions(((part([0, 1], 3, 1),),), 6).plain


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.few(every=2)
def test_the_bound_is_never_below(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    parts = (part([0, 1, 2], 1, int(rng.integers(1, 4))), part([3, 4], int(rng.integers(1, 4)), 1), part([5], 2, 1))
    units = Contributions((parts,), 6)
    B = rng.integers(-4, 5, size=(7, 6))
    if seed % 3 == 0:
        B[:, :3] = np.concatenate([np.eye(3, dtype=int) * 3, np.full((4, 3), -1)])  # groups that B treats alike
        B[:3, 3:] = 0
        B[3:, 3:] = np.array([2, 2, -1])
    if seed % 3 == 1:  # no row has two sources
        B[3:, :3], B[:3, 3:], B[3:5, 5], B[5:, 3:5] = 0, 0, 0, 0
    columns = np.array(sorted(every(units))).T
    true = [int(abs(B @ columns).sum(axis=0).max()), int(((B @ columns) ** 2).sum(axis=0).max())]
    mixing, basis = np.eye(7, dtype=np.int64), sparse.csr_array(B)
    exact = [sensitivity_over(noise, mixing, basis, units) for noise in ("laplace", "gaussian")]
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    found = [sensitivity_over(noise, mixing, basis, units) for noise in ("laplace", "gaussian")]
    monkeypatch.setattr(unlisted, "PRODUCTS", 0)
    loose = [sensitivity_over(noise, mixing, basis, units) for noise in ("laplace", "gaussian")]
    assert exact == true
    assert min(loose[1], found[1]) >= true[1]
    assert loose[0] == found[0] >= true[0]
    if seed % 3 == 0:
        assert found[1] == true[1]  # exact where groups are alike


def test_long_integers_are_multiplied_exactly() -> None:
    rng = np.random.default_rng(1)
    B = rng.integers(-(2**60), 2**60, size=(5, 4))
    parts = (part([0, 1, 2], 1, 3, 4), part([3], 1, 1, 4))
    units = Contributions((parts,), 4)
    basis = sparse.csr_array(np.eye(4, dtype=np.int64))
    held = [np.array(c, dtype=object) for c in every(units)]
    true = max(int(((B.astype(object) @ c) ** 2).sum()) for c in held)
    assert sensitivity_over("gaussian", B, basis, units) == true
    whole = products(B, sparse.csc_array(basis), sparse.csc_array(basis))
    assert (whole == B.astype(object).T @ B.astype(object)).all()


@pytest.mark.parametrize("seed", range(10))
def test_longest_of_what_is_not_listed_is_never_below(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For rows that read one source; equal where classes move rows of their own, or all one row."""
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    rng = np.random.default_rng(seed)
    label = np.repeat([0, 1, 2], 2)
    one = Part(sparse.csc_array(np.eye(6, dtype=np.int64)), 2, int(rng.integers(1, 4)), label)
    units = Contributions(((one,),), 6)
    rows = {
        "own": np.kron(np.eye(3, dtype=int), [1, 1]),
        "all": np.ones((1, 6), dtype=int),
        "any": rng.integers(-2, 3, size=(4, 6)),
    }
    whole = [np.zeros(6, dtype=int) + np.bincount(chosen, minlength=6) for chosen in map(list, one.sums())]
    for name, B in rows.items():
        for order in (1, 2):
            most = max(float((abs(B @ c * 2) ** order).sum()) for c in whole)
            found = units.longest(B, order)
            assert found >= most - 1e-9
            assert name == "any" or found == pytest.approx(most)


@pytest.mark.parametrize("seed", range(12))
def test_reach_is_never_below_the_longest_sum(seed: int) -> None:
    """By brute force over two sources; equal where all products are alike, or none meet."""
    rng = np.random.default_rng(seed)
    label, most = np.array([0, 0, 1, 2, 2]), (int(rng.integers(1, 4)), int(rng.integers(1, 3)))
    B = rng.integers(-3, 4, size=(6, 8))
    for kind, moved in {"any": B, "apart": np.eye(8, dtype=int) * 2, "alike": np.ones((1, 8), dtype=int)}.items():
        K = moved.T @ moved
        longest = 0
        for chosen in itertools.product([None, 0, 1], [None, 2], [None, 3, 4], [0, 1], [0, 1], [0, 1]):
            first = [i for i in chosen[:3] if i is not None]
            second = [5 + i for i in range(3) if chosen[3 + i]]
            if len(first) <= most[0] and len(second) <= most[1]:
                c = np.zeros(8, dtype=int)
                c[[*first, *second]] = 1
                longest = max(longest, int(c @ K @ c))
        for bound in (reach.reach, reach.reach_by_kinds):
            found = int(bound(K, [(label, most[0]), (np.arange(3), most[1])]))
            assert found >= longest
            assert kind == "any" or found == longest


def fuzzed_kinds(seed: int) -> tuple[int, int]:
    """The longest sum over classes of any sizes and lengths, by brute force, and the bound by kinds."""
    rng = np.random.default_rng(seed)
    parts, choices, start = [], [], 0
    for _ in range(int(rng.integers(1, 3))):
        label = np.sort(rng.integers(0, int(rng.integers(1, 5)), size=int(rng.integers(1, 6))))
        most = int(rng.integers(1, np.unique(label).size + 1))
        classes = [[None, *(start + np.flatnonzero(label == one)).tolist()] for one in np.unique(label)]
        sums = [[i for i in chosen if i is not None] for chosen in itertools.product(*classes)]
        choices.append([chosen for chosen in sums if len(chosen) <= most])
        parts.append((label, most))
        start += label.size
    # Few different rows, so that several columns have one length.
    B = rng.integers(-3, 4, size=(int(rng.integers(1, 5)), start))[:, rng.integers(0, start, size=start)]
    B = B * rng.choice([1, -1], size=start) if seed % 3 else B
    scale = 10**9 if seed % 5 == 0 else 1
    K = (B.T @ B).astype(object if scale > 1 else np.int64) * scale**2
    sums = [list(itertools.chain(*one)) for one in itertools.product(*choices)]
    longest = max(sum(K[i, j] for i in c for j in c) for c in sums)
    return int(longest), int(reach.reach_by_kinds(K, parts))


def test_the_bound_by_kinds_is_never_below() -> None:
    found = [fuzzed_kinds(seed) for seed in range(150)]
    assert all(longest <= bound for longest, bound in found)
    assert sum(longest == bound for longest, bound in found) >= 50


@pytest.mark.long
def test_the_bound_by_kinds_is_never_below_in_ten_thousand() -> None:
    for seed in range(10_000):
        longest, bound = fuzzed_kinds(seed)
        assert longest <= bound, seed


def fuzzed_few(seed: int) -> tuple[int, int, bool]:
    """The longest sum of columns of which few meet, by brute force, the bound, and whether it should be reached."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=int(rng.integers(1, 4))).tolist()
    n, parts, start = sum(sizes), [], 0
    apart = seed % 4 == 0
    B = np.diag(rng.integers(1, 5, size=n)) if apart else rng.integers(-3, 4, size=(n, n)) * (rng.random((n, n)) < 0.3)
    for size in sizes:
        label = np.sort(rng.integers(0, size, size=size)) if seed % 2 else np.arange(size)
        corners = sparse.csc_array(np.eye(n, dtype=np.int64)[:, start : start + size])
        most = int(rng.integers(1, np.unique(label).size + 1))
        parts.append(Part(corners, int(rng.integers(1, 4)), most, label if seed % 2 else None))
        start += size
    choices = [
        [np.zeros(n, dtype=np.int64), *(one.corners.toarray()[:, list(c)].sum(axis=1) * one.times for c in one.sums())]
        for one in parts
    ]
    longest = max(int(((B @ sum(moves)) ** 2).sum()) for moves in itertools.product(*choices))
    scale = 10**6 if seed % 5 == 0 else 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unlisted, "ALL_PRODUCTS", 0)
        patch.setattr(unlisted, "PRODUCTS", 0)
        patch.setattr(whole_numbers, "SPARSE_COST", 0)
        found = unlisted.bounded_norm(2, np.eye(n, dtype=np.int64), sparse.csr_array(B * scale), parts)
    return longest * scale**2, found, apart


def few_is_below(seeds: range) -> bool:
    found = [fuzzed_few(seed) for seed in seeds]
    return any(bound < longest or (apart and bound > longest) for longest, bound, apart in found)


def test_the_bound_by_few_products_is_never_below() -> None:
    assert not few_is_below(range(40))


@pytest.mark.long
def test_the_bound_by_few_products_is_never_below_in_two_thousand() -> None:
    assert not few_is_below(range(2_000))


def no_others(patch: pytest.MonkeyPatch) -> None:
    real = unlisted.sparse_products
    patch.setattr(unlisted, "sparse_products", lambda *given: sparse.csr_array(np.diag(real(*given).diagonal())))


def one_too_few(patch: pytest.MonkeyPatch) -> None:
    real = unlisted._Source.limit.fget
    patch.setattr(unlisted._Source, "limit", property(lambda source: max(1, real(source) - 1)))


def once(patch: pytest.MonkeyPatch) -> None:
    real = unlisted._by_few_products
    patch.setattr(
        unlisted,
        "_by_few_products",
        lambda mixing, held: real(mixing, [replace(one, part=replace(one.part, times=1)) for one in held]),
    )


@pytest.mark.parametrize("mutant", [no_others, one_too_few, once])
@pytest.mark.few(every=2)
def test_the_search_among_few_products_sees(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutant)
    mutant(monkeypatch)
    assert few_is_below(range(40))
