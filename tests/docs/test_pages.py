"""Every snippet of every page runs as it stands, and prints what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import difference, shape, snippets

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.surfaces
@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_a_page_runs_as_it_stands(page: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).parent / "page_run.py"), str(ROOT / page)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_blocks_are_found_with_what_is_said_of_them() -> None:
    page = "a\n<!-- setup\nx = 1\n-->\n\n<!-- noisy -->\n```text\n1\n```\n"
    page += "- b\n\n    ```python\n    x\n    ```\n<!-- other -->\n"
    found = snippets(page)
    assert [(s.language, s.text, list(s.marks)) for s in found] == [
        ("setup", "x = 1", []),
        ("text", "1", ["noisy"]),
        ("python", "x", []),
    ]
    assert [page.split("\n")[s.first : s.last] for s in found] == [["x = 1"], ["1"], ["    x"]]


@pytest.mark.parametrize(
    ("shown", "printed", "marks", "agrees"),
    [
        ("n 12", "n 12  \n", {}, True),
        ("n 12", "n 13", {}, False),
        ("n   12\n-----", "n -1,301.5\n------", {"noisy": ""}, True),
        ("n 12", "m 12", {"noisy": ""}, False),
        ("n 100", "n 104", {"near": ""}, True),
        ("n 100", "n 106", {"near": ""}, False),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, marks: dict[str, str], agrees: bool) -> None:
    assert (difference(shown, printed, marks) == "") == agrees


def test_numbers_lose_their_digits_and_nothing_else() -> None:
    assert shape("±35.4 of 6,960 cells\n---  ----") == "±# of # cells\n-- --"
