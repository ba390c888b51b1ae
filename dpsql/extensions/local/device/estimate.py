"""Estimates from randomised rows: any number of them, at no further cost in privacy.

Rows y_1, ..., y_n are randomised responses of x_1, ..., x_n over k combinations, with probabilities keep and lie;
a = keep - lie, b = lie. For phi on the domain with mean m = S / k over all combinations, and public weights w_i,

    estimate of sum_i w_i phi(x_i) = sum_i w_i (m + (phi(y_i) - m) / a).

This is the unbiased estimator of Wang, Ying and Zhang 2015, Eq. (12), (sum_i w_i phi(y_i) - b S sum_i w_i) / a, since
1 - a = k b: E phi(Y) = b S + a phi(x). Written around m it cancels nothing.

Its variance. Let psi = phi - m and Q = sum_v psi(v)^2. As E psi(Y) = a psi(x) and E psi(Y)^2 = a psi(x)^2 + b Q,

    Var = sum_i w_i^2 ((1 - a) psi(x_i)^2 / a + b Q / a^2),

and putting (psi(y)^2 - b Q) / a for psi(x)^2 gives the unbiased estimate that ``stderr`` is the root of,

    sum_i w_i^2 (k b psi(y_i)^2 + a b Q) / a^2,

the formula (1 - a) phi^2 + a b S2 - 2 b S phi + b^2 S^2 over a^2 with its squares completed: every row adds something
positive unless phi is constant. With k b = 1 - a, and b Q = (1 - a) times the mean of psi^2 over the domain, it is what
`covariance` returns; covariances follow by polarisation. Before any row is seen the variance is at most sum_i w_i^2
times its largest value over x, which is at most sum_i c_i^2 / (4 a^2), c_i = w_i (max phi - min phi): a variable on an
interval of length c has variance at most c^2 / 4. (Derivations ours.) Rows may have functions of their own, phi_i: all
sums are over rows, so nothing changes (``dpsql.extensions.local.estimators``).

Averages are ratios of two estimates over the same rows, with intervals by inversion of a test (Fieller 1954). All
intervals take the estimators as normal, sums of independent bounded rows that they are: for few rows they are rough.

Theorem 1 of the paper bounds the worst squared error (``distortion_upper_bound``, ``distortion_lower_bound``) of a
statistical query q(x) = sum_i phi_i(x_i) / sum_i c_i with c_i = max phi_i - min phi_i, so that every q moves by 1 over
all databases; its distortion is E (estimate - q(x))^2 at the worst x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy.special import ndtr, ndtri

from dpsql.errors import DataError, InterfaceError
from dpsql.extensions.local.device.domain import Domain
from dpsql.extensions.local.device.local import Declared, as_domain
from dpsql.extensions.local.device.row_functions import Floats, RowFunction, tabulated, where
from dpsql.privacy.amounts import Number
from dpsql.privacy.response import Codes, Response

Phi = RowFunction | Mapping[str, object] | Callable[[dict[str, Any]], float]
"""A function of records: a RowFunction, conditions as `where` takes them, or a Python function (small domains)."""


@dataclass(frozen=True)
class Estimate:
    """An estimate from ``rows`` rows. All figures are functions of released rows and public numbers.

    value: the estimate; unbiased but for ratios and ``proper`` counts. stderr: its standard error, estimated without
    bias in its square (a ratio's to first order; inf where its denominator is within its error of zero).
    low, high: the (1 - alpha) interval. worst_stderr: what the standard error could be at most for any rows x, known
    before the release; None for ratios.
    """

    value: float
    stderr: float
    low: float
    high: float
    worst_stderr: float | None
    rows: int


Figure = TypeVar("Figure", float, Floats)
"""One figure, or an array of them, one for each group and class of rows."""


def unbiased(response: Response, level: Figure, centred: Figure) -> Figure:
    """Eq. (12) from ``level`` = sum_i w_i m_i and ``centred`` = sum_i w_i psi_i(y_i)."""
    return level + centred / float(response.contrast)


def covariance(response: Response, seen: Figure, spread: Figure) -> Figure:
    """The estimate from ``seen`` = sum_i w_i^2 psi_i psi_i' (y_i), ``spread`` = sum_i w_i^2 mean of psi_i psi_i'."""
    a, rest = float(response.contrast), float(1 - response.contrast)
    return (rest * seen + a * rest * spread) / (a * a)


def least_variance(response: Response, spread: Figure) -> Figure:
    """What the variance is at least, whatever the rows hold: the part that no row decides. ``spread`` as above."""
    return float(1 - response.contrast) / float(response.contrast) ** 2 * spread


def largest_variance(response: Response, low: Figure, high: Figure, spread: Figure) -> Floats:
    """What a row of weight 1 adds to the variance at most, for psi between ``low`` and ``high``."""
    a, rest = float(response.contrast), float(1 - response.contrast)
    far = np.maximum(low * low, high * high)
    by_mean = rest / a * far + rest / (a * a) * np.maximum(spread, 0.0)
    return np.asarray(np.minimum(by_mean, ((high - low) / (2 * a)) ** 2))


def nearest(value: float, least: float, most: float, step: float = 1.0) -> float:
    """The possible answer closest to an estimate, Eq. (14): least, least + step, ..., most."""
    return min(max(least + step * math.floor((value - least) / step + 0.5), least), most)


@dataclass(frozen=True, eq=False)
class Collected:
    """Randomised rows, read once for many estimates: ``places`` holds the category of each column, each (n,)."""

    domain: Domain
    response: Response
    places: tuple[Codes, ...]

    @property
    def rows(self) -> int:
        return int(self.places[0].size)

    def estimate(
        self,
        phi: Phi,
        *,
        weights: object = None,
        per: Phi | None = None,
        proper: bool = False,
        alpha: float = 0.05,
    ) -> Estimate:
        """sum_i w_i phi(x_i), or with ``per`` sum_i w_i phi(x_i) / sum_i w_i per(x_i): see `estimate`. O(n terms)."""
        if not 0 < alpha < 1:
            raise DataError(f"alpha must lie strictly between 0 and 1, not {alpha!r}; 0.05 means 95 %")
        w = None if weights is None else _weights(weights, self.rows)
        linear = self._linear(self._function(phi), w)
        reach = float(-ndtri(alpha / 2))
        if per is not None:
            if proper:
                raise InterfaceError("the proper estimator is for counts; leave proper or per out")
            return self._ratio(linear, self._linear(self._function(per), w), w, reach)
        if proper and w is not None:
            raise InterfaceError(
                "the proper estimator of a weighted sum would search all subsets of the weights; leave proper out"
            )
        value, stderr = linear.value, math.sqrt(self._covariance(linear, linear, w))
        low, high = value - reach * stderr, value + reach * stderr
        if proper:
            value = self._proper(linear.phi, value)
            # The truth lies in [0, n]: cutting the interval there loses no coverage, widening it to the value neither.
            low, high = min(max(low, 0.0), value), max(min(high, float(self.rows)), value)
        return Estimate(value, stderr, low, high, self._worst(linear, w), self.rows)

    def _function(self, phi: Phi) -> RowFunction:
        if isinstance(phi, RowFunction):
            if phi.domain != self.domain:
                raise InterfaceError("the function is of another domain than the rows; make it of theirs")
            return phi
        if isinstance(phi, Mapping):
            return where(self.domain, phi)
        if callable(phi):
            return tabulated(self.domain, phi)
        raise InterfaceError(
            "phi must be conditions such as {'smoker': 'yes'}, a RowFunction or a function of a record"
        )

    def _linear(self, phi: RowFunction, w: Floats | None) -> _Linear:
        mean = phi.mean
        centred = phi - mean
        psi = centred.at(self.places)
        total = float(self.rows) if w is None else math.fsum(w.tolist())
        value = unbiased(self.response, total * mean, float(psi.sum() if w is None else w @ psi))
        return _Linear(phi, centred, psi, value)

    def _covariance(self, one: _Linear, two: _Linear, w: Floats | None) -> float:
        """Estimated covariance of two estimates over these rows; with itself, the variance."""
        products = one.psi * two.psi
        squares = float(self.rows) if w is None else float(w @ w)
        seen = float(products.sum() if w is None else (w * w) @ products)
        spread = one.centred.inner(two.centred) / self.domain.size
        found = covariance(self.response, seen, squares * spread)
        return max(found, 0.0) if one is two else found

    def _worst(self, linear: _Linear, w: Floats | None) -> float:
        spread = linear.centred.inner(linear.centred) / self.domain.size
        row = float(largest_variance(self.response, *linear.centred.bounds, spread))
        return math.sqrt(row * (self.rows if w is None else float(w @ w)))

    def _proper(self, phi: RowFunction, value: float) -> float:
        """The closest possible count: Eq. (14). Its error is at most twice that of ``value``, whatever the rows."""
        if not phi.is_indicator:
            raise InterfaceError("the proper estimator is for counts, of functions that are 0 or 1; leave proper out")
        low, high = phi.bounds
        return nearest(value, low * self.rows, high * self.rows)

    def _ratio(self, above: _Linear, below: _Linear, w: Floats | None, q: float) -> Estimate:
        """above / below, with the interval of the r that pass |above - r below| <= q standard errors.

        With r = value + t and all errors divided by ``below`` the ends solve t^2 = q^2 (V - 2 t K + t^2 U), where U,
        V are the variances of ``below`` and of above - value * below, and K their covariance.
        """
        if below.value == 0:
            raise DataError("the estimated denominator is zero, so there is no average; collect more rows")
        value, C = above.value / below.value, below.value
        U = self._covariance(below, below, w) / C**2
        mixed = self._covariance(above, below, w)
        V = (self._covariance(above, above, w) - 2 * value * mixed) / C**2 + value**2 * U
        V, K = max(V, 0.0), mixed / C**2 - value * U
        room = 1 - q * q * U
        if room <= 0:
            return Estimate(value, math.inf, -math.inf, math.inf, None, self.rows)
        root = math.sqrt(max(q**4 * K * K + room * q * q * V, 0.0))
        low, high = (value + (-q * q * K + side * root) / room for side in (-1, 1))
        return Estimate(value, math.sqrt(V), low, high, None, self.rows)


@dataclass(frozen=True, eq=False)
class _Linear:
    """phi, phi - mean, its values at the rows, and the estimate of its weighted sum."""

    phi: RowFunction
    centred: RowFunction
    psi: Floats
    value: float


def collect(rows: object, domain: Declared, *, epsilon: Number) -> Collected:
    """Randomised rows made ready for many estimates.

    rows: column -> list or array of n values; or a list of records (column -> value); or the numbers of n records,
    (n,) integers, as `Domain.encode` numbers them. domain, epsilon: those that they were randomised with.
    Raises DataError for a row outside the domain and InterfaceError for a missing column.
    """
    joint = as_domain(domain)
    response = Response.of(joint.size, epsilon)
    if isinstance(rows, Mapping):
        return Collected(joint, response, joint.public_places(rows))
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and rows.ndim == 1:
        if rows.size and int(rows.max()) >= joint.size:
            raise DataError(f"numbers of records must lie between 0 and {joint.size - 1}; give released ones")
        return Collected(joint, response, joint.places(rows.astype(np.int64)))
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise InterfaceError("rows must be columns, such as {'smoker': ['yes', 'no']}, or a list of records")
    for i, row in enumerate(rows):
        for name in joint.names:
            if name not in row:
                raise InterfaceError(f"row {i} has no column {name!r}; give rows as they were released")
    return Collected(joint, response, joint.public_places({n: [row[n] for row in rows] for n in joint.names}))


def estimate(
    rows: object,
    phi: Phi,
    domain: Declared,
    *,
    epsilon: Number,
    weights: object = None,
    per: Phi | None = None,
    proper: bool = False,
    alpha: float = 0.05,
) -> Estimate:
    """What sum_i w_i phi(x_i) was before the rows were randomised: a count, a sum, or with ``per`` an average.

    rows, domain, epsilon: as `collect`; for many questions about one collection call `collect` once.
    phi: conditions (a count), a RowFunction, or a function of a record. weights: n public numbers, 1 if not given; they
    must not depend on the private values (a public column joined by row is fine), or estimates are biased.
    per: divides by sum_i w_i per(x_i): the average of phi over the rows with per = 1.
    proper: the nearest possible count, an integer from 0 to n, Wang, Ying and Zhang 2015, Eq. (14), for counts without
    weights; biased, and its error is at most twice the unbiased one's, so its mean square at most four times (their
    Lemma 2); ``stderr`` stays that of the unbiased estimate.

    Post-processing of released rows: no privacy is spent. Assumes that every row was randomised once, with this
    domain and epsilon, independently. Raises DataError and InterfaceError.
    """
    return collect(rows, domain, epsilon=epsilon).estimate(phi, weights=weights, per=per, proper=proper, alpha=alpha)


def _weights(weights: object, rows: int) -> Floats:
    try:
        w = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise InterfaceError("weights must be numbers, one for each row") from None
    if w.shape != (rows,):
        raise InterfaceError(f"there are {rows} rows, and weights of shape {w.shape}; give one for each row")
    if not np.isfinite(w).all():
        raise DataError("weights must be finite; replace NaN and infinity by 0 or leave their rows out")
    return w


def distortion_upper_bound(response: Response, rows: int, *, spread: float = 1.0) -> float:
    """At most this is E (proper estimate - q(x))^2, for every statistical query and every x of ``rows`` rows.

    4 spread^2 / (a^2 n), a = keep - lie: Theorem 1's 4 (b - a)^2 g^2 / (c^2 (1 - e^-epsilon)^2 n), g = 1 + (k - 1)
    e^-epsilon, since (1 - e^-epsilon) / g is keep - lie. ``spread`` is the theorem's (b - a) / c: 1 where all rows
    have the same function, else (largest - least value of any phi_i) / (least c_i).

    It holds at every n, for the probabilities that are really used. Proof: Var phi_i(Y) <= c_i^2 / 4, so the unbiased
    estimate of q has variance at most sum_i c_i^2 / (4 a^2 (sum_i c_i)^2) <= spread^2 / (4 a^2 n), and the proper one
    at most four times that. So even a quarter of this figure holds, and a sixteenth for the unbiased estimator; what
    is returned is the figure as the theorem has it.
    """
    _check(rows)
    if not math.isfinite(spread) or spread < 1:
        raise DataError("spread is (b - a) / c and at least 1; leave it out where all rows have the same function")
    return float(4 * (spread / float(response.contrast)) ** 2 / rows)


def distortion_lower_bound(domain_size: int, epsilon: float, rows: int) -> float:
    """The leading term of a lower bound, over *all* epsilon-DP mechanisms (replace one row) with proper estimators.

        (1 - Phi(1))^2 / (16 k (1 + e^epsilon / (k - 1))^3 n)

    No certificate at any finite n: the theorem adds o(1/n) to it, of either sign and of unknown size, and there is no n
    from which the bound is known to hold. Theorem 1 prints epsilon where its proof, Eqs. (20) and (21), has
    e^epsilon; this is the latter. Stated for k = 2^l, on which it depends through k alone; for other k it is the same
    expression, which the paper does not state.
    """
    _check(rows)
    if isinstance(domain_size, bool) or not isinstance(domain_size, int) or domain_size < 2:
        raise DataError("the domain must have at least 2 values")
    if not 0 <= epsilon < math.inf:
        raise DataError("epsilon must be a finite number of at least 0")
    if epsilon > 200:
        return 0.0
    tail = float(ndtr(-1.0))
    return tail**2 / (16 * domain_size * (1 + math.exp(epsilon) / (domain_size - 1)) ** 3 * rows)


def _check(rows: int) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise DataError("the number of rows must be a whole number of at least 1")
