"""Claim: what an analyst waits for does not grow unnoticed.

    python benchmarks/gate.py [--write]

Fourteen operations, each of them once for warmth and then once for each figure: calls of functions, Python's and those
of its libraries; the most bytes that Python and numpy held at a time; and seconds of the processor over those of a
fixed mix of Python, arithmetic on arrays and eigenvalues. The first two are figures of one process that no clock and no
other work on the machine touches: over 1.3 times that of gate.json they fail. They do not see what one call of numpy or
DuckDB takes; the third does, but differs by machines, and fails where each of three tries is over 4 times as much.
``--write`` makes gate.json anew.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["DPSQL_CACHE"] = "off"

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import duckdb
import natural
import numpy as np

import dpsql
from dpsql.planning.last_plans import LastPlans

TABLE = Path(__file__).with_name("gate.json")
EXAMPLES = Path(__file__).parent.parent / "sql_examples"
MOST = 1.3
MOST_SECONDS = 4.0
TRIES = 3
LEAST_BYTES = 1 << 20  # less is not worth a word: allocations of a few caches
LEAST_SECONDS = 0.02
Figures = dict[str, float]

VISITS = """
[tables.visits]
unit = "patient"
expected_rows = 2_000
max_rows_per_unit = 5
[tables.visits.columns]
patient = {{}}
ward = {{ lower = 0, upper = 11 }}
month = {{ lower = 1, upper = 12 }}
[tables.wide]
unit = "row"
expected_rows = 2_000
[tables.wide.columns]
""" + "\n".join(f"c{i} = {{{{ lower = 0, upper = 3 }}}}" for i in range(16))
VISIT = "i % 700 AS patient, i % 12 AS ward, 1 + i % 7 AS month"
WIDE = ", ".join(f"CAST(hash(i + {i}e9) % 4 AS INTEGER) AS c{i}" for i in range(16))


def seconds(work: Callable[[], object]) -> float:
    """Of the processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def mix() -> None:
    """What seconds are measured by: some of what planning does."""
    rng = np.random.default_rng(0)
    M = rng.normal(size=(250, 250))
    for _ in range(4):
        np.linalg.eigvalsh(M @ M.T)
        (np.abs(rng.normal(size=200_000)) ** 1.5).sum()
    total = {}
    for i in range(300_000):
        total[i % 1000] = total.get(i % 1000, 0) + i


def counted(work: Callable[[], object], most: float) -> Figures:
    """What a run of ``work`` takes, after one for warmth; its seconds again where they are over ``most`` of a mix."""
    work()
    ratios = [seconds(work) / seconds(mix)]
    while ratios[-1] > most and len(ratios) < TRIES:
        ratios.append(seconds(work) / seconds(mix))
    calls = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    try:
        work()
        _, held = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"calls": calls, "bytes": held, "mixes": round(min(ratios), 2)}


def imported() -> Figures:
    """What ``import dpsql`` loads, in a process of its own: modules, as calls."""
    count = "import sys, dpsql; print(len(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    return {"calls": int(shown.stdout), "bytes": 0, "mixes": 0.0}


def operations(folder: Path) -> dict[str, Callable[[], object]]:
    """All of them, by name."""
    with duckdb.connect(str(folder / "natural.duckdb")) as made:
        made.execute(natural.TABLE.format(rows=2_000))
        made.execute(
            "CREATE TABLE visits AS SELECT i % 700 AS patient, i % 12 AS ward, 1 + i % 7 AS month FROM range(2000) t(i)"
        )
        made.execute(f"CREATE TABLE wide AS SELECT {WIDE} FROM range(2000) t(i)")
    (folder / "policy.toml").write_text((natural.POLICY + VISITS).format(folder=folder, unit='unit = "row"'))
    con = dpsql.connect(policy=folder / "policy.toml", ledger=folder / "natural.ledger")
    example = dpsql.connect(policy=EXAMPLES / "rand_hie.toml", ledger=folder / "example.ledger")
    batch = (EXAMPLES / "rand_hie.sql").read_text().replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
    one = "SELECT COUNT(*) AS n FROM people"
    ranges = ";\n".join(
        f"SELECT COUNT(*) AS n FROM people WHERE minute BETWEEN {7 * i % 700} AND {700 + 11 * i % 740}"
        for i in range(300)
    )
    pairs = ", ".join(f"(c{i}, c{j})" for i in range(16) for j in range(i))
    ready = example.plan(batch, epsilon=1e-3)
    held = con.run("SELECT state, COUNT(*) AS n FROM people GROUP BY state", epsilon=1.0)
    share = f"SELECT max(n) / sum(n) AS share FROM r{held.id}.q1"

    def plan(sql: str, delta: float | None = 1e-9, on: dpsql.Connection = con) -> Callable[[], object]:
        def anew() -> object:
            on._plans = LastPlans()
            return on.plan(sql, epsilon=1.0, delta=delta)

        return anew

    return {
        "plan one COUNT": plan(one),
        "plan the example, pure": plan(batch, None, example),
        "plan the example, both noises": plan(batch, on=example),
        "plan it again": lambda: example.plan(batch, epsilon=1.0, delta=1e-9),
        "run the example": lambda: example.run(ready, fresh=True),
        "plan 300 ranges": plan(ranges),
        "plan MEDIAN by state": plan("SELECT state, MEDIAN(v) AS m FROM people GROUP BY state"),
        "plan pairs of 16 columns": plan(f"SELECT COUNT(*) AS n FROM wide GROUP BY GROUPING SETS ({pairs})"),
        "plan visits and patients by ward": plan(
            "SELECT ward, COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM visits GROUP BY ward"
        ),
        "plan MAX and AVG of a patient's AVG": plan(
            "SELECT COUNT(n), AVG(n), MAX(n) FROM (SELECT patient, AVG(ward) AS n FROM visits GROUP BY patient)"
        ),
        "plan MEDIAN and AVG by ward, pure": plan(
            "SELECT ward, MEDIAN(month), AVG(month) FROM visits GROUP BY ward", None
        ),
        "ask one COUNT": lambda: con.run(one, epsilon=0.01, fresh=True),
        "ask a release with its errors": lambda: con.sql(share, errors=True).fetchall(),
    }


def main() -> int:
    """Print the table; 1 where something grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make gate.json of what is counted")
    options = parser.parse_args()
    before: dict[str, Figures] = {} if options.write else json.loads(TABLE.read_text())
    found = {"import dpsql": imported()}
    grew = []
    print("| operation | calls | MiB | mixes | calls, MiB and mixes over the table's |\n|---|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        work = operations(Path(folder))
        for name in ["import dpsql", *work]:
            most = MOST_SECONDS * max(before[name]["mixes"], LEAST_SECONDS) if before else float("inf")
            figures = found[name] = found.get(name) or counted(work[name], most)
            table = before.get(name, figures)
            over = {
                "calls": figures["calls"] / table["calls"],
                "bytes": max(figures["bytes"], LEAST_BYTES) / max(table["bytes"], LEAST_BYTES),
                "mixes": max(figures["mixes"], LEAST_SECONDS) / max(table["mixes"], LEAST_SECONDS),
            }
            limits = {"calls": MOST, "bytes": MOST, "mixes": MOST_SECONDS}
            grew += [f"{name}: {key}" for key, ratio in over.items() if ratio > limits[key]]
            shown = f"{figures['calls']:,} | {figures['bytes'] / 2**20:.1f} | {figures['mixes']:.2f}"
            print(f"| {name} | {shown} | {', '.join(f'{ratio:.2f}' for ratio in over.values())} |", flush=True)
    if options.write:
        TABLE.write_text(json.dumps(found, indent=2) + "\n")
    for name in grew:
        print(f"{name} grew (benchmarks/gate.json)", file=sys.stderr)
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
