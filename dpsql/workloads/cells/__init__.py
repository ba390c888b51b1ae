"""Cells: the sets of rows that a batch tells apart, and what one row can change of them."""
