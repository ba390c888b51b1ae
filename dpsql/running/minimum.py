"""Small counts are not shown: numbers whose count may lie under a table's ``minimum``, as many custodians must.

Post-processing of what was measured, for whoever reads results; the guarantee is that of the noise, with it or without.
A number is judged by the counts behind it, each by the lower end of its confidence interval: a count of rows or units
by itself, a formula (AVG, a share, STDDEV) by every count in it, a quantile by the rows that it ranks, and a SUM, or
another combination of counts, by the count of the same rows in the same SELECT. What has none is not shown either.
A hidden number is NULL, and so are its errors; ``c_hidden`` beside it says so. It happens before all that a statement
does with its noisy tables, so that nothing that is worked out of a hidden number can show it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpsql.arrays import Floats
from dpsql.release.record import Column
from dpsql.sql.outer.relation import HIDDEN
from dpsql.workload.expr.batch import Core, Derived, Measured, Output, Ranked
from dpsql.workload.expr.formulas import leaves

Mask = NDArray[np.bool_]


def hidden(
    core: Core, column: Measured | Derived | Ranked, values: Floats, widths: Floats, slices: Sequence[slice]
) -> Mask:
    """Which numbers of a column are not shown, row by row; ``core`` has a minimum.

    ``values`` and ``widths`` (m,): estimates and half-widths of all outputs, of which ``slices`` are the core's.
    """
    rows = slices[0].stop - slices[0].start
    behind = _behind(core, column)
    if not behind:
        return np.ones(rows, dtype=np.bool_)
    # A multiple of a count is judged by the count; so is a sum of several, as if they were of the same rows.
    times = [float(sum(term.coefficient for term in core.outputs[at].terms)) for at in behind]
    low = [(values[slices[at]] - widths[slices[at]]) / by for at, by in zip(behind, times, strict=True)]
    return np.asarray(np.min(low, axis=0) < float(core.minimum or 0))


def counted(number: str, columns: Sequence[Column], minimum: int | None) -> tuple[Column, ...]:
    """The columns of a table of counts ``number``, with its errors, in which small ones are NULL, and the mark."""
    if minimum is None:
        return tuple(columns)
    low = next(values for name, _, values in columns if name == f"{number}_low")
    small = [float(str(end)) < minimum for end in low]
    shown: list[Column] = []
    for name, kind, values in columns:
        if name in (number, f"{number}_low", f"{number}_high"):
            values = [None if left_out else value for value, left_out in zip(values, small, strict=True)]
        shown.append((name, kind, values))
    return (*shown, (f"{number}{HIDDEN[0]}", "BOOLEAN", small))


def _behind(core: Core, column: Measured | Derived | Ranked) -> list[int]:
    """The outputs that count what a column is made of."""
    if isinstance(column, Ranked):
        return [column.prefixes[-1]]
    used = [column.output] if isinstance(column, Measured) else sorted(set(leaves(column.formula)))
    counts = [at for at in used if core.outputs[at].counts]
    if counts:
        return counts
    wanted = {rows for at in used for rows in _rows(core.outputs[at])}
    beside = [at for at, output in enumerate(core.outputs) if output.counts and _rows(output) <= wanted]
    covered = {rows for at in beside for rows in _rows(core.outputs[at])}
    return beside if covered == wanted else []


def _rows(output: Output) -> set[object]:
    """The conditions of the rows that an output is about."""
    return {term.condition for term in output.terms}
