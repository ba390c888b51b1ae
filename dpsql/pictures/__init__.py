"""Pictures of public things: released tables, errors, matrices, budgets. Drawn with matplotlib, without pyplot.

Every function takes ``ax``, matplotlib axes to draw into, or makes a figure of its own, and returns the figure.
Nothing is registered with pyplot, no global setting is touched, and no display is needed.
"""

from .matrices import members_picture, pixels_picture
from .results import plot_ranges, plot_result, results_picture
from .spending import SHARES, budget_picture, calendar_picture
from .style import picture_bytes

__all__ = [
    "SHARES",
    "budget_picture",
    "calendar_picture",
    "members_picture",
    "picture_bytes",
    "pixels_picture",
    "plot_ranges",
    "plot_result",
    "results_picture",
]
