"""Standing batches: every period charged once and released once, through crashes, races, outages and odd clocks."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import scratch

import dpsql
from dpsql.driver.connection import Connection
from dpsql.engines.duckdb import OpenEngine
from dpsql.errors import DataError, Error, IntegrityError, OperationalError, PolicyError, ProgrammingError, SQLError
from dpsql.extensions.periods import past_periods
from dpsql.extensions.periods.schedules import Due
from dpsql.privacy.ledger import Ledger
from dpsql.release.store import ReleaseStore
from dpsql.running import run
from dpsql.running.past_releases import PastReleases

TOML = """
dataset = "growing-1"
[budget]
epsilon = 1.0
[tables.visits]
unit = "row"
source = "visits/"
periods = {{ column = "day", every = "{every}", first = 2024-01-01 }}
[tables.visits.columns]
ward = {{ values = ["a", "b"], nulls = false }}
day = {{}}
"""
BATCH = "CREATE VIEW by_ward AS SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"


class World:
    """A folder that gets a file a period, its policy and its ledger."""

    def __init__(self, folder: Path, every: str = "1 month") -> None:
        self.folder = folder
        (folder / "visits").mkdir()
        (folder / "p.toml").write_text(TOML.format(every=every))

    def arrive(self, name: str, *days: str) -> None:
        listed = ", ".join(f"('{'ab'[i % 2]}', DATE '{day}')" for i, day in enumerate(days))
        with scratch() as made:
            target = self.folder / "visits" / f"{name}.parquet"
            made.execute(f"COPY (FROM (VALUES {listed}) t(ward, day)) TO '{target}' (FORMAT parquet)")

    def connect(self, today: str | dt.date | None, **options: Any) -> Connection:
        return dpsql.connect(policy=self.folder / "p.toml", today=today, **options)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.arrive("first", "2024-01-05", "2024-01-06", "2024-02-07", "2024-03-01", "2023-12-31")
    return made


def short(found: list[Due]) -> list[tuple[str, bool]]:
    return [(one.period, one.new) for one in found]


def charges(con: Connection) -> Counter[str]:
    return Counter(str(entry.description.get("period")) for entry in con.budget.charges)


def test_each_period_is_released_once_it_is_over(world: World) -> None:
    con = world.connect("2024-01-31")
    con.schedules.add(BATCH, epsilon=1, name="monthly")
    assert con.budget.charges == ()
    assert con.schedules.release_due() == []
    assert short(world.connect("2024-02-01").schedules.release_due()) == [("2024-01-01", True)]
    # After an outage it catches up, oldest first; before and after nothing is released twice.
    later = world.connect("2024-04-15")
    assert short(later.schedules.release_due()) == [("2024-01-01", False), ("2024-02-01", True), ("2024-03-01", True)]
    assert short(world.connect("2024-02-15").schedules.release_due()) == [("2024-01-01", False)]  # the clock goes back
    assert charges(later) == {"2024-01-01": 1, "2024-02-01": 1, "2024-03-01": 1}
    assert later.budget.spent == 1.0
    assert later.ledger.verify().releases == 3
    assert {one.period: one.spent for one in later.budget_by_period()} == dict.fromkeys(charges(later), 1.0)
    (one,) = later.schedules.standing()
    assert later.schedules.progress(one).as_dict() == {"released": 3, "due": 0, "cut_off": 0}


@pytest.mark.long
def test_views_show_all_periods_and_the_last(world: World) -> None:
    con = world.connect("2024-04-01")
    con.schedules.add(BATCH, epsilon=0.5, name="monthly")
    con.schedules.release_due()
    rows = con.sql("SELECT period, ward, n FROM by_ward ORDER BY period, ward").fetchall()
    assert [(str(row[0]), row[1]) for row in rows] == [(f"2024-0{m}-01", w) for m in (1, 2, 3) for w in "ab"]
    assert con.sql("SELECT period, ward, n FROM by_ward_latest ORDER BY ward").fetchall() == rows[-2:]
    assert con.rebuild() == 3
    assert con.sql("SELECT period, ward, n FROM by_ward ORDER BY period, ward").fetchall() == rows
    # Trends: noise of different periods is independent, and errors of what is linear in them are exact.
    stderr = con.sql("SELECT ANY_VALUE(n_stderr) FROM by_ward").fetchall()[0][0]
    total = con.sql("SELECT ward, SUM(n) AS n FROM by_ward GROUP BY ward", errors=True)
    assert np.allclose(total.column("n_stderr"), np.sqrt(3) * stderr, rtol=1e-3)
    moved = con.sql(
        "SELECT period, n - LAG(n) OVER (ORDER BY period) AS d, SUM(n) OVER (ORDER BY period) AS c "
        "FROM by_ward WHERE ward = 'a' ORDER BY period",
        errors=True,
    )
    assert np.allclose([float(v) for v in moved.column("d_stderr")[1:]], np.sqrt(2) * stderr, rtol=1e-3)
    assert np.allclose(list(moved.column("c_stderr")), np.sqrt([1, 2, 3]) * stderr, rtol=1e-3)
    latest = con.sql("SELECT x.n FROM dp.by_ward_latest AS x", errors=True)
    assert np.allclose(latest.column("n_stderr"), stderr)


class Cut(BaseException):
    """Stands for a process that dies: nothing of dpsql catches it."""


def dies(*_: Any, **__: Any) -> Any:
    raise Cut


PLACES = {
    "before the charge": (run, "measure"),
    "after the charge": (OpenEngine, "scan"),
    "before it is recorded": (Ledger, "record"),
    "before the views": (ReleaseStore, "write"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.few("after the charge", "before the views")
def test_who_dies_is_followed_by_one_who_charges_nothing_more(
    world: World, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.connect("2024-02-01").schedules.add(BATCH, epsilon=1, name="monthly")
    con = world.connect("2024-02-01")
    with monkeypatch.context() as cut:
        cut.setattr(*PLACES[place], dies)
        with contextlib.suppress(Cut):  # the shield replaces it where rows are scanned
            assert con.schedules.release_due()[0].failure
    again = world.connect("2024-02-01")
    again.schedules.release_due()
    assert charges(again) == {"2024-01-01": 1}  # all of the period's budget, once
    assert again.ledger.verify().releases == 1
    assert len(again.sql("FROM by_ward").fetchall()) == 2


@pytest.mark.long
def test_of_two_machines_one_measurement_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without claims, which another machine may not see: both measure, under one charge, and one is recorded."""
    world.connect("2024-03-01").schedules.add(BATCH, epsilon=1, name="monthly")
    monkeypatch.setattr(run, "claimed", lambda *_: Nothing())
    meet = threading.Barrier(2, timeout=60)
    record, found = Ledger.record, list[list[Due]]()

    def at_once(self: Ledger, *rest: Any) -> None:
        meet.wait()
        record(self, *rest)

    monkeypatch.setattr(Ledger, "record", at_once)

    def machine() -> None:
        found.append(world.connect("2024-03-01").schedules.release_due())

    racers = [threading.Thread(target=machine) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [one.failure for each in found for one in each] == [""] * 4
    assert [one.release for one in found[0]] == [one.release for one in found[1]]
    con = world.connect("2024-03-01")
    assert charges(con) == {"2024-01-01": 1, "2024-02-01": 1}
    assert con.ledger.verify().releases == 2


def test_a_charge_that_another_machine_makes_between_look_and_charge_pays_here_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.connect("2024-02-01").schedules.add(BATCH, epsilon=1, name="monthly")
    with monkeypatch.context() as cut:
        cut.setattr(Ledger, "record", dies)
        with contextlib.suppress(Cut):
            world.connect("2024-02-01").schedules.release_due()
    looks, charged = list[str](), Ledger.charged

    def late(self: Ledger, charge_id: str) -> Any:
        looks.append(charge_id)
        return None if len(looks) == 1 else charged(self, charge_id)

    monkeypatch.setattr(Ledger, "charged", late)
    con = world.connect("2024-02-01")
    assert con.schedules.release_due()[0].new
    assert len(looks) > 1
    assert charges(con) == {"2024-01-01": 1}


class Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_a_period_that_is_refused_keeps_no_other_from_its_release(world: World) -> None:
    con = world.connect("2024-04-01")
    con.run("SELECT COUNT(*) FROM visits WHERE day >= '2024-02-01' AND day < '2024-03-01'", epsilon=0.9)
    con.schedules.add(BATCH, epsilon=0.5, name="monthly")
    found = con.schedules.release_due()
    assert [one.new for one in found] == [True, False, True]
    assert "period" in found[1].failure or "left" in found[1].failure
    assert charges(con)["2024-02-01"] == 0


def test_rows_that_come_late_change_no_answer(world: World) -> None:
    con = world.connect("2024-02-01")
    con.schedules.add(BATCH, epsilon=1, name="monthly")
    con.schedules.release_due()
    before = con.sql("FROM by_ward").fetchall()
    world.arrive("late", "2024-01-07", "2024-02-08")
    later = world.connect("2024-03-01")
    later.schedules.release_due()
    assert later.sql("FROM by_ward WHERE period = '2024-01-01'").fetchall() == before
    assert later.changed_files() == ()


def test_a_clock_far_ahead_is_asked_for_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.connect("2024-02-01").schedules.add(BATCH, epsilon=1, name="monthly")
    con = world.connect(None)
    monkeypatch.setattr(dpsql.Policy, "day", property(lambda _: dt.date(2099, 1, 1)))
    with pytest.raises(OperationalError, match=r"the clock says 2099-01-01.*--today 2099-01-01"):
        con.schedules.release_due()


BAD: dict[str, tuple[str, dict[str, Any], type[Error], str]] = {
    "unnamed": ("SELECT COUNT(*) FROM visits", {}, SQLError, "q1 has no name"),
    "another table": ("CREATE VIEW v AS SELECT COUNT(*) FROM others", {}, SQLError, "does not read visits"),
    "no SQL": ("CREATE VIEW v AS SELEC", {}, SQLError, "syntax|does not read"),
    "every day": (BATCH, {"every": "day"}, DataError, "every='period'"),
    "before all": (BATCH, {"first": "2023-12-01"}, DataError, "lies in no period"),
    "no day": (BATCH, {"first": "soon"}, DataError, "write a day"),
    "no budget": (BATCH, {"epsilon": None}, DataError, "a budget is needed"),
    "its own period": ("CREATE VIEW v AS SELECT 1 AS period, COUNT(*) AS n FROM visits", {}, SQLError, "period"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_would_be_refused_every_night_is_refused_at_once(world: World, name: str) -> None:
    sql, more, kind, said = BAD[name]
    con = world.connect("2024-04-01")
    with pytest.raises(kind, match=said):
        con.schedules.add(sql, **{"epsilon": 0.5, "name": "monthly", **more})
    assert con.schedules.standing() == []


def test_schedules_that_overlap_are_refused(world: World) -> None:
    con = world.connect("2024-04-01")
    con.schedules.add(BATCH, epsilon=0.5, name="monthly")
    with pytest.raises(IntegrityError, match="a schedule named monthly is there"):
        con.schedules.add(BATCH.replace("by_ward", "other"), epsilon=0.5, name="monthly")
    with pytest.raises(IntegrityError, match="the schedule monthly releases by_ward"):
        con.schedules.add(BATCH, epsilon=0.5, name="again")
    con.schedules.remove("monthly")
    with pytest.raises(ProgrammingError, match="there is no schedule monthly"):
        con.schedules.remove("monthly")
    with pytest.raises(IntegrityError, match="was removed"):
        con.schedules.add(BATCH, epsilon=0.5, name="monthly")
    con.schedules.add(BATCH, epsilon=0.5, name="again")
    # A name that another release took meanwhile is not taken from it.
    con.run("CREATE VIEW by_ward AS SELECT COUNT(*) AS n FROM visits WHERE day = '2024-01-05'", epsilon=0.1)
    assert "shows another result as by_ward" in con.schedules.release_due()[0].failure


def test_periods_that_changed_are_refused_before_any_charge(world: World) -> None:
    con = world.connect("2024-02-01")
    con.schedules.add(BATCH, epsilon=0.5, name="monthly")
    con.schedules.release_due()
    path = world.folder / "p.toml"
    path.write_text(path.read_text().replace("1 month", "2 months"))
    (found, *_) = [one for one in world.connect("2024-06-01").schedules.release_due() if not one.release]
    assert "put them back (nothing was charged)" in found.failure
    path.write_text(path.read_text().replace("2 months", "1 month").replace("2024-01-01", "2024-01-02"))
    (found,) = world.connect("2024-06-01").schedules.release_due()
    assert "no period that begins on 2024-01-01" in found.failure
    path.write_text(path.read_text().replace('periods = { column = "day", every = "1 month", first = 2024-01-02 }', ""))
    (found,) = world.connect("2024-06-01").schedules.release_due()
    assert "periods is missing" in found.failure
    with pytest.raises(PolicyError, match="no table of the policy has periods"):
        world.connect("2024-06-01").schedules.add(BATCH.replace("by_ward", "w"), epsilon=0.1, name="w")
    assert len(con.budget.charges) == 1


@pytest.mark.long
def test_a_name_that_was_released_is_not_charged_again(world: World) -> None:
    """Whichever schedule was removed: its periods do not pay once more under a new one without anybody's word."""
    con = world.connect("2024-04-01")
    con.schedules.add(BATCH, epsilon=0.4, name="monthly")
    con.schedules.release_due()
    con.schedules.remove("monthly")
    for text in (BATCH, BATCH.replace("CREATE", "CREATE OR REPLACE"), BATCH.replace("by_ward", "By_Ward")):
        with pytest.raises(IntegrityError, match="all periods of a standing batch need a name of their own"):
            con.schedules.add(text, epsilon=0.4, name="again", horizon=None)
    with pytest.raises(IntegrityError, match="shows another result as by_ward, and all periods"):
        con.schedules.add(BATCH, epsilon=0.4, name="again", first="2024-02-01")
    con.schedules.add(BATCH.replace("by_ward", "since"), epsilon=0.4, name="again", first="2024-03-01")
    assert short(con.schedules.release_due()) == [("2024-03-01", True)]
    assert charges(con) == {"2024-01-01": 1, "2024-02-01": 1, "2024-03-01": 2}


@pytest.mark.long
def test_a_clock_that_goes_back_loses_and_charges_nothing(world: World) -> None:
    world.connect("2024-04-01").schedules.add(BATCH, epsilon=0.4, name="monthly")
    assert [one.new for one in world.connect("2024-04-01").schedules.release_due()] == [True] * 3
    for day in ("2024-02-15", "2023-01-01", "0001-01-01"):  # after the first period, before all, as early as can be
        con = world.connect(day)
        assert not any(one.new or one.failure for one in con.schedules.release_due())
        assert len(con.sql("SELECT DISTINCT period FROM by_ward").fetchall()) == 3
        (one,) = con.schedules.standing()
        assert con.schedules.progress(one).released == 3
        with pytest.raises(SQLError, match=r"nothing was charged|no period of it is over"):
            con.run("SELECT COUNT(*) FROM visits WHERE day >= '2024-03-01' AND day < '2024-04-01'", epsilon=0.1)
    found = world.connect("2024-05-01").schedules.release_due()
    assert [one.new for one in found] == [False] * 3 + [True]
    assert set(charges(world.connect("2024-05-01")).values()) == {1}


TREND = "SELECT period, SUM(n) AS n, SUM(SUM(n)) OVER (ORDER BY period) AS t FROM {} GROUP BY period ORDER BY period"


@pytest.mark.long
def test_periods_of_one_batch_are_understood_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trend says of its errors is what it says where each period is understood by itself."""
    con = world.connect("2024-05-01")
    con.schedules.add(BATCH, epsilon=0.4, name="monthly")
    by_day = "SELECT dayofmonth(day) < 9 AS early, COUNT(*) AS n FROM visits GROUP BY 1"
    con.schedules.add(f"CREATE VIEW by_day AS {by_day}", epsilon=0.4, name="days")
    con.schedules.release_due()
    apart, prepared = [], PastReleases.prepared
    for alike in (True, False):
        asked = list[int]()

        def noted(self: PastReleases, entry: Any, schemas: Any, asked: list[int] = asked) -> Any:
            asked.append(entry.id)
            return prepared(self, entry, schemas)

        with monkeypatch.context() as patch:
            patch.setattr(PastReleases, "prepared", noted)
            if not alike:
                patch.setattr(past_periods, "_names_no_day", lambda *_: False)
            held = world.connect("2024-05-01")
            apart.append([held.sql(TREND.format(name), errors=True).fetchall() for name in ("by_ward", "by_day")])
        assert len(asked) == (1 + 4 if alike else 8)  # the batch that names the day is understood for each period
    assert apart[0] == apart[1]


@pytest.mark.long
def test_three_hundred_days_of_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills at random moments, duplicate starts, clocks that jump, late rows: each period once, within its part.

    Weekly periods of 300 days, with outages and days of several starts; the draws are seeded.
    """
    world, draw = World(tmp_path, "1 week"), random.Random(1000)
    world.arrive("first", "2024-01-01")
    world.connect("2024-01-01").schedules.add(BATCH, epsilon=1, name="weekly")
    first, last, kills = dt.date(2024, 1, 1), 0, 0
    for day in range(1, 301):
        if draw.random() < 0.75 and day != 300:
            continue  # an outage
        today = first + dt.timedelta(days=day + draw.choice([0, 0, 0, -40, -1]))
        if draw.random() < 0.05:
            world.arrive(f"day{day}", str(today), str(today - dt.timedelta(days=9)))
        for _ in range(draw.choice([1, 1, 2])):
            con = world.connect(max(today, first))
            with monkeypatch.context() as cut:
                if draw.random() < 0.4 and day != 300:
                    cut.setattr(*PLACES[draw.choice(list(PLACES))], dies)
                try:
                    con.schedules.release_due()
                except Cut:
                    kills += 1
        last = max(last, (max(today, first) - first).days // 7)
    con = world.connect(first + dt.timedelta(days=301))
    con.schedules.release_due()
    found = charges(con)
    assert kills > 10
    assert len(found) == 301 // 7
    assert set(found.values()) == {1}
    assert con.ledger.verify().releases == 301 // 7
    assert con.budget.unreleased == ()
    assert con.budget.spent == con.budget.total == 1.0
    assert con.sql("SELECT COUNT(*), COUNT(DISTINCT period) FROM by_ward").fetchall() == [(2 * (301 // 7), 301 // 7)]


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_processes_that_are_killed_and_started_twice(world: World) -> None:
    """Killed at every step, one period further each time; then two at once, who see what the dead left behind."""
    world.connect("2024-01-01").schedules.add(BATCH, epsilon=1, name="monthly")

    def start(place: str, today: str) -> int:
        child = os.fork()
        if child:
            return child
        try:
            if place:
                setattr(*PLACES[place], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(any(one.failure for one in world.connect(today).schedules.release_due()))
        finally:
            os._exit(9)

    def ended(child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for place, today in zip(PLACES, ["2024-02-01", "2024-03-01", "2024-04-01", "2024-05-01"], strict=True):
        assert ended(start(place, today)) == -signal.SIGKILL
    both = [start("", "2024-07-01") for _ in range(2)]
    assert [ended(child) for child in both] == [0, 0]
    con = world.connect("2024-07-01")
    assert charges(con) == {f"2024-0{month}-01": 1 for month in range(1, 7)}
    assert con.ledger.verify().releases == 6
    assert con.budget.unreleased == ()
    assert con.budget.spent == 1.0
    assert con.sql("SELECT COUNT(*), COUNT(DISTINCT period) FROM by_ward").fetchall() == [(12, 6)]
