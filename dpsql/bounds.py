"""Bounds on the error of matrix mechanisms, and how strategies compare; privacy factor left out.

``singular``   the singular value bound, its supreme over projections, the dual bound
``windows``    the supreme bound of range workloads over ranges
``tightness``  how near the singular value bound is to the least error, and strategies that meet it
``accuracy``   accuracy with high probability, beside data-dependent mechanisms
``pure``       volume bounds for pure epsilon, as orders
``additive``   bounds with constants: of Laplace strategies, and of any noise that is added, pure or in an account of mu
``profiles``   the order of strategies, column uniformity, redundant queries
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpsql.composition import from_papers
from dpsql.lower_bounds import account_bound as account_bound
from dpsql.lower_bounds import dual_bound as dual_bound
from dpsql.lower_bounds import laplace_bound as laplace_bound
from dpsql.lower_bounds import pure_bound as pure_bound
from dpsql.lower_bounds import supreme_svd_bound as supreme_svd_bound
from dpsql.lower_bounds import svd_bound as svd_bound
from dpsql.lower_bounds import svd_bound_log10 as svd_bound_log10
from dpsql.lower_bounds import svd_bound_of_gram as svd_bound_of_gram

if TYPE_CHECKING:
    from dpsql.extensions.papers.accuracy import Accuracies as Accuracies
    from dpsql.extensions.papers.accuracy import accuracy_orders as accuracy_orders
    from dpsql.extensions.papers.accuracy import rms_accuracy as rms_accuracy
    from dpsql.extensions.papers.accuracy import rms_accuracy_order as rms_accuracy_order
    from dpsql.extensions.papers.profiles import column_uniform as column_uniform
    from dpsql.extensions.papers.profiles import compare as compare
    from dpsql.extensions.papers.profiles import dominates as dominates
    from dpsql.extensions.papers.profiles import error_profile as error_profile
    from dpsql.extensions.papers.profiles import profile_equivalent as profile_equivalent
    from dpsql.extensions.papers.profiles import redundant_groups as redundant_groups
    from dpsql.extensions.papers.profiles import sensitivity as sensitivity
    from dpsql.extensions.papers.profiles import without_redundant as without_redundant
    from dpsql.extensions.papers.pure_bounds import bhaskara_bound as bhaskara_bound
    from dpsql.extensions.papers.pure_bounds import geometric_order as geometric_order
    from dpsql.extensions.papers.pure_bounds import hardt_talwar_bound as hardt_talwar_bound
    from dpsql.extensions.papers.pure_bounds import low_rank_guarantee as low_rank_guarantee
    from dpsql.extensions.papers.pure_bounds import singular_value_order as singular_value_order
    from dpsql.extensions.papers.tightness import cube_shares as cube_shares
    from dpsql.extensions.papers.tightness import cube_strategy as cube_strategy
    from dpsql.extensions.papers.tightness import is_tight as is_tight
    from dpsql.extensions.papers.tightness import looseness as looseness
    from dpsql.extensions.papers.tightness import root_strategy as root_strategy
    from dpsql.extensions.papers.tightness import variable_agnostic as variable_agnostic
    from dpsql.extensions.papers.tightness import variable_agnostic_bound as variable_agnostic_bound
    from dpsql.extensions.papers.tightness import variable_agnostic_strategy as variable_agnostic_strategy
    from dpsql.extensions.papers.windows import range_window_bound as range_window_bound
    from dpsql.extensions.papers.windows import supreme_range_bound as supreme_range_bound

_PAPERS = {
    "Accuracies": "accuracy",
    "accuracy_orders": "accuracy",
    "bhaskara_bound": "pure_bounds",
    "column_uniform": "profiles",
    "compare": "profiles",
    "cube_shares": "tightness",
    "cube_strategy": "tightness",
    "dominates": "profiles",
    "error_profile": "profiles",
    "geometric_order": "pure_bounds",
    "hardt_talwar_bound": "pure_bounds",
    "is_tight": "tightness",
    "looseness": "tightness",
    "low_rank_guarantee": "pure_bounds",
    "profile_equivalent": "profiles",
    "range_window_bound": "windows",
    "redundant_groups": "profiles",
    "rms_accuracy": "accuracy",
    "rms_accuracy_order": "accuracy",
    "root_strategy": "tightness",
    "sensitivity": "profiles",
    "singular_value_order": "pure_bounds",
    "supreme_range_bound": "windows",
    "variable_agnostic": "tightness",
    "variable_agnostic_bound": "tightness",
    "variable_agnostic_strategy": "tightness",
    "without_redundant": "profiles",
}
"""Where the extension ``papers`` has a name; its modules are imported when one of their names is first asked for."""

__all__ = [
    "Accuracies",
    "account_bound",
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
    "laplace_bound",
    "looseness",
    "low_rank_guarantee",
    "profile_equivalent",
    "pure_bound",
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


def __getattr__(name: str) -> Any:
    found = globals()[name] = from_papers(__name__, name, _PAPERS)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
