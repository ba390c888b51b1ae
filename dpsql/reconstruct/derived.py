"""Derived numbers: the value of a formula with its standard error and interval, for all groups at once.

The tree is worked out from its leaves up. Each part carries its value, its gradient over the outputs
and its own interval; how intervals combine is chosen by kind, since the delta method alone is wrong where
a denominator is poorly known:

- a linear form: exact, as for any answer (``intervals``);
- a quotient: Fieller's interval (``fieller``), exact where both sides are linear, else with the linearised
  errors of both sides;
- a variance: Fieller's interval about the estimated mean (``variances``);
- an increasing function, such as a root: that function of the ends;
- a sum: the joint half-width of the parts' gradients, each stretched on either side by the ratio of the part's own
  reach to its linear half-width. Linear parts are not stretched; for two independent normal parts this is the
  method of variance estimates recovery (Zou and Donner 2008). The stretching under dependence is ours;
- a fit, a shape, Gini's coefficient: Fieller's interval of the quotient that they are, linearised (``fits``,
  ``hypotheses``);
- a product: linear half-width plus the product of the parts' half-widths, which bounds the term that the
  linear one leaves out.

Where a denominator is within its error of zero its quotient is *wide*: it stands for the whole of its bounds.
Intervals of what is built on a wide part add up or multiply as sets, with no help from chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InterfaceError
from dpsql.workloads.expr.formulas import (
    Bounds,
    Dated,
    Default,
    Formula,
    Monotone,
    Negative,
    Product,
    Quotient,
    Sum,
    Variance,
    affine,
    check_bounds,
    products,
    quotients,
    range_of,
)
from dpsql.workloads.expr.statistics import Comparison, Fit, Gini, Independence, Smooth

from .fieller import Ratios, fieller, largest_variance, variances
from .fits import fitted, linear_part
from .hypotheses import compared, concentrated, independence
from .linear_errors import LinearErrors
from .spread import NoiseModel
from .undefined import undefined

_FITS: dict[str, Bounds] = {"r2": (0.0, 1.0), "corr": (-1.0, 1.0)}


@dataclass(frozen=True, eq=False)
class Derived:
    """One number a group: value, standard error, and the ends of its (1 - alpha) interval, each (g,).

    NaN stands for NULL, in any of them: an end that is not finite has no number, an interval without an end on one
    side has no standard error, and where there is neither an error nor an end there is no value either. Within finite
    bounds NULL is only what is NULL by the statement and the policy alone (``undefined``), in all four.
    """

    value: Floats
    stderr: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class _Part:
    """A node worked out. ``wide``: groups whose interval is a set of possible values rather than an error bar."""

    value: Floats
    gradient: Floats
    low: Floats
    high: Floats
    wide: NDArray[np.bool_]


def evaluate(
    formula: Formula,
    estimates: ArrayLike,
    rows: object,
    noise: NoiseModel,
    alpha: float = 0.05,
    *,
    bounds: Bounds | None = None,
    divisor: int = 1,
    certain: NDArray[np.bool_] | None = None,
    limits: tuple[Floats, Floats] | None = None,
) -> Derived:
    """The formula in every group.

    estimates: (g x k), the k private outputs of g groups, constants included. rows: (k g x p) ndarray or
    sparse, output by output: row j g + i is the reconstruction row of output j of group i, zeros where it does
    not depend on the data. The measurement was scaled by ``divisor`` (L), so the error of an estimate is row @ z / L, z
    independent integers of law ``noise``. ``bounds``: what the true number is known to lie within; the value is
    clipped to them and an interval without end becomes them. Quotients may have bounds of their own. ``certain``
    (g x k): the outputs that do not depend on the data; those whose rows are zeros, where it is not given.
    ``limits``: the least and the largest value that each output can have (g x k), infinite where it is not known;
    intervals end at what the formula makes of them (``range_of``), values and errors stay.

    Coverage at level 1 - alpha: exact for linear forms, quotients of linear forms (for noise well above its
    lattice) and roots of either; elsewhere approximate, for the reasons that the module states. Clipping never
    loses the true number. stderr: delta method, at most half the width of the bounds, which bounds the deviation of
    anything between them (Popoviciu 1935); of a root at most the root of the deviation, since
    |sqrt a - sqrt b| <= sqrt |a - b|. Where a denominator is within its error of zero: half of the width of the
    interval, NULL where that is infinite.
    Deterministic; cost O(nnz of R) times the size of the formula, with Laplace noise about 10 quantiles
    of 24 nodes for every quotient. Raises InterfaceError for shapes that do not fit, DataError for alpha, bounds
    or estimates out of range.
    """
    values = np.asarray(estimates, dtype=np.float64)
    check_bounds(bounds)
    if values.ndim != 2 or not values.size:
        raise InterfaceError("estimates must be a matrix of groups by outputs, with at least one of each")
    if not np.isfinite(values).all():
        raise DataError("an estimate is not finite; the scale of the measures is out of range")
    errors = LinearErrors.of(rows, values.shape[0], noise, alpha, divisor, certain)
    if errors.outputs != values.shape[1]:
        raise InterfaceError(f"{values.shape[1]} outputs are estimated, and the rows hold {errors.outputs}")
    part = _bounded(_part(formula, values, errors), bounds)
    if limits is not None:
        least, most = range_of(formula, *limits)
        part = replace(part, low=np.clip(part.low, least, most), high=np.clip(part.high, least, most))
    with np.errstate(invalid="ignore", over="ignore"):
        half = (part.high - part.low) / 2
        stderr = np.where(part.wide, half, errors.deviations(errors.combine(part.gradient)))
    if bounds is not None:
        stderr = np.minimum(stderr, (bounds[1] - bounds[0]) / 2)
    known = np.isfinite(part.value) & (np.isfinite(stderr) | np.isfinite(part.low) | np.isfinite(part.high))
    null = undefined(formula, values, errors.certain)
    return Derived(*(np.where(null, np.nan, shown) for shown in (
        np.where(known, part.value, np.nan), _ends(stderr), _ends(part.low), _ends(part.high)
    )))  # fmt: skip


def _ends(ends: Floats) -> Floats:
    return np.where(np.isfinite(ends), ends, np.nan)


def _part(formula: Formula, values: Floats, errors: LinearErrors) -> _Part:
    linear = affine(formula, values.shape[1])
    if linear is not None:
        return _linear(*linear, values, errors)
    match formula:
        case Negative(of):
            return _times(_part(of, values, errors), -1.0)
        case Sum(parts):
            straight = [part for part in parts if affine(part, values.shape[1]) is not None]
            bent = [part for part in parts if affine(part, values.shape[1]) is None]
            merged = [*bent, Sum(tuple(straight))] if straight else bent
            return _sum([_part(part, values, errors) for part in merged], errors)
        case Product(parts):
            return _product(parts, values, errors)
        case Quotient(numerator, denominator, bounds):
            top, bottom = _part(numerator, values, errors), _part(denominator, values, errors)
            return _bounded(_filled(_quotient(top, bottom, errors), bounds or (-np.inf, np.inf)), bounds)
        case Default(of):
            return _zero_where(undefined(of, values, errors.certain), _part(of, values, errors))
        case Dated(of):
            return _part(formula.days, values, errors)
        case Monotone(of):
            return _increasing(formula, _part(of, values, errors), errors)
        case Variance():
            return _variance(formula, values, errors)
        case Fit(what=what):
            bounds = _FITS.get(what)
            found = fitted(formula, values, errors)
            # A coefficient that the noise hides keeps its regularised value; one within bounds stands for them all.
            part = _part_of(found) if bounds else replace(_part_of(found), wide=np.zeros_like(found.bounded))
            return _bounded(part, bounds)
        case Smooth():
            return _smooth(formula, values, errors)
        case Gini():
            return _bounded(_filled(_part_of(concentrated(formula, values, errors)), (0.0, 1.0)), (0.0, 1.0))
        case Comparison():
            return _bare(compared(formula, values, errors), values)
        case Independence():
            return _bare(independence(formula, values, errors), values)
    raise InterfaceError(f"{type(formula).__name__} is no part of a formula; use those of reconstruct.formulas")


def _zero_where(null: NDArray[np.bool_], part: _Part) -> _Part:
    value, low, high = (np.where(null, 0.0, numbers) for numbers in (part.value, part.low, part.high))
    return _Part(value, np.where(null[:, None], 0.0, part.gradient), low, high, part.wide & ~null)


def _part_of(ratios: Ratios) -> _Part:
    return _Part(ratios.value, ratios.gradient, ratios.low, ratios.high, ~ratios.bounded)


def _bare(value: Floats, values: Floats) -> _Part:
    """What a test says: a number whose law includes the noise already, without an interval of its own."""
    none = np.full_like(value, np.inf)
    return _Part(value, np.zeros_like(values), -none, none, np.zeros(len(value), dtype=np.bool_))


def _linear(weights: Floats, constant: float, values: Floats, errors: LinearErrors) -> _Part:
    value = values @ weights + constant
    gradient = np.tile(weights, (len(value), 1))
    half = errors.half_widths(errors.combine(gradient))
    return _Part(value, gradient, value - half, value + half, np.zeros(len(value), dtype=np.bool_))


def _times(part: _Part, factor: float) -> _Part:
    exact = np.full_like(part.value, factor)
    low, high = products((part.low, part.high), (exact, exact))
    return _Part(part.value * factor, part.gradient * factor, low, high, part.wide)


def _sum(parts: list[_Part], errors: LinearErrors) -> _Part:
    value = np.sum([part.value for part in parts], axis=0)
    gradient = np.sum([part.gradient for part in parts], axis=0)
    below = _joint_reach(parts, [part.value - part.low for part in parts], errors)
    above = _joint_reach(parts, [part.high - part.value for part in parts], errors)
    return _Part(value, gradient, value - below, value + above, np.any([part.wide for part in parts], axis=0))


def _joint_reach(parts: list[_Part], reaches: list[Floats], errors: LinearErrors) -> Floats:
    """How far the sum reaches on one side: stretched gradients together, wide parts in full."""
    stretched = np.zeros_like(parts[0].gradient)
    full = np.zeros(len(stretched))
    for part, reach in zip(parts, reaches, strict=True):
        half = errors.half_widths(errors.combine(part.gradient))
        chance = ~part.wide & (half > 0) & np.isfinite(reach)
        stretch = np.where(chance, reach, 0.0) / np.where(chance, half, 1.0)
        stretched += part.gradient * stretch[:, None]
        full += np.where(chance, 0.0, reach)
    return full + errors.half_widths(errors.combine(stretched))


def _product(factors: tuple[Formula, ...], values: Floats, errors: LinearErrors) -> _Part:
    constant, found = 1.0, None
    for factor in factors:
        linear = affine(factor, values.shape[1])
        if linear is not None and not linear[0].any():
            constant *= linear[1]
            continue
        part = _part(factor, values, errors)
        found = part if found is None else _pair(found, part, errors)
    if found is None:
        raise InterfaceError("a product of constants is a constant")  # affine() has taken it
    return _times(found, constant)


def _pair(a: _Part, b: _Part, errors: LinearErrors) -> _Part:
    value = a.value * b.value
    gradient = a.value[:, None] * b.gradient + b.value[:, None] * a.gradient
    wide = a.wide | b.wide
    half = errors.half_widths(errors.combine(gradient))
    with np.errstate(invalid="ignore"):
        half += np.maximum(a.value - a.low, a.high - a.value) * np.maximum(b.value - b.low, b.high - b.value)
    low, high = products((a.low, a.high), (b.low, b.high))
    return _Part(value, gradient, np.where(wide, low, value - half), np.where(wide, high, value + half), wide)


def _quotient(top: _Part, bottom: _Part, errors: LinearErrors) -> _Part:
    ratio = fieller(top.value, bottom.value, top.gradient, bottom.gradient, errors)
    wide = top.wide | bottom.wide
    low, high = quotients((top.low, top.high), (bottom.low, bottom.high))
    return _Part(
        ratio.value,
        ratio.gradient,
        np.where(wide, low, ratio.low),
        np.where(wide, high, ratio.high),
        wide | ~ratio.bounded,
    )


def _increasing(formula: Monotone, part: _Part, errors: LinearErrors) -> _Part:
    value, low, high = (formula.at(x) for x in (part.value, part.low, part.high))
    deviation = errors.deviations(errors.combine(part.gradient))
    slope = np.where(deviation > 0, formula.slope(part.value, deviation), 0.0)
    return _Part(value, part.gradient * slope[:, None], low, high, part.wide)


@np.errstate(all="ignore")
def _smooth(formula: Smooth, values: Floats, errors: LinearErrors) -> _Part:
    """A quotient of smooth functions, linearised; where its denominator is within its error of 0, 0 within its range.

    Derivatives are imaginary parts of the functions at a step of 1e-20 i, which no subtraction rounds (Squire and Trapp
    1998).
    """
    found = [linear_part(part, values) for part in formula.parts]
    x, weights = np.stack([value for value, _ in found]).astype(complex), np.stack([weight for _, weight in found])
    top, bottom = (np.real(side) for side in formula.sides(x))
    slopes = np.zeros((2, len(values), len(x)))
    for at, size in enumerate(np.maximum(np.abs(x), 1.0)):
        moved = x.copy()
        moved[at] += 1e-20j * size
        slopes[:, :, at] = np.stack([np.imag(side) for side in formula.sides(moved)]) / (1e-20 * size)
    finite = np.isfinite(slopes).all(axis=(0, 2)) & np.isfinite(top) & np.isfinite(bottom)
    rows = np.where(finite[:, None], slopes, 0.0) @ weights
    ratio = fieller(np.where(finite, top, 0.0), np.where(finite, bottom, 0.0), rows[0], rows[1], errors)
    n, reach = np.real(x[0]), errors.half_widths(errors.combine(np.tile(weights[0], (len(values), 1))))
    clear = ratio.bounded & finite & (n - reach > formula.least - 1) & (bottom > 0)
    least, most = formula.between(*(np.maximum(end, formula.least) for end in (n - reach, n + reach)))
    part = _Part(
        np.where(clear, ratio.value, 0.0),
        np.where(clear[:, None], ratio.gradient, 0.0),
        np.where(clear, ratio.low, -np.inf),
        np.where(clear, ratio.high, np.inf),
        ~clear,
    )
    return _within(part, least, most)


def _variance(formula: Variance, values: Floats, errors: LinearErrors) -> _Part:
    parts = [affine(part, values.shape[1]) for part in (formula.count, formula.total, formula.squares)]
    if any(part is None for part in parts):
        raise InterfaceError("the count, sum and squares of a variance must be linear in the outputs")
    n, S, Q = (_linear(*part, values, errors) for part in parts if part is not None)
    weights = (n.gradient, S.gradient, Q.gradient)
    found: Ratios = variances(n.value, S.value, Q.value, weights, formula.sample, formula.power, errors)
    cap = largest_variance(n.value, n.high - n.value, formula.width, formula.sample, formula.power)
    part = _Part(found.value, found.gradient, found.low, found.high, ~found.bounded)
    return _within(_filled(part, (np.zeros_like(cap), cap)), np.zeros_like(cap), cap)


def _filled(part: _Part, bounds: tuple[Floats | float, Floats | float]) -> _Part:
    """A value for 0 / 0 and the like: the middle of the bounds, 0 where they have none; the interval stays wide."""
    with np.errstate(invalid="ignore"):
        middle = np.nan_to_num((np.asarray(bounds[0]) + np.asarray(bounds[1])) / 2, nan=0.0, posinf=0.0, neginf=0.0)
    return replace(part, value=np.where(np.isfinite(part.value), part.value, middle))


def _bounded(part: _Part, bounds: Bounds | None) -> _Part:
    if bounds is None:
        return part
    return _within(part, np.full_like(part.value, bounds[0]), np.full_like(part.value, bounds[1]))


def _within(part: _Part, least: Floats, most: Floats) -> _Part:
    """The part clipped to [least, most]. An interval that misses them all is moved to touch them first.

    The true number lies within, so no coverage is lost; moving keeps such an interval from shrinking to a point.
    """
    shift = np.zeros_like(part.value)
    over, under = part.low > most, part.high < least
    shift[over] = (most - np.where(np.isfinite(part.high), part.high, part.low))[over]
    shift[under] = (least - np.where(np.isfinite(part.low), part.low, part.high))[under]
    low, high = np.clip(part.low + shift, least, most), np.clip(part.high + shift, least, most)
    return _Part(np.clip(part.value, least, most), part.gradient, low, high, part.wide)
