"""The text of a plan: 80 columns, every word explained, aliases as titles, and one text for every surface."""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from helpers import settled

import dpsql
from dpsql.common.notes import BIAS, ERROR, HINT, Note
from dpsql.extensions.notebook.results import plan_html
from dpsql.extensions.server.commands import explained
from dpsql.planning.plan_values import Alternative
from dpsql.planning.remarks import remarks
from dpsql.planning.text import plan_rows, plan_text
from dpsql.policy import Policy
from dpsql.surfaces import commands

POLICY = """
dataset = "wards-1"
[budget]
epsilon = 4.0
delta = 1e-9
pure_epsilon = 1.0
[tables.stays]
unit = "person"
max_rows_per_unit = 10
[tables.stays.columns]
ward = { values = ["A", "B", "C"], nulls = false }
month = { values = [1, 2, 3, 4], nulls = false }
cost = { lower = 0, upper = 500 }
age = { lower = 0, upper = 99, step = 1 }
[tables.visits]
unit = "row"
expected_rows = 20000
[tables.visits.columns]
ward = { values = ["A", "B", "C"], nulls = false }
visits = { lower = 0, upper = 30, step = 1, nulls = false }
"""
TABLES = (
    "CREATE TABLE stays (person INTEGER, ward VARCHAR, month INTEGER, cost DOUBLE, age INTEGER); "
    "CREATE TABLE visits (ward VARCHAR, visits INTEGER)"
)
PERSONS = (
    "CREATE VIEW by_ward AS SELECT ward AS station, COUNT(*) AS stays, AVG(cost) AS mean_cost FROM stays "
    "WHERE ward <> 'X' GROUP BY ward ORDER BY stays; SELECT COUNT(DISTINCT person) AS persons FROM stays; "
    "SELECT month, COUNT(*) AS n FROM stays GROUP BY month"
)
LONG = "number_of_visits_to_a_ward_by_number_of_visits"
PLANS = {
    "persons": (PERSONS, {"epsilon": 1, "delta": 1e-9}),
    "pure": ("SELECT ward, COUNT(*) AS n, AVG(visits) AS mean FROM visits GROUP BY ward", {"epsilon": 0.5}),
    "medians": ("SELECT ward AS w, MEDIAN(age) AS half FROM stays GROUP BY w", {"epsilon": 1, "delta": 1e-9}),
    "uncertified": ("SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward", {"max_error": 50}),
    "rho": ("SELECT COUNT(*) AS n FROM visits", {"rho": 0.01}),
    "long names": (f"SELECT dp_ranges(visits), COUNT(*) AS {LONG} FROM visits GROUP BY ALL", {"epsilon": 0.5}),
    "wide characters": (
        f'SELECT ward AS "{"病" * 30}", COUNT(*) AS "{"院" * 30}" FROM visits GROUP BY 1',
        {"epsilon": 1},
    ),
    "estimated": (
        "SELECT ward, visits, COUNT(*) AS n FROM visits GROUP BY ward, visits",
        {"epsilon": 0.5, "method": "adaptive"},
    ),
}
# Technical terms, and how the same screen says what they mean.
TERMS = {
    r"differential privacy": r"(?m)^(epsilon|rho \(zCDP\)) ",
    r"\bepsilon\b": r"(?m)^epsilon +with or without one (row|unit's rows) an outcome",
    r"\bdelta\b": r"(?m)^delta +beyond that factor",
    r"\(pure\)": r"pure: the part for releases with epsilon alone",
    r"\brho\b": r"(?m)^rho \(zCDP\) +how far",
    r"\bbudget\b": r"(?m)^budget +what all releases together may cost",
    r"\bpure budget\b": r"pure: the part for releases with epsilon alone",
    r"\bGaussian budget\b": r"Gaussian: the part for",
    r"\bnoise\b": r"random whole numbers \(",
    r"std error": r"(?m)^std error +\w",
    r"95 % within": r"(?m)^95 % within  half-width of the (about )?95 % confidence interval",
    r"\bgain\b": r"(?m)^gain +2x: asking each column separately",
    r"~[\d±]": r"(?m)^~ +estimated as if each group had",
    r"\bdepends\b": r"(?m)^depends |(?m:^std error +depends on the data)",
    r"expected_rows": r"(?m)^expected_rows  the policy's public guess",
    r"\bunits?\b": r"(?m)^unit +the person",
    r"\bcells?\b": r"(?m)^cell ",
    r"\bstrateg(y|ies)\b": r"(?m)^strategy ",
    r"\bmeasurements?\b": r"(?m)^measurement ",
    r"\bblocks?\b": r"(?m)^block ",
    r"K-norm": r"(?m)^K-norm noise ",
    r"stand-ins?\b": r"(?m)^stand-ins ",
    r"\bsensitivity\b": r"(?m)^sensitivity ",
    r"certifi|objective|lower bound|one by one|budget account|mechanism|workload|\bgap\b": r"^\b$",  # never used
}


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    database = duckdb.connect()
    database.execute(TABLES)
    ledger = tmp_path_factory.mktemp("text") / "a.ledger"
    with dpsql.connect(database, policy=Policy.parse(POLICY), ledger=ledger) as connection:
        yield settled(connection)


def unexplained(text: str) -> list[str]:
    both = f"{text}\n{' '.join(text.split())}"  # as lines, and unwrapped
    return [term for term, meaning in TERMS.items() if re.search(term, both) and not re.search(meaning, both)]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_fits_explains_its_words_and_is_the_same_everywhere(
    con: dpsql.Connection, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sql, options = PLANS[name]
    plan = con.plan(sql, **options)  # type: ignore[arg-type]
    text = str(plan)
    for shown in (text, plan.explain()):
        assert [line for line in shown.splitlines() if columns(line) > 80] == []
    assert unexplained(text) == []
    commands.explained(plan, argparse.Namespace(json=False, explain=False))
    assert capsys.readouterr().out == f"{text}\n"
    assert "\n".join(row[0] for row in explained(plan, "text").rows) == text
    # A page sets the same words in its own lines.
    page = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", plan_html(plan))).split())
    said = plan_text(plan)
    for part in [*said.facts, *said.words, *said.rows]:
        assert " ".join(" ".join(part).split()) in page


def columns(line: str) -> int:
    return sum(1 + (ord(char) >= 0x4E00) for char in line)


def test_a_word_that_is_not_explained_is_found() -> None:
    assert unexplained("Guarantee  differential privacy at epsilon 1 (pure)") == [
        "differential privacy",
        r"\bepsilon\b",
        r"\(pure\)",
    ]


def test_titles_are_the_aliases_of_the_statement(con: dpsql.Connection) -> None:
    rows = [line.split()[:3] for line in str(con.plan(PERSONS, epsilon=1, delta=1e-9)).splitlines()]
    for title in (["by_ward", "stays", "station"], ["by_ward", "mean_cost", "station"], ["q2", "n", "month"]):
        assert title in rows
    long = str(con.plan(PLANS["long names"][0], epsilon=0.5))
    assert re.search(r"(?m)^q1 +numb\w*\.\.\.\w*visits +visits\.\.\.its_to +496 ", long)


def test_notes_stand_in_the_order_of_what_they_may_change(con: dpsql.Connection) -> None:
    plan = con.plan(PERSONS, epsilon=1, delta=1e-9)
    plan = replace(plan, notes=(Note("a hint"), *plan.notes))
    found = remarks(plan, plan_rows(plan))
    classes = [note.changes for _, note in found]
    assert classes == sorted(classes)
    assert set(classes) == {BIAS, ERROR, HINT}
    assert found[0] == (
        "Limits",
        "at most 10 rows of each person in stays count, the others are cut; in sums and averages values of cost "
        "below 0 count as 0, and above 500 as 500; WHERE compares values as they are. How many rows this concerns "
        "is not measured, and no error below includes it.",
    )
    assert "'X' is no declared value of ward" in str(plan)


def test_the_share_of_the_budget_is_said(con: dpsql.Connection) -> None:
    text = str(con.plan("SELECT COUNT(*) FROM visits", epsilon=0.25))
    assert "Cost       uses 25 % of the pure budget, once for the whole batch\n" in text
    too_much = str(con.plan("SELECT COUNT(*) FROM visits", epsilon=6, delta=1e-9))
    assert "of the Gaussian budget, once for the whole batch; this is more than" in " ".join(too_much.split())


def test_names_that_differ_still_do_where_they_are_cut(con: dpsql.Connection) -> None:
    names = [f"up_to_{word}_visits_in_a_ward" for word in ("four", "nine")]
    sql = ";".join(f"CREATE VIEW {name} AS SELECT ward, COUNT(*) AS {LONG} FROM visits GROUP BY ward" for name in names)
    lines = str(con.plan(sql, epsilon=0.5)).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("up_to_")]
    assert len(set(shown)) == 2
    assert all("..." in name for name in shown)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        ("", "but the pure budget has less than that left"),
        ("max_epsilon_per_release = 1", "but that is more than the policy lets one release cost"),
    ],
)
def test_another_way_that_cannot_be_paid_says_what_it_lacks(cap: str, said: str, tmp_path: Path) -> None:
    database = duckdb.connect()
    database.execute(TABLES)
    policy = Policy.parse(POLICY.replace("[tables.stays]", f"{cap}\n[tables.stays]", 1))
    with dpsql.connect(database, policy=policy, ledger=tmp_path / "a.ledger") as con:
        plan = con.plan("SELECT COUNT(*) FROM visits", epsilon=0.5)
        dear = con.plan("SELECT COUNT(*) FROM visits", epsilon=1.5)
        other = Alternative(dear.charge, "identity", plan.error / 9, dear.affordable)
        text = " ".join(str(replace(plan, payment=replace(plan.payment, alternatives=(other,)))).split())
    assert f"Other way epsilon 1.5 (pure), paid from the pure budget: 0.33 times the error, {said}" in text
