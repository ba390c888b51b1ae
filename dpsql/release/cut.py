"""What limits on the rows of a unit cut of a table, as plans and results say it: one value, one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor, log10


@dataclass(frozen=True)
class Cut:
    """What limits cut of one table, from a noisy histogram of its units.

    ``rows``, ``units`` and ``share`` (of the rows) each with the ends of a 95 % interval; ``rows_stderr`` is the
    standard error of ``rows``, ``rows_of_table`` how many rows there are in all, those without a unit left out.
    ``at_most``: the noise may well have made all of the loss, so that its upper end alone is said. ``release``: the
    release that measured it.
    """

    table: str
    limit: str
    rows: float
    rows_stderr: float
    rows_low: float
    rows_high: float
    units: float
    units_low: float
    units_high: float
    rows_of_table: float
    share: float
    share_low: float
    share_high: float
    at_most: bool
    release: int = 0

    def sentence(self, *, included: bool = False) -> str:
        """The loss in a sentence; ``included`` where intervals have it."""
        lost = f"about {_about(self.rows)} ({_about(self.rows_low)} to {_about(self.rows_high)})"
        if self.at_most:
            hidden = self.rows_high >= self.rows_of_table
            lost = "anything up to all" if hidden else f"at most about {_about(self.rows_high)}"
        return (
            f"{lost} of about {_about(self.rows_of_table)} rows of {self.table} were cut ({self.limit}); intervals "
            f"{'include' if included else 'leave'} this{'' if included else ' out'}"
        )

    __str__ = sentence


@dataclass(frozen=True)
class Losses:
    """What is known of what limits cut of the tables that a result counts rows of: ``cuts`` by table, and ``notes``,
    a sentence for each table, those included that nothing was measured of.
    """

    cuts: Mapping[str, Cut] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.notes)


NOTHING = Losses()


def _about(number: float) -> str:
    """A number of rows to three significant digits."""
    if number < 1:
        return "0" if number < 0.5 else "1"
    return f"{round(number, 2 - floor(log10(number))):,.0f}"
