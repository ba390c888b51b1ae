"""A release with noise in blocks, from the ledger on: free answers, replicates, formulas and a second release."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.release.payload import unpack

POLICY = """
dataset = "blocks-1"
[budget]
epsilon = 20.0
delta = 1e-6
pure_epsilon = 1.5
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 99 }
b = { lower = 0, upper = 99 }
c = { lower = 0, upper = 99 }
"""
FILTERS = "SELECT COUNT_IF(a > 49) AS x, COUNT_IF(b > 49) AS y, COUNT_IF(c > 19) AS z, AVG(a) AS m FROM t"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(folder, what opens a connection on it, plan and release of the filters)."""
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "policy.toml").write_text(POLICY)
    held = duckdb.connect()
    held.execute(
        "CREATE TABLE t AS SELECT range % 100 AS a, (range * 7) % 100 AS b, (range * 13) % 97 AS c FROM range(4000)"
    )

    def opened():
        files = {"ledger": folder / "l.ledger", "releases": folder / "r.duckdb"}
        return dpsql.connect(held, policy=folder / "policy.toml", **files)

    with opened() as con:
        plan = con.plan(FILTERS, epsilon=1)
        release = con.run(plan)
        yield opened, plan, release


@pytest.mark.long
def test_the_ledger_keeps_the_blocks(place):
    opened, plan, release = place
    assert max(plan.strategy.blocks) > 1
    with opened() as con:
        _, kept = unpack(con._batches.books.ledger().release(release.id).payload)
    assert kept.law == plan.noise
    assert len(kept.y) == sum(kept.blocks)


@pytest.mark.long
def test_free_answers_have_the_errors_of_the_plan(place):
    opened, plan, _ = place
    with opened() as con:
        free = con.run("CREATE VIEW again AS SELECT COUNT_IF(b > 49) AS y FROM t")
        assert free.cost == 0
        errors = np.asarray(plan.stderr["q1"]).ravel()
        assert free["again"].column("y_stderr")[0] == pytest.approx(errors[1], rel=1e-9)
        both = con.sql("SELECT x - y AS d, x + y AS s FROM q1", errors=True)
    drawn = place[2].draws("q1", 20_000).df()
    for name, moved in (("d", drawn["x"] - drawn["y"]), ("s", drawn["x"] + drawn["y"])):
        assert both.column(f"{name}_stderr")[0] == pytest.approx(float(moved.std()), rel=0.05)


def test_replicates_of_a_formula_stay_within_its_interval(place):
    _, _, release = place
    low, high = release["q1"].column("m_low")[0], release["q1"].column("m_high")[0]
    drawn = release.draws("q1", 4_000).df()["m"]
    assert float(((drawn >= low) & (drawn <= high)).mean()) > 0.93


def test_a_gaussian_release_beside_it_lowers_the_errors(place):
    opened, plan, _ = place
    with opened() as con:
        beside = con.plan("SELECT COUNT_IF(a > 49) AS x, COUNT_IF(b > 20) AS w FROM t", epsilon=2, delta=1e-6)
        assert beside.charge.noise == "gaussian"
        assert beside.rests_on
        new = con.run(beside)["q1"].column("x_stderr")[0]
        assert new < 0.99 * np.asarray(plan.stderr["q1"]).ravel()[0]
        assert new < beside.without_earlier.stderr["q1"].min()
