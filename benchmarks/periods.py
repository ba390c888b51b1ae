"""How far off are totals and windows of a table that grows, by what is measured after each period?

    python benchmarks/periods.py [--quick]

Prints Markdown. Constants: the root of the largest and of the mean squared error over n running totals at sensitivity
1, which published figures are of. Trends: 1,000 days of the flights of 2013, repeated, at epsilon 1 and delta 1e-9 for
a row, noise drawn by the law that releases draw it by; the root mean squared error of totals of 30 and 365 days and of
sliding windows, each day alone, over a horizon of 1,000 days, and in one release of all days after the last. Endless:
the same errors of a horizon without a last day. Streams: stream.py, 10^6 running totals.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
from data import flights_path
from numpy.typing import NDArray
from scipy import linalg, sparse

from dpsql import strategy, workload
from dpsql.extensions.periods.horizon_strategy import _norms, least_endless, least_over_time
from dpsql.linalg.over_time import OverTime
from dpsql.privacy.accountant import Budget, Request, charge_for

DAYS, WINDOWS = 1_000, (7, 30, 365)
STREAM = 10**6
Floats = NDArray[np.float64]


def root(n: int) -> Floats:
    """The coefficients of (1 - z)^-1/2."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))])


def totals(C: Floats) -> tuple[float, float]:
    """(largest, mean) root of the squared error of running totals by C, over the longest column."""
    R = np.cumsum(linalg.solve_triangular(C, np.eye(len(C)), lower=True), axis=0)
    errors = (R * R).sum(axis=1) * (C * C).sum(axis=0).max()
    return float(np.sqrt(errors.max())), float(np.sqrt(errors.mean()))


def causal(X: Floats) -> Floats:
    """The lower triangular C with C^T C = X."""
    return np.asarray(np.linalg.cholesky(X[::-1, ::-1])[::-1, ::-1].T)


def written(held: OverTime) -> Floats:
    found = np.zeros((len(held), len(held)))
    for at in range(len(held)):
        found[at, : at + 1] = held.row(at)
    return found


def constants(n: int) -> None:
    """The table of one length."""
    f = root(n)
    T = linalg.toeplitz(f, np.zeros(n))
    W = workload.prefix(n)
    rows: list[tuple[str, float, float, float]] = []

    def add(name: str, C: Floats, began: float) -> None:
        rows.append((name, *totals(C), time.perf_counter() - began))

    began = time.perf_counter()
    add("each period alone", np.eye(n), began)
    add("square root (1 - z)^-1/2", T, began)
    add("the same, columns of one norm", T / _norms(f, n), began)
    began = time.perf_counter()
    add("horizon", written(least_over_time(n, ()).measured), began)
    for bands in (n // 16, n // 4):
        began = time.perf_counter()
        add(f"horizon of {bands} bands", written(least_over_time(n, (), bands).measured), began)
    lowers = {}
    for objective in ("total", "max"):
        began = time.perf_counter()
        best = strategy.select(W, objective=objective, tolerance=1e-3)
        B = np.asarray(best.mixing @ best.basis.toarray(), dtype=np.float64)
        add(
            f"least {'mean' if objective == 'total' else 'largest'}, certified, lower triangular",
            causal(B.T @ B),
            began,
        )
        lowers[objective] = best.lower_bound or 0.0
    least = math.sqrt(lowers["max"]), math.sqrt(lowers["total"] / n)
    print(f"\n{n:,} running totals: ln n / pi = {math.log(n) / math.pi:.4f}\n")
    print("| measured | largest | less ln n / pi | over the least | mean | over the least | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, largest, mean, seconds in rows:
        over = (f"{largest - math.log(n) / math.pi:.4f}", f"{largest / least[0]:.4f}", f"{mean:.4f}")
        print(f"| {name} | {largest:.4f} | {' | '.join(over)} | {mean / least[1]:.4f} | {seconds:.1f} |")
    print(
        f"| no matrix mechanism has less | {least[0]:.4f} | {least[0] - math.log(n) / math.pi:.4f} | | {least[1]:.4f} |"
    )
    published = math.log(n) / math.pi + 0.846
    print(f"\nPublished, explicit: {published:.4f}; the horizon's largest is {rows[3][1] / published - 1:+.2%} of it.")


def days() -> Floats:
    """Flights of each of 1,000 days: 2013, repeated."""
    text = "SELECT COUNT(*) FROM read_parquet(?) GROUP BY month, day ORDER BY month, day"
    with duckdb.connect() as con:
        year = [float(row[0]) for row in con.execute(text, [str(flights_path())]).fetchall()]
    return np.resize(np.array(year), DAYS)


def rmse(error: Floats) -> list[float]:
    """Of an error of each day (days x draws): totals of months and years, sliding windows, all so far."""
    found = []
    for length in (30, 365):
        whole = error[: DAYS // length * length].reshape(-1, length, error.shape[1]).sum(axis=1)
        found.append(float(np.sqrt((whole**2).mean())))
    sums = np.concatenate([np.zeros((1, error.shape[1])), np.cumsum(error, axis=0)])
    found += [float(np.sqrt(((sums[length:] - sums[:-length]) ** 2).mean())) for length in WINDOWS]
    return [*found, float(np.sqrt((sums[1:] ** 2).mean()))]


def trends(draws: int) -> None:
    """The table of errors, from y = C x + noise as it is released."""
    (gaussian,) = charge_for(Request.of("1"), Budget.of("1", "1e-9"))
    (laplace,) = charge_for(Request.of("1"), Budget.of("1"))
    x = days()
    print(f"\n{x.sum():,.0f} flights on {DAYS:,} days, {draws} draws of all noise\n")
    print("| measured | 30 days | 365 days | 7 sliding | 30 sliding | 365 sliding | all so far | each day |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")

    def line(name: str, error: Floats, note: str = "") -> None:
        shown = [f"{value:.1f}" for value in (*rmse(error), float(np.sqrt((error**2).mean())))]
        print(f"| {name}{note} | {' | '.join(shown)} |")

    for said, charge in (("", gaussian), (", Laplace: another policy, without delta", laplace)):
        noise = charge.calibrate(1)
        line(f"each day alone{said}", np.array([noise.sample(DAYS) for _ in range(draws)], dtype=np.float64).T)
    for name, lengths, bands in (
        ("horizon, totals so far", (), None),
        ("horizon, windows of 7, 30, 365", WINDOWS, None),
        ("the same, 64 bands", WINDOWS, 64),
    ):
        held = least_over_time(DAYS, lengths, bands)
        C, noise = written(held.measured), gaussian.calibrate(held.measured.l2_squared)
        y = np.array([[int(v) + z for v, z in zip(C @ x, noise.sample(DAYS), strict=True)] for _ in range(draws)])
        note = f" ({held.error / held.lower - 1:.1%} above the bound)"
        line(name, linalg.solve_triangular(C, y.T.astype(np.float64), lower=True) - x[:, None], note)
        expected = [np.sqrt(held.measured.spread(k)[k - 1 :].mean() / float(gaussian.mu_squared)) for k in WINDOWS]
        print(f"| as planned | | | {' | '.join(f'{value:.1f}' for value in expected)} | | |")
    parts = [np.tril(np.ones((DAYS, DAYS))) - np.tril(np.ones((DAYS, DAYS)), -k) for k in (*WINDOWS, DAYS)]
    share = [1 / np.linalg.svd(W, compute_uv=False).sum() for W in parts]
    W = workload.Workload.from_rows(
        sparse.csr_array(np.concatenate(parts).astype(np.int64)), np.repeat(np.array(share), DAYS)
    )
    best = strategy.select(W, tolerance=1e-2)
    B = np.asarray(best.mixing @ best.basis.toarray(), dtype=np.float64)
    drawn = np.array([gaussian.calibrate(best.l2_squared).sample(len(B)) for _ in range(draws)], dtype=np.float64).T
    line("one release of all days", np.linalg.pinv(B) @ drawn)


def endless() -> None:
    """The table of windows of an endless horizon, beside one of as many days as are asked and each day alone."""
    print("\nRoot of the squared error of sums over windows at sensitivity 1; endless horizons read as many")
    print("periods a release as their longest window has, a horizon of 1,000 reads all so far.\n")
    print("| windows | of | alone | horizon of 1,000, last | endless | over the horizon | column's memory | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for windows in ((12,), (7, 30), WINDOWS):
        began = time.perf_counter()
        held = least_endless(windows)
        taken = time.perf_counter() - began
        ended = least_over_time(DAYS, windows).measured
        for window in windows:
            last, goes_on = math.sqrt(ended.spread(window)[-1]), math.sqrt(held.settled(window))
            figures = f"{math.sqrt(window):.3f} | {last:.3f} | {goes_on:.3f} | {goes_on / last - 1:+.1%}"
            print(f"| {', '.join(map(str, windows))} | {window} | {figures} | {len(held.kernel)} | {taken:.1f} |")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--quick", action="store_true", help="fewer draws, lengths and steps")
    options.add_argument("--part", choices=("constants", "trends", "endless"), help="one part alone")
    given = options.parse_args()
    if given.part in (None, "constants"):
        for n in (256,) if given.quick else (256, 1024):
            constants(n)
    if given.part in (None, "trends"):
        trends(5 if given.quick else 40)
    if given.part in (None, "endless"):
        endless()
    if given.part is None:  # a process of its own, whose memory is the stream's
        print(flush=True)
        steps = str(10_000 if given.quick else STREAM)
        subprocess.run([sys.executable, str(Path(__file__).with_name("stream.py")), steps], check=True)


if __name__ == "__main__":
    main()
