"""Which conjunctions are still alive: the state of box queries while axes are intersected.

A block without keys whose condition is an AND of atoms is, after some axes, dead (one of its atoms
failed) or alive (what is left of it is the AND of its other atoms, the same wherever it is alive). So the state of a
combination of regions is a set of blocks, a column of ``alive``, and an axis takes it to its intersection with
the blocks that hold in a region.

From one region to the next few blocks begin or end, and a state changes only where one of them is alive in it. So
an axis is swept region by region: runs of regions that leave a state the same are found, with a
linear hash of the set reached, in (states) x (beginnings and ends) steps. Hashes only group; ``same``
compares the sets themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dpsql.common.numerics import AT_ONCE, TOGETHER
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Atom, Condition, LineAtom, OpaqueAtom
from dpsql.workloads.expr.regions import AxisTruths, BoolArray, IntArray, mix

Words = npt.NDArray[np.uint64]


def is_conjunction(condition: Condition) -> bool:
    """Is it a constant, an atom, or an AND of atoms?"""
    parts = condition.operands if isinstance(condition, And) else (condition,)
    return condition in (TRUE, FALSE) or all(isinstance(part, LineAtom | OpaqueAtom) for part in parts)


def regions_of(
    axis: AxisTruths, conditions: Sequence[Condition], most: int
) -> tuple[IntArray, IntArray] | tuple[None, None]:
    """Pair by pair: the number of a conjunction over one axis alone, and a region where it holds, ascending.

    None and None where there are more than ``most`` pairs.
    """
    plain = [n for n, condition in enumerate(conditions) if isinstance(condition, LineAtom)]
    number: list[int] = []
    spans: list[tuple[int, int]] = []
    for n in plain:
        held = axis.spans[conditions[n]]  # type: ignore[index]
        spans.extend(held)
        number.extend([n] * len(held))
    # Regions are numbered along the line, so that a span of pieces is a run of regions.
    ends = np.searchsorted(axis.representatives, np.array(spans, dtype=np.int64).reshape(-1, 2))
    length = ends[:, 1] - ends[:, 0]
    if int(length.sum()) > most:
        return None, None
    at = [np.repeat(np.array(number, dtype=np.int64), length)]
    inside = [np.repeat(ends[:, 0] - (np.cumsum(length) - length), length) + np.arange(int(length.sum()))]
    null = getattr(axis.axis, "null_region", -1)
    if null >= 0:
        on_null = np.array([n for n in plain if conditions[n].on_null], dtype=np.int64)  # type: ignore[union-attr]
        at, inside = [at[0][inside[0] != null], on_null], [inside[0][inside[0] != null], np.full(len(on_null), null)]
    pairs = sum(map(len, at))
    for n in sorted(set(range(len(conditions))) - set(plain)):
        condition = conditions[n]
        parts = condition.operands if isinstance(condition, And) else (condition,)
        holds = np.full(axis.axis.size, condition != FALSE)
        for part in parts:
            if isinstance(part, LineAtom | OpaqueAtom):
                holds &= axis.truth(part)
        at.append(np.full(np.count_nonzero(holds), n))
        inside.append(np.flatnonzero(holds))
        pairs += len(at[-1])
        if pairs > most:
            return None, None
    order = np.lexsort((np.concatenate(inside), np.concatenate(at)))
    return np.concatenate(at)[order], np.concatenate(inside)[order]


class Alive:
    """Conjunctions over several axes, and the sets of them that are alive in the states reached so far.

    ``alive`` (blocks x states): one state with all blocks alive at first.
    """

    def __init__(self, conditions: Sequence[Condition], axis_of: Mapping[Atom, object]) -> None:
        """``axis_of``: the name of the axis of every atom."""
        self.alive: BoolArray = np.array([[condition != FALSE] for condition in conditions], dtype=bool).reshape(-1, 1)
        self._on_axis: dict[object, list[tuple[int, Atom]]] = {}
        for number, condition in enumerate(conditions):
            for atom in condition.operands if isinstance(condition, And) else (condition,):
                if isinstance(atom, LineAtom | OpaqueAtom):
                    self._on_axis.setdefault(axis_of[atom], []).append((number, atom))

    def __len__(self) -> int:
        return len(self.alive)

    def holds(self, axis: AxisTruths, name: object) -> BoolArray:
        """Where each block's atoms on the axis hold: (blocks x regions)."""
        out = np.ones((len(self), axis.axis.size), dtype=bool)
        truths: dict[Atom, BoolArray] = {}
        for number, atom in self._on_axis.get(name, ()):
            if atom not in truths:
                truths[atom] = axis.truth(atom)
            out[number] &= truths[atom]
        return out

    def sweep(self, holds: BoolArray, salt: int) -> Iterator[tuple[BoolArray, Words]]:
        """For some states at a time: where a new run begins, and the hash of every set: (states x regions) both.

        A run is a stretch of regions over which a state's set stays the same; one begins at the first region.
        """
        m, size = holds.shape
        codes = mix(np.arange(m, dtype=np.uint64) + (np.uint64(salt) << np.uint64(32)))
        negative = ~codes + np.uint64(1)  # modulo 2^64
        changes = np.diff(holds.astype(np.int8), axis=1)
        begins: list[list[tuple[int, np.uint64]]] = [[] for _ in range(size)]
        for number, at in zip(*np.nonzero(changes), strict=True):
            step = codes[number] if changes[number, at] > 0 else negative[number]
            begins[at + 1].append((int(number), step))
        first = np.flatnonzero(holds[:, 0]) if size else np.zeros(0, dtype=np.int64)
        for start in range(0, self.alive.shape[1], AT_ONCE):
            part = self.alive[:, start : start + AT_ONCE]
            width = part.shape[1]
            hashes = np.zeros((size, width), dtype=np.uint64)
            starts = np.zeros((size, width), dtype=bool)
            running = np.zeros(width, dtype=np.uint64)
            for number in first.tolist():
                running += part[number] * codes[number]
            for region in range(size):
                for number, step in begins[region]:
                    starts[region] |= part[number]
                    running += part[number] * step
                hashes[region] = running
            starts[:1] = True
            yield np.ascontiguousarray(starts.T), np.ascontiguousarray(hashes.T)

    def same(self, holds: BoolArray, places: IntArray, mates: IntArray) -> bool:
        """Have the combinations ``places`` and ``mates`` (state x regions + region) equal sets, pair by pair?"""
        size = holds.shape[1]
        states, regions = words(self.alive), words(holds)
        step = TOGETHER // 2
        for start in range(0, len(places), step):
            here = np.divmod(places[start : start + step], size)
            there = np.divmod(mates[start : start + step], size)
            for word in range(states.shape[0]):
                row, column = states[word], regions[word]
                if not np.array_equal(row[here[0]] & column[here[1]], row[there[0]] & column[there[1]]):
                    return False
        return True

    def step(self, holds: BoolArray, states: IntArray, regions: IntArray) -> None:
        """Go on to the states that come from ``states`` in ``regions``."""
        # One state, or all regions in order: nothing is to be copied.
        before = self.alive if self.alive.shape[1] == 1 else self.alive[:, states]
        every = np.array_equal(regions, np.arange(holds.shape[1]))
        self.alive = before & (holds if every else holds[:, regions])


def words(sets: BoolArray) -> Words:
    """The columns of ``sets`` (blocks x n) as 64-bit words (ceil(blocks / 64) x n)."""
    m, n = sets.shape
    octets = np.zeros((-(-m // 64) * 8, n), dtype=np.uint8)
    packed = np.packbits(sets, axis=0)
    octets[: len(packed)] = packed
    return np.ascontiguousarray(octets.reshape(-1, 8, n).transpose(0, 2, 1)).view(np.uint64)[:, :, 0]
