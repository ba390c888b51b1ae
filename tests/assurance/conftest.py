"""``record_assurance(name, value)``: figures for the table of docs/assurance.md, written where DPSQL_ASSURANCE says."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Record = Callable[[str, object], None]


@pytest.fixture
def record_assurance() -> Record:
    """Adds a figure to the JSON object in the file named by DPSQL_ASSURANCE; without the variable, nothing.

    Names are unique among tests; tests of several processes may write at once.
    """

    def record(name: str, value: object) -> None:
        target = os.environ.get("DPSQL_ASSURANCE")
        if not target:
            return
        handle = os.open(Path(target), os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(handle, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            found = json.loads(text) if text else {}
            found[name] = value
            file.seek(0)
            file.write(json.dumps(found, indent=2, sort_keys=True) + "\n")
            file.truncate()

    return record
