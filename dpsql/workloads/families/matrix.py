"""Workloads: what is asked of the data vector x, as W = F @ span.

``span`` (q x n) is an integer matrix whose rows span the queries, ``inner`` (F, m x q) is
kept as algebra. A batch of SQL queries is span = its distinct integer rows and F = diag(scale);
all ranges over 1024 cells is span = identity and F = ``Ranges(1024)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Ints, Sparse
from dpsql.common.numerics import FIT
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.columns import columns_at, distinct_columns
from dpsql.linalg.exact import max_abs
from dpsql.linalg.forms import MATRIX_CAP, dense, is_sparse
from dpsql.workloads.families.contributions import Contributions

OF_ROWS = "of rows"  # what is kept of the rows alone, and shared by all weighings of them
_FLOAT_BITS = 36  # spanning rows of a rank-deficient float matrix are kept to 2^-36


@dataclass(frozen=True, eq=False)
class Workload:
    """W = inner @ span, m queries over n columns.

    ``contributions`` (n x c, integer csr) holds the extreme points by which one record may
    change x; None stands for the identity, one record in one column. ``groups`` (m,) labels
    rows that concern the same set of attributes. ``exact`` keeps the entries of a workload
    given in floats whose spanning rows are integers only to 2^-36. ``units``: what one unit can change, where it is
    more than one corner of one source; ``contributions`` are then its columns, or some of them where they are too many
    to be listed.
    """

    span: Csr
    inner: algebra.Inner
    contributions: Csr | None = None
    groups: Ints | None = None
    name: str = ""
    factors: tuple[Workload, ...] = ()
    exact: Floats | None = None
    units: Contributions | None = None
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        m, q = self.inner.shape
        if self.span.shape[0] != q:
            raise DataError(f"workload: {q} inner columns do not fit {self.span.shape[0]} spanning rows")
        if m == 0 or self.span.shape[1] == 0:
            raise DataError("workload: it has no queries or no cells; give at least one of each")
        if self.contributions is not None and self.contributions.shape[0] != self.span.shape[1]:
            raise DataError(
                f"workload: contributions have {self.contributions.shape[0]} rows for "
                f"{self.span.shape[1]} columns; give one row a column"
            )
        if self.groups is not None and self.groups.shape != (m,):
            raise DataError(f"workload: {self.groups.size} group labels for {m} queries; give one a query")
        _check_floats(self.inner)
        if self.contributions is not None:
            # Sensitivities are exact only while no sum of span @ contributions leaves int64.
            tallest = int(np.bincount(sparse.csr_array(self.contributions).indices, minlength=1).max())
            if max_abs(self.span) * max_abs(self.contributions) * tallest >= FIT:
                raise DataError(
                    "workload: one record could move a query by 2^62 of its integer steps or more; use coarser steps"
                )

    @classmethod
    def from_rows(
        cls,
        rows: ArrayLike | Sparse,
        scale: ArrayLike,
        *,
        contributions: ArrayLike | Sparse | None = None,
        groups: ArrayLike | None = None,
        name: str = "",
        units: Contributions | None = None,
    ) -> Workload:
        """W = diag(scale) @ rows for integer ``rows`` (m x n, sparse or dense) and floats ``scale`` (m,).

        Rows are divided by their greatest common divisor, which goes into ``scale``; rows of
        scale zero become rows of zeros. Raises DataError where shapes differ, entries are not integers, or a scale
        is not finite.
        """
        matrix = _integer_csr(rows, "rows")
        try:
            weights = np.array(scale, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise DataError("workload: scales must be real numbers, one a row") from None
        if weights.shape != (matrix.shape[0],):
            raise DataError(f"workload: {weights.size} scales for {matrix.shape[0]} rows; give one a row")
        if not np.isfinite(weights).all():
            raise DataError("workload: a scale is not finite; give finite numbers")
        if (weights == 0).any():  # W has a row of zeros there, so the spanning rows have one
            matrix.data *= np.repeat(weights != 0, np.diff(matrix.indptr))
            matrix.eliminate_zeros()
        lengths = np.diff(matrix.indptr)
        filled = np.flatnonzero(lengths)
        if filled.size:
            divisor = np.ones(matrix.shape[0], dtype=np.int64)
            divisor[filled] = np.gcd.reduceat(np.abs(matrix.data), matrix.indptr[:-1][filled])
            if (divisor > 1).any():
                matrix.data //= np.repeat(divisor, lengths)
                weights = weights * divisor
        labels = None if groups is None else np.asarray(groups, dtype=np.int64)
        extreme = None if contributions is None else _integer_csr(contributions, "contributions")
        return cls(matrix, algebra.Diagonal(weights), extreme, labels, name, units=units)

    def __repr__(self) -> str:
        return f"<Workload {self.name or 'W'}: {self.shape[0]} queries over {self.shape[1]} columns>"

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inner.shape[0], self.span.shape[1])

    as_marginals: ClassVar[None] = None

    def explicit(self) -> Workload:
        """Itself; ``Marginals`` write their rows out."""
        return self

    def moved(self, rows: Sparse, at: Ints | None = None) -> Csr:
        """rows @ contributions for ``rows`` (k x n): what records change of them; ``at``: these columns (ascending)."""
        if self.contributions is None:
            return sparse.csr_array(rows) if at is None else columns_at(rows, at)
        return sparse.csr_array(rows @ (self.contributions if at is None else columns_at(self.contributions, at)))

    @property
    def changes(self) -> int:
        """How many columns ``contributions`` have."""
        return self.shape[1] if self.contributions is None else self.contributions.shape[1]

    @property
    def rows(self) -> Csr:
        """The integer rows of an explicit workload, W = diag(scale) @ rows; DataError otherwise."""
        self._explicit()
        return self.span

    @property
    def scale(self) -> Floats:
        """The scales of an explicit workload, W = diag(scale) @ rows; DataError otherwise."""
        return self._explicit().scale

    def weighed(self, scale: Floats) -> Workload:
        """The same rows, ``scale`` (m,) times as heavy; DataError where they are not explicit."""
        if scale.all():
            shared = self._cache.setdefault(OF_ROWS, {})
            return replace(self, inner=algebra.Diagonal(self.scale * scale), _cache={OF_ROWS: shared})
        alike = {name: getattr(self, name) for name in ("contributions", "groups", "name", "units")}
        return Workload.from_rows(self.span, self.scale * scale, **alike)

    def some_rows(self, mine: Ints, scale: Floats) -> Workload:
        """diag(scale) @ span[mine], without groups; what is kept of these rows is shared by all weighings."""
        shared = self._cache.setdefault(OF_ROWS, {}).setdefault(("rows", mine.tobytes()), {})
        rows, inner = sparse.csr_array(self.span[mine]), algebra.Diagonal(scale)
        return Workload(rows, inner, self.contributions, None, self.name, _cache={OF_ROWS: shared})

    def _explicit(self) -> algebra.Diagonal:
        if not isinstance(self.inner, algebra.Diagonal):
            raise DataError(f"workload {self.name or 'W'}: it is not kept row by row; use matrix() or gram()")
        return self.inner

    @property
    def rank(self) -> int:
        """Rank of W: exact for integer workloads, numerical (1e-10) for floats."""
        from dpsql.linalg.basis import choose_basis

        if "rank" not in self._cache:
            found = choose_basis(self.span, self.inner, exact=self.exact is None)
            self._cache["rank"] = found.rows.shape[0]
        return int(self._cache["rank"])

    @property
    def log2_scale(self) -> float:
        """log2 of the factor by which the workload meant exceeds W: 0 but for all predicates over many cells.

        Errors and bounds of the workload meant are 4^log2_scale times those of W.
        """
        return self.inner.log2_scale

    def gram(self) -> Floats:
        """G = W^T W (n x n), dense. Raises DataError above 2^27 entries."""
        n = self.shape[1]
        self._cap(n, n, "its Gram matrix")
        if self.exact is not None:
            return np.asarray(self.exact.T @ self.exact)
        diagonal = self.inner.diagonal()
        if diagonal is not None:
            scaled = self.span.T @ sparse.diags_array(diagonal) @ self.span
            return np.asarray(scaled.toarray(), dtype=np.float64)
        half = self.span.T @ self.inner.gram()
        return np.asarray((self.span.T @ half.T).T, dtype=np.float64)

    def matrix(self) -> Floats:
        """W (m x n), dense float64. Raises DataError above 2^27 entries (1 GiB)."""
        self._cap(*self.shape, "its matrix")
        if self.exact is not None:
            return self.exact.copy()
        left = self.inner.matrix()
        out = left @ self.span
        return np.asarray(dense(out), dtype=np.float64)

    def _cap(self, rows: int, columns: int, what: str) -> None:
        if rows * columns > MATRIX_CAP:
            raise DataError(
                f"workload {self.name or 'W'}: {what} would have {rows} x {columns} entries, "
                f"above the cap of {MATRIX_CAP}; ask for errors instead of entries, or a smaller workload"
            )


def _check_floats(inner: algebra.Inner) -> None:
    """DataError where a weight or entry is not finite, or its square would leave float range."""
    if isinstance(inner, algebra.Kron | algebra.Blocks):
        for part in inner.factors if isinstance(inner, algebra.Kron) else inner.parts:
            _check_floats(part)
    values: Array = np.zeros(0)
    if isinstance(inner, algebra.Diagonal):
        values = inner.scale
    elif isinstance(inner, algebra.Dense):
        values = dense(inner.entries)
    elif isinstance(inner, algebra.Blocks):
        values = np.asarray(inner.weights)
    if not np.isfinite(values).all():
        raise DataError("workload: a weight or an entry is not finite; give finite numbers")
    size = np.abs(values)
    large = float(size.max(initial=0.0))
    small = large if isinstance(inner, algebra.Dense) else float(size[size > 0].min(initial=np.inf))
    if large > 1e150 or 0 < small < 1e-150:  # so that their squares are floats
        raise DataError("workload: weights and entries must lie between 1e-150 and 1e150; change their unit")


def _integer_csr(values: ArrayLike | Sparse, what: str) -> Csr:
    """A fresh int64 csr_array in canonical form; DataError where an entry is not an integer below 2^62."""
    try:
        matrix: Csr = sparse.csr_array(values if is_sparse(values) else np.asarray(values))
    except (TypeError, ValueError):
        raise DataError(f"workload: {what} must be a matrix of integers") from None
    if matrix.ndim != 2:
        raise DataError(f"workload: {what} must be a matrix; give two dimensions")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"workload: {what} must be a matrix of integers, not of {matrix.dtype}")
    if matrix.dtype.kind == "f" and not np.isfinite(matrix.data).all():
        raise DataError(f"workload: {what} must be finite integers")
    if matrix.dtype.kind != "b" and max_abs(matrix) >= FIT:
        raise DataError(f"workload: {what} must be integers below 2^62; use from_matrix for floats")
    rounded = matrix.astype(np.int64)
    if matrix.dtype.kind not in "iub" and not np.array_equal(rounded.data.astype(np.float64), matrix.data):
        raise DataError(f"workload: {what} must be integers; use from_matrix for floats")
    if rounded is matrix or rounded.data is matrix.data:
        rounded = rounded.copy()
    rounded.sum_duplicates()
    rounded.eliminate_zeros()
    return rounded


def from_matrix(entries: ArrayLike | Sparse, *, name: str = "") -> Workload:
    """A workload of any finite matrix W (m x n), dense or sparse.

    Rows that are integers, or one factor times integers of at most 2^20, are kept exactly. Other
    matrices: equal columns are merged; where the merged matrix lacks full column rank its row
    space is written as [I, T] and rounded to 2^-36, so answers are reproduced to a relative
    1e-10, not exactly. Cost O(m n min(m, n)). Raises DataError for what is no matrix of real numbers, for entries
    that are not finite or whose squares leave float range, and for more than 2^27 entries written out.
    """
    given = entries
    if is_sparse(given):
        sparse_entries = sparse.csr_array(given)
        if sparse_entries.ndim == 2 and sparse_entries.dtype.kind in "biuf":
            whole = np.array_equal(sparse_entries.data, np.rint(sparse_entries.data))
            if whole and np.abs(sparse_entries.data).max(initial=0) < 2**53:
                return Workload.from_rows(sparse_entries, np.ones(sparse_entries.shape[0]), name=name or "matrix")
        if sparse_entries.ndim == 2 and sparse_entries.shape[0] * sparse_entries.shape[1] > MATRIX_CAP:
            m, n = sparse_entries.shape
            raise DataError(
                f"workload: a matrix of {m} x {n} entries that are not integers is above the cap of {MATRIX_CAP}; "
                "give integer rows and their scales to Workload.from_rows"
            )
        given = sparse_entries.toarray()
    try:
        W: Array = np.array(given)
        if W.dtype.kind not in "biuf":
            raise DataError(f"workload: entries must be real numbers, not {W.dtype}")
        W = W.astype(np.float64)
    except (TypeError, ValueError):  # rows of different lengths
        raise DataError("workload: a matrix with rows of equal length is needed") from None
    if W.ndim != 2 or W.size == 0:
        raise DataError("workload: a matrix with at least one row and one column is needed")
    if W.size > MATRIX_CAP:
        raise DataError(
            f"workload: a matrix of {W.shape[0]} x {W.shape[1]} entries is above the cap of {MATRIX_CAP}; give "
            "integer rows as a sparse matrix"
        )
    if not np.isfinite(W).all():
        raise DataError("workload: an entry is not finite; give finite numbers")
    _check_floats(algebra.Dense(W))
    label = name or "matrix"
    unit = np.where(W != 0, np.abs(W), np.inf).min(axis=1)
    unit[~np.isfinite(unit)] = 1.0
    for scale in (np.ones(W.shape[0]), unit):
        steps = W / scale[:, None]
        if np.abs(steps).max() <= 2**20 and np.array_equal(np.rint(steps) * scale[:, None], W):
            return Workload.from_rows(np.rint(steps).astype(np.int64), scale, name=label)
    bits = np.asarray(W, dtype=np.float64).view(np.int64) * (W != 0)
    found = distinct_columns(sparse.csr_array(np.asarray(bits, dtype=np.int64)))
    merged = W[:, found.keep]
    used = found.label >= 0
    lift = sparse.csr_array(
        (np.ones(int(used.sum()), dtype=np.int64), (found.label[used], np.flatnonzero(used))),
        shape=(found.keep.size, W.shape[1]),
    )
    _, R, order = scipy.linalg.qr(merged, mode="economic", pivoting=True)
    diagonal = np.abs(np.diag(R))
    v = int((diagonal > diagonal[0] * 1e-10).sum())
    if v == merged.shape[1]:
        return Workload(lift, algebra.Dense(merged), name=label, exact=W)
    # [I, T] in the pivoted order: pivoting keeps the entries of T small.
    T = scipy.linalg.solve_triangular(R[:v, :v], R[:v, v:])
    rows = np.zeros((v, merged.shape[1]))
    rows[:, order[:v]] = np.eye(v)
    rows[:, order[v:]] = T
    integer = sparse.csr_array(np.rint(np.ldexp(rows, _FLOAT_BITS)).astype(np.int64))
    span = sparse.csr_array(integer @ lift)
    out = Workload(span, algebra.Dense(np.ldexp(merged[:, order[:v]], -_FLOAT_BITS)), name=label, exact=W)
    if np.abs(out.inner.matrix() @ span - W).max() > 1e-9 * np.abs(W).max():
        raise DataError("workload: its rank cannot be told from rounding; leave out nearly dependent queries")
    return out
