"""What a limit cuts of the rows of units: the stated interval holds the truth, and wrong noise shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpsql.common.arrays import Floats
from dpsql.privacy.noise import Noise, sample_from
from dpsql.reconstruct.intervals import half_widths
from dpsql.reconstruct.spread import NoiseModel
from dpsql.reconstruct.unit_histogram import UnitHistogram, beyond, ends_of

LARGEST = 500


@pytest.fixture(autouse=True)
def widths_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They depend on weights and law, which are the same in thousands of runs."""
    known: dict[tuple[bytes, NoiseModel], Floats] = {}

    def once(weights: Floats, law: NoiseModel, alpha: float) -> Floats:
        key = weights.tobytes(), law
        known[key] = known[key] if key in known else half_widths(weights, law, alpha)
        return known[key]

    monkeypatch.setattr("dpsql.reconstruct.unit_histogram.half_widths", once)


LAWS = {"laplace": Noise.laplace(Fraction(2)), "gaussian": Noise.gaussian(Fraction(9))}


def pareto(units: int) -> np.ndarray:
    drawn = np.random.default_rng(7).pareto(1.1, units)
    return np.minimum(LARGEST, np.maximum(1, (drawn + 1).astype(int)))


WORLDS: dict[str, np.ndarray] = {
    "few, in exact buckets": np.arange(40) % 10 + 1,
    "nothing is cut": np.ones(300, dtype=int),
    "a hospital": pareto(4_000),
    "a hundred hospitals": pareto(400_000),
    "all at a bucket's end": np.full(50, LARGEST),
    "all at a bucket's start": np.full(50, 257),
}


def noisy(rows: np.ndarray, law: Noise, drawn: Noise, runs: int, largest: int) -> list[UnitHistogram]:
    """Histograms of units with so many ``rows`` each, said to have noise of a ``law``, with what is ``drawn``."""
    ends = ends_of(largest)
    exact = np.bincount(np.searchsorted(ends, rows), minlength=len(ends))
    noise = sample_from(drawn, len(ends) * runs, np.random.default_rng(1).bytes)
    return [UnitHistogram(ends, tuple(units), law) for units in (exact + np.reshape(noise, (runs, -1))).tolist()]


def held(
    rows: np.ndarray, law: Noise, runs: int, limit: int, drawn: Noise | None = None, largest: int = LARGEST
) -> float:
    """How often the interval of the loss holds the truth."""
    lost = int(np.maximum(rows - limit, 0).sum())
    found = [histogram.rows_beyond(limit) for histogram in noisy(rows, law, drawn or law, runs, largest)]
    return sum(one.low <= lost <= one.high for one in found) / runs


def times(law: Noise, factor: int) -> Noise:
    """A law of ``factor`` times the deviation; below 0 of a part of it."""
    scale = Fraction(factor) if factor > 0 else Fraction(1, -factor)
    return replace(law, parameter=law.parameter * (scale if law.kind == "laplace" else scale**2))


@pytest.mark.parametrize("kind", LAWS)
def test_of_exact_buckets_the_interval_holds_the_truth_as_often_as_it_says(kind: str) -> None:
    """1,000 runs: 0.034 is five deviations. Half of the noise is held too often, twice as much too seldom."""
    rows, law = np.tile(np.arange(1, 11), 400), LAWS[kind]
    found = [held(rows, law, 1_000, 3, times(law, factor), largest=10) for factor in (1, 2, -2)]
    assert 0.916 <= found[0] <= 0.984
    assert found[1] < 0.916
    assert found[2] > 0.984


@pytest.mark.long
@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("world", WORLDS)
def test_the_truth_is_held_at_every_size_and_limit(world: str, kind: str) -> None:
    for limit in (1, 10, 100):
        assert held(WORLDS[world], LAWS[kind], 4_000, limit) >= 0.94, limit


@pytest.mark.parametrize("kind", LAWS)
def test_rows_units_and_what_is_lost_beyond_two_limits_at_once(kind: str) -> None:
    rows = WORLDS["a hospital"]
    (histogram,) = noisy(rows, LAWS[kind], LAWS[kind], 1, LARGEST)
    for estimate, truth in (
        (histogram.rows(), rows.sum()),
        (histogram.units_beyond(10), (rows > 10).sum()),
        (histogram.units_beyond(100), (rows > 100).sum()),
        (histogram.rows_beyond(20), np.maximum(rows - 20, 0).sum()),
        (histogram.rows_beyond(0, "one"), (rows > 0).sum()),
    ):
        assert estimate.low <= truth <= estimate.high
        assert estimate.low <= estimate.value <= estimate.high
    assert histogram.rows_beyond(10, "none").low == 0
    assert histogram.rows_beyond(LARGEST) == histogram.rows_beyond(LARGEST + 9)  # none has more rows
    assert histogram.rows_beyond(LARGEST).high == 0


def test_a_loss_is_never_said_to_be_none() -> None:
    """Its upper end is no less than the deviation of the noise there, however low the noisy counts are."""
    low = UnitHistogram(ends_of(50), (-40,) * len(ends_of(50)), LAWS["laplace"])
    assert (low.rows_beyond(10).low, low.rows_beyond(10).value) == (0.0, low.rows_beyond(10).value)
    assert low.rows_beyond(10).high > 40


@pytest.mark.parametrize("largest", [1, 2, 9, 10, 11, 16, 17, 31, 500, 512, 513, 10**6])
def test_buckets_are_exact_up_to_ten_then_double(largest: int) -> None:
    ends = ends_of(largest)
    starts = (1, *(end + 1 for end in ends[:-1]))
    assert ends[-1] == largest
    assert [end for end in ends if end <= 10] == list(range(1, min(largest, 10) + 1))
    assert all(start <= end <= max(start, 2 * start - 1, 16) for start, end in zip(starts, ends, strict=True))
    assert beyond(largest, largest).sum() == 0


def test_a_hospital_of_4_000_is_told_within_a_tenth_for_epsilon_0_54() -> None:
    """Of 22,100 rows a limit of 10 cuts 11,100 there: buckets weigh the noise by their middle."""
    spread = float(np.linalg.norm(beyond(LARGEST, 10)))
    noise: Callable[[float], float] = lambda epsilon: Noise.laplace(1 / Fraction(epsilon)).variance ** 0.5  # noqa: E731
    assert spread * noise(0.54) <= 0.1 * 11_100 < spread * noise(0.52)
