"""Whatever a public entry point is given, it raises nothing outside the tree of ``dpsql.Error``."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import pytest
from generated_calls import Calls

import dpsql


def faults(folder: Path, seed: int, number: int, seconds: float) -> tuple[int, list[str]]:
    """How many of ``number`` calls were made within ``seconds``, and what they raised that is no error of ours."""
    calls, found = Calls(folder, seed), []
    began = time.monotonic()
    for made in range(number):
        if time.monotonic() - began > seconds:
            return made, found
        name, call = calls.call()
        try:
            call()
        except dpsql.Error as error:
            if not str(error):
                found.append(f"{type(error).__name__} says nothing\n  {name:.400}")
        except Exception as error:  # noqa: BLE001 - what this test looks for
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"{type(error).__name__}: {error!s:.200} at {where.filename}:{where.lineno}\n  {name:.400}")
    return number, found


def test_three_hundred_calls(tmp_path: Path) -> None:
    _, found = faults(tmp_path, 20, 300, 60)
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 2])
def test_thousands_of_calls(tmp_path: Path, seed: int) -> None:
    made, found = faults(tmp_path, 100 + seed, 2000, 3600)
    assert not found, "\n".join(found)
    assert made == 2000
