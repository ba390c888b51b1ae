"""Level sets: which counts of rows a number shows, whatever it is written as.

A number is worked out of outputs, each a sum over rows of a coefficient that the row's cell and its values say. The
rows that enter an output with one coefficient that is not zero are a level set of it. ``judged_by`` says how the size
of each is a combination of the outputs of the same SELECT, so that it can be estimated from the noisy numbers alone:

- each level set of each output of the number, or of the number itself where it is linear in them;
- the rows that all outputs of the number together tell from others, where the size of that set follows from outputs:
  COUNT(*) and COUNT_IF(a) tell the rows without a, so that 1 - COUNT_IF(a) / COUNT(*) is judged by these, too.

So two texts of one number are judged alike: COUNT(*) - COUNT_IF(a) is COUNT_IF(NOT a), AVG(CASE ...) of constants is a
share. Level sets are found over the cells of the conditions behind the number, without the groups of the SELECT, which
cut all of them alike. A sum of what varies from row to row enters with every row where it is not NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import SQLError
from dpsql.policy.values import fold
from dpsql.workloads.cells.cell_table import Block, Cells
from dpsql.workloads.cells.merging import compile_cells
from dpsql.workloads.expr.batch import Column, Core, Output, Pieces, Table, Term
from dpsql.workloads.expr.conditions import FALSE, And, Condition, LineAtom, Or, atoms, gather
from dpsql.workloads.expr.lines import Interval
from dpsql.workloads.expr.terms import axes_of

Judge = dict[int, float]
"""The size of a set of rows as a combination of outputs of a core, by their numbers."""

MOST_TOGETHER = 200
"""Outputs of one number up to which the rows are looked at that they tell apart together."""
MOST_CELLS = 10_000
_EVERY: tuple[Interval, ...] = ((None, None),)
_RESIDUAL = 1e-7


def judged_by(core: Core, used: Sequence[int], weights: Sequence[float] | None = None) -> list[Judge] | None:
    """The sizes of the level sets behind the number that is worked out of the outputs ``used`` of a core.

    ``weights``: those of the outputs, where the number is linear in them. None where the size of one does not follow
    from the outputs of the core: then nobody can say whether it is small. O(c o^2) for c cells and o outputs.
    """
    rows = [at for at in used if _of_rows(core, at)]
    units = [at for at in used if at not in rows]
    found = _of_row_outputs(core, rows, None if units else weights) if rows else []
    if found is None:
        return None
    found += _of_units(core, units)
    if rows and units and weights is not None:
        # Rows and units are different things; the rows beyond those of units are judged by their number, too.
        factor = sum(weight for at, weight in zip(used, weights, strict=True) if at in rows)
        if factor:
            found.append({at: weight / factor for at, weight in zip(used, weights, strict=True)})
    return found


def _of_rows(core: Core, at: int) -> bool:
    """Whether rows enter an output: of the table itself, or as what each unit adds to a sum of them."""
    mine = core.table is not None and core.queries[core.places[at][0]].table == core.table.name
    return mine or core.outputs[at].sums


def _of_units(core: Core, used: Sequence[int]) -> list[Judge]:
    """Counts of units, each over the units with a row that satisfies a condition.

    Where one condition holds wherever another does, the units of one count alone are the difference of two.
    """
    found = [{at: 1.0} for at in used]
    if len(used) > MOST_TOGETHER:
        return found
    conditions = {at: core.outputs[at].terms[0].condition for at in used}
    for more in used:
        for fewer in used:
            if more != fewer and gather(And, conditions[more], conditions[fewer]) == conditions[fewer]:
                found.append({more: 1.0, fewer: -1.0})
    return found


@dataclass(frozen=True)
class _Part:
    """``coefficient`` in the rows of a condition, times what varies there where ``varying`` is not empty."""

    coefficient: Fraction
    condition: Condition
    varying: tuple[str, int] | None = None


def _parts(core: Core, output: Output) -> list[_Part] | None:
    """An output in parts that are constant in the rows of their conditions, or vary; None where they cannot be told."""
    found: list[_Part] = []
    for term in output.terms:
        condition = _over_pieces(term.condition, core.pieces)
        if term.column is None:
            found.append(_Part(term.coefficient, condition))
            continue
        pieces = core.pieces.get(term.column)
        if pieces is None:
            return None
        for piece in pieces:
            where = gather(And, condition, piece.condition)
            if where == FALSE:
                continue
            if piece.varying:
                found.append(_Part(term.coefficient, where, (piece.varying, term.power)))
            elif constant := _constant(core, term, piece.constant):
                found.append(_Part(term.coefficient * constant, where))
    return found


def _over_pieces(condition: Condition, pieces: Pieces) -> Condition:
    """The condition in which a summed expression is not NULL where one of its pieces is."""
    if isinstance(condition, LineAtom):
        own = pieces.get(condition.column)
        if not own or condition != LineAtom(condition.column, _EVERY):
            return condition
        return gather(Or, *(each.condition for each in own))
    if isinstance(condition, And | Or):
        return gather(type(condition), *(_over_pieces(part, pieces) for part in condition.operands))
    return condition


def _constant(core: Core, term: Term, value: Fraction) -> Fraction:
    """What a term sums in rows of one value: the value, or the square of its distance from the middle of the bounds."""
    if term.power == 1:
        return value
    lower, upper = _column(core, str(term.column)).ends
    return (value - (lower + upper) / 2) ** 2


def _of_row_outputs(core: Core, used: Sequence[int], weights: Sequence[float] | None) -> list[Judge] | None:
    if all(_counts_once(core.outputs[at]) for at in used) and (len(used) == 1 or len(used) > MOST_TOGETHER):
        return [{at: 1.0 / float(core.outputs[at].terms[0].coefficient)} for at in used]
    parts: dict[int, list[_Part]] = {}
    for at in used:
        own = _parts(core, core.outputs[at])
        if own is None:
            return None
        parts[at] = own
    columns = {name for own in parts.values() for part in own for name in _columns(part.condition)}
    for at, output in enumerate(core.outputs):  # what else may say how many rows there are
        if at in parts or not _of_rows(core, at) or len(parts) > MOST_TOGETHER + len(used):
            continue
        own = _parts(core, output)
        if own is not None and all(part.varying is None and _columns(part.condition) <= columns for part in own):
            parts[at] = own
    cells = _cells(core.table, [part.condition for own in parts.values() for part in own])
    return None if cells is None else _Sets(core, parts, cells).judges(used, weights)


def _counts_once(output: Output) -> bool:
    return len(output.terms) == 1 and output.terms[0].column is None


def _columns(condition: Condition) -> set[object]:
    return {atom.column if isinstance(atom, LineAtom) else atom.predicate for atom in atoms(condition)}


def _cells(table: Table | None, conditions: Sequence[Condition]) -> dict[Condition, Floats] | None:
    """Of each condition which cells (0 or 1) it holds in; None where there are too many."""
    each = list(dict.fromkeys(conditions))
    assert table is not None  # noqa: S101 - the core has outputs over its rows
    try:
        found = compile_cells(axes_of(table, each, {}), [Block(condition) for condition in each], {})
    except SQLError:
        return None
    if not isinstance(found, Cells) or len(found) > MOST_CELLS:
        return None
    return dict(zip(each, (found.counted.toarray() != 0).astype(np.float64), strict=True))


def _column(core: Core, name: str) -> Column:
    assert core.table is not None  # noqa: S101 - the core has outputs over its rows
    return core.table.columns[fold(name)]


class _Sets:
    """Outputs over cells: what each counts of a cell, and what it adds up there that varies from row to row."""

    def __init__(self, core: Core, parts: dict[int, list[_Part]], cells: dict[Condition, Floats]) -> None:
        self.core = core
        self.parts = parts
        size = len(next(iter(cells.values()), ()))
        self.constant: dict[int, Floats] = {}
        self.varying: dict[int, dict[tuple[str, int], Floats]] = {}
        for at, own in parts.items():
            self.constant[at] = np.zeros(size)
            self.varying[at] = {}
            for part in own:
                where = float(part.coefficient) * cells[part.condition]
                if part.varying is None:
                    self.constant[at] += where
                else:
                    held = self.varying[at].setdefault(part.varying, np.zeros(size))
                    held += where
        self.counts = [at for at in parts if not any(held.any() for held in self.varying[at].values())]
        self.basis = np.array([self.constant[at] for at in self.counts]).reshape(len(self.counts), size)

    def size(self, inside: Floats) -> Judge | None:
        """How many rows are in cells, weighed by ``inside``, as a combination of outputs that count."""
        if not self.counts:
            return None
        for at, row in zip(self.counts, self.basis, strict=True):  # one count by itself, as nearly always
            factor = float(row @ inside) / float(row @ row) if row.any() else 0.0
            if factor and np.allclose(factor * row, inside, rtol=0, atol=_RESIDUAL):
                return {at: factor}
        found = np.linalg.lstsq(self.basis.T, inside, rcond=None)[0]
        if np.abs(found @ self.basis - inside).max(initial=0.0) > _RESIDUAL:
            return None
        return {at: float(weight) for at, weight in zip(self.counts, found, strict=True) if abs(weight) > 1e-12}

    def judges(self, used: Sequence[int], weights: Sequence[float] | None) -> list[Judge] | None:
        """See ``judged_by``."""
        alone = [{at: 1.0} for at in used] if weights is None else [dict(zip(used, weights, strict=True))]
        found: list[Judge] = []
        for number in alone:
            for inside in _level_sets(self._coefficients([number])):
                size = self.size(inside)
                if size is None:
                    return None
                found.append(size)
        if weights is None and 1 < len(used) <= MOST_TOGETHER:
            sizes = map(self.size, _level_sets(self._coefficients(alone)))
            found += [size for size in sizes if size is not None]
        return [dict(one) for one in dict.fromkeys(tuple(sorted(judge.items())) for judge in found)]

    def _coefficients(self, numbers: Sequence[Judge]) -> Floats:
        """What rows of each cell add to linear numbers, and with which factors what varies there does: (k x cells)."""
        rows = []
        for number in numbers:
            rows.append(np.sum([weight * self.constant[at] for at, weight in number.items()], axis=0))
            for mark in dict.fromkeys(mark for at in number for mark in self.varying[at]):
                held = [weight * self.varying[at][mark] for at, weight in number.items() if mark in self.varying[at]]
                rows.append(np.sum(held, axis=0))
        return np.array(rows)


def _level_sets(coefficients: Floats) -> list[Floats]:
    """The cells (0 or 1) of each column of coefficients that is not zero."""
    if not coefficients.size:
        return []
    columns, place = np.unique(np.round(coefficients, 9), axis=1, return_inverse=True)
    place = place.reshape(-1)
    return [(place == k).astype(np.float64) for k in range(columns.shape[1]) if columns[:, k].any()]
