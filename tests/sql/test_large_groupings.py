"""Groupings that no method can plan: refused at once, with the size, the cap and the columns that make it so large."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.engines import duckdb as engine
from dpsql.workloads.compile import choice

WIDE = [f"c{i}" for i in range(30)]
POLICY = """
dataset = "wide-1"
[budget]
epsilon = 1
delta = 1e-6
[tables.t]
unit = "row"
[tables.t.columns]
""" + "".join(
    f"{name} = {{ lower = 0, upper = {99 if i < 8 else 9}, nulls = {'true' if i % 2 else 'false'} }}\n"
    for i, name in enumerate(WIDE)
)


def listed(names: list[str]) -> str:
    return ", ".join(names)


REFUSED = {
    "one grouping": (
        f"SELECT {listed(WIDE[:8])}, COUNT(*) FROM t GROUP BY {listed(WIDE[:8])}",
        ["10,406,040,100,000,000 groups", "at most 200,000", "c1 (101), c3", "drop or coarsen c1, c3, c5, c7, c0"],
    ),
    "several numbers": (
        "SELECT c20, c22, c24, c26, c0, COUNT(*), SUM(c2), AVG(c4) FROM t GROUP BY ALL",
        ["1,000,000 groups of 3 numbers", "at most 200,000", "c0 (100), c20 (10)", "drop or coarsen c0 ("],
    ),
    "cube": (
        f"SELECT COUNT(*) FROM t GROUP BY CUBE ({listed(WIDE[5:])})",
        ["2^25 groupings", "at most 32,768", "cube at most 15", "c5 (101), c7 (101), c6 (100), c9 (11)"],
    ),
    "marginals": (
        f"SELECT COUNT(*) FROM t GROUP BY dp_marginals(6, {listed(WIDE)})",
        ["768,211 groupings", "at most 32,768", "combine at most 4 of them", "c1 (101), c3 (101)"],
    ),
    "marginals that none could list": (
        f"SELECT COUNT(*) FROM t GROUP BY dp_marginals(15, {listed(WIDE)})",
        ["614,429,671 groupings", "combine at most 4 of them"],
    ),
    "sets of sets": (
        f"SELECT COUNT(*) FROM t GROUP BY ROLLUP ({listed(WIDE[:9])}), CUBE ({listed(WIDE[9:22])})",
        ["more than 32,768 groupings", "the most groups have c1 (101)"],
    ),
    "ranges": (
        "SELECT dp_ranges(c0), dp_ranges(c2), COUNT(*) FROM t GROUP BY ALL",
        ["25,502,500 groups", "dp_ranges(c0) (5,050)", "drop or coarsen dp_ranges(c0) ("],
    ),
    "a nullable mess": (
        "SELECT COUNT(*) FROM t WHERE (c1 > c3 OR c5 IS NULL) AND NOT (c7 < 4 AND c3 IS NOT NULL); "
        "SELECT c1, c3, c5, COUNT(c7), SUM(c1 + c7) FROM t WHERE c3 > c7 OR c1 IS NULL GROUP BY 1, 2, 3",
        ["1,030,301 groups", "c1 (101), c3 (101), c5 (101)", "drop or coarsen c1"],
    ),
}  # fmt: skip


TOO_MANY = {
    "many small groupings": (
        f"SELECT COUNT(*) FROM t GROUP BY dp_marginals(4, {listed(WIDE[8:])})",
        ["numbers, at most 25,000,000 are planned together", "q1 has ", " in 9,108 groupings", "leave out c9, c11"],
    ),
    "counts by columns with a remainder": (
        f"SELECT COUNT(*) FROM t GROUP BY dp_marginals(3, {listed(WIDE[8:])})",
        ["numbers, at most 300,000 are planned together", "q1 has ", " in 1,793 groupings", "leave out c9, c11"],
    ),
    "many statements": (
        "; ".join(["SELECT c0, c2, COUNT(*), SUM(c5) FROM t GROUP BY c0, c2"] * 240),
        ["4,800,000 numbers, at most 4,000,000 are planned together: split it; q1 alone has 20,000"],
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *TOO_MANY])
@pytest.mark.few("sets of sets", "one grouping", "ranges", "marginals")
def test_a_grouping_that_is_too_large_is_refused_with_its_columns(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, parts = {**REFUSED, **TOO_MANY}[name]
    if name == "counts by columns with a remainder":  # only of marginals are more planned
        monkeypatch.setattr(choice, "MAX_NUMBERS", 300_000)
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t ({', '.join(f'{column} INTEGER' for column in WIDE)})")
    ledger = tmp_path / "l.ledger"
    connection = dpsql.connect(con, policy=dpsql.Policy.parse(POLICY), ledger=ledger)
    before = ledger.read_bytes() if ledger.exists() else b""
    monkeypatch.setattr(engine, "_scan", lambda *_: pytest.fail("a row was read"))
    with pytest.raises(dpsql.SQLError) as caught:
        connection.run(batch, 0.5)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert len(message) < 600
    assert caught.value.code == ("too-large" if name in TOO_MANY else "too-many-groups")
    assert (ledger.read_bytes() if ledger.exists() else b"") == before


def test_marginals_of_more_numbers_are_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each value of each column is listed, so that each is a group and there is no remainder."""
    monkeypatch.setattr(choice, "MAX_NUMBERS", 30)
    columns = "".join(f"{name} = {{ values = [1, 2, 3], nulls = false }}\n" for name in WIDE[:8])
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t ({', '.join(f'{column} INTEGER' for column in WIDE[:8])})")
    con.execute(f"INSERT INTO t VALUES ({', '.join('2' * 8)}), ({', '.join('3' * 8)})")
    policy = dpsql.Policy.parse(POLICY.partition("[tables.t.columns]")[0] + f"[tables.t.columns]\n{columns}")
    connection = dpsql.connect(con, policy=policy, ledger=tmp_path / "l.ledger")
    plan = connection.plan(f"SELECT COUNT(*) AS n FROM t GROUP BY dp_marginals(2, {listed(WIDE[:8])})", 0.5, 1e-7)
    assert plan.strategy.gap is not None
    assert plan.strategy.gap < 0.01
    assert len(connection.run(plan)["q1"].df()) == 28 * 9 + 8 * 3
