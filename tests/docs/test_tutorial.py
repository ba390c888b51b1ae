"""The tutorial, followed to the letter in a new environment: install, notebook, private picture."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import snippets

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
pytestmark = [pytest.mark.surfaces, pytest.mark.long]

# What git keeps, as far as an installation needs it.
COPIED = ("dpsql", "sql_examples", "docs", "README.md", "LICENSE", "pyproject.toml", "setup.py", "MANIFEST.in")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the repository in which nothing was run."""
    folder = tmp_path / "dpsql"
    folder.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", "*.ledger*", "*.releases.duckdb*")
    for name in COPIED:
        held = ROOT / name
        if held.is_dir():
            shutil.copytree(held, folder / name, symlinks=True, ignore=left_out)
        else:
            shutil.copy(held, folder / name)
    return folder


def test_a_new_user_comes_to_a_private_picture(clone: Path) -> None:
    blocks = snippets(PAGE.read_text(encoding="utf-8"))
    (install,) = [block.text for block in blocks if "fresh" in block.marks]
    cells = [block.text for block in blocks if block.language == "python"]
    # Without a network: what dpsql needs is found where the tests found it, and JupyterLab is for looking.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PYTHONPATH": os.pathsep.join(site.getsitepackages()),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads the negation: 0 is without isolation
        "PIP_IGNORE_INSTALLED": "0",
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "IPYTHONDIR": str(clone.parent / "ipython"),
    }
    script = re.sub(r" jupyterlab$", "", install, flags=re.MULTILINE).replace("python3 ", f"{sys.executable} ")
    assert 'pip install ".[notebook]"' in script
    notebook = clone / "tutorial_cells.py"
    notebook.write_text(CELLS.format(cells=cells), encoding="utf-8")
    script += "\npython tutorial_cells.py\n"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert (clone / "tutorial" / "bin" / "dpsql").exists()
    assert list((clone / "tutorial" / "lib").rglob("dpsql-*.dist-info"))
    assert "image/png" in done.stdout
    assert "Spent epsilon 0.5" in done.stdout
    assert (clone / "sql_examples" / "rand_hie.ledger").exists()


# A kernel of the new environment runs the cells, as Jupyter does.
CELLS = """
import nbformat
from nbclient import NotebookClient

book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in {cells!r}])
NotebookClient(book, timeout=900, kernel_name="python3", allow_errors=True).execute()
for cell in book.cells:
    for output in cell.outputs:
        if output.output_type == "error":
            print("error:", output.ename)
            assert output.ename == "SQLError", output
        else:
            print(sorted(output.get("data", {{}})), output.get("data", {{}}).get("text/plain", output.get("text", "")))
"""
