"""`dpsql glossary` says what words mean, and the first screens need few of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpsql
from dpsql.extensions.reports.glossary import meanings
from dpsql.surfaces.cli import main

ROOT = Path(__file__).parents[3]
POLICY = ROOT / "sql_examples" / "rand_hie.toml"
BATCH = "SELECT plan, COUNT(*) AS n FROM rand_hie GROUP BY plan"
# Words of the mathematics: of what is measured instead, and of the ledger's own units.
INNER = re.compile(r"\b(mu|purses?|cells?|identity|optimal|row-mixing|strategy|measurements|matrix)\b", re.IGNORECASE)


def test_words_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glossary"]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^\| \*\*(\w+)", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(meanings()) == len(rows) > 40
    for word in rows:
        assert f"\n{word}" in f"\n{out}"
    assert "](" not in out
    assert main(["glossary", "cell", "MU"]) == 0
    assert re.findall(r"^[a-z, ]+(?=:)", capsys.readouterr().out, re.MULTILINE) == ["cell", "mu, rho"]


def test_an_unknown_word_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glossary", "cel"]) == 1
    assert "the glossary has no word 'cel'; " in capsys.readouterr().err


@pytest.mark.parametrize("budget", [{"epsilon": 0.5}, {"epsilon": 0.5, "delta": 1e-9}])
def test_first_screens_speak_of_budgets_and_groups(tmp_path: Path, budget: dict[str, float]) -> None:
    places = {"ledger": tmp_path / "l.ledger", "releases": tmp_path / "r.duckdb"}
    with dpsql.connect(policy=POLICY, **places) as con:
        plan = con.plan(BATCH, **budget)
        con.run(plan)
        shown = f"{plan}\n{con.budget}"
        assert not INNER.search(shown.replace("How it is measured", "")), shown
        assert "budget" in shown
        assert "dpsql glossary" in shown
        assert {"Cells", "Strategy", "Charge"} <= set(plan.explain().split())
