"""Processes that race for the last of a budget with whole releases: exactly what fits is granted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from assurance_world import drive

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.long
@pytest.mark.parametrize("processes", [(2, 5)], ids=str)
def test_exactly_the_grants_that_fit(tmp_path: Path, processes: tuple[int, ...], record_assurance: Any) -> None:
    found = drive("race", tmp_path, *processes)
    for race in found:
        # Five fit; each is a charge and a release, and the name of the data set and the mark of its file are links too.
        assert (race["granted"], race["links"]) == (5, "12"), race
    record_assurance("races.releases", {"run": len(found), "granted": 5 * len(found), "fitting": 5 * len(found)})


@pytest.mark.long
def test_exactly_the_grants_that_fit_among_two_to_eight(tmp_path: Path, record_assurance: Any) -> None:
    found = drive("race", tmp_path, *range(2, 9))
    assert [race["granted"] for race in found] == [5] * 7
    record_assurance("races.releases_long", {"run": 7, "granted": 35, "fitting": 35})
