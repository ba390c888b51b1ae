"""The table of docs/assurance.md: every threat has a row, every named test exists, and the page says what was noted."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from assurance_page import not_run, page
from threats import IDS, THREATS

TESTS = Path(__file__).parents[2]


def test_every_threat_has_its_row_in_order() -> None:
    assert tuple(threat.id for threat in THREATS) == IDS


@cache
def functions(path: str) -> frozenset[str]:
    """The names of a test module's functions."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("threat", THREATS, ids=lambda threat: threat.id)
def test_every_named_test_exists(threat) -> None:  # type: ignore[no-untyped-def]
    assert threat.tests
    for test in threat.tests:
        path, _, name = test.partition("::")
        assert name in functions(path), test


def test_the_page_says_what_was_noted() -> None:
    ran = "tests/extensions/audit/test_audit.py::test_the_order_of_a_release"
    notes = [
        {"ran": ran, "outcome": "passed", "seconds": 1.0},
        {"ran": "tests/x.py::test_broken", "outcome": "failed", "seconds": 1.0},
        {"figure": "neighbouring pairs tried", "amount": 1200, "test": ran},
        {"figure": "neighbouring pairs tried", "amount": 34, "test": ran},
        {"figure": "mutants killed", "amount": 1, "threat": "k ignored", "mutant": "k_ignored", "by": "audit: x"},
    ]
    figures = {
        "faults.kill_9": {"injected": 40, "survived": 40},
        "races.releases": {"run": 7, "granted": 35, "fitting": 35},
    }
    text = page(notes, figures, quick=True)
    for part in (
        "1 tests passed, 1 failed", "`tests/x.py::test_broken`", "| neighbouring pairs tried | 1,234 |",
        "| faults injected | 40 |", "35 of 35", "| k ignored | k ignored | audit: x |", "| kill 9 | 40 | 40 |",
        "**These tests did not run:**", "- `tests/privacy/test_noise.py::test_every_draw_is_an_integer`",
        "| threats whose tests all ran and passed | 0 of 33 |",
        "did not run | tables behind a policy, once by the ledger",
    ):  # fmt: skip
        assert part in text, part


def test_a_test_that_is_skipped_has_not_run() -> None:
    every = [f"tests/{test}" for threat in THREATS for test in threat.tests]
    ran = {f"{name}[case]": {"outcome": "passed"} for name in every}
    assert not_run(ran) == []
    ran[f"{every[0]}[case]"]["outcome"] = "skipped"
    del ran[f"{every[-1]}[case]"]
    assert not_run(ran) == sorted({every[0], every[-1]})
