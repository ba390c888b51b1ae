"""Workloads: what a batch of queries asks of the cells, W (m queries x n cells).

``matrix``           the Workload value: W = inner @ span, with integer spanning rows
``families``         the workloads of the papers, Kronecker products, stacks and weights
``random_families``  seeded random workloads
``marginals``        marginals and data cubes over any domain, by their sets of attributes
``products``         products of one-dimensional queries over sets of columns
``algebra``          equivalence, containment and column projection
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpsql.composition import from_papers
from dpsql.workloads import Marginals as Marginals
from dpsql.workloads import Workload as Workload
from dpsql.workloads import all_predicate as all_predicate
from dpsql.workloads import all_range as all_range
from dpsql.workloads import data_cube as data_cube
from dpsql.workloads import from_matrix as from_matrix
from dpsql.workloads import identity as identity
from dpsql.workloads import kron as kron
from dpsql.workloads import marginals as marginals
from dpsql.workloads import prefix as prefix
from dpsql.workloads import products as products
from dpsql.workloads import stack as stack
from dpsql.workloads import total as total
from dpsql.workloads import weighted as weighted

if TYPE_CHECKING:
    from dpsql.extensions.papers.algebra import column_projection as column_projection
    from dpsql.extensions.papers.algebra import contained as contained
    from dpsql.extensions.papers.algebra import equal_error as equal_error
    from dpsql.extensions.papers.algebra import equivalent as equivalent
    from dpsql.extensions.papers.algebra import no_harder as no_harder
    from dpsql.extensions.papers.algebra import nonzero_columns as nonzero_columns
    from dpsql.extensions.papers.random_families import covering_ranges as covering_ranges
    from dpsql.extensions.papers.random_families import random_ranges as random_ranges
    from dpsql.extensions.papers.random_families import sampled_ranges as sampled_ranges
    from dpsql.extensions.papers.random_families import wdiscrete as wdiscrete
    from dpsql.extensions.papers.random_families import wrange as wrange
    from dpsql.extensions.papers.random_families import wrelated as wrelated

_PAPERS = {
    "column_projection": "algebra",
    "contained": "algebra",
    "covering_ranges": "random_families",
    "equal_error": "algebra",
    "equivalent": "algebra",
    "no_harder": "algebra",
    "nonzero_columns": "algebra",
    "random_ranges": "random_families",
    "sampled_ranges": "random_families",
    "wdiscrete": "random_families",
    "wrange": "random_families",
    "wrelated": "random_families",
}
"""Where the extension ``papers`` has a name; its modules are imported when one of their names is first asked for."""

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


def __getattr__(name: str) -> Any:
    found = globals()[name] = from_papers(__name__, name, _PAPERS)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
