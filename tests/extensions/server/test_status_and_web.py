"""Over HTTP: health and counters without data, and the tools of agents for whoever shows a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from server_world import server_of_analysts
from wire_client import Client, Running, served

from dpsql.errors import DataError, OperationalError, ProgrammingError
from dpsql.extensions.server.accounts import Accounts
from dpsql.extensions.server.status import Status


@dataclass
class World:
    """A server with both of its other doors open, and tokens of ann and bob."""

    running: Running
    accounts: Accounts
    status: Status
    ann: str
    bob: str
    mcp_port: int = 0

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.status.port}{path}", method=method)
        return _asked(request)

    def call(self, token: str | None, tool: str, **arguments: Any) -> tuple[int, Any]:
        """One call of a tool, as a client of the protocol sends it."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        return self.post(json.dumps(body).encode(), token)

    def post(self, body: bytes, token: str | None, **headers: str) -> tuple[int, Any]:
        held = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
        held |= {} if token is None else {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.mcp_port}/mcp", body, held, method="POST")
        status, text = _asked(request)
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


def _asked(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[World]:
    with served(lambda: server_of_analysts(folder)) as running, watching(running) as world:
        yield world


@contextlib.contextmanager
def watching(running: Running) -> Iterator[World]:
    """A server of ann, or of ann and bob, with the port for those who watch it."""
    accounts = running.server.service.accounts
    assert accounts is not None
    status = Status(running.server.journal, running.server.service.check, running.server.gauges, port=0)
    running.do(status.start())
    tokens = [accounts.token(analyst.name) for analyst, _ in accounts.listed()]
    yield World(running, accounts, status, tokens[0], tokens[-1])
    running.do(status.stop())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with watched(tmp_path_factory.mktemp("web")) as world:
        yield world


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[World]:
    """A server that has counted nothing yet."""
    with watched(tmp_path) as world:
        yield world


@pytest.fixture(scope="module")
def agents(world: World) -> Iterator[World]:
    pytest.importorskip("mcp")
    pytest.importorskip("uvicorn")
    from dpsql.extensions.server.web import Agents

    held = Agents(world.running.server, world.accounts.owner, 0)
    world.running.do(held.start())
    world.mcp_port = held.port
    yield world
    world.running.do(held.stop(5.0))


# -- health and counters -------------------------------------------------------------------------------


def test_health_and_counters(fresh: World) -> None:
    with Client(fresh.running.port, "ann", "secret 12") as ann:
        ann.ask("SET dpsql.epsilon = 0.5")
        ann.ask("SELECT state, COUNT(*) AS very_own FROM visits GROUP BY state")
        ann.ask("SELECT nope FROM visits")
        assert fresh.get("/healthz") == (200, "ok\n")
        assert fresh.get("/metrics", "HEAD") == (200, "")
        code, text = fresh.get("/metrics")
        held = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert (code, held["dpsql_sessions"], held["dpsql_charges_total"]) == (200, "1", "1")
        assert held['dpsql_statements_total{kind="private",outcome="answered"}'] == "1"
        assert held['dpsql_statements_total{kind="",outcome="refused 42703"}'] == "1"
    with pytest.raises(PermissionError):
        Client(fresh.running.port, "ann", "wrong one")
    assert 'dpsql_events_total{event="sign in refused"} 1' in fresh.get("/metrics")[1]
    for word in ("ann", "very_own", "nope", "visits", "BE"):  # no account, no text, no value
        assert word not in fresh.get("/metrics")[1]


def test_what_else_is_asked_of_the_watching_port(world: World) -> None:
    assert world.get("/")[0] == 404
    assert world.get("/metrics", "POST")[0] == 405
    for sent in (b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\x00 /\r\n\r\n", b"GET /" + b"x" * 20_000):
        with socket.create_connection(("127.0.0.1", world.status.port), timeout=10) as other:
            other.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert other.recv(100)[:12] in (b"HTTP/1.1 405", b"HTTP/1.1 404", b"")
    waiting = [socket.create_connection(("127.0.0.1", world.status.port), timeout=10) for _ in range(40)]
    for other in waiting:
        other.close()
    assert world.get("/healthz")[0] == 200


def test_health_is_what_the_ledger_and_the_server_say(world: World) -> None:
    def unwell() -> None:
        raise OperationalError("no")

    other = Status(world.running.server.journal, unwell, world.running.server.gauges, port=0)
    world.running.do(other.start())
    held = World(world.running, world.accounts, other, "", "")
    assert held.get("/healthz")[0] == 503
    with pytest.raises(OperationalError, match=r"cannot listen at 127.0.0.1 port"):
        world.running.do(Status(world.running.server.journal, unwell, dict, port=other.port).start())
    world.running.do(other.stop())


# -- agents --------------------------------------------------------------------------------------------


def test_an_agent_asks_over_http(agents: World) -> None:
    status, listed = agents.post(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', agents.ann)
    assert status == 200
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["tables", "plan", "run", "ask_releases", "budget"]
    text = "SELECT COUNT(*) AS n FROM visits WHERE age = 11"
    assert json.loads(text_of(agents.call(agents.ann, "plan", sql=text, epsilon=0.5)[1]))["affordable"]
    found = json.loads(text_of(agents.call(agents.ann, "run", sql=text, epsilon=0.5)[1]))
    assert found["charged"] == "epsilon 0.5 (pure)"
    assert ("ann", "pure") in [(row["whose"], row["account"]) for row in found["budget"]]
    refused = agents.call(agents.bob, "run", sql="SELECT nope FROM visits", epsilon=0.5)[1]
    assert refused["result"]["isError"]
    assert "visits has no column nope" in text_of(refused)
    budget = json.loads(text_of(agents.call(agents.bob, "budget")[1]))
    assert {row["whose"] for row in budget["budget"]} == {"bob", "policy"}


def test_a_token_is_needed_and_ends_with_its_account(agents: World) -> None:
    for token in (None, "", "dpsql_", agents.ann[:-1], agents.ann + "x", "secret 12", f"{agents.ann} {agents.bob}"):
        status, said = agents.call(token, "budget")
        assert (status, "result" in said) == (401, False)
    two = agents.post(b"{}", None, **{"Authorization": f"Bearer {agents.ann}", "authorization ": "x"})
    assert two[0] in (400, 401)
    extra = agents.accounts.token("bob")
    assert agents.call(extra, "budget")[0] == 200
    kept = next(Path(agents.running.server.service.con.ledger_path).parent.glob("*.analysts")).read_text()
    assert extra not in kept
    agents.accounts.set("bob", _same(), suspended=True)
    assert agents.call(extra, "budget")[0] == 401
    agents.accounts.set("bob", _same(), "another secret", suspended=False)
    assert agents.call(extra, "budget")[0] == 200
    assert agents.accounts.revoke("bob") == 2
    assert agents.call(extra, "budget")[0] == 401
    agents.bob = agents.accounts.token("bob")
    with pytest.raises(ProgrammingError, match="no analyst eve"):
        agents.accounts.token("eve")


def test_requests_that_mean_no_good(agents: World) -> None:
    status, said = agents.post(b"x" * 2_000_000, agents.ann)
    assert (status, "at most 1,000,000 bytes" in str(said)) == (413, True)
    for body in (b"", b"{", b"[]", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b'{"jsonrpc":"2.0","id":1,"method":"nope"}'):
        status, said = agents.post(body, agents.ann)
        assert status in (200, 202, 400, 404)
        assert "Traceback" not in str(said)
    status, said = agents.call(agents.ann, "run", sql=7, epsilon="much")
    assert status in (200, 400)
    assert "error" in str(said).lower()
    for header in ({"mcp-session-id": "of-somebody"}, {"mcp-protocol-version": "1900-01-01"}, {"host": "evil.example"}):
        assert agents.post(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', agents.ann, **header)[0] in (
            *(200, 400, 403, 404, 421),
        )
    assert agents.call(agents.ann, "budget")[0] == 200


def test_half_open_requests_hold_nobody_up(agents: World) -> None:
    held = [socket.create_connection(("127.0.0.1", agents.mcp_port), timeout=10) for _ in range(100)]
    for at, one in enumerate(held):
        one.sendall([b"", b"POST /mcp HTTP/1.1\r\nHost: x\r\n", b"POST", b"\x16\x03\x01"][at % 4])
    assert agents.call(agents.ann, "budget")[0] == 200
    for one in held:
        one.close()


def test_agents_beyond_this_machine_need_tls(agents: World) -> None:
    from dpsql.extensions.server.web import Agents

    agents.running.server.host = "0.0.0.0"
    try:
        with pytest.raises(DataError, match="--tls-cert"):
            Agents(agents.running.server, agents.accounts.owner, 0)
    finally:
        agents.running.server.host = "127.0.0.1"
    with pytest.raises(OperationalError, match="--mcp-port"):
        agents.running.do(Agents(agents.running.server, agents.accounts.owner, agents.mcp_port).start())


@pytest.mark.surfaces
def test_a_client_of_the_protocol_over_http(agents: World) -> None:
    mcp = pytest.importorskip("mcp")
    http = pytest.importorskip("httpx2")
    from mcp.client.streamable_http import streamable_http_client

    async def work() -> None:
        address = f"http://127.0.0.1:{agents.mcp_port}/mcp"
        headers = {"Authorization": f"Bearer {agents.ann}"}
        async with (
            http.AsyncClient(headers=headers, timeout=60) as given,
            mcp.Client(streamable_http_client(address, http_client=given)) as client,
        ):
            found = await client.call_tool("run", {"sql": "SELECT SUM(cost) AS c FROM visits", "epsilon": 0.5})
            assert not found.is_error
            assert json.loads(found.content[0].text)["charged"] == "epsilon 0.5 (pure)"
            found = await client.call_tool("ask_releases", {"sql": "SELECT * FROM visits"})
            assert "call plan to see the cost" in found.content[0].text

    asyncio.run(work())


def _same() -> Any:
    from dpsql.extensions.server.accounts import Wish

    return Wish()
