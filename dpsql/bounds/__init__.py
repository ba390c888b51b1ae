"""Bounds on the error of matrix mechanisms, and how strategies compare; privacy factor left out.

``singular``   the singular value bound, its supreme over projections, the dual bound
``windows``    the supreme bound of range workloads over ranges
``tightness``  how near the singular value bound is to the least error, and strategies that meet it
``accuracy``   accuracy with high probability, beside data-dependent mechanisms
``pure``       volume bounds for pure epsilon, as orders
``profiles``   the order of strategies, column uniformity, redundant queries
"""

from __future__ import annotations

from dpsql.bounds.papers.accuracy import Accuracies, accuracy_orders, rms_accuracy, rms_accuracy_order
from dpsql.bounds.papers.profiles import (
    column_uniform,
    compare,
    dominates,
    error_profile,
    profile_equivalent,
    redundant_groups,
    sensitivity,
    without_redundant,
)
from dpsql.bounds.papers.tightness import (
    cube_shares,
    cube_strategy,
    is_tight,
    looseness,
    root_strategy,
    variable_agnostic,
    variable_agnostic_bound,
    variable_agnostic_strategy,
)
from dpsql.bounds.papers.windows import range_window_bound, supreme_range_bound
from dpsql.bounds.pure import (
    bhaskara_bound,
    geometric_order,
    hardt_talwar_bound,
    low_rank_guarantee,
    singular_value_order,
)
from dpsql.bounds.singular import (
    dual_bound,
    supreme_svd_bound,
    svd_bound,
    svd_bound_log10,
    svd_bound_of_gram,
)

__all__ = [
    "Accuracies",
    "accuracy_orders",
    "bhaskara_bound",
    "column_uniform",
    "compare",
    "cube_shares",
    "cube_strategy",
    "dominates",
    "dual_bound",
    "error_profile",
    "geometric_order",
    "hardt_talwar_bound",
    "is_tight",
    "looseness",
    "low_rank_guarantee",
    "profile_equivalent",
    "range_window_bound",
    "redundant_groups",
    "rms_accuracy",
    "rms_accuracy_order",
    "root_strategy",
    "sensitivity",
    "singular_value_order",
    "supreme_range_bound",
    "supreme_svd_bound",
    "svd_bound",
    "svd_bound_log10",
    "svd_bound_of_gram",
    "variable_agnostic",
    "variable_agnostic_bound",
    "variable_agnostic_strategy",
    "without_redundant",
]
