"""Claim: one batch, its errors and seconds beside pip-installable peers that answer query by query.

    python benchmarks/sql_peers.py [--rows N] [--releases K] [--peers smartnoise opendp pipelinedp] [--limit SECONDS]

Each peer gets an environment of its own under benchmarks/data/peers (pip downloads it, once) and the same
54 statements over the flights at a total of epsilon 1, split evenly, as none of them plans a batch. The peers'
answers are as they give them, keys public, bounds as in benchmarks/flights.toml. A peer that fails, or does not finish
within the limit, has a line that says so. Seconds are the wall time of a
whole release from a Parquet file or a frame in memory, planning included; DuckDB's exact answers in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import batch_error
import data
import duckdb
import numpy as np

import dpsql

ENVIRONMENTS = data.FOLDER / "peers"
SCRIPTS = Path(__file__).parent / "peers"
PEERS = {
    "smartnoise": ("smartnoise.py", ["smartnoise-sql", "pyarrow"]),
    "opendp": ("opendp_polars.py", ["opendp[polars]"]),
    "pipelinedp": ("pipelinedp.py", ["pipeline-dp", "pandas", "pyarrow"]),
}
EPSILON, DELTA = 1.0, 1e-9


def domains() -> dict[str, list[Any]]:
    """The public groups."""
    columns = batch_error.policy().tables["flights"].columns
    return {
        "month": list(range(1, 13)),
        "origin": list(columns["origin"].values or ()),
        "carrier": list(columns["carrier"].values or ()),
    }


def queries() -> list[dict[str, Any]]:
    """The statements of ``batch_error.batch`` as data, in its order."""
    found: list[dict[str, Any]] = []
    for statement in batch_error.batch().split(";\n"):
        if " BETWEEN " in statement:
            low, high = statement.partition(" BETWEEN ")[2].split(" AND ")
            found.append({"family": "ranges", "keys": [], "range": [int(low), int(high)], "sum": None})
    found.append({"family": "month", "keys": ["month"], "range": None, "sum": None})
    found.append({"family": "carrier", "keys": ["carrier"], "range": None, "sum": None})
    found.append({"family": "month x origin", "keys": ["month", "origin"], "range": None, "sum": None})
    found.append({"family": "distance", "keys": ["carrier"], "range": None, "sum": "distance"})
    return found


def exact(path: Path, asked: list[dict[str, Any]]) -> tuple[float, list[dict[Any, float]]]:
    """DuckDB's seconds and answers by group, groups without rows 0."""
    answers, groups = [], domains()
    began = time.perf_counter()
    with duckdb.connect() as con:
        for query in asked:
            keys = query["keys"]
            value = f"SUM({query['sum']})" if query["sum"] else "COUNT(*)"
            where = " WHERE minute BETWEEN {} AND {}".format(*query["range"]) if query["range"] else ""
            by = f" GROUP BY {', '.join(keys)}" if keys else ""
            text = f"SELECT {', '.join([*keys, value])} FROM read_parquet('{path}'){where}{by}"
            found = {tuple(row[:-1]): float(row[-1] or 0) for row in con.execute(text).fetchall()}
            answers.append({key: found.get(key, 0.0) for key in itertools.product(*(groups[k] for k in keys))})
    return time.perf_counter() - began, answers


class PeerError(Exception):
    """A peer that gave no answers, and why in one line."""


def ran(command: list[str], limit: float, what: str, task: str | None = None) -> None:
    """Run a command to its end. Raises PeerError where it fails or takes longer than ``limit`` seconds."""
    try:
        done = subprocess.run(command, input=task, text=True, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{what}: not finished in {limit:,.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PeerError(f"{what}: {last[:200]}")


def environment(name: str, packages: Sequence[str], limit: float, folder: Path = ENVIRONMENTS) -> Path:
    """The Python of a peer's environment, made once."""
    place = folder / name
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        ran([sys.executable, "-m", "venv", str(place)], limit, "no environment")
        ran([str(python), "-m", "pip", "install", "--quiet", *packages], limit, "not installed")
        (place / "installed").touch()
    return python


def answered(python: Path, script: str, task: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """What a script of benchmarks/peers wrote for ``task``. Raises PeerError where it failed or took too long."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        ran([str(python), str(SCRIPTS / script)], limit, "failed", json.dumps({**task, "result": str(result)}))
        return dict(json.loads(result.read_text())) if result.exists() else {}


def run_peer(name: str, path: Path, asked: list[dict[str, Any]], releases: int, limit: float) -> dict[str, Any]:
    """What a peer's script wrote. Raises PeerError where it failed or took longer than ``limit`` seconds."""
    script, packages = PEERS[name]
    task = {
        **{"path": str(path), "queries": asked, "domains": domains(), "releases": releases},
        **{"epsilon": EPSILON, "delta": DELTA},
    }
    found = answered(environment(name, packages, limit), script, task, limit)
    if any(len(release) != len(asked) for release in found.get("answers", [[]])):
        raise PeerError("failed: it did not answer every statement")
    return found


def errors(answers: list[Any], truth: list[dict[Any, float]], asked: list[dict[str, Any]]) -> dict[str, float]:
    """Root mean squared error by family over releases; a group that a peer leaves out counts as answered by 0."""
    squares: dict[str, list[float]] = {family: [] for family in batch_error.FAMILIES}
    for release in answers:
        for query, rows, known in zip(asked, release, truth, strict=True):
            found = {tuple(key): value for key, value in rows}
            squares[query["family"]] += [(found.get(key, 0.0) - value) ** 2 for key, value in known.items()]
    return {family: float(np.sqrt(np.mean(values))) for family, values in squares.items()}


def run_dpsql(rows: int | None, releases: int, **budget: float) -> tuple[list[float], list[Any], str]:
    """Seconds of whole releases (planning included, its cache off), answers by query and group, the method."""
    sql, asked = batch_error.batch(), queries()
    seconds, answers, method = [], [], ""
    with tempfile.TemporaryDirectory() as folder:
        connection = dpsql.connect(policy=batch_error.policy(rows), ledger=Path(folder) / "flights.ledger")
        for _ in range(releases):
            began = time.perf_counter()
            plan = connection.plan(sql, objective="total", **budget)
            release = connection.run(plan, fresh=True, errors=False)
            seconds.append(time.perf_counter() - began)
            method = f"{plan.charge.noise}, {plan.strategy.method}"
            found = []
            for name, query in zip(release, asked, strict=True):
                result = release[name]
                columns = result.columns
                place = [columns.index(key) for key in query["keys"]]
                value = next(i for i, column in enumerate(columns) if i not in place)
                found.append([([row[i] for i in place], row[value]) for row in result.fetchall()])
            answers.append(found)
    return seconds, answers, method


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=None, help="rows of the table (default: the 336,776 flights)")
    parser.add_argument("--releases", type=int, default=3, help="releases of each system (default: 3)")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="which peers to run")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that a peer may take (default: 3600)")
    given = parser.parse_args()
    path, asked = data.flights_path(given.rows), queries()
    os.environ["DPSQL_CACHE"] = "off"  # every plan is made anew
    seconds, truth = exact(path, asked)
    lines = [("DuckDB, exact", dict.fromkeys(batch_error.FAMILIES, 0.0), seconds, 0.0)]
    for title, budget in (("pure", {"epsilon": EPSILON}), ("delta 1e-9", {"epsilon": EPSILON, "delta": DELTA})):
        took, answers, method = run_dpsql(given.rows, given.releases, **budget)
        name = f"dpsql {dpsql.__version__}, epsilon 1, {title} ({method})"
        lines.append((name, errors(answers, truth, asked), float(np.median(took)), 0.0))
    failed: list[str] = []
    for peer in given.peers:
        print(f"{peer} ...", file=sys.stderr, flush=True)
        try:
            found = run_peer(peer, path, asked, given.releases, given.limit)
        except PeerError as error:
            failed.append(f"| {peer} | {str(error).replace('|', ' ')} |" + " |" * (len(batch_error.FAMILIES) + 1))
            continue
        name = f"{peer} {found['version']}, epsilon 1 / {len(asked)} a statement"
        took = float(np.median(found["seconds"]))
        lines.append((name, errors(found["answers"], truth, asked), took, float(found["peak_mb"])))
    families = " | ".join(batch_error.FAMILIES)
    print(f"| root mean squared error, {given.releases} releases | {families} | seconds | peak MB |")
    print("|---|" + "---:|" * (len(batch_error.FAMILIES) + 2))
    for name, values, took, peak in lines:
        cells = [f"{values[family]:,.1f}" for family in batch_error.FAMILIES]
        print(f"| {name} | {' | '.join(cells)} | {took:,.2f} | {f'{peak:,.0f}' if peak else ''} |")
    for line in failed:
        print(line)


if __name__ == "__main__":
    main()
