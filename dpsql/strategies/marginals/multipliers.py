"""Sets of attributes, and the whole numbers by which what is measured of them is multiplied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import TypeVar

from dpsql.workloads.compile.kronecker import Histogram

Subset = tuple[int, ...]
Place = tuple[int, int, Subset]  # table, component, axes
Key = TypeVar("Key")
Number = TypeVar("Number", float, Fraction)


def subsets(S: Iterable[int]) -> list[Subset]:
    """All subsets, the smaller ones first."""
    held = tuple(S)
    return [T for order in range(len(held) + 1) for T in combinations(held, order)]


def whole_multipliers(
    multipliers: Mapping[Key, float], error: Callable[[dict[Key, int]], float], most: float, most_step: int = 2**20
) -> dict[Key, int]:
    """Whole numbers in proportion to ``multipliers``, doubled until their ``error`` is at most ``most``.

    The error is flat around its least, so small numbers cost little. The smallest is at most ``most_step``.
    """
    least, step = min(multipliers.values()), 1
    while True:
        k = {key: max(1, round(step * (value / least))) for key, value in multipliers.items()}
        if error(k) <= most or step >= most_step:
            return k
        step *= 2


def precisions(sizes: Sequence[int], spaces: Iterable[Subset], tables: Mapping[Subset, Number]) -> dict[Subset, Number]:
    """N_T = sum over S containing T of k_S^2 / prod_(i in S - T) d_i, for the residuals T in ``spaces``.

    That is how precisely whole ``tables`` S, measured k_S times with noise of variance 1, say the residual T. One that
    no table has is left out. Cost: the tables times their subsets, or the spaces where these are fewer.
    """
    wanted, out = set(spaces), dict[Subset, Number]()
    for S, k in tables.items():
        held = set(S)
        few = 2 ** len(S) <= len(wanted)
        for T in subsets(S) if few else (T for T in wanted if held.issuperset(T)):
            if T in wanted:
                share = k * k / prod(sizes[i] for i in S if i not in T)
                out[T] = out[T] + share if T in out else share
    return out


def homes(histograms: Sequence[Histogram], places: Collection[Place]) -> dict[Place, int]:
    """The number of the first histogram that has the axes of each place; a place that none has is left out."""
    wanted = set(places)
    found: dict[Place, int] = {}
    for number, held in enumerate(histograms):
        wide = [axis for axis, size in zip(held.axes, held.sizes, strict=True) if size > 1]
        for axes in subsets(wide):
            if (held.table, held.component, axes) in wanted:
                found.setdefault((held.table, held.component, axes), number)
    return found
