"""Batches that are too large are refused from public input alone: before any row is read, without a charge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from assurance_world import make

import dpsql
from dpsql.engines import duckdb as engine

POLICY = """
dataset = "wide-1"
[budget]
epsilon = 1
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
""" + "".join(f'c{i} = {{ lower = 0, upper = 999, type = "INTEGER", nulls = false }}\n' for i in range(20))

COUNT = "SELECT count(*) FROM t WHERE "
BATCHES = {
    "characters of a batch": ("-- " + "x" * 8_000_000, "at most 8,000,000 are read: split it"),
    "characters of a statement": (COUNT + "c0 = 1 OR " * 10_001 + "c0 = 2", "at most 100,000 are read"),
    "a list of 100,000": (COUNT + f"c0 IN ({', '.join(map(str, range(100_000)))})", "at most 100,000 are read"),
    "statements": ("SELECT 1;" * 20_001, "more than 20,000 statements: split it"),
    "parentheses": (COUNT + "(" * 43 + "c0 = 1" + ")" * 43, "nest deeper than 24"),
    "NOTs": (COUNT + "NOT " * 97 + "c0 = 1", "24 prefix operators in a row"),
    "signs": (COUNT + "c0 = " + "- " * 60 + "1", "24 prefix operators in a row"),
    "a deep sum": (f"SELECT sum({' + '.join(['c0'] * 400)}) FROM t", "too many to compute for each row; split it"),
    "a cube": (f"SELECT count(*) FROM t GROUP BY CUBE ({', '.join(f'c{i}' for i in range(16))})", "at most 32,768"),
    "groups": ("SELECT c0, c1, c2, count(*) FROM t GROUP BY c0, c1, c2", "1,000,000,000 groups; at most 200,000"),
    "cells": (
        COUNT + " AND ".join(f"c{i} > {i}" for i in range(20)) + "; "
        + "; ".join(COUNT + f"c{i} = {j}" for i in range(20) for j in range(50)),
        "sets of rows apart",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_that_is_too_large_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, record_assurance: Any
) -> None:
    batch, message = BATCHES[name]
    make(tmp_path, POLICY)
    (tmp_path / "t.csv").write_text(",".join(f"c{i}" for i in range(20)) + "\n")
    con = dpsql.connect(policy=tmp_path / "p.toml")
    monkeypatch.setattr(engine, "_scan", lambda *_: pytest.fail("a row was read"))
    with pytest.raises(dpsql.Error) as caught:
        con.run(batch, 0.5)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert len(text) < 600
    assert not con.ledger_path.exists()
    record_assurance(f"limits.{name}", {"refused": 1})
