"""The number of a text among constants by its hash: one comparison for a row, or a few, however many they are.

A list has as many places as a mask of the hash tells apart, and each constant stands at its own; where two have one
place, the second stands in a second list, and so on. A row is compared with what stands at the place of its text.
"""

from __future__ import annotations

import functools

from dpsql.engines.spark.values import refusal
from dpsql.workload.expr import values as tree

_ROOM = 8  # times as many places as constants, at most


def number_of(numbers: tree.Value, constants: tree.Value, value: tree.Value) -> tree.Value:
    """The one of ``numbers`` at the place of ``value`` among ``constants``, different texts; NULL where it is none."""
    if not isinstance(numbers, tree.Numbers) or not isinstance(constants, tree.Call):
        raise refusal("a place is looked up that is not one among constants", "plan again")
    texts = tuple(str(text.value) for text in constants.arguments if isinstance(text, tree.Constant))
    lists = _lists(texts)
    place = tree.bare("text_place", value, tree.whole(len(lists[0])))
    branches: list[tuple[tree.Test, tree.Value]] = []
    for places in lists:
        # A constant at a place that is not its own is equal to no text that is looked up there, or was before.
        held = tree.bare("list_value", *(tree.Constant(texts[at or 0], "VARCHAR") for at in places), type="VARCHAR[]")
        found = tree.Numbers(tuple(numbers.values[at or 0] for at in places), numbers.type)
        same = tree.Compared(tree.bare("list_extract", held, place, type="VARCHAR"), "=", value)
        branches.append((same, tree.bare("list_extract", found, place, type=numbers.type)))
    return tree.CaseValue(tuple(branches), None, numbers.type)


@functools.lru_cache(maxsize=64)
def _lists(texts: tuple[str, ...]) -> tuple[tuple[int | None, ...], ...]:
    """The constants at the places of each list, by their numbers: of few lists, and then of short ones."""
    hashes = [murmur(text.encode()) for text in texts]
    size = 1
    best: list[list[int]] = []
    while size <= _ROOM * len(texts):
        filled: list[list[int]] = [[] for _ in range(size)]
        for number, found in enumerate(hashes):
            filled[found & (size - 1)].append(number)
        lists = max(map(len, filled))
        if not best or lists < max(map(len, best)):
            best = filled
        size *= 2
    return tuple(
        tuple(held[depth] if depth < len(held) else None for held in best) for depth in range(max(map(len, best)))
    )


def murmur(data: bytes, seed: int = 42) -> int:
    """Spark's ``hash`` of a text, from 0 to 2^32 - 1: 32-bit Murmur3, whose last bytes are words of their own."""
    whole = len(data) - len(data) % 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    words += [int.from_bytes(data[at : at + 1], "little", signed=True) for at in range(whole, len(data))]
    found = seed
    for word in words:
        found = _rotated(found ^ _rotated(word * 0xCC9E2D51, 15) * 0x1B873593, 13) * 5 + 0xE6546B64
    found = (found ^ len(data)) % 2**32
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ found >> shift) * factor % 2**32
    return found ^ found >> 16


def _rotated(word: int, bits: int) -> int:
    word %= 2**32
    return (word << bits | word >> (32 - bits)) % 2**32
