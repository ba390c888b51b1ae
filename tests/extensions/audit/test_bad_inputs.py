"""Refused before any SQL ran: statements bent and planted at random, against an engine that records its calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bad_inputs
import duckdb
import expression_language as language
import pytest

import dpsql
from dpsql.errors import PolicyError, SQLError
from dpsql.sql import parse, table_of, understand

COUNTS = (60, pytest.param(300, marks=pytest.mark.long))


class Recording:
    """An engine that knows the column types by heart and notes whoever asks it to scan."""

    def __init__(self) -> None:
        self.scans: list[str] = []

    def schemas(self, sources: Sequence[Any]) -> dict[str, dict[str, str]]:
        types = {**language.TYPES, "secret": "INTEGER", "secret_text": "VARCHAR", "secret_real": "DOUBLE"}
        return {source.name: types for source in sources}

    def scan(self, asked: Any) -> Any:
        self.scans.append(asked.name)
        raise AssertionError("a bad input reached the engine")


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    listed = "\n".join(f"{column} = {{}}" for column in language.TYPES if column not in ("flag", "i8"))
    policy = dpsql.Policy.parse(
        f'dataset = "bad-1"\n[budget]\nepsilon = 1000.0\n[tables.t]\nunit = "row"\n[tables.t.columns]\n{listed}\n'
        "flag = { values = [false, true] }\ni8 = { lower = -128, upper = 127 }\n"
    )
    made = dpsql.connect(duckdb.connect(), policy=policy, ledger=tmp_path / "bad.ledger")
    made._holdings.engine = Recording()
    return made


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.long
def test_bad_inputs_are_refused_before_any_sql(
    con: dpsql.Connection, assurance: Callable[..., None], count: int
) -> None:
    engine: Any = con._holdings.engine
    tables = {"t": table_of(con.policy.tables["t"], con.schemas()["t"])}

    def admitted(sql: str) -> bool:
        try:
            understand(parse(sql), con.policy, tables)
        except SQLError:
            return False
        return True

    rng = random.Random(20261)
    held_frame = {"i32": [1]}  # a Python variable is no table
    wanted = list(bad_inputs.bent(rng, admitted))
    planted = bad_inputs.planted(rng)
    seen: set[str] = set()
    pieces: set[str] = set()
    tried = 0
    while len(seen) < count:
        bad = wanted.pop() if wanted else next(planted)
        tried += 1
        assert tried < 3 * count, "too few random statements are admitted without their forbidden piece"
        # Only what is admitted without the piece tells that the piece is what is refused.
        if bad.sql in seen or not admitted(bad.admitted):
            continue
        caught: dpsql.Error | None = None
        try:
            con.run(bad.sql, epsilon=1)
        except (SQLError, PolicyError) as error:
            caught = error
        assert caught is not None, bad.sql
        message = str(caught)
        assert message.isprintable(), bad.sql
        assert len(message) < 800, bad.sql
        seen.add(bad.sql)
        pieces.add(bad.piece)
    assert engine.scans == []
    assert not con.ledger_path.exists()
    assert held_frame
    every = {piece for kind in bad_inputs.LEAVES.values() for piece in kind} | set(bad_inputs.BENT)
    # Most of them, where there are inputs for so many.
    assert len(pieces) > min(0.9 * len(every), 0.5 * count), sorted(every - pieces)
    assurance("bad inputs refused before any SQL", len(seen))
    assurance("forbidden pieces planted", len(pieces))


@pytest.mark.long
def test_three_thousand_bad_inputs(con: dpsql.Connection, assurance: Callable[..., None]) -> None:
    rng = random.Random(7)
    engine: Any = con._holdings.engine
    planted = bad_inputs.planted(rng)
    tables = {"t": table_of(con.policy.tables["t"], con.schemas()["t"])}
    refused: set[str] = set()
    for _ in range(3_000):
        bad = next(planted)
        with pytest.raises((SQLError, PolicyError)):
            understand(parse(bad.sql), con.policy, tables)
        refused.add(bad.sql)
    assert engine.scans == []
    assurance("bad inputs refused by the front end", len(refused))
