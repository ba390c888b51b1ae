"""Notes on counts of values whose number is limited by the policy and the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpsql.sql.outer.answers import Answer
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.batch import Core, Measured


def counted_notes(
    results: Sequence[Answer], cores: Sequence[tuple[Core, tuple[slice, ...]]], compiled: object
) -> Iterator[str]:
    """A note for each column whose intervals end at a number of values (``Compiled.ceilings``); ``cores``: those of
    ``results``.
    """
    if not isinstance(compiled, Compiled) or compiled.ceilings is None:
        return
    asked = np.diff(compiled.rows.indptr) > 0  # groups without a row by the policy are 0
    names = [result.name for result in results for _ in result.cores]
    for name, (core, slices) in zip(names, cores, strict=True):
        for column in core.columns:
            if not isinstance(column, Measured):
                continue
            part = slices[column.output]
            most = compiled.ceilings[part][asked[part]]
            known = np.unique(most[np.isfinite(most)]).astype(np.int64).tolist()
            if known:
                values = f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
                groups = "" if not core.keys else " in each group" if np.isfinite(most).all() else " in some groups"
                yield (
                    f"{name}.{column.title or column.name} counts at most {values} "
                    f"value{'s' * (known[-1] > 1)}{groups}: intervals end at 0 and there, estimates may lie beyond"
                )
