"""Standing batches over a horizon: what all releases together show of one row is paid, and their errors travel."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import scratch

import dpsql
from dpsql.driver.connection import Connection
from dpsql.engines.duckdb import OpenEngine
from dpsql.errors import DataError, Error, PolicyError, SQLError
from dpsql.extensions.periods import over_time
from dpsql.measure import Job, cells, measure
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import combined
from dpsql.release.payload import Measurement
from dpsql.release.store import ReleaseStore
from dpsql.running import run
from dpsql.running.past_releases import PastReleases
from dpsql.workloads.compile.over_periods import Over

TOML = """
dataset = "growing-1"
[budget]
epsilon = 2.0
delta = 1e-9
[tables.visits]
{unit}
source = "visits/"
periods = {{ column = "day", every = "1 month", first = 2024-01-01 }}
[tables.visits.columns]
ward = {{ values = ["a", "b"], nulls = false }}
day = {{}}
cost = {{ lower = 0, upper = 8 }}
{columns}
"""
BATCH = "CREATE VIEW by_ward AS SELECT ward, COUNT(*) AS n, SUM(cost) AS s FROM visits GROUP BY ward"
HORIZON: dict[str, Any] = {"name": "m", "epsilon": 1, "horizon": 6, "windows": [3]}
SHORT = {"today": "2024-05-01", "horizon": 4}
Row = tuple[str, str, float]
ROWS: tuple[Row, ...] = tuple(
    ("ab"[i % 2], str(dt.date(2024, 1, 1) + dt.timedelta(days=3 * i)), float(i % 9)) for i in range(60)
)


class World:
    """A folder with a table that grows, its policy and its ledger."""

    def __init__(
        self, folder: Path, rows: tuple[Row, ...] = ROWS, unit: str = 'unit = "row"', columns: str = ""
    ) -> None:
        self.folder = folder
        (folder / "visits").mkdir(parents=True)
        (folder / "p.toml").write_text(TOML.format(unit=unit, columns=columns))
        self.arrive("first", rows)

    def arrive(self, name: str, rows: tuple[Row, ...]) -> None:
        listed = ", ".join(f"('{ward}', DATE '{day}', {cost}::DOUBLE, 1)" for ward, day, cost in rows)
        with scratch() as made:
            target = self.folder / "visits" / f"{name}.parquet"
            made.execute(f"COPY (FROM (VALUES {listed}) t(ward, day, cost, who)) TO '{target}' (FORMAT parquet)")

    def connect(self, today: str = "2024-07-01") -> Connection:
        return dpsql.connect(policy=self.folder / "p.toml", today=today)

    def added(self, today: str = "2024-07-01", **more: Any) -> Connection:
        con = self.connect(today)
        con.schedules.add(BATCH, **{**HORIZON, **more})
        return con


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "w")


@contextlib.contextmanager
def jobs(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[Job, Any]]]:
    """What is measured within, with the engine that it is read by."""
    found: list[tuple[Job, Any]] = []

    def noted(job: Job, engine: Any, *rest: Any) -> Any:
        found.append((job, engine))
        return measure(job, engine, *rest)

    with patch.context() as held:
        held.setattr(run, "measure", noted)
        yield found


def released(world: World, patch: pytest.MonkeyPatch) -> list[tuple[Job, Any]]:
    with jobs(patch) as found:
        assert [one.failure for one in world.added(**SHORT).schedules.release_due()] == [""] * 4
    return found


def lost(one: list[tuple[Job, Any]], other: list[tuple[Job, Any]]) -> Fraction:
    """mu squared that a row loses by all releases, the two being over tables that differ in that row."""
    total = Fraction(0)
    for (job, engine), (beside, its) in zip(one, other, strict=True):
        zeros = [0] * job.integers.shape[0]
        pairs = zip(cells.observed(job, engine, zeros), cells.observed(beside, its, zeros), strict=True)
        total += Fraction(sum((a - b) ** 2 for a, b in pairs)) / job.noise.parameter
    return total


@pytest.mark.long
def test_what_a_row_loses_by_all_releases_is_what_its_period_paid(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = released(world, monkeypatch)
    paid = mine[0][0].charge.mu_squared
    assert {job.charge.mu_squared for job, _ in mine} == {paid}
    found = []
    for number, row in enumerate([("a", "2024-01-01", 0.0), ("b", "2024-03-31", 8.0), ("a", "2024-04-02", 99.0)]):
        found.append(lost(mine, released(World(tmp_path / f"n{number}", (*ROWS, row)), monkeypatch)))
    assert all(each <= paid for each in found)
    assert max(found) > paid * Fraction(98, 100)  # every column is paid in full: nothing is left over
    # A row of no period, and one that comes after the horizon, lose nothing.
    away = released(World(tmp_path / "away", (*ROWS, ("a", "2023-12-31", 1.0), ("b", "2024-05-01", 1.0))), monkeypatch)
    assert lost(mine, away) == 0


ENDLESS: dict[str, Any] = {"name": "m", "epsilon": 1, "horizon": "endless", "windows": [2]}


@pytest.mark.long
def test_an_endless_horizon_reads_few_periods_and_pays_once(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows of the first, a middle and the last period: by all releases together a row loses what its period paid."""
    found = []
    for held in (world, *(World(tmp_path / day, (*ROWS, ("b", day, 8.0))) for day in ("2024-01-05", "2024-03-31"))):
        con = held.connect("2024-07-01")
        con.schedules.add(BATCH, **ENDLESS)
        with jobs(monkeypatch) as seen:
            assert [one.failure for one in con.schedules.release_due()] == [""] * 6
        found.append(seen)
    paid = found[0][0][0].charge.mu_squared
    for other in found[1:]:
        assert paid * Fraction(98, 100) < lost(found[0], other) <= paid
    assert [len(job.over.numbers) for job, _ in found[0] if job.over is not None] == [1, 2, 2, 2, 2, 2]
    (one,) = con.schedules.standing()
    assert con.schedules.progress(one).as_dict() == {"released": 6, "due": 0, "cut_off": 0}
    shown = {window: over for window, _, over in con.schedules.errors(one)}
    assert list(shown) == [1, 2]
    text = (
        "SELECT ward, period, n, SUM(n) OVER (PARTITION BY ward ORDER BY period ROWS 1 PRECEDING) AS two FROM by_ward"
    )
    two = con.sql(f"{text} ORDER BY period, ward", errors=True).column("two_stderr")[-1]
    counts = [row[1] for row in con.sql("SELECT ward, n_stderr FROM by_ward_latest").fetchall()]
    assert float(two) < np.sqrt(2) * float(counts[0])  # the noise of one cancels some of the next
    assert con.rebuild() == 6


def test_an_endless_horizon_of_single_periods_reads_each_alone(world: World) -> None:
    con = world.connect("2024-04-01")
    con.schedules.add(BATCH, **{**ENDLESS, "windows": [1]})
    assert [one.failure for one in con.schedules.release_due()] == [""] * 3
    assert con.sql("SELECT COUNT(*) FROM by_ward").fetchall() == [(6,)]


@pytest.mark.long
def test_a_release_asks_for_the_releases_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without what these keep, as a version before had it, for all: the numbers are the same."""
    monkeypatch.setattr(Noise, "sample", lambda _, count: [7 * at for at in range(count)])
    monkeypatch.setattr(combined, "MOST_ENTRIES", 40)  # of one period's answers; those of six are no matrix
    asked: list[int] = []
    honest = PastReleases.measurement

    def noted(self: PastReleases, release: int) -> Measurement:
        asked.append(release)
        return honest(self, release)

    monkeypatch.setattr(PastReleases, "measurement", noted)
    shown = []
    for name, wanted in (("now", {5}), ("before", {1, 2, 3, 4, 5})):
        held = World(tmp_path / name)
        con = held.connect("2024-06-01")
        con.schedules.add(BATCH, **ENDLESS)
        assert [one.failure for one in con.schedules.release_due()] == [""] * 5
        asked.clear()
        con = held.connect("2024-07-01")
        assert [one.new for one in con.schedules.release_due()] == [False] * 5 + [True]
        assert set(asked) == wanted
        shown.append(con.sql("FROM by_ward ORDER BY ALL").fetchall())
        monkeypatch.setattr(over_time, "_estimate_of", lambda _: None)
    assert len(shown[0]) == 12
    assert [plainly(row) for row in shown[0]] == [plainly(row) for row in shown[1]]


def test_more_cells_than_a_measurement_is_scanned_by_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "MOST_CELLS", 10)
    with pytest.raises(SQLError, match="cells, of 6 periods at a time, are too many for a horizon"):
        world.added()


@pytest.mark.long
def test_noise_for_one_release_alone_would_be_too_little(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: each release calibrated to what its own measurement moves, as if no other read the row."""

    honest = Over.sensitivity

    def rowwise(self: Over, common: int) -> int:
        return max(v * v for v in self.measured.row(self.place)) * (honest(self, common) // self.measured.l2_squared)

    monkeypatch.setattr(Over, "sensitivity", rowwise)
    con = world.added(**SHORT)
    assert "the plan's noise is not that of its horizon" in con.schedules.release_due()[0].failure
    assert con.budget.charges == ()
    monkeypatch.setattr(Job, "_check_over", lambda *_: None)
    mine = released(World(tmp_path / "one"), monkeypatch)
    other = released(World(tmp_path / "two", (*ROWS, ("b", "2024-01-05", 8.0))), monkeypatch)
    assert lost(mine, other) > Fraction(12, 10) * mine[0][0].charge.mu_squared


WRONG: dict[str, Any] = {
    "less noise": lambda job: replace(job, sensitivity=job.sensitivity - 1),
    "another row of C": lambda job: replace(job, over=replace(job.over, place=0, paid=())),
    "an unpaid period": lambda job: replace(job, over=replace(job.over, paid=(*job.over.paid[:-1], "other"))),
    "fewer charges": lambda job: replace(job, over=replace(job.over, paid=job.over.paid[:-1])),
    "another C": lambda job: replace(
        job, description={**job.description, "horizon": {**job.description["horizon"], "digest": "0"}}
    ),
    "heavier integers": lambda job: replace(
        job, integers=replace(job.integers, mixing=2 * job.integers.mixing), sensitivity=job.sensitivity
    ),
    "other periods": lambda job: replace(job, over=replace(job.over, first=job.over.first - 1)),
    "its key for another": lambda job: replace(job, over=None),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.few("less noise", "an unpaid period")
def test_a_release_that_its_periods_have_not_paid_is_refused(
    world: World, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = world.added("2024-02-01")
    con.schedules.release_due()
    before = con.budget.charges
    honest = run._of_turn
    monkeypatch.setattr(run, "_of_turn", lambda job, turn: WRONG[wrong](honest(job, turn)))
    (*_, found) = world.connect("2024-03-01").schedules.release_due()
    assert "nothing was charged" in found.failure
    assert world.connect("2024-03-01").budget.charges == before


def test_a_period_that_paid_less_does_not_pay_for_later_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    con = world.added("2024-02-01")
    con.schedules.release_due()
    honest = run._of_turn
    more = replace(con.budget.charges[0].charge, units=con.budget.charges[0].charge.units + 1)
    monkeypatch.setattr(run, "_of_turn", lambda job, turn: replace(honest(job, turn), charge=more))
    (*_, found) = world.connect("2024-03-01").schedules.release_due()
    assert "2024-01-01 has not paid for this release" in found.failure


@pytest.mark.long
def test_without_noise_the_numbers_are_the_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "sample", lambda _, count: [0] * count)
    con = world.added()
    con.schedules.release_due()
    rows = con.sql("SELECT period, ward, n, s FROM by_ward ORDER BY period, ward").fetchall()
    with scratch() as made:
        exact = made.execute(
            f"SELECT date_trunc('month', day), ward, COUNT(*), SUM(cost) FROM '{world.folder}/visits/*.parquet' "
            "GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert [(str(r[0])[:10], r[1]) for r in rows] == [(str(r[0])[:10], r[1]) for r in exact]
    assert np.allclose([r[2:] for r in rows], [r[2:] for r in exact], atol=1e-6)
    assert con.rebuild() == 6


def generated(draw: random.Random) -> str:
    """A batch of one or two statements that count and sum rows by groups, and by conditions."""
    made = []
    for number in range(draw.choice([1, 2])):
        key = draw.choice(["", "ward"])
        numbers = ["COUNT(*)", "SUM(cost)", "COUNT_IF(cost > 4)", "AVG(cost)", "COUNT(*) FILTER (WHERE ward = 'b')"]
        shown = ", ".join(f"{text} AS c{at}" for at, text in enumerate(draw.sample(numbers, draw.choice([1, 2, 3]))))
        where = draw.choice(
            ["", "", " WHERE cost > 3", " WHERE ward = 'a' OR cost <= 2", " WHERE NOT cost BETWEEN 2 AND 5"]
        )
        made.append(
            f"CREATE VIEW v{number} AS SELECT {key}{key and ', '}{shown} FROM visits{where}"
            + (f" GROUP BY {key}" if key else "")
        )
    return "; ".join(made)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_generated_batches_over_a_horizon(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the numbers are those of the rows, by another way; and a row loses what its period paid at most."""
    draw = random.Random(seed)
    sql, extra = generated(draw), (draw.choice("ab"), f"2024-0{draw.choice([1, 2, 3])}-14", float(draw.randrange(9)))
    monkeypatch.setattr(Noise, "sample", lambda _, count: [0] * count)
    found = []
    for name, rows in (("one", ROWS), ("other", (*ROWS, extra))):
        held = World(tmp_path / name, rows)
        con = held.connect("2024-04-01")
        con.schedules.add(sql, epsilon=1, name="m", horizon=4, windows=[2])
        with jobs(monkeypatch) as seen:
            assert [one.failure for one in con.schedules.release_due()] == [""] * 3
        found.append(seen)
        for statement in sql.split("; ") if name == "one" else ():
            view, text = statement.removeprefix("CREATE VIEW ").split(" AS ", 1)
            for month in (1, 2, 3):
                of_month = f"(FROM '{held.folder}/visits/*.parquet' WHERE month(day) = {month}) AS visits"
                with duckdb.connect() as plain:
                    exact = plain.execute(text.replace("FROM visits", f"FROM {of_month}")).fetchall()
                result = con.sql(f"SELECT * EXCLUDE (period) FROM {view} WHERE period = '2024-0{month}-01'")
                kept = [
                    at for at, column in enumerate(result.columns) if column in ("ward", *(f"c{n}" for n in range(3)))
                ]
                shown = [tuple(row[at] for at in kept) for row in result.fetchall()]
                assert sorted(map(plainly, shown)) == sorted(map(plainly, exact))
    paid = found[0][0][0].charge.mu_squared
    assert 0 <= lost(*found) <= paid


def plainly(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(float(value), 6) if isinstance(value, int | float) else value for value in row)


@pytest.mark.long
def test_errors_of_totals_and_windows_are_those_that_were_shown(world: World) -> None:
    con = world.added()
    (one,) = con.schedules.standing()
    assert (one.windows, len(one.factors)) == ((3,), 6)
    shown = {window: (alone, over) for window, alone, over in con.schedules.errors(one)}
    assert list(shown) == [1, 3, 6]
    assert shown[1][1] > shown[1][0]
    assert shown[6][1] < shown[6][0]
    con.schedules.release_due()
    text = """SELECT ward, period, n, SUM(n) OVER w AS so_far, SUM(n) OVER (w ROWS 2 PRECEDING) AS three,
        s, SUM(s) OVER w AS t FROM by_ward WINDOW w AS (PARTITION BY ward ORDER BY period) ORDER BY ward, period"""
    found = con.sql(text, errors=True)
    for column, window, beside in (("n", 1, "s"), ("so_far", 6, "t")):
        held = np.concatenate([found.column(f"{name}_stderr") for name in (column, beside)]).astype(float)
        assert np.sqrt((held**2).mean()) == pytest.approx(shown[window][1], rel=2e-3)
    last = [float(v) for v in found.column("so_far_stderr")][5]
    own = [float(v) for v in found.column("n_stderr")]
    assert last < np.sqrt(sum(v * v for v in own[:6])) * 0.75  # what independent noise would come to
    assert con.schedules.progress(one).as_dict() == {"released": 6, "due": 0, "cut_off": 0}


def dies(*_: Any, **__: Any) -> Any:
    raise Cut


class Cut(BaseException):
    """Stands for a process that dies: nothing of dpsql catches it."""


PLACES = {
    "after the charge": (OpenEngine, "scan"),
    "before it is recorded": (Ledger, "record"),
    "before the views": (ReleaseStore, "write"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.few("after the charge")
def test_who_dies_is_followed_by_one_who_charges_nothing_more(
    world: World, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.added("2024-02-01").schedules.release_due()
    con = world.connect("2024-03-01")
    with monkeypatch.context() as cut:
        cut.setattr(*PLACES[place], dies)
        with contextlib.suppress(Cut):  # the shield replaces it where rows are scanned
            assert con.schedules.release_due()[1].failure
    again = world.connect("2024-04-01")
    assert [one.failure for one in again.schedules.release_due()] == [""] * 3
    assert [entry.description["horizon"]["place"] for entry in again.budget.charges] == [0, 1, 2]
    assert again.ledger.verify().releases == 3
    assert len(again.sql("FROM by_ward").fetchall()) == 6


def test_a_period_that_is_refused_comes_first(world: World) -> None:
    con = world.added("2024-04-01", epsilon=1.5)
    con.run("SELECT COUNT(*) FROM visits WHERE day >= '2024-02-01' AND day < '2024-03-01'", epsilon=1.9)
    found = con.schedules.release_due()
    assert [one.new for one in found] == [True, False, False]
    assert "which has 9.23% left" in found[1].failure
    assert "2024-02-01 is not released: see to what refuses it first" in found[2].failure


@pytest.mark.long
def test_a_horizon_ends_and_answers_no_other_batch(world: World) -> None:
    con = world.added(horizon=2, windows=[])
    assert [one.period for one in con.schedules.release_due()] == ["2024-01-01", "2024-02-01"]
    assert con.schedules.release_due() == con.schedules.release_due()
    (one,) = con.schedules.standing()
    assert con.schedules.progress(one).as_dict() == {"released": 2, "due": 0, "cut_off": 0}
    # The very batch of one period, whose measurement the ledger holds together with that of another, is measured anew.
    text = "SELECT ward, COUNT(*) AS n FROM visits WHERE day >= '2024-02-01' AND day < '2024-03-01' GROUP BY ward"
    plan = con.plan(text, epsilon=0.5)
    assert plan.rests_on == ()
    spent = con.budget_by_period()[1].spent
    con.run(plan)
    assert con.budget_by_period()[1].spent > 1.2 * spent


@pytest.mark.parametrize(("old", "new"), [('["a", "b"]', '["a", "b", "c"]'), ("upper = 8", "upper = 9")])
@pytest.mark.long
def test_late_rows_and_a_policy_that_changed(world: World, old: str, new: str) -> None:
    con = world.added("2024-03-01")
    con.schedules.release_due()
    world.arrive("late", (("a", "2024-01-07", 1.0),))
    assert [one.failure for one in world.connect("2024-04-01").schedules.release_due()] == [""] * 3
    path = world.folder / "p.toml"
    path.write_text(path.read_text().replace(old, new))
    found = world.connect("2024-05-01").schedules.release_due()[-1]
    assert "m measures each period as the first one was" in found.failure
    assert len(world.connect("2024-05-01").budget.charges) == 3


BAD: dict[str, tuple[dict[str, str], dict[str, Any], type[Error], str]] = {
    "a unit with many rows": (
        {"unit": 'unit = "who"\nmax_rows_per_unit = 2', "columns": "who = {}"},
        {},
        PolicyError,
        'needs unit = "row"',
    ),
    "less than none": ({}, {"horizon": -1}, Error, "horizon"),
    "a part": ({}, {"horizon": 1.5}, Error, "horizon"),
    "no window": ({}, {"windows": [0]}, DataError, "windows are numbers of periods"),
    "long": ({}, {"horizon": 2001}, DataError, "a horizon has 1 to 2,000 periods"),
    "none": ({}, {"horizon": 0}, Error, "horizon"),
    "wide": ({}, {"windows": [7]}, DataError, "windows are numbers of periods from 1 to the horizon's 6"),
    "endless": ({}, {"horizon": "endless", "windows": []}, DataError, "an endless horizon has windows"),
    "endless and wide": ({}, {"horizon": "endless", "windows": [2001]}, DataError, "from 1 to the horizon's 2,000"),
    "a word": ({}, {"horizon": "years"}, DataError, "horizon='years' is no number of periods"),
    "text": ({}, {"windows": "3"}, DataError, "windows are numbers of periods"),
    "days": (
        {},
        {"sql": "CREATE VIEW v AS SELECT COUNT_IF(dayofweek(visits.DAY) = 1) AS n, COUNT(*) AS m FROM visits"},
        SQLError,
        "asks nothing of day but its period",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_horizon_is_refused_at_once(tmp_path: Path, name: str) -> None:
    policy, more, kind, said = BAD[name]
    con = World(tmp_path / "w", **policy).connect()
    with pytest.raises(kind, match=said):
        con.schedules.add(**{"sql": BATCH, **HORIZON, **more})
    assert con.schedules.standing() == []


@pytest.mark.long
def test_a_horizon_of_fewer_periods_than_are_over_ends_with_its_last(world: World) -> None:
    """Nothing is released of what it does not have, and a second one goes on where it says."""
    con = world.added("2024-05-01", horizon=2, windows=[])
    found = con.schedules.release_due()
    assert [(one.period, one.new) for one in found] == [("2024-01-01", True), ("2024-02-01", True)]
    with pytest.raises(Error, match="a schedule named m is there"):
        con.schedules.add(BATCH.replace("by_ward", "w"), **{**HORIZON, "horizon": 1, "windows": []})
    more = {**HORIZON, "name": "n", "windows": [2], "horizon": 2}
    con.schedules.add(BATCH.replace("by_ward", "w"), first="2024-03-01", **more)
    assert [one.period for one in con.schedules.release_due() if one.new] == ["2024-03-01", "2024-04-01"]
    # A clock that goes back leaves both as they are.
    assert not any(one.new or one.failure for one in world.connect("2024-02-15").schedules.release_due())
    assert len(con.budget.charges) == 4


def test_a_budget_without_delta_has_no_noise_for_it(world: World) -> None:
    path = world.folder / "p.toml"
    path.write_text(path.read_text().replace("delta = 1e-9\n", ""))
    with pytest.raises(PolicyError, match="a horizon is measured with Gaussian noise"):
        world.added()
