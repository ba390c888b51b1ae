"""Small databases with policies that allow local releases, and repeatable answers in place of entropy: for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import filled

import dpsql
from dpsql.privacy.response import Response, offsets_from

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 1
local_epsilon = 40
[tables.visits]
unit = "row"
rows_public = true
expected_rows = 400
[tables.visits.columns]
id = { public = true }
state = { values = ["NY", "NJ", "CA"], other = true }
age = { lower = 0, upper = 9 }
visits = { lower = 0, upper = 4, nulls = false }
cost = { values = [0.5, 1.0, 2.5], nulls = false }
smoker = { nulls = false }
day = { lower = 2020-01-01, upper = 2020-01-05 }
note = {}
[tables.weights]
public = true
key = ["id"]
[tables.weights.columns]
weight = { lower = 0, upper = 5 }
ward = { values = ["a", "b"], nulls = false }
[tables.sides]
public = true
key = ["age"]
[tables.sides.columns]
side = { values = ["young", "old"], nulls = false }
"""

TABLES = """
CREATE TABLE visits (id BIGINT, state VARCHAR, age INTEGER, visits TINYINT, cost DOUBLE, smoker BOOLEAN, day DATE,
                     note VARCHAR);
CREATE TABLE weights (id BIGINT, weight INTEGER, ward VARCHAR);
CREATE TABLE sides AS SELECT i::INTEGER AS age, CASE WHEN i < 5 THEN 'young' ELSE 'old' END AS side
    FROM range(8) t(i);
"""


TYPES = ("BIGINT", "VARCHAR", "INTEGER", "TINYINT", "DOUBLE", "BOOLEAN", "DATE", "VARCHAR")


class Bytes:
    """Bytes of a Philox generator under a fixed seed."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.Philox(seed))

    def __call__(self, size: int, /) -> bytes:
        return self.generator.bytes(size)


def repeatable(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same lies in every run."""
    source = Bytes(seed)
    monkeypatch.setattr(Response, "sample", lambda self, count: offsets_from(self, count, source))


def truthful(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lies: what is released is what was read."""
    monkeypatch.setattr(Response, "sample", lambda self, count: np.zeros(count, dtype=np.int64))


def records(rows: int, seed: int) -> list[tuple[Any, ...]]:
    """Rows of visits: with NULLs, undeclared states, ages outside the domain."""
    draw = np.random.default_rng(seed)
    states = ["NY", "NY", "NY", "NJ", "CA", "TX", "WA", None]
    out = []
    for i in range(rows):
        age = [None, 12, -1, *range(10)][int(draw.integers(13))]
        out.append(
            (
                *(i, states[int(draw.integers(8))], age, int(draw.integers(5)), float(draw.choice([0.5, 1.0, 2.5]))),
                *(bool(draw.integers(2)), f"2020-01-0{1 + int(draw.integers(5))}" if draw.integers(6) else None, "x"),
            )
        )
    return out


def world(tmp_path: Path, rows: int = 400, seed: int = 7, policy: str = POLICY) -> dpsql.Connection:
    """A connection to a database of ``rows`` visits; weights for ids up to rows - 20."""
    path = tmp_path / "visits.duckdb"
    with filled(path) as connection:
        connection.execute(TABLES)
        if rows:
            columns = [list(column) for column in zip(*records(rows, seed), strict=True)]
            listed = ", ".join(f"unnest(?::{kind}[])" for kind in TYPES)
            connection.execute(f"INSERT INTO visits SELECT {listed}", columns)
        connection.execute(
            "INSERT INTO weights SELECT i, i % 3, CASE WHEN i % 4 = 0 THEN 'a' ELSE 'b' END FROM range(?) t(i)",
            [max(0, rows - 20)],
        )
    (tmp_path / "visits.toml").write_text(policy, encoding="utf-8")
    return dpsql.connect(path, policy=tmp_path / "visits.toml")
