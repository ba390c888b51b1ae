"""Statements over the server that are cancelled while they are planned or measured, and notices of how far they are."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_world import server
from wire_client import Client, Running, served

from dpsql.common import progress
from dpsql.driver import connection
from dpsql.extensions.server import session
from dpsql.extensions.server.service import CANCELLED, CANCELLED_BEFORE
from dpsql.measure import cells
from dpsql.planning import prepare

SQL = b"SELECT state, COUNT(*) AS n FROM visits GROUP BY state\0"
SOON = 10.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with served(lambda: server(tmp_path)) as running:
        yield running


class Stopped:
    """A step that says that it is reached, and goes on when it is told to."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step, self.reached, self.going = step, threading.Event(), threading.Event()

    def __call__(self, *values: Any, **named: Any) -> Any:
        self.reached.set()
        assert self.going.wait(SOON)
        return self.step(*values, **named)


def asking(running: Running) -> Client:
    client = Client(running.port)
    client.ask("SET dpsql.epsilon = 0.5")
    client.send(b"Q", SQL)
    return client


def cancel(running: Running, client: Client) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as other:
        other.sendall(struct.pack("!II", 16, 80877102) + client.key)
        assert other.recv(1) == b""


def costs(running: Running, client: Client) -> list[float]:
    """The charges, once whatever runs has ended: the next plan waits for its turn."""
    assert client.ask(f"EXPLAIN {SQL[:-1].decode()}").rows
    return [entry.charge.amount for entry in running.server.service.con.releases()]


@pytest.mark.parametrize("stage", ["before", "after"])
def test_what_is_cancelled_before_the_charge_is_not_charged(
    running: Running, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(session, "_TO_SAY", 0.01)
    where = (prepare, "select") if stage == "before" else (cells, "observed")
    step = Stopped(getattr(*where))
    with monkeypatch.context() as patch:
        patch.setattr(*where, step)
        client = asking(running)
        assert step.reached.wait(SOON)
        cancel(running, client)
        (error,) = client.answer().errors
        assert (error["C"], error["M"]) == ("57014", CANCELLED)  # it runs still, and nobody knows
        step.going.set()
        assert costs(running, client) == ([] if stage == "before" else [0.5])
    client.close()


def test_who_cancels_is_told_that_nothing_was_charged(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_TO_SAY", SOON)
    reached = threading.Event()

    def searching(*_: object, **__: object) -> None:
        while True:
            reached.set()
            progress.say("searching")  # raises once the statement is cancelled

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "select", searching)
        client = asking(running)
        assert reached.wait(SOON)
        cancel(running, client)
        (error,) = client.answer().errors
        assert (error["C"], error["M"]) == ("57014", CANCELLED_BEFORE)
    assert costs(running, client) == []
    client.close()


def test_who_cancels_after_a_charge_is_not_told_that_there_was_none(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_TO_SAY", SOON)
    reached = threading.Event()

    def buying(_: object) -> None:
        while True:
            reached.set()
            progress.say("reading rows")  # of what is bought beside the answer

    with monkeypatch.context() as patch:
        patch.setattr(connection.Connection, "_buy_losses_once", buying)
        client = asking(running)
        assert reached.wait(SOON)
        cancel(running, client)
        (error,) = client.answer().errors
        assert (error["C"], error["M"]) == ("57014", CANCELLED)
    assert costs(running, client) == [0.5]
    client.close()


@pytest.mark.parametrize("stage", ["planning", "measuring"])
def test_a_client_that_waits_is_told_the_stage_and_of_a_scan_the_time_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    where = (prepare, "select") if stage == "planning" else (cells, "observed")
    step = Stopped(getattr(*where))
    with monkeypatch.context() as patch:
        patch.setattr(*where, step)
        client = asking(running)
        assert step.reached.wait(SOON)
        first = b"planning: " if stage == "planning" else progress.MEASURING.encode()
        while first not in client.socket.recv(2**16, socket.MSG_PEEK):
            pass
        step.going.set()
        said = client.answer().notices
    assert any(text.endswith(" s") for text in said)
    planning = [text for text in said if text.startswith("planning: ")]
    scanning = [text for text in said if text.startswith(f"{progress.MEASURING}, ")]
    assert planning if stage == "planning" else scanning
    assert all(text.removeprefix(progress.MEASURING).strip(", s").isdigit() for text in scanning)
    client.close()
