"""Hints on how to install an extra: a command that works for how dpsql was installed."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dpsql.common.extras import install_command

ROOT = Path(__file__).parents[2]


class Installed:
    requires = (
        "numpy>=1.26",
        'matplotlib>=3.8; extra == "plot"',
        "pyarrow>=15 ; extra == 'plot'",
        'mcp; extra == "mcp"',
    )

    def __init__(self, installer: str) -> None:
        self.installer = installer

    def read_text(self, name: str) -> str | None:
        return self.installer if name == "INSTALLER" else None


@pytest.mark.parametrize(
    ("installer", "command"), [("pip\n", "python -m pip"), ("uv", "uv pip"), ("", "python -m pip")]
)
def test_the_command_names_the_packages_of_the_extra(
    monkeypatch: pytest.MonkeyPatch, installer: str, command: str
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(installer))
    assert install_command("plot") == f"{command} install 'matplotlib>=3.8' 'pyarrow>=15'"


def test_pipx_and_copies_that_were_never_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed("pip"))
    (tmp_path / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command("mcp") == "pipx inject dpsql 'mcp'"

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("mcp") == "the packages that pyproject.toml lists for the extra mcp"


def test_nothing_installs_dpsql_by_its_name_from_an_index() -> None:
    """Nobody owns the name there until a release is published."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "sql_examples").glob("*.ipynb")]
    by_name = re.compile(r"pip3? install [^`\n&]*(?<![./\w])dpsql(\[|['\"]?\s|$)")
    named = [path.name for path in [*texts, *(ROOT / "dpsql").rglob("*.py")] if by_name.search(path.read_text())]
    assert not named
