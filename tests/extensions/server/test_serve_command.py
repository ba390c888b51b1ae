"""``dpsql serve`` and ``dpsql analyst`` as a custodian runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from server_world import database
from wire_client import Client, served

import dpsql
from dpsql.extensions.server.accounts import Accounts
from dpsql.extensions.server.listener import Server
from dpsql.extensions.server.service import Service
from dpsql.surfaces.cli import main

Run = Callable[..., dict[str, Any]]
AGENTS = importlib.util.find_spec("mcp") is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    database(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``dpsql analyst`` and gives its JSON, or its error."""

    def command(word: str, *words: str) -> dict[str, Any]:
        name, *rest = words if word != "list" else ("", *words)
        code = main(["analyst", word, *([name] if name else []), str(folder / "visits.toml"), *rest, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert code == ("error" in found)
        return found

    return command


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[dict[str, int], subprocess.Popen[str]]]:
    """A server in a process of its own, and its ports."""
    command = [sys.executable, "-m", "dpsql", "serve", str(folder / "visits.toml"), "--port", "0", "--json"]
    words = ("--database", str(folder / "visits.duckdb"), *words)
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not said.endswith("}\n"):
                line = process.stdout.readline()
                assert line, process.stderr.read() if process.stderr else ""
                said += line
            yield json.loads(said), process
        finally:
            if process.poll() is None:
                process.kill()


def test_an_analyst_is_added_changed_and_removed(run: Run, folder: Path) -> None:
    made = run("add", "ann", "--epsilon", "8", "--per-release", "2", "--tables", "VISITS", "--expires", "2999-01-01")
    assert made["accounts"]["pure"]["total"] == 4.0
    assert (made["tables"], made["expires"]) == (["visits"], "2999-01-01T00:00:00+00:00")
    assert len(made["password"]) == 20
    assert made["password"] not in (folder / "visits.analysts").read_text()
    assert (folder / "visits.analysts").stat().st_mode & 0o777 == 0o600
    changed = run("set", "ann", "--epsilon", "4", "--tables", "*", "--expires", "never")
    assert (changed["accounts"]["pure"]["total"], changed["tables"], changed["expires"]) == (2.0, None, None)
    assert run("set", "ann", "--pure-epsilon", "1")["accounts"]["pure"]["total"] == 1.0
    assert run("suspend", "ann")["state"] == "is suspended"
    assert run("resume", "ann")["state"] == "may ask"
    assert [analyst["name"] for analyst in run("list")["analysts"]] == ["ann"]
    run("remove", "ann")
    assert run("list")["analysts"] == []
    run("add", "ann", "--epsilon", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "ann"), "needs a budget"),
        (("add", "ann", "--rho", "1"), "in epsilon"),
        (("add", "ann", "--epsilon", "900"), "larger than the policy's"),
        (("add", "ann", "--epsilon", "x"), "epsilon"),
        (("add", "a b", "--epsilon", "1"), "use up to 63 letters"),
        (("add", "bob", "--epsilon", "1"), "there is an analyst bob already"),
        (("add", "ann", "--epsilon", "1", "--tables", "visit"), "did you mean visits"),
        (("add", "ann", "--epsilon", "1", "--expires", "soon"), "no date"),
        (("add", "ann", "--epsilon", "1", "--per-release", "2"), "max_epsilon_per_release"),
        (("set", "bobb", "--epsilon", "1"), "did you mean bob"),
        (("set", "bob", "--tables", ","), "name some"),
        (("remove", "ann"), "there is no analyst ann"),
        (("suspend", "ann"), "there is no analyst ann"),
        (("add", "ann", "--epsilon", "1", "--password-file", "/no/such"), "No such file"),
        (("add", "ann", "--epsilon", "1", "--passwords", "a" * 300), "cannot be reached (File name too long); give"),
    ],
)
@pytest.mark.few(every=2)
def test_what_cannot_be_given_is_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    run("add", "bob", "--epsilon", "1")
    assert said in run(*words)["error"]["message"]
    assert [analyst["name"] for analyst in run("list")["analysts"]] == ["bob"]


def test_a_password_of_the_custodians_own(run: Run, folder: Path) -> None:
    (folder / "secret").write_text("short\n")
    assert (
        "8 characters"
        in run("add", "ann", "--epsilon", "1", "--password-file", str(folder / "secret"))["error"]["message"]
    )
    (folder / "secret").write_text("long enough\nsecond line\n")
    made = run("add", "ann", "--epsilon", "1", "--password-file", str(folder / "secret"))
    assert "password" not in made
    (folder / "visits.analysts").write_text("{")
    assert "no file of passwords" in run("set", "ann", "--password-file", str(folder / "secret"))["error"]["message"]


def budget_of(port: int, token: str) -> str:
    """What an agent's tool says of the budget, over HTTP."""
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "budget", "arguments": {}}}'
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


@contextmanager
def within(folder: Path) -> Iterator[int]:
    """The port of such a server in this process: where its process is not the subject."""
    con = dpsql.connect(folder / "visits.duckdb", policy=folder / "visits.toml")
    held = Accounts.of(con.policy, con.ledger_path, None)
    with served(lambda: Server(Service(con, accounts=held), held.verifier, port=0)) as running:
        yield running.port


def test_a_server_of_its_own_process(run: Run, folder: Path) -> None:
    ann, bob = (run("add", name, "--epsilon", "4", "--pure-epsilon", "1")["password"] for name in ("ann", "bob"))
    token = run("token", "ann")["token"]
    with serving(folder, "--status", "0", *(("--mcp-port", "0") if AGENTS else ())) as (ports, process):
        port = ports["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['status_port']}/healthz", timeout=30) as answer:
            assert answer.read() == b"ok\n"
        if AGENTS:
            assert "epsilon 1" in budget_of(ports["mcp_port"], token)
        if sys.platform != "win32":
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            assert "SIGHUP changes nothing" in process.stderr.readline()
        with pytest.raises(PermissionError):
            Client(port, "ann", bob)
        with Client(port, "ann", ann) as client:
            client.ask("SET dpsql.epsilon = 0.75")
            assert client.ask("SELECT COUNT(*) AS n FROM visits").tags == ["SELECT 1"]
            assert ("ann", "pure", "epsilon 1", "epsilon 0.75", "epsilon 0.25") in client.ask("SHOW dpsql.budget").rows
            said = client.ask("EXPLAIN SELECT COUNT(*) AS n FROM visits WHERE age = 1")
            assert "your own budget would refuse it" in said.notices[0]
            (error,) = client.ask("SELECT COUNT(*) AS n FROM visits WHERE age = 1").errors
            assert error["C"] == "53400"
            assert "the analyst ann" in error["M"]
            assert client.ask("SELECT COUNT(*) FROM q1").rows == [("1",)]
            run("suspend", "ann")
            assert client.ask("SELECT COUNT(*) FROM q1").errors[0]["C"] == "28000"
            with pytest.raises(PermissionError):
                Client(port, "ann", ann)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in (folder / "visits.audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines][0 :: len(lines) - 1] == ["start", "stop"]
    assert sum(line.get("cost") or 0 for line in lines) == 0.75
    assert run("token", "ann", "--revoke")["revoked"] == 1


def test_tables_that_are_not_an_analysts_are_refused(run: Run, folder: Path) -> None:
    (folder / "visits.toml").write_text(
        (folder / "visits.toml").read_text() + '[tables.other]\nunit = "row"\nsource = "o.csv"\n'
        '[tables.other.columns]\nk = { values = [1], type = "INTEGER" }\n'
    )
    (folder / "o.csv").write_text("k\n1\n")
    password = run("add", "ann", "--epsilon", "4", "--tables", "visits")["password"]
    with within(folder) as port, Client(port, "ann", password) as client:
        client.ask("SET dpsql.epsilon = 0.5")
        (error,) = client.ask("SELECT COUNT(*) AS n FROM other").errors
        assert error["C"] == "42501"
        assert "may not ask other; ask visits" in error["M"]
        assert not client.ask("SELECT COUNT(*) AS n FROM visits").errors


def test_of_two_sessions_that_ask_for_the_last_of_it_one_gets_it(run: Run, folder: Path) -> None:
    password = run("add", "ann", "--epsilon", "4", "--pure-epsilon", "1")["password"]
    with within(folder) as port:
        said: list[str] = []

        def ask(number: int) -> None:
            with Client(port, "ann", password) as client:
                client.ask("SET dpsql.epsilon = 0.4")
                found = client.ask(f"SELECT COUNT(*) AS n FROM visits WHERE age = {number}")
                said.append(found.errors[0]["C"] if found.errors else "answered")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(said) == ["53400"] * 2 + ["answered"] * 2


@pytest.mark.parametrize(("command", "missing"), [("serve", "pygwire"), ("mcp", "mcp")])
def test_a_missing_extra_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, missing: str
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else known(name))
    more = ["--analyst", "ann"] if command == "mcp" else []
    assert main([command, str(folder / "visits.toml"), *more]) == 1
    assert re.search(f"install .*'{missing}[<>=]", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--host", "0.0.0.0"), 1, "--tls-cert and --tls-key"),
        (("--tls-cert", "x.pem"), 2, "TLS needs a certificate and its key"),
        (("--connections", "0"), 1, "the limit connections is 0"),
        (("--log", "/no/such/folder/log"), 1, "the audit log"),
        (("--port", "1"), 1, "cannot listen"),
    ],
)
def test_a_server_that_cannot_begin_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    if words[0] == "--port" and os.geteuid() == 0:
        words = ("--host", "192.0.2.1", "--port", "0")
        said = "--tls-cert"
    command = ["serve", str(folder / "visits.toml"), "--database", str(folder / "visits.duckdb"), *words]
    if code == 2:
        with pytest.raises(SystemExit):
            main(command)
    else:
        assert main(command) == code
    assert said in capsys.readouterr().err
