"""The systems of the five papers: published strategies, theorems, families of workloads and MWEM, under their names."""

from __future__ import annotations

from dpsql.registry import Extension, Registered

_PIECES = "dpsql.extensions.papers.pieces:published"
_MWEM = "dpsql.extensions.papers.mwem_plan:make_mwem_plan"

EXTENSION = Extension(
    "papers",
    "has the published strategies, theorems and workloads of five papers, and MWEM",
    methods={"mwem": _MWEM, "mwem-strategy": _MWEM},
    strategies={
        "workload-separation": Registered("dpsql.extensions.papers.pieces:separated"),
        **{
            name: Registered(_PIECES, needs="line")
            for name in ("hierarchical", "weighted-hierarchical", "haar", "weighted-haar", "range-transform")
        },
        **{
            name: Registered(_PIECES)
            for name in (
                *("eigen-design", "level-selection", "workload-generalisation", "svd-approximation"),
                *("l2-approximation", "min-sensitivity", "augmented"),
            )
        },
        "low-rank-mechanism": Registered(_PIECES, tried_with_effort=True),  # 1 or 2 % on a few low-rank batches
        "smoothed": Registered(_PIECES),
    },
)
