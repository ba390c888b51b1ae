"""What an earlier release answers over the wire: only where the session's budget buys no better, with its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_world import connection, server
from wire_client import Client, Running, served

from dpsql.extensions.server.agents import Agent
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.extensions.server.service import Service

BY_STATE = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
TWO = "SELECT COUNT(*) AS n FROM visits WHERE state IN ('BE', 'FR')"
BUDGETS = {
    "epsilon": ["SET dpsql.epsilon = 0.5"],
    "epsilon and delta": ["SET dpsql.epsilon = 0.5", "SET dpsql.delta = 1e-9"],
    "rho": ["SET dpsql.rho = 0.1"],
    "mu": ["SET dpsql.mu = 0.4"],
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with served(lambda: server(tmp_path)) as running:
        yield running


@pytest.mark.parametrize("settings", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.few("epsilon")
def test_a_budget_of_the_session_buys_what_no_release_answers_as_well(running: Running, settings: list[str]) -> None:
    with Client(running.port) as ann:
        for setting in settings:
            ann.ask(setting)
        ann.ask(BY_STATE)
        assert "Guarantee" in ann.ask(f"EXPLAIN {TWO}").rows[0][0]
        assert ann.ask(TWO).notices[0].startswith("charged")
        assert ann.ask(TWO).notices[0].startswith("free, as release 2 knows the answers; standard error: q1.n ")
    with Client(running.port) as bob:  # who names no budget has what there is, and is told how far off it may be
        assert bob.ask(TWO).notices[0].startswith("free, as release 2 knows the answers; standard error: q1.n ")


@pytest.mark.long
def test_a_free_answer_shows_its_errors_and_is_none_of_its_sources(running: Running) -> None:
    with Client(running.port) as ann:
        ann.ask("SET dpsql.epsilon = 2")
        ann.ask(BY_STATE)
        ann.ask("SET dpsql.epsilon = 0.5")
        for _ in range(2):
            plan = [row[0] for row in ann.ask(f"EXPLAIN {TWO}").rows]
            assert plan[0] == "Free: release 1 knows the answers already"
            assert plan[2].split() == ["result", "column", "numbers", "std", "error", "largest", "within"]
            assert plan[3].split()[:4] == ["q1", "n", "1", "0.851"]
            assert ann.ask(TWO).notices == ["free, as release 1 knows the answers; standard error: q1.n 0.851"]
        (row,) = ann.ask(f"EXPLAIN (FORMAT rows) {TWO}").rows
        assert row[:3] == ("q1", "n", "1")
        (document,) = json.loads(ann.ask(f"EXPLAIN (FORMAT json) {TWO}").rows[0][0])
        assert (document["guarantee"], document["amount"]) == ("free, from release 1", 0.0)
        assert document["columns"][0]["stderr"] == pytest.approx(0.851, abs=1e-3)


@pytest.mark.long
def test_an_agent_is_told_the_errors_of_a_free_answer(tmp_path: Path) -> None:
    service = Service(connection(tmp_path))
    agent = Agent(service, "robot", Journal(tmp_path / "log.jsonl"), Allowance(1_000))

    async def work() -> None:
        await agent.run(BY_STATE, {"epsilon": "0.5"})
        assert (await agent.plan(TWO, {"epsilon": "0.5"}))["cost"] == "epsilon 0.5 (pure)"
        free = await agent.plan(TWO, {})
        assert (free["cost"], free["columns"][0]["column"]) == ("free", "n")  # type: ignore[index]
        assert "std error" in str(free["text"])
        found = await agent.run(TWO, {})
        assert (found["charged"], str(found["why"]).partition(";")[0]) == (
            "free",
            "free, as release 1 knows the answers",
        )
        assert (await agent.run(TWO, {"epsilon": "0.5"}))["charged"] == "epsilon 0.5 (pure)"

    asyncio.run(work())
    service.close()
