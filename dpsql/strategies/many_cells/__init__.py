"""Strategies where cells are too many for a matrix of them."""
