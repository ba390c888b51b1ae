"""dpsql plan --stages: every stage in order, its tree as SQL that still reads, and nothing where nobody listens."""

from __future__ import annotations

import duckdb
import pytest
from helpers import engine_of, sources_of
from unit_rows import policy_of

from dpsql import measure
from dpsql.errors import SQLError
from dpsql.planning.explain import stages_of, stages_text
from dpsql.sql.rules import RULES, rule

POLICY = policy_of(
    """
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
[tables.visits.columns]
ward = { values = ["a", "b"] }
cost = { lower = 0, upper = 9 }
"""
)
SCHEMA = "CREATE TABLE visits (patient INTEGER, ward VARCHAR, cost INTEGER)"
BATCH = """
WITH w AS (SELECT * FROM visits WHERE cost BETWEEN 1 AND 4)
SELECT ward, COUNT(*) AS n, AVG(cost) AS a FROM w GROUP BY ward HAVING n > 1
"""


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, str]]:
    with duckdb.connect() as con:
        con.execute(SCHEMA)
        return {
            name: dict(found)
            for name, found in measure.read_schemas(engine_of(con), sources_of(POLICY).values()).items()
        }


def test_every_stage_is_passed_in_order(schemas: dict[str, dict[str, str]]) -> None:
    heard = stages_of(BATCH, POLICY, schemas)
    assert [name for name, _ in heard] == [rule.name for rule in RULES]


def test_trees_are_sql_that_reads(schemas: dict[str, dict[str, str]]) -> None:
    made = dict(stages_of(BATCH, POLICY, schemas))
    with duckdb.connect() as con:
        con.execute(SCHEMA)
        for stage in ("parse", "spell", "qualify", "flatten"):
            con.execute(made[stage])
    assert "WITH" not in made["flatten"]
    assert made["join"] == "rows of visits"
    assert "at most 3 rows of each unit are counted" in made["unit"]
    assert "[1] COUNT(*) where cost BETWEEN 1 AND 4" in made["aggregate"]
    assert "a from [2], [1]" in made["formula"]


def test_what_a_stage_leaves_as_it_was_is_said_once(schemas: dict[str, dict[str, str]]) -> None:
    text = stages_text(stages_of("SELECT COUNT(*) AS n FROM visits", POLICY, schemas))
    assert text.count("FROM visits") == 1
    assert text.count("unchanged") == 3


def test_a_refusal_keeps_its_place_and_nobody_hears_more(schemas: dict[str, dict[str, str]]) -> None:
    with pytest.raises(SQLError, match="column 8"):
        stages_of("SELECT cost FROM visits", POLICY, schemas)
    assert rule._LISTENER.get() is None
