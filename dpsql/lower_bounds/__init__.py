"""Lower bounds on the error of matrix mechanisms, against which plans are held; privacy factor left out.

``singular``   the singular value bound, its supreme over projections, the dual bound
``additive``   bounds with constants: of Laplace strategies, and of any noise that is added, pure or in an account of mu
"""

from __future__ import annotations

from dpsql.lower_bounds.additive import account_bound, laplace_bound, pure_bound
from dpsql.lower_bounds.singular import (
    dual_bound,
    supreme_svd_bound,
    svd_bound,
    svd_bound_log10,
    svd_bound_of_gram,
)

__all__ = [
    "account_bound",
    "dual_bound",
    "laplace_bound",
    "pure_bound",
    "supreme_svd_bound",
    "svd_bound",
    "svd_bound_log10",
    "svd_bound_of_gram",
]
