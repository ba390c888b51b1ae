"""The randomiser end to end, with power in both directions; coverage of the intervals. Neighbours: replace one row."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from local_worlds import Bytes, repeatable
from scipy import stats

import dpsql
from dpsql.privacy.response import Codes, Response, exp_below, offsets_from

LEVEL = 1e-6
POLICY = """
dataset = "audit-1"
[budget]
epsilon = 1
local_epsilon = 90
[tables.t]
unit = "row"
rows_public = true
[tables.t.columns]
a = { values = ["x", "y", "z"], nulls = false }
b = { nulls = false }
"""


def connected(folder: Path, rows: int, a: str) -> dpsql.Connection:
    """A table of ``rows`` equal rows: as many neighbours at once as there are rows, beside that of another ``a``."""
    folder.mkdir()
    with duckdb.connect(str(folder / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t (a VARCHAR, b BOOLEAN)")
        connection.execute("INSERT INTO t SELECT ?, true FROM range(?)", [a, rows])
    (folder / "t.toml").write_text(POLICY, encoding="utf-8")
    return dpsql.connect(folder / "t.duckdb", policy=folder / "t.toml")


def released_counts(con: dpsql.Connection, epsilon: object) -> dict[tuple[str, bool], int]:
    name = con.synthesize("t", ["a", "b"], epsilon).name
    found = con.sql(f"SELECT a, b, count(*) FROM {name} GROUP BY ALL").fetchall()
    return {(a, b): int(n) for a, b, n in found}


def passes(folder: Path, epsilon: object, rows: int) -> bool:
    """Whether releases of two neighbouring values are what the law says and no more telling than e^epsilon.

    Counts of all six combinations of either by chi-square, and of each combination the ratio of its probabilities
    under the two values against e^epsilon, in either direction, all at level 1e-6.
    """
    law = Response.of(6, epsilon)
    found = [released_counts(connected(folder / a, rows, a), epsilon) for a in ("x", "y")]
    cells = [(a, b) for a in "xyz" for b in (False, True)]
    fits, tells = True, True
    for truth, counts in zip("xy", found, strict=True):
        expected = [rows * float(law.keep if cell == (truth, True) else law.lie) for cell in cells]
        seen = [counts.get(cell, 0) for cell in cells]
        fits &= sum(seen) == rows and stats.chisquare(seen, expected).pvalue > LEVEL
    for cell in cells:
        p, q = (counts.get(cell, 0) / rows for counts in found)
        for high, low in ((p, q), (q, p)):
            # Under e^epsilon exactly the difference is centred at 0 or below.
            ratio = float(np.exp(float(law.epsilon)))
            spread = np.sqrt((high * (1 - high) + ratio**2 * low * (1 - low)) / rows)
            tells &= high - ratio * low <= stats.norm.isf(LEVEL / 12) * spread
    return bool(fits and tells)


@pytest.mark.long
def test_the_released_table_keeps_the_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeatable(monkeypatch, 21)
    assert passes(tmp_path, 1, 200_000)


def lies_over_all(self: Response, count: int) -> Codes:
    """A lie drawn from all k values: it hides more than it should, and the keep rate is off."""
    generator = np.random.Generator(np.random.Philox(5))
    return np.where(generator.random(count) < float(self.keep), 0, generator.integers(0, self.domain_size, count))


def too_truthful(self: Response, count: int) -> Codes:
    """Kept three per cent too often."""
    generator = np.random.Generator(np.random.Philox(6))
    lies = 1 + generator.integers(0, self.domain_size - 1, count)
    return np.where(generator.random(count) < float(self.keep) * 1.03, 0, lies)


def too_cautious(self: Response, count: int) -> Codes:
    """Kept three per cent too seldom."""
    generator = np.random.Generator(np.random.Philox(7))
    lies = 1 + generator.integers(0, self.domain_size - 1, count)
    return np.where(generator.random(count) < float(self.keep) * 0.97, 0, lies)


def uneven(self: Response, count: int) -> Codes:
    """All lies among the near neighbours."""
    generator = np.random.Generator(np.random.Philox(8))
    return np.where(generator.random(count) < float(self.keep), 0, 1 + generator.integers(0, 2, count))


def repeated(self: Response, count: int) -> Codes:
    """One lie for all rows."""
    return np.full(count, offsets_from(self, 1, Bytes(3))[0])


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong", [lies_over_all, too_truthful, too_cautious, uneven, repeated], ids=lambda f: f.__name__
)
def test_a_wrong_randomiser_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    monkeypatch.setattr(Response, "sample", wrong)
    assert not passes(tmp_path, 1, 200_000)


@pytest.mark.long
@pytest.mark.parametrize("epsilon", ["0.5", "1", "3"])
def test_the_ratio_of_probabilities_is_e_to_the_epsilon_at_a_million_draws(tmp_path: Path, epsilon: str) -> None:
    """From the system's entropy: fails once in a million by the level, and not by a seed."""
    assert passes(tmp_path, epsilon, 1_000_000)
    law = Response.of(6, epsilon)
    assert law.keep / law.lie <= exp_below(Fraction(epsilon))
    assert float(law.keep / law.lie) == pytest.approx(np.exp(float(epsilon)), rel=1e-12)


RUNS, EACH, TIMES = 2000, 200, 5
RUN_POLICY = f"""
dataset = "runs-1"
[budget]
epsilon = 1
local_epsilon = 90
[tables.t]
unit = "row"
rows_public = true
[tables.t.columns]
run = {{ public = true, lower = 0, upper = {RUNS - 1}, nulls = false }}
a = {{ values = ["x", "y", "z"], nulls = false }}
v = {{ lower = 0, upper = 3, nulls = false }}
"""
COVERED = [
    ("COUNT_IF(a = 'x' AND v > 0)", "mean"),
    ("COUNT_IF(a = 'y' OR v = 3)", "mean"),
    ("SUM(v) FILTER (WHERE a <> 'z')", "mean"),
    ("AVG(v)", "ratio"),
]


@pytest.mark.long
@pytest.mark.parametrize("epsilon", ["1.5"])
def test_intervals_cover_over_ten_thousand_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epsilon: str
) -> None:
    """94 to 96 % of the 95 % intervals hold the truth: 10,000 releases of 200 rows, 2,000 side by side by a public run.

    Estimates are unbiased (averages are ratios, and nearly so), and squared standard errors are unbiased for the
    variance. A coverage of 95 % leaves 94 to 96 % less than once in 10^5 seeds, and this one is fixed.
    """
    repeatable(monkeypatch, 22)
    (tmp_path / "t.toml").write_text(RUN_POLICY, encoding="utf-8")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t (run INTEGER, a VARCHAR, v INTEGER)")
        connection.execute(
            "INSERT INTO t SELECT r, CASE WHEN i < 110 THEN 'x' WHEN i < 170 THEN 'y' ELSE 'z' END, (i * i) % 4 "
            f"FROM range({RUNS}) r(r), range({EACH}) t(i)"
        )
        truths = connection.execute(f"SELECT {', '.join(e for e, _ in COVERED)} FROM t WHERE run = 0").fetchone()
    assert truths is not None
    found: list[list[np.ndarray]] = [[] for _ in COVERED]
    for turn in range(TIMES):
        policy = tmp_path / "t.toml"
        con = dpsql.connect(tmp_path / "t.duckdb", policy=policy, ledger=tmp_path / f"{turn}.ledger")
        syn = con.synthesize("t", ["a", "v"], epsilon, ids=["run"])
        items = ", ".join(f"{e} AS c{i}" for i, (e, _) in enumerate(COVERED))
        result = syn.sql(f"SELECT run, {items} FROM t GROUP BY run")
        rows = np.array([row[1:] for row in result.fetchall()], dtype=float)
        assert rows.shape == (RUNS, 4 * len(COVERED))
        for number, held in enumerate(found):
            held.append(rows[:, 4 * number : 4 * number + 4])
    for (text, kind), truth, held in zip(COVERED, truths, found, strict=True):
        value, stderr, low, high = np.concatenate(held).T
        assert len(value) == 10_000
        covered = np.mean((low <= float(truth)) & (float(truth) <= high))
        assert 0.94 <= covered <= 0.96, (text, covered)
        if kind == "mean":
            assert abs(value.mean() - float(truth)) < stats.norm.isf(LEVEL / 2) * value.std() / 100, text
            assert (stderr**2).mean() == pytest.approx(value.var(), rel=5 * np.sqrt(2 / 10_000)), text
