"""Values found on Spark: the counts that DuckDB has, with noise that the driver draws, whatever the executors do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.measure import discovery as room
from dpsql.policy import Policy
from dpsql.privacy.threshold import GaussianThreshold

pytestmark = pytest.mark.spark

POLICY = """
dataset = "words-1"
[budget]
epsilon = 9.0
delta = 1e-6
[tables.words]
unit = "patient"
max_rows_per_unit = 50
[tables.words.columns]
word = {type = "VARCHAR"}
number = {type = "INTEGER"}
"""


@pytest.fixture(scope="module")
def words(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Patients of one or two words, of which some are odd as text; one that is no text, as Parquet may hold it."""
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE words AS SELECT range % 500 AS patient, [NULL, '', 'flu', 'Flu', 'it''s \"', "
        "'a' || chr(0) || 'b', 'é', repeat('x', 300)][1 + (range * 5 + range // 8) % 8]::VARCHAR AS word, "
        "(range % 3)::INTEGER AS number FROM range(900)"
    )
    path = tmp_path_factory.mktemp("words") / "words.parquet"
    con.execute(f"COPY words TO '{path}'")
    spark.sql("DROP TABLE IF EXISTS words")
    frame = spark.read.parquet(str(path))
    odd = spark.range(0, 300).selectExpr("id AS patient", "CAST(X'ff41' AS STRING) AS word", "0 AS number")
    frame.unionByName(odd).write.saveAsTable("words")
    yield spark, con
    spark.sql("DROP TABLE words")


def test_values_are_those_of_duckdb(words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark, raw = words
    monkeypatch.setattr(GaussianThreshold, "sample", lambda self, count: np.zeros(count, dtype=np.int64))
    monkeypatch.setattr(GaussianThreshold, "least", 2)
    policy = Policy.parse(POLICY)
    found = [
        dpsql.connect(engine, policy=policy, ledger=tmp_path / f"{at}.ledger").discover(
            "words.word", epsilon=0.1, delta=1e-12, max_groups=9
        )
        for at, engine in enumerate((spark, raw))
    ]
    assert found[0].values == found[1].values
    assert len(found[0].values) >= 4
    assert found[0].counts == found[1].counts


def test_pure_values_and_numbers_and_what_is_refused(words: Any, tmp_path: Path) -> None:
    con = dpsql.connect(words[0], policy=Policy.parse(POLICY), ledger=tmp_path / "w.ledger")
    numbers = con.discover("words.number", epsilon=1, delta=1e-10, max_groups=3)
    assert numbers.values == (0, 1, 2)
    pure = dpsql.connect(
        words[0], policy=Policy.parse(POLICY.replace("delta = 1e-6\n", "")), ledger=tmp_path / "p.ledger"
    )
    found = pure.discover("words.word", epsilon=4, max_groups=2, max_bytes=6, alphabet="abcfluFLU")
    assert set(found.values) <= {"", "flu", "Flu"}
    assert found.values
    assert pure.budget.spent == 4


def test_rows_that_come_between_the_scans_are_noticed(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = dpsql.connect(words[0], policy=Policy.parse(POLICY), ledger=tmp_path / "c.ledger")
    real = room._named

    def later(read: Any, *rest: Any) -> Any:
        return real({**read, "n": np.asarray(read["n"]) + 1}, *rest)

    monkeypatch.setattr(room, "_named", later)
    with pytest.raises(dpsql.OperationalError, match="changed while they were read"):
        con.discover("words.word", epsilon=2, delta=1e-10, max_groups=9)
    assert con.budget.spent > 0
