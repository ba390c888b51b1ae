"""A batch as a workload over cells: one matrix, blocks of products, or the ranges of a line."""
