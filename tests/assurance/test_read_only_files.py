"""A file system that may not be written: nothing is charged, nothing is lost, and the error says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from assurance_world import HERE, PACKAGE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs access rights of POSIX")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder whose parents another user may enter, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="dpsql-test-"))
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.long
def test_a_user_without_write_access(open_place: Path, record_assurance: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{HERE}"}
    done = subprocess.run(
        [sys.executable, "-c", "import assurance_world as w; w.read_only()", str(open_place)],
        capture_output=True, text=True, env=environment, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held, held_after, new, new_after, file, file_after = map(json.loads, done.stdout.splitlines())
    for number, text in (held, file):
        assert number == 0
        assert text.startswith("0.25 ledger "), text
        assert "cannot be written; give this user write access" in text
    assert new[1].startswith("0.0 ledger "), new
    assert "cannot be created (Permission denied); choose a directory" in new[1]
    assert held_after == new_after == file_after == [0, ""]
    record_assurance("faults.read_only", {"injected": 3, "survived": 3})
