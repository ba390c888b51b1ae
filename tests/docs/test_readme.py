"""The README is short, and its commands run as they stand, after ``make demo`` and over its one ledger."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from page_run import commands

import dpsql
from dpsql.surfaces.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_demo_and_its_server_leave_the_ledger_to_the_policy() -> None:
    """A ledger of another name would be a second budget for the same rows."""
    recipes = re.findall(
        r"^demo[\w-]*: env\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(recipes) == 2
    assert not any("--ledger" in recipe or "--directory" in recipe for recipe in recipes)


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert README.count("\n") <= 110


@pytest.mark.long
def test_the_commands_of_the_readme_run_after_the_demo_over_one_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = tmp_path / "sql_examples"
    shutil.copytree(ROOT / "sql_examples", examples, ignore=shutil.ignore_patterns("rand_hie.ledger*", "*.releases.*"))
    (tmp_path / "dpsql").mkdir()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(dpsql, "__file__", str(tmp_path / "dpsql" / "__init__.py"))
        assert main(["demo", "--quiet"]) == 0
    capsys.readouterr()

    (block,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    printed = {command: output for command, output in commands(block.rstrip("\n")) if command.startswith("dpsql ")}
    plan, run = (shlex.split(command)[1:] for command in printed)
    assert main(plan) == 0
    assert capsys.readouterr().out.split() == next(iter(printed.values())).split()
    assert main([*plan, "--explain"]) == 0
    (times,) = re.findall(r"at most (\S+ times\s+the least) with Laplace\s+noise", README)
    assert " ".join(times.split()) in " ".join(capsys.readouterr().out.split())
    assert main(run) == 0

    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "n_stderr" in done.stdout

    ((epsilon, view),) = re.findall(r"SET dpsql.epsilon = (\S+);.*?=> (CREATE VIEW .*?;)", README, re.DOTALL)
    with dpsql.connect(policy="sql_examples/rand_hie.toml", label="demo") as con:
        cursor = con.cursor().execute(view.replace("rand_hie->", ""), epsilon=epsilon)
        assert cursor.release is not None
        assert cursor.release.cost > 0
        assert con.sql("FROM free_care").columns[0] == "n"
    assert [path.name for path in tmp_path.rglob("*.ledger")] == ["rand_hie.ledger"]
