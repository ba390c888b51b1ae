"""Repeatable answers in place of the operating system's entropy: for tests alone."""

from __future__ import annotations

import numpy as np

from dpsql.privacy.response import Codes, Response, offsets_from


class Bytes:
    """Bytes of a Philox generator under a fixed seed; databases are drawn by another one, or they would correlate."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.Philox(seed))

    def __call__(self, size: int, /) -> bytes:
        return self.generator.bytes(size)


def answers(response: Response, values: Codes, seed: int) -> Codes:
    """What ``response`` makes of ``values`` under a fixed seed."""
    return response.shifted(values, offsets_from(response, values.size, Bytes(seed)))
