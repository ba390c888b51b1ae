"""Counts of units over the same rows, and of these rows: a unit's contribution is bounded once, for all counts.

A row has its unit counted in a column of groups, by its number (``Together.cells``); -1 is none. The table of *pairs*
has each pair of a unit and a column of its rows once, with how many rows these are.

**Claim.** Of each unit at most k pairs are kept, and in all at most k of its rows; all counts are over what is kept.
Which these are is a function of the unit's own rows, and a unit with at most k rows that count keeps all.

- A unit has too much where it has more than k rows in some column; where no rows are counted, more than k columns. Any
  other keeps all that it has.
- Of one that has too much the first k columns are kept, ordered by a hash of unit and column, so that no column is
  favoured for all units. One row of each is kept, and as many of the others, in the same order of columns, as make k.
- A unit is counted in a group where that has one of its kept columns. Where the groups are few, this is a bit of a
  word: a row for each unit, whose words have the bits of its columns, is all that such counts read. NULL is a unit,
  too, whose rows count; it has no bit, and no pair of its own is counted.

The two kinds of units are told apart by sums over their own rows. The time tells how many have too much, as it tells
how rows are spread over units everywhere.

Between statements the tables may lie in the engine (``Materialize``), and text keeps the binary order of its insertion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dpsql.engines.base import Scan
from dpsql.measure.from_sql import CELL, PLACE, UNIT
from dpsql.measure.region_sql import region
from dpsql.workloads.compile.layout import Layout, Together, Walk
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.regions import IntArray
from dpsql.workloads.expr.scan import Column, Joined, Match, Select, Union, same
from dpsql.workloads.expr.total import SAME

ROWS = "dpsql_rows"
BITS = 62  # of a word: the groups of a count that one word can tell
ENTRY = "x"  # before the number of an entry of x, of which a column is the count
_TOTAL, _COLUMNS, _MORE = "dpsql_total", "dpsql_columns", "dpsql_more"
_PAIRS, _OVER = "dpsql_pairs", "dpsql_over"
Materialize: TypeAlias = Callable[[Scan], Scan]
"""A scan that gives what another gives, which may be computed once for all that read it."""


@dataclass(frozen=True)
class Bounded:
    """Bounded units: words of bits, a row for each unit, and pairs of a unit and a column with their rows."""

    words: Scan
    pairs: Scan


def column_of(walk: Walk, values: Mapping[str, tree.Value]) -> tree.Value:
    """The number of the column that a row is in, as BIGINT, -1 for none; total, never NULL."""
    state: tree.Value | None = None
    for axis, table in zip(walk.axes, walk.tables, strict=True):
        missing, numbers = table.shape[1] - axis.size, table.ravel()
        place = _big(region(axis, values))
        place = tree.bare("+", place, tree.long(missing)) if missing else place
        if state is not None:
            place = tree.bare("+", tree.bare("*", state, tree.long(table.shape[1])), place)
        if np.array_equal(numbers, np.arange(numbers.size)):
            state = place
            continue
        listed = tree.Numbers(tuple(numbers.tolist()), "INTEGER")
        state = _big(tree.bare("list_extract", listed, tree.bare("+", place, tree.long(1)), type="INTEGER"))
    return tree.long(0) if state is None else state


def bound_units(together: Together, rows: Scan, materialize: Materialize = lambda scan: scan) -> Bounded:
    """The units of ``rows``, bounded; ``rows`` has for each row its ``UNIT`` and the number of its column."""

    def bounded(words: Scan, pairs: Scan) -> Bounded:
        return Bounded(materialize(words) if by_bits else words, materialize(pairs) if others else pairs)

    by_bits = _places(together).keys()
    others = any(layout.table not in by_bits for layout in together.all)
    counted = _counted(together)
    if not together.cut:
        return bounded(_over(_words(together, rows), rows), _pairs(together, rows))
    pairs = materialize(_pairs(together, rows))
    sizes = materialize(_over(_words(together, pairs, _TOTAL), pairs))
    first = materialize(_over(_first(together, pairs, sizes), pairs, sizes))
    within = tree.Compared(tree.Name(_TOTAL), "<=", tree.whole(together.source.limit))
    words = same(UNIT, *_words_of(together))
    units = Select(words, Union((Select(words, sizes.select, where=within), _words(together, first))))
    few = _split(together, pairs, sizes, too_much=False)
    kept_pairs = Select(same(UNIT, CELL, *counted), Union((few, Select(same(UNIT, CELL, *counted), first.select))))
    return bounded(_over(units, sizes, first), _over(kept_pairs, pairs, sizes, first))


def count_of(layout: Layout, units: Bounded) -> Scan:
    """The counts of one of them: a column for each entry of x, or the entry ``a0`` and the count ``n``, row by row."""
    together = layout.together
    assert together is not None  # noqa: S101 - asked before
    entries, place = together.entries(layout), _places(together).get(layout.table)
    if layout.source.distinct and place is not None:
        word, first = place
        bits = [
            (f"{ENTRY}{entry}", tree.Gathered("sum", _bit(tree.Name(f"w{word}"), first + at)))
            for at, entry in enumerate(_used(entries).tolist())
        ]
        return _over(Select(tuple(bits), units.words.select), units.words)
    entry = ("a0", _looked_up(entries, -1, nobody=not layout.source.distinct))
    if not layout.source.distinct:
        inner = Select((*same(UNIT), entry, *same(ROWS)), units.pairs.select)
        counted: tree.Value = tree.Gathered("sum", tree.Name(ROWS))
    else:
        once = _used(entries).size == np.count_nonzero(entries >= 0)
        inner = Select((*same(UNIT), entry), units.pairs.select, group_by=0 if once else 2)
        counted = tree.CountRows()
    return _over(Select((*same("a0"), ("n", counted)), inner, group_by=1), units.pairs)


def columns_of(layout: Layout) -> tuple[str, ...]:
    """The names of the columns of ``count_of``."""
    together = layout.together
    assert together is not None  # noqa: S101 - asked before
    if layout.source.distinct and layout.table in _places(together):
        return tuple(f"{ENTRY}{entry}" for entry in _used(together.entries(layout)).tolist())
    return ("a0", "n")


def _pairs(together: Together, rows: Scan) -> Scan:
    counted: tuple[Column, ...] = ((ROWS, tree.CountRows()),) if _counted(together) else ()
    return _over(Select((*same(UNIT, CELL), *counted), rows.select, group_by=2), rows)


def _words(together: Together, rows: Scan, *sizes: str) -> Select:
    """Each unit with its words; with ``sizes`` of pairs also with what decides whether it has too much."""
    columns = [(name, tree.Gathered("bit_or", _looked_up(word, 0))) for name, word in _words_of(together).items()]
    if sizes:
        one = _where_counted(tree.Name(ROWS) if _counted(together) else tree.long(1))
        columns.append((_TOTAL, tree.Gathered("sum", one)))
        if _counted(together):
            columns.append((_COLUMNS, tree.Gathered("sum", _where_counted(tree.long(1)))))
    return Select((*same(UNIT), *columns), rows.select, group_by=1)


def _split(together: Together, pairs: Scan, sizes: Scan, *, too_much: bool) -> Select:
    """The pairs of units that have too much, with how many columns they have where that is asked; or of the others."""
    wide = same(*((_COLUMNS,) if _counted(together) and too_much else ()))
    over = tree.Compared(tree.Name(_TOTAL), ">", tree.whole(together.source.limit))
    larger = Select((*same(UNIT, _TOTAL), *wide), sizes.select, where=over, alias=_OVER)
    same_unit = tree.Compared(tree.Name(UNIT, _PAIRS), SAME, tree.Name(UNIT, _OVER))
    columns = [(name, tree.Name(name, _PAIRS)) for name in (UNIT, CELL, *_counted(together))]
    return Select(
        (*columns, *((name, tree.Name(name, _OVER)) for name, _ in wide)),
        Joined(replace(pairs.select, alias=_PAIRS), (Match(larger, same_unit),)),
        where=tree.IsNull(tree.Name(_TOTAL, _OVER), negated=too_much),
    )


def _first(together: Together, pairs: Scan, sizes: Scan) -> Select:
    """The first pairs of each unit that has too much, with how many of their rows are kept."""
    unit, cell, limit = tree.Name(UNIT), tree.Name(CELL), together.source.limit
    counts = tree.Compared(cell, ">=", tree.whole(0))
    order = (tree.Guarded(counts, tree.bare("hash", unit, cell)), cell)  # NULL comes last
    rows = _split(together, pairs, sizes, too_much=True)
    place: list[Column] = [(PLACE, tree.Window("row_number", (), (unit,), order))]
    rows_column: tuple[Column, ...] = ()
    if _counted(together):
        more = _where_counted(tree.bare("greatest", tree.bare("-", tree.Name(ROWS), tree.long(1)), tree.long(0)))
        place.append((_MORE, _big(tree.Window("sum", (more,), (unit,), order))))
        left = tree.bare("greatest", tree.bare("-", tree.long(limit), tree.Name(_COLUMNS)), tree.long(0))
        upto = tree.bare("least", tree.Name(_MORE), left)
        before = tree.bare("least", tree.bare("-", tree.Name(_MORE), more), left)
        more_rows = tree.bare("greatest", tree.bare("-", upto, before), tree.long(0))
        one = tree.bare("+", tree.bare("least", more_rows, tree.long(limit)), tree.long(1))
        rows_column = ((ROWS, _where_counted(one)),)
    names = (UNIT, CELL, *((ROWS, _COLUMNS) if _counted(together) else ()))
    placed = Select((*same(*names), *place), rows)
    within = tree.Compared(tree.Name(PLACE), "<=", tree.whole(limit))
    return Select((*same(UNIT, CELL), *rows_column), placed, where=within)


def _counted(together: Together) -> tuple[str, ...]:
    """The column of a pair's rows, where rows are counted."""
    return () if together.rows is None else (ROWS,)


def _where_counted(value: tree.Value) -> tree.Value:
    """A value of pairs, 0 for a pair that counts nowhere."""
    return tree.CaseValue(((tree.Compared(tree.Name(CELL), ">=", tree.whole(0)), value),), tree.long(0), "BIGINT")


def _places(together: Together) -> dict[str, tuple[int, int]]:
    """Of each count of units in few groups the word and its first bit."""
    word, first, places = 0, 0, {}
    for layout in together.layouts:
        size = _used(together.entries(layout)).size
        if size > BITS:
            continue
        word, first = (word + 1, 0) if first + size > BITS else (word, first)
        places[layout.table] = (word, first)
        first += size
    return places


def _words_of(together: Together) -> dict[str, IntArray]:
    """The words by their names: of each column its bits."""
    words: dict[str, IntArray] = {}
    for layout in together.layouts:
        if layout.table not in _places(together):
            continue
        word, first = _places(together)[layout.table]
        entries = together.entries(layout)
        bits = np.where(entries >= 0, np.int64(1) << (first + np.searchsorted(_used(entries), entries)), 0)
        words[f"w{word}"] = words.get(f"w{word}", 0) | bits
    return words


def _used(entries: IntArray) -> IntArray:
    return np.unique(entries[entries >= 0])


def _bit(word: tree.Value, place: int) -> tree.Value:
    return tree.bare("&", tree.bare(">>", word, tree.long(place)), tree.long(1))


def _looked_up(values: IntArray, other: int, nobody: bool = False) -> tree.Value:
    """Of a pair's column its value, ``other`` for no column, and for the unit NULL unless ``nobody`` counts, too."""
    place: tree.Value = tree.bare("+", tree.Name(CELL), tree.long(2))
    if not nobody:
        place = tree.CaseValue(((tree.IsNull(tree.Name(UNIT)), tree.long(1)),), place, "BIGINT")
    return tree.bare("list_extract", tree.Numbers((other, *values.tolist()), "BIGINT"), place)


def _over(select: Select, *scans: Scan) -> Scan:
    """A SELECT over what scans give."""
    tables = {table.name: table for scan in scans for table in scan.tables}
    return replace(scans[0], tables=tuple(tables.values()), select=select)


def _big(value: tree.Value) -> tree.Value:
    return tree.Cast(value, "BIGINT", bare=True)
