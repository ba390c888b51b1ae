"""Products of one-dimensional queries over sets of columns, planned block by block: their cells are never listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from scipy import sparse

from dpsql.common.arguments import all_of, taking
from dpsql.common.arrays import Csr
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
from dpsql.workloads.families.marginals import AttributeSet, Marginals, marginals
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
    chosen = marginals([W.shape[1] for W in columns], order, sets=sets, weights=weights)
    return _batch_of(chosen, [sparse.csr_array(W.matrix()) for W in columns])


def marginal_batch(W: Marginals) -> Structured:
    """Marginals as the batch of blocks that SQL asking for them compiles to. Raises SQLError for too large a one."""
    return _batch_of(W, [sparse.eye_array(d, dtype="int64", format="csr") for d in W.sizes])


def row_blocks(sets: Iterable[AttributeSet], weights: Iterable[float], rows: Sequence[Csr]) -> tuple[RowBlock, ...]:
    """For each set of columns the products of the ``rows`` of each, one block after the other, the last fastest."""
    factors: dict[tuple[int, int], RowFactor] = {}
    blocks, start = list[RowBlock](), 0
    for S, weight in zip(sets, weights, strict=True):
        mine = tuple(factors.setdefault((i, key), RowFactor((i,), (key,), rows[i])) for key, i in enumerate(S))
        keys = tuple(rows[i].shape[0] for i in S)
        blocks.append(RowBlock(start, start + prod(keys), 0, 0, 1.0, weight, keys, mine))
        start += prod(keys)
    return tuple(blocks)


def _batch_of(W: Marginals, rows: Sequence[Csr]) -> Structured:
    """The products of the ``rows`` of each column over the sets and weights of ``W``."""
    blocks, shape = row_blocks(W.sets, W.weights, rows), W.sizes
    queries = tuple(
        Query(f"columns {S}", _TABLE, (), (Output("queries", ()),), w) for S, w in zip(W.sets, W.weights, strict=True)
    )
    spans = tuple(Span(i, queries[i].outputs[0], block.start, block.stop) for i, block in enumerate(blocks))
    names = tuple(f"column {i}" for i in range(len(shape)))
    axes = tuple(RunAxis(name, line_of("BIGINT"), 0, d) for name, d in zip(names, shape, strict=True))
    whole = Layout(_TABLE, Grid(axes), (), sparse.csr_array((1, 1)).toarray().astype("int64"), RowSource(_TABLE))
    laid = lay_out(0, whole, shape, {S: {0} for S in W.sets}, 0)
    layouts = tuple(layout for layout, _ in laid)
    histograms = tuple(h for _, held in laid for h in held)
    owners = (tuple(range(len(layouts))),)
    return Structured(queries, spans, (_TABLE,), (shape,), (names,), blocks, layouts, histograms, owners)
