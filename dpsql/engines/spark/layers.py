"""Values of one SELECT for Spark that stand in it several times, each computed once in a subquery below it.

DuckDB's text repeats a value wherever it is used, and a rule of ``functions`` repeats its operands again: written
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
from collections.abc import Sequence

from dpsql.engines.spark.values import Expr, short

SHARED = 2  # uses from which on a value has a name
_MARK = re.compile("\x01(\\d+)\x02")


class Layers:
    """The values of one SELECT: marked while it is translated, then written in subqueries of its FROM."""

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
        return self._filled(text, {})

    def written(self, texts: Sequence[str], source: str) -> tuple[list[str], str]:
        """Texts of a SELECT and what stands in its FROM, without marks."""
        counts = Counter[int]()
        for text in texts:
            self._count(text, counts)
        shared = sorted(place for place, count in counts.items() if count >= SHARED and place not in self._columns)
        if not shared:
            return [self.inlined(text) for text in texts], source
        levels: dict[int, int] = {}
        for place in shared:  # a value has a higher place than those in it
            levels[place] = 1 + self._level(self._texts[place], levels)
        columns = sorted(self._columns & set(counts))
        named = {place: _name(place) for place in shared}
        first = [f"{self._texts[place]} AS {_name(place)}" for place in columns]
        first += [f"{self.inlined(self._texts[place])} AS {_name(place)}" for place in shared if levels[place] == 1]
        below = f"(SELECT {', '.join(first)} FROM {source}) AS dpsql_layer"  # noqa: S608
        named |= {place: _name(place) for place in columns}
        for level in range(2, max(levels.values()) + 1):
            more = [f"{self._filled(self._texts[place], named)} AS {_name(place)}" for place in shared
                    if levels[place] == level]  # fmt: skip
            below = f"(SELECT *, {', '.join(more)} FROM {below}) AS dpsql_layer"  # noqa: S608
        return [self._filled(text, named) for text in texts], below

    def _count(self, text: str, counts: Counter[int]) -> None:
        for found in _MARK.finditer(text):
            place = int(found[1])
            counts[place] += 1
            if counts[place] == 1 and place not in self._columns:
                self._count(self._texts[place], counts)

    def _level(self, text: str, levels: dict[int, int]) -> int:
        inside = [int(found[1]) for found in _MARK.finditer(text)]
        return max(
            (
                levels[place] if place in levels else self._level(self._texts[place], levels)
                for place in inside
                if place not in self._columns
            ),
            default=0,
        )

    def _filled(self, text: str, named: dict[int, str]) -> str:
        def put(found: re.Match[str]) -> str:
            place = int(found[1])
            if place in named:
                return named[place]
            return self._texts[place] if place in self._columns else self._filled(self._texts[place], named)

        return short(Expr(_MARK.sub(put, text), "")).text


def _name(place: int) -> str:
    return f"dpsql_v{place}"
