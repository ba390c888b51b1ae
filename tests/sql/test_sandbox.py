"""Instances for outer SQL are taken again, and nothing of who had them before is left in them."""

from __future__ import annotations

import os

import duckdb
import pytest

from dpsql.sql.outer import sandbox as room
from dpsql.sql.outer.sandbox import Sandbox


@pytest.fixture(autouse=True)
def no_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_spare", [])


def test_an_instance_is_taken_again_without_what_it_held() -> None:
    with Sandbox() as first:
        first.create("t", [("a", "INTEGER")])
        first.connection.execute("CREATE SCHEMA s; CREATE VIEW s.v AS SELECT 1 AS a; CREATE MACRO m() AS 1")
        first.connection.execute("CREATE TEMP TABLE w AS SELECT 1 AS a")
    (held,) = room._spare
    with Sandbox() as second, Sandbox() as third:
        for text in ("SELECT * FROM t", "SELECT * FROM s.v", "SELECT m()", "SELECT * FROM held.main.t", "FROM temp.w"):
            assert second.describe(text)[1], text
        assert room._spare == []
        second.create("t", [("b", "VARCHAR")])
        assert second.describe("SELECT * FROM t") == ([("b", "VARCHAR")], "")
        assert third.describe("SELECT * FROM t")[1]
    assert len(room._spare) == 2
    assert held in room._spare


def test_one_that_was_interrupted_or_is_in_a_transaction_is_too() -> None:
    with Sandbox() as late:
        assert late.run("CREATE TABLE r AS SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(1000000) b(i)", 0.05)
        one = late.connection
    with Sandbox() as open_one:
        open_one.connection.execute("BEGIN")
        open_one.create("t", [("a", "INTEGER")])
    with Sandbox() as third:
        with pytest.raises(duckdb.ConnectionException):
            one.interrupt()  # too late: nobody else is
        assert third.describe("SELECT * FROM t")[1]
    assert len(room._spare) == 1
    with Sandbox() as unused:
        pass
    assert len(room._spare) == 1
    assert unused.describe("SELECT 1 AS a") == ([("a", "INTEGER")], "")
    unused.__exit__()


def test_those_of_many_are_few() -> None:
    boxes = [Sandbox() for _ in range(6)]
    for box in boxes:
        box.create("t", [("a", "INTEGER")])
    for box in boxes:
        box.__exit__()
    assert len(room._spare) == room._MOST_SPARE


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="needs fork of POSIX")
def test_a_child_takes_none_of_its_parents() -> None:
    with Sandbox() as box:
        box.create("t", [("a", "INTEGER")])
    spare = list(room._spare)
    room._forked()
    assert room._spare == []
    assert spare[0].execute("SELECT 1").fetchall() == [(1,)]  # not closed
