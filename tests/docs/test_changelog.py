"""CHANGELOG.md: the form of Keep a Changelog, Security first, one line a change, and short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = ["Security", "Added", "Changed", "Deprecated", "Removed", "Fixed"]
MOST_BYTES, LONGEST = 20_000, 250


def faults(text: str) -> list[str]:
    """What of a change log is not in the form."""
    found = [f"{len(text.encode())} bytes, at most {MOST_BYTES}"] if len(text.encode()) > MOST_BYTES else []
    head, *versions = re.split(r"^## ", text, flags=re.MULTILINE)
    if not head.startswith("# Changelog\n") or not versions:
        found.append("a title and a version are missing")
    for version in versions:
        title, _, body = version.partition("\n")
        if not re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - (unreleased|\d{4}-\d\d-\d\d)", title):
            found.append(f"no version and date: {title}")
        _, *kinds = re.split(r"^### ", body, flags=re.MULTILINE)
        names = [kind.partition("\n")[0] for kind in kinds]
        if names != [name for name in KINDS if name in names]:
            found.append(f"{title}: {', '.join(names)} are not in the order {', '.join(KINDS)}")
        for kind in kinds:
            changes = [line for line in kind.split("\n")[1:] if line]
            found += [f"a change is one line: {line}" for line in changes if not re.match(r"- \S", line)]
            found += [f"{len(line)} letters: {line}" for line in changes if len(line) > LONGEST]
    return found


def test_the_change_log_is_in_the_form() -> None:
    assert faults(CHANGELOG) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("### Added\n", "### Security\n"),
        ("### Fixed\n", "### Mended\n"),
        ("\n- ", "\n- first\n  second\n- "),
        ("## [", "## "),
        ("### Added\n", "### Added\n- " + "long " * 60 + "\n"),
        ("### Added\n", "### Added\n" + "- a change\n" * 2_000),
    ],
)
def test_what_is_not_in_the_form_is_noticed(old: str, new: str) -> None:
    assert faults(CHANGELOG.replace(old, new, 1)) != []
