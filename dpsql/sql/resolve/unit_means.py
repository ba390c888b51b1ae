"""Means and spreads of each unit, from its counts and sums: exact until they are divided, and held to bounds."""

from __future__ import annotations

from fractions import Fraction

from sqlglot import exp


def mean_of(total: exp.Expression, count: exp.Expression, low: Fraction, high: Fraction) -> exp.Expression:
    """AVG as SUM over COUNT, within the bounds of its argument."""
    mean = exp.Div(this=total, expression=count.copy(), typed=False)
    return exp.Case(ifs=[exp.If(this=exp.GT(this=count, expression=number(0)), true=_held(mean, low, high))])


def spread_of(
    node: exp.AggFunc, n: exp.Expression, total: exp.Expression, squares: exp.Expression, width: Fraction
) -> exp.Expression:
    """VAR and STDDEV of n values of that sum and sum of squares, within what values so ``width`` apart can have.

    (n q - s^2) / (n (n - 1)) of a sample, else over n^2; at most half or a quarter of the width squared.
    """
    least = 0 if isinstance(node, exp.VariancePop | exp.StddevPop) else 1
    above = exp.Sub(
        this=exp.Mul(this=n.copy(), expression=squares), expression=exp.Mul(this=total, expression=total.copy())
    )
    below = exp.Mul(this=n.copy(), expression=exp.Paren(this=exp.Sub(this=n.copy(), expression=number(least))))
    quotient = exp.Div(this=exp.Paren(this=above), expression=exp.Paren(this=below), typed=False)
    found = _held(quotient, Fraction(0), width**2 / (2 if least else 4))
    if isinstance(node, exp.Stddev | exp.StddevSamp | exp.StddevPop):
        most = width * Fraction(7072, 10000) if least else width / 2  # a little above the root of a half
        found = _held(exp.Sqrt(this=found), Fraction(0), most)
    return exp.Case(ifs=[exp.If(this=exp.GT(this=n, expression=number(least)), true=found)])


def _held(node: exp.Expression, low: Fraction, high: Fraction) -> exp.Expression:
    """An expression within bounds."""
    return exp.Least(this=exp.Greatest(this=node, expressions=[number(low)]), expressions=[number(high)])


def number(value: int | Fraction) -> exp.Expression:
    """A number as SQL writes it exactly."""
    value = Fraction(value)
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    whole_part = abs(value * 10**digits).numerator
    text = str(whole_part).rjust(digits + 1, "0")
    literal = exp.Literal.number(f"{text[:-digits]}.{text[-digits:]}" if digits else text)
    return exp.Neg(this=literal) if value < 0 else literal
