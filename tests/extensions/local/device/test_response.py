"""Randomised response: exact probabilities, the law of its draws, entropy that is never kept."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from repeatable import Bytes, answers
from scipy import stats

import dpsql
from dpsql.errors import DataError, InternalError
from dpsql.privacy import response as module
from dpsql.privacy.response import Response, exp_below, offsets_from

LEVEL = 1e-6
PACKAGE = Path(dpsql.__file__).parent
EPSILONS = ["1e-12", "0.001", "0.1", "1", "2.302585092994", "10", "99.999999999999", "100"]


def exponential(exponent: Fraction) -> tuple[Fraction, Fraction]:
    """Rational bounds of e^exponent by another method: decimal's exp is correctly rounded to its precision."""
    with localcontext() as context:
        context.prec = 150
        decimal = Decimal(exponent.numerator) / Decimal(exponent.denominator)
        assert Fraction(decimal) == exponent, "the exponents of these tests are finite decimals"
        middle = Fraction(decimal.exp())
    return middle * (1 - Fraction(1, 10**149)), middle * (1 + Fraction(1, 10**149))


def tail_bounds(exponent: Fraction, terms: int = 60) -> tuple[Fraction, Fraction]:
    """The same in fractions alone, for exponents up to 2: the series, and its tail below twice its next term."""
    total = term = Fraction(1)
    for i in range(1, terms):
        term = term * exponent / i
        total += term
    return total, total + 2 * term * exponent / terms


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("k", [2, 3, 4, 17, 10**6, 2**62])
def test_the_ratio_of_probabilities_is_at_most_e_to_the_epsilon(k: int, epsilon: str) -> None:
    response = Response.of(k, epsilon)
    assert response.keep + (k - 1) * response.lie == 1
    assert response.epsilon == Fraction(epsilon)
    low, _ = exponential(response.epsilon)
    ratio = response.keep / response.lie
    assert 1 < ratio <= low
    assert ratio > low - Fraction(2, 2**128), "and no smaller than 128 bits make it"


@pytest.mark.parametrize("epsilon", ["0.001", "0.1", "1", "2"])
def test_the_two_bounds_of_the_exponential_agree(epsilon: str) -> None:
    low, high = tail_bounds(Fraction(epsilon))
    other_low, other_high = exponential(Fraction(epsilon))
    assert max(low, other_low) <= min(high, other_high)
    assert high - low < Fraction(1, 10**40)
    assert exp_below(Fraction(epsilon)) <= low


def test_epsilon_is_read_as_written_and_rounded_down_to_the_grid() -> None:
    assert Response.of(4, 0.1) == Response.of(4, "0.1") == Response.of(4, Decimal("0.1"))
    assert Response.of(4, Fraction(1, 3)).epsilon == Fraction(333333333333, 10**12)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "one", "1e-13", 100.5, True])
def test_a_wrong_epsilon_is_refused(epsilon: object) -> None:
    with pytest.raises(DataError, match="epsilon"):
        Response.of(4, epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [1, 0, -3, 2**62 + 1, True, 2.0])
def test_a_wrong_number_of_values_is_refused(k: object) -> None:
    with pytest.raises(DataError, match="values"):
        Response.of(k, 1)  # type: ignore[arg-type]


def from_all(response: Response) -> tuple[Fraction, Fraction]:
    """The mutant's law: with probability 1 - keep a value drawn from all k, the true one included."""
    lie = (1 - response.keep) / response.domain_size
    return response.keep + lie, lie


def test_a_law_that_claims_too_little_cannot_be_made() -> None:
    good = Response.of(4, 1)
    keep, lie = from_all(good)
    assert math.log(keep / lie) == pytest.approx(1.53, abs=5e-3)  # what such lies really cost
    with pytest.raises(InternalError, match="e\\^epsilon"):
        Response(4, Fraction(1), keep, lie)
    more = Response.of(4, "1.000000000001")
    with pytest.raises(InternalError, match="e\\^epsilon"):
        Response(4, Fraction(1), more.keep, more.lie)
    for keep, lie in ((good.keep, good.lie / 2), (good.lie, good.keep), (Fraction(1), Fraction(0))):
        with pytest.raises(InternalError, match="keep must exceed lie"):
            Response(4, Fraction(1), keep, lie)
    with pytest.raises(InternalError, match="exact"):
        Response(4, Fraction(1), 0.5, 0.5 / 3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="between 0 and 100"):
        Response(4, Fraction(0), Fraction(1, 2), Fraction(1, 6))


def test_a_unit_pays_for_each_of_its_rows() -> None:
    assert Response.of(4, "0.3").unit_epsilon(5) == Fraction(3, 2)
    for rows in (0, -1, True, 1.5):
        with pytest.raises(DataError, match="at least 1 row"):
            Response.of(4, 1).unit_epsilon(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(("k", "n"), [(2, 3), (3, 2), (4, 1)])
def test_replacing_one_row_changes_no_output_by_more_than_the_ratio(k: int, n: int) -> None:
    """Every database, every neighbour, every output; and of two rows of one unit, the square."""
    response = Response.of(k, "0.7")

    def probability(x: tuple[int, ...], y: tuple[int, ...]) -> Fraction:
        return math.prod(
            (response.keep if a == b else response.lie for a, b in zip(x, y, strict=True)), start=Fraction(1)
        )

    largest = {1: Fraction(0), 2: Fraction(0)}
    every = list(product(range(k), repeat=n))
    for x, other in product(every, every):
        moved = sum(a != b for a, b in zip(x, other, strict=True))
        if moved in largest:
            ratio = max(probability(x, y) / probability(other, y) for y in every)
            largest[moved] = max(largest[moved], ratio)
    assert largest[1] == response.keep / response.lie
    assert largest[1] <= exponential(response.epsilon)[0]
    if n > 1:
        assert largest[2] == largest[1] ** 2 <= exponential(response.unit_epsilon(2))[0]


def p_value(found: np.ndarray, keep: float, lie: float, k: int, true: int) -> float:
    """Chi-square of how often each value was answered where ``true`` was the value."""
    expected = np.full(k, lie * found.size)
    expected[true] = keep * found.size
    return float(stats.chisquare(np.bincount(found, minlength=k), expected).pvalue)


@pytest.mark.parametrize(("k", "epsilon"), [(2, "1"), (4, "1"), (7, "0.2"), (64, "3")])
@pytest.mark.few(every=2)
def test_draws_follow_the_law_and_wrong_laws_are_caught(k: int, epsilon: str, assurance: Callable[..., None]) -> None:
    count, true = 1_000_000, k // 2
    response = Response.of(k, epsilon)
    values = np.full(count, true)
    found = answers(response, values, 1)
    keep, lie = float(response.keep), float(response.lie)
    assert p_value(found, keep, lie, k, true) > LEVEL
    mean, error = (
        np.log((found == true).mean() / (found != true).mean() * (k - 1)),
        6 / math.sqrt(keep * (1 - keep) * count),
    )
    assert abs(mean - float(epsilon)) < error, "the ratio of probabilities is e^epsilon"
    every = from_all(response)
    assert p_value(found, float(every[0]), float(every[1]), k, true) < LEVEL, "the test must have power"
    mutant = answers(response, values, 2)  # lies that may be the truth
    lied = np.flatnonzero(mutant != true)
    mutant[lied] = np.random.Generator(np.random.Philox(3)).integers(0, k, lied.size)
    assert p_value(mutant, keep, lie, k, true) < LEVEL
    for change in (Fraction(-5, 100), Fraction(5, 100)):
        wrong = Response.of(k, Fraction(epsilon) + change)
        assert p_value(found, float(wrong.keep), float(wrong.lie), k, true) < LEVEL
        assert p_value(answers(wrong, values, 4), keep, lie, k, true) < LEVEL
    assurance("draws held against their law", count)


def test_draws_from_the_system_follow_the_law_too() -> None:
    response = Response.of(5, 1)
    found = response.shifted(np.full(200_000, 3), response.sample(200_000))
    assert p_value(found, float(response.keep), float(response.lie), 5, 3) > LEVEL / 100


def test_offsets_are_integers_inside_the_domain_and_do_not_depend_on_each_other() -> None:
    response = Response.of(3, "0.5")
    offsets = offsets_from(response, 300_000, Bytes(5))
    assert offsets.dtype == np.int64
    assert set(offsets.tolist()) == {0, 1, 2}
    pairs = np.bincount(offsets[:-1] * 3 + offsets[1:], minlength=9)
    law = np.array([float(response.keep), float(response.lie), float(response.lie)])
    assert stats.chisquare(pairs, np.outer(law, law).ravel() * pairs.sum()).pvalue > LEVEL
    huge = offsets_from(Response.of(2**62, 1), 1000, Bytes(6))
    assert huge.min() > 0
    assert huge.max() > 2**61
    assert Response.of(2**62, 1).shifted(huge, huge).min() >= 0


class Fixed:
    """Hands out the given words, one request after the other."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def __call__(self, size: int, /) -> bytes:
        taken, self.words = self.words[: size // 8], self.words[size // 8 :]
        return np.array(taken, dtype=np.uint64).tobytes()


def test_a_tie_is_continued_until_a_digit_differs() -> None:
    response = Response.of(2, 1)
    digits, rest = [], response.keep
    for _ in range(3):
        digit, rest = divmod(rest * 2**64, 1)
        digits.append(int(digit))
    first, second, third = digits
    for words, offset in (
        ((first - 1,), 0), ((first + 1,), 1),
        ((first, second - 1), 0), ((first, second + 1), 1),
        ((first, second, third - 1), 0), ((first, second, third + 1), 1),
    ):  # fmt: skip
        source = Fixed(*words)
        assert offsets_from(response, 1, source).tolist() == [offset], words
        assert source.words == [], "no word more than the comparison needs: the only other value needs none"
    # Two rows, of which the second ties: the words that continue it come after those of both rows.
    assert offsets_from(response, 2, Fixed(first + 1, first, second - 1)).tolist() == [1, 0]
    half = Response(2, Fraction(2), Fraction(3, 4), Fraction(1, 4))  # 3/4 has one digit: a tie is not below it
    assert offsets_from(half, 3, Fixed(3 << 62, (3 << 62) - 1, (3 << 62) + 1)).tolist() == [1, 0, 1]


def test_lies_are_drawn_again_until_they_fit() -> None:
    top = (1 << 64) - 1
    response = Response.of(4, 1)  # three other values: 2^64 - 1 is a multiple of 3, so the last word is one too many
    assert module._uniform(3, 1, Fixed(top - 1)).tolist() == [2]
    assert module._uniform(4, 2, Fixed(top, 6)).tolist() == [3, 2]  # 2^64 is a multiple of 4: no word is refused
    assert module._uniform(2**62, 1, Fixed(top)).tolist() == [2**62 - 1]
    assert offsets_from(response, 2, Fixed(top, top, top, 1 << 62, top, 2 << 62)).tolist() == [3, 2]
    counted = np.bincount(module._uniform(5, 100_000, Bytes(8)), minlength=5)
    assert stats.chisquare(counted).pvalue > LEVEL


def test_a_source_that_gives_too_little_is_an_error() -> None:
    with pytest.raises(InternalError, match="too few"):
        offsets_from(Response.of(2, 1), 1, lambda size: b"")
    for count in (-1, 1.0, True):
        with pytest.raises(InternalError, match="number of draws"):
            offsets_from(Response.of(2, 1), count, Bytes(1))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="of its own"):
        Response.of(2, 1).shifted(np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int64))


def test_every_value_is_moved_by_its_own_offset() -> None:
    response = Response.of(5, 1)
    values, offsets = (np.array(pairs) for pairs in zip(*product(range(5), range(5)), strict=True))
    assert (response.shifted(values, offsets) == (values + offsets) % 5).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_draw_different_lies() -> None:
    script = """
import os
from dpsql.privacy.response import Response
response = Response.of(2**62, 1)
response.sample(3)  # whatever a careless sampler would buffer is buffered now
ends = []
for _ in range(3):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(response.sample(3).tolist()).encode())
        os._exit(0)
    ends.append(read)
    os.wait()
print(len({os.read(read, 10000) for read in ends} | {repr(response.sample(3).tolist()).encode()}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "4", done.stderr


def test_only_tests_choose_an_entropy_source() -> None:
    users = [f for f in sorted(PACKAGE.rglob("*.py")) if "offsets_from" in f.read_text(encoding="utf-8")]
    assert users == [Path(module.__file__)]
    source = users[0].read_text(encoding="utf-8")
    assert source.count("os.urandom") == 2  # a text that names it, and the one call
    assert source.count("offsets_from(self, count, os.urandom)") == 1


@pytest.mark.long
def test_ten_million_rows(assurance: Callable[..., None]) -> None:
    response = Response.of(12, "1.5")
    values = np.arange(10_000_000) % 12
    found = answers(response, values, 7)
    assert p_value((found - values) % 12, float(response.keep), float(response.lie), 12, 0) > LEVEL
    assurance("draws held against their law", values.size)
