"""Errors of the command line name flags, and a path where SQL is asked is recognised, as is SQL where a file is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsql.surfaces.cli import _FILES, _FLAGS, check, in_flags, main
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
    assert {f"--{name}" for name in _FILES} | {*_FLAGS.values()} <= known


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


@pytest.mark.parametrize(
    ("typed", "usual", "policy"),
    [
        ("policy show p.toml", None, "p.toml"),
        ("policy show --policy p.toml", None, "p.toml"),
        ("policy show --pol=p.toml", None, "p.toml"),
        ("policy show", "e.toml", "e.toml"),
        ("policy show p.toml", "e.toml", "p.toml"),
        ("policy show --policy p.toml", "e.toml", "p.toml"),
        ("audit p.toml b.sql", None, "p.toml"),
        ("audit b.sql --policy p.toml", None, "p.toml"),
        ("audit --policy p.toml b.sql", None, "p.toml"),
        ("audit --epsilon 1 b.sql", "e.toml", "e.toml"),
        ("analyst set ann --epsilon 1 p.toml", None, "p.toml"),
        ("analyst set ann --epsilon 1 p.toml", "e.toml", "p.toml"),
        ("analyst set --epsilon 1 ann", "e.toml", "e.toml"),
        ("requests refuse 3 --note no", "e.toml", "e.toml"),
        ("serve --port 0 p.toml", None, "p.toml"),
        ("budget", "e.toml", "e.toml"),
    ],
)
def test_the_policy_is_an_option_of_all_and_an_argument_of_some(
    typed: str, usual: str | None, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPSQL_POLICY", raising=False)
    if usual:
        monkeypatch.setenv("DPSQL_POLICY", usual)
    words = typed.split()
    options = parser(words).parse_args(words)
    check(options)
    assert options.policy == policy
    assert getattr(options, "name", "ann") == "ann"
    assert getattr(options, "batch", "b.sql") == "b.sql"
    assert getattr(options, "number", 3) == 3


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("policy show", "the policy is missing; give --policy FILE, or set DPSQL_POLICY"),
        ("policy show p.toml --policy q.toml", "the policy is given twice, p.toml and --policy q.toml"),
    ],
)
def test_a_policy_that_is_missing_or_given_twice_is_wrong_usage(
    typed: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DPSQL_POLICY", raising=False)
    with pytest.raises(SystemExit) as left:
        main(typed.split())
    assert left.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())
