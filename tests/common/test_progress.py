"""Progress is heard where somebody listens, shown on terminals alone, and changes no plan."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.common import progress
from dpsql.common.progress import MEASURING, Line, heard_by, is_heard, over_line, say, shown
from dpsql.surfaces.cli import main

POLICY = """
dataset = "progress-1"
[budget]
epsilon = 4.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 9, nulls = false }
"""
BATCH = "SELECT a, COUNT(*) AS n FROM t GROUP BY a; SELECT COUNT(*) AS n FROM t WHERE a < 4"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpsql.Connection:
    monkeypatch.setenv("DPSQL_CACHE", "off")
    base = duckdb.connect()
    base.execute("CREATE TABLE t AS SELECT (i % 10)::INTEGER AS a FROM range(100) r(i)")
    return dpsql.connect(base, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "l.ledger")


def test_who_listens_hears_and_so_does_who_listened_before() -> None:
    inner, outer = list[str](), list[str]()
    say("nobody hears this")
    with heard_by(outer.append):
        with heard_by(inner.append):
            say("one")
        say("two")
    assert not is_heard()
    assert (inner, outer) == (["one"], ["one", "two"])


def test_a_line_says_nothing_for_two_seconds_then_stage_and_time_and_is_cleared() -> None:
    terminal, times = Terminal(), iter([0.0, 1.9, 2.0, 7.0])
    with Line(over_line(terminal), lambda: next(times)) as line:
        line("planning: identity")
        line.tick()  # type: ignore[attr-defined]
        assert terminal.getvalue() == ""
        line.tick()  # type: ignore[attr-defined]
        line(MEASURING)
        line.tick()  # type: ignore[attr-defined]
    assert terminal.getvalue() == f"\r\x1b[Kplanning: identity, 2 s\r\x1b[K{MEASURING}, 7 s\r\x1b[K"


def test_a_terminal_shows_what_nobody_else_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, heard in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        with shown(stream):
            assert is_heard() == heard
    texts = list[str]()
    with heard_by(texts.append), shown(Terminal()):
        say("one")
    assert texts == ["one"]


def test_planning_and_runs_say_their_stages_and_of_the_scan_that_it_has_begun(
    con: dpsql.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    texts, own = list[str](), list[str]()
    with heard_by(texts.append), caplog.at_level(logging.DEBUG, "dpsql"):
        con.run(con.plan(BATCH, epsilon=1, progress=own.append))
    assert texts[:2] == ["planning: 2 statements understood", "planning: 11 cells, 11 numbers"]
    assert any("identity: error " in text and "best so far" in text for text in texts)
    assert texts == [*(f"planning: {text}" for text in own), MEASURING]
    assert set(texts) <= set(caplog.messages)


def test_hearing_changes_no_plan(con: dpsql.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = str(con.plan(BATCH, epsilon=1))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr", Terminal())
    base = duckdb.connect()
    base.execute("CREATE TABLE t (a INTEGER)")
    other = dpsql.connect(base, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "other.ledger")
    assert str(other.plan(BATCH, epsilon=1, progress=lambda _: None)) == plain


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_quiet_command_shows_nothing(monkeypatch: pytest.MonkeyPatch, quiet: list[str]) -> None:
    found = list[bool]()
    monkeypatch.setattr("dpsql.surfaces.commands.budget", lambda _: found.append(is_heard()))
    assert main(["budget", "--policy", "none.toml", *quiet]) == 0
    assert found == [bool(quiet)]
