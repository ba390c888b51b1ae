"""A plan as text, tables and pictures."""
