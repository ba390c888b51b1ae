"""A ledger and a releases file of the first version: opened, listed, queried, rebuilt, and what they know is free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from first_version import DAY, ENTRIES, MADE, VIEWS, first_version

import dpsql
from dpsql.surfaces.cli import main


def opened(policy: Path) -> dpsql.Connection:
    return dpsql.connect(policy.with_name("first.duckdb"), policy=policy, today=DAY)


@pytest.fixture
def con(tmp_path: Path) -> Iterator[dpsql.Connection]:
    with opened(first_version(tmp_path)) as made:
        yield made


def shown(con: dpsql.Connection) -> dict[str, list[tuple[object, ...]]]:
    return {view: sorted(con.sql(f"FROM {view}").fetchall(), key=repr) for view in VIEWS}


def test_all_that_was_released_is_there(con: dpsql.Connection) -> None:
    assert {view: len(rows) for view, rows in shown(con).items()} == VIEWS
    assert len(con.sql("SELECT DISTINCT release_id FROM dp.releases").fetchall()) == ENTRIES
    assert [entry.id for entry in con.budget.charges] == list(range(1, ENTRIES + 1))
    assert float(con.budget.account("pure").remaining) == pytest.approx(8.5)


@pytest.mark.long
def test_the_releases_file_made_anew_is_the_same(tmp_path: Path) -> None:
    with opened(first_version(tmp_path)) as con:
        before = shown(con)
        assert con.rebuild() == ENTRIES
        assert shown(con) == before
    (tmp_path / "second").mkdir()
    with opened(first_version(tmp_path / "second", releases=False)) as con:
        assert con.rebuild() == ENTRIES
        assert shown(con) == before


def test_what_was_asked_is_free_again(con: dpsql.Connection) -> None:
    both = MADE["BOTH"]
    for text, options in (
        (MADE["BY_WARD"], both),
        (f"{MADE['BY_AGE']}; {MADE['TOTAL']}", {"epsilon": 1}),
        (MADE["BY_WORD"], both),
        (MADE["MADE_UP"], {"epsilon": 1, "method": "mwem", "rounds": 2}),
        (MADE["CHOSEN"], {**both, "method": "adaptive", "rounds": 2}),
        (MADE["SHOWN"], {**both, "method": "sparse"}),
    ):
        assert con.run(text, **options).cost == 0
    assert con.discover("visits.word", epsilon=2, delta=1e-8, max_groups=2).values == ("w0", "w1", "w2", "w3")
    assert [due.new for due in con.schedules.release_due()] == [False] * 4
    assert con.synthetic("survey_synthetic").rows == 200


@pytest.mark.long
def test_noise_is_drawn_again_for_new_questions(con: dpsql.Connection) -> None:
    for question in ("SELECT SUM(n) AS n FROM by_age", "SELECT MAX(n) AS n FROM trend"):
        assert con.sql(question, errors=True).columns == ("n", "n_stderr", "n_low", "n_high")


def test_domains_that_were_found_serve_new_batches(con: dpsql.Connection) -> None:
    plan = con.plan("SELECT word, drug, code, COUNT(*) AS n FROM visits GROUP BY word, drug, code", epsilon=1)
    assert plan.stderr["q1"].size >= 4 * 3 * 2
    assert con.plan("SELECT SUM(fee) AS s FROM visits", epsilon=1).stderr["q1"] > 0


def test_the_command_line_lists_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = str(first_version(tmp_path))
    for command, said in (
        (["releases", "list", "--policy", policy], "visits_drug"),
        (["budget", "--policy", policy, "--database", str(tmp_path / "first.duckdb")], "pure: epsilon 8.5 left of 20"),
        (["sql", "--policy", policy, "SELECT COUNT(*) AS places FROM made_up"], "40"),
        (["releases", "rebuild", "--policy", policy, "--database", str(tmp_path / "first.duckdb")], str(ENTRIES)),
        (["schedule", "list", "--policy", policy, "--today", DAY], "trend"),
    ):
        code = main(command)
        out = capsys.readouterr()
        assert code == 0, out.err
        assert said in out.out
