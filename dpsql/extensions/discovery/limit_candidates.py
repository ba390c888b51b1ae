"""Noise against what is cut, for every limit of a scale on what one unit has, from noisy counts of units.

Each unit is in one bucket, by what it has. A limit B, an end of a bucket, cuts max(0, t - B) of a unit that has t, from
l to u, so that with the noise's quantile z and standard error s

    sum_i y_i max(0, l_i - B) - z s_l  <=  cut(B)  <=  sum_i y_i max(0, u_i - B) + z s_u

over all buckets, of counts y with independent noise. Post-processing.

The limit of least expected squared error is marked: the variance of an answer's noise under it plus max(0, cut^2 - its
variance). The cut is estimated there by the middles of buckets, up to the last that certainly has units: what lies
beyond is mostly noise, with weights so large that it would hide what small limits cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsql.common.arrays import Floats, Row

_WIDE = math.log(20) / math.sqrt(2)  # half a 95 % interval over the standard error, of Laplace noise; others have less
_CERTAIN = 0.05  # for all buckets together, that one without units is taken for one with units


@dataclass(frozen=True)
class Candidate:
    """A limit: the standard error of an answer under it, what it cuts with a 95 % interval, and its share of all."""

    bound: Fraction
    noise: float
    cut: float
    low: float
    high: float
    share: float


def starts_of(edges: Sequence[Fraction], *, whole: bool) -> Floats:
    """The least that a unit of each bucket has; ``whole``: numbers of rows or groups, 1 or more."""
    return np.append(0.0, [float(edge) for edge in edges[:-1]]) + float(whole)


def filled(units: Floats, errors: Floats) -> int:
    """How many buckets there are up to the last that certainly has units; 0 where none has."""
    tail = math.log(len(units) / (2 * _CERTAIN)) / math.sqrt(
        2
    )  # of Laplace noise, in standard errors; others have less
    certain = np.flatnonzero(units > tail * errors)
    return int(certain[-1]) + 1 if len(certain) else 0


def candidates_of(
    rows: Sequence[Row], edges: Sequence[Fraction], noise: Sequence[float], numbers: int, *, whole: bool = False
) -> tuple[tuple[Candidate, ...], int | None]:
    """Every limit, and which is best; None where no bucket certainly has units.

    ``rows``: bucket, units, units_stderr, units_low, units_high. A cut is spread evenly over ``numbers`` of an answer.
    """
    ends, starts = np.array([float(edge) for edge in edges]), starts_of(edges, whole=whole)
    y, errors, widths = np.zeros((3, len(edges)))
    for bucket, *figures in rows:  # none of a bucket that no total can be in
        n, error, _, high = map(float, figures)
        y[int(bucket) - 1], errors[int(bucket) - 1] = n, error
        widths[int(bucket) - 1] = max(_WIDE * error, high - n)  # of whole numbers, sums may be wider than each alone
    last = filled(y, errors)
    total = max(float((starts + ends)[:last] @ y[:last]) / 2, ends[0])
    candidates, scores = [], []
    for bound, error in zip(edges, noise, strict=True):
        least, most = np.maximum(0.0, starts - float(bound)), np.maximum(0.0, ends - float(bound))
        low = max(0.0, float(least @ y - np.linalg.norm(least * widths)))
        high = max(low, float(most @ y + np.linalg.norm(most * widths)))
        middle = (least + most)[:last] / 2
        cut = float(middle @ y[:last])
        beyond = max(0.0, cut**2 - float(np.square(middle * errors[:last]).sum()))
        cut = min(max(cut, low), high)
        candidates.append(Candidate(bound, error, cut, low, high, min(1.0, cut / total)))
        scores.append(error**2 + beyond / numbers**2)
    return tuple(candidates), None if not last else int(np.argmin(scores))
