"""All texts of at most so many bytes: a public universe of values, numbered from 0 on, whatever anybody has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dpsql.errors import DataError

MOST_BYTES = 255
"""The longest texts of a universe: from how many units on a text is shown grows with this."""
_LAST = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # characters of one to four bytes
_SURROGATES = range(0xD800, 0xE000)  # which UTF-8 does not have


@dataclass(frozen=True)
class Universe:
    """The texts whose UTF-8 has at most ``longest`` bytes, of the characters in ``alphabet``; of all where it is None.

    Raises DataError.
    """

    longest: int
    alphabet: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.longest, bool) or not isinstance(self.longest, int) or not 1 <= self.longest <= MOST_BYTES:
            raise DataError(f"max_bytes must be a whole number of 1 to {MOST_BYTES}")
        if self.alphabet is None:
            return
        if not self.alphabet or len(set(self.alphabet)) < len(self.alphabet):
            raise DataError('alphabet must be the characters that a text may have, each once, such as "0123456789"')
        if any(ord(character) in _SURROGATES for character in self.alphabet):
            raise DataError("alphabet has half of a character; give whole ones")

    @cached_property
    def _characters(self) -> tuple[str | range, ...]:
        """The characters of one, two, three and four bytes."""
        if self.alphabet is None:
            return tuple(
                range(first, last + 1) for first, last in zip((0, *(n + 1 for n in _LAST)), _LAST, strict=False)
            )
        return tuple("".join(c for c in self.alphabet if len(c.encode()) == size) for size in range(1, 5))

    @cached_property
    def _many(self) -> tuple[int, ...]:
        """How many characters have one, two, three and four bytes."""
        gone = len(_SURROGATES) if self.alphabet is None else 0
        return tuple(len(held) - gone * (size == 2) for size, held in enumerate(self._characters))

    @cached_property
    def _texts(self) -> tuple[int, ...]:
        """How many texts have 0, 1, ..., ``longest`` bytes: a character, and a text of the bytes that are left."""
        texts = [1]
        for size in range(1, self.longest + 1):
            texts.append(sum(n * texts[size - b] for b, n in enumerate(self._many, 1) if b <= size))
        return tuple(texts)

    @property
    def size(self) -> int:
        """How many texts there are."""
        return sum(self._texts)

    def text(self, number: int) -> str:
        """The text of a number below ``size``: different numbers have different texts."""
        left = 0
        while number >= self._texts[left]:
            number -= self._texts[left]
            left += 1
        found = []
        while left:
            size = 1
            while left < size or number >= self._many[size - 1] * self._texts[left - size]:
                number -= self._many[size - 1] * self._texts[left - size] if left >= size else 0
                size += 1
            left -= size
            which, number = divmod(number, self._texts[left])
            found.append(self._character(size - 1, which))
        return "".join(found)

    def _character(self, size: int, which: int) -> str:
        held = self._characters[size]
        if isinstance(held, str):
            return held[which]
        code = held[which]
        return chr(code + len(_SURROGATES) if size == 2 and code >= _SURROGATES.start else code)

    def __str__(self) -> str:
        of = "" if self.alphabet is None else f" of {len(self.alphabet)} characters"
        return f"text of at most {self.longest} bytes{of}"
