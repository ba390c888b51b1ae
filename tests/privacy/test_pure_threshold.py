"""Values of a public universe: its texts, the law of noise on every one of them, and what breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats

from dpsql.errors import DataError
from dpsql.privacy import pure_threshold
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.pure_threshold import PureThreshold, alone_from, passed_from
from dpsql.privacy.universe import Universe

SMALL = Universe(2, "aé")  # "", "a", "aa", "é"
COUNTS = {"a": 1, "aa": 6}
LEAST, EPSILON = 3, Fraction(1, 2)


def seeded(seed: int) -> EntropySource:
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("universe", [SMALL, Universe(4, "ab"), Universe(3, "x€"), Universe(5, "0🂡")])
def test_every_text_has_one_number(universe: Universe) -> None:
    texts = [universe.text(number) for number in range(universe.size)]
    known = ["".join(c) for size in range(universe.longest + 1) for c in product(universe.alphabet or "", repeat=size)]
    assert sorted(texts) == sorted(text for text in known if len(text.encode()) <= universe.longest)


def test_all_characters_are_there() -> None:
    one, four = Universe(1), Universe(4)
    assert [one.text(number) for number in range(one.size)] == ["", *map(chr, range(128))]
    assert four.size == 1 + sum(128**n for n in range(1, 5)) + 1920 * (1 + 2 * 128 + 3 * 128**2 + 1920) + 61440 * (
        1 + 2 * 128
    ) + (2**20)
    rng = np.random.default_rng(2)
    drawn = [four.text(int(number)) for number in rng.integers(0, four.size, 3000)]
    assert max(len(text.encode()) for text in drawn) == 4
    three = Universe(3)
    known = [c for c in range(0x800, 0x10000) if not 0xD800 <= c < 0xE000]  # the last are single characters
    for at in (0, 1, 0xD7FF - 0x800, 0xD800 - 0x800, 30_000, 61439):
        assert three.text(three.size - 61440 + at) == chr(known[at])
    assert Universe(255).text(Universe(255).size - 1).encode()


@pytest.mark.parametrize(
    ("longest", "alphabet", "words"),
    [(0, None, "max_bytes"), (256, None, "max_bytes"), (True, None, "max_bytes"), (3, "", "alphabet"),
     (3, "aa", "each once"), (3, "a\ud800", "half of a character")],
)  # fmt: skip
def test_what_is_no_universe_is_refused(longest: int, alphabet: str | None, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Universe(longest, alphabet)


class _Low(PureThreshold):
    least = LEAST  # low enough for texts that nobody has


def tail(at: int) -> float:
    q = math.exp(-float(EPSILON))
    return float(sum((1 - q) / (1 + q) * q ** abs(z) for z in range(at, at + 400)))


def chances(count: int, least: int = LEAST) -> np.ndarray:
    """That a text of that count is absent, shows least, least + 1, ..., or least + 5 and more."""
    above = [tail(least - count + k) for k in range(6)]
    return np.array([1 - above[0], *(a - b for a, b in pairwise(above)), above[5]])


def outcome(law: PureThreshold, source: EntropySource) -> dict[str, int]:
    """What a discovery shows of ``COUNTS``."""
    alone = pure_threshold.alone_from(law, source)
    held = {text: n for text, n in COUNTS.items() if text not in alone}
    counts = np.array(sorted(set(held.values())), dtype=np.int64)
    classes = [[text for text, n in held.items() if n == count] for count in counts]
    which, places, noisy = passed_from(law, counts, np.array([len(c) for c in classes], dtype=np.int64), source)
    shown = {classes[w][p]: int(seen) for w, p, seen in zip(which, places, noisy, strict=True)}
    return shown | {text: COUNTS.get(text, 0) + z for text, z in alone.items()}


def p_value() -> float:
    """How well 1,500 outcomes agree with independent noise on every text; with all pairs of texts, too."""
    law, source, texts = _Low(1, EPSILON, SMALL), seeded(7), [SMALL.text(number) for number in range(4)]
    outcomes = [outcome(law, source) for _ in range(1500)]
    seen = np.array([[1 + min(o[t] - LEAST, 5) if t in o else 0 for t in texts] for o in outcomes])
    expected = np.array([chances(COUNTS.get(text, 0)) for text in texts])
    found = np.array([np.bincount(seen[:, at], minlength=7) for at in range(4)])
    total = ((found - 1500 * expected) ** 2 / (1500 * expected)).sum()
    shown = seen > 0
    for i, j in ((0, 1), (0, 3), (1, 2)):
        both = np.array([1 - expected[i, 0], expected[i, 0]])[:, None] * [1 - expected[j, 0], expected[j, 0]]
        pairs = np.array([[(shown[:, i] & shown[:, j]).sum(), (shown[:, i] & ~shown[:, j]).sum()],
                          [(~shown[:, i] & shown[:, j]).sum(), (~shown[:, i] & ~shown[:, j]).sum()]])  # fmt: skip
        total += ((pairs - 1500 * both) ** 2 / (1500 * both)).sum()
    return float(stats.chi2.sf(total, 4 * 6 + 3))


def test_the_law_is_that_of_noise_on_every_text() -> None:
    assert p_value() > 1e-4


def _nobody(law: PureThreshold, source: EntropySource) -> dict[str, int]:
    return {}


def _rejected(law: PureThreshold, source: EntropySource) -> dict[str, int]:
    return {text: z for text, z in alone_from(law, source).items() if text not in COUNTS}


def _twice(law: PureThreshold, count: int, size: int, source: EntropySource, word: Callable[[], int]) -> list[int]:
    return pure_threshold.passing(law.each, count, size, source, word)


@pytest.mark.parametrize(("name", "wrong"), [("alone_from", _nobody), ("alone_from", _rejected), ("_of_class", _twice)])
@pytest.mark.few(every=3)
def test_mutants_of_the_law_are_told(name: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that nobody has left out; texts that somebody has never drawn first; noise that passes twice."""
    monkeypatch.setattr(pure_threshold, name, wrong)
    assert p_value() < 1e-6


def test_no_unit_is_told_by_more_than_epsilon() -> None:
    """All outcomes of the four texts on neighbours: the law that the draws are held to above."""
    ones = np.array([chances(n) for n in range(9)])
    ratio = np.abs(np.log(ones[1:] / ones[:-1])).max()
    assert ratio <= float(EPSILON) * (1 + 1e-9)
    hidden = np.log(chances(1)[1:].sum() / 1e-300)  # were texts without rows never shown
    assert hidden > float(EPSILON)


@pytest.mark.parametrize(
    ("epsilon", "universe"), [("0.3", Universe(20)), ("2", Universe(3, "0123456789")), ("0.01", SMALL)]
)
def test_few_texts_that_nobody_has_are_shown(epsilon: str, universe: Universe) -> None:
    law = PureThreshold(2, Fraction(epsilon), universe)
    log_stray = math.log(universe.size) + float(law.log_tail(np.array([float(law.least)]))[0])
    assert log_stray <= math.log(pure_threshold.STRAYS)
    assert log_stray + 1.001 / float(law.noise.parameter) > math.log(
        pure_threshold.STRAYS
    )  # and no higher than need be
    assert (law.kind, law.parameter, law.delta) == ("laplace", Fraction(epsilon), None)


def test_a_threshold_past_any_table_is_refused() -> None:
    with pytest.raises(DataError, match="shorter texts"):
        _ = PureThreshold(1, Fraction(1, 10**12), Universe(255)).least
