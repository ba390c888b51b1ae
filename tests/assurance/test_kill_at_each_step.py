"""kill -9 at the steps of a release: nothing goes uncharged, nothing acknowledged is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from assurance_world import drive, turns

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")


def check(folder: Path, most: int) -> dict[str, int]:
    found = drive("kill_at_each_step", folder, most)
    assert found["wrong"] == []
    assert found["kills"] == found["chosen"]
    # The kills met charges that were never released, and others that were: the steps lie on both sides.
    assert 0 < found["charged_only"] < found["kills"]
    return dict(found)


@pytest.mark.long
def test_a_kill_at_any_step_leaves_a_whole_ledger(tmp_path: Path, record_assurance) -> None:  # type: ignore[no-untyped-def]
    found = check(tmp_path, 12)
    record_assurance("faults.kill_9", {"injected": found["kills"], "survived": found["kills"]})


@pytest.mark.long
def test_a_kill_on_either_side_of_every_write_leaves_a_whole_ledger(tmp_path: Path, record_assurance) -> None:  # type: ignore[no-untyped-def]
    found = check(tmp_path, 0)
    assert found["steps"] > found["chosen"] > 12
    record_assurance("faults.kill_9_long", {"injected": found["kills"], "survived": found["kills"]})


def test_steps_on_either_side_of_a_change() -> None:
    assert turns("aaabbcccc") == [1, 3, 4, 5, 6, 9]
