"""Pictures of plans, matrices and budgets, from the objects that people have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpsql
from dpsql import strategy, workload
from dpsql.extensions.periods.period_budgets import PeriodBudget
from dpsql.extensions.reports import plots
from dpsql.extensions.reports.matrix_picture import inner_row, workload_pixels
from dpsql.linalg import inner as algebra
from dpsql.release.pictures import picture_bytes

POLICY = """
dataset = "plots-1"
[budget]
epsilon = 4
delta = 1e-9
pure_epsilon = 1
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 3, type = "INTEGER", step = 1, nulls = false }
s = { values = ["a", "b"], type = "VARCHAR", nulls = false }
"""
BATCH = """
SELECT k, s, COUNT(*) AS n FROM t GROUP BY k, s;
SELECT s, SUM(k) AS total, COUNT(*) AS n FROM t GROUP BY s;
SELECT COUNT(*) AS n FROM t
"""


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    (tmp_path / "t.csv").write_text("k,s\n" + "".join(f"{i % 4},{'ab'[i % 2]}\n" for i in range(40)))
    (tmp_path / "p.toml").write_text(POLICY)
    return dpsql.connect(policy=tmp_path / "p.toml")


@pytest.mark.long
def test_a_plan_is_drawn_beside_one_by_one_and_the_bound(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, epsilon=2, delta="1e-9")
    figure = plots.plot_plan(plan)
    assert plan.gap is not None
    above, axes = figure.axes
    naive, planned = (held.get_offsets()[0, 0] for held in above.collections[1:])
    assert planned == pytest.approx((1 + plan.gap) ** 0.5)
    assert 1 <= planned < naive
    assert "above the least possible" in above.get_title(loc="left")
    errors = [row["stderr"] for row in plan.rows()][::-1]
    assert axes.collections[-1].get_offsets()[:, 0].tolist() == pytest.approx(errors)
    assert picture_bytes(figure).startswith(b"<?xml")
    mine = plots.plot_plan(plan, figure.subfigures().subplots())
    assert "above the least possible" in mine.axes[-1].get_title(loc="left")


@pytest.mark.long
def test_workload_and_strategy_of_a_plan(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, epsilon=1, delta="1e-9")
    figure = plots.plot_workload(plan)
    pixels = np.asarray(figure.axes[0].images[0].get_array())
    assert pixels.shape[0] == plan.compiled.numbers
    # Sums stand beside counts: each row is over its own largest entry.
    assert np.abs(pixels).max(axis=1).tolist() == [1.0] * len(pixels)
    assert "each row divided by its largest entry" in figure.axes[0].get_title(loc="left")
    measured = plots.plot_strategy(plan)
    assert np.array_equal(np.asarray(measured.axes[0].images[0].get_array()), plan.strategy.matrix())
    for made in (figure, measured):
        assert picture_bytes(made).startswith(b"<?xml")


@pytest.mark.long
def test_blocks_are_drawn_by_the_columns_that_they_name(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(12)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("1" * 12) + "\n")
    columns = "".join(f'{n} = {{ lower = 0, upper = 9, step = 1, type = "INTEGER", nulls = false }}\n' for n in names)
    text = (
        POLICY.split("[tables.t]")[0] + '[tables.w]\nunit = "row"\nsource = "wide.csv"\n[tables.w.columns]\n' + columns
    )
    (tmp_path / "w.toml").write_text(text)
    con = dpsql.connect(policy=tmp_path / "w.toml")
    listed = ", ".join(names)
    plan = con.plan(f"SELECT {listed}, COUNT(*) AS n FROM w GROUP BY dp_marginals(2, {listed})", 1, "1e-9")
    for draw in (plots.plot_workload, plots.plot_strategy):
        axes = draw(plan).axes[0]
        assert [label.get_text() for label in axes.get_xticklabels()] == names
        assert "the first 60 of" in axes.get_ylabel()


@pytest.mark.parametrize(
    "inner",
    [
        algebra.Ranges(6),
        algebra.Prefixes(4),
        algebra.Predicates(3),
        algebra.Predicates(3, 1.0),
        algebra.Diagonal(np.array([1.0, 2.0, 3.0])),
        algebra.Dense(np.arange(6.0).reshape(2, 3)),
        algebra.Kron((algebra.Ranges(3), algebra.Prefixes(2), algebra.Diagonal(np.array([2.0, 5.0])))),
        algebra.Blocks((algebra.Ranges(3), algebra.Prefixes(2)), (2.0, 3.0)),
    ],
    ids=range(8),
)
def test_a_row_of_an_implicit_matrix_is_the_row_of_the_matrix(inner: algebra.Inner) -> None:
    whole = inner.matrix()
    whole = whole.toarray() if hasattr(whole, "toarray") else whole
    rows = np.concatenate([inner_row(inner, at) for at in range(inner.shape[0])])
    assert np.array_equal(rows, whole)


@pytest.mark.long
def test_implicit_workloads_are_never_written_out() -> None:
    ranges = workload.all_range(4000)
    pixels, note = workload_pixels(ranges)
    assert pixels.shape == (240, 240)
    assert note.startswith("240 of 8,002,000 rows")
    assert pixels[0].tolist() == [1.0] + [0.0] * 239
    assert pixels[-1].tolist() == [0.0] * 239 + [1.0]
    assert set(np.unique(pixels)) == {0.0, 1.0}
    all_of_them = workload_pixels(workload.all_predicate(100))[0]  # 2^100 rows
    assert all_of_them.shape == (240, 100)
    assert picture_bytes(plots.plot_workload(ranges)).startswith(b"<?xml")


def test_the_largest_entry_of_a_stretch_shows_with_its_sign() -> None:
    matrix = np.zeros((3, 1000))
    matrix[0, 999], matrix[1, 0], matrix[2, 500] = 2.0, -3.0, 0.5
    pixels, note = workload_pixels(workload.from_matrix(matrix))
    assert pixels.shape == (3, 240)
    assert pixels[0, -1] == 2
    assert pixels[1, 0] == -3
    assert pixels[2].max() == 0.5
    assert note == "each pixel: the largest entry of its stretch"


def test_a_strategy_by_itself() -> None:
    chosen = strategy.select(workload.all_range(16), noise="gaussian")
    (axes, _) = plots.plot_strategy(chosen).axes
    assert axes.get_title(loc="left").startswith(f"What is measured (strategy: {chosen.method})")
    with pytest.raises(dpsql.InterfaceError, match="a plan or a workload"):
        plots.plot_workload(chosen)  # type: ignore[arg-type]
    with pytest.raises(dpsql.InterfaceError, match="a plan or a strategy"):
        plots.plot_strategy(workload.all_range(4))  # type: ignore[arg-type]


@pytest.mark.long
def test_the_budget_over_time(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = plots.plot_budget(con.budget)
    assert [axes.get_title(loc="left") for axes in empty.axes] == [
        "pure budget: epsilon 0 of 1 spent",
        "Gaussian budget: 0 % spent",
    ]
    assert all(axes.texts[0].get_text() == "nothing spent yet" for axes in empty.axes)
    monkeypatch.setattr("dpsql.extensions.reports.spending._LABELS", 2)
    for at in range(3):
        con.run(f"SELECT COUNT(*) AS n FROM t WHERE k < {at + 1}", 0.05 + 0.01 * at, label=f"analyst {at}")
    figure = plots.plot_budget(con.budget)
    pure = figure.axes[0]
    assert pure.lines[0].get_ydata()[-1] == pytest.approx(con.budget.accounts[0].spent)
    legend = pure.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["(others)", "analyst 2"]  # those who spent least are one
    assert picture_bytes(figure).startswith(b"<?xml")
    alone = plots.plot_budget(con.budget, empty.axes[0])
    assert alone is empty


def test_the_budget_of_periods_as_a_calendar() -> None:
    with pytest.raises(dpsql.InterfaceError, match="no calendar"):
        plots.plot_periods([])
    found = [
        PeriodBudget("visits", f"{2023 + at // 12}-{at % 12 + 1:02d}-01", name, 2.0, at % 3, 0.0, ("", "", ""), 1)
        for name in ("pure", "gaussian")
        for at in range(14)
    ]
    figure = plots.plot_periods(found)
    first, second = figure.axes[:2]
    assert [axes.get_title(loc="left") for axes in (first, second)] == [
        "visits, pure account: spent of each period",
        "visits, gaussian account: spent of each period",
    ]
    assert [label.get_text() for label in first.get_yticklabels()] == ["2023", "2024"]
    shares = np.ma.asarray(first.collections[0].get_array()).reshape(2, 12)
    assert shares[0].tolist() == [0.0, 50.0, 100.0] * 4
    assert shares[1].tolist() == [0.0, 50.0, *[None] * 10]


def test_results_and_releases_draw_themselves(con: dpsql.Connection) -> None:
    release = con.run("CREATE VIEW by_s AS SELECT s, COUNT(*) AS n FROM t GROUP BY s; SELECT COUNT(*) AS m FROM t", 0.5)
    assert len(release.plot().axes) == 2
    for figure in (release.plot("by_s"), plots.plot_result(release["by_s"])):
        assert len(figure.axes[0].patches) == 2
    ranges = con.run("CREATE VIEW r AS SELECT dp_ranges(k), COUNT(*) AS n FROM t GROUP BY dp_ranges(k)", 0.5)
    assert len(plots.plot_ranges(ranges["r"], start=1).axes[0].lines[0].get_ydata()) == 3
