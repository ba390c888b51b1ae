"""Whole statements of scans, as DuckDB gets them: a change of the trees or of the printer shows here."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest
from test_at_most import BATCHES, compiled, fill
from unit_rows import sources_of

from dpsql.measure.reading import scan_of
from dpsql.workloads.expr.value_sql import select_text

TEXTS = Path(__file__).parent / "scan_texts.sql"


def test_the_text_of_scans_is_as_it_was() -> None:
    """``DPSQL_WRITE=1`` writes the file anew, for a reader to compare."""
    con = duckdb.connect()
    fill(con, [])
    found = []
    for name, (policy, _) in BATCHES.items():
        for layout in compiled(con, name).layouts:
            found += [f"-- {name}", select_text(scan_of(layout, sources_of(policy)).select, {"visits": "visits"}) + ";"]
    text = "\n".join(found) + "\n"
    if os.environ.get("DPSQL_WRITE"):
        TEXTS.write_text(text)
        pytest.skip("written")
    assert text == TEXTS.read_text()
