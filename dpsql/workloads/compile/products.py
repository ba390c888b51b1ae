"""Products of one-dimensional queries over sets of columns, planned block by block: their cells are never listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from scipy import sparse

from dpsql.common.arguments import all_of, taking
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.histograms import lay_out
from dpsql.workloads.compile.layout import Layout, Span
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.expr.batch import Output, Query
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import RunAxis
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.families.families import check_plain
from dpsql.workloads.families.marginals import AttributeSet, marginals
from dpsql.workloads.families.matrix import Workload

_TABLE = "products"


@taking(columns=all_of(Workload))
def products(
    *columns: Workload,
    order: int | Iterable[int] | None = None,
    sets: Iterable[Iterable[int]] | None = None,
    weights: float | Sequence[float] | Mapping[AttributeSet, float] = 1.0,
) -> Structured:
    """For each set of columns every product of one query of each: two of ``prefix(10)`` ask all 10 x 10 corners.

    ``columns``: the queries of each column over its own values, one record being in one of them. ``order``, ``sets``
    and ``weights`` as those of ``workload.marginals``, which is the case of identities. Queries run set by set, within
    one with the last column fastest. Raises DataError as ``workload.marginals``, and where a column has contributions
    of its own.
    """
    check_plain(columns, "products")
    shape = [W.shape[1] for W in columns]
    asked = marginals(shape, order, sets=sets, weights=weights)
    rows = [sparse.csr_array(W.matrix()) for W in columns]
    factors: dict[tuple[int, int], RowFactor] = {}
    blocks, spans, queries, start = [], [], [], 0
    for number, (S, weight) in enumerate(zip(asked.sets, asked.weights, strict=True)):
        for key, i in enumerate(S):
            factors.setdefault((i, key), RowFactor((i,), (key,), rows[i]))
        keys = tuple(columns[i].shape[0] for i in S)
        stop = start + prod(keys)
        mine = tuple(factors[i, key] for key, i in enumerate(S))
        blocks.append(RowBlock(start, stop, 0, 0, 1.0, weight, keys, mine))
        query = Query(f"columns {S}", _TABLE, (), (Output("queries", ()),), weight)
        queries.append(query)
        spans.append(Span(number, query.outputs[0], start, stop))
        start = stop
    names = tuple(f"column {i}" for i in range(len(columns)))
    axes = tuple(RunAxis(name, line_of("BIGINT"), 0, d) for name, d in zip(names, shape, strict=True))
    whole = Layout(_TABLE, Grid(axes), (), sparse.csr_array((1, 1)).toarray().astype("int64"), RowSource(_TABLE))
    laid = lay_out(0, whole, shape, {S: {0} for S in asked.sets}, 0)
    layouts = tuple(layout for layout, _ in laid)
    histograms = tuple(h for _, held in laid for h in held)
    return Structured(
        tuple(queries), tuple(spans), (_TABLE,), (tuple(shape),), (names,), tuple(blocks), layouts, histograms,
        (tuple(range(len(layouts))),),
    )  # fmt: skip
