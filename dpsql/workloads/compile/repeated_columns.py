"""Columns of results that statements ask for again: each is compiled, planned and reconstructed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from dpsql.workloads.compile.layout import Span
from dpsql.workloads.expr.batch import Query, Term
from dpsql.workloads.expr.regions import IntArray


@dataclass(frozen=True, eq=False)
class Once:
    """The rows of W (m x n) without those that repeat others: W = rows[place].

    ``rows`` (k x n) and ``scale`` (k,) are as of W, ``spans`` the columns that they are of, ``place`` (m,) says which
    of them each row of W is.
    """

    rows: sparse.csr_array = field(repr=False)
    scale: np.ndarray = field(repr=False)
    spans: tuple[Span, ...] = field(repr=False)
    place: IntArray = field(repr=False)

    @property
    def repeats(self) -> bool:
        """Whether any row of W is there again."""
        return self.place.size > self.rows.shape[0]

    @property
    def answered(self) -> IntArray:
        """The rows that are not zero."""
        return np.flatnonzero(np.diff(self.rows.indptr))


def distinct_spans(queries: Sequence[Query], spans: Sequence[Span]) -> tuple[tuple[Span, ...], IntArray]:
    """The spans that count different things, over rows numbered anew, and which of these each row of W is (m,).

    Found are terms that are equal over the same groups of one table; keys are the same where they are one object.
    """
    seen: dict[tuple[object, ...], int] = {}  # outputs that are one object are alike without a look at their terms
    told: dict[tuple[str, tuple[int, ...], tuple[Term, ...]], int] = {}
    found: list[Span] = []
    starts = np.zeros(len(spans), dtype=np.int64)
    rows = 0
    for number, span in enumerate(spans):
        query, output = queries[span.query], span.output
        keys = tuple(map(id, query.keys))
        same = query.table, keys, id(output)
        if same not in seen:
            seen[same] = told.setdefault((query.table, keys, output.terms), rows)
            if seen[same] == rows:
                found.append(Span(span.query, output, rows, rows + span.stop - span.start))
                rows = found[-1].stop
        starts[number] = seen[same]
    lengths = np.array([span.stop - span.start for span in spans], dtype=np.int64)
    stops = np.cumsum(lengths)
    return tuple(found), np.arange(lengths.sum()) + np.repeat(starts - stops + lengths, lengths)
