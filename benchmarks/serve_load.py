"""How many clients does a server bear? Connections at once, statements over releases, and how long each takes.

    python benchmarks/serve_load.py [--connections 200] [--statements 10000] [--rate 150]

Statements come at a given rate from connections chosen in turn, each timed from when it was due, so that a server that
falls behind shows it. Without a rate every connection asks again at once, which says how many a second there can be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg

ROOT = Path(__file__).parents[1]
QUERIES = (
    "SELECT health, n FROM by_health ORDER BY n DESC",
    "SELECT SUM(n) FROM by_plan WHERE plan <> 'free'",
    "SELECT p.plan, p.n / t.n AS share FROM by_plan p, (SELECT SUM(n) AS n FROM by_plan) t",
    "SELECT COUNT(*) FROM dp.releases",
)


def main() -> None:
    """Start a server on the health survey, ask it, print percentiles."""
    options = argparse.ArgumentParser()
    options.add_argument("--connections", type=int, default=200)
    options.add_argument("--statements", type=int, default=10_000)
    options.add_argument("--rate", type=float, default=0.0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as uri:
        start = time.perf_counter()
        took = asyncio.run(_asked(uri, given.connections, given.statements, given.rate))
        seconds = time.perf_counter() - start
    low, median, high, most = (1000 * float(np.quantile(took, q)) for q in (0.05, 0.5, 0.99, 1.0))
    print(f"{given.connections} connections, {len(took):,} statements, {len(took) / seconds:,.0f} a second")
    print(f"5th percentile {low:.1f} ms, median {median:.1f} ms, 99th {high:.1f} ms, longest {most:.0f} ms")


@contextlib.contextmanager
def _server(folder: Path):
    policy, ledger = ROOT / "sql_examples" / "rand_hie.toml", folder / "l.ledger"
    (folder / "password").write_text("only a benchmark\n")
    words = [sys.executable, "-m", "dpsql"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    account = ["--epsilon", "4", "--pure-epsilon", "1", "--password-file", str(folder / "password"), "--quiet"]
    added = ["analyst", "add", "ann", str(policy), "--ledger", str(ledger), *account]
    subprocess.run([*words, *added], env=env, check=True, stdout=subprocess.DEVNULL)
    limits = ["--port", "0", "--per-account", "500", "--connections", "500", "--statements-per-minute", "1000000"]
    command = [*words, "serve", str(policy), "--ledger", str(ledger), *limits]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        port = process.stdout.readline().split("port ")[1].split(",")[0].split()[0]
        uri = f"host=127.0.0.1 port={port} user=ann dbname=x password='only a benchmark'"
        with psycopg.connect(uri, autocommit=True) as con:
            con.execute("SET dpsql.epsilon = 0.5")
            con.execute(
                "CREATE VIEW by_health AS SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health;"
                "CREATE VIEW by_plan AS SELECT plan, COUNT(*) AS n FROM rand_hie GROUP BY plan"
            )
        try:
            yield uri
        finally:
            process.terminate()


async def _asked(uri: str, connections: int, statements: int, rate: float) -> list[float]:
    held = []
    for _ in range(connections):
        held.append(await psycopg.AsyncConnection.connect(uri, autocommit=True))
    took: list[float] = []
    left = iter(range(statements))

    async def ask(con: psycopg.AsyncConnection, number: int, due: float) -> None:
        cursor = await con.execute(QUERIES[number % len(QUERIES)])
        await cursor.fetchall()
        took.append(time.perf_counter() - due)

    async def again(con: psycopg.AsyncConnection) -> None:
        for number in left:
            await ask(con, number, time.perf_counter())

    if not rate:
        await asyncio.gather(*map(again, held))
    else:
        start, work = time.perf_counter(), []
        for number in left:
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            work.append(asyncio.ensure_future(ask(held[number % connections], number, due)))
        await asyncio.gather(*work)
    for con in held:
        await con.close()
    return took


if __name__ == "__main__":
    main()
