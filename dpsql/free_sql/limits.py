"""Limits of SQL over releases: what one statement may build, compute and read."""

LONGEST = 100_000
"""Characters of a query."""
MOST_BYTES = 1_000_000
"""Bytes of a value that an expression builds."""
MOST_AT_ONCE = 500_000_000
"""Bytes that the expressions of a SELECT build for the rows that DuckDB computes at once."""
MOST_STEPS = 500_000_000
"""Steps of functions whose work grows faster than their arguments, over all rows."""
MOST_ROWS = 10_000_000
"""Rows that a series, a join or several grouping sets can make, unless the tables have more rows together."""
