"""One question asked by many at the same moment: one charge, whoever asks, and however the first of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import filled

import dpsql
from dpsql.engines.duckdb import OpenEngine
from dpsql.errors import OperationalError
from dpsql.release.claims import claimed

POLICY = """
dataset = "claims"
[budget]
epsilon = 1000.0
delta = 1e-6
pure_epsilon = 900.0
local_epsilon = 10.0
[tables.t]
unit = "row"
rows_public = true
[tables.t.columns]
age = { lower = 0, upper = 99 }
sex = { values = ["F", "M"] }
"""
BATCH = "SELECT sex, count(*) AS n FROM t GROUP BY sex"
COST = 0.05

PROCESS = """
import sys, time
from pathlib import Path
import dpsql
from dpsql.engines.duckdb import OpenEngine
folder, hang, batches = Path(sys.argv[1]), sys.argv[2] == "hang", sys.argv[3:]
if hang:
    def scan(*args):
        print("scanning", flush=True)
        time.sleep(600)
    OpenEngine.scan = scan
with dpsql.connect(folder / "t.duckdb", policy=folder / "t.toml") as con:
    for number, batch in enumerate(batches):
        plan = con.plan(batch, epsilon=0.05)
        print("ready", flush=True)
        while not hang and not (folder / f"go {number}").exists():
            time.sleep(0.001)
        print("cost", con.run(plan).cost, flush=True)
"""


def world(folder: Path) -> Path:
    with filled(folder / "t.duckdb") as made:
        made.execute("CREATE TABLE t AS SELECT i % 100 AS age, ['F', 'M'][i % 2 + 1] AS sex FROM range(200) r(i)")
    (folder / "t.toml").write_text(POLICY)
    return folder


def connected(folder: Path) -> dpsql.Connection:
    return dpsql.connect(folder / "t.duckdb", policy=folder / "t.toml")


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call gives or raises, all of them started at the same moment."""
    together = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def one(at: int) -> None:
        together.wait()
        try:
            found[at] = calls[at]()
        except dpsql.Error as error:
            found[at] = error

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def holds(con: dpsql.Connection) -> tuple[int, int]:
    """(charges, releases) of the ledger, whose sums agree with the account."""
    entries = [entry for entry in con.releases() if entry.charge.noise != "none"]
    account = con.budget.account("pure")
    assert account is not None
    assert account.spent == pytest.approx(sum(e.charge.amount for e in entries if e.charge.account == "pure"))
    return len(entries), sum(entry.released is not None for entry in entries)


def process(folder: Path, *batches: str, how: str = "run") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, str(folder), how, *batches]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(one: subprocess.Popen[str], word: str) -> str:
    """The first line that begins so."""
    assert one.stdout is not None
    for line in one.stdout:
        if line.startswith(word):
            return line
    raise AssertionError(one.stderr.read() if one.stderr else "it ended")


def race(con: dpsql.Connection, others: Sequence[dpsql.Connection], batch: str) -> None:
    """Four threads of one connection and one of each other one: one charge."""
    before = holds(con)
    found = at_once(
        [*[lambda: con.run(batch, epsilon=COST)] * 4, *[lambda c=c: c.run(batch, epsilon=COST) for c in others]]
    )
    assert sorted(release.cost for release in found) == [0.0] * (len(found) - 1) + [COST]
    assert len({str(release["q1"].fetchall()) for release in found}) == 1
    assert holds(con) == (before[0] + 1, before[1] + 1)


def test_threads_and_connections_pay_once(tmp_path: Path) -> None:
    con = connected(world(tmp_path))
    for age in (10, 50):
        race(con, [connected(tmp_path)], f"SELECT sex, count(*) AS n FROM t WHERE age < {age} GROUP BY sex")


@pytest.mark.long
def test_sixteen_races(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        con = connected(world(folder))
        others = [connected(folder), connected(folder)]
        for age in range(10, 18):
            race(con, others, f"SELECT sex, count(*) AS n FROM t WHERE age < {age} GROUP BY sex")


def of_processes(folder: Path, number: int, *batches: str) -> None:
    """Of processes that ask for one batch after the other, each at the same moment, one pays for each."""
    running = [process(folder, *batches) for _ in range(number)]
    try:
        for at in range(len(batches)):
            for one in running:
                said(one, "ready")
            (folder / f"go {at}").touch()
            costs = sorted(float(said(one, "cost").split()[1]) for one in running)
            assert costs == [0.0] * (number - 1) + [COST]
    finally:
        for one in running:
            one.kill()
            one.communicate()


@pytest.mark.long
def test_processes_pay_once(tmp_path: Path) -> None:
    of_processes(world(tmp_path), 2, BATCH)
    assert holds(connected(tmp_path)) == (1, 1)


@pytest.mark.long
def test_processes_pay_once_again_and_again(tmp_path: Path) -> None:
    world(tmp_path)
    ages = range(1, 7)
    of_processes(tmp_path, 4, *(f"SELECT sex, count(*) AS n FROM t WHERE age < {age} GROUP BY sex" for age in ages))
    assert holds(connected(tmp_path)) == (6, 6)


@pytest.mark.long
def test_error_columns_and_cursors_are_no_other_question(tmp_path: Path) -> None:
    con = connected(world(tmp_path))
    found = at_once([
        lambda: con.run(BATCH, epsilon=COST),
        lambda: con.run(BATCH, epsilon=COST, errors=False),
        lambda: connected(tmp_path).run(BATCH, epsilon=COST, errors=False),
        lambda: con.cursor().execute(BATCH, epsilon=COST).release,
        lambda: connected(tmp_path).cursor().execute(BATCH, epsilon=COST).release,
    ])  # fmt: skip
    assert sorted(release.cost for release in found) == [0.0] * 4 + [COST]
    assert holds(con) == (1, 1)


def test_fresh_pays_anew_always(tmp_path: Path) -> None:
    con = connected(world(tmp_path))
    found = at_once([lambda: con.run(BATCH, epsilon=COST, fresh=True)] * 3)
    assert [release.cost for release in found] == [COST] * 3
    assert holds(con) == (3, 3)


def test_who_waits_for_a_scan_that_fails_pays_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connected(world(tmp_path))
    plain, failed, started = OpenEngine.scan, [False], threading.Event()

    def scan(*args: Any, **options: Any) -> Any:
        if not failed[0]:
            failed[0] = True
            started.set()
            time.sleep(0.3)
            raise OperationalError("the first scan fails in this test")
        return plain(*args, **options)

    monkeypatch.setattr(OpenEngine, "scan", scan)

    def second() -> Any:
        started.wait(60)
        return con.run(BATCH, epsilon=COST)

    found = at_once([lambda: con.run(BATCH, epsilon=COST), second, second])
    assert isinstance(found[0], OperationalError)
    assert sorted(release.cost for release in found[1:]) == [0.0, COST]
    assert holds(con) == (2, 1)


@pytest.mark.long
def test_who_waits_for_a_process_that_is_killed_pays_for_its_own(tmp_path: Path) -> None:
    con = connected(world(tmp_path))
    first = process(tmp_path, BATCH, how="hang")
    said(first, "scanning")
    assert holds(con) == (1, 0)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(con.run(BATCH, epsilon=COST)))
    waiting.start()
    time.sleep(0.5)
    assert not found
    first.send_signal(signal.SIGKILL)
    first.communicate()
    waiting.join(60)
    assert [release.cost for release in found] == [COST]
    assert holds(con) == (2, 1)  # the charge of the dead stays, for nothing
    assert con.run(BATCH, epsilon=COST).cost == 0


def test_a_local_release_is_charged_once(tmp_path: Path) -> None:
    con = connected(world(tmp_path))
    found = at_once([lambda: con.synthesize("t", ["sex"], 1), lambda: connected(tmp_path).synthesize("t", ["sex"], 1)])
    assert sum(isinstance(one, dpsql.IntegrityError) and "nothing was charged" in str(one) for one in found) == 1
    account = con.budget.account("local")
    assert account is not None
    assert account.spent == 1


def test_other_questions_do_not_wait(tmp_path: Path) -> None:
    with claimed(tmp_path / "ledger", "one"), claimed(tmp_path / "ledger", "another"), claimed(tmp_path / "b", "one"):
        taken = threading.Event()

        def same() -> None:
            with claimed(tmp_path / "ledger", "one"):
                taken.set()

        waiting = threading.Thread(target=same)
        waiting.start()
        assert not taken.wait(0.2)
    assert taken.wait(10)
    waiting.join()


def test_no_claim_where_none_can_be_had(tmp_path: Path) -> None:
    with claimed(tmp_path / "nowhere" / "ledger", "one"):
        pass


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_no_claim_of_its_parent(tmp_path: Path) -> None:
    with claimed(tmp_path / "ledger", "one"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    with claimed(tmp_path / "ledger", "one"):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it runs on
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
