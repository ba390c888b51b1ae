"""Pictures of public things: released tables, errors, matrices, budgets. Drawn with matplotlib, without pyplot.

Every function takes ``ax``, matplotlib axes to draw into, or makes a figure of its own, and returns the figure.
Nothing is registered with pyplot, no global setting is touched, and no display is needed.
"""

from .results import noted, plot_ranges, plot_result, results_picture
from .style import picture_bytes

__all__ = [
    "noted",
    "picture_bytes",
    "plot_ranges",
    "plot_result",
    "results_picture",
]
