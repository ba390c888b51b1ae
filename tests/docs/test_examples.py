"""The batches of sql_examples, run from the command line as their README says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from dpsql.surfaces.cli import main

EXAMPLES = Path(__file__).parents[2] / "sql_examples"
LISTED = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE))


def test_every_example_is_listed_with_its_policy() -> None:
    assert sorted(LISTED) == sorted(path.stem for path in EXAMPLES.glob("*.sql"))
    assert set(LISTED.values()) == {path.stem for path in EXAMPLES.glob("*.toml")}


SEARCHED = ("customers", "groupings", "quantiles")  # planned for seconds


# The demo runs rand_hie.
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] if n in SEARCHED else []) for n in LISTED if n != "rand_hie"],
)
@pytest.mark.few("students", "options")
def test_an_example_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, policy = EXAMPLES / f"{name}.sql", EXAMPLES / f"{LISTED[name]}.toml"
    budget = [] if name == "options" else ["--epsilon", "1"]
    arguments = [str(batch), "--policy", str(policy), "--ledger", str(tmp_path / "e.ledger"), "--json", *budget]
    assert main(["run", *arguments]) == 0
    results = json.loads(capsys.readouterr().out)["tables"]
    assert [result["name"] for result in results] == re.findall(r"^CREATE VIEW (\w+)", batch.read_text(), re.MULTILINE)
    for result in results:
        assert result["rows"], result["name"]
        for row in result["rows"]:
            assert all(value is None or not isinstance(value, float) or math.isfinite(value) for value in row)


def test_the_data_of_tpch_are_those_of_its_script(tmp_path: Path) -> None:
    import importlib.util

    import duckdb

    spec = importlib.util.spec_from_file_location("build_tpch", EXAMPLES / "data" / "build_tpch.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    with duckdb.connect() as con:
        build.create(con)
        for table in build.tables():
            kept = f"'{EXAMPLES / 'data' / f'tpch_{table}.parquet'}'"
            for one, other in ((table, kept), (kept, table)):
                assert not con.execute(f"FROM {one} EXCEPT ALL FROM {other}").fetchall()
