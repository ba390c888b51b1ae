"""Whatever a public entry point is given, it raises nothing outside the tree of ``dpsql.Error``."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from generated_calls import Calls

import dpsql


def faults(folder: Path, seed: int, number: int, seconds: float) -> tuple[int, list[str]]:
    """How many of ``number`` calls were made within ``seconds``, and what they raised that is no error of ours."""
    calls, found = Calls(folder, seed), []
    began = time.monotonic()
    for made in range(number):
        if time.monotonic() - began > seconds:
            return made, found
        name, call = calls.call()
        try:
            # Estimates that could not be proven no worse are told of by a UserWarning, which is no fault.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                call()
        except dpsql.Error as error:
            if not str(error):
                found.append(f"{type(error).__name__} says nothing\n  {name:.400}")
        except Exception as error:  # noqa: BLE001 - what this test looks for
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"{type(error).__name__}: {error!s:.200} at {where.filename}:{where.lineno}\n  {name:.400}")
    return number, found


@pytest.fixture(autouse=True)
def nothing_beside_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the values are relative paths: what they name is written away from the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    return Calls(tmp_path_factory.mktemp("world"), 0)


@pytest.mark.long
def test_three_hundred_calls(tmp_path: Path) -> None:
    _, found = faults(tmp_path, 20, 300, 60)
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_calls(tmp_path: Path, seed: int, assurance: Callable[[str, int], None]) -> None:
    """4,000 calls together."""
    made, found = faults(tmp_path, 100 + seed, 2000, 3600)
    assert not found, "\n".join(found)
    assert made == 2000
    assurance("generated calls of public entry points", made)


HUGE = 10**5000  # Python writes out no integer of more than 4,300 digits


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.con.plan("SELECT count(*) FROM t", epsilon=-HUGE), "not an integer of 16610 bits"),
        (lambda c: c.con.plan("SELECT count(*) FROM t", epsilon=1, time_limit=HUGE), "time_limit must be a number"),
        (lambda c: c.con.plan("SELECT count(*) FROM t", 1, objective=HUGE), "objective an integer of 16610 bits"),
        (lambda c: c.con.plan("SELECT count(*) FROM t", max_error=HUGE), "it is an integer of 16610 bits"),
        (lambda c: c.con.plan("SELECT count(*) FROM t", max_error={1: 5}), "max_error takes names of results"),
        (lambda c: c.con.plan("SELECT count(*) FROM t", 1, expected={1: 5}), "expected takes names of results"),
        (lambda c: c.con.sql("SELECT ?", iter([1])), "parameters must be a list of values"),
        (lambda c: c.con.synthesize("t", HUGE, 1), r'columns must be a list of names; write \["age"\]'),
        (lambda c: c.con.synthesize("t", ["age"], 1, ids=HUGE), r'ids must be a list of names; write \["visit"\]'),
        (lambda c: c.synthetic.sql("SELECT 1", estimator=np.array([1.0, 2.0])), "estimator is array"),
        (lambda c: c.synthetic.sql("SELECT 1", errors=np.array([])), "errors must be True or False"),
        (lambda c: c.release["q1"].column_at(9), "no column number 9; the result has 9, from 0"),
        (lambda c: c.plan.what_if(np.timedelta64(1)), "time_limit must be a finite number"),
        (lambda c: dpsql.Policy.load("a\0b"), "path must be the path of a file"),
        (lambda c: dpsql.connect(None, policy=c.policy, ledger="."), r"ledger must be .* and '\.' cannot be one"),
        (lambda c: dpsql.connect(c.folder / "\ud800", policy=c.policy), "database must be .* cannot be one"),
        (lambda c: dpsql.connect(None, policy=c.policy, scan_timeout=HUGE), "scan_timeout must be a positive number"),
        (lambda c: dpsql.connect(None, policy=c.policy, query_timeout=HUGE), "query_timeout must be a positive number"),
    ],
)
def test_arguments_that_were_once_faults(one_world: Calls, call: Callable[[Calls], object], said: str) -> None:
    with pytest.raises(dpsql.Error, match=said):
        call(one_world)


def test_an_interval_of_almost_all_confidence(one_world: Calls) -> None:
    plan = one_world.con.plan("SELECT count(*) FROM t", epsilon=1, alpha=1e-320, earlier=False)
    assert plan.half_width["q1"].max() > 700  # ln(2 / alpha) / epsilon; a float may not hold it
