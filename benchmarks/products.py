"""Claim: products of one-dimensional queries over sets of columns are planned without the cells, and certified.

    python benchmarks/products.py [columns values ...] [--max]

Workloads a x b over all pairs of columns with Gaussian noise: prefixes, ranges, points beside prefixes, and columns of
unlike kinds. For each the measurements, CPU seconds of the selection, the total squared error over the lower bound
(certified: no Gaussian matrix mechanism has less than the error over 1 + gap), and two simple strategies of the same
room over that bound: every pair planned by itself with an equal share, and every residual centred evenly, which is what
was planned before columns had centres. ``--max`` plans for the least largest error instead. No other library is run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from dpsql import strategy, workload
from dpsql.workloads.families.matrix import Workload

SHAPES = [(2, 10), (5, 10), (10, 10), (20, 20)]


def mixed(n: int) -> Workload:
    """Every point, weighted 3, beside the prefixes."""
    return workload.stack(workload.prefix(n), workload.weighted(workload.identity(n), 3.0))


KINDS: dict[str, Callable[[int, int], Workload]] = {
    "prefix x prefix": lambda _, n: workload.prefix(n),
    "range x range": lambda _, n: workload.all_range(n),
    "points and prefixes": lambda _, n: mixed(n),
    "of unlike kinds": lambda i, n: (workload.prefix, workload.all_range, workload.identity, mixed)[i % 4](n),
}


def alone(columns: list[Workload]) -> float:
    """The error of every pair planned by itself, all with an equal share: pairs x the sum of products of optima."""
    each = np.array([strategy.select(W).expected for W in columns])
    pairs = [each[i] * each[j] for i in range(len(each)) for j in range(i)]
    return len(pairs) * float(np.sum(pairs))


def evenly(batch: object) -> float:
    """The error with all centres even."""
    with (
        mock.patch("dpsql.strategies.kronecker.structured.centres_of", return_value={}),
        mock.patch("dpsql.strategies.kronecker.structured_bound.structured_bound", return_value=None),
    ):
        return strategy.select(batch).expected  # type: ignore[call-overload, no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="*", type=int, help="columns and values of each, in pairs")
    parser.add_argument("--max", action="store_true", help="the largest error instead of the total one")
    options = parser.parse_args()
    shapes = list(zip(options.shape[::2], options.shape[1::2], strict=True)) or SHAPES
    print("| queries | columns | values | measured | CPU s | error / bound | even centres | pairs apart |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, kind in KINDS.items():
        for d, n in shapes:
            columns = [kind(i, n) for i in range(d)]
            batch = workload.products(*columns, order=2)
            began = time.process_time()
            S = strategy.select(batch, objective="max" if options.max else "total")
            spent = time.process_time() - began
            bound = S.lower_bound or float("nan")
            rest = "" if options.max else f"{evenly(batch) / bound:.4f} | {alone(columns) / bound:.3f}"
            print(
                f"| {name} | {d} | {n} | {S.shape[0]:,} | {spent:.1f} | {S.value / bound:.4f} | {rest or ' | '} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
