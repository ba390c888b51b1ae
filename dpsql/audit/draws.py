"""Choices that look random and are the same every time, so that an audit can be repeated to the bit.

They choose generated rows, which are nobody's. Noise never comes from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of choices from SHA-256 of a name and a counter."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def below(self, bound: int) -> int:
        """A whole number in [0, bound); the bias of the remainder is below 2^-40 for the bounds in use."""
        self._count += 1
        digest = hashlib.sha256(f"{self._name}/{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % bound

    def choice(self, values: Sequence[T]) -> T:
        """One of the values, each with the same probability."""
        return values[self.below(len(values))]
