"""Units of a batch: which sources one of them moves together, and its contributions to x."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Flags, Ints
from dpsql.linalg import exact
from dpsql.policy.values import fold
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.cells.corners import corners_of
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.attributes import states_of
from dpsql.workloads.compile.caps import classes_of, fewest_groups, fullest, most_cells, rows_of_classes
from dpsql.workloads.compile.cells_of_a_row import axis_key, in_any_combination, walked
from dpsql.workloads.compile.counts_with_sums import JointList, counts_with_sums
from dpsql.workloads.compile.layout import Layout, Tie
from dpsql.workloads.compile.one_unit import MOST_STATES, contributions_of_unit, without_attributes
from dpsql.workloads.compile.row_kinds import without
from dpsql.workloads.compile.values_once import extremes
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.rows import MATCHED, RowSource
from dpsql.workloads.expr.values import stored
from dpsql.workloads.families.contributions import Contributions, Part, Tied
from dpsql.workloads.families.patterns import Patterns
from dpsql.workloads.families.reach import ALL_PRODUCTS

UNORDERED = "any row of a key"
"""What ``retention_order`` has of a table whose units are its key, where no order chooses among rows with one key."""
_ONE_ROW = "all together as one row"
_ALL, _SOME, _NONE = "all", "some", "none"


def contributions_of(layouts: Sequence[Layout], size: int) -> Contributions:
    """What units can change of ``size`` entries of x that ``layouts`` fill. Raises SQLError as ``corners_of``."""
    units: list[tuple[Part, ...]] = []
    tied: dict[int, Tied] = {}
    patterns: dict[int, tuple[Patterns, ...]] = {}
    listed_whole: set[str] = set()
    for mates in by_unit(layouts):
        of_rows = [one for one in mates if one.source.added is None]
        sums = [one for one in mates if one.source.added is not None]
        joint = len(of_rows) > 1 or (bool(of_rows) and _is_joined(of_rows[0].source))
        listed = contributions_of_unit(of_rows, size) if joint else None
        if listed is not None:
            if not sums:
                listed_whole.add(mates[0].source.protects)
            of_sums = (part for one in sums if (part := _part(one, size, joint=True)).corners.shape[1])
            units.append((Part(listed, 1, 1), *of_sums))
            continue
        rows = next((layout for layout in mates if layout.tie is not None), None)
        if rows is not None and rows.tie is not None:
            # The two are the first of their unit.
            tied[len(units)] = _tied(rows, rows.tie, size)
            pair = rows.table, rows.tie.counted.table
            mates = sorted(mates, key=lambda one: pair.index(one.table) if one.table in pair else 2)
        parts = [_part(layout, size, joint=len(mates) > 1) for layout in mates]
        filled = [layout for layout, part in zip(mates, parts, strict=True) if part.corners.shape[1]]
        if filled:
            patterns[len(units)] = _patterns(filled, size)
            units.append(tuple(part for part in parts if part.corners.shape[1]))
    together = {kind: found for kind, found in patterns.items() if found}
    every = Contributions(tuple(units), size, tied, together, exact=frozenset(listed_whole))
    return every if tied or together or not every.listable else _with_sums(every, layouts)


def _with_sums(every: Contributions, layouts: Sequence[Layout]) -> Contributions:
    """C without counts of rows beside sums that no such rows have (``counts_with_sums``), where all is listed."""
    parts: list[tuple[Part, ...]] = []
    exact, over, joint = set(every.exact), 1, dict[int, JointList]()
    by_kind = [mates for mates in by_unit(layouts) if any(one.filled.size for one in mates)]
    for kind, mates in enumerate(by_kind if len(by_kind) == len(every.units) else []):
        rows, sums = ([one for one in mates if (one.source.added is None) == of_rows] for of_rows in (True, False))
        both = counts_with_sums(rows[0], sums, every.size) if len(rows) == 1 else None
        if both is not None:
            joint[kind], over = both, math.lcm(over, both.times)
            exact |= {mates[0].source.protects} if both.exact else set()
    for kind, separate in enumerate(every.units):
        both = joint.get(kind)
        scaled = tuple(replace(part, times=part.times * over) for part in separate)
        parts.append(scaled if both is None else (Part(both.vectors * (over // both.times), 1, 1),))
    less = Contributions(tuple(parts), every.size, exact=frozenset(exact), over=over)
    return less if joint and less.listable else every


def _is_joined(source: RowSource) -> bool:
    """Whether a single layout says less of a unit than what its rows do by themselves."""
    return bool(source.caps) or any(join.private for join in source.joins)


def _patterns(mates: Sequence[Layout], size: int) -> tuple[Patterns, ...]:
    """What the unit adds to counts of units over the same rows, and of these, each time to all of them together."""
    places = {layout.table: number for number, layout in enumerate(mates)}
    found = {id(layout.together): layout.together for layout in mates if layout.together is not None}
    patterns = []
    for one in found.values():
        T, parts = len(one.layouts), tuple(places[mate.table] for mate in one.all)
        rows = None if one.rows is None else one.cells[T]
        of_unit = rows is None and all(all(layout.of_unit) for layout in one.layouts)
        most = 1 if of_unit else one.source.most
        nobody = one.rows is None or _of_nobody(one.rows) != _NONE
        patterns.append(Patterns(one.cells[:T], most, parts, size, rows, one.classes, nobody))
    return tuple(patterns)


def tied_layouts(layouts: Sequence[Layout], queries: Csr) -> tuple[Layout, ...]:
    """``layouts`` with units tied to the rows that they are counted by (``Layout.tie``), where C is planned so.

    Of each kind of unit one source of rows and the one count of units, over the same rows, of which no bound of
    ``at_most`` says more than in how many groups they are: alone, and without sums or where ``queries`` (m x n), the
    queries, has none of several groups; or where all that the unit can change is listed.
    """
    found = list(layouts)
    for mates in by_unit(layouts):
        rows = next((one for one in mates if _may_tie(one)), None)
        counted = [one for one in mates if rows is not None and _same_rows(rows, one)]
        if rows is None or len(counted) != 1 or sum(one.source.counts_units for one in mates) > 1:
            continue
        other = counted[0]
        meets = _meets(rows, other)
        if meets is None:
            continue
        tied = replace(rows, tie=Tie(other, meets))
        here = [tied if one is rows else one for one in mates]
        # Sums make groups unlike, and without a list certificates of unlike groups are wide.
        few = not rows.measures and np.unique(other.entry[other.entry >= 0]).size <= ALL_PRODUCTS
        alone = len(mates) == 2 and (few or _in_groups(queries, rows, other, meets))
        if alone or contributions_of(here, queries.shape[1]).listable:
            found = [tied if one is rows else one for one in found]
    return tuple(found)


def _in_groups(queries: Csr, rows: Layout, other: Layout, meets: Ints) -> bool:
    """Whether no query reads two groups of the counted units: entries of ``other``, and of the rows counted in one.

    And whether groups have as many corners each, which are few: what is planned for one group is planned for all.
    """
    cell, own = meets
    group = np.arange(queries.shape[1])  # of its own, until it is known
    met = (cell >= 0) & (own >= 0)
    counted = other.entry[0][own[met]]
    cells, at = np.unique(rows.entry[:, cell[met]].max(axis=0), return_index=True)
    often = np.unique(counted[at[cells >= 0]], return_counts=True)[1]
    if not often.size or np.ptp(often) or often[0] * 2 ** (rows.entry.shape[0] - 1) > MOST_STATES:
        return False
    for entry in rows.entry[:, cell[met]]:
        here = entry >= 0
        if (counted[here] < 0).any():
            return False
        least, most = np.full(queries.shape[1], queries.shape[1]), np.full(queries.shape[1], -1)
        np.minimum.at(least, entry[here], counted[here])
        np.maximum.at(most, entry[here], counted[here])
        used = np.flatnonzero(most >= 0)
        if (least[used] < most[used]).any():
            return False
        group[used] = most[used]
    held = np.flatnonzero(np.diff(queries.indptr))
    first, last = (of.reduceat(group[queries.indices], queries.indptr[held]) for of in (np.minimum, np.maximum))
    return bool((first == last).all())


def _may_tie(layout: Layout) -> bool:
    """Whether it is a source of rows of units, of which some are kept by what the batch tells of them."""
    source = layout.source
    plain = source.unit is not None and not source.distinct and source.of is None
    plain &= all(cap.rows is None for cap in source.caps)
    if layout.multiplicity == 1 and any(join.private for join in source.joins):
        return False  # rows without a unit find no row, which ``Tied`` does not know
    return plain and isinstance(layout.cells, Cells) and bool((layout.entry >= 0).any())


def _same_rows(rows: Layout, other: Layout) -> bool:
    """Whether ``other`` counts the units of the rows of ``rows``."""
    counts = other.source.counts_units and replace(other.source, distinct=False) == rows.source
    values = {**rows.values, **other.values} == {**other.values, **rows.values}
    if rows.source.joins:
        # Of several rows of a public table with one key each scan finds the least in the columns that it reads.
        read = [[axis_key(axis, one) for axis in one.cells.axes] for one in (rows, other)]
        values &= not rows.measures and read[0] == read[1]
    return counts and values and isinstance(other.cells, Cells) and bool((other.entry >= 0).any())


def _tied(rows: Layout, tie: Tie, size: int) -> Tied:
    """What a unit changes of both."""
    counted = tie.counted.entry[0]
    cell, own = tie.meets
    label = np.where(own >= 0, counted[own], -1)
    seen = (cell >= 0) & (rows.entry[:, cell] >= 0).any(axis=0)
    keys = rows.entry[:, cell[seen]].max(axis=0)
    apart = np.unique(np.stack([keys, label[seen]]), axis=1).shape[1] == np.unique(keys).size
    parts = [np.arange(label.size)] if apart else [np.flatnonzero(label == one) for one in np.unique(label)]
    held = [_corners(rows, cell[part], label[part], seen[part], size) for part in parts]
    more = sparse.csc_array(sparse.hstack([corners for corners, _ in held], format="csc", dtype=np.int64))
    place = np.concatenate([own for _, own in held])
    inside = np.flatnonzero(place >= 0)
    ones = (np.ones(inside.size, dtype=np.int64), (place[inside], inside))
    first = sparse.csc_array(more + sparse.csc_array(ones, shape=more.shape))
    classes = tie.counted.multiplicity, most_cells(tie.counted)
    most = min(held for held in classes if held is not None)
    return Tied(first, more, place, rows.multiplicity, most, nobody=_of_nobody(rows) != _NONE)


def _of_nobody(rows: Layout) -> str:
    """In how many of the cells that are counted rows without a unit may be: all, some or none of them.

    By what they find by the unit's own column, which is nothing.
    """
    if rows.source.no_row_without_unit:
        return _NONE
    states = states_of([rows], MOST_STATES)
    if states is None:
        return _ALL
    (state,) = [one for one in states if one.nobody]
    (regions,) = state.regions
    if -1 in regions:
        return _NONE
    ends = walked([without(rows, regions)]) if any(one is not None for one in regions) else None
    if ends is None:
        return _ALL
    counted = np.flatnonzero((rows.entry >= 0).any(axis=0))
    reached = without(rows, regions).listed_cells.cell_of_state[ends.states[0][ends.states[0] >= 0]]
    met = np.isin(counted, reached)
    return _ALL if met.all() else _SOME if met.any() else _NONE


def _corners(rows: Layout, cell: Ints, label: Ints, seen: Flags, size: int) -> tuple[sparse.csc_array, Ints]:
    """The corners of cells by class, and the ``label`` of each: of ``cell`` where it is ``seen``, alike in one class.

    Rows that a unit is counted by, and that nothing else counts, are a corner of zeros.
    """
    corners, own = sparse.csc_array((size, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    if seen.any():
        entry = rows.entry[:, cell[seen]]
        corners = _both_signs(sparse.csc_array(corners_of([entry], size)), rows.entry)
        keys, at = np.unique(entry.max(axis=0), return_index=True)
        own = label[seen][at][np.searchsorted(keys, np.maximum.reduceat(corners.indices, corners.indptr[:-1]))]
    alone = np.unique(label[~seen & (label >= 0)])
    own = np.concatenate([own, alone])
    none = sparse.csc_array((size, alone.size), dtype=np.int64)
    order = np.argsort(own, kind="stable")
    return sparse.csc_array(sparse.csc_array(sparse.hstack([corners, none], format="csc"))[:, order]), own[order]


def _meets(rows: Layout, other: Layout) -> Ints | None:
    """The pairs of cells of two layouts in which one row can be, -1 for none (2 x pairs); None where that is not
    followed.
    """
    found = walked([rows, other])
    if found is None:
        return None
    ends = []
    for layout, state in zip((rows, other), found.states, strict=False):
        ends.append(np.where(state >= 0, layout.listed_cells.cell_of_state[state], -1))
    met = np.unique(np.stack(ends), axis=1)
    # Each entry is to be in some pair: that no row can be in a cell may be known of both layouts alone.
    held = [np.flatnonzero((layout.entry >= 0).any(axis=0)) for layout in (rows, other)]
    return met if all(np.isin(*both).all() for both in zip(held, met, strict=True)) else None


def wider_than_true(layouts: Sequence[Layout], units: Contributions | None) -> str:
    """Of which units C is, where it is wider than what a unit can do: units that ... ; empty where it is not.

    ``units``: C, where W is over listed cells, which bounds of ``at_most`` tell apart.
    """
    phrases = [
        _of_listed(mates)
        if units is not None and mates[0].source.protects in units.exact
        else [*_of_scans(mates), *_of_bounds(mates, listed=units is not None)]
        for mates in by_unit(layouts)
    ]
    return " and ".join(dict.fromkeys(phrase for some in phrases for phrase in some))


def _of_scans(mates: Sequence[Layout]) -> list[str]:
    """What units are taken to do in each scan by itself, or with each row."""
    tied = [layout.tie.counted.table for layout in mates if layout.tie is not None]
    apart: dict[object, Layout] = {}  # of several over the same rows one
    for layout in mates:
        if layout.table not in tied:
            apart[layout.table if layout.together is None else id(layout.together)] = layout
    read = [table for layout in apart.values() for table in set(layout.source.tables)]
    shared = sorted({table for table in read if read.count(table) > 1 and mates[0].source.unit is not None})
    phrases = [f"could change each scan of {', '.join(shared)} by itself"] if shared else []
    several = [one for one in mates if one.multiplicity > 1 or (one.together is not None and not all(one.of_unit))]
    spread = [layout.source for layout in several if _spreads(layout.source)]
    joined = sorted({join.table for source in spread for join in source.joins if join.private})
    return [*phrases, *([f"may find another row of {', '.join(joined)} for each of their rows"] if joined else [])]


def _of_bounds(mates: Sequence[Layout], *, listed: bool) -> list[str]:
    """What units are taken to do beyond bounds, and with values, sums and expressions of one column."""
    counted = [layout for layout in mates if layout.tie is not None]
    counted += [one.together.rows for one in mates if one.together is not None and one.together.rows is not None]
    some = any(_of_nobody(layout) == _SOME for layout in counted)
    phrases = ["could be rows without a unit where the scan keeps none"] if some else []
    if any(map(_joined_both_ways, mates)):
        phrases.append("could have columns of a joined row where no row is found")
    counts = [layout for layout in mates if layout.source.counts_units]
    if len({_reads_unit(layout) for layout in counts}) > 1:
        phrases.append("could be counted in some statements as if they were no unit")
    freed = any(layout.source.freed for layout in mates)
    if freed or any(_left_out(layout, cap, listed) for layout in mates for cap in layout.source.caps):
        phrases.append("do not keep to at_most")
    phrases += [phrase for layout in mates for phrase in _free_sums(layout, mates)]
    phrases += ["could have any sums within their bounds, whatever their rows are"] if _adds_more(mates) else []
    if any(layout.source.each is not None and _more_values(layout) for layout in mates):
        phrases.append("could add more values to some groups than there are")
    return phrases + [_in_combinations(names) for names in map(in_any_combination, _over_same_rows(mates)) if names]


def _of_listed(mates: Sequence[Layout]) -> list[str]:
    """What units are taken to do, where all is listed that rows of the regions could add."""
    tables: dict[str, list[Layout]] = {}
    for layout in without_attributes(mates):
        tables.setdefault(layout.source.table, []).append(layout)
    said = ["do not keep to at_most"] if any(layout.source.freed for layout in mates) else []
    said += [phrase for layout in mates for phrase in _free_sums(layout, mates)]
    return said + [_in_combinations(names) for names in map(in_any_combination, tables.values()) if names]


def _joined_both_ways(layout: Layout) -> bool:
    """Whether an axis says that a row was found, beside columns of it that count without one, as of a LEFT JOIN."""
    read = [(axis.name, layout.functions.of(axis).of) for axis in layout.cells.axes]
    flags = {part.source for _, of in read for part in of if part.name == MATCHED}
    return any(part.source in flags and "?." in name for name, of in read for part in of)


def _reads_unit(layout: Layout) -> bool:
    """Whether an axis is over the column that says whose a row is."""
    return any(layout.source.unit in layout.functions.of(axis).of for axis in layout.cells.axes)


def _free_sums(layout: Layout, mates: Sequence[Layout]) -> list[str]:
    """What units are taken to do as to sums: C has any sum of a column that an axis cuts, here or in another scan of
    the table, and of several of a column, such as its values and their squares, any combination.
    """
    if layout.source.added is not None:
        return []
    scans = [one for one in mates if one.source.table == layout.source.table]
    cut = [(one, axis) for one in scans for axis in one.cells.axes if not isinstance(axis, LineAxis) or axis.cuts]
    read = {part for one, axis in cut for part in one.functions.of(axis).of}
    sums = [(one, set(stored(layout.functions.value(one.column, one.line)))) for one in layout.measures]
    said = [f"could have any {one.column} in each group" for one, of in sums if one.power == 1 and of & read]
    shared = [one for one, of in sums if any(of & others for other, others in sums if other is not one)]
    names = [one.column + " squared" * (one.power == 2) for one in shared]
    return [*said, *([_in_combinations(names)] if names else [])]


def _adds_more(mates: Sequence[Layout]) -> bool:
    """Whether C lets units add more to their sums than bounds do, or what does not go with their rows."""
    sums = [(layout.source.added, layout.filled.size == 1) for layout in mates if layout.source.added is not None]
    exact = all(
        single or (one.in_all % one.in_cell == 0 and one.lower in (0, -one.upper) and all(b.inside for b in one.bounds))
        for one, single in sums
    )
    return bool(sums) and (len(mates) > 1 or not exact)


def _in_combinations(names: Sequence[str]) -> str:
    return f"could have {_all_of(names)} in combinations that perhaps no row has"


def _over_same_rows(mates: Sequence[Layout]) -> list[list[Layout]]:
    """The layouts, those together of which one row is followed through all."""
    found: dict[object, list[Layout]] = {}
    for layout in mates:
        counted = next((one.tie.counted.table for one in mates if one.tie is not None), None)
        tied = layout.tie is not None or layout.table == counted
        alone = layout.table if isinstance(layout.cells, Cells) else (layout.table, layout.every is None)
        key = id(layout.together) if layout.together is not None else "tied" if tied else alone
        found.setdefault(key, []).append(layout)
    return list(found.values())


def _spreads(source: RowSource) -> bool:
    """Whether what a unit adds is a sum over several cells, not several times one of them."""
    return source.distinct or bool(source.caps)


def _more_values(layout: Layout) -> bool:
    """Whether C has more values of ``layout.source.each`` than a unit can add."""
    each, (_, limits) = layout.source.each, layout.values_once
    rows = layout.source.most
    if each is None or not limits.size or limits.min() == rows:
        return False
    whole = _fill(limits, rows, layout.groups) or extremes(limits.tolist(), rows, layout.groups) is not None
    read = set(stored(each.computed))
    beside = sum(bool(read & set(layout.functions.of(axis).of)) for axis in layout.cells.axes)
    return each.value is not None or beside > 1 or not whole


def _left_out(layout: Layout, cap: Cap, listed: bool) -> bool:
    """Whether a bound keeps a unit from something that C lets it do."""
    if layout.tie is not None:
        classes, (cell, counted) = classes_of(layout.tie.counted, cap), layout.tie.meets
        several = any(cells.size > 1 for cells, _ in classes) or bool(((cell >= 0) & (counted < 0)).any())
        return bool(classes) and (len(layout.source.caps) > 1 or several)
    if layout.source.each is not None:
        return True  # of the bound and of how many values there are the better one is used
    if layout.together is not None:
        return len(layout.source.caps) > 1  # one tells rows apart
    if isinstance(layout.cells, Grid):
        return len(layout.source.caps) > 1  # of several the best one is used
    if not listed or layout.boxes is not None:
        return True
    classes = classes_of(layout, cap)
    if not classes:  # the rows may be of any groups, if these are of another column
        read = [set(layout.functions.of(axis).of) for axis in layout.cells.axes]
        return any(one & set(stored(cap.computed)) for one in read)
    if len(layout.source.caps) > 1 or _capped(layout, cap, int(layout.entry.max(initial=-1)) + 1) is None:
        return True
    if layout.source.counts_units:
        return False
    times, fewest = rows_of_classes(layout, cap, classes), fewest_groups(layout, cap, classes)
    assert cap.rows is not None  # noqa: S101 - asked by what is capped
    if any(cap.rows * few < most for few, most in zip(fewest, times, strict=True)):
        return True
    times.sort()
    return sum(times) > layout.multiplicity and (times[0] < times[-1] or layout.multiplicity % times[0] > 0)


def retention_order(layouts: Sequence[Layout]) -> dict[str, str]:
    """Of each table with units of bounded rows what decides which rows are kept before others, as a digest.

    Rows that no query of the batch counts are cut first, others in an order of what the batch tells of them (its
    regions and measures). Two batches of sources of rows keep the same rows of larger units where their digests are
    equal, so that these alone are parts of one table; of counts of units they say less, as cells are ordered by their
    numbers in the batch. Rows of units, one each, lose none and are left out. Of a table whose units are its key it is
    the order in which rows are found where data break the key: a release that took them in another one, or in none,
    may have counted other rows.
    """
    found = {}
    for layout in layouts:
        orders = _orders(layout.source)
        if layout.source.unit is None or layout.source.single:
            if orders:
                found[layout.table] = hashlib.sha256(repr(orders).encode()).hexdigest()
            elif layout.source.single:
                found[layout.table] = UNORDERED
            continue
        cells = layout.cells
        told = [repr((layout.source.limit, layout.source.caps, layout.measures)).encode()]
        told += [] if layout.source.added is None else [repr(layout.source.added).encode()]
        by_cells = layout.source.caps and (layout.source.counts_units or layout.tie is not None)
        told += [repr(orders).encode()] if orders else []
        told += [b"by cells"] if by_cells else []  # which decide between rows under bounds, as ``from_sql`` has it
        for axis in cells.axes:
            pieces = axis.pieces if isinstance(axis, LineAxis) else np.zeros(0, dtype=np.int64)
            told += [repr(axis).encode(), np.asarray(pieces, dtype=np.int64).tobytes()]
        if isinstance(cells, Cells):
            read = (layout.entry >= 0).any(axis=0)
            tables = (*cells.transitions, cells.cell_of_state, read)
            told += [np.asarray(table, dtype=np.int64).tobytes() for table in tables]
        if layout.together is not None and (layout.together.cut or layout.source.joins or layout.source.caps):
            told.append(b"columns")  # by whose numbers a unit's are taken
            others = retention_order([replace(mate, together=None) for mate in layout.together.all])
            told += [digest.encode() for _, digest in sorted(others.items())]
        if layout.tie is not None:
            told += [digest.encode() for digest in retention_order([layout.tie.counted]).values()]
        digest = hashlib.sha256()
        for part in told:
            digest.update(len(part).to_bytes(8, "little") + part)
        found[layout.table] = digest.hexdigest()
    return found


def _orders(source: RowSource) -> list[tuple[str, tuple[str, ...]]]:
    """The tables of which a source takes the least rows, and the columns by which: of rows of units, theirs too."""
    below = [units.of for units in (source.of, *(join.of for join in source.joins)) if units is not None]
    chosen = [(source.table, source.order), *((join.table, join.order) for join in source.joins)]
    orders = {(table, tuple(column.name for column in order)) for table, order in chosen if order}
    return sorted(orders.union(*map(_orders, below)))


def by_unit(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The layouts whose sources share a unit, together."""
    found: dict[str, list[Layout]] = {}
    for layout in layouts:
        found.setdefault(layout.source.protects, []).append(layout)
    return list(found.values())


def _part(layout: Layout, size: int, *, joint: bool) -> Part:
    """What a unit adds to one layout; beside others (``joint``) with both signs of corners without a count."""
    if layout.boxes is not None:
        return Part(sparse.csc_array(layout.boxes.some_columns()), layout.multiplicity, 1)
    added = layout.source.added
    if added is not None:
        corners = sparse.csc_array(corners_of([layout.entry], size))
        return Part(_both_signs(corners, layout.entry) if added.lower < 0 else corners, 1, layout.multiplicity)
    capped = [part for cap in layout.source.caps if (part := _capped(layout, cap, size)) is not None]
    if layout.source.each is not None:
        return min([_values(layout, size), *capped], key=_farthest)
    if capped:
        return min(capped, key=lambda part: part.times * part.most)
    corners = sparse.csc_array(corners_of([layout.entry], size))
    if layout.source.counts_units and layout.multiplicity > 1:
        return Part(corners, 1, layout.multiplicity)
    return Part(_both_signs(corners, layout.entry) if joint else corners, layout.multiplicity, 1)


def _values(layout: Layout, size: int) -> Part:
    """What a unit adds to entries that count values, by the corners of what ``values_once`` says.

    More where these are many: each entry to its limit, of so many as the rows reach into, or all rows in one.
    """
    entries, limits = layout.values_once
    rows, most = layout.source.most, layout.groups
    if not entries.size:
        return Part(sparse.csc_array((size, 0), dtype=np.int64), rows, 1)
    corners = sparse.csc_array((np.ones_like(entries), (entries, np.arange(entries.size))), shape=(size, entries.size))
    least = int(limits.min())
    if _fill(limits, rows, most):
        return Part(corners, least, min(most, rows // least))
    found = extremes(limits.tolist(), rows, most)
    if found is None:
        most = min(most, fullest(limits.tolist(), rows))
        if (np.sort(limits)[-most:] ** 2).sum() >= rows**2:
            return Part(corners, rows, 1)
        return Part(sparse.csc_array(corners * limits), 1, most)
    places = [entries[at] for one in found for at in one]
    columns = np.repeat(np.arange(len(found)), [len(one) for one in found])
    values = np.array([number for one in found for number in one.values()], dtype=np.int64)
    return Part(sparse.csc_array((values, (places, columns)), shape=(size, len(found))), 1, 1)


def _fill(limits: Ints, rows: int, most: int) -> bool:
    """Whether ``rows`` values fill entries of equal ``limits`` without a rest, or ``most`` entries."""
    least = int(limits.min())
    return bool(least == limits.max()) and (rows % least == 0 or rows >= least * most)


def _farthest(part: Part) -> float:
    """The largest squared norm of what ``part`` adds to x, where no two classes share an entry."""
    squares = part.longest(np.asarray((part.corners.astype(np.float64) ** 2).sum(axis=0)))
    return float(part.times) ** 2 * float(np.sort(squares)[-part.most :].sum())


def _capped(layout: Layout, cap: Cap, size: int) -> Part | None:
    """What a unit adds where ``cap`` tells cells apart: a corner of each of some classes. None where it says no more.

    A class is the cells of one group of the cap, or of several that the batch does not tell apart; as many rows of a
    unit count there as ``rows`` allows its groups. Where the unit has no more rows than some classes hold, it fills all
    of these but one: sums of so many full classes are at least as much, and are left where they are no better than no
    classes. Units are counted once a cell, so that a class is to be one cell, or of one row.
    """
    classes = classes_of(layout, cap)
    most = min(len(classes), cap.groups or len(classes), layout.multiplicity)
    held = [sparse.csc_array(corners_of([layout.entry[:, cells]], size)) for cells, _ in classes]
    if layout.source.counts_units:
        once = all(
            corners.shape[1] == 1 or (cap.rows == 1 and groups == 1)
            for corners, (_, groups) in zip(held, classes, strict=True)
        )
        if not classes or not once:
            return None
        times = [1] * len(classes)
    else:
        if not classes or cap.rows is None:
            return None
        times = rows_of_classes(layout, cap, classes)
        most = min(most, fullest(times, layout.multiplicity))
        if sum(k * k for k in sorted(times)[-most:]) > layout.multiplicity**2:
            return None
        held = [_both_signs(corners, layout.entry) for corners in held]
    alike = len(set(times)) == 1
    label = np.repeat(np.arange(len(held)), [corners.shape[1] for corners in held])
    if not alike and max(times) * max(exact.max_abs(corners) for corners in held) >= 2**62:
        return None
    scaled = held if alike else [corners * k for corners, k in zip(held, times, strict=True)]
    columns = sparse.csc_array(sparse.hstack(scaled, format="csc", dtype=np.int64))
    return Part(columns, times[0] if alike else 1, most, None if label.size == len(held) else label)


def _both_signs(corners: sparse.csc_array, entry: Ints) -> sparse.csc_array:
    """Corners of cells without a count, of which one sign was kept, in both: in a sum with others they differ."""
    counts = np.unique(entry[0][entry[0] >= 0])
    counted = np.zeros(corners.shape[0], dtype=bool)
    counted[counts] = True
    has = np.zeros(corners.shape[1], dtype=bool)
    has[np.repeat(np.arange(corners.shape[1]), np.diff(corners.indptr))[counted[corners.indices]]] = True
    if has.all():
        return corners
    return sparse.csc_array(sparse.hstack([corners, -corners[:, ~has]], format="csc"))


def relation_text(layouts: Sequence[Layout]) -> str:
    """What neighbours differ in: "all rows of one patient_id in visits (at most 5 count)".

    Each table is named with its own unit column: "... in visits (...) and of the same id in patients (...)". Depends on
    the policy and the batch alone. Units of several kinds are protected each against its own neighbours, so that they
    are joined by "or".
    """
    parts = []
    for mates in by_unit(layouts):
        if mates[0].source.unit is None:
            parts.append("one " + mates[0].source.protects)
            continue
        label = mates[0].source.protects
        limits: dict[str, dict[str, dict[str, None]]] = {label: {}}  # the column whose name says most comes first
        for layout in mates:
            bounds = [f"at most {layout.source.limit} count", *(cap.text for cap in layout.source.caps)]
            if layout.source.of is not None:
                names = [name for name, *_ in layout.source.of.keys]
                bounds = [f"together as one row for each {_all_of(names)}", *bounds] if names else [_ONE_ROW]
            if layout.source.added is not None:
                bounds = list(map(str, layout.source.added.bounds))
            limits.setdefault(_unit_name(layout.source), {}).setdefault(layout.source.table, {})[", ".join(bounds)] = (
                None
            )
        listed = [
            f"{column} in {_all_of([f'{table} ({_bounds(bounds)})' for table, bounds in tables.items()])}"
            for column, tables in limits.items()
            if tables
        ]
        parts.append(" and of the same ".join([f"all rows of one {listed[0]}", *listed[1:]]))
    return ", or ".join(parts)


def _unit_name(source: RowSource) -> str:
    """The column of a table that says whose a row is; what it is called elsewhere where a reference leads to it."""
    unit = source.unit
    return source.protects if unit is None or unit.source or fold(unit.name) == fold(source.protects) else unit.name


def _bounds(words: Iterable[str]) -> str:
    return "; ".join(words)


def _all_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
