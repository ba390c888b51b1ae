"""Batches that wait for the custodian, over the wire: what the analyst is told, what the custodian sees and says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_world import server_of_analysts
from wire_client import Client, Running, served

from dpsql.errors import OperationalError
from dpsql.extensions.server.agents import Agent
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.extensions.server.service import FIRST
from dpsql.surfaces.cli import main

Custodian = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("approved")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    with served(lambda: server_of_analysts(folder, "approval = true")) as running:
        yield running


@pytest.fixture
def custodian(running: Running, folder: Path, capsys: pytest.CaptureFixture[str]) -> Custodian:
    """Runs ``dpsql requests`` and gives its JSON, or its error."""

    def command(word: str, *words: object) -> dict[str, Any]:
        numbers = [str(word) for word in words if isinstance(word, int)]
        others = [str(word) for word in words if not isinstance(word, int)]
        code = main(["requests", word, *numbers, str(folder / "visits.toml"), *others, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == ("error" in found)
        return found

    return command


def signed_in(running: Running, name: str = "ann", epsilon: float = 0.5) -> Client:
    client = Client(running.port, name, "secret 12")
    client.ask(f"SET dpsql.epsilon = {epsilon}")
    return client


def newest(custodian: Custodian, text: str) -> dict[str, Any]:
    """The newest request for a text."""
    held = [one for one in custodian("list", "--all")["requests"] if one["sql"].strip() == text]
    found: dict[str, Any] = held[-1]
    return found


def test_a_batch_waits_as_a_plan_until_the_custodian_says_yes(running: Running, custodian: Custodian) -> None:
    text = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
    with signed_in(running) as ann:
        plan = ann.ask(f"EXPLAIN {text}")
        assert plan.notices == [FIRST]
        before = running.server.service.con.budget.spent
        (error,) = ann.ask(text).errors
        assert (error["C"], "epsilon 0.5 (pure), waits for the custodian's approval" in error["M"]) == ("57000", True)
        number = newest(custodian, text)["request"]
        shown = custodian("show", number)
        assert (shown["analyst"], shown["state"], shown["guarantee"]) == ("ann", "waiting", "epsilon 0.5 (pure)")
        assert shown["plan"] == "\n".join(row[0] or "" for row in plan.rows)
        assert ann.ask(text).errors  # asking again asks for nothing more
        assert [row[2:4] for row in ann.ask("SHOW dpsql.requests").rows if row[0] == str(number)] == [
            ("waiting", "epsilon 0.5 (pure)"),
        ]
        assert len([one for one in custodian("list", "--all")["requests"] if one["sql"].strip() == text]) == 1
        assert running.server.service.con.budget.spent == before
        assert custodian("approve", number, "--note", "for the board")["state"] == "approved"
        said = ann.ask(text)
        assert (said.tags, said.notices[0][:30]) == (["SELECT 3"], "charged epsilon 0.5 (pure); re")
        (row,) = [row for row in ann.ask("SHOW dpsql.requests").rows if row[0] == str(number)]
        assert row[2] == "charged"
        assert ann.ask(text).notices[0].startswith("free")
        assert "charged already" in custodian("refuse", number)["error"]["message"]
        assert running.server.service.con.budget.spent == pytest.approx(before + 0.5)


@pytest.mark.long
def test_a_text_that_changes_after_the_approval_waits_again(running: Running, custodian: Custodian) -> None:
    text = "SELECT COUNT(*) AS n FROM visits WHERE age = 30"
    with signed_in(running) as ann, signed_in(running, "bob") as bob:
        ann.ask(text)
        custodian("approve", newest(custodian, text)["request"])
        before = running.server.service.con.budget.spent
        changed = (
            "SELECT COUNT(*) AS n FROM visits WHERE age = 31",
            f"{text}; SELECT SUM(cost) AS c FROM visits",
            f"CREATE OR REPLACE VIEW by_state AS {text}",
            text.replace("AS n", "AS m"),
        )
        for other in changed:
            assert [error["C"] for error in ann.ask(other).errors] == ["57000"]
        assert bob.ask(text).errors[0]["C"] == "57000"
        ann.ask("SET dpsql.epsilon = 0.6")
        assert ann.ask(text).errors[0]["C"] == "57000"
        assert running.server.service.con.budget.spent == before
        ann.ask("RESET ALL; SET dpsql.epsilon = 0.5")
        assert ann.ask(text).notices[0].startswith("charged")


@pytest.mark.long
def test_an_approval_of_one_parameter_is_none_of_another(running: Running, custodian: Custodian) -> None:
    text, filled = "SELECT COUNT(*) AS n FROM visits WHERE age = $1", "SELECT COUNT(*) AS n FROM visits WHERE age = 33"
    with signed_in(running) as ann, signed_in(running, "bob") as bob:
        ann.ask("SET SESSION AUTHORIZATION bob; SET ROLE bob")
        before, count = running.server.service.con.budget.spent, len(custodian("list", "--all")["requests"])
        ann.parse(text, (23,), "x")
        ann.send(b"D", b"Sx\0")
        ann.send(b"S")
        assert not ann.answer().errors
        ann.ask(f"EXPLAIN (FORMAT json) {filled}")
        assert len(custodian("list", "--all")["requests"]) == count  # to describe or to explain asks for nothing
        assert ann.prepared(text, "33", oids=(23,)).errors[0]["C"] == "57000"
        custodian("approve", newest(custodian, filled)["request"])
        for other in ("34", "33;SELECT 1", "33 OR true"):
            assert ann.prepared(text, other, oids=(23,)).errors
        assert bob.prepared(text, "33", oids=(23,)).errors[0]["C"] == "57000"
        assert running.server.service.con.budget.spent == before
        assert ann.ask(f"COPY ({filled}) TO STDOUT").notices[0].startswith("charged")
        assert running.server.service.con.budget.spent == pytest.approx(before + 0.5)


def test_an_approval_is_charged_once_however_many_sessions_use_it(running: Running, custodian: Custodian) -> None:
    text = "SELECT COUNT(*) AS n FROM visits WHERE age = 40"
    with signed_in(running) as ann:
        ann.ask(text)
    custodian("approve", newest(custodian, text)["request"])
    before, said = running.server.service.con.budget.spent, []

    def ask() -> None:
        with signed_in(running) as ann:
            said.append(ann.ask(text).notices[0].split()[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == ["charged", *["free,"] * 3]
    assert running.server.service.con.budget.spent == pytest.approx(before + 0.5)


def test_nobody_sees_what_another_waits_for(running: Running, custodian: Custodian, folder: Path) -> None:
    text = "SELECT COUNT(*) AS secret_plan FROM visits WHERE age = 50"
    with signed_in(running) as ann, signed_in(running, "bob") as bob:
        ann.ask(text)
        assert "secret_plan" in str(ann.ask("SHOW dpsql.requests").messages)
        probes = ("SHOW dpsql.requests", "SHOW ALL", "SELECT * FROM dp.releases", "SHOW TABLES", f"EXPLAIN {text}")
        for probe in probes[:4]:
            assert b"secret_plan" not in b"".join(body for _, body in bob.ask(probe).messages)
        custodian("refuse", newest(custodian, text)["request"], "--note", "only ann reads this")
        assert "only ann reads this" in ann.ask(text).errors[0]["M"]
        assert bob.ask(text).errors[0]["M"].endswith("ask again once it is approved (nothing was charged)")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert {"refused 57000", "refused 53400"} <= {line.get("outcome") for line in lines if line["event"] == "statement"}


def test_an_agent_is_told_and_asks_again(running: Running, custodian: Custodian, folder: Path) -> None:
    text = "SELECT COUNT(*) AS n FROM visits WHERE age = 60"
    agent = Agent(running.server.service, "bob", Journal(None), Allowance(1_000))
    budget = {"epsilon": "0.25"}
    plan = running.do(agent.plan(text, budget))
    assert (plan["affordable"], plan["warning"]) == (True, FIRST)
    with pytest.raises(OperationalError, match="waits for the custodian's approval"):
        running.do(agent.run(text, budget))
    requests = running.do(agent.budget())["requests"]
    assert [(one["batch"], one["state"]) for one in requests if one["batch"] == text] == [(text, "waiting")]
    custodian("approve", newest(custodian, text)["request"])
    assert running.do(agent.run(text, budget))["charged"] == "epsilon 0.25 (pure)"


def test_the_custodian_reads_words_and_no_escapes(
    running: Running, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with signed_in(running) as ann:
        ann.ask("SELECT /* \x1b[2J */ COUNT(*) AS n FROM visits WHERE age = 70")
    policy = str(folder / "visits.toml")
    assert main(["requests", "list", policy, "--all"]) == 0
    listed = capsys.readouterr().out
    (number,) = [line.split()[0] for line in listed.splitlines() if "x1b" in line]
    assert main(["requests", "show", number, policy]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in listed + shown
    assert shown.startswith(f"Request {number} of ann")
    assert "Guarantee  differential privacy at epsilon 0.5 (pure)" in shown
    assert main(["requests", "approve", number, policy]) == 0
    assert "ann may be charged epsilon 0.5 (pure) for it once" in capsys.readouterr().out
    assert main(["requests", "show", "999", policy]) == 1
    assert "no request 999" in capsys.readouterr().err


def test_what_is_kept_of_a_request_holds_no_value(running: Running, custodian: Custodian) -> None:
    """A request is the text and its plan: the same for any rows, as it is made before any is read."""
    text = "SELECT state, SUM(cost) AS cost FROM visits GROUP BY state"
    with signed_in(running) as ann:
        ann.ask(text)
    shown = custodian("show", newest(custodian, text)["request"])
    assert set(shown) == {
        *("request", "time", "analyst", "state", "guarantee", "account", "amount", "decided", "note", "release"),
        *("sql", "plan"),
    }
