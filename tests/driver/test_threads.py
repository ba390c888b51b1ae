"""Threads that share a connection, its files or a DuckDB instance (PEP 249, ``threadsafety`` 2): no step of one comes
between what another one looks at and what it does."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from test_claims import POLICY

import dpsql
from dpsql.common.thread_lock import ThreadLock
from dpsql.privacy.ledger import Ledger
from dpsql.release import ReleaseStore
from dpsql.release.books import Books
from dpsql.release.lock import exclusive
from dpsql.running.answer_free import Earlier

LONGEST = 60.0  # seconds until a test that hangs fails
BATCH = "CREATE OR REPLACE VIEW by_sex AS SELECT sex, count(*) AS n FROM t GROUP BY sex"
GROUPS = 3  # F, M, NULL


def user_with_rows() -> duckdb.DuckDBPyConnection:
    user = duckdb.connect()
    user.execute("CREATE TABLE t AS SELECT i % 100 AS age, ['F', 'M'][i % 2 + 1] AS sex FROM range(200) r(i)")
    return user


def connected(user: duckdb.DuckDBPyConnection, folder: Path) -> dpsql.Connection:
    place = folder / "t.toml"
    if not place.exists():
        place.write_text(POLICY)
    return dpsql.connect(user, policy=place)


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each work returns or raises, each in a thread of its own."""
    found: list[Any] = [None] * len(works)

    def one(at: int) -> None:
        try:
            found[at] = works[at]()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test says
            found[at] = error

    threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive()
    return found


class Watched:
    """A DuckDB connection that reports each statement, before and after it runs, on whatever cursor."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, report: Callable[[str, bool], None]) -> None:
        self._connection, self._report = connection, report

    def cursor(self) -> Watched:
        return Watched(self._connection.cursor(), self._report)

    def execute(self, sql: str, *rest: Any) -> duckdb.DuckDBPyConnection:
        self._report(sql, False)
        try:
            return self._connection.execute(sql, *rest)
        finally:
            self._report(sql, True)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class WatchedLock(ThreadLock):
    """A lock that says when a second thread has come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.second = threading.Event()
        self._first: int | None = None

    def __enter__(self) -> None:
        here = threading.get_ident()
        if self._first is None:
            self._first = here
        elif self._first != here:
            self.second.set()
        super().__enter__()


def with_two_releases(folder: Path) -> tuple[dpsql.Connection, ReleaseStore]:
    """A connection whose releases file was replaced once since a copy of it was taken."""
    con = connected(user_with_rows(), folder)
    con.run(BATCH, epsilon=1)
    return con, con._store


def test_two_threads_attach_the_releases(tmp_path: Path) -> None:
    """Both have looked before either attaches; then both have, with nothing to say about it."""
    _, store = with_two_releases(tmp_path)
    user, together, looked = duckdb.connect(), threading.Barrier(2), threading.local()

    def wait_after_the_first_look(sql: str, after: bool) -> None:
        if after and "duckdb_databases" in sql and not getattr(looked, "once", False):
            looked.once = True
            together.wait(LONGEST)

    def attach() -> None:
        watched: Any = Watched(user.cursor(), wait_after_the_first_look)
        ReleaseStore(store.path).attach_to(watched)

    assert in_threads(attach, attach) == [None, None]
    assert user.execute("SELECT count(*) FROM dpsql_releases.dp.by_sex").fetchall() == [(GROUPS,)]


def test_a_reader_never_misses_the_releases(tmp_path: Path) -> None:
    """Between any two statements of an attach another cursor of the instance reads the old file or the new one."""
    con, store = with_two_releases(tmp_path)
    user, seen = duckdb.connect(), list[int]()
    store.attach_to(user)
    con.run(BATCH, epsilon=1, fresh=True)
    reader = user.cursor()

    def read(_: str, __: bool) -> None:
        seen.extend(reader.execute("SELECT count(*) FROM dpsql_releases.dp.releases").fetchone() or ())

    watched: Any = Watched(user, read)
    store.attach_to(watched)
    assert sorted(set(seen)) == [1, 2]
    assert seen == sorted(seen)


def test_a_folder_that_may_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con, store = with_two_releases(tmp_path)
    user = duckdb.connect()
    store.attach_to(user)
    con.run(BATCH, epsilon=1, fresh=True)

    def refused(*_: object) -> None:
        raise PermissionError(13, "no links here")

    monkeypatch.setattr(os, "link", refused)
    store.attach_to(user)
    assert user.execute("SELECT count(*) FROM dpsql_releases.dp.releases").fetchall() == [(2,)]


def test_one_thread_opens_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The others wait for it, and do not warn of the ledger that it makes, nor of a charge of its."""
    con = connected(user_with_rows(), tmp_path)
    lock = WatchedLock()
    monkeypatch.setattr(con._books, "_lock", lock)
    opened, opening = list[int](), Ledger.open_or_create

    def slowly(*args: Any, **options: Any) -> Ledger:
        opened.append(threading.get_ident())
        assert lock.second.wait(LONGEST)
        return opening(*args, **options)

    monkeypatch.setattr(Ledger, "open_or_create", slowly)
    with caplog.at_level(logging.WARNING, "dpsql"):
        first, second = in_threads(con._books.ledger, con._books.ledger)
    assert first is second
    assert len(opened) == 1
    assert not caplog.records


def test_a_question_waits_until_the_releases_are_caught_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connected(user_with_rows(), tmp_path).run(BATCH, epsilon=1)
    con = connected(user_with_rows(), tmp_path)
    con._store.path.unlink()
    lock = WatchedLock()
    monkeypatch.setattr(con._books, "_lock", lock)
    write = ReleaseStore.write

    def slowly(store: ReleaseStore, *records: Any) -> None:
        assert lock.second.wait(LONGEST)
        write(store, *records)

    monkeypatch.setattr(ReleaseStore, "write", slowly)
    found = in_threads(*[lambda: len(con.sql("FROM by_sex").fetchall())] * 2)
    assert found == [GROUPS] * 2


def test_the_answer_is_that_of_the_callers_batch(tmp_path: Path) -> None:
    """Another thread's batch is the latest one as soon as this one's is."""
    con = connected(user_with_rows(), tmp_path)
    con.run(BATCH, epsilon=1)
    total = "CREATE OR REPLACE VIEW total AS SELECT count(*) AS n FROM t"
    con._past.answer(total, 0.05)
    others = con._past._latest

    class Overtaken(Earlier):
        @property
        def _latest(self) -> Any:
            return self.given.pop(0) if self.given else others

        @_latest.setter
        def _latest(self, _: Any) -> None:
            self.given: list[Any] = []

    past = Overtaken(con._books, con.policy, con.schemas)
    found = past.answer(BATCH, 0.05)
    assert found is not None
    assert found.sql == BATCH
    con._past.answer(BATCH, 0.05)
    past.given = [con._past._latest] * 2
    assert past.questions(BATCH)[1] == ["by_sex"]


def test_what_is_understood_under_a_policy_stays_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that another thread brings meanwhile finds no batch that was understood under the one before."""
    con = connected(user_with_rows(), tmp_path)
    con.run(BATCH, epsilon=1)
    past, lock, understanding = con._past, WatchedLock(), threading.Event()
    monkeypatch.setattr(past, "lock", lock)
    from dpsql.running import past_releases

    past_of = past_releases.past_of

    def slowly(*args: Any) -> Any:
        understanding.set()
        assert lock.second.wait(LONGEST)
        return past_of(*args)

    def other_policy() -> None:
        assert understanding.wait(LONGEST)
        past.under(con.policy)

    monkeypatch.setattr(past_releases, "past_of", slowly)
    found = in_threads(lambda: len(past.pasts(con.schemas(), past.usable())), other_policy)
    assert found == [1, None]
    assert past._held == {}


def test_what_a_connection_remembers_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connected(user_with_rows(), tmp_path)
    lock = WatchedLock()
    monkeypatch.setattr(con, "_state_lock", lock)
    make = con._earlier

    def slowly() -> Earlier:
        assert lock.second.wait(LONGEST)
        return make()

    monkeypatch.setattr(con, "_earlier", slowly)
    first, second = in_threads(lambda: con._past, lambda: con._past)
    assert first is second
    assert isinstance(first, Earlier)


@pytest.mark.parametrize("close", ["connection", "user"])
def test_closed_while_a_thread_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, close: str) -> None:
    """What is charged ends in an answer that the next connection shows, or in an error of dpsql's."""
    user = user_with_rows()
    con = connected(user, tmp_path)
    released = Books.register

    def closed_before(books: Books, *args: Any, **options: Any) -> None:
        (con if close == "connection" else user).close()
        released(books, *args, **options)

    monkeypatch.setattr(Books, "register", closed_before)
    con.run(BATCH, epsilon=1)
    with pytest.raises(dpsql.Error):
        con.run(BATCH, epsilon=2)
    monkeypatch.undo()
    assert len(connected(user_with_rows(), tmp_path).sql("FROM by_sex").fetchall()) == GROUPS


@contextlib.contextmanager
def forked_inside(lock: contextlib.AbstractContextManager[None], child: Callable[[], None]) -> Iterator[int]:
    """A child that is forked while another thread of this process is inside a lock; ended at the end."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            leave.wait(LONGEST)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert inside.wait(LONGEST)
    number = os.fork()
    if not number:
        signal.alarm(int(LONGEST))
        child()
        os._exit(0)
    leave.set()
    thread.join(LONGEST)
    yield number


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_free_lock() -> None:
    lock = ThreadLock()

    def child() -> None:
        with lock, lock:
            pass

    with forked_inside(lock, child) as number:
        assert os.waitpid(number, 0)[1] == 0
    with lock:  # by the thread that forks: it is there in the child, and leaves it there
        number = os.fork()
    if not number:
        os._exit(0)
    assert os.waitpid(number, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_file_lock_of_its_parent(tmp_path: Path) -> None:
    path = str(tmp_path / "releases.duckdb")
    with forked_inside(exclusive(path, LONGEST), signal.pause) as number:
        with exclusive(path, 0.0):
            assert os.waitpid(number, os.WNOHANG) == (0, 0)  # it runs on
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)


def races(folder: Path, threads: int, runs: int) -> None:
    """``threads`` over two connections to the same files and one DuckDB instance, each with ``runs`` of its own."""
    user = user_with_rows()
    cons = [connected(user, folder), connected(user.cursor(), folder)]
    together = threading.Barrier(threads)

    def work(place: int) -> None:
        con, reader = cons[place % 2], user.cursor()
        together.wait(LONGEST)
        for number in range(runs):
            own = f"v{place}_{number}"
            if place == 0 and number == runs - 1:
                con.close()
            batch = (
                BATCH if place % 3 == 1 else f"CREATE VIEW {own} AS SELECT count(*) AS n FROM t WHERE age < {place + 2}"
            )
            try:
                if place % 4 == 3:
                    con.cursor().execute(batch, epsilon=0.5)
                else:
                    con.run(batch, epsilon=0.5, fresh=place % 2 == 0)
                con.sql("FROM by_sex" if place % 3 == 1 else f"FROM {own}")
                reader.execute("SELECT count(*) FROM dpsql_releases.dp.releases").fetchall()
            except dpsql.Error:
                if not con._closed:
                    raise

    assert in_threads(*[lambda place=place: work(place) for place in range(threads)]) == [None] * threads
    after = connected(user_with_rows(), folder)
    released = {entry.id for entry in after.releases() if entry.released is not None}
    assert not after.budget.unreleased
    assert {row[0] for row in after.sql("SELECT release_id FROM releases").fetchall()} == released
    assert after._books.missing() == []
    user.close()


def test_races_of_threads(tmp_path: Path) -> None:
    races(tmp_path, threads=6, runs=2)


@pytest.mark.long
def test_a_thousand_races(tmp_path: Path) -> None:
    for number in range(42):  # of 12 threads with two runs each
        folder = tmp_path / str(number)
        folder.mkdir()
        races(folder, threads=12, runs=2)
