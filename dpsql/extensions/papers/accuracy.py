"""Accuracy with high probability, and how it compares with data-dependent mechanisms.

Asymptotic formulas come without their hidden constants, as the papers print them: they order
mechanisms, they certify nothing. ``rms_accuracy`` has explicit constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

from dpsql.common.arguments import real, taking
from dpsql.errors import DataError


@taking(total_error=real(), queries=real(), beta=real())
def rms_accuracy(total_error: float, queries: int, beta: float, *, largest: float | None = None) -> float:
    """alpha with Pr[root mean squared error of the answers > alpha] <= beta (Def. 6.2), explicit constants.

    ``total_error``: expected total squared error of the m = ``queries`` answers, privacy factor included
    (variance * Strategy.error). The error vector is M z with z standard normal and ||M||_F^2 =
    total_error; ||M z|| is ||M||_2-Lipschitz in z with mean at most ||M||_F, so by Gaussian concentration
    alpha = (||M||_F + ||M||_2 sqrt(2 log(1/beta))) / sqrt(m). ``largest``: ||M||_2^2, where known; else
    ||M||_F^2 stands in for it. (Constants are ours; the form is that of Li and Miklau 2013, Thm
    6.3.) Gaussian noise only. Raises DataError outside 0 < beta < 1, total_error >= 0.
    """
    if not 0 < beta < 1 or not total_error >= 0 or queries < 1:
        raise DataError("bounds: accuracy needs beta in (0, 1), an error of at least 0 and at least one query")
    top = total_error if largest is None else largest
    if not 0 <= top <= total_error * (1 + 1e-12):
        raise DataError("bounds: the largest squared singular value lies between 0 and the total error")
    return (sqrt(total_error) + sqrt(2.0 * top * log(1.0 / beta))) / sqrt(queries)


@taking(m=real(), n=real(), epsilon=real(), delta=real(), beta=real())
def rms_accuracy_order(m: int, n: int, epsilon: float, delta: float, beta: float) -> float:
    """sqrt(min(m, n)) sqrt(log(2/delta) log(sqrt(pi/2)/beta)) / epsilon: Thm 6.3 without its O().

    For m queries of sensitivity at most one over n cells whose singular value bound is asymptotically
    tight. There ||W||_F^2 <= m n, so SVDB <= min(m, n) m, which is where the root of min(m, n) comes from.
    """
    _check(m, n, epsilon)
    if not 0 < delta < 1 or not 0 < beta < 1:
        raise DataError("bounds: delta and beta must lie between 0 and 1")
    return sqrt(min(m, n)) * sqrt(log(2.0 / delta) * log(sqrt(pi / 2.0) / beta)) / epsilon


@dataclass(frozen=True)
class Accuracies:
    """The orders of alpha in Table 3 of Li and Miklau 2013, one a mechanism."""

    median: float
    multiplicative_weights: float
    iterative_construction: float
    boosting: float
    svd_bound: float


@taking(m=real(), n=real(), records=real(), epsilon=real(), t=real())
def accuracy_orders(m: int, n: int, records: float, epsilon: float, t: float) -> Accuracies:
    """Table 3 of Li and Miklau 2013: alpha of five mechanisms at (epsilon, e^-t)-differential privacy.

    m queries of sensitivity at most one, n cells, ``records`` rows (N), t >= 2. Mechanisms 1 to 4
    bound the largest error with probability 1 - e^-t, the fifth the root mean squared one. Natural
    logarithms; hidden constants and, for boosting, hidden logarithms are left out. DataError for t < 2.
    """
    _check(m, n, epsilon)
    if not t >= 2 or not records > 0:
        raise DataError("bounds: Table 3 holds for t >= 2 and at least one record")
    width = sqrt(t * (log(m) + t) / epsilon)
    return Accuracies(
        median=sqrt(records) * (log(n) * log(m)) ** 0.25 * width,
        multiplicative_weights=sqrt(records) * log(n) ** 0.25 * width,
        iterative_construction=(n * records) ** 0.25 * width,
        boosting=sqrt(records) * log(n) * t**1.5 * log(m) ** 1.5 / epsilon,
        svd_bound=sqrt(min(m, n)) * t / epsilon,
    )


def _check(m: int, n: int, epsilon: float) -> None:
    if m < 1 or n < 1 or not 0 < epsilon < float("inf"):
        raise DataError("bounds: give at least one query and one cell, and a finite epsilon above 0")
