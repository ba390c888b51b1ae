"""Bounds on the error of matrix mechanisms, and how strategies compare; privacy factor left out.

``singular``   the singular value bound, its supreme over projections, the dual bound
``windows``    the supreme bound of range workloads over ranges
``tightness``  how near the singular value bound is to the least error, and strategies that meet it
``accuracy``   accuracy with high probability, beside data-dependent mechanisms
``pure``       volume bounds for pure epsilon, as orders
``additive``   bounds with constants: of Laplace strategies, and of any noise that is added, pure or in an account of mu
``profiles``   the order of strategies, column uniformity, redundant queries

Plans need ``singular`` alone; the modules of ``papers`` are imported when one of their names is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpsql.bounds.singular import (
    dual_bound,
    supreme_svd_bound,
    svd_bound,
    svd_bound_log10,
    svd_bound_of_gram,
)
from dpsql.bounds.additive import account_bound, laplace_bound, pure_bound
from dpsql.extensions.papers.pure_bounds import (
    bhaskara_bound,
    geometric_order,
    hardt_talwar_bound,
    low_rank_guarantee,
    singular_value_order,
)

_PAPERS = {
    "Accuracies": "accuracy",
    "accuracy_orders": "accuracy",
    "rms_accuracy": "accuracy",
    "rms_accuracy_order": "accuracy",
    "column_uniform": "profiles",
    "compare": "profiles",
    "dominates": "profiles",
    "error_profile": "profiles",
    "profile_equivalent": "profiles",
    "redundant_groups": "profiles",
    "sensitivity": "profiles",
    "without_redundant": "profiles",
    "cube_shares": "tightness",
    "cube_strategy": "tightness",
    "is_tight": "tightness",
    "looseness": "tightness",
    "root_strategy": "tightness",
    "variable_agnostic": "tightness",
    "variable_agnostic_bound": "tightness",
    "variable_agnostic_strategy": "tightness",
    "range_window_bound": "windows",
    "supreme_range_bound": "windows",
}
"""The names that a module of ``papers`` has."""

__all__ = [
    "account_bound",
    "bhaskara_bound",
    "dual_bound",
    "geometric_order",
    "hardt_talwar_bound",
    "laplace_bound",
    "low_rank_guarantee",
    "pure_bound",
    "singular_value_order",
    "supreme_svd_bound",
    "svd_bound",
    "svd_bound_log10",
    "svd_bound_of_gram",
]
__all__ += _PAPERS


def __getattr__(name: str) -> Any:
    if name not in _PAPERS:
        raise AttributeError(f"module 'dpsql.bounds' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"dpsql.bounds.papers.{_PAPERS[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PAPERS})
