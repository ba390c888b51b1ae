"""Planning box queries: seconds, peak memory, cells and the certified gap, from 50 to 1,000 boxes.

A box is COUNT_IF(a BETWEEN .. AND .. AND b BETWEEN .. AND .. AND c BETWEEN .. AND ..) with random ends, over three
columns of 400 declared values, planned by the public ``Connection.plan``; each case in a process of its own. Core
seconds are what one quiet core takes; a time limit counts seconds of the clock, so that on a busy machine less is
reached under it.

    python benchmarks/boxes.py            # 50, 100 and 200 boxes, to 1 %, 0.3 % and 0.1 %
    python benchmarks/boxes.py --full     # and 400, and 1,000 under limits of 60 and 120 s
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import scipy

import dpsql

SIZE = 400
POLICY = """dataset = "boxes-1"
[budget]
epsilon = 1.0
delta = 1e-9
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 399, nulls = false }
b = { lower = 0, upper = 399, nulls = false }
c = { lower = 0, upper = 399, nulls = false }
"""

# boxes, tolerance, time limit, only with --full
CASES: list[tuple[int, float, float | None, bool]] = [
    (50, 1e-3, None, False),
    (100, 1e-3, None, False),
    (200, 1e-2, None, False),
    (200, 3e-3, None, False),
    (200, 1e-3, None, False),
    (400, 1e-2, None, True),
    (400, 1e-3, None, True),
    (1000, 1e-3, 60.0, True),
    (1000, 1e-3, 120.0, True),
    (1000, 1e-2, None, True),
]


def batch(boxes: int, seed: int = 7) -> str:
    """One statement of so many boxes."""
    rng = np.random.default_rng(seed)
    shown = []
    for i in range(boxes):
        ends = np.sort(rng.integers(0, SIZE, size=(3, 2)), axis=1).tolist()
        parts = [f"{column} BETWEEN {low} AND {high}" for column, (low, high) in zip("abc", ends, strict=True)]
        shown.append(f"COUNT_IF({' AND '.join(parts)}) AS n{i}")
    return f"SELECT {', '.join(shown)} FROM t"


def measured(boxes: int, tolerance: float, limit: float | None) -> dict[str, object]:
    """Plan once: what came out and what it took."""
    private = duckdb.connect()
    private.execute("CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER)")
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "boxes.toml")
        policy.write_text(POLICY)
        con = dpsql.connect(private, policy=str(policy), ledger=str(Path(folder, "ledger")))
        sql = batch(boxes)
        began, cpu = time.perf_counter(), time.process_time()
        plan = con.plan(sql, epsilon=1.0, delta=1e-9, objective="total", tolerance=tolerance, time_limit=limit)
        seconds, core = time.perf_counter() - began, time.process_time() - cpu
    return {
        "combinations": plan.compiled.layouts[0].cells.combinations,
        "cells": plan.cells,
        "gap": plan.gap,
        "method": plan.strategy.method,
        "seconds": seconds,
        "core": core,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="400 and 1,000 boxes as well: ten minutes")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measured(*options.case)))
        return 0
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or f"library default on {os.cpu_count()} cores"
    print(f"BLAS threads: {threads}; numpy {np.__version__}, scipy {scipy.__version__}, ", end="")
    print(f"Python {platform.python_version()}\n")
    print(
        "| boxes | tolerance | limit, s | cells | of combinations | gap | method | seconds | core s | peak MB | load |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    late = 0
    for boxes, tolerance, limit, full in CASES:
        if full and not options.full:
            continue
        command = [sys.executable, __file__, "--case", json.dumps([boxes, tolerance, limit])]
        environment = {**os.environ, "DPSQL_CACHE": "off"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found = json.loads(done.stdout)
        late += limit is not None and found["seconds"] > 1.2 * limit
        print(
            f"| {boxes:,} | {tolerance:g} | {'' if limit is None else f'{limit:g}'} | {found['cells']:,} "
            f"| {found['combinations']:,} | {found['gap']:.2%} | {found['method']} | {found['seconds']:.1f} "
            f"| {found['core']:.1f} | {found['peak']:,.0f} | {os.getloadavg()[0]:.1f} |",
            flush=True,
        )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
