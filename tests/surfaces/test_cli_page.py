"""docs/cli.md names every command, format and exit code that there is."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from dpsql.surfaces import formats
from dpsql.surfaces.cli import parser

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(found: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something, with its parser."""
    nested = [action for action in found._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        for word, child in action.choices.items():
            yield from commands(child, f"{name} {word}".strip())
    if not nested:
        yield name, found


def test_every_command_is_on_the_page_and_no_other() -> None:
    table = PAGE.split("## Commands")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `dpsql ([a-z ]+?)(?: [A-Z\[-].*?)?` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(name for name, _ in commands(parser()))


def test_every_format_is_on_the_page() -> None:
    for name in (*formats.FORMATS, "duckdb"):
        assert f"| `{name}`" in PAGE


def test_options_that_the_page_names_exist() -> None:
    known = {option for _, found in commands(parser()) for action in found._actions for option in action.option_strings}
    # The table of options has those of cells, too, and tests/surfaces/test_option_table.py holds it to them.
    page = re.sub(r"<!-- options: .*<!-- /options -->", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page))
    assert named <= known, named - known
    assert {"--format", "--quiet", "--timeout", "--release", "--json"} <= named


def test_every_exit_code_is_in_the_help_and_on_the_page() -> None:
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == ["0", "1", "2", "130"]
    assert "exit codes: 0 done, 1 refused or failed" in parser().format_help()


def test_every_help_text_fits_and_ends_well() -> None:
    for name, found in commands(parser()):
        assert found.description, name
        for action in found._actions:
            assert action.help, (name, action.dest)
            assert not action.help.endswith("."), (name, action.dest)
