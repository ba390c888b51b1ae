"""What limits cut is measured at a charge of its own, said with every number from then on, and free afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.measure import cells
from dpsql.running.losses import KIND, limits_of

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 9.0
delta = 1e-6
pure_epsilon = 5.0
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
largest_unit = 40
expected_rows = 2000
at_most = [{ rows = 1, per = "day" }, { groups = 2, per = "ward" }]
[tables.visits.columns]
patient = {}
ward = { values = ["A", "B", "C", "D"] }
day = { lower = 0, upper = 9 }
"""
PLAIN = POLICY.replace('at_most = [{ rows = 1, per = "day" }, { groups = 2, per = "ward" }]\n', "")
BY_WARD = "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"
CREATED = "CREATE TABLE visits (patient INTEGER, ward VARCHAR, day INTEGER)"


def connected(folder: Path, rows: list[tuple[object, ...]], policy: str = PLAIN) -> Any:
    held = duckdb.connect(":memory:")
    held.execute(CREATED)
    filled(held, rows)
    return dpsql.connect(held, policy=dpsql.Policy.parse(policy), ledger=folder / "visits.ledger")


def filled(held: duckdb.DuckDBPyConnection, rows: list[tuple[object, ...]]) -> None:
    """Puts the rows in the place of those that the table has."""
    held.execute("DELETE FROM visits")
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    held.execute("INSERT INTO visits SELECT unnest(?::INT[]), unnest(?::VARCHAR[]), unnest(?::INT[])", columns)


def drawn(units: int, seed: int = 1) -> list[tuple[object, ...]]:
    """Rows of units, 1 to 30 each, and a few without a unit, a ward or a day."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[object, ...]] = [(None, "A", 1)] * 60
    for unit, many in enumerate(rng.integers(1, 31, units).tolist()):
        wards, days = rng.integers(0, 5, many).tolist(), rng.integers(0, 11, many).tolist()
        rows += [(unit, "ABCD"[w] if w < 4 else None, d if d < 10 else None) for w, d in zip(wards, days, strict=True)]
    return rows


def cut_exactly(rows: list[tuple[object, ...]]) -> dict[str, int]:
    """What each limit of the policy cuts of the rows that have a unit."""
    units: dict[object, list[tuple[object, ...]]] = {}
    for row in rows:
        if row[0] is not None:
            units.setdefault(row[0], []).append(row)
    days = sum(len(mine) - len({row[2] for row in mine}) for mine in units.values())
    wards = 0
    for mine in units.values():
        of_ward = sorted([sum(row[1] == ward for row in mine) for ward in {row[1] for row in mine}], reverse=True)
        wards += sum(of_ward[2:])  # at least: of any two wards that are kept
    return {"rows": sum(max(0, len(mine) - 3) for mine in units.values()), "day": days, "ward": wards}


def test_a_unit_is_in_one_bucket_of_each_histogram(tmp_path: Path) -> None:
    """One unit less moves what is measured by h in L1 norm: 1 in each of h histograms, whatever rows it has."""
    con = connected(tmp_path, [], POLICY)
    finder = con._loss_finder()
    histograms = finder.histograms("visits")
    assert len(histograms) == 3
    for budget, sensitivity in (({"epsilon": 1}, 3), ({"rho": 0.1}, 3)):
        plan = con.plan_losses(table="visits", **budget)
        assert plan.sensitivity == sensitivity
    job = finder._job(con.plan_losses(1.0, table="visits"), histograms, ["a", "b", "c"], "")
    engine, duck = con._holdings.engine, con._holdings.engine.connection
    rng, seen = np.random.default_rng(5), set[int]()
    for _ in range(12):
        rows = drawn(4, int(rng.integers(10**6)))
        rows += [(99, "ABCD"[int(rng.integers(4))], 7)] * int(rng.integers(1, 90))  # more than largest_unit says, too
        found = []
        for there in (rows, [row for row in rows if row[0] != 99]):
            filled(duck, there)
            found.append(np.array([int(value) for value in cells.cells_of(job, engine)]))
        moved = found[0] - found[1]
        seen.add(int(moved.sum()))
        assert moved.min() >= 0
        assert int(np.square(moved).sum()) == int(moved.sum()) <= 3
    assert max(seen) == 3


def test_the_loss_is_bought_once_and_said_from_then_on(tmp_path: Path) -> None:
    rows = drawn(600)
    con = connected(tmp_path, rows)
    plan = con.plan(BY_WARD, 0.1)
    assert plan.cut is None
    assert any("not measured: `dpsql policy check --losses --epsilon" in note for note in plan.notes)
    before = con.run(plan)[0]
    assert (before.cut, len(before.notes)) == (None, 1)
    found = con.losses("visits", 2.0)
    truth = cut_exactly(rows)["rows"]
    assert found.cost == 2.0
    assert found.cut.rows_low <= truth <= found.cut.rows_high
    assert found.cut.rows_low > 0.5 * truth
    assert con.budget.spent == pytest.approx(2.1)
    assert [con.losses("visits").cost, con.losses("visits", 1.0).cost] == [0.0, 0.0]
    assert con.budget.spent == pytest.approx(2.1)
    said = str(found.cut)
    assert "rows of visits were cut (max_rows_per_unit = 3); intervals leave this out" in said
    plan, shown = con.plan(BY_WARD, 0.1), con.run(BY_WARD)[0]
    assert plan.cut == {"visits": found.cut}
    assert said in plan.notes
    assert said in " ".join(str(plan).split())
    assert (shown.cut, shown.notes) == ({"visits": found.cut}, (said,))
    assert str(shown).endswith(said)
    assert said in shown._repr_html_()
    assert shown.df().attrs["cut"] == [said]
    fewer = con.plan(BY_WARD, 0.1, rows_per_unit=1).cut["visits"]
    assert fewer.limit == "rows_per_unit = 1"
    assert fewer.rows > found.cut.rows
    assert found.at(1).rows == fewer.rows
    assert len(found.result) == len(found.histograms["visits", "rows"][0].ends)
    assert con.losses("visits", 2.5).cost == 2.5  # less noise is another purchase
    assert con.plan("SELECT COUNT(DISTINCT patient) AS k FROM visits", 0.1).cut is None  # which no limit cuts


def test_each_limit_has_a_histogram_of_its_own(tmp_path: Path) -> None:
    """They are measured together; a batch that all limits bind says what they cut together."""
    rows = drawn(900)
    con = connected(tmp_path, rows, POLICY)
    con.losses("visits", 5.0)
    known, truth = con._ledger_losses.histograms(con.policy), cut_exactly(rows)
    for limit, name in zip(limits_of(con.policy.table("visits")), ("rows", "day", "ward"), strict=True):
        lost = known["visits", limit.of][0].rows_beyond(limit.figure, limit.least)
        assert lost.low <= truth[name] <= lost.high
        assert lost.high > 0
    entry = con.budget.charges[-1]
    assert entry.description["kind"] == KIND
    assert con.sql("SELECT count(DISTINCT counted) FROM dp.visits_rows_per_unit_2").fetchall() == [(1,)]
    cut = con.plan("SELECT day, COUNT(*) AS n FROM visits GROUP BY day", rho=0.01).cut["visits"]
    assert cut.rows_low <= max(truth.values()) <= cut.rows_high


def test_of_units_that_cannot_have_more_rows_than_count_nothing_is_said(tmp_path: Path) -> None:
    con = connected(tmp_path, drawn(20), PLAIN.replace("largest_unit = 40", "largest_unit = 3"))
    assert con.plan(BY_WARD, 0.1).notes == ()
    assert con.run(BY_WARD, 0.1, intervals="total")[0].notes == ()


def test_another_version_of_the_data_knows_nothing(tmp_path: Path) -> None:
    con = connected(tmp_path, drawn(50))
    con.losses("visits", 1.0)
    wider = dpsql.Policy.parse(PLAIN.replace("largest_unit = 40", "largest_unit = 80"))
    assert con._ledger_losses.histograms(wider) == {}
    again = dpsql.Policy.parse(PLAIN.replace("visits-1", "visits-2"))
    other = dpsql.connect(con._holdings.engine.connection, policy=again, ledger=tmp_path / "visits.ledger")
    other.renew("visits-1")
    assert other.plan(BY_WARD, 0.1).cut is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("largest_unit = 40\n", ""), r"tables\.visits\.largest_unit is missing"),
        (('unit = "patient"\nmax_rows_per_unit = 3\nlargest_unit = 40', 'unit = "row"'), "no limit cuts its rows"),
        (("largest_unit = 40", "largest_unit = 2"), "below max_rows_per_unit 3"),
        (("largest_unit = 40", "largest_unit = 0"), "largest_unit"),
        (("pure_epsilon = 5.0", "pure_epsilon = 5.0\nlosses = 10"), "budget.losses is 10, more than the whole"),
        (("pure_epsilon = 5.0", "losses = 0"), "budget.losses is 0"),
        (("5.0\n[tables.visits]", "5.0\nlosses = 0.1\n[tables.visits]"), None),
    ],
)
def test_what_the_policy_must_say(tmp_path: Path, change: tuple[str, str], message: str | None) -> None:
    if message is None:
        with pytest.raises(dpsql.PolicyError, match=r"tables\.visits\.largest_unit is missing: budget\.losses"):
            dpsql.Policy.parse(PLAIN.replace(*change).replace("largest_unit = 40\n", ""))
        return
    with pytest.raises(dpsql.PolicyError, match=message):
        connected(tmp_path, [], PLAIN.replace(*change)).losses("visits", 1.0)


def test_the_first_run_buys_it_where_the_policy_says_so(tmp_path: Path) -> None:
    """For the amount that it says, as a release of its own, which the plan names before; a plan buys nothing."""
    con = connected(tmp_path, drawn(300), PLAIN.replace("pure_epsilon = 5.0", "pure_epsilon = 5.0\nlosses = 0.5"))
    assert dpsql.Policy.parse(con.policy.to_toml()) == con.policy
    plan = con.plan(BY_WARD, 0.1)
    assert any(note.startswith("the next run also measures what limits cut, for epsilon 0.5") for note in plan.notes)
    assert con.budget.spent == 0
    shown = con.run(plan)[0]
    assert con.budget.spent == pytest.approx(0.6)
    assert [entry.description.get("kind") for entry in con.budget.charges] == [None, KIND]
    assert shown.cut is not None
    con.run(BY_WARD, 0.2)
    assert con.budget.spent == pytest.approx(0.8)
    assert not any("also measures" in note for note in con.plan(BY_WARD, 0.3).notes)


def test_a_run_is_not_lost_where_the_budget_does_not_hold_the_histogram(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    con = connected(tmp_path, drawn(30), PLAIN.replace("pure_epsilon = 5.0", "pure_epsilon = 5.0\nlosses = 5"))
    assert con.run(BY_WARD, 0.5)[0].cut is None
    assert "what limits cut was not measured" in caplog.text


SUMS = "SELECT ward, COUNT(*) AS n, SUM(day) AS s FROM visits GROUP BY ward; SELECT COUNT(*) AS n FROM visits"


def truths(rows: list[tuple[object, ...]]) -> dict[str, list[float]]:
    """The answers of `SUMS` over all rows that have a unit."""
    kept = [row for row in rows if row[0] is not None]
    wards: tuple[object, ...] = ("A", "B", "C", "D", None)
    of_ward = [[row[2] for row in kept if row[1] == ward] for ward in wards]
    sums = [sum(int(str(day)) for day in days if day is not None) for days in of_ward]
    return {"n": [float(len(days)) for days in of_ward], "s": list(map(float, sums)), "all": [float(len(kept))]}


def in_total(con: Any, fresh: bool = False) -> dict[str, list[tuple[float, float]]]:
    """The intervals that include what limits cut."""
    found = con.run(SUMS, 0.5, intervals="total", fresh=fresh)
    ends = {
        name: list(zip(found[0].column(f"{name}_low"), found[0].column(f"{name}_high"), strict=True)) for name in "ns"
    }
    return {**ends, "all": list(zip(found[1].column("n_low"), found[1].column("n_high"), strict=True))}


WITH_A_UNIT = (
    PLAIN.replace("patient = {}", "patient = { nulls = false }").replace("= 9.0", "= 1e6").replace("5.0", "9e5")
)


def test_total_intervals_are_those_of_the_noise_and_of_the_loss(tmp_path: Path) -> None:
    rows = drawn(400)
    con = connected(tmp_path, rows, WITH_A_UNIT)
    with pytest.raises(dpsql.DataError, match=r"not measured: .* measure it first, with con\.losses"):
        con.run(SUMS, 0.5, intervals="total")
    with pytest.raises(dpsql.DataError, match="use 'noise' or 'total'"):
        con.run(SUMS, 0.5, intervals="all")
    assert con.budget.spent == 0
    lost = con.losses("visits", 3.0).cut
    for sql, message in (
        ("SELECT AVG(day) AS m FROM visits", "what is cut may move q1.m anywhere"),
        ("SELECT MEDIAN(day) AS m FROM visits", "anywhere"),
        (f"{BY_WARD} ORDER BY n", "more to do after the noise"),
    ):
        with pytest.raises(dpsql.DataError, match=message):
            con.run(sql, 0.5, intervals="total")
    assert con.budget.spent == 3.0
    held, noise = in_total(con), con.run(SUMS, 0.5)
    for name, most in (("n", 1.0), ("s", 9.0)):
        for (low, high), row in zip(held[name], noise[0].df().to_dict("records"), strict=True):
            assert low == pytest.approx(row[f"{name}_low"])
            assert high == pytest.approx(row[f"{name}_high"] + most * lost.rows_high)
        assert all(low <= true <= high for (low, high), true in zip(held[name], truths(rows)[name], strict=True))
    ((low, high),), (row,) = held["all"], noise[1].df().to_dict("records")
    assert high - low <= 1.2 * (row["n_high"] - row["n_low"] + lost.rows_high - lost.rows_low)
    assert low <= truths(rows)["all"][0] <= high
    assert "intervals include this" in str(con.run(SUMS, 0.5, intervals="total")[0])


@pytest.mark.long
def test_total_intervals_hold_the_truth(tmp_path: Path) -> None:
    """150 runs, each with a loss measured anew; half of the rows are cut, of units in exact buckets."""
    rows = [row for row in drawn(400) if row[0] is not None]
    rows = [row for unit in range(400) for row in [r for r in rows if r[0] == unit][: unit % 8 + 1]]
    con = connected(tmp_path, rows, WITH_A_UNIT)
    true, inside, seen = truths(rows), dict[str, int](), dict[str, int]()
    for _ in range(150):
        con.losses("visits", 0.5, fresh=True)
        ((_, newest),) = con._ledger_losses.histograms(con.policy).values()
        assert newest == con.budget.charges[-1].id  # of equally precise ones the last counts
        for name, ends in in_total(con, fresh=True).items():
            seen[name] = seen.get(name, 0) + len(ends)
            inside[name] = inside.get(name, 0) + sum(a <= t <= b for (a, b), t in zip(ends, true[name], strict=True))
    assert {name: inside[name] / seen[name] for name in seen if inside[name] < 0.94 * seen[name]} == {}


@pytest.mark.long
def test_the_noise_is_what_the_charge_pays_for(tmp_path: Path) -> None:
    """Of an empty table all is noise: Laplace noise of the scale 3 / epsilon in three histograms, a unit being in each.

    900 draws have their mean square within 0.37 of it, five deviations; half or twice the noise would have 0.25 or 4.
    """
    con = connected(tmp_path, [], POLICY.replace("= 9.0", "= 900").replace("5.0", "500"))
    drawn_noise: list[int] = []
    for _ in range(25):
        con.losses("visits", 3.0, fresh=True)
        for histogram in con._ledger_losses._read[con.budget.charges[-1].id].values():
            drawn_noise += histogram.units
            assert (histogram.noise.kind, histogram.noise.parameter) == ("laplace", 1)
    variance = 2 * np.exp(-1) / (1 - np.exp(-1)) ** 2
    assert len(drawn_noise) > 900
    assert 0.63 <= np.mean(np.square(drawn_noise)) / variance <= 1.37


def test_a_query_over_releases_says_what_is_cut_of_the_rows_behind_them(tmp_path: Path) -> None:
    """Whatever reads results that are released: con.sql, with errors too, and a cursor's messages and frames."""
    con = connected(tmp_path, drawn(300))
    con.run(f"CREATE VIEW by_ward AS {BY_WARD}; SELECT COUNT(DISTINCT patient) AS k FROM visits", 1.0)
    ask = "SELECT ward, n / 2 AS half FROM dp.by_ward"
    assert con.sql(ask).notes == ()  # unlike a release, it does not say that nothing was measured
    said = str(con.losses("visits", 2.0).cut)
    read = con.sql(ask)
    assert (read.notes, list(read.cut)) == ((said,), ["visits"])
    assert read.df().attrs["cut"] == [said]
    assert str(read).endswith(said)
    assert con.sql(ask, errors=True).notes == (said,)
    con.rename("by_ward", "wards")
    assert con.sql("SELECT n FROM dp.wards AS w WHERE w.n > ?", [0]).notes == (said,)
    assert con.sql("FROM r1.wards").notes == (said,)
    for nothing in ("SELECT 1 AS one", "FROM dp.releases", "FROM q1", "FROM dp.visits_rows_per_unit"):
        assert con.sql(nothing).notes == ()
    cursor = con.cursor().execute("SELECT n FROM dp.wards")
    assert [str(note) for _, note in cursor.messages] == [said]
    assert cursor.df().attrs["cut"] == [said]
    assert con.cursor().execute("SELECT 1 AS one").messages == []
