"""This module writes what a benchmark measured into benchmarks/results/, from which results_page.py renders RESULTS.md.

A benchmark that was called with ``--write`` hands its figures to ``write``. A record has the fields ``FIELDS``, all of
them text. A figure that is measured again takes the place of the one of the same key, and says in ``stood`` what that
one was. Earlier figures are in the history of the file.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
FIELDS = ("key", "figure", "goal", "verdict", "value", "why", "command", "machine", "date", "commit", "stood")
VERDICTS = ("met", "missed", "no goal")


@dataclass(frozen=True)
class Figure:
    """One figure: ``figure`` says what was measured, ``value`` what came out, in units; ``why`` it misses its goal.

    ``key`` is its anchor in RESULTS.md. A figure has a goal and is held to it (``met``), or has neither. Without a
    ``why`` a figure that misses its goal again does so for the reason that its record has.
    """

    key: str
    figure: str
    value: str
    goal: str = ""
    met: bool | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.key):
            raise ValueError(f"the key {self.key!r} is not of lower-case words with hyphens between them")
        if bool(self.goal) != (self.met is not None):
            raise ValueError(f"{self.key}: a figure has a goal and met=True or met=False, or neither")

    @property
    def verdict(self) -> str:
        """One of ``VERDICTS``."""
        return "no goal" if self.met is None else "met" if self.met else "missed"


def requested(arguments: list[str]) -> bool:
    """Whether ``--write`` is among the arguments, which it is taken out of."""
    if "--write" not in arguments:
        return False
    arguments.remove("--write")
    return True


def read(name: str) -> list[dict[str, str]]:
    """The records of ``results/NAME.json``, none if there is no such file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def write(name: str, figures: Sequence[Figure]) -> None:
    """Put ``figures`` into ``results/NAME.json``, each in place of the one of its key or behind the others."""
    records = {record["key"]: record for record in read(name)}
    for figure in figures:
        records[figure.key] = _record(figure, records.get(figure.key))
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(list(records.values()), indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _record(figure: Figure, before: Mapping[str, str] | None) -> dict[str, str]:
    values = {
        "key": figure.key,
        "figure": figure.figure,
        "goal": figure.goal,
        "verdict": figure.verdict,
        "value": figure.value,
        "why": "" if figure.met is not False else figure.why or (before or {}).get("why") or "not looked into",
        "command": _command(),
        "machine": _machine(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "stood": "not measured before"
        if before is None
        else f"{before['value']} ({before['date']}, {before['commit']})",
    }
    return {field: values[field] for field in FIELDS}


def _command() -> str:
    script = Path(sys.argv[0]).resolve()
    return shlex.join(["python", script.relative_to(ROOT).as_posix(), *sys.argv[1:]])


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    libraries = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "numpy", "scipy"))
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}, "
        f"{libraries}, load {os.getloadavg()[0]:.1f}"
    )


def _commit() -> str:
    """The commit that is checked out, with ``+`` where files that matter differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "dpsql", "benchmarks/*.py")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")
