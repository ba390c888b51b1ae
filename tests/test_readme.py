"""The README's Python runs as it stands, from where a reader would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    examples = tmp_path / "sql_examples"
    (examples / "data").mkdir(parents=True)
    shutil.copy(ROOT / "sql_examples" / "rand_hie.toml", examples)
    shutil.copytree(ROOT / "sql_examples" / "data", examples / "data", dirs_exist_ok=True)
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
    assert "by_plan" in done.stdout
