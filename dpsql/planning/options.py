"""What a call says of how to plan a batch, apart from the batch, its budget and the errors it asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsql.common.arguments import is_real
from dpsql.errors import DataError


@dataclass(frozen=True)
class PlanOptions:
    """The options of ``Connection.plan``, checked. DataError where a limit is no number.

    ``alpha`` = 1 - confidence. ``tolerance``: the certified gap that is aimed at for Gaussian noise. ``time_limit``:
    seconds; ``progress`` hears how far planning is. ``objective``: "total" or "max"; None lets the batch's errors
    decide. ``method``: "auto", a strategy of the catalogue, or what an extension plans in another way; ``rounds`` are
    for those that plan in rounds. ``earlier``: whether answers rest on earlier releases, too. ``rows_per_unit``: how
    many rows of a unit count where the policy lets more count; None counts as many as the policy lets.
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

    def __post_init__(self) -> None:
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
