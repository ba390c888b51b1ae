"""An independent set of integer rows that spans a workload, and coordinates in it.

Rounding a strategy entry by entry loses its row space when the workload is rank-deficient.
Measuring integer combinations of integer rows that span the workload cannot: any
non-singular mixing keeps the space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Flags, Floats, Ints, Matrix, Sparse
from dpsql.errors import DataError, InternalError
from dpsql.linalg import modular
from dpsql.linalg.columns import Distinct, columns_at, disjoint_blocks, distinct_columns
from dpsql.linalg.exact import max_abs
from dpsql.linalg.forms import dense, is_sparse
from dpsql.linalg.inner import Diagonal, Inner
from dpsql.linalg.linked import linked_by
from dpsql.linalg.long_calls import interruptible
from dpsql.linalg.ranges import changes_of, ends_of, forest_of, gram_of, rank_of

_TOLERANCE = 1e-10
_QR = 2.0  # multiplications of a decomposition Q R over rows times squared columns
_ROUNDING = 1e-12
_NEARLY = 1e-6
_SEED = 20_141
_DENSE_CAP = 2**25
_ENTRIES = 64
_RESIDUALS = 2**22  # entries of a residual at a time
_MOST_ENTRIES = 2**27
_FIRST_BUCKETS = 512
_FEW_ROWS = 2048
_MANY_RANGES = 128  # below, their dependence is found out like that of other rows
_DIRECTIONS = 16
_DENSE_ROWS = 1024
_LARGE_GRAM = 2**28  # multiplications
_UNLIKE = 2.0**10
_GRAM_SECONDS = 0.5e-10  # for each multiplication
_SECONDS = 2.2e-10  # on one slow core, for each multiplication of the QR and of the check together


@dataclass(frozen=True, eq=False)
class Basis:
    """``rows`` (v x n integer csr, independent) and ``coords`` (q x v, ndarray or csr): span = coords @ rows.

    ``picked`` (v,): their numbers in the span, where they are some of its rows.
    """

    rows: Csr
    coords: Matrix
    picked: Ints | None = None

    def gram(self, inner: Inner) -> Floats:
        """coords^T (F^T F) coords (v x v): the Gram matrix of the workload in these coordinates."""
        diagonal = inner.diagonal()
        if diagonal is not None:
            q, v = self.coords.shape
            changes = changes_of(self.coords) if q * v * v > _LARGE_GRAM and diagonal.min() > 0 else None
            if changes is not None:
                # Running sums of weights that are very unlike in size would lose the small ones.
                sizes = np.log(diagonal) // np.log(_UNLIKE)
                each = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
                return np.asarray(sum(gram_of(sparse.csr_array(changes[one]), diagonal[one]) for one in each))
            if not is_sparse(self.coords):
                scaled = self.coords * np.sqrt(diagonal)[:, None]
                return np.asarray(scaled.T @ scaled)
            full = self._full()
            few = self.coords[~full]
            out = np.asarray((few.T @ sparse.diags_array(diagonal[~full]) @ few).toarray(), dtype=np.float64)
            dense, weights = sparse.csr_array(self.coords[full]), np.sqrt(diagonal[full])
            _, of_row, of_column = linked_by(dense)
            for part in np.unique(of_row):
                rows, columns = np.flatnonzero(of_row == part), np.flatnonzero(of_column == part)
                for at in range(0, rows.size, _DENSE_ROWS):
                    some = rows[at : at + _DENSE_ROWS]
                    scaled = dense[some][:, columns].toarray() * weights[some, None]
                    out[np.ix_(columns, columns)] += scaled.T @ scaled
            return out
        half = self.coords.T @ inner.gram()
        return np.asarray(self.coords.T @ half.T, dtype=np.float64).T

    def gram_seconds(self) -> float:
        """What ``gram`` takes at most, on one slow core."""
        q, v = self.coords.shape
        rows = int(np.count_nonzero(self._full())) if is_sparse(self.coords) else q
        return _GRAM_SECONDS * rows * float(v * v)

    def _full(self) -> Flags:
        """Which rows of sparse coordinates have so many entries that a dense product is quicker."""
        return np.asarray(50 * np.diff(sparse.csr_array(self.coords).indptr) > self.coords.shape[1])


def choose_basis(
    span: Sparse,
    inner: Inner,
    *,
    exact: bool = True,
    found: Distinct | None = None,
    before: Callable[[float], None] | None = None,
) -> Basis:
    """Independent rows spanning ``span`` (q x n integer csr), well conditioned.

    The distinct columns themselves (indicator rows) where the rank equals their number, the
    rows of ``span`` where no two of them share a column, else rows picked by QR with column
    pivoting. ``exact=False``, for rows that are rounded floats, decides the rank numerically.
    Rows that ``inner`` gives no weight do not count. ``found``: the distinct columns of ``span``, where
    they are known already and all rows count. ``before`` is called with the seconds that a pivoted QR and the exact
    check will take, before they begin, and may raise. Raises InternalError if no basis passes the exact check.
    Cost O(q^2 min(N, 8 q) + nnz), N distinct columns.
    """
    diagonal = inner.diagonal()
    alive = np.diff(span.indptr) > 0
    if diagonal is not None:
        alive &= diagonal > 0
    used = np.flatnonzero(alive)
    part = sparse.csr_array(span if used.size == span.shape[0] else span[used])
    if used.size == 0:
        return Basis(sparse.csr_array((0, span.shape[1]), dtype=np.int64), np.zeros((span.shape[0], 0)))
    if exact and found is None and 4 * _ENTRIES * used.size < part.shape[1] and used.size <= _FEW_ROWS:
        # What is independent on a few columns is so on all, where the other rows are checked.
        few = choose_basis(columns_at(part, _some_columns(part)), Diagonal(np.ones(used.size)), before=before)
        if few.picked is not None:
            some = sparse.csr_array(part[few.picked])
            whole = _whole_coordinates(part, some, few.picked, few.coords, independent=True)
            if whole is not None:
                return _place(some, whole, used, span.shape[0], few.picked)
    if found is None or used.size < span.shape[0]:
        found = distinct_columns(part)
    D = columns_at(part, found.keep)
    if int(np.diff(sparse.csc_array(D).indptr).max()) == 1:
        return _place(part, modular.identity_csr(used.size), used, span.shape[0], np.arange(used.size))
    ends = ends_of(sparse.csr_array(D)) if min(D.shape) >= _MANY_RANGES else None
    if ends is not None:
        if rank_of(ends, D.shape[1]) == D.shape[1]:
            return _place(_indicator(found.label, found.keep.size), D, used, span.shape[0])
        picked, from_these = forest_of(ends, D.shape[1])
        return _place(sparse.csr_array(part[picked]), from_these, used, span.shape[0], picked)
    if exact and 4 * D.shape[1] < D.shape[0] and modular.rank(_thin(D)) == D.shape[1]:
        # Far more rows than columns, and no linear relation among these: no row need be picked.
        return _place(_indicator(found.label, found.keep.size), D, used, span.shape[0])
    if _each_alone(D):
        return _place(_indicator(found.label, found.keep.size), D, used, span.shape[0])
    number, label = disjoint_blocks(D, np.arange(D.shape[0]))
    if number > 1:
        chosen, together, picks = _chosen_by_parts(D, number, label, exact, before)
        if picks is not None:
            return _place(sparse.csr_array(part[picks]), together, used, span.shape[0], picks)
        return _place(sparse.csr_array(chosen @ _indicator(found.label, D.shape[1])), together, used, span.shape[0])
    if before is not None:
        before(_SECONDS * D.shape[0] * min(D.shape) ** 2)
    rank, order, R = _pivots(D)
    if rank == D.shape[1] or (rank == min(D.shape) and D.shape[1] <= D.shape[0]):
        lift = _indicator(found.label, found.keep.size)
        if not exact or modular.rank(_thin(D)) == rank:
            return _place(lift, D, used, span.shape[0])
    if rank == D.shape[0] and (not exact or modular.spans(D, D)):
        # All rows are independent: nothing to choose.
        return _place(part, modular.identity_csr(used.size), used, span.shape[0], np.arange(used.size))
    for picked, coords in _choices(D, rank, order, R):
        some = sparse.csr_array(D[picked])
        whole = _whole_coordinates(D, some, picked, coords)
        if whole is not None or not exact or modular.spans(D, some):
            held = coords if whole is None else whole
            return _place(sparse.csr_array(part[picked]), held, used, span.shape[0], picked)
    raise InternalError("strategy: no independent rows were found that span the workload")


def _chosen_by_parts(
    D: Csr, number: int, label: Ints, exact: bool, before: Callable[[float], None] | None
) -> tuple[Csr, Csr, Ints | None]:
    """(rows, coordinates, which rows of D they are, where they are such) of parts that share no column, each apart."""
    order = np.argsort(label, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(label, minlength=number))
    held = sparse.csr_array(D)[order]
    known: dict[tuple[bytes, ...], Basis] = {}
    found: list[tuple[Ints, Ints, Basis]] = []
    for at, end in enumerate(ends.tolist()):
        own = slice(0 if at == 0 else int(ends[at - 1]), end)
        some = held[own]
        columns = np.unique(some.indices).astype(np.int64)
        local = columns_at(some, columns)
        key = tuple(each.tobytes() for each in (local.indptr, local.indices, local.data))
        if key not in known:
            every = np.arange(columns.size)  # no other rows told them apart
            ones = Diagonal(np.ones(local.shape[0]))
            known[key] = choose_basis(local, ones, exact=exact, found=Distinct(every, every), before=before)
        found.append((order[own], columns, known[key]))
    rows = sparse.csr_array(sparse.vstack([_widened(basis.rows, at, D.shape[1]) for _, at, basis in found]))
    back = [sparse.csr_array(basis.coords) for _, _, basis in found]
    coords = sparse.csr_array(sparse.block_diag(back, format="csr"))[np.argsort(order)]
    picks = [None if basis.picked is None else mine[basis.picked] for mine, _, basis in found]
    if any(pick is None for pick in picks):
        return rows, coords, None
    picked = np.concatenate([pick for pick in picks if pick is not None])
    natural = np.argsort(picked)  # in the order of the queries: neighbours concern the same attributes
    return rows[natural], coords[:, natural], picked[natural]


def _widened(rows: Csr, columns: Ints, n: int) -> Csr:
    """Rows over some columns as rows over all n."""
    return sparse.csr_array((rows.data, columns[rows.indices], rows.indptr), shape=(rows.shape[0], n))


def _each_alone(D: Csr) -> bool:
    """Has every column a row of its own, with no other entry? Then their rank is their number, exactly."""
    entries = np.diff(D.indptr)
    return bool(np.unique(D.indices[D.indptr[:-1][entries == 1]]).size == D.shape[1])


def _choices(D: Csr, rank: int, order: Ints, R: Floats) -> Iterator[tuple[Ints, Matrix]]:
    """Row choices to try: by the pivoted factor, then by elimination over a prime field."""
    coords = np.zeros((D.shape[0], rank))
    coords[order[:rank]] = np.eye(rank)
    coords[order[rank:]] = scipy.linalg.solve_triangular(R[:rank, :rank], R[:rank, rank:]).T
    natural = np.argsort(order[:rank])  # in the order of the queries: neighbours concern the same attributes
    yield order[:rank][natural], coords[:, natural]
    p = modular.PRIMES[0]
    work = np.ascontiguousarray(modular.residues(D.toarray(), p).T)
    picked = np.asarray(modular.eliminate(work, D.shape[0], p), dtype=np.int64)
    yield picked, coordinates(D, sparse.csr_array(D[picked]))


def _whole_coordinates(D: Csr, rows: Csr, picked: Ints, coords: Matrix, *, independent: bool = False) -> Floats | None:
    """``coords`` in whole numbers where these are proven: D = coords @ rows exactly, and rows of D are independent.

    None where they are no whole numbers, or may not fit, or where it is not seen that the rows are ``independent``.
    """
    near = np.rint(dense(coords))
    rest = np.setdiff1d(np.arange(D.shape[0]), picked)
    if np.abs(coords - near).max(initial=0.0) > _NEARLY or max_abs(near) * max_abs(rows) * rows.shape[0] >= 2**62:
        return None
    left = sparse.csr_array(near[rest].astype(np.int64)) @ rows
    if (sparse.csr_array(D[rest]) - left).count_nonzero():
        return None
    return near if independent or modular.independent(rows) else None


def _place(rows: Csr, coords: Matrix, used: Ints, q: int, picked: Ints | None = None) -> Basis:
    """Coordinates for all q rows from those of the ``used`` ones; ``picked``: of which the rows are."""
    if used.size < q:
        back = sparse.csr_array((np.ones(used.size), (used, np.arange(used.size))), shape=(q, used.size))
        coords = back @ coords
    coords = sparse.csr_array(coords).astype(np.float64) if is_sparse(coords) else coords
    return Basis(sparse.csr_array(rows).astype(np.int64), coords, None if picked is None else used[picked])


def _indicator(label: Ints, classes: int) -> Csr:
    used = np.flatnonzero(label >= 0)
    ones = np.ones(used.size, dtype=np.int64)
    return sparse.csr_array((ones, (label[used], used)), shape=(classes, label.size))


def _thin(D: Csr) -> Csr:
    """D (q x N) with q far above N replaced by 2 N + 64 random integer combinations of its rows."""
    q, N = D.shape
    if q <= 4 * N + 128:
        return D
    rng = np.random.default_rng(_SEED)
    mix = sparse.csr_array(
        (
            rng.integers(1, 1000, size=2 * q),
            (rng.integers(0, 2 * N + 64, size=2 * q), np.repeat(np.arange(q), 2)),
        ),
        shape=(2 * N + 64, q),
    )
    return sparse.csr_array(mix @ D)


def compress(D: Csr, buckets: int) -> Floats:
    """D (q x N) with N columns added up, with random signs, into ``buckets`` columns where N is larger.

    A sparse Johnson-Lindenstrauss map: row angles survive to about one part in ten, enough
    to pick rows; what depends on exactness is checked apart.
    """
    N = D.shape[1]
    if buckets >= N:
        return np.asarray(D.toarray(), dtype=np.float64)
    rng = np.random.default_rng(_SEED)
    place = rng.integers(0, buckets, size=(N, 2)).ravel()
    sign = rng.choice([-1.0, 1.0], size=2 * N)
    S = sparse.csr_array((sign, (np.repeat(np.arange(N), 2), place)), shape=(N, buckets))
    return np.asarray((D @ S).toarray(), dtype=np.float64)


def _pivots(D: Csr) -> tuple[int, Ints, Floats]:
    """(rank, row order, R) of the QR with pivoting of the rows of D scaled to the same length.

    R is scaled back, so R[:v, :v]^-1 R[:v, v:] are coordinates of the rows left out. Columns are compressed to
    a few hundred first and to four times as many while the rank is nearly their number. Cost O(q v^2).
    """
    q, N = D.shape
    buckets, most = _FIRST_BUCKETS, 8 * q + 64
    while True:
        if q * min(buckets, most, N) > _MOST_ENTRIES:
            raise DataError(
                f"strategy: {q:,} queries over {N:,} cells depend on each other in ways that would need a matrix of "
                f"more than {_MOST_ENTRIES:,} entries; ask for fewer groups, or coarser ones"
            )
        small = compress(D, min(buckets, most))
        length = np.sqrt((small**2).sum(axis=1))
        length[length == 0] = 1.0
        R, order = _pivoted((small / length[:, None]).T)
        diagonal = np.abs(np.diag(R))
        rank = int((diagonal > diagonal[0] * _TOLERANCE).sum())
        if 4 * rank <= 3 * small.shape[1] or small.shape[1] >= min(N, most):
            return rank, order, R * length[order]
        buckets *= 4


def coordinates(span: Sparse, rows: Sparse) -> Matrix:
    """coords (q x v) with span = coords @ rows; ndarray, or csr where ``rows`` fall into parts that share no column.

    Raises InternalError where the residual exceeds 1e-9 of the largest entry: ``span`` is not in
    the row space. Cost O((v + q) v^2 + nnz), v and q of one part; O(nnz) where all rows of ``span`` are among ``rows``.
    """
    chosen = _among(span, rows)
    if chosen is not None:
        return chosen
    if 4 * _ENTRIES * rows.shape[0] < rows.shape[1]:
        # Independent rows mostly are so on a few columns each, and what is solved there is checked on all.
        with suppress(InternalError):
            some = _some_columns(rows)
            coords = coordinates(columns_at(span, some), columns_at(rows, some))
            check(span, coords, rows)
            return coords
    # Columns that no row of the basis tells apart are alike in all that it spans.
    keep = distinct_columns(rows).keep
    S, B = columns_at(span, keep), columns_at(rows, keep)
    v, N = B.shape
    number, label = disjoint_blocks(B, np.arange(v))

    def solved(times: int, more: int) -> Matrix:
        if number > 1 or v == 1:
            return _by_parts(S, B, number, label, lambda size: times * size + more)
        both = sparse.csr_array(sparse.vstack([B, S], format="csr"))
        return _solved(compress(both, times * v + more), v)

    # What keeps the rows of B apart keeps the one solution, whatever becomes of the angles between rows of S. Rows with
    # entries in few columns may fall together; then more columns are needed.
    coords = solved(4, 64)
    try:
        check(span, coords, rows)
    except InternalError:
        if 4 * v + 64 >= N:
            raise
        coords = solved(64, 4096)
        check(span, coords, rows)
    return coords


def _among(span: Sparse, rows: Sparse) -> Csr | None:
    """The coordinates of ``span`` where each of its rows is one of ``rows``, or 0; else None."""
    v, q = rows.shape[0], span.shape[0]
    label = distinct_columns(sparse.csr_array(sparse.vstack([rows, span], format="csr").T)).label
    place = np.full(int(label.max(initial=-1)) + 2, -1)  # the last is of rows of zeros
    place[label[:v][::-1]] = np.arange(v)[::-1]
    used = np.flatnonzero(label[v:] >= 0)
    chosen = place[label[v:][used]]
    if (chosen < 0).any():
        return None
    return sparse.csr_array((np.ones(used.size), (used, chosen)), shape=(q, v))


def _some_columns(rows: Sparse) -> Ints:
    """Columns of up to 64 entries of each row, drawn from a fixed seed, in ascending order."""
    csr = sparse.csr_array(rows)
    lengths = np.diff(csr.indptr)
    shares = np.random.default_rng(_SEED).random((lengths.size, _ENTRIES))
    at = csr.indptr[:-1, None] + (shares * lengths[:, None]).astype(np.int64)
    return np.unique(csr.indices[at[lengths > 0]]).astype(np.int64)


def _by_parts(S: Csr, B: Csr, number: int, label: Ints, buckets: Callable[[int], int]) -> Csr:
    """The coordinates of S in rows B that fall into ``number`` parts by ``label``; those of parts alike solved once.

    ``buckets``: to how many columns a part of so many rows is compressed.
    """
    q, v = S.shape[0], B.shape[0]
    tall = np.bincount(label, minlength=number)
    held = sparse.csc_array(B)
    part = label[held.indices[held.indptr[:-1]]]  # of each column; none is zero
    found = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))]  # where no part is asked of

    # Rows that are parts by themselves are read off one of their columns.
    lone, first = np.unique(part, return_index=True)
    first = first[tall[lone] == 1]
    if first.size:
        read = sparse.coo_array(S[:, first] @ sparse.diags_array(1.0 / held.data[held.indptr[first]]))
        own = held.indices[held.indptr[first]].astype(np.int64)
        found.append((read.row.astype(np.int64), own[read.col], read.data))

    by_row, by_column = np.argsort(label, kind="stable"), np.argsort(part, kind="stable")
    row_end, column_end = np.cumsum(tall), np.cumsum(np.bincount(part, minlength=number))
    at_row, at_column = np.empty(v, dtype=np.int64), np.empty(part.size, dtype=np.int64)
    at_row[by_row], at_column[by_column] = np.arange(v), np.arange(part.size)
    mine, asked = (_sorted_by(part, sparse.coo_array(matrix), number) for matrix in (B, S))
    known: dict[tuple[tuple[int, int], bytes], Floats] = {}
    for c in np.flatnonzero(tall > 1).tolist():
        rows, start = by_row[row_end[c] - tall[c] : row_end[c]], 0 if c == 0 else column_end[c - 1]
        (i, j, x), (k, n, y) = mine(c), asked(c)
        touched, k = np.unique(k, return_inverse=True)
        if not touched.size:
            continue
        shape = (rows.size + touched.size, int(column_end[c] - start))
        line = np.concatenate([at_row[i] - (row_end[c] - tall[c]), rows.size + k])
        place = np.concatenate([at_column[j], at_column[n]]) - start
        entries = np.concatenate([x, y])
        key = shape, line.tobytes() + place.tobytes() + entries.tobytes()
        if key not in known:
            both = sparse.csr_array(sparse.coo_array((entries, (line, place)), shape=shape))
            known[key] = _solved(compress(both, buckets(rows.size)), rows.size)
        found.append((np.repeat(touched, rows.size), np.tile(rows, touched.size), known[key].ravel()))
    line, place, values = (np.concatenate(each) for each in zip(*found, strict=True))
    # Most are whole numbers, 0 above all, which rounding has moved by less than the check could see.
    near, (of_asked, of_rows) = np.rint(values), (abs(matrix).max(axis=1).toarray() for matrix in (S, B))
    values = np.where(np.abs(values - near) * of_rows[place] <= _ROUNDING * of_asked[line], near, values)
    coords = sparse.csr_array(sparse.coo_array((values, (line, place)), shape=(q, v)))
    coords.eliminate_zeros()
    return coords


def _sorted_by(part: Ints, matrix: sparse.coo_array, number: int) -> Callable[[int], tuple[Ints, Ints, Floats]]:
    """What gives the entries (row, column, value) of one part, by the part of each column."""
    owner = part[matrix.col]
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=number))
    row, col = (each[order].astype(np.int64) for each in (matrix.row, matrix.col))
    data = matrix.data[order].astype(np.float64)

    def of(c: int) -> tuple[Ints, Ints, Floats]:
        held = slice(0 if c == 0 else ends[c - 1], ends[c])
        return row[held], col[held], data[held]

    return of


def _pivoted(tall: Floats) -> tuple[Floats, Ints]:
    """(R, order of the columns) of a decomposition with the longest columns first."""
    work = _QR * float(min(tall.shape)) * tall.size
    found = interruptible(lambda: scipy.linalg.qr(tall, mode="r", pivoting=True), work)
    return np.asarray(found[0], dtype=np.float64), found[1].astype(np.int64)


def _solved(sketch: Floats, v: int) -> Floats:
    """coords with the rows from v on as combinations of the first v, by least squares."""
    work = _QR * float(v) ** 2 * sketch.shape[1]
    Q, R = interruptible(lambda: scipy.linalg.qr(sketch[:v].T, mode="economic", check_finite=False), work)
    diagonal = np.abs(np.diag(R))
    if v and len(R) == v and diagonal.min() > diagonal.max() * _TOLERANCE:
        coords = scipy.linalg.solve_triangular(R, Q.T @ sketch[v:].T, check_finite=False).T
    else:
        coords = scipy.linalg.lstsq(sketch[:v].T, sketch[v:].T, lapack_driver="gelsy", cond=1e-13)[0].T
    return coords


def sketched_coordinates(span: Csr, rows: Sparse) -> Floats:
    """``coordinates`` where independent ``rows`` are known to span ``span``: solved and checked on a sketch alone.

    A residual of the sketch has, nearly surely, the size of the residual. Cost O(nnz + q v^2).
    """
    v = rows.shape[0]
    sketch = compress(sparse.csr_array(sparse.vstack([rows, span], format="csr")), 4 * v + 64)
    coords = _solved(sketch, v)
    rest = np.abs(sketch[v:] - coords @ sketch[:v]).max(initial=0.0)
    if not rest <= 1e-9 * max(float(np.abs(sketch[v:]).max(initial=0.0)), 1e-300):
        raise InternalError("strategy: the workload is not in the row space of this strategy; select for it")
    return coords


def check(S: Sparse, coords: Matrix, B: Sparse) -> None:
    """InternalError unless coords @ B = S to 1e-9 of the largest entry of S.

    The residual of a large S is seen along 16 random directions: a row of which one entry is too large passes
    all of them with a probability below 1e-9.
    """
    scale = max(float(np.abs(S.data).max(initial=0.0)), 1e-300)
    if S.shape[0] * S.shape[1] > _DENSE_CAP // 8 and not is_sparse(coords):
        directions = np.random.default_rng(_SEED).normal(size=(S.shape[1], _DIRECTIONS))
        worst = np.abs(S @ directions - coords @ (B @ directions)).max(initial=0.0)
        if not worst <= 1e-9 * scale:  # also where it is no number
            raise InternalError("strategy: the workload is not in the row space of this strategy; select for it")
        return
    if is_sparse(coords):
        left, held = sparse.csr_array(coords), sparse.csr_array(S)
        open_rows = ~_whole_products(held, left, B)
        if not open_rows.any():
            return
        S, coords = held[open_rows], left[open_rows]
    for rest in _residuals(S, coords, B):
        worst = np.abs(rest).max(initial=0.0)
        if not worst <= 1e-9 * scale:  # also where it is no number
            raise InternalError("strategy: the workload is not in the row space of this strategy; select for it")


def _whole_products(S: Csr, coords: Csr, B: Sparse) -> Flags:
    """Which rows of coords @ B are those of S, for coordinates in whole numbers; no row of others.

    Along two random directions modulo 2^64: a row that differs by less than 2^32 passes with a probability of 2^-64.
    """
    whole = np.ones(coords.nnz + 1, dtype=bool)
    whole[:-1] = (coords.data == np.rint(coords.data)) & (np.abs(coords.data) < 2.0**53)
    rows = np.logical_and.reduceat(whole, coords.indptr[:-1]) | (np.diff(coords.indptr) == 0)
    directions = np.random.default_rng(_SEED).integers(-(2**63), 2**63, size=(S.shape[1], 2))
    integer = sparse.csr_array(
        (np.where(whole[:-1], coords.data, 0).astype(np.int64), coords.indices, coords.indptr), coords.shape
    )
    rest = S @ directions - integer @ (B @ directions)
    return np.asarray(rows & ~rest.any(axis=1))


def _residuals(S: Sparse, coords: Matrix, B: Sparse) -> Iterator[Floats]:
    """The entries of S - coords @ B, those of some rows, or columns where coords are dense, after the other."""
    if is_sparse(coords):
        left, held, rows = sparse.csr_array(coords), sparse.csr_array(S), sparse.csr_array(B)
        step = max(1, _RESIDUALS // max(1, S.shape[1]))
        for at in range(0, S.shape[0], step):
            yield (held[at : at + step] - left[at : at + step] @ rows).data
        return
    S, B = sparse.csc_array(S), sparse.csc_array(B)  # whose columns are cheap to slice
    for at in range(0, S.shape[1], 4096):
        yield np.asarray(S[:, at : at + 4096] - coords @ B[:, at : at + 4096])
