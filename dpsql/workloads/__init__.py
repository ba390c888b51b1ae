"""Workloads: what a batch of queries asks of the cells, W (m queries x n cells).

``matrix``           the Workload value: W = inner @ span, with integer spanning rows
``families``         the workloads of the papers, Kronecker products, stacks and weights
``marginals``        marginals and data cubes over any domain, by their sets of attributes
``products``         products of one-dimensional queries over sets of columns
"""

from __future__ import annotations

from dpsql.workloads.compile.products import products
from dpsql.workloads.families.families import (
    all_predicate,
    all_range,
    from_matrix,
    identity,
    kron,
    prefix,
    stack,
    total,
    weighted,
)
from dpsql.workloads.families.marginals import Marginals, data_cube, marginals
from dpsql.workloads.families.matrix import Workload

__all__ = [
    "Marginals",
    "Workload",
    "all_predicate",
    "all_range",
    "data_cube",
    "from_matrix",
    "identity",
    "kron",
    "marginals",
    "prefix",
    "products",
    "stack",
    "total",
    "weighted",
]
