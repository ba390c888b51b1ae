"""Workloads: what a batch of queries asks of the cells, W (m queries x n cells).

``matrix``           the Workload value: W = inner @ span, with integer spanning rows
``families``         the workloads of the papers, Kronecker products, stacks and weights
``random_families``  seeded random workloads
``marginals``        marginals and data cubes over any domain, by their sets of attributes
``products``         products of one-dimensional queries over sets of columns
``algebra``          equivalence, containment and column projection
"""

from __future__ import annotations

from dpsql.extensions.papers.algebra import (
    column_projection,
    contained,
    equal_error,
    equivalent,
    no_harder,
    nonzero_columns,
)
from dpsql.extensions.papers.random_families import (
    covering_ranges,
    random_ranges,
    sampled_ranges,
    wdiscrete,
    wrange,
    wrelated,
)
from dpsql.workload.compile.products import products
from dpsql.workload.families.families import (
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
from dpsql.workload.families.marginals import Marginals, data_cube, marginals
from dpsql.workload.families.matrix import Workload

__all__ = [
    "Marginals",
    "Workload",
    "all_predicate",
    "all_range",
    "column_projection",
    "contained",
    "covering_ranges",
    "data_cube",
    "equal_error",
    "equivalent",
    "from_matrix",
    "identity",
    "kron",
    "marginals",
    "no_harder",
    "nonzero_columns",
    "prefix",
    "products",
    "random_ranges",
    "sampled_ranges",
    "stack",
    "total",
    "wdiscrete",
    "weighted",
    "wrange",
    "wrelated",
]
