"""Sizes and steps that several strategies share, each with its reason."""

from __future__ import annotations

MEASURED = 2**25  # numbers measured: 256 MB of words
WRITTEN = 2**24  # entries of B, or of rows over all cells, up to which they are written out: 128 MB
CUBES = 3e10  # sum of orders cubed that a bound's eigenvalues may take: a few seconds
PAIRED_ROWS = 1_500  # independent rows of which pairs are looked at: to group their axes, to refine shares
COLOURS = 120  # colours of a matrix that is constant on them: its parts cost their cube
SIZES = 24  # sizes of a unit that are tried, in equal ratios: neighbours differ by less than a third up to 1,000
ADDED = 8  # worst contributions that a round of column generation starts with, adds, or improves
ROUNDS = 80  # of column generation over single columns, which its gap ends earlier
ENOUGH = 1e-3  # relative error for which no better bound or centre is looked for
RIDGE = 1e-9  # of a mean eigenvalue: what is added so that a matrix has an inverse
KERNEL_BITS, FACTOR_BITS = 17, 18  # of the integers of a kernel, and of the factors of its rows
