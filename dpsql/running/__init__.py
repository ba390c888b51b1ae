"""A plan measured, or answered from earlier releases, and made into result tables."""
