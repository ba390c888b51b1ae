"""The chain of reductions that leads from a batch to what is measured, each step with what it left.

An exact step loses nothing: the least error after it is the least error before it. A heuristic may lose, and the
plan's certificate says at most how much.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

_NAME, _KIND, _WIDTH = 13, 11, 80


@dataclass(frozen=True)
class Step:
    """One reduction: its ``name``, whether it is ``exact``, and what it did, in words.

    ``gap``: at most how much of the least error a heuristic loses, where that is certified.
    """

    name: str
    exact: bool
    text: str
    gap: float | None = None

    @property
    def kind(self) -> str:
        """``exact``, ``heuristic``, or what is lost at most."""
        return "exact" if self.exact else "heuristic" if self.gap is None else f"<= {max(self.gap, 1e-4):.2%}"


def order_of(number: int) -> str:
    """A number of cells for a reader: its digits, or its order where they are many.

    >>> order_of(12_000), order_of(10**15)
    ('12,000', 'about 10^15')
    """
    return f"{number:,}" if number < 10**12 else f"about 10^{len(str(number)) - 1}"


def shown(steps: Iterable[Step]) -> str:
    """A line or more for each step, at most 80 characters wide.

    >>> print(shown([Step("copies", True, "12 problems are alike, which leaves 1")]))
    copies       exact      12 problems are alike, which leaves 1
    """
    return "\n".join(
        textwrap.fill(
            step.text,
            _WIDTH,
            initial_indent=step.name.ljust(_NAME) + step.kind.ljust(_KIND),
            subsequent_indent=" " * (_NAME + _KIND),
            break_on_hyphens=False,
        )
        for step in steps
    )
