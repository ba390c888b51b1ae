"""Linear algebra beneath workloads and strategies: Gram algebra, exact integers, column merging.

``inner``    what a workload does to the counts of its spanning rows, as algebra
``columns``  equal columns, zero columns, disjoint blocks
``modular``  rank and row space over a prime field
``exact``    norms of integer columns without rounding
``basis``    an independent set of integer rows, and coordinates in it
"""
