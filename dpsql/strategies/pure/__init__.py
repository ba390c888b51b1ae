"""Strategies for Laplace noise, compared by computed error."""
