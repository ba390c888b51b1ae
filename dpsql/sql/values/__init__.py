"""Expressions of one row: typed values with their ranges, and conditions over them."""
