"""kill -9 at each step of a release, several times each: nothing goes uncharged, nothing acknowledged is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from assurance_world import drive

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")


PARTS = 8


def check(folder: Path, most: int, times: int, part: int = 0, parts: int = 1) -> dict[str, int]:
    found = drive("kill_at_each_step", folder, most, times, part, parts)
    assert found["wrong"] == []
    assert found["kills"] == times * found["chosen"]
    # The kills met charges that were never released, and others that were: the steps lie on both sides.
    assert 0 < found["charged_only"] < found["kills"]
    return dict(found)


@pytest.mark.long
def test_a_kill_at_any_step_leaves_a_whole_ledger(tmp_path: Path, record_assurance) -> None:  # type: ignore[no-untyped-def]
    found = check(tmp_path, 12, times=1)
    record_assurance("faults.kill_9", {"injected": found["kills"], "survived": found["kills"]})


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_every_step_leaves_a_whole_ledger(tmp_path: Path, record_assurance, part: int) -> None:  # type: ignore[no-untyped-def]
    """Every step there is, each in one of the parts."""
    most = 100_000
    found = check(tmp_path, most, times=1, part=part, parts=PARTS)
    assert found["steps"] < most
    record_assurance(f"faults.kill_9_long#{part}", {"injected": found["kills"], "survived": found["kills"]})
