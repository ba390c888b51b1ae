"""A release that an older version measured beside earlier ones: over joint cells, by a strategy that complemented them.

The ledger was written by that version; ``PART`` is its second release, and rests on the first.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from test_combined_plans import CROSS, PART, connected, spent

import dpsql
from dpsql.release.payload import unpack

SHOWN = [  # what the older version released
    ("a", 45.83333333333334, 9.747452939327724, 26.312009964585243, 65.35465670208144),
    ("b", 57.0, 9.747452939327722, 37.4786766312519, 76.5213233687481),
    ("c", 57.166666666666664, 9.747452939327722, 37.64534329791857, 76.68799003541476),
]


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    with closing(sqlite3.connect(tmp_path / "p.ledger", isolation_level=None)) as made:
        made.executescript((Path(__file__).parent / "complement_ledger.sql").read_text())
    return connected(tmp_path)


def test_it_opens_is_shown_and_asked_again_for_free(con: dpsql.Connection) -> None:
    assert [entry.description.get("rests_on") for entry in con.releases()] == [None, [1]]
    assert con._books.ledger().verify()
    assert con.rebuild() == 2
    assert con.sql("SELECT strategy FROM dp.releases WHERE release_id = 2").fetchall() == [
        ("complement with release 1",)
    ]
    assert con.sql("SELECT * FROM r2.q1").fetchall() == SHOWN
    paid = spent(con)
    again = con.run(PART, epsilon=0.5)
    assert (again.id, again.cost, again["q1"].fetchall()) == (2, 0.0, SHOWN)
    cursor = con.cursor(errors=True)
    cursor.execute(PART)
    assert cursor.fetchall() == SHOWN
    assert spent(con) == paid


def test_its_numbers_follow_from_its_measurement_and_the_one_that_it_rests_on(con: dpsql.Connection) -> None:
    """Other estimates of the same release are free, and their error columns are those that it stated."""
    paid = spent(con)
    possible = con.run(PART, epsilon=0.5, estimates="nonnegative")
    assert (possible.id, possible.cost, spent(con)) == (2, 0.0, paid)
    found = possible["q1"].fetchall()
    assert [row[2] for row in found] == pytest.approx([row[2] for row in SHOWN], rel=1e-9)
    assert [row[1] for row in found] == pytest.approx([row[1] for row in SHOWN], rel=1e-9)  # positive as they are
    plan = con.plan(PART, epsilon=0.5, earlier=False)
    answered = con._past.as_measured(plan, con.releases()[1])
    y = unpack(con._books.ledger().release(2).payload)[1].y
    assert answered.rests_on == (1,)
    assert answered.answers.estimate(y, answered.compiled.common_steps) == pytest.approx([row[1] for row in SHOWN])


def test_later_batches_rest_on_it(con: dpsql.Connection) -> None:
    free = con.run(PART.replace("GROUP", "AND g <> 'c' GROUP"))
    assert (free.cost, free.guarantee) == (0.0, "free, from releases 1, 2")
    assert [row[1:3] for row in free["q1"].fetchall()][:2] == [pytest.approx(row[1:3]) for row in SHOWN[:2]]
    plan = con.plan("SELECT g, count(*) AS n FROM t WHERE k BETWEEN 0 AND 9 GROUP BY g", epsilon=0.2)
    assert plan.rests_on == (1, 2)
    assert np.all(np.asarray(plan.errors) < np.asarray(plan.without_earlier.errors))
    assert con.run(plan).cost == plan.charge.amount
    assert con.plan(CROSS, epsilon=0.5, earlier=False).rests_on == ()
