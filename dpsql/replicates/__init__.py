"""Replicates: what a release might as well have shown, its noise drawn again from the law that it had.

A release shows x_hat = R y, y = B (L x) + z with the law of z known. A replicate shows x_hat + R z*, z* from the same
law, and whatever is computed from a replicate varies as what is computed from the release varies about the truth.
``noise`` draws z* from a generator with a seed that is public; ``law`` finds R and B of a release in the ledger;
``stacked`` makes the tables of a result in all replicates at once, of a line too long for that the ranges that a query
reads; ``lineage`` tells the columns that noise reaches from those that it does not; ``partitioned`` runs a query over
all replicates in one statement; ``matching`` finds the rows of the answer in its replicates; ``intervals`` reads spread
and ends off them, ``ranks`` those of ranks; ``travel`` puts these together.

The same kind of generator draws synthetic rows, whose counts agree with those of a release: ``released_counts`` reads
these back, ``row_values`` finds the regions of columns that they tell apart, ``row_fit`` the rows, ``row_model`` is one
table with its counts, and ``synthetic_rows`` puts tables and their references together.

All of it is post-processing of released numbers. Nothing here draws noise that protects anybody, and ``measure/`` can
reach none of it (``tests/test_imports.py``).
"""

from __future__ import annotations

from .error_propagation import Replicates

__all__ = ["Replicates"]
