"""Repeatable bytes in place of the operating system's: for tests alone."""

from __future__ import annotations

import hashlib


class SeededSource:
    """SHAKE-128 of a seed and a counter."""

    def __init__(self, seed: str) -> None:
        self.seed, self.block = seed, 0

    def __call__(self, size: int, /) -> bytes:
        self.block += 1
        return hashlib.shake_128(f"{self.seed}/{self.block}".encode()).digest(size)
