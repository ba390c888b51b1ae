"""Noise in blocks: every path of the sampler's code with its exact chance, in fractions, and nearly right code."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from dpsql.privacy import draws

Choose = Callable[[list[Fraction]], int]


class _EndError(Exception):
    """A path that begins again, or goes on beyond what is looked at."""


def paths(run: Callable[[Choose], object]) -> Iterator[tuple[object, Fraction]]:
    """(outcome, chance) of all paths: ``run`` is handed what chooses a place by the chances that it gives."""
    waiting: list[list[int]] = [[]]
    while waiting:
        path = waiting.pop()
        taken: list[int] = []
        chance = [Fraction(1)]

        def choose(
            chances: list[Fraction], path: list[int] = path, taken: list[int] = taken, chance: list[Fraction] = chance
        ) -> int:
            if len(taken) < len(path):
                at = path[len(taken)]
            else:
                at = 0
                waiting.extend([*taken, other] for other in range(1, len(chances)))
            chance[0] *= chances[at]
            taken.append(at)
            return at

        try:
            found = run(choose)
        except _EndError:
            continue
        yield found, chance[0]


def word() -> int:
    raise AssertionError("a draw that is not looked at")


def uniform(choose: Choose) -> Callable[[draws.Words, int], int]:
    return lambda word, bound: choose([Fraction(1, bound)] * bound)


def weights_of_cube(size: int, reach: int, patch: pytest.MonkeyPatch) -> dict[tuple[tuple[int, ...], int], Fraction]:
    """The chance of each z with each radius up to ``reach``, in one pass, over that of the geometric variables.

    These have the chance (1 - q)^(size + 1) q^radius together, whatever q is.
    """
    found: dict[tuple[tuple[int, ...], int], Fraction] = defaultdict(Fraction)
    for parts in itertools.product(range(reach + 1), repeat=size + 1):
        if sum(parts) > reach:
            continue

        def run(choose: Choose, parts: tuple[int, ...] = parts) -> object:
            left = iter(parts)

            def geometric(word: draws.Words, t: int, s: int) -> int:
                try:
                    return next(left)
                except StopIteration:
                    raise _EndError from None

            patch.setattr(draws, "geometric", geometric)
            patch.setattr(draws, "below", uniform(choose))
            return tuple(draws.cube(word, size, 1, 1))

        for z, chance in paths(run):
            found[z, sum(parts)] += chance
    return found


def is_right(size: int, reach: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether every z of {-r..r}^size has one and the same chance for every r, and no other z has any.

    Then the probability of z is proportional to the sum over r >= max |z_i| of q^r, q^max |z_i| but for a constant.
    """
    found = weights_of_cube(size, reach, patch)
    inside = {(z, r) for r in range(reach + 1) for z in itertools.product(range(-r, r + 1), repeat=size)}
    constant = Fraction(1, 2**size * math.factorial(size))
    return set(found) == inside and set(found.values()) == {constant}


@pytest.mark.parametrize(("size", "reach"), [(1, 4), (2, 2), (3, 1)])
def test_every_point_has_its_chance_exactly(size: int, reach: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_right(size, reach, monkeypatch)


def strict(word: draws.Words, size: int, t: int, s: int) -> int:
    while True:
        r = sum(draws.geometric(word, t, s) for _ in range(size + 1))
        if all(draws.below(word, 2 * (r + i)) < 2 * r for i in range(1, size + 1)):
            return r


def one_coin_less(word: draws.Words, size: int, t: int, s: int) -> int:
    while True:
        r = sum(draws.geometric(word, t, s) for _ in range(size + 1))
        if all(draws.below(word, 2 * (r + i)) <= 2 * r for i in range(1, size)):
            return r


def one_variable_less(word: draws.Words, size: int, t: int, s: int) -> int:
    while True:
        r = sum(draws.geometric(word, t, s) for _ in range(size))
        if all(draws.below(word, 2 * (r + i)) <= 2 * r for i in range(1, size + 1)):
            return r


@pytest.mark.parametrize("mutant", [strict, one_coin_less, one_variable_less])
def test_nearly_right_radii_are_told_apart(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "cube_radius", mutant)
    assert not is_right(2, 2, monkeypatch)


@pytest.mark.parametrize(("t", "s"), [(3, 1), (3, 2), (2, 5)])
def test_geometric_variables_fall_by_one_ratio(t: int, s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any x in place of exp(-1/t): P(k + 1) / P(k) = x^s, exactly."""
    x, most = Fraction(2, 3), 4 * s
    found: dict[object, Fraction] = defaultdict(Fraction)

    def run(choose: Choose) -> object:
        steps = iter(range(most + 1))
        first = iter([None])

        def exp_minus(word: draws.Words, numerator: int, denominator: int) -> bool:
            if next(steps, None) is None:
                raise _EndError
            chance = x ** (t * numerator // denominator)
            return choose([chance, 1 - chance]) == 0

        def below(word: draws.Words, bound: int) -> int:
            if next(first, 0) == 0:
                raise _EndError  # a second pass, of the same law
            return choose([Fraction(1, bound)] * bound)

        monkeypatch.setattr(draws, "exp_minus", exp_minus)
        monkeypatch.setattr(draws, "below", below)
        return draws.geometric(word, t, s)

    for k, chance in paths(run):
        found[k] += chance
    assert len(found) > 3
    assert all(found[k + 1] == x**s * found[k] for k in range(3))


@pytest.mark.parametrize("g", [Fraction(0), Fraction(1, 3), Fraction(1)])
def test_the_coin_is_the_alternating_series(g: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """n wins and a loss have the chance g^n / n! - g^(n + 1) / (n + 1)!; an even n is exp(-g)."""
    most = 5
    found: dict[object, Fraction] = defaultdict(Fraction)

    def run(choose: Choose) -> object:
        thrown = iter(range(most))

        def below(word: draws.Words, bound: int) -> int:
            if next(thrown, None) is None:
                raise _EndError
            return choose([Fraction(1, bound)] * bound)

        monkeypatch.setattr(draws, "below", below)
        return draws.exp_minus(word, g.numerator, g.denominator)

    for won, chance in paths(run):
        found[won] += chance
    terms = [g**n / math.factorial(n) for n in range(most + 1)]
    for even, outcome in ((0, True), (1, False)):
        assert found[outcome] == sum((terms[n] - terms[n + 1] for n in range(even, most, 2)), Fraction(0))
