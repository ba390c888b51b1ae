"""The artefacts of a release: a wheel made from the sdist, installed where nothing else is, and used from there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import dpsql

ROOT = Path(__file__).parents[2]
LARGEST = 3_000_000  # bytes of the wheel
# What a person may have made beside the examples; none of it may leave the machine.
PRIVATE = ("sql_examples/rand_hie.ledger", "sql_examples/rand_hie.releases.duckdb", "sql_examples/data/mine.xlsx")
POLICY = """
dataset = "visits-1"
[budget]
epsilon = 2
[tables.visits]
source = "visits.csv"
unit = "row"
[tables.visits.columns]
ward = { values = ["a", "b"], type = "VARCHAR", nulls = false }
"""

pytestmark = pytest.mark.surfaces


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints, in an environment without the checkout."""
    settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=settings | variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_wheel_is_built_installed_and_used(tmp_path: Path) -> None:
    """One test: side by side, each worker would build and install a wheel of its own."""
    sdist = sdist_of_a_used_checkout(tmp_path / "source")
    wheel = wheel_of(sdist)
    check_contents(sdist, wheel)
    programs = installed(wheel, tmp_path / "environment")
    for use in (use_the_demo, use_a_plan_and_a_server):
        folder = tmp_path / use.__name__
        folder.mkdir()
        use(programs, folder)


def sdist_of_a_used_checkout(folder: Path) -> Path:
    """The sdist of a copy of the checkout in which somebody has worked."""
    copy = folder / "dpsql"
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "dist", "site", "__pycache__", "*.egg-info", ".*_cache")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    for name in PRIVATE:
        (copy / name).write_text("private", encoding="utf-8")
    build = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", build, copy.parent, cwd=copy).splitlines()[-1]
    return copy.parent / name


def wheel_of(sdist: Path) -> Path:
    """The wheel that pip makes of the sdist, in isolation: nothing is at hand but the build backend."""
    build = ("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", sdist.parent, sdist)
    run(sys.executable, "-m", *build, cwd=sdist.parent)
    (found,) = sdist.parent.glob("*.whl")
    return found


def installed(wheel: Path, folder: Path) -> Path:
    """The programs of an environment that has the wheel and what it needs."""
    folder.mkdir()
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[serve]", cwd=folder)
    return folder / "bin"


def check_contents(sdist: Path, wheel: Path) -> None:
    """The artefacts have what is ours, and nothing else."""
    assert sdist.name == f"dpsql-{dpsql.__version__}.tar.gz"
    assert wheel.name == f"dpsql-{dpsql.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < LARGEST
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        facts = archive.read(f"dpsql-{dpsql.__version__}.dist-info/METADATA").decode("utf-8")
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "dpsql").rglob("*.py")}
    assert modules | {"dpsql/py.typed", "dpsql/glossary.md", "dpsql/examples/data/rand_hie.parquet"} <= set(inside)
    assert {name.partition("/")[0] for name in inside} == {"dpsql", f"dpsql-{dpsql.__version__}.dist-info"}
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
    source = {member.name.partition("/")[2] for member in members}
    assert {"Makefile", "tests/conftest.py", "docs/glossary.md", "SECURITY.md", "setup.py"} <= source
    for name in PRIVATE:
        assert not any(Path(name).name in one for one in (*inside, *source))
    assert "Author: the dpsql authors" in facts
    assert "License-Expression: Apache-2.0" in facts


def use_the_demo(programs: Path, folder: Path) -> None:
    """It spends from a ledger of its own, in a folder of its own, and finds data and glossary in the wheel."""
    assert run(programs / "dpsql", "--version", cwd=folder) == f"dpsql {dpsql.__version__}\n"
    found = json.loads(run(programs / "dpsql", "demo", "--quiet", "--json", cwd=folder))
    assert found["run"]["budget"]["spent"] == pytest.approx(1, abs=1e-9)
    assert [path.relative_to(folder) for path in folder.rglob("*.ledger")] == [Path("demo/rand_hie.ledger")]
    where = run(programs / "python", "-c", "import dpsql; print(dpsql.__file__)", cwd=folder)
    assert where.startswith(str(programs.parent))
    assert run(programs / "dpsql", "glossary", "epsilon", cwd=folder).startswith("epsilon")


def use_a_plan_and_a_server(programs: Path, folder: Path) -> None:
    """Over a policy and rows of the user's."""
    import psycopg  # of the extra serve-dev

    (folder / "visits.toml").write_text(POLICY, encoding="utf-8")
    (folder / "visits.csv").write_text("ward\n" + "a\n" * 30 + "b\n" * 12, encoding="utf-8")
    (folder / "password").write_text("a long password", encoding="utf-8")
    sql = "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"
    plan = run(programs / "dpsql", "plan", "--policy", "visits.toml", "--epsilon", "0.5", "--sql", sql, cwd=folder)
    assert "epsilon 0.5 (pure)" in plan
    assert re.search(r"^q1 +n +ward ", plan, re.MULTILINE)
    account = ("ann", "visits.toml", "--epsilon", "1", "--password-file", "password")
    run(programs / "dpsql", "analyst", "add", *account, cwd=folder)
    command = [programs / "dpsql", "serve", "visits.toml", "--port", "0", "--json"]
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            said = ""
            while not said.endswith("}\n"):
                line = server.stdout.readline()
                assert line, server.stderr.read()
                said += line
            signed = {
                "host": "127.0.0.1",
                "port": json.loads(said)["port"],
                "user": "ann",
                "password": "a long password",
            }
            with psycopg.connect(**signed, dbname="visits-1", autocommit=True) as con:
                con.execute("SET dpsql.epsilon = 0.5")
                rows = con.execute(sql).fetchall()
            assert [row[0] for row in rows] == ["a", "b"]
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=120)
        finally:
            if server.poll() is None:
                server.kill()
