"""Noise as a value, exactness of its building blocks, and where its entropy comes from."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from package_trees import modules, nodes
from seeded_source import SeededSource

import dpsql.errors
from dpsql.errors import DataError, InternalError
from dpsql.privacy import draws as module
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise, sample_from

PACKAGE = Path(dpsql.errors.__file__).parent


def counted(words: list[int]):
    """A word function that hands out ``words`` in order."""
    supply = iter(words)
    return lambda: next(supply)


def test_calibration_is_exact() -> None:
    assert gaussian_noise(12, Fraction(33114830490, 10**12)).parameter == Fraction(12 * 10**12, 33114830490)
    assert pure_noise(3, Fraction(18181818181, 10**12)).parameter == Fraction(3 * 10**12, 18181818181)
    huge = 10**60 + 1
    assert gaussian_noise(huge, Fraction(1, 3)).parameter == 3 * huge


@pytest.mark.parametrize("bad", [0, -1])
def test_a_sensitivity_below_one_is_refused(bad: int) -> None:
    with pytest.raises(DataError, match="at least 1"):
        gaussian_noise(bad, Fraction(1))


def test_floats_never_enter_the_calibration() -> None:
    with pytest.raises(InternalError):
        gaussian_noise(1.5, Fraction(1))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="exact"):
        pure_noise(1, 0.5)  # type: ignore[arg-type]
    with pytest.raises(InternalError):
        Noise("gaussian", 1.0)  # type: ignore[arg-type]


def test_malformed_noise_is_refused() -> None:
    with pytest.raises(InternalError):
        Noise("cauchy", Fraction(1))
    for bad in (Fraction(0), Fraction(-1), Fraction(2**1001)):
        with pytest.raises(DataError, match="scale"):
            Noise.gaussian(bad)
    with pytest.raises(InternalError):
        Noise.gaussian(Fraction(1)).sample(-1)


def test_every_draw_is_an_integer() -> None:
    for noise in (Noise.gaussian(Fraction(17, 3)), Noise.laplace(Fraction(17, 3))):
        draws = noise.sample(5_000)
        assert len(draws) == 5_000
        assert all(type(z) is int for z in draws)
    assert Noise.gaussian(Fraction(1)).sample(0) == []


def test_comparison_extends_both_reals_while_they_agree() -> None:
    left, right = [5], [5]
    assert module.less(counted([7, 7, 1, 2]), left, right)
    assert (left, right) == ([5, 7, 1], [5, 7, 2])
    assert not module.less(counted([]), right, left)


def test_uniform_integers_by_rejection() -> None:
    top = (1 << 64) - 1
    assert module.below(counted([top, 0]), 3) == 0  # 3 of 4 faces; the first word shows the fourth
    assert module.below(counted([123]), 1) == 0
    assert module.below(counted([1, 0]), 1 << 80) == 1 << 16
    words = module.words(SeededSource("faces"))
    draws = Counter(module.below(words, 6) for _ in range(600))
    assert set(draws) == set(range(6))


def test_a_straddled_rounding_boundary_draws_more_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    # sigma = 1 and |N| = 0 + x with x = 1/2 to the first 64 digits: only the next word decides.
    half = 1 << 63
    for following, expected in ((0, 1), (1, 1)):
        monkeypatch.setattr(module, "normal", lambda word: (0, [half]))
        assert module.rounded_normal(counted([0, following]), 1, 1) == expected
    # Just below 1/2 the interval's upper end is 1/2 itself: the second word settles it at 0.
    monkeypatch.setattr(module, "normal", lambda word: (0, [half - 1]))
    assert module.rounded_normal(counted([0, 5]), 1, 1) == 0
    assert module.rounded_normal(counted([1, 5]), 9, 1) == -1  # 1.5 less a hair rounds to 1
    # sigma = sqrt(2) and x about 1/sqrt(8): the value straddles 1/2 and the next word says on which side it is.
    near = math.isqrt(1 << 125)
    monkeypatch.setattr(module, "normal", lambda word: (0, [near]))
    assert module.rounded_normal(counted([0, 0]), 2, 1) == 0
    assert module.rounded_normal(counted([0, (1 << 64) - 1]), 2, 1) == 1


@pytest.mark.parametrize(("p", "q"), [(1, 1), (7, 3), (10**30, 7), (1, 50)])
def test_rounding_agrees_with_rational_arithmetic(p: int, q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = module.words(SeededSource("blocks"))
    for _ in range(200):
        k, x = words() % 5, [words(), words()]
        monkeypatch.setattr(module, "normal", lambda word, k=k, x=x: (k, list(x)))
        found = module.rounded_normal(counted([0, *[0] * 5]), p, q)
        value = k + Fraction(x[0], 1 << 64) + Fraction(x[1], 1 << 128)
        squared = value**2 * Fraction(p, q)  # found is nearest: (found - 1/2)^2 <= v^2 <= (found + 1/2)^2
        assert max(Fraction(2 * found - 1, 2), 0) ** 2 <= squared <= Fraction(2 * found + 1, 2) ** 2


def test_elementary_coins_have_their_probabilities() -> None:
    words = module.words(SeededSource("blocks"))
    count = 40_000
    for coin, probability in (
        (lambda: module.exp_minus_half(words), math.exp(-0.5)),
        (lambda: module.exp_minus(words, 1, 1), math.exp(-1)),
        (lambda: module.exp_minus(words, 3, 10), math.exp(-0.3)),
        (lambda: module.accept_fraction(words, 0, [1 << 63]), math.exp(-0.5 * 0.5 / 2)),
        (lambda: module.accept_fraction(words, 2, [1 << 62]), math.exp(-0.25 * 4.25 / 6)),
    ):
        wins = sum(coin() for _ in range(count))
        assert abs(wins / count - probability) < 6 * math.sqrt(probability * (1 - probability) / count)


def test_a_short_entropy_source_is_an_error() -> None:
    with pytest.raises(InternalError, match="too few"):
        sample_from(Noise.gaussian(Fraction(1)), 1, lambda size: b"")


def test_a_draw_takes_little_entropy() -> None:
    read = 0

    def source(size: int) -> bytes:
        nonlocal read
        read += size
        return os.urandom(size)

    sample_from(Noise.gaussian(Fraction(302, 10)), 10_000, source)
    assert read < 10_000 * 256


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_draw_different_noise() -> None:
    script = """
import os
from fractions import Fraction
from dpsql.privacy.noise import Noise
noise = Noise.gaussian(Fraction(10**40))
noise.sample(3)  # whatever a careless sampler would buffer is buffered now
ends = []
for _ in range(3):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(noise.sample(3)).encode())
        os._exit(0)
    ends.append(read)
    os.wait()
print(len({os.read(read, 10000) for read in ends} | {repr(noise.sample(3)).encode()}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "4", done.stderr


def test_sampling_twice_gives_two_samples() -> None:
    noise = Noise.laplace(Fraction(10**30))
    assert noise.sample(4) != noise.sample(4)


# Random workloads of the papers, hashes and starts of an optimiser are public and may be drawn with a seed by
# numpy; noise, and whatever handles private data or budget, may not. The module `random` nobody needs.
PUBLIC_ROOMS = (
    *("workloads", "strategies", "linalg", "replicates", "lower_bounds", "examples"),
    *("extensions/adaptive", "extensions/papers", "extensions/synthetic"),
)


def _generators(tree: ast.AST) -> set[str]:
    """What a module uses of "random" (the standard module) and "numpy.random"."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in ("random", "numpy.random")}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            inside = {f"numpy.{name}" for name in names} if node.module == "numpy" else {node.module}
            found |= {name for name in inside if name in ("random", "numpy.random")}
        elif (isinstance(node, ast.Attribute) and node.attr in ("random", "default_rng", "RandomState")) or (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("__import__", "default_rng")
        ):
            found.add("numpy.random")
    return found


def test_nothing_near_private_data_has_a_seeded_generator() -> None:
    assert len(modules()) > 8
    for file, tree in modules():
        parts = file.relative_to(PACKAGE).parts
        room = "/".join(parts[:2]) if parts[0] == "extensions" else parts[0]
        allowed = {"numpy.random"} if room in PUBLIC_ROOMS else set()
        assert _generators(tree) <= allowed, file


@pytest.mark.parametrize(
    "code",
    ["import random", "import numpy.random as r", "from numpy import random", "from random import gauss",
     "from numpy.random import default_rng", "np.random.rand()", "numpy.random.normal(3)"],
)  # fmt: skip
def test_the_scan_sees_generators(code: str) -> None:
    assert _generators(ast.parse(code))


def test_only_tests_choose_an_entropy_source() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        place, text = (file.parent.name, file.name), file.read_text(encoding="utf-8")
        if place not in {("privacy", "noise.py"), ("privacy", "counts_above_threshold.py")}:
            assert "sample_from" not in text, file
        assert "sample_passing" not in text or place == ("privacy", "counts_above_threshold.py"), file
