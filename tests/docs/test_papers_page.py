"""docs/papers.md: functions and tests that it names exist, nothing published is missing, figures are measured ones."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from dpsql import bounds, strategy, workload
from dpsql.registry import extensions, methods

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| system")
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[2])})
FIGURES = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")


def test_there_are_rows_of_five_cells() -> None:
    assert len(ROWS) > 30
    assert {len(row) for row in ROWS} == {5}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_named_exists(name: str) -> None:
    if name.startswith("method="):
        assert name.split('"')[1] in (*strategy.CATALOGUE, *methods())
        return
    module, _, function = name.rpartition(".")
    assert hasattr(importlib.import_module(f"dpsql.{module}"), function)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_tests_exist_and_figures_are_those_of_the_benchmarks(row: list[str]) -> None:
    places = re.findall(r"`([^`]+)`", row[3])
    assert places
    assert all((ROOT / "tests" / place).is_file() for place in places)
    pairs = re.findall(r"(?<![\w.])[\d.e+]+ / [\d.e+]+", row[4])
    assert row[4] == "-" or re.search(r"\d", row[4])
    assert [pair for pair in pairs if pair not in FIGURES] == []


def test_nothing_of_the_papers_is_missing() -> None:
    (papers,) = (one for one in extensions() if one.name == "papers")
    published = {f'method="{name}"' for name in (*papers.strategies, *papers.methods)}
    published |= {f"bounds.{name}" for name in bounds._PAPERS} | {f"workload.{name}" for name in workload._PAPERS}
    assert published - set(NAMES) == set()
