"""The neighbouring relation of a batch in words: what a release protects."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.workload.compile.layout import Layout
from dpsql.workload.compile.units import by_unit


def relation_text(layouts: Sequence[Layout]) -> str:
    """What neighbours differ in: "all rows of one patient_id in visits (at most 5 count)".

    Depends on the policy and the batch alone. Units of several kinds are protected each against
    its own neighbours, so that they are joined by "or".
    """
    parts = []
    for mates in by_unit(layouts):
        if mates[0].source.unit is None:
            parts.append("one " + mates[0].source.protects)
            continue
        limits: dict[str, dict[str, None]] = {}
        for layout in mates:
            bounds = [f"at most {layout.source.limit} count", *(cap.said for cap in layout.source.caps)]
            if layout.source.of is not None:
                bounds = ["all together as one row"]
            limits.setdefault(layout.source.table, {})[", ".join(bounds)] = None
        listed = [f"{table} ({'; '.join(bounds)})" for table, bounds in limits.items()]
        parts.append(f"all rows of one {mates[0].source.protects} in {_all_of(listed)}")
    return ", or ".join(parts)


def _all_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
