"""A release keeps the limits that it was made under, and what changed since is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.policy.limits import changed_limits, limits_by_release, limits_in
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 40.0
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
minimum = 5
at_most = [{ rows = 1, per = "ward" }]
[tables.visits.columns]
patient = {}
ward = { values = ["a", "b"], nulls = false }
cost = { lower = 0, upper = 100 }
"""
VIEW = "CREATE OR REPLACE VIEW by_ward AS SELECT ward, SUM(cost) AS s, COUNT(*) AS n FROM visits GROUP BY ward"
EDITS = [
    ("minimum = 5\n", "", "visits.minimum was 5, is not declared"),
    ("max_rows_per_unit = 3", "max_rows_per_unit = 2", "visits.max_rows_per_unit was 3, is 2"),
    ("rows = 1", "rows = 2", "visits.at_most was 1 row for each value of ward, is 2 rows for each value of ward"),
    ("upper = 100", "upper = 99.5", "visits.columns.cost was 0 to 100, nulls, is 0 to 99.5, nulls"),
    ('"a", "b"', '"a"', "visits.columns.ward was values a, b, no nulls, is values a, no nulls"),
    ("cost = { lower = 0, upper = 100 }", "cost = {}", "visits.columns.cost was 0 to 100, nulls, is nulls"),
]


def limits(text: str) -> dict[str, dict[str, str]]:
    return limits_in(dpsql.Policy.parse(text).tables, ["visits"])


@pytest.mark.parametrize(("old", "new", "said"), EDITS)
def test_each_edit_of_a_limit_is_said(old: str, new: str, said: str) -> None:
    edited = POLICY.replace(old, new)
    assert edited != POLICY
    assert changed_limits(limits(POLICY), limits(edited)) == [said]
    assert changed_limits(limits(POLICY), limits(POLICY)) == []


def test_a_release_is_compared_with_the_last_that_read_the_same_table() -> None:
    one, other = {"a": {"minimum": "5"}}, {"b": {"minimum": "7"}}
    made = [(1, one), (2, {}), (3, other), (4, {"a": {"minimum": "6"}, **other})]
    assert limits_by_release(made) == {1: [], 2: [], 3: [], 4: ["a.minimum was 5 in release 1, is 6"]}


@pytest.mark.long
def test_changed_limits_are_listed_shown_and_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as held:
        held.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, IF(i % 2 = 0, 'a', 'b') AS ward, 7 AS cost "
            "FROM range(200) t(i)"
        )
    policy = tmp_path / "visits.toml"
    policy.write_text(POLICY, encoding="utf-8")

    def run() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "dpsql"), dpsql.connect(policy=policy) as con:
            con.run(VIEW, epsilon=1.0, fresh=True)
        return caplog.text

    def shown(*words: str) -> tuple[str, str]:
        assert main(["releases", *words, "--policy", str(policy)]) == 0
        return capsys.readouterr()

    assert run() == run() == ""
    assert "Limits that changed" not in shown("list").out
    assert "limits changed" not in shown("show", "by_ward").err
    policy.write_text(POLICY.replace("max_rows_per_unit = 3", "max_rows_per_unit = 2"), encoding="utf-8")
    said = "visits.max_rows_per_unit was 3 in release 2, is 2"
    assert f"the policy now: {said}" in shown("list").out
    assert f"limits changed: {said}" in shown("show", "by_ward").err
    assert f"the view by_ward is replaced under other limits: {said}" in run()
    assert f"release 3: {said}" in shown("list").out
    assert f"limits changed: {said}" in shown("show", "by_ward").err
    document = json.loads(shown("list", "--json").out)
    assert [entry["limits_changed"] for entry in document["releases"]] == [[], [], [said]]
    assert document["releases"][0]["limits"]["visits"]["max_rows_per_unit"] == "3"
    assert document["limits_changed_since"] == []
    with dpsql.connect(policy=policy) as con:
        assert con.run("SELECT SUM(cost) + COUNT(*) AS n FROM visits WHERE ward = 'a'").cost == 0
        assert con.releases()[-1].limits == con.releases()[-2].limits != {}


def test_entries_of_older_versions_have_no_limits() -> None:
    """Where nothing was kept, nothing is said to have changed."""
    assert limits_by_release([(1, {}), (2, limits(POLICY)), (3, {})]) == {1: [], 2: [], 3: []}
