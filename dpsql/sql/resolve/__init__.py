"""Names and joins: which table each column is of, and what a row of the joined tables is."""
