"""Intervals of variances from counts, sums and sums of squares."""

from __future__ import annotations

import numpy as np

from .fieller import Ratios, fieller
from .linear_errors import LinearErrors
from .spread import Floats


def variances(
    n: Floats, S: Floats, Q: Floats, weights: tuple[Floats, Floats, Floats], sample: bool, errors: LinearErrors
) -> Ratios:
    """(Q - S^2 / n) / (n - sample) for all groups; ``weights``: of the errors of n, S, Q, each (g x k).

    Let f(c) = Q - 2 c S + c^2 n, the sum of squares about c as measured. About the true mean mu it is linear in
    the noise, so f(mu) / n has Fieller's interval. mu is not known; f is least at the estimated mean
    m = S / n, and f(mu) = f(m) + n (mu - m)^2. So the interval of f(m) / n, moved up by (mu - m)^2, covers;
    here its upper end alone moves, by the largest (mu - m)^2 that the interval of the mean allows. Without that the
    variances of groups whose mean is poorly known would be stated too low. Unbounded where n - sample is not
    above zero by more than its error. The estimate itself is f(m) / (n - sample), low by about Var(m). Ours.
    """
    n_weights, S_weights, Q_weights = weights
    mean = fieller(S, n, S_weights, n_weights, errors)
    m = np.where(np.isfinite(mean.value), mean.value, 0.0)
    about = Q - m * (2 * S - m * n)
    about_weights = Q_weights - 2 * m[:, None] * S_weights + (m * m)[:, None] * n_weights
    degrees = n - 1 if sample else n
    ratio = fieller(about, degrees, about_weights, n_weights, errors)
    bounded = ratio.bounded & mean.bounded & (degrees > 0)
    with np.errstate(all="ignore"):
        off = np.maximum(mean.high - m, m - mean.low) ** 2 * np.where(bounded, n / degrees, 1.0)
    return Ratios(
        ratio.value,
        np.where(bounded[:, None], ratio.gradient, 0.0),
        np.where(bounded, ratio.low, -np.inf),
        np.where(bounded, ratio.high + np.where(bounded, off, 0.0), np.inf),
        bounded,
    )


def largest_variance(n: Floats, reach: Floats, width: float, sample: bool) -> Floats:
    """No variance of values within ``width`` exceeds (width / 2)^2 (Popoviciu 1935).

    For samples n / (n - 1) times that.
    n - reach is the least n that is believed; a sample has at least 2 rows.
    """
    cap = np.full_like(n, (width / 2) ** 2)
    if sample:
        least = np.maximum(n - reach, 2.0)
        cap *= least / (least - 1)
    return cap
