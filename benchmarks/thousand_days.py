"""Is every day of 1,000 charged once and released once, whatever happens to the processes that release them?

    python benchmarks/thousand_days.py [days] [seed]        1,000 days if left out

Daily periods, each of whose budgets is one release. Every start of ``release_due`` is a process of its own. Drawn by
the seed: days without a start; two starts at once; clocks a day or forty behind; rows that come late; and SIGKILL at
the n-th of the steps by which a process reads or writes the ledger, draws noise, scans or writes the releases, before
or after the step. At the end one more start, and what the ledger says: a charge and a measurement for each day, the
hash chain, no account above its total, and rows of every day in the view. Linux, for processes are forked.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from daily import FIRST, policy

import dpsql
from dpsql.engines.duckdb import FileEngine
from dpsql.privacy.ledger_file import LedgerFile
from dpsql.privacy.noise import Noise
from dpsql.release.store import ReleaseStore

POLICY = policy("days-1", 'ward = { values = ["a", "b"], nulls = false }')
BATCH = "CREATE VIEW by_ward AS SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"
STEPS = ((LedgerFile, "run"), (Noise, "sample"), (FileEngine, "scan"), (ReleaseStore, "write"))
MOST = 90
"""Steps up to which a kill is drawn: a start that releases two days takes about so many."""


def arrive(folder: Path, name: str, days: str) -> None:
    """Three rows of each of the days that the SQL lists."""
    rows = (
        f"SELECT CAST(day AS DATE) AS day, CASE WHEN i = 0 THEN 'a' ELSE 'b' END AS ward FROM ({days}), range(3) t(i)"
    )
    duckdb.sql(f"COPY ({rows}) TO '{folder}/visits/{name}.parquet' (FORMAT parquet)")


def release(folder: Path, today: dt.date) -> bool:
    """What is due by that day; whether nothing was refused."""
    with dpsql.connect(policy=folder / "p.toml", today=today) as con:
        return not any(one.failure for one in con.schedules.release_due())


def dies_at(last: int) -> None:
    """Kill this process at a step: an even number before it is taken, an odd one after it."""
    left = [last]

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def step(*given: Any, **named: Any) -> Any:
            for done in (False, True):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                if not done:
                    found = work(*given, **named)
            return found

        return step

    for held, name in STEPS:
        setattr(held, name, counted(getattr(held, name)))


def start(folder: Path, today: dt.date, last: int | None) -> int:
    """The number of a new process that releases what is due, and is killed at its step ``last``."""
    child = os.fork()
    if child:
        return child
    try:
        if last is not None:
            dies_at(last)
        os._exit(0 if release(folder, today) else 3)
    finally:
        os._exit(4)


def main() -> None:
    days = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    draw = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    ends, began = Counter[str](), time.perf_counter()
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        (folder / "visits").mkdir()
        (folder / "p.toml").write_text(POLICY)
        arrive(folder, "all", f"SELECT DATE '{FIRST}' + CAST(i AS INTEGER) AS day FROM range({days}) t(i)")
        with dpsql.connect(policy=folder / "p.toml", today=FIRST) as con:
            con.schedules.add(BATCH, epsilon=1, name="daily")
        for number in range(1, days + 1):
            if draw.random() < 0.4:
                ends["days without a start"] += 1
                continue
            if draw.random() < 0.03:
                arrive(folder, f"late{number}", f"SELECT DATE '{FIRST}' + {draw.randrange(number)} AS day")
                ends["rows come late"] += 1
            today = FIRST + dt.timedelta(days=max(0, number - draw.choice([0, 0, 0, 0, 1, 40])))
            many = draw.choice([1, 1, 1, 2])
            kills = [draw.randrange(MOST) if draw.random() < 0.5 else None for _ in range(many)]
            ends["two starts at once"] += many == 2
            for child in [start(folder, today, last) for last in kills]:
                status = os.waitpid(child, 0)[1]
                killed = os.WIFSIGNALED(status)
                ends["killed" if killed else f"ended with {os.waitstatus_to_exitcode(status)}"] += 1
        assert release(folder, FIRST + dt.timedelta(days=days))
        with dpsql.connect(policy=folder / "p.toml", today=FIRST + dt.timedelta(days=days)) as con:
            charged = Counter(str(entry.description.get("period")) for entry in con.budget.charges)
            checked, budget = con.ledger.verify(), con.budget
            shown = con.sql("SELECT COUNT(*), COUNT(DISTINCT period) FROM by_ward").fetchall()
            most = max(one.spent for one in con.budget_by_period())
    print(f"{days:,} days in {time.perf_counter() - began:.0f} s: {', '.join(f'{n} {k}' for k, n in ends.items())}")
    print(f"charges {sum(charged.values()):,} of {len(charged):,} days, releases {checked.releases:,}, rows {shown}")
    print(f"cut off {len(budget.unreleased)}; spent {budget.spent} of {budget.total}, of a day at most {most}")
    assert set(charged.values()) == {1}
    assert len(charged) == checked.releases == days
    assert shown == [(2 * days, days)]
    assert not budget.unreleased
    assert budget.spent <= budget.total


if __name__ == "__main__":
    main()
