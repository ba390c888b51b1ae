"""What git has can be checked out on every system, and holds nothing that a person made in passing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
LINK = "120000"
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp")
# Caches, results of a build, and files that dpsql writes beside a policy.
PASSING = re.compile(
    r"(^|/)(\.tmp|tmp|__pycache__|\.\w+_cache|\.ipynb_checkpoints|\.hypothesis|build|dist|site|[^/]*\.egg-info)/"
    r"|\.(pyc|orig|rej|swp|tmp|log|ledger|ledger-journal|claims|analysts|whl)$|~$|\.releases\.duckdb(\.lock)?$|\.audit\.jsonl$"
)
# What Windows has no file of: devices by any extension, characters with a meaning, a dot or a space at the end.
REFUSED = re.compile(r"^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)|[<>:\"\\|?*\x00-\x1f]|[. ]$", re.IGNORECASE)


def faults(files: dict[str, str]) -> list[str]:
    """What is wrong with a tree, given as the mode of each file by its path."""
    found = [f"{path} is a symbolic link" for path, mode in files.items() if mode == LINK]
    found += [f"{path} was made in passing" for path in files if PASSING.search(path)]
    for path in files:
        refused = any(REFUSED.search(part) for part in PurePosixPath(path).parts)
        found += [f"{path} has no name on Windows"] if refused else []
        picture = path.lower().endswith(PICTURES) and not path.startswith("docs/images/")
        found += [f"{path} is a picture outside docs/images"] if picture else []
    folded: dict[str, str] = {}
    twins = [(path, folded.setdefault(path.lower(), path)) for path in files]
    return found + [f"{path} and {other} are one file on Windows" for path, other in twins if path != other]


def test_the_tree_is_clean() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = subprocess.run(
        ["git", "ls-files", "-s", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    entries = [entry.partition("\t") for entry in listed.split("\0") if entry]
    files = {path: facts.split()[0] for facts, _, path in entries}
    assert "pyproject.toml" in files
    assert faults(files) == []


@pytest.mark.parametrize(
    ("path", "mode", "fault"),
    [
        ("dpsql/examples", LINK, "is a symbolic link"),
        (".tmp/notes.txt", "100644", "was made in passing"),
        ("sql_examples/rand_hie.ledger", "100644", "was made in passing"),
        ("docs/.ipynb_checkpoints/a.md", "100644", "was made in passing"),
        ("docs/minimax.png", "100644", "is a picture outside docs/images"),
        ("tests/aux.py", "100644", "has no name on Windows"),
        ("docs/What?.md", "100644", "has no name on Windows"),
        ("readme.md", "100644", "and README.md are one file on Windows"),
    ],
)
def test_what_is_not_clean_is_reported(path: str, mode: str, fault: str) -> None:
    (line,) = faults({"README.md": "100644", "docs/images/a.png": "100644", path: mode})
    assert line == f"{path} {fault}"
