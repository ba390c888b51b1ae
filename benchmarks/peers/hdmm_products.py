"""Claim: products of queries over pairs of columns cost less than HDMM's strategies for them, at both kinds of noise.

    pip install git+https://github.com/dpcomp-org/hdmm.git
    python benchmarks/peers/hdmm_products.py [columns values ...]

HDMM (McKenna, Miklau, Hay and Machanavajjhala 2018) is the public implementation nearest to ``workload.products``: its
templates of marginals, of one product of p-Identity strategies, and of a union of products are optimised for the same
queries, ``approx=True`` for the L2 norm. Figures are total squared errors with the privacy factor left out, 1 / mu^2 or
2 / epsilon^2; HDMM's searches start at random. Its unions need memory for all cells squared and are left out beyond
five columns.
"""

from __future__ import annotations

import argparse
import time
import warnings
from itertools import combinations

import numpy as np
from hdmm import matrix, templates
from hdmm import workload as queries

from dpsql import strategy, workload

SHAPES = [(3, 10), (5, 10), (10, 10)]
KINDS = {"prefix": (queries.Prefix, workload.prefix), "range": (queries.AllRange, workload.all_range)}


def hdmm(one: type, columns: int, values: int, noise: str) -> dict[str, float]:
    """The error of each template."""
    sets = list(combinations(range(columns), 2))
    domain, approx = [values] * columns, noise == "gaussian"
    rows = [[one(values) if i in chosen else queries.Total(values) for i in range(columns)] for chosen in sets]
    asked = queries.VStack([queries.Kronecker(row) for row in rows])
    made = {"marginals": templates.Marginals(domain, approx), "product": templates.DefaultKron(domain, approx)}
    if columns <= 5:
        made["union of products"] = templates.DefaultUnionKron(domain, len(sets), approx)
    return {name: float(template.optimize(asked)) for name, template in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="*", type=int, help="columns and values of each, in pairs")
    options = parser.parse_args()
    shapes = list(zip(options.shape[::2], options.shape[1::2], strict=True)) or SHAPES
    warnings.simplefilter("ignore")
    # Its own takes numpy.abs of an operator, which SciPy's operators no longer let through.
    matrix.EkteloMatrix.sensitivity = lambda self: float(np.max(abs(self).sum(axis=0)))
    print("| queries | columns | values | noise | dpsql | its gap | HDMM's best | template | times | CPU s, both |")
    print("|---|---:|---:|---|---:|---:|---:|---|---:|---:|")
    for kind, (theirs, mine) in KINDS.items():
        for columns, values in shapes:
            for noise in ("gaussian", "pure"):
                began = time.process_time()
                S = strategy.select(workload.products(*[mine(values)] * columns, order=2), noise=noise)
                middle = time.process_time()
                name, error = min(hdmm(theirs, columns, values, noise).items(), key=lambda found: found[1])
                spent = f"{middle - began:.1f}, {time.process_time() - middle:.1f}"
                gap = "" if S.gap is None else f"{S.gap:.2%}"
                print(
                    f"| {kind} | {columns} | {values} | {noise} | {S.expected:,.0f} | {gap} | {error:,.0f} | {name} "
                    f"| {error / S.expected:.2f} | {spent} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
