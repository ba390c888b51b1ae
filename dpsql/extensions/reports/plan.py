"""The methods of a plan that draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.common.interrupted_calls import guards_calls
from dpsql.planning.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@guards_calls
class Drawn(Plan):
    """Pictures of a ``Plan``."""

    def plot_curve(self, ax: Axes | None = None, points: int = 17, span: float = 8.0) -> Figure:
        """``curve`` as a matplotlib figure. InterfaceError without matplotlib."""
        from dpsql.extensions.reports.picture import curve_picture

        return curve_picture(self, ax, points, span)

    def plot(self) -> Figure:
        """The errors of all result columns as a matplotlib figure. InterfaceError without matplotlib."""
        from dpsql.extensions.reports.picture import plan_picture

        return plan_picture(self)
