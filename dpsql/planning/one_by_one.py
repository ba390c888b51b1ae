"""Result columns one by one, each paid for apart, and the balanced objective: how columns do beside that.

With k columns and an equal share for each (mu^2 / k of Gaussian noise, epsilon / k of Laplace noise), column c has the
mean squared error e_c = k Delta_c^2 times the noise's variance at sensitivity 1 (k^2 Delta_c^2 for Laplace noise),
Delta_c its own sensitivity to a unit (L2 or L1). The balanced objective is the mean over the columns of their mean
squared error over e_c. Measuring one by one is a strategy, of value 1, so that the least is at most 1: on the mean, no
batch does worse than its columns one by one. A column of two numbers counts as much as one of a thousand, a sum of
costs as much as a count. WEIGHT multiplies the errors of its statement's columns.

All n prefix counts of a quantile are one column, of which strategies in closed form are known. Delta_c^2 is that of one
prefix count times the mean squared error of theirs: for Gaussian noise the square root of their matrix, with
r_j = binom(2 j, j) / 4^j on its diagonals, has (sum_j<n r_j^2) mean_i (sum_j<=i r_j^2) (Fichtenberger, Henzinger,
Upadhyay 2023); for Laplace noise a binary tree of h levels has h^2 (h + 1) / 2 or less (Chan, Shi, Song 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Ints
from dpsql.linalg.blocks import RowFactor
from dpsql.reconstruct import Errors, RangeErrors
from dpsql.workloads.compile.compiled import Batch, Compiled
from dpsql.workloads.compile.structured import Structured

HELD = 1.04
"""Mean squared error over that one by one, from which on a column counts more: 2 % of a standard error."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The k result columns of a batch: the number of each span's, and the weight of each one's statement (k,).

    ``sizes`` (k,): the numbers of each column, of one matrix those that depend on the data; 1 at least.
    """

    of_span: Ints
    lengths: Ints
    weights: Floats
    sizes: Ints

    @classmethod
    def of(cls, compiled: Batch) -> Columns:
        """Span by span, those of one quantile together."""
        known: dict[tuple[int, str], float] = {}
        of_span = []
        for number, span in enumerate(compiled.spans):
            key = span.query, span.output.part_of or f"span {number}"
            known.setdefault(key, compiled.queries[span.query].weight)
            of_span.append(key)
        places = {key: place for place, key in enumerate(known)}
        lengths = [span.stop - span.start for span in compiled.spans]
        numbers = np.array(lengths, dtype=np.int64)
        if compiled.matrix is not None:
            starts = np.array([span.start for span in compiled.spans], dtype=np.int64)
            numbers = np.diff(np.searchsorted(compiled.answered, [starts, starts + numbers]), axis=0).ravel()
        of_columns = np.array([places[key] for key in of_span])
        sizes = np.maximum(np.bincount(of_columns, numbers, len(known)), 1).astype(np.int64)
        return cls(of_columns, np.array(lengths), np.array([*known.values()]), sizes)

    def __len__(self) -> int:
        return len(self.weights)

    @cached_property
    def of_row(self) -> Ints:
        """The number of the column of each row of W (m,)."""
        return np.repeat(self.of_span, self.lengths)

    @cached_property
    def parts(self) -> Ints:
        """The spans of each column (k,)."""
        return np.bincount(self.of_span, minlength=len(self))

    def sums(self, values: Floats) -> Floats:
        """Of ``values`` (m,) the sum over each column (k,)."""
        return np.asarray(np.bincount(self.of_row, values, len(self)))


def one_by_one(compiled: Batch, noise: str, variance: float) -> Errors:
    """Standard errors (m,) of one measurement for each result column, with an equal share of the budget for each.

    In the order of W's rows. ``noise``: "gaussian" or "laplace", of that ``variance`` at sensitivity 1.
    """
    columns = len(Columns.of(compiled))
    times = float(variance**0.5 * (columns if noise == "laplace" else columns**0.5))
    lengths, line = _lengths(compiled.small, noise) * times, compiled.line
    if line is None:
        return lengths
    n = len(line.values)
    # In how many ranges, or prefixes, the value is that is in the most.
    most = (n + 1) ** 2 // 4 if line.family == "ranges" else n
    lengths = lengths * float(most) ** (1.0 if noise == "laplace" else 0.5)
    return np.repeat(lengths, n) if line.family == "prefixes" else RangeErrors.uniform(lengths, n)


def _lengths(compiled: Batch, noise: str) -> Floats:
    """Delta_c for every number of its column, 0 for those of one matrix that no data can change."""
    columns, matrix = Columns.of(compiled), compiled.matrix
    lengths = _of_blocks(compiled, noise) if matrix is None else _of_spans(matrix, noise)
    if len(columns) < len(compiled.spans):
        longest = np.zeros(len(columns))
        np.maximum.at(longest, columns.of_row, lengths)
        lengths = (longest * [_of_prefixes(parts, noise) for parts in columns.parts.tolist()])[columns.of_row]
    if matrix is not None:
        lengths = np.where(np.isin(np.arange(lengths.size), matrix.answered), lengths, 0.0)
    return np.asarray(lengths)


def _of_prefixes(parts: int, noise: str) -> float:
    """The root mean squared error of ``parts`` prefix counts over that of one."""
    if noise == "laplace":
        levels = parts.bit_length()
        return min(float(parts), levels * math.sqrt((levels + 1) / 2))
    roots = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1, parts))) ** 2
    return float(np.sqrt(roots.sum() * np.cumsum(roots).mean()))


def _of_spans(compiled: Compiled, noise: str) -> Floats:
    """Delta_c of every span, for each of its numbers."""
    if compiled.units.listable:
        return np.asarray(_listed(compiled)[0 if noise == "laplace" else 1])
    once = compiled.once
    errors = np.zeros(once.scale.size)
    weighted = sparse.csr_array(sparse.diags_array(once.scale) @ once.rows)
    for span in once.spans:
        rows = weighted[span.start : span.stop]
        reach = compiled.units.longest(rows, 1) if noise == "laplace" else compiled.units.longest(rows, 2) ** 0.5
        errors[span.start : span.stop] = reach
    return np.asarray(errors[once.place])


def _listed(compiled: Compiled) -> Floats:
    """Delta_c of every span for both kinds of noise (2, m), as ``Contributions.longest`` has it; worked out once."""
    if "one by one" not in compiled.cache:
        compiled.cache["one by one"] = _both_norms(compiled) * float(compiled.units.common)
    found: Floats = compiled.cache["one by one"]
    return found


def _both_norms(compiled: Compiled) -> Floats:
    """The longest L1 and L2 norm of what a listed vector moves of each span, for each of its numbers (2, m)."""
    units, once = compiled.units, compiled.once
    moved = sparse.csr_array(once.rows if units.plain else once.rows @ units.columns)
    size = np.abs(moved.data) * np.repeat(np.abs(once.scale), np.diff(moved.indptr))
    filled = np.flatnonzero(np.diff(moved.indptr))
    reach, last = np.zeros((2, once.scale.size)), np.zeros(moved.shape[1], dtype=np.int64)
    reach[:, filled] = np.maximum.reduceat(size, moved.indptr[filled]) if filled.size else 0.0
    for span in (span for span in once.spans if span.stop - span.start > 1):
        inside = slice(moved.indptr[span.start], moved.indptr[span.stop])
        columns, entries = moved.indices[inside], size[inside]
        last[columns] = np.arange(columns.size)
        if (last[columns] == np.arange(columns.size)).all():
            reach[:, span.start : span.stop] = entries.max(initial=0.0)  # no vector moves two of its numbers
        else:
            reach[0, span.start : span.stop] = np.bincount(columns, entries).max()
            reach[1, span.start : span.stop] = np.bincount(columns, entries**2).max() ** 0.5
    return np.asarray(reach[:, once.place])


def _of_blocks(compiled: Batch, noise: str) -> Floats:
    """Delta_c of blocks: norms of columns multiply, and a row moves a span's count and sums together.

    Rows of a unit are best in one cell; a unit that is counted once in each is in several.
    """
    order = 1 if noise == "laplace" else 2
    assert isinstance(compiled, Structured)  # noqa: S101 - a small batch is blocks where it is no matrix
    first = {t: compiled.layouts[owned[0]] for t, owned in enumerate(compiled.owners) if owned}
    reach = np.zeros(compiled.numbers)
    known: dict[tuple[int, int], Floats] = {}  # groupings share the factors of their columns
    for block in compiled.blocks:
        rows, times = first[block.table].multiplicity, 1.0
        if first[block.table].source.counts_units:
            rows, times = min(rows, block.stop - block.start), 1 / order
        longest = np.full(block.outputs, abs(block.coefficient) * rows**times)
        for factor in block.factors:
            key = id(factor), block.outputs if 0 in factor.keys else 1
            if key not in known:
                known[key] = _longest(factor, key[1], order)
            longest *= known[key]
        reach[block.start : block.stop] += np.repeat(longest, (block.stop - block.start) // block.outputs)
    return reach


def _longest(factor: RowFactor, outputs: int, order: int) -> Floats:
    """The longest column of a factor in a norm, for each output (outputs,)."""
    each = sparse.kron(sparse.eye_array(outputs), np.ones((1, factor.matrix.shape[0] // outputs)), format="csr")
    sums = sparse.csr_array(each @ abs(factor.matrix).power(order)).max(axis=1).toarray().ravel()
    return np.asarray(sums ** (1 / order))


def balanced(compiled: Batch, noise: str, times: Floats | None = None) -> Batch:
    """The batch with the balanced objective for a kind of noise.

    Up to a constant: squared errors of column c are divided by its numbers and by Delta_c^2. ``times`` (k,) multiplies
    the squared errors of the columns besides.
    """
    lengths, columns = _lengths(compiled.small, noise), Columns.of(compiled.small)
    counts = columns.weights * (1.0 if times is None else times**0.5) / columns.sizes**0.5
    units = counts[columns.of_row] / np.where(lengths > 0, lengths, 1.0)
    return compiled.weighed(units)


def beside_one_by_one(squares: Floats, compiled: Compiled, noise: str) -> Floats:
    """Mean squared errors of the columns (k,) over those one by one.

    ``squares`` (m,): squared errors of the numbers at a variance of 1, each in the units of the balanced batch.
    """
    columns = Columns.of(compiled)
    shares = len(columns) ** (2.0 if noise == "laplace" else 1.0)
    return np.asarray(columns.sums(squares) / columns.weights**2 / shares)
