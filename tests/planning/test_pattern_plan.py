"""A release of persons by wards with noise for patterns: the ledger, sums of its numbers, replicates and coverage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from helpers import unwrapped

import dpsql
from dpsql.common.pattern_block import PatternBlock, law_of
from dpsql.errors import IntegrityError
from dpsql.release.payload import unpack
from dpsql.running.jobs import job_of

POLICY = """
dataset = "wards-1"
[budget]
epsilon = 1000.0
[tables.visits]
unit = "person"
max_rows_per_unit = 8
at_most = [{ groups = 3, per = "ward" }]
[tables.visits.columns]
ward = { lower = 1, upper = 10, step = 1, nulls = false }
person = { nulls = false }
"""
PERSONS = "CREATE VIEW persons AS SELECT ward, COUNT(DISTINCT person) AS n FROM visits GROUP BY ward"
BLOCK = PatternBlock(10, 3)
Opened = Callable[[], dpsql.Connection]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder: Path = tmp_path_factory.mktemp("patterns")
    (folder / "policy.toml").write_text(POLICY)
    data = duckdb.connect()
    data.execute(
        "CREATE TABLE visits AS SELECT i // 3 AS person, (i // 3 + i % 3 * 4) % 10 + 1 AS ward FROM range(900) t(i)"
    )

    def connection() -> dpsql.Connection:
        files = {"ledger": folder / "l.ledger", "releases": folder / "r.duckdb"}
        return dpsql.connect(data, policy=folder / "policy.toml", **files)

    yield connection
    data.close()


def test_the_plan_has_the_error_of_the_gauge(opened: Opened) -> None:
    with opened() as con:
        plan = con.plan(PERSONS, epsilon=0.5)
        assert plan.strategy.blocks == (BLOCK,)
        assert plan.stderr["persons"] == pytest.approx(law_of(BLOCK).variance ** 0.5 / 0.5, rel=1e-3)
        assert "a block of 10, by K-norm mechanisms of what one unit can change" in unwrapped(plan.explain())
        assert "sensitivity" in plan.explain()


def test_a_smaller_sensitivity_is_refused(opened: Opened) -> None:
    with opened() as con:
        plan = con.plan(PERSONS, epsilon=0.5)
        job = job_of(plan, {}, {}, "")
        job.check_sensitivity()
        with pytest.raises(IntegrityError, match="sensitivity"):
            replace(job, sensitivity=job.sensitivity * 99 // 100).check_sensitivity()


def test_the_ledger_has_the_law(opened: Opened) -> None:
    with opened() as con:
        plan = con.plan(PERSONS, epsilon=0.5)
        release = con.run(plan)
        payload = con._batches.books.ledger().release(release.id).payload
    _, measurement = unpack(payload)
    assert measurement.law == plan.noise
    body = json.loads(payload)
    assert (body["format"], body["measurement"]["blocks"]) == (3, [[10, 3]])
    body["measurement"]["blocks"] = [[10, 30]]
    with pytest.raises(dpsql.Error, match="damaged"):
        unpack(json.dumps(body).encode())


@pytest.mark.long
def test_what_follows_from_it_knows_that_errors_are_correlated(opened: Opened) -> None:
    law = law_of(BLOCK)
    with opened() as con:
        release = con.run(PERSONS, epsilon=0.5)
        total = con.sql("SELECT SUM(n) AS s FROM persons", errors=True).df()
        wanted = (10 * law.variance + 90 * law.covariance) ** 0.5 / 0.5
        assert total["s_stderr"][0] == pytest.approx(wanted, rel=1e-2)
        assert total["s"][0] == pytest.approx(float(np.sum(release["persons"].column("n"))))
        draws = release.draws("persons", 400).df()["n"].to_numpy().reshape(400, 10)
    assert draws.std(axis=0).mean() == pytest.approx(law.variance**0.5 / 0.5, rel=0.15)
    assert draws.sum(axis=1).std() == pytest.approx(wanted, rel=0.2)


@pytest.mark.long
def test_intervals_hold_as_often_as_they_say(opened: Opened) -> None:
    inside, errors = [], []
    with opened() as con:
        true, again = np.full(10, 90.0), PERSONS.replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
        for _ in range(150):
            found = con.run(again, epsilon=0.5, fresh=True)["persons"].df()
            inside.append(((found["n_low"] <= true) & (true <= found["n_high"])).mean())
            errors.append(((found["n"] - true) / found["n_stderr"]) ** 2)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.025)
    assert np.mean(errors) == pytest.approx(1.0, abs=0.2)
