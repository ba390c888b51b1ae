"""Workloads: what a batch of queries asks of the cells, W (m queries x n cells).

``matrix``    the Workload value: W = inner @ span, with integer spanning rows
``families``  the workloads of the papers, Kronecker products and stacks
"""

from __future__ import annotations

from dpsql.workload.families import (
    all_range,
    from_matrix,
    identity,
    kron,
    prefix,
    random_ranges,
    stack,
    total,
    wdiscrete,
    weighted,
    wrange,
    wrelated,
)
from dpsql.workload.matrix import Workload

__all__ = [
    "Workload",
    "all_range",
    "from_matrix",
    "identity",
    "kron",
    "prefix",
    "random_ranges",
    "stack",
    "total",
    "wdiscrete",
    "weighted",
    "wrange",
    "wrelated",
]
