"""The ledger among processes: races, kill -9, a full disk, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dpsql.errors
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.ledger import Ledger

ROOT = Path(dpsql.errors.__file__).parent.parent
PURE = Budget.of("1")

PRELUDE = """
import sys, os
from dpsql.errors import BudgetError, LedgerError
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.ledger import Ledger
path, name = sys.argv[1], sys.argv[2]
budget = Budget.of("1")
(charge,) = charge_for(Request.of(epsilon="0.01"), budget)
ledger = Ledger.open_or_create(path, "rand-1", budget)
"""


def start(script: str, path: Path, name: object = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(path), str(name)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def test_four_racing_processes_get_exactly_what_there_is(tmp_path: Path, assurance: Callable[..., None]) -> None:
    path = tmp_path / "ledger"
    script = """
granted = 0
for i in range(40):
    try:
        ledger.charge(charge, f"{name}/{i}", {})
        granted += 1
    except BudgetError:
        pass
print(granted)
"""
    racers = [start(script, path, i) for i in range(4)]
    outputs = [racer.communicate(timeout=900) for racer in racers]
    granted = sum(int(out) for out, err in outputs)
    assert granted == 100, outputs
    ledger = Ledger.open(path, "rand-1", PURE)
    assert ledger.state().account("pure").remaining_units == 0
    assert ledger.verify() == 101
    assurance("races run", granted=granted, fitting=100)


def test_kill_between_charge_and_record_leaves_the_charge(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    script = """
number = ledger.charge(charge, "a", {})
print(number, flush=True)
__import__("time").sleep(60)
"""
    victim = start(script, path)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "1\n"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    ledger = Ledger.open(path, "rand-1", PURE)
    assert [entry.charge_id for entry in ledger.unreleased()] == ["a"]
    assert ledger.state().spent == 0.01
    (charge,) = charge_for(Request.of(epsilon="0.01"), PURE)
    assert ledger.charge(charge, "a", {}) == 1  # asked again: the same release, nothing more spent
    ledger.record(1, b"measured after all")
    assert ledger.state().spent == 0.01
    assert ledger.unreleased() == []


@pytest.mark.parametrize("delay", [0.0, 0.011, 0.05])
@pytest.mark.few("0.011")
def test_what_was_acknowledged_before_a_kill_is_recorded(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "ledger"
    script = """
for i in range(100):
    number = ledger.charge(charge, str(i), {})
    print("charged", flush=True)
    ledger.record(number, b"x" * 20000)
    print("released", flush=True)
"""
    victim = start(script, path)
    assert victim.stdout is not None
    seen = victim.stdout.readline()
    time.sleep(delay)
    victim.send_signal(signal.SIGKILL)
    # Not communicate(): it reads the pipe past what readline() has already buffered.
    with victim:
        seen += victim.stdout.read()
    lines = seen.splitlines()
    ledger = Ledger.open(path, "rand-1", PURE)
    entries = ledger.entries()
    released = list(ledger.releases())
    assert lines.count("charged") <= len(entries) <= lines.count("charged") + 1
    assert lines.count("released") <= len(released) <= lines.count("released") + 1
    assert len(released) <= len(entries)
    assert ledger.state().account("pure").spent_units == len(entries) * 10**10
    ledger.verify()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file size limit")
def test_a_full_disk_loses_the_answer_but_neither_charge_nor_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    script = """
import resource
number = ledger.charge(charge, "a", {})
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 50000,) * 2)
try:
    ledger.record(number, b"x" * 1000000)
except LedgerError as error:
    print(error)
ledger.record(number, b"smaller")
"""
    out, err = start(script, path).communicate(timeout=900)
    assert "cannot be read or written" in out or "disk is full" in out, (out, err)
    ledger = Ledger.open(path, "rand-1", PURE)
    assert [entry.payload for entry in ledger.releases()] == [b"smaller"]
    assert ledger.verify() == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_ledger_is_usable_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    script = """
ledger.charge(charge, "before", {})
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for i in range(5):
            ledger.charge(charge, f"{child}/{i}", {})
        os._exit(0)
    children.append(pid)
for i in range(5):
    ledger.charge(charge, f"parent/{i}", {})
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
print(len(ledger.entries()))
"""
    out, err = start(script, path).communicate(timeout=900)
    assert out == "21\n", err
    assert Ledger.open(path, "rand-1", PURE).verify() == 22
