"""The picture of a plan says what its table says."""

from __future__ import annotations

import sys

import pytest

import dpsql


@pytest.fixture
def plan(tmp_path):
    con = dpsql.connect(policy="sql_examples/students.toml", ledger=tmp_path / "a.ledger")
    return con.plan("SELECT gender, COUNT(*) AS n FROM students GROUP BY gender; SELECT COUNT(*) FROM students", 1)


def test_one_line_a_result_column(plan, tmp_path):
    figure = plan.plot()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["q2.count_star()", "q1.n"]
    errors = [row["stderr"] for row in plan.rows()][::-1]
    assert axes.collections[-1].get_offsets()[:, 0].tolist() == pytest.approx(errors)
    figure.savefig(tmp_path / "plan.png")


def test_matplotlib_is_optional(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(dpsql.InterfaceError, match="install 'matplotlib>="):
        plan.plot()
