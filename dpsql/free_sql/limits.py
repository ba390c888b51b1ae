"""Limits of SQL over releases: what one statement may build, compute and read."""

LONGEST = 100_000
"""Characters of a query."""
MOST_BYTES = 1_000_000
"""Bytes of a value that an expression builds."""
MOST_AT_ONCE = 500_000_000
"""Bytes that the expressions of a SELECT build for the rows that DuckDB computes at once."""
MOST_STEPS = 500_000_000
"""Steps of functions whose work grows faster than their arguments, over all rows."""
CALL = 4
"""Steps of any call, where a query is run once: as long as a few additions."""
MOST_ROWS = 5_000_000
"""Rows that a series, a join or several grouping sets can make, unless the tables have more rows together."""
MOST_COPIES = 5_000
"""Expressions that DuckDB may write again, in place of macros, aliases and stars and for each WHEN of a CASE."""
MOST_SELECTS = 1_000
"""SELECTs of a query."""
MOST_SETS = 128
"""Grouping sets of one SELECT, each of which is a grouping of its own."""
MOST_TABLES = 64
"""Tables, with those of its subqueries, that DuckDB puts in the best order of joins for one SELECT."""
