"""``import dpsql`` is light: what is heavy comes with the first name that needs it."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dpsql

HEAVY = ("numpy", "scipy", "duckdb", "sqlglot", "IPython", "pandas", "pyarrow", "matplotlib")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_it_imports_nothing_heavy():
    code = f"import sys, dpsql; print(*[name for name in {HEAVY} if name in sys.modules])"
    assert run(code) == []


@pytest.mark.long
def test_every_public_name_is_there_when_it_is_asked_for():
    code = "import dpsql; print(*[name for name in dpsql.__all__ if getattr(dpsql, name) is None])"
    assert run(code) == []
    assert set(dpsql.__all__) <= set(dir(dpsql))
    assert run("from dpsql import *; print(connect.__module__, Plan.__module__)") == [
        "dpsql.driver.opening",
        "dpsql.planning.plan",
    ]


def test_rooms_are_attributes():
    rooms = ("bounds", "policy", "strategy", "workload")
    named = ", ".join(f"dpsql.{room}.__name__" for room in rooms)
    assert run(f"import dpsql; print({named})") == [f"dpsql.{room}" for room in rooms]
    for room in rooms:
        assert getattr(dpsql, room) is importlib.import_module(f"dpsql.{room}")


def test_a_name_that_it_does_not_have():
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        _ = dpsql.conect  # type: ignore[attr-defined]


@pytest.mark.long
def test_theorems_that_no_plan_needs_come_on_demand():
    loaded = "print(*[name for name in sys.modules if name.startswith('dpsql.extensions.papers.')])"
    assert run(f"import sys, dpsql.planning.plan; {loaded}") == []
    assert "dpsql.extensions.papers.profiles" in run(f"import sys; from dpsql.bounds import dominates; {loaded}")
    with pytest.raises(AttributeError, match="has no attribute 'svd'"):
        _ = dpsql.bounds.svd


def test_the_commands_import_no_view_of_a_plan_and_nothing_that_one_plan_does_not_ask_for():
    later = (
        "driver.drafting",
        "earlier",
        "planning.adaptive",
        "planning.sparse",
        "running.answer_free",
        "running.discovery",
        "running.run",
        "strategy.choose.by_source",
        "planning.explain",
        "planning.suggestions",
        "planning.what_if",
        "driver.cursor",
        "driver.schedules",
        "bounds",
    )
    named = f"[name for name in {later} if 'dpsql.' + name in sys.modules]"
    assert run(f"import sys, dpsql.surfaces.commands; print(*{named})") == []


def test_the_commands_import_of_scipy_what_sparse_matrices_need():
    code = (
        "import sys, scipy.sparse; own = {*sys.modules}; import dpsql.surfaces.commands; "
        "print(*[name for name in sys.modules if name.startswith('scipy.') and name not in own])"
    )
    assert run(code) == []


@pytest.mark.parametrize("face", ["bounds", "workload"])
def test_a_face_tells_type_checkers_the_homes_of_the_names_that_come_on_demand(face):
    module = importlib.import_module(f"dpsql.{face}")
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    homes = {a.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert homes == {name: f"dpsql.extensions.papers.{home}" for name, home in module._PAPERS.items()}
    assert set(homes) < set(module.__all__) == set(module.__all__) & set(dir(module))
    for name, home in homes.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
