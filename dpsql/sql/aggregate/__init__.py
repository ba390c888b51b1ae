"""SELECTs with aggregates as cores: groups, sums, and the formulas worked out of them."""
