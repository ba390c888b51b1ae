"""Errors of the command line name flags, and a path where SQL is asked is recognised, as is SQL where a file is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsql.surfaces.cli import _FILES, _NAMES, _OPTIONS, in_flags, main
from dpsql.surfaces.grammar import parser

pytestmark = pytest.mark.surfaces


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("name another file with releases=", "name another file with --releases FILE"),
        ("give ledger=path", "give --ledger FILE"),
        ("rounds are those of method='adaptive'", "rounds are those of --method adaptive"),
        ("give max_error=50, relative=0.05, or", "give --max-error 50, --relative 0.05, or"),
        ("such as max_error={'q1': 50}", "such as --max-error q1=50"),
        ("give epsilon=..., or rho=...", "give --epsilon ..., or --rho ..."),
        ("pass the session: dpsql.connect(spark, policy=..., ledger=...)",
         "pass the session: dpsql.connect(spark, policy=..., ledger=...)"),
        ("fresh=True measures again.", "--fresh measures again."),
        ("con.run(sql, epsilon=0.1) measures it", "dpsql run measures it"),
        ("tables.t has no source and no database was given; pass the database, or",
         "tables.t has no source and no database was given; give --database FILE, or"),
        ("raise max_rows_per_unit or rows_per_unit", "raise max_rows_per_unit or --rows-per-unit"),
    ],
)  # fmt: skip
def test_arguments_are_flags(said: str, shown: str) -> None:
    assert in_flags(said, of_sql=False) == shown


def test_the_users_own_sql_is_left_as_it_is() -> None:
    assert in_flags("t has no column max_error (epsilon=1)", of_sql=True) == "t has no column max_error (epsilon=1)"


def test_all_flags_are_flags_of_a_command() -> None:
    known = set(re.findall(r"--[a-z-]+", Path(__file__).parents[2].joinpath("docs", "cli.md").read_text("utf-8")))
    known |= {flag for action in _actions() for flag in action}
    assert {"--" + _NAMES.get(name, name).replace("_", "-") for name in (*_FILES, *_OPTIONS)} <= known


def _actions() -> list[tuple[str, ...]]:
    waiting, found = [parser()], []
    while waiting:
        for action in waiting.pop()._actions:
            found.append(tuple(action.option_strings))
            waiting.extend(action.choices.values() if isinstance(action.choices, dict) else [])
    return found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--sql", "a.sql", "--epsilon", "1"], "leave --sql out in front of it"),
        (["SELECT COUNT(*) FROM t", "--epsilon", "1"], "write --sql in front of it"),
        (["a.sql", "--epsilon", "1", "--rho", "1"], "--rho and --epsilon contradict each other"),
        (["a.sql", "--max-error", "5", "--relative", "0.1"], "--max-error and --relative contradict each other"),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", *given, "--policy", "p.toml"])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
