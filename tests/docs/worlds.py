"""Connections that pages ask: the clinic of docs/sql.md, with a few rows in it."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

import dpsql
from dpsql.policy import Policy

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"

ROWS = """
INSERT INTO patients
SELECT i, DATE '1950-01-01' + CAST(i * 7 AS INTEGER), CASE WHEN i % 2 = 0 THEN 'f' ELSE 'm' END, 'NY'
FROM range(2000) t(i);
INSERT INTO visits
SELECT i, i // 2, CASE i % 3 WHEN 0 THEN 'NY' WHEN 1 THEN 'NJ' ELSE 'CA' END, i % 90, i % 500, i % 10,
    50 + i % 60, DATE '2024-01-01' + CAST(i % 366 AS INTEGER), TIMESTAMP '2024-01-01' + INTERVAL (i % 8000) HOUR,
    i % 4 = 0, 'flu'
FROM range(4000) t(i);
INSERT INTO regions VALUES ('NY', 'East', 19), ('NJ', 'East', 9), ('CA', 'West', 39);
"""


def clinic(folder: str | Path = ".", *, epsilon: float = 4.0, **options: object) -> dpsql.Connection:
    """A connection to the tables of docs/sql.md behind its policy, files in ``folder``, a budget of ``epsilon``."""
    page = PAGE.read_text(encoding="utf-8")
    tables, policy = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("sql", "toml"))
    database = Path(folder) / "clinic.duckdb"
    with duckdb.connect(str(database)) as con:
        con.execute(tables)
        con.execute(ROWS)
    held = Path(folder) / "clinic.toml"
    held.write_text(policy.replace("epsilon = 4.0", f"epsilon = {epsilon}"), encoding="utf-8")
    assert Policy.load(held).dataset == "clinic-1"
    return dpsql.connect(database, policy=held, **options)  # type: ignore[arg-type]
