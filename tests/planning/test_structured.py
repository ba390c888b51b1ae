"""Batches planned block by block: exact answers, sensitivity by brute force, errors against dense matrices."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import engine_of, filled, policy_of, sources_of, tables_of, understood

import dpsql
from dpsql.errors import DataError
from dpsql.measure import Job, cells
from dpsql.planning.last_plans import LastPlans
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import ResidualAnswers, half_widths, residual_answers
from dpsql.strategies.kronecker import shared_rows, structured
from dpsql.strategies.kronecker.structured_blocks import error_of, precision_of
from dpsql.strategies.kronecker.structured_bound import _Table, structured_bound
from dpsql.strategies.marginals.marginal_strategy import block_strategy
from dpsql.strategy import Strategy, StructuredStrategy, select, structured_strategy
from dpsql.workload import marginals
from dpsql.workloads.compile import choice
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.layout import common_multiplicity
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.structured import Structured, compile_structured, with_histograms
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.families.matrix import Workload

TABLES = """
[tables.t]
unit = "row"
[tables.t.columns]
a = { values = ["x", "y", "z"], other = true }
b = { values = [1, 2, 3, 4], nulls = false }
c = { lower = 0, upper = 5 }
v = { lower = -3, upper = 10 }
w = { lower = 0, upper = 4, nulls = false }
s = { type = "VARCHAR", values = ["p", "q"] }
[tables.u]
unit = "owner"
max_rows_per_unit = 3
[tables.u.columns]
owner = { }
g = { values = [1, 2, 3], nulls = false }
h = { values = ["k", "l"], nulls = false }
m = { lower = 0, upper = 2 }
"""
POLICY = policy_of(TABLES)

BATCHES = {
    "marginals": "SELECT a, b, c, COUNT(*) AS n FROM t GROUP BY dp_marginals(2, a, b, c)",
    "cube": "SELECT a, b, s, COUNT(*) AS n FROM t GROUP BY CUBE (a, b, s)",
    "rollup": "SELECT b, s, c, COUNT(*) AS n FROM t GROUP BY ROLLUP (b, s, c)",
    "conditions": "SELECT a, COUNT(*) FROM t WHERE c BETWEEN 1 AND 3 GROUP BY a; SELECT b, COUNT(*) FROM t GROUP BY b"
    "; SELECT COUNT(*) FROM t WHERE c < 2 AND s = 'p'; SELECT COUNT(*) FROM t",
    "across": "SELECT b, COUNT(*) FROM t WHERE a = 'x' OR c > 3 GROUP BY b; SELECT COUNT(*) FROM t"
    " WHERE b = 2 OR b > c",
    "cases": "SELECT CASE WHEN a = 'x' AND c > 2 THEN 1 WHEN b = 4 THEN 2 ELSE 3 END AS k, s, COUNT(*) FROM t GROUP BY"
    " ALL; SELECT s, COUNT(*) FROM t GROUP BY s",
    "ranges": "SELECT dp_ranges(b), COUNT(*) AS n FROM t GROUP BY dp_ranges(b); SELECT dp_prefixes(w), s, COUNT(*) AS n"
    " FROM t GROUP BY dp_prefixes(w), s; SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b",
    "sums": "SELECT a, b, COUNT(*) AS n, SUM(v) AS sv, SUM(w) AS sw FROM t GROUP BY CUBE (a, b)",
    "averages": "SELECT b, s, AVG(v) AS m, COUNT(*) AS n FROM t GROUP BY dp_marginals(2, b, s)",
    "differences": "SELECT b, s, COUNT_IF(c > 2) - 2 * COUNT_IF(a = 'x'), SUM(v) - SUM(w) FROM t GROUP BY CUBE (b, s)",
    "variance": "SELECT b, VAR_POP(w) AS x, COUNT(*) AS n FROM t GROUP BY CUBE (b)",
    "units": "SELECT g, h, COUNT(*) AS n, SUM(m) AS sm FROM u GROUP BY CUBE (g, h)",
    "counted units": "SELECT g, h, COUNT(*) AS n, COUNT(DISTINCT owner) AS p FROM u GROUP BY ROLLUP (g, h); SELECT b,"
    " COUNT(*) AS n FROM t WHERE c > 2 GROUP BY b; SELECT h, COUNT(DISTINCT owner) AS p FROM u WHERE m > 0 GROUP BY h",
    "two tables": "SELECT g, h, COUNT(*) AS n FROM u GROUP BY CUBE (g, h); SELECT b, s, COUNT(*) AS n FROM t"
    " GROUP BY CUBE (b, s)",
}  # fmt: skip


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (a VARCHAR, b INTEGER, c INTEGER, v INTEGER, w INTEGER, s VARCHAR)")
    con.execute("CREATE TABLE u (owner INTEGER, g INTEGER, h VARCHAR, m INTEGER)")
    fill(con, 200, 100)
    return con


def fill(con: duckdb.DuckDBPyConnection, rows: int, units: int) -> None:
    """Rows that keep what the policy says, NULL and values out of bounds among them."""
    rng = np.random.default_rng(3)

    def drawn(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    con.execute("DELETE FROM t; DELETE FROM u")
    con.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", [
        [drawn(["x", "y", "z", "other", None]), drawn([1, 2, 3, 4]), drawn([*range(-1, 8), None]),
         drawn([-9, -3, 0, 1, 2, 10, 77, None]), drawn([0, 1, 2, 4]), drawn(["p", "q", None])]
        for _ in range(rows)
    ])  # fmt: skip
    con.executemany("INSERT INTO u VALUES (?, ?, ?, ?)", [
        [unit, drawn([1, 2, 3]), drawn(["k", "l"]), drawn([0, 1, 2, 5, None])]
        for unit in range(units) for _ in range(int(rng.integers(1, 4)))
    ])  # fmt: skip


@functools.cache
def compiled(name: str, con: duckdb.DuckDBPyConnection) -> tuple[Structured, Compiled]:
    found = understood(BATCHES.get(name, name), POLICY, tables_of(POLICY, engine_of(con)))
    return compile_structured(found.queries, found.tables), compile_batch(found.queries, found.tables)


def job_of(batch: Structured, integers: Any) -> Job:
    nothing: Any = None
    return Job(batch.layouts, integers, batch.common_steps, 1, nothing, {}, sources_of(POLICY), {})


def measured(strategy: StructuredStrategy, con: duckdb.DuckDBPyConnection) -> list[int]:
    """B (L x), exactly."""
    return cells.observed(job_of(strategy.planned, strategy.measured), engine_of(con), [0] * strategy.shape[0])


def answers_of(strategy: StructuredStrategy) -> ResidualAnswers:
    batch = strategy.planned
    return ResidualAnswers(batch.blocks, strategy.residuals, batch.sizes, batch.numbers)


def exact(joint: Compiled, con: duckdb.DuckDBPyConnection) -> np.ndarray:
    """The answers without noise and constants, by the one matrix over merged cells."""
    from helpers import exact_answers

    _, found = exact_answers(joint, POLICY, engine_of(con))
    out = np.array([float(value) for value in found])
    for span in joint.spans:
        out[span.start : span.stop] -= float(span.output.constant)
    return out


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few(every=6)
def test_without_noise_answers_are_exact(con: duckdb.DuckDBPyConnection, name: str, noise: str) -> None:
    batch, joint = compiled(name, con)
    strategy = structured_strategy(batch, noise)
    y = measured(strategy, con)
    found = answers_of(strategy).estimate(y, batch.common_steps)
    np.testing.assert_allclose(found, exact(joint, con), atol=1e-8)


def dense(answers: ResidualAnswers, p: int) -> np.ndarray:
    """R (m x p), column by column."""
    eye = np.eye(p, dtype=int).tolist()
    return np.stack([answers.estimate(row, 1) for row in eye], axis=1)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few(every=6)
def test_error_bars_are_those_of_the_dense_matrix(con: duckdb.DuckDBPyConnection, name: str, kind: str) -> None:
    batch, _ = compiled(name, con)
    strategy = structured_strategy(batch, kind)
    answers = answers_of(strategy)
    R = dense(answers, strategy.shape[0])
    noise = Noise.gaussian(10**8) if kind == "gaussian" else Noise.laplace(10**4)
    np.testing.assert_allclose(answers.errors(noise, 7), np.sqrt((R * R).sum(axis=1) * noise.variance) / 7, rtol=1e-9)
    np.testing.assert_allclose(answers.widths(noise, 0.1, 7), half_widths(R, noise, 0.1) / 7, rtol=2e-3)
    # What was minimised is what the rows say, at the sensitivity of a whole unit.
    weight = np.zeros(batch.numbers)
    for block in batch.blocks:
        weight[block.start : block.stop] = block.weight
    common = common_multiplicity(batch.layouts)
    sensitivity = sensitivity_of(kind, strategy.measured, strategy.planned.layouts) / (
        common if kind == "laplace" else common**2
    )
    total = float((weight[:, None] ** 2 * R * R).sum()) * (sensitivity**2 if kind == "laplace" else sensitivity)
    assert strategy.expected == pytest.approx(total, rel=1e-9)
    for query in {span.query for span in batch.spans}:
        parts = [slice(span.start, span.stop) for span in batch.spans if span.query == query]
        groups = parts[0].stop - parts[0].start
        rows = np.asarray(answers.rows(parts, noise)).reshape(len(parts), groups, -1)
        mine = np.stack([R[part] for part in parts])
        np.testing.assert_allclose(
            np.einsum("igp,jgp->gij", rows, rows), np.einsum("igp,jgp->gij", mine, mine), atol=1e-12
        )
    # The protocol says the same of each number, and B written out is what is measured.
    squares = (sensitivity**2 if kind == "laplace" else sensitivity) * weight**2 * (R * R).sum(axis=1)
    np.testing.assert_allclose(strategy.variances(batch), squares, rtol=1e-9, atol=1e-12 * squares.max())
    assert strategy.error(batch) == pytest.approx(squares.sum())
    assert strategy.largest(strategy.planned) == pytest.approx(squares.max())
    assert isinstance(strategy, Strategy)
    if np.prod(strategy.shape) < 20_000:
        x = np.random.default_rng(0).integers(0, 9, strategy.shape[1])
        assert strategy.measured.times(x.tolist(), 4) == np.rint(strategy.matrix() @ x).astype(int).tolist()


ROWS = [
    (a, b, c, v, w, s)
    for a, b, c, v, w, s in itertools.product(["x", "z", "no", None], [1, 4], [-7, 1, 2, 5, None], [-99, 10, None],
                                              [0, 4], ["p", None])
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BATCHES if name not in ("units", "two tables")])
@pytest.mark.few("cube", "cases")
def test_no_row_moves_more_than_claimed(name: str) -> None:
    own = duckdb.connect()
    own.execute("CREATE TABLE t (a VARCHAR, b INTEGER, c INTEGER, v INTEGER, w INTEGER, s VARCHAR)")
    own.execute("CREATE TABLE u (owner INTEGER, g INTEGER, h VARCHAR, m INTEGER)")
    batch, _ = compiled(name, own)
    for noise in ("gaussian", "laplace"):
        strategy = structured_strategy(batch, noise)
        # Beside rows that keep to the policy, one that breaks it: closed domains, NULL where none may be.
        largest, L = 0, batch.common_steps
        rng = np.random.default_rng(4)
        every = [*ROWS, ("x", 9, 1, 2, 7, "r"), (None, None, None, None, None, None)]
        chosen = [every[i] for i in rng.choice(len(every), 12, replace=False)] + every[-2:]
        before = measured(strategy, own)
        for row in chosen:
            own.execute("DELETE FROM t")
            own.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", row)
            moved = [y - x for x, y in zip(before, measured(strategy, own), strict=True)]
            largest = max(largest, sum(d * d if noise == "gaussian" else abs(d) for d in moved))
        own.execute("DELETE FROM t")
        claim = sensitivity_of(noise, strategy.measured, strategy.planned.layouts) * L ** (
            2 if noise == "gaussian" else 1
        )
        assert largest <= claim
        marginals = batch.pure and not any(block.component for block in batch.blocks)
        if noise == "gaussian" and marginals and name != "counted units":  # units move others than rows of t do
            assert largest == claim  # all cells of marginals move alike
        else:
            assert largest > claim / 3  # a bound, but not an idle one


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_no_unit_of_several_rows_moves_more_than_claimed(noise: str) -> None:
    own = duckdb.connect()
    own.execute("CREATE TABLE t (a VARCHAR, b INTEGER, c INTEGER, v INTEGER, w INTEGER, s VARCHAR)")
    own.execute("CREATE TABLE u (owner INTEGER, g INTEGER, h VARCHAR, m INTEGER)")
    batch, _ = compiled("units", own)
    strategy = structured_strategy(batch, noise)
    others = [(2, 1, "k", 1), (2, 2, "l", None), (3, 3, "k", 2), (None, 1, "k", 2)]
    own.executemany("INSERT INTO u VALUES (?, ?, ?, ?)", others)
    before = measured(strategy, own)
    claim = sensitivity_of(noise, strategy.measured, strategy.planned.layouts) * batch.common_steps ** (
        2 if noise == "gaussian" else 1
    )
    largest = 0
    for rows in [[(1, 1, "k", 0)] * 3, [(1, 1, "k", 2)] * 5, [(1, 2, "l", 2), (1, 2, "l", None), (1, 3, "k", 9)],
                 [(1, g, h, m) for g in (1, 2, 3) for h in ("k", "l") for m in (0, 7)]]:  # fmt: skip
        own.executemany("INSERT INTO u VALUES (?, ?, ?, ?)", rows)
        moved = [y - x for x, y in zip(before, measured(strategy, own), strict=True)]
        own.execute("DELETE FROM u WHERE owner = 1")
        largest = max(largest, sum(d * d if noise == "gaussian" else abs(d) for d in moved))
    assert claim / 10 < largest <= claim


@pytest.mark.parametrize("name", ["marginals", "cube", "rollup"])
def test_marginals_reach_the_optimum(con: duckdb.DuckDBPyConnection, name: str) -> None:
    # c has a region outside its bounds that is no group, so that only "cube" is made of marginals alone.
    name = {"marginals": "SELECT a, b, s, COUNT(*) AS n FROM t GROUP BY dp_marginals(2, a, b, s)"}.get(name, name)
    batch, joint = compiled(name, con)
    strategy = structured_strategy(batch, "gaussian")
    best = select(joint.workload(joint.objective), "gaussian", tolerance=1e-4)
    assert strategy.gap is not None
    assert strategy.gap < (1e-3 if batch.pure else 1e-2)
    assert strategy.expected == pytest.approx(best.expected, rel=1e-3 if batch.pure else 1e-2)
    assert strategy.lower_bound is not None
    assert strategy.lower_bound <= best.expected * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.long
def test_noisy_answers_are_as_good_as_they_say(con: duckdb.DuckDBPyConnection, kind: str) -> None:
    batch, joint = compiled("sums", con)
    strategy = structured_strategy(batch, kind)
    noise = Noise.gaussian(10**6) if kind == "gaussian" else Noise.laplace(700)
    answers, L = answers_of(strategy), batch.common_steps
    y = measured(strategy, con)
    trials = 400
    found = np.array([
        answers.estimate([a + z for a, z in zip(y, noise.sample(len(y)), strict=True)], L) for _ in range(trials)
    ])  # fmt: skip
    z = (found - exact(joint, con)) / answers.errors(noise, L)
    assert np.abs(z.mean(axis=0)).max() < 6 / np.sqrt(trials)
    assert np.abs((z * z).mean(axis=0) - 1).max() < 6 * np.sqrt(6 / trials)


def test_a_release_end_to_end(con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "FEW_CELLS", 10)
    monkeypatch.setattr(choice, "_is_structured", lambda batch: True)
    text = f'dataset = "test-1"\n[budget]\nepsilon = 40.0\ndelta = 1e-6\n{TABLES}'
    connection = dpsql.connect(con, policy=dpsql.Policy.parse(text), ledger=tmp_path / "t.ledger")
    batch = "CREATE VIEW m AS SELECT a, b, s, COUNT(*) AS n, AVG(v) AS mean FROM t GROUP BY dp_marginals(2, a, b, s)"
    plan = connection.plan(batch, epsilon=20, delta=1e-6)
    assert isinstance(plan.compiled, Structured)
    assert "levels" in plan.explain()
    assert "AVG" in plan.explain() or "mean" in plan.explain()
    release = connection.run(plan)
    result = release["m"]
    assert len(result) == 5 + 4 + 3 + 5 * 4 + 5 * 3 + 4 * 3
    again = connection.run(plan)
    assert (again.id, again.cost) == (release.id, 0.0)
    assert connection.rebuild() == 1
    assert connection.sql("SELECT * FROM m") == result
    by_b = connection.sql("SELECT SUM(n) FROM m WHERE b IS NOT NULL AND a IS NULL AND NOT a_other AND s IS NULL")
    assert by_b.fetchall()[0][0] is not None


def whole(batch: Structured, table: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """(W (m x components x cells) of one table over all combinations of regions, weights and all; the cells)."""
    sizes = batch.sizes[table]
    cells = list(np.ndindex(*sizes))
    mine = [block for block in batch.blocks if block.table == table]
    W = np.zeros((batch.numbers, 1 + max(block.component for block in mine), len(cells)))
    for block in mine:
        labels = np.stack(np.unravel_index(np.arange(block.stop - block.start), block.key_sizes or (1,)))
        rows = np.full((block.stop - block.start, len(cells)), block.weight * block.coefficient)
        for factor in block.factors:
            group = np.zeros(rows.shape[0], dtype=int)
            for key in factor.keys:
                group = group * block.key_sizes[key] + labels[key]
            at = [np.ravel_multi_index([cell[i] for i in factor.axes], [sizes[i] for i in factor.axes])
                  for cell in cells]  # fmt: skip
            rows *= factor.matrix.toarray()[group][:, at]
        W[block.start : block.stop, block.component] += rows
    return W, cells


def nulls_of(batch: Structured, table: int) -> dict[tuple[int, int], int]:
    """The NULL region of each measure's column where that is an axis: (component, axis) -> region."""
    measures: dict[str, list[int]] = {
        m.column: [] for number in batch.owners[table] for m in batch.layouts[number].measures
    }
    for number in batch.owners[table]:
        layout = batch.layouts[number]
        held = [h for h in batch.histograms if layout.entry.min() <= h.start <= layout.entry.max()]
        for measure_, histogram in zip(layout.measures, held[1:], strict=True):
            measures[measure_.column].append(histogram.component)
    found = {}
    for number in batch.owners[table]:
        axes = next(h.axes for h in batch.histograms if h.start == batch.layouts[number].entry.min())
        for place, axis in zip(axes, batch.layouts[number].cells.axes, strict=True):
            for component in measures.get(axis.name, ()):
                assert isinstance(axis, LineAxis)
                found[component, place] = axis.null_region
    return found


def corners(W: np.ndarray, cells: list[tuple[int, ...]], nulls: dict[tuple[int, int], int]) -> Any:
    """(contributions (entries x corners), the cell of each): what one row can add to the components of all cells."""
    columns, where = [], []
    for at, cell in enumerate(cells):
        free = [k for k in range(1, W.shape[1]) if not any(c == k and cell[i] == r for (c, i), r in nulls.items())]
        for signs in itertools.product((1, -1), repeat=len(free)):
            column = np.zeros((W.shape[1], len(cells)), dtype=np.int64)
            column[0, at] = 1
            column[free, at] = signs
            columns.append(column.ravel())
            where.append(at)
    return np.array(columns).T, np.array(where)


@pytest.mark.parametrize("name", [name for name in BATCHES if name not in ("two tables", "counted units")])
@pytest.mark.few(every=4)
def test_the_bound_is_that_of_the_matrix_over_all_cells(con: duckdb.DuckDBPyConnection, name: str) -> None:
    batch, _ = compiled(name, con)
    W, cells = whole(batch, 0)
    C, where = corners(W, cells, nulls_of(batch, 0))
    moved = W.reshape(W.shape[0], -1) @ C
    counts = np.bincount(where)
    best = 0.0
    # Regions that no block with their axis counts may have less weight than others.
    idle = [np.ones(size, dtype=bool) for size in batch.sizes[0]]
    for block in batch.blocks:
        for factor in block.factors:
            held = abs(factor.matrix).sum(axis=0).reshape([batch.sizes[0][i] for i in factor.axes])
            for at, axis in enumerate(factor.axes):
                idle[axis] &= np.moveaxis(held, at, 0).reshape(len(idle[axis]), -1).sum(axis=1) == 0
    for share in (0.0, 0.02, 0.1, 0.3, 1.0):
        parts = [np.where(unused, share, 1.0) for unused in idle]
        lam = np.array([np.prod([part[r] / part.sum() for part, r in zip(parts, cell, strict=True)]) for cell in cells])
        root = np.sqrt(lam[where] / counts[where])
        best = max(best, float(np.linalg.svd(moved * root, compute_uv=False).sum()) ** 2)
    found = structured_bound(batch)
    assert found is not None
    if any(block.component for block in batch.blocks):  # signs that lean may give more than fair ones
        assert found >= best * (1 - 1e-6)
    else:
        assert found == pytest.approx(best, rel=1e-6)
    strategy = structured_strategy(batch, "gaussian")
    assert strategy.lower_bound is not None
    assert strategy.lower_bound >= found * (1 - 1e-12)  # weights of its own are tried, too
    assert strategy.gap == pytest.approx(strategy.expected / strategy.lower_bound - 1, abs=1e-9)
    # No mechanism is below it: not even the best over all cells at once, whose own bound is known.
    scale = np.abs(W).max()
    rows = np.rint(W.reshape(W.shape[0], -1) * (2.0**40 / scale))
    workload = Workload.from_rows(rows, np.full(W.shape[0], scale / 2.0**40), contributions=C)
    least = select(workload, "gaussian", tolerance=1e-2)
    assert least.lower_bound is not None
    assert max(best, strategy.lower_bound) <= least.expected * (1 + 1e-6)
    assert least.lower_bound <= strategy.expected * (1 + 1e-6)


def leant(batch: Structured, means: np.ndarray) -> float:
    """The bound of table 0 with signs of these means and regions of equal weights, but none for NULL."""
    blocks = shared_rows.leaning([block for block in batch.blocks if block.table == 0], means)
    return _Table(batch, 0, blocks, nulls=False).at(1.0)[0]


@pytest.mark.parametrize("name", ["sums", "averages", "differences", "variance", "units"])
def test_leaning_signs_are_those_of_corners_with_their_chances(con: duckdb.DuckDBPyConnection, name: str) -> None:
    batch, _ = compiled(name, con)
    W, cells = whole(batch, 0)
    nulls = nulls_of(batch, 0)
    kept = [at for at, cell in enumerate(cells) if not any(cell[axis] == region for (_, axis), region in nulls.items())]
    W = W[:, :, kept]
    C, where = corners(W, [cells[at] for at in kept], {})
    signs = np.array([C[:, j].reshape(W.shape[1], -1)[1:, where[j]] for j in range(C.shape[1])])
    m = np.array([min(0.9, 0.9 / signs.shape[1]) * (-1) ** k * 0.8**k for k in range(signs.shape[1])])
    chance = (1 + signs @ m) / 2.0 ** signs.shape[1]
    assert chance.min() >= 0
    np.testing.assert_allclose(np.bincount(where, weights=chance), 1.0)
    moved = W.reshape(W.shape[0], -1) @ C * np.sqrt(chance / len(kept))
    true = float(np.linalg.svd(moved, compute_uv=False).sum())
    assert leant(batch, np.append(0.0, m)) == pytest.approx(true, rel=1e-9)


def test_signs_that_lean_certify_counts_and_sums(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of these has a sum of values from 0: fair signs leave 4.7 % between the error and the bound.
    batch, _ = compiled("SELECT b, s, COUNT(*) AS n, SUM(w) AS sw FROM t GROUP BY dp_marginals(2, b, s)", con)
    strategy = structured_strategy(batch, "gaussian")
    assert strategy.gap is not None
    assert strategy.gap < 2e-3
    # Sums kept whole beside counts that they lean into are more than one row can add: no bound of anything.
    sums = [replace(one, component=0, coefficient=0.447 * one.coefficient) for one in batch.blocks if one.component]
    both = _Table(batch, 0, [*batch.blocks, *sums], nulls=False).at(1.0)[0]
    assert both**2 > strategy.expected * 1.05
    assert leant(batch, np.array([0.0, 0.447])) ** 2 <= strategy.expected
    monkeypatch.setattr("dpsql.strategies.kronecker.structured_bound.means_of", lambda _: np.zeros(1))
    fair = structured_bound(batch)
    assert fair is not None
    assert strategy.expected / fair - 1 > 0.04


def test_a_bound_that_costs_too_much_is_none(con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = compiled("ranges", con)
    monkeypatch.setattr(shared_rows, "MOST_ORDER", 3)
    strategy = structured_strategy(batch, "gaussian")
    assert (strategy.lower_bound, strategy.gap) == (None, None)
    assert structured_strategy(batch, "laplace").gap is None


@pytest.mark.long
def test_marginals_over_many_columns_are_certified(con: duckdb.DuckDBPyConnection) -> None:
    names = [f"c{i}" for i in range(12)]
    own = duckdb.connect()
    own.execute(f"CREATE TABLE wide ({', '.join(f'{name} INTEGER' for name in names)})")
    columns = "\n".join(f"{name} = {{ lower = 0, upper = 9 }}" for name in names)
    policy = policy_of(f'[tables.wide]\nunit = "row"\n[tables.wide.columns]\n{columns}')
    text = f"SELECT {', '.join(names)}, COUNT(*) FROM wide GROUP BY dp_marginals(2, {', '.join(names)})"
    for extra, most in (("", 0.02), ("; SELECT dp_ranges(c0), c1, COUNT(*) FROM wide GROUP BY dp_ranges(c0), c1", 0.2)):
        found = understood(text + extra, policy, tables_of(policy, engine_of(own)))
        batch = compile_structured(found.queries, found.tables)
        assert not batch.pure  # values outside the bounds are in no group
        gap = structured_strategy(batch, "gaussian").gap
        assert gap is not None
        assert 0 <= gap < most


def test_multipliers_too_fine_to_be_measured_are_coarser(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not refused: the error is that of the coarser integers, which fit."""
    batch, _ = compiled("cube", con)
    fine = structured_strategy(batch, "gaussian")
    width = fine.measured._width
    monkeypatch.setattr("dpsql.workloads.compile.kronecker._LEAST", width + 3)
    coarse = structured_strategy(batch, "gaussian")
    assert coarse.measured.fits
    assert fine.expected < coarse.expected < 1.1 * fine.expected
    assert coarse.l2_squared == sensitivity_of("gaussian", coarse.measured, batch.layouts)
    monkeypatch.setattr("dpsql.workloads.compile.kronecker._LEAST", 62)
    with pytest.raises(DataError, match="too large to measure exactly"):
        structured_strategy(batch, "gaussian")


def test_what_cannot_be_planned_says_what_to_leave_out(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = compiled("cube", con)
    for cap, said in (
        ("MEASURED", r"needs about [0-9,]+ measurements, at most 3 are made: .* or leave out \w+"),
        ("MAX_RESIDUALS", r"more than 3 residuals, .* or leave out \w+"),
        ("MAX_AXES", r"combines \d+ columns and conditions, at most 1 are planned: leave out \d of them, such as \w+"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(structured, cap, 1 if cap == "MAX_AXES" else 3)
            with pytest.raises(DataError, match=said):
                structured_strategy(batch, "gaussian")


# -- whole tables under Laplace noise ----------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "order"), [((2, 2, 2, 2, 2, 2), 2), ((3, 4, 5, 6), 2), ((4, 3, 2, 5), 3)])
def test_marginals_under_pure_noise_are_planned_as_blocks_of_attributes(sizes: tuple[int, ...], order: int) -> None:
    names = [f"c{i}" for i in range(len(sizes))]
    own = duckdb.connect()
    own.execute(f"CREATE TABLE wide ({', '.join(f'{name} INTEGER' for name in names)})")
    domains = "\n".join(
        f"{name} = {{ values = {list(range(d))}, nulls = false }}" for name, d in zip(names, sizes, strict=True)
    )
    policy = policy_of(f'[tables.wide]\nunit = "row"\n[tables.wide.columns]\n{domains}')
    text = f"SELECT {', '.join(names)}, COUNT(*) FROM wide GROUP BY dp_marginals({order}, {', '.join(names)})"
    found = understood(text, policy, tables_of(policy, engine_of(own)))
    batch = compile_structured(found.queries, found.tables)
    strategy = structured_strategy(batch, "laplace", tolerance=1e-3)
    W = marginals(sizes, range(1, order + 1))
    known = block_strategy(W)
    assert strategy.expected <= known.expected * (1 + 1e-3)
    assert strategy.method == "marginal-blocks"
    assert [name for name, _ in strategy.considered] == ["marginal-blocks", "residual-basis"]
    # A row is in one cell of each table, so the sensitivity is the sum of the multipliers.
    assert strategy.l1 == sum(residual.multiplier for residual in strategy.residuals)
    for residual in strategy.residuals:
        assert residual.whole
        assert set(residual.axes) <= set(strategy.planned.histograms[residual.histogram].axes)


def test_whole_tables_need_not_be_groupings_of_the_batch(con: duckdb.DuckDBPyConnection) -> None:
    names = [f"c{i}" for i in range(6)]
    own = duckdb.connect()
    own.execute(f"CREATE TABLE wide ({', '.join(f'{name} INTEGER' for name in names)})")
    rows = np.random.default_rng(5).integers(0, 2, size=(50, 6))
    own.executemany(f"INSERT INTO wide VALUES ({', '.join('?' * 6)})", rows.tolist())
    domains = "\n".join(f"{name} = {{ values = [0, 1], nulls = false }}" for name in names)
    policy = policy_of(f'[tables.wide]\nunit = "row"\n[tables.wide.columns]\n{domains}')
    text = f"SELECT {', '.join(names)}, COUNT(*) FROM wide GROUP BY dp_marginals(2, {', '.join(names)})"
    found = understood(text, policy, tables_of(policy, engine_of(own)))
    batch = compile_structured(found.queries, found.tables)
    strategy = structured_strategy(batch, "laplace")
    assert max(len(histogram.axes) for histogram in batch.histograms) == 2
    assert max(len(residual.axes) for residual in strategy.residuals) > 2
    nothing: Any = None
    job = Job(strategy.planned.layouts, strategy.measured, 1, 1, nothing, {}, sources_of(policy), {})
    y = cells.observed(job, engine_of(own), [0] * strategy.shape[0])
    expected: list[int] = []
    for order in (1, 2):
        for S in itertools.combinations(range(6), order):
            expected += np.bincount(rows[:, S] @ (2 ** np.arange(order)[::-1]), minlength=2**order).tolist()
    np.testing.assert_allclose(answers_of(strategy).estimate(y, 1), expected, atol=1e-8)
    layouts = with_histograms(batch, {0: {(): {0}, (0,): {0}, (0, 1): {0}}}).layouts
    assert [len(layout.cells.axes) for layout in layouts] == [2]


def test_precisions_are_those_of_least_squares(con: duckdb.DuckDBPyConnection) -> None:
    batch, _ = compiled("marginals", con)
    measured_on = {(0, 0, (0, 1)): 3, (0, 0, (1, 2)): 2, (0, 0, (2,)): 5}
    costs = {(0, 0, T): 1.0 for T in ((), (0,), (1,), (2,), (0, 1), (1, 2))}
    sizes = batch.sizes[0]
    rows = []
    for (_, _, S), k in measured_on.items():
        part = np.ones((1, 1))
        for axis, d in enumerate(sizes):
            part = np.kron(part, np.eye(d) if axis in S else np.ones((1, d)))
        rows.append(k * part)
    inverse = np.linalg.pinv(np.vstack(rows))
    found = precision_of(batch, costs, measured_on)
    for (_, _, T), precision in found.items():
        w = np.ones((1, 1))
        for axis, d in enumerate(sizes):
            one = np.eye(d)[:1] - 1 / d if axis in T else np.ones((1, d))
            w = np.kron(w, one)
        # w is the first centred row of T, summed over the other axes: its squared norm within T is prod (1 - 1 / d).
        norm = np.prod([1 - 1 / sizes[axis] for axis in T])
        assert ((w @ inverse) ** 2).sum() == pytest.approx(norm / precision)
    assert error_of(batch, {**costs, (0, 0, (0, 2)): 1.0}, measured_on) == float("inf")


def test_widths_of_many_laplace_weights_are_bounds(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = compiled("cube", con)
    answers = answers_of(structured_strategy(batch, "laplace"))
    noise = Noise.laplace(10**4)
    exact_widths = answers.widths(noise, 0.05, 1)
    monkeypatch.setattr(residual_answers, "_LAPLACE_WORK", 0)
    bounds_on_them = answers.widths(noise, 0.05, 1)
    assert (bounds_on_them >= exact_widths * (1 - 1e-5)).all()
    assert (bounds_on_them <= exact_widths * 1.09).all()


@pytest.mark.long
def test_many_groupings_are_planned() -> None:
    names = [f"c{i}" for i in range(92)]
    own = duckdb.connect()
    own.execute(f"CREATE TABLE wide ({', '.join(f'{name} INTEGER' for name in names)})")
    domains = "\n".join(f"{name} = {{ values = [0, 1, 2, 3], nulls = false }}" for name in names)
    policy = policy_of(f'[tables.wide]\nunit = "row"\n[tables.wide.columns]\n{domains}')
    text = f"SELECT {', '.join(names)}, COUNT(*) FROM wide GROUP BY dp_marginals(2, {', '.join(names)})"
    found = understood(text, policy, tables_of(policy, engine_of(own)))
    assert len(found.queries) == 92 + 92 * 91 // 2
    batch = compile_structured(found.queries, found.tables)
    strategy = structured_strategy(batch, "gaussian")
    assert strategy.gap is not None
    assert strategy.gap < 1e-3


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_long_column_beside_others_is_planned_though_values_out_of_bounds_have_no_group(noise: str) -> None:
    own = duckdb.connect()
    own.execute("CREATE TABLE long (k INTEGER, g INTEGER)")
    rng = np.random.default_rng(8)
    places = zip(rng.integers(-5, 3_005, size=60).tolist(), rng.integers(1, 4, size=60).tolist(), strict=True)
    own.executemany("INSERT INTO long VALUES (?, ?)", list(places))
    columns = "k = { lower = 0, upper = 2999 }\ng = { values = [1, 2, 3] }"
    policy = policy_of(f'[tables.long]\nunit = "row"\n[tables.long.columns]\n{columns}')
    text = "SELECT k, COUNT(*) AS n FROM long GROUP BY k; SELECT g, COUNT(*) AS n FROM long GROUP BY g"
    found = understood(text, policy, tables_of(policy, engine_of(own)))
    batch = compile_structured(found.queries, found.tables)
    strategy = structured_strategy(batch, noise)
    assert noise == "laplace" or (strategy.gap is not None and strategy.gap < 1e-3)
    batch = strategy.planned
    job = Job(batch.layouts, strategy.measured, batch.common_steps, 1, None, {}, sources_of(policy), {})
    y = cells.observed(job, engine_of(own), [0] * strategy.shape[0])
    answers = strategy.answers_of(batch)
    numbers = answers.estimate(y, batch.common_steps)
    counted = dict(own.execute("SELECT k, COUNT(*) FROM long GROUP BY k").fetchall())
    assert numbers[:3000] == pytest.approx([counted.get(k, 0) for k in range(3000)], abs=1e-6)
    law = Noise(noise, Fraction(4))
    assert (answers.widths(law, 0.05, 1)[:3000] > answers.errors(law, 1)[:3000]).all()


def test_days_and_months_of_a_long_column_are_one_matrix_in_parts() -> None:
    policy = policy_of('[tables.d]\nunit = "row"\n[tables.d.columns]\nday = { lower = 2015-01-01, upper = 2021-12-31 }')
    days = duckdb.connect()
    days.execute("CREATE TABLE d (day DATE)")
    sql = "SELECT day, COUNT(*) AS n FROM d GROUP BY day; SELECT date_trunc('month', day) AS m, COUNT(*) AS n FROM d"
    found = understood(f"{sql} GROUP BY m", policy, tables_of(policy, engine_of(days)))
    assert isinstance(choice.compile_any(found.queries, found.tables), Compiled)


SETS = "SELECT region, sex, score, COUNT(*) AS n FROM t GROUP BY CUBE (region, sex, score)"


def long_or_blocks(tmp_path: Path) -> dpsql.Connection:
    database, policy = tmp_path / "t.duckdb", tmp_path / "t.toml"
    with filled(database) as made:
        made.execute("CREATE TABLE t AS SELECT 1 AS region, 2 AS score, 'f' AS sex, 40 AS age")
    policy.write_text(
        'dataset = "d"\n[budget]\nepsilon = 10\ndelta = 1e-6\n[tables.t]\nunit = "row"\nexpected_rows = 1000\n'
        "[tables.t.columns]\nregion = { lower = 0, upper = 4 }\nscore = { lower = 0, upper = 5 }\n"
        'sex = { values = ["f", "m"] }\nage = { lower = 0, upper = 9 }\n'
    )
    return dpsql.connect(database, policy=policy, ledger=tmp_path / "t.ledger")


@pytest.mark.parametrize("blocks_first", [False, True])
def test_a_batch_is_asked_once_whether_it_is_one_matrix_or_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks_first: bool
) -> None:
    """As where an earlier version measured the matrix, or another tolerance or time limit decides otherwise."""
    con = long_or_blocks(tmp_path)
    sql = "SELECT age, COUNT(*) AS n FROM t GROUP BY age; SELECT COUNT(*) AS n FROM t WHERE age BETWEEN 2 AND 5"
    costs, kinds = [], []
    for blocks in (blocks_first, not blocks_first):
        monkeypatch.setattr("dpsql.workloads.compile.choice.LONG", 0.0 if blocks else math.inf)
        monkeypatch.setattr(con, "_plans", LastPlans())  # by which it is planned anew
        plan = con.plan(sql, 1, 1e-9)
        kinds.append(isinstance(plan.compiled, Structured))
        costs.append(con.run(plan).cost)
    assert kinds == [blocks_first, not blocks_first]
    assert costs[0] > costs[1] == 0.0


@pytest.mark.parametrize(
    ("sql", "how", "blocks"),
    [
        (SETS, {"delta": 1e-9}, True),  # certified within the tolerance
        (f"{SETS}; SELECT AVG(age) AS a FROM t", {"delta": 1e-9}, True),  # on levels
        (f"{SETS}; SELECT COUNT(*) AS n FROM t WHERE age > 3 OR score > 2", {"delta": 1e-9}, False),
        (SETS, {"delta": 1e-9, "objective": "max"}, False),
        ("SELECT MEDIAN(age) AS m, AVG(age) AS a FROM t", {"delta": 1e-9}, False),  # of one column
    ],
)
@pytest.mark.few(every=2)
def test_blocks_stand_in_for_a_long_matrix_where_they_are_a_proven_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, how: dict[str, Any], blocks: bool
) -> None:
    con = long_or_blocks(tmp_path)
    alone = con.plan(sql, 1, **how)
    monkeypatch.setattr("dpsql.workloads.compile.choice.LONG", 0.0)
    monkeypatch.setattr(con, "_plans", LastPlans())
    plan = con.plan(sql, 1, **how)
    assert isinstance(plan.compiled, Structured) == blocks
    assert isinstance(alone.compiled, Compiled)
    if blocks:
        assert plan.strategy.gap is not None
        assert plan.strategy.gap <= 1e-3
        assert [span.start for span in plan.compiled.spans] == [span.start for span in alone.compiled.spans]
        assert (plan.errors**2).sum() <= 1.002 * (alone.errors**2).sum()
        assert len(list(con.run(plan))) == 1 + sql.count(";")
        summed = con.sql("SELECT SUM(n) AS n FROM q1 WHERE region IS NULL AND sex IS NULL", errors=True)
        assert summed.column("n_stderr")[0] > 0
    else:
        assert plan.strategy.value == alone.strategy.value
