"""Constants past every number: infinite, without a value, or too large for any type; refused, or as DuckDB has them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.errors import PolicyError, SQLError

INF, NAN = "(1e308*10)", "(1e308*10 - 1e308*10)"
HUGE, FINE = "*".join(["9" * 60] * 100), "*".join(["0." + "0" * 50 + "1"] * 100)
POLICY = """
dataset = "extremes"
[budget]
epsilon = 1000000.0
[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 50 }
sex = { values = ["F", "M"] }
x = { lower = -5.0, upper = 5.0 }
k = {}
"""


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    folder: Path = tmp_path_factory.mktemp("extremes")
    with duckdb.connect(str(folder / "t.duckdb")) as made:
        made.execute("CREATE TABLE t (age INTEGER, sex VARCHAR, x DOUBLE)")
        made.execute("INSERT INTO t SELECT i, ['F', 'M'][i % 2 + 1], i - 3 FROM range(7) r(i)")
        made.execute("INSERT INTO t VALUES (8, 'F', NULL), (9, 'F', 'inf'), (10, 'M', '-inf')")
        made.execute("ALTER TABLE t ADD COLUMN k TINYINT")
    (folder / "t.toml").write_text(POLICY)
    return dpsql.connect(folder / "t.duckdb", policy=folder / "t.toml")


@pytest.mark.parametrize("constant", [INF, f"(-{INF})", HUGE])
@pytest.mark.parametrize(
    "item",
    [
        "count(*) * {}",
        "{} * sum(x)",
        "sum(x) / {}",
        "sum(x) + {}",
        "sum(x * {})",
        "avg(x) * {}",
        "sum({})",
        "sum(CASE WHEN x > 1 THEN {} END)",
        "sum(x) / count(*) - {}",
    ],
)
@pytest.mark.few(every=3)
def test_no_aggregate_takes_one(con: dpsql.Connection, item: str, constant: str) -> None:
    with pytest.raises(SQLError, match=r"line 1"):
        con.plan(f"SELECT {item.format(constant)} FROM t", epsilon=1)


@pytest.mark.parametrize("constant", [INF, NAN, HUGE])
@pytest.mark.parametrize("bounds", ["0, {}", "{}, 10"])
def test_width_bucket_takes_finite_bounds(con: dpsql.Connection, bounds: str, constant: str) -> None:
    with pytest.raises(SQLError):
        con.plan(f"SELECT width_bucket(age, {bounds.format(constant)}, 5) AS b, count(*) FROM t GROUP BY b", epsilon=1)


@pytest.mark.parametrize(
    "batch",
    [
        f"SELECT sum(x * {HUGE}) FROM t",
        f"SELECT age * {HUGE} AS k, count(*) FROM t GROUP BY k",
        "SELECT sex, count(*) FROM t GROUP BY sex ORDER BY 1e3",
        f"SELECT sex, count(*) FROM t GROUP BY sex ORDER BY {'1' * 5000}",
        f"SELECT sum({'*'.join(['x', *['9' * 60] * 9])}) FROM t",
        "SELECT sum(x) AS s, sum(1e0 * " + "*".join(["9" * 60] * 4) + f" * {'9' * 60} * {'9' * 60}) FROM t",
    ],
)
def test_numbers_past_every_type_are_refused(con: dpsql.Connection, batch: str) -> None:
    with pytest.raises((SQLError, PolicyError), match=r"line 1|out of reach"):
        con.plan(batch, epsilon=1)


@pytest.mark.parametrize(
    ("condition", "same"),
    [
        (f"x < {INF}", None),
        (f"x = {INF}", None),
        (f"x > -{INF}", None),
        (f"x BETWEEN 1 AND {INF}", None),
        (f"x IN (1, {INF})", None),
        (f"x IS DISTINCT FROM {INF}", None),
        (f"x IN (1, {NAN})", "x IN (1, NULL)"),
        (f"(x > 0) OR x < {NAN}", "x > 0"),
        (f"NOT (x BETWEEN {NAN} AND 1)", "x > 1"),
        (f"{NAN} IS NULL", "TRUE"),
        (f"COALESCE({NAN}, x) > 0", "x > 0"),
        (f"1e0 * {'*'.join(['9' * 60] * 4)} * {'*'.join(['9' * 60] * 4)} > x", f"x < {INF}"),
    ],
)
@pytest.mark.few(every=8)
def test_conditions_mean_what_duckdb_says(con: dpsql.Connection, condition: str, same: str | None) -> None:
    """``same``: the condition with NULL in place of what has no value, where DuckDB would compare NaN as a number."""
    with duckdb.connect(str(con.releases_path.parent / "t.duckdb"), read_only=True) as plain:
        expected = plain.execute(f"SELECT count(*) FROM t WHERE {same or condition}").fetchone()
    assert expected is not None
    released = con.run(f"SELECT count(*) AS n FROM t WHERE {condition}", epsilon=1000, fresh=True, errors=False)
    assert released["q1"].fetchall()[0][0] == pytest.approx(expected[0], abs=0.5)


@pytest.mark.parametrize(("key", "kind", "last"), [("-k", "SMALLINT", 128), ("k * 300", "INTEGER", 38_100)])
def test_groups_past_their_type_have_a_wider_one(con: dpsql.Connection, key: str, kind: str, last: int) -> None:
    result = con.run(f"SELECT {key} AS g, count(*) AS n FROM t GROUP BY g", epsilon=1, fresh=True)[0]
    assert max(row[0] for row in result.rows if row[0] is not None) == last
    with duckdb.connect(str(con.releases_path), read_only=True) as duck:
        assert duck.execute("SELECT DISTINCT typeof(g) FROM dp.q1").fetchall() == [(kind,)]
