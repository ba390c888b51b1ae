"""Random batches through the whole pipeline without noise, against DuckDB running the users' own statements.

See ``batches`` for what the oracle's texts change: declared groups, clamped sums, and that alone.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from batch_texts import batch
from batches import JOINS, POLICY, UNITS, Statement, filled, prepared, with_units
from helpers import policy_of
from hypothesis import Phase, given, reject, seed, settings
from hypothesis import strategies as st
from noiseless import Pipeline, rows_of

from dpsql.errors import OperationalError, SQLError
from dpsql.measure.region_sql import region
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.values import Some

# Rows, the share of values outside the domain, the share of NULLs.
TABLES = {
    "empty_": (0, 0.0, 0.0),
    "single": (1, 0.3, 0.2),
    "clean": (12, 0.0, 0.0),
    "small": (40, 0.25, 0.15),
    "large": (150, 0.15, 0.1),
    "nothing": (6, 0.0, 1.0),
    "wild": (25, 0.8, 0.2),
}


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Tables of adversarial rows and, beside them, the views that the oracle reads."""
    connection = duckdb.connect()
    rng = random.Random("rows")
    for name, (rows, outside, nulls) in TABLES.items():
        for statement in [*filled(name, rows, outside, nulls, rng), prepared(name, name)]:
            connection.execute(statement)
    for statement in with_units(rng) + [prepared(name, source) for name, source in JOINS.items()]:
        connection.execute(statement)
    return Pipeline.of(policy_of("".join(POLICY.format(name=name) for name in TABLES) + UNITS), connection)


def _text(statements: list[Statement]) -> str:
    return ";\n".join(s.user if s.name.startswith("q") else f"CREATE VIEW {s.name} AS {s.user}" for s in statements)


def _wanted(pipeline: Pipeline, statements: list[Statement]) -> list[tuple[list[str], list[tuple[Any, ...]]]]:
    """What DuckDB answers; a statement can read those before it."""
    found = []
    cursor = pipeline.connection.cursor()
    for statement in statements:
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE {statement.name} AS {statement.oracle}")
        rows = cursor.execute(f"SELECT * FROM {statement.name}").fetchall()
        found.append(([column[0] for column in cursor.description], rows))
    cursor.close()
    return found


def _plain(value: Any) -> Any:
    """A value as it is compared: numbers as doubles, -0 as 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    return float(value) + 0.0


def _rank(row: tuple[Any, ...]) -> list[tuple[bool, str]]:
    """A key to sort rows by, the same for numbers that differ in the last digits."""
    return [(value is None, f"{value:.8g}" if isinstance(value, float) else str(value)) for value in row]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def _check(statement: Statement, ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    mine = [tuple(map(_plain, row)) for row in ours]
    wanted = [tuple(map(_plain, row)) for row in theirs]
    if not statement.ordered:
        mine.sort(key=_rank)
        wanted.sort(key=_rank)
    assert len(mine) == len(wanted), statement
    for row, expected in zip(mine, wanted, strict=True):
        assert all(map(_same, row, expected)), (statement, row, expected)


def compare(pipeline: Pipeline, statements: list[Statement], *, errors: bool) -> None:
    """Assert that every result is DuckDB's; with ``errors``, that their columns leave the users' as they are."""
    wanted = _wanted(pipeline, statements)
    text = _text(statements)
    results = pipeline.results(text)
    for statement, result, (names, theirs) in zip(statements, results, wanted, strict=True):
        found, ours = rows_of(result)
        assert [name.lower() for name in found] == [name.lower() for name in names], statement
        _check(statement, ours, theirs)
    if errors:
        for statement, plain, full in zip(statements, results, pipeline.results(text, errors=True), strict=True):
            held = {name: values for name, _, values in full.columns}
            columns = [held[name] for name, _, _ in plain.columns]
            _check(statement, list(zip(*columns, strict=True)), rows_of(plain)[1])


@dataclass
class Tally:
    """Batches that were held against DuckDB, as the users' texts, and how many were refused as too large."""

    checked: set[str] = field(default_factory=set)
    refused: int = 0


def _run(pipeline: Pipeline, part: int, count: int) -> Tally:
    """``count`` batches of hypothesis, the same for a part every time."""
    tally = Tally()

    @seed(part)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate])
    @given(st.randoms(use_true_random=True))
    def answered_as_by_duckdb(rng: random.Random) -> None:
        # Two tables at most, so that statements meet in one scan; or the joins of one table.
        tables = list(JOINS) if rng.random() < 0.05 else rng.sample(list(TABLES), 2)
        statements = batch(rng, tables)
        text = _text(statements)
        try:
            compare(pipeline, statements, errors=rng.random() < 0.1)
        except SQLError as error:
            # Of all that is generated nothing is refused but what is too large; hypothesis draws another one.
            if "are planned" not in str(error):
                raise
            tally.refused += 1
            reject()
        except Exception as error:
            error.add_note(text)
            raise
        tally.checked.add(text)

    answered_as_by_duckdb()
    return tally


def _holds(pipeline: Pipeline, part: int, count: int) -> None:
    tally = _run(pipeline, part, count)
    # Drawn twice is checked once; a refused batch is none.
    assert len(tally.checked) >= count - 2
    assert tally.refused <= count // 10


@pytest.mark.long
@pytest.mark.parametrize("part", range(3))
def test_thirty_batches(pipeline: Pipeline, part: int) -> None:
    _holds(pipeline, part, 10)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_two_hundred_batches(pipeline: Pipeline, part: int) -> None:
    _holds(pipeline, 1000 + part, 50)


@pytest.mark.long
def test_batches_too_large_are_no_checked_batches(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(range(1000))

    def every_other(*_: Any, **__: Any) -> None:
        if next(drawn) % 2:
            raise SQLError("9 corners, at most 8 are planned: split the batch")

    monkeypatch.setattr("test_differential.compare", every_other)
    tally = _run(pipeline, 1, 4)
    assert (len(tally.checked), tally.refused) == (4, 3)


# -- the comparison has power --------------------------------------------------------------------


def _null_is_a_value(axis: Any, values: Any) -> str:
    return region(replace(axis, null_region=0) if isinstance(axis, LineAxis) else axis, values)


# Faults of one line, as a pipeline could have them: where they are, and what stands there instead.
FAULTS: dict[str, tuple[str, Any]] = {
    "x <= 5 cut below 5": ("dpsql.workloads.expr.lines.Line.above", Line.below),
    "NULL rows in the first region": ("dpsql.measure.scan_sql.region", _null_is_a_value),
    "no upper clamp": ("dpsql.measure.scan_sql._at_least", lambda *_: Some(())),
    "sums about the middle of the bounds": ("dpsql.workloads.expr.measures.Measure.mid", Fraction(0)),
}


FAULTY = 15  # batches of a part in which each of the faults is seen


@pytest.mark.long
def test_the_same_batches_without_a_fault_hold(pipeline: Pipeline) -> None:
    _holds(pipeline, 7, FAULTY)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.few("x <= 5 cut below 5")
def test_faults_are_seen(pipeline: Pipeline, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    # A number past its bounds is in the answer, or past what the scan's words hold.
    with pytest.raises((AssertionError, OperationalError)):
        _run(pipeline, 7, FAULTY)
