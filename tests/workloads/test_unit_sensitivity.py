"""Sensitivity to a unit: by hand, against a search over what its rows can do, and in words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse

from dpsql.errors import InternalError
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.cells.corners import corners_of
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.layout import Layout, common_multiplicity
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.units import by_unit, contributions_of, relation_text
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import RunAxis
from dpsql.workloads.expr.rows import Join, RowSource, united
from dpsql.workloads.expr.values import Stored


def layout(table: str, entry: list[list[int]], *, k: int = 1, unit: str = "", distinct: bool = False) -> Layout:
    """A layout with those entries of x; ``unit`` is the label of its unit, "" for single rows."""
    source = RowSource(table)
    if unit:
        source = RowSource(table, unit=Stored("u", "INTEGER"), limit=k, protects=unit, distinct=distinct)
    held = np.array(entry)
    n = held.shape[1]
    axis = RunAxis("k", line_of("INTEGER"), 0, n)
    counted = sparse.csr_array(np.ones((1, n), dtype=np.int32))
    cells = Cells((axis,), (np.arange(n, dtype=np.int32)[None, :],), np.arange(n), counted)
    return Layout(table, cells, (), held, source)


def sizes(B: np.ndarray, layouts: list[Layout]) -> tuple[int, int]:
    eye = np.eye(B.shape[0], dtype=np.int64)
    basis = sparse.csr_array(B)
    return (
        sensitivity_of("laplace", Factored(eye, basis), layouts),
        sensitivity_of("gaussian", Factored(eye, basis), layouts),
    )


def reached(B: np.ndarray, layouts: list[Layout]) -> tuple[int, int]:
    """The largest norms over all that a unit can do: up to k corners of each table, with repeats."""
    largest = [0, 0]
    for mates in by_unit(layouts):
        choices = []
        for held in mates:
            corners = corners_of([held.entry], B.shape[1]).toarray().T
            sums = {tuple(np.zeros(B.shape[1], dtype=int))}
            for rows in range(1, held.multiplicity + 1):
                for chosen in itertools.combinations_with_replacement(range(len(corners)), rows):
                    sums.add(tuple(corners[list(chosen)].sum(axis=0)))
            choices.append([np.array(move) for move in sums])
        for moves in itertools.product(*choices):
            change = B @ sum(moves)
            largest = [max(largest[0], int(abs(change).sum())), max(largest[1], int(change @ change))]
    return largest[0], largest[1]


def test_by_hand() -> None:
    B = np.array([[1, 1, 0], [1, -1, 0], [0, 0, 3]])
    one = layout("a", [[0, 1]], k=4, unit="u")
    assert sizes(B, [one]) == (8, 32)
    other = layout("b", [[2]], k=2, unit="u")
    # Nothing measures both tables, so that squares add: 32 + 36.
    assert sizes(B, [one, other]) == (8 + 6, 68)
    apart = layout("b", [[2]], k=2, unit="w")
    assert sizes(B, [one, apart]) == (8, 36)
    assert sizes(B, [layout("a", [[0, 1]]), layout("b", [[2]])]) == (3, 9)
    # Two layouts over one table of single rows share the row.
    assert sizes(B, [layout("a", [[0, 1]]), layout("a", [[2]])]) == (5, 11)


def test_a_measurement_of_two_tables_adds_norms() -> None:
    B = np.array([[1, 1], [1, 0], [0, 1]])
    pair = [layout("a", [[0]], unit="u"), layout("b", [[1]], k=3, unit="u")]
    assert not Factored(np.eye(3, dtype=int), sparse.csr_array(B)).share_no_measurement([held.entry for held in pair])
    # B (1, 3) = (4, 1, 3).
    assert sizes(B, pair) == (8, 26)
    assert sizes(np.array([[1, 2], [5, 1]]), pair) == (15, 113)
    # What is subtracted makes one table alone the worst: B (1, 3) = (-2, 3), B (0, 3) = (-3, 3).
    assert sizes(np.array([[1, -1], [0, 1]]), pair) == (6, 18)


def test_what_cancels_counts_as_reached() -> None:
    mixing = np.array([[1, -1], [1, 1]])
    basis = sparse.csr_array(np.array([[1, 1], [1, 0]]))
    pair = [layout("a", [[0]], unit="u"), layout("b", [[1]], unit="u")]
    assert (mixing @ basis.toarray())[0, 0] == 0
    assert not Factored(mixing, basis).share_no_measurement([held.entry for held in pair])


@pytest.mark.parametrize("seed", range(12))
def test_against_all_that_a_unit_can_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Two tables that share a unit and one that does not; sums beside counts in the first.
    layouts = [
        layout("a", [[0, 1], [2, 3]], k=2, unit="u"),
        layout("b", [[4, 5]], k=int(rng.integers(1, 4)), unit="u" if seed % 3 else "w"),
        layout("c", [[6, 7], [-1, 8]]),
    ]
    B = rng.integers(-3, 4, size=(6, 9))
    if seed % 2:
        B[:3, 4:6] = 0
        B[3:, :4] = 0
    assert sizes(B, layouts) == reached(B, layouts)
    for one in layouts:
        assert sizes(B, [one]) == reached(B, [one])


def test_units_are_counted_in_few_cells() -> None:
    assert layout("a", [[0, 1, 2]], k=5, unit="u", distinct=True).multiplicity == 3
    assert layout("a", [[0, 0, 0]], k=5, unit="u", distinct=True).multiplicity == 1
    assert layout("a", [[0, 1, 2]], k=2, unit="u", distinct=True).multiplicity == 2
    assert layout("a", [[0, 1, 2]], k=2, unit="u").multiplicity == 2


def test_lists_leave_a_common_factor_out() -> None:
    layouts = [layout("a", [[0]], k=4, unit="u"), layout("b", [[1]], k=6, unit="w")]
    assert common_multiplicity(layouts) == 2
    units = contributions_of(layouts, 2)
    assert units.common == 2
    assert units.columns.toarray().tolist() == [[2, 0], [0, 3]]
    # Corners 4 e_0 and 6 e_1.
    assert sizes(np.array([[2, 1], [0, 1]]), layouts) == (12, 72)


def test_in_words() -> None:
    visits = layout("visits", [[0]], k=5, unit="patient_id")
    labs = layout("labs", [[1]], k=9, unit="patient_id")
    beds = layout("beds", [[2]])
    assert relation_text([beds]) == "one row of beds"
    assert relation_text([visits, beds]) == ("all rows of one u in visits (at most 5 count), or one row of beds")
    assert relation_text([visits, labs]) == ("all rows of one u in visits (at most 5 count) and labs (at most 9 count)")


U, K = Stored("u", "INTEGER"), Stored("k", "INTEGER")


def on(name: str, left: Stored = K, **more: object) -> Join:
    return Join(name, "other", ((left, Stored("id", "INTEGER", name)),), **more)  # type: ignore[arg-type]


WRONG = [
    {"joins": (on("j", private=True),), "unit": U},
    {"joins": (on("j", private=True, unit=(K, Stored("v", "INTEGER", "j"))),), "unit": U},
    {"joins": (on("j", private=True, unit=(U, Stored("v", "INTEGER", "j"))),)},
    {"joins": (on("j"), on("j"))},
    {"joins": (on("j", Stored("x", "INTEGER", "later")), on("later"))},
    {"joins": (Join("j", "other", ()),)},
    {"limit": 2},
    {"unit": U, "limit": 0},
    {"distinct": True},
    {"unit": U, "path": ("j",), "joins": (on("j", private=True),)},
    {"unit": Stored("v", "INTEGER", "j"), "path": ("j",), "joins": (on("j", private=True),)},
    {"unit": Stored("v", "INTEGER", "j"), "path": ("j",)},
]  # fmt: skip


@pytest.mark.parametrize("settings", WRONG)
def test_sources_that_would_mix_units_cannot_be_made(settings: dict[str, object]) -> None:
    with pytest.raises(InternalError):
        RowSource("t", **settings)  # type: ignore[arg-type]


def test_sources_of_one_base_are_united() -> None:
    one, other = RowSource("t", (on("a"), on("b"))), RowSource("t", (on("b"), on("c")))
    assert [join.name for join in united([one, other, one]).joins] == ["a", "b", "c"]
    assert united([one]).tables == ("t", "other")
    for bad in (RowSource("s"), RowSource("t", unit=U), RowSource("t", (on("a", Stored("z", "INTEGER")),))):
        with pytest.raises(InternalError):
            united([one, bad])
    with pytest.raises(InternalError):
        united([])
