"""What a row is asked: lines, conditions, values, regions of a column, and queries over them."""
