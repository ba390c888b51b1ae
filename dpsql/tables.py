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
    ``c_stderr``, ``c_low`` and ``c_high`` unless ``errors`` is False. Least squares with the
    measured integer strategy: unbiased, consistent between all results.
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
    found: list[tuple[str, str, Any]] = []
    for column in query.columns:
        if isinstance(column, KeyOutput):
            found.extend(_key(query, column))
            continue
        value, error, width = columns[number, column.name]
        found.append((column.name, "DOUBLE", value))
        if errors:
            found.append((f"{column.name}_stderr", "DOUBLE", error))
            found.append((f"{column.name}_low", "DOUBLE", value - width))
            found.append((f"{column.name}_high", "DOUBLE", value + width))
    return ReleaseTable(query.name, query.named, _unique(found))


def _unique(columns: list[tuple[str, str, Any]]) -> tuple[tuple[str, str, Any], ...]:
    """A derived name such as n_low gives way, by a number, to a column that the user named so."""
    taken: set[str] = set()
    out = []
    for name, kind, values in columns:
        unique, copy = name, 0
        while unique.lower() in taken:
            copy += 1
            unique = f"{name}_{copy}"
        taken.add(unique.lower())
        out.append((unique, kind, values))
    return tuple(out)


def _key(query: Query, column: KeyOutput) -> list[tuple[str, str, list[Any]]]:
    domain = column.domain
    labels = _labels(query, domain)
    values = [domain.values[label] if label < len(domain.values) else None for label in labels]
    found: list[tuple[str, str, list[Any]]] = [(column.name, domain.type, values)]
    if domain.other:
        found.append((f"{column.name}_other", "BOOLEAN", [label == domain.other_index for label in labels]))
    return found


def _labels(query: Query, domain: KeyDomain) -> list[int]:
    """The group of this key in every row of the result; the last key runs fastest."""
    at = next(i for i, key in enumerate(query.keys) if key.column == domain.column)
    shape = [len(key) for key in query.keys]
    index = np.arange(len(domain)).reshape([-1 if i == at else 1 for i in range(len(shape))])
    return [int(label) for label in np.broadcast_to(index, shape).ravel()]
