"""Estimates of SQL over a local release, against the definition over every row and every declared combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_worlds import repeatable, world

import dpsql
from dpsql.extensions.local.device import OTHER
from dpsql.extensions.local.local_release import LocalRelease

Record = dict[str, Any]
Phi = Callable[[Record, Record], float]


def brute(syn: LocalRelease, phi: Phi, public: Callable[[int], Record] = lambda _: {}) -> tuple[float, float]:
    """The estimate and its variance by their formulas, one row and one combination at a time.

    Wang, Ying and Zhang 2015, Eq. (12): (sum phi(y) - b sum S_i) / a; the variance as in MATHS section 7:
    sum of ((1 - a) phi^2 + a b S2 - 2 b S phi + b^2 S^2) / a^2.
    """
    domain, response = syn.released.domain, syn.released.response
    a, b = float(response.contrast), float(response.lie)
    every = [dict(zip(domain.names, v, strict=True)) for v in itertools.product(*(c.all for c in domain.columns))]
    table = syn._load()
    held = {name: list(values) for name, _, values in table.columns}
    total = variance = 0.0
    for i in range(syn.rows):
        row = {name: held[name][i] for name in domain.names}
        for name in domain.names:
            if held.get(f"{name}_other", [False] * syn.rows)[i]:
                row[name] = OTHER
        beside = public(held["id"][i]) if "id" in held else {}
        S = sum(phi(v, beside) for v in every)
        S2 = sum(phi(v, beside) ** 2 for v in every)
        y = phi(row, beside)
        total += (y - b * S) / a
        variance += ((1 - a) * y * y + a * b * S2 - 2 * b * S * y + b * b * S * S) / a**2
    return total, variance


def known(value: Any) -> bool:
    return value is not None and value is not OTHER


ONE: list[tuple[str, Phi]] = [
    ("SELECT COUNT(*) FROM visits", lambda v, _: 1.0),
    ("SELECT COUNT(*) FROM visits WHERE state = 'NY'", lambda v, _: v["state"] == "NY"),
    ("SELECT COUNT(*) FROM visits WHERE state IN ('NY', 'CA') AND age >= 4",
     lambda v, _: v["state"] in ("NY", "CA") and known(v["age"]) and v["age"] >= 4),
    ("SELECT COUNT(*) FROM visits WHERE state = 'NJ' OR age < 3",
     lambda v, _: v["state"] == "NJ" or (known(v["age"]) and v["age"] < 3)),
    ("SELECT COUNT(*) FROM visits WHERE NOT (state = 'NJ' OR age < 3)",
     lambda v, _: v["state"] is not None and v["state"] != "NJ" and known(v["age"]) and v["age"] >= 3),
    ("SELECT COUNT(*) FROM visits WHERE age IS NULL OR state IS NULL",
     lambda v, _: v["age"] is None or v["state"] is None),
    ("SELECT COUNT(age) FROM visits", lambda v, _: known(v["age"])),
    ("SELECT SUM(age) FROM visits", lambda v, _: v["age"] or 0),
    ("SELECT SUM(age) FROM visits WHERE state = 'NY'", lambda v, _: (v["age"] or 0) * (v["state"] == "NY")),
    ("SELECT SUM(age) FILTER (WHERE age > 2) - 2 * COUNT(*) + 7 FROM visits",
     lambda v, _: (v["age"] or 0) * (known(v["age"]) and v["age"] > 2) - 2.0),
    ("SELECT SUM(age + 1) FROM visits WHERE state <> 'CA'",
     lambda v, _: (v["age"] + 1 if known(v["age"]) else 0) * (v["state"] is not None and v["state"] != "CA")),
    ("SELECT COUNT(*) FROM visits WHERE age % 2 = 0", lambda v, _: known(v["age"]) and v["age"] % 2 == 0),
    ("SELECT SUM(CASE WHEN state = 'NY' THEN age ELSE 3 END) FROM visits",
     lambda v, _: (v["age"] or 0) if v["state"] == "NY" else 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def syn(tmp_path_factory: pytest.TempPathFactory) -> LocalRelease:
    with pytest.MonkeyPatch.context() as patch:
        repeatable(patch, 3)
        return world(tmp_path_factory.mktemp("one"), rows=150).synthesize("visits", ["state", "age"], 2)


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> LocalRelease:
    with pytest.MonkeyPatch.context() as patch:
        repeatable(patch, 6)
        return world(tmp_path_factory.mktemp("sharp"), rows=300).synthesize("visits", ["state", "age"], 7)


@pytest.mark.parametrize(("sql", "phi"), ONE, ids=range(len(ONE)))
def test_one_number_is_what_the_formulas_say(syn: LocalRelease, sql: str, phi: Phi) -> None:
    ((value, stderr, low, high),) = syn.sql(sql).fetchall()
    total, variance = brute(syn, phi)
    constant = 7 if "+ 7" in sql else 0
    assert value == pytest.approx(total + constant, rel=1e-9, abs=1e-9)
    assert stderr == pytest.approx(math.sqrt(max(variance, 0)), rel=1e-9, abs=1e-9)
    assert high - value == pytest.approx(1.959964 * stderr, rel=1e-6, abs=1e-9)
    assert value - low == pytest.approx(high - value, abs=1e-9)


def test_groups_are_what_the_formulas_say(syn: LocalRelease) -> None:
    rows = syn.sql("SELECT state, COUNT(*) AS n, SUM(age) AS s FROM visits GROUP BY state").fetchall()
    keys = ["NY", "NJ", "CA", OTHER, None]
    assert [(row[0], row[1]) for row in rows] == [
        ("NY", False), ("NJ", False), ("CA", False), (None, True), (None, False)
    ]  # fmt: skip
    for key, row in zip(keys, rows, strict=True):
        n, nn = brute(syn, lambda v, _, key=key: v["state"] is key or v["state"] == key)  # type: ignore[misc]
        s, ss = brute(syn, lambda v, _, key=key: (v["state"] is key or v["state"] == key) * (v["age"] or 0))  # type: ignore[misc]
        assert row[2:4] == pytest.approx((n, math.sqrt(nn)), rel=1e-9)
        assert row[6:8] == pytest.approx((s, math.sqrt(ss)), rel=1e-9)
    assert sum(row[2] for row in rows) == pytest.approx(150, rel=1e-12)


def test_groupings_that_overlap_and_parts_add_up(syn: LocalRelease) -> None:
    cube = syn.sql("SELECT state, age, COUNT(*) AS n FROM visits GROUP BY CUBE (state, age)", errors=False)
    rows = cube.fetchall()
    whole = [row for row in rows if len(rows) and row[-1] == pytest.approx(150)]
    assert whole
    ranges = syn.sql("SELECT dp_prefixes(age), COUNT(*) AS n FROM visits GROUP BY dp_prefixes(age)", errors=False)
    counts = [row[-1] for row in ranges.fetchall()]
    assert len(counts) == 10
    total, _ = brute(syn, lambda v, _: known(v["age"]) and v["age"] <= 9)
    assert counts[-1] == pytest.approx(total)


def test_averages_and_variances_have_the_covariances_of_their_numbers(sharp: LocalRelease) -> None:
    syn = sharp
    ((mean, stderr, low, high),) = syn.sql("SELECT AVG(age) FROM visits WHERE state = 'NY'").fetchall()
    inside: Phi = lambda v, _: float(v["state"] == "NY" and known(v["age"]))  # noqa: E731
    s, _ = brute(syn, lambda v, p: inside(v, p) * (v["age"] or 0))
    n, _ = brute(syn, inside)
    assert mean == pytest.approx(s / n)
    # Delta method, by the variance of the one function (age - mean) * inside.
    _, spread = brute(syn, lambda v, p: inside(v, p) * ((v["age"] or 0) - mean))
    assert stderr == pytest.approx(math.sqrt(spread) / n, rel=1e-6)
    assert low < mean < high
    ((var, *_),) = syn.sql("SELECT VAR_POP(age) FROM visits").fetchall()
    n, _ = brute(syn, lambda v, _: known(v["age"]))
    s, _ = brute(syn, lambda v, _: v["age"] or 0)
    q, _ = brute(syn, lambda v, _: (v["age"] or 0) ** 2)
    assert var == pytest.approx(q / n - (s / n) ** 2, rel=1e-6)
    ((median, *_),) = syn.sql("SELECT MEDIAN(age) FROM visits").fetchall()
    assert 0 <= median <= 9


def test_what_follows_the_noise_is_duckdbs(syn: LocalRelease) -> None:
    text = (
        "WITH g AS (SELECT state, COUNT(*) AS n FROM visits GROUP BY state) "
        "SELECT state, n, rank() OVER (ORDER BY n DESC) AS r FROM g WHERE n > 10 ORDER BY n DESC LIMIT 2"
    )
    rows = syn.sql(text).fetchall()
    assert len(rows) == 2
    assert rows[0][2] > rows[1][2]
    assert [row[-1] for row in rows] == [1, 2]
    two = syn.sql("CREATE VIEW a AS SELECT COUNT(*) AS n FROM visits; SELECT n * 2 AS m FROM a")
    assert two.fetchall()[0][0] == pytest.approx(300)
    assert syn.sql("SELECT COUNT(*) FROM visits_synthetic").fetchall()[0][0] == pytest.approx(150)


@pytest.mark.long
def test_many_columns_do_not_list_their_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conjunction, a disjunction and a mixture over 29 columns, 2^29 combinations, against their closed forms."""
    import duckdb

    columns = [f"c{i}" for i in range(29)]
    with duckdb.connect(str(tmp_path / "wide.duckdb")) as connection:
        listed = ", ".join(f"{name} BOOLEAN" for name in columns)
        connection.execute(f"CREATE TABLE wide ({listed})")
        bits = ", ".join(f"(hash(i, {k}) % 3 > 0)" for k in range(29))
        connection.execute(f"INSERT INTO wide SELECT {bits} FROM range(60) t(i)")
    declared = "\n".join(f"{name} = {{ nulls = false }}" for name in columns)
    policy = f"""
dataset = "wide-1"
[budget]
epsilon = 1
local_epsilon = 60
[tables.wide]
unit = "row"
rows_public = true
[tables.wide.columns]
{declared}
"""
    (tmp_path / "wide.toml").write_text(policy, encoding="utf-8")
    repeatable(monkeypatch, 5)
    syn = dpsql.connect(tmp_path / "wide.duckdb", policy=tmp_path / "wide.toml").synthesize("wide", columns, 22)
    held = {name: np.array(list(values), dtype=bool) for name, _, values in syn._load().columns}
    response, n = syn.released.response, syn.rows
    a = float(response.contrast)

    def expected(y: np.ndarray, mean: float) -> tuple[float, float]:
        estimate = n * mean + (y - mean).sum() / a
        variance = ((1 - a) * ((y - mean) ** 2).sum() + a * (1 - a) * n * mean * (1 - mean)) / a**2
        return estimate, variance**0.5

    every = np.logical_and.reduce([held[c] for c in columns])
    some = np.logical_or.reduce([held[c] for c in columns])
    mixed = np.logical_and(held["c0"] | held["c1"], np.logical_and.reduce([held[c] for c in columns[2:]]))
    cases = [
        (" AND ".join(columns), every, 2.0**-29),
        (" OR ".join(columns), some, 1 - 2.0**-29),
        (f"(c0 OR c1) AND {' AND '.join(columns[2:])}", mixed, 0.75 * 2.0**-27),
    ]
    for condition, y, mean in cases:
        ((value, stderr, _, _),) = syn.sql(f"SELECT COUNT(*) FROM wide WHERE {condition}").fetchall()
        assert (value, stderr) == pytest.approx(expected(y.astype(float), mean), rel=1e-9, abs=1e-12)
    grouped = syn.sql(f"SELECT c0, COUNT(*) FROM wide WHERE {' OR '.join(columns[1:])} GROUP BY c0").fetchall()
    assert sum(row[1] for row in grouped) == pytest.approx(
        expected(np.logical_or.reduce([held[c] for c in columns[1:]]).astype(float), 1 - 2.0**-28)[0]
    )
