"""Marginals and data cubes over any number of attributes: what to measure of them, in integers."""
