"""Statements that DuckDB answers as they stand: without noise, and as ``con.run`` answers them at a huge epsilon."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from helpers import HEADER, filled, policy_of
from noiseless import Pipeline, rows_of
from plain_statements import POLICY, ROWS, Asked, asked

import dpsql
from dpsql.strategies import selection

Row = Sequence[Any]


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, dt.datetime) and value.time() == dt.time():
        return value.date()
    return float(value) if isinstance(value, int | float | Decimal) else value


def _same(mine: Any, wanted: Any, kind: str, close: float) -> bool:
    if wanted is None:  # over nothing
        return abs(mine) <= close if kind == "sum" else kind in {"any", "rank"} or mine is None
    if isinstance(wanted, float) and isinstance(mine, float):
        return math.isclose(mine, wanted, rel_tol=close, abs_tol=close)
    return bool(mine == wanted)


def difference(statement: Asked, mine: Sequence[Row], wanted: Sequence[Row], close: float = 1e-9) -> str:
    """What is not DuckDB's in an answer; empty where all is."""
    at = statement.keys
    ours = {tuple(map(_plain, row[:at])): list(map(_plain, row[at:])) for row in mine}
    theirs = {tuple(map(_plain, row[:at])): list(map(_plain, row[at:])) for row in wanted}
    if len(ours) != len(mine):
        return "two rows have the same keys"
    if statement.ordered and list(ours) != list(theirs):
        return f"rows in the order {list(ours)}, not {list(theirs)}"
    for keys, row in theirs.items():
        found = ours.pop(keys, None)
        if found is None:
            return f"no row for {keys}"
        if not all(_same(*cells, close) for cells in zip(found, row, statement.kinds, strict=False)):
            return f"{found} for {row} at {keys}"
    # Declared groups without a row.
    more = [keys for keys, row in ours.items() if statement.count is None or abs(row[statement.count]) > close]
    return f"rows for {more}" if more else ""


def _statements(seed: str, count: int, *, small: bool = False) -> list[Asked]:
    return [asked(random.Random(f"{seed} {number}"), small=small) for number in range(count)]


@pytest.fixture(scope="module")
def clinic() -> Pipeline:
    con = duckdb.connect()
    con.execute(ROWS)
    return Pipeline.of(policy_of(POLICY), con)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 5))])
def test_without_noise(clinic: Pipeline, part: int) -> None:
    for statement in _statements(f"exact {part}", 200 if part else 3):
        wanted = clinic.connection.execute(statement.text).fetchall()
        found = difference(statement, rows_of(clinic.results(statement.text)[-1])[1], wanted)
        assert not found, (found, statement.text)


# A statement whose denominator is 0 by itself, in a group or in all; what it is over nothing cannot be noise.
NOTHING = (
    Asked("SELECT g AS x0, AVG(i) FILTER (WHERE g = 'a') AS y0 FROM visits GROUP BY g", 1, ("null",)),
    Asked("SELECT g AS x0, MEDIAN(q) FILTER (WHERE g = 'b') AS y0, COUNT(*) AS n FROM visits GROUP BY g", 1, ("null",)),
    Asked("SELECT SUM(q) / NULLIF(COUNT_IF(q > 2 AND q < 1), 0) AS y0 FROM visits", 0, ("null",)),
    Asked("SELECT MAX(abs(i)) AS y0, COUNT(*) AS n FROM visits WHERE i IS NULL", 0, ("null",)),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("clinic") / "c.duckdb"
    with filled(found) as con:
        con.execute(ROWS)
    # A pure account holds a few million, so that each statement has a ledger of its own.
    found.with_suffix(".toml").write_text(HEADER.replace("epsilon = 4.0", "epsilon = 1e6") + POLICY)
    return found


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.long
def test_at_an_epsilon_of_a_million(file: Path, tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so little noise all strategies are good enough."""
    monkeypatch.setattr(selection, "WORK", 1.0)
    statements = [*NOTHING, *_statements(f"near {part}", 120, small=True)] if part else NOTHING[:3]
    measured = 0
    with duckdb.connect(str(file), read_only=True) as beside:
        wanted = [beside.execute(statement.text).fetchall() for statement in statements]
    for number, statement in enumerate(statements):
        folder = tmp_path / str(number)
        folder.mkdir()
        con = dpsql.connect(file, policy=file.with_suffix(".toml"), ledger=folder / "c.ledger")
        try:
            plan = con.plan(statement.text, epsilon=10**6, tolerance=1.0)
        except dpsql.SQLError as error:  # conditions that exclude each other
            if re.search("there is nothing to measure|is NULL for all data", str(error)):
                continue
            raise
        release = con.run(plan)
        (result,) = (release[name] for name in release)
        shown = [name for name in result.columns if not name.endswith(BESIDE)]
        columns = {name: result.column(name) for name in result.columns}
        mine = list(zip(*(columns[name] for name in shown), strict=True))
        found = difference(statement, mine, wanted[number], CLOSE) or _loose(statement, columns, shown, wanted[number])
        assert not found, (found, statement.text)
        measured += 1
        if measured == 100:
            return
    assert not part


BESIDE, CLOSE = ("_stderr", "_low", "_high"), 1e-3


def _loose(statement: Asked, columns: dict[str, Sequence[Any]], shown: list[str], wanted: Sequence[Row]) -> str:
    """Which interval does not hold its number, or is wide although the number is known; empty where none."""
    theirs = {tuple(map(_plain, row[: statement.keys])): row[statement.keys :] for row in wanted}
    for at in range(len(columns[shown[0]])):
        row = theirs.get(tuple(_plain(columns[name][at]) for name in shown[: statement.keys]))
        for name, kind, value in zip(shown[statement.keys :], statement.kinds, row or (), strict=False):
            if value is None or f"{name}_low" not in columns:
                continue
            number, error, low, high = (_ordinal(columns[f"{name}{end}"][at]) for end in ("", *BESIDE))
            if not low - CLOSE <= number <= high + CLOSE:
                return f"{name} is {number} in [{low}, {high}]"
            if kind != "rank" and error > CLOSE:
                return f"{name} has the error {error}"
    return ""


def _ordinal(value: Any) -> float:
    return value.toordinal() if isinstance(value, dt.date) else float(value)
