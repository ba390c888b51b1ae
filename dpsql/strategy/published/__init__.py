"""Published methods that ``select`` tries only where they are named: their names, and what they are told.

``dpsql.strategy.published.pieces`` carries them out and is imported when one is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

# Methods that are the product of their factors' strategies on a product workload.
FACTORWISE = ("hierarchical", "weighted-hierarchical", "haar", "weighted-haar", "range-transform")
BLOCKWISE = (
    "eigen-design",
    "level-selection",
    "workload-generalisation",
    "svd-approximation",
    "l2-approximation",
    "min-sensitivity",
    "augmented",
    "low-rank-mechanism",
    "smoothed",
)
PUBLISHED = (*FACTORWISE, *BLOCKWISE)


@dataclass(frozen=True, eq=False)
class Terms:
    """What a method may use: the noise, a gap for the L2 optimum, a deadline (monotonic), multiplications."""

    noise: str
    tolerance: float
    deadline: float
    work: float
