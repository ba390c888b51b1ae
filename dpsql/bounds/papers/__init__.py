"""Theorems of the papers that no plan needs."""
