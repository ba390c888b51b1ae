"""Claim: what an analyst waits for does not grow unnoticed.

    python benchmarks/gate.py [--write]

A dozen operations, each of them once for warmth and then once while it is counted: calls of functions, Python's and
those of its libraries, and the most bytes that Python and numpy held at a time. Both are figures of one process that
no clock and no other work on the machine touches; they stand for its instructions, but for those inside one call of
numpy or DuckDB. Seconds of the processor are printed beside them and decide nothing. Fails where a figure is over 1.3
times that of gate.json, which ``--write`` makes anew.
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

import dpsql

TABLE = Path(__file__).with_name("gate.json")
EXAMPLES = Path(__file__).parent.parent / "sql_examples"
MOST = 1.3
LEAST_BYTES = 1 << 20  # less is not worth a word: allocations of a few caches
Figures = dict[str, int]

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


def counted(work: Callable[[], object]) -> Figures:
    """What a run of ``work`` takes, after one for warmth."""
    work()
    calls = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    started = time.process_time()
    work()
    seconds = time.process_time() - started
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    try:
        work()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"calls": calls, "bytes": most, "milliseconds": round(1000 * seconds)}


def imported() -> Figures:
    """What ``import dpsql`` loads, in a process of its own: modules, as calls."""
    count = "import sys, dpsql; print(len(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    return {"calls": int(shown.stdout), "bytes": 0, "milliseconds": 0}


def operations(folder: Path) -> dict[str, Callable[[], object]]:
    """The dozen, by name."""
    with duckdb.connect(str(folder / "natural.duckdb")) as made:
        made.execute(natural.TABLE.format(rows=2_000))
        made.execute(
            "CREATE TABLE visits AS SELECT i % 700 AS patient, i % 12 AS ward, 1 + i % 7 AS month FROM range(2000) t(i)"
        )
        made.execute(f"CREATE TABLE wide AS SELECT {WIDE} FROM range(2000) t(i)")
    (folder / "policy.toml").write_text((natural.POLICY + VISITS).format(folder=folder))
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
        return lambda: on.plan(sql, epsilon=1.0, delta=delta, progress=_silent)

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
        "ask one COUNT": lambda: con.run(one, epsilon=0.01, fresh=True),
        "ask a release with its errors": lambda: con.sql(share, errors=True).fetchall(),
            f"SELECT max(n) / sum(n) AS share FROM r{kept.id}.q1", errors=True
        ).fetchall(),
    }


def _silent(_: str) -> None:
    """Whoever listens has the batch planned anew."""


def main() -> int:
    """Print the table; 1 where something grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make gate.json of what is counted")
    options = parser.parse_args()
    held: dict[str, Figures] = {} if options.write else json.loads(TABLE.read_text())
    found = {"import dpsql": imported()}
    grew = []
    print("| operation | calls | of the table | MiB | of the table | CPU ms |\n|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        work = operations(Path(folder))
        for name in ["import dpsql", *work]:
            figures = found.get(name) or counted(work[name])
            found[name] = figures
            before = held.get(name, figures)
            calls = figures["calls"] / before["calls"]
            most = figures["bytes"] / max(before["bytes"], LEAST_BYTES)
            grew += [name] if max(calls, most if before["bytes"] else 0.0) > MOST else []
            print(
                f"| {name} | {figures['calls']:,} | {calls:.2f} | {figures['bytes'] / 2**20:.1f} | {most:.2f} "
                f"| {figures['milliseconds']} |",
                flush=True,
            )
    if options.write:
        kept = {name: {key: figures[key] for key in ("calls", "bytes")} for name, figures in found.items()}
        TABLE.write_text(json.dumps(kept, indent=2) + "\n")
    for name in grew:
        print(f"{name} takes over {MOST} times what it took (benchmarks/gate.json)", file=sys.stderr)
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
