"""Estimates of a query's numbers from released rows, their covariances, and what is known of both beforehand.

The estimator, its errors and their derivation are those of ``dpsql.extensions.local.device.estimate``; here for many
groups at once, and for rows with functions of their own: phi_i, of mean m_i over the domain, is one for all rows of a
class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import InterfaceError
from dpsql.extensions.local.device import distortion_lower_bound, distortion_upper_bound
from dpsql.extensions.local.device.estimate import covariance, largest_variance, least_variance, nearest, unbiased
from dpsql.extensions.local.functions import Entries, Shape, entries
from dpsql.extensions.local.listing import Listed
from dpsql.privacy.response import Response
from dpsql.workloads.expr.regions import IntArray


@dataclass(eq=False)
class Estimator:
    """All outputs of one query; results are (groups,) for each output.

    Sums are kept for the pairs of a class and a group in which a row of that class can be (``_pairs``, ascending):
    with groups by public columns there are far fewer than classes times groups.
    """

    shape: Shape
    listed: Listed
    response: Response
    _covariances: dict[tuple[int, int], Floats] = field(default_factory=dict, repr=False)

    @cached_property
    def rows(self) -> Entries:
        """phi of the released rows."""
        return entries(self.shape, self.listed.rows)

    @cached_property
    def domain(self) -> Entries:
        """phi of the domain's points."""
        return entries(self.shape, self.listed.domain)

    @property
    def n(self) -> int:
        """How many rows were released."""
        return int(self.listed.sizes.sum())

    @cached_property
    def _pairs(self) -> IntArray:
        return np.unique(self.domain.kind * self.shape.groups + self.domain.group)

    @cached_property
    def _sizes(self) -> IntArray:
        """The rows of each pair's class."""
        return self.listed.sizes[self._pairs // self.shape.groups]

    @cached_property
    def _means(self) -> list[Floats]:
        return [self._summed(self.domain, phi) for phi in self.domain.phi]

    @cached_property
    def _totals(self) -> list[Floats]:
        return [self._summed(self.rows, phi) for phi in self.rows.phi]

    def _places(self, phi: Entries) -> tuple[IntArray, NDArray[np.bool_]]:
        """The pair of each entry, and whether there is one: where there is none phi is 0 everywhere."""
        key = phi.kind * self.shape.groups + phi.group
        at = np.searchsorted(self._pairs, key)
        at[at == len(self._pairs)] = 0
        return at, self._pairs[at] == key if len(self._pairs) else np.zeros(len(key), dtype=bool)

    def _summed(self, phi: Entries, values: Floats) -> Floats:
        """Weighted sums over the entries of each pair."""
        at, there = self._places(phi)
        weights = (phi.weight * values)[there]
        return np.bincount(at[there], weights=weights, minlength=len(self._pairs)).astype(np.float64)

    def _by_group(self, values: Floats) -> Floats:
        """The sum over all pairs of a group."""
        groups = self.shape.groups
        return np.bincount(self._pairs % groups, weights=values, minlength=groups).astype(np.float64)

    def value(self, output: int) -> Floats:
        expected = self._sizes * self._means[output]
        return self._by_group(unbiased(self.response, expected, self._totals[output] - expected))

    def covariance(self, one: int, two: int) -> Floats:
        """Estimated covariances of two outputs' estimates; with itself, the variance."""
        key = (min(one, two), max(one, two))
        if key not in self._covariances:
            i, j = key
            m, m_ = self._means[i], self._means[j]
            t, t_, n = self._totals[i], self._totals[j], self._sizes
            seen = self._summed(self.rows, self.rows.phi[i] * self.rows.phi[j]) - m * t_ - m_ * t + n * m * m_
            spread = n * (self._summed(self.domain, self.domain.phi[i] * self.domain.phi[j]) - m * m_)
            total = self._by_group(covariance(self.response, seen, spread))
            self._covariances[key] = np.maximum(total, 0.0) if i == j else total
        return self._covariances[key]

    def stderr(self, output: int) -> Floats:
        """Standard errors: unbiased in their squares."""
        return np.asarray(np.sqrt(self.covariance(output, output)))

    # -- known beforehand ----------------------------------------------------------------------

    def _ranges(self, output: int) -> tuple[Floats, Floats]:
        """min and max of phi over the domain, for each pair."""
        at, _ = self._places(self.domain)
        low, high = np.full(len(self._pairs), np.inf), np.full(len(self._pairs), -np.inf)
        np.minimum.at(low, at, self.domain.phi[output])
        np.maximum.at(high, at, self.domain.phi[output])
        # Combinations outside the group add nothing.
        elsewhere = self._summed(self.domain, np.ones(len(at))) < 1 - 1e-12
        low, high = np.where(elsewhere, np.minimum(low, 0.0), low), np.where(elsewhere, np.maximum(high, 0.0), high)
        return low, high

    def _spread(self, output: int) -> Floats:
        """The variance of phi over the domain, for each pair."""
        m = self._means[output]
        return np.maximum(self._summed(self.domain, self.domain.phi[output] ** 2) - m * m, 0.0)

    def worst_stderr(self, output: int) -> Floats:
        """What the standard errors could be at most, whatever the rows hold."""
        m, (low, high) = self._means[output], self._ranges(output)
        each = largest_variance(self.response, low - m, high - m, self._spread(output))
        return np.asarray(np.sqrt(self._by_group(self._sizes * each)))

    def best_stderr(self, output: int) -> Floats:
        """What the standard errors are at least: the part that no row decides."""
        return np.asarray(np.sqrt(self._by_group(least_variance(self.response, self._sizes * self._spread(output)))))

    def distortion(self, output: int) -> list[tuple[float, float, float]]:
        """For each group (scale, upper, lower): Theorem 1's bounds of the worst mean squared error.

        ``scale`` is sum_i c_i, by which the theorem divides the number; the bounds are for the quotient, a statistical
        query. Rows whose function is constant have no error and are left out of n. The upper bound holds at any n, the
        lower one is asymptotic and certifies nothing at one n. 0 and 0 for a number that no row can change.
        """
        low, high = self._ranges(output)
        reach, group = high - low, self._pairs % self.shape.groups
        moved = (reach > 0) & (self._sizes > 0)
        found = []
        for number in range(self.shape.groups):
            mine = np.flatnonzero(moved & (group == number))
            n = int(self._sizes[mine].sum())
            if not n:
                found.append((0.0, 0.0, 0.0))
                continue
            scale = float((self._sizes * reach)[mine].sum())
            spread = float((high[mine].max() - low[mine].min()) / reach[mine].min())
            upper = distortion_upper_bound(self.response, n, spread=max(1.0, spread))
            lower = distortion_lower_bound(self.response.domain_size, float(self.response.epsilon), n)
            found.append((scale, upper, lower))
        return found

    # -- proper estimates ----------------------------------------------------------------------

    def proper(self, output: int) -> tuple[Floats, float]:
        """The nearest possible answers (Eq. 14), and the distance of two of them.

        For numbers whose row function is the same for all rows and takes every value of a grid between its least and
        its largest: counts, and sums of whole numbers without gaps. What n rows can add up to is then n * least, n *
        least + step, ..., n * largest. Raises InterfaceError for others, whose possible answers are subset sums.
        """
        name = self.shape.query.outputs[output].name
        if len(self.listed.sizes) > 1:
            raise InterfaceError(
                f"{name}: the proper estimator of numbers with public weights would search all subsets of rows; "
                "leave estimator out"
            )
        values = np.zeros(self.shape.groups)
        steps = []
        if not self.n:
            return values, 1.0
        low, high = self._ranges(output)
        estimates = self.value(output)
        ends = dict(
            zip((self._pairs % self.shape.groups).tolist(), zip(low.tolist(), high.tolist(), strict=True), strict=True)
        )
        for group in range(self.shape.groups):
            phi = self.domain.phi[output][self.domain.group == group]
            known = np.unique(np.append(phi, ends.get(group, (0.0, 0.0))))
            step = float(np.diff(known).min()) if len(known) > 1 else 1.0
            if len(known) > 2 and not np.allclose(np.diff(known), step, rtol=1e-9, atol=0):
                raise InterfaceError(
                    f"{name}: the proper estimator is for counts and for sums over values at equal distances; leave "
                    "estimator out"
                )
            values[group] = nearest(float(estimates[group]), self.n * known[0], self.n * known[-1], step)
            steps.append(step)
        return values, max(steps)


def joint_rows(covariances: NDArray[np.float64]) -> Floats:
    """Rows R (k g x k), output by output, with R R^T the covariance of each group's outputs; from (g, k, k)."""
    values, vectors = np.linalg.eigh(covariances)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    g, k, _ = covariances.shape
    return np.ascontiguousarray(roots.transpose(1, 0, 2).reshape(k * g, k))
