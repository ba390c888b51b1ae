"""Tools of an agent: what each gives, costs and refuses; over the Model Context Protocol where ``mcp`` is installed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_world import connection, database

from dpsql.errors import BudgetError, ProgrammingError, SQLError
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.extensions.server.agents import MOST_ROWS, Agent
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.extensions.server.service import Service
from dpsql.surfaces.cli import main


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    con = connection(tmp_path)
    accounts = Accounts.of(con.policy, con.ledger_path, None)
    accounts.add("robot", Wish(epsilon=4, pure_epsilon=1))
    service = Service(con, accounts=accounts)
    yield Agent(service, "robot", Journal(tmp_path / "log.jsonl"), Allowance(1_000))
    service.close()


def test_an_agent_looks_plans_runs_and_asks_again(agent: Agent, tmp_path: Path) -> None:
    async def work() -> None:
        tables = (await agent.tables())["tables"]
        assert tables["visits"]["columns"]["age"] == "integer; never NULL; 0 to 99"
        text = "CREATE VIEW by_state AS SELECT state, COUNT(*) AS n FROM visits GROUP BY state;SELECT SUM(cost) FROM visits"  # noqa: E501
        plan = await agent.plan(text, {"epsilon": "0.5"})
        assert (plan["cost"], plan["affordable"]) == ("epsilon 0.5 (pure)", True)
        assert [column["numbers"] for column in plan["columns"]] == [3, 1]
        found = await agent.run(text, {"epsilon": "0.5"})
        assert found["charged"] == "epsilon 0.5 (pure)"
        assert list(found["results"]) == ["by_state", "q1"]
        assert found["results"]["by_state"]["columns"] == ["state", "n", "n_stderr", "n_low", "n_high"]
        assert ("robot", "epsilon 0.5") in [(row["whose"], row["spent"]) for row in found["budget"]]
        assert (await agent.run(text, {"epsilon": "0.5"}))["charged"] == "free"
        assert (await agent.plan("SELECT state, COUNT(*) AS n FROM visits GROUP BY state", {}))["cost"] == "free"
        assert (await agent.plan("SELECT 1", {}))["cost"] == "free"
        (result,) = (await agent.ask_releases("SELECT COUNT(*) AS n FROM by_state"))["results"]
        assert result == {"columns": ["n"], "rows": [[3]]}
        odd = (
            "SELECT 'inf'::DOUBLE AS a, ['nan'::DOUBLE, 1] AS b, {'c': '-inf'::FLOAT} AS c, NULL AS d, 2.5::DOUBLE AS e"
        )
        (result,) = (await agent.ask_releases(odd))["results"]  # JSON has no infinity
        assert result["rows"] == [[None, [None, 1.0], {"c": None}, None, 2.5]]
        (result,) = (await agent.ask_releases("SELECT DATE '2020-01-01' AS d FROM range(5000)"))["results"]
        assert (len(result["rows"]), result["rows"][0], result["rows_left_out"]) == (MOST_ROWS, ["2020-01-01"], 4000)

    asyncio.run(work())
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line.get("cost") for line in lines if line["outcome"] == "answered"].count(0.5) == 1


@pytest.mark.parametrize(
    ("tool", "text", "budget", "kind", "said"),
    [
        ("run", "SELECT COUNT(*) FROM visits", {"epsilon": "2"}, BudgetError, "the analyst robot"),
        ("run", "SELECT COUNT(*) FROM visits WHERE age = 3", {}, ProgrammingError, "say what it may cost"),
        ("plan", "SELECT nope FROM visits", {"epsilon": "1"}, SQLError, "no column nope"),
        ("run", "SET dpsql.epsilon = 100", {}, SQLError, "no batch"),
        ("run", "SELECT 1; SHOW ALL", {}, SQLError, "no batch"),
        ("run", "", {}, SQLError, "no batch"),
        ("ask_releases", "SELECT COUNT(*) FROM visits", None, ProgrammingError, "call plan"),
        ("ask_releases", "SELECT * FROM nothing", None, SQLError, "nothing"),
    ],
)
@pytest.mark.few(every=3)
def test_an_agent_is_refused_with_what_to_do(
    agent: Agent, tool: str, text: str, budget: dict[str, str] | None, kind: type[Exception], said: str
) -> None:
    arguments: tuple[Any, ...] = (text,) if budget is None else (text, budget)
    with pytest.raises(kind, match=said):
        asyncio.run(getattr(agent, tool)(*arguments))
    assert agent.service.con.budget.spent == 0


@pytest.mark.surfaces
def test_a_client_of_the_protocol(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp")
    stdio = pytest.importorskip("mcp.client.stdio")
    database(tmp_path)
    policy, data = str(tmp_path / "visits.toml"), str(tmp_path / "visits.duckdb")
    assert main(["analyst", "add", "robot", policy, "--epsilon", "4", "--pure-epsilon", "1", "--quiet"]) == 0
    command = ["-m", "dpsql", "mcp", policy, "--analyst", "robot", "--database", data]
    server = stdio.StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))

    async def work() -> None:
        async with mcp.Client(server) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == [
                *("tables", "plan", "run", "ask_releases", "budget"),
            ]
            found = await client.call_tool("run", {"sql": "SELECT COUNT(*) AS n FROM visits", "epsilon": 0.5})
            assert json.loads(found.content[0].text)["charged"] == "epsilon 0.5 (pure)"
            refused = await client.call_tool("run", {"sql": "SELECT nope FROM visits", "epsilon": 0.5})
            assert refused.is_error
            assert "^^^^" in refused.content[0].text

    asyncio.run(work())


@pytest.mark.long
def test_an_agent_needs_an_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mcp")
    database(tmp_path)
    assert main(["mcp", str(tmp_path / "visits.toml"), "--analyst", "nobody"]) == 1
    assert "the analyst nobody is unknown" in capsys.readouterr().err
