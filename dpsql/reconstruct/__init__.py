"""From noisy measurements to answers with error bars: post-processing, public, free.

Nothing here sees private data or spends: the inputs are the public reconstruction
matrix, the public noise, and the already noisy measurement.
"""

from .derived import Derived, evaluate
from .intervals import half_widths, simultaneous_alpha
from .least_squares import Answers, Errors, MatrixAnswers, RowsOfAnswers, mean_square, solve
from .line_answers import LineAnswers, RangeErrors
from .quantiles import Quantiles, quantile
from .residual_answers import ResidualAnswers, rank_rows
from .spread import NoiseModel, covariance, standard_errors

__all__ = [
    "Answers",
    "Derived",
    "Errors",
    "LineAnswers",
    "MatrixAnswers",
    "NoiseModel",
    "Quantiles",
    "RangeErrors",
    "ResidualAnswers",
    "RowsOfAnswers",
    "covariance",
    "evaluate",
    "half_widths",
    "mean_square",
    "quantile",
    "rank_rows",
    "simultaneous_alpha",
    "solve",
    "standard_errors",
]
