"""Statements as tools and analysts send them: each is answered, or refused for the reason that its file states."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import FOLDER, NAMES, World, questions, table
from helpers import settled

DOCS = Path(__file__).parents[2] / "docs" / "sql.md"
LEAST = {"clickbench": 24 / 43, "dashboards": 4 / 5, "omop": 4 / 5}


@pytest.fixture(scope="module")
def worlds() -> dict[str, World]:
    return {corpus: World.of(corpus) for corpus in NAMES}


@pytest.mark.parametrize("corpus", NAMES)
@pytest.mark.few("clickbench")
def test_statements_are_understood_or_refused_as_marked(worlds: dict[str, World], corpus: str) -> None:
    world = worlds[corpus]
    found = {question.name: world.refusal(question.sql) for question in questions(corpus)}
    assert found == {question.name: question.refused for question in questions(corpus)}


@pytest.mark.long
@pytest.mark.parametrize("corpus", NAMES)
def test_what_is_understood_is_planned(worlds: dict[str, World], tmp_path: Path, corpus: str) -> None:
    con = settled(worlds[corpus].connect(tmp_path))
    for question in questions(corpus):
        if not question.refused:
            assert con.plan(question.sql, rho=1).stderr, question.name


def test_counts_are_those_of_the_documents() -> None:
    assert table() in DOCS.read_text()
    for corpus in NAMES:
        held = questions(corpus)
        assert sum(not question.refused for question in held) >= LEAST[corpus] * len(held)
        assert len({question.name for question in held}) == len(held)
        assert all(bool(question.refused) == bool(question.why) for question in held)


def test_files_hold_nothing_but_questions() -> None:
    for corpus in NAMES:
        assert (FOLDER / f"{corpus}.sql").read_text().count("\n-- [") == len(questions(corpus))
