"""Do intervals of numbers that are computed from releases cover, and what do they take?

    python benchmarks/travel.py --releases 60 --asked 16

Queries of eight kinds are generated over two releases of one table (200 of them by default); each of ``--releases``
pairs of releases answers ``--asked`` of the queries with ``errors=True``, the next ones every time, at epsilon 0.1 and
1. There are ``--worlds`` tables, whose groups differ in size; of each the batches are planned once, and every release
measures anew. A cell is covered where the number that the query gives of the exact tables lies between ``c_low`` and
``c_high``. Rows go by the columns that noise does not reach; of a query that leaves rows out, a row is held against its
exact number whether or not the exact answer has it. Beside coverage: the mean width in standard errors, cells without a
finite interval, how often c_present was right (Brier score beside that of always saying the mean), and seconds of
processor beside those of the bare query, which other work on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
from scipy.special import ndtri

import dpsql
from dpsql.replicates.intervals import spread_of
from dpsql.replicates.ranks import with_ranks

PLANS, STATES, YEARS = ["free", "p25", "p50", "p95", "ind", "none"], ["CA", "NJ", "NY", "OH", "WA"], range(2013, 2017)
ROWS = 20_000
POLICY = """
dataset = "travel"
[budget]
epsilon = 100000.0
delta = 1e-9
pure_epsilon = 50000.0
[tables.visits]
unit = "row"
[tables.visits.columns]
plan = { values = [PLANS], nulls = false }
state = { values = [STATES], nulls = false }
year = { values = [2013, 2014, 2015, 2016], nulls = false }
cost = { lower = 0, upper = 100 }
"""
FIRST = """
CREATE OR REPLACE VIEW by_plan AS SELECT plan, COUNT(*) AS n, SUM(cost) AS cost FROM visits GROUP BY plan;
CREATE OR REPLACE VIEW by_state_year AS SELECT state, year, COUNT(*) AS n FROM visits GROUP BY state, year;
CREATE OR REPLACE VIEW total AS SELECT COUNT(*) AS n, SUM(cost) AS cost FROM visits;
"""
SECOND = """
CREATE OR REPLACE VIEW by_state AS SELECT state, COUNT(*) AS n, SUM(cost) AS cost FROM visits GROUP BY state;
CREATE OR REPLACE VIEW by_year AS SELECT year, COUNT(*) AS n FROM visits GROUP BY year;
"""
KINDS = ("ratio", "difference of releases", "share of total", "rank", "argmax", "window", "join", "CASE")


@dataclass(frozen=True)
class Follow:
    """A follow-up query. ``whole``: the same without what leaves rows out, against which its rows are held."""

    kind: str
    sql: str
    whole: str


def generated(count: int, seed: int = 1) -> list[Follow]:
    """``count`` queries, the kinds in turn."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        sql, whole = _made(kind, rng)
        found.append(Follow(kind, sql, whole or sql))
    return found


def _made(kind: str, rng: np.random.Generator) -> tuple[str, str]:
    by, key = [("by_plan", "plan"), ("by_state", "state")][int(rng.integers(2))]
    state, year, top = STATES[int(rng.integers(5))], int(rng.choice(list(YEARS))), int(rng.integers(1, 4))
    number = ["n", "cost"][int(rng.integers(2))]
    pick = int(rng.integers(3))
    if kind == "ratio":
        return [
            f"SELECT {key}, cost / n AS r FROM {by}",
            f"SELECT a.year, a.n / b.n AS r FROM by_state_year a JOIN by_year b USING (year) WHERE state = '{state}'",
            f"SELECT {key}, 100.0 * cost / NULLIF(n, 0) - 50 AS r FROM {by}",
        ][pick], ""
    if kind == "difference of releases":
        return [
            "SELECT y.year, y.n - s.n AS d FROM by_year y "
            "JOIN (SELECT year, SUM(n) AS n FROM by_state_year GROUP BY year) s USING (year)",
            "SELECT (SELECT SUM(n) FROM by_year) - (SELECT n FROM total) AS d",
            f"SELECT s.state, s.{number} - 0.2 * t.{number} AS d FROM by_state s, total t",
        ][pick], ""
    if kind == "share of total":
        return [
            f"SELECT {key}, {number} / (SELECT {number} FROM total) AS s FROM {by}",
            f"SELECT {key}, {number} / SUM({number}) OVER () AS s FROM {by}",
            f"SELECT year, n / SUM(n) OVER () AS s FROM by_state_year WHERE state = '{state}'",
        ][pick], ""
    if kind == "rank":
        return [
            f"SELECT {key}, RANK() OVER (ORDER BY {number} DESC) AS r FROM {by}",
            f"SELECT state, RANK() OVER (ORDER BY n) AS r FROM by_state_year WHERE year = {year}",
            f"SELECT {key}, (SELECT COUNT(*) FROM {by} o WHERE o.{number} > t.{number}) AS r FROM {by} t",
        ][pick], ""
    if kind == "argmax":
        whole = f"SELECT {key}, {number} FROM {by}"
        return [
            (f"SELECT ARG_MAX({key}, {number}) AS best, MAX({number}) AS most FROM {by}", ""),
            (f"{whole} ORDER BY {number} DESC LIMIT {top}", whole),
            (f"{whole} QUALIFY ROW_NUMBER() OVER (ORDER BY {number}) <= {top}", whole),
        ][pick]
    if kind == "window":
        return [
            "SELECT state, year, n - LAG(n) OVER (PARTITION BY state ORDER BY year) AS w FROM by_state_year",
            f"SELECT {key}, SUM({number}) OVER (ORDER BY {key}) AS w FROM {by}",
            f"SELECT {key}, {number} - AVG({number}) OVER () AS w FROM {by}",
        ][pick], ""
    if kind == "join":
        return [
            "SELECT a.state, year, a.n / b.n AS j FROM by_state_year a JOIN by_state b USING (state)",
            "SELECT a.state, a.n - b.n AS j FROM by_state_year a JOIN by_state_year b ON a.state = b.state "
            f"AND a.year = {year} AND b.year = 2013",
            "SELECT y.year, s.state, y.n + s.n - t.n AS j FROM by_year y, by_state s, total t",
        ][pick], ""
    return [
        f"SELECT {key}, CASE WHEN {key} < 'O' THEN n ELSE cost / 50 END AS c FROM {by}",
        f"SELECT {key}, CASE WHEN n > {ROWS // 5} THEN n - {ROWS // 5} ELSE 0 END AS c FROM {by}",
        f"SELECT {key}, GREATEST({number}, 0.19 * (SELECT {number} FROM total)) AS c FROM {by}",
    ][pick], ""


def world(folder: Path, seed: int) -> tuple[Path, Path]:
    """A table of visits, whose groups are as large as the seed says, and its policy."""
    rng = np.random.default_rng(seed)
    data, policy = folder / "visits.duckdb", folder / "visits.toml"
    share = [rng.dirichlet(np.full(size, 30.0)) for size in (len(PLANS), len(STATES), len(YEARS))]
    at = [rng.choice(len(s), ROWS, p=s) for s in share]
    columns = {"p": at[0], "s": at[1], "y": at[2], "c": rng.integers(0, 101, ROWS)}
    with duckdb.connect(str(data)) as duck:
        duck.register("drawn", columns)
        duck.execute(
            f"CREATE TABLE visits AS SELECT {PLANS}[p + 1] AS plan, {STATES}[s + 1] AS state, "
            "(2013 + y)::INTEGER AS year, c::INTEGER AS cost FROM drawn"
        )
    listed = {"PLANS": PLANS, "STATES": STATES}
    text = POLICY
    for name, values in listed.items():
        text = text.replace(f"[{name}]", json.dumps(values))
    policy.write_text(text)
    return data, policy


def exact(data: Path) -> duckdb.DuckDBPyConnection:
    """The results without noise, under the names of the releases."""
    duck = duckdb.connect()
    duck.execute(f"ATTACH '{data}' AS private (READ_ONLY)")
    for statement in (FIRST + SECOND).split(";"):
        if statement.strip():
            duck.execute(statement.replace("OR REPLACE VIEW", "TABLE").replace("FROM visits", "FROM private.visits"))
    return duck


PICKED = """
dataset = "picked"
[budget]
epsilon = 100000.0
delta = 1e-9
pure_epsilon = 100000.0
[tables.t]
unit = "row"
[tables.t.columns]
g = { lower = 0, upper = [LAST], nulls = false }
"""


def picked(releases: int, epsilon: float = 1.0) -> None:
    """The share of intervals that miss among those of rows that noise helped to pick, the mean over releases.

    The k largest of m counts, which lie ``apart`` by so many of their standard errors: 0 is a tie of all.
    """
    print(f"\npicked: the k largest of m counts, {releases} releases each, intervals at 95 %")
    for apart in (0.0, 0.25, 1.0, 3.0):
        for m in (6, 24):
            with tempfile.TemporaryDirectory() as name:
                policy = Path(name) / "p.toml"
                policy.write_text(PICKED.replace("[LAST]", str(m - 1)))
                with duckdb.connect(f"{name}/d.duckdb") as duck:
                    sizes = [500 + round(apart * 2**0.5 / epsilon * g) for g in range(m)]
                    duck.execute("CREATE TABLE t (g INTEGER)")
                    for at, size in enumerate(sizes):
                        duck.execute("INSERT INTO t SELECT ? FROM range(?)", [at, size])
                missed: dict[int, list[float]] = defaultdict(list)
                with dpsql.connect(f"{name}/d.duckdb", policy=policy) as con:
                    for _ in range(releases):
                        rel = con.run("SELECT g, COUNT(*) AS n FROM t GROUP BY g", epsilon=epsilon, fresh=True)
                        for k in (1, 3):
                            asked = f"SELECT g, n FROM r{rel.id}.q1 ORDER BY n DESC LIMIT {k}"
                            rows = con.sql(asked, errors=True)
                            ends = zip(*(rows.column(c) for c in ("g", "n_low", "n_high")), strict=True)
                            missed[k].append(float(np.mean([not low <= sizes[g] <= high for g, low, high in ends])))
            said = ", ".join(f"k = {k}: {np.mean(held):.1%}" for k, held in missed.items())
            print(f"apart {apart:4.2f}, m = {m:2}: {said}", flush=True)


def ruled(releases: int, replicates: int = 999) -> None:
    """The rule for picked rows by itself, over standard normal noise: what share of the shown intervals misses.

    ``picked`` without releases, so that many settings are cheap: ends at level alpha k / m, m the rows that are among
    the k largest in any replicate.
    """
    rng = np.random.default_rng(1)
    print(
        f"\nthe rule alone: the k largest of m numbers, {releases} times each, intervals at 95 %: missed (half-width)"
    )
    for apart in (0.0, 0.25, 1.0, 3.0):
        for m in (6, 24):
            said = []
            for k in (1, 3):
                missed, width = [], []
                for _ in range(releases):
                    true = apart * np.arange(m)
                    x = true + rng.standard_normal(m)
                    moved = x + rng.standard_normal((replicates, m))
                    there = moved >= np.partition(moved, m - k, axis=1)[:, m - k, None]
                    top = np.argsort(x)[-k:]
                    contend = len(np.union1d(np.flatnonzero(there.any(axis=0)), top))
                    half = -float(ndtri(0.05 * k / contend / 2))
                    missed.append(np.mean(np.abs(x - true)[top] > half))
                    width.append(half)
                said.append(f"k = {k}: {np.mean(missed):.1%} ({np.mean(width):.2f})")
            print(f"apart {apart:4.2f}, m = {m:2}: {', '.join(said)}", flush=True)


def ranked(times: int, replicates: int = 999) -> None:
    """The ends of ranks by themselves, over standard normal noise: coverage and width, by percentiles and as shown.

    Of 60 numbers a quarter of the times.
    """
    rng = np.random.default_rng(1)
    print(f"\nranks of m numbers, {times} times each, intervals at 95 %: covered (width), by percentiles and as shown")
    for apart in (0.0, 0.25, 1.0, 3.0):
        for m in (2, 6, 24, 60) if apart < 1 else (2, 6, 24):
            held: list[list[tuple[float, float]]] = [[], []]
            for _ in range(times if m < 60 else -(-times // 4)):
                true = apart * np.arange(m)
                x = true + rng.standard_normal(m)
                moved = np.concatenate([x[None], x + rng.standard_normal((replicates, m))])
                ranks = 1.0 + np.argsort(np.argsort(-moved, axis=1), axis=1)
                wanted = 1 + (true[None, :] > true[:, None]).sum(axis=1)
                there = np.ones((replicates, m), dtype=bool)
                plain = spread_of(ranks[0], ranks[1:], there, (), None, 0.05, whole=True)
                for mine, found in zip(held, (plain, with_ranks(plain, ranks, [], 0.05)), strict=True):
                    covered = (found.low <= wanted) & (wanted <= found.high)
                    mine.append((float(covered.mean()), float((found.high - found.low).mean())))
            (a, b), (c, d) = (np.mean(mine, axis=0) for mine in held)
            print(f"apart {apart:4.2f}, m = {m:2}: {a:.1%} ({b:.1f}), {c:.1%} ({d:.1f})", flush=True)


class Tally:
    """What came out, by kind."""

    def __init__(self) -> None:
        self.cells: dict[str, list[tuple[bool, float]]] = defaultdict(list)
        self.open: dict[str, int] = defaultdict(int)
        self.present: list[tuple[float, bool]] = []
        self.seconds: list[tuple[float, float]] = []

    def ask(self, follow: Follow, con: dpsql.Connection, duck: duckdb.DuckDBPyConnection) -> None:
        """A query without errors, with them, and of the exact tables."""
        began = time.process_time()
        con.sql(follow.sql)
        between = time.process_time()
        answer = con.sql(follow.sql, errors=True)
        self.seconds.append((between - began, time.process_time() - between))
        self.add(follow, answer, duck)

    def add(self, follow: Follow, answer: dpsql.Result, duck: duckdb.DuckDBPyConnection) -> None:
        names = list(answer.columns)
        numbers = [name for name in names if f"{name}_low" in names]
        beside = {f"{n}{s}" for n in names for s in ("_stderr", "_low", "_high", "_present")}
        said = [name for name in names if f"{name}_present" in names and name not in numbers]
        keys = [name for name in names if name not in {*numbers, *beside, *said}]
        held = duck.execute(follow.whole)
        columns = [d[0] for d in held.description]
        exact_rows = [dict(zip(columns, row, strict=True)) for row in held.fetchall()]
        truth = {tuple(row[k] for k in keys): row for row in exact_rows}
        selected = [dict(zip(columns, row, strict=True)) for row in duck.execute(follow.sql).fetchall()]
        kept = {tuple(row[k] for k in keys) for row in selected}
        for row in answer.fetchall():
            cell = dict(zip(names, row, strict=True))
            key = tuple(cell[k] for k in keys)
            for name in numbers:
                if cell[name] is None:
                    continue
                low, high, error = (cell[f"{name}{s}"] for s in ("_low", "_high", "_stderr"))
                if low == -np.inf and high == np.inf:
                    self.open[follow.kind] += 1
                true, slack = truth[key][name], 1e-9 * max(abs(cell[name]), 1.0)
                width = (high - low) / (2 * error) if error and np.isfinite(high - low) else np.nan
                self.cells[follow.kind].append((low - slack <= true <= high + slack, width))
                if f"{name}_present" in names:
                    self.present.append((cell[f"{name}_present"], key in kept))
            for name in said:
                self.present.append((cell[f"{name}_present"], truth[key][name] == cell[name]))


def measured(epsilon: float, options: argparse.Namespace, queries: list[Follow]) -> Tally:
    """Pairs of releases at ``epsilon``, of Laplace and of Gaussian noise in turn, the second always Gaussian."""
    tally, place = Tally(), options.start
    each = -(-options.releases // options.worlds)
    for number in range(options.worlds):
        with tempfile.TemporaryDirectory() as name:
            data, policy = world(Path(name), options.first + number)
            with dpsql.connect(data, policy=policy) as con, exact(data) as duck:
                first = [con.plan(FIRST, epsilon=epsilon, **more) for more in ({}, {"delta": 1e-9})]
                second = con.plan(SECOND, epsilon=epsilon, delta=1e-9)
                for pair in range(each):
                    con.run(first[pair % 2], fresh=True)
                    con.run(second, fresh=True)
                    for _ in range(options.asked):
                        tally.ask(queries[place % len(queries)], con, duck)
                        place += 1
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", type=int, default=400)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--asked", type=int, default=16, help="queries that each pair of releases answers")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[0.1, 1.0])
    parser.add_argument("--worlds", type=int, default=8, help="tables that the releases are of")
    parser.add_argument("--start", type=int, default=0, help="number of the first query, for runs in pieces")
    parser.add_argument("--first", type=int, default=1, help="seed of the first table")
    parser.add_argument("--picked", type=int, default=0, help="releases for each setting of picked rows, alone")
    parser.add_argument("--rule", type=int, default=0, help="times each of the rule for picked rows, alone")
    parser.add_argument("--ranks", type=int, default=0, help="times each of ranks of numbers that lie near, alone")
    options = parser.parse_args()
    if options.ranks:
        return ranked(options.ranks)
    if options.rule:
        return ruled(options.rule)
    if options.picked:
        return picked(options.picked)
    queries = generated(options.queries)
    for epsilon in options.epsilon:
        tally = measured(epsilon, options, queries)
        print(f"\nepsilon {epsilon}: {options.releases} pairs of releases, {options.asked} queries each")
        print(f"{'kind':24} {'cells':>6} {'covered':>8} {'width':>6} {'open':>5}")
        every = [cell for cells in tally.cells.values() for cell in cells]
        for kind, cells in [*((kind, tally.cells[kind]) for kind in KINDS), ("all", every)]:
            opened = sum(tally.open.values()) if kind == "all" else tally.open[kind]
            widths = [w for _, w in cells if np.isfinite(w)]
            print(f"{kind:24} {len(cells):6} {np.mean([c for c, _ in cells]):8.2%} {np.mean(widths):6.2f} {opened:5}")
        present = np.array(tally.present, dtype=float)
        if len(present):
            p, was = present.T
            print(f"present: {len(p)} said {p.mean():.3f}, were {was.mean():.3f}; Brier {np.mean((p - was) ** 2):.4f} "
                  f"beside {was.mean() * (1 - was.mean()):.4f}")  # fmt: skip
        bare, whole = np.array(tally.seconds).T
        late = np.mean(whole > 2 * bare + 0.3)
        print(f"seconds of processor: bare {np.median(bare):.3f}, with errors {np.median(whole):.3f} (median), "
              f"{np.percentile(whole, 95):.3f} (95 %); {late:.1%} above twice the bare query and 0.3 s")  # fmt: skip


if __name__ == "__main__":
    main()
