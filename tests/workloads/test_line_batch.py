"""Batches over a long line: integers, norms and refusals of the product against dense matrices."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dpsql.errors import DataError, InternalError, SQLError
from dpsql.linalg.lines import CyclicLine, Line
from dpsql.planning.prepare import Chooser, prepare
from dpsql.policy import Policy
from dpsql.strategies.ranges.line_strategy import line_strategy
from dpsql.strategy import LinedStrategy
from dpsql.workloads.cells.corners import corners_of
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.line_batch import Lined, LineIntegers

POLICY = Policy.parse(
    'dataset = "line-1"\n[budget]\nepsilon = 4.0\ndelta = 1e-9\n[tables.t]\nunit = "row"\n[tables.t.columns]\n'
    'k = { lower = -3, upper = 696 }\nv = { lower = 0, upper = 10 }\ns = { values = ["a", "b"] }\n'
    f"p = {{ values = {[i * i for i in range(700)]} }}\n"
)
SCHEMAS = {"t": {"k": "INTEGER", "v": "INTEGER", "s": "VARCHAR", "p": "INTEGER"}}


def _lined(sql: str) -> Lined:
    found = prepare(sql, POLICY, SCHEMAS).compiled
    assert isinstance(found, Lined)
    return found


def _factor(rng: np.random.Generator, rows: int, columns: int) -> Factored:
    return Factored(rng.integers(-9, 9, (rows, columns)), sparse.identity(columns, dtype=np.int64, format="csr"))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(("rows", "entries"), [(1, 1), (2, 3), (70, 70)])
def test_products_are_those_of_the_kronecker_product(noise: str, rows: int, entries: int) -> None:
    rng = np.random.default_rng(rows)
    line: Line = line_strategy(11, "ranges", noise).line
    rest = _factor(rng, rows, entries)
    held = LineIntegers(rest, line)
    whole = np.kron(np.asarray(rest.mixing), line.matrix()).astype(object)
    x = [int(a) * 2**40 + int(b) for a, b in rng.integers(-(2**40), 2**40, (entries * 11, 2))]
    assert held.shape == whole.shape
    assert held.times(x, 82) == list(whole @ np.array(x, dtype=object))


def test_norms_are_the_largest_over_all_rows() -> None:
    """Brute force over every cell and corner of a count beside a sum, by two groups."""
    rng = np.random.default_rng(3)
    line = CyclicLine(np.array([9, 4, 1, 1, 4], dtype=np.int64))
    rest = _factor(rng, 3, 4)
    inner = np.array([[0, 2, -1], [1, 3, -1]])
    entry = np.where(inner[:, :, None] >= 0, inner[:, :, None] * 5 + np.arange(5), -1).reshape(2, -1)
    held = LineIntegers(rest, line)
    moved = np.kron(np.asarray(rest.mixing), line.matrix()) @ corners_of([entry], 20).toarray()
    assert held.norms(entry) == (int(abs(moved).sum(axis=0).max()), int((moved**2).sum(axis=0).max()))
    assert held.largest_norm(entry, 1) == pytest.approx(held.norms(entry)[0], rel=1e-5)
    assert held.largest_norm(entry, 2) == pytest.approx(held.norms(entry)[1], rel=1e-5)
    with pytest.raises(InternalError, match="not those of its small batch"):
        held.norms(entry[:, ::-1])


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_sensitivity_is_that_of_what_is_measured(noise: str) -> None:
    batch = _lined("SELECT dp_ranges(k), s, COUNT(*) AS n, SUM(v) AS total FROM t GROUP BY dp_ranges(k), s")
    found = Chooser(batch, cached=False).strategy(noise)
    assert isinstance(found, LinedStrategy)
    (layout,) = batch.layouts
    assert (found.l1, found.l2_squared) == found.measured.norms(layout.entry)
    assert found.measured.digest() == found.measured.digest()
    assert batch.numbers == 2 * 3 * 700 * 701 // 2
    # Errors are products: those of all ranges of each number of the small batch add up to what was planned.
    each = found.variances(batch)
    assert each.size == batch.numbers
    assert each.sum() == pytest.approx(found.expected, rel=1e-6)
    assert found.largest(batch) == pytest.approx(each.max())
    assert found.error(replace(batch)) == pytest.approx(found.expected)
    with pytest.raises(DataError, match="700 values"):
        found.error(found.rest.planned)


def test_every_row_goes_to_the_cell_of_its_value_and_group() -> None:
    batch = _lined("SELECT dp_ranges(k), COUNT(*) AS n FROM t WHERE s = 'a' GROUP BY dp_ranges(k)")
    (layout,) = batch.layouts
    names = [axis.name for axis in layout.cells.axes]
    assert names[-1] == "k"
    inside = [
        layout.cells.locate([np.array([region]), np.array([5])])[0] for region in range(layout.cells.axes[0].size)
    ]
    assert sorted(inside)[-1] == 5
    assert sorted(inside)[0] == -1
    outside = layout.cells.locate([np.array([0]), np.array([-1])])
    assert outside.tolist() == [-1]


def test_a_line_of_the_same_column_may_be_conditioned_and_summed() -> None:
    batch = _lined("SELECT dp_ranges(k), SUM(k) AS total FROM t WHERE k > 5 GROUP BY dp_ranges(k)")
    assert batch.length == 700
    assert batch.common_steps > 0
    assert Fraction(batch.cells, 700).denominator == 1


def test_a_line_of_values_with_gaps() -> None:
    """Each declared value is a region of its own, in order."""
    batch = _lined("SELECT dp_ranges(p), COUNT(*) AS n FROM t GROUP BY dp_ranges(p)")
    (axis,) = batch.layouts[0].cells.axes
    assert axis.size == len(batch.line.values) == 700
    assert batch.line.first is None


def test_values_are_not_counted_once_in_groups_that_overlap() -> None:
    with pytest.raises(SQLError, match="counts units twice, as its groups overlap"):
        _lined("SELECT dp_ranges(k), COUNT(DISTINCT v) AS n FROM t GROUP BY dp_ranges(k)")
