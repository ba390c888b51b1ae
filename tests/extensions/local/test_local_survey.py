"""docs/local.md: the health survey is released once and answers thirty questions, each with its interval."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from local_worlds import repeatable

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "local.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_survey_answers_thirty_questions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repeatable(monkeypatch, 17)
    monkeypatch.chdir(ROOT)
    _, block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    answers = names["answers"]
    assert len(answers) == len(set(names["questions"])) == 30
    assert capsys.readouterr().out.count("\n") == 30
    with duckdb.connect() as connection:
        connection.execute("CREATE VIEW survey AS FROM 'sql_examples/data/rand_hie.parquet'")
        inside = 0
        for question, value, low, high in answers:
            (truth,) = connection.execute(f"SELECT {question}").fetchone() or (None,)
            assert low <= value <= high
            assert truth is not None
            # Five standard errors: half the interval is two.
            assert abs(value - truth) <= 2.6 * (high - low) / 2 + 1e-9, question
            inside += low <= truth <= high
    # The answers of one release stand and fall together: 26 of 30 is no rare number.
    assert inside >= 26
    syn, con = names["syn"], names["con"]
    assert (syn.rows, syn.combinations, syn.cost) == (20_190, 60, 4.0)
    assert con.budget.account("local").remaining == 0
    assert sum(row[1] for row in names["by_plan"].fetchall()) == pytest.approx(20_190)
    ((whole, *_),) = names["count"].fetchall()
    assert whole == int(whole) >= 0
    assert names["bounds"].columns[3:5] == ("worst_stderr", "scale")
