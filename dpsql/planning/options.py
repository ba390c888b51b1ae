"""What a call says of how to plan a batch, apart from the batch and its budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from dpsql.common.arguments import check_fields, flag, function, is_real, maybe, text, whole
from dpsql.common.options import CALL, RUN, on
from dpsql.errors import DataError, nearest


class BudgetKeywords(TypedDict, total=False):
    """Keywords of ``Connection.budget_for``; ``PlanOptions`` says what they mean."""

    relative: object
    alpha: float
    simultaneous: bool
    expected: Mapping[str, object] | None
    objective: str | None
    tolerance: float
    time_limit: float | None
    progress: Callable[[str], None] | None
    earlier: bool
    rows_per_unit: int | None


class PlanKeywords(BudgetKeywords, total=False):
    """Keywords of ``Connection.plan``."""

    max_error: object
    method: str
    rounds: int | None


@dataclass(frozen=True)
class PlanOptions:
    """The options of ``Connection.plan``, checked. DataError where one is not of its kind.

    ``alpha`` = 1 - confidence of the intervals. ``tolerance``: the certified gap that is aimed at for Gaussian noise.
    ``time_limit``: seconds; ``progress`` hears how far planning is. ``objective``: what is least, "balanced" (the
    default, ``dpsql.planning.one_by_one``), the mean over the result columns of their squared errors beside those one
    by one, so that none comes out worse where that can be had; the "total" squared error; or the largest one ("max").
    ``method``: "auto"; a strategy of ``dpsql.strategy.CATALOGUE``, which is planned as it is, without earlier releases;
    or a method of an extension; ``rounds`` are for those that plan in rounds. ``earlier``: where earlier releases know
    a part of the answers, these rest on them, too, at the same charge, and the plan's errors are those of all
    measurements together (``dpsql.running.earlier.combined_plan``); False plans as if there were none.
    ``rows_per_unit``: of each unit at most so many rows count, where the policy lets more count; noise falls, what is
    left out of larger units is not estimated, and earlier releases are not used. ``max_error`` or ``relative``: which
    half-width every number is to have, or by result; ``simultaneous``: all intervals together hold with 1 - alpha, not
    each by itself; ``expected``: rows of a group by result (``dpsql.planning.target_errors``).
    """

    alpha: float = 0.05
    tolerance: float = 1e-3
    time_limit: float | None = None
    progress: Callable[[str], None] | None = None
    objective: str | None = None
    method: str = "auto"
    rounds: int | None = None
    earlier: bool = True
    rows_per_unit: int | None = None
    max_error: object = None
    relative: object = None
    simultaneous: bool = False
    expected: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self, progress=maybe(function()), earlier=flag(), method=text(), rows_per_unit=maybe(whole(1, 2**63 - 1))
        )
        for name in ("max_error", "relative", "expected"):  # the caller's own may change
            if isinstance(value := getattr(self, name), Mapping):
                object.__setattr__(self, name, dict(value))
        for name, value in (("tolerance", self.tolerance), ("time_limit", self.time_limit)):
            if value is None or (isinstance(value, float) and value == math.inf):
                continue
            if not isinstance(value, int | float) or not is_real(value):  # an integer may be past every float
                raise DataError(f"{name} must be a number, such as {name}=0.01")

    def say(self, text: str) -> None:
        """Tell ``progress`` something, where there is one."""
        if self.progress is not None:
            self.progress(text)

    def within(self, time_limit: float | None) -> PlanOptions:
        """The same with another time limit."""
        return replace(self, time_limit=time_limit)

    def having(self, keywords: Mapping[str, Any]) -> PlanOptions:
        """The same with these values. Raises TypeError for a name that is no option, as Python does for keywords."""
        for name in keywords.keys() - {field.name for field in fields(self)}:
            raise TypeError(f"there is no option {name}; {nearest(name, {**on(CALL), **on(RUN)})}")
        return replace(self, **keywords)
