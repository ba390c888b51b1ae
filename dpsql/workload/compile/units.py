"""Units of a batch: which sources one of them moves together, and its contributions to x."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from dpsql.arrays import Ints
from dpsql.workload.cells.boxes import Boxes
from dpsql.workload.cells.corners import corners_of
from dpsql.workload.compile.layout import Layout
from dpsql.workload.families.contributions import Contributions, Part


def contributions_of(layouts: Sequence[Layout], size: int) -> Contributions:
    """What units can change of ``size`` entries of x that ``layouts`` fill. Raises SQLError as ``corners_of``."""
    units = []
    for mates in by_unit(layouts):
        parts = []
        for layout in mates:
            if isinstance(layout.cells, Boxes):
                corners = sparse.csc_array(layout.cells.some_columns())
            else:
                corners = sparse.csc_array(corners_of([layout.entry], size))
            if not corners.shape[1]:
                continue
            distinct = layout.source.distinct and layout.multiplicity > 1
            if len(mates) > 1:
                corners = _both_signs(corners, layout.entry)
            most = layout.multiplicity if distinct else 1
            parts.append(Part(corners, 1 if distinct else layout.multiplicity, most))
        if parts:
            units.append(tuple(parts))
    return Contributions(tuple(units), size)


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


def by_unit(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The layouts whose sources share a unit, together."""
    found: dict[str, list[Layout]] = {}
    for layout in layouts:
        found.setdefault(layout.source.protects, []).append(layout)
    return list(found.values())
