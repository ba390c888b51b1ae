"""Values of one SELECT for Spark that stand in it several times, each computed once in a subquery below it.

A scan uses a value in several places, and a rule of ``functions`` repeats its operands again: written
out, a rounded sum is 36 kB, which Spark parses, compiles and, from 8,000 bytes of code on, interprets. Here an operand
is a mark in the text of what uses it. What is used once is put in its place; what is used more often gets a name in a
subquery, one level for each value that needs another. Spark does not undo that: it merges two projections only where
no value would be computed twice (``spark.sql.optimizer.collapseProjectAlwaysInline`` is off).

A subquery computes values on rows on which a CASE would not have: allowed, as no expression fails on any row, and
a value has no effect beside itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dpsql.extensions.spark.values import Expr, short

SHARED = 2  # uses from which on a value has a name
_MARK = re.compile("\x01(\\d+)\x02")


class Layers:
    """The values of one SELECT: marked while it is written, then written in subqueries of its FROM."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._places: dict[str, int] = {}
        self._columns: set[int] = set()

    def marked(self, text: str) -> str:
        """A mark for a text; texts without a mark in them are constant, and stay."""
        return text if "\x01" not in text else self._mark(text)

    def column(self, text: str) -> str:
        """A mark for a column of FROM."""
        mark = self._mark(text)
        self._columns.add(self._places[text])
        return mark

    def _mark(self, text: str) -> str:
        if _MARK.fullmatch(text):
            return text
        place = self._places.setdefault(text, len(self._texts))
        if place == len(self._texts):
            self._texts.append(text)
        return f"\x01{place}\x02"

    def inlined(self, text: str) -> str:
        """A text without marks, every value in its place, where no subquery can stand."""
        return self._filled([text], {})[0]

    def written(self, texts: Sequence[str], source: str) -> tuple[list[str], str]:
        """Texts of a SELECT and what stands in its FROM, without marks."""
        counts = self._counts(texts)
        shared = sorted(place for place, count in counts.items() if count >= SHARED and place not in self._columns)
        if not shared:
            return self._filled(texts, {}), source
        levels: dict[int, int] = {}
        for place in sorted(counts):  # a value has a higher place than those in it
            if place not in self._columns:
                inside = max((levels.get(part, 0) for part in _places(self._texts[place])), default=0)
                levels[place] = inside + (counts[place] >= SHARED)
        columns = sorted(self._columns & set(counts))
        first = [f"{self._texts[place]} AS {_name(place)}" for place in columns]
        named: dict[int, str] = {}
        below = source
        for level in range(1, max(levels.values()) + 1):
            mine = [place for place in shared if levels[place] == level]
            values = self._filled([self._texts[place] for place in mine], named)
            listed = [f"{text} AS {_name(place)}" for place, text in zip(mine, values, strict=True)]
            below = f"(SELECT {', '.join([*(first if level == 1 else ['*']), *listed])} FROM {below}) AS dpsql_layer"  # noqa: S608
            if level == 1:
                named = {place: _name(place) for place in (*shared, *columns)}
        return self._filled(texts, named), below

    def _counts(self, texts: Sequence[str]) -> Counter[int]:
        """How often each value stands in the texts and in the values that stand there."""
        counts = Counter(part for text in texts for part in _places(text))
        for place in range(len(self._texts) - 1, -1, -1):
            if counts[place] and place not in self._columns:
                counts.update(_places(self._texts[place]))
        return +counts

    def _filled(self, texts: Sequence[str], named: Mapping[int, str]) -> list[str]:
        """Texts with every value in its place, or its name there."""
        shown: dict[int, str] = {}

        def put(mark: re.Match[str]) -> str:
            return shown[int(mark[1])]

        for place in sorted(self._needed(texts, named)):  # a value has a higher place than those in it
            shown[place] = named[place] if place in named else short(Expr(_MARK.sub(put, self._texts[place]), "")).text
        return [short(Expr(_MARK.sub(put, text), "")).text for text in texts]

    def _needed(self, texts: Sequence[str], named: Mapping[int, str]) -> set[int]:
        """The values in the texts, and those that stand in them, down to named ones."""
        needed: set[int] = set()
        waiting = [part for text in texts for part in _places(text)]
        while waiting:
            place = waiting.pop()
            if place not in needed:
                needed.add(place)
                if place not in named and place not in self._columns:
                    waiting += _places(self._texts[place])
        return needed


def _places(text: str) -> list[int]:
    """The values that are marked in a text."""
    return list(map(int, _MARK.findall(text)))


def _name(place: int) -> str:
    return f"dpsql_v{place}"
