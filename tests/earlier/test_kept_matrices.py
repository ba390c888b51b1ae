"""Integer matrices as text: what goes in comes out, and damage is seen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpsql.earlier import kept
from dpsql.earlier.kept import fits, from_text, to_text


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
    monkeypatch.setattr(kept, "MOST_ENTRIES", 4)
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
