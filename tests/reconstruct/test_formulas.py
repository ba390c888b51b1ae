"""Formulas: which of them are linear, between what they lie, and what cannot be one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpsql.errors import DataError, InterfaceError
from dpsql.workloads.expr.formulas import (
    Default,
    Formula,
    Leaf,
    Negative,
    Number,
    Product,
    Quotient,
    Root,
    Sum,
    Variance,
    affine,
    range_of,
)

A, B, TWO = Leaf(0), Leaf(1), Number(2)


@pytest.mark.parametrize(
    ("formula", "weights", "constant"),
    [
        (B, [0, 1], 0),
        (Number(Fraction(1, 4)), [0, 0], 0.25),
        (Negative(Sum((A, TWO))), [-1, 0], -2),
        (Sum((A, B, A)), [2, 1], 0),
        (Product((TWO, Sum((A, Number(3))), TWO)), [4, 0], 12),
        (Product((TWO, Number(3))), [0, 0], 6),
        (Quotient(Sum((A, Negative(B))), Number(4)), [0.25, -0.25], 0),
        (Product((A, Sum((B, Negative(B), TWO)))), [2, 0], 0),
    ],
)
def test_linear_formulas(formula: Formula, weights: list[float], constant: float) -> None:
    found = affine(formula, 2)
    assert found is not None
    assert found[0].tolist() == weights
    assert found[1] == constant


@pytest.mark.parametrize(
    "formula",
    [
        Quotient(A, B),
        Quotient(A, Number(0)),
        Quotient(A, TWO, (0, 1)),  # its bounds would be forgotten
        Product((A, B)),
        Root(A),
        Variance(A, A, A, 1),
        Sum((A, Root(B))),
        Product((TWO, Root(B))),
        Negative(Root(B)),
    ],
)
def test_other_formulas(formula: Formula) -> None:
    assert affine(formula, 2) is None


def test_refusals() -> None:
    for bad in (-1, True, 0.5):
        with pytest.raises(InterfaceError, match="number of an output"):
            Leaf(bad)  # type: ignore[arg-type]
    for huge in (math.nan, math.inf, Fraction(10) ** 400):
        with pytest.raises(DataError, match="finite"):
            Number(huge)
    for kind in (Sum, Product):
        with pytest.raises(InterfaceError, match="at least one"):
            kind(())
    for bounds in ((2.0, 1.0), (math.nan, 1.0), (math.inf, math.inf), (-math.inf, -math.inf)):
        with pytest.raises(DataError, match="ordered"):
            Quotient(A, B, bounds)
    for width in (-1.0, math.nan, math.inf):
        with pytest.raises(DataError, match="width"):
            Variance(A, A, A, width)
    with pytest.raises(InterfaceError, match="output 2"):
        affine(Leaf(2), 2)


@pytest.mark.parametrize(
    ("formula", "least", "most"),
    [
        (A, 0, 4),
        (Product((TWO, A)), 0, 8),
        (Negative(Sum((A, Number(1)))), -5, -1),
        (Product((A, Sum((A, Number(-2))))), -8, 8),
        (Quotient(A, Sum((A, Number(1)))), 0, 4),
        (Quotient(B, A, (0, 40)), 0, 40),
        (Sum((A, Root(Product((A, A))), Quotient(B, B, (-1, 1)))), -1, 9),
        (Default(Sum((A, Number(1)))), 0, 5),
        (Quotient(TWO, A), -math.inf, math.inf),
        (Sum((A, B)), -math.inf, math.inf),
        (Product((B, Number(0))), 0, 0),
        (Variance(A, A, A, 1), -math.inf, math.inf),
    ],
)
def test_what_formulas_lie_between(formula: Formula, least: float, most: float) -> None:
    """A lies between 0 and 4, of B nothing is known."""
    low, high = range_of(formula, np.array([[0.0, -math.inf]]), np.array([[4.0, math.inf]]))
    assert (low.tolist(), high.tolist()) == ([least], [most])
