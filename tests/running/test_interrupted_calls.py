"""Ctrl-C at each stage of a call: what is not charged by then never is, and the message says what is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.measure import cells, job
from dpsql.planning import last_plans, plan, prepare
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_file import LedgerFile
from dpsql.privacy.noise import Noise
from dpsql.release.books import Books
from dpsql.running import run
from dpsql.strategies.choose import task

POLICY = """
dataset = "interrupted-1"
[budget]
epsilon = 4.0
pure_epsilon = 4.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 9, nulls = false }
"""
BATCH = "SELECT a, COUNT(*) AS n FROM t GROUP BY a; SELECT COUNT(*) AS n FROM t WHERE a < 4"
NOTHING = "interrupted: nothing was charged"
LOST = "interrupted: release 1 is charged and stays charged, and has no answer in the ledger"
KEPT = "interrupted: release 1 is charged, and its answer is in the ledger: asking the same again is free"

BEFORE: dict[str, tuple[Any, str]] = {
    "a plan": (last_plans, "make_plan"),
    "compiling": (prepare, "compile_any"),
    "a search": (prepare, "select"),
    "a draft": (task.Task, "plan"),
    "its figures": (plan, "plan_of"),
    "rehearsal": (run.Batches, "rehearse"),
    "the account": (Ledger, "check_charges"),
    "the job": (run, "job_of"),
    "schemas": (job, "check_schemas"),
    "sensitivity": (job.Job, "check_sensitivity"),
    "the charge": (Ledger, "charge"),
}
AFTER: dict[str, tuple[Any, str, str]] = {
    "noise": (Noise, "sample", LOST),
    "scan": (cells, "observed", LOST),
    "the record": (Ledger, "record", LOST),
    "views": (Books, "register", KEPT),
}
CALLS: dict[str, Callable[[dpsql.Connection], object]] = {
    "run of a plan": lambda con: con.run(con.plan(BATCH, epsilon=1)),
    "run": lambda con: con.run(BATCH, epsilon=1),
    "execute": lambda con: con.execute(BATCH, epsilon=1),
    "cursor": lambda con: con.cursor().execute(BATCH, epsilon=1),
}


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpsql.Connection:
    monkeypatch.setenv("DPSQL_CACHE", "off")
    base = duckdb.connect()
    base.execute("CREATE TABLE t AS SELECT (i % 10)::INTEGER AS a FROM range(100) r(i)")
    return dpsql.connect(base, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "l.ledger")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def charges(con: dpsql.Connection) -> list[tuple[int, bool]]:
    """The charges of the ledger, each with whether it has its answer."""
    found = [(entry.id, entry.released is not None) for entry in con.releases()]
    assert con.budget.spent == len(found)
    return found


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("stage", BEFORE)
def test_ctrl_c_before_the_charge_never_charges(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, stage: str, call: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*BEFORE[stage], interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            CALLS[call](con)
    assert str(caught.value) == NOTHING
    assert charges(con) == []
    CALLS[call](con)
    assert charges(con) == [(1, True)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("stage", AFTER)
def test_ctrl_c_after_the_charge_leaves_it_and_says_whether_it_has_an_answer(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, stage: str, call: str
) -> None:
    *where, said = AFTER[stage]
    with monkeypatch.context() as patch:
        patch.setattr(*where, interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            CALLS[call](con)
    assert str(caught.value) == said
    assert charges(con) == [(1, said == KEPT)]
    CALLS[call](con)
    assert charges(con) == ([(1, True)] if said == KEPT else [(1, False), (2, True)])


class Committing:
    """A connection to a ledger, interrupted right ``before`` or after it commits a charge."""

    def __init__(self, connection: Any, before: bool) -> None:
        self.connection, self.before, self.charges = connection, before, False

    def execute(self, text: str, *values: Any) -> Any:
        self.charges |= text.startswith("INSERT INTO charges")
        last = self.charges and text == "COMMIT"
        if last and self.before:
            raise KeyboardInterrupt
        found = self.connection.execute(text, *values)
        if last:
            raise KeyboardInterrupt
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("before", [True, False])
def test_ctrl_c_while_the_charge_commits_says_whether_it_stands(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, before: bool, call: str
) -> None:
    plain = LedgerFile.connected

    @contextmanager
    def connected(self: LedgerFile, *more: Any) -> Iterator[Any]:
        with plain(self, *more) as connection:
            yield Committing(connection, before)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "connected", connected)
        with pytest.raises(KeyboardInterrupt) as caught:
            CALLS[call](con)
    assert str(caught.value) == (NOTHING if before else LOST)
    assert charges(con) == ([] if before else [(1, False)])


def test_a_ledger_that_cannot_be_read_then_is_named(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> None:
        raise dpsql.LedgerError("it is locked")

    monkeypatch.setattr(Noise, "sample", interrupted)
    monkeypatch.setattr(Ledger, "_outcome", unreadable)
    with pytest.raises(KeyboardInterrupt, match="cannot be read now; look there for what was charged"):
        con.run(BATCH, epsilon=1)


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_the_best_plan_of_an_interrupted_planning_can_be_run(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, drafts: int
) -> None:
    plain, made = task.Task.plan, list[str]()

    def until(self: task.Task, name: str) -> Any:
        made.append(name)
        return interrupted() if len(made) == drafts else plain(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(task.Task, "plan", until)
        with pytest.raises(KeyboardInterrupt):
            con.plan(BATCH, epsilon=1)
    best = con.last_plan
    assert best is not None
    assert best is con.last_plan
    assert best.strategy.method == "workload" if drafts == 1 else best.strategy.method in made[: drafts - 1]
    assert any("planning was interrupted" in note for note in best.notes)
    whole = con.plan(BATCH, epsilon=1)
    assert whole.error <= best.error * (1 + 1e-9)
    assert con.last_plan is whole
    assert charges(con) == []
    assert con.run(best).cost == best.charge.amount


@pytest.mark.parametrize("stage", ["a plan", "compiling"])
def test_no_plan_is_there_before_a_batch_is_compiled(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    assert con.last_plan is None
    con.plan("SELECT COUNT(*) AS n FROM t", epsilon=1)
    monkeypatch.setattr(*BEFORE[stage], interrupted)
    with pytest.raises(KeyboardInterrupt):
        con.plan(BATCH, epsilon=1)
    assert con.last_plan is None


def test_later_ways_do_not_replace_a_better_plan(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two objectives that are compared, the first search has ended when the second is interrupted."""
    plain, calls = prepare.no_worse_than_one_by_one, list[object]()

    def second(*asked: Any) -> Any:
        calls.append(asked)
        return interrupted()

    monkeypatch.setattr(prepare, "no_worse_than_one_by_one", second)
    with pytest.raises(KeyboardInterrupt):
        con.plan(BATCH, epsilon=1, objective="total")
    monkeypatch.setattr(prepare, "no_worse_than_one_by_one", plain)
    best = con.last_plan
    assert best is not None
    assert len(calls) == 1
    whole = con.plan(BATCH, epsilon=1, objective="total")
    assert whole.error <= best.error <= whole.error * 1.01
