"""What one unit adds to several counts over the same rows: lists, and the bound without one, against all subsets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from time import monotonic

import numpy as np
import pytest

from dpsql.strategies.gaussian import exchangeable_patterns
from dpsql.workloads.families import kinds as kinds_module
from dpsql.workloads.families.kinds import Kinds, kinds_of
from dpsql.workloads.families.patterns import Patterns

Row = tuple[int, int]
GROUPINGS: dict[str, Callable[[int, int], object]] = {
    "all": lambda a, b: 0,
    "a": lambda a, b: a if a >= 0 else None,
    "half a": lambda a, b: a // 2 if a >= 0 else None,
    "b": lambda a, b: b if b >= 0 else None,
    "both": lambda a, b: (a, b) if min(a, b) >= 0 else None,
    "a, if b": lambda a, b: a if min(a, b) >= 0 else None,
    "row": lambda a, b: (a, b),
    "a, if not b": lambda a, b: a if b < 0 else None,
    "of b": lambda a, b: 1 if b > 0 else None,
    "a, or none": lambda a, b: a,
    "half a, or none": lambda a, b: a // 2,
    **{f"over {x}": lambda a, b, x=x: 1 if a > x else None for x in range(20)},
    **{f"{x} and next": lambda a, b, x=x: 1 if x <= a <= x + 1 else None for x in range(4)},
}


@cache
def patterns(
    by: Sequence[str], rows: str | None, wide: tuple[int, int], most: int, least: tuple[int, int], once: str = ""
) -> Patterns:
    """Units counted ``by`` these, and rows by ``rows``, over a row of each pair from ``least`` on; of a unit in each
    group of ``once`` one row.
    """
    start, cells = 0, []
    pairs = list(itertools.product(range(least[0], wide[0]), range(least[1], wide[1])))
    for name in (*by, *((rows,) if rows else ())):
        groups = [GROUPINGS[name](*pair) for pair in pairs]
        known = {group: start + at for at, group in enumerate(dict.fromkeys(g for g in groups if g is not None))}
        cells.append([-1 if group is None else known[group] for group in groups])
        start += len(known)
    held = np.unique(np.array(cells), axis=1)
    held = held[:, (held >= 0).any(axis=0)]
    classes = None
    if once:
        groups = [GROUPINGS[once](*pair) for pair in pairs]
        told = np.unique(np.array([*cells, [[*dict.fromkeys(groups)].index(group) for group in groups]]), axis=1)
        told = told[:, (told[:-1] >= 0).any(axis=0)]
        held, classes = told[:-1], told[-1]
    units, counted = (held[:-1], held[-1]) if rows else (held, None)
    return Patterns(units, most, tuple(range(len(held))), start, counted, classes)


@cache
def all_of(given: Patterns) -> np.ndarray:
    """Every vector that at most ``most`` rows of one unit add, and those of no unit (N x columns of ``given``)."""
    numbered, width = given.numbered, given.columns.shape[1]
    J, found, T = numbered.shape[1], set(), len(given.cells)
    N = numbered[T].min() if given.rows is not None else width
    for size in range(1, given.most + 1):
        for chosen in itertools.combinations_with_replacement(range(J), size):
            classes = [] if given.classes is None else given.classes[list(chosen)].tolist()
            if len(set(classes)) < len(classes):
                continue
            units, counts = np.zeros((2, width), dtype=int)
            for one in chosen:
                column = numbered[:, one]
                units[column[column >= 0]] = 1
                if given.rows is not None:
                    counts[column[T]] += 1
            if given.classes is not None:
                units[numbered[-1].min() :] = 0  # classes count nothing
            if given.rows is None:
                found.add(tuple(units))
            else:
                units[N : N + J] = counts[N : N + J]
                found |= {
                    tuple(units),
                    *([tuple(np.where(np.arange(units.size) < N, 0, units))] if given.nobody else []),
                }
    return np.array(sorted(found))


CASES = [
    (("all", "a"), None, (4, 1), 3, (0, 0)),
    (("all", "a"), None, (4, 1), 3, (-1, 0)),
    (("a", "half a", "all"), None, (6, 1), 4, (0, 0)),
    (("a", "b", "both"), None, (2, 3), 3, (0, 0)),
    (("a", "b", "both"), None, (2, 3), 3, (0, -1)),
    (("a", "a, if b", "of b"), None, (3, 2), 3, (0, -1)),
    (("all", "a"), "a", (4, 1), 3, (0, 0)),
    (("all", "a"), "a", (3, 1), 3, (-1, 0)),
    (("a", "b"), "both", (2, 3), 3, (0, 0)),
    (("a", "b", "all"), "both", (2, 2), 3, (0, -1)),
    (("b", "both"), "a", (2, 3), 3, (0, 0)),
    (("a", "half a"), "all", (4, 1), 4, (0, 0)),
    (("a", "of b"), "a, if b", (2, 2), 3, (0, -1)),
    (("a",), "both", (3, 3), 3, (0, 0), "b"),
    (("a", "half a", "all"), "b", (4, 2), 2, (0, 0), "b"),
    (("a", "all"), "both", (2, 4), 3, (0, -1), "b"),
    (("a", "b", "both"), None, (3, 3), 3, (0, 0), "b"),
    (("a", "half a"), None, (4, 3), 2, (0, -1), "b"),
    (("b",), "a, if b", (2, 3), 3, (0, -1), "both"),
    (("half a", "a, if b", "a, if not b"), "row", (4, 1), 4, (0, -1)),
    (("a", "a, if b"), "row", (3, 1), 3, (0, -1)),
    (("a", "a, if b", "all"), "row", (3, 2), 4, (0, -1)),
    (("over 0", "over 1", "over 2"), "a", (4, 1), 3, (0, 0)),
    (("0 and next", "1 and next", "2 and next"), "a", (4, 1), 4, (0, 0)),
    (("0 and next", "1 and next", "over 2"), "both", (4, 2), 3, (0, 0)),
    (("a, or none", "half a, or none", "all"), None, (4, 1), 3, (-1, 0)),
    (("a, or none", "half a, or none"), "a, or none", (4, 1), 3, (-1, 0)),
    (("a", "a, or none", "all"), "both", (3, 2), 3, (0, 0)),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("nobody", [True, False])
@pytest.mark.few(every=3)
def test_lists_are_what_rows_add(case: tuple, nobody: bool) -> None:  # type: ignore[type-arg]
    """All that is listed is added by some rows; all that rows add is a mean of what is listed, and 0."""
    given = replace(patterns(*case), nobody=nobody)
    listed = given.listed().toarray().T
    whole = {tuple(one) for one in (all_of(given) @ given.columns.toarray().T)}
    assert {tuple(one) for one in listed} <= whole
    if given.rows is None:
        assert {tuple(one) for one in listed} == whole
        return
    draw = np.random.default_rng(1)
    for _ in range(20):
        to = draw.normal(size=given.size)
        assert max(np.array(list(whole)) @ to) <= max(0.0, *(listed @ to)) + 1e-9


def test_thresholds_have_few_extreme_vectors() -> None:
    """All that one unit adds are its farthest row, and none or all others of one column up to it; or rows of nobody."""
    given = patterns(tuple(f"over {x}" for x in range(20)), "a", (21, 1), 10, (0, 0))
    assert given.count == 21 + 20 * 2 + sum(range(1, 21))


def test_entries_that_count_the_same_rows_are_one() -> None:
    """A month without a name is in a quarter of its own: no unit moves one without the other."""
    for case, less in ((CASES[-3], 1), (CASES[-2], 1), (CASES[-1], 3), (CASES[2], 0)):
        given = patterns(*case)
        told = given.columns.shape[1] - (0 if given.rows is None else given.cells.shape[1])
        assert given.entries.size - told == less
        assert np.linalg.matrix_rank(given.listed().toarray()) <= given.columns.shape[1]


def products(kinds: Kinds, draw: np.random.Generator, alike: bool) -> np.ndarray:
    """A Gram matrix, and one whose entries are equal within relations; classes are 0."""
    K = of_all(kinds, draw, alike)
    counts = ~np.isin(kinds.kind, kinds.classes)
    return np.asarray(K * (counts[:, None] & counts[None, :]))


def of_all(kinds: Kinds, draw: np.random.Generator, alike: bool) -> np.ndarray:
    N = kinds.kind.size
    if not alike:
        moved = draw.integers(-4, 5, size=(N + 2, N))
        return np.asarray(moved.T @ moved)
    values = draw.integers(-9, 10, size=kinds.relation.max() + 1)
    K = values[kinds.relation] + values[kinds.relation].T + np.diag(draw.integers(0, 40, size=kinds.number)[kinds.kind])
    return np.asarray(K + np.eye(N, dtype=int) * max(0, int(np.ceil(-np.linalg.eigvalsh(K).min()))))


def shortfall(case: tuple, seed: int, times: int, alike: bool) -> tuple[int, int]:  # type: ignore[type-arg]
    """How often the bound is below the longest vector, and how often it is reached."""
    given, draw = patterns(*case), np.random.default_rng(seed)
    kinds, C = kinds_of(given), all_of(given)
    assert kinds is not None
    below = reached = 0
    for _ in range(times):
        K = products(kinds, draw, alike)
        bound, true = int(kinds.longest(K)), int((C @ K * C).sum(axis=1).max())
        assert abs(float(kinds.longest(K.astype(np.float64))) - bound) <= 1e-9 * max(1, abs(bound))
        below += bound < true
        reached += bound == true
    return below, reached


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(every=4)
def test_the_bound_is_never_below(case: tuple) -> None:  # type: ignore[type-arg]
    assert shortfall(case, 0, 20, alike=False)[0] == 0
    assert shortfall(case, 0, 20, alike=True)[0] == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(every=3)
def test_pairs_that_meet_are_between_both_bounds(case: tuple) -> None:  # type: ignore[type-arg]
    """Of the entries of every union: how many pairs of two kinds are in one group of a third."""
    given = patterns(*case)
    kinds = kinds_of(given)
    assert kinds is not None
    columns = [frozenset(one[one >= 0].tolist()) for one in given.numbered.T]
    chosen = (some for size in range(1, given.most + 1) for some in itertools.combinations(columns, size))
    unions = {frozenset().union(*some) for some in chosen if given.classes is None or _of_classes(given, some)}
    held = np.array([[entry in union for entry in range(kinds.kind.size)] for union in unions], dtype=int)
    sizes = np.stack([held[:, own].sum(axis=1) for own in kinds.groups])
    for a, b, w in itertools.product(range(kinds.number), repeat=3):
        if kinds.refines[a, w] and kinds.refines[b, w]:
            inside = [kinds.parent[w, kinds.groups[one]][:, None] == kinds.groups[w] for one in (a, b)]
            of_a, of_b = (held[:, kinds.groups[one]] @ within for one, within in zip((a, b), inside, strict=True))
            low, high = kinds._meeting_in(a, b, w, sizes)
            assert (low <= (of_a * of_b).sum(axis=1)).all()
            assert ((of_a * of_b).sum(axis=1) <= high).all()


def _of_classes(given: Patterns, some: tuple[frozenset[int], ...]) -> bool:
    """Whether some columns are of as many classes."""
    return len({entry for one in some for entry in one if entry >= given.numbered[-1].min()}) == len(some)


@pytest.mark.parametrize("scale", [2**40, 2**57, 2**90])
def test_long_integers_are_added_up_exactly(scale: int) -> None:
    for case in (CASES[2], CASES[6], CASES[9]):
        kinds = kinds_of(patterns(*case))
        assert kinds is not None
        K = products(kinds, np.random.default_rng(4), alike=False)
        long = K.astype(object) * scale
        assert int(kinds.longest(long.astype(np.int64) if scale < 2**50 else long)) == int(kinds.longest(K)) * scale


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_bound_is_never_below_in_a_thousand(case: tuple) -> None:  # type: ignore[type-arg]
    for alike in (False, True):
        assert shortfall(case, 7, 500, alike=alike)[0] == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_bound_is_reached_where_groups_lie_in_groups(number: int) -> None:
    assert shortfall(CASES[number], 3, 20, alike=True) == (0, 20)


def fewer_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kinds, "_having", lambda self, w, s: s[w])


def no_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kinds, "_with_more", lambda self, K, s, total: total)


def always_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kinds, "fills", lambda self, finer, b: True)


def at_least(patch: pytest.MonkeyPatch) -> None:
    real = Kinds._meeting
    patch.setattr(Kinds, "_meeting", lambda *given: (real(*given)[0],) * 2)


@pytest.mark.parametrize("mutant", [fewer_rows, no_more, always_full, at_least])
@pytest.mark.few(every=2)
def test_the_search_sees(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(shortfall(case, 1, 40, alike=True)[0] for case in CASES)


@pytest.mark.parametrize("case", [CASES[2], CASES[3], CASES[6], CASES[8], CASES[9], CASES[-8], *CASES[-3:]])
def test_long_vectors_are_vectors_and_the_optimum_is_that_of_the_list(case: tuple) -> None:  # type: ignore[type-arg]
    given = patterns(*case)
    kinds = kinds_of(given)
    assert kinds is not None
    held = {tuple(one) for one in all_of(given)}
    draw = np.random.default_rng(2)
    K = products(kinds, draw, alike=False).astype(np.float64)
    for value, at, times in exchangeable_patterns.longest_unions(K, kinds):
        c = np.zeros(kinds.kind.size, dtype=int)
        c[at] = times
        assert tuple(c) in held
        assert value == pytest.approx(c @ K @ c, rel=1e-9)
    gram = np.eye(kinds.kind.size)
    found = exchangeable_patterns.solve_alike_patterns(gram, kinds, 1e-3, monotonic() + 60)
    assert found is not None
    solved, far = found
    X, C = solved.metric / far, all_of(given)
    assert (C @ X * C).sum(axis=1).max() <= 1 + 1e-9
    assert np.trace(np.linalg.inv(X)) == pytest.approx(solved.error * far, rel=1e-6)
    assert solved.lower <= least_over(C) * (1 + 1e-4)
    assert solved.error * far <= least_over(C) * 1.06


@pytest.mark.parametrize("case", [CASES[6], CASES[8], CASES[9]])
def test_units_and_rows_apart_have_the_lower_bound_of_both_together(case: tuple) -> None:  # type: ignore[type-arg]
    given = patterns(*case)
    kinds, C = kinds_of(given), all_of(given)
    assert kinds is not None
    gram, rows = np.eye(kinds.kind.size), np.isin(kinds.kind, kinds.rows)
    whole, two = (
        exchangeable_patterns.solve_alike_patterns(gram, kinds, 1e-3, monotonic() + 60, apart=apart)
        for apart in (False, True)
    )
    assert whole is not None
    assert two is not None
    solved, far = two
    X = solved.metric / far
    assert np.abs(X[np.ix_(rows, ~rows)]).max() <= 1e-9 * X.max()
    assert (C @ X * C).sum(axis=1).max() <= 1 + 1e-9
    assert np.trace(np.linalg.inv(X)) == pytest.approx(solved.error * far, rel=1e-6)
    assert whole[0].lower * (1 - 1e-9) <= solved.lower <= least_over(C) * (1 + 1e-4)
    assert whole[0].error <= solved.error * (1 + 1e-3)


def least_over(C: np.ndarray) -> float:
    """The least error of single numbers over listed vectors, by the dual's fixed point."""
    lam = np.full(len(C), 1.0 / len(C))
    for _ in range(20_000):
        s, V = np.linalg.eigh((C.T * lam) @ C)
        root = np.sqrt(np.maximum(s, 1e-15 * s.max()))
        q = (C @ (V / root) @ V.T * C).sum(axis=1)
        if q.max() <= root.sum() * (1 + 1e-5):
            break
        lam *= (q / root.sum()) ** 2
        lam /= lam.sum()
    return float(root.sum() * q.max())


def test_groups_that_only_look_alike_are_not_exchanged() -> None:
    """Every row in two groups of six, in a ring: as many rows in each, but no two neighbours can change places."""
    ring = np.array([[i, 6 + (i + 1) % 6] for i in range(6)] + [[i, 6 + (i + 3) % 6] for i in range(6)]).T
    kinds = kinds_of(Patterns(ring, 3, (0, 1), 12))
    assert kinds is not None
    assert exchangeable_patterns.solve_alike_patterns(np.eye(12), kinds, 1e-3, monotonic() + 60) is None


def test_what_is_too_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given = patterns(("all", "a"), None, (4, 1), 3, (0, 0))
    monkeypatch.setattr(kinds_module, "TRIED", 0)
    kinds = kinds_of(given)
    assert kinds is not None
    assert kinds.longest(np.eye(5)) is None
    monkeypatch.setattr(kinds_module, "_MOST_ENTRIES", 3)
    assert kinds_of(given) is None
