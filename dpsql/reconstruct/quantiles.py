"""MIN, MAX, MEDIAN and QUANTILE_CONT from noisy prefix counts over an ordered domain.

F_i is the number of rows whose value is at most v_i, v_1 < ... < v_d, F_0 = 0 and F_d = n. The rank of a
quantile is uncertain by a known law, since F_i - q F_d is a linear answer; the interval is the set of
values whose rank is not refuted, an inversion of a test as in Woodruff (1952). Nothing is assumed of how
the values are spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import numpy as np
import scipy
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InterfaceError

from .intervals import half_widths
from .spread import Matrix, NoiseModel, as_rows, standard_errors

Places: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Quantiles:
    """One quantile a group, each array (g,), never NaN.

    ``value`` = v[lower] + fraction (v[upper] - v[lower]), with ``fraction`` = 0 for MIN and MAX; ``low`` =
    v[first] and ``high`` = v[last] are the ends of the (1 - alpha) interval. Places count from 0. ``stderr``
    is the root mean square distance from ``value`` under the law that the counts' errors give the true one: it is as
    large where the domain is coarse and the interval is one value.
    """

    value: Floats
    stderr: Floats
    low: Floats
    high: Floats
    lower: Places
    upper: Places
    fraction: Floats
    first: Places
    last: Places


class Rank(Protocol):
    """Which quantile, and of what domain; as ``quantile`` says."""

    @property
    def q(self) -> float: ...
    @property
    def values(self) -> ArrayLike: ...
    @property
    def starts(self) -> ArrayLike: ...
    @property
    def discrete(self) -> bool: ...


def quantile(
    rank: Rank, prefixes: ArrayLike, rows: object, noise: NoiseModel, alpha: float = 0.05, *, divisor: int = 1
) -> Quantiles:
    """QUANTILE_CONT(q) of every group; q = 0 is MIN, q = 1 is MAX, q = 0.5 is MEDIAN; ``discrete``: QUANTILE_DISC(q).

    values (d,): the domain, ascending. starts (d,): itself, or where values stand for all from ``starts[i]`` to
    ``values[i]``, the first of these; then the value is that of their middles, the interval reaches from the first to
    the last of them, and the standard error counts them as spread evenly. prefixes (g x d): estimates of F_1..F_d, all
    finite.
    rows (d g x p): row i g + j is the reconstruction row of F_(i+1) of group j (or what ``rank_rows`` gives), (d x p)
    where they are those of every group; the measurement was scaled by ``divisor``.

    Value for 0 < q < 1: the prefix counts are made monotone by least squares (Barlow et al. 1972) and rounded to whole
    numbers of at least 0; the value is what DuckDB says of a table with those counts: between the order
    statistics of ranks floor(h) and ceil(h), h = q (n - 1), linearly, or the one of rank ceil(q n).
    Sparse groups pull it to the middle.

    Value of MIN: the first v_i whose monotone count is at least half a row and at least one standard error above 0, of
    MAX the mirror image. Counts are whole, so that half a row tells none from one: with little noise the value is the
    extreme. With more it is one that rows are known to reach, and lies further in than the true extreme
    by about as many rows as the standard error counts, more rarely beyond it: noise drowns single rows.

    Without any row left after rounding the value is the domain's own quantile, v at place q (d - 1), rounded.

    Interval: the true value v* has fewer than q (n - 1) + 1 rows below it and more than q (n - 1) at or below it. A
    value is refuted where either is contradicted by its estimate at level alpha / 2; what lies between the smallest and
    the largest value that are not refuted is the interval. Of MIN and MAX it covers v* with probability at least
    1 - alpha, in groups of any size: v* itself is refuted with probability at most alpha, no other value needs to be
    judged rightly, and counts before monotonisation have a known law. Unless noise is less than about half a row, one
    row at v_1 can hardly be excluded, and the interval of MIN starts there; so ends that of MAX. With less noise every
    value may be refuted, in at most alpha of the releases: then the interval is the estimate alone.

    Of 0 < q < 1 monotone counts are tested (``_pooled``): noise leaves some single counts far from v* unrefuted, which
    made intervals up to ten times as long. Their coverage is measured, not proved: at least 95 % of random shapes of 3
    to 1,000 rows on 5 to 120 values, of normal and Laplace noise. Evenly spread rows have 97 to 99.9 %: values are
    discrete, and a group of fewer rows than two standard errors of a count gets nearly the whole domain.

    Standard error: the true value is at most v_i where more than q (n - 1) rows are, which the monotone estimates of
    D_i and their standard errors give a chance c_i of, given that the rank is one of the group; the value v_i has the
    chance c_i - c_(i-1). Where neighbouring estimates had to be made monotone, they err by themselves and widen this
    law beyond the error of the value, which is taken off (``_within``). For MIN and MAX the chances are those of about
    one standard error further out, as the value lies one further in. Over where the true rank may lie this is right on
    average, or too large by a half in groups of some tens of rows; errors are up to 1.4 times as large where it lies
    just between two values of a coarse domain, or in a group of a few rows near one end of a fine domain.

    Cost O(nnz of rows), with Laplace noise one quantile of 24 nodes for every row. Deterministic. Raises
    DataError for q outside [0, 1], values that do not ascend or prefixes not finite, InterfaceError for wrong shapes.
    """
    share, last = float(rank.q), np.asarray(rank.values, dtype=np.float64)
    counts = np.asarray(prefixes, dtype=np.float64)
    _check(share, last, counts)
    first = np.asarray(rank.starts, dtype=np.float64)
    if first.shape != last.shape or not (first <= last).all() or not (last[:-1] <= first[1:]).all():
        raise InterfaceError("starts must have a number for each value, between the value before and it")
    matrix = _stacked(rows, counts.shape[0], counts.shape[1], divisor)
    if share == 1.0:  # MAX(v) = -MIN(-v)
        held, tails = _tails(matrix, counts)
        ends = -last[::-1], -first[::-1]
        return _mirrored(_quantile(0.0, ends, tails, held, noise, alpha), counts.shape[1])
    return _quantile(share, (first, last), counts, matrix, noise, alpha, rank.discrete)


def replicated(rank: Rank, prefixes: Floats, rows: object, noise: NoiseModel, *, divisor: int = 1) -> Floats:
    """The values alone (r, g) of what ``quantile`` says of ``prefixes`` (r x g x d), r replicates of them."""
    last, counts = np.asarray(rank.values, dtype=np.float64), prefixes.reshape(-1, prefixes.shape[2])
    first = np.asarray(rank.starts, dtype=np.float64)
    times, g, d = prefixes.shape
    matrix = _stacked(rows, g, d, divisor)
    share, ends, sign = float(rank.q), (first, last), 1.0
    if share == 1.0:  # as ``quantile`` has it
        matrix, counts = _tails(matrix, counts)
        share, ends, sign = 0.0, (-last[::-1], -first[::-1]), -1.0
    spread = np.tile(standard_errors(matrix, noise).reshape(d, g).T, (times, 1))
    return np.asarray(sign * _value(share, ends, counts, spread, rank.discrete)[0].reshape(times, g))


def _value(
    q: float, ends: tuple[Floats, Floats], counts: Floats, spread: Floats, discrete: bool
) -> tuple[Floats, Places, Places, Floats]:
    """The value of every group (g,), with the places that it lies between and how far between them."""
    domain = ends[0] + (ends[1] - ends[0]) / 2
    monotone = _monotone(counts)
    if q == 0:
        lower = upper = _first(monotone >= np.maximum(spread, 0.5), 0)
        fraction = np.zeros(len(counts))
    else:
        lower, upper, fraction = _between(q, np.rint(np.maximum(monotone, 0.0)), discrete)
    value = np.minimum(domain[lower] + fraction * (domain[upper] - domain[lower]), domain[upper])
    return value, lower, upper, fraction


def _monotone(rows: Floats) -> Floats:
    """Each row made ascending by least squares."""
    return np.stack([scipy.optimize.isotonic_regression(row).x for row in rows])


def _check(q: float, domain: Floats, counts: Floats) -> None:
    if not 0 <= q <= 1:
        raise DataError(f"a quantile lies between 0 and 1, not at {q!r}; 0.5 is the median")
    if domain.ndim != 1 or counts.ndim != 2 or not counts.size or counts.shape[1] != domain.size:
        raise InterfaceError("prefix counts must be a matrix of groups by values of the domain, at least one of each")
    if not (np.isfinite(domain).all() and (np.diff(domain) > 0).all()):
        raise DataError("the values of a domain must be finite and ascend; sort them and drop repeated ones")
    if not np.isfinite(counts).all():
        raise DataError("a prefix count is not finite; the scale of the measures is out of range")


def _stacked(rows: object, groups: int, d: int, divisor: int) -> Matrix:
    matrix = as_rows(rows)
    if matrix.shape[0] not in (groups * d, d):
        raise InterfaceError(f"{groups} groups of {d} prefix counts need {groups * d} rows, not {matrix.shape[0]}")
    if divisor <= 0:
        raise InterfaceError(f"the divisor must be a positive integer, not {divisor!r}")
    return matrix if divisor == 1 else cast("Matrix", matrix / float(divisor))


def _quantile(
    q: float,
    ends: tuple[Floats, Floats],
    counts: Floats,
    matrix: Matrix,
    noise: NoiseModel,
    alpha: float,
    discrete: bool = False,
) -> Quantiles:
    n, d = counts.shape
    g = matrix.shape[0] // d  # 1 where all groups have the same rows
    value, lower, upper, fraction = _value(q, ends, counts, standard_errors(matrix, noise).reshape(d, g).T, discrete)
    none = np.zeros((n, 1))
    D = np.hstack([none, counts]) - q * counts[:, -1:]
    held = _less(_stack([_none(matrix, g), matrix]), q, matrix[-g:], d + 1)
    # Ranks are whole, but for what QUANTILE_CONT finds between two values.
    law = (1.0, 0.0) if q == 0 else (0.0, 0.0) if discrete else (-q, 1 - q)
    half = np.broadcast_to(half_widths(held, noise, alpha).reshape(d + 1, g).T, D.shape)
    first, last = _unrefuted(*law, *((D, half) if q == 0 else _pooled(D, half)))
    # The estimate counts whole rows and the tests do not, so it may lie outside; then the interval grows. With little
    # noise the tests of MIN may leave no value; then it is the estimate, which they contradict least, or all values
    # where no row is likely.
    all_values = (last < 0) & (counts[:, -1] < 0.5)
    first = np.where(all_values, 0, np.minimum(first, lower))
    last = np.where(all_values, d - 1, np.maximum(last, upper))
    spread = standard_errors(held, noise).reshape(d + 1, g).T
    if q == 0:
        # Odds of one row against none are exp((D - 1/2) / spread^2), by which a normal law is narrower at little noise.
        beyond = _monotone(D) - 0.5 + np.sqrt(np.maximum(spread**2 - 0.25, 0.0))
        chance, widened = _chance(beyond, np.minimum(spread, 1.7 * spread**2)), np.ones(n)
        chance[:, 0], chance[:, -1] = 0.0, 1.0
        chance = np.maximum.accumulate(chance, axis=1)
    else:
        chance, widened = _within(D + (0.0 if discrete else q), spread)
    stderr = _distance(ends, value, chance) / np.sqrt(widened)
    return Quantiles(value, stderr, ends[0][first], ends[1][last], lower, upper, fraction, first, last)


def _chance(beyond: Floats, spread: Floats) -> Floats:
    """The chances that more rows than a rank needs are at or below a value, by estimates ``beyond`` of standard errors
    ``spread``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, scipy.special.ndtr(beyond / spread), beyond > 0)


def _within(beyond: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """The chances (g x (d + 1)) that the true value is at most v_0 (none), v_1, ..., v_d, and by how much the law that
    they give has a larger variance than the error of the value (g,).

    The chances are those of monotone estimates, given that the rank is one of the group. Estimates that were not
    monotone err by themselves, by about as much as their standard errors say, so that the law is as wide as two errors:
    one of the places, one of the chances. Over m places of equal chance that is so but for a share of 1 / (m - 1): two
    values beside each other err together; and it is so of ranks within the group: the noise does not widen the domain.
    """
    fits = [scipy.optimize.isotonic_regression(row) for row in beyond]
    chance = _chance(np.stack([fit.x for fit in fits]), spread)
    chance = np.maximum.accumulate(chance, axis=1) - chance[:, :1]
    inside = chance[:, -1:]  # the chance that the rank is one of the group; 0 where there is no row
    even = np.linspace(0.0, 1.0, chance.shape[1])
    chance = np.where(inside > 0, chance / np.where(inside > 0, inside, 1.0), even)
    pooled = np.stack([np.repeat(np.diff(fit.blocks) > 1, np.diff(fit.blocks)) for fit in fits])
    each = np.diff(chance, axis=1)
    moved = (each * (pooled[:, 1:] | pooled[:, :-1])).sum(axis=1)
    places = 1.0 / (each**2).sum(axis=1)
    return chance, 1.0 + inside[:, 0] * moved * (1.0 - 1.0 / np.maximum(places - 1.0, 1.0))


def _distance(ends: tuple[Floats, Floats], value: Floats, chance: Floats) -> Floats:
    """The root mean square distance from ``value`` (g,) of a value that has these chances (g x (d + 1))."""
    low, high = (end[None, :] - value[:, None] for end in ends)
    distance = (low**2 + low * high + high**2) / 3  # the mean square over an interval
    return np.asarray(np.sqrt((np.diff(chance, axis=1) * distance).sum(axis=1)))


def _between(q: float, counts: Floats, discrete: bool) -> tuple[Places, Places, Floats]:
    """The places of the order statistics next to rank q (n - 1), and how far between them; counts are whole numbers."""
    n = counts[:, -1]
    rank = np.maximum(np.ceil(q * n) - 1 if discrete else q * (n - 1), 0.0)
    below = np.floor(rank)
    fraction = rank - below
    middle = round(q * (counts.shape[1] - 1))
    lower = _first(counts > below[:, None], middle)
    upper = _first(counts > np.ceil(rank)[:, None], middle)
    return lower, upper, fraction


def _first(flags: NDArray[np.bool_], otherwise: int) -> Places:
    """The first place of each row that is true, ``otherwise`` where none is."""
    return np.where(flags.any(axis=1), flags.argmax(axis=1), otherwise).astype(np.int64)


def _unrefuted(least: float, most: float, D: Floats, h: Floats) -> tuple[Places, Places]:
    """The first and last place (g,) of the domain that the tests leave; d and -1 where they leave none.

    D_i = F_i - q F_d (g x (d + 1)), ``h`` its half-width. At the true value v* = v_i, D_(i-1) < ``most`` and D_i >
    ``least``; where v* lies between v_i and v_(i+1), both hold of D_i. Where ``most`` <= ``least`` ranks are whole: v*
    is one of the values, D_(i-1) <= ``most`` and D_i >= ``least``.
    """
    whole = most <= least
    # Whether there may be enough rows at or below a value, and few enough below it; place i of D is F_i.
    enough, few = (D + h >= least, D - h <= most) if whole else (D + h > least, D - h < most)
    left = enough[:, 1:] & few[:, :-1]
    if not whole:
        gap = (enough & few)[:, 1:-1]
        left[:, :-1] |= gap
        left[:, 1:] |= gap
    d = left.shape[1]
    return _first(left, d), d - 1 - _first(left[:, ::-1], d)


def _pooled(D: Floats, h: Floats) -> tuple[Floats, Floats]:
    """D, made monotone, and half-widths (g x (d + 1)): of each block of the least-squares fit the average of its D and
    its largest half-width.

    The error of an average is no wider than the widest error in it, whatever they have to do with each other; but
    noise chooses the blocks. D_0 and D_d stay as they are, since they hold no row, or all: pooled with a count of few
    rows they would move it.
    """
    if D.shape[1] == 2:
        return D, h
    D, h = D.copy(), h.copy()
    fit = _monotone(D[:, 1:-1])
    starts = np.flatnonzero(np.diff(fit, axis=1, prepend=-np.inf))  # of the blocks of all groups, one after another
    sizes = np.diff(starts, append=fit.size)
    largest = np.maximum.reduceat(h[:, 1:-1].ravel(), starts)
    D[:, 1:-1], h[:, 1:-1] = fit, np.repeat(largest, sizes).reshape(fit.shape)
    return D, h


def _tails(matrix: Matrix, counts: Floats) -> tuple[Matrix, Floats]:
    """Rows and prefix counts of -v: rows at or above v_d, v_(d-1), ..., v_1."""
    n, d = counts.shape
    g = matrix.shape[0] // d
    below = matrix[(np.arange(d - 1)[::-1, None] * g + np.arange(g)).ravel()]
    held = _less(_stack([below, _none(matrix, g)]), 1.0, matrix[-g:], d)
    return -held, counts[:, -1:] - np.hstack([counts[:, -2::-1], np.zeros((n, 1))])


def _less(rows: Matrix, share: float, last: Matrix, times: int) -> Matrix:
    """A multiple of the last rows taken off ``times`` rows of every group."""
    g = last.shape[0]
    return rows if not share else cast("Matrix", rows - share * last[np.tile(np.arange(g), times)])


def _none(matrix: Matrix, g: int) -> Matrix:
    """Rows of no count."""
    return np.zeros((g, matrix.shape[1])) if isinstance(matrix, np.ndarray) else sp.csr_array((g, matrix.shape[1]))


def _stack(parts: list[Matrix]) -> Matrix:
    dense = [part for part in parts if isinstance(part, np.ndarray)]
    if len(dense) == len(parts):
        return np.vstack(dense)
    return sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts], format="csr"))


def _mirrored(given: Quantiles, d: int) -> Quantiles:
    last = d - 1
    places, interval = (last - given.upper, last - given.lower), (last - given.last, last - given.first)
    return Quantiles(-given.value, given.stderr, -given.high, -given.low, *places, given.fraction, *interval)
