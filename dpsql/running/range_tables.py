"""Results of all ranges of a long line: what a release keeps of them instead of their rows. Post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsql.errors import InterfaceError
from dpsql.planning.plan import Plan
from dpsql.reconstruct import LineAnswers, RangeErrors
from dpsql.release import Numbers, RangeNumber, RangeTable
from dpsql.sql import Answer
from dpsql.sql.outer.core_tables import core_columns
from dpsql.sql.outer.relation import ERRORS
from dpsql.workload.compile.line_batch import Lined
from dpsql.workload.expr.batch import CaseKey, Core, Key, KeyOutput, Measured, RangeKey


def has_ranges(plan: Plan) -> bool:
    """Whether the results of a plan are views over prefix sums."""
    return isinstance(plan.compiled, Lined) and plan.compiled.key.family == "ranges"


def range_tables(
    plan: Plan, y: Sequence[int], *, errors: bool = True, estimates: str = "unbiased"
) -> tuple[RangeTable, ...]:
    """The results of a plan of ranges from its noisy measurements. Raises InterfaceError for other ``estimates``."""
    assert isinstance(plan.answers, LineAnswers)  # noqa: S101 - has_ranges
    assert isinstance(plan.compiled, Lined)  # noqa: S101 - has_ranges
    if estimates != "unbiased":
        raise InterfaceError(
            f"the {len(plan.compiled.key):,} groups of {plan.compiled.key.text} are estimated without bias only; leave "
            f"estimates={estimates!r} out"
        )
    sums = plan.answers.estimate(y, plan.compiled.common_steps)
    found = []
    for answer, (core, slices) in zip(plan.queries, plan.cores, strict=True):
        found.append(_table(plan, plan.compiled.key, sums, answer, core, slices, errors=errors))
    return tuple(found)


def _table(
    plan: Plan, line: RangeKey, sums: Any, answer: Answer, core: Core, slices: Sequence[slice], *, errors: bool
) -> RangeTable:
    assert isinstance(plan.errors, RangeErrors)  # noqa: S101 - has_ranges
    assert isinstance(plan.widths, RangeErrors)  # noqa: S101 - has_ranges
    others = [key for key in core.keys if not isinstance(key, RangeKey)]
    shown: list[tuple[str, str, tuple[str, int]]] = []
    numbers: list[RangeNumber] = []
    for column, info in zip(core.columns, core_columns(core), strict=True):
        beside = dict(info.companions)
        if isinstance(column, KeyOutput):
            if isinstance(column.key, RangeKey):
                shown.append((info.name, line.type, ("from" if column.label == 0 else "to", 0)))
                continue
            at = next(number for number, key in enumerate(others) if key is column.key or key == column.key)
            shown.append((info.name, _kind(column.key, column.label), ("key", at)))
            if "_other" in beside:
                shown.append((beside["_other"], "BOOLEAN", ("other", at)))
            continue
        assert isinstance(column, Measured)  # noqa: S101 - others are refused (``sql.range_keys``)
        part = slices[column.output]
        figures, half = plan.errors[part], plan.widths[part]
        first, stop = part.start // figures.count, part.stop // figures.count
        at = len(numbers)
        deviations = float(half.scale.max() / figures.scale.max()) if figures.scale.any() else 0.0
        constant = float(core.outputs[column.output].constant)
        held = Numbers(np.ascontiguousarray(sums[first:stop]).ravel())
        numbers.append(RangeNumber(held, tuple(figures.scale.tolist()), constant, deviations))
        shown.append((info.name, "DOUBLE", ("value", at)))
        if errors:
            shown += [(beside[suffix], "DOUBLE", (suffix.removeprefix("_"), at)) for suffix in ERRORS]
    spread: Any = plan.errors.spread
    table = getattr(spread, "table", None)
    blocks = () if table is not None else tuple(zip(spread.sizes, spread.factors, strict=True))
    run = line.first is not None
    return RangeTable(
        answer.name,
        answer.named,
        tuple(shown),
        (line.first, len(line.values)) if run else tuple(line.values),
        line.type,
        tuple(numbers),
        tuple(_groups(others, at) for at in range(len(others))),
        None if table is None else Numbers(table),
        blocks,
        run,
    )


def _kind(key: Key, label: int) -> str:
    return key.labels[label].type if isinstance(key, CaseKey | RangeKey) else key.type


def _groups(keys: Sequence[Key], at: int) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """The value of a key in every group, the last key running fastest, and whether it is OTHER."""
    key = keys[at]
    if isinstance(key, CaseKey):
        values = key.labels[0].values
        named = len(key.labels) > 1 and key.labels[1].name == "other"
        is_other = tuple(bool(v) for v in key.labels[1].values) if named else (False,) * len(values)
    else:
        assert not isinstance(key, RangeKey)  # noqa: S101 - there is one, and it is left out
        values = (*key.values, *[None] * (len(key) - len(key.values)))
        is_other = tuple(number == key.other_index for number in range(len(key)))
    shape = [1] * len(keys)
    shape[at] = len(key)
    index = np.broadcast_to(np.arange(len(key)).reshape(shape), [len(other) for other in keys]).ravel().tolist()
    return tuple(values[i] for i in index), tuple(is_other[i] for i in index)
