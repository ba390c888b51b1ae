"""What people look for in a repository is there, agrees with the code, and invents nobody."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from lowest_versions import constraints

import dpsql

ROOT = Path(__file__).parents[2]
PAGES = ("SECURITY.md", "CODE_OF_CONDUCT.md", "AGENTS.md", "llms.txt", "CONTRIBUTING.md")
FORMS = sorted(set(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
INPUTS = {"textarea", "input", "dropdown", "checkboxes"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def loaded(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # "on" stays a word


def test_the_version_stands_in_one_place_and_is_cited() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    cited = loaded(ROOT / "CITATION.cff")
    assert cited["version"] == dpsql.__version__
    assert cited["authors"] == PROJECT["authors"] == [{"name": "the dpsql authors"}]
    assert cited["license"] == PROJECT["license"]
    assert cited["cff-version"] == "1.2.0"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", read(name))
    assert links or name == "CODE_OF_CONDUCT.md"
    for target, anchor in links:
        assert (ROOT / target).is_file(), target
        heads = re.findall(r"^#+ (.+)$", read(target), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^a-z0-9-]", "", head.lower().replace(" ", "-")) for head in heads}


@pytest.mark.parametrize("name", [*PAGES, "CITATION.cff", *(str(form.relative_to(ROOT)) for form in FORMS)])
def test_no_address_is_invented(name: str) -> None:
    assert not re.search(r"https?://|www\.|\w@\w", read(name))


@pytest.mark.parametrize("name", [*PAGES, ".github/workflows/kernel.yml"])
def test_every_target_of_make_is_there(name: str) -> None:
    commands = re.findall(r"(?:`|run: )make ([a-z -]+)", read(name))
    assert {word for command in commands for word in command.split()} <= TARGETS


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one(form: Path) -> None:
    held = loaded(form)
    assert {"name", "description", "body"} <= set(held)
    asked = [part for part in held["body"] if part["type"] != "markdown"]
    assert asked
    assert {part["type"] for part in asked} <= INPUTS
    names = [part["id"] for part in asked]
    assert len(set(names)) == len(names)
    assert all(part["attributes"]["label"] for part in asked)
    assert any(part.get("validations", {}).get("required") == "true" for part in asked)


def test_the_kernel_is_tested_on_each_python_and_with_the_lowest_versions() -> None:
    jobs = loaded(ROOT / ".github/workflows/kernel.yml")["jobs"]
    pythons = jobs["tests"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert any("make test-kernel" in step.get("run", "") for step in jobs["tests"]["steps"])
    assert any("make test-lowest" in step.get("run", "") for step in jobs["lowest"]["steps"])


def test_each_dependency_has_a_lower_bound() -> None:
    found = constraints(PROJECT)
    assert {"duckdb", "sqlglot", "numpy", "scipy"} <= {line.partition("==")[0] for line in found}
    with pytest.raises(ValueError, match="numpy<3 has no lower bound"):
        constraints({**PROJECT, "dependencies": ["numpy<3"]})
