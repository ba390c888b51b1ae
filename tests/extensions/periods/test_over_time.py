"""What is measured over a horizon: exact norms, a true inverse, and how near the least error of any mechanism it is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql import strategy, workload
from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.extensions.periods import horizon_strategy as over_time
from dpsql.extensions.periods.horizon_strategy import least_endless, least_over_time
from dpsql.linalg.over_time import BITS, LONGEST, OverTime


def written(held: OverTime) -> Floats:
    found = np.zeros((len(held), len(held)))
    for at in range(len(held)):
        found[at, : at + 1] = held.row(at)
    return found


def windows(n: int, lengths: tuple[int, ...]) -> list[Floats]:
    ones = np.ones((n, n))
    return [np.tril(ones) - np.tril(ones, -length) for length in lengths]


@pytest.mark.parametrize(
    "held",
    [
        OverTime((5, 3, -2, 1), (1, 2, 3, 3, 4, 1)),
        OverTime((7,), (2, 3)),
        OverTime((2, 1), (1,) * 5),
        least_over_time(30, [7]).measured,
        least_over_time(24, [3], bands=6).measured,
    ],
)
def test_norms_inverse_and_errors_are_those_of_the_matrix(held: OverTime) -> None:
    C, n = written(held), len(held)
    assert held.l2_squared == max(sum(int(v) ** 2 for v in column) for column in C.T.tolist())
    inverse = np.linalg.inv(C)
    for at in range(n):
        assert np.allclose(held.weights(at), inverse[at, : at + 1], rtol=1e-9, atol=1e-15)
    for length in {1, 2, n}:
        (W,) = windows(n, (length,))
        assert np.allclose(held.spread(length), held.l2_squared * ((W @ inverse) ** 2).sum(axis=1))


def test_bands_are_all_that_a_measurement_reads() -> None:
    held = least_over_time(24, [3], bands=6).measured
    assert np.count_nonzero(written(held)[-1]) == 6


@pytest.mark.parametrize(("n", "lengths", "gap"), [(48, (), 0.04), (48, (12,), 0.03), (90, (7, 30), 0.02)])
def test_the_error_is_near_the_certified_least(n: int, lengths: tuple[int, ...], gap: float) -> None:
    """Beside the optimum of all matrix mechanisms, whose Cholesky root is lower triangular and as good."""
    found = least_over_time(n, lengths)
    parts = windows(n, (*sorted(lengths), n))
    share = [1 / (len(parts) * np.linalg.svd(W, compute_uv=False).sum() ** 2 / n) for W in parts]
    best = strategy.select(
        workload.Workload.from_rows(
            sparse.csr_array(np.concatenate(parts).astype(np.int64)), np.sqrt(np.repeat(share, n))
        ),
        tolerance=1e-4,
    )
    assert best.lower_bound is not None
    assert found.lower <= best.expected * (1 + 1e-9)
    assert best.lower_bound <= found.error * (1 + 1e-9)
    assert found.error <= (1 + gap) * best.expected
    # Not better by a root's accident: releases of each period alone have far more.
    alone = sum(
        s * np.minimum(np.arange(1, n + 1), length).sum() for s, length in zip(share, (*lengths, n), strict=True)
    )
    assert found.error < 0.6 * alone


@pytest.mark.parametrize("windows", [(7,), (3, 12), (1, 30, 90)])
def test_an_endless_horizon_pays_once_and_forgets(windows: tuple[int, ...]) -> None:
    held, n = least_endless(windows), 8 * max(windows)
    C = np.array([[*held.row(at), *[0] * (n - 1 - at)] for at in range(n)], dtype=np.float64)
    # A period that was read for the last time has paid for all of its column, and none pays more.
    norms = [sum(int(v) ** 2 for v in column) for column in C.T.tolist()]
    assert max(norms) == held.l2_squared == norms[n // 2]
    assert [at for at, v in enumerate(held.row(n - 1)) if v] == list(held.reads(n - 1))
    assert len(held.reads(n - 1)) == max(windows)
    inverse = np.linalg.inv(C)
    assert np.allclose(held.weights(n - 1), inverse[-1], rtol=1e-9, atol=1e-15)
    root = OverTime(tuple(np.rint(over_time._root(max(windows)) * 2**16).astype(int).tolist()), ())
    for window in windows:
        sums = inverse[n - window :].sum(axis=0)
        assert held.settled(window) == pytest.approx(held.l2_squared * float(sums @ sums), rel=1e-3)
        # Never above the root from which it starts by more than another window gains.
        assert held.settled(window) <= 1.3 * root.settled(window)
    gains = [held.settled(window) / root.settled(window) for window in windows]
    assert np.mean(gains) <= 1.0
    assert held.settled(windows[-1]) < 0.8 * windows[-1] or windows == (7,)
    assert held.stable


def test_slopes_of_an_endless_horizon_are_those_of_its_error() -> None:
    f, step = over_time._root(9) + 0.01 * np.cos(np.arange(9)), 1e-6
    value, slope = over_time._settled(f, (2, 5), (0.3, 2.0))
    found = [(over_time._settled(f + step * e, (2, 5), (0.3, 2.0))[0] - value) / step for e in np.eye(9)]
    assert np.allclose(found, slope, rtol=1e-4, atol=1e-4 * np.abs(slope).max())
    with pytest.raises(DataError, match="an endless horizon has windows of 1 to"):
        least_endless(())


def test_slopes_are_those_of_the_error() -> None:
    f, n = 1 / np.arange(1.0, 8.0), 12
    value, slope = over_time._error(f, n, (4, n), (0.3, 2.0))
    assert value > 0
    step = 1e-6
    for k, unit in enumerate(step * np.eye(f.size)):
        up, down = (over_time._error(f + sign * unit, n, (4, n), (0.3, 2.0))[0] for sign in (1, -1))
        assert slope[k] == pytest.approx((up - down) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(
    ("n", "lengths", "bands"), [(0, (), None), (LONGEST + 1, (), None), (9, (10,), None), (9, (0,), None), (9, (), 10)]
)
def test_what_is_no_horizon_is_refused(n: int, lengths: tuple[int, ...], bands: int | None) -> None:
    with pytest.raises(DataError, match="a horizon has 1 to"):
        least_over_time(n, lengths, bands)


@pytest.mark.parametrize(
    ("kernel", "factors"),
    [((), (1,)), ((0, 1), (1, 1)), ((1,), (0,)), ((1, 1), (1,)), ((True,), (1,)), ((2**41,), (1,))],
)
def test_what_is_no_such_matrix_is_refused(kernel: tuple[int, ...], factors: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="linalg:"):
        OverTime(kernel, factors)


@pytest.mark.parametrize(
    "held", [least_over_time(9, (3,)).measured, least_over_time(8, (), 3).measured, least_endless((4,))]
)
def test_estimates_carried_on_are_those_of_all_measurements(held: OverTime) -> None:
    """What a period keeps of those before it is all that the next ones need: to 12 digits, of however long a past."""
    draw, n = np.random.default_rng(3), len(held) or 200
    y = draw.integers(-(10**12), 10**12, (n, 3))
    found: dict[int, tuple[int, ...]] = {}
    for at in range(n):
        few = {place: found[place] for place in held.reads(at)[:-1]}
        found[at] = held.estimate(at, y[at].tolist(), held.before(at, few))
        wanted = held.weights(at) @ y[: at + 1].astype(float)
        assert np.array(found[at], dtype=float) / 2.0**BITS == pytest.approx(wanted, rel=1e-10, abs=1e-6)
