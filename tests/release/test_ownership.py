"""A releases file replaces nothing but a releases file."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.release.books import check_replaceable

POLICY = "sql_examples/students.toml"
BATCH = "SELECT COUNT(*) AS n FROM students"


@pytest.mark.parametrize("kind", ["database", "text"])
@pytest.mark.few("text")
def test_another_file_is_never_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mine.duckdb"
    if kind == "database":
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE precious (a INTEGER)")
    else:
        path.write_text("precious")
    before = path.read_bytes()
    con = dpsql.connect(policy=POLICY, ledger=tmp_path / "a.ledger", releases=path)
    with pytest.raises(dpsql.OperationalError, match="not a releases database"):
        con.run(BATCH, epsilon=0.1)
    assert con.budget.spent == 0
    dpsql.connect(policy=POLICY, ledger=tmp_path / "a.ledger", releases=tmp_path / "b.duckdb").run(BATCH, epsilon=0.1)
    with pytest.raises(dpsql.OperationalError, match="not a releases database"):
        con.rebuild()
    assert path.read_bytes() == before


def test_a_releases_file_may_be_replaced_even_damaged(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    con = dpsql.connect(policy=POLICY, ledger=tmp_path / "a.ledger", releases=path)
    con.run(BATCH, epsilon=0.1)
    check_replaceable(path)
    path.write_bytes(b"damaged")
    assert con.rebuild() == 1
    assert len(con.sql("SELECT * FROM q1")) == 1
