"""A reader keeps its instance open while the releases file is as it is."""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from pathlib import Path

import duckdb
import pytest

from dpsql.errors import OperationalError, SQLError
from dpsql.free_sql import limits
from dpsql.release import ReleaseRecord, ReleaseStore, ReleaseTable
from dpsql.release.limits import Question
from dpsql.release.reading import Reader

MOMENT = dt.datetime(2026, 1, 1)


def store_of(path: Path, number: int, value: float) -> ReleaseStore:
    store = ReleaseStore(path)
    table = ReleaseTable("a", True, (("x", "DOUBLE", [value]),))
    store.write(ReleaseRecord(number, MOMENT, (table,)))
    return store


def test_what_is_written_later_is_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "r.duckdb")
    with pytest.raises(OperationalError, match="no releases file"):
        reader.sql("SELECT x FROM a")
    store_of(tmp_path / "r.duckdb", 1, 1.0)
    assert reader.sql("SELECT x FROM a").fetchall() == [(1.0,)]
    assert reader.sql("SELECT x FROM dp.a").fetchall() == [(1.0,)]
    store_of(tmp_path / "r.duckdb", 2, 2.0)
    assert reader.sql("SELECT x FROM a").fetchall() == [(2.0,)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("USE memory", "starts with 'USE'"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SET threads = 1", "starts with 'SET'"),
        ("SELECT * FROM read_text('/etc/hostname')", "the table function read_text is not offered"),
        ("SELECT x FROM b", "no release is called"),
        ("SELECT '\ud800'", "surrogate"),
    ],
)
def test_a_reader_has_the_gates_of_a_store(tmp_path: Path, text: str, said: str) -> None:
    store_of(tmp_path / "r.duckdb", 1, 1.0)
    reader = Reader(tmp_path / "r.duckdb")
    for _ in range(2):
        with pytest.raises(SQLError, match=said):
            reader.sql(text)
    assert reader.sql("SELECT current_schema()").fetchall() == [("dp",)]


def test_who_holds_the_question_may_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", math.inf)
    store_of(tmp_path / "r.duckdb", 1, 1.0)
    reader, question = Reader(tmp_path / "r.duckdb"), Question()

    def stop() -> None:
        while not ended.is_set():
            time.sleep(0.02)
            question.stop()

    ended = threading.Event()
    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(duckdb.InterruptException):
        reader.sql("SELECT count(*) FROM range(3000000) a, range(3000000) b", question=question)
    ended.set()
    thread.join()
    assert reader.sql("SELECT x FROM a").fetchall() == [(1.0,)]


def test_a_question_past_its_time_leaves_the_next_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", math.inf)
    store_of(tmp_path / "r.duckdb", 1, 1.0)
    reader = Reader(tmp_path / "r.duckdb")
    with pytest.raises(OperationalError, match="stopped after"):
        reader.sql("SELECT count(*) FROM range(3000000) a, range(3000000) b", 0.1)
    assert reader.sql("SELECT x FROM a").fetchall() == [(1.0,)]
