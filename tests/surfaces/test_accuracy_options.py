"""``dpsql plan --max-error``, ``--relative``, ``--simultaneous``, ``--expect`` and ``--what-if``; ``run`` with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import filled

from dpsql.surfaces.cli import main

POLICY = """
dataset = "c-1"
[budget]
rho = 0.5
[tables.t]
unit = "row"
expected_rows = 1000
[tables.t.columns]
g = { values = ["a", "b"], nulls = false }
"""
BATCH = (
    "CREATE VIEW total AS SELECT count(*) AS n FROM t; CREATE VIEW by_g AS SELECT g, count(*) AS n FROM t GROUP BY g"
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dpsql(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    with filled(tmp_path / "t.duckdb") as duck:
        duck.execute("CREATE TABLE t AS SELECT CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END AS g FROM range(1000) r(i)")
    (tmp_path / "t.toml").write_text(POLICY, encoding="utf-8")

    def call(command: str, *options: str, sql: str = BATCH) -> tuple[int, str, str]:
        places = ("--policy", str(tmp_path / "t.toml"), "--database", str(tmp_path / "t.duckdb"))
        code = main([command, "--sql", sql, *places, *options])
        return (code, *capsys.readouterr())

    return call


def test_a_wanted_error_becomes_a_plan(dpsql: Run) -> None:
    code, out, _ = dpsql("plan", "--max-error", "40")
    assert code == 0
    assert "Target     ±40, each number in 95 of 100 releases; this is the least budget for\n           it" in out
    code, out, _ = dpsql("plan", "--max-error", "40", "--simultaneous", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["alpha"] < 0.05
    assert max(row["half_width"] for row in shown["rows"]) == pytest.approx(40, rel=0.01)


def test_errors_by_name_and_relative_ones(dpsql: Run) -> None:
    _, out, _ = dpsql("plan", "--max-error", "total=20", "--max-error", "by_g.n=60", "--json")
    widths = {row["result"]: row["half_width"] for row in json.loads(out)["rows"]}
    assert widths["total"] <= 20
    assert widths["by_g"] <= 60
    _, out, _ = dpsql("plan", "--relative", "0.1", "--expect", "total=300", "--json")
    widths = {row["result"]: row["half_width"] for row in json.loads(out)["rows"]}
    assert widths["total"] <= 30
    assert widths["by_g"] <= 50


def test_hints_need_no_option(dpsql: Run) -> None:
    code, out, _ = dpsql("plan", sql="SELECT /*+ MAX_ERROR(15) */ count(*) AS n FROM t")
    assert code == 0
    assert "what the hints of the batch ask" in out


def test_run_spends_the_least(dpsql: Run) -> None:
    code, out, _ = dpsql("run", "--max-error", "40", "--json")
    assert code == 0
    spent = json.loads(out)["budget"]["spent"]
    assert 0 < spent < 0.01
    code, out, _ = dpsql("run", "--max-error", "40", "--json")
    assert json.loads(out)["cost"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-error", "many"], "--max-error many ends in no number; write for example --max-error 50"),
        (["--max-error", "5", "--max-error", "q1=6"], "--max-error 5 names no result"),
        (["--relative", "x"], "--relative is 'x'; write a number, such as --relative 0.5"),
        (["--max-error", "5", "--expect", "7"], "--expect 7 names no result; write --expect NAME=7"),
        ([], "the budget is missing; give --epsilon E, --epsilon E --delta D, --rho R, or --max-error E"),
    ],
    ids=["no number", "no name", "relative", "expect", "nothing"],
)
def test_wrong_usage(dpsql: Run, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        dpsql("plan", *options)
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-error", "0.01"], "the least error within reach is ±"),
        (["--max-error", "-5"], "--max-error must be a positive finite number"),
        (["--max-error", "5", "--rho", "0.1"], "keep one of the two"),
        (["--max-error", "nosuch=5"], "total.n has no wanted error"),
    ],
    ids=["out of reach", "negative", "both", "unknown"],
)
def test_refusals(dpsql: Run, options: list[str], message: str) -> None:
    code, _, err = dpsql("plan", *options)
    assert code == 1
    assert message in err


def test_what_if_as_text_and_json(dpsql: Run) -> None:
    code, out, _ = dpsql("plan", "--rho", "0.1", "--what-if")
    assert code == 0
    assert "Error against rho: each number within, at 95%" in out
    assert "Cost of each statement" in out
    assert "Suggestions" in out
    _, out, _ = dpsql("plan", "--rho", "0.1", "--what-if", "--json")
    found = json.loads(out)["what_if"]
    assert set(found) == {"curve", "marginal_costs", "suggestions"}
    assert found["curve"]["columns"][0] == {"name": "rho", "type": "DOUBLE"}
    assert {row[0] for row in found["marginal_costs"]["rows"]} == {"total", "by_g"}


def test_a_run_without_a_budget_gives_the_free_answer_or_says_that_there_is_none(dpsql: Run, tmp_path: Path) -> None:
    part = "SELECT count(*) AS n FROM t WHERE g = 'a'"
    refused = "no budget is given and the releases do not determine this batch; give --epsilon ..."
    code, out, err = dpsql("run", sql=part)
    assert (code, out) == (1, "")
    assert refused in err
    assert not (tmp_path / "t.ledger").exists()
    dpsql("run", "--rho", "0.1", "--quiet", sql="SELECT g, count(*) AS n FROM t WHERE g = 'a' GROUP BY g")
    code, out, _ = dpsql("run", "--json", sql=part)
    found = json.loads(out)
    assert (code, found["cost"], found["guarantee"]) == (0, 0, "free, from release 1")
    assert found["budget"]["spent"] == pytest.approx(0.1)
    assert "Release 2, free, from release 1; in " in dpsql("run", sql=part)[1]
    code, _, err = dpsql("run")
    assert (code, refused in err) == (1, True)


@pytest.mark.parametrize(
    "option",
    [["--fresh"], ["--no-earlier"], ["--delta", "1e-9"], ["--estimates", "whole"], ["--objective", "max"]],
    ids=["fresh", "no earlier", "delta", "estimates", "objective"],
)
@pytest.mark.few(every=4)
def test_what_no_release_can_give_needs_a_budget(
    dpsql: Run, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    dpsql("run", "--rho", "0.1", "--quiet")
    with pytest.raises(SystemExit) as stopped:
        dpsql("run", *option)
    assert stopped.value.code == 2
    assert "the budget is missing" in " ".join(capsys.readouterr().err.split())


def test_a_file_that_holds_one_result_is_refused_for_free_answers_too(
    dpsql: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    dpsql("run", "--rho", "0.1", "--quiet")
    with pytest.raises(SystemExit):
        dpsql("run", "--format", "csv", sql="SELECT count(*) AS n FROM t; SELECT g, count(*) AS n FROM t GROUP BY g")
    assert "there are 2 results" in " ".join(capsys.readouterr().err.split())
