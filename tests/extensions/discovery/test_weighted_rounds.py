"""Values found in two weighted rounds: what a unit moves in each, and what the rounds find end to end."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from test_discovery import ODD, TYPED, Row, connected, fill, found_by, job_of

import dpsql
from dpsql.engines.duckdb import ConnectionEngine
from dpsql.measure import discovery as room
from dpsql.measure.discovery import DiscoveryJob, among
from dpsql.privacy.threshold import WEIGHT, GaussianThreshold, Integers, TwoRounds, WeightedThreshold
from dpsql.workloads.expr.scan import Select

GROUPS = 3


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise; two units that have no other value pass."""
    monkeypatch.setattr(GaussianThreshold, "sample", lambda self, count: np.zeros(count, dtype=np.int64))
    monkeypatch.setattr(WeightedThreshold, "least", 2 * WEIGHT)


def sums(job: DiscoveryJob, con: dpsql.Connection, select: Select) -> dict[str, tuple[int, int]]:
    """The numbers and hashes of all values."""
    engine = con._holdings.engine
    assert isinstance(engine, ConnectionEngine)
    found = engine.scan(job.values_from(0, job.scan(select), hashed=True))
    rows = zip(*(np.ma.array(found[name]).tolist() for name in ("value", "n", "hash")), strict=True)
    return {str(value): (int(n), int(at)) for value, n, at in rows if value is not None}


def moves(con: dpsql.Connection, job: DiscoveryJob, select: Select, rows: list[Row]) -> Iterable[list[int]]:
    """What each unit moves, its rows removed and put back."""
    table = con._holdings.attachable
    assert table is not None
    whole = sums(job, con, select)
    for unit in {patient for patient, _ in rows}:
        table.execute("DELETE FROM visits WHERE patient IS NOT DISTINCT FROM ?", [unit])
        less = sums(job, con, select)
        fill(table, [row for row in rows if row[0] == unit])
        yield [n - less.get(value, (0, 0))[0] for value, (n, _) in whole.items()]


def check_units(con: dpsql.Connection, job: DiscoveryJob, rows: list[Row]) -> int:
    """Every unit in every step within what the noise is made for; the largest squared weight."""
    assert isinstance(job.law, TwoRounds)
    first, second = job.law.rounds
    hashes = {at for value, (_, at) in sums(job, con, job.weighed(first)).items() if value in ("v1", "v4", "v5")}
    assert len(hashes) == 3
    steps = (job.weighed(first), job.weighed(second, among(hashes, within=False)))
    largest = 0
    for select in steps:
        for changes in moves(con, job, select, rows):
            assert min(changes) >= 0
            assert sum(change > 0 for change in changes) <= GROUPS
            largest = max(largest, sum(change**2 for change in changes))
            assert largest <= WEIGHT**2
            # Alone in all its values, a unit fails within delta of the round.
            assert (sum(c > 0 for c in changes), max(changes)) in {*first.alone, (0, 0)}
    assert not {"v1", "v4", "v5"} & set(sums(job, con, steps[1]))
    counted = job.counted(among(hashes, within=True))
    assert set(sums(job, con, counted)) == {"v1", "v4", "v5"}
    for changes in moves(con, job, counted, rows):
        assert set(changes) <= {0, 1}
        assert sum(changes) <= GROUPS
    return largest


def generated() -> list[Row]:
    rng = np.random.default_rng(5)
    drawn = zip(rng.integers(0, 8, 48), rng.integers(0, 9, 48), strict=True)
    rows: list[Row] = [(None if p == 7 else int(p), None if v == 8 else f"v{v}") for p, v in drawn]
    return [*rows, (20, "v1"), (21, "v6"), (21, "v1"), (22, "v4"), (22, "v4"), (22, None)]


def test_a_unit_moves_no_round_by_more_than_its_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = generated()
    con = connected(tmp_path, rows)
    job = weighted_job(con, monkeypatch)
    assert check_units(con, job, rows) > 0.99 * WEIGHT**2  # the bound is reached
    with monkeypatch.context() as patch:  # weights that are not normalised
        patch.setattr(WeightedThreshold, "alone", ((1, WEIGHT), (2, WEIGHT), (3, WEIGHT)))
        with pytest.raises(AssertionError):
            check_units(con, weighted_job(con, monkeypatch), rows)
    with monkeypatch.context() as patch:  # a unit in more than its groups
        patch.setattr("dpsql.measure.from_sql._truncated", lambda rows, names, first, limit: rows)
        with pytest.raises(AssertionError):
            check_units(con, job, rows)


def weighted_job(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> DiscoveryJob:
    with monkeypatch.context() as patch:
        real = con.discover
        patch.setattr(con, "discover", lambda *given, **options: real(*given, weighted=True, **options))
        return job_of(con, GROUPS, patch)


def check_law(law: TwoRounds) -> None:
    """The three steps add up to the charge, and each threshold holds its part of delta, by another formula."""
    spent, fails = law.groups / law.noise.parameter, 0.0
    for step in law.rounds:
        spent += WEIGHT**2 / step.noise.parameter
        sigma = float(step.noise.parameter) ** 0.5
        for s in range(1, law.groups + 1):
            weight = next(w for most, w in step.alone if s <= most)
            assert s * weight**2 <= WEIGHT**2
            chance = 1 - norm.cdf((step.least - 0.5 - weight) / sigma) ** s
            assert chance <= float(step.delta) * (1 + 1e-6), s
        fails += step.failure(step.least)
        assert step.failure(step.least - int(sigma / 50)) > float(step.delta)  # and no larger than need be
    assert spent <= law.mu_squared
    assert fails <= law.delta


@pytest.mark.parametrize("groups", [1, 2, 7, 40])
def test_rounds_hold_what_the_charge_pays_for(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    law = TwoRounds(groups, Fraction("0.3"), Fraction("1e-4"))
    check_law(law)
    low = vars(GaussianThreshold)["least"].func
    mutants = {
        "least": property(lambda self: low(self) - WEIGHT),  # lowered by one unit
        "noise": property(lambda self: GaussianThreshold(1, 4 * self.mu_squared / WEIGHT**2, self.delta).noise),
        "delta": property(lambda self: Fraction("1e-4"), lambda self, _: None),  # all of delta in each round
    }
    for name, mutant in mutants.items():
        with monkeypatch.context() as patch:
            patch.setattr(WeightedThreshold, name, mutant, raising=False)
            with pytest.raises(AssertionError):
                check_law(TwoRounds(groups, Fraction("0.3"), Fraction("1e-4")))


@pytest.mark.usefixtures("quiet")
def test_the_second_round_counts_what_the_first_has_not_shown(tmp_path: Path) -> None:
    """Of two values a unit weighs 0.7 in each, so three of them pass at once; then their other value has all."""
    rows: list[Row] = [(n, "a") for n in range(3)] + [(n, "b") for n in (1, 2)] + [(7, "c"), (8, "c"), (8, "d")]
    con = connected(tmp_path, rows)
    found = found_by(con, max_groups=3, weighted=True)
    assert dict(zip(found.values, found.counts, strict=True)) == {"a": 3, "b": 2}
    assert found_by(con, max_groups=3, weighted=True).cost == 0
    assert found_by(con, max_groups=3).cost > 0  # another question
    assert con.plan("SELECT v, COUNT(*) AS n FROM visits GROUP BY v", epsilon=0.1).stderr["q1"].shape == (4,)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", ["VARCHAR", "VARCHAR COLLATE NOCASE"])
def test_odd_texts_are_found_in_rounds_too(tmp_path: Path, kind: str) -> None:
    rows: list[Row] = [(3 * at + n, text) for at, text in enumerate(ODD) for n in range(3)]
    rows += [(n, "Second") for n in range(4)]
    found = found_by(connected(tmp_path, rows, value_type=kind), max_groups=2, weighted=True)
    assert set(found.values) == {*ODD, "Second"}
    assert set(found.counts) == {3.0, 4.0}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("case", [TYPED[2], TYPED[3], TYPED[6], TYPED[7]], ids=lambda case: str(case[0]))
@pytest.mark.few("DECIMAL(18,2)")
def test_values_of_other_types_are_found_and_counted(case: tuple[str, list[object], object], tmp_path: Path) -> None:
    kind, values, _ = case
    rows: list[Row] = [(10 * at + n, value) for at, value in enumerate(values) for n in range(3 + at)]
    found = found_by(connected(tmp_path, rows, value_type=kind), max_groups=2, weighted=True)
    counts = dict(zip(found.values, found.counts, strict=True))
    assert counts == {value: 3 + at for at, value in enumerate(values)}


def test_hashes_are_found_in_their_tables(tmp_path: Path) -> None:
    """Of thousands of values, with every collision of places: exactly those that are listed."""
    con = connected(tmp_path, [(n, f"v{n}") for n in range(4000)])
    engine = con._holdings.engine
    assert isinstance(engine, ConnectionEngine)
    with pytest.MonkeyPatch.context() as patch:
        job = weighted_job(con, patch)
    hashes = {value: at for value, (_, at) in sums(job, con, job.counted()).items()}
    listed = {value for value in hashes if int(value[1:]) % 3 == 0}
    for within, wanted in ((True, listed), (False, set(hashes) - listed)):
        test = among({hashes[value] for value in listed}, within=within)
        assert set(sums(job, con, job.counted(test))) == wanted


def test_weights_are_refused_where_they_mean_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connected(tmp_path / "row", [(1, "a")], unit="row")
    with pytest.raises(dpsql.DataError, match="weights are for units of several values"):
        found_by(con, weighted=True)
    with pytest.raises(dpsql.DataError, match="max_groups, weighted, max_bytes and alphabet are for values"):
        con.discover("visits.v", epsilon=0.1, bounds=True, weighted=True)
    assert con.budget.spent == 0
    many = connected(tmp_path / "many", [(n, "a") for n in range(9)])
    said = str(many.plan_discovery("visits.v", epsilon=0.1, delta=1e-9, max_groups=4, weighted=True))
    assert "two weighted rounds" in said
    assert "whatever else these have" in said
    monkeypatch.setattr(room, "MOST_IN_ROUNDS", 0)
    monkeypatch.setattr(WeightedThreshold, "least", -(2**40))
    with pytest.raises(dpsql.OperationalError, match="more than weighted rounds can count"):
        found_by(many, max_groups=4, weighted=True)


def test_noise_stands_in_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw for each value in each round, and for each value that was found."""
    drawn: list[tuple[str, int]] = []
    real = GaussianThreshold.sample

    def counted(self: GaussianThreshold, count: int) -> Integers:
        drawn.append((type(self).__name__, count))
        return real(self, count)

    monkeypatch.setattr(GaussianThreshold, "sample", counted)
    rows: list[Row] = [(n, "common") for n in range(4000)] + [(n, f"rare {n}") for n in range(5)]
    found = found_by(connected(tmp_path, rows), max_groups=2, weighted=True)
    assert found.values == ("common",)
    assert drawn == [("WeightedThreshold", 6), ("WeightedThreshold", 5), ("TwoRounds", 1)]
    assert found.counts != (4000,)
