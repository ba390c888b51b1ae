"""What a strategy that the call names asks of a batch and of its budget: any of the catalogue.

It is made for the workload of the batch as its objective weighs it. It is rounded to integers as any other, and
``dpsql.measure`` works out their sensitivity again, so that nothing rests on what an extension says of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from dpsql.errors import BudgetError, DataError, listed
from dpsql.registry import method_named
from dpsql.strategies.choose.task import CATALOGUE, FORMER_NAMES, LINE, catalogue, needs
from dpsql.strategies.core.base import PURE
from dpsql.workloads.compile.compiled import Compiled


def strategy_named(method: str) -> str:
    """The strategy of the catalogue that ``method`` names, "" for "auto" and what plans in another way."""
    return named if (named := FORMER_NAMES.get(method, method)) in catalogue() else ""


def planner_named(method: str) -> Any:
    """The function that plans by a method that is no strategy. Raises DataError with all names where it is unknown."""
    return method_named(method, CATALOGUE)


def check_fits(named: str, compiled: Compiled) -> None:
    """Raises DataError where the strategy of that name does not fit a batch over listed cells.

    One over a line is for counts by one column; "workload" alone is for batches of which it is not listed what a unit
    can change.
    """
    if not compiled.units.listable and named != "workload":
        raise DataError(
            f"method={named!r} needs a list of all that one unit can change, which is too long for this batch; ask for "
            "fewer tables in one batch, or use method='workload' or 'auto'"
        )
    axes = [axis.name for layout in compiled.layouts for axis in layout.cells.axes]
    if needs(named) == LINE and (len(axes) != 1 or compiled.layouts[0].measures):
        what = "sums as well" if compiled.layouts[0].measures else listed(axes) or "no column"
        raise DataError(
            f"method={named!r} is for counts over one column in its order, and this batch reads {what}; ask for one "
            "column, or use method='eigen-design' or 'auto'"
        )


class Pays(Protocol):
    """A way to pay: a charge, or a route of a wanted error."""

    @property
    def noise(self) -> str:
        """The kind of noise that it pays for."""
        ...


P = TypeVar("P", bound=Pays)


def paying_for(named: str, ways: Iterable[P]) -> tuple[P, ...]:
    """The ways that pay for the strategy of that name. Raises BudgetError where none does."""
    found = tuple(way for way in ways if way.noise == "laplace" or needs(named) != PURE)
    if not found:
        raise pure_alone(named)
    return found


def pure_alone(method: str) -> BudgetError:
    """The error of a method with pure noise where no pure account pays."""
    return BudgetError(
        f"method={method!r} is pure: it is paid with epsilon alone, from an account that the policy keeps with "
        "pure_epsilon, or from a policy of epsilon without delta"
    )
