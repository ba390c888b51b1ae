"""Integer matrices as text: what goes in comes out, and damage is seen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpsql.running.earlier import stored_measurements
from dpsql.running.earlier.stored_measurements import fits, from_text, to_text


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_what_goes_in_comes_out(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-(2**62), 2**62, (rows, width)) * rng.integers(0, 2, (rows, width))
    for held in (matrix, sparse.csr_array(matrix), sparse.csc_array(matrix)):
        found = from_text(json.loads(json.dumps(to_text(held))))
        assert found.shape == (rows, width)
        assert found.dtype == np.int64
        assert np.array_equal(found.toarray(), matrix)


def test_the_cap_counts_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_measurements, "MOST_ENTRIES", 4)
    assert fits(np.eye(4, dtype=np.int64))
    assert not fits(sparse.csr_array(np.eye(5, dtype=np.int64)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shape", [4, 3]),
        ("shape", [3, 2]),
        ("ends", to_text(np.eye(2, dtype=np.int64))["ends"]),
        ("columns", to_text(-np.eye(3, dtype=np.int64))["values"]),
        ("values", "no words"),
        ("values", to_text(np.eye(2, dtype=np.int64))["values"]),
    ],
)
def test_damage_is_seen(name: str, value: object) -> None:
    body = {**to_text(np.eye(3, dtype=np.int64)), name: value}
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_text(body)


def test_what_versions_before_kept_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of 8 bytes, and their hash."""
    rows = sparse.csr_array(np.array([[1, 0, 3], [0, -(2**40), 0]]))
    narrow = to_text(rows)
    with monkeypatch.context() as before:
        before.setattr(stored_measurements, "_WIDTHS", ("<i8",))
        wide = to_text(rows)
    assert wide != narrow
    assert np.array_equal(from_text(wide).toarray(), from_text(narrow).toarray())
    # As version 2 hashed it.
    scale, said = np.array([1.0, 0.5]), "4cf6c52b4e5fee4d69d3d04b4150455c51e793ff86a726ff015d2ab1c5615243"
    assert stored_measurements.is_of({"cells": 2, "workload": said}, rows, scale)
    assert stored_measurements.is_of({"workload": said}, rows, scale)  # of a horizon
    for cells, mark in ((3, said), (2, stored_measurements.workload_hash(rows, scale))):
        assert not stored_measurements.is_of({"cells": cells, "workload": mark}, rows, scale)


def test_the_hash_tells_integers_of_different_widths_apart() -> None:
    scale = np.ones(1)
    rows = [np.array([row]) for row in ([1, 0], [257, 0], [1, 1], [0, 1], [2**40 + 1, 0], [-1, 0])]
    assert len({stored_measurements.workload_hash(row, scale) for row in rows}) == len(rows)
    assert stored_measurements.workload_hash(rows[0], scale) == stored_measurements.workload_hash(
        sparse.csc_array(rows[0]).astype(np.int32), scale
    )
