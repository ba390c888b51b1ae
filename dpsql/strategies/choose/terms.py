"""What ``select`` tells a strategy that an extension registered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Terms:
    """What a method may use: the noise, a gap for the L2 optimum, a deadline (monotonic), multiplications."""

    noise: str
    tolerance: float
    deadline: float
    work: float
