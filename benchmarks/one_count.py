"""Claim: one COUNT takes less than a second from the shell, and a twentieth of one in a session or over the server.

    python benchmarks/one_count.py [--write]

``SELECT COUNT(*) ... WHERE a = ?`` over 1,000,000 rows, another value each time so that no earlier release answers it:
`dpsql plan` and `dpsql run` as processes of their own, plan and run on one connection, and a client of PostgreSQL's
protocol whose statement is planned, charged and answered; each beside the releases that it has made itself. Wall-clock
medians of ``REPEATS``, after one that is not counted; processes keep their compiled modules, as an installed package
does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import psycopg
import record

import dpsql

ROOT = Path(__file__).parents[1]
REPEATS = 11
POLICY = """
dataset = "one-count"
database = "t.duckdb"
[budget]
epsilon = 1000.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 9999, nulls = false }
"""
WORDS = [sys.executable, "-m", "dpsql"]
VALUES = itertools.count()


def statement() -> str:
    """A count that was not asked before."""
    return f"SELECT COUNT(*) AS n FROM t WHERE a = {next(VALUES)}"


def seconds(work: Callable[[], object]) -> float:
    """Median wall-clock seconds, the first time left out."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def environment(folder: Path) -> dict[str, str]:
    """That of a process: this checkout, compiled modules kept."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def shell(folder: Path, command: str) -> float:
    """`dpsql plan` or `dpsql run`, a process each."""

    def once() -> None:
        words = [*WORDS, command, "--policy", "p.toml", "--ledger", "shell.ledger", "--epsilon", "0.01"]
        words += ["--sql", statement()]
        subprocess.run(words, cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)

    return seconds(once)


def session(folder: Path) -> float:
    """Plan and run on one connection."""
    con = dpsql.connect(folder / "t.duckdb", policy=folder / "p.toml", ledger=folder / "session.ledger")
    try:
        return seconds(lambda: con.run(statement(), epsilon=0.01))
    finally:
        con.close()


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server on the table, for an analyst of its own."""
    (folder / "password").write_text("only a benchmark\n")
    account = ["--epsilon", "100", "--password-file", "password", "--quiet"]
    env = environment(folder)
    added = [*WORDS, "analyst", "add", "ann", "p.toml", *account]
    subprocess.run(added, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    command = [*WORDS, "serve", "p.toml", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().split("port ")[1].split(",")[0].split()[0]
        try:
            yield f"host=127.0.0.1 port={port} user=ann dbname=x password='only a benchmark'"
        finally:
            process.terminate()


def served(folder: Path) -> float:
    """A statement of a client, charged."""
    with server(folder) as address, psycopg.connect(address, autocommit=True) as con:
        con.execute("SET dpsql.epsilon = 0.01")
        return seconds(lambda: con.execute(statement()).fetchall())


def main() -> None:
    """Print the table, and write the figures."""
    writes = record.requested(sys.argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "p.toml").write_text(POLICY)
        with duckdb.connect(str(folder / "t.duckdb")) as duck:
            duck.execute("CREATE TABLE t AS SELECT (range % 10000)::INTEGER AS a FROM range(1000000)")
        planned = shell(folder, "plan")
        run, asked, answered = shell(folder, "run"), session(folder), served(folder)
    print(f"shell: plan {planned:.3f} s, run {run:.3f} s; session {asked:.4f} s; server {answered:.4f} s")
    if writes:
        record.write(
            "planning",
            [
                record.Figure(
                    "planning-one",
                    "`dpsql plan` of one COUNT from the shell; `dpsql run`, medians",
                    f"{planned:.2f} s; {run:.2f} s",
                    "0.6 s; 0.7 s",
                    planned <= 0.6 and run <= 0.7,
                ),
                record.Figure(
                    "planning-ask",
                    "plan and run one COUNT over 1,000,000 rows in a session; over the server",
                    f"{1000 * asked:.0f} ms; {1000 * answered:.0f} ms",
                    "45 ms; 60 ms",
                    asked <= 0.045 and answered <= 0.060,
                ),
            ],
        )


if __name__ == "__main__":
    main()
