"""Does the time of a scan tell neighbours apart, and does the time of a draw tell its size?

    python benchmarks/scan_time.py [--rounds 80] [--write]

Prints a Markdown table: for each statement the processor time of its scans over the table without and with the row
that it asks for (medians of rounds taken in turn), their ratio, and p of the Mann-Whitney test that both take one
time. Each side has four instances of DuckDB, filled in turn, so that where an instance's memory happens to lie is
not taken for a difference between the sides. The rank correlation of a draw's size and its time is reported:
docs/privacy.md says what remains.
"""

from __future__ import annotations

import argparse
import sys
import time
from fractions import Fraction
from pathlib import Path

import duckdb
import record
from scipy import stats

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "shared"), str(ROOT / "tests" / "extensions" / "audit")]

from helpers import compiled_of, engine_of, sources_of, tables_of  # noqa: E402
from test_work_of_scans import POLICY, STATEMENTS  # noqa: E402

from dpsql.measure.reading import scan_of, scans_of  # noqa: E402
from dpsql.privacy.noise import Noise  # noqa: E402
from dpsql.workloads.expr.value_sql import select_text  # noqa: E402

COPIES = 4


def instance(more: int) -> duckdb.DuckDBPyConnection:
    """100,001 visits of notes that a regular expression takes a while over, and 1,000 people."""
    con = duckdb.connect(config={"threads": 1})
    con.execute("CREATE TABLE visits AS SELECT i AS pid, 'a' AS ward, repeat('ab ', 50) || i AS note "
                "FROM range(100000) r(i)")  # fmt: skip
    con.execute("INSERT INTO visits VALUES (2000000, 'c', 'ab ')")
    con.execute(f"INSERT INTO visits SELECT 1000000, 'b', repeat('ab ', 1000) FROM range({more})")
    con.execute("CREATE TABLE people AS SELECT i AS pid FROM range(1000) r(i)")
    return con


def scans(name: str, instances: list[duckdb.DuckDBPyConnection], rounds: int) -> tuple[float, float, float]:
    """Seconds without the row, with it, and p: ``instances`` are the neighbours in turn, without and with the row."""
    layouts = compiled_of(STATEMENTS[name], POLICY, tables_of(POLICY, engine_of(instances[0]))).layouts
    names = {table: table for table in ("visits", "people")}
    texts = [select_text(scan_of(scan.layout, sources_of(POLICY)).select, names) for scan in scans_of(layouts)]
    taken: list[list[float]] = [[], []]
    for number in range((rounds + 1) * len(instances)):
        # Every second time around the instances are taken from the end.
        around, at = divmod(number, len(instances))
        chosen = at if around % 2 == 0 else len(instances) - 1 - at
        began = time.thread_time()
        for text in texts:
            instances[chosen].execute(text).fetchall()
        if around:
            taken[chosen % 2].append(time.thread_time() - began)
    without, with_row = (sorted(times)[len(times) // 2] for times in taken)
    return without, with_row, float(stats.mannwhitneyu(*taken).pvalue)


def draws(kind: str, number: int = 20_000) -> float:
    """Rank correlation of a draw's size and its time.

    No draw is timed by itself in a release: all are made together, before the scan.
    """
    noise = Noise(kind, Fraction(10**12))
    sizes, taken = [], []
    for _ in range(number):
        began = time.perf_counter_ns()
        (drawn,) = noise.sample(1)
        taken.append(time.perf_counter_ns() - began)
        sizes.append(abs(drawn))
    return float(stats.spearmanr(sizes, taken).statistic)


def main() -> None:
    """Print the tables."""
    writes = record.requested(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds over the instances (default 40)")
    rounds = parser.parse_args().rounds
    instances = [instance(more) for _ in range(COPIES) for more in (0, 1)]
    print("| statement | without the row, ms | with it, ms | ratio | p |\n|---|---:|---:|---:|---:|")
    ratios, least = [], 1.0
    for name in STATEMENTS:
        without, with_row, p = scans(name, instances, rounds)
        ratios.append(with_row / without)
        least = min(least, p)
        print(f"| {name} | {1e3 * without:.2f} | {1e3 * with_row:.2f} | {ratios[-1]:.4f} | {p:.3g} |", flush=True)
    print("\n| noise | rank correlation of size and time of a draw |\n|---|---:|")
    correlations = []
    for kind in ("gaussian", "laplace"):
        correlations.append(draws(kind))
        print(f"| {kind} | {correlations[-1]:.3f} |", flush=True)
    if writes:
        what = "five statements that ask for one person's row: scan time with the row, divided by that without it"
        what += "; least p-value"
        span = f"{min(ratios):.3f} to {max(ratios):.3f}; {least:.2g}"
        sizes = "rank correlation of a draw's size and its time: Gaussian; Laplace"
        both = "; ".join(f"{value:.2f}" for value in correlations)
        record.write(
            "scan_time", [record.Figure("scan-time-ratio", what, span), record.Figure("scan-time-draws", sizes, both)]
        )


if __name__ == "__main__":
    main()
