"""The demo from an empty directory, and once more for free."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.surfaces.cli import main


@pytest.mark.long
def test_demo_answers_and_a_second_run_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "demo"
    assert main(["demo", "--directory", str(where)]) == 0
    text, err = capsys.readouterr()
    assert all(line.startswith("dpsql: planning, ") for line in err.splitlines())
    for part in ("1. What the custodian declares", "±", "unmet_need", "stderr", "left of", "rand_hie.ledger"):
        assert part in text
    commands = [line for line in text.splitlines() if line.startswith("    ")]
    assert max(len(line) for line in text.splitlines() if line not in commands and "/" not in line) <= 120
    with duckdb.connect(str(where / "rand_hie.releases.duckdb"), read_only=True) as plain:
        assert len(plain.sql("FROM dp.unmet_need").fetchall()) == 5
    assert main(["demo", "--directory", str(where), "--quiet", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["run"]["cost"] == 0
    assert again["run"]["release"] == 1
    assert again["run"]["budget"]["spent"] == pytest.approx(1, abs=1e-9)
    assert all(abs(row[3]) < 1e-6 for row in again["consistency"]["rows"])
    percent = [row[1] for row in again["stayed_away"]["rows"]]
    assert percent == sorted(percent, reverse=True)


@pytest.mark.long
def test_a_quiet_demo_prints_its_tables_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--directory", str(tmp_path), "--quiet"]) == 0
    quiet, err = capsys.readouterr()
    assert err == ""
    assert quiet.startswith("by_coinsurance\ncoinsurance ")
    assert quiet.count("(5 rows)") > 2
    assert not any(word in quiet for word in ("Guarantee", "What is left", "rand_hie.ledger"))


@pytest.mark.long
def test_an_installed_demo_spends_from_the_ledger_of_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages" / "dpsql"
    examples, left_out = (
        Path(dpsql.__file__).parents[1] / "sql_examples",
        shutil.ignore_patterns("*.ledger*", "*.releases.*"),
    )
    shutil.copytree(examples, installed / "examples", ignore=left_out)
    monkeypatch.setattr(dpsql, "__file__", str(installed / "__init__.py"))
    for place, home in (("checkout", "sql_examples"), ("elsewhere", "demo")):
        folder = tmp_path / place
        folder.mkdir()
        if home == "sql_examples":
            (folder / home).mkdir()
            shutil.copy(installed / "examples" / "rand_hie.toml", folder / home)
        monkeypatch.chdir(folder)
        assert main(["demo", "--quiet"]) == 0
        assert [path.relative_to(folder) for path in folder.rglob("*.ledger")] == [Path(home, "rand_hie.ledger")]
    capsys.readouterr()


def test_demo_says_where_it_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--directory", str(tmp_path / "file")]) == 1
    assert "name another directory with --directory" in capsys.readouterr().err
