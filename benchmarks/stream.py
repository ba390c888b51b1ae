"""How much memory do running totals of a long stream take, step by step, and how far off are they?

    python benchmarks/stream.py [STEPS]        10^6 if left out

For the figure alone: between two releases of dpsql no noise may be kept, nor may sums of rows without it, so that a
horizon reads its periods again instead. The noise is drawn from a seeded generator and protects nobody.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCK = 512
"""Steps that are worked out at once; the state between blocks is all that a stream keeps."""


def memory() -> float:
    """The most megabytes that this process has held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def exponentials() -> tuple[Floats, Floats]:
    """Poles and weights, (48,) each: sum_i w_i l_i^k is near the coefficients of (1 - z)^-1/2.

    (1 / pi) int_0^1 l^k l^-1/2 (1 - l)^-1/2 dl by the trapezoid rule after l = 1 / (1 + exp(-u)). Sums of exponentials
    are the buffered linear Toeplitz matrices of Dvijotham, McMahan, Pillutla, Steinke and Thakurta (2024, arXiv
    2404.16706), whose poles are searched for; these are not.
    """
    u = np.arange(-26.0, 33.0, 1.25)
    poles = 1.0 / (1.0 + np.exp(-u))
    return poles, 1.25 / math.pi * np.sqrt(poles) * np.exp(-np.logaddexp(0.0, u) / 2)


def inverse(f: Floats) -> Floats:
    """The coefficients of 1 / f, as many."""
    found = np.zeros(len(f))
    found[0] = 1.0 / f[0]
    for k in range(1, len(f)):
        found[k] = -float(f[1 : k + 1] @ found[k - 1 :: -1][:k]) / f[0]
    return found


class Filter:
    """x with T x = b, T lower triangular and Toeplitz with the column sum_i w_i l_i^k, a block of b after the other.

    Its state is one sum for each exponential: of x so far, discounted.
    """

    def __init__(self, poles: Floats, weights: Floats) -> None:
        k = np.arange(BLOCK)
        powers = poles[:, None] ** k  # (states, block)
        self.ahead = (poles[:, None] ** (k + 1)).T * weights  # what the state adds to each step of a block
        self.kept = powers[:, ::-1]
        self.faded = poles**BLOCK
        g = inverse(weights @ powers)
        self.solved = np.zeros((BLOCK, BLOCK))
        for at in range(BLOCK):
            self.solved[at, : at + 1] = g[at::-1]
        self.state = np.zeros(len(poles))

    def next(self, b: Floats) -> Floats:
        x = self.solved @ (b - self.ahead @ self.state)
        self.state = self.faded * self.state + self.kept @ x
        return np.asarray(x)


def coefficients(poles: Floats, weights: Floats, first: int) -> Floats:
    """A block of f(k) from ``first`` on."""
    return np.asarray(np.exp(np.outer(np.arange(first, first + BLOCK), np.log(poles))) @ weights)


def stream(steps: int) -> None:
    """Print the largest errors of all steps, of T and of T with columns of one norm.

    The noise of the totals is A C^-1 z. With C = T that is R z, R = A T^-1 Toeplitz; its largest error is |f| |r|, r
    the column of R. With C = T diag(1 / d), d_s = |f(0), ..., f(n - 1 - s)|, as n is known, it is the running total of
    d_s (T^-1 z)_s, at |C| = 1; its error after step t is |sum_(t >= s >= j) d_s g(s - j)|_j, g the column of T^-1: by
    a convolution each, once the stream is over, for 9 of the steps, between which it hardly changes (it is largest near
    the 57th of 100, by all steps of 1,024).
    """
    poles, weights = exponentials()
    squares = sum(float((coefficients(poles, weights, at)[: steps - at] ** 2).sum()) for at in range(0, steps, BLOCK))
    plain, noise, impulse = (Filter(poles, weights) for _ in range(3))
    draw, totals, left, began = np.random.default_rng(1), np.zeros(2), squares, time.perf_counter()
    r_squares, reached, used = 0.0, {}, 0.0
    for at in range(0, steps, BLOCK):
        many = min(BLOCK, steps - at)
        # d_s^2 is what is left of the squares of f, whose last ones go first.
        tail = coefficients(poles, weights, max(steps - at - BLOCK, 0))[: min(BLOCK, steps - at)][::-1]
        lengths = np.sqrt(np.maximum(left - np.concatenate([[0.0], np.cumsum(tail**2)[:-1]]), 0.0))
        left -= float((tail**2).sum())
        z = np.zeros(BLOCK)
        z[:many] = draw.standard_normal(many)
        u = noise.next(z)[:many]
        totals += (float(u.sum()), float((lengths * u).sum()))
        r = plain.next(np.ones(BLOCK))[:many]
        r_squares += float((r * r).sum())
        if at <= 1024 <= at + many:
            first = math.sqrt(r_squares - float((r[1024 - at :] ** 2).sum()))
            f = np.concatenate([coefficients(poles, weights, 0), coefficients(poles, weights, BLOCK)])
            reached[1024] = first * math.sqrt(float((f * f).sum()))
    used, taken = memory(), time.perf_counter() - began
    reached[steps] = math.sqrt(squares * r_squares)
    assert np.isfinite(totals).all()
    for n, largest in reached.items():
        row(f"{n:,} steps, T", largest, n)
    g = np.concatenate([impulse.next(np.eye(1, BLOCK)[0] * (at == 0)) for at in range(0, steps, BLOCK)])[:steps]
    f = np.concatenate([coefficients(poles, weights, at) for at in range(0, steps, BLOCK)])[:steps]
    d = np.sqrt(np.cumsum(f * f))[::-1]
    size, errors = 1 << (2 * steps - 1).bit_length(), list[float]()
    waves = np.conj(np.fft.rfft(g, size))
    for share in (0.3, 0.4, 0.5, 0.55, 0.57, 0.6, 0.7, 0.8, 1.0):
        held = np.where(np.arange(steps) < round(share * steps), d, 0.0)
        found = np.fft.irfft(np.fft.rfft(held, size) * waves, size)[:steps]
        errors.append(math.sqrt(float((found * found).sum())))
    row(f"{steps:,} steps, columns of one norm", max(errors), steps)
    print(f"\n{len(poles)} numbers of state; the stream took {used:.0f} MB of memory at most, and {taken:.1f} s.")


def row(name: str, largest: float, n: int) -> None:
    over = largest - math.log(n) / math.pi
    print(f"| {name} | {largest:.4f} | {over:.4f} |", flush=True)


if __name__ == "__main__":
    print("| running totals | largest error | less ln n / pi (published: 0.701 to 0.846) |")
    print("|---|---:|---:|")
    stream(int(sys.argv[1]) if sys.argv[1:] else 10**6)
