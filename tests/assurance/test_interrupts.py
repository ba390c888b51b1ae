"""Ctrl-C at each step, and scans that take too long: the charge stands, the state is clean, the next release works."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from assurance_world import (
    BATCH,
    EPSILON,
    POLICY,
    UNITS,
    Step,
    connect,
    drive,
    endless,
    fault_of,
    make,
    spread,
    steps_of,
)

import dpsql
from dpsql.engines.duckdb import _isolated
from dpsql.engines.limits import Limits


def interrupt() -> None:
    raise KeyboardInterrupt


LOST = "interrupted: release 1 is charged and stays charged, and has no answer in the ledger"
PARTS = 5
FIRST = 2  # entries before the first charge's: the budget, and the mark of the table's file


def interrupted_at(folder: Path, most: int, part: int = 0, parts: int = 1) -> int:
    """Interrupt a release at so many of its steps, those of one part; the number of interrupts.

    Each part has a world of its own: what a release does before its charge grows with the entries of the ledger.
    """
    make(folder)
    con = connect(folder)
    plan = con.plan(BATCH, EPSILON)
    con.run(plan, fresh=True)
    last = steps_of(lambda: con.run(plan, fresh=True))
    released, met = 2, 0
    steps = spread(last, most)[part::parts]
    for step in steps:
        profile = Step(step, interrupt)
        before = len(con.releases())
        sys.setprofile(profile)
        try:
            con.run(plan, fresh=True)
        except KeyboardInterrupt:
            met += 1
        finally:
            sys.setprofile(None)
        state = con.budget
        assert len(state.charges) - before in (0, 1), profile.where
        assert state.account("pure").spent_units == UNITS * len(state.charges), profile.where  # type: ignore[union-attr]
        assert con._books.ledger().verify() == FIRST + 2 * len(state.charges) - len(state.unreleased), profile.where
        done = len(state.charges) - len(state.unreleased)
        assert done >= released, profile.where
        released = done
    assert fault_of(folder, charges=released, releases=released) == ""
    assert met > len(steps) // 2  # no two releases have quite the same steps
    return met


@pytest.mark.long
def test_ctrl_c_at_each_step(tmp_path: Path, record_assurance: Any) -> None:
    met = interrupted_at(tmp_path, 40)
    record_assurance("faults.ctrl_c", {"injected": met, "survived": met})


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_ctrl_c_at_every_second_step(tmp_path: Path, record_assurance: Any, part: int) -> None:
    met = interrupted_at(tmp_path, 600, part, PARTS)
    record_assurance(f"faults.ctrl_c_long#{part}", {"injected": met, "survived": met})


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a signal of POSIX")
def test_a_real_ctrl_c_in_the_middle_of_a_scan(tmp_path: Path, record_assurance: Any) -> None:
    assert drive("interrupted_scan", tmp_path) == [f"interrupted ({LOST!r},) None", EPSILON, [1], ""]
    record_assurance("faults.ctrl_c_in_scan", {"injected": 1, "survived": 1})


@pytest.mark.parametrize("behind", ["file", "connection"])
@pytest.mark.few(every=2)
def test_a_scan_that_takes_too_long_is_stopped(
    tmp_path: Path, behind: str, monkeypatch: pytest.MonkeyPatch, record_assurance: Any
) -> None:
    if behind == "file":
        make(tmp_path)
        con = connect(tmp_path, scan_timeout=0.2)
    else:
        make(tmp_path, POLICY.replace('source = "t.csv"\n', "").replace('type = "INTEGER", ', ""))
        duck = duckdb.connect()
        duck.execute("CREATE TABLE t AS SELECT (i % 10)::INTEGER AS k FROM range(50) r(i)")
        con = dpsql.connect(duck, policy=tmp_path / "p.toml", scan_timeout=0.2)
    plan = con.plan(BATCH, EPSILON)
    with monkeypatch.context() as patch:
        endless(patch)
        with pytest.raises(dpsql.OperationalError) as caught:
            con.run(plan)
    assert "longer than scan_timeout, 0.2 s, and was stopped. What was charged stays charged" in str(caught.value)
    assert caught.value.__context__ is None
    assert con.budget.spent == EPSILON
    assert [entry.id for entry in con.budget.unreleased] == [1]
    assert con.run(plan).id == 2
    assert con.budget.spent == 2 * EPSILON
    record_assurance(f"faults.scan_timeout.{behind}", {"injected": 1, "survived": 1})


@pytest.mark.long
def test_a_scan_has_the_memory_that_it_is_given(tmp_path: Path) -> None:
    with _isolated(str(tmp_path), Limits("100MiB")) as connection:
        assert connection.execute("SELECT current_setting('memory_limit')").fetchall() == [("100.0 MiB",)]
    make(tmp_path)
    assert len(connect(tmp_path, memory_limit="1GB").run(BATCH, EPSILON)) == 2


def test_a_scan_without_memory_keeps_its_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    con = connect(tmp_path, memory_limit="20MB")
    plan = con.plan(BATCH, EPSILON)
    # A hash table that cannot be spilled in part: lists of all rows.
    rows = "(SELECT (length(list(range)::VARCHAR) % 10)::INTEGER AS k FROM range(20000000) GROUP BY range % 2)"
    with monkeypatch.context() as patch:
        patch.setattr(dpsql.engines.duckdb, "_reference", lambda *_: rows)
        with pytest.raises(dpsql.OperationalError, match="check memory") as caught:
            con.run(plan)
    assert caught.value.__context__ is None
    assert con.budget.spent == EPSILON
    assert con.run(plan).id == 2


@pytest.mark.parametrize(
    "options",
    [
        *({"memory_limit": bad} for bad in ("", "4", "lots", "4GB; DROP", "-1GB", "0GB", 4, b"4GB")),
        *({"scan_timeout": bad} for bad in (0, -1, True, float("nan"), float("inf"), "10", 1e300)),
    ],
    ids=str,
)
def test_malformed_limits_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    make(tmp_path)
    with pytest.raises(dpsql.DataError, match=r"memory_limit|scan_timeout"):
        connect(tmp_path, **options)


def test_memory_of_a_connection_is_its_own(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(dpsql.InterfaceError, match="set it on your connection"):
        dpsql.connect(duckdb.connect(), policy=tmp_path / "p.toml", memory_limit="1GB")
