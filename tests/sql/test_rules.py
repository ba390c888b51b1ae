"""The rules of SQL: the examples in their files, the list in the documents, and the places of what users write."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
from unit_rows import policy_of

from dpsql.planning.explain import stages_of
from dpsql.sql.rules import RULES

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"
POLICY = policy_of(
    """
[tables.people]
unit = "person"
key = ["person"]
max_rows_per_unit = 1
[tables.people.columns]
age = { lower = 0, upper = 99 }
ward = { values = ["a", "b"] }
[tables.visits]
unit = "person"
references = { person = "people.person" }
max_rows_per_unit = 3
[tables.visits.columns]
cost = { lower = 0, upper = 9 }
"""
)
SCHEMAS = {
    "people": {"person": "INTEGER", "age": "INTEGER", "ward": "VARCHAR"},
    "visits": {"person": "INTEGER", "cost": "INTEGER"},
}


def stage(name: str, sql: str) -> None:
    """Print what a rule makes of a statement; a tree in one line."""
    made = dict(stages_of(sql, POLICY, SCHEMAS))[name]
    print(re.sub(r"(?<=\() | (?=\))", "", " ".join(made.split())) if made.startswith("SELECT") else made)


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_examples_hold(name: str) -> None:
    module = importlib.import_module(f"dpsql.sql.rules.{name}")
    result = doctest.testmod(module, globs={"stage": stage}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert not result.failed


def test_documents_list_the_rules() -> None:
    lines = [f"| {rule.name} | {rule.does} | {rule.requires} |" for rule in RULES]
    assert "\n".join(lines) in DOCS.read_text(encoding="utf-8")
