"""Answers: from noisy measurements to the tables that a release registers. Post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsql.plan import Plan
from dpsql.reconstruct import solve
from dpsql.release import ReleaseTable
from dpsql.workload.batch import KeyOutput, Query
from dpsql.workload.regions import KeyDomain


def release_tables(plan: Plan, y: Sequence[int], *, errors: bool = True) -> tuple[ReleaseTable, ...]:
    """The results of a plan from its noisy measurements ``y`` (p Python ints), in batch order.

    A result has the columns that its SELECT lists; each private column ``c`` is followed by
    ``c_stderr``, ``c_low`` and ``c_high`` unless ``errors`` is False, and a key ``k`` with an OTHER
    group by ``k_other``. A derived name that SELECT gives to a column of its own, in any case, gives
    way by a number: ``c_stderr_1``. Least squares with the measured integer strategy: unbiased,
    consistent between all results.
    """
    compiled = plan.compiled
    values = np.zeros(len(compiled.scale))
    values[compiled.answered] = solve(plan.answers, y, compiled.common_steps)
    columns: dict[tuple[int, str], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for span in compiled.spans:
        part = slice(span.start, span.stop)
        columns[span.query, span.output.name] = (
            values[part] + float(span.output.constant),
            plan.errors[part],
            plan.widths[part],
        )
    return tuple(_table(number, query, columns, errors) for number, query in enumerate(plan.queries))


def _table(
    number: int,
    query: Query,
    columns: dict[tuple[int, str], tuple[np.ndarray, np.ndarray, np.ndarray]],
    errors: bool,
) -> ReleaseTable:
    # The names that the user gave, or DuckDB for the user, are theirs, wherever they stand in SELECT.
    taken = {column.name.lower() for column in query.columns}
    found: list[tuple[str, str, Any]] = []
    for column in query.columns:
        if isinstance(column, KeyOutput):
            labels = _labels(query, column.domain)
            found.append((column.name, column.domain.type, _values(column.domain, labels)))
            if column.domain.other:
                others = [label == column.domain.other_index for label in labels]
                found.append((_derived(f"{column.name}_other", taken), "BOOLEAN", others))
            continue
        value, error, width = columns[number, column.name]
        found.append((column.name, "DOUBLE", value))
        if errors:
            found.append((_derived(f"{column.name}_stderr", taken), "DOUBLE", error))
            found.append((_derived(f"{column.name}_low", taken), "DOUBLE", value - width))
            found.append((_derived(f"{column.name}_high", taken), "DOUBLE", value + width))
    return ReleaseTable(query.name, query.named, tuple(found))


def _derived(name: str, taken: set[str]) -> str:
    """``name``, numbered where it is taken in any case; the name found is taken from then on."""
    unique, copy = name, 0
    while unique.lower() in taken:
        copy += 1
        unique = f"{name}_{copy}"
    taken.add(unique.lower())
    return unique


def _values(domain: KeyDomain, labels: Sequence[int]) -> list[Any]:
    return [domain.values[label] if label < len(domain.values) else None for label in labels]


def _labels(query: Query, domain: KeyDomain) -> list[int]:
    """The group of this key in every row of the result; the last key runs fastest."""
    at = next(i for i, key in enumerate(query.keys) if key.column == domain.column)
    shape = [len(key) for key in query.keys]
    index = np.arange(len(domain)).reshape([-1 if i == at else 1 for i in range(len(shape))])
    return [int(label) for label in np.broadcast_to(index, shape).ravel()]
