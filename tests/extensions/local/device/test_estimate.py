"""Estimates: exact mean and variance over all outputs of tiny releases, Monte-Carlo at larger ones, refusals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from repeatable import answers
from scipy import stats

from dpsql.errors import DataError, InterfaceError
from dpsql.extensions.local.device import (
    OTHER,
    Domain,
    RowFunction,
    collect,
    constant,
    distortion_upper_bound,
    estimate,
    randomise_many,
    tabulated,
    value,
    where,
)
from dpsql.privacy.response import Response

Z = stats.norm.isf(5e-7)  # two sides at level 1e-6
TINY = Domain.of({"v": [1, 4, None]})
PAIR = Domain.of({"a": [0, 1], "b": ["x", "y"]})

# (domain, phi, weights, epsilon)
EXACT: list[tuple[Domain, Callable[[Domain], RowFunction], list[float] | None, str]] = [
    (TINY, lambda d: where(d, {"v": 4}), None, "1"),
    (TINY, lambda d: value(d, "v"), None, "0.3"),
    (TINY, lambda d: value(d, "v") - 2, [1.0, -2.0, 0.5], "1"),
    (TINY, lambda d: constant(d, 3), [1.0, 2.0, 4.0], "1"),
    (PAIR, lambda d: where(d, {"a": 1}), None, "2"),
    (PAIR, lambda d: where(d, {"a": 1, "b": "x"}), [3.0, 0.0, 1.0], "0.5"),
    (PAIR, lambda d: where(d, {"a": 1}) + where(d, {"b": "y"}) * 2 - 1, None, "1"),
]


def every_release(domain: Domain, n: int, epsilon: str) -> tuple[np.ndarray, np.ndarray]:
    """All databases of n rows = all releases (N, n), and P(release | database), (N, N), from exact fractions."""
    response = Response.of(domain.size, epsilon)
    every = np.array(list(itertools.product(range(domain.size), repeat=n)))
    same = (every[:, None, :] == every[None, :, :]).sum(axis=2)
    law = [float(response.keep**s * response.lie ** (n - s)) for s in range(n + 1)]
    chances = np.array(law)[same]
    assert chances.sum(axis=1) == pytest.approx(1, abs=1e-12)
    return every, chances


@pytest.mark.parametrize("number", range(len(EXACT)))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_mean_variance_and_its_estimate_are_exact(number: int, n: int) -> None:
    """Over all outputs, at every database: E value = truth, Var value = the formula's mean, never above worst."""
    domain, make, weights, epsilon = EXACT[number]
    phi, w = make(domain), None if weights is None else np.array(weights[:n])
    ones = np.ones(n) if w is None else w
    every, chances = every_release(domain, n, epsilon)
    cell = phi.at(domain.places(np.arange(domain.size)))
    truth = cell[every] @ ones
    found = [estimate(y, phi, domain, epsilon=epsilon, weights=w) for y in every]
    values = np.array([f.value for f in found])
    squared = np.array([f.stderr**2 for f in found])
    assert chances @ values == pytest.approx(truth, abs=1e-9)
    variance = chances @ values**2 - (chances @ values) ** 2
    assert chances @ squared == pytest.approx(variance, abs=1e-8)
    (worst,) = {f.worst_stderr for f in found}
    assert worst is not None
    assert variance.max() <= worst**2 + 1e-8
    # All these functions are listed, so the worst row is known, and some database has it in every row.
    a, c = float(Response.of(domain.size, epsilon).contrast), cell.max() - cell.min()
    assert worst**2 == pytest.approx(variance.max(), abs=1e-8)
    assert worst**2 <= (ones @ ones) * c**2 / (4 * a * a) + 1e-12


def test_the_estimate_and_its_variance_are_the_formulas_of_the_paper() -> None:
    domain, epsilon = Domain.of({"v": [1, 4, 9, None], "s": ["a", "b"]}), "0.8"
    response = Response.of(domain.size, epsilon)
    a, b = float(response.contrast), float(response.lie)
    phi, w = value(domain, "v") * where(domain, {"s": "a"}) + 3, np.linspace(-1, 2, 50)
    y = answers(response, np.arange(50) % 8, 21)
    seen, every = phi.at(domain.places(y)), phi.at(domain.places(np.arange(8)))
    S, S2 = every.sum(), every @ every
    found = estimate(y, phi, domain, epsilon=epsilon, weights=w)
    assert found.value == pytest.approx((w @ seen - b * S * w.sum()) / a)
    variance = w**2 @ ((1 - a) * seen**2 + a * b * S2 - 2 * b * S * seen + b**2 * S**2) / a**2
    assert found.stderr == pytest.approx(math.sqrt(variance))
    assert (found.low, found.high) == pytest.approx(stats.norm.interval(0.95, found.value, found.stderr))
    narrow = estimate(y, phi, domain, epsilon=epsilon, weights=w, alpha=0.5)
    assert (narrow.low, narrow.high) == pytest.approx(stats.norm.interval(0.5, found.value, found.stderr))
    assert (found.rows, narrow.value) == (50, found.value)


@pytest.mark.parametrize("epsilon", ["0.2", "1", "3"])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.few(every=3)
def test_proper_counts_are_possible_and_their_distortion_is_bounded(n: int, epsilon: str) -> None:
    every, chances = every_release(TINY, n, epsilon)
    for phi in (where(TINY, {"v": 4}), where(TINY, {"v": [1, None]}), constant(TINY, 1), constant(TINY, 0)):
        truth = phi.at(TINY.places(np.arange(3)))[every].sum(axis=1)
        found = [estimate(y, phi, TINY, epsilon=epsilon, proper=True) for y in every]
        plain = np.array([estimate(y, phi, TINY, epsilon=epsilon).value for y in every])
        values = np.array([f.value for f in found])
        assert set(values) <= set(truth), "a proper estimate is a value that q can have"
        possible = np.array(sorted(set(truth)))
        nearest = np.abs(possible[:, None] - plain).min(axis=0)
        assert np.abs(values - plain) == pytest.approx(nearest, abs=1e-9)
        assert all(0 <= f.low <= f.value <= f.high <= n for f in found)
        squared = (chances * (values[None, :] - truth[:, None]) ** 2).sum(axis=1)
        unbiased = (chances * (plain[None, :] - truth[:, None]) ** 2).sum(axis=1)
        assert (squared <= 4 * unbiased + 1e-9).all()
        upper = distortion_upper_bound(Response.of(3, epsilon), n)
        assert squared.max() / n**2 <= upper / 4
        assert unbiased.max() / n**2 <= upper / 16


MIXED = Domain.of({"group": ["g", "h", None], "v": [0, 1, 2, 10, OTHER]})
_N, _TRIALS = 400, 1000


def database() -> np.ndarray:
    rng = np.random.default_rng(31)
    return rng.choice(MIXED.size, _N, p=np.arange(1, 16) / 120)


QUERIES: list[tuple[RowFunction, np.ndarray | None]] = [
    (where(MIXED, {"group": None}), None),  # more than the third that lies give it, so that a wrong law shows
    (where(MIXED, {"group": ["g", None], "v": lambda v: v > 0}), None),
    (value(MIXED, "v", other=0) * where(MIXED, {"group": "h"}), None),
    (value(MIXED, "v", other=0), np.arange(_N) / _N),
    (tabulated(MIXED, lambda r: r["group"] == "h" or r["v"] == 10), (np.arange(_N) % 3 - 1.0)),
]


@pytest.mark.long
def test_unbiased_with_the_right_variance_and_coverage() -> None:
    """Monte-Carlo with fixed seeds; a copy taken for the truth and a wrong epsilon must fail the same test."""
    epsilon = "1.5"
    response, x = Response.of(MIXED.size, epsilon), database()
    releases = [answers(response, x, seed) for seed in range(_TRIALS)]

    def scores(phi: RowFunction, weights: np.ndarray | None, epsilon: str, step: int = 1) -> tuple[Any, Any, float]:
        truth = phi.at(MIXED.places(x)) @ (np.ones(_N) if weights is None else weights)
        found = [collect(y, MIXED, epsilon=epsilon).estimate(phi, weights=weights) for y in releases[::step]]
        values, errors = np.array([f.value for f in found]), np.array([f.stderr for f in found])
        covered = np.mean([f.low <= truth <= f.high for f in found])
        return values - truth, errors, float(covered)

    for number, (phi, weights) in enumerate(QUERIES):
        missed, errors, covered = scores(phi, weights, epsilon)
        assert abs(missed.mean()) < Z * missed.std() / math.sqrt(_TRIALS)
        # The variance's own error, from the fourth moment.
        squares = (missed - missed.mean()) ** 2
        assert abs(squares.mean() - (errors**2).mean()) < Z * squares.std() / math.sqrt(_TRIALS)
        assert abs(covered - 0.95) < Z * math.sqrt(0.95 * 0.05 / _TRIALS) + 0.005
        if number == 0:
            copies = np.array([phi.at(MIXED.places(y)).sum() for y in releases]) - phi.at(MIXED.places(x)).sum()
            wrong, _, _ = scores(phi, weights, "1.2", step=3)
            for mutant in (copies, wrong):
                power = "the test must have power"
                assert abs(mutant.mean()) > Z * mutant.std() / math.sqrt(mutant.size), power


@pytest.mark.long
def test_averages_and_their_intervals() -> None:
    epsilon = "2"
    domain = Domain.of({"group": ["g", "h"], "v": [0, 1, 2, 10, None]})
    response = Response.of(domain.size, epsilon)
    rng = np.random.default_rng(41)
    x = rng.choice(domain.size, 2000, p=np.arange(1, 11) / 55)
    places = domain.places(x)
    known = where(domain, {"v": lambda v: True, "group": "h"})
    summed = value(domain, "v") * where(domain, {"group": "h"})
    truth = summed.at(places).sum() / known.at(places).sum()
    found = [estimate(answers(response, x, s), summed, domain, epsilon=epsilon, per=known) for s in range(600)]
    covered = np.mean([f.low <= truth <= f.high for f in found])
    assert abs(covered - 0.95) < Z * math.sqrt(0.95 * 0.05 / 600) + 0.005
    missed = np.array([f.value for f in found]) - truth
    assert np.mean([f.stderr for f in found]) == pytest.approx(missed.std(), rel=0.15)
    assert abs(missed.mean()) < Z * missed.std() / math.sqrt(600) + 0.01  # a ratio's bias is of order 1/n
    for f in found[:20]:  # the ends are where |S - r C| is just its quantile of standard errors
        y = answers(response, x, found.index(f))
        rows = collect(y, domain, epsilon=epsilon)
        for end in (f.low, f.high):
            at_end = rows.estimate(summed - known * end)
            assert abs(at_end.value) == pytest.approx(stats.norm.isf(0.025) * at_end.stderr, rel=1e-6)
        assert f.worst_stderr is None
    every = estimate(x, value(domain, "v"), domain, epsilon=100, per=constant(domain, 1))
    assert every.value == pytest.approx(value(domain, "v").at(places).mean())


def test_an_average_over_almost_nobody_has_no_bounds() -> None:
    domain = Domain.of({"g": ["a", "b"], "v": [1, 2]})
    y = answers(Response.of(4, 1), np.full(500, 3), 51)
    found = estimate(y, value(domain, "v") * where(domain, {"g": "a"}), domain, epsilon=1, per={"g": "a"})
    assert (found.low, found.high, found.stderr) == (-math.inf, math.inf, math.inf)
    with pytest.raises(DataError, match="denominator is zero"):
        estimate(y, {"g": "a"}, domain, epsilon=1, per={"g": []})


def test_rows_may_come_as_columns_records_or_numbers() -> None:
    rows = randomise_many({"group": ["g", "h", None] * 20, "v": [0, 1, 77] * 20}, MIXED, epsilon=1)
    records = [dict(zip(rows, r, strict=True)) for r in zip(*rows.values(), strict=True)]
    numbers = MIXED.encode(rows)
    forms = [
        {"v": [0, 1], "group": "g"},
        where(MIXED, {"group": "g", "v": [0, 1]}),
        lambda r: r["group"] == "g" and r["v"] in (0, 1),
    ]
    found = {
        round(estimate(given, phi, MIXED, epsilon=1).value, 9)  # type: ignore[arg-type]
        for given in (rows, records, numbers, numbers.astype(np.uint8))
        for phi in forms
    }
    assert len(found) == 1
    assert estimate([], {"group": "g"}, MIXED, epsilon=1).value == 0


def test_thirty_questions_of_one_release() -> None:
    domain = Domain.of({"a": range(5), "b": range(6), "c": ["x", "y", None]})
    rng = np.random.default_rng(61)
    x = {"a": rng.integers(0, 5, 60_000), "b": rng.integers(0, 6, 60_000), "c": rng.choice(["x", "y"], 60_000)}
    y = domain.decode(answers(Response.of(domain.size, 4), domain.encode(x), 62))
    rows = collect(y, domain, epsilon=4)
    for a, b in itertools.product(range(5), range(6)):
        found = rows.estimate({"a": a, "b": lambda v, b=b: v <= b, "c": "x"})
        truth = int(((x["a"] == a) & (x["b"] <= b) & (x["c"] == "x")).sum())
        assert abs(found.value - truth) < 5.5 * found.stderr
        assert found.worst_stderr is not None
        assert 0 < found.stderr <= found.worst_stderr


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r: r.estimate({"w": 1}), Exception, "not part of this release"),
        (lambda r: r.estimate(3), InterfaceError, "phi must be"),
        (lambda r: r.estimate(value(TINY, "v")), InterfaceError, "another domain"),
        (lambda r: r.estimate({"a": 1}, alpha=0), DataError, "alpha"),
        (lambda r: r.estimate({"a": 1}, alpha=1.0), DataError, "alpha"),
        (lambda r: r.estimate({"a": 1}, weights=[1.0]), InterfaceError, "3 rows"),
        (lambda r: r.estimate({"a": 1}, weights=["x"] * 3), InterfaceError, "numbers"),
        (lambda r: r.estimate({"a": 1}, weights=[1, 2, math.nan]), DataError, "finite"),
        (lambda r: r.estimate({"a": 1}, weights=[1, 2, 3], proper=True), InterfaceError, "subsets"),
        (lambda r: r.estimate(value(PAIR, "a") * 2, proper=True), InterfaceError, "0 or 1"),
        (lambda r: r.estimate({"a": 1}, per={"b": "x"}, proper=True), InterfaceError, "for counts"),
        (lambda r: collect("rows", PAIR, epsilon=1), InterfaceError, "columns"),
        (lambda r: collect([1, 2], PAIR, epsilon=1), InterfaceError, "columns"),
        (lambda r: collect([{"a": 1}], PAIR, epsilon=1), InterfaceError, "row 0 has no column 'b'"),
        (lambda r: collect({"a": [1]}, PAIR, epsilon=1), InterfaceError, "'b' is missing"),
        (lambda r: collect({"a": [3], "b": ["x"]}, PAIR, epsilon=1), DataError, "outside the domain"),
        (lambda r: collect(np.array([4]), PAIR, epsilon=1), DataError, "between 0 and 3"),
        (lambda r: collect(np.array([-1]), PAIR, epsilon=1), DataError, "between 0 and 3"),
        (lambda r: collect(np.array([2**63], dtype=np.uint64), PAIR, epsilon=1), DataError, "between 0 and 3"),
        (lambda r: collect([], PAIR, epsilon=0), DataError, "epsilon"),
    ],
)
def test_bad_questions_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(collect(np.array([0, 1, 2]), PAIR, epsilon=1))


def test_numbers_of_sums_are_those_of_the_categories() -> None:
    doses = Domain.of({"dose": [0.1, 0.5]})
    found = estimate([{"dose": Decimal("0.5")}] * 4, value(doses, "dose"), doses, epsilon=100)
    assert found.value == pytest.approx(2.0)
