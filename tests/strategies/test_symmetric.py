"""Symmetric problems by their parts, against the dual over all cells and contributions, which uses nothing of dpsql."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dpsql import workload
from dpsql.errors import InternalError
from dpsql.strategies.core import colouring
from dpsql.strategies.core.colouring import Colouring, Decomposition
from dpsql.strategies.core.symmetric import DualState, Lines, Optimum, Part, lower_bound, solve
from dpsql.strategies.marginals.residual import residual_plan


def dual_over_all(gram: np.ndarray, C: np.ndarray) -> tuple[float, float]:
    """(lower, upper) bound on the least error by the fixed point of the dual over the rows of C, one by one."""
    s, V = np.linalg.eigh(gram)
    used = s > 1e-12 * s[-1]
    U = C @ (V[:, used] * np.sqrt(s[used]))
    lam = np.full(len(C), 1.0 / len(C))
    for _ in range(50_000):
        values, Q = np.linalg.eigh((U.T * lam) @ U)
        root = np.sqrt(np.maximum(values, 1e-15 * values[-1]))
        q = ((U @ (Q / np.sqrt(root))) ** 2).sum(axis=1)
        if q.max() <= root.sum() * (1 + 1e-8):
            break
        lam *= (q / root.sum()) ** 2
        lam /= lam.sum()
    return float(root.sum() ** 2), float(root.sum() * q.max())


class Classes:
    """Regions of some classes with ``m`` measures each, which a unit changes in one of a few ways, up to exchanges."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.sizes = draw.integers(1, 4, int(draw.integers(1, 4)))
        self.m = int(draw.integers(1, 4))
        k, m = self.sizes.size, self.m
        rows = draw.normal(size=(k * m + 1, k * m))
        self.means = rows.T @ rows
        self.contrasts = [(x := draw.normal(size=(m + 1, m))).T @ x for _ in range(k)]
        # What an orbit's contribution has in each region (regions x m), mostly whole numbers.
        self.orbits = [
            np.rint(draw.normal(scale=1.5, size=(self.sizes.sum(), m))) * (draw.random((self.sizes.sum(), 1)) < 0.6)
            for _ in range(int(draw.integers(2, 6)))
        ]
        self.orbits += [np.eye(self.sizes.sum())[:, [0]] * row for row in 1.0 + np.eye(m)]
        ends = np.cumsum(self.sizes)
        self.classes = [np.arange(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]
        # Every class and measure is changed by some contribution.
        self.orbits += [np.eye(self.sizes.sum())[:, [own[0]]] * row for own in self.classes for row in 1.0 + np.eye(m)]

    def gram(self) -> np.ndarray:
        """Over all regions and measures (regions m x regions m)."""
        k, m, n = self.sizes.size, self.m, int(self.sizes.sum())
        S = np.zeros((n, k))
        for j, own in enumerate(self.classes):
            S[own, j] = own.size**-0.5
        lift = np.kron(S, np.eye(m))
        out = lift @ self.means @ lift.T
        for j, own in enumerate(self.classes):
            inside = np.zeros((n, n))
            inside[np.ix_(own, own)] = np.eye(own.size) - 1.0 / own.size
            out += np.kron(inside, self.contrasts[j])
        return out

    def all_of(self) -> np.ndarray:
        """All contributions, one by one."""
        found = set()
        for one in self.orbits:
            for orders in product(*(permutations(own) for own in self.classes)):
                found.add(tuple(one[np.concatenate(orders)].ravel().tolist()))
        return np.array(sorted(found))

    def parts(self) -> list[Part]:
        """The finder of classes: sums of classes, and the contrasts within each."""
        sums = [[one[own].sum(axis=0) / own.size**0.5 for own in self.classes] for one in self.orbits]
        parts = [Part(1.0, np.linalg.cholesky(self.means).T, np.array(sums).reshape(len(sums), -1))]
        for j, own in enumerate(self.classes):
            held = [one[own] for one in self.orbits]
            moments = np.array([v.T @ v - np.outer(v.sum(axis=0), v.sum(axis=0)) / own.size for v in held])
            parts.append(Part(own.size - 1.0, np.linalg.cholesky(self.contrasts[j]).T, moments))
        return parts

    def colours(self) -> np.ndarray:
        """The orbits of pairs under exchanges of two neighbours in a class."""
        cells = np.arange(self.sizes.sum() * self.m).reshape(-1, self.m)
        swaps = []
        for own in self.classes:
            for i in own[:-1]:
                to = cells.copy()
                to[[i, i + 1]] = to[[i + 1, i]]
                swaps.append(to.ravel())
        return orbits_of_pairs(swaps, cells.size)


def orbits_of_pairs(permuted: list[np.ndarray], N: int) -> np.ndarray:
    """The colours of the pairs of N cells under a group, by permutations that generate it."""
    x, y = np.divmod(np.arange(N * N), N)
    moved = [to[x] * N + to[y] for to in permuted]
    at = np.tile(np.arange(N * N), len(moved)), np.concatenate([*moved, np.zeros(0, dtype=int)])
    return connected_components(coo_array((np.ones(at[0].size), at), shape=(N * N, N * N)))[1].reshape(N, N)


def parts_of(colour: np.ndarray, gram: np.ndarray, orbits: np.ndarray) -> tuple[list[Part], Decomposition] | None:
    """The parts of a coloured problem, from one contribution of each orbit."""
    cells = Colouring(colour)
    split = Decomposition.of(cells) if cells.constant(gram) else None
    if split is None:
        return None
    pairs = np.array([np.bincount(colour.ravel(), np.outer(c, c).ravel(), cells.size.size) for c in orbits])
    parts = split.parts(cells.entries(gram), pairs)
    return None if parts is None else (parts, split)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.few(every=3)
def test_random_classes_are_those_of_the_full_space(seed: int) -> None:
    case = Classes(seed)
    gram, C, parts = case.gram(), case.all_of(), case.parts()
    low, high = dual_over_all(gram, C)
    found = solve(parts, 1e-7)
    assert found.lower == pytest.approx(low, rel=1e-6)
    assert found.upper == pytest.approx(high, rel=1e-6)
    draw = np.random.default_rng(seed)
    for _ in range(20):
        lam = draw.random(len(case.orbits)) ** draw.integers(1, 9)
        assert lower_bound(parts, lam / lam.sum()) <= high * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(0, 60, 4))
@pytest.mark.few(every=3)
def test_coloured_pairs_give_the_same_parts(seed: int) -> None:
    case = Classes(seed)
    orbits = np.array([one.ravel() for one in case.orbits])
    found = parts_of(case.colours(), case.gram(), orbits)
    assert found is not None
    parts, split = found
    coloured, plain = solve(parts, 1e-7), solve(case.parts(), 1e-7)
    assert coloured.lower == pytest.approx(plain.lower, rel=1e-6)
    assert sum(rho * len(u) for rho, u in zip(split.copies, split.units, strict=True)) == len(case.gram())
    # X over all cells is feasible, and its error is the one claimed.
    X = split.combined(coloured.metrics)[split.cells.colour]
    C = case.all_of()
    assert (C @ X * C).sum(axis=1).max() <= 1 + 1e-9
    assert np.trace(case.gram() @ np.linalg.pinv(X, rcond=1e-10)) == pytest.approx(coloured.upper, rel=1e-5)


@pytest.mark.parametrize(
    ("groups", "most", "least"), [(2, 2, 8 / 3), (4, 4, 9.0), (12, 12, 59.68), (50, 10, 450.0), (50, 50, 814.04)]
)
def test_groups_by_hand(groups: int, most: int, least: float) -> None:
    s = np.arange(1, most + 1)
    parts = [
        Part(1.0, np.eye(1), s[:, None] / groups**0.5),
        Part(groups - 1.0, np.eye(1), (s - s**2 / groups)[:, None, None]),
    ]
    found = solve(parts, 1e-6)
    assert found.lower == pytest.approx(least, rel=1e-4)
    (total,), (a,) = (X.ravel() for X in found.metrics)
    b = (total - a) / groups
    assert max(s * a + s**2 * b) == pytest.approx(1.0)
    assert (groups - 1) / a + 1 / (a + groups * b) == pytest.approx(found.upper)
    if groups == 2:
        assert (a, b) == pytest.approx((1.5, -0.5), rel=1e-3)


def test_rows_and_persons_by_hand() -> None:
    found = solve([Part(1.0, np.eye(2), np.array([[10.0, 1.0], [10.0, 0.0], [0.0, 1.0]]))], 1e-8)
    assert found.lower == pytest.approx(110.512, rel=1e-5)


def test_marginals_are_lines_of_one_orbit() -> None:
    W = workload.marginals([4, 5, 6], order=2)
    cells = float(np.prod(W.sizes))
    residuals = W.residuals()
    copies = np.array([float(W.dimension(T)) for T in residuals])
    roots = np.sqrt(cells * np.array(list(residuals.values())))
    found = solve([Lines(copies, roots, copies[None, :] / cells)], 1e-9)
    assert found.lower == pytest.approx(residual_plan(W).error)
    assert found.lower == pytest.approx(173.777855, rel=1e-7)


def an_orbit_missing(parts: list[Part]) -> list[Part]:
    return [Part(p.copies, p.root, p.moments[1:]) for p in parts]


def a_part_missing(parts: list[Part]) -> list[Part]:
    return parts[:1]


def a_copy_too_few(parts: list[Part]) -> list[Part]:
    return [parts[0], *(Part(p.copies - (p.copies > 0), p.root, p.moments) for p in parts[1:])]


@pytest.mark.parametrize("mutant", [an_orbit_missing, a_part_missing, a_copy_too_few])
def test_wrong_parts_are_seen(mutant: Callable[[list[Part]], list[Part]]) -> None:
    wrong = 0
    for seed in range(8):
        case = Classes(seed)
        low, _ = dual_over_all(case.gram(), case.all_of())
        wrong += solve(mutant(case.parts()), 1e-7).upper < low * (1 - 1e-6)
    assert wrong > 0


@pytest.mark.parametrize("seed", range(4))
def test_orbits_that_are_generated_are_as_good_as_all(seed: int) -> None:
    draw = np.random.default_rng(seed)
    root, columns = draw.normal(size=(4, 4)), draw.normal(size=(200, 4))
    added = list(range(4))

    def worst(metrics: tuple[np.ndarray, ...]) -> list[np.ndarray] | None:
        q = np.einsum("ij,jk,ik->i", columns, metrics[0], columns)
        new = [int(at) for at in np.argsort(-q)[:5] if q[at] > 1 + 1e-6 and at not in added]
        added.extend(new)
        return [columns[new]] if new else None

    found = solve([Part(1.0, root, columns[:4])], 1e-6, worst=worst)
    assert 4 < found.weights.size < 100
    assert found.weights.size == len(added)
    assert found.lower == pytest.approx(solve([Part(1.0, root, columns)], 1e-6).lower, rel=1e-5)


def test_moments_of_any_rank_and_of_rank_one_agree() -> None:
    draw = np.random.default_rng(3)
    root, vectors = draw.normal(size=(3, 5)), draw.normal(size=(9, 5))
    outer = np.einsum("oi,oj->oij", vectors, vectors)
    one, other = (solve([Part(2.0, root, moments)], 1e-6) for moments in (vectors, outer))
    assert one.lower == pytest.approx(other.lower)
    assert np.allclose(one.metrics[0], other.metrics[0])


def test_the_lower_bound_takes_no_floor() -> None:
    """A direction that no contribution moves adds nothing to the bound, and is measured next to exactly."""
    part = Part(1.0, np.eye(2), np.array([[1.0, 0.0], [0.5, 0.0]]))
    found: Optimum = solve([part], 1e-9)
    assert found.lower == pytest.approx(1.0, rel=1e-8)
    assert found.metrics[0][1, 1] > 1e6
    single = solve([Part(1.0, np.eye(1), np.ones((2, 1))), Part(9.0, np.eye(1), np.zeros((2, 1)))], 1e-9)
    assert single.lower == pytest.approx(1.0, rel=1e-12)
    state = DualState([(1.0, part.contributions)], np.array([0.5, 0.5]))
    assert state.t**2 >= state.lower


def cyclic(n: int, measures: int, *, mirror: bool = False) -> np.ndarray:
    """The colours of n cells on a ring with some measures, which shifts take around, and reflections."""
    cells = np.arange(n * measures).reshape(n, measures)
    moved = [np.roll(cells, 1, axis=0).ravel()] + ([cells[::-1].ravel()] if mirror else [])
    return orbits_of_pairs(moved, cells.size)


def on_a_ring(seed: int, measures: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(colours, Gram matrix, one contribution of each orbit) of five cells on a ring that can be shifted."""
    draw, colour = np.random.default_rng(seed), cyclic(5, measures)
    rows = draw.normal(size=(2 * measures, 5, measures))
    whole = np.concatenate([np.roll(rows, at, axis=1) for at in range(5)]).reshape(-1, 5 * measures)
    return colour, whole.T @ whole, draw.normal(size=(2 * measures, 5 * measures))


def test_complex_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shifts of several measures: without the check parts would prove a bound above the least error."""
    for measures in (2, 3):
        assert Decomposition.of(Colouring(cyclic(5, measures))) is None
        assert Decomposition.of(Colouring(cyclic(5, measures, mirror=True))) is not None
    assert Decomposition.of(Colouring(cyclic(5, 1))) is not None  # symmetric matrices of one measure commute
    monkeypatch.setattr(Decomposition, "adds_up", lambda self, M: True)
    false = 0
    for seed in range(6):
        colour, gram, orbits = on_a_ring(seed)
        found = parts_of(colour, gram, orbits)
        assert found is not None
        shifted = [np.roll(c.reshape(5, 3), at, axis=0).ravel() for c in orbits for at in range(5)]
        _, high = dual_over_all(gram, np.array(shifted))
        false += solve(found[0], 1e-6).lower > 1.01 * high
    assert false > 0


def test_colours_of_no_group_are_refused() -> None:
    path = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))  # distances on a line: products are not constant
    assert Decomposition.of(Colouring(path)) is None
    square = np.minimum(np.abs(np.subtract.outer(np.arange(4), np.arange(4))) % 4, 2)
    assert parts_of(square * 0 + (np.eye(4) == 0), np.diag([1.0, 1.0, 1.0, 2.0]), np.eye(4)[:1]) is None


def test_units_are_those_of_one_basis_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Classes(8)
    split = Decomposition.of(Colouring(case.colours()))
    assert split is not None
    for rho, u in zip(split.copies, split.units, strict=True):
        full = u[..., split.cells.colour]
        for i, j, k in product(range(len(u)), repeat=3):
            assert np.allclose(full[i, j] @ full[j, k], full[i, k], atol=1e-8)
            assert np.allclose(full[i, j].T, full[j, i], atol=1e-8)
        assert np.trace(full[0, 0]) == pytest.approx(rho)
    monkeypatch.setattr(colouring, "ROUNDING", 0.04)  # eigenvalues of different spaces taken for one
    assert Decomposition.of(Colouring(case.colours())) is None


@pytest.mark.parametrize(
    "given",
    [
        (1.0, np.ones(2), np.ones((1, 2))),
        (1.0, np.ones((1, 2)), np.ones((1, 3))),
        (1.0, np.ones((1, 2)), np.ones((0, 2))),
        (-1.0, np.ones((1, 2)), np.ones((1, 2))),
        (1.0, np.full((1, 2), np.nan), np.ones((1, 2))),
        (1.0, np.ones((1, 2)), np.full((1, 2, 2), np.inf)),
    ],
)
def test_parts_check_themselves(given: tuple[float, np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InternalError):
        Part(*given)


@pytest.mark.parametrize(
    "given",
    [
        (np.ones(2), np.ones(3), np.ones((1, 3))),
        (np.ones(2), np.ones(2), np.ones((0, 2))),
        (-np.ones(2), np.ones(2), np.ones((1, 2))),
        (np.ones(2), np.full(2, np.nan), np.ones((1, 2))),
    ],
)
def test_lines_check_themselves(given: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InternalError):
        Lines(*given)


def test_lines_are_parts_of_dimension_one() -> None:
    draw = np.random.default_rng(4)
    copies, roots, moments = draw.integers(0, 4, 5).astype(float), draw.normal(size=5), draw.random((7, 5))
    block = Part(1.0, draw.normal(size=(2, 2)), draw.normal(size=(7, 2)))
    single = [Part(c, np.full((1, 1), r), N[:, None, None]) for c, r, N in zip(copies, roots, moments.T, strict=True)]
    one, other = solve([block, Lines(copies, roots, moments)], 1e-6), solve([block, *single], 1e-6)
    assert one.lower == pytest.approx(other.lower)
    assert np.allclose(one.metrics[1], np.concatenate([X.ravel() for X in other.metrics[1:]]))


def test_a_structure_that_nobody_planned_for() -> None:
    """Persons by pairs of diagnoses: a person with s of n diagnoses, at most k, is in all pairs among them."""
    n, k = 7, 4
    pairs = np.array(list(combinations(range(n), 2)))
    meet = (pairs[:, None, :, None] == pairs[None, :, None, :]).sum(axis=(2, 3))
    holds = (pairs[:, :, None] == np.arange(n)).any(axis=1).astype(float)  # (pairs x diagnoses)
    gram = np.eye(len(pairs)) + 0.25 * holds @ holds.T
    orbits = np.array([(pairs < s).all(axis=1) for s in range(2, k + 1)]).astype(float)
    found = parts_of(meet, gram, orbits)
    assert found is not None
    parts, split = found
    optimum = solve(parts, 1e-6)
    assert sorted(split.copies) == [1.0, n - 1.0, n * (n - 3) / 2]
    everyone = [np.isin(pairs, chosen).all(axis=1) for s in range(2, k + 1) for chosen in combinations(range(n), s)]
    low, high = dual_over_all(gram, np.array(everyone, dtype=float))
    assert optimum.lower == pytest.approx(low, rel=1e-5)
    assert optimum.upper == pytest.approx(high, rel=1e-5)
