"""Intervals of noisy counts that are shown only from a threshold on, given that they were."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Passing(Protocol):
    """A law of noise with a threshold; counts that are shown are at least ``fewest``."""

    @property
    def least(self) -> int: ...
    @property
    def fewest(self) -> int: ...
    @property
    def spread(self) -> int: ...
    def log_tail(self, at: NDArray[np.float64], /) -> NDArray[np.float64]: ...


def intervals(law: Passing, shown: NDArray[np.int64], alpha: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Confidence intervals of the counts behind noisy ones that passed, pointwise, none below ``law.fewest``.

    The law of a noisy count that is shown is conditioned on having passed: P(y >= v | y >= least). It grows with the
    count n (noise is log-concave), so that the counts which do not make what was seen unlikely, at alpha/2 on either
    side, are an interval: its coverage, given that the value is shown, is at least 1 - alpha. O(values log range).
    """
    seen = shown.astype(np.float64)
    low = _first(seen, law, law.fewest, lambda n: _conditional(law, seen - n, law.least - n) >= math.log(alpha / 2))
    # P(y <= v | passed) < alpha/2 from some n on; the last n before is the upper end.
    over = _first(
        seen, law, law.fewest, lambda n: _conditional(law, seen + 1 - n, law.least - n) > math.log1p(-alpha / 2)
    )
    return low, np.maximum(low, over - 1)


def _conditional(law: Passing, at: NDArray[np.float64], least: NDArray[np.float64]) -> NDArray[np.float64]:
    """log P(noise >= at | noise >= least)."""
    passed = law.log_tail(least)
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(passed), -np.inf, law.log_tail(at) - passed)


def _first(
    seen: NDArray[np.float64], law: Passing, first: int, holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """The least count from ``first`` on where ``holds``, which is monotone; at most a spread above what was seen."""
    low = np.full(seen.shape, float(first))
    high = np.maximum(seen + law.spread, low)
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        true = holds(middle)
        high = np.where(true, middle, high)
        low = np.where(true, low, np.minimum(middle + 1, high))
    return low.astype(np.int64)
