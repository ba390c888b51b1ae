"""Numbers that nobody tunes: what rounding leaves, what is worked on at once, one seed, and the calendar."""

from __future__ import annotations

ROUNDING = 1e-9  # relative difference that rounding may make over a computation in doubles: nearer values are equal
SINGULAR = 1e-12  # of the largest eigenvalue, or square of a diagonal: what is less stands for zero
NEGLIGIBLE = 1e-13  # of a whole: a part that rounding alone can make
NEAR = 1e-6  # relative difference at which the search for a number ends
DIGITS = 9  # significant decimal digits by which computed numbers are sorted into equal ones
FIT = 2**62  # integers below it, and a sum of two of them, fit into a word of 64 bits with its sign
SUM_BITS = 61  # of a number of which 2^64 are added up in less than 127 bits
HALF_FIT = 2**30  # the product of two integers below it is below 2^60
TOGETHER = 2**20  # entries of arrays that are worked on at once: 8 MB, so that results on the way stay in the cache
AT_ONCE = 4096  # columns of a large matrix that are made dense at once
ALPHA = 0.05  # 1 - confidence of the intervals that are shown where nobody names one
SEED = 20_151  # of the public choices of a search (samples, directions, starts), never of noise: a text has one plan
DAY = 86_400_000_000  # microseconds of a day
CYCLE = 146_097  # days of 400 years, after which the Gregorian calendar repeats
YEAR_2000 = 10_957  # the number of the first day of the year 2000
INFINITE_DAY = 2**31 - 1  # the day number of DuckDB's infinite date
INFINITE_MOMENT = 2**63 - 1  # the microseconds of DuckDB's infinite timestamp
LEAST_MOMENT = -9_223_372_022_400_000_000  # the least finite timestamp, midnight of a day: below is minus infinity
