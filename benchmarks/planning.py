"""How long does planning take, in units of one symmetric eigendecomposition, and how far from the least error?

    python benchmarks/planning.py [--quick] [--laplace]

Prints a Markdown table: seconds, seconds / seconds of one ``scipy.linalg.eigh`` of order
1024 (or of the stated order) timed in the same run, the certified gap, and error / SVD bound.
The number of BLAS threads decides both sides of the ratio and is stated with it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable

import numpy as np
import scipy
from scipy import linalg, sparse

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.workload import Workload


def eigh_seconds(order: int, repeats: int = 3) -> float:
    """Seconds of one eigh of a random positive definite matrix, the median of a few."""
    rng = np.random.default_rng(order)
    M = rng.normal(size=(order, order))
    M = M @ M.T
    linalg.eigh(M)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        linalg.eigh(M)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def product_batch(sizes: tuple[int, ...], ranges: int, seed: int) -> Workload:
    """Ranges over the first axis, then group-bys: second, second x third, fourth axis."""
    rng = np.random.default_rng(seed)
    first = sizes[0]
    ends = np.sort(rng.choice(first + 1, size=(ranges, 2)), axis=1)
    ends[:, 1] += ends[:, 0] == ends[:, 1]
    j = np.arange(first)
    ones = [np.ones((1, s), dtype=np.int64) for s in sizes]
    eye = [np.eye(s, dtype=np.int64) for s in sizes]
    boxes = ((ends[:, :1] <= j) & (j < ends[:, 1:])).astype(np.int64)
    parts = [
        (boxes, ones[1], ones[2], ones[3]),
        (ones[0], eye[1], ones[2], ones[3]),
        (ones[0], eye[1], eye[2], ones[3]),
        (ones[0], ones[1], ones[2], eye[3]),
    ]
    rows, groups = [], []
    for g, axes in enumerate(parts):
        out = sparse.csr_array(axes[0])
        for axis in axes[1:]:
            out = sparse.csr_array(sparse.kron(out, sparse.csr_array(axis), format="csr"))
        rows.append(out)
        groups += [g] * out.shape[0]
    whole = sparse.vstack(rows, format="csr")
    return Workload.from_rows(whole, np.ones(whole.shape[0]), groups=groups)


def pair_of_marginals(n: int) -> Workload:
    """All ranges of each of two attributes of n values."""
    return workload.stack(
        workload.kron(workload.all_range(n), workload.total(n)),
        workload.kron(workload.total(n), workload.all_range(n)),
    )


# name, workload, order of the reference eigh, largest ratio to it that is promised (None: no promise)
CASES: list[tuple[str, Callable[[], Workload], int, float | None]] = [
    ("AllRange(256)", lambda: workload.all_range(256), 256, None),
    ("AllRange(1024)", lambda: workload.all_range(1024), 1024, 5),
    ("AllRange(2048)", lambda: workload.all_range(2048), 2048, 6),
    ("Prefix(1024)", lambda: workload.prefix(1024), 1024, 15),
    ("256 random ranges, n = 1024", lambda: workload.random_ranges(256, 1024, 0), 1024, 10),
    ("WRelated s = 26", lambda: workload.wrelated(256, 1024, 26, 0), 1024, 10),
    ("WRelated s = 128", lambda: workload.wrelated(256, 1024, 128, 0), 1024, 10),
    ("WDiscrete", lambda: workload.wdiscrete(256, 1024, 0), 1024, 10),
    ("AllRange(64,32)", lambda: workload.all_range((64, 32)), 1024, None),
    ("AllRange(16,8,8)", lambda: workload.all_range((16, 8, 8)), 1024, None),
    ("114 queries, 53,568 cells", lambda: product_batch((93, 12, 3, 16), 50, 1), 1024, None),
    ("171 queries, 144,000 cells", lambda: product_batch((150, 20, 3, 16), 75, 1), 1024, None),
    ("range marginals 256 x 256", lambda: pair_of_marginals(256), 1024, None),
]
SLOW = {"171 queries, 144,000 cells", "range marginals 256 x 256"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the cases of many seconds")
    parser.add_argument("--laplace", action="store_true", help="plan for pure epsilon instead")
    options = parser.parse_args()
    noise = "laplace" if options.laplace else "gaussian"
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or f"library default on {os.cpu_count()} cores"
    print(
        f"{noise} noise; BLAS threads: {threads}; load {os.getloadavg()[0]:.1f}; numpy {np.__version__}, ",
        end="",
    )
    print(f"scipy {scipy.__version__}, Python {platform.python_version()}")
    print()
    print("| workload | seconds | eigh seconds (order) | ratio | promised | gap | error / SVD bound | method |")
    print("|---|---|---|---|---|---|---|---|")
    late = 0
    for name, make, order, promised in CASES:
        if options.quick and name in SLOW:
            continue
        W = make()
        reference = eigh_seconds(order)
        start = time.perf_counter()
        S = strategy.select(W, noise=noise)
        seconds = time.perf_counter() - start
        ratio = seconds / reference
        try:
            relative = f"{S.expected / bounds.svd_bound(W):.4f}"
        except DataError:
            relative = ""
        gap = "" if S.gap is None else f"{S.gap:.1e}"
        limit = "" if promised is None or options.laplace else f"{promised:g}"
        late += bool(limit) and ratio > float(limit)
        print(
            f"| {name} | {seconds:.2f} | {reference:.3f} ({order}) | {ratio:.1f} | {limit} | {gap} "
            f"| {relative} | {S.method} |",
            flush=True,
        )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
