"""``con.plan(method=...)`` with the strategies of the catalogue: each is planned, or refused for its stated reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy import sparse

import dpsql
from dpsql import registry, strategy
from dpsql.errors import BudgetError, DataError, IntegrityError, InternalError, NotSupportedError
from dpsql.extensions.audit.batch_audit import audit
from dpsql.planning.prepare import prepare
from dpsql.strategies.core.integer import Piece
from dpsql.surfaces.cli import main
from dpsql.workload import Workload
from dpsql.workloads.compile.sensitivity import rough_sensitivity

POLICY = """
dataset = "named"
[budget]
epsilon = 1000000.0
delta = 1e-9
pure_epsilon = 500000.0
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b", "c"] }
k = { lower = 0, upper = 5, nulls = false }
v = { lower = 0, upper = 1000 }
day = { lower = 0, upper = 99999, nulls = false }
[tables.people]
unit = "id"
max_rows_per_unit = 1
[tables.people.columns]
id = { }
g = { values = ["a", "b", "c"] }
[tables.visits]
unit = "id"
max_rows_per_unit = 9
[tables.visits.columns]
id = { }
k = { lower = 0, upper = 99, nulls = false }
"""
LINE = "SELECT k, COUNT(*) AS n FROM t GROUP BY k; SELECT COUNT_IF(k < 3) AS early, COUNT_IF(k >= 2) AS late FROM t"
RANGES = [(i, j) for i in range(6) for j in range(i, 6)]
ALL_RANGES = f"SELECT {', '.join(f'COUNT_IF(k BETWEEN {i} AND {j}) AS r{i}{j}' for i, j in RANGES)} FROM t"
TWO_COLUMNS = "SELECT g, k, COUNT(*) AS n FROM t GROUP BY g, k; SELECT k, COUNT(*) AS m FROM t GROUP BY k"
SUMS = "SELECT k, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY k"
NEEDS_A_LINE = ("hierarchical", "weighted-hierarchical", "haar", "weighted-haar", "range-transform")
GAUSSIAN, PURE = {"rho": 0.125}, {"epsilon": 0.5}


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    folder = tmp_path_factory.mktemp("named")
    with duckdb.connect(str(folder / "n.duckdb")) as duck:
        duck.execute(
            "CREATE TABLE t AS SELECT chr((97 + i % 3)::INTEGER) AS g, (i * i % 7 % 6)::INTEGER AS k, i % 1001 AS v, "
            "i AS day FROM range(300) r(i)"
        )
        duck.execute("CREATE TABLE people AS SELECT i AS id, chr((97 + i % 3)::INTEGER) AS g FROM range(30) r(i)")
        duck.execute("CREATE TABLE visits AS SELECT i % 30 AS id, (i % 6)::INTEGER AS k FROM range(90) r(i)")
    (folder / "n.toml").write_text(POLICY, encoding="utf-8")
    return dpsql.connect(folder / "n.duckdb", policy=folder / "n.toml")


def by_hand(sql: str) -> Workload:
    """The workload of LINE or ALL_RANGES, over the cells of k; the first and the last of LINE are of other values."""
    if sql == ALL_RANGES:
        rows = [[int(i <= c <= j) for c in range(6)] for i, j in RANGES]
        return Workload.from_rows(rows, np.ones(len(rows)))
    early, late = [1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]
    return Workload.from_rows([*np.eye(8, dtype=int)[1:7].tolist(), early, late], np.ones(8))


@pytest.mark.parametrize("budget", [GAUSSIAN, PURE], ids=["gaussian", "pure"])
@pytest.mark.parametrize("method", strategy.CATALOGUE)
@pytest.mark.few(every=4)
def test_each_is_planned_with_the_errors_of_its_own_formula(con, method: str, budget: dict[str, float]) -> None:
    sql = ALL_RANGES if method == "range-transform" else LINE
    if method == "norm-blocks" and budget is GAUSSIAN:
        with pytest.raises(BudgetError, match="method='norm-blocks' is pure: it is paid with epsilon alone"):
            con.plan(sql, method=method, objective="total", **budget)
        return
    plan = con.plan(sql, method=method, objective="total", **budget)
    S = plan.strategy
    assert (S.method, plan.named, S.noise) == (method, method, "gaussian" if budget is GAUSSIAN else "laplace")
    # The least squares error of the integers that are measured, from these alone.
    B = S.matrix()
    R = plan.compiled.workload(plan.compiled.scale).matrix() @ np.linalg.pinv(B)
    if max(S.blocks, default=1) == 1:  # others are weighted by the variances of their blocks
        variances = plan.noise.variances if S.blocks else np.full(len(B), plan.noise.variance)
        assert plan.errors == pytest.approx(np.sqrt(R**2 @ variances), rel=1e-9)
    assert S.error(plan.compiled.workload(plan.compiled.objective)) == pytest.approx(S.expected, rel=1e-6)
    # And that of the strategy selected for the same numbers by hand.
    noise = "gaussian" if budget is GAUSSIAN else "pure"
    assert S.expected == pytest.approx(strategy.select(by_hand(sql), noise, method).expected, rel=1e-5)


@pytest.mark.parametrize("method", strategy.CATALOGUE)
@pytest.mark.parametrize("sql", [TWO_COLUMNS, SUMS], ids=["two columns", "sums"])
@pytest.mark.few(every=4)
def test_only_what_needs_a_line_is_refused_over_several_columns(con, method: str, sql: str) -> None:
    if method in NEEDS_A_LINE:
        with pytest.raises(DataError, match=f"method='{method}' is for counts over one column in its order"):
            con.plan(sql, method=method, **PURE)
        return
    assert con.plan(sql, method=method, **PURE).strategy.method == method


def test_a_release_at_a_huge_budget_is_exact(con) -> None:
    release = con.run(TWO_COLUMNS, rho=1e5, method="eigen-design")
    assert release.record.strategy.startswith("eigen-design")
    for by, view in (("g, k", "(SELECT g, k, n FROM q1)"), ("k", "(SELECT k, m FROM q2)")):
        with duckdb.connect(str(con.ledger_path.with_name("n.duckdb")), read_only=True) as duck:
            rows = duck.execute(f"SELECT {by}, COUNT(*) FROM t GROUP BY {by}").fetchall()
        true = {row[:-1]: row[-1] for row in rows}
        found = {row[:-1]: row[-1] for row in con.sql(f"FROM {view}").fetchall()}
        assert found == pytest.approx({key: true.get(key, 0) for key in found}, abs=0.02)
        assert true.keys() <= found.keys()


def test_another_strategy_is_another_question(con) -> None:
    first = con.run(LINE, epsilon=1.0, method="haar")
    assert con.run(LINE, epsilon=1.0, method="haar").id == first.id
    assert con.run(LINE, epsilon=1.0, method="identity").id != first.id


def test_a_named_release_is_no_answer_to_a_cursor(tmp_path: Path) -> None:
    """Another strategy may be exacter at the same charge. The noise of both can be drawn again for questions."""
    duck = duckdb.connect()
    duck.execute("CREATE TABLE t AS SELECT (i * i % 60)::INTEGER AS k FROM range(300) r(i)")
    columns = "[tables.t.columns]\nk = { lower = 0, upper = 59 }"
    text = f'dataset = "n"\n[budget]\nrho = 1000\n[tables.t]\nunit = "row"\n{columns}'
    con = dpsql.connect(duck, policy=dpsql.Policy.parse(text), ledger=tmp_path / "n.ledger")
    sql = "SELECT " + ", ".join(f"COUNT_IF(k >= {i}) AS c{i}" for i in range(0, 60, 5)) + " FROM t"
    named = con.run(sql, rho=0.01, method="workload")
    con.cursor().execute(sql, rho=0.01)
    first, second = con._books.entries()
    assert (first.id, first.description["named"]) == (named.id, "workload")
    assert "named" not in second.description
    for entry in (first, second):
        assert con._past._again(prepare(sql, con.policy, con.schemas()), entry, 0.05) is not None


def test_a_wanted_error_is_met_by_the_named_strategy(con) -> None:
    plan = con.plan(LINE, max_error=20, method="haar")
    assert plan.strategy.method == "haar"
    assert max(plan.half_width["q2"].max(), plan.half_width["q1"].max()) == pytest.approx(20, rel=0.1)
    assert con.plan(LINE, max_error=50, method="low-rank").named == "row-mixing"  # its former name
    assert con.plan(LINE, max_error=20, method="norm-blocks").charge.noise == "laplace"
    with pytest.raises(DataError, match="method='mwem' has estimated errors"):
        con.plan(LINE, max_error=20, method="mwem")


REFUSED = {
    "all ranges of a long column": (
        "SELECT COUNT(*) FROM t GROUP BY dp_ranges(day)",
        r"eigen-design' needs cells that are listed, at most 131,072",
    ),
    "more blocks than are listed": (
        "SELECT day, k, v, COUNT(*) FROM t GROUP BY dp_marginals(1, day, k, v)",
        r"method='eigen-design' needs cells that are listed, at most 131,072, and this batch has [\d,]+;",
    ),
    "units of too many kinds": (
        "SELECT g, COUNT(*) FROM people GROUP BY g; SELECT k, COUNT(DISTINCT id) FROM visits GROUP BY k; "
        "SELECT COUNT(*) FROM visits WHERE k < 3",
        "needs a list of all that one unit can change",
    ),
    "more cells than the method takes": (
        "SELECT v, COUNT(*) FROM t GROUP BY v; SELECT COUNT(*) FROM t",
        "above its cap of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.few("units of too many kinds", "all ranges of a long column")
def test_batches_that_no_published_strategy_fits(con, name: str) -> None:
    sql, said = REFUSED[name]
    with pytest.raises(DataError, match=said):
        con.plan(sql, method="smoothed" if "cap" in said else "eigen-design", **GAUSSIAN)


def test_the_queries_themselves_are_planned_for_any_units(con) -> None:
    sql, _ = REFUSED["units of too many kinds"]
    assert con.plan(sql, method="workload", **GAUSSIAN).strategy.method == "workload"


def test_an_unknown_method_is_answered_with_all_that_there_are(con) -> None:
    with pytest.raises(DataError) as refused:
        con.plan(LINE, epsilon=1, method="wavelet")
    said = str(refused.value)
    own, *extensions = said.split("; ")[1:]
    assert own == "use 'auto', " + ", ".join(map(repr, strategy.CATALOGUE[:7]))
    assert "of the extension adaptive 'adaptive'" in extensions
    (papers,) = (one for one in extensions if one.startswith("of the extension papers 'mwem', 'mwem-strategy', "))
    assert papers.endswith(", ".join(map(repr, strategy.CATALOGUE[7:])))
    with pytest.raises(DataError, match="method 'wavelet' is not known"):
        con.plan(LINE, max_error=20, method="wavelet")


def test_where_the_extension_is_missing_its_strategies_say_so(con, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(strategy.CATALOGUE[7:]) <= set(registry.SHIPPED["papers"])
    monkeypatch.delitem(registry._EXTENSIONS, "papers")
    with pytest.raises(
        NotSupportedError, match="the extension 'papers' plans by method='haar', and it is not installed"
    ):
        con.plan(LINE, epsilon=1, method="haar")


def understated(name: str, W: Workload, terms: object) -> tuple[Piece, ...]:
    """All cells, of which an extension says that a record can be in the first alone, which is measured the least."""
    n = W.shape[1]
    rows, first = sparse.eye_array(n, dtype=np.int64, format="csr"), sparse.csc_array(np.eye(n, 1, dtype=np.int64))
    return (Piece(rows, np.array([1.0, *[100.0] * (n - 1)]), first, np.diag(W.gram()).copy()),)


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> str:
    added = registry.Extension("liar", "", strategies={"liar": registry.Registered(f"{__name__}:understated")})
    monkeypatch.setitem(registry._EXTENSIONS, "liar", added)
    return "liar"


def test_no_sensitivity_is_taken_from_an_extension(con, liar: str) -> None:
    spent = con.budget
    with pytest.raises(IntegrityError, match="the plan's sensitivity is not that of its strategy"):
        con.run(LINE, epsilon=1.0, method=liar)
    assert con.budget == spent


def test_gaussian_noise_is_never_measured_in_the_norm_of_blocks(con) -> None:
    job = con._batches.job(con.plan(LINE, rho=0.125), "key", "")
    rows = job.integers.shape[0]
    with pytest.raises(InternalError, match="noise in blocks is pure"):
        replace(job, sensitivity=1, blocks=(rows,))
    pure = con._batches.job(con.plan(LINE, epsilon=0.5), "key", "")
    for blocks in ((1,), (*([1] * rows), 0), (-1, rows + 1)):
        with pytest.raises(InternalError, match="its blocks are all the rows"):
            replace(pure, blocks=blocks)
    assert rough_sensitivity("gaussian", job.integers, job.layouts, (rows,)) == job.rough


def test_the_command_line_takes_names_too(con, capsys: pytest.CaptureFixture[str]) -> None:
    folder = con.ledger_path.parent
    places = ["--policy", str(folder / "n.toml"), "--database", str(folder / "n.duckdb"), "--quiet"]
    assert main(["plan", "--sql", LINE, "--epsilon", "1", "--method", "weighted-haar", "--json", *places]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"] == "weighted-haar"
    assert main(["plan", "--sql", TWO_COLUMNS, "--epsilon", "1", "--method", "haar", *places]) == 1
    assert "use --method eigen-design" in capsys.readouterr().err
    assert main(["plan", "--sql", LINE, "--epsilon", "1", "--method", "wavelet", *places]) == 1
    assert "of the extension papers 'mwem'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(("method", "budget"), [("haar", PURE), ("eigen-design", GAUSSIAN)])
def test_neighbouring_databases_are_as_close_as_claimed(con, method: str, budget: dict[str, float]) -> None:
    assert audit(con.policy, LINE, method=method, **budget).holds
