"""How much memory do running totals of an unbounded stream take, and how far off are they?

    python benchmarks/stream.py [STEPS]

For the figure alone: between two releases of dpsql no noise may be kept, nor may sums of rows without it, so that a
horizon reads its periods again instead. The noise is drawn from a seeded generator and protects nobody.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np


def memory() -> float:
    """The most megabytes that this process has held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def stream(steps: int) -> None:
    """Print the errors after 1,024 and after all steps.

    The noise is R z, R Toeplitz with sums of few exponentials near (1 - z)^-1/2.

    r_k = (1 / pi) int_0^1 l^k l^-1/2 (1 - l)^-1/2 dl by the trapezoid rule after l = 1 / (1 + exp(-u)): poles l_i and
    weights w_i, and (R z)_t = sum_i w_i s_i with s_i <- l_i s_i + z_t. C = R^-1 times running totals has the
    coefficients c of 1 / ((1 - z) r(z)), by the same recurrence; the error is |c| |r|, exact for any poles. Sums of
    exponentials are the buffered linear Toeplitz matrices of Dvijotham, McMahan, Pillutla, Steinke and Thakurta (2024,
    arXiv 2404.16706), whose poles are searched for; these are not.
    """
    began = time.perf_counter()
    u = np.arange(-26.0, 33.0, 1.25)
    poles = 1.0 / (1.0 + np.exp(-u))
    weights = 1.25 / math.pi * np.sqrt(poles) * np.exp(-np.logaddexp(0.0, u) / 2)
    first, c, squares, held, impulse = float(weights.sum()), 0.0, [0.0, 0.0], np.zeros(len(u)), np.ones(len(u))
    noisy, total, draw = np.zeros(len(u)), 0.0, np.random.default_rng(1)
    for step in range(steps):
        # c_t = (1 - sum_(k >= 1) r_k c_(t-k)) / r_0: the sums so far, one step on.
        held *= poles
        c = (1.0 - float(weights @ held)) / first
        held += c
        squares[0] += c * c
        squares[1] += float(weights @ impulse) ** 2
        impulse *= poles
        noisy = noisy * poles + draw.standard_normal()
        total = float(weights @ noisy)
        if step + 1 in (1024, steps):
            n, largest = step + 1, math.sqrt(squares[0] * squares[1])
            print(
                f"| {n:,} | {len(u)} | {largest:.4f} | {largest - math.log(n) / math.pi:.4f} | "
                f"{memory():.0f} | {time.perf_counter() - began:.0f} |"
            )
    assert math.isfinite(total)


if __name__ == "__main__":
    print("| running totals | states | largest | less ln n / pi | process MB | seconds |")
    print("|---:|---:|---:|---:|---:|---:|")
    stream(int(sys.argv[1]) if sys.argv[1:] else 10**6)
