"""A small table, and releases of it under both kinds of noise, for tests of replicates."""

from __future__ import annotations

from pathlib import Path

from helpers import filled

import dpsql

POLICY = """
dataset = "d-1"
[budget]
epsilon = 40.0
delta = 1e-9
pure_epsilon = 20.0
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b", "c", "d"], nulls = false }
k = { lower = 0, upper = 4, nulls = false }
v = { lower = 0, upper = 10, nulls = false }
"""
BATCH = """
CREATE VIEW by_g AS SELECT g, COUNT(*) AS n, SUM(v) AS s, AVG(v) AS a, MEDIAN(k) AS m, MAX(k) AS top FROM t GROUP BY g;
CREATE VIEW total AS SELECT COUNT(*) AS n FROM t;
CREATE VIEW ranked AS SELECT g, RANK() OVER (ORDER BY COUNT(*) DESC) AS r, COUNT(*) AS n FROM t GROUP BY g
ORDER BY n DESC LIMIT 3
"""
OTHER = "CREATE VIEW by_k AS SELECT k, COUNT(*) AS n FROM t GROUP BY k"


def connect(folder: Path, policy: str = POLICY) -> dpsql.Connection:
    """A connection to the table, which is made where it is not there yet."""
    data = folder / "d.duckdb"
    if not data.exists():
        with filled(data) as duck:
            duck.execute(
                "CREATE TABLE t AS SELECT ['a', 'b', 'c', 'd'][1 + CAST(floor(sqrt(i % 16)) AS INTEGER)] AS g, "
                "(i % 5)::INTEGER AS k, (i % 11)::DOUBLE AS v FROM range(400) r(i)"
            )
        (folder / "p.toml").write_text(policy, encoding="utf-8")
    return dpsql.connect(data, policy=folder / "p.toml")
