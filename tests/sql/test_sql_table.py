"""docs/sql.md, row by row: what it calls answered or free plans, what it calls refused is refused with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from helpers import engine_of, tables_of, understood

import dpsql
from dpsql.policy import Policy
from dpsql.sql import Understood
from dpsql.workloads.compile.compiled import compile_batch
from dpsql.workloads.expr.batch import Table

DOCUMENT = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
TABLES = re.search(r"```sql\n(.*?)```", DOCUMENT, re.DOTALL)
POLICY = re.search(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
VERDICTS = ("answered", "free", "refused")


def rows() -> list[tuple[str, str, str]]:
    """(what, verdict, example) of every row; a bar inside an example is written as \\|."""
    found = []
    for line in _ROW.findall(DOCUMENT):
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
        if cells[1] in VERDICTS:
            found.append((cells[0], cells[1], cells[2].strip("`")))
    return found


@dataclass(frozen=True)
class Clinic:
    """The document's tables, read once, and a connection to them."""

    policy: Policy
    tables: dict[str, Table]
    con: dpsql.Connection


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    assert TABLES is not None
    assert POLICY is not None
    duck = duckdb.connect()
    duck.execute(TABLES[1])
    policy = Policy.parse(POLICY[1])
    folder = tmp_path_factory.mktemp("table")
    con = dpsql.connect(duck, policy=policy, ledger=folder / "a.ledger", releases=folder / "a.releases.duckdb")
    return Clinic(policy, tables_of(policy, engine_of(duck)), con)


def understood_in(clinic: Clinic, example: str) -> Understood:
    """The example understood and compiled; with OPTIONS planned, since they are read before parsing."""
    if "OPTIONS" in example:
        clinic.con.plan(example)
        return Understood((), {})
    found = understood(example, clinic.policy, clinic.tables)
    compile_batch(found.queries, found.tables)
    return found


def test_the_table_has_rows_of_every_kind() -> None:
    counts = {verdict: sum(row[1] == verdict for row in rows()) for verdict in VERDICTS}
    # Every line of a table is a row, but for its two lines of heading; the table of corpora is ``corpus.table``.
    text, _ = DOCUMENT.split("## Corpora")
    assert len(rows()) == len(_ROW.findall(text)) - 2 * len(re.findall(r"^\|---", text, re.MULTILINE))
    assert min(counts.values()) >= 10


@pytest.mark.parametrize(("verdict", "example"), [pytest.param(v, e, id=w) for w, v, e in rows()])
@pytest.mark.few(every=2)
def test_an_example_is_what_the_table_says(clinic: Clinic, verdict: str, example: str) -> None:
    if verdict == "refused":
        with pytest.raises(dpsql.SQLError) as refusal:
            understood_in(clinic, example)
        assert refusal.value.line == 1
        assert refusal.value.column is not None
        return
    # Free is what is left for after the noise; groupings of several kinds are put together there
    # too, and what stands for several columns is laid out.
    after = any(answer.outer is not None for answer in understood_in(clinic, example).answers)
    assert after or verdict == "answered"
    if after and verdict == "answered":
        assert re.search("ROLLUP|GROUPING|dp_marginals|dp_regression|dp_ttest|dp_chisq", example)
