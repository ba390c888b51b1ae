"""MIN, MAX, MEDIAN, QUANTILE_CONT: DuckDB where there is no noise, brute force of the tests, symmetry, coverage."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from dpsql import reconstruct
from dpsql.errors import DataError, InterfaceError
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import Quantiles, half_widths

GAUSSIAN, LAPLACE = Noise.gaussian(Fraction(10**6)), Noise.laplace(Fraction(700))
NOISES = [GAUSSIAN, LAPLACE]
DOMAIN = np.array([-3.0, 0.0, 1.0, 2.5, 10.0, 11.0, 12.0, 40.0])
D = len(DOMAIN)
SHARES = [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
FIELDS = ("value", "stderr", "low", "high", "lower", "upper", "fraction", "first", "last")


def quantile(
    q: float, values: Any, *counted: Any, starts: Any = None, discrete: bool = False, **more: Any
) -> Quantiles:
    rank = SimpleNamespace(q=q, values=values, starts=values if starts is None else starts, discrete=discrete)
    return reconstruct.quantile(rank, *counted, **more)


def prefixes(values: np.ndarray) -> np.ndarray:
    return (values[:, None] <= DOMAIN[None, :]).sum(axis=0).astype(float)


def noisy(seed: int, g: int, size: float) -> tuple[np.ndarray, np.ndarray]:
    """Prefix counts (g x D) off any monotone, and rows (D g x 6)."""
    rng = np.random.default_rng(seed)
    counts = np.cumsum(rng.uniform(0, size, (g, D)), axis=1) + rng.normal(size=(g, D)) * 3
    return counts, rng.normal(size=(D * g, 6))


def same(left: Quantiles, right: Quantiles) -> bool:
    return all(np.allclose(getattr(left, name), getattr(right, name)) for name in FIELDS)


@pytest.mark.parametrize("q", SHARES)
def test_without_noise_it_is_what_duckdb_says(q: float) -> None:
    rng = np.random.default_rng(1)
    tables = [rng.choice(DOMAIN, size) for size in (1, 2, 3, 7, 30, 101)]
    counts = np.stack([prefixes(table) for table in tables])
    found = quantile(q, DOMAIN, counts, np.zeros((counts.size, 1)), GAUSSIAN)
    with duckdb.connect() as con:
        for i, table in enumerate(tables):
            (truth,) = con.execute("SELECT quantile_cont(v, ?) FROM unnest(?) t(v)", [q, table.tolist()]).fetchone()
            assert found.value[i] == pytest.approx(truth)
            assert found.low[i] <= truth <= found.high[i]
            assert found.last[i] - found.first[i] <= found.upper[i] - found.lower[i] + 2


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("q", SHARES)
@pytest.mark.few(every=3)
def test_the_interval_is_what_the_tests_leave(q: float, noise: Noise) -> None:
    g, divisor, alpha = 25, 500, 0.1
    counts, rows = noisy(2, g, 10)
    found = quantile(q, DOMAIN, counts, rows, noise, alpha, divisor=divisor)
    for j in range(g):
        F = [0.0, *counts[j]]
        R = [np.zeros(6), *rows[j::g]]
        difference = [F[i] - q * F[-1] for i in range(D + 1)]
        half = [half_widths((R[i] - q * R[-1])[None, :], noise, alpha)[0] / divisor for i in range(D + 1)]
        if 0 < q < 1:
            fit = ascending(difference[1:-1])
            for block in {value: [i + 1 for i, x in enumerate(fit) if abs(x - value) < 1e-9] for value in fit}.values():
                largest = max(half[i] for i in block)
                for i in block:
                    difference[i], half[i] = fit[i - 1], largest
        least, most = {0.0: (1, 0), 1.0: (0, -1)}.get(q, (-q, 1 - q))
        left = {
            i
            for i in range(D)
            if difference[i] <= most + half[i] + 1e-9 and difference[i + 1] >= least - half[i + 1] - 1e-9
        }
        if 0 < q < 1:
            for i in range(1, D):
                if least - half[i] <= difference[i] <= most + half[i]:
                    left |= {i - 1, i}
        left = left or (set(range(D)) if counts[j, -1] < 0.5 else {int(found.lower[j])})
        assert found.first[j] == min(min(left), found.lower[j])
        assert found.last[j] == max(max(left), found.upper[j])


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("q", SHARES)
def test_standard_error_is_that_of_the_law_of_ranks(q: float, noise: Noise) -> None:
    """By hand, group by group: the chance that the true value is at most v_i, and the distance from the estimate."""
    g, divisor = 10, 500
    counts, rows = noisy(2, g, 10)
    found = quantile(q, DOMAIN, counts, rows, noise, divisor=divisor)
    sd = math.sqrt(noise.variance) / divisor
    for j in range(g):
        if 0 < q < 1:
            chances, wider = within(q, counts[j], rows[j::g], sd)
            squares = np.diff(chances) * (DOMAIN - found.value[j]) ** 2
            assert found.stderr[j] == pytest.approx(math.sqrt(squares.sum() / wider), rel=1e-6, abs=1e-9)
            continue
        # Rows at or below v_0 (none), v_1, ...; for MAX at or above none, the last value, the one before it, ...
        R, F = [np.zeros(6), *rows[j::g]], [0.0, *counts[j]]
        if q == 1.0:
            R, F = [R[-1] - row for row in reversed(R)], [F[-1] - count for count in reversed(F)]
        sizes = [sd * float(np.linalg.norm(row)) for row in R]
        assert min(sizes[1:]) > 0.6
        beyond = [
            (x - 0.5 + math.sqrt(size**2 - 0.25)) / size
            for x, size in zip(ascending(F)[1:-1], sizes[1:-1], strict=True)
        ]
        ends = np.maximum.accumulate([0.0, *map(normal, beyond), 1.0])
        squares = np.diff(ends) * ((DOMAIN[::-1] if q == 1.0 else DOMAIN) - found.value[j]) ** 2
        assert found.stderr[j] == pytest.approx(math.sqrt(squares.sum()), rel=1e-6, abs=1e-9)


def within(q: float, counts: np.ndarray, rows: np.ndarray, sd: float) -> tuple[np.ndarray, float]:
    """Chances that the true value is at most v_0, ..., v_D, and how much wider than the error they are, in variance."""
    beyond = [q, *(counts - q * counts[-1] + q)]
    beyond[0] -= q * counts[-1]
    sizes = [sd * float(np.linalg.norm(row - q * rows[-1])) for row in [np.zeros(6), *rows]]
    fit = ascending(beyond)
    chances = np.maximum.accumulate([normal(x / size) for x, size in zip(fit, sizes, strict=True)])
    inside = chances[-1] - chances[0]
    chances = (chances - chances[0]) / inside
    each, equal = np.diff(chances), [abs(b - a) < 1e-9 for a, b in pairwise(fit)]
    pooled = [any(equal[max(i - 1, 0) : i + 1]) for i in range(D + 1)]
    moved = sum(each[i] for i in range(D) if pooled[i] or pooled[i + 1])
    return chances, 1 + inside * moved * (1 - 1 / max(1 / float((each**2).sum()) - 1, 1))


def ascending(numbers: list[float]) -> list[float]:
    """The least squares fit of ascending numbers, by the max-min formula."""
    places = range(len(numbers))
    return [max(min(np.mean(numbers[a : b + 1]) for b in places[i:]) for a in places[: i + 1]) for i in places]


@pytest.mark.parametrize("sign", [-1, 1])
def test_little_noise_of_either_sign_changes_nothing(sign: int) -> None:
    """One row stands at each extreme: a count of 0.999 is one row, and one of 0.001 is none."""
    table = np.array([1.0, 2.5, 2.5, 10, 10, 10, 12])
    counts = prefixes(table)[None] + sign * 1e-3 * np.array([1, 1, 1, 1, 1, 1, 1, 0.5])
    for q in SHARES:
        found = quantile(q, DOMAIN, counts, np.eye(D), GAUSSIAN, divisor=10**6)
        assert found.value[0] == pytest.approx(np.quantile(table, q))
        assert found.low[0] <= found.value[0] <= found.high[0]


def released(q: float, table: np.ndarray, releases: int, sd: float = 6.0, top: int = 100) -> Quantiles:
    """Releases of a quantile of whole numbers from 0 to ``top``, by the square root of the prefix counts."""
    domain = np.arange(top + 1.0)
    roots = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, top + 1))])
    rows = scipy.linalg.toeplitz(roots, np.zeros(top + 1))
    noise = np.rint(np.random.default_rng(7).normal(0, sd, (releases, top + 1))) @ rows.T
    counts = (table[:, None] <= domain).sum(axis=0) + noise
    return quantile(q, domain, counts, rows, Noise.gaussian(Fraction(sd) ** 2))


@pytest.mark.parametrize("size", [5, 20, 100, 300, 1000])
@pytest.mark.parametrize("q", [0.5, 0.9])
@pytest.mark.few(every=2)
def test_standard_error_is_not_much_too_wide(q: float, size: int) -> None:
    """On a fine domain, whatever the rows are beside the noise: it was 1.2 to 2.5 of what is seen."""
    table = np.rint((np.arange(size) + 0.5) / size * 100)
    found = released(q, table, 300)
    seen = math.sqrt(np.mean((found.value - np.quantile(table, q)) ** 2))
    assert 0.85 <= math.sqrt(np.mean(found.stderr**2)) / seen <= 1.6


@pytest.mark.parametrize(
    ("size", "top", "spread", "most"),
    [(100, 100, 100, 1.4), (300, 100, 100, 1.2), (100, 500, 500, 1.5), (100, 500, 25, 1.2), (300, 500, 500, 1.4)],
)
def test_intervals_are_not_much_too_long(size: int, top: int, spread: int, most: float) -> None:
    """Half of their length over 1.96 of the error that is seen: it was 1.3 to 5.3, as tests of single counts leave
    values far away by chance.
    """
    table = np.rint(top / 2 + (np.arange(size) + 0.5 - size / 2) / size * spread)
    found = released(0.5, table, 300, top=top)
    truth = np.median(table)
    assert np.mean(found.high - found.low) / 2 / 1.96 <= most * math.sqrt(np.mean((found.value - truth) ** 2))
    assert np.mean((found.low <= truth) & (truth <= found.high)) >= 0.945


SHAPES = {
    "even": lambda u: 100 * u,
    "near the end": lambda u: 100 - 4 * u,
    "skew": lambda u: 10 * np.exp(np.minimum(0.8 * scipy.special.ndtri(u), 2.3)),
    "tied": lambda u: 20 * np.floor(5 * u),
    "one value": lambda u: np.full(len(u), 30.0),
    "two values, just at the rank": lambda u: np.where(np.arange(len(u)) <= 0.5 * (len(u) - 1), 20.0, 70.0),
    "two ends, just at the rank": lambda u: np.where(np.arange(len(u)) < 0.9 * (len(u) - 1), 0.0, 100.0),
    "few at an end": lambda u: np.where(u < 0.1, 0.0, 100.0),
    "heavy": lambda u: np.where((u > 0.3) & (u < 0.7), 40.0, 100 * u),
}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [5, 20, 100, 1000])
def test_coverage_of_every_shape(size: int, shape: str) -> None:
    """At least 94.5 % of 10,000 releases."""
    table = np.sort(np.rint(SHAPES[shape]((np.arange(size) + 0.5) / size)))
    for q in (0.0, 0.25, 0.5, 0.9, 1.0):
        truth = np.quantile(table, q)
        found = released(q, table, 10_000)
        assert ((found.low <= truth) & (truth <= found.high)).mean() >= 0.945


@pytest.mark.parametrize("discrete", [False, True])
def test_intervals_of_values(discrete: bool) -> None:
    """A value that stands for an interval: the middle of it, an interval to its ends, and at least what it hides."""
    counts = np.array([[0.0, 10.0, 30.0, 40.0]])
    starts, ends = np.array([0.0, 10, 20, 30]), np.array([9.0, 19, 29, 39])
    rows = np.eye(4)
    found = quantile(0.5, ends, counts, rows, GAUSSIAN, divisor=10**6, starts=starts, discrete=discrete)
    assert (found.value[0], found.low[0], found.high[0]) == (24.5, 20, 29)
    assert found.stderr[0] == pytest.approx(9 / math.sqrt(12))
    largest = quantile(1.0, ends, counts, rows, GAUSSIAN, divisor=10**6, starts=starts)
    assert (largest.value[0], largest.low[0], largest.high[0]) == (34.5, 30, 39)


@pytest.mark.parametrize("q", [0.1, 0.25, 0.5, 0.77])
def test_a_discrete_one_is_covered_and_is_duckdbs(q: float) -> None:
    rng = np.random.default_rng(9)
    table = rng.choice(DOMAIN, 60)
    with duckdb.connect() as con:
        (truth,) = con.execute("SELECT quantile_disc(v, ?) FROM unnest(?) t(v)", [q, table.tolist()]).fetchone()
    B, releases = np.tril(np.ones((D, D))), 1000
    counts = prefixes(table) + np.rint(rng.normal(0, 3, (releases, D))) @ B.T
    noise = Noise.gaussian(Fraction(9))
    found = quantile(q, DOMAIN, counts, np.repeat(B, releases, axis=0), noise, discrete=True)
    assert (found.fraction == 0).all()
    assert np.mean((found.low <= truth) & (truth <= found.high)) > 0.92
    plain = quantile(q, DOMAIN, prefixes(table)[None], B, Noise.gaussian(Fraction(1)), divisor=10**6, discrete=True)
    assert plain.value[0] == truth


def normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("sd", [1.0, 5.0])
@pytest.mark.few(every=2)
def test_standard_error_is_honest(q: float, sd: float) -> None:
    """On a coarse domain, where the interval is often one value, hardly less than the errors that are seen.

    It is 1 / sqrt(2) of them at worst, where a rank lies just between two values: 0.9 of 150 rows does.
    """
    rng = np.random.default_rng(6)
    releases, domain = 1000, np.arange(8.0)
    table = rng.binomial(7, 0.5, 150)
    B = np.tril(np.ones((8, 8)))
    counts = (table[:, None] <= domain).sum(axis=0) + np.rint(rng.normal(0, sd, (releases, 8))) @ B.T
    noise = Noise.gaussian(Fraction(sd) ** 2)
    found = quantile(q, domain, counts, np.repeat(B, releases, axis=0), noise)
    seen = math.sqrt(np.mean((found.value - np.quantile(table, q)) ** 2))
    assert math.sqrt(np.mean(found.stderr**2)) >= (0.71 if q == 0.9 else 0.85) * seen


@pytest.mark.long
def test_shape_of_what_comes_back() -> None:
    for q in SHARES:
        for size in (0.01, 1, 100):
            counts, rows = noisy(3, 50, size)
            found = quantile(q, DOMAIN, counts, rows, LAPLACE, divisor=200)
            assert all(np.isfinite(getattr(found, name)).all() for name in FIELDS)
            assert (found.low <= found.value).all()
            assert (found.value <= found.high).all()
            assert (found.low == DOMAIN[found.first]).all()
            assert (found.high == DOMAIN[found.last]).all()
            mixed = (1 - found.fraction) * DOMAIN[found.lower] + found.fraction * DOMAIN[found.upper]
            assert found.value == pytest.approx(mixed)
            assert same(found, quantile(q, DOMAIN, counts, rows, LAPLACE, divisor=200))
            assert same(found, quantile(q, DOMAIN, counts, sp.csr_array(rows), LAPLACE, divisor=200))


def test_scale_shift_and_mirror() -> None:
    counts, rows = noisy(4, 40, 20)
    lifted = DOMAIN * 2 + 5
    for q in SHARES:
        plain, moved = (quantile(q, v, counts, rows, GAUSSIAN, divisor=400) for v in (DOMAIN, lifted))
        assert moved.value == pytest.approx(2 * plain.value + 5)
        assert moved.low == pytest.approx(2 * plain.low + 5)
        assert moved.stderr == pytest.approx(2 * plain.stderr)
    # Tails are the prefix counts of -v.
    R = rows.reshape(D, 40, 6)
    tails = np.concatenate([counts[:, -1:] - counts[:, -2::-1], counts[:, -1:]], axis=1)
    tail_rows = np.concatenate([R[-1:] - R[-2::-1], R[-1:]]).reshape(D * 40, 6)
    largest = quantile(1.0, DOMAIN, counts, rows, GAUSSIAN, divisor=400)
    smallest = quantile(0.0, -DOMAIN[::-1], tails, tail_rows, GAUSSIAN, divisor=400)
    assert largest.value == pytest.approx(-smallest.value)
    assert largest.low == pytest.approx(-smallest.high)
    assert (largest.upper == D - 1 - smallest.lower).all()


def test_few_rows_get_the_whole_domain() -> None:
    rows = np.random.default_rng(5).normal(size=(D, 6))
    for q, place in ((0.0, 0), (0.5, 4), (1.0, D - 1)):
        for counts in (np.zeros((1, D)), np.full((1, D), -4.0)):
            found = quantile(q, DOMAIN, counts, rows, GAUSSIAN, divisor=20)
            assert (found.low[0], found.high[0]) == (-3, 40)
            assert found.value[0] == DOMAIN[place]
    one = quantile(0.5, [7.0], [[3.0]], rows[:1], GAUSSIAN, divisor=20)
    assert (one.value[0], one.low[0], one.high[0], one.stderr[0]) == (7, 7, 7, 0)


def test_extremes_need_rows_beyond_one_standard_error() -> None:
    counts = np.array([[0.0, 2, 4, 20, 30, 96, 98, 100]])
    rows = np.eye(D)
    divisor = 200  # a standard error of 5 rows a prefix, of 7 rows a tail
    assert quantile(0.0, DOMAIN, counts, rows, GAUSSIAN, divisor=divisor).value[0] == 2.5  # 20 rows, not 4
    assert quantile(1.0, DOMAIN, counts, rows, GAUSSIAN, divisor=divisor).value[0] == 11  # 70 rows, not 4
    low = quantile(0.0, DOMAIN, counts, rows, GAUSSIAN, divisor=10**6)
    assert low.value[0] == 0.0
    assert low.low[0] == low.high[0] == 0.0


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("size", [5, 150])
@pytest.mark.few(every=4)
def test_coverage(size: int, noise: Noise) -> None:
    """At least 95 % where the tests may err on both sides; 4000 releases, sd 0.35 %, so 93.3 % is 4.9 of them."""
    releases = 4000
    rng = np.random.default_rng(6)
    table = rng.choice(DOMAIN, size)
    # Counts of the values are measured, a prefix is their sum.
    B = np.tril(np.ones((D, D)))
    scale = float(noise.parameter) ** (0.5 if noise.kind == "gaussian" else 1)
    if noise.kind == "gaussian":
        z = np.rint(rng.normal(0, scale, (releases, D)))
    else:
        p = -math.expm1(-1 / scale)
        z = (rng.geometric(p, (releases, D)) - rng.geometric(p, (releases, D))).astype(float)
    counts = prefixes(table) + z @ B.T / 200
    rows = np.repeat(B, releases, axis=0)
    for q in (0.0, 0.3, 0.5, 1.0):
        truth = np.quantile(table, q)
        found = quantile(q, DOMAIN, counts, rows, noise, divisor=200)
        assert ((found.low <= truth) & (truth <= found.high)).mean() > 0.933
        if size == 150 and 0 < q < 1:
            assert (found.last - found.first < D - 1).mean() > 0.9  # and says something


@pytest.mark.parametrize("sd", [0.1, 0.25])
@pytest.mark.parametrize("q", [0.0, 1.0])
@pytest.mark.few(every=2)
def test_extremes_are_told_where_noise_is_little(q: float, sd: float) -> None:
    """Noise refutes every value in up to 5 % of releases; what is left then is the estimate, not the whole domain."""
    table, releases, rows = np.array([2.5, 10.0, 11.0]), 10_000, np.eye(D)
    counts = prefixes(table) + np.random.default_rng(8).normal(0, sd, (releases, D))
    noise = Noise.gaussian(Fraction(round(100 * sd)) ** 2)
    found, truth = quantile(q, DOMAIN, counts, rows, noise, divisor=100), np.quantile(table, q)
    assert ((found.low <= truth) & (truth <= found.high)).mean() >= 0.945
    assert (found.last - found.first < D - 1).all()
    assert math.sqrt(np.mean(found.stderr**2)) <= 2 * math.sqrt(np.mean((found.value - truth) ** 2)) + 0.3
    none = quantile(q, DOMAIN, np.zeros((1, D)), rows, noise, divisor=100)
    assert (none.low[0], none.high[0]) == (-3, 40)  # without a row any value may be


def test_refusals() -> None:
    rows = np.eye(D)
    for q in (-0.1, 1.1, math.nan):
        with pytest.raises(DataError, match="between 0 and 1"):
            quantile(q, DOMAIN, np.zeros((1, D)), rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="groups by values"):
        quantile(0.5, DOMAIN, np.zeros((1, 3)), rows, GAUSSIAN)
    with pytest.raises(DataError, match="ascend"):
        quantile(0.5, DOMAIN[::-1], np.zeros((1, D)), rows, GAUSSIAN)
    with pytest.raises(DataError, match="not finite"):
        quantile(0.5, DOMAIN, np.full((1, D), np.inf), rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="need 16 rows"):
        quantile(0.5, DOMAIN, np.zeros((2, D)), rows[:-1], GAUSSIAN)  # rows of every group, or of them all
    with pytest.raises(InterfaceError, match="divisor"):
        quantile(0.5, DOMAIN, np.zeros((1, D)), rows, GAUSSIAN, divisor=-1)
