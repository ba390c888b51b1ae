"""Strategies for all ranges and prefixes of a long line, in closed form."""
