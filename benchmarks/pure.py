"""How far is pure epsilon from Laplace noise alone, and from the least that any noise of it could have?

    python benchmarks/pure.py [--quick]

Errors are total squared errors of strategies over the singular value bound, the privacy factor 2 / epsilon^2 left out
(of the filters the errors themselves). "Laplace" is ``select(W, noise="laplace")``, "pure" is ``noise="pure"``: the
better of that and noise in blocks. "of Laplace" is the Laplace error over a lower bound of all Laplace strategies
(``bounds.laplace_bound``), "of any" the pure error over one of all noise by a norm (``bounds.pure_bound``).

The last table tries three ways to noise of the hull of the columns of random ranges, which blocks do not reach: rows
turned freely in blocks of random sizes, all cells as starts, and the same with a hundred starts.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
from report import Report
from scipy import linalg

from dpsql import bounds, strategy, workload
from dpsql.strategies.pure import norm_blocks

SEED = 20_260_101


def filters(m: int) -> workload.Workload:
    """m overlapping conditions over all combinations of them."""
    return workload.from_matrix(np.array(list(itertools.product((0, 1), repeat=m))).T)


def signs(m: int, n: int) -> workload.Workload:
    return workload.from_matrix(np.random.default_rng(SEED).choice([-1, 1], size=(m, n)))


def pairs(d: int) -> workload.Marginals:
    return workload.marginals([2] * d, 2)


def cases(quick: bool) -> list[tuple[str, workload.Workload | workload.Marginals, str]]:
    """(name, workload, figure aimed at)."""
    found = [(f"{m} overlapping filters", filters(m), aim) for m, aim in ((4, "14.0"), (6, "36.1"), (10, "130"))]
    found += [("6 rows of +-1 over 400 cells", signs(6, 400), "1.6")]
    found += [
        (f"{m} random ranges over 256", workload.random_ranges(m, 256, 1), aim) for m, aim in ((10, "2.7"), (20, "3.4"))
    ]
    found += [("WRelated(128, 512), s = 26", workload.wrelated(128, 512, 26, SEED), "5")]
    found += [("AllRange(256)", workload.all_range(256), "3.72"), ("Prefix(256)", workload.prefix(256), "")]
    found += [(f"pairs of {d} binary columns", pairs(d), aim) for d, aim in ((16, "22.7"), (30, "70.8"))]
    if not quick:
        found += [("pairs of 100 binary columns", pairs(100), "745")]
        found += [("single counts of 200 binary columns", workload.marginals([2] * 200, 1), "34.5")]
        found += [
            ("pairs of 12 binary columns and of 3, 5, 10 values", workload.marginals([2] * 12 + [3, 5, 10], 2), "")
        ]
    return found


def compared(report: Report, quick: bool) -> None:
    rows = []
    for name, W, aim in cases(quick):
        began = time.process_time()
        laplace, pure = (strategy.select(W, noise=noise) for noise in ("laplace", "pure"))
        seconds = time.process_time() - began
        svd = 1.0 if "filters" in name else bounds.svd_bound(W)
        below = laplace.expected / bounds.laplace_bound(W), pure.expected / bounds.pure_bound(W)
        sizes = ", ".join(map(str, pure.blocks[:4])) + (", ..." if len(pure.blocks) > 4 else "")
        rows.append((name, laplace.expected / svd, pure.expected / svd, aim, pure.method, sizes, *below, seconds))
    head = ("workload", "Laplace", "pure", "aimed at", "method", "blocks", "of Laplace", "of any", "CPU s")
    report.table("Pure epsilon", head, rows)


def tried(report: Report, starts: int) -> None:
    """Random ranges, with more room than a selection has."""
    rows = []
    for m in (10, 20):
        W = workload.random_ranges(m, 256, 1)
        svd, M = bounds.svd_bound(W), W.matrix()
        Y = np.unique(M[:, M.any(axis=0)], axis=1)
        rng = np.random.default_rng(SEED)
        turned, cells = np.inf, np.inf
        for _ in range(starts):
            sizes = np.bincount(rng.integers(0, rng.integers(1, m + 1), size=m))
            blocks = tuple(int(size) for size in sizes if size)
            C = linalg.qr(rng.standard_normal((m, m)))[0] @ np.linalg.inv(np.real(linalg.sqrtm(Y @ Y.T)))
            draft = norm_blocks.Draft(C, blocks, norm_blocks.error_of(np.eye(m), C, Y, blocks))
            turned = min(turned, norm_blocks._turned(np.eye(m), Y, draft, 120, np.inf).error)
            N = Y.shape[1]
            G, root = Y.T @ Y, np.eye(N) + 0.1 * rng.standard_normal((N, N))
            sizes = np.bincount(rng.integers(0, N, size=N))
            blocks = tuple(int(size) for size in sizes if size)
            draft = norm_blocks.Draft(root, blocks, norm_blocks.error_of(G, root, np.eye(N), blocks))
            cells = min(cells, norm_blocks._turned(G, np.eye(N), draft, 120, np.inf).error)
        laplace, pure = (strategy.select(W, noise=noise).expected for noise in ("laplace", "pure"))
        rows.append((f"{m} ranges", *(error / svd for error in (laplace, pure, turned, cells))))
    head = ("workload", "Laplace", "selected", f"rows turned, {starts} starts", f"cells turned, {starts} starts")
    report.table("Random ranges, tried further", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    report = Report()
    compared(report, quick)
    tried(report, 10 if quick else 100)


if __name__ == "__main__":
    main()
