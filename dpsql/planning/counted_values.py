"""Notes on counts of values whose number is limited by the policy and the batch, and on formulas over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpsql.common.notes import ERROR, Note
from dpsql.sql.outer.answers import Answer
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.expr.batch import Core, Derived, KeyOutput, Ranked
from dpsql.workloads.expr.formulas import narrowed, range_of


def counted_notes(
    results: Sequence[Answer], cores: Sequence[tuple[Core, tuple[slice, ...]]], compiled: Batch
) -> Iterator[Note]:
    """A note for each column whose intervals end at a number of values (``Compiled.ceilings``), or at what a formula
    makes of it; ``cores``: those of ``results``.
    """
    if compiled.ceilings is None:
        return
    asked = np.isin(np.arange(compiled.numbers), compiled.answered)  # groups without a row by the policy are 0
    names = [result.name for result in results for _ in result.cores]
    for name, (core, slices) in zip(names, cores, strict=True):
        for column in core.columns:
            if isinstance(column, KeyOutput | Ranked):
                continue
            label = f"{name}.{column.title or column.name}"
            if isinstance(column, Derived):
                formula, used = narrowed(column.formula)
                ends = zip(*(compiled.limits(slices[at]) for at in used), strict=True)
                least, most = range_of(formula, *(np.stack(limits, axis=1) for limits in ends))
                if np.isfinite(least).all() and np.isfinite(most).all():
                    yield Note(
                        f"{label} lies between {least.min():,g} and {most.max():,g}, by the number of values that can "
                        "be counted: intervals end there, estimates may lie beyond",
                        ERROR,
                    )
                continue
            part = slices[column.output]
            most = compiled.ceilings[part][asked[part]]
            known = np.unique(most[np.isfinite(most)]).astype(np.int64).tolist()
            if known:
                values = f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
                groups = "" if not core.keys else " in each group" if np.isfinite(most).all() else " in some groups"
                yield Note(
                    f"{label} counts at most {values} "
                    f"value{'s' * (known[-1] > 1)}{groups}: intervals end at 0 and there, estimates may lie beyond",
                    ERROR,
                )
