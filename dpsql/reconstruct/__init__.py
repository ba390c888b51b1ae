"""From noisy measurements to answers with error bars: post-processing, public, free.

Nothing here sees private data or spends: the inputs are the public reconstruction
matrix, the public noise, and the already noisy measurement.
"""

from .intervals import half_widths, simultaneous_alpha
from .least_squares import solve
from .ratios import ratio_interval
from .spread import NoiseModel, covariance, standard_errors

__all__ = [
    "NoiseModel",
    "covariance",
    "half_widths",
    "ratio_interval",
    "simultaneous_alpha",
    "solve",
    "standard_errors",
]
