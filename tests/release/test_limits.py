"""The time that a query over releases may take, whatever it does with it."""

from __future__ import annotations

import threading

import duckdb
import pytest

from dpsql.errors import OperationalError
from dpsql.release.limits import Question, answer_within, fetched


class Deaf:
    """A connection inside one call of a function: an interrupt does not reach it."""

    def __init__(self) -> None:
        self.interrupted = 0
        self.returned, self.gone = threading.Event(), threading.Event()

    def interrupt(self) -> None:
        self.interrupted += 1

    def work(self, question: Question) -> str:
        question.on(self)  # type: ignore[arg-type]
        self.returned.wait(60)
        self.gone.set()
        return "late"


def test_a_call_that_nothing_stops_is_left_behind() -> None:
    held = Deaf()
    with pytest.raises(OperationalError, match=r"stopped after 0\.01 s; narrow it"):
        answer_within(held.work, 0.01, grace=0.05)
    assert held.interrupted
    assert not held.gone.is_set()  # it still runs, and nobody waits
    held.returned.set()
    assert held.gone.wait(60)


def test_what_ends_in_its_grace_still_counts() -> None:
    held = Deaf()
    interrupt = held.interrupt

    def heard() -> None:
        interrupt()
        held.returned.set()

    held.interrupt = heard  # type: ignore[method-assign]
    assert answer_within(held.work, 0.01, grace=60) == "late"


def test_errors_and_answers_come_through() -> None:
    def fails(_: Question) -> int:
        raise KeyError("its own")

    for seconds in (None, 60.0):
        assert answer_within(lambda _: 3, seconds) == 3
        with pytest.raises(KeyError, match="its own"):
            answer_within(fails, seconds)


def test_rows_are_fetched_in_pieces_until_nobody_waits() -> None:
    question = Question()
    with duckdb.connect(":memory:") as connection:
        assert len(fetched(connection.execute("FROM range(20000)"), 20_000, question)) == 20_000
        with pytest.raises(OperationalError, match="more than 19,999 rows"):
            fetched(connection.execute("FROM range(20000)"), 19_999, question)
        question.stop()
        with pytest.raises(duckdb.InterruptException):
            fetched(connection.execute("FROM range(20000)"), 20_000, question)


def test_one_that_closed_its_connection_is_let_be() -> None:
    question = Question()
    with duckdb.connect(":memory:") as connection:
        question.on(connection)
    question.stop()
    assert question.is_late()
