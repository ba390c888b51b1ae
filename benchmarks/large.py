"""How long does it take to plan, measure and reconstruct what no matrix could hold, and how near is the least error?

    python benchmarks/large.py [--quick]

Prints Markdown. ``measure`` is B x in exact integers, ``noise`` the draw of the rounded Gaussian noise from the
system's entropy at mu = 0.1, ``reconstruct`` the least squares estimate of every cell (or marginal). ``rms`` is
the root mean squared error over 1,000 random ranges (over all numbers of all marginals) beside what was predicted
for the whole workload, ``exact`` whether the estimate without noise gives the data back to 1e-6.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from fractions import Fraction
from itertools import combinations

import numpy as np
import scipy

from dpsql import bounds, strategy, workload
from dpsql.privacy.noise import gaussian_noise

MU_SQUARED = Fraction(1, 100)
HEAD = ("workload", "numbers", "select s", "measure s", "noise s", "reconstruct s", "sum s", "error / SVD bound")


def line(name: str, numbers: int, seconds: list[float], ratio: float, gap: float, rms: tuple[float, float]) -> str:
    cells = [name, f"{numbers:,}", *(f"{s:.2f}" for s in (*seconds, sum(seconds))), f"{ratio:.5f}", f"{gap:.1e}"]
    return f"| {' | '.join([*cells, f'{rms[0]:.4g}', f'{rms[1]:.4g}'])} |"


def ranges(n: int) -> tuple[str, bool]:
    """All ranges over n cells, all in one selection."""
    x = np.random.default_rng(n).integers(0, 1000, size=n)
    times = [time.perf_counter()]
    W = workload.all_range(n)
    S = strategy.select(W)
    assert isinstance(S, strategy.RangeStrategy)
    times.append(time.perf_counter())
    exact = S.integers(x)
    times.append(time.perf_counter())
    noise = gaussian_noise(S.l2_squared, MU_SQUARED).sample(len(exact))
    times.append(time.perf_counter())
    found = S.solve([v + z for v, z in zip(exact, noise, strict=True)])
    times.append(time.perf_counter())
    ends = np.sort(np.random.default_rng(1).integers(0, n, size=(1000, 2)), axis=1)
    errors = S.answers(found - x, ends[:, 0], ends[:, 1])
    predicted = np.sqrt(S.expected / float(MU_SQUARED) / W.shape[0])
    right = bool(np.abs(S.solve(exact) - x).max() < 1e-6)
    rms = (float(np.sqrt((errors**2).mean())), float(predicted))
    ratio = S.expected / bounds.svd_bound(W)
    return line(f"AllRange({n})", n, np.diff(times).tolist(), ratio, S.gap or 0.0, rms), right


def marginals(attributes: int, values: int, order: int) -> tuple[str, bool]:
    """All marginals up to ``order`` of synthetic rows: the tables of the highest order are given."""
    rows = np.random.default_rng(0).integers(0, values, size=(20_000, attributes))
    shape = (values,) * order
    tables = {}
    for S in combinations(range(attributes), order):
        place = np.ravel_multi_index(tuple(rows[:, i] for i in S), shape)
        tables[S] = np.bincount(place, minlength=values**order).reshape(shape)
    times = [time.perf_counter()]
    W = workload.marginals([values] * attributes, range(1, order + 1))
    R = strategy.residual_strategy(W)
    times.append(time.perf_counter())
    exact = R.integers(tables)
    times.append(time.perf_counter())
    noise = gaussian_noise(R.l2_squared, MU_SQUARED).sample(len(exact))
    times.append(time.perf_counter())
    found = R.solve([v + z for v, z in zip(exact, noise, strict=True)])
    times.append(time.perf_counter())
    errors = np.concatenate([(found[S] - tables[S]).ravel() for S in tables])
    predicted = np.sqrt(float(R.variance(next(iter(tables))) * R.l2_squared / MU_SQUARED))
    clean = R.solve(exact)
    right = all(float(np.abs(clean[S] - tables[S]).max()) < 1e-6 for S in tables)
    rms = (float(np.sqrt((errors**2).mean())), float(predicted))
    name = f"{len(W.sets):,} marginals to order {order}, {attributes} attributes of {values}"
    ratio = R.expected / bounds.svd_bound(W)
    return line(name, R.shape[0], np.diff(times).tolist(), ratio, R.gap, rms), right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out a million cells")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; numpy {np.__version__}, scipy {scipy.__version__}, ", end="")
    print(f"Python {platform.python_version()}\n")
    print(f"| {' | '.join(HEAD)} | gap | rms | predicted | exact |")
    print("|---" * (len(HEAD) + 4) + "|")
    wrong = 0
    cases = [(ranges, (2**e,)) for e in ((14, 17) if options.quick else (14, 17, 20))]
    for make, arguments in [*cases, (marginals, (20, 10, 2)), (marginals, (20, 10, 3))]:
        text, right = make(*arguments)
        wrong += not right
        print(f"{text} {'yes' if right else 'no'} |", flush=True)
    print(f"\nprocessor seconds of all rows: {time.process_time():.1f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
