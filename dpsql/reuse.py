"""What makes two batches the same question, so that the earlier answer can be used again for free."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.plan import Plan


def reuse_key(plan: Plan, errors: bool) -> str:
    """What makes two runs the same question: data version, statements, meaning, charge, options.

    Not the strategy: its last digits depend on the number of threads, and either strategy answers
    the question to the planned tolerance.
    """
    body = [
        plan.dataset,
        [answer.meaning for answer in plan.queries],
        plan.charge.as_dict(),
        _meaning(plan),
        plan.alpha,
        errors,
        # Answers planned for the least total error do not serve who asked for the least largest one.
        *(["max"] if plan.strategy.objective == "max" else []),
    ]
    return hashlib.sha256(json.dumps(body, ensure_ascii=True).encode()).hexdigest()


def _meaning(plan: Plan) -> list[str]:
    """What policy and types give to the same words: rows of units, group keys, bounds and grids of sums, cuts."""
    found = [repr(query.keys) for query in plan.compiled.queries]
    for layout in plan.compiled.layouts:
        schemas = [sorted(plan.schemas[table].items()) for table in layout.source.tables]
        found.append(
            repr(
                (
                    layout.table,
                    layout.source,
                    schemas,
                    layout.measures,
                    sorted(layout.values.items(), key=lambda v: v[0]),
                )
            )
        )
        found.extend(f"{axis!r} {np.asarray(getattr(axis, 'pieces', ())).tolist()}" for axis in layout.cells.axes)
    return found


def strategy_hash(mixing: Any, basis: Any) -> str:
    """SHA-256 of the integers that are measured, dense or sparse, for the ledger's description of a charge."""
    digest = hashlib.sha256()
    for matrix in (mixing, basis):
        parts: list[Any] = [matrix]
        if sparse.issparse(matrix):
            held: Any = matrix.tocsr()  # type: ignore[attr-defined]
            held.sort_indices()
            parts = [held.indptr, held.indices, held.data]
        digest.update(repr(matrix.shape).encode())
        for part in parts:
            digest.update(np.asarray(part, dtype=np.int64).tobytes())
    return digest.hexdigest()
